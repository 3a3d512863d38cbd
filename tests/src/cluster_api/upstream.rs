//! The core, bootstrap and control-plane controllers of Cluster API as processes, each with its own role and its webhooks on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use regex::Regex;
use serde_json::json;

use super::repository::{Provider, Repository};
use crate::guard::{Directory, Process, last_lines, run};
use crate::kubernetes::{Kubernetes, required};
use crate::{pxed, wait};

/// Time until a manager serves its webhooks on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Lines of a manager's log that a failure shows.
const LOG_LINES_SHOWN: usize = 30;

/// The bootstrap provider of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bootstrap {
    /// Upstream's kubeadm bootstrap provider.
    Upstream,
    /// `bedplate-cluster --controllers bootstrap`.
    Bedplate,
    /// Upstream's kubeadm bootstrap provider, in one namespace. The core and the control plane only check objects.
    Within(&'static str),
}

impl Bootstrap {
    /// Returns the namespace in which a manager acts. None: all.
    fn namespace(self, manager: &Manager) -> Option<&'static str> {
        let Self::Within(namespace) = self else { return None };
        Some(if manager.is_bootstrap() { namespace } else { "none" })
    }
}

/// A manager: its provider, its program, its namespace and its service account.
struct Manager {
    provider: Provider,
    program: &'static str,
    namespace: &'static str,
    account: &'static str,
}

impl Manager {
    /// Returns true if this manager is the bootstrap provider.
    fn is_bootstrap(&self) -> bool {
        self.provider.kind == "BootstrapProvider"
    }
}

const MANAGERS: [Manager; 3] = [
    Manager {
        provider: Provider {
            flag: "--core",
            name: "cluster-api",
            kind: "CoreProvider",
            folder: "cluster-api",
            components: "core-components.yaml",
        },
        program: "capi-core",
        namespace: "capi-system",
        account: "capi-manager",
    },
    Manager {
        provider: Provider {
            flag: "--bootstrap",
            name: "kubeadm",
            kind: "BootstrapProvider",
            folder: "bootstrap-kubeadm",
            components: "bootstrap-components.yaml",
        },
        program: "capi-bootstrap",
        namespace: "capi-kubeadm-bootstrap-system",
        account: "capi-kubeadm-bootstrap-manager",
    },
    Manager {
        provider: Provider {
            flag: "--control-plane",
            name: "kubeadm",
            kind: "ControlPlaneProvider",
            folder: "control-plane-kubeadm",
            components: "control-plane-components.yaml",
        },
        program: "capi-control-plane",
        namespace: "capi-kubeadm-control-plane-system",
        account: "capi-kubeadm-control-plane-manager",
    },
];

/// The version in tests/kubernetes/cluster-api.
fn version() -> Result<String> {
    let go_mod = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/cluster-api/go.mod");
    required(&go_mod, "sigs.k8s.io/cluster-api")
}

/// Returns the directory of the programs and components of the version in tests/kubernetes/cluster-api.
///
/// # Errors
/// One of them is missing; the message names the remedy.
fn programs() -> Result<PathBuf> {
    let directory = pxed::cache()?.join("kubernetes").join(format!("cluster-api-{}", version()?));
    let all = MANAGERS.iter().flat_map(|manager| [manager.program, manager.provider.components]);
    for name in all.chain(["clusterctl", "metadata.yaml"]) {
        let path = directory.join(name);
        ensure!(path.is_file(), "{} is missing: run `cargo xtask step cluster-api`", path.display());
    }
    Ok(directory)
}

/// The running managers. They end when dropped.
#[derive(Debug)]
pub struct Upstream {
    managers: Vec<Process>,
    repository: Repository,
    _place: Directory,
}

