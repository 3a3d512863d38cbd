//! Pure: whether the Node of a Machine's name is the Machine's own (Trust 5).

use bedplate_api::machine::Machine;
use k8s_openapi::api::core::v1::Node;

/// Returns the providerID that the Node of a Machine has.
pub(crate) fn provider_id(machine: &Machine) -> String {
    format!("bedplate://{}", machine.metadata.name.as_deref().unwrap_or_default())
}

/// Reason why the Node of a Machine's name belongs to another host; none if it is the Machine's own.
///
/// A Node without providerID is foreign. Bedplate's kubelets register with theirs from the first request on, by the flag --provider-id
/// (`bootstrap::registration`), and the API server never lets it change. Nodes that plain kubeadm joined have none.
pub(crate) fn foreign(machine: &Machine, node: &Node) -> Option<String> {
    let found = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
    let (name, own) = (node.metadata.name.as_deref().unwrap_or_default(), provider_id(machine));
    let has = if found.is_empty() { "no providerID".to_owned() } else { format!("providerID {found}") };
    (found != own).then(|| format!("Node {name} has {has} where {own} is required; it is not this Machine's"))
}
