//! Images that Machines boot: fetched at start and when a Machine names one, and retried with growing delays.
//! Unreferenced images are dropped from the cache every half hour, and when there is no space for another one.
//!
//! This module decides when and which; the image crate fetches. A cached image boots while its source is unreachable.

pub mod counters;
pub mod reach;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::Digest;
use bedplate_oci::{Access, BootImage, EnsureImageError, Progress, Source, Store, UNKNOWN_ARCHITECTURE};
use bedplate_process::backoff::Backoff;
use bedplate_process::exit::chain;
use bedplate_process::liveness::Pulse;
use bedplate_process::lock::Lock;
use bedplate_process::reconcile::{Activation, Reconcile, Task, Turn};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::counters::{Counters, Fetch};
use crate::boot::Boots;
use crate::boot::record::Image;
use crate::boot_policy::{ImageName, ImageState, argument};
use crate::config::Config;

/// Delay between two attempts to fetch an image.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(120));

/// Interval between checks of a source without a digest for new content.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Interval between collections of unused images.
const COLLECTION_INTERVAL: Duration = Duration::from_secs(1800);

/// Maximum number of concurrent images that Machines name by reference: each needs disk space.
const MAX_REFERENCES: usize = 64;

/// The images; clones share them.
#[derive(Clone)]
pub struct Images {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    counters: Counters,
    state: Lock<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    configured: HashMap<String, (Source, Vec<String>)>,
    entries: HashMap<ImageName, Entry>,
}

struct Entry {
    source: Source,
    arguments: Vec<String>,
    image: Option<BootImage>,
    how: How,
    /// Latest note for users.
    note: String,
    failures: u32,
}

#[derive(Clone, Copy)]
enum How {
    Due(Instant),
    Running,
}

/// One image, for readiness and `bedplate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Name of the image.
    pub name: ImageName,
    /// State of the image.
    pub state: ImageState,
    /// Digest of the image, if it is cached.
    pub digest: Option<Digest>,
}

/// The loop that fetches images and removes blobs.
struct Fetcher {
    images: Images,
    boots: Boots,
    fetches: TaskTracker,
    /// Time at which blobs are removed next.
    collect: Instant,
    /// Ends the fetches.
    shutdown: CancellationToken,
}

impl Reconcile for Fetcher {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        self.images.inner.wake.notified().await;
        Some(())
    }

    async fn turn(&mut self, _: Activation<()>) -> Turn {
        let now = Instant::now();
        let (due, next) = self.images.take_due(now);
        for (name, source) in due {
            let (images, boots, shutdown) = (self.images.clone(), self.boots.clone(), self.shutdown.clone());
            self.fetches.spawn(async move {
                let fetch = images.fetch(name, source, &boots);
                shutdown.run_until_cancelled(fetch).await;
            });
        }
        if now >= self.collect {
            self.collect = now + COLLECTION_INTERVAL;
            drop(self.images.collect(&self.boots));
        }
        Turn::At(next.map_or(self.collect, |next| next.min(self.collect)))
    }
}

impl Images {
    /// Creates the images of a configuration; cached ones are ready immediately. Blocking: reads some small files.
    pub fn new(store: Store, config: &Config) -> Self {
        let (counters, state) = (Counters::default(), Lock::default());
        let images = Self { inner: Arc::new(Inner { store, counters, state, wake: Notify::new() }) };
        images.inner.counters.measure(&images.inner.store);
        images.configure(config);
        images
    }

