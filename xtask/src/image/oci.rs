//! OCI layouts, and what is in that of a host image (OCI image specification, "Image Layout"; media types: docs/guides/images.md).

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::recipe::{hash_bytes, hash_file};

/// Media type of a manifest.
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const ARTIFACT: &str = "application/vnd.bedplate.host.v1";
/// Annotation of index.json: the hash of what the image was made of.
const INPUTS: &str = "dev.bedplate.inputs";
/// The tag under which the layout names its image.
const TAG: &str = "latest";

/// Contents of the layout.
pub(super) struct Image<'a> {
    pub(super) kernel: &'a Path,
    pub(super) initrd: &'a Path,
    pub(super) rootfs: &'a Path,
    pub(super) kernel_arguments: &'a [String],
    pub(super) release: &'a str,
    pub(super) inputs: &'a str,
}

/// The image's digest, if the layout there was made of these inputs.
pub(super) fn is_built_from(layout: &Path, inputs: &str) -> Option<String> {
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).ok()?).ok()?;
    if index.pointer("/annotations").and_then(|a| a.get(INPUTS))? != inputs {
        return None;
    }
    Some(index.pointer("/manifests/0/digest")?.as_str()?.to_owned())
}

/// Writes the layout of a host image. Gives the image's digest.
pub(super) fn write(place: &Path, image: &Image<'_>) -> Result<String> {
    replace(place, |layout| write_content(layout, image))
}

/// Writes a layout next to its place, then swaps it in atomically; the old one is removed. Returns the
/// image's digest, which `content` returns.
pub(super) fn replace(place: &Path, content: impl FnOnce(&Path) -> Result<String>) -> Result<String> {
    let parent = place.parent().context("the layout's place has no parent directory")?;
    let name = place.file_name().context("the layout's place has no name")?.to_string_lossy();
    let next = parent.join(format!(".{name}.new-{}", std::process::id()));
    let _ = fs::remove_dir_all(&next);
    let digest = fs::create_dir_all(next.join("blobs/sha256"))
        .map_err(anyhow::Error::from)
        .and_then(|()| content(&next))
        .with_context(|| format!("cannot write {}", next.display()))?;
    if place.exists() {
        exchange(&next, place)?;
        fs::remove_dir_all(&next).with_context(|| format!("cannot remove {}", next.display()))?;
    } else {
        fs::rename(&next, place).with_context(|| format!("cannot make {}", place.display()))?;
    }
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .context("cannot sync the layout's directory")?;
    Ok(digest)
}

/// Swaps two directories atomically. A reader of the layout sees either the complete old one or the complete
/// new one.
fn exchange(next: &Path, place: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, next, CWD, place, RenameFlags::EXCHANGE)
        .with_context(|| format!("cannot replace {}", place.display()))
}

fn write_content(layout: &Path, image: &Image<'_>) -> Result<String> {
    let part = |name: &str| format!("application/vnd.bedplate.host.{name}.v1");
    let layers = [
        add_file(layout, image.kernel, &part("kernel"))?,
        add_file(layout, image.initrd, &part("initrd"))?,
        add_file(layout, image.rootfs, &part("rootfs"))?,
    ];
    let config = json!({
        "architecture": "amd64",
        "kernelArguments": image.kernel_arguments,
        "release": image.release,
    });
    let config = add_json(layout, &config, "application/vnd.bedplate.host.config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": config,
        "layers": layers,
    });
    let mut manifest = add_json(layout, &manifest, MANIFEST)?;
    manifest["artifactType"] = ARTIFACT.into();
    finish(layout, manifest, image.inputs)
}

/// Names the layout's one image in its index; `manifest` is its descriptor. Gives the image's digest.
pub(super) fn finish(layout: &Path, mut manifest: Value, inputs: &str) -> Result<String> {
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    manifest["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": TAG });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
        "annotations": { (INPUTS): inputs },
    });
    write_synced(&layout.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    write_synced(&layout.join("index.json"), &serde_json::to_vec(&index)?)?;
    Ok(digest)
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

/// Adds a document as a blob; gives its descriptor.
pub(super) fn add_json(layout: &Path, document: &Value, media_type: &str) -> Result<Value> {
    let bytes = serde_json::to_vec(document)?;
    let hex = hash_bytes(&bytes);
    write_synced(&layout.join("blobs/sha256").join(&hex), &bytes)?;
    Ok(descriptor(media_type, &hex, bytes.len() as u64))
}

/// Adds a file as a blob; gives its descriptor.
pub(super) fn add_file(layout: &Path, path: &Path, media_type: &str) -> Result<Value> {
    let hex = hash_file(path)?;
    let blob = layout.join("blobs/sha256").join(&hex);
    fs::copy(path, &blob).with_context(|| format!("cannot copy {}", path.display()))?;
    let file = File::open(&blob)?;
    file.sync_all()?;
    Ok(descriptor(media_type, &hex, file.metadata()?.len()))
}

fn descriptor(media_type: &str, hex: &str, size: u64) -> Value {
    json!({ "mediaType": media_type, "digest": format!("sha256:{hex}"), "size": size })
}
