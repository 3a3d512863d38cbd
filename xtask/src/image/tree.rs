//! The host image's Debian, unpacked next to its base in the cache. `images/tree` is a link to it. The tests'
//! hosts in namespaces are overlays of it, and write nothing there.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::progress;

/// Unpacks the base `root` (a tar archive) named `id`, unless that is done; the tree of another recipe goes.
pub(super) fn ensure(id: &str, root: &Path, images: &Path) -> Result<()> {
    let unpacked = fs::read_to_string(images.join("tree.id"));
    if unpacked.is_ok_and(|unpacked| unpacked == id) && images.join("tree/usr").is_dir() {
        return Ok(());
    }
    let short: String = id.chars().take(16).collect();
    let name = format!("tree-{short}");
    let next = images.join(format!(".{name}"));
    let _ = fs::remove_dir_all(&next);
    fs::create_dir_all(&next).with_context(|| format!("cannot make {}", next.display()))?;
    progress::step("host image: Debian for hosts in namespaces", |step| {
        let mut tar = Command::new("tar");
        step.run(tar.args(["--numeric-owner", "-xpf"]).arg(root).arg("-C").arg(&next))
    })?;
    let former = fs::read_link(images.join("tree")).ok();
    let place = images.join(&name);
    let _ = fs::remove_dir_all(&place);
    fs::rename(&next, &place).with_context(|| format!("cannot make {}", place.display()))?;
    let link = images.join(".tree");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&name, &link)
        .and_then(|()| fs::rename(&link, images.join("tree")))
        .and_then(|()| fs::write(images.join("tree.id"), id))
        .with_context(|| format!("cannot make {}", images.join("tree").display()))?;
    if let Some(former) = former.filter(|former| *former != Path::new(&name)) {
        let _ = fs::remove_dir_all(images.join(former));
    }
    Ok(())
}
