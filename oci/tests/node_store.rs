//! The store of node images: what is unpacked, shared, resumed, refused and collected.

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

mod fixture;
mod layers;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink as link};
use std::path::Path;
use std::sync::Mutex;

use bedplate_oci::Access;
use bedplate_oci::node::{EnsureNodeImageError, LayerStore, Limits, NodeSource, Progress, UnpackLayerError};
use fixture::{Fault, Registry, content};
use layers::{
    Entry, Image, Layer, compressed, digest, directory, file, hard_link, image, layer, limits, of_tar, quiet,
    store, symlink, tar,
};

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0_u8; 256];
    let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    Some(value[..length].to_vec())
}

fn is_opaque(path: &Path) -> bool {
    xattr(path, "trusted.overlay.opaque").as_deref() == Some(b"y")
}

fn is_whiteout(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_char_device() && m.rdev() == 0)
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".lock")
        .collect();
    names.sort();
    names
}

/// Some layers in a registry.
struct Pushed {
    registry: Registry,
    image: Image,
    directory: tempfile::TempDir,
}

impl Pushed {
    async fn new(layers: &[Layer]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::start().await;
        let image = image(&directory.path().join("layout"), layers);
        registry.push(&image.path, &image.manifest);
        Self { registry, image, directory }
    }

    fn store(&self) -> LayerStore {
        store(&self.directory.path().join("store"))
    }

    fn source(&self) -> NodeSource {
        let reference = self.registry.reference(&self.image.manifest);
        NodeSource { reference, allow_tag: false, access: plain() }
    }
}

fn plain() -> Access {
    Access { insecure_http: true, ..Access::default() }
}

fn noise(seed: u64) -> Layer {
    layer(&[file(&format!("file-{seed}"), content(seed, 3 << 20))])
}

#[tokio::test]
async fn everything_that_a_file_system_keeps_is_kept() {
    let directory_ = tempfile::tempdir().unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let entries = [
        directory("./").mode(0o711),
        directory("tmp").mode(0o1777).mtime(1_600_000_000),
        file("usr/bin/su", "program").mode(0o4755).owner(0, 42),
        file("usr/bin/ping", "program").mode(0o755).xattr("security.capability", capability),
        file("note", "text").xattr("user.note", b"a\0b").pax("mtime", "1500000000.25"),
        symlink("lib", "usr/lib").owner(7, 8),
        hard_link("usr/bin/sudo", "./usr/bin/su"),
        file("tmp/late", "after its directory").owner(70_000, 70_001),
        directory("home/me").owner(1000, 1000).mode(0o700).xattr("security.selinux", "left out"),
    ];
    let image = image(&directory_.path().join("layout"), &[layer(&entries)]);
    let store = store(&directory_.path().join("store"));
    let node = store.ensure(&image.source(), &quiet).await.unwrap();
    assert_eq!(node.labels.get("bedplate.dev/cri-socket").unwrap(), "/run/cri.sock");
    let at = &node.layers[0];
    let of = |name: &str| fs::symlink_metadata(at.join(name)).unwrap();
    assert_eq!(of("").mode() & 0o7777, 0o711);
    assert_eq!((of("tmp").mode() & 0o7777, of("tmp").mtime()), (0o1777, 1_600_000_000));
    assert_eq!((of("usr/bin/su").mode() & 0o7777, of("usr/bin/su").gid()), (0o4755, 42));
    assert_eq!((of("usr/bin/su").ino(), of("usr/bin/su").nlink()), (of("usr/bin/sudo").ino(), 2));
    assert_eq!(xattr(&at.join("usr/bin/ping"), "security.capability").as_deref(), Some(&capability[..]));
    assert_eq!(xattr(&at.join("note"), "user.note").as_deref(), Some(&b"a\0b"[..]));
    assert_eq!((of("note").mtime(), of("note").mtime_nsec()), (1_500_000_000, 250_000_000));
    assert_eq!((of("lib").uid(), of("lib").gid(), of("lib").mtime()), (7, 8, 1_700_000_000));
    assert_eq!((of("tmp/late").uid(), of("tmp/late").gid()), (70_000, 70_001));
    assert_eq!((of("home/me").uid(), of("home/me").mode() & 0o7777), (1000, 0o700));
    assert_eq!((of("usr/bin").mode() & 0o7777, of("usr/bin").mtime()), (0o755, 0), "no member names it");
    assert_eq!(xattr(&at.join("home/me"), "security.selinux"), None);
    assert_eq!(store.image(&image.manifest), Some(node));
}

