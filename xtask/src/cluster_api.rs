//! Cluster API's controllers and clusterctl, with their components, for the tests of the infrastructure provider: built once from the Go
//! module and cached by version.
//!
//! The version is that of tests/kubernetes/cluster-api/go.mod, nowhere else. The components are rendered from the `config` folders of the
//! same module, which its releases are made of.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{host, kubernetes, progress};

/// Folder of the go.mod, below tests/kubernetes.
pub(crate) const PLACE: &str = "cluster-api";
const MODULE: &str = "sigs.k8s.io/cluster-api";

/// Programs, and their packages in the module.
const PROGRAMS: [(&str, &str); 4] = [
    ("capi-core", ""),
    ("capi-bootstrap", "/bootstrap/kubeadm"),
    ("capi-control-plane", "/controlplane/kubeadm"),
    ("clusterctl", "/cmd/clusterctl"),
];

/// Files of components, and their folders in the module.
const COMPONENTS: [(&str, &str); 3] = [
    ("core-components.yaml", "config/default"),
    ("bootstrap-components.yaml", "bootstrap/kubeadm/config/default"),
    ("control-plane-components.yaml", "controlplane/kubeadm/config/default"),
];

/// File in the module that names the contract of each version. clusterctl reads it.
const METADATA: &str = "metadata.yaml";

fn version() -> String {
    kubernetes::required(&kubernetes::modules().join(PLACE).join("go.mod"), MODULE).unwrap_or_default()
}

/// Returns the directory of the programs and components: `<cache>/kubernetes/cluster-api-v1.13.6`.
pub(crate) fn directory() -> PathBuf {
    host::cache().join("kubernetes").join(format!("cluster-api-{}", version()))
}

/// Returns the package of a program, or `None` for a program of another module.
pub(crate) fn package(program: &str) -> Option<String> {
    let found = PROGRAMS.iter().find(|(name, _)| *name == program);
    found.map(|(_, package)| format!("{MODULE}{package}"))
}

/// Returns the flags of the linker. Without a version, clusterctl refuses to work.
pub(crate) fn linker_flags() -> String {
    let version = version();
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let values =
        [("gitVersion", &*version), ("gitMajor", major), ("gitMinor", minor), ("gitTreeState", "clean")];
    let set = |(key, value): (&str, &str)| format!(" -X {MODULE}/version.{key}={value}");
    format!("-s -w{}", values.map(set).concat())
}

/// Returns the names of the files that are not there yet.
pub(crate) fn missing() -> Vec<&'static str> {
    let names = PROGRAMS.iter().chain(&COMPONENTS).map(|(name, _)| *name);
    names.chain([METADATA]).filter(|name| !directory().join(name).is_file()).collect()
}

/// Returns the plan of `setup`, or `None` if everything is there.
pub(crate) fn plan() -> Option<String> {
    let missing = missing();
    let plan = || {
        let place = directory();
        format!("into {}: {} (about 9 minutes of processor time, once)", place.display(), missing.join(" "))
    };
    (!missing.is_empty()).then(plan)
}

/// Builds the missing programs and renders the missing components.
///
/// # Errors
/// Go or kubectl is missing or fails.
pub(crate) fn build() -> Result<()> {
    if missing().is_empty() {
        return Ok(());
    }
    kubernetes::build_programs(&PROGRAMS.map(|(program, _)| program))?;
    let module = kubernetes::download(PLACE, MODULE)?;
    COMPONENTS.iter().try_for_each(|(name, folder)| render(name, &module.join(folder)))?;
    let metadata = std::fs::read(module.join(METADATA)).context("the module has no metadata.yaml")?;
    write(METADATA, &metadata)
}

fn write(name: &str, content: &[u8]) -> Result<()> {
    let path = directory().join(name);
    let partial = path.with_extension("part");
    std::fs::write(&partial, content).with_context(|| format!("cannot write {}", partial.display()))?;
    std::fs::rename(&partial, &path).with_context(|| format!("cannot make {}", path.display()))
}

fn render(name: &str, folder: &std::path::Path) -> Result<()> {
    progress::step(&format!("kubectl kustomize for {name}"), |step| {
        let kubectl = kubernetes::path("kubectl");
        let output = Command::new(&kubectl).arg("kustomize").arg(folder).output();
        let output = output.with_context(|| format!("cannot start {}", kubectl.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            step.say(&said);
        }
        ensure!(output.status.success(), "kubectl kustomize {} failed", folder.display());
        write(name, &output.stdout)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_of_the_required_version_and_in_its_directory() {
        let version = version();
        assert!(version.starts_with("v1."), "{version}");
        assert_eq!(kubernetes::path("clusterctl"), directory().join("clusterctl"));
        assert!(directory().ends_with(format!("cluster-api-{version}")));
        let flags = linker_flags();
        assert!(flags.contains(&format!("{MODULE}/version.gitVersion={version}")), "{flags}");
        assert_eq!(package("capi-core").as_deref(), Some(MODULE));
        assert_eq!(package("kubectl"), None);
    }
}
