//! Upstream's core manager alone, without clusterctl, its providers and cert-manager: for the bench that measures it.
//!
//! Its kinds can be installed without its webhooks, so that objects exist before it starts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::upstream::{free_address, serving_certificate, version, with_urls};
use crate::guard::Directory;
use crate::kubernetes::Kubernetes;
use crate::pxed;

const PROGRAM: &str = "capi-core";
const COMPONENTS: &str = "core-components.yaml";
/// Namespace and name of its service account.
const ACCOUNT: (&str, &str) = ("capi-system", "capi-manager");
/// Role of the manager. kube-controller-manager, which copies it into the aggregated role, does not run.
const ROLE: &str = "capi-manager-role";
/// Kinds of cert-manager, which is not installed.
const CERTIFICATES: [&str; 2] = ["Certificate", "Issuer"];

/// The manager, its components and the certificate of its webhooks.
#[derive(Debug)]
pub struct CoreManager {
    program: PathBuf,
    version: String,
    webhooks: SocketAddr,
    place: Directory,
}

impl CoreManager {
    /// User of the manager.
    pub const USER: &str = "system:serviceaccount:capi-system:capi-manager";

    /// Writes the components of the version in tests/kubernetes/cluster-api, with webhooks on loopback.
    ///
    /// # Errors
    /// A program or a component is missing; the message names the remedy.
    pub fn new() -> Result<Self> {
        let version = version()?;
        let directory = pxed::cache()?.join("kubernetes").join(format!("cluster-api-{version}"));
        let (program, components) = (directory.join(PROGRAM), directory.join(COMPONENTS));
        for path in [&program, &components] {
            ensure!(path.is_file(), "{} is missing: run `cargo xtask step cluster-api`", path.display());
        }
        let (place, webhooks) = (Directory::new("capi-core")?, free_address()?);
        let authority = serving_certificate(place.path())?;
        let text = std::fs::read_to_string(&components).context("cannot read the components")?;
        let (kinds, rest) = split(&with_urls(&text, webhooks, &authority)?);
        std::fs::write(place.path().join("kinds.yaml"), kinds)?;
        std::fs::write(place.path().join("rest.yaml"), rest)?;
        Ok(Self { program, version, webhooks, place })
    }

    /// Returns the version of Cluster API.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Installs the kinds. Until [`Self::install_rest`], their objects are neither defaulted nor checked by webhooks.
    ///
    /// # Errors
    /// The API server refuses an object.
    pub fn install_kinds(&self, kubernetes: &Kubernetes) -> Result<()> {
        let kinds = self.apply(kubernetes, "kinds.yaml")?;
        let wait = ["wait", "--for=condition=Established", "--timeout=60s", "-f", &kinds];
        kubernetes.kubectl(&kubernetes.admin(), &wait).map(drop)
    }

    /// Installs service account, roles and webhooks. Writes of its kinds fail until the manager serves the webhooks.
    ///
    /// # Errors
    /// The API server refuses an object.
    pub fn install_rest(&self, kubernetes: &Kubernetes) -> Result<()> {
        self.apply(kubernetes, "rest.yaml")?;
        let (namespace, name) = ACCOUNT;
        let (role, account) =
            (format!("--clusterrole={ROLE}"), format!("--serviceaccount={namespace}:{name}"));
        let bind = ["create", "clusterrolebinding", "capi-manager", &role, &account];
        kubernetes.kubectl(&kubernetes.admin(), &bind).map(drop)
    }

    fn apply(&self, kubernetes: &Kubernetes, file: &str) -> Result<String> {
        let path = self.place.path().join(file).display().to_string();
        kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &path])?;
        Ok(path)
    }

    /// Returns the command that runs the manager under its own role. It shows its metrics at an address, and is not elected: its election needs a
    /// Pod.
    ///
    /// # Errors
    /// The service account does not exist.
    pub fn command(&self, kubernetes: &Kubernetes, metrics: SocketAddr) -> Result<Command> {
        let kubeconfig = kubernetes.service_account(ACCOUNT.0, ACCOUNT.1)?;
        let mut command = kubernetes.command_inside_network(&self.program);
        command.arg("--kubeconfig").arg(kubeconfig).arg("--webhook-cert-dir").arg(self.certificates());
        command.args([
            format!("--webhook-port={}", self.webhooks.port()),
            format!("--diagnostics-address={metrics}"),
            "--insecure-diagnostics=true".to_owned(),
            "--health-addr=0".to_owned(),
        ]);
        Ok(command)
    }

    fn certificates(&self) -> &Path {
        self.place.path()
    }
}

/// Returns the definitions of kinds, and all other documents but those of cert-manager's kinds.
fn split(components: &str) -> (String, String) {
    let is = |document: &&str, kind: &str| document.lines().any(|line| line == format!("kind: {kind}"));
    let documents = components.split("\n---\n");
    let (kinds, rest): (Vec<&str>, Vec<&str>) =
        documents.partition(|document| is(document, "CustomResourceDefinition"));
    let is_kept = |document: &&str| !CERTIFICATES.iter().any(|kind| is(document, kind));
    let rest: Vec<&str> = rest.into_iter().filter(is_kept).collect();
    (kinds.join("\n---\n"), rest.join("\n---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_split_into_kinds_and_the_rest() {
        let text = "kind: Namespace\n---\nkind: CustomResourceDefinition\nspec:\n  names:\n    kind: Issuer\n\
                    ---\nkind: Issuer\n---\nkind: Role\n";
        let (kinds, rest) = split(text);
        assert_eq!(kinds, "kind: CustomResourceDefinition\nspec:\n  names:\n    kind: Issuer");
        assert_eq!(rest, "kind: Namespace\n---\nkind: Role\n");
    }
}
