//! Parts that the core kinds and the bootstrap kinds of Cluster API share: references, gates, taints, addresses, and the names of labels and
//! annotations.
//!
//! Upstream's definitions may be installed instead of ours, so each type reads every object that upstream admits. A value of a later version is
//! `Unknown`, and so is an amount without a meaning. A part without a type of ours is [`Opaque`]. Not here: decisions.
//!
//! Pure: no clock, no file, no socket.

pub mod annotation;
pub mod label;

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::IgnoredAny;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lenient::Form;
use crate::schema::{annotation_values, bounded_label_values, free_form};

/// Version of the core kinds and of the bootstrap kinds that our definitions serve.
pub const VERSION: &str = "v1beta2";

/// Pattern of a DNS subdomain (RFC 1123).
pub(crate) const SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// Pattern of a kind.
pub(crate) const KIND: &str = r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$";
/// Pattern of the type of a condition.
pub(crate) const QUALIFIED_NAME: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
/// Pattern of the key of a taint.
const TAINT_KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";
/// Pattern of the value of a label that is not empty.
const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// An object of any kind, in the namespace of the object that names it. Its version comes from the labels of its definition.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    /// API group of the object, 1 to 253 characters.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub api_group: String,
    /// Kind of the object, 1 to 63 characters.
    #[schemars(length(min = 1, max = 63), regex(pattern = KIND))]
    pub kind: String,
    /// Name of the object, 1 to 253 characters.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN))]
    pub name: String,
}

/// Labels and annotations of the objects that are made from a template.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct TemplateMetadata {
    /// Labels of the objects, at most 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "bounded_label_values")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "annotation_values")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Additional condition that a summary waits for.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Gate {
    /// Type of the condition of the same object, 1 to 316 characters. If it is missing, the summary is Unknown.
    #[schemars(length(min = 1, max = 316), regex(pattern = QUALIFIED_NAME))]
    pub condition_type: String,
    /// Status of the condition that is not an issue. If unset: `Positive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polarity: Option<Polarity>,
}

impl Gate {
    /// Returns true if the condition must be False.
    pub fn is_negative(&self) -> bool {
        self.polarity == Some(Polarity::Negative)
    }
}

/// Status of a condition that is not an issue.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polarity {
    /// The condition must be True.
    Positive,
    /// The condition must be False.
    Negative,
    /// A value of a later version, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Taint of the Node of a machine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(self.key in ['node.cluster.x-k8s.io/uninitialized', 'node.cluster.x-k8s.io/outdated-revision'])")
        .message("taints node.cluster.x-k8s.io/uninitialized and node.cluster.x-k8s.io/outdated-revision are set by Cluster API"),
    validation = Rule::new("!self.key.startsWith('node.kubernetes.io/') || self.key == 'node.kubernetes.io/out-of-service'")
        .message("taints of the domain node.kubernetes.io are set by Kubernetes; only out-of-service may be set here"),
    validation = Rule::new("!self.key.startsWith('node.cloudprovider.kubernetes.io/')")
        .message("taints of the domain node.cloudprovider.kubernetes.io are set by the cloud provider"),
    validation = Rule::new("self.key != 'node-role.kubernetes.io/master'")
        .message("taint node-role.kubernetes.io/master is obsolete: use node-role.kubernetes.io/control-plane")
)]
pub struct Taint {
    /// Key of the taint, 1 to 317 characters.
    #[schemars(length(min = 1, max = 317), regex(pattern = TAINT_KEY))]
    pub key: String,
    /// Value of the taint, 1 to 63 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_VALUE))]
    pub value: Option<String>,
    /// Effect on Pods that do not tolerate the taint.
    pub effect: TaintEffect,
    /// Time at which the taint is set.
    pub propagation: Propagation,
}

/// Effect of a taint on Pods that do not tolerate it.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// New Pods are not scheduled.
    NoSchedule,
    /// New Pods are scheduled only if no other Node has space.
    PreferNoSchedule,
    /// Running Pods are evicted.
    NoExecute,
    /// A value of a later version, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl TaintEffect {
    /// Returns the word in the API. None for a value of a later version.
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Self::NoSchedule => Some("NoSchedule"),
            Self::PreferNoSchedule => Some("PreferNoSchedule"),
            Self::NoExecute => Some("NoExecute"),
            Self::Unknown => None,
        }
    }
}

/// Time at which a taint is set on a Node.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// The taint is set again if it is removed from the Node.
    Always,
    /// The taint is set once, when the Node joins.
    OnInitialization,
    /// A value of a later version, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Address of a machine.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct MachineAddress {
    /// Type of the address.
    #[serde(rename = "type")]
    pub type_: MachineAddressType,
    /// The address, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    pub address: String,
}

/// Type of an address of a machine.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MachineAddressType {
    /// Host name.
    Hostname,
    /// IP address that is reachable from outside of the site.
    ExternalIP,
    /// IP address inside the site.
    InternalIP,
    /// DNS name that is resolvable outside of the site.
    ExternalDNS,
    /// DNS name inside the site.
    InternalDNS,
    /// A value of a later version, read by this one. Never written.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Failure domain of a cluster.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomain {
    /// Name of the failure domain, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// True if machines of the control plane may be in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<bool>,
    /// Texts of the infrastructure provider.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// Part of an object that no program of Bedplate reads. Only its existence is known.
///
/// An object with such a part must not be written back as a whole: the content of the part would be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opaque;

impl<'de> Deserialize<'de> for Opaque {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

impl Serialize for Opaque {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map::<&str, bool, _>([])
    }
}

