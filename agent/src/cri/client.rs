//! Asks the runtime, with a deadline for each call.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

use super::message::{
    Empty, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, ListPodSandboxRequest, ListPodSandboxResponse,
    NODE_NAMESPACE, NamespaceOption, PodSandboxConfig, PodSandboxFilter, PodSandboxMetadata,
    RunPodSandboxRequest, RunPodSandboxResponse, SandboxRequest, StatusRequest, StatusResponse,
};
use crate::bus::Leader;

/// Timeout of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a sandbox start. It runs network plug-ins, which takes many seconds on a slow machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Label of the agent's own sandboxes. It finds those that a killed agent left.
const LABEL: (&str, &str) = ("bedplate.dev/probe", "true");

/// Error of a request to the runtime.
#[derive(Debug, thiserror::Error)]
pub enum AskRuntimeError {
    /// The socket has no listener.
    #[error("the container runtime does not listen on {socket} in the slot")]
    Connect {
        /// The socket, as the slot sees it.
        socket: String,
        /// Cause.
        source: tonic::transport::Error,
    },
    /// The runtime refused the call, or the call failed.
    #[error("{call} of the container runtime failed: {message}")]
    Refused {
        /// Which call.
        call: &'static str,
        /// Message of the runtime, for users.
        message: String,
    },
    /// The call timed out.
    #[error("the container runtime did not answer {call} within {} s", limit.as_secs())]
    Silent {
        /// Which call.
        call: &'static str,
        /// Timeout that passed.
        limit: Duration,
    },
}

/// Readiness for Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Runtime and network are ready.
    Ready,
    /// One of them is not ready; with the runtime's message.
    NotReady(String),
}

/// Properties of the slot that a probe sandbox needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// True if the slot's runtime delegates control groups to systemd.
    pub systemd_cgroups: bool,
}

/// The runtime of one slot.
#[derive(Debug, Clone)]
pub struct Runtime {
    channel: Channel,
}

impl Runtime {
    /// Connects to `socket`, a path in the container of this leader on the host whose root directory is `host`.
    ///
    /// # Errors
    /// No server listens at `socket`.
    pub async fn connect(host: &Path, leader: Leader, socket: &str) -> Result<Self, AskRuntimeError> {
        let place = (host.to_owned(), socket.to_owned());
        let connector = tower::service_fn(move |_| {
            let (host, socket) = place.clone();
            async move { leader.open_root(&host)?.connect(&socket).await.map(TokioIo::new) }
        });
        // The name is never resolved: the connector has the address.
        let endpoint = Endpoint::from_static("http://slot").connect_timeout(QUERY_TIMEOUT);
        let channel = endpoint.connect_with_connector(connector).await;
        let failed = |source| AskRuntimeError::Connect { socket: socket.to_owned(), source };
        let channel = channel.map_err(failed)?;
        Ok(Self { channel })
    }

    /// Returns the readiness of runtime and network.
    ///
    /// # Errors
    /// No answer.
    pub async fn readiness(&self) -> Result<Readiness, AskRuntimeError> {
        let answer: StatusResponse =
            self.call("Status", QUERY_TIMEOUT, StatusRequest { verbose: false }).await?;
        let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
        for kind in ["RuntimeReady", "NetworkReady"] {
            let said = match conditions.iter().find(|condition| condition.r#type == kind) {
                Some(condition) if condition.status => continue,
                Some(condition) => format!("{}: {}", condition.reason, condition.message),
                None => "the runtime does not report this condition".to_owned(),
            };
            return Ok(Readiness::NotReady(format!("{kind} is not True: {said}")));
        }
        Ok(Readiness::Ready)
    }

    /// Starts a Pod sandbox on the node's network, and removes it again.
    /// `attempt` must not be used twice on a slot.
    ///
    /// # Errors
    /// It did not start; the text has the reason.
    pub async fn probe(&self, probe: &Probe, attempt: u32) -> Result<(), AskRuntimeError> {
        self.remove_probes().await?;
        let request = RunPodSandboxRequest { config: Some(sandbox(probe, attempt)) };
        // The kubelet may remove an unknown sandbox at any moment. Only the start counts.
        let _: RunPodSandboxResponse = self.call("RunPodSandbox", START_TIMEOUT, request).await?;
        self.remove_probes().await
    }

