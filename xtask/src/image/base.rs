//! What comes from Debian: a root file system as mmdebstrap makes it, and a kernel package. Kept in
//! `<cache>/images/base-<hash of what the recipe says of packages>`, because it is what takes time and network.
//!
//! The newest versions at the first build stay until the recipe changes or somebody asks for a fresh build;
//! `packages.txt` beside them says which they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::recipe::{Hasher, Recipe, hash_file};
use super::{FORMAT, Kernel};
use crate::progress;

/// What Debian gave.
pub(super) struct Base {
    /// Names exactly this content.
    pub(super) id: String,
    /// Root file system.
    pub(super) root: PathBuf,
    /// Kernel package (.deb).
    pub(super) kernel: PathBuf,
    /// Every package with its version.
    pub(super) packages: PathBuf,
}

/// Takes the base of this recipe from the cache, or makes it.
pub(super) fn ensure(recipe: &Recipe, kernel: Kernel, images: &Path, fresh: bool) -> Result<Base> {
    let mut key = Hasher::new();
    key.add("format", &FORMAT.to_le_bytes());
    key.add("suite", recipe.suite.as_bytes());
    key.add("time", &recipe.source_date_epoch.to_le_bytes());
    key.add("kernel", recipe.kernel_package(kernel)?.as_bytes());
    for list in [&recipe.mirrors, &recipe.packages, &recipe.exclude, &recipe.include] {
        key.add("list", list.join("\n").as_bytes());
    }
    let key: String = key.finish().chars().take(16).collect();
    let place = images.join(format!("base-{key}"));
    if !fresh && let Ok(id) = fs::read_to_string(place.join("id")) {
        return Ok(Base::at(&place, id));
    }
    let next = images.join(format!(".base-{key}-{}", std::process::id()));
    let made =
        progress::step("host image: Debian packages and kernel", |step| make(step, recipe, kernel, &next));
    if let Err(error) = made {
        let _ = fs::remove_dir_all(&next);
        return Err(error.context("the packages come from the recipe's mirrors: check the network and `mirrors` in images/host/recipe.toml"));
    }
    let _ = fs::remove_dir_all(&place);
    fs::rename(&next, &place).with_context(|| format!("cannot make {}", place.display()))?;
    let id = fs::read_to_string(place.join("id")).context("the base has no id")?;
    Ok(Base::at(&place, id))
}

impl Base {
    fn at(place: &Path, id: String) -> Self {
        let file = |name: &str| place.join(name);
        Self { id, root: file("root.tar"), kernel: file("kernel.deb"), packages: file("packages.txt") }
    }
}

fn make(step: &progress::Step, recipe: &Recipe, kernel: Kernel, place: &Path) -> Result<()> {
    fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
    let base = Base::at(place, String::new());
    // The package that the meta package stands for, from the same mirrors as the rest. It is not installed: its scripts would
    // make an initramfs that we do not want.
    let download = format!(
        "--extract-hook=set -e; export APT_CONFIG=\"$MMDEBSTRAP_APT_CONFIG\"; cd '{}'; \
         real=$(apt-cache depends {} | sed -n 's/^ *Depends: \\(linux-image-[^ ]*\\)$/\\1/p' | head -n1); \
         apt-get -q download \"$real\"; mv ./linux-image-*.deb kernel.deb",
        place.display(),
        recipe.kernel_package(kernel)?
    );
    let mut command = Command::new("mmdebstrap");
    command.env("SOURCE_DATE_EPOCH", recipe.source_date_epoch.to_string()).env("LC_ALL", "C.UTF-8");
    command.args(["--variant=minbase", "--mode=root", "--architectures=amd64"]);
    command.arg(format!("--include={}", recipe.packages.join(",")));
    command.arg(format!("--keyring={}", recipe.keyring));
    command.args(recipe.exclude.iter().map(|path| format!("--dpkgopt=path-exclude={path}")));
    command.args(recipe.include.iter().map(|path| format!("--dpkgopt=path-include={path}")));
    command.args(["--aptopt=Acquire::Retries \"3\"", "--aptopt=APT::Install-Recommends \"false\""]);
    // As every Debian since 12, without usrmerge's help.
    command.arg("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr").arg(download);
    command.arg(&recipe.suite).arg(&base.root).args(&recipe.mirrors);
    step.run(&mut command)?;
    list_packages(&base)?;
    let mut id = Hasher::new();
    id.add("root", hash_file(&base.root)?.as_bytes());
    id.add("kernel", hash_file(&base.kernel)?.as_bytes());
    fs::write(place.join("id"), id.finish()).context("cannot write the base's id")
}

/// Writes what is inside, for people and for comparing two builds.
fn list_packages(base: &Base) -> Result<()> {
    let mut tar = Command::new("tar");
    let output = tar.arg("-xOf").arg(&base.root).arg("./var/lib/dpkg/status").output();
    let output = output.context("cannot run tar to list the image's packages")?;
    let status = String::from_utf8_lossy(&output.stdout);
    let field = |paragraph: &str, name: &str| {
        let line = paragraph.lines().find_map(|line| line.strip_prefix(name).map(str::trim));
        line.unwrap_or_default().to_owned()
    };
    let mut lines: Vec<String> = status
        .split("\n\n")
        .filter(|paragraph| !paragraph.trim().is_empty())
        .map(|paragraph| format!("{} {}", field(paragraph, "Package:"), field(paragraph, "Version:")))
        .collect();
    let kernel = Command::new("dpkg-deb").arg("--show").arg(&base.kernel).output();
    let kernel = kernel.context("cannot run dpkg-deb to see the kernel's version")?;
    lines.push(String::from_utf8_lossy(&kernel.stdout).trim().replace('\t', " "));
    lines.sort();
    fs::write(&base.packages, lines.join("\n") + "\n").context("cannot write the list of packages")
}
