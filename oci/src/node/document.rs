//! A node image's documents (OCI image specification 1.1, Docker's schema 2): index, manifest, configuration, read with limits.
//!
//! Not here: fetching. Caller: `resolve`.
//!
//! Pure: bytes in, values out.

use std::collections::BTreeMap;

use bedplate_api::id::Digest;
use serde::Deserialize;

use super::source::Limits;
use crate::manifest::{Blob, Descriptor, INDEX_TYPE, Index, MANIFEST_TYPE, Manifest, REF_NAME};

/// Largest configuration that is read, in bytes: a history of hundreds of steps fits.
pub(crate) const LARGEST_CONFIG: u64 = 1 << 20;
/// Annotation of a layer with its unpacked size in bytes.
const UNPACKED_BYTES: &str = "bedplate.dev/unpacked-bytes";
/// Media type of Docker's index.
pub(crate) const DOCKER_INDEX_TYPE: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Media type of Docker's manifest.
pub(crate) const DOCKER_MANIFEST_TYPE: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG_TYPES: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYER_TYPES: [(&str, Compression); 6] = [
    ("application/vnd.oci.image.layer.v1.tar", Compression::None),
    ("application/vnd.oci.image.layer.v1.tar+gzip", Compression::Gzip),
    ("application/vnd.oci.image.layer.v1.tar+zstd", Compression::Zstd),
    ("application/vnd.docker.image.rootfs.diff.tar", Compression::None),
    ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression::Gzip),
    ("application/vnd.docker.image.rootfs.diff.tar.zstd", Compression::Zstd),
];

/// Compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// A layer as manifest and configuration describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    /// Blob to transfer.
    pub(crate) blob: Blob,
    pub(crate) compression: Compression,
    /// SHA-256 of the uncompressed layer.
    pub(crate) diff_id: Digest,
    /// Minimum size in the store, in bytes.
    pub(crate) expected: u64,
}

/// An image's configuration, as far as it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) architecture: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) diff_ids: Vec<Digest>,
}

/// Chooses from an index: by digest, by tag, then by platform.
pub(crate) fn choose(
    index: &Index,
    tag: Option<&str>,
    digest: Option<Digest>,
    architecture: &str,
) -> Result<Descriptor, String> {
    let known = [INDEX_TYPE, MANIFEST_TYPE, DOCKER_INDEX_TYPE, DOCKER_MANIFEST_TYPE];
    let has_tag = |d: &Descriptor, tag| {
        d.annotations.as_ref().and_then(|a| a.get(REF_NAME)).is_some_and(|name| name == tag)
    };
    let fits = |d: &&Descriptor| {
        known.contains(&d.media_type.as_str())
            && match (digest, tag) {
                (Some(digest), _) => d.digest == digest,
                (None, Some(tag)) => has_tag(d, tag),
                (None, None) => true,
            }
            && d.platform.as_ref().is_none_or(|p| p.architecture == architecture && p.os == "linux")
    };
    let wanted = || match (digest, tag) {
        (Some(digest), _) => format!("{digest} for linux/{architecture}"),
        (None, Some(tag)) => format!("tag {tag:?} for linux/{architecture}"),
        (None, None) => format!("linux/{architecture}"),
    };
    let mut found = index.manifests.iter().filter(fits);
    let Some(first) = found.next() else { return Err(format!("it names no image for {}", wanted())) };
    if found.any(|other| other.digest != first.digest) {
        return Err(format!("it names several images for {}; name one by its digest", wanted()));
    }
    Ok(first.clone())
}

