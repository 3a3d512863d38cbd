//! The OCI layout of a node image (OCI image specification 1.1): an image as any runtime takes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::super::oci;
use super::super::recipe::hash_file;
use super::archive::Compression;
use super::recipe::Recipe;

/// Path of containerd's socket in the slot.
const CRI_SOCKET: &str = "/run/containerd/containerd.sock";

/// One layer, packed.
pub(super) struct Layer {
    pub(super) name: String,
    packed: PathBuf,
    media_type: String,
    /// Digest of the archive before it was packed.
    diff_id: String,
    /// Bytes before packing.
    pub(super) size: u64,
    pub(super) packed_size: u64,
}

impl Layer {
    /// Describes a layer by its archive and the compressed archive. Removes the uncompressed archive.
    pub(super) fn new(name: &str, tar: &Path, packed: PathBuf, compression: Compression) -> Result<Self> {
        let size = |path: &Path| {
            fs::metadata(path).map(|m| m.len()).with_context(|| format!("no {}", path.display()))
        };
        let layer = Self {
            name: name.to_owned(),
            media_type: format!("application/vnd.oci.image.layer.v1.tar+{}", compression.name()),
            diff_id: format!("sha256:{}", hash_file(tar)?),
            size: size(tar)?,
            packed_size: size(&packed)?,
            packed,
        };
        fs::remove_file(tar).with_context(|| format!("cannot remove {}", tar.display()))?;
        Ok(layer)
    }
}

/// Contents of the layout.
pub(super) struct Image<'a> {
    pub(super) layers: &'a [Layer],
    pub(super) recipe: &'a Recipe,
    /// Kubernetes' version.
    pub(super) version: &'a str,
    pub(super) inputs: &'a str,
}

/// Writes it; gives the image's digest.
pub(super) fn write(layout: &Path, image: &Image<'_>) -> Result<String> {
    let created = time(image.recipe.source_date_epoch)?;
    let labels = json!({
        "bedplate.dev/cri-socket": CRI_SOCKET,
        "bedplate.dev/kubernetes-version": image.version,
    });
    let diff_ids: Vec<&str> = image.layers.iter().map(|layer| layer.diff_id.as_str()).collect();
    let history: Vec<Value> = image
        .layers
        .iter()
        .map(|layer| json!({ "created": created, "created_by": format!("images/node/recipe.toml, layer {}", layer.name) }))
        .collect();
    let config = json!({
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": { "Cmd": ["/sbin/init"], "StopSignal": "SIGRTMIN+3", "Labels": labels },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "history": history,
    });
    let config = oci::add_json(layout, &config, "application/vnd.oci.image.config.v1+json")?;
    let mut layers = Vec::new();
    for layer in image.layers {
        let mut descriptor = oci::add_file(layout, &layer.packed, &layer.media_type)?;
        // An unpacker checks the free space first, and the compressed size says little about the unpacked
        // one.
        descriptor["annotations"] = json!({ "bedplate.dev/unpacked-bytes": layer.size.to_string() });
        layers.push(descriptor);
    }
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": oci::MANIFEST,
        "config": config,
        "layers": layers,
        "annotations": {
            "org.opencontainers.image.title": "Bedplate node",
            "org.opencontainers.image.version": image.version,
            "org.opencontainers.image.created": created,
        },
    });
    let manifest = oci::add_json(layout, &manifest, oci::MANIFEST)?;
    oci::finish(layout, manifest, image.inputs)
}

/// Seconds since 1970 in the form of RFC 3339.
fn time(seconds: u64) -> Result<String> {
    let output =
        Command::new("date").args(["-u", "-d", &format!("@{seconds}"), "+%Y-%m-%dT%H:%M:%SZ"]).output();
    let output = output.context("cannot run date")?;
    if !output.status.success() {
        bail!("date does not know the time {seconds}");
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipes_time_is_the_images() {
        assert_eq!(time(1_767_225_600).unwrap(), "2026-01-01T00:00:00Z");
    }
}
