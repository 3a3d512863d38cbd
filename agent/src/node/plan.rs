//! Decides the next step for the two slots.
//!
//! Pure: observed state in, one step or one wait out. Called by the node's loop
//! after each step and each change.

use bedplate_api::machine::SlotName;
use bedplate_api::reason::machine::PavedReason;
use jiff::{SignedDuration, Timestamp};

use crate::model::{
    Act, Annotations, Api, Bootstrap, Leave, Log, NodeSeen, Observed, Plan, Record, Stage, Step,
    VersionFacts, Wait, other,
};
use control_plane::{is_kept, made_cluster};
pub(super) use holds::is_drained;
pub use holds::is_timed;
use holds::{gone, held, is_free, is_made_for};

/// Message of a running node.
const APPLIED: &str = "the selected version runs, or is prepared and starts when the Node is deleted";

/// Number of boots in one trial at which its version has failed, for example because its kernel panics.
const MAX_TRIAL_BOOTS: u32 = 3;

/// Decides.
pub fn plan(seen: &Observed) -> Plan {
    if let Some(slot) =
        SlotName::ALL.into_iter().find(|slot| matches!(stage(seen, *slot), Some(Stage::Trial { .. })))
    {
        return on_trial(seen, slot);
    }
    if let Some(plan) = control_plane::astray(seen) {
        return plan;
    }
    match applied(seen) {
        Some((slot, node_uid)) => on_applied(seen, slot, node_uid),
        None => pave(seen, None),
    }
}

/// Plans for a slot on trial: it becomes the node, or the former slot runs again.
fn on_trial(seen: &Observed, slot: SlotName) -> Plan {
    let Some(record) = record(seen, slot) else { return wait(PavedReason::Applied, "") };
    let Stage::Trial { boot_id, since, boots } = &record.stage else { return wait(PavedReason::Applied, "") };
    let former = applied(seen).map(|(slot, _)| slot);
    if *boot_id != seen.boot_id {
        let boots = boots.saturating_add(1);
        if boots < MAX_TRIAL_BOOTS || is_kept(seen, slot) {
            return Plan::step(slot, Act::RestartTrial);
        }
        let reason = format!("the host booted {boots} times during the trial");
        return Plan::step(slot, Act::Fail { reason, log: Log::Slot, back_to: former });
    }
    if is_drained(seen) {
        return Plan::Do(control_plane::release(seen, slot));
    }
    // Before the former slot is stopped, because its node keeps running until then.
    if let Some(held) = held(seen) {
        return Plan::Wait(held);
    }
    if is_unwanted(seen, record) && !is_kept(seen, slot) {
        return Plan::Do(stop_and_empty(seen, slot));
    }
    if runs(seen, other(slot)) {
        if seen.api != Api::Live {
            return wait(
                PavedReason::ApiServerUnreachable,
                "the API server does not answer; the running node is kept",
            );
        }
        return Plan::step(other(slot), Act::StopSlot);
    }
    let deadline = later(*since, SignedDuration::from_secs(record.timeout_seconds) + seen.not_counted);
    let over = !is_kept(seen, slot) && (seen.now >= deadline || seen.health.bootstrap == Bootstrap::Failed);
    let pending = match gate(seen, record, slot) {
        // A failed probe is retried until the deadline.
        Ok(Act::ProbeSandbox) if over && let Some(why) = &seen.health.message => Wait {
            reason: PavedReason::CheckingHealth,
            message: format!("failed to start a Pod sandbox: {why}"),
            until: None,
        },
        Ok(act) => return Plan::step(slot, act),
        Err(pending) => pending,
    };
    // While the API server is unreachable, a Node that is not Ready does not show a fault of the slot.
    if over && seen.api == Api::Live {
        let log = whose_log(seen, slot);
        return Plan::step(slot, Act::Fail { reason: pending.message, log, back_to: former });
    }
    if !runs(seen, slot) {
        return Plan::step(slot, Act::StartSlot);
    }
    Plan::Wait(control_plane::until(seen, slot, pending, deadline))
}

