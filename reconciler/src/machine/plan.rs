//! Pure: writes for one Machine (H3 to H7, C3).
//!
//! ```text
//! nothing selected --choice--> lock the version, then selected --Node joined--> nodeRef, annotated
//!                                   ^                                              |
//!                                   `-- selected again and nodeRef cleared in one --Node gone (live 404)
//! ```

use bedplate_api::claim::MachineClaim;
use bedplate_api::condition::{Conditions as _, set_condition};
use bedplate_api::configuration::{MachineConfiguration, NodeRole};
use bedplate_api::machine::{
    Condition, Machine, MachineStatus, NODE_CONFIGURATION, NODE_VERSION, NodeRef, ObservedNode, Phase,
    Selected, SelectionSource, Time, condition_type,
};
use bedplate_api::reason::machine::{ConfigurationPendingReason, DrainedReason, ReadyReason};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_rules::claim::is_pooled;
use bedplate_rules::phase::{Plane, summarize};
use bedplate_rules::selection::{Again, Choice, Pending, choose, choose_by_claim, reference_changed};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde::Serialize;

use super::{node_facts, observed_node};
use crate::foreign_node::{foreign, provider_id};
use crate::image;

/// The Node of the Machine's name.
#[derive(Debug, Clone, Copy)]
pub enum NodeSeen<'a> {
    /// The Node exists.
    Present(&'a Node),
    /// The Node does not exist, by a live answer of the API server.
    Gone,
    /// The cache has no Node, and it was not read live because no decision depends on it.
    Absent,
}

/// Writes for one Machine, in this order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Name and number of the chosen version, if it is not deployed yet.
    pub lock: Option<(String, i64)>,
    /// Status fields that this controller owns, if they differ from the current ones.
    pub status: Option<Status>,
    /// Annotations that the Node lacks: name and version of the applied configuration.
    pub annotate: Option<(String, i64)>,
}

impl Plan {
    /// Returns true if the version that a claim has selected is replaced or cleared.
    pub(crate) fn ends_claim(&self, machine: &Machine) -> bool {
        let before = machine.selected().filter(|before| before.source == SelectionSource::Claim);
        before.zip(self.status.as_ref()).is_some_and(|(before, after)| {
            !after.selected.as_ref().is_some_and(|after| after.is_same_choice(before))
        })
    }
}

/// All status fields of a Machine that this controller owns. An apply removes every field that is omitted
/// here.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) observed_generation: Option<i64>,
    pub(super) phase: Phase,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) selected: Option<Selected>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_ref: Option<NodeRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) observed_node: Option<ObservedNode>,
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub(super) provider_id: Option<String>,
    pub(super) conditions: Vec<Condition>,
}

/// Result of a choice.
#[derive(Default)]
struct Chosen {
    lock: Option<(String, i64)>,
    selected: Option<Selected>,
    /// Status, reason and message of `ConfigurationPending`.
    pending: Option<(bool, ConfigurationPendingReason, String)>,
    /// Reason why a due choice cannot be made.
    trouble: Option<Pending>,
    /// True if it is chosen now.
    is_new: bool,
    /// True if the choice is not written.
    left_alone: bool,
}

