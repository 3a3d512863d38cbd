//! Pure: change of an object by an apply, from the current object and the result of a dry run; and progress of the applied Deployment.

use serde_json::Value;

use crate::changes::changes;
use crate::step::{Action, Step};

/// Returns the step for an object. `before` is the current object, `after` the result of the apply.
pub(super) fn step(wanted: &Value, before: Option<&Value>, after: &Value) -> Step {
    let Some(before) = before else { return Step::new(wanted, Action::Create, Vec::new()) };
    let found = changes(&own(before), &own(after));
    let action = if found.is_empty() { Action::Unchanged } else { Action::Change };
    Step::new(wanted, action, found)
}

/// Returns an object without the fields that the API server writes.
fn own(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for name in ["managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"] {
            metadata.remove(name);
        }
    }
    object
}

/// Returns the field managers whose fields an apply would take, one line each, from the API server's conflict
/// error.
pub(super) fn conflicts(message: &str, causes: &[(String, String)]) -> Vec<String> {
    if causes.is_empty() {
        return vec![message.to_owned()];
    }
    causes.iter().map(|(field, message)| format!("{field}: {message}")).collect()
}

/// Returns true if a definition is served.
pub(super) fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Established" && c["status"] == "True")
}

/// Progress of the controller's rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rollout {
    /// The rollout is complete.
    Done(String),
    /// Pending event.
    Waiting(String),
}

/// Returns the progress of a Deployment. `pods` are its own; they may name what blocks them.
pub(super) fn rollout(deployment: &Value, pods: &[Value]) -> Rollout {
    let (status, wanted) = (&deployment["status"], deployment["spec"]["replicas"].as_i64().unwrap_or(1));
    let count = |name: &str| status[name].as_i64().unwrap_or_default();
    let name = deployment["metadata"]["name"].as_str().unwrap_or_default();
    let seen =
        count("observedGeneration") >= deployment["metadata"]["generation"].as_i64().unwrap_or_default();
    let (updated, available, all) = (count("updatedReplicas"), count("availableReplicas"), count("replicas"));
    if seen && updated == wanted && available >= wanted && all == updated {
        return Rollout::Done(format!("{name}: {available} of {wanted} run"));
    }
    let running = if seen {
        format!("{available} of {wanted} run, {updated} updated")
    } else {
        "not seen yet".to_owned()
    };
    let kept = pods.iter().find_map(kept).map(|why| format!("; {why}")).unwrap_or_default();
    Rollout::Waiting(format!("{name}: {running}{kept}"))
}

/// Returns the reason why a Pod does not run, if its status has one.
fn kept(pod: &Value) -> Option<String> {
    let status = &pod["status"];
    let containers = status["containerStatuses"].as_array().into_iter().flatten();
    let waiting = containers.into_iter().map(|container| &container["state"]["waiting"]).find(|waiting| {
        waiting["reason"]
            .as_str()
            .is_some_and(|reason| reason != "ContainerCreating" && reason != "PodInitializing")
    });
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let unscheduled = conditions.into_iter().find(|c| c["type"] == "PodScheduled" && c["status"] == "False");
    let why = waiting.or(unscheduled)?;
    let (reason, message) = (why["reason"].as_str()?, why["message"].as_str().unwrap_or_default());
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    Some(format!("{name}: {reason} {message}").trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_written_by_the_api_server_are_not_changes() {
        let wanted = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "a", "namespace": "b" } });
        let mut before = wanted.clone();
        before["metadata"]["resourceVersion"] = json!("1");
        before["status"] = json!({ "a": 1 });
        assert_eq!(step(&wanted, None, &wanted).action, Action::Create);
        let same = step(&wanted, Some(&before), &wanted);
        assert_eq!((same.action, same.object().as_str()), (Action::Unchanged, "ServiceAccount b/a"));
        let mut after = before.clone();
        after["metadata"]["labels"] = json!({ "x": "y" });
        let change = step(&wanted, Some(&before), &after);
        assert_eq!(
            (change.action, change.changes),
            (Action::Change, vec!["metadata.labels added".to_owned()])
        );
    }

    #[test]
    fn the_controller_runs_when_all_of_the_new_ones_do_and_no_old_one_is_left() {
        let deployment = |generation: i64, replicas: i64, updated: i64, available: i64| {
            json!({ "metadata": { "name": "c", "generation": 2 }, "spec": { "replicas": 2 },
                "status": { "observedGeneration": generation, "replicas": replicas, "updatedReplicas": updated, "availableReplicas": available } })
        };
        assert_eq!(rollout(&deployment(2, 2, 2, 2), &[]), Rollout::Done("c: 2 of 2 run".to_owned()));
        for (generation, replicas, updated, available) in
            [(1, 2, 2, 2), (2, 3, 2, 2), (2, 2, 1, 2), (2, 2, 2, 1)]
        {
            let found = rollout(&deployment(generation, replicas, updated, available), &[]);
            assert!(matches!(found, Rollout::Waiting(_)), "{found:?}");
        }
        let pod = json!({ "metadata": { "name": "c-1" }, "status": { "containerStatuses": [
            { "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } } }] } });
        let Rollout::Waiting(line) = rollout(&deployment(2, 2, 2, 0), &[json!({}), pod]) else { panic!() };
        assert_eq!(line, "c: 0 of 2 run, 2 updated; c-1: ImagePullBackOff no such image");
        let pod = json!({ "metadata": { "name": "c-1" }, "status": { "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node" }] } });
        let Rollout::Waiting(line) = rollout(&deployment(2, 2, 2, 0), &[pod]) else { panic!() };
        assert!(line.ends_with("; c-1: Unschedulable no node"), "{line}");
    }
}