/// Checks a manifest before its configuration is fetched.
pub(crate) fn check(manifest: &Manifest, limits: &Limits) -> Result<(), String> {
    let config = &manifest.config;
    if !CONFIG_TYPES.contains(&config.media_type.as_str()) {
        let shown: String = config.media_type.chars().take(100).collect();
        return Err(format!(
            "its configuration has type {shown:?}, so it is not an image of a root file \
                            system"
        ));
    }
    if config.size > LARGEST_CONFIG {
        return Err(format!("its configuration has {} bytes, more than {LARGEST_CONFIG}", config.size));
    }
    if manifest.layers.is_empty() {
        return Err("it has no layers".to_owned());
    }
    if manifest.layers.len() > limits.most_layers {
        let (has, most) = (manifest.layers.len(), limits.most_layers);
        return Err(format!("it has {has} layers, more than {most}; build the image with fewer layers"));
    }
    let largest = limits.transfer.largest_blob;
    if let Some(layer) = manifest.layers.iter().find(|layer| layer.size > largest) {
        return Err(format!("layer {} has {} bytes, more than {largest}", layer.digest, layer.size));
    }
    manifest.layers.iter().try_for_each(|layer| compression(layer).map(drop))
}

fn compression(layer: &Descriptor) -> Result<Compression, String> {
    let known = LAYER_TYPES.iter().find(|(name, _)| *name == layer.media_type);
    known.map(|(_, compression)| *compression).ok_or_else(|| {
        let shown: String = layer.media_type.chars().take(100).collect();
        format!("layer {} is {shown:?}, which is not a tar, uncompressed or in gzip or zstd", layer.digest)
    })
}

/// Reads a configuration and checks that it is for this machine.
pub(crate) fn config(bytes: &[u8], architecture: &str) -> Result<Config, String> {
    #[derive(Deserialize)]
    struct Document {
        architecture: String,
        os: String,
        #[serde(default)]
        config: Option<Process>,
        rootfs: RootFs,
    }
    #[derive(Deserialize)]
    struct Process {
        #[serde(default, rename = "Labels")]
        labels: Option<BTreeMap<String, String>>,
    }
    #[derive(Deserialize)]
    struct RootFs {
        #[serde(default)]
        diff_ids: Vec<Digest>,
    }
    let document: Document =
        serde_json::from_slice(bytes).map_err(|error| format!("its configuration: {error}"))?;
    let Document { architecture: found, os, config, rootfs } = document;
    if found != architecture || os != "linux" {
        let shown: String = format!("{os}/{found}").chars().take(60).collect();
        return Err(format!("it is for {shown}, but this machine is linux/{architecture}"));
    }
    let labels = config.and_then(|config| config.labels).unwrap_or_default();
    Ok(Config { architecture: found, labels, diff_ids: rootfs.diff_ids })
}

