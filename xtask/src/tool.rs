//! Programs of cargo's that the other commands call: built once, cached by name and version.
//!
//! Not optimized, because they run for seconds. Callers: `deny`, `deb`, `setup`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{build, host, progress};

/// Prefix of the build directory. The ID of the building process follows.
const WORK: &str = ".cargo-install-";

/// A program of crates.io.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    /// Name of the crate and its program.
    pub(crate) name: &'static str,
    /// Version of the crate.
    pub(crate) version: &'static str,
}

impl Tool {
    /// Returns the directory below the cache.
    fn place(self) -> PathBuf {
        host::cache().join(format!("tools/{}-{}", self.name, self.version))
    }

    /// The program.
    pub(crate) fn program(self) -> PathBuf {
        self.place().join("bin").join(self.name)
    }

    /// Returns the text that `setup` prints before installing it. Returns `None` if it is installed.
    pub(crate) fn missing(self) -> Option<String> {
        let Self { name, version } = self;
        let plan =
            || format!("into {}: {name} {version} (about a minute on 2 cores, once)", self.place().display());
        (!self.program().is_file()).then(plan)
    }

    /// Builds it unless it is there.
    pub(crate) fn install(self) -> Result<()> {
        if self.missing().is_none() {
            return Ok(());
        }
        let Self { name, version } = self;
        progress::step(&format!("cargo install {name} {version}"), |step| {
            let work = host::cache().join(format!("tools/{WORK}{}", std::process::id()));
            let mut command = build::cargo();
            command.env("CARGO_TARGET_DIR", &work).args(["install", name, "--locked", "--debug"]);
            command.args(["--version", &format!("={version}"), "--config", "profile.dev.debug=false"]);
            let result = step.run(command.arg("--root").arg(self.place()));
            let _ = std::fs::remove_dir_all(&work);
            result
        })
    }
}

/// Removes what builds left that were killed.
pub(crate) fn remove_left_over() {
    for path in left_over(&host::cache().join("tools")) {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// The work directories of processes that are gone.
fn left_over(tools: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(tools).into_iter().flatten().flatten();
    let dead = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.strip_prefix(WORK).and_then(|pid| pid.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    };
    entries.map(|entry| entry.path()).filter(dead).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn work_of_processes_that_are_gone_is_left_over_and_nothing_else() {
        let place = std::env::temp_dir().join(format!("bedplate-xtask-left-over-{}", std::process::id()));
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let gone = place.join(format!("{WORK}{}", child.id()));
        let running = place.join(format!("{WORK}{}", std::process::id()));
        for path in [&gone, &running, &place.join("cargo-deny-0.0.1"), &place.join(format!("{WORK}x"))] {
            std::fs::create_dir_all(path).unwrap();
        }
        assert_eq!(left_over(&place), [gone]);
        std::fs::remove_dir_all(&place).unwrap();
        assert!(left_over(&place).is_empty());
    }
}
