//! What a slot that runs shows: its kubelet's health, its container runtime, and whether a Pod sandbox starts.
//!
//! Called by `observe` and `apply`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::configuration::ContainerNetwork;
use bedplate_process::exit::chain;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::effects::Gate;
use crate::bus::{Leader, Machines, UnitName};
use crate::cri::{Probe, Readiness, Runtime};
use crate::slot::filled::Filled;

/// How long the kubelet may take to say how it is.
const ANSWER: Duration = Duration::from_secs(5);
/// Where a kubelet says so unless its configuration has another port.
const HEALTH_PORT: u16 = 10248;

/// The slots of this host.
pub struct HostGate {
    /// machined, for a slot's own systemd.
    machines: Arc<dyn Machines>,
    /// The host's root directory.
    root: PathBuf,
}

impl HostGate {
    /// Of the host with this root directory.
    pub fn new(machines: Arc<dyn Machines>, root: &Path) -> Self {
        Self { machines, root: root.to_owned() }
    }

    async fn runtime_of(&self, leader: Leader, socket: &str) -> Result<Runtime, String> {
        let path = self.root.join(format!("proc/{leader}/root")).join(socket.trim_start_matches('/'));
        Runtime::connect(&path).await.map_err(|error| chain(&error))
    }
}

/// The kubelet's health port: its configuration may move it, or close it by 0.
fn health_port(filled: &Filled) -> Option<u16> {
    let configured = filled.template.kubernetes.kubelet_configuration.as_ref();
    let port = configured.and_then(|fields| fields.get("healthzPort")).and_then(Value::as_u64);
    match port {
        None => Some(HEALTH_PORT),
        Some(0) => None,
        Some(port) => u16::try_from(port).ok(),
    }
}

/// Whether the kubelet's address on the loopback is the agent's loopback too.
fn shares_loopback(filled: &Filled) -> bool {
    filled.template.container.as_ref().is_none_or(|container| container.network == ContainerNetwork::Host)
}

async fn ask_health(port: u16) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("no answer at 127.0.0.1:{port}: {error}");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(failed)?;
    stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").await.map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await.map_err(failed)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1).unwrap_or_default();
    if status == "200" {
        return Ok(());
    }
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Err(format!("it answers {status}: {}", body.trim().chars().take(300).collect::<String>()))
}

#[async_trait]
impl Gate for HostGate {
    async fn kubelet(&self, leader: Leader, filled: &Filled) -> Result<(), String> {
        if let Some(port) = health_port(filled).filter(|_| shares_loopback(filled)) {
            let asked = timeout(ANSWER, ask_health(port)).await;
            return asked.unwrap_or_else(|_| Err(format!("no answer at 127.0.0.1:{port}")));
        }
        // A slot with a network of its own has a loopback of its own, which the agent does not enter: there its systemd's word
        // that the kubelet runs has to do, and the Node's Ready, which only a healthy kubelet keeps.
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

    async fn sandbox(&self, leader: Leader, socket: &str, attempt: u32) -> Result<(), String> {
        let runtime = self.runtime_of(leader, socket).await?;
        // kubeadm's default for the kubelet, and so what the runtime of a node image is set to.
        let probe = Probe { systemd_cgroups: true };
        runtime.probe(&probe, attempt).await.map_err(|error| chain(&error))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "it is written where it is used")]
    fn filled(more: Value) -> Filled {
        let mut template = json!({"image": {"reference": "r.example/node", "allowTag": true}, "kubernetes": {"version": "v1.34.4"}});
        for (name, value) in more.as_object().unwrap() {
            template[name] = value.clone();
        }
        let template = serde_json::from_value(template).unwrap();
        Filled { template, layers: 1, cri_socket: String::new() }
    }

    #[test]
    fn the_health_port_is_the_configurations_own() {
        let with =
            |fields: Value| json!({"kubernetes": {"version": "v1.34.4", "kubeletConfiguration": fields}});
        assert_eq!(health_port(&filled(json!({}))), Some(10248));
        assert_eq!(health_port(&filled(with(json!({"healthzPort": 11000})))), Some(11000));
        assert_eq!(health_port(&filled(with(json!({"healthzPort": 0})))), None);
        assert!(shares_loopback(&filled(json!({}))));
        assert!(!shares_loopback(&filled(json!({"container": {"network": "veth"}}))));
    }

    #[tokio::test]
    async fn only_200_is_healthy_and_silence_is_told() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for (answer, healthy) in [
            ("HTTP/1.0 200 OK\r\n\r\nok", true),
            ("HTTP/1.0 500 Internal Server Error\r\n\r\nno syncloop", false),
        ] {
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 256];
                let _ = stream.read(&mut request).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let (asked, ()) = tokio::join!(ask_health(port), serve);
            assert_eq!(asked.is_ok(), healthy, "{asked:?}");
            if let Err(said) = asked {
                assert_eq!(said, "it answers 500: no syncloop");
            }
        }
        drop(listener);
        assert!(ask_health(port).await.unwrap_err().starts_with("no answer at 127.0.0.1"));
    }
}
