//! Pure: Events about one Machine after its status is written, one for each decision.

use bedplate_api::condition::{Conditions as _, condition, is_true};
use bedplate_api::machine::{Condition, MachineStatus, Selected, condition_type};
use bedplate_api::reason::Reason;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::reason::machine::{ConfigurationPendingReason, ReadyReason};

use super::plan::{Status, by};

/// Returns the Events for the changes of a write, in reading order.
pub(super) fn changes(before: &MachineStatus, after: &Status) -> Vec<(ControllerEvent, String)> {
    let mut all = Vec::new();
    match (&before.node_ref, &after.node_ref) {
        (Some(gone), None) => {
            let next = after.selected.as_ref().map(Selected::version_name);
            let next = next.unwrap_or_default();
            let note = format!("Node {} deleted; repaving the host with {next}", gone.name);
            all.push((ControllerEvent::NodeDeleted, note));
        }
        (before, Some(node)) if before.as_ref().map(|before| &before.uid) != Some(&node.uid) => {
            let again = if before.is_some() { " again" } else { "" };
            let note = format!("Node {} registered{again} (UID {})", node.name, node.uid);
            all.push((ControllerEvent::NodeRegistered, note));
        }
        (None | Some(_), Some(_)) | (None, None) => {}
    }
    if let Some(selected) = after
        .selected
        .as_ref()
        .filter(|selected| !before.selected.as_ref().is_some_and(|was| was.is_same_choice(selected)))
    {
        let was = before.selected.as_ref().map(Selected::version_name);
        let was = was.map(|was| format!("; previously {was}")).unwrap_or_default();
        let note = format!("{} selected {}{was}", selected.version_name(), by(selected.source));
        all.push((ControllerEvent::VersionSelected, note));
    }
    all.extend(trouble(before, after));
    all
}

/// Obstacle to the selection of a version or to the Node, unless the same reason was reported for this generation of the Machine.
fn trouble(before: &MachineStatus, after: &Status) -> Option<(ControllerEvent, String)> {
    let news = |type_: &str| {
        let fields = |c: &Condition| (c.status.clone(), c.reason.clone(), c.observed_generation);
        let (was, is) = (before.condition(type_), condition(&after.conditions, type_)?);
        (was.map(fields) != Some(fields(is))).then_some(is)
    };
    let with_reason = |c: &Condition| format!("{}: {}", c.reason, c.message);
    // A free host of a pool is not a failure.
    let failed = |c: &&Condition| c.status == "True" && c.reason != ConfigurationPendingReason::ClaimPending;
    if let Some(pending) = news(condition_type::CONFIGURATION_PENDING).filter(failed) {
        return Some((ControllerEvent::SelectionFailed, with_reason(pending)));
    }
    let ready = news(condition_type::READY).filter(|c| c.status == "False")?;
    // While nothing is selected, `Ready` has the reason of `ConfigurationPending`.
    if is_true(&after.conditions, condition_type::CONFIGURATION_PENDING) {
        return None;
    }
    let event = match ReadyReason::parse(&ready.reason) {
        Some(ReadyReason::NodeNameConflict) => ControllerEvent::NodeNameConflict,
        Some(ReadyReason::NodeReregistered) => ControllerEvent::NodeReregistered,
        Some(ReadyReason::RolledBack) => ControllerEvent::RolledBack,
        Some(_) | None => {
            let is_due = PENDING.iter().any(|pending| ready.reason == *pending);
            return is_due.then(|| (ControllerEvent::SelectionFailed, with_reason(ready)));
        }
    };
    Some((event, ready.message.clone()))
}

/// Reasons why a choice that is due cannot be made.
const PENDING: [ConfigurationPendingReason; 4] = [
    ConfigurationPendingReason::ConfigurationNotFound,
    ConfigurationPendingReason::VersionNotFound,
    ConfigurationPendingReason::ImageUnresolved,
    ConfigurationPendingReason::Claimed,
];

#[cfg(test)]
mod tests {
    use bedplate_api::machine::{NodeRef, Phase, SelectionSource};
    use serde_json::{Value, json};

