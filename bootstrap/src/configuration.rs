//! Pure: JoinConfiguration, InitConfiguration and ClusterConfiguration: free-form fields of the version,
//! overridden by required values.

use std::net::IpAddr;

use bedplate_api::configuration::{KubernetesSpec, NodeRole};
use serde_json::{Map, Value, json};

use crate::argument::Argument;
use crate::document::yaml;
use crate::field::{Part, check, object};
use crate::field_error::{FieldError, FieldErrors, RenderKubeadmError};
use crate::kubelet::{self, Approver};
use crate::label::is_dns_name;
use crate::merge::{at, overlay};
use crate::registration::{Identity, node_registration};
use crate::release::{Format, KUBELET_PATCHES, Release};
use crate::{Discovery, File, InitInput, Input, KUBEADM_CONFIG, Rendered, socket_url};

/// Path of the cluster's CA certificate, unless the version names another one.
const CA_CERTIFICATE: &str = "/etc/kubernetes/pki/ca.crt";

/// A version whose release is known.
struct Version<'a> {
    kubernetes: &'a KubernetesSpec,
    release: Release,
    format: Format,
}

impl<'a> Version<'a> {
    fn of(kubernetes: &'a KubernetesSpec) -> Result<Self, FieldError> {
        let release = Release::of(&kubernetes.version)?;
        Ok(Self { kubernetes, release, format: release.format() })
    }

    /// Returns a free-form part of the version.
    fn part(&self, part: Part, errors: &mut FieldErrors) -> Value {
        let value = match part {
            Part::Cluster => &self.kubernetes.cluster_configuration,
            Part::Init => &self.kubernetes.init_configuration,
            Part::Join => &self.kubernetes.join_configuration,
        };
        let theirs = object(value.as_ref(), part, errors);
        check(&theirs, part, self.format, &self.kubernetes.version, errors);
        theirs
    }

    /// The head of a document.
    fn head(&self, part: Part) -> Map<String, Value> {
        let api_version = Value::from(self.format.api_version());
        let kind = Value::from(part.kind());
        Map::from_iter([("apiVersion".to_owned(), api_version), ("kind".to_owned(), kind)])
    }

    /// Writes the version's kubelet configuration as a patch next to the document. Does nothing if this
    /// kubeadm does not support patches.
    fn kubelet_patch(
        &self,
        (part, approver): (Part, Approver),
        theirs: &Value,
        ours: &mut Map<String, Value>,
        errors: &mut FieldErrors,
    ) -> Option<File> {
        if self.release < KUBELET_PATCHES {
            return None;
        }
        let directory = kubelet::patches_directory(theirs, part, errors);
        let patch = kubelet::patch(self.kubernetes, approver, errors);
        let file = kubelet::patch_file(&directory, &patch);
        ours.insert("patches".to_owned(), json!({"directory": directory}));
        Some(file)
    }

    /// Returns kubelet arguments that enable certificate rotation, for releases whose kubelet configuration
    /// cannot be patched.
    fn rotation(&self, approver: Approver) -> Vec<Argument> {
        let names: &[&str] = match (self.release >= KUBELET_PATCHES, approver) {
            (true, _) => &[],
            (false, Approver::Controller) => &["rotate-certificates", "rotate-server-certificates"],
            (false, Approver::Unknown) => &["rotate-certificates"],
        };
        names.iter().map(|name| Argument::new(name, "true")).collect()
    }
}

