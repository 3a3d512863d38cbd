//! Pure: decides whether a Machine is in a pool, and whether a MachineClaim decides about its node (docs/guides/claims.md).
//!
//! Called by selection and phase, and by every program before it changes a Machine's node.

pub mod eligible;
pub mod wipe;

use bedplate_api::claim::ClaimState;
use bedplate_api::machine::{ClaimStatus, ClaimantRef, Machine, MachineSpec, MachineStatus, SelectionSource};

/// A host that a claim holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held<'a> {
    /// State of the claim on the host. None if the agent has not reported this claim yet.
    pub state: Option<ClaimState>,
    /// Claimant. None if the agent has not reported this claim yet.
    pub claimant: Option<&'a ClaimantRef>,
}

/// Returns true if a Machine is in a pool: a claim names its configuration, and no selector matches it.
pub fn is_pooled(machine: &Machine) -> bool {
    machine.spec.claim_policy.is_some()
}

/// Returns the claim that holds a host: by the selected version, or by its agent as long as the claim is not released. The agent is believed
/// only for a Machine in a pool, and also if its MachineClaim is missing.
pub fn held<'a>(spec: &MachineSpec, status: &'a MachineStatus) -> Option<Held<'a>> {
    let reported = status.claim.as_ref().filter(|claim: &&ClaimStatus| claim.state.holds_host());
    let is_selected =
        status.selected.as_ref().is_some_and(|selected| selected.source == SelectionSource::Claim);
    let is_held = is_selected || (reported.is_some() && spec.claim_policy.is_some());
    is_held.then(|| Held {
        state: reported.map(|claim| claim.state),
        claimant: reported.map(|claim| &claim.claimant),
    })
}

/// Returns true if a MachineClaim decides about the node of this Machine.
pub fn is_claimed(machine: &Machine) -> bool {
    machine.status.as_ref().is_some_and(|status| held(&machine.spec, status).is_some())
}

/// Returns the name of the claimant that holds a Machine, for a user. None if no claim decides about its node.
pub fn claimant(machine: &Machine) -> Option<String> {
    let held = held(&machine.spec, machine.status.as_ref()?)?;
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    Some(held.claimant.map_or_else(|| format!("MachineClaim {name}"), ToString::to_string))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(pooled: bool, status: &Value) -> Machine {
        let mut spec = json!({ "provider": "manual" });
        if pooled {
            spec["claimPolicy"] = json!({ "namespaces": ["team-a"] });
        }
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": spec, "status": status }))
            .unwrap()
    }

    fn reported(state: &str) -> Value {
        json!({ "providerID": "bedplate://a/u", "claimant": { "namespace": "team-a", "name": "w-1" }, "state": state,
            "since": "2026-01-01T00:00:00Z" })
    }

    fn selected(source: &str) -> Value {
        json!({ "name": "w", "version": 1, "source": source })
    }

    #[test]
    fn d1_a_claim_holds_a_host_from_its_selection_until_the_agents_release() {
        for (pooled, status, expected) in [
            (true, json!({}), None),
            (true, json!({ "selected": selected("Selector") }), None),
            (true, json!({ "selected": selected("Claim") }), Some("MachineClaim a")),
            (
                true,
                json!({ "selected": selected("Claim"), "claim": reported("Released") }),
                Some("MachineClaim a"),
            ),
            (true, json!({ "selected": selected("Claim"), "claim": reported("Joined") }), Some("team-a/w-1")),
            // The claim object is missing, but the host still runs the claim.
            (true, json!({ "claim": reported("Joined") }), Some("team-a/w-1")),
            (true, json!({ "claim": reported("Failed") }), Some("team-a/w-1")),
            (true, json!({ "claim": reported("AddedLater") }), Some("team-a/w-1")),
            (true, json!({ "claim": reported("Released") }), None),
            // A host outside of a pool cannot withdraw its node from the controller.
            (false, json!({ "claim": reported("Joined"), "selected": selected("Selector") }), None),
        ] {
            let machine = machine(pooled, &status);
            assert_eq!(claimant(&machine).as_deref(), expected, "{status}");
            assert_eq!(is_claimed(&machine), expected.is_some(), "{status}");
            assert_eq!(is_pooled(&machine), pooled);
        }
    }
}