    /// Takes over a configuration: its images are fetched, those that it no longer has are forgotten.
    pub fn configure(&self, config: &Config) {
        let configured = config
            .images
            .iter()
            .map(|(name, image)| (name.clone(), (image.source.clone(), image.kernel_arguments.clone())));
        let mut state = self.inner.state.lock();
        state.configured = configured.collect();
        let names: Vec<_> = state.configured.keys().cloned().map(ImageName::Configured).collect();
        let configured: HashSet<_> = names.iter().cloned().collect();
        state
            .entries
            .retain(|name, _| !matches!(name, ImageName::Configured(_)) || configured.contains(name));
        for name in names {
            self.add(&mut state, name);
        }
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Sees to it that exactly these references are fetched, besides what is configured.
    pub(crate) fn want_references(&self, wanted: &HashSet<ImageName>) {
        let mut state = self.inner.state.lock();
        state.entries.retain(|name, _| matches!(name, ImageName::Configured(_)) || wanted.contains(name));
        let mut names: Vec<_> =
            wanted.iter().filter(|name| matches!(name, ImageName::Reference { .. })).cloned().collect();
        names.sort();
        if names.len() > MAX_REFERENCES {
            tracing::warn!(
                references = names.len(),
                limit = MAX_REFERENCES,
                "too many image references, skipping the rest"
            );
            names.truncate(MAX_REFERENCES);
        }
        for name in names {
            self.add(&mut state, name);
        }
        drop(state);
        self.inner.wake.notify_one();
    }

    fn add(&self, state: &mut State, name: ImageName) {
        let (source, arguments) = match &name {
            ImageName::Configured(configured) => match state.configured.get(configured) {
                Some(found) => found.clone(),
                None => return,
            },
            ImageName::Reference { reference, allow_tag } => {
                let source = Source::Registry {
                    reference: reference.clone(),
                    allow_tag: *allow_tag,
                    access: Access { is_confined: true, ..Access::default() },
                };
                (source, Vec::new())
            }
        };
        if let Some(entry) = state.entries.get_mut(&name)
            && entry.source == source
        {
            entry.arguments = arguments;
            return;
        }
        let image = self.inner.store.cached(&source);
        let entry = Entry {
            source,
            arguments,
            image,
            how: How::Due(Instant::now()),
            note: "waiting for its turn".to_owned(),
            failures: 0,
        };
        state.entries.insert(name, entry);
    }

    /// Returns the architecture of the image, in OCI's terms; `None` if it is not cached or does not state one.
    pub fn architecture(&self, name: &ImageName) -> Option<String> {
        let state = self.inner.state.lock();
        let image = state.entries.get(name)?.image.as_ref()?;
        Some(image.architecture.clone()).filter(|architecture| architecture != UNKNOWN_ARCHITECTURE)
    }

    /// Returns the state of this image.
    pub fn state(&self, name: &ImageName) -> ImageState {
        self.inner.state.lock().entries.get(name).map_or(ImageState::Unknown, Entry::state)
    }

    /// Every image.
    pub fn seen(&self) -> Vec<Seen> {
        let state = self.inner.state.lock();
        let mut seen: Vec<_> = state
            .entries
            .iter()
            .map(|(name, entry)| Seen {
                name: name.clone(),
                state: entry.state(),
                digest: entry.image.as_ref().map(|image| image.digest),
            })
            .collect();
        seen.sort_by(|a, b| a.name.cmp(&b.name));
        seen
    }

    /// The image, if it is here.
    pub fn ready(&self, name: &ImageName) -> Option<Image> {
        let state = self.inner.state.lock();
        let entry = state.entries.get(name)?;
        let image = entry.image.as_ref()?;
        Some(Image {
            name: name.clone(),
            digest: image.digest,
            kernel: image.kernel,
            initrd: image.initrd,
            rootfs: image.rootfs,
            kernel_arguments: entry.all_arguments(image),
        })
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Returns the path of a blob.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.inner.store.path(digest)
    }

    /// Fetches what is wanted until `shutdown`. Transfers that are going on are dropped then; what they have on disk is kept.
    pub async fn run(self, boots: Boots, pulse: Pulse, shutdown: CancellationToken) {
        let (fetches, collect) = (TaskTracker::new(), Instant::now() + COLLECTION_INTERVAL);
        let mut fetcher = Fetcher { images: self, boots, fetches, collect, shutdown: shutdown.clone() };
        Task::new(pulse).run(&mut fetcher, shutdown).await;
        fetcher.fetches.close();
        fetcher.fetches.wait().await;
    }

    /// Returns the images to fetch now, marked as running, and the time of the next one.
    fn take_due(&self, now: Instant) -> (Vec<(ImageName, Source)>, Option<Instant>) {
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (name, entry) in &mut self.inner.state.lock().entries {
            match entry.how {
                How::Due(at) if at <= now => {
                    entry.how = How::Running;
                    due.push((name.clone(), entry.source.clone()));
                }
                How::Due(at) => next = Some(next.map_or(at, |next| next.min(at))),
                How::Running => {}
            }
        }
        (due, next)
    }

    async fn fetch(&self, name: ImageName, source: Source, boots: &Boots) {
        let tell = |progress: Progress| {
            let note = describe(&progress);
            self.change(&name, &source, |entry| entry.note.clone_from(&note));
        };
        let mut result = self.inner.store.ensure(&source, &tell).await;
        if let Err(EnsureImageError::InsufficientSpace { .. }) = &result
            && self.collect(boots).await.is_ok_and(|blobs| blobs > 0)
        {
            result = self.inner.store.ensure(&source, &tell).await;
        }
        match result {
            Ok(image) => {
                let pinned = source.pinned().is_some();
                let mut fetch = Fetch::Unchanged;
                self.change(&name, &source, |entry| {
                    if entry.image.as_ref() != Some(&image) {
                        fetch = Fetch::Fetched;
                        tracing::info!(image = %name, digest = %image.digest, "image is ready");
                    }
                    entry.image = Some(image.clone());
                    entry.failures = 0;
                    let wait = if pinned { LOOK_AGAIN * 60 } else { LOOK_AGAIN };
                    entry.how = How::Due(Instant::now() + wait);
                });
                self.inner.counters.fetches.one(fetch);
                if fetch == Fetch::Fetched {
                    let inner = self.inner.clone();
                    tokio::task::spawn_blocking(move || inner.counters.measure(&inner.store));
                }
            }
            Err(error) => {
                self.inner.counters.fetches.one(Fetch::Failed);
                let text = chain(&error);
                tracing::warn!(image = %name, error = text, "failed to fetch an image, retrying");
                self.change(&name, &source, |entry| {
                    entry.failures = entry.failures.saturating_add(1);
                    entry.note.clone_from(&text);
                    entry.how = How::Due(Instant::now() + BACKOFF.delay(entry.failures, rand::random()));
                });
            }
        }
        self.inner.wake.notify_one();
    }

    /// Changes an entry, if it is still for that source.
    fn change(&self, name: &ImageName, source: &Source, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.inner.state.lock().entries.get_mut(name)
            && entry.source == *source
        {
            change(entry);
        }
    }

    /// Removes blobs from the cache that neither a wanted image nor an open boot refers to. Returns their number.
    fn collect(&self, boots: &Boots) -> JoinHandle<usize> {
        let mut keep = HashSet::new();
        for entry in self.inner.state.lock().entries.values() {
            keep.extend(entry.image.as_ref().map(|image| image.digest));
            keep.extend(entry.source.pinned());
        }
        for image in boots.records().into_iter().filter_map(|record| record.image) {
            keep.extend([image.digest, image.kernel.digest, image.initrd.digest]);
            keep.extend(image.rootfs.map(|rootfs| rootfs.digest));
        }
        let inner = self.inner.clone();
        tokio::task::spawn_blocking(move || match inner.store.collect(&keep) {
            Ok(collected) => {
                if collected.blobs > 0 {
                    inner.counters.measure(&inner.store);
                    tracing::info!(blobs = collected.blobs, bytes = collected.bytes, "image cache collected");
                }
                collected.blobs
            }
            Err(error) => {
                tracing::warn!(%error, "failed to collect the image cache");
                0
            }
        })
    }
}

impl Entry {
    /// The image's own kernel arguments, then the configuration's.
    fn all_arguments(&self, image: &BootImage) -> Vec<String> {
        [image.kernel_arguments.as_slice(), &self.arguments].concat()
    }

