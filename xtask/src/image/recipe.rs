//! The recipe as it is written, and the hash by which a build knows whether anything changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::Kernel;

/// `images/host/recipe.toml`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Recipe {
    pub(super) suite: String,
    pub(super) mirrors: Vec<String>,
    pub(super) keyring: String,
    pub(super) source_date_epoch: u64,
    pub(super) packages: Vec<String>,
    pub(super) exclude: Vec<String>,
    pub(super) include: Vec<String>,
    pub(super) mask: Vec<String>,
    pub(super) enable: Vec<String>,
    pub(super) default_target: String,
    pub(super) kernel_arguments: Vec<String>,
    pub(super) rootfs: RootFs,
    pub(super) initramfs: Initramfs,
    kernel: BTreeMap<String, KernelPackage>,
}

/// The root file system's part.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RootFs {
    pub(super) compression: Vec<String>,
    pub(super) block_size: String,
    pub(super) remove: Vec<String>,
    pub(super) without_modules: Vec<String>,
}

/// The initramfs' part.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Initramfs {
    pub(super) modules: Vec<String>,
    pub(super) required: Vec<String>,
    pub(super) without_modules: Vec<String>,
    pub(super) compression: Compression,
}

/// Compression of the initramfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Compression {
    None,
    Zstd,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelPackage {
    package: String,
}

impl Recipe {
    pub(super) fn read(path: &Path) -> Result<Self> {
        read(path)
    }

    /// The meta package that depends on the newest kernel.
    pub(super) fn kernel_package(&self, kernel: Kernel) -> Result<&str> {
        let found = self.kernel.get(kernel.name());
        Ok(&found.with_context(|| format!("the recipe has no [kernel.{}]", kernel.name()))?.package)
    }
}

/// Reads the recipe of an image.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not a recipe", path.display()))
}

/// A hash over named inputs, each with its length.
pub(super) struct Hasher(Sha256);

impl Hasher {
    pub(super) fn new() -> Self {
        Self(Sha256::new())
    }

    pub(super) fn add(&mut self, name: &str, bytes: &[u8]) {
        for part in [name.as_bytes(), bytes] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    /// A file, or all files of a directory in the order of their names, with their permissions.
    pub(super) fn add_tree(&mut self, name: &str, path: &Path) -> Result<()> {
        let context = || format!("cannot read {}", path.display());
        let metadata = fs::symlink_metadata(path).with_context(context)?;
        if metadata.is_symlink() {
            let target = fs::read_link(path).with_context(context)?;
            self.add(name, target.to_string_lossy().as_bytes());
        } else if metadata.is_dir() {
            let mut names = Vec::new();
            for entry in fs::read_dir(path).with_context(context)? {
                names.push(entry.with_context(context)?.file_name());
            }
            names.sort();
            for entry in names {
                self.add_tree(&format!("{name}/{}", entry.to_string_lossy()), &path.join(&entry))?;
            }
        } else {
            self.add("mode", &(metadata.permissions().mode() & 0o111).to_le_bytes());
            self.add(name, &fs::read(path).with_context(context)?);
        }
        Ok(())
    }

    pub(super) fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// SHA-256 of a file as hex digits.
pub(super) fn hash_file(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match std::io::Read::read(&mut file, &mut chunk)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(chunk.get(..read).unwrap_or_default()),
        }
    }
}

pub(super) fn hash_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repositorys_recipe_is_read_and_knows_both_kernels() {
        let recipe = Recipe::read(&crate::host::root().join("images/host/recipe.toml")).unwrap();
        for kernel in [Kernel::Cloud, Kernel::Generic] {
            assert!(recipe.kernel_package(kernel).unwrap().starts_with("linux-image-"));
        }
        assert!(recipe.initramfs.required.contains(&"squashfs".to_owned()));
    }

    #[test]
    fn inputs_that_only_run_together_alike_hash_differently() {
        let hash = |pairs: &[(&str, &str)]| {
            let mut hasher = Hasher::new();
            pairs.iter().for_each(|(name, value)| hasher.add(name, value.as_bytes()));
            hasher.finish()
        };
        assert_ne!(hash(&[("a", "bc")]), hash(&[("ab", "c")]));
        assert_eq!(hash(&[("a", "b")]), hash(&[("a", "b")]));
    }
}
