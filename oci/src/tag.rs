//! Current target of a tag: the digest of the manifest or index that a registry returns for it.
//!
//! Nothing of the image is fetched, and nothing is stored. Caller: the controller, once for each version.

use bedplate_api::id::Digest;

use crate::error::EnsureImageError;
use crate::manifest;
use crate::registry::{Repository, certificates};
use crate::source::{Access, Options};
use crate::store::digest_of;

/// Asks the registry of `reference`; `authorities` (PEM) are trusted besides the system's.
///
/// # Errors
/// The reference is not valid, or the registry does not resolve it.
pub async fn resolve_tag(
    reference: &str,
    access: &Access,
    authorities: Option<&str>,
    options: &Options,
) -> Result<Digest, EnsureImageError> {
    let image = || reference.to_owned();
    let authorities = match authorities {
        Some(pem) => certificates(pem.as_bytes())
            .map_err(|problem| EnsureImageError::Client { image: image(), problem })?,
        None => Vec::new(),
    };
    let repository = Repository::trusting(authorities, reference, (reference, true), access, options).await?;
    let bytes = repository.root(reference, &|_| {}).await?;
    manifest::parse(&bytes).map_err(|problem| EnsureImageError::Refused {
        image: image(),
        what: "a manifest".to_owned(),
        problem,
    })?;
    Ok(digest_of(&bytes))
}