    fn state(&self) -> ImageState {
        match &self.image {
            Some(image) => match argument::problem(&self.all_arguments(image)) {
                None => ImageState::Ready,
                Some(problem) => ImageState::Unusable(format!("its kernel arguments: {problem}")),
            },
            None if self.failures > 0 => ImageState::Failed(self.note.clone()),
            None => ImageState::Fetching(self.note.clone()),
        }
    }
}

fn describe(progress: &Progress) -> String {
    const BYTES_PER_MEBIBYTE: u64 = 1 << 20;
    match progress {
        Progress::Resolving => "contacting its source".to_owned(),
        Progress::Transfer { done, total, .. } => {
            format!("{} of {} MiB", done / BYTES_PER_MEBIBYTE, total.div_ceil(BYTES_PER_MEBIBYTE))
        }
        Progress::Retry { problem, .. } => problem.clone(),
        Progress::Ready { .. } => "whole".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(of_image: &[&str], of_configuration: &[&str]) -> Entry {
        let list = |arguments: &[&str]| arguments.iter().map(|a| (*a).to_owned()).collect();
        let digest: Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let blob = bedplate_oci::Blob { digest, size: 1 };
        let image = BootImage {
            digest,
            architecture: "amd64".to_owned(),
            kernel: blob,
            initrd: blob,
            rootfs: None,
            kernel_arguments: list(of_image),
        };
        let source = Source::Layout { path: "/images/host".into(), tag: None, digest: None };
        let (arguments, image) = (list(of_configuration), Some(image));
        Entry { source, arguments, image, how: How::Running, note: String::new(), failures: 0 }
    }

    #[test]
    fn image_with_an_argument_for_the_loader_is_not_booted() {
        assert_eq!(entry(&["panic=30"], &["quiet"]).state(), ImageState::Ready);
        for bad in ["a;reboot", "||", "#", "initrd=http://elsewhere", "bedplate.url=http://elsewhere", "a b"]
        {
            let state = entry(&["quiet", bad], &[]).state();
            let ImageState::Unusable(why) = state else { panic!("{bad}: {state:?}") };
            assert!(why.starts_with("its kernel arguments: argument 1"), "{bad}: {why}");
        }
        let half = "x".repeat(500);
        let together = entry(&[&half], &[&half]).state();
        assert!(
            matches!(together, ImageState::Unusable(why) if why.contains("the arguments have 1002 bytes"))
        );
    }

    const BYTES_PER_MEBIBYTE: usize = 1 << 20;

    /// Writes kernel, initrd and root image of this version, of 1 MiB each.
    fn write_version(directory: &std::path::Path, version: u8) {
        for (part, name) in (0..).zip(["kernel", "initrd", "rootfs"]) {
            let bytes = vec![version * 3 + part; BYTES_PER_MEBIBYTE + usize::from(version)];
            std::fs::write(directory.join(name), bytes).unwrap();
        }
    }

    #[tokio::test]
    async fn full_cache_is_collected_before_a_fetch_fails() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().display();
        let text = format!(
            "[source]\ndirectory = '{at}/machines'\n[dhcp]\nmode = 'off'\n[images.host]\n\
             kernel = '{at}/kernel'\ninitrd = '{at}/initrd'\nrootfs = '{at}/rootfs'\n"
        );
        let config = Config::parse(&text, &[]).unwrap();
        let options = bedplate_oci::Options {
            grace: Duration::ZERO,
            keep_free: 0,
            keep_free_percent: 0,
            largest_store: 7 << 20,
            ..bedplate_oci::Options::default()
        };
        let store = Store::open_with(directory.path().join("images"), options).unwrap();
        let images = Images::new(store, &config);
        let state = crate::store::Store::open(&directory.path().join("store")).unwrap();
        let (tell, now) = (Arc::new(crate::boot::tell::Silent), jiff::Timestamp::now());
        let boots = Boots::load(state, tell, jiff::SignedDuration::from_mins(10), now).unwrap();
        let name = ImageName::Configured("host".to_owned());
        let source = images.inner.state.lock().entries[&name].source.clone();
        let mut versions = HashSet::new();
        // Two versions fit. The one in use stays until the next one is there.
        for version in 1..=4 {
            write_version(directory.path(), version);
            images.fetch(name.clone(), source.clone(), &boots).await;
            versions.insert(images.ready(&name).unwrap().digest);
            assert_eq!(
                versions.len(),
                usize::from(version),
                "{:?}",
                images.inner.state.lock().entries[&name].note
            );
        }
        assert_eq!(images.counters().fetches.get(Fetch::Failed), 0);
    }
}