#[tokio::test]
async fn whiteouts_mean_the_same_in_every_order() {
    let entries = [
        file(".wh.gone", ""),
        file("d/.wh..wh..opq", ""),
        file("d/new", "x"),
        file(".wh.replaced", ""),
        directory("replaced"),
        file("replaced/inner", "x"),
        file(".wh.rewritten", ""),
        file("rewritten", "x"),
        file("implied/below/.wh.file", ""),
    ];
    let backwards: Vec<Entry> = entries.iter().rev().cloned().collect();
    let mut shuffled = entries.to_vec();
    shuffled.swap(0, 5);
    shuffled.swap(1, 4);
    for order in [entries.to_vec(), backwards, shuffled] {
        let directory = tempfile::tempdir().unwrap();
        let image = image(&directory.path().join("layout"), &[layer(&order)]);
        let node = store(&directory.path().join("store")).ensure(&image.source(), &quiet).await.unwrap();
        let at = &node.layers[0];
        assert!(is_whiteout(&at.join("gone")));
        assert!(is_opaque(&at.join("d")) && at.join("d/new").is_file());
        assert!(is_opaque(&at.join("replaced")) && at.join("replaced/inner").is_file());
        assert_eq!(fs::read_to_string(at.join("rewritten")).unwrap(), "x");
        assert!(is_whiteout(&at.join("implied/below/file")) && !is_opaque(&at.join("implied")));
        assert_eq!(names(at).iter().filter(|name| name.starts_with(".wh")).count(), 0);
    }
}

#[tokio::test]
async fn directories_that_no_member_names_look_as_in_the_layer_below() {
    let directory_ = tempfile::tempdir().unwrap();
    let base = [directory("var").owner(3, 3), directory("var/tmp").mode(0o1777), directory("opt")];
    let above = [file("var/tmp/x", "x"), file("opt/y", "y")];
    let image = image(&directory_.path().join("layout"), &[layer(&base), layer(&above)]);
    let store = store(&directory_.path().join("store"));
    let node = store.ensure(&image.source(), &quiet).await.unwrap();
    assert_eq!(node.layers.len(), 3, "one of directories on top");
    let top = node.layers.last().unwrap();
    assert_eq!(fs::metadata(top.join("var/tmp")).unwrap().mode() & 0o7777, 0o1777);
    assert_eq!(fs::metadata(top.join("var")).unwrap().uid(), 3);
    assert!(!top.join("opt").exists(), "it is as it would be anyway");
    assert_eq!(store.ensure(&image.source(), &quiet).await.unwrap(), node);
    // A whiteout between cuts it off; a link below is refused.
    let cut = [layer(&base), layer(&[file(".wh.var", "")]), layer(&above)];
    let image = layers::image(&directory_.path().join("cut"), &cut);
    assert_eq!(store.ensure(&image.source(), &quiet).await.unwrap().layers.len(), 3, "no fourth");
    let linked = [layer(&[symlink("var", "srv")]), layer(&above)];
    let image = layers::image(&directory_.path().join("linked"), &linked);
    let error = store.ensure(&image.source(), &quiet).await.unwrap_err().to_string();
    assert!(error.contains("a link in a lower layer"), "{error}");
}

#[tokio::test]
async fn a_layer_whose_root_is_opaque_leaves_those_below_out() {
    let directory = tempfile::tempdir().unwrap();
    let layers = [noise(1), layer(&[file("x", ""), file(".wh..wh..opq", "")]), noise(2)];
    let image = image(&directory.path().join("layout"), &layers);
    let node = store(&directory.path().join("store")).ensure(&image.source(), &quiet).await.unwrap();
    assert_eq!(node.layers.len(), 2);
    assert!(node.layers[0].join("x").is_file());
}

