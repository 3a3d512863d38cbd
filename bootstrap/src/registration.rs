//! Pure: nodeRegistration: identity of the node, its labels, taints and kubelet arguments, equal for join and
//! init.

use bedplate_api::configuration::{KubernetesSpec, NodeRole, Taint, TaintEffect};
use bedplate_api::id::MachineName;
use serde_json::{Map, Value, json};

use crate::argument::{self, Argument};
use crate::field::Part;
use crate::field_error::FieldErrors;
use crate::label;
use crate::merge::at;
use crate::release::Format;

/// Identity of the node.
pub(crate) struct Identity<'a> {
    pub(crate) node_name: &'a MachineName,
    pub(crate) provider_id: &'a str,
    /// Socket of the container runtime, as a URL.
    pub(crate) cri_socket: &'a str,
}

/// Removes the kubelet's arguments from `theirs`, because they are extended and not replaced. Returns the
/// required values of the other fields. `defaults` are arguments that the version may override.
pub(crate) fn node_registration(
    identity: &Identity<'_>,
    kubernetes: &KubernetesSpec,
    part: Part,
    format: Format,
    theirs: &mut Value,
    defaults: &[Argument],
    errors: &mut FieldErrors,
) -> Value {
    label::check_labels(&kubernetes.node_labels, errors);
    label::check_annotations(&kubernetes.node_annotations, errors);
    label::check_taints(&kubernetes.taints, errors);
    let registration = theirs.get_mut("nodeRegistration").and_then(Value::as_object_mut);
    let arguments = registration.and_then(|fields| fields.remove("kubeletExtraArgs"));
    let path = format!("{}.nodeRegistration.kubeletExtraArgs", part.name());
    let given = &kubernetes.kubelet_extra_args;
    let mut arguments = argument::of_version(arguments.as_ref(), &path, given, format, errors);
    for default in defaults {
        if !arguments.iter().any(|argument| argument.name == default.name) {
            arguments.push(default.clone());
        }
    }
    if !kubernetes.node_labels.is_empty() {
        let labels: Vec<String> =
            kubernetes.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        arguments.push(Argument::new("node-labels", labels.join(",")));
    }
    arguments.push(Argument::new("provider-id", identity.provider_id));
    let mut ours = Map::new();
    ours.insert("name".to_owned(), json!(identity.node_name.as_str()));
    ours.insert("criSocket".to_owned(), json!(identity.cri_socket));
    ours.insert("kubeletExtraArgs".to_owned(), argument::render(&arguments, format, errors));
    // If omitted, kubeadm taints a control plane. A worker has no taints in any case.
    let named = at(theirs, "nodeRegistration.taints").is_some();
    let none = kubernetes.role == NodeRole::Worker && !named;
    if !kubernetes.taints.is_empty() || none {
        ours.insert("taints".to_owned(), kubernetes.taints.iter().map(taint).collect());
    }
    Value::Object(ours)
}

fn taint(taint: &Taint) -> Value {
    let effect = match taint.effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    };
    match &taint.value {
        Some(value) => json!({"key": taint.key, "value": value, "effect": effect}),
        None => json!({"key": taint.key, "effect": effect}),
    }
}
