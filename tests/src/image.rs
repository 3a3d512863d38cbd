//! Images of `cargo xtask image`: builds in the test's own cache, and readers of layouts.
//!
//! This module does not check the content. Called by the programs `images` and `soak_image`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::guard::{Directory, Process};
use crate::pxed;

/// Maximum time of one build.
const BUILD_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Reads a JSON document of a layout.
///
/// # Errors
/// The file cannot be read, or is not JSON.
pub fn json(path: &Path) -> Result<Value> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is not JSON", path.display()))
}

/// Returns a string of a document.
///
/// # Errors
/// The value is missing, or is not a string.
pub fn text<'v>(value: &'v Value, key: &str) -> Result<&'v str> {
    value[key].as_str().with_context(|| format!("no {key} in {value}"))
}

/// Checks digest and size of a descriptor's blob and returns the path of the blob.
///
/// # Errors
/// The blob is missing, or does not match the descriptor.
pub fn blob(layout: &Path, descriptor: &Value) -> Result<PathBuf> {
    let digest = text(descriptor, "digest")?;
    let hex = digest.strip_prefix("sha256:").context("the algorithm is not sha256")?;
    let path = layout.join("blobs/sha256").join(hex);
    // An independent program computes the digest.
    let output = Command::new("sha256sum").arg(&path).output()?;
    ensure!(
        output.stdout.starts_with(hex.as_bytes()),
        "{} does not have the digest of its name",
        path.display()
    );
    let size = fs::metadata(&path)?.len();
    ensure!(descriptor["size"].as_u64() == Some(size), "{descriptor} has {size} bytes");
    Ok(path)
}

/// Returns the manifest of the only image of a layout.
///
/// # Errors
/// The layout is not complete.
pub fn manifest(layout: &Path) -> Result<Value> {
    let index = json(&layout.join("index.json"))?;
    json(&blob(layout, &index["manifests"][0])?)
}

/// Returns the list of Debian packages in the host image of a layout.
///
/// # Errors
/// The layout is not complete.
pub fn packages(layout: &Path) -> Result<String> {
    let manifest = manifest(layout)?;
    let mut command = Command::new("unsquashfs");
    command.arg("-cat").arg(blob(layout, &manifest["layers"][2])?).arg("usr/share/bedplate/packages.txt");
    let output = command.output()?;
    ensure!(output.status.success(), "unsquashfs: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Network access of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// No network.
    Absent,
    /// The mirrors of the recipe.
    Mirrors,
}

/// Image builds in their own directory.
#[derive(Debug)]
pub struct Workshop {
    directory: Directory,
}

impl Workshop {
    /// Creates an empty workshop.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn new() -> Result<Self> {
        let directory = Directory::new("image")?;
        let temporary = directory.path().join("tmp");
        fs::create_dir_all(&temporary)?;
        // apt downloads packages as its own user.
        for path in [directory.path(), &temporary] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { directory })
    }

    /// Returns a path in the directory of the workshop.
    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a cache that has the Debian parts of the common cache. A killed build leaves its files in this cache only.
    ///
    /// # Errors
    /// The common cache cannot be read.
    pub fn cache_with_bases(&self, name: &str) -> Result<PathBuf> {
        let cache = self.at(name);
        fs::create_dir_all(cache.join("images"))?;
        for base in bases()? {
            symlink(&base, cache.join("images").join(base.file_name().unwrap_or_default()))?;
        }
        Ok(cache)
    }

    /// Creates a cache that has only the package files of the Debian parts, so that a build unpacks and configures all packages again.
    ///
    /// # Errors
    /// The common cache cannot be read, or has no package files.
    pub fn cache_with_packages(&self, name: &str) -> Result<PathBuf> {
        let cache = self.at(name);
        for base in bases()? {
            let place = cache.join("images").join(base.file_name().unwrap_or_default());
            fs::create_dir_all(&place)?;
            ensure!(
                base.join("kept").is_dir(),
                "{} has no package files; run `cargo xtask image host --fresh`",
                base.display()
            );
            for part in ["kept", "kernel.deb"] {
                if base.join(part).exists() {
                    symlink(base.join(part), place.join(part))?;
                }
            }
        }
        Ok(cache)
    }

    /// Runs `cargo xtask image` with these arguments, which writes the layout to `output`. Returns the index of the layout.
    ///
    /// # Errors
    /// The build fails; its output is in the message.
    pub fn build(&self, cache: &Path, output: &Path, network: Network, arguments: &[&str]) -> Result<String> {
        // mmdebstrap mounts /dev, /proc and /sys in its working directory. These mounts end with the namespaces, so with this process.
        let mut build = Command::new("unshare");
        build.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        if network == Network::Absent {
            build.arg("--net");
        }
        build.arg(xtask()?).arg("image").args(arguments).arg("--output").arg(output);
        build.env("BEDPLATE_CACHE", cache).env("TMPDIR", self.at("tmp"));
        let mut process = Process::spawn("xtask", &mut build, &output.with_extension("log"))?;
        let status = process.wait_ended(BUILD_TIMEOUT)?;
        ensure!(status.success(), "cargo xtask image {arguments:?}: {}", process.said());
        fs::read_to_string(output.join("index.json")).context("no index")
    }

    /// Builds the host image. Returns its index and the list of its packages.
    ///
    /// # Errors
    /// The build fails; its output is in the message.
    pub fn build_host(&self, cache: &Path, output: &Path, network: Network) -> Result<(String, String)> {
        let agent = pxed::binary("bedplate-agent")?.display().to_string();
        let index = self.build(cache, output, network, &["host", "--agent", &agent])?;
        Ok((index, packages(output)?))
    }
}

/// Returns the Debian parts in the common cache.
fn bases() -> Result<Vec<PathBuf>> {
    let images = pxed::cache()?.join("images");
    let entries = fs::read_dir(&images).with_context(|| format!("cannot read {}", images.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let is_base =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("base-"));
    Ok(paths.into_iter().filter(is_base).collect())
}

/// Returns the path of the xtask program. `cargo xtask` sets the variable.
fn xtask() -> Result<PathBuf> {
    let path = std::env::var_os("BEDPLATE_XTASK")
        .context("BEDPLATE_XTASK is not set; run the tests by `cargo xtask test`")?;
    Ok(path.into())
}
