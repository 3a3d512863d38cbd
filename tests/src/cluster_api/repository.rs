//! clusterctl over a local repository: the providers of Cluster API that `cargo xtask soak` rendered, and the providers of
//! `deploy/cluster-api`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::guard::{Directory, run};
use crate::kubernetes::Kubernetes;

/// Version of our providers in the repository.
const VERSION: &str = "v0.1.0";

/// A provider of Cluster API.
#[derive(Debug)]
pub(super) struct Provider {
    /// Flag of `clusterctl init`.
    pub(super) flag: &'static str,
    /// Name, as clusterctl knows it.
    pub(super) name: &'static str,
    /// Type, as clusterctl.yaml has it.
    pub(super) kind: &'static str,
    /// Folder in the repository.
    pub(super) folder: &'static str,
    /// File of the components.
    pub(super) components: &'static str,
}

/// The infrastructure provider.
const INFRASTRUCTURE: Provider = Provider {
    flag: "--infrastructure",
    name: "bedplate",
    kind: "InfrastructureProvider",
    folder: "infrastructure-bedplate",
    components: "infrastructure-components.yaml",
};

/// Our core. clusterctl accepts a core of this name only.
pub(super) const CORE: Provider = Provider {
    flag: "--core",
    name: "cluster-api",
    kind: "CoreProvider",
    folder: "cluster-api",
    components: "core-components.yaml",
};

/// Our bootstrap provider.
pub(super) const BOOTSTRAP: Provider = Provider {
    flag: "--bootstrap",
    name: "bedplate",
    kind: "BootstrapProvider",
    folder: "bootstrap-bedplate",
    components: "bootstrap-components.yaml",
};

/// A local repository, and clusterctl with a configuration that names it. Removed when dropped.
#[derive(Debug)]
pub struct Repository {
    place: Directory,
    clusterctl: PathBuf,
    /// Providers with their versions.
    providers: Vec<String>,
    configuration: String,
}

impl Repository {
    /// Creates a repository with the infrastructure provider, for this clusterctl.
    pub(super) fn new(clusterctl: PathBuf) -> Result<Self> {
        let place = Directory::new("clusterctl")?;
        let mut repository =
            Self { place, clusterctl, providers: Vec::new(), configuration: "providers:\n".to_owned() };
        repository.add_ours(&INFRASTRUCTURE)?;
        let template = repository.folder(&INFRASTRUCTURE, VERSION).join("cluster-template.yaml");
        std::fs::write(template, read("cluster-template.yaml")?)?;
        Ok(repository)
    }

    /// Adds a provider of `deploy/cluster-api`.
    pub(super) fn add_ours(&mut self, provider: &Provider) -> Result<()> {
        let [components, metadata] = [provider.components, "metadata.yaml"].map(read);
        self.add(provider, VERSION, &components?, &metadata?)
    }

    fn folder(&self, provider: &Provider, version: &str) -> PathBuf {
        self.place.path().join(provider.folder).join(version)
    }

    /// Adds a provider.
    pub(super) fn add(
        &mut self,
        provider: &Provider,
        version: &str,
        components: &str,
        metadata: &str,
    ) -> Result<()> {
        let Provider { flag, name, kind, components: file, .. } = provider;
        let folder = self.folder(provider, version);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(file), components)?;
        std::fs::write(folder.join("metadata.yaml"), metadata)?;
        let url = folder.join(file);
        self.configuration += &format!("- name: {name}\n  type: {kind}\n  url: file://{}\n", url.display());
        self.providers.push(format!("{flag}={name}:{version}"));
        Ok(())
    }

    /// Runs `clusterctl init` for all providers.
    pub(super) fn init(&self, kubernetes: &Kubernetes) -> Result<String> {
        let mut arguments = vec!["init"];
        arguments.extend(self.providers.iter().map(String::as_str));
        self.clusterctl(kubernetes, &arguments, &[])
    }

    /// Runs clusterctl as the administrator, with these variables of a template. Returns its output.
    ///
    /// # Errors
    /// clusterctl fails.
    pub fn clusterctl(
        &self,
        kubernetes: &Kubernetes,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<String> {
        let configuration = self.place.path().join("clusterctl.yaml");
        std::fs::write(&configuration, &self.configuration)?;
        let mut command = kubernetes.command_inside_network(&self.clusterctl);
        command.args(arguments).arg("--config").arg(configuration);
        // Some commands have no flag for it.
        command.env("KUBECONFIG", kubernetes.admin());
        // Otherwise clusterctl asks GitHub for its newest version, and writes to the home directory.
        command.env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true").env("XDG_CONFIG_HOME", self.place.path());
        run(command.envs(variables.iter().copied()))
    }
}

/// Reads a file of `deploy/cluster-api`.
fn read(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api").join(name);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}
