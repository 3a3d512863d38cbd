//! Builds what goes out: the static release binaries, and the generated custom resource definitions.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{host, progress};

/// Named for the target directory as well: with `--target`, build scripts and macros are not linked statically.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Where the static release binaries lie.
pub(crate) fn release() -> PathBuf {
    host::target().join(TARGET).join("release")
}

/// `cargo` in the repository's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(host::root());
    // What `cargo run` set for xtask itself would reach into the builds of other crates and rebuild them each time.
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command
}

/// AES and RSA by AVX-512 are 0.9 MB of machine code in each program, and all that they bring is more than some GB/s in one connection. Known
/// processors without them take AVX2, and so do all then.
const SMALL_TLS: &str = "-DMY_ASSEMBLER_IS_TOO_OLD_FOR_512AVX=1";

/// Builds pxed, bedplate-agent, bedplate-controller and bedplate as static release binaries.
pub(crate) fn run() -> Result<()> {
    progress::step("release build, static", |step| {
        let mut command = cargo();
        command.env("RUSTFLAGS", "-C target-feature=+crt-static").env("AWS_LC_SYS_CFLAGS", SMALL_TLS);
        command.args(["build", "--release", "--locked", "--target", TARGET]);
        step.run(command.args([
            "-p",
            "pxed",
            "-p",
            "bedplate-agent",
            "-p",
            "bedplate-reconciler",
            "-p",
            "bedplate-cli",
        ]))
    })
}

/// Generates `api/crds` anew.
pub(crate) fn crds() -> Result<()> {
    progress::step("generate api/crds", |step| {
        step.run(cargo().args(["run", "--quiet", "--locked", "-p", "bedplate-api", "--example", "crds"]))
    })
}