/// Returns the log that explains why the health gate does not pass.
fn whose_log(seen: &Observed, slot: SlotName) -> Log {
    let health = &seen.health;
    match &seen.node {
        _ if !runs(seen, slot) => Log::Slot,
        _ if health.bootstrap != Bootstrap::Done => Log::Kubeadm,
        _ if !health.kubelet => Log::Kubelet,
        _ if !health.runtime => Log::Runtime,
        // The runtime logs failures of Pod sandboxes.
        NodeSeen::Present { ready_since: Some(_), .. } => Log::Runtime,
        NodeSeen::Unknown | NodeSeen::Absent | NodeSeen::Present { ready_since: None, .. } => Log::Kubelet,
    }
}

/// Returns true if a trial is obsolete: another version is selected, and this one has no Node yet.
fn is_unwanted(seen: &Observed, record: &Record) -> bool {
    let selected = seen.machine.as_ref().and_then(|machine| machine.selected.as_ref());
    seen.api == Api::Live
        && (seen.node == NodeSeen::Absent || seen.node == NodeSeen::Unknown && seen.health.no_credential)
        && seen.health.bootstrap != Bootstrap::Done
        && selected.is_some_and(|selected| *selected != record.version)
}

/// Returns the next step of the health gate, or the reason for waiting.
fn gate(seen: &Observed, record: &Record, slot: SlotName) -> Result<Act, Wait> {
    let said = seen.health.message.as_deref().map(|said| format!(": {said}")).unwrap_or_default();
    let pending = |reason, what: &str| Err(Wait { reason, message: format!("{what}{said}"), until: None });
    if !runs(seen, slot) {
        return pending(PavedReason::Joining, "the slot does not run");
    }
    match seen.health.bootstrap {
        Bootstrap::Running => return pending(PavedReason::Joining, "kubeadm has not finished"),
        Bootstrap::Failed => return pending(PavedReason::Joining, "kubeadm failed"),
        Bootstrap::Done => {}
    }
    if !seen.health.kubelet {
        return pending(PavedReason::CheckingHealth, "the kubelet is not healthy");
    }
    if !seen.health.runtime {
        return pending(PavedReason::CheckingHealth, "the container runtime is not ready");
    }
    if seen.health.waits_for_control_plane {
        return pending(PavedReason::CheckingHealth, "the API server of the slot is not ready");
    }
    if seen.api != Api::Live {
        return pending(
            PavedReason::ApiServerUnreachable,
            "the API server does not answer, so the state of the Node is unknown",
        );
    }
    let (uid, ready_since) = match &seen.node {
        NodeSeen::Unknown | NodeSeen::Absent => {
            return pending(PavedReason::CheckingHealth, "the Node has not registered");
        }
        NodeSeen::Present { ready_since: None, .. } => {
            return pending(PavedReason::CheckingHealth, "the Node is not Ready");
        }
        NodeSeen::Present { uid, ready_since: Some(since) } => (uid, *since),
    };
    let long_enough = later(ready_since, SignedDuration::from_secs(record.min_ready_seconds));
    // A time in the future was written before the clock was set back. Its age is unknown, and waiting for it
    // would fail the trial of a healthy node.
    if (ready_since..long_enough).contains(&seen.now) {
        let message = format!("the Node is Ready and must stay Ready for {} s", record.min_ready_seconds);
        return Err(Wait { reason: PavedReason::CheckingHealth, message, until: Some(long_enough) });
    }
    // Ready alone hides most faults of a slot: those that show when a Pod starts.
    if !seen.health.sandbox {
        return Ok(Act::ProbeSandbox);
    }
    Ok(Act::Commit { node_uid: uid.clone() })
}

