//! Paths of a tree that are missing or different in the tree below it: the content of a layer.
//!
//! Times are not compared, since an archive has one time for all. Reads only.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The paths of a layer, relative, sorted, each after the directory that it is in. `below` is the tree of the layers below.
pub(super) fn paths(below: Option<&Path>, tree: &Path) -> Result<Vec<PathBuf>> {
    let mut changed = BTreeSet::new();
    walk(below, tree, Path::new(""), &mut changed)?;
    // Includes the parent directories. A user who unpacks only this layer needs their attributes.
    let leading: Vec<PathBuf> = changed
        .iter()
        .flat_map(|path: &PathBuf| path.ancestors().skip(1))
        .filter(|path| !path.as_os_str().is_empty())
        .map(Path::to_path_buf)
        .collect();
    changed.extend(leading);
    Ok(changed.into_iter().collect())
}

fn walk(below: Option<&Path>, tree: &Path, at: &Path, changed: &mut BTreeSet<PathBuf>) -> Result<()> {
    let here = names(&tree.join(at))?;
    if let Some(below) = below {
        let there = below.join(at);
        let before = if is_directory(&there) { names(&there)? } else { BTreeSet::new() };
        if let Some(gone) = before.difference(&here).next() {
            let path = at.join(gone);
            bail!("a layer may only add and change, and the next one lacks /{}", path.display());
        }
    }
    for name in here {
        let path = at.join(name);
        let own = tree.join(&path);
        let same = match below {
            Some(below) => is_same(&below.join(&path), &own)?,
            None => false,
        };
        if !same {
            changed.insert(path.clone());
        }
        if is_directory(&own) {
            walk(below, tree, &path, changed)?;
        }
    }
    Ok(())
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

fn names(directory: &Path) -> Result<BTreeSet<OsString>> {
    let context = || format!("cannot read {}", directory.display());
    let entries = fs::read_dir(directory).with_context(context)?;
    entries.map(|entry| Ok(entry.with_context(context)?.file_name())).collect()
}

fn is_same(one: &Path, two: &Path) -> Result<bool> {
    let Ok(a) = fs::symlink_metadata(one) else { return Ok(false) };
    let b = fs::symlink_metadata(two)
        .with_context(|| format!("cannot read the metadata of {}", two.display()))?;
    let attributes = |m: &Metadata| (m.mode(), m.uid(), m.gid());
    if attributes(&a) != attributes(&b) || xattrs(one)? != xattrs(two)? {
        return Ok(false);
    }
    let kind = a.file_type();
    if kind.is_symlink() {
        return Ok(fs::read_link(one)? == fs::read_link(two)?);
    }
    if kind.is_block_device() || kind.is_char_device() {
        return Ok(a.rdev() == b.rdev());
    }
    if !kind.is_file() {
        return Ok(true);
    }
    Ok(a.len() == b.len() && same_content(one, two)?)
}

fn same_content(one: &Path, two: &Path) -> Result<bool> {
    let open = |path: &Path| File::open(path).with_context(|| format!("cannot read {}", path.display()));
    let (mut one, mut two) = (open(one)?, open(two)?);
    let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let read = one.read(&mut a)?;
        if read == 0 {
            return Ok(two.read(&mut b)? == 0);
        }
        let (Some(a), Some(b)) = (a.get(..read), b.get_mut(..read)) else { return Ok(false) };
        if two.read_exact(b).is_err() || a != b {
            return Ok(false);
        }
    }
}

/// Extended attributes with their values, file capabilities among them.
fn xattrs(path: &Path) -> Result<BTreeSet<(Vec<u8>, Vec<u8>)>> {
    use rustix::fs::{lgetxattr, llistxattr};
    let context = || format!("cannot read the attributes of {}", path.display());
    let mut buffer = vec![0_u8; 1 << 16];
    let length = llistxattr(path, &mut buffer).with_context(context)?;
    let names = buffer.get(..length).unwrap_or_default().to_vec();
    let mut all = BTreeSet::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let length = lgetxattr(path, name, &mut buffer).with_context(context)?;
        all.insert((name.to_vec(), buffer.get(..length).unwrap_or_default().to_vec()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Two trees that differ as `change` changes the second.
    fn compare(name: &str, change: impl FnOnce(&Path)) -> Result<Vec<PathBuf>> {
        let work = std::env::temp_dir().join(format!("bedplate-difference-{}-{name}", std::process::id()));
        let trees = [work.join("below"), work.join("above")];
        for tree in &trees {
            fs::create_dir_all(tree.join("etc/x")).unwrap();
            fs::write(tree.join("etc/x/one"), "one").unwrap();
            fs::write(tree.join("etc/two"), "two").unwrap();
            symlink("two", tree.join("etc/link")).unwrap();
        }
        change(&trees[1]);
        let paths = paths(Some(&trees[0]), &trees[1]);
        fs::remove_dir_all(&work).unwrap();
        paths
    }

    fn texts(paths: &[PathBuf]) -> Vec<&str> {
        paths.iter().filter_map(|path| path.to_str()).collect()
    }

    #[test]
    fn layer_contains_new_and_changed_paths_with_their_parent_directories() {
        let paths = compare("changed", |tree| {
            fs::write(tree.join("etc/x/one"), "eno").unwrap();
            fs::create_dir(tree.join("opt")).unwrap();
            fs::write(tree.join("etc-file"), "").unwrap();
        });
        assert_eq!(texts(&paths.unwrap()), ["etc", "etc/x", "etc/x/one", "etc-file", "opt"]);
    }

    #[test]
    fn a_mode_or_a_links_target_alone_is_a_change() {
        let paths = compare("attributes", |tree| {
            fs::set_permissions(tree.join("etc/two"), fs::Permissions::from_mode(0o600)).unwrap();
            fs::remove_file(tree.join("etc/link")).unwrap();
            symlink("one", tree.join("etc/link")).unwrap();
        });
        assert_eq!(texts(&paths.unwrap()), ["etc", "etc/link", "etc/two"]);
    }

    #[test]
    fn equal_trees_make_an_empty_layer_and_one_without_a_tree_below_has_all() {
        assert!(compare("equal", |_| ()).unwrap().is_empty());
        let work = std::env::temp_dir().join(format!("bedplate-difference-{}-first", std::process::id()));
        fs::create_dir_all(work.join("etc")).unwrap();
        assert_eq!(texts(&paths(None, &work).unwrap()), ["etc"]);
        fs::remove_dir_all(&work).unwrap();
    }

    #[test]
    fn removal_by_a_layer_is_an_error_that_names_the_path() {
        let error = compare("gone", |tree| fs::remove_file(tree.join("etc/x/one")).unwrap()).unwrap_err();
        assert!(error.to_string().contains("/etc/x/one"), "{error}");
    }
}
