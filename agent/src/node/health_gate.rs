//! Health of a slot that runs: its kubelet, its container runtime, and the start of a Pod sandbox.
//!
//! Called by `observe` and `apply`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_process::exit::chain;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::effects::Gate;
use crate::bus::{Leader, Machines, UnitName};
use crate::cri::{Probe, Readiness, Runtime};
use crate::kubelet::control_plane;
use crate::slot::fill_record::Filled;
use crate::slot::network::{HEALTH_SOCKET, health_port, is_own};

/// Timeout of the kubelet's health answer.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// The slots of this host.
pub(crate) struct HostGate {
    /// machined, for a slot's own systemd.
    machines: Arc<dyn Machines>,
    /// The host's root directory.
    root: PathBuf,
}

impl HostGate {
    /// Creates the gate of the host with this root directory.
    pub(crate) fn new(machines: Arc<dyn Machines>, root: &Path) -> Self {
        Self { machines, root: root.to_owned() }
    }

    async fn runtime_of(&self, leader: Leader, socket: &str) -> Result<Runtime, String> {
        Runtime::connect(&self.root, leader, socket).await.map_err(|error| chain(&error))
    }
}

/// Asks the kubelet, over a connection to its health port.
async fn ask_health(mut stream: impl AsyncRead + AsyncWrite + Unpin, place: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("no answer at {place}: {error}");
    stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").await.map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await.map_err(failed)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1).unwrap_or_default();
    match status {
        "200" => Ok(()),
        // The relay into the slot found no listener.
        "" => Err(format!("no answer at {place}")),
        status => {
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            Err(format!("status {status}: {}", body.trim().chars().take(300).collect::<String>()))
        }
    }
}

#[async_trait]
impl Gate for HostGate {
    async fn kubelet(&self, leader: Leader, filled: &Filled) -> Result<(), String> {
        if let Some(port) = health_port(&filled.template) {
            let place = format!("127.0.0.1:{port}");
            let failed = |error: std::io::Error| format!("no answer at {place}: {error}");
            let asked = async {
                if is_own(&filled.template) {
                    // The port is on a loopback that the agent does not enter. A socket of the slot leads
                    // there.
                    let inside = leader.open_root(&self.root).map_err(failed)?;
                    ask_health(inside.connect(HEALTH_SOCKET).await.map_err(failed)?, &place).await
                } else {
                    ask_health(TcpStream::connect(&place).await.map_err(failed)?, &place).await
                }
            };
            return timeout(HEALTH_TIMEOUT, asked)
                .await
                .unwrap_or_else(|_| Err(format!("no answer at {place}")));
        }
        // The kubelet's configuration disables the port. So the state of its unit counts, and the Node's
        // Ready condition, which only a healthy kubelet keeps True.
        let unit: UnitName = "kubelet.service".parse().map_err(|_| "no name".to_owned())?;
        let state = self.machines.units(leader).state(&unit).await.map_err(|error| chain(&error))?;
        if state.is_up() { Ok(()) } else { Err(format!("kubelet.service is {}", state.sub)) }
    }

    async fn runtime(&self, leader: Leader, socket: &str) -> Result<(), String> {
        let readiness = self.runtime_of(leader, socket).await?.readiness().await;
        match readiness.map_err(|error| chain(&error))? {
            Readiness::Ready => Ok(()),
            Readiness::NotReady(why) => Err(why),
        }
    }

    async fn control_plane(&self, leader: Leader, filled: &Filled) -> Result<(), String> {
        control_plane::ask(&self.root, leader, filled).await
    }

