//! Node images: ordinary OCI images whose root file system becomes a node's. Each layer is one directory,
//! which overlayfs uses as a lower directory.
//!
//! A named layer in the store was verified, both compressed and uncompressed, and is
//! on disk. The archive is not trusted. It cannot write outside of its directory,
//! exceed the free space, or control overlayfs except by OCI's whiteouts.
//!
//! ```text
//! reference --resolve--> manifest, configuration --> for each missing layer, concurrently:
//!     fetch --> inflate --> unpack --> layers/.new-<hex> --stage--> layers/<hex>      --merge--> NodeImage
//! ```
//!
//! Not here: mounting, slots. Callers: the agent, the benchmark, tests.

pub mod archive;
mod collect;
mod document;
mod ensure;
mod error;
mod fetch;
mod merge;
mod place;
mod resolve;
mod source;
mod stage;
mod store;
mod stream;
mod tar;
mod unpack;
#[cfg(test)]
mod unpack_tests;

pub use collect::Collected;
pub(crate) use document::{DOCKER_INDEX_TYPE, DOCKER_MANIFEST_TYPE};
pub use ensure::Tell;
pub use error::{EnsureNodeImageError, UnpackLayerError};
pub use source::{Limits, MOST_LAYERS, NodeSource, Progress};
pub use store::{LayerStore, NodeImage};
pub use tar::Kind;