/// Plans for one Machine. `turn` is an additional reason to choose again. `claim` is the MachineClaim that
/// the Machine names.
pub fn plan(
    machine: &Machine,
    node: NodeSeen<'_>,
    turn: Option<Again>,
    (configurations, versions): (&[&MachineConfiguration], &[&MachineConfigurationVersion]),
    claim: Option<&MachineClaim>,
    now: Timestamp,
) -> Plan {
    let (before, generation) = (machine.status.clone().unwrap_or_default(), machine.metadata.generation);
    let is_gone = before.node_ref.is_some() && matches!(node, NodeSeen::Gone);
    let again = match (is_gone, reference_changed(machine)) {
        (true, _) => Some(Again::NodeGone),
        (false, true) => Some(Again::PersonChangedReference),
        (false, false) => turn,
    };
    let choice = match is_for_claims(machine) {
        true => choose_by_claim(machine, claim, configurations, versions),
        false => choose(machine, again, configurations, versions),
    };
    let choice = image::once_resolved(choice, before.selected.is_some(), versions);
    let chosen = judge(choice, &before);
    let mut after = before.clone();
    let mut stranger = None;
    let reregistered = reregistration(machine, &before, node, (configurations, versions), now);
    let reregistered = reregistered.filter(|_| !chosen.left_alone);
    if !chosen.left_alone {
        after.selected.clone_from(&chosen.selected);
        after.observed_node = observed_node::observe(machine, node);
        let time = reregistered.as_ref().map(|(time, _)| time.clone());
        match follow(machine, &before, node, (chosen.is_new, time)) {
            Ok(node_ref) => after.node_ref = node_ref,
            Err(why) => stranger = Some(why),
        }
        if let Some((pending, reason, message)) = &chosen.pending {
            set_condition(&mut after, *pending, *reason, message, generation, now);
        }
    }
    after.provider_id = after.node_ref.as_ref().and(machine.metadata.name.as_deref()).map(provider_id);
    let trouble = [
        stranger.as_deref().map(|why| (ReadyReason::NodeNameConflict.as_str(), why)),
        chosen.trouble.as_ref().map(|trouble| (trouble.reason.as_str(), trouble.message.as_str())),
        reregistered.as_ref().map(|(_, why)| (ReadyReason::NodeReregistered.as_str(), why.as_str())),
    ];
    let trouble = trouble.into_iter().flatten().next();
    let there = match node {
        NodeSeen::Present(node) if stranger.is_none() => Some(node),
        NodeSeen::Present(_) | NodeSeen::Gone | NodeSeen::Absent => None,
    };
    let mut shown = summarize(Plane::Cluster, machine, &after, &node_facts::facts(there), trouble);
    if !shown.is_ready() && !chosen.left_alone && stranger.is_none() {
        shown.message.push_str(&way_out(machine, &after, node, configurations, versions).unwrap_or_default());
    }
    shown.write(&mut after, generation, now);
    let wanted = own(&after);
    Plan {
        lock: chosen.lock,
        annotate: annotate(&after, node).filter(|_| !chosen.left_alone && stranger.is_none()),
        status: (own(&before) != wanted).then_some(wanted).flatten(),
    }
}

/// Returns true if claims choose the version of a Machine: it is in a pool, or a claim has selected its version.
fn is_for_claims(machine: &Machine) -> bool {
    let by_claim = |selected: &Selected| selected.source == SelectionSource::Claim;
    is_pooled(machine) || machine.selected().is_some_and(by_claim)
}

fn judge(choice: Choice, before: &MachineStatus) -> Chosen {
    let is = |selected: &Selected| format!("{}, {}", selected.version_name(), by(selected.source));
    match choice {
        Choice::LeaveAlone => Chosen { left_alone: true, ..Chosen::default() },
        Choice::Pending(pending) => {
            Chosen { pending: Some((true, pending.reason, pending.message)), ..Chosen::default() }
        }
        Choice::Matched(selected) => {
            let message = format!("{}; selected when the host is enrolled", is(&selected));
            Chosen {
                pending: Some((false, ConfigurationPendingReason::Matched, message)),
                ..Chosen::default()
            }
        }
        Choice::Select(select) => Chosen {
            lock: select.lock.then(|| (select.selected.name.clone(), select.selected.version)),
            pending: Some((false, ConfigurationPendingReason::Selected, is(&select.selected))),
            selected: Some(select.selected),
            is_new: true,
            ..Chosen::default()
        },
        Choice::Keep(trouble) => Chosen {
            pending: Some((
                false,
                ConfigurationPendingReason::Selected,
                before.selected.as_ref().map(is).unwrap_or_default(),
            )),
            selected: before.selected.clone(),
            trouble,
            ..Chosen::default()
        },
    }
}

