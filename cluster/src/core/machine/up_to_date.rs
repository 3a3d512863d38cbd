//! Pure: condition `UpToDate` of a Machine of a MachineDeployment: its MachineSet has the template of the deployment.
//!
//! The set decides and not the Machine: a rollout replaces sets. Other owners, such as control planes, write the condition for their
//! Machines.
//! Called by `condition` and `status`.

use std::time::Duration;

use bedplate_api::reason::core::UpToDateReason;
use bedplate_replicas::changes;

use super::condition::Line;
use super::plan::Observed;
use crate::core::deployment::observe::template;
use crate::core::object::created;

/// Returns the delay until `rollout.after` of the deployment. None: it has passed, or it is not set.
pub fn until(observed: &Observed) -> Option<Duration> {
    let after = observed.deployment.as_ref()?.spec.rollout.as_ref()?.after.as_ref()?.0;
    Duration::try_from(after.duration_since(observed.now)).ok().filter(|left| !left.is_zero())
}

/// Returns the condition. None: another controller writes it, or it does not exist.
pub fn line(observed: &Observed) -> Option<Line> {
    let (set, deployment) = (observed.set.as_deref()?, observed.deployment.as_deref()?);
    let changes = changes(&template(&set.spec.template), &template(&deployment.spec.template));
    let mut texts: Vec<String> = changes.iter().map(|change| format!("* {change}")).collect();
    let rollout = deployment.spec.rollout.as_ref();
    let after = rollout.and_then(|rollout| rollout.after.as_ref()).map(|after| after.0);
    if let Some(after) = after.filter(|after| *after <= observed.now && created(set) < *after) {
        texts.push(format!(
            "* MachineSet is older than spec.rollout.after of its MachineDeployment, {after:.0}"
        ));
    }
    Some(if texts.is_empty() {
        Line::of(UpToDateReason::UpToDate, "")
    } else {
        Line::of(UpToDateReason::NotUpToDate, texts.join("\n"))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bedplate_api::cluster::full::condition_type::UP_TO_DATE;
    use serde_json::{Value, json};

    use super::*;
    use crate::core::machine::fixture::{merge, object, observed, shown};
    use crate::core::machine::status::own;

    fn value(kind: &str, change: &Value) -> Value {
        let reference = json!({ "apiGroup": "g.io", "kind": "HostTemplate", "name": "t" });
        let mut value = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
            "metadata": { "name": "w", "namespace": "team-a", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "clusterName": "c", "template": { "spec": {
                "clusterName": "c", "version": "v1.34.0", "infrastructureRef": reference } } } });
        merge(&mut value, change);
        value
    }

    /// A Machine of a set, with a change of the deployment.
    fn of_deployment(change: &Value) -> Observed {
        let mut world = observed(&json!({}));
        world.set = Some(Arc::new(object(value("MachineSet", &json!({})))));
        world.deployment = Some(Arc::new(object(value("MachineDeployment", change))));
        world
    }

    #[test]
    fn md1_machine_of_another_template_is_not_up_to_date() {
        let (status, reason, _) = shown(&of_deployment(&json!({})), UP_TO_DATE);
        assert_eq!((status.as_str(), reason.as_str()), ("True", "UpToDate"));
        let newer = json!({ "spec": { "template": { "spec": { "version": "v1.35.0" } } } });
        let (status, reason, message) = shown(&of_deployment(&newer), UP_TO_DATE);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "NotUpToDate"));
        assert!(message.starts_with("* ") && message.contains("v1.35.0"), "{message}");
    }

    #[test]
    fn md1_machine_of_a_set_before_rollout_after_is_not_up_to_date() {
        for (after, expected) in [
            ("2026-01-01T00:30:00Z", "False"),
            ("2026-01-01T02:00:00Z", "True"),
            ("2025-01-01T00:00:00Z", "True"),
        ] {
            let world = of_deployment(&json!({ "spec": { "rollout": { "after": after } } }));
            assert_eq!(shown(&world, UP_TO_DATE).0, expected, "{after}");
        }
    }

    #[test]
    fn md1_time_of_rollout_after_starts_the_next_turn() {
        let until =
            |after: &str| until(&of_deployment(&json!({ "spec": { "rollout": { "after": after } } })));
        assert_eq!(until("2026-01-01T02:00:00Z"), Some(Duration::from_secs(3600)));
        assert_eq!(until("2026-01-01T00:30:00Z"), None);
    }

    #[test]
    fn md1_condition_of_another_owner_is_not_sent() {
        let theirs = json!({ "type": UP_TO_DATE, "status": "True", "reason": "X", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let mut world = observed(&json!({ "status": { "conditions": [theirs] } }));
        assert_eq!(shown(&world, UP_TO_DATE).1, "X", "it stays");
        let status = world.machine.status.clone().unwrap();
        assert!(own(status.clone(), &world).conditions.is_empty());
        let owned = of_deployment(&json!({}));
        (world.set, world.deployment) = (owned.set, owned.deployment);
        assert_eq!(own(status, &world).conditions.len(), 1);
    }
}
