//! `MachineConfigurationVersion`: one numbered copy of a MachineConfiguration's template, fixed by its first use (docs/rules.md,
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

/// One numbered copy of a configuration's template.
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
    doc = "One numbered copy of a MachineConfiguration's template, written by bedplate-controller and fixed by its first use.",
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
    printcolumn(name = "Configuration", type_ = "string", json_path = ".spec.configurationName"),
    printcolumn(name = "Version", type_ = "integer", json_path = ".spec.version"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Deployed", type_ = "boolean", json_path = ".status.deployed"),
    printcolumn(name = "Machines", type_ = "integer", json_path = ".status.machines"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Kubernetes", type_ = "string", json_path = ".spec.template.kubernetes.version", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.imageDigest", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct MachineConfigurationVersionSpec {
    /// Name of the MachineConfiguration.
    #[schemars(with = "ConfigurationName")]
    pub configuration_name: String,
    /// The integer N of this object's name `<configurationName>-v<N>`.
    #[schemars(range(min = 1))]
    pub version: i64,
    /// The copy.
    pub template: Template,
}

/// Observed state of a version.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MachineConfigurationVersionStatus {
    /// Generation of the spec that condition `Ready` was derived from. -1 before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// True if a Machine uses or has used it; then its spec is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed: Option<bool>,
    /// When it was first used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_time: Option<Time>,
    /// Number of Machines that refer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub machines: Option<i32>,
    /// The digest that the tag in `imageReference` stood for when it was resolved, once for all Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<Digest>,
    /// Reference that `imageDigest` was resolved from. The digest is valid while it equals
    /// `template.image.reference`: a version that was never used may still get another reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub image_reference: Option<String>,
    /// `Ready`: True if the image is known, so that Machines can use the version. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl MachineConfigurationVersionSpec {
    /// The digest that its tag was resolved to, as `status` has it; none if that was for another reference.
    pub fn image_digest(&self, status: Option<&MachineConfigurationVersionStatus>) -> Option<Digest> {
        let status = status?;
        let is_of_it = status.image_reference.as_ref() == Some(&self.template.image.reference);
        status.image_digest.filter(|_| is_of_it)
    }
}
