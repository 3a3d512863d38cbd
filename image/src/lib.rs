//! Boot images: a content-addressed store on disk, filled from OCI layouts, OCI registries and plain files.
//!
//! Not here: which Machine boots which image (pxed decides), and serving. Callers: pxed, the image builder, tests.

pub mod cpio;
