//! The agent's own fields of its Machine's status, composed from the reports of the host and the node.
//!
//! One server-side apply contains all of them, because an apply removes fields that it omits. Fields that
//! this process has not reported yet keep their former values.
//!
//! Pure: the caller passes the time. Called by `writer`.

use bedplate_api::claim::{CLAIMS_FEATURE, WIPE_FEATURE};
use bedplate_api::id::MachineName;
use bedplate_api::machine::{
    Address, AgentStatus, Applied, ClaimStatus, Condition, Hardware, MachineStatus, RolledBack, Slot, Time,
    condition_type,
};
use bedplate_api::reason::ConditionReason;
use bedplate_api::reason::machine::{NodeReadyReason, PavedReason};
use bedplate_api::wire::Report;
use jiff::Timestamp;
use serde_json::{Value, json};

/// Maximum lengths in the definition of a Machine; a longer text would make the
/// API server refuse the complete write.
const MAX_TEXT: usize = 63;
const MAX_REASON: usize = 1024;
/// Maximum length of a condition's message, in characters: the tail of a log fits.
const MAX_MESSAGE: usize = 4096;

/// State of the node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeStatusReport {
    /// Generation of the Machine that the conditions were derived from. `None`: the Machine is not known now.
    pub generation: Option<i64>,
    /// Applied version.
    pub applied: Option<Applied>,
    /// Content of the slots.
    pub slots: Vec<Slot>,
    /// Last update that was rolled back.
    pub rolled_back: Option<RolledBack>,
    /// Claim that the host holds, or held last. None: the former value stays.
    pub claim: Option<ClaimStatus>,
    /// Condition `Paved`.
    pub paved: Option<ConditionReport<PavedReason>>,
    /// Condition `NodeReady`.
    pub node_ready: Option<ConditionReport<NodeReadyReason>>,
}

/// Condition that the agent reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionReport<R> {
    /// Status of the condition.
    pub status: Truth,
    /// Reason, from the table of the condition's type.
    pub reason: R,
    /// Text for a user.
    pub message: String,
}

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "Kubernetes' names")]
pub enum Truth {
    True,
    False,
    Unknown,
}

/// Size of the difference between two statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// No difference, except for the heartbeat.
    Nothing,
    /// Difference in progress messages of conditions.
    Progress,
    /// Difference in fields that decisions depend on.
    Matter,
}

/// Composes all fields of this agent. `before` is its last status, or that of an earlier agent.
pub(super) fn compose(
    machine: &MachineName,
    host: &Report,
    node: Option<&NodeStatusReport>,
    before: &MachineStatus,
    now: Timestamp,
) -> MachineStatus {
    let text = |text: &str| Some(cut(text, MAX_TEXT)).filter(|text| !text.is_empty());
    let mut status = MachineStatus {
        agent: Some(AgentStatus {
            version: text(&host.agent_version),
            boot_id: text(&host.kernel_boot_id),
            last_heartbeat_time: Some(Time(now)),
            features: vec![CLAIMS_FEATURE.to_owned(), WIPE_FEATURE.to_owned()],
            going_down_time: host.going_down.then_some(Time(now)),
        }),
        // pxed reports the BMC.
        hardware: host.facts.clone().map(|facts| Hardware { bmc: None, ..facts.bounded() }),
        addresses: Address::of_host(machine, &host.addresses),
        state_disk: host.state_disk.clone(),
        ..MachineStatus::default()
    };
    match node {
        Some(node) => {
            status.applied.clone_from(&node.applied);
            status.slots.clone_from(&node.slots);
            let back =
                |back: &RolledBack| RolledBack { message: cut(&back.message, MAX_REASON), ..back.clone() };
            status.rolled_back = node.rolled_back.as_ref().map(back);
            status.claim = node.claim.clone().or_else(|| before.claim.clone());
            status.conditions = conditions(node, before, now);
        }
        None => {
            status.applied.clone_from(&before.applied);
            status.slots.clone_from(&before.slots);
            status.rolled_back.clone_from(&before.rolled_back);
            status.claim.clone_from(&before.claim);
            let own = |condition: &&Condition| OWN.contains(&condition.type_.as_str());
            status.conditions = before.conditions.iter().filter(own).cloned().collect();
        }
    }
    status
}

const OWN: [&str; 2] = [condition_type::PAVED, condition_type::NODE_READY];

