//! Pure: whether the Node of a Machine's name is the Machine's own (Trust 5).

use bedplate_api::machine::Machine;
use k8s_openapi::api::core::v1::Node;

/// Returns the providerID that the Node of a Machine has.
pub(crate) fn provider_id(machine: &str) -> String {
    format!("bedplate://{machine}")
}

/// Returns the reason why the Node with a Machine's name belongs to another host. None if it is the Machine's own.
///
/// A Node without providerID is foreign. Bedplate's kubelets register with theirs from the first request on, by the flag --provider-id
/// (`bootstrap::registration`), and the API server never lets it change. Nodes that plain kubeadm joined have none.
pub(crate) fn foreign(machine: &Machine, node: &Node) -> Option<String> {
    let (found, own) = (found(node), provider_id(machine.metadata.name.as_deref().unwrap_or_default()));
    let has = if found.is_empty() { "no providerID".to_owned() } else { format!("providerID {found}") };
    let name = node.metadata.name.as_deref().unwrap_or_default();
    (found != own).then(|| format!("Node {name} has {has} instead of {own}; it belongs to another host"))
}

/// Returns true if a Node is that of the Machine of this name.
pub(crate) fn is_node_of(machine: &str, node: &Node) -> bool {
    found(node) == provider_id(machine)
}

fn found(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}