/// Plans for a slot that is the node: it runs, and the prepared other slot replaces it when the Node is
/// deleted.
fn on_applied(seen: &Observed, slot: SlotName, node_uid: &str) -> Plan {
    if matches!(stage(seen, other(slot)), Some(Stage::Applied { .. })) {
        return Plan::step(other(slot), Act::Retire);
    }
    if runs(seen, other(slot)) {
        return Plan::step(other(slot), Act::StopSlot);
    }
    // A started removal is finished even if the API server does not answer, because the slot's own one
    // stopped with its etcd.
    if seen.slots[slot].leaving {
        return Plan::step(slot, Act::LeaveCluster);
    }
    if seen.api == Api::Unasked && !runs(seen, slot) {
        // A Node that was deleted while the host was down must not be registered again by starting its old slot.
        return wait(PavedReason::ApiServerUnreachable, "the API server has not answered yet");
    }
    if seen.api == Api::Live
        && let Some(plan) = on_applied_live(seen, slot, node_uid)
    {
        return plan;
    }
    if !runs(seen, slot) {
        return Plan::step(slot, Act::StartSlot);
    }
    if let Some(plan) = mute(seen, slot) {
        return plan;
    }
    let of_node = matches!(&seen.node, NodeSeen::Present { uid, .. } if uid == node_uid);
    let annotate = of_node && is_timed(seen) && seen.annotations != Annotations::Written;
    let annotate = annotate.then(|| Plan::step(slot, Act::AnnotateNode { node_uid: node_uid.to_owned() }));
    if let Some(step) = annotate.clone().filter(|_| seen.annotations == Annotations::Due) {
        return step;
    }
    let rest = match (wanted(seen), &seen.leave) {
        (Ok(version), _) if made_cluster(seen, slot) => {
            let runs = record(seen, slot).is_some_and(|record| record.version == version.reference);
            wait(
                if runs { PavedReason::Applied } else { PavedReason::ControlPlaneProtected },
                control_plane::CLUSTER,
            )
        }
        (Ok(version), Leave::MayNot(why)) => control_plane::may_not_leave(seen, version, why),
        (Ok(version), _) if !is_prepared(seen, other(slot), version) && is_kept(seen, other(slot)) => {
            control_plane::in_the_way(other(slot))
        }
        (Ok(version), _) if !is_prepared(seen, other(slot), version) => {
            return Plan::step(other(slot), Act::PrepareSlot { version: version.reference.clone() });
        }
        (Err(wait), _) if wait.reason == PavedReason::VersionRejected => Plan::Wait(wait),
        (_, Leave::May) => control_plane::may_leave(seen, APPLIED),
        _ => wait(PavedReason::Applied, APPLIED),
    };
    let left = leftover::of_unselected(seen, Some(slot)).map(Plan::Do);
    annotate.or(left).unwrap_or(rest)
}

/// Plans for a kubelet whose certificate has expired, so that the slot's
/// cluster cannot be asked: renew the certificate, or report it.
fn mute(seen: &Observed, slot: SlotName) -> Option<Plan> {
    let ended = seen.kubelet_ended.filter(|_| seen.api != Api::Live || seen.node == NodeSeen::Unknown)?;
    if seen.joins_again && seen.machine.as_ref().is_none_or(is_free) {
        return Some(Plan::step(slot, Act::RenewKubelet));
    }
    let message = format!(
        "the kubelet's certificate expired at {ended:.0}; its API server does not answer this host, so a \
         deletion of the Node is not noticed; see docs/concepts/node.md, \"Without a cluster\", to renew \
         it or to repave the host"
    );
    Some(wait(PavedReason::KubeletCertificateExpired, &message))
}

