//! Ensures that an image is in the store: resolves it, fetches and unpacks missing layers concurrently, and
//! assembles it.
//!
//! Callers: the agent, through [`LayerStore::ensure`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bedplate_api::id::Digest;
use tokio::sync::mpsc;

use super::document::Layer;
use super::error::{EnsureNodeImageError, UnpackLayerError};
use super::fetch::{self, Fetched};
use super::merge::{self, AssembleImageError};
use super::resolve::{self, Resolved};
use super::source::{NodeSource, Progress};
use super::stage;
use super::store::{ImageRecord, LayerStore, NodeImage};
use super::stream::MAX_PIECES;
use super::unpack::Bounds;
use crate::error::EnsureImageError;
use crate::source::Progress as TransferProgress;

/// Receiver of progress.
pub type Tell<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// Number of bytes between two reports of progress.
const TELL_EVERY: u64 = 1 << 20;

/// State of one running `ensure`.
struct Run<'a> {
    store: &'a LayerStore,
    name: &'a str,
    resolved: &'a Resolved,
    tell: Tell<'a>,
    whole: AtomicUsize,
    done: AtomicU64,
    reported: AtomicU64,
    total: u64,
    /// Minimum size of the missing layers in the store.
    needed: u64,
}

impl LayerStore {
    /// Ensures that the image is in the store, complete and verified. Asks the source, unless it names a
    /// digest that is in the store. [`LayerStore::image`] never asks it.
    ///
    /// May be dropped at any time, and the process killed: complete layers are kept.
    ///
    /// # Errors
    /// [`EnsureNodeImageError`], whose text contains the remedy.
    pub async fn ensure(
        &self,
        source: &NodeSource,
        tell: Tell<'_>,
    ) -> Result<NodeImage, EnsureNodeImageError> {
        let name = source.reference.as_str();
        if !self.own().map_err(|error| self.unusable(name, error))? {
            let (image, path) = (name.to_owned(), self.layers().to_owned());
            return Err(EnsureNodeImageError::InUse { image, path });
        }
        let pinned = source.pinned();
        if let Some(digest) = pinned
            && let Some(image) = self.image(&digest)
        {
            self.touch(&digest);
            tell(Progress::Ready { digest: image.digest });
            return Ok(image);
        }
        tell(Progress::Resolving);
        let retry = |progress| {
            if let Some(progress) = Progress::of_transfer(progress) {
                tell(progress);
            }
        };
        let resolved = resolve::resolve(source, &self.inner.limits, &retry).await?;
        let names = [Some(resolved.digest), pinned].into_iter().flatten();
        let _pins = self.inner.pins.pin(resolved.layers.iter().map(|l| l.diff_id).chain(names));
        Run::new(self, name, &resolved, tell).layers(&retry).await?;
        let image = self.assemble(name, &resolved, pinned).await?;
        tracing::info!(image = %name, digest = %image.digest, layers = image.layers.len(), "node image is in the store");
        tell(Progress::Ready { digest: image.digest });
        Ok(image)
    }

    fn unusable(&self, name: &str, source: io::Error) -> EnsureNodeImageError {
        EnsureNodeImageError::UseStore { image: name.to_owned(), path: self.layers().to_owned(), source }
    }

    /// Merges complete layers and records the image.
    async fn assemble(
        &self,
        name: &str,
        resolved: &Resolved,
        pinned: Option<Digest>,
    ) -> Result<NodeImage, EnsureNodeImageError> {
        let (store, digest) = (self.clone(), resolved.digest);
        let ids: Vec<Digest> = resolved.layers.iter().map(|layer| layer.diff_id).collect();
        let mut record = ImageRecord {
            reference: name.to_owned(),
            digest,
            architecture: resolved.config.architecture.clone(),
            layers: Vec::new(),
            labels: resolved.config.labels.clone(),
        };
        let work = move || {
            let _alone = store.records();
            record.layers = merge::assemble(store.layers(), &ids)?;
            let names = [Some(digest), pinned.filter(|pinned| *pinned != digest)];
            names
                .iter()
                .flatten()
                .try_for_each(|name| store.remember(name, &record))
                .map_err(AssembleImageError::Write)?;
            Ok(store.image(&digest))
        };
        let made = tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(AssembleImageError::Write(io::Error::other(error))));
        match made {
            Ok(Some(image)) => Ok(image),
            Ok(None) => Err(self.unusable(name, io::ErrorKind::NotFound.into())),
            Err(AssembleImageError::Write(error)) => Err(self.unusable(name, error)),
            Err(AssembleImageError::Unpack(source)) => {
                let (image, source) = (name.to_owned(), Box::new(source));
                Err(EnsureNodeImageError::UnpackLayer { image, digest, source })
            }
            Err(error @ AssembleImageError::Read(..)) => Err(self.unusable(name, io::Error::other(error))),
            Err(error) => {
                let (image, problem) = (name.to_owned(), error.to_string());
                Err(EnsureNodeImageError::InvalidImage { image, digest, problem })
            }
        }
    }
}

impl<'a> Run<'a> {
    fn new(store: &'a LayerStore, name: &'a str, resolved: &'a Resolved, tell: Tell<'a>) -> Self {
        let total = resolved.layers.iter().map(|layer| layer.blob.size).sum();
        let (whole, done, reported) = Default::default();
        let missing = |layer: &&Layer| !stage::is_whole(store.layers(), &layer.diff_id);
        let expected = resolved.layers.iter().filter(missing).map(|layer| layer.expected);
        let needed = expected.fold(0, u64::saturating_add);
        Self { store, name, resolved, tell, whole, done, reported, total, needed }
    }

