//! Source of an image, access to it, and its progress: plain values.
//!
//! Not here: fetching. Callers: pxed's configuration makes a [`Source`] of `[images.<name>]`.
//!
//! Pure: no I/O.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::Digest;

use crate::reach::Reach;

/// Source of a boot image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// An OCI layout directory (OCI image specification, "Image Layout").
    Layout {
        /// Directory of `index.json`.
        path: PathBuf,
        /// Value of the annotation `org.opencontainers.image.ref.name`.
        tag: Option<String>,
        /// Digest of a manifest or index that `index.json` names.
        digest: Option<Digest>,
    },
    /// An OCI registry (OCI distribution specification).
    Registry {
        /// `registry/repository@sha256:...`, or with a tag where `allow_tag` is set.
        reference: String,
        /// True if a reference without digest is accepted; each `ensure` resolves it again.
        allow_tag: bool,
        /// Access to its registry.
        access: Access,
    },
    /// Plain files of this machine.
    Files {
        /// The kernel.
        kernel: PathBuf,
        /// The initramfs.
        initrd: PathBuf,
        /// The root file system, if there is one.
        rootfs: Option<PathBuf>,
    },
}

/// Access to a registry. Default: TLS, with a certificate that the system trusts, anonymous.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// True if the registry is used without TLS.
    pub insecure_http: bool,
    /// Certificates (PEM) of authorities that are trusted besides the system's. Read for every pull.
    pub ca_file: Option<PathBuf>,
    /// User name and password in the form of Docker's `config.json`. Read for every pull.
    pub credentials_file: Option<PathBuf>,
    /// True if the author of the reference must not reach every network of this program. [`Options::reach`] then applies, and answers that are
    /// not images are not shown.
    pub is_confined: bool,
}

impl Source {
    /// The digest that this source is fixed to, if its text names one.
    pub fn pinned(&self) -> Option<Digest> {
        match self {
            Self::Layout { digest, .. } => *digest,
            Self::Registry { reference, .. } => reference.rsplit_once('@').and_then(|(_, d)| d.parse().ok()),
            Self::Files { .. } => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout { path, tag, digest } => {
                write!(f, "{}", path.display())?;
                if let Some(tag) = tag {
                    write!(f, ":{tag}")?;
                }
                digest.map_or(Ok(()), |digest| write!(f, "@{digest}"))
            }
            Self::Registry { reference, .. } => f.write_str(reference),
            Self::Files { kernel, initrd, rootfs } => {
                write!(f, "{}, {}", kernel.display(), initrd.display())?;
                rootfs.as_ref().map_or(Ok(()), |rootfs| write!(f, ", {}", rootfs.display()))
            }
        }
    }
}

/// Options of a store; the defaults are for pxed.
#[derive(Debug, Clone)]
pub struct Options {
    /// Architecture of the selected entry of an image index, in OCI's words (`amd64`, `arm64`).
    pub architecture: String,
    /// Maximum number of blobs that are transferred concurrently, over all images.
    pub parallel_transfers: usize,
    /// Maximum number of failures in a row without progress.
    pub attempts: u32,
    /// Wait after the first failure; it doubles, with jitter, up to `longest_wait`.
    pub first_wait: Duration,
    /// Maximum delay between two attempts, even if a registry requests more by Retry-After.
    pub longest_wait: Duration,
    /// Maximum silence of a registry within an answer.
    pub stall: Duration,
    /// Timeout of a complete small answer, and of each mebibyte of a large one.
    pub whole: Duration,
    /// Maximum size of a blob, in bytes.
    pub largest_blob: u64,
    /// Time for which an unreferenced blob is kept after its last use.
    pub grace: Duration,
    /// Bytes of the file system that stay free.
    pub keep_free: u64,
    /// Part of the file system that stays free, in percent.
    pub keep_free_percent: u8,
    /// Maximum size of the store, in bytes.
    pub largest_store: u64,
    /// Check of the addresses of confined references. `None`: all are allowed.
    pub reach: Option<Arc<dyn Reach>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            architecture: "amd64".to_owned(),
            parallel_transfers: 4,
            attempts: 6,
            first_wait: Duration::from_millis(250),
            longest_wait: Duration::from_secs(20),
            stall: Duration::from_secs(30),
            whole: Duration::from_secs(180),
            largest_blob: 16 << 30,
            grace: Duration::from_secs(600),
            keep_free: 1 << 30,
            keep_free_percent: 5,
            largest_store: 64 << 30,
            reach: None,
        }
    }
}

/// Progress of `ensure`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The source is asked for its content.
    Resolving,
    /// A blob is being transferred; reported at its start, its end, and about once per mebibyte.
    Transfer {
        /// The blob.
        digest: Digest,
        /// Bytes that are on disk.
        done: u64,
        /// Bytes that it will have.
        total: u64,
    },
    /// A failure. A retry follows.
    Retry {
        /// Human-readable failure.
        problem: String,
        /// Wait before the next try.
        wait: Duration,
    },
    /// The image is complete.
    Ready {
        /// Digest of its manifest.
        digest: Digest,
    },
}
