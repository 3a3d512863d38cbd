//! Pure: the part of a host that the provider keeps in memory. Called by `watch`.

use bedplate_api::machine::{Condition, Hardware, Machine, MachineStatus, condition_type};

use crate::watch::bare;

/// Keeps of a host only what decides about claims.
pub(super) fn prune_host(host: &mut Machine) {
    bare(host);
    // The state disk stays: a host that must be wiped is chosen by it.
    if let Some(pxe) = &mut host.spec.pxe {
        (pxe.interfaces, pxe.image, pxe.kernel_arguments) = (Vec::new(), None, Vec::new());
    }
    let Some(status) = host.status.take() else { return };
    let hardware = status.hardware.map(|hardware| Hardware {
        vendor: hardware.vendor,
        product: hardware.product,
        cpu: hardware.cpu,
        memory_bytes: hardware.memory_bytes,
        ..Default::default()
    });
    // A host that is off until it is claimed is silent, and may be chosen. A host with a key that may be a copy may not.
    let decides = |one: &Condition| {
        [condition_type::POWERED_ON, condition_type::ENROLLED].contains(&one.type_.as_str())
    };
    let mut conditions: Vec<_> = status.conditions.into_iter().filter(decides).collect();
    conditions.iter_mut().for_each(|condition| condition.message.clear());
    host.status = Some(MachineStatus {
        claim: status.claim,
        selected: status.selected,
        enrollment: status.enrollment,
        agent: status.agent,
        state_disk: status.state_disk,
        addresses: status.addresses,
        conditions,
        hardware,
        ..MachineStatus::default()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pruned(spec: &Value, status: &Value) -> Value {
        let mut host: Machine =
            serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": spec, "status": status }))
                .unwrap();
        prune_host(&mut host);
        serde_json::to_value(host).unwrap()
    }

    #[test]
    fn m6_conditions_of_a_host_that_decide_about_its_choice_are_kept() {
        let condition = |kind: &str| {
            json!({ "type": kind, "status": "False", "reason": "ClaimPending", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
        };
        let host = pruned(
            &json!({ "provider": "pxe", "powerPolicy": "OnClaim" }),
            &json!({ "conditions": [condition("Ready"), condition("PoweredOn"), condition("Enrolled")] }),
        );
        assert_eq!(host["status"]["conditions"], json!([condition("PoweredOn"), condition("Enrolled")]));
    }

    #[test]
    fn d7_state_disk_of_a_host_is_kept_since_it_decides_about_its_wipe() {
        let disk = json!({ "serial": "s", "wipe": "Never" });
        let pxe = json!({ "interfaces": [{ "macAddress": "52:54:00:00:00:01" }], "stateDisk": disk });
        let reported = json!({ "name": "virtio-s", "wipeToken": "claim-1" });
        let host = pruned(&json!({ "provider": "pxe", "pxe": pxe }), &json!({ "stateDisk": reported }));
        assert_eq!(
            (&host["spec"]["pxe"]["stateDisk"]["wipe"], &host["status"]["stateDisk"]),
            (&json!("Never"), &reported)
        );
        assert_eq!(host["spec"]["pxe"]["interfaces"], json!([]));
    }
}