    /// Removes the agent's own sandboxes.
    async fn remove_probes(&self) -> Result<(), AskRuntimeError> {
        let label_selector = HashMap::from([(LABEL.0.to_owned(), LABEL.1.to_owned())]);
        let request = ListPodSandboxRequest { filter: Some(PodSandboxFilter { label_selector }) };
        let found: ListPodSandboxResponse = self.call("ListPodSandbox", QUERY_TIMEOUT, request).await?;
        for sandbox in found.items {
            let request = SandboxRequest { pod_sandbox_id: sandbox.id };
            let _: Empty = self.call("StopPodSandbox", START_TIMEOUT, request.clone()).await?;
            let _: Empty = self.call("RemovePodSandbox", START_TIMEOUT, request).await?;
        }
        Ok(())
    }

    async fn call<Q, A>(&self, call: &'static str, limit: Duration, request: Q) -> Result<A, AskRuntimeError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        let refused = |message: String| AskRuntimeError::Refused { call, message };
        let path = format!("/runtime.v1.RuntimeService/{call}");
        let path: PathAndQuery = path.parse().map_err(|_| refused("not a path".to_owned()))?;
        let asked = async {
            grpc.ready().await.map_err(|error| refused(error.to_string()))?;
            let codec = tonic_prost::ProstCodec::<Q, A>::default();
            let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
            answer.map(tonic::Response::into_inner).map_err(|status| refused(status.message().to_owned()))
        };
        timeout(limit, asked).await.map_err(|_| AskRuntimeError::Silent { call, limit })?
    }
}

/// Returns the sandbox of a probe.
fn sandbox(probe: &Probe, attempt: u32) -> PodSandboxConfig {
    // An unused name, in a namespace that no cluster can have because of its underscore.
    let metadata = PodSandboxMetadata {
        name: "bedplate-probe".to_owned(),
        uid: format!("bedplate-probe-{attempt}"),
        namespace: "bedplate_probe".to_owned(),
        attempt,
    };
    let cgroup_parent = if probe.systemd_cgroups { "system.slice" } else { "/bedplate-probe" };
    // On the node's network no network plug-in runs. Calico, Multus and others look up each Pod in the API
    // server, and fail for an unknown one.
    let namespace_options = Some(NamespaceOption { network: NODE_NAMESPACE });
    PodSandboxConfig {
        metadata: Some(metadata),
        // A sandbox without its own network has no host name: runtimes share the node's, and runc refuses to
        // set it.
        hostname: String::new(),
        labels: HashMap::from([(LABEL.0.to_owned(), LABEL.1.to_owned())]),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_owned(),
            security_context: Some(LinuxSandboxSecurityContext { namespace_options }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[tokio::test]
    async fn runtime_behind_a_link_to_the_host_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (host, root) = (directory.path().join("containerd.sock"), directory.path().join("proc/7/root"));
        let listener = std::os::unix::net::UnixListener::bind(&host).unwrap();
        listener.set_nonblocking(true).unwrap();
        std::fs::create_dir_all(root.join("run/containerd")).unwrap();
        std::os::unix::fs::symlink(&host, root.join("run/containerd/containerd.sock")).unwrap();
        let leader = Leader::new(7).unwrap();
        let connected = Runtime::connect(directory.path(), leader, "/run/containerd/containerd.sock").await;
        let error = connected.unwrap_err();
        assert!(matches!(error, AskRuntimeError::Connect { .. }), "{error:?}");
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn probe_uses_the_node_network_so_that_no_network_plug_in_runs() {
        let config = sandbox(&Probe { systemd_cgroups: true }, 7);
        assert_eq!(config.hostname, "");
        // Field numbers in api.proto: security_context is 2, its
        // namespace_options 1, network in that 1, and the value NODE 2.
        let linux = config.linux.unwrap().encode_to_vec();
        let context = [0x12, 4, 0x0a, 2, 0x08, 2];
        assert_eq!(linux, [&[0x0a, 12][..], b"system.slice", &context].concat());
    }
}
