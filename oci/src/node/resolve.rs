//! Resolves a reference: through at most two indexes to a manifest, and its configuration.
//!
//! Not here: layers. Caller: `ensure`.

use bedplate_api::id::Digest;

use super::document::{self, Config, Layer};
use super::error::EnsureNodeImageError;
use super::fetch;
use super::source::{Limits, NodeSource};
use crate::error::EnsureImageError;
use crate::layout;
use crate::manifest::{self, Document, Manifest};
use crate::registry::Repository;
use crate::store::{Origin, Tell, digest_of};

/// Maximum number of documents from a source to its manifest: two indexes, and the manifest.
const MOST_DOCUMENTS: usize = 3;

/// Result of resolving a reference.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) origin: Origin,
    /// Digest of the manifest.
    pub(crate) digest: Digest,
    pub(crate) config: Config,
    /// Lowest first.
    pub(crate) layers: Vec<Layer>,
}

/// Resolves the reference by its source.
pub(crate) async fn resolve(
    source: &NodeSource,
    limits: &Limits,
    tell: Tell<'_>,
) -> Result<Resolved, EnsureNodeImageError> {
    let name = source.reference.as_str();
    let failed = EnsureNodeImageError::of_source;
    let layout = source.layout();
    let (origin, first) = match &layout {
        Some(layout) => {
            if layout.digest.is_none() && !source.allow_tag {
                return Err(EnsureNodeImageError::TagNotAllowed { image: name.to_owned() });
            }
            let first = layout::root(name, &layout.directory).await.map_err(failed)?;
            (Origin::Layout(layout.directory.clone()), first)
        }
        None => {
            let NodeSource { reference, allow_tag, access } = source;
            let repository = Repository::new(name, reference, *allow_tag, access, &limits.transfer);
            let repository = repository.await.map_err(failed)?;
            let first = repository.root(name, tell).await.map_err(failed)?;
            (Origin::Registry(Box::new(repository)), first)
        }
    };
    let tag = layout.as_ref().and_then(|layout| layout.tag.as_deref());
    let pinned = layout.as_ref().and_then(|layout| layout.digest);
    let (digest, manifest) = walk(name, &origin, first, (tag, pinned), limits, tell).await?;
    let invalid = |problem| EnsureNodeImageError::InvalidImage { image: name.to_owned(), digest, problem };
    document::check(&manifest, limits).map_err(invalid)?;
    let bytes = fetch::small(&origin, name, manifest.config.blob(), &limits.transfer, tell);
    let bytes = bytes.await.map_err(failed)?;
    let config = document::config(&bytes, &limits.transfer.architecture).map_err(invalid)?;
    let layers = document::layers(&manifest, &config, limits).map_err(invalid)?;
    Ok(Resolved { origin, digest, config, layers })
}

/// Follows the first document to the manifest for this machine.
async fn walk(
    name: &str,
    origin: &Origin,
    first: Vec<u8>,
    (tag, digest): (Option<&str>, Option<Digest>),
    limits: &Limits,
    tell: Tell<'_>,
) -> Result<(Digest, Manifest), EnsureNodeImageError> {
    let failed = EnsureNodeImageError::of_source;
    let mut wanted = (tag, digest);
    let mut bytes = first;
    for _ in 0..MOST_DOCUMENTS {
        let digest = digest_of(&bytes);
        let invalid =
            |problem| EnsureNodeImageError::InvalidImage { image: name.to_owned(), digest, problem };
        let index = match manifest::parse(&bytes).map_err(invalid)? {
            Document::Manifest(manifest) => return Ok((digest, *manifest)),
            Document::Index(index) => index,
        };
        let architecture = &limits.transfer.architecture;
        let chosen = document::choose(&index, wanted.0, wanted.1, architecture).map_err(invalid)?;
        if chosen.size > manifest::LARGEST_MANIFEST {
            let (what, limit) = (format!("manifest {}", chosen.digest), manifest::LARGEST_MANIFEST);
            return Err(failed(EnsureImageError::TooLarge { image: name.to_owned(), what, limit }));
        }
        bytes = origin.document(name, chosen.blob(), tell).await.map_err(failed)?;
        wanted = (None, None);
    }
    let (image, digest) = (name.to_owned(), digest_of(&bytes));
    Err(EnsureNodeImageError::InvalidImage { image, digest, problem: "indexes in indexes".to_owned() })
}
