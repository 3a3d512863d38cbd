//! The core, bootstrap and control-plane controllers of Cluster API as processes, each with its own role and its webhooks on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use regex::Regex;

use crate::guard::{Directory, Process, last_lines};
use crate::kubernetes::{Kubernetes, required};
use crate::{pxed, wait};

/// Time until a manager serves its webhooks on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Lines of a manager's log that a failure shows.
const LOG_LINES_SHOWN: usize = 30;

/// A manager: its program, its file of components, its namespace and its service account.
struct Manager {
    program: &'static str,
    components: &'static str,
    namespace: &'static str,
    account: &'static str,
}

const MANAGERS: [Manager; 3] = [
    Manager {
        program: "capi-core",
        components: "core-components.yaml",
        namespace: "capi-system",
        account: "capi-manager",
    },
    Manager {
        program: "capi-bootstrap",
        components: "bootstrap-components.yaml",
        namespace: "capi-kubeadm-bootstrap-system",
        account: "capi-kubeadm-bootstrap-manager",
    },
    Manager {
        program: "capi-control-plane",
        components: "control-plane-components.yaml",
        namespace: "capi-kubeadm-control-plane-system",
        account: "capi-kubeadm-control-plane-manager",
    },
];

/// Returns the directory of the programs and components of the version in tests/kubernetes/cluster-api.
///
/// # Errors
/// One of them is missing; the message names the remedy.
pub fn programs() -> Result<PathBuf> {
    let go_mod = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/cluster-api/go.mod");
    let version = required(&go_mod, "sigs.k8s.io/cluster-api")?;
    let directory = pxed::cache()?.join("kubernetes").join(format!("cluster-api-{version}"));
    let all = MANAGERS.iter().flat_map(|manager| [manager.program, manager.components]);
    for name in all.chain(["clusterctl"]) {
        let path = directory.join(name);
        ensure!(path.is_file(), "{} is missing: run `cargo xtask setup`", path.display());
    }
    Ok(directory)
}

/// The running managers. They end when dropped.
#[derive(Debug)]
pub struct Upstream {
    managers: Vec<Process>,
    _place: Directory,
}

impl Upstream {
    /// Installs the components and starts the managers under the roles of these components.
    ///
    /// The API server needs the controller `clusterrole-aggregation` of kube-controller-manager.
    ///
    /// # Errors
    /// A program is missing or does not become ready, or the API server refuses an object.
    pub fn start(kubernetes: &Kubernetes) -> Result<Self> {
        let programs = programs()?;
        let place = Directory::new("upstream")?;
        let authority = serving_certificate(place.path())?;
        let mut managers = Vec::new();
        let mut addresses = Vec::new();
        for manager in &MANAGERS {
            let address = free_address()?;
            let text = std::fs::read_to_string(programs.join(manager.components))?;
            let path = place.path().join(manager.components);
            std::fs::write(&path, components(&text, address, &authority)?)?;
            let path = path.display().to_string();
            kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &path])?;
            addresses.push(address);
        }
        for (manager, address) in MANAGERS.iter().zip(&addresses) {
            let kubeconfig = kubernetes.service_account(manager.namespace, manager.account)?;
            let mut command = Command::new(programs.join(manager.program));
            command.arg("--kubeconfig").arg(kubeconfig).arg("--webhook-cert-dir").arg(place.path()).args([
                &*format!("--webhook-port={}", address.port()),
                "--health-addr=0",
                "--diagnostics-address=0",
                "--insecure-diagnostics=true",
            ]);
            let log = place.path().join(format!("{}.log", manager.program));
            managers.push(Process::spawn(manager.program, &mut command, &log)?);
        }
        let mut upstream = Self { managers, _place: place };
        for (index, address) in addresses.iter().enumerate() {
            upstream.wait_serving(index, *address)?;
        }
        Ok(upstream)
    }

    fn wait_serving(&mut self, index: usize, address: SocketAddr) -> Result<()> {
        let manager = self.managers.get_mut(index).context("no such manager")?;
        wait::until_asked("webhooks of a manager", READY_TIMEOUT, || {
            if !manager.is_running() {
                bail!("a manager has ended: {}", last_lines(&manager.said(), LOG_LINES_SHOWN));
            }
            Ok(TcpStream::connect(address).ok().map(drop))
        })
    }

    /// Returns the ends of the managers' logs.
    pub fn said(&self) -> String {
        let ends = self.managers.iter().map(|manager| last_lines(&manager.said(), LOG_LINES_SHOWN));
        ends.collect::<Vec<_>>().join("\n--\n")
    }
}

/// Returns the components as a manager on this machine needs them: webhooks by URL, and no objects that need a node or cert-manager.
fn components(text: &str, address: SocketAddr, authority: &str) -> Result<String> {
    let service = Regex::new(r"(?m)^( +)service:\n +name: \S+\n +namespace: \S+\n +path: (\S+)$")?;
    let bundle = STANDARD.encode(authority);
    let url = format!("${{1}}url: https://{address}${{2}}\n${{1}}caBundle: {bundle}");
    let omitted = ["kind: Deployment", "kind: Certificate", "kind: Issuer", "kind: Service"];
    let is_kept = |object: &&str| !object.lines().any(|line| omitted.contains(&line));
    let kept: Vec<&str> = text.split("\n---\n").filter(is_kept).collect();
    Ok(service.replace_all(&kept.join("\n---\n"), url).into_owned())
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
    fn webhooks_get_urls_and_objects_that_need_nodes_are_omitted() {
        let text = "kind: A\nwebhook:\n  clientConfig:\n    service:\n      name: s\n      namespace: n\n      path: /convert\n\
                    ---\nkind: Deployment\n---\nkind: ServiceAccount\n";
        let expected = "kind: A\nwebhook:\n  clientConfig:\n    url: https://127.0.0.1:9/convert\n    caBundle: Y2E=\n\
                        ---\nkind: ServiceAccount\n";
        assert_eq!(components(text, (Ipv4Addr::LOCALHOST, 9).into(), "ca").unwrap(), expected);
    }
}