/// Plans by the Machine and the Node, before the applied slot is kept running.
fn on_applied_live(seen: &Observed, slot: SlotName, node_uid: &str) -> Option<Plan> {
    let machine = match &seen.machine {
        Some(machine) if machine.ours => machine,
        // A slot that a reboot stopped is started. A restored API server may have
        // no Machine or an older certificate, which is not a reason to stop a node.
        // Only if another Machine has the name, another host may be its node.
        machine if !runs(seen, slot) && machine.as_ref().is_none_or(|machine| is_made_for(seen, machine)) => {
            return None;
        }
        machine => return Some(wait(PavedReason::MachineNotFound, gone(seen, machine.as_ref()))),
    };
    if runs(seen, slot)
        && seen.kubelet_ended.is_some()
        && held(seen).is_none()
        && matches!(&seen.node, NodeSeen::Present { uid, ready_since: None } if uid == node_uid)
    {
        return Some(Plan::step(slot, Act::RenewKubelet));
    }
    match &seen.node {
        NodeSeen::Unknown if runs(seen, slot) => return None,
        NodeSeen::Unknown => {
            return Some(wait(PavedReason::ApiServerUnreachable, "the Node has not been read yet"));
        }
        NodeSeen::Absent => {}
        // A re-created Node is not a deletion. A slot that a failed trial has
        // stopped is started before its Node matters.
        NodeSeen::Present { uid, .. } if uid == node_uid || !runs(seen, slot) => return None,
        NodeSeen::Present { uid, .. } if machine.node_ref.as_ref() == Some(uid) => {
            return Some(Plan::step(slot, Act::AdoptNode { node_uid: uid.clone() }));
        }
        NodeSeen::Present { .. } => {
            let why = "the slot has registered its Node again; waiting for bedplate-controller to adopt it";
            return Some(wait(PavedReason::AwaitingSelection, why));
        }
    }
    if is_drained(seen) {
        return Some(Plan::Do(control_plane::release(seen, slot)));
    }
    if made_cluster(seen, slot) {
        let why = "the Node was deleted, but the slot contains the cluster and is kept; run `systemctl \
                   restart kubelet.service` in the slot to register the Node again";
        return runs(seen, slot).then(|| wait(PavedReason::ControlPlaneProtected, why));
    }
    match control_plane::leave_first(seen, slot, pave(seen, Some(slot))) {
        // A slot that a reboot or a failed trial stopped is started. Exception: the controller is about to
        // select a version, and the start would register the Node that a user deleted.
        Plan::Wait(pending) if !runs(seen, slot) && pending.reason != PavedReason::AwaitingSelection => None,
        plan => Some(plan),
    }
}

/// Message for a Node that is Ready although no slot runs.
const STILL_READY: &str = "a Node of this name is Ready, but no slot runs on this host; after a reboot the \
                           Node becomes NotReady soon, otherwise another host uses its name";

/// Plans from nothing, or from a deleted Node, to a trial of the selected version.
fn pave(seen: &Observed, former: Option<SlotName>) -> Plan {
    if former.is_none()
        && let Some(step) = leftover::of_drained(seen)
    {
        return Plan::Do(step);
    }
    let has_failed = |slot: &SlotName| matches!(stage(seen, *slot), Some(Stage::Failed { .. }));
    // If no slot is the node, the former one was removed from its cluster.
    let is_over = |slot: &SlotName| has_failed(slot) || stage(seen, *slot) == Some(&Stage::Retired);
    if let Some(slot) = SlotName::ALL.into_iter().find(is_over).filter(|_| former.is_none()) {
        // A failed slot must not get Pods. While its kubelet is healthy, its Node
        // is Ready and no new trial starts.
        if runs(seen, slot) && seen.api == Api::Live && held(seen).is_none() {
            return Plan::step(slot, Act::StopSlot);
        }
    }
    let version = match wanted(seen) {
        Ok(version) => version,
        Err(wait) => return leftover::of_unselected(seen, former).map_or(Plan::Wait(wait), Plan::Do),
    };
    let node_ref = seen.machine.as_ref().and_then(|machine| machine.node_ref.as_ref());
    match &seen.node {
        NodeSeen::Unknown => return wait(PavedReason::ApiServerUnreachable, "the Node was not read yet"),
        NodeSeen::Absent if node_ref.is_some() => {
            let why = "the Node was deleted; waiting for bedplate-controller to select the next version";
            return wait(PavedReason::AwaitingSelection, why);
        }
        NodeSeen::Absent => {}
        NodeSeen::Present { ready_since: Some(_), .. } => {
            return wait(PavedReason::NodeStillReady, STILL_READY);
        }
        // State in memory was lost in a boot. The selection stays, and the Node joins again.
        NodeSeen::Present { ready_since: None, .. } => {}
    }
    if let Some(slot) = SlotName::ALL.into_iter().find(|slot| former != Some(*slot) && runs(seen, *slot)) {
        return Plan::step(slot, Act::StopSlot);
    }
    let ready =
        SlotName::ALL.into_iter().find(|slot| former != Some(*slot) && is_prepared(seen, *slot, version));
    let in_the_way = |slot: &SlotName| former != Some(*slot) && ready != Some(*slot) && is_kept(seen, *slot);
    if let Some(slot) = SlotName::ALL.into_iter().find(in_the_way) {
        return control_plane::in_the_way(slot);
    }
    let slot = ready.or(former.map(other)).unwrap_or(SlotName::A);
    let too_early = seen.now < seen.not_before;
    // Files of a failed trial stay readable in its slot until it is retried.
    let failed =
        too_early && SlotName::ALL.into_iter().filter(has_failed).any(|slot| holds(seen, slot, version));
    if ready.is_none() && !failed {
        return Plan::step(slot, Act::PrepareSlot { version: version.reference.clone() });
    }
    if too_early {
        let message =
            format!("{} trials failed, the next one starts at {:.0}", seen.failures, seen.not_before);
        return Plan::Wait(Wait { reason: PavedReason::BackOff, message, until: Some(seen.not_before) });
    }
    Plan::step(slot, Act::BeginTrial)
}