impl JsonSchema for Opaque {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Opaque".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        free_form(generator)
    }
}

/// A count, or a share of another count in percent (`IntOrString` in upstream).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountOrPercent {
    /// Count.
    Count(u32),
    /// Share in percent. It may exceed 100.
    Percent(u16),
    /// Value that upstream's definition admits and that has no meaning, such as `99999999999`. It cannot be written.
    Unknown,
}

impl<'de> Deserialize<'de> for CountOrPercent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Forms of the value.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Value {
            Number(i32),
            Text(String),
        }
        let read = match Form::deserialize(deserializer)?.expected() {
            Some(Value::Number(count)) => u32::try_from(count).ok().map(Self::Count),
            Some(Value::Text(text)) => {
                text.strip_suffix('%').and_then(|percent| percent.parse().ok()).map(Self::Percent)
            }
            None => None,
        };
        Ok(read.unwrap_or(Self::Unknown))
    }
}

impl Serialize for CountOrPercent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Percent(percent) => serializer.collect_str(&format_args!("{percent}%")),
            Self::Unknown => Err(S::Error::custom("an amount without a meaning cannot be written")),
        }
    }
}

/// Returns a version of Kubernetes with its leading `v`.
pub fn with_v(version: &str) -> Cow<'_, str> {
    if version.starts_with('v') { version.into() } else { format!("v{version}").into() }
}

/// Returns a name as the value of a label. A name that is not valid there is replaced by its hash, in the form that upstream has.
pub fn label_value(name: &str) -> Cow<'_, str> {
    let is_end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    let is_valid = bytes.len() <= 63
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
    if is_valid { name.into() } else { format!("hash_{}_z", base64_url(fnv_32a(bytes))).into() }
}

/// Returns the FNV-1a hash of bytes.
fn fnv_32a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Returns the four bytes of a number in base64 for URLs, without padding.
fn base64_url(number: u32) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    // Six digits of six bits hold 32 bits and four zeros.
    let padded = u64::from(number) << 4;
    (0..6).rev().map(|digit| char::from(ALPHABET[(padded >> (6 * digit) & 63) as usize])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    /// KCP and clusterctl match labels by this form.
    #[test]
    fn label_value_of_a_long_name_is_upstreams_hash() {
        assert_eq!(label_value("workers-abcde"), "workers-abcde");
        assert_eq!(label_value(&"a".repeat(63)), "a".repeat(63));
        // base64url of the FNV-1a hash, without padding, from Go's hash/fnv and encoding/base64.
        assert_eq!(label_value(&"a".repeat(64)), "hash_2W8PhQ_z");
        assert_eq!(label_value("-workers"), "hash_q37NHw_z");
        assert_eq!(label_value("workers."), "hash_VCODpg_z");
    }

    #[test]
    fn hash_is_that_of_the_reference_vectors() {
        // Vectors of the authors of FNV (draft-eastlake-fnv).
        assert_eq!(
            (fnv_32a(b""), fnv_32a(b"a"), fnv_32a(b"foobar")),
            (0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968)
        );
        // RFC 4648: the last digit of four bytes has two bits.
        assert_eq!(base64_url(0), "AAAAAA");
        assert_eq!(base64_url(u32::MAX), "_____w");
        assert_eq!(base64_url(0x666f_6f62), "Zm9vYg");
    }

    #[test]
    fn version_with_or_without_v_is_the_same() {
        assert_eq!((with_v("1.34.2").as_ref(), with_v("v1.34.2").as_ref()), ("v1.34.2", "v1.34.2"));
    }

    #[test]
    fn values_of_later_versions_are_readable() {
        let gate: Gate = from_value(json!({ "conditionType": "X", "polarity": "Later" })).unwrap();
        assert_eq!((gate.polarity, gate.is_negative()), (Some(Polarity::Unknown), false));
        let taint = json!({ "key": "a/b", "effect": "Later", "propagation": "Later", "added": 1 });
        let taint: Taint = from_value(taint).unwrap();
        assert_eq!((taint.effect.as_str(), taint.propagation), (None, Propagation::Unknown));
        let address: MachineAddress = from_value(json!({ "type": "Later", "address": "a" })).unwrap();
        assert_eq!(address.type_, MachineAddressType::Unknown);
    }

    #[test]
    fn opaque_part_is_read_whatever_it_holds() {
        for value in [json!({}), json!({ "classRef": { "name": "c" } }), json!([1]), json!("text")] {
            assert_eq!(from_value::<Option<Opaque>>(value).unwrap(), Some(Opaque));
        }
        assert_eq!(from_value::<Option<Opaque>>(json!(null)).unwrap(), None);
    }

    #[test]
    fn amount_is_read_in_both_forms_and_hides_no_object() {
        let read = |value| from_value::<CountOrPercent>(value).unwrap();
        for (value, amount) in [
            (json!(0), CountOrPercent::Count(0)),
            (json!(i32::MAX), CountOrPercent::Count(2_147_483_647)),
            (json!("25%"), CountOrPercent::Percent(25)),
            (json!("999%"), CountOrPercent::Percent(999)),
        ] {
            assert_eq!(read(value.clone()), amount);
            assert_eq!(serde_json::to_value(amount).unwrap(), value);
        }
        let large = json!(99_999_999_999_i64);
        for other in [json!(-1), large, json!(1.5), json!("2"), json!("-1%"), json!("65536%"), json!("")] {
            assert_eq!(read(other.clone()), CountOrPercent::Unknown, "{other}");
        }
        assert!(serde_json::to_value(CountOrPercent::Unknown).is_err(), "another value would replace it");
    }
}