pub(crate) fn join(input: &Input<'_>) -> Result<Rendered, RenderKubeadmError> {
    let version = Version::of(input.kubernetes)?;
    let mut errors = FieldErrors::default();
    let mut theirs = version.part(Part::Join, &mut errors);
    let cri_socket = socket_url(input.cri_socket);
    let identity =
        Identity { node_name: input.node_name, provider_id: input.provider_id, cri_socket: &cri_socket };
    let approver = Approver::of_join(&theirs);
    let mut ours = version.head(Part::Join);
    let registration = node_registration(
        &identity,
        input.kubernetes,
        Part::Join,
        version.format,
        &mut theirs,
        &version.rotation(approver),
        &mut errors,
    );
    ours.insert("nodeRegistration".to_owned(), registration);
    check_role(input.kubernetes, &theirs, &mut errors);
    if input.kubernetes.role == NodeRole::ControlPlane {
        ours.insert("controlPlane".to_owned(), json!({}));
    }
    let mut credentials = add_discovery(input.discovery, &theirs, &mut ours, &mut errors);
    let patch = version.kubelet_patch((Part::Join, approver), &theirs, &mut ours, &mut errors);
    if patch.is_none() && input.kubernetes.kubelet_configuration.is_some() {
        errors.push(kubelet::without_patches(input.kubernetes));
    }
    let document = overlay_part(&theirs, ours, Part::Join, &mut errors);
    let secret = ["discovery.bootstrapToken", "discovery.tlsBootstrapToken", "controlPlane.certificateKey"];
    credentials.extend(secret_in(&document, &secret));
    let leftovers = leftovers(input.kubernetes.role, &document);
    let config = config_file("kubeadm join", &[document]);
    let rendered = Rendered {
        files: std::iter::once(config).chain(patch).collect(),
        command: command("join"),
        node_annotations: input.kubernetes.node_annotations.clone(),
        credentials,
        leftovers,
        cri_socket,
    };
    errors.or(rendered)
}

/// Returns true if a JoinConfiguration has a discovery.
pub(crate) fn names_discovery(theirs: &Value) -> bool {
    ["discovery.file", "discovery.bootstrapToken"].iter().any(|path| at(theirs, path).is_some())
}

/// Checks the API server of a discovery by token as kubeadm does (`ValidateDiscoveryTokenAPIServer`).
fn check_token(theirs: &Value, errors: &mut FieldErrors) {
    const TOKEN: &str = "discovery.bootstrapToken";
    if at(theirs, TOKEN).is_none() {
        return;
    }
    let field = format!("{TOKEN}.apiServerEndpoint");
    let endpoint = at(theirs, &field).and_then(Value::as_str).unwrap_or_default();
    if !is_endpoint(endpoint) {
        let field = format!("{}.{field}", Part::Join.name());
        errors.push(FieldError::InvalidField {
            field,
            expected: "must be the API server as host:port".to_owned(),
        });
    }
}

/// Returns true if this is a host or `host:port`, with an IPv6 address in brackets.
fn is_endpoint(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        Some(_) | None => (text, None),
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    (address.parse::<IpAddr>().is_ok() || is_dns_name(host)) && port.is_none_or(is_port)
}

/// Adds the discovery unless the version names one. Returns the files that are not needed after the join.
fn add_discovery(
    discovery: Discovery<'_>,
    theirs: &Value,
    ours: &mut Map<String, Value>,
    errors: &mut FieldErrors,
) -> Vec<String> {
    if names_discovery(theirs) {
        check_token(theirs, errors);
        return Vec::new();
    }
    ours.insert("discovery".to_owned(), discovery.document(errors));
    match discovery {
        Discovery::File { kubeconfig_path } => vec![kubeconfig_path.to_owned()],
        Discovery::Token { .. } => Vec::new(),
    }
}

/// Returns files below /etc/kubernetes/pki that kubeadm join writes and refuses to overwrite.
fn leftovers(role: NodeRole, document: &Value) -> Vec<String> {
    match role {
        NodeRole::Worker => {
            let path = at(document, "caCertPath").and_then(Value::as_str).unwrap_or(CA_CERTIFICATE);
            vec![path.to_owned()]
        }
        // A second try uses the certificates that it finds.
        NodeRole::ControlPlane => Vec::new(),
    }
}

