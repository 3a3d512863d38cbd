//! Archives and node images made by hand, honest and hostile, for the tests of this crate.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]
#![allow(clippy::unwrap_used, reason = "a fixture that cannot be made is a failed test")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use bedplate_api::id::Digest;
use bedplate_oci::node::{LayerStore, Limits, NodeSource, Progress};
use bedplate_oci::{Access, Options};
use sha2::Digest as _;

/// One member of an archive.
#[derive(Debug, Clone)]
pub struct Entry {
    pub kind: u8,
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub content: Vec<u8>,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: u64,
    pub device: (u32, u32),
    pub pax: Vec<(String, Vec<u8>)>,
}

fn entry(kind: u8, name: &str) -> Entry {
    let name = name.as_bytes().to_vec();
    let (link, content, pax) = (Vec::new(), Vec::new(), Vec::new());
    Entry { kind, name, link, content, mode: 0o644, owner: (0, 0), mtime: 1_700_000_000, device: (0, 0), pax }
}

pub fn file(name: &str, content: impl AsRef<[u8]>) -> Entry {
    Entry { content: content.as_ref().to_vec(), ..entry(b'0', name) }
}

pub fn directory(name: &str) -> Entry {
    entry(b'5', name).mode(0o755)
}

pub fn symlink(name: &str, target: &str) -> Entry {
    Entry { link: target.into(), ..entry(b'2', name) }.mode(0o777)
}

pub fn hard_link(name: &str, target: &str) -> Entry {
    Entry { link: target.into(), ..entry(b'1', name) }
}

pub fn fifo(name: &str) -> Entry {
    entry(b'6', name)
}

pub fn device(kind: u8, name: &str, major: u32, minor: u32) -> Entry {
    Entry { device: (major, minor), ..entry(kind, name) }
}

impl Entry {
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub fn owner(self, uid: u32, gid: u32) -> Self {
        Self { owner: (uid, gid), ..self }
    }

    pub fn mtime(self, mtime: u64) -> Self {
        Self { mtime, ..self }
    }

    pub fn kind(self, kind: u8) -> Self {
        Self { kind, ..self }
    }

    pub fn pax(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax.push((key.into(), value.as_ref().to_vec()));
        self
    }

    pub fn xattr(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax(&format!("SCHILY.xattr.{name}"), value)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut pax = self.pax.clone();
        if self.name.len() > 100 && !pax.iter().any(|(key, _)| key == "path") {
            pax.push(("path".into(), self.name.clone()));
        }
        if !pax.is_empty() {
            let records: Vec<u8> = pax.iter().flat_map(|(key, value)| record(key, value)).collect();
            out.extend(header(&entry(b'x', "pax"), records.len() as u64));
            out.extend(padded(&records));
        }
        out.extend(header(self, self.content.len() as u64));
        out.extend(padded(&self.content));
        out
    }
}

/// `LENGTH KEY=VALUE\n`, the length counting itself.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn padded(content: &[u8]) -> Vec<u8> {
    let mut bytes = content.to_vec();
    bytes.resize(content.len().div_ceil(512) * 512, 0);
    bytes
}

/// A ustar header.
pub fn header(entry: &Entry, size: u64) -> [u8; 512] {
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &entry.name[..entry.name.len().min(100)]);
    put(100, format!("{:07o}\0", entry.mode).as_bytes());
    put(108, format!("{:07o}\0", entry.owner.0).as_bytes());
    put(116, format!("{:07o}\0", entry.owner.1).as_bytes());
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{:011o}\0", entry.mtime).as_bytes());
    put(156, &[entry.kind]);
    put(157, &entry.link[..entry.link.len().min(100)]);
    put(257, b"ustar\x0000");
    put(329, format!("{:07o}\0", entry.device.0).as_bytes());
    put(337, format!("{:07o}\0", entry.device.1).as_bytes());
    sum(&mut block);
    block
}

/// Makes the checksum right.
pub fn sum(block: &mut [u8]) {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().take(512).map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

pub fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(Entry::bytes).collect();
    bytes.extend([0; 1024]);
    bytes
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn digest(bytes: &[u8]) -> Digest {
    Digest::from_sha256(sha2::Sha256::digest(bytes).into())
}

/// A layer as it is in an image.
#[derive(Debug, Clone)]
pub struct Layer {
    pub media_type: String,
    pub bytes: Vec<u8>,
    pub diff_id: Digest,
    pub annotations: serde_json::Value,
}

pub fn layer(entries: &[Entry]) -> Layer {
    of_tar(&tar(entries))
}

pub fn of_tar(tar: &[u8]) -> Layer {
    compressed(tar, gzip(tar), "application/vnd.oci.image.layer.v1.tar+gzip")
}

pub fn compressed(tar: &[u8], bytes: Vec<u8>, media_type: &str) -> Layer {
    let annotations = serde_json::json!({});
    Layer { media_type: media_type.to_owned(), bytes, diff_id: digest(tar), annotations }
}

/// An image in an OCI layout.
#[derive(Debug, Clone)]
pub struct Image {
    pub path: PathBuf,
    pub manifest: Digest,
    pub layers: Vec<Digest>,
}

impl Image {
    pub fn source(&self) -> NodeSource {
        let reference = format!("oci:{}@{}", self.path.display(), self.manifest);
        NodeSource { reference, allow_tag: false, access: Access::default() }
    }
}

/// Writes a layout with one image of these layers, the lowest first.
pub fn image(path: &Path, layers: &[Layer]) -> Image {
    let put = |bytes: &[u8]| {
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        fs::write(path.join("blobs/sha256").join(digest(bytes).hex()), bytes).unwrap();
        digest(bytes)
    };
    let diff_ids: Vec<String> = layers.iter().map(|layer| layer.diff_id.to_string()).collect();
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "config": { "Labels": { "bedplate.dev/cri-socket": "/run/cri.sock" } },
    });
    let config = serde_json::to_vec(&config).unwrap();
    let described = layers.iter().map(|layer| {
        put(&layer.bytes);
        serde_json::json!({
            "mediaType": layer.media_type, "digest": digest(&layer.bytes), "size": layer.bytes.len(),
            "annotations": layer.annotations,
        })
    });
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": put(&config), "size": config.len(),
        },
        "layers": described.collect::<Vec<_>>(),
    });
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let index = serde_json::json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": put(&manifest),
            "size": manifest.len(), "annotations": { "org.opencontainers.image.ref.name": "v1" },
        }],
    });
    fs::write(path.join("index.json"), index.to_string()).unwrap();
    fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let layers = layers.iter().map(|layer| digest(&layer.bytes)).collect();
    Image { path: path.to_owned(), manifest: digest(&manifest), layers }
}

pub fn limits() -> Limits {
    let transfer = Options { architecture: "amd64".to_owned(), ..crate::fixture::options() };
    Limits { reserve: 0, transfer, ..Limits::default() }
}

pub fn store(directory: &Path) -> LayerStore {
    LayerStore::open(directory, limits()).unwrap()
}

pub fn quiet(_: Progress) {}
