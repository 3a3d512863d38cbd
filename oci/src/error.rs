//! Why an image could not be had: each message names the source, the digest or path, and what to do.
//!
//! Callers: everything in this crate; pxed shows the text in readiness and in a Machine's conditions.

use std::io;
use std::path::PathBuf;

use bedplate_api::id::Digest;
use thiserror::Error;

/// Why `ensure` failed.
#[derive(Debug, Error)]
pub enum EnsureImageError {
    /// A reference that is not one.
    #[error("image {image}: not a reference ({problem}); write registry/repository@sha256:...")]
    InvalidReference {
        /// The source.
        image: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tag without leave.
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
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file that does not hold the registry's credentials, or not safely.
    #[error("image {image}: {path} cannot be used as credentials-file: {problem}")]
    Credentials {
        /// The source.
        image: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it; no value of the file.
        problem: String,
    },
    /// Nothing, or not exactly one thing, fits.
    #[error("image {image}: {problem}; {remedy}")]
    Select {
        /// The source.
        image: String,
        /// What was found.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// A manifest, index or configuration that is no boot image.
    #[error("image {image}: {digest} is not a boot image: {problem}; build it with `cargo xtask image host`")]
    InvalidManifest {
        /// The source.
        image: String,
        /// The document.
        digest: Digest,
        /// What is wrong with it.
        problem: String,
    },
    /// The registry did not answer, several times.
    #[error(
        "image {image}: the registry did not deliver {what} after {attempts} tries ({problem}); cached images still boot, check network and registry"
    )]
    Unreachable {
        /// The source.
        image: String,
        /// What was asked for.
        what: String,
        /// How often.
        attempts: u32,
        /// The last failure.
        problem: String,
    },
    /// The registry answered no.
    #[error(
        "image {image}: the registry refused {what} ({problem}); check the reference and the credentials"
    )]
    Refused {
        /// The source.
        image: String,
        /// What was asked for.
        what: String,
        /// Its answer.
        problem: String,
    },
    /// Content that is not what its digest says.
    #[error(
        "image {image}: {digest} was promised, but the content is {found}; nothing of it is kept, replace it at its source"
    )]
    DigestMismatch {
        /// The source.
        image: String,
        /// The promise.
        digest: Digest,
        /// What came.
        found: Digest,
    },
    /// Content of another size than its descriptor says.
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
        /// What came, or the least that came.
        found: u64,
    },
    /// Content above the limits.
    #[error("image {image}: {what} is larger than {limit} bytes, the most that is taken")]
    TooLarge {
        /// The source.
        image: String,
        /// What it is.
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
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There is no space for a part of the image.
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
    /// No HTTP client.
    #[error("image {image}: cannot make an HTTP client ({problem})")]
    Client {
        /// The source.
        image: String,
        /// Why not.
        problem: String,
    },
}