#[tokio::test]
async fn a_broken_connection_goes_on_in_the_same_stream() {
    let pushed = Pushed::new(&[noise(1), noise(2)]).await;
    let blob = pushed.image.layers[0];
    for fault in [Fault::Break(1 << 20), Fault::Short(2 << 20), Fault::ForgetRange] {
        pushed.registry.fault(&blob, fault);
    }
    let seen = Mutex::new(Vec::new());
    let node = pushed.store().ensure(&pushed.source(), &|p| seen.lock().unwrap().push(p)).await.unwrap();
    assert_eq!(fs::read(node.layers[0].join("file-1")).unwrap(), content(1, 3 << 20));
    let asked = pushed.registry.asked(&blob);
    assert!(asked.len() == 3 && asked[1].is_some() && asked[2].is_some(), "{asked:?}");
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().any(|p| matches!(p, Progress::Retry { .. })));
    let layers: Vec<_> = seen
        .iter()
        .filter_map(|p| match p {
            Progress::Layers { whole, layers, done, total } => Some((*whole, *layers, *done, *total)),
            _ => None,
        })
        .collect();
    assert_eq!(layers.first().unwrap().0, 0);
    let (whole, of, done, total) = *layers.last().unwrap();
    assert_eq!((whole, done), (of, total));
    assert_eq!(seen.last().unwrap(), &Progress::Ready { digest: pushed.image.manifest });
}

#[tokio::test]
async fn parts_that_do_not_fit_together_are_fetched_once_more() {
    let pushed = Pushed::new(&[noise(1)]).await;
    let blob = pushed.image.layers[0];
    for fault in [Fault::Break(1 << 20), Fault::Lie] {
        pushed.registry.fault(&blob, fault);
    }
    pushed.store().ensure(&pushed.source(), &quiet).await.unwrap();
    assert_eq!(pushed.registry.asked(&blob).len(), 3);
}

#[tokio::test]
async fn content_that_is_not_what_was_promised_leaves_nothing() {
    let pushed = Pushed::new(&[noise(1)]).await;
    let store = pushed.store();
    for fault in [Fault::Lie, Fault::Long] {
        pushed.registry.fault(&pushed.image.layers[0], fault);
        let error = store.ensure(&pushed.source(), &quiet).await.unwrap_err();
        assert!(!matches!(error, EnsureNodeImageError::Unreachable { .. }), "{error}");
    }
    // The right bytes, but the configuration promises others.
    let other = Layer { diff_id: digest(b"other"), ..noise(2) };
    let wrong = image(&pushed.directory.path().join("wrong"), &[other]);
    match store.ensure(&wrong.source(), &quiet).await.unwrap_err() {
        EnsureNodeImageError::UnpackLayer { source, .. } => match *source {
            UnpackLayerError::DiffIdMismatch { expected, .. } => assert_eq!(expected, digest(b"other")),
            other => panic!("{other}"),
        },
        error => panic!("{error}"),
    }
    assert_eq!(names(&pushed.directory.path().join("store/layers")), Vec::<String>::new());
}

#[tokio::test]
async fn a_layer_that_is_there_is_not_fetched_again() {
    let base = noise(1);
    let pushed = Pushed::new(&[base.clone(), noise(2)]).await;
    let store = pushed.store();
    store.ensure(&pushed.source(), &quiet).await.unwrap();
    let next = image(&pushed.directory.path().join("next"), &[base, noise(3)]);
    pushed.registry.push(&next.path, &next.manifest);
    let source = NodeSource { reference: pushed.registry.reference(&next.manifest), ..pushed.source() };
    // Concurrent requests too.
    let (first, second) = tokio::join!(store.ensure(&source, &quiet), store.ensure(&source, &quiet));
    assert_eq!(first.unwrap(), second.unwrap());
    assert_eq!(pushed.registry.asked(&pushed.image.layers[0]).len(), 1);
    assert_eq!(pushed.registry.asked(&next.layers[1]).len(), 1);
    // A complete image needs no request.
    pushed.registry.stop();
    store.ensure(&source, &quiet).await.unwrap();
    assert_eq!(store.image(&next.manifest).unwrap().layers.len(), 2);
}

