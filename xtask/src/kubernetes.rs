//! The Kubernetes programs and etcd that the tests run, built once from their Go modules and cached by version.
//!
//! The versions are those of tests/kubernetes/go.mod, and of go.mod in etcd, crictl, cluster-api and tink next to it, nowhere else.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{cluster_api, host, progress};

/// Programs of Kubernetes that the tests run.
const PROGRAMS: [&str; 6] =
    ["kubectl", "kube-apiserver", "kubeadm", "kube-controller-manager", "kube-scheduler", "kubelet"];

/// Program for users in a slot. The tests do not need it.
pub(crate) const CRICTL: &str = "crictl";
const CRICTL_MODULE: &str = "sigs.k8s.io/cri-tools";

/// Controllers that the bench compares with Bedplate's, with and without raised limits. No test needs them.
const PEERS: [&str; 2] = ["tink-controller", "tink-controller-raised"];
const PEERS_MODULE: &str = "github.com/tinkerbell/tink";
/// Manifests of that module: its kinds, its role, and a Template.
const PEERS_MANIFESTS: [&str; 5] = [
    "config/crd/bases/tinkerbell.org_hardware.yaml",
    "config/crd/bases/tinkerbell.org_templates.yaml",
    "config/crd/bases/tinkerbell.org_workflows.yaml",
    "config/crd/examples/template.yaml",
    "config/manager-rbac/role.yaml",
];

/// Returns the version of a module that a go.mod requires.
pub(crate) fn required(go_mod: &Path, module: &str) -> Option<String> {
    let text = std::fs::read_to_string(go_mod).ok()?;
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().filter(|word| *word != "require");
        (words.next() == Some(module))
            .then(|| words.next().map(str::to_owned))
            .flatten()
            .filter(|v| v.starts_with('v'))
    })
}

/// Returns the directory of the Go modules.
pub(crate) fn modules() -> PathBuf {
    host::root().join("tests/kubernetes")
}

fn versions() -> (String, String) {
    let kubernetes = required(&modules().join("go.mod"), "k8s.io/kubernetes");
    let etcd = required(&modules().join("etcd/go.mod"), "go.etcd.io/etcd/server/v3");
    (kubernetes.unwrap_or_default(), etcd.unwrap_or_default())
}

/// Returns the directory of the programs of the wanted versions: `<cache>/kubernetes/v1.34.4-etcd3.6.16`.
pub(crate) fn directory() -> PathBuf {
    let (kubernetes, etcd) = versions();
    host::cache().join("kubernetes").join(format!("{kubernetes}-etcd{}", etcd.trim_start_matches('v')))
}

fn crictl_version() -> String {
    required(&modules().join("crictl/go.mod"), CRICTL_MODULE).unwrap_or_default()
}

/// Returns the path of a built program. crictl has its own version, because it works with the runtimes of any
/// Kubernetes version.
pub(crate) fn path(program: &str) -> PathBuf {
    if program == CRICTL {
        return host::cache().join("kubernetes").join(format!("crictl-{}", crictl_version())).join(program);
    }
    if PEERS.contains(&program) {
        return peers_directory().join(program);
    }
    if cluster_api::package(program).is_some() {
        return cluster_api::directory().join(program);
    }
    directory().join(program)
}

fn peers_directory() -> PathBuf {
    let version = required(&modules().join("tink/go.mod"), PEERS_MODULE).unwrap_or_default();
    host::cache().join("kubernetes").join(format!("tink-{version}"))
}

/// Downloads a module as the go.mod of `place` requires it. Returns the directory of its files.
///
/// # Errors
/// Go is missing or fails.
pub(crate) fn download(place: &str, module: &str) -> Result<PathBuf> {
    let go = host::go()?;
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(&go);
        command.current_dir(modules().join(place)).args(arguments).arg(module);
        command
    };
    let name = format!("go mod download {module}");
    progress::step(&name, |step| step.run(&mut ask(&["mod", "download"])))?;
    let output = ask(&["list", "-m", "-f", "{{.Dir}}"]).output();
    let output = output.context("cannot ask go where a module lies")?;
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Builds the controller's peers if they are missing. Stores the files of their module that they need next to
/// them.
pub(crate) fn build_peers() -> Result<()> {
    if PEERS.iter().all(|program| path(program).is_file()) {
        return Ok(());
    }
    let module = download("tink", PEERS_MODULE)?;
    let directory = peers_directory();
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for manifest in PEERS_MANIFESTS {
        let from = module.join(manifest);
        let name = from.file_name().context("a manifest has a name")?;
        // Read and written, because a copy would be read-only like what lies among Go's modules.
        let text = std::fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        std::fs::write(directory.join(name), text)
            .with_context(|| format!("cannot write into {}", directory.display()))?;
    }
    build_programs(&PEERS)
}

