//! Pure: rules for labels, annotations and taints of a Node, equal to those of the kubelet.

use std::collections::BTreeMap;

use bedplate_api::configuration::Taint;

use crate::field_error::{FieldError, FieldErrors};

/// Labels of kubernetes.io that a kubelet may give its own Node (k8s.io/kubelet, well_known_labels.go).
const WELL_KNOWN: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Checks labels like the kubelet (`ValidateKubeletFlags`), which exits immediately if one is invalid.
pub(crate) fn check_labels(labels: &BTreeMap<String, String>, errors: &mut FieldErrors) {
    for (key, value) in labels {
        if !is_qualified_name(key) {
            errors.push(invalid("nodeLabels", key, "is not a valid label key"));
        } else if !is_label_value(value) {
            errors.push(invalid("nodeLabels", key, "has a value that is not a valid label value"));
        } else if is_reserved(key) && !is_for_kubelets(key) {
            errors.push(FieldError::ForbiddenLabel { label: key.clone() });
        }
    }
}

/// Checks annotations as the API server does.
pub(crate) fn check_annotations(annotations: &BTreeMap<String, String>, errors: &mut FieldErrors) {
    let wrong = annotations.keys().filter(|key| !is_qualified_name(&key.to_lowercase()));
    errors.extend(wrong.map(|key| invalid("nodeAnnotations", key, "is not a valid annotation key")));
}

/// Checks taints as the kubelet does.
pub(crate) fn check_taints(taints: &[Taint], errors: &mut FieldErrors) {
    for taint in taints {
        if !is_qualified_name(&taint.key) {
            errors.push(invalid("taints", &taint.key, "is not a valid taint key"));
        } else if !taint.value.as_deref().is_none_or(is_label_value) {
            errors.push(invalid("taints", &taint.key, "has a value that is not a valid label value"));
        }
    }
}

fn invalid(field: &str, key: &str, expected: &str) -> FieldError {
    FieldError::InvalidField { field: format!("{field}: {key:?}"), expected: expected.to_owned() }
}

/// Returns true if a key belongs to Kubernetes itself.
fn is_reserved(key: &str) -> bool {
    below(key, "kubernetes.io") || below(key, "k8s.io")
}

fn is_for_kubelets(key: &str) -> bool {
    WELL_KNOWN.contains(&key) || below(key, "kubelet.kubernetes.io") || below(key, "node.kubernetes.io")
}

/// Returns true if the key's prefix is this domain or a subdomain.
fn below(key: &str, domain: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return false };
    prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Returns true if this is the key of a label: `[prefix/]name`, a DNS name of at most 253 characters and a name of at most 63.
pub fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    prefix.is_none_or(is_dns_name) && !name.is_empty() && is_label_value(name)
}

pub(crate) fn is_dns_name(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Returns true if this is the value of a label: empty, or letters and digits at both ends and `-_.` between, at most 63.
pub fn is_label_value(value: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63
        && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && edge(value.chars().next())
        && edge(value.chars().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(key: &str, value: &str) -> Option<String> {
        let mut errors = FieldErrors::default();
        check_labels(&BTreeMap::from([(key.to_owned(), value.to_owned())]), &mut errors);
        errors.or(()).err().map(|error| error.to_string())
    }

    #[test]
    fn labels_that_a_kubelet_takes_are_taken() {
        let most = "a".repeat(63);
        for (key, value) in [
            ("tier", "gold"),
            ("example.com/rack", "r1"),
            ("example.com/empty", ""),
            ("node.kubernetes.io/anything", "x"),
            ("x.node.kubernetes.io/anything", "x"),
            ("kubelet.kubernetes.io/x", "x"),
            ("topology.kubernetes.io/zone", "z"),
            ("notkubernetes.io/x", "x"),
            (&most, &most),
        ] {
            assert_eq!(labels(key, value), None, "{key}={value}");
        }
    }

    #[test]
    fn labels_that_a_kubelet_refuses_are_refused() {
        for key in [
            "node-role.kubernetes.io/worker",
            "node-restriction.kubernetes.io/x",
            "kubernetes.io/x",
            "k8s.io/x",
            "a.k8s.io/x",
            "notnode.kubernetes.io/x",
        ] {
            let said = labels(key, "x").unwrap_or_default();
            assert!(said.contains(key) && said.contains("may not set"), "{said}");
        }
    }

    #[test]
    fn broken_labels_are_refused() {
        let long = "a".repeat(64);
        for (key, value) in [
            ("", "x"),
            ("/x", "x"),
            ("a/b/c", "x"),
            ("-a", "x"),
            ("Example.com/x", "x"),
            ("a..b/x", "x"),
            ("a", "-x"),
            ("a", "x y"),
            ("a", "x,b=y"),
            (&long, "x"),
            ("a", &long),
        ] {
            assert!(labels(key, value).is_some(), "{key}={value}");
        }
    }

    #[test]
    fn taints_and_annotations_are_checked() {
        let mut errors = FieldErrors::default();
        let taint = |key: &str, value: Option<&str>| Taint {
            key: key.into(),
            value: value.map(Into::into),
            effect: bedplate_api::configuration::TaintEffect::NoSchedule,
        };
        check_taints(
            &[taint("a/b", None), taint("a", Some("b")), taint("node-role.kubernetes.io/x", Some(""))],
            &mut errors,
        );
        check_annotations(&BTreeMap::from([("Example.com/Note".into(), "any \n text".into())]), &mut errors);
        assert!(errors.or(()).is_ok());

        let mut errors = FieldErrors::default();
        check_taints(&[taint("a b", None), taint("a", Some("b c"))], &mut errors);
        check_annotations(&BTreeMap::from([("a b".into(), String::new())]), &mut errors);
        assert_eq!(errors.or(()).map_err(|error| error.0.len()), Err(3));
    }
}
