//! Rendering of a slot's kubeadm setup: the configuration of a version, and the unit and script that run
//! kubeadm. Also finds which differences of two templates need no repave, and which templates no host can
//! make a Node of ([`template`]).
//!
//! Pure: no clock, no file, no socket, no randomness. Values in, text out; the caller writes the files into the slot. Called by
//! `bedplate-agent`. A claimed host runs the user data of its claimant instead ([`user_data`], with [`jinja`]).

use std::collections::BTreeMap;
use std::fmt;

mod again;
mod argument;
pub mod bind;
pub mod capi;
pub mod certificate;
mod cloud_init;
mod configuration;
mod destination;
pub mod diff;
mod discovery;
mod document;
mod encoding;
mod field;
mod field_error;
pub mod jinja;
pub mod kubeconfig_secret;
mod kubelet;
mod label;
mod merge;
mod plane;
mod registration;
mod release;
pub mod secret_name;
pub mod template;
pub mod token;
pub mod unit;
pub mod user_data;

use bedplate_api::configuration::{KubernetesSpec, NodeRole};
use bedplate_api::id::MachineName;

pub use again::{JoinedBy, joined_by, kubeconfig_with_token};
pub use destination::{Authorities, Destination, NamedCluster, destination, named_cluster};
pub use discovery::{Discovery, HashCaError, JoinIdentity, ca_cert_hashes, join_kubeconfig};
pub use field_error::{FieldError, RenderKubeadmError};
pub use kubelet::{Reconfiguration, reconfigure_kubelet};
pub use label::{is_label_value, is_qualified_name};
pub use plane::Plane;
pub use template::check;

/// Path of kubeadm's configuration in the slot.
pub const KUBEADM_CONFIG: &str = "/run/bedplate/kubeadm.yaml";

/// Default path in the slot of the kubeconfig for a join by file.
pub const JOIN_KUBECONFIG: &str = "/run/bedplate/kubeconfig";

/// Default path of patches in the slot, if the version names no directory.
pub const PATCHES: &str = "/run/bedplate/patches";

/// Inputs for rendering a node that joins.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The Node's name, which is the Machine's.
    pub node_name: &'a MachineName,
    /// The Node's `spec.providerID`, such as `bedplate://server-1`.
    pub provider_id: &'a str,
    /// Kubernetes settings of the version.
    pub kubernetes: &'a KubernetesSpec,
    /// The container runtime's socket in the slot, as a path or as a `unix://` URL.
    pub cri_socket: &'a str,
    /// Discovery of the API server, unless the version's joinConfiguration names one.
    pub discovery: Discovery<'a>,
}

/// Inputs for rendering a first control plane.
#[derive(Debug, Clone, Copy)]
pub struct InitInput<'a> {
    /// The Node's name, which is the Machine's.
    pub node_name: &'a MachineName,
    /// The Node's `spec.providerID`, such as `bedplate://server-1`.
    pub provider_id: &'a str,
    /// Kubernetes settings of the version.
    pub kubernetes: &'a KubernetesSpec,
    /// The container runtime's socket in the slot, as a path or as a `unix://` URL.
    pub cri_socket: &'a str,
}

/// A file of the slot, owned by root.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Absolute path in the slot.
    pub path: String,
    /// Mode, such as `0o600`.
    pub mode: u32,
    /// Complete content.
    pub content: String,
}

/// The content may hold a token or a key.
impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:04o}, {} bytes)", self.path, self.mode, self.content.len())
    }
}

/// Files and commands that make a Node of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Input files of kubeadm.
    pub files: Vec<File>,
    /// kubeadm with its arguments.
    pub command: Vec<String>,
    /// Annotations for the Node. The kubelet cannot register annotations, so the agent writes them.
    pub node_annotations: BTreeMap<String, String>,
    /// Files with a credential that is not needed after kubeadm has succeeded; absolute paths in the slot.
    pub credentials: Vec<String>,
    /// Files of kubeadm that `kubeadm reset` does not remove with these options, and that make a second
    /// attempt fail.
    pub leftovers: Vec<String>,
    /// The container runtime's socket as a URL.
    pub cri_socket: String,
}

/// Returns true if a node of this version creates a cluster (`init`) instead of joining one. A control plane
/// without a joinConfiguration is the first.
pub fn makes_a_cluster(kubernetes: &KubernetesSpec) -> bool {
    kubernetes.role == NodeRole::ControlPlane && kubernetes.join_configuration.is_none()
}

/// Returns true if a version names the cluster that its node joins, and the trust in it.
fn names_discovery(kubernetes: &KubernetesSpec) -> bool {
    kubernetes.join_configuration.as_ref().is_some_and(configuration::names_discovery)
}

/// Returns true if the node of a version joins the cluster of its host: it makes none, and the version names no discovery. A host without a
/// cluster has nothing to join by.
pub fn joins_own_cluster(kubernetes: &KubernetesSpec) -> bool {
    !makes_a_cluster(kubernetes) && !names_discovery(kubernetes)
}

/// Renders the Kubernetes part of a version like a host. Every host refuses what this function refuses.
///
/// # Errors
/// Everything that the version has wrong, by field.
fn render_anywhere(kubernetes: &KubernetesSpec) -> Result<Rendered, RenderKubeadmError> {
    // No error depends on these.
    let node_name = &"host".parse().expect("a DNS label");
    let (provider_id, cri_socket) = ("bedplate://host", "unix:///run/containerd/containerd.sock");
    if makes_a_cluster(kubernetes) {
        init(&InitInput { node_name, provider_id, kubernetes, cri_socket })
    } else {
        let discovery = Discovery::File { kubeconfig_path: JOIN_KUBECONFIG };
        join(&Input { node_name, provider_id, kubernetes, cri_socket, discovery })
    }
}

/// Renders `kubeadm join` for a worker or a further control plane, by the role.
///
/// # Errors
/// Everything that the version has wrong, by field.
pub fn join(input: &Input<'_>) -> Result<Rendered, RenderKubeadmError> {
    configuration::join(input)
}

/// Renders `kubeadm init`.
///
/// # Errors
/// Everything that the version has wrong, by field.
pub fn init(input: &InitInput<'_>) -> Result<Rendered, RenderKubeadmError> {
    configuration::init(input)
}

/// Returns the socket of the container runtime, in the form of kubeadm.
fn socket_url(socket: &str) -> String {
    if socket.starts_with('/') { format!("unix://{socket}") } else { socket.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Debug output reaches logs.
    #[test]
    fn debug_output_of_a_file_has_no_content() {
        let file =
            File { path: "/etc/kubeadm.yaml".to_owned(), mode: 0o600, content: "token: abc".to_owned() };
        assert_eq!(format!("{file:?}"), "/etc/kubeadm.yaml (0600, 10 bytes)");
    }

    #[test]
    fn version_names_its_discovery_only_in_a_join_configuration() {
        let with = |join: serde_json::Value| {
            let mut kubernetes = configuration::tests::kubernetes("v1.34.4");
            kubernetes.join_configuration = serde_json::from_value(join).unwrap();
            names_discovery(&kubernetes)
        };
        assert!(!with(json!(null)));
        assert!(!with(json!({"nodeRegistration": {}})));
        assert!(with(json!({"discovery": {"file": {"kubeConfigPath": "/a"}}})));
        assert!(with(json!({"discovery": {"bootstrapToken": {"token": "a"}}})));
    }
}
