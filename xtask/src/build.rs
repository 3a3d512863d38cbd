//! Cargo's builds: the static release binaries, the programs of `tests`, and the generated custom resource definitions.
//!
//! All builds share one target directory, target and set of flags, so that each dependency is compiled once (see profile.bench in
//! Cargo.toml).

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{host, progress};

/// Named for the target directory as well: with `--target`, build scripts and macros are not linked statically.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Flags of all builds for the target.
pub(crate) const FLAGS: &str = "-C target-feature=+crt-static";
/// Profile of the test programs.
const TESTS: &str = "bench";
/// Flag that omits AES and RSA with AVX-512. They add 0.9 MB of machine code to each program, and help only above some GB/s in one
/// connection. Without them, all processors use AVX2.
const SMALL_TLS: &str = "-DMY_ASSEMBLER_IS_TOO_OLD_FOR_512AVX=1";

/// Released programs, with their packages.
const PROGRAMS: [(&str, &str); 5] = [
    ("pxed", "pxed"),
    ("bedplate-agent", "bedplate-agent"),
    ("bedplate-reconciler", "bedplate-controller"),
    ("bedplate-cluster", "bedplate-cluster"),
    ("bedplate-cli", "bedplate"),
];

/// Returns the directory of the static release binaries. In Cargo's own directory, the test programs have binaries of the same names.
pub(crate) fn release() -> PathBuf {
    host::target().join("static")
}

/// Returns the directory in which Cargo builds for the target, with the release's dependencies.
pub(crate) fn built() -> PathBuf {
    host::target().join(TARGET).join("release")
}

/// `cargo` in the repository's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(host::root());
    // Variables that `cargo run` set for xtask itself would affect the builds of other crates and rebuild them each time.
    for (key, _) in std::env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command
}

/// Returns `cargo ACT` for the target with the arguments of all builds. The caller adds the profile and the packages.
fn cargo_static(act: &str) -> Command {
    let mut command = cargo();
    command.env("RUSTFLAGS", FLAGS).env("AWS_LC_SYS_CFLAGS", SMALL_TLS);
    command.args([act, "--locked", "--target", TARGET]);
    command
}

/// Returns `cargo ACT` for test programs. `wrapper` compiles our crates instead of rustc.
pub(crate) fn cargo_tests(act: &str, wrapper: &std::path::Path) -> Command {
    let mut command = cargo_static(act);
    command.env("RUSTC_WORKSPACE_WRAPPER", wrapper).args(["--profile", TESTS]);
    command
}

/// Returns the path of clippy's compiler, which checks and compiles in one pass.
///
/// # Errors
/// rustc does not answer, or clippy is not installed.
pub(crate) fn clippy() -> Result<PathBuf> {
    let output = Command::new("rustc").current_dir(host::root()).args(["--print", "sysroot"]).output();
    let output = output.context("cannot run rustc")?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let driver = sysroot.join("bin/clippy-driver");
    ensure!(driver.is_file(), "{} is missing; run `rustup component add clippy`", driver.display());
    Ok(driver)
}

/// Builds pxed, bedplate-agent, bedplate-controller, bedplate-cluster and bedplate as static release binaries.
///
/// # Errors
/// Cargo fails.
pub(crate) fn run() -> Result<()> {
    progress::step("release build, static", |step| step.run(&mut cargo_release()))?;
    PROGRAMS.iter().try_for_each(|(_, program)| publish(program))
}

/// Returns `cargo build` of the programs.
fn cargo_release() -> Command {
    let mut command = cargo_static("build");
    command.arg("--release").args(PROGRAMS.iter().flat_map(|(package, _)| ["-p", package]));
    command
}

/// Copies a program from Cargo's directory atomically. A running program keeps its file.
fn publish(program: &str) -> Result<()> {
    let (from, to) = (built().join(program), release().join(program));
    let next = to.with_extension("next");
    std::fs::create_dir_all(release())
        .and_then(|()| std::fs::copy(&from, &next))
        .and_then(|_| std::fs::rename(&next, &to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Returns the path of the demo program.
pub(crate) fn demo_path() -> PathBuf {
    built().join("bedplate-demo")
}

/// Builds the program behind `cargo xtask demo`.
///
/// # Errors
/// Cargo fails.
pub(crate) fn demo() -> Result<()> {
    progress::step("build of the demo", |step| {
        step.run(&mut cargo_program("bedplate-tests", "bedplate-demo"))
    })
}

/// Builds a program of `tests` with the settings of the release, for measurements.
///
/// # Errors
/// Cargo fails.
pub(crate) fn measuring(package: &str, name: &str) -> Result<PathBuf> {
    progress::step(&format!("build of {name}"), |step| {
        let options = ["bedplate-tests", "bedplate-bench"]
            .map(|of| format!("profile.release.package.{of}.opt-level=3"));
        step.run(cargo_program(package, name).args(options.iter().flat_map(|option| ["--config", option])))
    })?;
    Ok(built().join(name))
}

/// Returns `cargo build` of a program of `tests` and of the programs, because dependencies with other features would be compiled
/// again.
fn cargo_program(package: &str, name: &str) -> Command {
    let mut command = cargo_release();
    command.args(["-p", package, "--bin", name]);
    command
}

/// Writes the files that are generated from `api/`.
///
/// # Errors
/// Cargo fails.
pub(crate) fn generate() -> Result<()> {
    progress::step("generate api/crds, docs/reference and deploy/cluster-api", |step| {
        step.run(cargo().args(["run", "--quiet", "--locked", "-p", "bedplate-api", "--example", "generate"]))
    })
}
