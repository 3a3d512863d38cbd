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

use super::programs::{Programs, Source};
use super::repository::{self, Provider, Repository};
use crate::guard::{Directory, Process, last_lines, run};
use crate::kubernetes::{Kubernetes, required};
use crate::{pxed, wait};

/// Time until a manager serves its webhooks on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time until a manager has ended.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Lines of a manager's log that a failure shows.
const LOG_LINES_SHOWN: usize = 30;

/// A manager: its provider, its program, its namespace and its service account.
#[derive(Debug)]
struct Manager {
    provider: Provider,
    program: &'static str,
    namespace: &'static str,
    account: &'static str,
}

impl Manager {
    /// Returns the source of this provider in a test.
    fn source(&self, programs: Programs) -> Source {
        match (self.provider.kind, programs.core) {
            ("CoreProvider", source) => source,
            ("BootstrapProvider", _) => programs.bootstrap,
            (_, Source::Within(namespace)) => Source::Within(namespace),
            (_, Source::Upstream | Source::Bedplate) => Source::Upstream,
        }
    }

    /// Returns our provider that replaces this one.
    fn replacement(&self) -> &'static Provider {
        if self.provider.kind == "CoreProvider" { &repository::CORE } else { &repository::BOOTSTRAP }
    }
}

static MANAGERS: [Manager; 3] = [
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
pub(super) fn version() -> Result<String> {
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

/// A manager of a test.
#[derive(Debug)]
struct Installed {
    manager: &'static Manager,
    /// Address of the webhooks. It is part of the components.
    address: SocketAddr,
    /// Namespace in which the manager acts. None: all.
    namespace: Option<&'static str>,
    /// None: the manager is stopped.
    process: Option<Process>,
}

/// The managers of upstream. They end when dropped.
#[derive(Debug)]
pub struct Upstream {
    installed: Vec<Installed>,
    repository: Repository,
    programs: PathBuf,
    place: Directory,
}

impl Upstream {
    /// Installs all providers with `clusterctl init`, and starts upstream's managers under the roles of their providers. The caller starts
    /// our programs.
    ///
    /// The API server needs the controller `clusterrole-aggregation` of kube-controller-manager. The managers run in its network.
    ///
    /// # Errors
    /// A program is missing or does not become ready, or the API server refuses an object.
    pub fn start(kubernetes: &Kubernetes, programs: Programs) -> Result<Self> {
        let directory = self::programs()?;
        let place = Directory::new("upstream")?;
        let authority = serving_certificate(place.path())?;
        let repository = Repository::new(directory.join("clusterctl"))?;
        let mut upstream = Self { installed: Vec::new(), repository, programs: directory, place };
        for manager in &MANAGERS {
            upstream.add(manager, manager.source(programs), &authority)?;
        }
        stand_in_for_cert_manager(kubernetes)?;
        upstream.repository.init(kubernetes)?;
        for index in 0..upstream.installed.len() {
            upstream.run(kubernetes, index)?;
        }
        for index in 0..upstream.installed.len() {
            upstream.wait_serving(kubernetes, index)?;
        }
        Ok(upstream)
    }

    /// Adds a provider, or its replacement, to the repository.
    fn add(&mut self, manager: &'static Manager, source: Source, authority: &str) -> Result<()> {
        let namespace = match source {
            Source::Bedplate => return self.repository.add_ours(manager.replacement()),
            Source::Within(namespace) => Some(namespace),
            Source::Upstream => None,
        };
        let address = free_address()?;
        let read = |name: &str| std::fs::read_to_string(self.programs.join(name));
        let components = with_urls(&read(manager.provider.components)?, address, authority)?;
        let metadata = read("metadata.yaml")?;
        self.repository.add(&manager.provider, &version()?, &components, &metadata)?;
        self.installed.push(Installed { manager, address, namespace, process: None });
        Ok(())
    }

    /// Starts a manager.
    fn run(&mut self, kubernetes: &Kubernetes, index: usize) -> Result<()> {
        let (programs, place) = (&self.programs, self.place.path());
        let Installed { manager, address, namespace, process } =
            self.installed.get_mut(index).context("no such manager")?;
        let kubeconfig = kubernetes.service_account(manager.namespace, manager.account)?;
        let mut command = kubernetes.command_inside_network(&programs.join(manager.program));
        command.arg("--kubeconfig").arg(kubeconfig).arg("--webhook-cert-dir").arg(place).args([
            &*format!("--webhook-port={}", address.port()),
            "--health-addr=0",
            "--diagnostics-address=0",
            "--insecure-diagnostics=true",
        ]);
        command.args(namespace.map(|namespace| format!("--namespace={namespace}")));
        let log = place.join(format!("{}.log", manager.program));
        *process = Some(Process::spawn(manager.program, &mut command, &log)?);
        Ok(())
    }

    /// Returns clusterctl with the repository that the providers were installed from.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Stops the core and removes its webhooks, as docs/reference/core-provider.md has it. Its definitions stay.
    ///
    /// # Errors
    /// The core runs on, or the API server refuses a deletion.
    pub fn stop_core(&mut self, kubernetes: &Kubernetes) -> Result<()> {
        let index = self.core()?;
        let process = self.installed.get_mut(index).and_then(|core| core.process.take());
        process.context("the core does not run")?.terminate(END_TIMEOUT)?;
        for kind in ["mutating", "validating"] {
            let webhooks = format!("{kind}webhookconfiguration/capi-{kind}-webhook-configuration");
            kubernetes.kubectl(&kubernetes.admin(), &["delete", &webhooks])?;
        }
        Ok(())
    }

    /// Installs the webhooks of the core again, as docs/reference/core-provider.md has it, and starts the core.
    ///
    /// # Errors
    /// The API server refuses a component, or the core does not become ready.
    pub fn start_core(&mut self, kubernetes: &Kubernetes) -> Result<()> {
        let core = format!("cluster-api:{}", version()?);
        let generate = ["generate", "provider", "--core", &core];
        let components = self.repository.clusterctl(kubernetes, &generate, &[])?;
        let path = self.place.path().join("core.yaml");
        std::fs::write(&path, components)?;
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", &*path.to_string_lossy()];
        kubernetes.kubectl(&kubernetes.admin(), &apply)?;
        let index = self.core()?;
        self.run(kubernetes, index)?;
        self.wait_serving(kubernetes, index)
    }

    fn core(&self) -> Result<usize> {
        let is_core = |one: &Installed| one.manager.provider.kind == "CoreProvider";
        self.installed.iter().position(is_core).context("the core is not upstream's")
    }

    fn wait_serving(&mut self, kubernetes: &Kubernetes, index: usize) -> Result<()> {
        let Installed { address, process, .. } = self.installed.get_mut(index).context("no such manager")?;
        let process = process.as_mut().context("the manager is stopped")?;
        wait::until_asked("webhooks of a manager", READY_TIMEOUT, || {
            if !process.is_running() {
                bail!("a manager has ended: {}", last_lines(&process.said(), LOG_LINES_SHOWN));
            }
            let mut curl = kubernetes.command_inside_network(Path::new("curl"));
            // Any answer will do.
            curl.args(["-sk", "--max-time", "5", "--output", "/dev/null", &format!("https://{address}/")]);
            Ok(run(&mut curl).ok().map(drop))
        })
    }

    /// Returns the ends of the managers' logs.
    pub fn said(&self) -> String {
        let running = self.installed.iter().filter_map(|one| one.process.as_ref());
        let ends = running.map(|process| last_lines(&process.said(), LOG_LINES_SHOWN));
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
pub(super) fn with_urls(text: &str, address: SocketAddr, authority: &str) -> Result<String> {
    let service = Regex::new(r"(?m)^( +)service:\n +name: \S+\n +namespace: \S+\n +path: (\S+)$")?;
    let url = format!("${{1}}url: https://{address}${{2}}\n${{1}}caBundle: {}", STANDARD.encode(authority));
    Ok(service.replace_all(text, url).into_owned())
}

/// Writes `tls.crt` and `tls.key` for loopback. Returns the certificate of their authority.
pub(super) fn serving_certificate(place: &Path) -> Result<String> {
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

pub(super) fn free_address() -> Result<SocketAddr> {
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