impl Upstream {
    /// Installs all providers with `clusterctl init`, and starts the managers under the roles of these providers. With
    /// [`Bootstrap::Bedplate`], clusterctl installs our bootstrap provider instead, and the caller starts its program.
    ///
    /// The API server needs the controller `clusterrole-aggregation` of kube-controller-manager. The managers run in its network.
    ///
    /// # Errors
    /// A program is missing or does not become ready, or the API server refuses an object.
    pub fn start(kubernetes: &Kubernetes, bootstrap: Bootstrap) -> Result<Self> {
        let (programs, version) = (programs()?, version()?);
        let started = |manager: &&Manager| bootstrap != Bootstrap::Bedplate || !manager.is_bootstrap();
        let place = Directory::new("upstream")?;
        let authority = serving_certificate(place.path())?;
        let mut repository = Repository::new(programs.join("clusterctl"))?;
        let metadata = std::fs::read_to_string(programs.join("metadata.yaml"))?;
        let mut addresses = Vec::new();
        if bootstrap == Bootstrap::Bedplate {
            repository.add_bootstrap()?;
        }
        for Manager { provider, .. } in MANAGERS.iter().filter(started) {
            let address = free_address()?;
            let text = std::fs::read_to_string(programs.join(provider.components))?;
            repository.add(provider, &version, &with_urls(&text, address, &authority)?, &metadata)?;
            addresses.push(address);
        }
        stand_in_for_cert_manager(kubernetes)?;
        repository.init(kubernetes)?;
        let mut managers = Vec::new();
        for (manager, address) in MANAGERS.iter().filter(started).zip(&addresses) {
            let kubeconfig = kubernetes.service_account(manager.namespace, manager.account)?;
            let mut command = kubernetes.command_beside(&programs.join(manager.program));
            command.arg("--kubeconfig").arg(kubeconfig).arg("--webhook-cert-dir").arg(place.path()).args([
                &*format!("--webhook-port={}", address.port()),
                "--health-addr=0",
                "--diagnostics-address=0",
                "--insecure-diagnostics=true",
            ]);
            command.args(bootstrap.namespace(manager).map(|namespace| format!("--namespace={namespace}")));
            let log = place.path().join(format!("{}.log", manager.program));
            managers.push(Process::spawn(manager.program, &mut command, &log)?);
        }
        let mut upstream = Self { managers, repository, _place: place };
        for (index, address) in addresses.iter().enumerate() {
            upstream.wait_serving(kubernetes, index, *address)?;
        }
        Ok(upstream)
    }

    /// Returns clusterctl with the repository that the providers were installed from.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    fn wait_serving(&mut self, kubernetes: &Kubernetes, index: usize, address: SocketAddr) -> Result<()> {
        let manager = self.managers.get_mut(index).context("no such manager")?;
        wait::until_asked("webhooks of a manager", READY_TIMEOUT, || {
            if !manager.is_running() {
                bail!("a manager has ended: {}", last_lines(&manager.said(), LOG_LINES_SHOWN));
            }
            let mut curl = kubernetes.command_beside(Path::new("curl"));
            // Any answer will do.
            curl.args(["-sk", "--max-time", "5", "--output", "/dev/null", &format!("https://{address}/")]);
            Ok(run(&mut curl).ok().map(drop))
        })
    }

    /// Returns the ends of the managers' logs.
    pub fn said(&self) -> String {
        let ends = self.managers.iter().map(|manager| last_lines(&manager.said(), LOG_LINES_SHOWN));
        ends.collect::<Vec<_>>().join("\n--\n")
    }
}

/// Defines the kinds of cert-manager that the components have. clusterctl installs cert-manager only where they are missing.
fn stand_in_for_cert_manager(kubernetes: &Kubernetes) -> Result<()> {
    for kind in ["Certificate", "Issuer"] {
        let singular = kind.to_lowercase();
        let name = format!("{singular}s.cert-manager.io");
        let schema =
            json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
        let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": name }, "spec": { "group": "cert-manager.io", "scope": "Namespaced",
                "names": { "kind": kind, "plural": format!("{singular}s"), "singular": singular, "listKind": format!("{kind}List") },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": schema }] } });
        kubernetes.objects()?.apply(&definition)?;
        let crd = format!("crd/{name}");
        kubernetes
            .kubectl(&kubernetes.admin(), &["wait", "--for=condition=Established", "--timeout=60s", &crd])?;
    }
    Ok(())
}

/// Returns components whose webhooks are at an address, because no Service has endpoints here.
fn with_urls(text: &str, address: SocketAddr, authority: &str) -> Result<String> {
    let service = Regex::new(r"(?m)^( +)service:\n +name: \S+\n +namespace: \S+\n +path: (\S+)$")?;
    let url = format!("${{1}}url: https://{address}${{2}}\n${{1}}caBundle: {}", STANDARD.encode(authority));
    Ok(service.replace_all(text, url).into_owned())
}

/// Writes `tls.crt` and `tls.key` for loopback. Returns the certificate of their authority.
fn serving_certificate(place: &Path) -> Result<String> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "authority of the webhooks");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?.pem();
    let issuer = Issuer::from_ca_cert_pem(&authority, key)?;
    let key = KeyPair::generate()?;
    let serving = CertificateParams::new(vec![Ipv4Addr::LOCALHOST.to_string()])?.signed_by(&key, &issuer)?;
    std::fs::write(place.join("tls.crt"), serving.pem())?;
    std::fs::write(place.join("tls.key"), key.serialize_pem())?;
    Ok(authority)
}

fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
    listener.local_addr().context("a listener without address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_of_components_get_urls() {
        let text = "kind: A\nwebhook:\n  clientConfig:\n    service:\n      name: s\n      namespace: n\n      path: /convert\n\
                    ---\nkind: ServiceAccount\n";
        let expected = "kind: A\nwebhook:\n  clientConfig:\n    url: https://127.0.0.1:9/convert\n    caBundle: Y2E=\n\
                        ---\nkind: ServiceAccount\n";
        assert_eq!(with_urls(text, (Ipv4Addr::LOCALHOST, 9).into(), "ca").unwrap(), expected);
    }
}