/// Checks the fields of the role. A worker has no fields of a control plane.
fn check_role(kubernetes: &KubernetesSpec, theirs: &Value, errors: &mut FieldErrors) {
    const INSTEAD: &str = "role is Worker; a control plane has role ControlPlane";
    if kubernetes.role == NodeRole::ControlPlane {
        return;
    }
    let fields = [
        ("joinConfiguration.controlPlane", at(theirs, "controlPlane").is_some()),
        ("initConfiguration", kubernetes.init_configuration.is_some()),
        ("clusterConfiguration", kubernetes.cluster_configuration.is_some()),
    ];
    for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
        errors.push(FieldError::Misplaced { field: field.to_owned(), instead: INSTEAD });
    }
}

pub(crate) fn init(input: &InitInput<'_>) -> Result<Rendered, RenderKubeadmError> {
    let version = Version::of(input.kubernetes)?;
    let mut errors = FieldErrors::default();
    if input.kubernetes.role == NodeRole::Worker {
        let expected = "must be ControlPlane to make a cluster".to_owned();
        errors.push(FieldError::InvalidField { field: "role".to_owned(), expected });
    }
    let mut theirs = version.part(Part::Init, &mut errors);
    let cri_socket = socket_url(input.cri_socket);
    let identity =
        Identity { node_name: input.node_name, provider_id: input.provider_id, cri_socket: &cri_socket };
    let mut ours = version.head(Part::Init);
    let registration = node_registration(
        &identity,
        input.kubernetes,
        Part::Init,
        version.format,
        &mut theirs,
        &[],
        &mut errors,
    );
    ours.insert("nodeRegistration".to_owned(), registration);
    let how = (Part::Init, Approver::Unknown);
    let patch = version.kubelet_patch(how, &theirs, &mut ours, &mut errors);
    let init = overlay_part(&theirs, ours, Part::Init, &mut errors);
    let mut command = command("init");
    if at(&init, "certificateKey").is_some() {
        // The key encrypts the certificates that are uploaded for further control planes. Without it they are
        // not uploaded.
        command.push("--upload-certs".to_owned());
    }
    let credentials = secret_in(&init, &["bootstrapTokens", "certificateKey"]).into_iter().collect();
    let mut documents = vec![init, cluster(&version, &mut errors)];
    if patch.is_none() {
        // The only possible way: it becomes the configuration of the complete cluster.
        documents.push(kubelet::patch(input.kubernetes, Approver::Unknown, &mut errors));
    }
    let config = config_file("kubeadm init", &documents);
    let rendered = Rendered {
        files: std::iter::once(config).chain(patch).collect(),
        command,
        node_annotations: input.kubernetes.node_annotations.clone(),
        credentials,
        leftovers: Vec::new(),
        cri_socket,
    };
    errors.or(rendered)
}

fn cluster(version: &Version<'_>, errors: &mut FieldErrors) -> Value {
    let theirs = version.part(Part::Cluster, errors);
    let mut ours = version.head(Part::Cluster);
    ours.insert("kubernetesVersion".to_owned(), json!(version.kubernetes.version));
    if let Some(endpoint) = &version.kubernetes.api_server_endpoint {
        ours.insert("controlPlaneEndpoint".to_owned(), json!(endpoint));
    }
    overlay_part(&theirs, ours, Part::Cluster, errors)
}

fn overlay_part(theirs: &Value, ours: Map<String, Value>, part: Part, errors: &mut FieldErrors) -> Value {
    overlay(theirs, &Value::Object(ours), part.name(), errors)
}

/// Returns the path of the configuration, if one of these fields makes it a secret.
fn secret_in(document: &Value, paths: &[&str]) -> Option<String> {
    paths.iter().any(|path| at(document, path).is_some()).then(|| KUBEADM_CONFIG.to_owned())
}

fn config_file(reader: &str, documents: &[Value]) -> File {
    let comment = format!("Written by bedplate-agent for {reader}; changes are lost.");
    File { path: KUBEADM_CONFIG.to_owned(), mode: 0o600, content: yaml(&comment, documents) }
}

fn command(action: &str) -> Vec<String> {
    ["kubeadm", action, "--config", KUBEADM_CONFIG].map(str::to_owned).to_vec()
}

#[cfg(test)]
pub(crate) mod tests;
