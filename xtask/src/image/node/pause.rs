//! The pause program, and the one-layer image of it that the node image carries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::super::compose::install;
use super::super::recipe::{hash_bytes, hash_file};
use super::archive;
use crate::progress::Step;

/// The name under which containerd knows it, `sandbox_image` in images/node/runtime/etc/containerd/config.toml.
const NAME: &str = "localhost/bedplate/pause:1";

/// Compiles it, without a C library and without anything that would differ between two builds.
pub(super) fn compile(source: &Path, work: &Path) -> Result<PathBuf> {
    let program = work.join("pause");
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-Os", "-ffreestanding", "-nostdlib", "-static", "-s"]);
    gcc.args(["-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-fcf-protection=none"]);
    gcc.args(["-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-o"]).arg(&program).arg(source);
    let output = gcc.output().context("cannot run gcc")?;
    if output.status.success() {
        return Ok(program);
    }
    bail!("{}: {}", source.display(), String::from_utf8_lossy(&output.stderr))
}

/// Packs it as an archive that every runtime imports (Docker's `docker save`).
pub(super) fn image(step: &Step, program: &Path, time: u64, work: &Path) -> Result<PathBuf> {
    let (layer, image) = (work.join("pause-layer"), work.join("pause-image"));
    install(program, &layer.join("pause"), 0o755)?;
    fs::create_dir_all(&image).with_context(|| format!("cannot make {}", image.display()))?;
    archive::write(step, &layer, &["pause".into()], time, &image.join("layer.tar"))?;
    let digest = hash_file(&image.join("layer.tar"))?;
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "Entrypoint": ["/pause"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let config = serde_json::to_vec(&config)?;
    let name = format!("{}.json", hash_bytes(&config));
    let manifest = json!([{ "Config": name, "RepoTags": [NAME], "Layers": ["layer.tar"] }]);
    fs::write(image.join(&name), config).context("cannot write the pause image's configuration")?;
    fs::write(image.join("manifest.json"), serde_json::to_vec(&manifest)?)
        .context("cannot write the pause image's manifest")?;
    let tar = work.join("pause.tar");
    archive::write(step, &image, &["manifest.json".into(), name.into(), "layer.tar".into()], time, &tar)?;
    Ok(tar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerds_configuration_names_the_image_that_is_packed() {
        let path = crate::host::root().join("images/node/runtime/etc/containerd/config.toml");
        let configuration: toml::Table = toml::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let cri = &configuration["plugins"]["io.containerd.grpc.v1.cri"];
        assert_eq!(cri["sandbox_image"].as_str(), Some(NAME));
    }
}