#[tokio::test]
async fn complete_layers_are_kept_after_a_failure_and_stale_ones_removed() {
    let pushed = Pushed::new(&[noise(1), noise(2)]).await;
    let limits = Limits { parallel_layers: 1, ..limits() };
    let place = pushed.directory.path().join("store");
    let store = LayerStore::open(&place, limits.clone()).unwrap();
    let second = pushed.image.layers[1];
    pushed.registry.fault(&second, Fault::Status(404, None));
    store.ensure(&pushed.source(), &quiet).await.unwrap_err();
    drop(store);
    // As a killed process leaves it.
    let hex = noise(2).diff_id.hex();
    fs::create_dir_all(place.join(format!("layers/.new-{hex}/usr/bin"))).unwrap();
    fs::create_dir_all(place.join("layers/.old-aa")).unwrap();
    link("/etc", place.join(format!("layers/.new-{hex}/usr/link"))).unwrap();
    let store = LayerStore::open(&place, limits).unwrap();
    assert!(names(&place.join("layers")).iter().all(|name| !name.starts_with('.')));
    assert!(Path::new("/etc/passwd").exists());
    let before = pushed.registry.asked(&pushed.image.layers[0]).len();
    store.ensure(&pushed.source(), &quiet).await.unwrap();
    assert_eq!(pushed.registry.asked(&pushed.image.layers[0]).len(), before);
}

#[tokio::test]
async fn an_ensure_that_is_dropped_leaves_nothing_half() {
    let pushed = Pushed::new(&[noise(1)]).await;
    let store = pushed.store();
    let blob = pushed.image.layers[0];
    pushed.registry.fault(&blob, Fault::Break(2 << 20));
    pushed.registry.fault(&blob, Fault::Silence);
    let retried = tokio::sync::Notify::new();
    let tell = |p| {
        if matches!(p, Progress::Retry { .. }) {
            retried.notify_one();
        }
    };
    let source = pushed.source();
    tokio::select! {
        _ = store.ensure(&source, &tell) => panic!("the registry is silent"),
        () = retried.notified() => {}
    }
    // The next one waits until the other half of the former one has cleaned up.
    let node = store.ensure(&pushed.source(), &quiet).await.unwrap();
    assert_eq!(fs::read(node.layers[0].join("file-1")).unwrap(), content(1, 3 << 20));
    let left = names(&pushed.directory.path().join("store/layers"));
    assert!(left.iter().all(|name| !name.starts_with('.')), "{left:?}");
}

#[tokio::test]
async fn room_is_looked_at_before_and_while() {
    let directory = tempfile::tempdir().unwrap();
    let big = layer(&[file("zeros", vec![0; 40 << 20])]);
    let said = |bytes: &str| Layer {
        annotations: serde_json::json!({ "bedplate.dev/unpacked-bytes": bytes }),
        ..big.clone()
    };
    let honest = image(&directory.path().join("honest"), &[said("9000000000000000")]);
    let place = directory.path().join("store");
    let store = LayerStore::open(&place, limits()).unwrap();
    match store.ensure(&honest.source(), &quiet).await.unwrap_err() {
        EnsureNodeImageError::NoRoom { needed, free, .. } => {
            assert!(needed >= 9_000_000_000_000_000 && free < needed);
        }
        error => panic!("{error}"),
    }
    drop(store);
    // It says that it is small; the room that must stay free is more than there is.
    let lying = image(&directory.path().join("lying"), &[said("0")]);
    let limits = Limits { reserve: u64::MAX / 4, ..limits() };
    let store = LayerStore::open(&place, limits).unwrap();
    let error = store.ensure(&lying.source(), &quiet).await.unwrap_err();
    assert!(matches!(error, EnsureNodeImageError::NoRoom { .. }), "{error}");
    assert_eq!(names(&place.join("layers")), Vec::<String>::new());
}

#[tokio::test]
async fn a_full_file_system_is_no_room_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let big = image(&directory.path().join("layout"), &[layer(&[file("noise", content(1, 12 << 20))])]);
    let place = directory.path().join("store");
    fs::create_dir(&place).unwrap();
    // A file system of its own, seen by this thread and those that it starts.
    let thread = std::thread::spawn(move || {
        mount_small(&place);
        let limits = Limits { growth: 0, ..limits() };
        let store = LayerStore::open(&place, limits).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(store.ensure(&big.source(), &quiet)).unwrap_err();
        (error, names(&place.join("layers")))
    });
    let (error, left) = thread.join().unwrap();
    assert!(matches!(error, EnsureNodeImageError::NoRoom { .. }), "{error}");
    assert_eq!(left, Vec::<String>::new());
}

