//! The root file system up to one layer: Debian's packages, our files over them, programs and units, then everything that would
//! differ between two builds taken out.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::super::base::Base;
use super::super::compose::{identify, install, normalize};
use super::recipe::{Layer, Recipe};
use super::{Programs, pause};
use crate::progress::Step;

/// Path of the pause image in the node image.
const PAUSE: &str = "usr/share/bedplate/pause.tar";

/// Inputs of a build.
pub(super) struct Inputs<'a> {
    pub(super) recipe: &'a Recipe,
    /// Debian's part, one for each layer.
    pub(super) bases: &'a [Base],
    pub(super) source: &'a Path,
    pub(super) programs: Programs<'a>,
    pub(super) pause: &'a Path,
    pub(super) inputs: &'a str,
}

/// Makes the tree of the layers up to `number` below `work`, and gives its directory.
pub(super) fn compose(step: &Step, inputs: &Inputs<'_>, number: usize, work: &Path) -> Result<PathBuf> {
    let root = work.join(format!("root-{number}"));
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    let base = inputs.bases.get(number).context("a layer has no base")?;
    let mut tar = Command::new("tar");
    tar.args(["--numeric-owner", "--xattrs", "--xattrs-include=*", "-xpf"]);
    step.run(tar.arg(base.root()).arg("-C").arg(&root))?;
    install(&base.packages(), &root.join("usr/share/bedplate/packages.txt"), 0o644)?;
    for layer in inputs.recipe.layers.iter().take(number + 1) {
        add(step, inputs, layer, &root, work)?;
    }
    let mut target = Command::new("chroot");
    step.run(
        target.arg(&root).args(["systemctl", "--quiet", "set-default"]).arg(&inputs.recipe.default_target),
    )?;
    if number + 1 == inputs.recipe.layers.len() {
        // In the last layer: it names all inputs, and the others are shared.
        identify(&root, "node", inputs.inputs)?;
    }
    normalize(&root)?;
    // The kubelet reads it, and there may be no name server at all.
    fs::write(root.join("etc/resolv.conf"), "").context("cannot write the image's resolv.conf")?;
    Ok(root)
}

fn add(step: &Step, inputs: &Inputs<'_>, layer: &Layer, root: &Path, work: &Path) -> Result<()> {
    lay_over(&inputs.source.join(&layer.name), root)?;
    for program in &layer.programs {
        install(&inputs.programs.path(program), &root.join("usr/bin").join(program), 0o755)?;
    }
    for directory in &layer.directories {
        let path = root.join(directory);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    if layer.enable.iter().any(|unit| unit == "bedplate-pause.service") {
        let image = pause::image(step, inputs.pause, inputs.recipe.source_date_epoch, work)?;
        install(&image, &root.join(PAUSE), 0o644)?;
    }
    for (verb, units) in [("enable", &layer.enable), ("mask", &layer.mask)] {
        let mut command = Command::new("chroot");
        command.arg(root).args(["systemctl", "--quiet", verb]).args(units);
        if !units.is_empty() {
            step.run(&mut command)?;
        }
    }
    Ok(())
}

/// Copies a directory of the repository over the tree. Of the permissions only "executable" counts. The
/// others depend on the umask of the checkout.
fn lay_over(from: &Path, to: &Path) -> Result<()> {
    let context = || format!("cannot copy {} to {}", from.display(), to.display());
    for entry in fs::read_dir(from).with_context(context)? {
        let entry = entry.with_context(context)?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let metadata = fs::symlink_metadata(&source).with_context(context)?;
        if metadata.is_dir() {
            fs::create_dir_all(&target).with_context(context)?;
            lay_over(&source, &target)?;
        } else if metadata.is_symlink() {
            symlink(fs::read_link(&source).with_context(context)?, &target).with_context(context)?;
        } else {
            let mode = if metadata.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
            install(&source, &target, mode)?;
        }
    }
    Ok(())
}
