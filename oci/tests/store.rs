//! The store filled from layouts and files; what is collected and what is not.

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

mod fixture;

use std::collections::HashSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use bedplate_api::id::Digest;
use bedplate_oci::{EnsureImageError, Options, Source, Store};
use fixture::{ROOTFS, content, digest, layout, options, quiet, store};

fn source(path: &Path) -> Source {
    Source::Layout { path: path.to_owned(), tag: None, digest: None }
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

#[tokio::test]
async fn a_layout_is_copied_verified_and_cached_after_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (path, manifest) = layout(directory.path(), 1);
    let at = directory.path().join("store");
    let image = store(&at).ensure(&source(&path), &quiet).await.unwrap();
    assert_eq!(image.digest, manifest);
    fs::remove_dir_all(&path).unwrap();
    let store = store(&at);
    assert_eq!(store.cached(&source(&path)), Some(image.clone()));
    assert!(store.ensure(&source(&path), &quiet).await.is_err());
    assert_eq!(digest(&fs::read(store.path(&image.kernel.digest)).unwrap()), image.kernel.digest);
}

#[tokio::test]
async fn an_image_for_which_there_is_no_space_is_not_fetched_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = layout(directory.path(), 1);
    let at = directory.path().join("store");
    let file = |name: &str| path.parent().unwrap().join("files-1").join(name);
    let files =
        Source::Files { kernel: file("kernel"), initrd: file("initrd"), rootfs: Some(file("rootfs")) };
    for (options, says) in [
        (Options { keep_free: u64::MAX / 2, ..options() }, "must stay free"),
        (Options { largest_store: 1 << 20, ..options() }, "of at most 1 MiB; remove images"),
    ] {
        let store = Store::open_with(&at, options).unwrap();
        for source in [source(&path), files.clone()] {
            let error = store.ensure(&source, &quiet).await.unwrap_err();
            let is_space = matches!(error, EnsureImageError::InsufficientSpace { .. });
            assert!(is_space && error.to_string().contains(says), "{error}");
        }
        assert!(store.bytes().unwrap() < 1 << 20, "nothing beyond the limit");
    }
    store(&at).ensure(&source(&path), &quiet).await.unwrap();
    store(&at).ensure(&files, &quiet).await.unwrap();
}

#[tokio::test]
async fn a_layout_is_chosen_from_by_tag_and_digest() {
    let directory = tempfile::tempdir().unwrap();
    let (path, manifest) = layout(directory.path(), 1);
    let store = store(&directory.path().join("store"));
    let ask = |tag: Option<&str>, digest: Option<Digest>| Source::Layout {
        path: path.clone(),
        tag: tag.map(str::to_owned),
        digest,
    };
    assert_eq!(store.ensure(&ask(Some("latest"), None), &quiet).await.unwrap().digest, manifest);
    assert_eq!(store.ensure(&ask(None, Some(manifest)), &quiet).await.unwrap().digest, manifest);
    for source in [ask(Some("other"), None), ask(None, Some(digest(b"other")))] {
        let error = store.ensure(&source, &quiet).await.unwrap_err();
        assert!(matches!(error, EnsureImageError::Select { .. }), "{error}");
    }
}

#[tokio::test]
async fn several_architectures_give_the_one_that_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let (path, manifest) = layout(directory.path(), 1);
    let (other, other_manifest) = layout(directory.path(), 2);
    let read = |p: &Path| -> serde_json::Value {
        serde_json::from_slice(&fs::read(p.join("index.json")).unwrap()).unwrap()
    };
    let (mut index, mut second) = (read(&path), read(&other)["manifests"][0].clone());
    second["platform"]["architecture"] = "arm64".into();
    index["manifests"].as_array_mut().unwrap().push(second);
    fs::write(path.join("index.json"), index.to_string()).unwrap();
    for entry in fs::read_dir(other.join("blobs/sha256")).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, path.join("blobs/sha256").join(from.file_name().unwrap())).unwrap();
    }
    for (architecture, expected) in [("amd64", manifest), ("arm64", other_manifest)] {
        let options = Options { architecture: architecture.into(), ..options() };
        let store = Store::open_with(directory.path().join(architecture), options).unwrap();
        assert_eq!(store.ensure(&source(&path), &quiet).await.unwrap().digest, expected);
    }
}

