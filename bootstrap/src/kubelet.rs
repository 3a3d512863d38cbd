//! Pure: the kubelet's configuration: certificate rotation, overridden by the version, as a patch that
//! kubeadm merges into the cluster's configuration.

use bedplate_api::configuration::KubernetesSpec;
use serde_json::{Map, Value, json};

use crate::configuration::names_discovery;
use crate::document::yaml;
use crate::field::{Part, object};
use crate::field_error::{FieldError, FieldErrors, RenderKubeadmError};
use crate::merge::at;
use crate::release::{KUBELET_PATCHES, Release};
use crate::{File, PATCHES, makes_a_cluster};

/// Fields that a version must not set, and the alternative.
const OWNED: [(&str, &str); 3] = [
    ("providerID", "the Machine's name is used"),
    ("registerWithTaints", "use taints"),
    ("containerRuntimeEndpoint", "the node image defines its socket"),
];

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// Approver of the kubelet's request for a serving certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Approver {
    /// bedplate-controller, in the cluster that it runs in.
    Controller,
    /// No approver is known: the cluster is being made, or the version names its discovery.
    Unknown,
}

impl Approver {
    /// Returns the approver for a JoinConfiguration. A version that names its discovery joins a cluster that need not have the controller.
    pub(crate) fn of_join(theirs: &Value) -> Self {
        if names_discovery(theirs) { Self::Unknown } else { Self::Controller }
    }
}

/// Returns the version's KubeletConfiguration as a merge patch, in which null removes a field of the cluster.
pub(crate) fn patch(kubernetes: &KubernetesSpec, approver: Approver, errors: &mut FieldErrors) -> Value {
    let mut fields = match &kubernetes.kubelet_configuration {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(fields)) => fields.clone(),
        Some(_) => {
            errors.push(FieldError::NotAnObject { field: "kubeletConfiguration".to_owned() });
            Map::new()
        }
    };
    for (name, instead) in OWNED.iter().filter(|(name, _)| fields.contains_key(*name)) {
        errors.push(FieldError::Misplaced { field: format!("kubeletConfiguration.{name}"), instead });
    }
    for (name, ours) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let theirs = fields.insert(name.to_owned(), Value::from(ours));
        if let Some(theirs) = theirs.filter(|theirs| !theirs.is_null() && theirs != ours) {
            let field = format!("kubeletConfiguration.{name}");
            errors.push(FieldError::Owned { field, theirs: theirs.to_string(), ours: format!("{ours:?}") });
        }
    }
    fields.entry("rotateCertificates").or_insert(json!(true));
    // Without an approver the kubelet would have no serving certificate at all, and logs and exec would fail.
    if approver == Approver::Controller {
        fields.entry("serverTLSBootstrap").or_insert(json!(true));
    }
    Value::Object(fields)
}

/// Returns the directory with patches: the version's, or the default one.
pub(crate) fn patches_directory(theirs: &Value, part: Part, errors: &mut FieldErrors) -> String {
    match at(theirs, "patches.directory") {
        None => PATCHES.to_owned(),
        Some(Value::String(path)) if path.starts_with('/') => path.clone(),
        Some(_) => {
            errors.push(FieldError::InvalidField {
                field: format!("{}.patches.directory", part.name()),
                expected: "must be an absolute path".to_owned(),
            });
            PATCHES.to_owned()
        }
    }
}

/// The patch as a file; kubeadm knows target and type by its name.
pub(crate) fn patch_file(directory: &str, patch: &Value) -> File {
    let comment = "Kubelet settings of the version; kubeadm merges them into the cluster's configuration.";
    File {
        path: format!("{}/kubeletconfiguration50bedplate+merge.yaml", directory.trim_end_matches('/')),
        mode: 0o600,
        content: yaml(comment, std::slice::from_ref(patch)),
    }
}

/// Commands that change the configuration of a running kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconfiguration {
    /// The patch that replaces the existing one.
    pub file: File,
    /// kubeadm command that rewrites /var/lib/kubelet/config.yaml from the cluster's configuration and the
    /// patches.
    pub command: Vec<String>,
    /// The unit to restart afterwards.
    pub restart: &'static str,
}

