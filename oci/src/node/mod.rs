//! Node images: ordinary OCI images whose root file system becomes a node's, one directory for each layer, which overlayfs takes
//! as lower directories.
//!
//! What has a name in the store was verified, compressed and uncompressed, and lies on disk. Nothing is trusted on the way: an
//! archive cannot write beside its directory, be larger than what is free, or steer overlayfs except by OCI's whiteouts.
//!
//! ```text
//! reference --resolve--> manifest, configuration --> for each missing layer, side by side:
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
pub use document::UNPACKED_BYTES;
pub(crate) use document::{DOCKER_INDEX_TYPE, DOCKER_MANIFEST_TYPE};
pub use ensure::Tell;
pub use error::{EnsureNodeImageError, UnpackLayerError};
pub use source::{Limits, MOST_LAYERS, NodeSource, Progress};
pub use store::{LayerStore, NodeImage};
pub use tar::Kind;
