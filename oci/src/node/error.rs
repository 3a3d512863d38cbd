//! Errors of getting a node image or unpacking a layer. Each message names the
//! image, the problem and the remedy.
//!
//! Callers: all modules of `node`; the agent shows the text in a Machine's conditions and its log.

use std::io;
use std::path::PathBuf;

use bedplate_api::id::Digest;
use thiserror::Error;

use super::archive::ReadArchiveError;
use crate::error::EnsureImageError;

/// Error of `ensure`.
#[derive(Debug, Error)]
pub enum EnsureNodeImageError {
    /// A tag that is not allowed.
    #[error(
        "node image {image}: a tag can change what nodes run; name a digest (@sha256:...) or allow tags for this version"
    )]
    TagNotAllowed {
        /// The reference.
        image: String,
    },
    /// Registry, layout or files of access fail.
    #[error(transparent)]
    Source(#[from] EnsureImageError),
    /// The registry did not answer, several times.
    #[error(
        "node image {image}: the registry did not deliver {what} after {attempts} tries ({problem}); \
         complete layers are kept, check network, DNS and registry"
    )]
    Unreachable {
        /// The reference.
        image: String,
        /// Requested object.
        what: String,
        /// Number of attempts.
        attempts: u32,
        /// The last failure.
        problem: String,
    },
    /// A manifest, index or configuration that is not a node image for this machine.
    #[error("node image {image}: {digest} is rejected: {problem}")]
    InvalidImage {
        /// The reference.
        image: String,
        /// The document.
        digest: Digest,
        /// Problem of the document.
        problem: String,
    },
    /// A layer cannot be unpacked.
    #[error("node image {image}: layer {digest}")]
    UnpackLayer {
        /// The reference.
        image: String,
        /// The compressed layer.
        digest: Digest,
        /// Cause.
        #[source]
        source: Box<UnpackLayerError>,
    },
    /// Insufficient space for the image.
    #[error(
        "node image {image}: no space in {path}: about {needed} bytes are needed and {free} are free; add \
         a (larger) state disk or memory, or remove other files"
    )]
    NoRoom {
        /// The reference.
        image: String,
        /// The store.
        path: PathBuf,
        /// Needed bytes: an estimate from the compressed sizes, unless annotations name the size.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// Another process has the store.
    #[error("node image {image}: another process uses {path}; only one agent may run on a host")]
    InUse {
        /// The reference.
        image: String,
        /// The store.
        path: PathBuf,
    },
    /// The store cannot be read or written.
    #[error("node image {image}: cannot use {path}; check the file system of the layer store")]
    UseStore {
        /// The reference.
        image: String,
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

impl EnsureNodeImageError {
    /// Converts the failure to the wording of a node.
    pub(crate) fn of_source(error: EnsureImageError) -> Self {
        match error {
            EnsureImageError::TagNotAllowed { image } => Self::TagNotAllowed { image },
            EnsureImageError::Unreachable { image, what, attempts, problem } => {
                Self::Unreachable { image, what, attempts, problem }
            }
            other => Self::Source(other),
        }
    }
}

/// Reason for which a layer cannot be unpacked.
#[derive(Debug, Error)]
pub enum UnpackLayerError {
    /// The archive is rejected.
    #[error("its archive is rejected; build the image again")]
    Archive(#[from] ReadArchiveError),
    /// A member is rejected.
    #[error("{path}: {problem}")]
    Refused {
        /// Path of the member, shortened for users.
        path: String,
        /// Problem of the member.
        problem: String,
    },
    /// A file cannot be made.
    #[error("{path}: cannot {act}")]
    Write {
        /// Path of the file, shortened for users.
        path: String,
        /// Attempted act.
        act: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A limit was exceeded.
    #[error("it has more than {limit} {what}, which is the limit")]
    TooMuch {
        /// Resource whose limit was exceeded.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The space ran out during unpacking.
    #[error("no space is left in the layer store ({free} bytes free); the layer is discarded")]
    NoRoom {
        /// Free bytes.
        free: u64,
    },
    /// The uncompressed layer does not match the configuration.
    #[error("its content is {found}, but the image's configuration names {expected}")]
    DiffIdMismatch {
        /// Expected digest (diff ID).
        expected: Digest,
        /// Digest of the received bytes.
        found: Digest,
    },
    /// The transfer ended before the layer was complete.
    #[error("the transfer ended")]
    Transfer,
    /// A thread failed.
    #[error("the thread that unpacks it failed")]
    Thread,
}