#[tokio::test]
async fn hostile_layouts_are_refused_without_a_trace() {
    type Spoil = fn(&Path, &Digest);
    let cases: &[(&str, Spoil)] = &[
        ("no index", |p, _| fs::remove_file(p.join("index.json")).unwrap()),
        ("an index that is no JSON", |p, _| fs::write(p.join("index.json"), "{").unwrap()),
        ("an endless index", |p, _| fs::write(p.join("index.json"), vec![b' '; 5 << 20]).unwrap()),
        ("an index that is a directory", |p, _| {
            fs::remove_file(p.join("index.json")).unwrap();
            fs::create_dir(p.join("index.json")).unwrap();
        }),
        ("a path for a digest", |p, m| {
            edit(&p.join("index.json"), &m.to_string(), "sha256:../../../etc/passwd");
        }),
        ("another algorithm", |p, _| edit(&p.join("index.json"), "sha256:", "sha512:")),
        ("a negative size", |p, _| edit(&p.join("index.json"), "\"size\":", "\"size\":-")),
        ("a manifest of another version", |p, m| {
            edit(&p.join("blobs/sha256").join(m.hex()), "\"schemaVersion\":2", "\"schemaVersion\":1");
        }),
        ("a manifest that was changed", |p, m| {
            edit(&p.join("blobs/sha256").join(m.hex()), "kernel.v1", "kernel.v2");
        }),
        ("a blob that is missing", |p, _| {
            fs::remove_file(p.join("blobs/sha256").join(rootfs().hex())).unwrap();
        }),
        ("a blob that was changed", |p, _| {
            let path = p.join("blobs/sha256").join(rootfs().hex());
            let mut bytes = fs::read(&path).unwrap();
            bytes[ROOTFS / 2] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("a blob that was cut", |p, _| {
            fs::write(p.join("blobs/sha256").join(rootfs().hex()), content(1, 1000)).unwrap();
        }),
        ("a blob that never ends", |p, _| {
            let path = p.join("blobs/sha256").join(rootfs().hex());
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/dev/zero", path).unwrap();
        }),
    ];
    for (name, spoil) in cases {
        let directory = tempfile::tempdir().unwrap();
        let (path, manifest) = layout(directory.path(), 1);
        spoil(&path, &manifest);
        let store = store(&directory.path().join("store"));
        let result = store.ensure(&source(&path), &quiet).await;
        assert!(result.is_err(), "{name}");
        assert!(!store.path(&rootfs()).exists(), "{name}");
        assert!(store.cached(&source(&path)).is_none(), "{name}");
    }
}

fn rootfs() -> Digest {
    digest(&content(10 + ROOTFS as u64, ROOTFS))
}

#[tokio::test]
async fn a_manifest_that_promises_too_much_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = layout(directory.path(), 1);
    let options = Options { largest_blob: 1 << 20, ..options() };
    let store = Store::open_with(directory.path().join("store"), options).unwrap();
    let error = store.ensure(&source(&path), &quiet).await.unwrap_err();
    assert!(matches!(error, EnsureImageError::InvalidManifest { .. }), "{error}");
}

#[tokio::test]
async fn a_changed_file_is_a_new_image_and_an_unchanged_one_is_not_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = layout(directory.path(), 1);
    drop(path);
    let files = directory.path().join("files-1");
    let store = store(&directory.path().join("store"));
    let source = Source::Files {
        kernel: files.join("kernel"),
        initrd: files.join("initrd"),
        rootfs: Some(files.join("rootfs")),
    };
    let first = store.ensure(&source, &quiet).await.unwrap();
    assert_eq!(first.rootfs.unwrap().digest, rootfs());
    let transfers = std::sync::Mutex::new(0);
    let count = |progress| {
        if matches!(progress, bedplate_oci::Progress::Transfer { .. }) {
            *transfers.lock().unwrap() += 1;
        }
    };
    assert_eq!(store.ensure(&source, &count).await.unwrap(), first);
    assert_eq!(*transfers.lock().unwrap(), 0);
    fs::write(files.join("initrd"), b"another").unwrap();
    let second = store.ensure(&source, &quiet).await.unwrap();
    assert_ne!(second.digest, first.digest);
    assert_eq!(second.initrd.digest, digest(b"another"));
    assert_eq!(second.kernel, first.kernel);
    fs::remove_file(files.join("kernel")).unwrap();
    let error = store.ensure(&source, &quiet).await.unwrap_err();
    assert!(error.to_string().contains("kernel"), "{error}");
    assert_eq!(store.cached(&source), Some(second));
}