/// Returns the source of a choice, for users.
pub(super) fn by(by: SelectionSource) -> &'static str {
    match by {
        SelectionSource::Reference => "by spec.configurationRef",
        SelectionSource::Selector => "by its machineSelector",
        SelectionSource::Claim => "by its MachineClaim",
        SelectionSource::Unknown => "by a source that this version does not know",
    }
}

/// Returns the next step for a Machine without a Node whose deletion could repave it, while a newer version
/// exists.
fn way_out(
    machine: &Machine,
    after: &MachineStatus,
    node: NodeSeen<'_>,
    configurations: &[&MachineConfiguration],
    versions: &[&MachineConfigurationVersion],
) -> Option<String> {
    let selected = after.selected.as_ref()?;
    if after.node_ref.is_some() || matches!(node, NodeSeen::Present(_)) {
        return None;
    }
    let mut chosen = machine.clone();
    chosen.status = Some(after.clone());
    let Choice::Select(next) = choose(&chosen, Some(Again::NodeGone), configurations, versions) else {
        return None;
    };
    let next = next.selected;
    (next.version > selected.version && next.name == selected.name).then(|| {
        let newer = next.version_name();
        format!(
            "; {newer} is newer, and there is no Node to delete; set name {} and version {} in spec.configurationRef to move the Machine",
            next.name, next.version
        )
    })
}

/// Returns time and message of a Node that registered again (H6). A user who deletes the Node requests a repave. If the kubelet registers again
/// before the controller sees the deletion, the host is not repaved. `nodeRef.reregisteredTime` records that while a repave would select another
/// version. A control plane that keeps its slot registers again without a user.
fn reregistration(
    machine: &Machine,
    before: &MachineStatus,
    node: NodeSeen<'_>,
    (configurations, versions): (&[&MachineConfiguration], &[&MachineConfigurationVersion]),
    now: Timestamp,
) -> Option<(Time, String)> {
    let (NodeSeen::Present(node), Some(applied)) = (node, &before.applied) else { return None };
    let (known, uid) = (before.node_ref.as_ref()?, node.metadata.uid.as_deref().unwrap_or_default());
    let time = if known.uid == uid { known.reregistered_time.clone()? } else { Time(now) };
    let went_back = before.rolled_back.as_ref().is_some_and(|back| back.to.key() == applied.key());
    let name = applied.version_name();
    let running = versions.iter().find(|version| version.key() == applied.key());
    let is_worker = running.is_none_or(|version| version.spec.template.kubernetes.role == NodeRole::Worker);
    let Choice::Select(next) = choose(machine, Some(Again::NodeGone), configurations, versions) else {
        return None;
    };
    let next = next.selected;
    (next.key() != applied.key() && is_worker && !went_back).then(|| {
        let called = node.metadata.name.as_deref().unwrap_or_default();
        let message = format!(
            "Node {called} was deleted and registered again before the host was repaved; it runs {name}, a repave would select {}; \
             delete the Node again",
            next.version_name()
        );
        (time, message)
    })
}

/// Returns `nodeRef` after this reconcile. The error names the owner of the Node, if the Node is not this Machine's.
fn follow(
    machine: &Machine,
    before: &MachineStatus,
    node: NodeSeen<'_>,
    (repave, reregistered_time): (bool, Option<Time>),
) -> Result<Option<NodeRef>, String> {
    let node = match node {
        NodeSeen::Present(node) => node,
        NodeSeen::Gone if repave => return Ok(None),
        // No choice was made, and the host must not be paved by a stale one.
        NodeSeen::Gone | NodeSeen::Absent => return Ok(before.node_ref.clone()),
    };
    let name = node.metadata.name.clone().unwrap_or_default();
    if let Some(why) = foreign(machine, node) {
        return Err(why);
    }
    Ok(Some(NodeRef {
        reregistered_time,
        ..NodeRef::new(name, node.metadata.uid.clone().unwrap_or_default())
    }))
}

