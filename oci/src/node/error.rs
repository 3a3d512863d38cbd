//! Why a node image could not be had, or a layer not be unpacked: each message names the image, what is wrong and what to do.
//!
//! Callers: everything in `node`; the agent shows the text in a Machine's conditions and its log.

use std::io;
use std::path::PathBuf;

use bedplate_api::id::Digest;
use thiserror::Error;

use super::archive::ReadArchiveError;
use crate::error::EnsureImageError;

/// Why `ensure` failed.
#[derive(Debug, Error)]
pub enum EnsureNodeImageError {
    /// A tag without leave.
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
        "node image {image}: the registry did not deliver {what} after {attempts} tries ({problem}); whole layers are kept, check network, DNS and registry"
    )]
    Unreachable {
        /// The reference.
        image: String,
        /// What was asked for.
        what: String,
        /// How often.
        attempts: u32,
        /// The last failure.
        problem: String,
    },
    /// A manifest, index or configuration that is no node image for this machine.
    #[error("node image {image}: {digest} cannot be taken: {problem}")]
    InvalidImage {
        /// The reference.
        image: String,
        /// The document.
        digest: Digest,
        /// What is wrong with it.
        problem: String,
    },
    /// A layer cannot be unpacked.
    #[error("node image {image}: layer {digest}")]
    UnpackLayer {
        /// The reference.
        image: String,
        /// The compressed layer.
        digest: Digest,
        /// Why not.
        #[source]
        source: Box<UnpackLayerError>,
    },
    /// It does not fit.
    #[error(
        "node image {image}: no room in {path}: about {needed} bytes are needed and {free} are free; give the machine a (larger) state disk or memory, or remove what else lies there"
    )]
    NoRoom {
        /// The reference.
        image: String,
        /// The store.
        path: PathBuf,
        /// What is needed, in bytes: an estimate from the compressed sizes, unless annotations say it.
        needed: u64,
        /// What is free, in bytes.
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
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl EnsureNodeImageError {
    /// The same failure in words that fit a node.
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

/// Why a layer cannot be unpacked.
#[derive(Debug, Error)]
pub enum UnpackLayerError {
    /// The archive is not taken.
    #[error("its archive is not taken; build the image anew")]
    Archive(#[from] ReadArchiveError),
    /// A member is not taken.
    #[error("{path}: {problem}")]
    Refused {
        /// The member, shortened for people.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file cannot be made.
    #[error("{path}: cannot {act}")]
    Write {
        /// The file, shortened for people.
        path: String,
        /// What was tried.
        act: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is larger than what is taken.
    #[error("it has more than {limit} {what}, the most that is taken")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The room went out while it was unpacked.
    #[error("no room is left in the layer store ({free} bytes free); nothing of it is kept")]
    NoRoom {
        /// What is free, in bytes.
        free: u64,
    },
    /// Uncompressed, it is not what the configuration says.
    #[error("its content is {found}, but the image's configuration promises {expected}")]
    DiffIdMismatch {
        /// The promise (diff id).
        expected: Digest,
        /// What came.
        found: Digest,
    },
    /// The transfer ended before the whole was there.
    #[error("its transfer ended")]
    Transfer,
    /// A thread failed.
    #[error("the thread that unpacks it failed")]
    Thread,
}
