//! Debian's cloud-init as Python modules, unpacked into the cache. It is never installed: an installed one would configure this
//! machine at its next boot.
//!
//! The tests of `bootstrap` compare user data with it. Called by `setup` and `steps`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{host, package, progress};

/// The package, and those whose modules it imports.
const PACKAGES: [&str; 16] = [
    "cloud-init",
    "python3-attr",
    "python3-certifi",
    "python3-chardet",
    "python3-configobj",
    "python3-idna",
    "python3-jinja2",
    "python3-json-pointer",
    "python3-jsonpatch",
    "python3-jsonschema",
    "python3-markupsafe",
    "python3-pyrsistent",
    "python3-requests",
    "python3-six",
    "python3-urllib3",
    "python3-yaml",
];

/// List of the packages, written when all are unpacked.
const MARK: &str = "packages.txt";

/// Returns the directory of the unpacked packages.
fn place() -> PathBuf {
    host::cache().join("downloads/cloud-init")
}

fn list() -> String {
    PACKAGES.join("\n") + "\n"
}

/// Returns the plan of `setup`, or `None` if everything is there.
pub(crate) fn missing() -> Option<String> {
    let place = place();
    let plan = || format!("into {}: cloud-init from Debian, unpacked and not installed", place.display());
    (std::fs::read_to_string(place.join(MARK)).ok() != Some(list())).then(plan)
}

/// Downloads and unpacks the packages unless they are there.
///
/// # Errors
/// A package cannot be downloaded or unpacked.
pub(crate) fn fetch() -> Result<()> {
    if missing().is_none() {
        return Ok(());
    }
    progress::step("download cloud-init", |step| {
        let work = host::cache().join("downloads/cloud-init.part");
        let _ = std::fs::remove_dir_all(&work);
        let tree = work.join("tree");
        std::fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
        let download = || {
            let mut apt = package::apt(&["-o", "APT::Sandbox::User=root", "download"]);
            apt.args(PACKAGES).current_dir(&work);
            apt
        };
        if step.run(&mut download()).is_err() {
            // The lists of packages are missing or old.
            step.run(&mut package::apt(&["update"]))?;
            step.run(&mut download())?;
        }
        let mut count = 0;
        for entry in std::fs::read_dir(&work).with_context(|| format!("cannot read {}", work.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                step.run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(&tree))?;
                count += 1;
            }
        }
        if count != PACKAGES.len() {
            bail!("apt-get download left {count} of {} packages", PACKAGES.len());
        }
        std::fs::write(tree.join(MARK), list()).context("cannot write the list of packages")?;
        let _ = std::fs::remove_dir_all(place());
        std::fs::rename(&tree, place()).with_context(|| format!("cannot make {}", place().display()))?;
        std::fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))
    })
}