pub(super) fn conditions(node: &NodeStatusReport, before: &MachineStatus, now: Timestamp) -> Vec<Condition> {
    let paved = node.paved.as_ref().map(|reported| condition(reported, node.generation, before, now));
    let node_ready =
        node.node_ready.as_ref().map(|reported| condition(reported, node.generation, before, now));
    paved.into_iter().chain(node_ready).collect()
}

fn condition<R: ConditionReason>(
    reported: &ConditionReport<R>,
    generation: Option<i64>,
    before: &MachineStatus,
    now: Timestamp,
) -> Condition {
    let status = match reported.status {
        Truth::True => "True",
        Truth::False => "False",
        Truth::Unknown => "Unknown",
    };
    let old = before.conditions.iter().find(|old| old.type_ == R::TYPE);
    let same = old.filter(|old| old.status == status);
    Condition {
        type_: R::TYPE.to_owned(),
        status: status.to_owned(),
        reason: reported.reason.as_str().to_owned(),
        message: cut(&reported.message, MAX_MESSAGE),
        // Another reason with the same status is not a transition (Kubernetes API conventions).
        last_transition_time: same.map_or(Time(now), |old| old.last_transition_time.clone()),
        observed_generation: generation.or_else(|| old?.observed_generation),
    }
}

/// Returns the size of the difference.
pub(super) fn change(before: &MachineStatus, after: &MachineStatus) -> Change {
    let matter = |status: &MachineStatus, messages: bool| {
        let mut status = status.clone();
        if let Some(agent) = &mut status.agent {
            agent.last_heartbeat_time = None;
        }
        for condition in status.conditions.iter_mut().filter(|_| !messages) {
            condition.message.clear();
        }
        status
    };
    if matter(before, true) == matter(after, true) {
        Change::Nothing
    } else if matter(before, false) == matter(after, false) {
        Change::Progress
    } else {
        Change::Matter
    }
}

