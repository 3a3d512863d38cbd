//! Pure: fields of kubeadm's documents that depend on the release. kubeadm only warns about an unknown field
//! and ignores it, so this module rejects it.

use serde_json::Value;

use crate::field_error::{FieldError, FieldErrors};
use crate::merge::at;
use crate::release::Format;

/// A free-form part of a version's `template.kubernetes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Cluster,
    Init,
    Join,
}

impl Part {
    /// Returns the name of the field.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cluster => "clusterConfiguration",
            Self::Init => "initConfiguration",
            Self::Join => "joinConfiguration",
        }
    }

    /// Returns the kind of kubeadm.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Cluster => "ClusterConfiguration",
            Self::Init => "InitConfiguration",
            Self::Join => "JoinConfiguration",
        }
    }

    /// Fields that v1beta3 does not have.
    fn new_in_v1beta4(self) -> &'static [&'static str] {
        match self {
            Self::Cluster => &[
                "proxy",
                "encryptionAlgorithm",
                "certificateValidityPeriod",
                "caCertificateValidityPeriod",
                "dns.disabled",
                "apiServer.extraEnvs",
                "controllerManager.extraEnvs",
                "scheduler.extraEnvs",
                "etcd.local.extraEnvs",
            ],
            Self::Init | Self::Join => &["timeouts", "nodeRegistration.imagePullSerial"],
        }
    }

    /// Returns the fields that v1beta4 no longer has, and their replacements.
    fn gone_in_v1beta4(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Cluster => &[(
                "apiServer.timeoutForControlPlane",
                "initConfiguration.timeouts.controlPlaneComponentHealthCheck",
            )],
            Self::Init => &[],
            Self::Join => &[("discovery.timeout", "joinConfiguration.timeouts.discovery")],
        }
    }

    /// Arguments of components: a map in v1beta3, a list in v1beta4.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Cluster => &[
                "apiServer.extraArgs",
                "controllerManager.extraArgs",
                "scheduler.extraArgs",
                "etcd.local.extraArgs",
            ],
            // The `argument` module reads the kubelet's arguments.
            Self::Init | Self::Join => &[],
        }
    }
}

/// Returns the free-form value as an object without empty fields. Empty if the value is absent.
pub(crate) fn object(value: Option<&Value>, part: Part, errors: &mut FieldErrors) -> Value {
    match value {
        None | Some(Value::Null) => Value::Object(serde_json::Map::new()),
        Some(Value::Object(fields)) => Value::Object(crate::merge::without_nulls(fields)),
        Some(_) => {
            errors.push(FieldError::NotAnObject { field: part.name().to_owned() });
            Value::Object(serde_json::Map::new())
        }
    }
}

/// Refuses fields that kubeadm of this release would ignore, and a dry run, which would succeed without a
/// Node.
pub(crate) fn check(theirs: &Value, part: Part, format: Format, version: &str, errors: &mut FieldErrors) {
    let field = |path: &str| format!("{}.{path}", part.name());
    if at(theirs, "dryRun").is_some() {
        errors.push(FieldError::Misplaced { field: field("dryRun"), instead: "a dry run makes no Node" });
    }
    match format {
        Format::V1Beta3 => {
            for path in part.new_in_v1beta4().iter().filter(|path| at(theirs, path).is_some()) {
                let version = version.to_owned();
                errors.push(FieldError::TooNew { field: field(path), since: "1.31", version });
            }
        }
        Format::V1Beta4 => {
            let gone = part.gone_in_v1beta4().iter().filter(|(path, _)| at(theirs, path).is_some());
            errors.extend(gone.map(|(path, instead)| FieldError::Gone {
                field: field(path),
                since: "1.31",
                instead,
            }));
        }
    }
    for path in part.arguments() {
        let expected = match (format, at(theirs, path)) {
            (_, None)
            | (Format::V1Beta3, Some(Value::Object(_)))
            | (Format::V1Beta4, Some(Value::Array(_))) => {
                continue;
            }
            (Format::V1Beta3, Some(_)) => "must be a map of names to values up to Kubernetes 1.30",
            (Format::V1Beta4, Some(_)) => "must be a list of name and value from Kubernetes 1.31 on",
        };
        errors.push(FieldError::InvalidField { field: field(path), expected: expected.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(theirs: &Value, part: Part, format: Format) -> Vec<String> {
        let mut errors = FieldErrors::default();
        check(theirs, part, format, "v1.30.0", &mut errors);
        errors.or(()).err().map_or(Vec::new(), |e| e.0.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn fields_of_v1beta4_are_refused_up_to_1_30() {
        for (theirs, part, path) in [
            (json!({"timeouts": {"discovery": "1m"}}), Part::Join, "joinConfiguration.timeouts"),
            (json!({"timeouts": {}}), Part::Init, "initConfiguration.timeouts"),
            (
                json!({"nodeRegistration": {"imagePullSerial": false}}),
                Part::Join,
                "joinConfiguration.nodeRegistration.imagePullSerial",
            ),
            (
                json!({"apiServer": {"extraEnvs": []}}),
                Part::Cluster,
                "clusterConfiguration.apiServer.extraEnvs",
            ),
        ] {
            let said = said(&theirs, part, Format::V1Beta3);
            assert_eq!(said, [format!("{path} needs Kubernetes 1.31, not v1.30.0")]);
            assert_eq!(super::tests::said(&theirs, part, Format::V1Beta4), [""; 0]);
        }
    }

    #[test]
    fn fields_that_v1beta4_lost_name_their_successor() {
        let theirs = json!({"apiServer": {"timeoutForControlPlane": "4m"}});
        assert_eq!(said(&theirs, Part::Cluster, Format::V1Beta3), [""; 0]);
        let said = said(&theirs, Part::Cluster, Format::V1Beta4);
        assert!(said[0].contains("controlPlaneComponentHealthCheck"), "{said:?}");
    }

    #[test]
    fn component_arguments_have_the_form_of_the_release() {
        let (map, list) = (json!({"apiServer": {"extraArgs": {}}}), json!({"apiServer": {"extraArgs": []}}));
        assert_eq!(said(&map, Part::Cluster, Format::V1Beta3), [""; 0]);
        assert_eq!(said(&list, Part::Cluster, Format::V1Beta4), [""; 0]);
        assert_eq!(said(&list, Part::Cluster, Format::V1Beta3).len(), 1);
        assert_eq!(said(&map, Part::Cluster, Format::V1Beta4).len(), 1);
    }

    #[test]
    fn dry_run_is_refused() {
        assert_eq!(said(&json!({"dryRun": true}), Part::Join, Format::V1Beta4).len(), 1);
    }
}
