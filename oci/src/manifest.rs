//! Boot images as OCI documents (OCI image specification 1.1: image index, image manifest, descriptor): read with
//! limits and chosen from.
//!
//! Not here: fetching, files. Callers: the store, layouts and files.
//!
//! Pure: bytes in, values out.

use std::collections::BTreeMap;

use bedplate_api::id::Digest;
use serde::{Deserialize, Serialize};

/// The largest index or manifest that is read (the size that registries must accept, distribution specification).
pub(crate) const LARGEST_MANIFEST: u64 = 4 << 20;
/// The largest configuration that is read.
pub(crate) const LARGEST_CONFIG: u64 = 256 << 10;
/// The annotation that carries a tag in an OCI layout.
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Media type of an image index.
pub(crate) const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of an image manifest.
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// `artifactType` of a boot image.
pub(crate) const ARTIFACT_TYPE: &str = "application/vnd.bedplate.host.v1";
/// Media type of a boot image's configuration.
pub(crate) const CONFIG_TYPE: &str = "application/vnd.bedplate.host.config.v1+json";
/// Media type of the kernel.
pub(crate) const KERNEL_TYPE: &str = "application/vnd.bedplate.host.kernel.v1";
/// Media type of the initramfs.
pub(crate) const INITRD_TYPE: &str = "application/vnd.bedplate.host.initrd.v1";
/// Media type of the root file system (squashfs).
pub(crate) const ROOTFS_TYPE: &str = "application/vnd.bedplate.host.rootfs.v1";

/// Architecture of plain files whose kernel does not name one.
pub const UNKNOWN_ARCHITECTURE: &str = "unknown";

/// Maximum number of kernel arguments of an image.
const MOST_ARGUMENTS: usize = 64;
/// Maximum length of a kernel argument in bytes; Linux takes 2048 bytes for all on x86.
const LONGEST_ARGUMENT: usize = 512;

/// A blob in the store. Its JSON form is part of pxed's files, so a changed form needs a new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blob {
    /// SHA-256 of the content.
    pub digest: Digest,
    /// Size in bytes.
    pub size: u64,
}

/// Complete image in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootImage {
    /// Digest of its manifest.
    pub digest: Digest,
    /// OCI architecture, such as `amd64`; [`UNKNOWN_ARCHITECTURE`] for plain files whose kernel does not name
    /// one.
    pub architecture: String,
    /// The kernel.
    pub kernel: Blob,
    /// The initramfs.
    pub initrd: Blob,
    /// The root file system, unless all is in the initramfs.
    pub rootfs: Option<Blob>,
    /// Kernel arguments that the image asks for.
    pub kernel_arguments: Vec<String>,
}

/// OCI content descriptor, as far as it is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    /// Media type of the content.
    pub(crate) media_type: String,
    /// `artifactType` of the manifest that it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) artifact_type: Option<String>,
    /// Digest of the content.
    pub(crate) digest: Digest,
    /// Size of the content in bytes.
    pub(crate) size: u64,
    /// Platform of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    /// A descriptor of this content without annotations.
    pub(crate) fn new(media_type: &str, blob: Blob) -> Self {
        Self {
            media_type: media_type.to_owned(),
            artifact_type: None,
            digest: blob.digest,
            size: blob.size,
            platform: None,
            annotations: None,
        }
    }

    /// The content that it names.
    pub(crate) fn blob(&self) -> Blob {
        Blob { digest: self.digest, size: self.size }
    }

    fn tag(&self) -> Option<&str> {
        self.annotations.as_ref()?.get(REF_NAME).map(String::as_str)
    }
}

/// OCI platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    /// Architecture, such as `amd64`.
    pub(crate) architecture: String,
    /// Operating system, such as `linux`.
    pub(crate) os: String,
}

/// OCI image index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    /// Always 2.
    pub(crate) schema_version: u32,
    /// [`INDEX_TYPE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    /// Entries of the index.
    pub(crate) manifests: Vec<Descriptor>,
}

/// OCI image manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    /// Always 2.
    pub(crate) schema_version: u32,
    /// [`MANIFEST_TYPE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    /// [`ARTIFACT_TYPE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) artifact_type: Option<String>,
    /// The configuration.
    pub(crate) config: Descriptor,
    /// Kernel, initramfs and root file system, distinguished by media type.
    pub(crate) layers: Vec<Descriptor>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

/// A boot image's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    /// OCI architecture.
    pub(crate) architecture: String,
    /// Kernel arguments that the image asks for.
    #[serde(default)]
    pub(crate) kernel_arguments: Vec<String>,
    /// Release of the kernel (`uname -r`), for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) release: Option<String>,
}

/// Kind of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Document {
    Index(Index),
    Manifest(Box<Manifest>),
}

/// The parts that a manifest names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) config: Blob,
    pub(crate) kernel: Blob,
    pub(crate) initrd: Blob,
    pub(crate) rootfs: Option<Blob>,
}

impl Parts {
    pub(crate) fn blobs(&self) -> impl Iterator<Item = Blob> + use<> {
        [Some(self.config), Some(self.kernel), Some(self.initrd), self.rootfs].into_iter().flatten()
    }
}

