//! The store: blobs by digest, images by source.
//!
//! Not here: the ways to fetch (`registry` and `download`, `layout`, `files`) and garbage collection (`collect`).
//! Callers: pxed, once per process; several processes may share one directory.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use bedplate_api::id::Digest;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use crate::error::EnsureImageError;
use crate::manifest::{self, Blob, BootImage, Document, Parts};
use crate::partial::{Partial, SharedPartial, blocking};
use crate::pin::Pins;
use crate::resolution::{self, Record};
use crate::source::{Options, Progress, Source};
use crate::space::{Promise, Space, mebi};
use crate::{files, layout, registry};

/// Maximum number of documents from a source to its manifest: two indexes, and the manifest.
const MOST_DOCUMENTS: usize = 3;

/// Receiver of progress.
pub(crate) type Tell<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// A content-addressed store of boot images in one directory. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    options: Options,
    /// Lock per digest within this process; `flock` on the partial file excludes other processes.
    writers: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
    transfers: Semaphore,
    /// Digests that a running `ensure` needs, whatever their age.
    pins: Pins,
    /// Bytes that running transfers will write.
    promised: Arc<AtomicU64>,
}

/// Origin of the documents and blobs of one `ensure`.
#[derive(Debug)]
pub(crate) enum Origin {
    Layout(PathBuf),
    Registry(Box<registry::Repository>),
}

impl Store {
    /// Opens the store in `directory`, made if it is missing.
    ///
    /// # Errors
    /// When the directory cannot be made or written.
    pub fn open(directory: impl AsRef<Path>) -> io::Result<Self> {
        Self::open_with(directory, Options::default())
    }

    /// Opens the store with options.
    ///
    /// # Errors
    /// When the directory cannot be made or written.
    pub fn open_with(directory: impl AsRef<Path>, options: Options) -> io::Result<Self> {
        let root = std::path::absolute(directory)?;
        for part in ["blobs/sha256", "partial", "resolutions"] {
            fs::create_dir_all(root.join(part))?;
        }
        let transfers = Semaphore::new(options.parallel_transfers.max(1));
        let (writers, pins, promised) = (Mutex::default(), Pins::default(), Arc::default());
        let store = Self { inner: Arc::new(Inner { root, options, writers, transfers, pins, promised }) };
        store.collect_partials(SystemTime::now())?;
        Ok(store)
    }