/// A tmpfs of 8 MiB that only this thread and its children see.
#[allow(
    unsafe_code,
    reason = "unshare of a mount namespace is marked unsafe; this thread shares no descriptors by it"
)]
fn mount_small(place: &Path) {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    // SAFETY: only the mount namespace is unshared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    mount("tmpfs", place, "tmpfs", MountFlags::empty(), c"size=8m").unwrap();
}

#[tokio::test]
async fn every_compression_and_docker_s_types_are_taken() {
    /// Larger than one inflated buffer, and a multiple of it.
    const LARGE: usize = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let archive = |name: &str| tar(&[file(name, content(5, LARGE))]);
    let members = |tar: &[u8]| [layers::gzip(&tar[..1000]), layers::gzip(&tar[1000..])].concat();
    let frames = |tar: &[u8]| {
        let frame = |bytes: &[u8]| zstd::stream::encode_all(bytes, 3).unwrap();
        [frame(&tar[..1000]), frame(&tar[1000..])].concat()
    };
    let (a, b, c, d) = (archive("a"), archive("b"), archive("c"), archive("d"));
    let layers = [
        compressed(&a, a.clone(), "application/vnd.oci.image.layer.v1.tar"),
        compressed(&b, members(&b), "application/vnd.docker.image.rootfs.diff.tar.gzip"),
        compressed(&c, frames(&c), "application/vnd.oci.image.layer.v1.tar+zstd"),
        compressed(&d, d.clone(), "application/vnd.docker.image.rootfs.diff.tar"),
    ];
    let image = image(&directory.path().join("layout"), &layers);
    let node = store(&directory.path().join("store")).ensure(&image.source(), &quiet).await.unwrap();
    for (layer, name) in node.layers.iter().zip(["a", "b", "c", "d"]) {
        assert_eq!(fs::read(layer.join(name)).unwrap(), content(5, LARGE), "{name}");
    }
    // One layer is truncated, one is not compressed as its media type says.
    let mut cut = of_tar(&a);
    cut.bytes.truncate(cut.bytes.len() - 20);
    let lies = compressed(&b, b.clone(), "application/vnd.oci.image.layer.v1.tar+zstd");
    for (n, layer) in [cut, lies].into_iter().enumerate() {
        let image = layers::image(&directory.path().join(format!("bad-{n}")), &[layer]);
        let bad = LayerStore::open(directory.path().join("bad"), limits()).unwrap();
        bad.ensure(&image.source(), &quiet).await.unwrap_err();
    }
}

#[tokio::test]
async fn tags_need_leave_and_other_machines_images_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let image = image(&directory.path().join("layout"), &[noise(1)]);
    let store = store(&directory.path().join("store"));
    let by = |reference: String, allow_tag| NodeSource { reference, allow_tag, access: Access::default() };
    let tagged = format!("oci:{}:v1", image.path.display());
    let error = store.ensure(&by(tagged.clone(), false), &quiet).await.unwrap_err();
    assert!(matches!(error, EnsureNodeImageError::TagNotAllowed { .. }), "{error}");
    let node = store.ensure(&by(tagged, true), &quiet).await.unwrap();
    assert_eq!(node.digest, image.manifest);
    let other = Limits {
        transfer: bedplate_oci::Options { architecture: "arm64".into(), ..fixture::options() },
        ..limits()
    };
    let elsewhere = LayerStore::open(directory.path().join("arm"), other).unwrap();
    let error = elsewhere.ensure(&image.source(), &quiet).await.unwrap_err();
    assert!(error.to_string().contains("this machine is linux/arm64"), "{error}");
}