/// The object to apply.
pub(super) fn body(machine: &MachineName, status: &MachineStatus) -> Value {
    json!({
        "apiVersion": "bedplate.dev/v1alpha1",
        "kind": "Machine",
        "metadata": { "name": machine },
        "status": status,
    })
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::{Disk, HardwareBmc, Phase, SlotName, SlotState, StateDiskStatus};
    use jiff::SignedDuration;

    use super::*;

    fn name() -> MachineName {
        "node-1".parse().unwrap()
    }

    fn host() -> Report {
        Report {
            agent_version: "0.1.0".to_owned(),
            kernel_boot_id: "b".to_owned(),
            boot_id: None,
            facts: Some(Hardware::default()),
            addresses: vec![[10, 7, 0, 2].into()],
            state_disk: None,
            going_down: false,
        }
    }

    fn reported(status: Truth, reason: PavedReason, message: &str) -> Option<ConditionReport<PavedReason>> {
        Some(ConditionReport { status, reason, message: message.to_owned() })
    }

    fn node(paved: Option<ConditionReport<PavedReason>>) -> NodeStatusReport {
        let slot = Slot {
            name: SlotName::A,
            configuration_name: None,
            version: None,
            image_digest: None,
            state: SlotState::Running,
        };
        NodeStatusReport { slots: vec![slot], paved, ..NodeStatusReport::default() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn own_conditions_are_those_of_the_table_of_writers() {
        use bedplate_api::writers::{MACHINE, Writer, conditions};
        assert_eq!(conditions(MACHINE, &[Writer::Agent])[..], OWN[..]);
    }

    #[test]
    fn a_write_holds_no_more_than_the_definition_takes_and_never_the_bmc() {
        let facts = Hardware {
            product: Some("p".repeat(2_000_000)),
            disks: vec![Disk::default(); 300],
            bmc: Some(HardwareBmc::default()),
            ..Hardware::default()
        };
        let host = Report {
            agent_version: "v".repeat(100),
            kernel_boot_id: String::new(),
            facts: Some(facts),
            state_disk: Some(StateDiskStatus { name: Some("virtio-state".to_owned()), wipe_token: None }),
            ..host()
        };
        let status = compose(&name(), &host, None, &MachineStatus::default(), Timestamp::UNIX_EPOCH);
        let fields = body(&name(), &status);
        assert_eq!(fields["status"]["hardware"]["disks"].as_array().unwrap().len(), 256);
        assert_eq!(fields["status"]["hardware"]["product"].as_str().unwrap().len(), 256);
        let agent = json!({ "version": "v".repeat(63), "features": ["claims", "wipe"], "lastHeartbeatTime": "1970-01-01T00:00:00Z" });
        assert_eq!(fields["status"]["agent"], agent);
        assert_eq!(fields["status"]["addresses"][0]["address"], "10.7.0.2");
        assert_eq!(fields["status"].as_object().unwrap().len(), 4);
        assert_eq!(fields["status"]["stateDisk"], json!({ "name": "virtio-state" }));
        assert!(fields["status"]["hardware"].get("bmc").is_none());
    }

    #[test]
    fn former_agents_fields_stay_and_fields_of_others_are_never_adopted() {
        let before = compose(
            &name(),
            &host(),
            Some(&node(reported(Truth::True, PavedReason::Applied, "ok"))),
            &MachineStatus::default(),
            at(0),
        );
        let mut seen = before.clone();
        seen.phase = Some(Phase::Ready);
        let foreign = Condition { type_: "Ready".to_owned(), ..before.conditions[0].clone() };
        seen.conditions.insert(0, foreign);
        let after = compose(&name(), &host(), None, &seen, at(60));
        assert_eq!(change(&before, &after), Change::Nothing);
        assert_eq!(after.phase, None);
        // Known and empty is another thing than not known.
        let empty = compose(&name(), &host(), Some(&NodeStatusReport::default()), &seen, at(60));
        assert!(empty.slots.is_empty() && empty.conditions.is_empty());
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let write = |reported: Option<ConditionReport<PavedReason>>, before: &MachineStatus, now| {
            compose(&name(), &host(), Some(&node(reported)), before, at(now))
        };
        let first = write(reported(Truth::False, PavedReason::Joining, "1"), &MachineStatus::default(), 10);
        let second = write(reported(Truth::False, PavedReason::CheckingHealth, "2"), &first, 20);
        let third = write(reported(Truth::True, PavedReason::Applied, "3"), &second, 30);
        let times: Vec<_> = [&first, &second, &third]
            .iter()
            .map(|status| status.conditions[0].last_transition_time.0)
            .collect();
        assert_eq!(times, [at(10), at(10), at(30)]);
        let long = write(reported(Truth::False, PavedReason::Joining, &"é".repeat(9000)), &third, 40);
        assert_eq!(long.conditions[0].message.chars().count(), MAX_MESSAGE);
    }

    #[test]
    fn conditions_have_the_generation_of_the_machine_that_is_known() {
        let write = |generation: Option<i64>, before: &MachineStatus| {
            let node =
                NodeStatusReport { generation, ..node(reported(Truth::True, PavedReason::Applied, "ok")) };
            compose(&name(), &host(), Some(&node), before, at(0))
        };
        let seen = |status: &MachineStatus| status.conditions[0].observed_generation;
        let first = write(Some(1), &MachineStatus::default());
        let edited = write(Some(2), &first);
        assert_eq!((seen(&first), seen(&edited)), (Some(1), Some(2)));
        assert_eq!(change(&first, &edited), Change::Matter, "readers wait for it");
        let unknown = write(None, &edited);
        assert_eq!(seen(&unknown), Some(2), "the Machine is not known now");
    }

    #[test]
    fn a_heartbeat_is_no_change_and_a_message_is_progress() {
        let write = |paved: Option<ConditionReport<PavedReason>>, now| {
            compose(&name(), &host(), Some(&node(paved)), &MachineStatus::default(), at(now))
        };
        let mut first = write(reported(Truth::False, PavedReason::Joining, "10 %"), 0);
        let mut later = write(reported(Truth::False, PavedReason::Joining, "10 %"), 60);
        later.conditions[0].last_transition_time = first.conditions[0].last_transition_time.clone();
        assert_eq!(change(&first, &later), Change::Nothing);
        later.conditions[0].message = "20 %".to_owned();
        assert_eq!(change(&first, &later), Change::Progress);
        later.conditions[0].reason = "CheckingHealth".to_owned();
        assert_eq!(change(&first, &later), Change::Matter);
        first.slots.clear();
        assert_eq!(
            change(&first, &write(reported(Truth::False, PavedReason::Joining, "10 %"), 0)),
            Change::Matter
        );
    }
}