/// Returns the programs of the tests that are not built yet.
pub(crate) fn missing(directory: &Path) -> Vec<&'static str> {
    let all = std::iter::once("etcd").chain(PROGRAMS);
    all.filter(|program| !directory.join(program).is_file()).collect()
}

/// Returns true if a program of Kubernetes is not built yet.
pub(crate) fn is_missing() -> bool {
    PROGRAMS.iter().any(|program| !path(program).is_file())
}

/// Returns true if etcd is not built yet.
pub(crate) fn is_etcd_missing() -> bool {
    !path("etcd").is_file()
}

/// Returns true if crictl is not built yet.
pub(crate) fn is_crictl_missing() -> bool {
    !path(CRICTL).is_file()
}

/// Builds the programs of Kubernetes that are missing.
///
/// # Errors
/// Go is missing or fails.
pub(crate) fn build_kubernetes() -> Result<()> {
    build_programs(&PROGRAMS)
}

/// Builds etcd if it is missing.
///
/// # Errors
/// Go is missing or fails.
pub(crate) fn build_etcd() -> Result<()> {
    build_programs(&["etcd"])
}

/// Builds crictl if it is missing.
///
/// # Errors
/// Go is missing or fails.
pub(crate) fn build_crictl() -> Result<()> {
    build_programs(&[CRICTL])
}

/// Builds the named programs that are missing. One `go build` builds all programs of Kubernetes: it loads their packages once, and
/// links one program while it compiles the next.
///
/// # Errors
/// Go is missing or fails.
pub(crate) fn build_programs(wanted: &[&str]) -> Result<()> {
    let missing: Vec<&str> = wanted.iter().copied().filter(|program| !path(program).is_file()).collect();
    let (together, single): (Vec<&str>, Vec<&str>) =
        missing.into_iter().partition(|program| PROGRAMS.contains(program));
    if !together.is_empty() {
        build_together(&together)?;
    }
    single.into_iter().try_for_each(|program| build_together(&[program]))
}

/// Builds programs of one module that have the same linker flags.
fn build_together(programs: &[&str]) -> Result<()> {
    let go = host::go()?;
    progress::step(&format!("go build of {}", programs.join(", ")), |step| {
        let directory = path(programs[0]);
        let directory = directory.parent().context("a program has a directory")?;
        // Built in a temporary directory first, because an interrupted build must not look like a finished one.
        let partial = directory.join(format!(".building-{}-{}", programs[0], std::process::id()));
        std::fs::create_dir_all(&partial).with_context(|| format!("cannot create {}", partial.display()))?;
        let (place, _, flags) = source(programs[0]);
        let mut command = Command::new(&go);
        command.current_dir(place).env("CGO_ENABLED", "0").args(["build", "-trimpath"]);
        // One program belongs to this repository, and git may not trust this clone.
        command.args(["-buildvcs=false", "-ldflags", &flags, "-o"]);
        match programs {
            // Some packages and programs have different names.
            [program] => command.arg(partial.join(program)),
            _ => command.arg(format!("{}/", partial.display())),
        };
        step.run(command.args(programs.iter().map(|program| source(program).1)))?;
        for program in programs {
            std::fs::rename(partial.join(program), directory.join(program))
                .with_context(|| format!("cannot move {program} to {}", directory.display()))?;
        }
        std::fs::remove_dir(&partial).with_context(|| format!("cannot remove {}", partial.display()))
    })
}

/// Returns the module's directory, the package, and the linker flags.
fn source(program: &str) -> (PathBuf, String, String) {
    if let Some(package) = cluster_api::package(program) {
        return (modules().join(cluster_api::PLACE), package, cluster_api::linker_flags());
    }
    match program {
        "etcd" => (modules().join("etcd"), "go.etcd.io/etcd/server/v3".to_owned(), "-s -w".to_owned()),
        CRICTL => {
            let version = crictl_version();
            let version = version.trim_start_matches('v');
            let flags = format!("-s -w -X {CRICTL_MODULE}/pkg/version.Version={version}");
            (modules().join("crictl"), format!("{CRICTL_MODULE}/cmd/crictl"), flags)
        }
        "tink-controller" => {
            (modules().join("tink"), format!("{PEERS_MODULE}/cmd/{program}"), "-s -w".to_owned())
        }
        "tink-controller-raised" => (modules().join("tink"), ".".to_owned(), "-s -w".to_owned()),
        _ => (modules(), format!("k8s.io/kubernetes/cmd/{program}"), linker_flags(&versions().0)),
    }
}

/// Returns the linker flags of Kubernetes' own build script. Without them the programs report v0.0.0, which
/// kubeadm refuses.
fn linker_flags(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or("1"), numbers.next().unwrap_or("0"));
    let mut flags = "-s -w".to_owned();
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        let values =
            [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor), ("gitTreeState", "clean")];
        for (key, value) in values {
            flags.push_str(&format!(" -X {package}.{key}={value}"));
        }
    }
    flags
}
