//! Comparison with umoci: mounted by overlayfs, our layers show the tree that umoci unpacks.
//!
//! Needs root, and umoci (`cargo xtask setup` installs it).

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

mod fixture;
mod layers;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use layers::{
    Entry, Image, Layer, device, directory, fifo, file, hard_link, image, layer, quiet, store, symlink,
};

/// Properties of a tree, path by path.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    mode: u32,
    owner: (u32, u32),
    mtime: Option<i64>,
    device: u64,
    content: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
    /// The first path of the same file.
    first: PathBuf,
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Node> {
    let mut found = BTreeMap::new();
    let mut links = BTreeMap::new();
    walk(root, root, &mut links, &mut found);
    found
}

fn walk(
    root: &Path,
    at: &Path,
    links: &mut BTreeMap<(u64, u64), PathBuf>,
    found: &mut BTreeMap<PathBuf, Node>,
) {
    let data = fs::symlink_metadata(at).unwrap();
    let path = at.strip_prefix(root).unwrap().to_owned();
    let kind = data.file_type();
    let content = if kind.is_file() {
        layers::digest(&fs::read(at).unwrap()).to_string().into_bytes()
    } else if kind.is_symlink() {
        fs::read_link(at).unwrap().as_os_str().as_bytes().to_vec()
    } else {
        Vec::new()
    };
    let first = if kind.is_dir() {
        path.clone()
    } else {
        links.entry((data.dev(), data.ino())).or_insert_with(|| path.clone()).clone()
    };
    let node = Node {
        mode: data.mode(),
        owner: (data.uid(), data.gid()),
        // umoci makes directories that no member names as of now.
        mtime: (!kind.is_dir()).then(|| data.mtime()),
        device: if kind.is_file() || kind.is_dir() || kind.is_symlink() { 0 } else { data.rdev() },
        content,
        xattrs: xattrs(at),
        first,
    };
    found.insert(path, node);
    if kind.is_dir() {
        let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        for below in names {
            walk(root, &below, links, found);
        }
    }
}

fn xattrs(at: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0_u8; 4096];
    let length = rustix::fs::llistxattr(at, &mut names[..]).unwrap();
    let names = names[..length].split(|b| *b == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let name = String::from_utf8(name.to_vec()).unwrap();
            let mut value = vec![0_u8; 4096];
            let length = rustix::fs::lgetxattr(at, name.as_str(), &mut value[..]).unwrap();
            value.truncate(length);
            (name, value)
        })
        .collect()
}

/// Unpacks an image by us and by umoci, and compares.
fn compare(image: Image, place: PathBuf) -> usize {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = store(&place.join("store"));
        let node = runtime.block_on(store.ensure(&image.source(), &quiet)).unwrap();
        let mounted = place.join("mounted");
        fs::create_dir(&mounted).unwrap();
        overlay(&node.layers, &place, &mounted);
        let reference = format!("{}:v1", image.path.display());
        let bundle = place.join("bundle");
        let unpacked = Command::new("umoci")
            .args(["unpack", "--image", &reference])
            .arg(&bundle)
            .stdin(Stdio::null())
            .output()
            .expect("umoci, which `cargo xtask setup` installs");
        assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
        let (ours, theirs) = (tree(&mounted), tree(&bundle.join("rootfs")));
        for (path, node) in &theirs {
            assert_eq!(ours.get(path), Some(node), "{}", path.display());
        }
        let more: Vec<_> = ours.keys().filter(|path| !theirs.contains_key(*path)).collect();
        assert!(more.is_empty(), "only we have {more:?}");
        ours.len()
    });
    thread.join().unwrap()
}

/// Mounts layers where only this thread sees it.
#[allow(
    unsafe_code,
    reason = "unshare of a mount namespace is marked unsafe; this thread shares no descriptors by it"
)]
fn overlay(layers: &[PathBuf], place: &Path, mounted: &Path) {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    // SAFETY: only the mount namespace is unshared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    let lower: Vec<String> = layers.iter().rev().map(|layer| layer.display().to_string()).collect();
    let (upper, work) = (place.join("upper"), place.join("work"));
    for directory in [&upper, &work] {
        fs::create_dir(directory).unwrap();
    }
    // The upper directory's attributes are the root's.
    let root = fs::metadata(layers.last().unwrap()).unwrap();
    fs::set_permissions(&upper, root.permissions()).unwrap();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.join(":"), upper.display(), work.display());
    let options = std::ffi::CString::new(options).unwrap();
    mount("overlay", mounted, "overlay", MountFlags::empty(), options.as_c_str()).unwrap();
}

