//! `MachineConfigurationVersion`: one numbered copy of a MachineConfiguration's template, fixed by its first use (docs/design/rules.md,
//! "Configurations and their versions"; V1 to V3).
//!
//! Types and validation only. Two rules are admission policies: users do not write versions (V1), and one in
//! use cannot be deleted (V3).
//!
//! Pure: no clock, no file, no socket.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::configuration::Template;
use crate::id::Digest;
use crate::schema::ConfigurationName;

/// Returns the name of the object of a configuration's version.
pub fn version_name(configuration: &str, version: i64) -> String {
    format!("{configuration}-v{version}")
}

/// Types of conditions.
pub mod condition_type {
    /// The version can be paved: its image is resolved or pinned. Written by bedplate-controller.
    pub const READY: &str = "Ready";
}

/// Copy of the template of a MachineConfiguration. Written by bedplate-controller. It cannot be changed once `status.deployed` is true.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "bedplate.dev",
    version = "v1alpha1",
    kind = "MachineConfigurationVersion",
    plural = "machineconfigurationversions",
    shortname = "mcv",
    category = "bedplate",
    status = "MachineConfigurationVersionStatus",
    derive = "PartialEq",
    cel,
    doc = "Numbered copy of the template of a MachineConfiguration. Written by bedplate-controller. It cannot be changed once a Machine has used it.",
    // string(version) would be shorter, but its length is not bounded for the API server's cost estimate.
    validation = Rule::new(
        "self.metadata.name.matches('-v[1-9][0-9]{0,17}$') && \
         self.metadata.name.startsWith(self.spec.configurationName + '-v') && \
         self.metadata.name.lastIndexOf('-v') == size(self.spec.configurationName) && \
         int(self.metadata.name.substring(size(self.spec.configurationName) + 2)) == self.spec.version"
    )
    .message("the name must be <configurationName>-v<version>"),
    validation = Rule::new(
        "!has(oldSelf.status) || !has(oldSelf.status.deployed) || !oldSelf.status.deployed || self.spec == oldSelf.spec"
    )
    .message("a deployed version cannot be changed: edit the MachineConfiguration, which makes a new version"),
    validation = Rule::new(
        "!has(oldSelf.status) || !has(oldSelf.status.deployed) || !oldSelf.status.deployed || \
         (has(self.status) && has(self.status.deployed) && self.status.deployed)"
    )
    .message("status.deployed never goes back to false"),
    printcolumn(
        name = "Configuration",
        type_ = "string",
        description = "Name of the MachineConfiguration.",
        json_path = ".spec.configurationName"
    ),
    printcolumn(name = "Version", type_ = "integer", description = "Number of the version.", json_path = ".spec.version"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Status of condition Ready.",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Deployed",
        type_ = "boolean",
        description = "True once a Machine uses the version.",
        json_path = ".status.deployed"
    ),
    printcolumn(
        name = "Machines",
        type_ = "integer",
        description = "Number of Machines that name, select or run the version.",
        json_path = ".status.machines"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        description = "Time since the object was created.",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Kubernetes",
        type_ = "string",
        description = "Kubernetes version of the template.",
        json_path = ".spec.template.kubernetes.version",
        priority = 1
    ),
    printcolumn(
        name = "Image",
        type_ = "string",
        description = "Digest of the image's tag.",
        json_path = ".status.imageDigest",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct MachineConfigurationVersionSpec {
    /// Name of the MachineConfiguration. At most 240 characters. Written by bedplate-controller.
    #[schemars(with = "ConfigurationName")]
    pub configuration_name: String,
    /// Number N of the name `<configurationName>-v<N>` of this object. At least 1. Written by bedplate-controller.
    #[schemars(range(min = 1))]
    pub version: i64,
    /// Copy of `spec.template` of the MachineConfiguration. Written by bedplate-controller. It cannot be changed once `status.deployed` is
    /// true.
    pub template: Template,
}

/// Use of the version, and its image. Written by bedplate-controller.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineConfigurationVersionStatus {
    /// `metadata.generation` from which condition `Ready` was derived. -1 before the first time. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// True once a Machine uses the version. It stays true, and the spec cannot be changed any more. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed: Option<bool>,
    /// Time of the first use. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_time: Option<Time>,
    /// Number of Machines that name, select or run the version. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub machines: Option<i32>,
    /// Digest of the tag in `status.imageReference`, as `sha256:` and 64 hex digits. It was resolved once for all Machines. Unset if the
    /// image is named by its digest. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<Digest>,
    /// Reference from which `status.imageDigest` was resolved. The digest is valid only while this equals `spec.template.image.reference`.
    /// At most 512 characters. Written by bedplate-controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub image_reference: Option<String>,
    /// Conditions by type. At most 16. Written by bedplate-controller.
    ///
    /// - `Ready`: True if the image is known, so that Machines can use the version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl MachineConfigurationVersion {
    /// Returns name of the configuration and number.
    pub fn key(&self) -> (&str, i64) {
        (&self.spec.configuration_name, self.spec.version)
    }
}

impl MachineConfigurationVersionSpec {
    /// The digest that its tag was resolved to, as `status` has it; none if that was for another reference.
    pub fn image_digest(&self, status: Option<&MachineConfigurationVersionStatus>) -> Option<Digest> {
        let status = status?;
        let is_of_it = status.image_reference.as_ref() == Some(&self.template.image.reference);
        status.image_digest.filter(|_| is_of_it)
    }
}