/// Returns the commands that give the kubelet of a joined node this version's configuration.
///
/// # Errors
/// Returns the errors of the version. A release below 1.25 needs a repave, because its kubeadm does not
/// support such patches.
pub fn reconfigure_kubelet(kubernetes: &KubernetesSpec) -> Result<Reconfiguration, RenderKubeadmError> {
    let release = Release::of(&kubernetes.version)?;
    let mut errors = FieldErrors::default();
    if release < KUBELET_PATCHES {
        errors.push(without_patches(kubernetes));
    }
    let makes_a_cluster = makes_a_cluster(kubernetes);
    let (part, theirs) = if makes_a_cluster {
        (Part::Init, &kubernetes.init_configuration)
    } else {
        (Part::Join, &kubernetes.join_configuration)
    };
    let theirs = object(theirs.as_ref(), part, &mut errors);
    let approver = if makes_a_cluster { Approver::Unknown } else { Approver::of_join(&theirs) };
    let directory = patches_directory(&theirs, part, &mut errors);
    let file = patch_file(&directory, &patch(kubernetes, approver, &mut errors));
    // The kubelet's own credential may read the cluster's configuration; a worker has no other.
    let command =
        "kubeadm upgrade node phase kubelet-config --kubeconfig /etc/kubernetes/kubelet.conf --patches";
    let command = command.split(' ').map(str::to_owned).chain([directory]).collect();
    errors.or(Reconfiguration { file, command, restart: "kubelet.service" })
}

/// Returns the error of a release without patches: up to 1.24 a joining node uses the cluster's configuration
/// unchanged.
pub(crate) fn without_patches(kubernetes: &KubernetesSpec) -> FieldError {
    let version = kubernetes.version.clone();
    FieldError::TooNew {
        field: "kubeletConfiguration of a node that joins".to_owned(),
        since: "1.25",
        version,
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::configuration::NodeRole;

    use super::*;
    use crate::configuration::tests::kubernetes;

    fn patched(configuration: Value) -> Result<Value, String> {
        let mut kubernetes = kubernetes("v1.34.4");
        kubernetes.kubelet_configuration = Some(configuration);
        let mut errors = FieldErrors::default();
        let patch = patch(&kubernetes, Approver::Controller, &mut errors);
        errors.or(patch).map_err(|error| error.to_string())
    }

    #[test]
    fn certificates_rotate_unless_the_version_says_otherwise() {
        let patch = patched(json!({"maxPods": 50, "serverTLSBootstrap": false})).unwrap();
        assert_eq!(
            patch,
            json!({
                "apiVersion": API_VERSION, "kind": KIND,
                "maxPods": 50, "rotateCertificates": true, "serverTLSBootstrap": false,
            })
        );
    }

    #[test]
    fn serving_certificate_is_requested_only_where_the_controller_approves() {
        let discovery = json!({"discovery": {"file": {"kubeConfigPath": "/etc/join.conf"}}});
        for (role, init, join, asks) in [
            (NodeRole::Worker, None, None, true),
            (NodeRole::Worker, None, Some(json!({})), true),
            (NodeRole::Worker, None, Some(discovery.clone()), false),
            (NodeRole::ControlPlane, None, Some(json!({})), true),
            (NodeRole::ControlPlane, None, Some(discovery), false),
            (NodeRole::ControlPlane, Some(json!({})), None, false),
        ] {
            let mut kubernetes = kubernetes("v1.34.4");
            kubernetes.role = role;
            (kubernetes.init_configuration, kubernetes.join_configuration) = (init, join);
            let file = reconfigure_kubelet(&kubernetes).unwrap().file;
            assert_eq!(file.content.contains("serverTLSBootstrap: true"), asks, "{kubernetes:?}");
        }
    }

    #[test]
    fn null_takes_a_field_of_the_cluster_away() {
        assert_eq!(patched(json!({"evictionHard": null})).unwrap()["evictionHard"], Value::Null);
        assert!(
            patched(json!({"evictionHard": null})).unwrap().as_object().unwrap().contains_key("evictionHard")
        );
    }

    #[test]
    fn fields_that_are_not_the_versions_are_refused() {
        for (name, _) in OWNED {
            let said = patched(json!({name: "x"})).unwrap_err();
            assert!(said.contains(&format!("kubeletConfiguration.{name}")), "{said}");
        }
        assert!(patched(json!({"kind": "KubeProxyConfiguration"})).is_err());
        assert!(patched(json!([])).is_err());
        assert!(patched(json!({"kind": KIND, "apiVersion": API_VERSION})).is_ok());
    }

    #[test]
    fn running_kubelet_is_configured_by_kubeadm_and_restarted() {
        let mut kubernetes = kubernetes("v1.34.4");
        kubernetes.join_configuration = Some(json!({"patches": {"directory": "/etc/patches/"}}));
        let how = reconfigure_kubelet(&kubernetes).unwrap();
        assert_eq!(how.file.path, "/etc/patches/kubeletconfiguration50bedplate+merge.yaml");
        assert!(how.command.join(" ").ends_with("--patches /etc/patches/"), "{how:?}");
        kubernetes.version = "v1.24.0".into();
        assert!(reconfigure_kubelet(&kubernetes).is_err());
    }

    #[test]
    fn running_kubelet_is_configured_from_1_25_on() {
        assert!(reconfigure_kubelet(&kubernetes("v1.24.17")).is_err());
        assert!(reconfigure_kubelet(&kubernetes("v1.25.0")).is_ok());
    }
}