#[test]
fn an_image_with_everything_in_it_is_what_umoci_makes_of_it() {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let base = [
        directory("./"),
        directory("bin"),
        file("bin/ping", "program").mode(0o755).xattr("security.capability", capability),
        file("bin/su", "program").mode(0o4755).owner(0, 42),
        hard_link("bin/sudo", "bin/su"),
        directory("etc"),
        file("etc/removed", "x"),
        file("etc/changed", "before"),
        directory("etc/emptied"),
        file("etc/emptied/one", "1"),
        directory("etc/emptied/two"),
        directory("etc/replaced"),
        file("etc/replaced/old", "x"),
        directory("etc/file-now"),
        file("etc/file-now/x", "x"),
        symlink("sbin", "bin"),
        directory("tmp").mode(0o1777),
        file("tmp/owned", "x").owner(1000, 1001).mode(0o600).xattr("user.note", "kept"),
        fifo("tmp/pipe").mode(0o620),
        device(b'3', "tmp/null", 1, 3).mode(0o666),
    ];
    let changes = [
        directory("etc"),
        file("etc/.wh.removed", ""),
        file("etc/changed", "after").mtime(1_650_000_000),
        directory("etc/emptied"),
        file("etc/emptied/.wh..wh..opq", ""),
        file("etc/emptied/three", "3"),
        file("etc/.wh.replaced", ""),
        directory("etc/replaced"),
        file("etc/replaced/new", "x"),
        file("etc/.wh.file-now", ""),
        file("etc/file-now", "a file now"),
        // No member for the directory: it stays sticky.
        file("tmp/later", "x"),
    ];
    let last = [directory("etc"), file("etc/removed", "it is back"), file("tmp/.wh.pipe", "")];
    let place = tempfile::tempdir().unwrap();
    let image = image(&place.path().join("layout"), &[layer(&base), layer(&changes), layer(&last)]);
    assert!(compare(image, place.path().to_owned()) > 15);
}

#[test]
fn gnu_tar_archives_of_each_format_unpack_like_with_umoci() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    let deep = source.join("a-directory-with-a-long-name/".repeat(8));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), vec![7; 700_000]).unwrap();
    fs::hard_link(deep.join("file"), source.join("linked")).unwrap();
    std::os::unix::fs::symlink("x".repeat(150), source.join("long-link")).unwrap();
    fs::write(source.join("namé-\u{1f600}"), "not ASCII").unwrap();
    let mut layers: Vec<Layer> = Vec::new();
    for format in ["gnu", "pax", "oldgnu"] {
        let base = place.path().join(format!("base-{format}"));
        fs::create_dir(&base).unwrap();
        fs::rename(&source, base.join(format)).unwrap();
        let packed = Command::new("tar")
            .args(["--format", format, "--numeric-owner", "-cf", "-", "-C"])
            .arg(&base)
            .arg(format)
            .output()
            .unwrap();
        assert!(packed.status.success());
        fs::rename(base.join(format), &source).unwrap();
        layers.push(layers::of_tar(&packed.stdout));
    }
    let image = image(&place.path().join("layout"), &layers);
    assert!(compare(image, place.path().to_owned()) > 30);
}

/// Returns the smallest Debian base of the built images.
fn debian() -> Result<PathBuf, String> {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/bedplate");
    let images = std::env::var_os("BEDPLATE_CACHE").map_or_else(home, PathBuf::from).join("images");
    let bases = fs::read_dir(&images).into_iter().flatten().flatten();
    let sized = bases.map(|base| base.path().join("root.tar")).filter_map(|archive| {
        let length = fs::metadata(&archive).ok()?.len();
        Some((length, archive))
    });
    let smallest = sized.min().map(|(_, archive)| archive);
    smallest.ok_or_else(|| format!("no Debian base in {}; run `cargo xtask image host`", images.display()))
}

#[test]
fn debian_as_a_layer_is_what_umoci_makes_of_it() {
    let archive = debian().unwrap();
    let place = tempfile::tempdir().unwrap();
    let base = layers::of_tar(&fs::read(archive).unwrap());
    let above: Vec<Entry> = vec![
        file("etc/hostname", "node"),
        file("usr/share/.wh.doc", ""),
        file("var/lib/dpkg/.wh..wh..opq", ""),
        file("etc/.wh.motd", ""),
    ];
    let image = image(&place.path().join("layout"), &[base, layer(&above)]);
    let files = compare(image, place.path().to_owned());
    assert!(files > 3000, "{files} files");
}
