//! Pure: removes the parts of objects that are not read here.
//!
//! Pruned fields are never written back: every write is an apply of owned fields, bound to a resource
//! version. `watch` calls this for each object that a watch delivers.

use bedplate_api::machine::{Address, AddressType, Cpu, Hardware, Machine, PxeSpec};
use bedplate_engine::store::bare;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};

/// Removes the netboot settings but the takeover token, and the boot status of a Machine, and its hardware except the fields that selectors may name. Its fixed and
/// reported addresses stay: no other Machine gets a serving certificate for them (`request::holders`).
pub fn machine(machine: &mut Machine) {
    bare(machine);
    if let Some(pxe) = &mut machine.spec.pxe {
        addresses_alone(pxe);
    }
    // While a takeover token is set, the Node is observed for pxed (`machine::observed_node`).
    machine.spec.pxe.take_if(|pxe| pxe.interfaces.is_empty() && pxe.takeover.is_none());
    let Some(status) = &mut machine.status else { return };
    status.hardware = status.hardware.take().map(selectable);
    (status.power, status.state_disk) = (None, None);
    status.addresses.retain(|address: &Address| address.type_ == AddressType::InternalIP);
    if let Some(boot) = &mut status.boot {
        // The phase depends on the stage and on the time of the seed.
        (boot.timeline, boot.previous) = (Vec::new(), None);
    }
}

/// Returns the fields of the hardware that a `machineSelector` may name.
fn selectable(hardware: Hardware) -> Hardware {
    let cpu = hardware.cpu.map(|cpu| Cpu { architecture: cpu.architecture, ..Cpu::default() });
    Hardware { vendor: hardware.vendor, product: hardware.product, cpu, ..Hardware::default() }
}

fn addresses_alone(pxe: &mut PxeSpec) {
    pxe.interfaces.retain(|interface| !interface.addresses.is_empty());
    for interface in &mut pxe.interfaces {
        interface.nameservers = Vec::new();
    }
    (pxe.image, pxe.state_disk, pxe.kernel_arguments) = (None, None, Vec::new());
}

/// Removes all but the user from a request for another signer.
pub fn request(request: &mut CertificateSigningRequest) {
    if !crate::csr::is_for_a_kubelet(request) {
        bare(request);
        request.spec.request.0 = Vec::new();
        (request.spec.extra, request.status) = (None, None);
    }
}

/// Keeps only readiness and addresses of a Node's status.
pub fn node(node: &mut Node) {
    bare(node);
    let status = node.status.take().unwrap_or_default();
    let (conditions, addresses) = (status.conditions, status.addresses);
    let ready = conditions.into_iter().flatten().filter(|condition| condition.type_ == "Ready");
    let ready = ready.map(|condition| NodeCondition { last_heartbeat_time: None, ..condition });
    node.status = Some(NodeStatus { conditions: Some(ready.collect()), addresses, ..NodeStatus::default() });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn h2_takeover_token_is_kept_of_the_netboot_settings() {
        for (takeover, kept) in [(Some("one"), true), (None, false)] {
            let interfaces = json!([{ "macAddress": "52:54:00:00:00:01" }]);
            let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
                "spec": { "provider": "pxe", "pxe": { "interfaces": interfaces, "takeover": takeover } } });
            let mut found: Machine = serde_json::from_value(object).unwrap();
            machine(&mut found);
            assert_eq!(found.spec.pxe.is_some(), kept);
            assert_eq!(found.spec.pxe.and_then(|pxe| pxe.takeover).as_deref(), takeover);
        }
    }
}
