//! Requirements on the build machine, checked before anything on it is changed: root, Debian 12, disk,
//! compilers; and paths.
//!
//! Reads only. Called by `setup` first of all.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Room that a first run takes: Go's caches 3 GB, Kubernetes programs 0.5 GB, Cargo's target directory 8 GB, images 1 GB.
const FIRST_RUN_GIB: u64 = 14;
/// Room that later runs need for rebuilding and for the virtual rack.
const LATER_RUN_GIB: u64 = 3;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or(manifest.clone(), Path::to_path_buf)
}

/// Returns the directory of downloads and of programs that are built once. It is outside the repository.
pub(crate) fn cache() -> PathBuf {
    let home =
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache/bedplate");
    std::env::var_os("BEDPLATE_CACHE").map_or_else(home, PathBuf::from)
}

/// Returns Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Refuses, in one sentence with the remedy, a machine that `setup` could not prepare.
pub(crate) fn check() -> Result<()> {
    check_system()?;
    check_root()?;
    check_disk()
}

/// Returns an error unless the user is root.
pub(crate) fn check_root() -> Result<()> {
    if is_root()? {
        return Ok(());
    }
    bail!(
        "this needs root for packages, network namespaces and images: run it as root, for instance with \
         `sudo env PATH=\"$PATH:/usr/sbin\" HOME=\"$HOME\" cargo xtask ...`"
    )
}

fn is_root() -> Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    Ok(uids.split_whitespace().nth(1) == Some("0"))
}

fn check_system() -> Result<()> {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map_or("", |value| value.trim_matches('"'))
    };
    if value("ID") == "debian" && value("VERSION_ID") == "12" && cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let name = if value("PRETTY_NAME").is_empty() { "an unknown system" } else { value("PRETTY_NAME") };
    bail!(
        "this is {name} on {}, and the virtual rack's firmware and packages are those of Debian 12 on x86_64: \
         run it there, in a virtual machine or a privileged container",
        std::env::consts::ARCH
    )
}

fn check_disk() -> Result<()> {
    let first = crate::kubernetes::missing(&crate::kubernetes::directory()).len() > 1;
    let need = if first { FIRST_RUN_GIB } else { LATER_RUN_GIB };
    for place in [cache(), target()] {
        let free = free_gib(&place)?;
        if free < need {
            bail!(
                "{} has {free} GiB free and {need} GiB are needed: free some, or name another place in \
                 BEDPLATE_CACHE (what is built once) or CARGO_TARGET_DIR (what Cargo builds)",
                place.display()
            );
        }
    }
    Ok(())
}

/// Free space of the file system that `place` lies on or will lie on.
fn free_gib(place: &Path) -> Result<u64> {
    let existing = place.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let output = Command::new("df")
        .args(["-B1", "--output=avail"])
        .arg(existing)
        .output()
        .context("cannot run df to see how much disk is free")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let bytes: u64 = text
        .lines()
        .nth(1)
        .and_then(|line| line.trim().parse().ok())
        .with_context(|| format!("df said nothing of {}", existing.display()))?;
    Ok(bytes >> 30)
}

/// The Go tool, 1.24 or newer: `tool` lines in go.mod are known to no older one.
pub(crate) fn go() -> Result<PathBuf> {
    const REMEDY: &str =
        "install Go 1.24 or newer from https://go.dev/dl/ into /usr/local/go (or have `go` in PATH)";
    let candidates = ["go", "/usr/local/go/bin/go"];
    let found = candidates.iter().find_map(|name| {
        let output = Command::new(name).args(["env", "GOVERSION"]).output().ok()?;
        Some((PathBuf::from(name), String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    });
    let Some((path, version)) = found else {
        bail!("Go is not installed, and the tests' Kubernetes programs are built with it: {REMEDY}");
    };
    let minor = version.strip_prefix("go1.").and_then(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    match minor {
        Some(minor) if minor >= 24 => Ok(path),
        _ => bail!("Go is too old ({version}): {REMEDY}"),
    }
}