    /// Returns the path of a blob, whether it exists or not.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.inner.root.join("blobs/sha256").join(digest.hex())
    }

    /// Returns the last known image of this source if it is complete in the
    /// store. Makes no request. Reads three small files.
    pub fn cached(&self, source: &Source) -> Option<BootImage> {
        let record = resolution::read(&self.record_path(source));
        self.image(&record.map(|r| r.image).or(source.pinned())?)
    }

    /// Returns the image with this manifest if it is complete in the store.
    pub fn image(&self, digest: &Digest) -> Option<BootImage> {
        let (image, _) = self.load(digest)?;
        Some(image)
    }

    /// Ensures that the image is in the store, complete and verified. Asks the
    /// source, unless it names a digest that is in the store. If the source is
    /// unavailable, this fails, and [`Store::cached`] still has the last image.
    ///
    /// May be dropped at any time: transferred bytes are kept, and the next call continues from there.
    ///
    /// # Errors
    /// [`EnsureImageError`], whose text contains the remedy.
    pub async fn ensure(&self, source: &Source, tell: Tell<'_>) -> Result<BootImage, EnsureImageError> {
        let name = source.to_string();
        let before = self.cached(source);
        if source.pinned().is_some()
            && let Some(image) = before
        {
            self.touch(&image);
            tell(Progress::Ready { digest: image.digest });
            return Ok(image);
        }
        tell(Progress::Resolving);
        let image = match source {
            Source::Layout { path, tag, digest } => {
                let document = layout::root(&name, path).await?;
                let wanted = manifest::Wanted {
                    tag: tag.as_deref(),
                    digest: *digest,
                    architecture: &self.options().architecture,
                };
                let origin = Origin::Layout(path.clone());
                self.walk(&name, &origin, document, wanted, source.pinned(), tell).await?
            }
            Source::Registry { reference, allow_tag, access } => {
                let options = self.options();
                let repository =
                    registry::Repository::new(&name, reference, *allow_tag, access, options).await?;
                let document = repository.root(&name, tell).await?;
                let wanted =
                    manifest::Wanted { architecture: &self.options().architecture, ..Default::default() };
                let origin = Origin::Registry(Box::new(repository));
                self.walk(&name, &origin, document, wanted, source.pinned(), tell).await?
            }
            Source::Files { kernel, initrd, rootfs } => {
                files::ensure(self, source, kernel, initrd, rootfs.as_deref(), tell).await?
            }
        };
        if before.is_some_and(|before| before.digest == image.digest) {
            // Called repeatedly: an unchanged image is neither logged nor written.
            tracing::debug!(image = %name, digest = %image.digest, "image is in the store, unchanged");
        } else {
            if !matches!(source, Source::Files { .. }) {
                let record = Record { source: name.clone(), image: image.digest, files: Vec::new() };
                self.remember(&name, source, record).await?;
            }
            tracing::info!(image = %name, digest = %image.digest, "image is in the store");
        }
        self.touch(&image);
        tell(Progress::Ready { digest: image.digest });
        Ok(image)
    }

    /// Follows the first document to a manifest, through at most two indexes, then fetches its blobs.
    async fn walk(
        &self,
        name: &str,
        origin: &Origin,
        first: Vec<u8>,
        mut wanted: manifest::Wanted<'_>,
        pinned: Option<Digest>,
        tell: Tell<'_>,
    ) -> Result<BootImage, EnsureImageError> {
        let mut bytes = first;
        let mut kept = false;
        for _ in 0..MOST_DOCUMENTS {
            let digest = digest_of(&bytes);
            let invalid =
                |problem| EnsureImageError::InvalidManifest { image: name.to_owned(), digest, problem };
            let index = match manifest::parse(&bytes).map_err(invalid)? {
                Document::Manifest(manifest) => {
                    let parts = manifest::parts(&manifest, self.options().largest_blob).map_err(invalid)?;
                    return self.gather(name, origin, bytes, parts, tell).await;
                }
                Document::Index(index) => index,
            };
            // A caller that pins an index names only the index to the collection,
            // which finds the image through it.
            kept |= pinned == Some(digest);
            if kept {
                self.put(name, bytes.clone()).await?;
            }
            let chosen = manifest::select(&index, &wanted).map_err(|problem| EnsureImageError::Select {
                image: name.to_owned(),
                problem,
                remedy: "name one by tag or digest".to_owned(),
            })?;
            bytes = origin.document(name, chosen.blob(), tell).await?;
            wanted = manifest::Wanted { tag: None, digest: None, ..wanted };
        }
        let digest = digest_of(&bytes);
        let problem = "indexes in indexes".to_owned();
        Err(EnsureImageError::InvalidManifest { image: name.to_owned(), digest, problem })
    }

    async fn gather(
        &self,
        name: &str,
        origin: &Origin,
        document: Vec<u8>,
        parts: Parts,
        tell: Tell<'_>,
    ) -> Result<BootImage, EnsureImageError> {
        let digest = digest_of(&document);
        let _pins = self.pins().pin(parts.blobs().map(|b| b.digest).chain([digest]));
        self.put(name, document).await?;
        futures::future::try_join_all(parts.blobs().map(|blob| self.obtain(name, origin, blob, tell)))
            .await?;
        let (image, _) = self.load_checked(&digest).map_err(|problem| EnsureImageError::InvalidManifest {
            image: name.to_owned(),
            digest,
            problem,
        })?;
        Ok(image)
    }

    /// Ensures that a blob is in the store. Concurrent requests transfer it once.
    async fn obtain(
        &self,
        name: &str,
        origin: &Origin,
        blob: Blob,
        tell: Tell<'_>,
    ) -> Result<(), EnsureImageError> {
        let writer = self.writer(blob.digest);
        let _only = writer.lock().await;
        if self.has(name, blob)? {
            return Ok(());
        }
        let _slot = self.inner.transfers.acquire().await;
        let done = fs::metadata(self.partial_path(&blob.digest.hex())).map_or(0, |partial| partial.len());
        let _promise = self.make_space(name, blob.size.saturating_sub(done)).await?;
        match origin {
            Origin::Layout(path) => layout::copy(self, name, path, blob, tell).await,
            Origin::Registry(repository) => crate::download::run(self, name, repository, blob, tell).await,
        }
    }

    /// Reserves space for a number of bytes until the returned value is dropped.
    pub(crate) async fn make_space(&self, name: &str, needed: u64) -> Result<Promise, EnsureImageError> {
        let (promise, promised) = Promise::new(&self.inner.promised, needed);
        let root = self.inner.root.clone();
        let space = blocking(move || Space::read(&root, promised)).await;
        let space = space.map_err(|e| self.write_error(name, self.inner.root.clone(), e))?;
        match space.check(needed, self.options()) {
            Ok(()) => Ok(promise),
            Err(problem) => Err(EnsureImageError::InsufficientSpace {
                image: name.to_owned(),
                path: self.inner.root.clone(),
                needed_mib: mebi(needed),
                problem,
            }),
        }
    }

    /// Returns true if a blob exists. An existing blob was verified, so another
    /// size means that the descriptor is wrong.
    pub(crate) fn has(&self, name: &str, blob: Blob) -> Result<bool, EnsureImageError> {
        match fs::metadata(self.path(&blob.digest)) {
            Ok(metadata) if metadata.len() == blob.size => Ok(true),
            Ok(metadata) => Err(EnsureImageError::SizeMismatch {
                image: name.to_owned(),
                digest: blob.digest,
                expected: blob.size,
                found: metadata.len(),
            }),
            Err(_) => Ok(false),
        }
    }

    /// Stores a small document.
    pub(crate) async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<Blob, EnsureImageError> {
        let blob = Blob { digest: digest_of(&bytes), size: bytes.len() as u64 };
        let writer = self.writer(blob.digest);
        let _only = writer.lock().await;
        if self.has(name, blob)? {
            return Ok(blob);
        }
        let target = self.path(&blob.digest);
        let path = self.partial_path(&blob.digest.hex());
        let disk = |e| self.write_error(name, path.clone(), e);
        let opened = SharedPartial::open(path.clone(), || target.exists()).await.map_err(disk)?;
        if let Some(shared) = opened {
            let write = move |p: &mut Partial| p.restart().and_then(|()| p.append(&bytes));
            shared.with(write).await.map_err(disk)?;
            layout::finish(self, name, &shared, blob).await?;
        }
        Ok(blob)
    }

    pub(crate) fn write_error(&self, name: &str, path: PathBuf, source: io::Error) -> EnsureImageError {
        EnsureImageError::WriteStore { image: name.to_owned(), path, source }
    }

    pub(crate) async fn remember(
        &self,
        name: &str,
        source: &Source,
        record: Record,
    ) -> Result<(), EnsureImageError> {
        let path = self.record_path(source);
        let at = path.clone();
        blocking(move || resolution::write(&at, &record)).await.map_err(|e| self.write_error(name, path, e))
    }

    /// The image with this manifest and all its digests.
    pub(crate) fn load(&self, digest: &Digest) -> Option<(BootImage, Vec<Digest>)> {
        self.load_checked(digest).ok()
    }

    fn load_checked(&self, digest: &Digest) -> Result<(BootImage, Vec<Digest>), String> {
        let document = self.read_document(digest, manifest::LARGEST_MANIFEST)?;
        let Document::Manifest(document) = manifest::parse(&document)? else {
            return Err("it is an index".to_owned());
        };
        let parts = manifest::parts(&document, u64::MAX)?;
        let config = manifest::config(&self.read_document(&parts.config.digest, manifest::LARGEST_CONFIG)?)?;
        for blob in parts.blobs() {
            if fs::metadata(self.path(&blob.digest)).map(|m| m.len()).ok() != Some(blob.size) {
                return Err(format!("{} is not in the store", blob.digest));
            }
        }
        let digests = parts.blobs().map(|b| b.digest).chain([*digest]).collect();
        let image = BootImage {
            digest: *digest,
            architecture: config.architecture,
            kernel: parts.kernel,
            initrd: parts.initrd,
            rootfs: parts.rootfs,
            kernel_arguments: config.kernel_arguments,
        };
        Ok((image, digests))
    }

    /// Returns the digests that the manifest of this digest references, existing or not. For an index, those
    /// of the selected manifest and of the way to it. Empty if the document is missing or of another kind.
    pub(crate) fn references(&self, digest: &Digest) -> Vec<Digest> {
        let wanted =
            manifest::Wanted { architecture: &self.options().architecture, ..manifest::Wanted::default() };
        let (mut references, mut digest) = (Vec::new(), *digest);
        for _ in 0..MOST_DOCUMENTS {
            let document = self.read_document(&digest, manifest::LARGEST_MANIFEST);
            match document.and_then(|document| manifest::parse(&document)) {
                Ok(Document::Manifest(document)) => {
                    let parts = manifest::parts(&document, u64::MAX);
                    references.extend(parts.iter().flat_map(Parts::blobs).map(|blob| blob.digest));
                    break;
                }
                Ok(Document::Index(index)) => match manifest::select(&index, &wanted) {
                    Ok(chosen) => digest = chosen.digest,
                    Err(_) => break,
                },
                Err(_) => break,
            }
            references.push(digest);
        }
        references
    }

    /// Reads a small document and verifies it again, because readers decide by its text.
    fn read_document(&self, digest: &Digest, largest: u64) -> Result<Vec<u8>, String> {
        let path = self.path(digest);
        let size = fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?.len();
        if size > largest {
            return Err(format!("{digest} is larger than {largest} bytes"));
        }
        let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        if digest_of(&bytes) == *digest { Ok(bytes) } else { Err(format!("{digest} is damaged on disk")) }
    }

    /// Marks an image as used now, for the grace of `collect`.
    fn touch(&self, image: &BootImage) {
        let now = SystemTime::now();
        for digest in self.load(&image.digest).map(|(_, digests)| digests).unwrap_or_default() {
            let touched = fs::File::open(self.path(&digest)).and_then(|file| file.set_modified(now));
            if let Err(error) = touched {
                tracing::debug!(%digest, %error, "failed to mark a blob as used");
            }
        }
    }

    fn writer(&self, digest: Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut writers = self.inner.writers.lock().unwrap_or_else(PoisonError::into_inner);
        writers.retain(|_, writer| writer.strong_count() > 0);
        if let Some(writer) = writers.get(&digest).and_then(Weak::upgrade) {
            return writer;
        }
        let writer = Arc::default();
        writers.insert(digest, Arc::downgrade(&writer));
        writer
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.inner.pins
    }

    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    pub(crate) fn root(&self) -> &Path {
        &self.inner.root
    }

    pub(crate) fn partial_path(&self, name: &str) -> PathBuf {
        self.inner.root.join("partial").join(name)
    }

    pub(crate) fn record_path(&self, source: &Source) -> PathBuf {
        resolution::path(&self.inner.root.join("resolutions"), source)
    }
}

impl Origin {
    /// A manifest or index that another document named.
    pub(crate) async fn document(
        &self,
        name: &str,
        blob: Blob,
        tell: Tell<'_>,
    ) -> Result<Vec<u8>, EnsureImageError> {
        if blob.size > manifest::LARGEST_MANIFEST {
            let what = format!("manifest {}", blob.digest);
            return Err(EnsureImageError::TooLarge {
                image: name.to_owned(),
                what,
                limit: manifest::LARGEST_MANIFEST,
            });
        }
        let bytes = match self {
            Self::Layout(path) => layout::document(name, path, blob).await?,
            Self::Registry(repository) => repository.document(name, &blob.digest.to_string(), tell).await?,
        };
        let found = digest_of(&bytes);
        if found == blob.digest {
            Ok(bytes)
        } else {
            Err(EnsureImageError::DigestMismatch { image: name.to_owned(), digest: blob.digest, found })
        }
    }
}

/// SHA-256 of these bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> Digest {
    Digest::from_sha256(Sha256::digest(bytes).into())
}
