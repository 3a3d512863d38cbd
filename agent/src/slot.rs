//! The two slots of a host, `bedplate-a` and `bedplate-b`: their files and paths.
//!
//! A slot is a systemd-nspawn machine whose root is an overlay: the node image's layers below, read-only and shared by both,
//! and one directory above. Called by `node`.

pub(crate) mod annotation_mark;
pub mod bind;
pub(crate) mod confined_writer;
pub mod contents;
pub(crate) mod fill_record;
pub mod kubelet_files;
pub mod links;
pub mod network;
pub mod paths;
pub mod remove;
pub mod render;
pub mod request;
#[cfg(test)]
pub(crate) mod sample;
pub mod store;
pub mod trash;
pub mod uplink;
