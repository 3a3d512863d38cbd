//! The boot loaders: read whole into memory at start and at SIGHUP, served by TFTP and HTTP.
//!
//! The missing loaders, and the Debian packages that provide them, are a value for readiness and `pxed check`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bedplate_api::id::Digest;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::boot_policy::{Platform, Transport};
use crate::config::LoadersConfig;

/// Maximum size of a loader; a larger file is a configuration error.
const MAX_BYTES: u64 = 64 << 20;

/// A loader file.
#[derive(Debug, Clone)]
pub struct Loader {
    /// The file.
    pub bytes: Bytes,
    /// The digest.
    pub digest: Digest,
}

/// A loader that the configuration names and that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Platform of the loader.
    pub platform: Platform,
    /// The file.
    pub path: PathBuf,
    /// Problem, and the package to install.
    pub problem: String,
}

/// The loaders that are there.
#[derive(Debug, Clone, Default)]
pub struct Loaders {
    files: BTreeMap<String, Loader>,
    names: BTreeMap<(Platform, Transport), String>,
    missing: Vec<Missing>,
}

impl Loaders {
    /// Reads every loader that the configuration names. Blocking.
    pub fn load(config: &LoadersConfig) -> Self {
        let wanted = [
            (Platform::Bios, Transport::Tftp, &config.bios),
            (Platform::UefiX64, Transport::Tftp, &config.uefi_x64),
            (Platform::UefiX64, Transport::Http, &config.uefi_x64_http),
            (Platform::UefiIa32, Transport::Tftp, &config.uefi_ia32),
            (Platform::UefiArm64, Transport::Tftp, &config.uefi_arm64),
            (Platform::UefiArm64, Transport::Http, &config.uefi_arm64_http),
        ];
        let mut loaders = Self::default();
        for (platform, transport, name) in wanted {
            let Some(name) = name else { continue };
            if !loaders.files.contains_key(name) {
                match read(&config.directory.join(name)) {
                    Ok(loader) => drop(loaders.files.insert(name.clone(), loader)),
                    Err(problem) => {
                        loaders.missing.push(Missing {
                            platform,
                            path: config.directory.join(name),
                            problem,
                        });
                        continue;
                    }
                }
            }
            loaders.names.insert((platform, transport), name.clone());
        }
        loaders
    }

    /// The file of this name.
    pub fn file(&self, name: &str) -> Option<&Loader> {
        self.files.get(name)
    }

    /// The name of the loader for this platform and transport.
    pub fn name(&self, platform: Platform, transport: Transport) -> Option<&str> {
        self.names.get(&(platform, transport)).map(String::as_str)
    }

    /// Returns the missing loaders.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }
}

fn read(path: &Path) -> Result<Loader, String> {
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let package = path.file_name().and_then(|n| n.to_str()).map_or("ipxe", debian_package);
            format!("{} does not exist; Debian's package {package} provides it", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    })?;
    if !metadata.is_file() || metadata.len() == 0 || metadata.len() > MAX_BYTES {
        return Err(format!("{} is not a file of 1 byte to 64 MiB", path.display()));
    }
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let digest = Digest::from_sha256(Sha256::digest(&bytes).into());
    Ok(Loader { bytes: bytes.into(), digest })
}

/// The Debian package that has a loader file of this name.
fn debian_package(file: &str) -> &'static str {
    match file {
        _ if file.starts_with("grub") => "grub-efi-amd64-signed",
        _ if file.starts_with("shim") => "shim-signed",
        _ => "ipxe",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_loader_is_served_and_missing_one_names_its_package() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("undionly.kpxe"), b"bios").unwrap();
        let config = LoadersConfig {
            directory: directory.path().to_owned(),
            bios: Some("undionly.kpxe".to_owned()),
            uefi_x64: Some("snponly.efi".to_owned()),
            uefi_x64_http: None,
            uefi_ia32: None,
            uefi_arm64: None,
            uefi_arm64_http: None,
        };
        let loaders = Loaders::load(&config);
        assert_eq!(loaders.name(Platform::Bios, Transport::Tftp), Some("undionly.kpxe"));
        assert_eq!(loaders.file("undionly.kpxe").unwrap().bytes.as_ref(), b"bios");
        assert_eq!(loaders.name(Platform::UefiX64, Transport::Tftp), None);
        assert_eq!(loaders.missing().len(), 1);
        assert!(loaders.missing()[0].problem.ends_with("Debian's package ipxe provides it"));
    }
}
