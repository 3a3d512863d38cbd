//! Source of a node image, limits for it, and its progress: plain values.
//!
//! Not here: fetching. Callers: the agent makes a [`NodeSource`] of a version's image.
//!
//! No I/O; only the architecture is that of the machine it was built for.

use std::path::PathBuf;
use std::time::Duration;

use bedplate_api::id::Digest;

use crate::source::{self, Access, Options};

/// Prefix of a reference to an OCI layout directory.
const LAYOUT: &str = "oci:";

/// Source of a node image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeSource {
    /// `registry/repository@sha256:...`, or with a tag where `allow_tag` is set; or `oci:DIRECTORY@sha256:...`,
    /// `oci:DIRECTORY:TAG`, for an OCI layout.
    pub reference: String,
    /// True if a reference without digest is accepted; each `ensure` resolves it again.
    pub allow_tag: bool,
    /// Access to its registry.
    pub access: Access,
}

/// Parsed `oci:` reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayoutReference {
    pub(crate) directory: PathBuf,
    pub(crate) tag: Option<String>,
    pub(crate) digest: Option<Digest>,
}

impl NodeSource {
    /// The digest that this source is fixed to, if its text names one.
    pub fn pinned(&self) -> Option<Digest> {
        self.reference.rsplit_once('@').and_then(|(_, digest)| digest.parse().ok())
    }

    /// The layout that it names; `None` for a registry.
    pub(crate) fn layout(&self) -> Option<LayoutReference> {
        let rest = self.reference.strip_prefix(LAYOUT)?;
        let digest = self.pinned();
        let rest = match (digest, rest.rsplit_once('@')) {
            (Some(_), Some((before, _))) => before,
            _ => rest,
        };
        let (directory, tag) = match rest.rsplit_once(':') {
            Some((directory, tag)) if !tag.contains('/') && !tag.is_empty() => {
                (directory, Some(tag.to_owned()))
            }
            _ => (rest, None),
        };
        Some(LayoutReference { directory: directory.into(), tag, digest })
    }
}

/// Limits of a store; the defaults are for an agent.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of layers that are fetched and unpacked concurrently.
    pub parallel_layers: usize,
    /// Maximum number of layers of an image.
    pub most_layers: usize,
    /// Maximum number of files of one layer.
    pub most_files: u64,
    /// Maximum bytes of one layer, unpacked.
    pub largest_unpacked: u64,
    /// Bytes that stay free on the store's file system.
    pub reserve: u64,
    /// Expected minimum growth of a compressed layer without a size annotation. Used for the check before the
    /// transfer; during unpacking, the actual free space counts.
    pub growth: u64,
    /// Options for a registry, the maximum size of a compressed layer, and the architecture (OCI's words).
    pub transfer: Options,
}

/// Maximum number of layers of an image. mount(2) takes 4095 bytes of options,
/// and a slot names each layer by a link of about thirty bytes.
pub const MOST_LAYERS: usize = 100;

impl Default for Limits {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            parallel_layers: processors.clamp(2, 4),
            most_layers: MOST_LAYERS,
            most_files: 1_000_000,
            largest_unpacked: 64 << 30,
            reserve: 128 << 20,
            growth: 2,
            transfer: Options { architecture: architecture().to_owned(), ..Options::default() },
        }
    }
}

/// The architecture of this machine in OCI's words.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Progress of `ensure`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The source is asked for its content.
    Resolving,
    /// Layers are being transferred; reported at the start and about once per mebibyte.
    Layers {
        /// Number of complete layers.
        whole: usize,
        /// Layers of the image.
        layers: usize,
        /// Compressed bytes that are stored, including those of complete layers.
        done: u64,
        /// Compressed bytes of the image.
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

impl Progress {
    /// Converts the progress that the transfer of a boot image reports too.
    pub(crate) fn of_transfer(progress: source::Progress) -> Option<Self> {
        match progress {
            source::Progress::Retry { problem, wait } => Some(Self::Retry { problem, wait }),
            source::Progress::Resolving
            | source::Progress::Transfer { .. }
            | source::Progress::Ready { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_layouts_are_taken_apart() {
        let hex = "a".repeat(64);
        let source =
            |reference: String| NodeSource { reference, allow_tag: false, access: Access::default() };
        let cases = [
            ("oci:/a/b".to_owned(), "/a/b", None, false),
            ("oci:/a/b:v1".to_owned(), "/a/b", Some("v1"), false),
            (format!("oci:/a/b@sha256:{hex}"), "/a/b", None, true),
            (format!("oci:/a/b:v1@sha256:{hex}"), "/a/b", Some("v1"), true),
            ("oci:/a:b/c".to_owned(), "/a:b/c", None, false),
        ];
        for (text, directory, tag, pinned) in cases {
            let layout = source(text.clone()).layout().unwrap();
            assert_eq!(layout.directory, PathBuf::from(directory), "{text}");
            assert_eq!(layout.tag.as_deref(), tag, "{text}");
            assert_eq!(layout.digest.is_some(), pinned, "{text}");
        }
        assert_eq!(source("registry.example/a:v1".to_owned()).layout(), None);
    }
}
