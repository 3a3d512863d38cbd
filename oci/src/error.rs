//! Errors of getting an image. Each message names the source, the digest or path, and the remedy.
//!
//! Callers: all modules of this crate; pxed shows the text in readiness and in a Machine's conditions.

use std::io;
use std::path::PathBuf;

use bedplate_api::id::Digest;
use thiserror::Error;

/// Error of `ensure`.
#[derive(Debug, Error)]
pub enum EnsureImageError {
    /// A reference that is not valid.
    #[error("image {image}: not a valid reference ({problem}); write registry/repository@sha256:...")]
    InvalidReference {
        /// The source.
        image: String,
        /// Problem of the reference.
        problem: String,
    },
    /// A tag that is not allowed.
    #[error(
        "image {image}: a tag can change what machines boot; name a digest (@sha256:...) or set allow-tag = true"
    )]
    TagNotAllowed {
        /// The source.
        image: String,
    },
    /// The layout or a file cannot be read.
    #[error("image {image}: cannot read {path}; check that it exists and that pxed may read it")]
    ReadFile {
        /// The source.
        image: String,
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A file that does not hold the registry's credentials, or not safely.
    #[error("image {image}: {path} is not usable as credentials-file: {problem}")]
    Credentials {
        /// The source.
        image: String,
        /// The file.
        path: PathBuf,
        /// Problem of the file, without any value of it.
        problem: String,
    },
    /// No entry, or more than one, matches.
    #[error("image {image}: {problem}; {remedy}")]
    Select {
        /// The source.
        image: String,
        /// Problem that was found.
        problem: String,
        /// Remedy.
        remedy: String,
    },
    /// A manifest, index or configuration that is not a boot image.
    #[error("image {image}: {digest} is not a boot image: {problem}; build it with `cargo xtask image host`")]
    InvalidManifest {
        /// The source.
        image: String,
        /// The document.
        digest: Digest,
        /// Problem of the document.
        problem: String,
    },
    /// The registry did not answer, several times.
    #[error(
        "image {image}: the registry did not deliver {what} after {attempts} tries ({problem}); cached images still boot, check network and registry"
    )]
    Unreachable {
        /// The source.
        image: String,
        /// Requested object.
        what: String,
        /// Number of attempts.
        attempts: u32,
        /// The last failure.
        problem: String,
    },
    /// The registry refused.
    #[error(
        "image {image}: the registry refused {what} ({problem}); check the reference and the credentials"
    )]
    Refused {
        /// The source.
        image: String,
        /// Requested object.
        what: String,
        /// Answer of the registry.
        problem: String,
    },
    /// Content with another digest.
    #[error(
        "image {image}: {digest} is expected, but the content is {found}; the content is discarded, \
         replace it at its source"
    )]
    DigestMismatch {
        /// The source.
        image: String,
        /// Expected digest.
        digest: Digest,
        /// Digest of the received bytes.
        found: Digest,
    },
    /// Content of another size than in its descriptor.
    #[error(
        "image {image}: {digest} should have {expected} bytes, but has {found}; replace it at its source"
    )]
    SizeMismatch {
        /// The source.
        image: String,
        /// The blob.
        digest: Digest,
        /// The descriptor's size.
        expected: u64,
        /// Size that was received, or its minimum.
        found: u64,
    },
    /// Content above the limits.
    #[error("image {image}: {what} is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The source.
        image: String,
        /// Kind of the document.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The store cannot be written.
    #[error("image {image}: cannot write {path}; check free space and permissions of the image store")]
    WriteStore {
        /// The source.
        image: String,
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Insufficient space for a part of the image.
    #[error("image {image}: {needed_mib} MiB do not fit into {path}: {problem}")]
    InsufficientSpace {
        /// The source.
        image: String,
        /// The store's directory.
        path: PathBuf,
        /// Size of the part, in MiB.
        needed_mib: u64,
        /// Cause and remedy.
        problem: String,
    },
    /// The HTTP client was not created.
    #[error("image {image}: cannot create an HTTP client ({problem})")]
    Client {
        /// The source.
        image: String,
        /// Cause.
        problem: String,
    },
}
