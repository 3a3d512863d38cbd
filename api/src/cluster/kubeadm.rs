//! The bootstrap kinds of Cluster API: `KubeadmConfig` and `KubeadmConfigTemplate` (contract v1beta2).
//!
//! Every field of upstream's version v1beta2 is declared, so that manifests for the upstream provider apply unchanged. Values of enums are
//! texts: an object of a later upstream stays readable, and the renderer names a value that it does not know.
//!
//! Pure: no clock, no file, no socket.

pub mod cluster;
pub mod disk;
pub mod file;
pub mod join;
pub mod node;
pub mod reason;
mod schema;
pub mod user;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use cluster::{ClusterConfiguration, InitConfiguration};
use disk::DiskSetup;
use file::File;
use join::JoinConfiguration;
use user::{Ntp, User};

use crate::schema::{annotation_values, free_form, label_values};

/// API group of the bootstrap kinds.
pub const GROUP: &str = "bootstrap.cluster.x-k8s.io";

/// Annotation of a KubeadmConfig: ID of the bootstrap token in its data, six characters. The ID is not secret.
pub const TOKEN_ID_ANNOTATION: &str = "bedplate.dev/bootstrap-token-id";

/// Type of the Secrets of a cluster: certificates, kubeconfig and bootstrap data.
pub const CLUSTER_SECRET_TYPE: &str = "cluster.x-k8s.io/secret";

/// Types of conditions of a KubeadmConfig.
pub mod condition_type {
    /// The bootstrap data is stored. It summarizes the two conditions below.
    pub const READY: &str = "Ready";
    /// The Secret with the bootstrap data exists.
    pub const DATA_SECRET_AVAILABLE: &str = "DataSecretAvailable";
    /// The certificates that the machine needs exist.
    pub const CERTIFICATES_AVAILABLE: &str = "CertificatesAvailable";
    /// Every field that is set is supported.
    pub const FIELDS_SUPPORTED: &str = "FieldsSupported";
    /// The provider does not change the object.
    pub const PAUSED: &str = "Paused";
}

/// Configuration of one machine of a cluster that kubeadm makes.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KubeadmConfig",
    plural = "kubeadmconfigs",
    category = "cluster-api",
    namespaced,
    status = "KubeadmConfigStatus",
    derive = "PartialEq",
    doc = "Configuration of one machine of a cluster that kubeadm makes.",
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = r#".metadata.labels['cluster\.x-k8s\.io/cluster-name']"#
    ),
    printcolumn(
        name = "Paused",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Paused")].status"#,
        priority = 10
    ),
    printcolumn(
        name = "Data secret created",
        type_ = "string",
        json_path = ".status.initialization.dataSecretCreated"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct KubeadmConfigSpec {
    /// The cluster, for the first machine of its control plane. Control planes that join use its directory of certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_configuration: Option<ClusterConfiguration>,
    /// `kubeadm init` on the first machine of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_configuration: Option<InitConfiguration>,
    /// `kubeadm join` on every other machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_configuration: Option<JoinConfiguration>,
    /// Files to write before kubeadm runs, at most 200, each path once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 200))]
    #[x_kube(validation = Rule::new("self.all(x, self.exists_one(y, x.path == y.path))").message("each path can be written once"))]
    pub files: Vec<File>,
    /// Partitions and file systems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_setup: Option<DiskSetup>,
    /// Lines of `/etc/fstab`, at most 100: device, mount point and further fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(min = 1, max = 100),
        inner(length(min = 1, max = 100), inner(length(min = 1, max = 512)))
    )]
    pub mounts: Vec<Vec<String>>,
    /// Commands that run early at every boot, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 1000), inner(length(min = 1, max = 10240)))]
    pub boot_commands: Vec<String>,
    /// Commands that run once before kubeadm, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 1000), inner(length(min = 1, max = 10240)))]
    pub pre_kubeadm_commands: Vec<String>,
    /// Commands that run once after kubeadm, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 1000), inner(length(min = 1, max = 10240)))]
    pub post_kubeadm_commands: Vec<String>,
    /// Users to create, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub users: Vec<User>,
    /// Time synchronization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ntp: Option<Ntp>,
    /// Format of the data: `cloud-config` (default). `ignition` is not supported; no data is made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["cloud-config", "ignition"]))]
    pub format: Option<String>,
    /// Verbosity of kubeadm's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<i32>,
    /// Settings of format `ignition`. Not supported; no data is made with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignition: Option<Ignition>,
}

impl KubeadmConfigSpec {
    /// Returns the paths of fields that are set and not supported. With one of them no data is made.
    pub fn unsupported(&self) -> Vec<&'static str> {
        let format = self.format.as_deref().unwrap_or(CLOUD_CONFIG) != CLOUD_CONFIG;
        [(format, "spec.format"), (self.ignition.is_some(), "spec.ignition")]
            .into_iter()
            .filter_map(|(is_set, path)| is_set.then_some(path))
            .collect()
    }
}

/// The supported format of the data.
pub const CLOUD_CONFIG: &str = "cloud-config";

/// Settings of format `ignition`.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Ignition {
    /// A Container Linux Config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_linux_config: Option<ContainerLinuxConfig>,
}

/// A Container Linux Config.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct ContainerLinuxConfig {
    /// The configuration that is merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32768))]
    pub additional_config: Option<String>,
    /// True if warnings are errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// State of a KubeadmConfig. Written by the provider.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct KubeadmConfigStatus {
    /// `Ready`, `DataSecretAvailable`, `CertificatesAvailable`, `FieldsSupported` and `Paused`. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Progress of the first provisioning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<KubeadmConfigInitialization>,
    /// Name of the Secret with the bootstrap data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub data_secret_name: Option<String>,
    /// `metadata.generation` of the object that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
    /// State for readers of older contracts. Written by other providers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub deprecated: Option<Value>,
}

/// Progress of the first provisioning.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct KubeadmConfigInitialization {
    /// True once the Secret with the bootstrap data exists. It stays True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_secret_created: Option<bool>,
}

/// Template of KubeadmConfigs.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[kube(
    group = "bootstrap.cluster.x-k8s.io",
    version = "v1beta2",
    kind = "KubeadmConfigTemplate",
    plural = "kubeadmconfigtemplates",
    category = "cluster-api",
    namespaced,
    derive = "PartialEq",
    doc = "Template of KubeadmConfigs. Each machine of a set gets its own.",
    printcolumn(
        name = "ClusterClass",
        type_ = "string",
        json_path = r#".metadata.ownerReferences[?(@.kind=="ClusterClass")].name"#
    ),
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = r#".metadata.ownerReferences[?(@.kind=="Cluster")].name"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmConfigTemplateSpec {
    /// The template.
    // Upstream's definition admits an object without a spec.
    #[serde(default)]
    #[schemars(!default)]
    pub template: KubeadmConfigTemplateResource,
}

/// The objects that are made from a KubeadmConfigTemplate.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct KubeadmConfigTemplateResource {
    /// Labels and annotations of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<KubeadmConfigTemplateMetadata>,
    /// Spec of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<KubeadmConfigSpec>,
}

/// Labels and annotations of the objects.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct KubeadmConfigTemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_values")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotation_values")]
    pub annotations: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests;
