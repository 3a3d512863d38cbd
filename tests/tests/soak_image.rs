//! Rebuild of the host image from the public mirrors, which may change at any time.

use anyhow::Result;
use bedplate_tests::image::{Network, Workshop};

/// The second build shares nothing with the first one. If the mirrors have newer packages than the common cache, the first image is
/// built from the mirrors too.
#[test]
fn image_from_the_mirrors_has_the_digest_of_the_cached_one() -> Result<()> {
    let workshop = Workshop::new()?;
    let cached = workshop.cache_with_bases("cache-one")?;
    let mut one = workshop.build_host(&cached, &workshop.at("one"), Network::Absent)?;
    let two = workshop.build_host(&workshop.at("cache-two"), &workshop.at("two"), Network::Mirrors)?;
    if one.1 != two.1 {
        one = workshop.build_host(&workshop.at("cache-three"), &workshop.at("three"), Network::Mirrors)?;
    }
    assert_eq!(one.1, two.1, "the packages");
    assert_eq!(one.0, two.0, "the digests");
    Ok(())
}
