//! Status of an object as kstatus (sigs.k8s.io/cli-utils) computes it for a kind that it does not know.
//!
//! Tools that wait for objects use these rules: Flux, kpt, Argo CD health checks, `helm --wait`.

use serde_json::Value;

/// Status of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kstatus {
    /// The object is not reconciled yet.
    InProgress,
    /// Reconciliation makes no progress.
    Failed,
    /// The object is reconciled.
    Current,
    /// The object is being deleted.
    Terminating,
}

/// Computes the status of an object.
pub fn of(object: &Value) -> Kstatus {
    let metadata = &object["metadata"];
    if metadata.get("deletionTimestamp").is_some() {
        return Kstatus::Terminating;
    }
    let observed = object["status"]["observedGeneration"].as_i64();
    if observed.is_some_and(|observed| Some(observed) != metadata["generation"].as_i64()) {
        return Kstatus::InProgress;
    }
    let is = |type_: &str| {
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.filter(|condition| condition["type"] == type_).find_map(|found| found["status"].as_str())
    };
    match (is("Reconciling"), is("Stalled"), is("Ready")) {
        (Some("True"), ..) => Kstatus::InProgress,
        (_, Some("True"), _) => Kstatus::Failed,
        (.., Some("True") | None) => Kstatus::Current,
        (.., Some(_)) => Kstatus::InProgress,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_current_once_its_generation_is_observed_and_it_is_ready() {
        let machine = |observed: Option<i64>, ready: Option<&str>| {
            let conditions: Vec<_> =
                ready.into_iter().map(|status| json!({ "type": "Ready", "status": status })).collect();
            let status = json!({ "observedGeneration": observed, "conditions": conditions });
            of(&json!({ "metadata": { "generation": 2 }, "status": status }))
        };
        for (observed, ready, expected) in [
            (Some(-1), None, Kstatus::InProgress),
            (Some(1), Some("True"), Kstatus::InProgress),
            (Some(2), Some("False"), Kstatus::InProgress),
            (Some(2), Some("True"), Kstatus::Current),
            // An object without a status counts as reconciled.
            (None, None, Kstatus::Current),
        ] {
            assert_eq!(machine(observed, ready), expected, "{observed:?} {ready:?}");
        }
        let gone = json!({ "metadata": { "generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        assert_eq!(of(&gone), Kstatus::Terminating);
    }
}