#[tokio::test]
async fn collection_keeps_what_is_referenced_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let (one, first) = layout(directory.path(), 1);
    let (two, second) = layout(directory.path(), 2);
    let store = store(&directory.path().join("store"));
    store.ensure(&source(&one), &quiet).await.unwrap();
    store.ensure(&source(&two), &quiet).await.unwrap();
    let stranger = directory.path().join("store/blobs/sha256/README");
    fs::write(&stranger, "not ours").unwrap();

    let collected = store.collect(&HashSet::from([first])).unwrap();
    // Manifest, kernel, initrd, rootfs; the configuration is the same in both.
    assert_eq!((collected.blobs, collected.kept), (4, 5));
    assert!(collected.bytes > ROOTFS as u64);
    assert!(store.cached(&source(&one)).is_some());
    assert!(store.cached(&source(&two)).is_none());
    assert!(store.image(&second).is_none());
    assert!(stranger.exists());
    store.ensure(&source(&two), &quiet).await.unwrap();
    assert_eq!(store.collect(&HashSet::from([first, second])).unwrap().blobs, 0);
}

#[tokio::test]
async fn collection_spares_what_was_used_just_now() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = layout(directory.path(), 1);
    let options = Options { grace: std::time::Duration::from_secs(3600), ..options() };
    let store = Store::open_with(directory.path().join("store"), options).unwrap();
    store.ensure(&source(&path), &quiet).await.unwrap();
    assert_eq!(store.collect(&HashSet::new()).unwrap().blobs, 0);
}

#[tokio::test]
async fn an_open_blob_stays_readable_when_it_is_collected() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = layout(directory.path(), 1);
    let store = store(&directory.path().join("store"));
    let image = store.ensure(&source(&path), &quiet).await.unwrap();
    let mut file = fs::File::open(store.path(&image.rootfs.unwrap().digest)).unwrap();
    assert!(store.collect(&HashSet::new()).unwrap().blobs >= 5);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(digest(&bytes), rootfs());
}

#[test]
fn the_future_of_ensure_can_be_spawned() {
    fn assert_send<T: Send>(_: &T) {}
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let source = source(directory.path());
    assert_send(&store.ensure(&source, &quiet));
}

/// A message, its level, and who said it.
type Message = (ThreadId, tracing::Level, String);

/// Every message of this process: a subscriber of one thread alone may hear nothing of what another thread said first.
struct Messages(Arc<Mutex<Vec<Message>>>);

impl tracing::Subscriber for Messages {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push((thread::current().id(), *event.metadata().level(), text.0));
    }
}

#[tokio::test]
async fn image_is_reported_and_recorded_once_for_each_change() {
    let reported = Arc::<Mutex<Vec<Message>>>::default();
    tracing::subscriber::set_global_default(Messages(reported.clone())).unwrap();
    // Call sites that were evaluated before the subscriber was set were disabled.
    tracing::callsite::rebuild_interest_cache();
    let news = || {
        let (reported, own) = (reported.lock().unwrap(), thread::current().id());
        let ours = reported.iter().filter(|(thread, ..)| *thread == own);
        ours.filter(|(_, level, text)| *level <= tracing::Level::INFO && text.contains("image")).count()
    };
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = layout(directory.path(), 1);
    let store = store(&directory.path().join("store"));
    let written = || {
        let entry = fs::read_dir(directory.path().join("store/resolutions")).unwrap().next().unwrap();
        let metadata = entry.unwrap().metadata().unwrap();
        (metadata.ino(), metadata.modified().unwrap())
    };
    store.ensure(&source(&path), &quiet).await.unwrap();
    let first = written();
    for _ in 0..3 {
        store.ensure(&source(&path), &quiet).await.unwrap();
    }
    assert_eq!((news(), written()), (1, first));
    let (next, _) = layout(directory.path(), 2);
    fs::remove_dir_all(&path).unwrap();
    fs::rename(next, &path).unwrap();
    store.ensure(&source(&path), &quiet).await.unwrap();
    assert_eq!(news(), 2);
}

#[tokio::test]
async fn copy_interrupted_by_a_crash_is_removed_and_resumable_files_stay() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("store");
    drop(store(&at));
    let resumable = at.join("partial").join(digest(b"x").hex());
    let writing = at.join("partial/rootfs.99.1");
    for path in [&at.join("partial/kernel.99.0"), &resumable, &writing] {
        fs::write(path, b"half").unwrap();
    }
    let other = fs::File::open(&writing).unwrap();
    other.lock().unwrap();
    drop(store(&at));
    let mut left: Vec<_> =
        fs::read_dir(at.join("partial")).unwrap().map(|entry| entry.unwrap().path()).collect();
    left.sort();
    let mut expected = [resumable, writing];
    expected.sort();
    assert_eq!(left, expected);
}
