//! Demand for the power of a machine with `powerPolicy: OnClaim` (docs/guides/bmc.md, M6, D7).
//!
//! ```text
//! MachineClaim present, or the host holds a claim ──► Needed
//! otherwise  claims not read yet                  ──► Unknown
//!            no report of the agent since then    ──► Unproven
//!            report of the agent: it is idle      ──► Idle
//! ```
//! A missing MachineClaim is not evidence that the host is idle: the API server may have been restored from a backup, and the Machine with it.
//! So only a report that the agent has made after the claim was seen missing counts.
//!
//! Pure. Callers: `worker`, and the supervisor, which gives each worker the claim of its Machine.

use std::collections::BTreeSet;
use std::sync::Arc;

use bedplate_api::machine::{Machine, PowerPolicy};
use bedplate_rules::claim::held;
use jiff::Timestamp;

/// Demand for the power of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Demand {
    /// MachineClaims were not read yet.
    #[default]
    Unknown,
    /// The machine should be on.
    Needed,
    /// There is no claim, and the agent has not reported since.
    Unproven,
    /// There is no claim, and the agent has reported since that it holds none.
    Idle,
}

/// MachineClaim with the name of a Machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClaimSeen {
    /// MachineClaims were not read yet, or the Machine does not follow them.
    #[default]
    Unknown,
    /// A claim exists.
    Present,
    /// No claim exists.
    Absent,
}

/// Names of the MachineClaims of a site. Not known before the first list is complete.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claims(Option<Arc<BTreeSet<String>>>);

impl Claims {
    /// The complete set.
    pub fn known(names: BTreeSet<String>) -> Self {
        Self(Some(Arc::new(names)))
    }

    /// Returns the claim of a Machine.
    pub fn of(&self, machine: &Machine) -> ClaimSeen {
        let (Some(names), true) = (&self.0, follows_claims(machine)) else { return ClaimSeen::Unknown };
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        if names.contains(name) { ClaimSeen::Present } else { ClaimSeen::Absent }
    }
}

/// Returns true if claims decide about the power of a Machine.
pub(crate) fn follows_claims(machine: &Machine) -> bool {
    machine.spec.power_policy == PowerPolicy::OnClaim
}

/// Absence of a claim, with the last report of the agent at the time when it was seen first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Absence {
    /// Heartbeat at that time. The outer None: the claim is there, or unknown.
    noted: Option<Option<Timestamp>>,
}

impl Absence {
    /// Decides, and remembers since when the claim is missing. Heartbeats are compared with each other only: the clock of a host may be wrong.
    pub fn demand(&mut self, machine: &Machine, claim: ClaimSeen) -> Demand {
        let status = machine.status.as_ref();
        let is_held = status.is_some_and(|status| held(&machine.spec, status).is_some());
        let agent = status.and_then(|status| status.agent.as_ref());
        let heard = agent.and_then(|agent| agent.last_heartbeat_time.as_ref()).map(|time| time.0);
        let noted = match claim {
            ClaimSeen::Present | ClaimSeen::Unknown => {
                self.noted = None;
                let is_needed = is_held || claim == ClaimSeen::Present;
                return if is_needed { Demand::Needed } else { Demand::Unknown };
            }
            ClaimSeen::Absent => *self.noted.get_or_insert(heard),
        };
        if is_held {
            return Demand::Needed;
        }
        let has_reported = heard.is_some_and(|heard| noted.is_none_or(|noted| heard > noted));
        if has_reported { Demand::Idle } else { Demand::Unproven }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(heard: Option<u32>, record: Option<&str>, selected: bool) -> Machine {
        let mut status = json!({});
        if let Some(minute) = heard {
            status["agent"] = json!({ "lastHeartbeatTime": format!("2026-01-01T00:{minute:02}:00Z") });
        }
        if let Some(state) = record {
            status["claim"] = json!({ "providerID": "bedplate://a/u", "claimant": { "namespace": "n", "name": "w" },
                "state": state, "since": "2026-01-01T00:00:00Z" });
        }
        if selected {
            status["selected"] = json!({ "name": "pool", "version": 1, "source": "Claim" });
        }
        let spec: Value =
            json!({ "provider": "pxe", "powerPolicy": "OnClaim", "claimPolicy": { "namespaces": ["n"] } });
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": spec, "status": status }))
            .unwrap()
    }

    #[test]
    fn d7_only_a_new_report_of_a_host_without_a_claim_makes_it_idle() {
        let records = [
            None,
            Some("Preparing"),
            Some("Joined"),
            Some("Failed"),
            Some("Releasing"),
            Some("Released"),
            Some("Later"),
        ];
        for record in records {
            for selected in [false, true] {
                let holds = selected || !matches!(record, None | Some("Released"));
                let expected = |free: Demand| if holds { Demand::Needed } else { free };
                let of = |heard| machine(heard, record, selected);
                let mut absence = Absence::default();
                let demand = absence.demand(&of(Some(1)), ClaimSeen::Unknown);
                assert_eq!(demand, expected(Demand::Unknown), "{record:?} {selected}");
                for (claim, heard, free) in [
                    (ClaimSeen::Absent, Some(5), Demand::Unproven),
                    // Restored from a backup.
                    (ClaimSeen::Absent, Some(3), Demand::Unproven),
                    (ClaimSeen::Absent, None, Demand::Unproven),
                    (ClaimSeen::Absent, Some(5), Demand::Unproven),
                    (ClaimSeen::Absent, Some(6), Demand::Idle),
                    (ClaimSeen::Present, Some(7), Demand::Needed),
                    // Each absence needs a report of its own.
                    (ClaimSeen::Absent, Some(7), Demand::Unproven),
                    (ClaimSeen::Absent, Some(8), Demand::Idle),
                    (ClaimSeen::Unknown, Some(9), Demand::Unknown),
                    (ClaimSeen::Absent, None, Demand::Unproven),
                    (ClaimSeen::Absent, Some(1), Demand::Idle),
                ] {
                    let demand = absence.demand(&of(heard), claim);
                    let expected = if free == Demand::Needed { free } else { expected(free) };
                    assert_eq!(demand, expected, "{record:?} {selected} {claim:?} {heard:?}");
                }
            }
        }
    }

    #[test]
    fn m6_claims_concern_only_machines_that_follow_them() {
        let follows = machine(None, None, false);
        let mut managed = follows.clone();
        managed.spec.power_policy = PowerPolicy::Managed;
        let names = |names: &[&str]| Claims::known(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(Claims::default().of(&follows), ClaimSeen::Unknown);
        assert_eq!(names(&["b"]).of(&follows), ClaimSeen::Absent);
        assert_eq!(names(&["a"]).of(&follows), ClaimSeen::Present);
        assert_eq!(names(&["a"]).of(&managed), ClaimSeen::Unknown);
    }
}
