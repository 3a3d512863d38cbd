//! OpenAPI schemas of the types that schemars cannot describe by itself: identifiers, addresses, free-form objects.
//!
//! Each is at least as strict as the Rust type's parser, so that no object in the API server is unreadable
//! here. CEL rules are not here; they are next to the field that they guard.
//!
//! Pure: no clock, no file, no socket.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::enrollment::KeyId;
use crate::id::{BootId, Digest, MacAddress, MachineName, SiteName};

macro_rules! pattern_schema {
    ($($type:ty, $name:literal, $max:literal, $pattern:literal;)*) => {$(
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "maxLength": $max, "pattern": $pattern })
            }
        }
    )*};
}

/// An IPv4 or IPv6 address with its prefix length, as [`ipnet::IpNet`] reads it.
pub(crate) struct Cidr;

/// An IPv4 or IPv6 address, as [`std::net::IpAddr`] reads it: no leading zeros, no zone.
pub(crate) struct Ip;

/// The name of an object of another kind: a DNS subdomain (RFC 1123).
pub(crate) struct ObjectName;

/// The name of a MachineConfiguration: a DNS subdomain, short enough that `-v<N>` still fits.
pub(crate) struct ConfigurationName;

/// The name of a namespace: a DNS label (RFC 1123).
pub(crate) struct NamespaceName;

/// The name of a namespace, or `*` for every namespace.
pub(crate) struct NamespaceOrAll;

/// The UID of an object.
pub(crate) struct Uid;

/// The provider ID of a claim: `bedplate://<Machine>/<UID of the claimant>`.
pub(crate) struct ClaimProviderId;

/// A network in CIDR notation, as the API server reads it.
pub(crate) struct ClusterCidr;

pattern_schema! {
    MacAddress, "MacAddress", 17,
        "^(([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{2}-){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}\\.){2}[0-9a-fA-F]{4}|[0-9a-fA-F]{12})$";
    MachineName, "MachineName", 63, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    SiteName, "SiteName", 63, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    BootId, "BootId", 32, "^[0-9a-f]{32}$";
    Digest, "Digest", 71, "^sha256:[0-9a-f]{64}$";
    KeyId, "KeyId", 32, "^[0-9a-f]{32}$";
    NamespaceName, "NamespaceName", 63, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    NamespaceOrAll, "NamespaceOrAll", 63, "^([a-z0-9]([-a-z0-9]*[a-z0-9])?|[*])$";
    Uid, "Uid", 63, "^[0-9A-Za-z]([-0-9A-Za-z]*[0-9A-Za-z])?$";
    ClaimProviderId, "ClaimProviderId", 138,
        "^bedplate://[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[0-9A-Za-z]([-0-9A-Za-z]*[0-9A-Za-z])?$";
    ObjectName, "ObjectName", 253, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
    ConfigurationName, "ConfigurationName", 240,
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
}

impl JsonSchema for Cidr {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Cidr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "cidr",
            "maxLength": 43,
            "pattern": "^((0|[1-9][0-9]{0,2})(\\.(0|[1-9][0-9]{0,2})){3}|[0-9a-fA-F:]+)/(0|[1-9][0-9]{0,2})$"
        })
    }
}

impl JsonSchema for Ip {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Ip".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 39,
            "pattern": "^((0|[1-9][0-9]{0,2})(\\.(0|[1-9][0-9]{0,2})){3}|[0-9a-fA-F:]+)$",
            "x-kubernetes-validations": [{ "rule": "isIP(self)", "message": "must be an IPv4 or IPv6 address" }]
        })
    }
}

impl JsonSchema for ClusterCidr {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ClusterCidr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "maxLength": 43,
            "x-kubernetes-validations": [{ "rule": "isCIDR(self)", "message": "must be a network in CIDR notation" }]
        })
    }
}

/// Describes an object whose fields another project defines (kubeadm's and the kubelet's configuration
/// kinds).
pub(crate) fn free_form(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A quantity of bytes of at least one, such as `8Gi`, that fits into 64 bits.
pub(crate) fn bytes(_: &mut SchemaGenerator) -> Schema {
    const FRACTION: &str = "(\\.[0-9]{1,9})?";
    let whole = [("", 18), ("Ki|k", 15), ("Mi|M", 12), ("Gi|G", 9), ("Ti|T", 6), ("Pi|P", 3), ("Ei|E", 0)];
    let mut forms: Vec<String> =
        whole.iter().map(|(suffix, more)| format!("[1-9][0-9]{{0,{more}}}{FRACTION}({suffix})")).collect();
    forms.push("0\\.0{0,2}[1-9][0-9]{0,5}(Mi|M|Gi|G|Ti|T|Pi|P|Ei|E)".to_owned());
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 1,
        "maxLength": 32,
        "pattern": format!("^({})$", forms.join("|"))
    })
}

/// Values of a map of labels.
pub(crate) fn label_values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "type": "string", "maxLength": 63, "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
        }
    })
}

/// Values of a map of at most 64 labels. The bound lets rules compare each of them.
pub(crate) fn bounded_label_values(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = label_values(generator);
    schema.insert("maxProperties".to_owned(), 64.into());
    schema
}

/// Values of a map of texts for programs.
pub(crate) fn short_values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "type": "string", "maxLength": 4096 } })
}

/// Values of a map of annotations. All annotations of an object have at most 256 KiB together.
pub(crate) fn annotation_values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "type": "string", "maxLength": 262_144 } })
}

/// Values of a map of kernel parameters: one line each, which sysctl.d(5) reads as one value.
pub(crate) fn parameter_values(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]*[^\\x00-\\x1f\\x7f-\\x9f\\\\]$"
        }
    })
}

/// A count of at least one that fits into 32 bits, or a percentage: `1`, `25%`.
pub(crate) fn positive_count_or_percent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 1,
        "maximum": i32::MAX,
        "maxLength": 4,
        "pattern": "^([1-9][0-9]?|100)%$"
    })
}

/// A count that fits into 32 bits, or a percentage of at most 999: `0`, `25%`, `150%`.
pub(crate) fn count_or_percent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 0,
        "maximum": i32::MAX,
        "maxLength": 4,
        "pattern": "^(0|[1-9][0-9]{0,2})%$"
    })
}

/// A label selector with at most 64 labels. The bound lets rules compare each of them.
pub(crate) fn bounded_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut labels = bounded_label_values(generator);
    labels.insert("description".to_owned(), "Labels with their values, at most 64.".into());
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": labels,
            "matchExpressions": {
                "type": "array",
                "description": "Further requirements.",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string" },
                        "operator": { "type": "string" },
                        "values": { "type": "array", "items": { "type": "string" } }
                    }
                }
            }
        }
    })
}
