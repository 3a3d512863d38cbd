//! The root file system: Debian's, our files over it, the agent, the kernel's modules; then everything that would differ
//! between two builds taken out, and packed as squashfs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Options;
use super::base::Base;
use super::recipe::Recipe;
use crate::progress::Step;

/// Inputs of a build.
pub(super) struct Inputs<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) base: &'a Base,
    pub(super) source: &'a Path,
    pub(super) options: &'a Options,
    pub(super) inputs: &'a str,
}

/// The composed root file system.
pub(super) struct Root {
    /// Directory of the root file system.
    pub(super) path: PathBuf,
    /// The kernel (bzImage).
    pub(super) kernel: PathBuf,
    /// The kernel's release.
    pub(super) release: String,
}

/// Left behind by package scripts and the builder: logs, caches, identities.
const REMOVE: &[&str] = &[
    "etc/.pwd.lock",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "etc/subuid-",
    "etc/subgid-",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
    "var/lib/dbus/machine-id",
    "var/lib/dpkg/lock",
    "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/status-old",
    "var/lib/dpkg/available-old",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/catalog/database",
    "var/cache/ldconfig/aux-cache",
];
/// Emptied, the directory stays.
const EMPTY: &[&str] = &[
    "boot",
    "dev",
    "run",
    "tmp",
    "var/cache/apt",
    "var/cache/debconf",
    "var/lib/apt/lists",
    "var/log",
    "var/tmp",
];

/// Unpacks and composes.
pub(super) fn root(step: &Step, inputs: &Inputs<'_>, work: &Path) -> Result<Root> {
    let path = work.join("root");
    fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut tar = Command::new("tar");
    step.run(tar.args(["--numeric-owner", "-xpf"]).arg(inputs.base.root()).arg("-C").arg(&path))?;
    let (kernel, release) = kernel(step, inputs, &path, work)?;
    let mut copy = Command::new("cp");
    let files = inputs.source.join("files/.");
    step.run(copy.args(["-R", "--no-preserve=ownership", "--preserve=mode"]).arg(files).arg(&path))?;
    install(&inputs.options.agent, &path.join("usr/bin/bedplate-agent"), 0o755)?;
    install(&inputs.options.unit, &path.join("usr/lib/systemd/system/bedplate-agent.service"), 0o644)?;
    install(&inputs.base.packages(), &path.join("usr/share/bedplate/packages.txt"), 0o644)?;
    let systemctl = |verb: &str| {
        let mut command = Command::new("chroot");
        command.arg(&path).args(["systemctl", "--quiet", verb]);
        command
    };
    step.run(systemctl("enable").args(&inputs.recipe.enable))?;
    step.run(systemctl("mask").args(&inputs.recipe.mask))?;
    step.run(systemctl("set-default").arg(&inputs.recipe.default_target))?;
    for name in &inputs.recipe.rootfs.remove {
        let _ = fs::remove_dir_all(path.join(name));
    }
    identify(&path, "host", inputs.inputs)?;
    normalize(&path)?;
    Ok(Root { path, kernel, release })
}

/// Unpacks the kernel package: the kernel next to the root, its modules into the root, with their index and
/// configuration.
fn kernel(step: &Step, inputs: &Inputs<'_>, root: &Path, work: &Path) -> Result<(PathBuf, String)> {
    let unpacked = work.join("kernel");
    step.run(Command::new("dpkg-deb").arg("-x").arg(inputs.base.kernel()).arg(&unpacked))?;
    let from = unpacked.join("lib/modules");
    let from = if from.is_dir() { from } else { unpacked.join("usr/lib/modules") };
    let release = only_entry(&from)?;
    let modules = root.join("usr/lib/modules");
    fs::create_dir_all(&modules).with_context(|| format!("cannot make {}", modules.display()))?;
    fs::rename(from.join(&release), modules.join(&release)).context("cannot move the kernel's modules")?;
    for path in &inputs.recipe.rootfs.without_modules {
        let _ = fs::remove_dir_all(modules.join(&release).join(path));
    }
    // kubeadm's preflight check reads it from this path, inside a slot too.
    install(
        &unpacked.join("boot").join(format!("config-{release}")),
        &modules.join(&release).join("config"),
        0o644,
    )?;
    step.run(Command::new("chroot").arg(root).args(["depmod", &release]))?;
    Ok((unpacked.join("boot").join(format!("vmlinuz-{release}")), release))
}

fn only_entry(directory: &Path) -> Result<String> {
    let context = || format!("cannot read {}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).with_context(context)? {
        names.push(entry.with_context(context)?.file_name().to_string_lossy().into_owned());
    }
    match <[String; 1]>::try_from(names) {
        Ok([name]) => Ok(name),
        Err(names) => bail!("{} should have one entry, but has {}", directory.display(), names.len()),
    }
}

pub(super) fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let context = || format!("cannot copy {} to {}", from.display(), to.display());
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(context)?;
    }
    fs::copy(from, to).with_context(context)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).with_context(context)
}

/// Says in os-release which image this is.
pub(super) fn identify(root: &Path, image: &str, inputs: &str) -> Result<()> {
    let path = root.join("usr/lib/os-release");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let version: String = inputs.chars().take(12).collect();
    let own = format!(
        "IMAGE_ID=bedplate-{image}\nIMAGE_VERSION={version}\nPRETTY_NAME=\"Bedplate {image} {version}\"\n"
    );
    let others =
        text.lines().filter(|line| !line.starts_with("PRETTY_NAME=")).map(|line| format!("{line}\n"));
    fs::write(&path, others.collect::<String>() + &own)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Takes out what the builder or the moment of building left.
pub(super) fn normalize(root: &Path) -> Result<()> {
    for name in REMOVE {
        let path = root.join(name);
        if fs::symlink_metadata(&path).is_ok() {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    for name in EMPTY {
        let path = root.join(name);
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries {
            let entry = entry?;
            let remove =
                if entry.file_type()?.is_dir() { fs::remove_dir_all } else { fs::remove_file::<PathBuf> };
            remove(entry.path()).with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    let write = |name: &str, text: &str| {
        fs::write(root.join(name), text).with_context(|| format!("cannot write {name} of the image"))
    };
    // Empty: every boot makes its own, and it does not count as a first boot, which would enable units by preset.
    write("etc/machine-id", "")?;
    write("etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")?;
    // As new as /usr, so that nothing is updated at boot.
    write("etc/.updated", "")?;
    write("var/.updated", "")?;
    Ok(())
}

/// Packs the root file system: sorted by mksquashfs, every time the recipe's.
pub(super) fn squash(step: &Step, recipe: &Recipe, root: &Root, work: &Path) -> Result<PathBuf> {
    let image = work.join("rootfs.squashfs");
    let time = recipe.source_date_epoch.to_string();
    let mut command = Command::new("mksquashfs");
    // The variable and the options exclude each other.
    command.env_remove("SOURCE_DATE_EPOCH").arg(&root.path).arg(&image);
    command.args([
        "-noappend",
        "-no-progress",
        "-no-xattrs",
        "-reproducible",
        "-mkfs-time",
        &time,
        "-all-time",
        &time,
    ]);
    command.args(["-b", &recipe.rootfs.block_size, "-comp"]).args(&recipe.rootfs.compression);
    step.run(&mut command)?;
    Ok(image)
}