/// Returns the version that may be paved, or the reason for waiting.
fn wanted(seen: &Observed) -> Result<&VersionFacts, Wait> {
    let because = |reason, message: &str| Wait { reason, message: message.to_owned(), until: None };
    match seen.api {
        Api::Live => {}
        Api::Unasked => {
            return Err(because(
                PavedReason::ApiServerUnreachable,
                "the agent has just started and has no answer of the API server yet",
            ));
        }
        Api::Away => {
            return Err(because(PavedReason::ApiServerUnreachable, "the API server does not answer"));
        }
    }
    if let Some(held) = held(seen) {
        return Err(held);
    }
    let Some(machine) = &seen.machine else {
        return Err(because(PavedReason::MachineNotFound, gone(seen, None)));
    };
    let Some(selected) = &machine.selected else {
        return Err(because(PavedReason::NoVersionSelected, "no configuration is selected for this Machine"));
    };
    let Some(version) = seen.version.as_ref().filter(|version| version.reference == *selected) else {
        let message = format!("{} is selected but was not read yet", selected.version_name());
        return Err(because(PavedReason::VersionUnavailable, &message));
    };
    if seen.refused.contains(selected) {
        let message = format!(
            "{} failed on this host and is not retried automatically; select another version, or retry \
             this one by an applyConfiguration",
            selected.version_name()
        );
        return Err(because(PavedReason::VersionRejected, &message));
    }
    Ok(version)
}

/// Returns the slot that is the node, and its Node's UID. Of two slots the later one counts, because a kill
/// may separate two writes.
fn applied(seen: &Observed) -> Option<(SlotName, &str)> {
    let of = |slot: SlotName| {
        let record = record(seen, slot)?;
        match &record.stage {
            Stage::Applied { node_uid, since } => Some((record.generation, *since, slot, node_uid.as_str())),
            _ => None,
        }
    };
    let last =
        SlotName::ALL.into_iter().filter_map(of).max_by_key(|(generation, since, ..)| (*generation, *since));
    last.map(|(.., slot, uid)| (slot, uid))
}

fn record(seen: &Observed, slot: SlotName) -> Option<&Record> {
    seen.slots[slot].record.as_ref()
}

fn stage(seen: &Observed, slot: SlotName) -> Option<&Stage> {
    record(seen, slot).map(|record| &record.stage)
}

fn runs(seen: &Observed, slot: SlotName) -> bool {
    seen.slots[slot].runs
}

fn is_prepared(seen: &Observed, slot: SlotName, version: &VersionFacts) -> bool {
    stage(seen, slot) == Some(&Stage::Prepared) && holds(seen, slot, version)
}

fn holds(seen: &Observed, slot: SlotName, version: &VersionFacts) -> bool {
    record(seen, slot)
        .is_some_and(|record| record.version == version.reference && record.template == version.template)
}

/// Stops a slot, then empties it, which removes the kubelet's certificate.
fn stop_and_empty(seen: &Observed, slot: SlotName) -> Step {
    Step { slot, act: if runs(seen, slot) { Act::StopSlot } else { Act::Abandon } }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

fn wait(reason: PavedReason, message: &str) -> Plan {
    Plan::Wait(Wait { reason, message: message.to_owned(), until: None })
}

pub mod claim;
mod control_plane;
mod holds;
mod leftover;
#[cfg(test)]
mod tests;