    async fn sandbox(&self, leader: Leader, socket: &str, attempt: u32) -> Result<(), String> {
        let runtime = self.runtime_of(leader, socket).await?;
        // kubeadm's default for the kubelet, and the setting of the runtime in node images.
        let probe = Probe { systemd_cgroups: true };
        runtime.probe(&probe, attempt).await.map_err(|error| chain(&error))
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::configuration::NodeRole;
    use serde_json::{Value, json};

    use super::*;
    use crate::bus::fake::FakeMachines;
    use crate::slot::fill_record::CRI_SOCKET;

    fn filled(network: &str, kubelet: &Value) -> Filled {
        let template = json!({"image": {"reference": "r.example/node", "allowTag": true}, "container": {"network": network},
            "kubernetes": {"version": "v1.34.4", "kubeletConfiguration": kubelet}});
        let template = serde_json::from_value(template).unwrap();
        Filled { template, layers: 1, cri_socket: String::new(), node_name: None }
    }

    fn gate(root: &Path) -> HostGate {
        HostGate::new(Arc::new(FakeMachines::default()), root)
    }

    fn leader() -> Leader {
        Leader::new(7).unwrap()
    }

    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &str) {
        let mut request = [0; 256];
        let _ = stream.read(&mut request).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    const ANSWERS: [(&str, Result<(), &str>); 3] = [
        ("HTTP/1.0 200 OK\r\n\r\nok", Ok(())),
        ("HTTP/1.0 500 Internal Server Error\r\n\r\nno syncloop", Err("status 500: no syncloop")),
        ("", Err("no answer at 127.0.0.1")),
    ];

    fn compare(asked: &Result<(), String>, expected: Result<(), &str>) {
        match (asked, expected) {
            (Ok(()), Ok(())) => {}
            (Err(said), Err(expected)) => assert!(said.starts_with(expected), "{said}"),
            _ => panic!("{asked:?}, expected {expected:?}"),
        }
    }

    #[tokio::test]
    async fn only_200_is_healthy_and_no_answer_is_an_error() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = gate(Path::new("/nonexistent"));
        let filled = filled("Host", &json!({"healthzPort": port}));
        for (said, expected) in ANSWERS {
            let serve = async { answer(listener.accept().await.unwrap().0, said).await };
            let (asked, ()) = tokio::join!(gate.kubelet(leader(), &filled), serve);
            compare(&asked, expected);
        }
        drop(listener);
        compare(&gate.kubelet(leader(), &filled).await, Err("no answer at 127.0.0.1"));
    }

    #[tokio::test]
    async fn process_of_the_host_is_not_taken_for_a_slot() {
        let host = tempfile::tempdir().unwrap();
        let root = host.path();
        std::fs::create_dir_all(root.join("proc/7")).unwrap();
        std::os::unix::fs::symlink(root, root.join("proc/7/root")).unwrap();
        let listen = |path: &str| {
            let path = root.join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        };
        let (health, runtime) = (listen(HEALTH_SOCKET), listen(CRI_SOCKET));
        let manifest = root.join(control_plane::MANIFEST.trim_start_matches('/'));
        std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
        std::fs::write(manifest, "").unwrap();
        let gate = gate(root);
        compare(
            &gate.kubelet(leader(), &filled("Veth", &json!({}))).await,
            Err("no answer at 127.0.0.1:10248: the process is not the first process of a container"),
        );
        let said = gate.runtime(leader(), CRI_SOCKET).await.unwrap_err();
        assert!(said.contains("the process is not the first process of a container"), "{said}");
        let mut control_plane = filled("Host", &json!({}));
        control_plane.template.kubernetes.role = NodeRole::ControlPlane;
        let said = gate.control_plane(leader(), &control_plane).await.unwrap_err();
        assert!(said.contains("the process is not the first process of a container"), "{said}");
        for listener in [health, runtime] {
            assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        }
    }

    #[tokio::test]
    async fn kubelet_of_a_slot_with_its_own_loopback_is_asked_by_the_slots_socket() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("proc/7/root").join(HEALTH_SOCKET.trim_start_matches('/'));
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let gate = gate(root.path());
        for network in ["Macvlan", "Veth"] {
            let filled = filled(network, &json!({}));
            compare(&gate.kubelet(leader(), &filled).await, Err("no answer at 127.0.0.1:10248"));
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            for (said, expected) in ANSWERS {
                let serve = async { answer(listener.accept().await.unwrap().0, said).await };
                let (asked, ()) = tokio::join!(gate.kubelet(leader(), &filled), serve);
                compare(&asked, expected);
            }
            std::fs::remove_file(&socket).unwrap();
            // A link to a socket of the host.
            let host = root.path().join("host.sock");
            let listener = std::os::unix::net::UnixListener::bind(&host).unwrap();
            listener.set_nonblocking(true).unwrap();
            std::os::unix::fs::symlink(&host, &socket).unwrap();
            compare(&gate.kubelet(leader(), &filled).await, Err("no answer at 127.0.0.1:10248"));
            assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            for path in [&socket, &host] {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}