    /// Fetches all layers, the largest first, so that the last one to finish is small.
    async fn layers(
        &self,
        retry: &(dyn Fn(TransferProgress) + Send + Sync),
    ) -> Result<(), EnsureNodeImageError> {
        self.check_room()?;
        let mut layers: Vec<&Layer> = self.resolved.layers.iter().collect();
        layers.sort_by_key(|layer| std::cmp::Reverse(layer.blob.size));
        self.say();
        let all = layers.into_iter().map(|layer| self.layer(layer, retry));
        futures::future::try_join_all(all).await.map(drop)
    }

    fn check_room(&self) -> Result<(), EnsureNodeImageError> {
        let free = self.store.room().map_err(|error| self.store.unusable(self.name, error))?;
        let needed = self.needed.saturating_add(self.store.inner.limits.reserve);
        if self.needed > 0 && free < needed { Err(self.no_room(free)) } else { Ok(()) }
    }

    fn no_room(&self, free: u64) -> EnsureNodeImageError {
        let (image, path) = (self.name.to_owned(), self.store.layers().to_owned());
        let needed = self.needed.saturating_add(self.store.inner.limits.reserve);
        EnsureNodeImageError::NoRoom { image, path, needed, free }
    }

    /// Ensures that a layer is in the store. Concurrent requests fetch it once.
    async fn layer(
        &self,
        layer: &Layer,
        retry: &(dyn Fn(TransferProgress) + Send + Sync),
    ) -> Result<(), EnsureNodeImageError> {
        let alone = self.store.writer(layer.diff_id).lock_owned().await;
        if stage::is_whole(self.store.layers(), &layer.diff_id) {
            self.advance(0, layer.blob.size);
        } else {
            let turn = Arc::clone(&self.store.inner.transfers).acquire_owned().await;
            // Held by the blocking half too: it outlives this one, if this one is dropped.
            let held = Arc::new((alone, turn));
            if self.fetch(layer, retry, &held).await? == Fetched::Spoiled {
                // Bytes of several answers that do not fit together; those of one answer are the source's own.
                self.advance(layer.blob.size, 0);
                let problem = "the parts of several answers did not match".to_owned();
                retry(TransferProgress::Retry { problem, wait: std::time::Duration::ZERO });
                if self.fetch(layer, retry, &held).await? == Fetched::Spoiled {
                    let (image, what) = (self.name.to_owned(), format!("blob {}", layer.blob.digest));
                    let problem = "the parts of several answers do not match".to_owned();
                    return Err(EnsureNodeImageError::Unreachable { image, what, attempts: 2, problem });
                }
            }
        }
        self.whole.fetch_add(1, Ordering::Relaxed);
        self.say();
        Ok(())
    }

    async fn fetch<H: Send + Sync + 'static>(
        &self,
        layer: &Layer,
        retry: &(dyn Fn(TransferProgress) + Send + Sync),
        held: &Arc<H>,
    ) -> Result<Fetched, EnsureNodeImageError> {
        let limits = &self.store.inner.limits;
        let (pieces, incoming) = mpsc::channel(MAX_PIECES);
        let bounds = Bounds { members: limits.most_files, reserve: limits.reserve };
        let (layers, of, largest, held) =
            (self.store.layers().to_owned(), layer.clone(), limits.largest_unpacked, Arc::clone(held));
        let unpacking = tokio::task::spawn_blocking(move || {
            let result = stage::receive(&layers, &of, incoming, bounds, largest);
            drop(held);
            result
        });
        let before = AtomicU64::new(0);
        let advance = |done| self.advance(before.swap(done, Ordering::Relaxed), done);
        let tell = fetch::Tell { retry, bytes: &advance };
        let origin = &self.resolved.origin;
        let sent = fetch::send(origin, self.name, layer.blob, &limits.transfer, &pieces, tell).await;
        drop(pieces);
        let unpacked = unpacking.await.unwrap_or(Err(UnpackLayerError::Thread));
        let failed = |source| EnsureNodeImageError::UnpackLayer {
            image: self.name.to_owned(),
            digest: layer.blob.digest,
            source: Box::new(source),
        };
        match (sent, unpacked) {
            (_, Err(UnpackLayerError::NoRoom { free })) => Err(self.no_room(free)),
            (Ok(Fetched::Spoiled), _) => Ok(Fetched::Spoiled),
            (Err(error), Err(UnpackLayerError::Transfer) | Ok(())) => Err(of_registry(error)),
            (Ok(Fetched::Unwanted { pieced: true }), Err(UnpackLayerError::Archive(_))) => {
                Ok(Fetched::Spoiled)
            }
            (Ok(Fetched::Unwanted { .. }), Ok(())) => Err(failed(UnpackLayerError::Transfer)),
            (_, Err(error)) => Err(failed(error)),
            (Ok(Fetched::Whole), Ok(())) => Ok(Fetched::Whole),
        }
    }

    /// Counts bytes of a layer, and reports at intervals.
    fn advance(&self, before: u64, now: u64) {
        self.done.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed);
        if done.wrapping_sub(self.reported.load(Ordering::Relaxed)) >= TELL_EVERY {
            self.say();
        }
    }

    fn say(&self) {
        let done = self.done.load(Ordering::Relaxed);
        self.reported.store(done, Ordering::Relaxed);
        let (whole, layers) = (self.whole.load(Ordering::Relaxed), self.resolved.layers.len());
        (self.tell)(Progress::Layers { whole, layers, done, total: self.total });
    }
}

fn of_registry(error: EnsureImageError) -> EnsureNodeImageError {
    EnsureNodeImageError::of_source(error)
}