/// Reads an index or a manifest.
pub(crate) fn parse(bytes: &[u8]) -> Result<Document, String> {
    if bytes.len() as u64 > LARGEST_MANIFEST {
        return Err(format!("larger than {LARGEST_MANIFEST} bytes"));
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        schema_version: u32,
        manifests: Option<serde::de::IgnoredAny>,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if head.schema_version != 2 {
        return Err(format!("schemaVersion is {}, not 2", head.schema_version));
    }
    if head.manifests.is_some() {
        serde_json::from_slice(bytes).map(Document::Index).map_err(|e| e.to_string())
    } else {
        serde_json::from_slice(bytes).map(|m| Document::Manifest(Box::new(m))).map_err(|e| e.to_string())
    }
}

/// The parts of a boot image's manifest; every size at most `largest` bytes.
pub(crate) fn parts(manifest: &Manifest, largest: u64) -> Result<Parts, String> {
    if manifest.config.media_type != CONFIG_TYPE {
        return Err(format!("its configuration has type {}, not {CONFIG_TYPE}", manifest.config.media_type));
    }
    let one = |media_type: &str| {
        let mut found = manifest.layers.iter().filter(|l| l.media_type == media_type);
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(format!("it has several layers of type {media_type}")),
            (first, _) => Ok(first.map(Descriptor::blob)),
        }
    };
    let need = |media_type: &str| one(media_type)?.ok_or(format!("it has no layer of type {media_type}"));
    let parts = Parts {
        config: manifest.config.blob(),
        kernel: need(KERNEL_TYPE)?,
        initrd: need(INITRD_TYPE)?,
        rootfs: one(ROOTFS_TYPE)?,
    };
    if parts.config.size > LARGEST_CONFIG {
        return Err(format!("its configuration is larger than {LARGEST_CONFIG} bytes"));
    }
    if let Some(blob) = parts.blobs().find(|b| b.size > largest) {
        return Err(format!("{} has {} bytes, more than {largest}", blob.digest, blob.size));
    }
    Ok(parts)
}

/// Reads a boot image's configuration.
pub(crate) fn config(bytes: &[u8]) -> Result<Config, String> {
    if bytes.len() as u64 > LARGEST_CONFIG {
        return Err(format!("its configuration is larger than {LARGEST_CONFIG} bytes"));
    }
    let config: Config = serde_json::from_slice(bytes).map_err(|e| format!("its configuration: {e}"))?;
    if config.kernel_arguments.len() > MOST_ARGUMENTS {
        return Err(format!("more than {MOST_ARGUMENTS} kernel arguments"));
    }
    // Other characters could end a line of the boot script, or be expanded there.
    let plain = |a: &String| {
        !a.is_empty()
            && a.len() <= LONGEST_ARGUMENT
            && a.bytes().all(|b| (0x20..0x7f).contains(&b))
            && !a.contains("${")
    };
    if let Some(argument) = config.kernel_arguments.iter().find(|a| !plain(a)) {
        let shown: String = argument.chars().take(40).collect();
        return Err(format!("kernel argument {shown:?} is not plain text of 1 to {LONGEST_ARGUMENT} bytes"));
    }
    if config.architecture.is_empty() || !config.architecture.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err("its architecture is not a word such as amd64".to_owned());
    }
    Ok(config)
}

/// Selection criteria for an index.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) tag: Option<&'a str>,
    pub(crate) digest: Option<Digest>,
    pub(crate) architecture: &'a str,
}

/// Chooses from an index: by digest, by tag, then by platform. An entry without a platform fits every one.
/// The same descriptor listed twice counts once.
pub(crate) fn select<'i>(index: &'i Index, wanted: &Wanted<'_>) -> Result<&'i Descriptor, String> {
    let fits = |d: &&Descriptor| {
        wanted.digest.is_none_or(|digest| d.digest == digest)
            && wanted.tag.is_none_or(|tag| d.tag() == Some(tag))
            && (wanted.digest.is_some()
                || d.platform.as_ref().is_none_or(|p| p.architecture == wanted.architecture))
            && [INDEX_TYPE, MANIFEST_TYPE].contains(&d.media_type.as_str())
    };
    let mut found = index.manifests.iter().filter(fits);
    let Some(first) = found.next() else {
        return Err(format!("no manifest fits {}", describe(wanted)));
    };
    if found.any(|other| other.digest != first.digest) {
        return Err(format!("several manifests fit {}: {}", describe(wanted), list(index)));
    }
    Ok(first)
}

fn describe(wanted: &Wanted<'_>) -> String {
    match (wanted.tag, wanted.digest) {
        (_, Some(digest)) => digest.to_string(),
        (Some(tag), None) => format!("tag {tag:?} and architecture {}", wanted.architecture),
        (None, None) => format!("architecture {}", wanted.architecture),
    }
}

/// Lists at most eight entries of an index, for a message.
fn list(index: &Index) -> String {
    let names = index.manifests.iter().take(8).map(|d| match d.tag() {
        Some(tag) => tag.chars().take(64).collect(),
        None => d.digest.to_string(),
    });
    names.collect::<Vec<String>>().join(", ")
}