/// Returns the annotations of the Node (H5), once the agent has reported it as the Node of the version.
fn annotate(status: &MachineStatus, node: NodeSeen<'_>) -> Option<(String, i64)> {
    let NodeSeen::Present(node) = node else { return None };
    let applied = status.applied.as_ref()?;
    let is_its = applied.node_uid.is_some() && applied.node_uid == node.metadata.uid;
    let is_ours = status.node_ref.as_ref().map(|node| &node.uid) == node.metadata.uid.as_ref();
    let there = node.metadata.annotations.clone().unwrap_or_default();
    let same = there.get(NODE_CONFIGURATION) == Some(&applied.name)
        && there.get(NODE_VERSION) == Some(&applied.version.to_string());
    (is_its && is_ours && !same).then(|| (applied.name.clone(), applied.version))
}

/// Returns the owned status fields with this status, reason and message of `Drained`. None if `Drained` has them already.
pub(super) fn drained(
    machine: &Machine,
    (drained, reason, message): &(bool, DrainedReason, String),
    now: Timestamp,
) -> Option<Status> {
    let before = machine.status.clone().unwrap_or_default();
    let mut after = before.clone();
    set_condition(&mut after, *drained, *reason, message, machine.metadata.generation, now);
    after.phase = after.phase.or(Some(Phase::Deleting));
    let wanted = own(&after);
    (own(&before) != wanted).then_some(wanted).flatten()
}

/// Types of the conditions that are written here.
const OWN: [&str; 4] = [
    condition_type::CONFIGURATION_PENDING,
    condition_type::READY,
    condition_type::STALLED,
    condition_type::DRAINED,
];

/// Returns the owned status fields. None before there is a phase.
fn own(status: &MachineStatus) -> Option<Status> {
    let conditions = OWN.iter().filter_map(|type_| status.condition(type_));
    Some(Status {
        observed_generation: status.observed_generation,
        phase: status.phase?,
        selected: status.selected.clone(),
        node_ref: status.node_ref.clone(),
        observed_node: status.observed_node,
        provider_id: status.provider_id.clone(),
        conditions: conditions.cloned().collect(),
    })
}

#[cfg(test)]
mod tests {
    use bedplate_api::writers::{self, Writer};
    use serde_json::{Value, json};

    use super::*;

    /// Named by its digest, because a tag would have to be resolved first.
    const NODE_IMAGE: &str =
        "registry.example/node@sha256:0000000000000000000000000000000000000000000000000000000000000001";

    fn object<K: serde::de::DeserializeOwned>(object: &Value) -> K {
        serde_json::from_value(object.clone()).unwrap()
    }

    /// A Machine with a node by version 1 of a configuration, of which there are two versions.
    fn machine(more: &Value) -> Machine {
        let condition = json!({ "type": "Enrolled", "status": "True", "reason": "Enrolled", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let mut status = json!({ "conditions": [condition], "nodeRef": { "name": "a", "uid": "n1" },
            "selected": { "name": "w", "version": 1, "source": "Reference" },
            "applied": { "name": "w", "version": 1, "slot": "a", "nodeUID": "n1" } });
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object(
            &json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
            "spec": { "provider": "manual", "configurationRef": { "name": "w" } }, "status": status }),
        )
    }

    fn node(uid: &str, provider_id: &str) -> Node {
        object(&json!({ "metadata": { "name": "a", "uid": uid }, "spec": { "providerID": provider_id } }))
    }

