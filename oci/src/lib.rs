//! Boot images: a content-addressed store on disk, filled from OCI layouts, OCI registries and plain files. Node images, which are
//! unpacked, are in [`node`].
//!
//! Content gets its name in the store after its digest is verified. Incomplete content has no name. Not here:
//! which Machine boots which image (pxed decides), and serving. Callers: pxed, the image builder, tests.
//!
//! ```text
//! Source --ensure--> resolve (tag, index, platform) --> manifest --> blobs --> BootImage
//!                                                           |           |
//!                          resolutions/<hash>.json <--------+           +--> partial/<hex> --fsync, rename--> blobs/sha256/<hex>
//! ```

mod answer;
mod challenge;
mod collect;
pub mod cpio;
mod credentials;
mod download;
mod error;
mod files;
mod kernel;
mod layout;
mod manifest;
pub mod node;
mod partial;
mod pin;
mod reach;
mod registry;
mod resolution;
pub mod resolver;
mod source;
mod space;
mod store;
mod tag;

pub use collect::Collected;
pub use error::EnsureImageError;
pub use manifest::{Blob, BootImage, UNKNOWN_ARCHITECTURE};
pub use reach::Reach;
pub use source::{Access, Options, Progress, Source};
pub use store::Store;
pub use tag::resolve_tag;