    use super::*;

    fn status(selected: Option<i64>, uid: Option<&str>, conditions: &Value) -> Status {
        let selected = selected.map(|version| Selected {
            name: "w".to_owned(),
            version,
            source: SelectionSource::Selector,
            provider_id: None,
            granted: false,
        });
        let node_ref = uid.map(|uid| NodeRef::new("a", uid));
        let conditions = serde_json::from_value(conditions.clone()).unwrap();
        Status {
            observed_generation: None,
            phase: Phase::Pending,
            selected,
            node_ref,
            observed_node: None,
            provider_id: None,
            conditions,
        }
    }

    fn before(after: &Status) -> MachineStatus {
        MachineStatus {
            selected: after.selected.clone(),
            node_ref: after.node_ref.clone(),
            conditions: after.conditions.clone(),
            ..MachineStatus::default()
        }
    }

    fn is(type_: &str, status: bool, reason: &str) -> Value {
        json!({ "type": type_, "status": if status { "True" } else { "False" }, "reason": reason, "message": "why",
            "lastTransitionTime": "2026-01-01T00:00:00Z" })
    }

    #[test]
    fn each_change_is_reported_once_with_the_data_users_need() {
        let none = json!([]);
        let joined = status(Some(1), Some("n1"), &none);
        let repaved = status(Some(2), None, &none);
        let reasons = |before: &MachineStatus, after: &Status| -> Vec<ControllerEvent> {
            changes(before, after).into_iter().map(|(reason, _)| reason).collect()
        };
        assert!(changes(&before(&joined), &joined).is_empty());
        assert_eq!(
            reasons(&MachineStatus::default(), &joined),
            [ControllerEvent::NodeRegistered, ControllerEvent::VersionSelected]
        );
        assert_eq!(
            changes(&before(&joined), &repaved),
            [
                (ControllerEvent::NodeDeleted, "Node a deleted; repaving the host with w-v2".to_owned()),
                (
                    ControllerEvent::VersionSelected,
                    "w-v2 selected by its machineSelector; previously w-v1".to_owned()
                ),
            ]
        );
        let pending = status(
            None,
            None,
            &json!([
                is("ConfigurationPending", true, "NoConfiguration"),
                is("Ready", false, "NoConfiguration")
            ]),
        );
        assert_eq!(
            changes(&MachineStatus::default(), &pending),
            [(ControllerEvent::SelectionFailed, "NoConfiguration: why".to_owned())]
        );
        let free = [is("ConfigurationPending", true, "ClaimPending"), is("Ready", false, "ClaimPending")];
        let free = status(None, None, &json!(free));
        assert!(
            changes(&MachineStatus::default(), &free).is_empty(),
            "a free host of a pool is not a failure"
        );
        for (reason, wanted) in [
            ("NodeNameConflict", Some(ControllerEvent::NodeNameConflict)),
            ("NodeReregistered", Some(ControllerEvent::NodeReregistered)),
            ("VersionNotFound", Some(ControllerEvent::SelectionFailed)),
            ("ImageUnresolved", Some(ControllerEvent::SelectionFailed)),
            ("RolledBack", Some(ControllerEvent::RolledBack)),
            // Other writers report their own conditions.
            ("KubeletNotReady", None),
        ] {
            let after = status(Some(1), Some("n1"), &json!([is("Ready", false, reason)]));
            assert_eq!(reasons(&before(&joined), &after), Vec::from_iter(wanted), "{reason}");
            assert!(changes(&before(&after), &after).is_empty(), "{reason}: said already");
            let mut reworded = before(&after);
            reworded.conditions[0].message = "other words".to_owned();
            assert!(changes(&reworded, &after).is_empty(), "{reason}: no message decides");
            let mut edited = before(&after);
            edited.conditions[0].observed_generation = Some(1);
            assert_eq!(
                reasons(&edited, &after),
                Vec::from_iter(wanted),
                "{reason}: of the Machine before an edit"
            );
        }
    }
}