    fn planned(machine: &Machine, node: NodeSeen<'_>, versions: &[i64]) -> Plan {
        let template = json!({ "image": { "reference": NODE_IMAGE },
            "kubernetes": { "version": "v1.34.0" } });
        let configuration: MachineConfiguration = object(&json!({ "apiVersion": "bedplate.dev/v1alpha1",
            "kind": "MachineConfiguration", "metadata": { "name": "w", "uid": "u" }, "spec": { "template": template } }));
        let versions: Vec<MachineConfigurationVersion> = versions
            .iter()
            .map(|number| {
                object(&json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfigurationVersion",
                    "metadata": { "name": format!("w-v{number}"), "ownerReferences": [{ "apiVersion": "bedplate.dev/v1alpha1",
                        "kind": "MachineConfiguration", "name": "w", "uid": "u", "controller": true }] },
                    "spec": { "configurationName": "w", "version": number, "template": template } }))
            })
            .collect();
        let versions: Vec<_> = versions.iter().collect();
        plan(machine, node, None, (&[&configuration], &versions), None, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn each_edit_of_a_machine_is_observed_once() {
        let node = node("n1", "bedplate://a");
        let mut machine = machine(&json!({}));
        for generation in [1, 2] {
            machine.metadata.generation = Some(generation);
            let status = planned(&machine, NodeSeen::Present(&node), &[1]).status.unwrap();
            assert_eq!(status.observed_generation, Some(generation));
            let types: Vec<_> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
            assert_eq!(types, ["ConfigurationPending", "Ready"]);
            assert!(status.conditions.iter().all(|c| c.observed_generation == Some(generation)));
            let before = machine.status.get_or_insert_default();
            before.conditions.retain(|c| !types.contains(&c.type_.as_str()));
            before.conditions.extend(status.conditions.clone());
            (before.phase, before.provider_id) = (Some(status.phase), status.provider_id);
            before.observed_generation = status.observed_generation;
            assert_eq!(planned(&machine, NodeSeen::Present(&node), &[1]).status, None, "nothing is new");
        }
    }

    #[test]
    fn h6_a_node_that_is_gone_clears_node_ref_in_the_write_of_the_next_choice() {
        let plan = planned(&machine(&json!({})), NodeSeen::Gone, &[1, 2]);
        let status = plan.status.unwrap();
        assert_eq!(status.selected.unwrap().version, 2);
        assert_eq!((status.node_ref, status.provider_id), (None, None));
        assert_eq!(plan.lock, Some(("w".to_owned(), 2)));
    }

    #[test]
    fn h6_without_a_choice_node_ref_stays_so_that_no_stale_version_is_paved() {
        let plan = planned(&machine(&json!({})), NodeSeen::Gone, &[]);
        let status = plan.status.unwrap();
        assert!(status.node_ref.is_some() && plan.lock.is_none());
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "VersionNotFound"));
    }

    #[test]
    fn h6_node_re_registered_before_its_deletion_was_seen_runs_unchanged() {
        let ready = |plan: Plan| {
            let found = plan.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
            (found.reason, found.message)
        };
        let recreated = node("n2", "bedplate://a");
        let mut machine = machine(&json!({}));
        let plan = planned(&machine, NodeSeen::Present(&recreated), &[1, 2]);
        assert_eq!(plan.status.as_ref().unwrap().node_ref.as_ref().unwrap().uid, "n2");
        let Status { conditions, node_ref, .. } = plan.status.clone().unwrap();
        let (reason, message) = ready(plan);
        assert_eq!(reason, ReadyReason::NodeReregistered);
        assert!(
            message.contains("w-v1") && message.contains("w-v2") && message.contains("delete the Node again")
        );
        assert_ne!(
            ready(planned(&machine, NodeSeen::Present(&recreated), &[1])).0,
            ReadyReason::NodeReregistered,
            "nothing newer"
        );
        // The agent adopts the Node, and the condition stays True.
        let status = machine.status.as_mut().unwrap();
        status.conditions.extend(conditions);
        status.node_ref = node_ref;
        status.applied.as_mut().unwrap().node_uid = Some("n2".to_owned());
        let again =
            |machine: &Machine, versions: &[i64]| planned(machine, NodeSeen::Present(&recreated), versions);
        assert!(again(&machine, &[1, 2]).status.is_none_or(|status| {
            status.conditions.iter().any(|c| c.reason == ReadyReason::NodeReregistered)
        }));
        assert_ne!(ready(again(&machine, &[1])).0, ReadyReason::NodeReregistered);
        // Deleted again: the host is repaved.
        let plan = planned(&machine, NodeSeen::Gone, &[1, 2]);
        assert_eq!(plan.status.as_ref().unwrap().selected.as_ref().unwrap().version, 2);
        assert_ne!(ready(plan).0, ReadyReason::NodeReregistered);
    }

    #[test]
    fn h6_reregistered_node_is_remembered_while_ready_has_other_reasons() {
        let (recreated, mut machine) = (node("n2", "bedplate://a"), machine(&json!({})));
        let mut look = |paused: bool, off: bool, versions: &[i64]| {
            machine.spec.paused = paused;
            let status = machine.status.as_mut().unwrap();
            status.conditions.retain(|c| c.type_ != "PoweredOn");
            let power = json!({ "type": "PoweredOn", "status": "False", "reason": "PoweredOff", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" });
            status.conditions.extend(off.then(|| object::<Condition>(&power)));
            let plan = planned(&machine, NodeSeen::Present(&recreated), versions);
            let (status, after) = (machine.status.as_mut().unwrap(), plan.status.unwrap());
            status.node_ref = after.node_ref;
            status.conditions.retain(|c| c.type_ != "Ready");
            let ready = after.conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
            status.conditions.push(ready.clone());
            ready.reason
        };
        assert_eq!(look(false, false, &[1, 2]), "NodeReregistered");
        assert_eq!(look(true, false, &[1, 2]), "Paused");
        assert_eq!(look(false, true, &[1, 2]), "PoweredOff");
        assert_eq!(look(false, false, &[1, 2]), "NodeReregistered");
        // Once a repave would change nothing, a later version is an update like any other.
        assert_ne!(look(false, false, &[1]), "NodeReregistered");
        assert_ne!(look(false, false, &[1, 2]), "NodeReregistered");
    }

    #[test]
    fn node_seen_deleted_is_never_reported_as_re_registered() {
        let joined = node("n2", "bedplate://a");
        let mut machine = machine(&json!({}));
        // The host is paved with the next version, and the agent has not reported it yet.
        let status = machine.status.as_mut().unwrap();
        status.node_ref = None;
        status.selected.as_mut().unwrap().version = 2;
        let plan = planned(&machine, NodeSeen::Present(&joined), &[1, 2]);
        let conditions = plan.status.unwrap().conditions;
        assert!(conditions.iter().all(|c| c.reason != ReadyReason::NodeReregistered));
    }

    #[test]
    fn h5_only_the_node_that_came_of_a_version_is_annotated_with_it() {
        for (uid, provider_id, annotated) in [
            ("n1", "bedplate://a", true),
            ("n1", "", false),
            ("n2", "bedplate://a", false),
            ("n1", "other://a", false),
        ] {
            let node = node(uid, provider_id);
            let mut machine = machine(&json!({}));
            machine.status.as_mut().unwrap().node_ref = None;
            let plan = planned(&machine, NodeSeen::Present(&node), &[1]);
            assert_eq!(plan.annotate.is_some(), annotated, "{uid} {provider_id}");
            let node_ref = plan.status.unwrap().node_ref.map(|node| node.uid);
            assert_eq!(
                node_ref.as_deref(),
                (provider_id == "bedplate://a").then_some(uid),
                "{uid} {provider_id}"
            );
        }
    }

    #[test]
    fn trust_5_a_node_without_provider_id_is_foreign_and_no_node_ref() {
        // Registered by another host's kubelet, also where the Machine had a Node of its own before.
        let kubeadm = node("n9", "");
        for status in [json!({ "nodeRef": null, "applied": null }), json!({ "nodeRef": null }), json!({})] {
            let status = planned(&machine(&status), NodeSeen::Present(&kubeadm), &[1, 2]).status.unwrap();
            assert_ne!(status.node_ref.map(|node| node.uid).as_deref(), Some("n9"));
            let ready = status.conditions.iter().find(|c| c.type_ == "Ready").unwrap();
            assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "NodeNameConflict"));
            assert!(ready.message.contains("has no providerID"), "{}", ready.message);
        }
    }

    #[test]
    fn h5_a_foreign_node_that_node_ref_names_is_not_annotated() {
        for provider_id in ["", "other://a"] {
            let foreign = node("n1", provider_id);
            let plan = planned(&machine(&json!({})), NodeSeen::Present(&foreign), &[1]);
            assert_eq!(plan.annotate, None, "{provider_id}");
        }
    }

    #[test]
    fn h1_of_a_paused_machine_the_node_is_not_annotated() {
        let node = node("n1", "bedplate://a");
        for (paused, annotated) in [(false, true), (true, false)] {
            let mut machine = machine(&json!({}));
            machine.spec.paused = paused;
            let plan = planned(&machine, NodeSeen::Present(&node), &[1]);
            assert_eq!((plan.annotate.is_some(), plan.lock), (annotated, None), "paused: {paused}");
        }
    }

    #[test]
    fn machine_without_a_first_node_names_the_pin_for_a_newer_version() {
        let message = |machine: &Machine, versions: &[i64]| {
            let conditions = planned(machine, NodeSeen::Absent, versions).status.unwrap().conditions;
            conditions.into_iter().find(|c| c.type_ == "Ready").unwrap().message
        };
        let mut machine = machine(&json!({}));
        (machine.status.as_mut().unwrap().applied, machine.status.as_mut().unwrap().node_ref) = (None, None);
        assert_eq!(message(&machine, &[1]), "waiting for the agent to create the node");
        let reported = message(&machine, &[1, 2]);
        assert!(
            reported.contains("w-v2 is newer") && reported.contains("name w and version 2"),
            "{reported}"
        );
        // The pin of a user stays.
        machine.spec.configuration_ref.as_mut().unwrap().version = Some(1);
        assert_eq!(message(&machine, &[1, 2]), "waiting for the agent to create the node");
        // Following the message moves the Machine.
        machine.spec.configuration_ref.as_mut().unwrap().version = Some(2);
        let plan = planned(&machine, NodeSeen::Absent, &[1, 2]);
        assert_eq!(plan.status.unwrap().selected.unwrap().version, 2);
    }

    #[test]
    fn own_conditions_are_those_of_the_table_of_writers() {
        let mut own = OWN;
        own.sort_unstable();
        let mut stated = writers::conditions(writers::MACHINE, &[Writer::Controller]);
        stated.sort_unstable();
        assert_eq!(own[..], stated[..]);
    }

    #[test]
    fn current_status_is_not_written_again() {
        let mut machine = machine(&json!({}));
        let node = node("n1", "bedplate://a");
        let status = planned(&machine, NodeSeen::Present(&node), &[1]).status.unwrap();
        let written = machine.status.as_mut().unwrap();
        (written.phase, written.selected, written.node_ref) =
            (Some(status.phase), status.selected, status.node_ref);
        written.provider_id = status.provider_id;
        written.conditions.extend(status.conditions);
        assert_eq!(planned(&machine, NodeSeen::Present(&node), &[1]).status, None);
    }

    #[test]
    fn d7_end_of_a_claims_version_is_decided_by_a_live_read() {
        let of_claim = |id: &str| json!({ "name": "w", "version": 1, "source": "Claim", "providerID": id });
        let pool = machine(&json!({ "selected": of_claim("bedplate://a/u-1") }));
        let to = |selected: &Value| {
            let mut after = pool.status.clone().unwrap();
            after.phase = Some(Phase::Pending);
            after.selected = serde_json::from_value(selected.clone()).unwrap();
            Plan { status: own(&after), ..Plan::default() }
        };
        assert!(to(&Value::Null).ends_claim(&pool));
        assert!(to(&of_claim("bedplate://a/u-2")).ends_claim(&pool));
        assert!(!to(&of_claim("bedplate://a/u-1")).ends_claim(&pool));
        assert!(!Plan::default().ends_claim(&pool));
        assert!(!to(&Value::Null).ends_claim(&machine(&json!({}))), "another source");
    }
}