/// The layers, lowest first, each once: where one comes twice, the upper one hides all that the lower one has.
pub(crate) fn layers(manifest: &Manifest, config: &Config, limits: &Limits) -> Result<Vec<Layer>, String> {
    let (layers, ids) = (&manifest.layers, &config.diff_ids);
    if layers.len() != ids.len() {
        return Err(format!("it has {} layers, but {} diff IDs", layers.len(), ids.len()));
    }
    let mut found: Vec<Layer> = Vec::new();
    for (descriptor, diff_id) in layers.iter().zip(ids) {
        let compression = compression(descriptor)?;
        if compression == Compression::None && descriptor.digest != *diff_id {
            return Err(format!(
                "layer {} is not compressed, but its diff ID differs from its digest",
                descriptor.digest
            ));
        }
        let said = descriptor.annotations.as_ref().and_then(|a| a.get(UNPACKED_BYTES)?.parse().ok());
        let growth = if compression == Compression::None { 1 } else { limits.growth };
        let expected = said.unwrap_or(descriptor.size.saturating_mul(growth));
        found.retain(|other| other.diff_id != *diff_id);
        found.push(Layer { blob: descriptor.blob(), compression, diff_id: *diff_id, expected });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Platform;

    fn digest(byte: u8) -> Digest {
        Digest::from_sha256([byte; 32])
    }

    fn descriptor(media_type: &str, byte: u8, size: u64) -> Descriptor {
        Descriptor::new(media_type, Blob { digest: digest(byte), size })
    }

    fn manifest(layers: Vec<Descriptor>) -> Manifest {
        let config = descriptor(CONFIG_TYPES[0], 1, 100);
        Manifest {
            schema_version: 2,
            media_type: None,
            artifact_type: None,
            config,
            layers,
            annotations: None,
        }
    }

    #[test]
    fn an_index_gives_the_image_of_this_machine_and_no_attestation() {
        let on = |byte, architecture: &str, os: &str| {
            let mut found = descriptor(DOCKER_MANIFEST_TYPE, byte, 1);
            found.platform = Some(Platform { architecture: architecture.into(), os: os.into() });
            found
        };
        let manifests = vec![on(1, "arm64", "linux"), on(2, "amd64", "linux"), on(3, "unknown", "unknown")];
        let mut index = Index { schema_version: 2, media_type: None, manifests };
        assert_eq!(choose(&index, None, None, "amd64").unwrap().digest, digest(2));
        assert!(choose(&index, None, None, "riscv64").unwrap_err().contains("linux/riscv64"));
        assert!(choose(&index, Some("v1"), None, "amd64").is_err());
        index.manifests.push(on(4, "amd64", "linux"));
        assert!(choose(&index, None, None, "amd64").unwrap_err().contains("several"));
        assert_eq!(choose(&index, None, Some(digest(4)), "amd64").unwrap().digest, digest(4));
    }

    #[test]
    fn image_without_a_root_file_system_is_refused_with_its_reason() {
        let limits = Limits { most_layers: 2, ..Limits::default() };
        let gzip = LAYER_TYPES[1].0;
        let cases = [
            (vec![], "no layers"),
            (vec![descriptor("application/vnd.bedplate.host.kernel.v1", 2, 1)], "not a tar"),
            (vec![descriptor(gzip, 2, 17 << 30)], "more than"),
            (vec![descriptor(gzip, 2, 1), descriptor(gzip, 3, 1), descriptor(gzip, 4, 1)], "3 layers"),
        ];
        for (layers, reason) in cases {
            let problem = check(&manifest(layers), &limits).unwrap_err();
            assert!(problem.contains(reason), "{problem}");
        }
        let mut other = manifest(vec![descriptor(gzip, 2, 1)]);
        other.config.media_type = "application/vnd.oci.empty.v1+json".into();
        assert!(check(&other, &limits).unwrap_err().contains("not an image of a root file system"));
    }

    #[test]
    fn layers_and_diff_ids_belong_together_and_a_repeated_layer_counts_once() {
        let gzip = LAYER_TYPES[1].0;
        let image = manifest(vec![descriptor(gzip, 2, 10), descriptor(gzip, 3, 20), descriptor(gzip, 2, 10)]);
        let config = |ids: &[u8]| Config {
            architecture: "amd64".into(),
            labels: BTreeMap::new(),
            diff_ids: ids.iter().map(|byte| digest(*byte)).collect(),
        };
        let limits = Limits::default();
        let found = layers(&image, &config(&[12, 13, 12]), &limits).unwrap();
        assert_eq!(found.iter().map(|l| l.diff_id).collect::<Vec<_>>(), [digest(13), digest(12)]);
        assert_eq!(found[0].expected, 20 * limits.growth);
        assert!(layers(&image, &config(&[12, 13]), &limits).unwrap_err().contains("2 diff IDs"));
        let plain = manifest(vec![descriptor(LAYER_TYPES[0].0, 2, 10)]);
        assert!(layers(&plain, &config(&[3]), &limits).is_err());
    }

    #[test]
    fn a_configuration_for_another_machine_is_refused() {
        let text = r#"{"architecture":"arm64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
        assert!(config(text.as_bytes(), "amd64").unwrap_err().contains("linux/arm64"));
        let labeled = r#"{"architecture":"amd64","os":"linux","config":{"Labels":{"a":"b"}},"rootfs":{}}"#;
        assert_eq!(config(labeled.as_bytes(), "amd64").unwrap().labels.get("a").unwrap(), "b");
        let bare = r#"{"architecture":"amd64","os":"linux","config":{"Labels":null},"rootfs":{}}"#;
        assert!(config(bare.as_bytes(), "amd64").unwrap().labels.is_empty());
    }
}