#[tokio::test]
async fn an_image_named_by_its_index_is_found_by_that_digest() {
    let pushed = Pushed::new(&[noise(1)]).await;
    let manifest =
        fs::metadata(pushed.image.path.join("blobs/sha256").join(pushed.image.manifest.hex())).unwrap();
    let entry = |architecture: &str, digest: &str, size: u64| {
        serde_json::json!({
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "digest": digest, "size": size,
            "platform": { "architecture": architecture, "os": "linux" },
        })
    };
    let index = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.list.v2+json",
        "manifests": [
            entry("arm64", &digest(b"another").to_string(), 7),
            entry("amd64", &pushed.image.manifest.to_string(), manifest.len()),
        ],
    });
    let index = index.to_string().into_bytes();
    let own = digest(&index);
    pushed.registry.content().blobs.insert(own.to_string(), index);
    let source = NodeSource { reference: pushed.registry.reference(&own), ..pushed.source() };
    let store = pushed.store();
    let node = store.ensure(&source, &quiet).await.unwrap();
    assert_eq!(node.digest, pushed.image.manifest);
    pushed.registry.stop();
    assert_eq!(store.ensure(&source, &quiet).await.unwrap(), node);
    assert_eq!(store.collect(&[own]).unwrap().layers, 0);
    assert_eq!(store.image(&pushed.image.manifest), Some(node));
}

#[tokio::test]
async fn collection_removes_unused_layers_and_keeps_shared_ones() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory.path().join("store"));
    let base = noise(1);
    let mut images = Vec::new();
    for n in 2..5 {
        let image = image(&directory.path().join(format!("layout-{n}")), &[base.clone(), noise(n)]);
        store.ensure(&image.source(), &quiet).await.unwrap();
        images.push(image.manifest);
    }
    assert_eq!(store.collect(&images).unwrap().kept, 4);
    let collected = store.collect(&images[2..]).unwrap();
    assert_eq!((collected.images, collected.layers, collected.kept), (2, 2, 2));
    assert_eq!(collected.bytes, 6 << 20);
    assert_eq!(store.image(&images[0]), None);
    assert!(store.image(&images[2]).is_some());
    assert_eq!(store.collect(&[]).unwrap().kept, 0);
    assert_eq!(names(&directory.path().join("store/layers")), Vec::<String>::new());
    assert_eq!(names(&directory.path().join("store/images")), Vec::<String>::new());
}

#[tokio::test]
async fn collecting_leaves_what_a_running_ensure_uses() {
    let pushed = Pushed::new(&[noise(1), noise(2)]).await;
    let store =
        LayerStore::open(pushed.directory.path().join("store"), Limits { parallel_layers: 1, ..limits() })
            .unwrap();
    let collected = Mutex::new(Vec::new());
    let tell = |progress| {
        if let Progress::Layers { whole: 1, .. } = progress {
            collected.lock().unwrap().push(store.collect(&[]).unwrap());
        }
    };
    let node = store.ensure(&pushed.source(), &tell).await.unwrap();
    let collected = collected.into_inner().unwrap();
    assert!(!collected.is_empty() && collected.iter().all(|c| c.layers == 0 && c.kept == 1), "{collected:?}");
    assert!(node.layers.iter().all(|layer| layer.is_dir()));
}

#[tokio::test]
async fn a_second_process_may_look_but_not_write() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("store");
    let first = store(&place);
    let image = image(&directory.path().join("layout"), &[noise(1)]);
    // A lock belongs to an open file: a second store in this process is as good as one in another.
    let second = store(&place);
    let error = second.ensure(&image.source(), &quiet).await.unwrap_err();
    assert!(matches!(error, EnsureNodeImageError::InUse { .. }), "{error}");
    assert_eq!(second.collect(&[]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    first.ensure(&image.source(), &quiet).await.unwrap();
    assert!(second.image(&image.manifest).is_some());
    drop(first);
    second.ensure(&image.source(), &quiet).await.unwrap();
    assert!(second.room().unwrap() > 0);
}

#[tokio::test]
async fn layer_without_its_record_is_fetched_again() {
    let pushed = Pushed::new(&[noise(1)]).await;
    let store = pushed.store();
    let node = store.ensure(&pushed.source(), &quiet).await.unwrap();
    fs::remove_file(node.layers[0].with_extension("json")).unwrap();
    fs::write(node.layers[0].join("file-1"), "damaged").unwrap();
    assert_eq!(store.image(&pushed.image.manifest), None);
    store.ensure(&pushed.source(), &quiet).await.unwrap();
    assert_eq!(fs::read(node.layers[0].join("file-1")).unwrap(), content(1, 3 << 20));
}
