//! Looks for a secret in the files of a slot that runs, in whatever form programs write a key.
//!
//! Reads every regular file that the slot itself sees: its image, what it wrote, its state and its memory. Called by tests of trust.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;

use crate::host::Host;

/// Directories of a slot that the kernel fills.
const KERNEL: [&str; 3] = ["proc", "sys", "dev"];
/// Header of the private scalar in a P-256 key: an octet string of 32 bytes (RFC 5915, section 3).
const SCALAR: [u8; 2] = [0x04, 0x20];
const SCALAR_BYTES: usize = 32;
/// Part of a key's PEM, again in base64 as in a kubeconfig, that differs from key to key.
const ENCODED: std::ops::Range<usize> = 120..180;

/// A secret in the forms that it may have in a file.
#[derive(Debug)]
pub struct Secret {
    forms: Vec<Vec<u8>>,
}

impl Secret {
    /// Returns the forms of a P-256 key: its private scalar, a line of its PEM, and its PEM in base64.
    ///
    /// # Errors
    /// The text is not a key in PKCS#8.
    pub fn key(pem: &str) -> Result<Self> {
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).context("not a key")?;
        let der = key.secret_der();
        let at = der.windows(2).position(|two| two == SCALAR).context("no scalar")? + SCALAR.len();
        let scalar = der.get(at..at + SCALAR_BYTES).context("a short scalar")?.to_vec();
        let line = pem.lines().nth(2).context("no second line")?.as_bytes().to_vec();
        let encoded = STANDARD.encode(pem).into_bytes();
        let encoded = encoded.get(ENCODED).context("a short key")?.to_vec();
        Ok(Self { forms: vec![scalar, line, encoded] })
    }

    /// Returns true if the bytes hold the secret in one of its forms.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        self.forms.iter().any(|form| contains(bytes, form))
    }

    /// Returns the files of a slot that hold the secret, as the slot sees their paths.
    ///
    /// # Errors
    /// The slot does not run, or a file cannot be read.
    pub fn files_of_slot(&self, host: &Host, slot: &str) -> Result<Vec<PathBuf>> {
        let machine = format!("bedplate-{slot}");
        let leader = host.run("machinectl", &["show", "--property=Leader", "--value", &machine])?;
        let root = host.root().join("proc").join(leader.trim()).join("root");
        let mut walk = Walk { secret: self, root: &root, read: 0, found: Vec::new() };
        for entry in fs::read_dir(&root).with_context(|| format!("cannot list {}", root.display()))? {
            let entry = entry?;
            if !KERNEL.iter().any(|name| entry.file_name() == *name) {
                walk.visit(&entry.path())?;
            }
        }
        ensure!(walk.read > 100, "only {} files were read in {}", walk.read, root.display());
        Ok(walk.found)
    }
}

struct Walk<'w> {
    secret: &'w Secret,
    root: &'w Path,
    read: usize,
    found: Vec<PathBuf>,
}

impl Walk<'_> {
    /// Reads a file, or everything below a directory. What vanishes meanwhile is not there.
    fn visit(&mut self, path: &Path) -> Result<()> {
        let Some(metadata) = there(fs::symlink_metadata(path), path)? else { return Ok(()) };
        if metadata.is_dir() {
            let Some(entries) = there(fs::read_dir(path), path)? else { return Ok(()) };
            for entry in entries {
                if let Some(entry) = there(entry, path)? {
                    self.visit(&entry.path())?;
                }
            }
        } else if metadata.is_file()
            && let Some(bytes) = there(fs::read(path), path)?
        {
            self.read += 1;
            if self.secret.is_in(&bytes) {
                self.found.push(Path::new("/").join(path.strip_prefix(self.root)?));
            }
        }
        Ok(())
    }
}

fn there<T>(result: io::Result<T>, path: &Path) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn contains(bytes: &[u8], form: &[u8]) -> bool {
    let Some(first) = form.first() else { return false };
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        rest = rest.get(at..).unwrap_or_default();
        if rest.starts_with(form) {
            return true;
        }
        rest = rest.get(1..).unwrap_or_default();
    }
    false
}
