//! More flows: operations of several Machines, rolling updates, Machines that are drained before they go. Executors, agents, kubelets and the
//! garbage collector are played here, by what they see.

use serde_json::{Value, json};

use super::cluster::Scene;
use super::flows::{condition, flow, reference};
use super::proof::Flow;

const MACHINES: &str = "machines";
const CONFIGURATIONS: &str = "machineconfigurations";
const OPERATIONS: &str = "machineoperations";

/// All of them.
pub(crate) const TURNS: &[Flow] = &[
    flow!(
        "operation of several Machines",
        three_machines,
        async |s: Scene| {
            s.operation("o", &s.all_rows(), &json!({ "maxParallel": 1, "ttlSecondsAfterFinished": 2 })).await;
            for machine in ["a", "b", "c"] {
                s.executed(&format!("o-{}", s.name(machine)), "Complete").await;
            }
            s.until_gone(OPERATIONS, "o").await;
            // As the garbage collector.
            for machine in ["a", "b", "c"] {
                let child = format!("o-{}", s.name(machine));
                s.delete(OPERATIONS, &child).await;
                s.until_gone(OPERATIONS, &child).await;
            }
        },
        [
            "PATCH machineoperations/o",
            "PATCH machineoperations/o/status",
            "POST machineoperations/o-a",
            "POST machineoperations/o-b",
            "POST machineoperations/o-c",
            "DELETE machineoperations/o",
        ],
        30
    ),
    flow!(
        "operation of several Machines that fails",
        three_machines,
        async |s: Scene| {
            s.operation("o", &s.all_rows(), &json!({ "maxParallel": 1, "failureLimit": 1 })).await;
            s.executed(&format!("o-{}", s.name("a")), "Failed").await;
            s.until((OPERATIONS, "o"), "its end", |o| o["status"]["state"] == "Failed").await;
            s.until((OPERATIONS, "o"), "its freedom", |o| o["metadata"].get("finalizers").is_none()).await;
        },
        ["PATCH machineoperations/o", "PATCH machineoperations/o/status", "POST machineoperations/o-a"],
        12
    ),
    flow!(
        "operation that nobody takes",
        three_machines,
        async |s: Scene| {
            s.operation("o", &s.one("a"), &json!({ "timeoutSeconds": 3 })).await;
            s.until((OPERATIONS, "o"), "its end", |o| o["status"]["reason"] == "NoExecutor").await;
        },
        ["PATCH machineoperations/o", "PATCH machineoperations/o/status"],
        5
    ),
    flow!(
        "operation of one Machine, removed",
        three_machines,
        async |s: Scene| {
            s.operation("o", &s.one("a"), &json!({ "ttlSecondsAfterFinished": 2 })).await;
            s.executed("o", "Complete").await;
            s.until_gone(OPERATIONS, "o").await;
        },
        ["PATCH machineoperations/o", "DELETE machineoperations/o"],
        5
    ),
    flow!(
        "rolling update",
        async |s: Scene| {
            paved(s.clone(), 600).await;
            s.pod("p", "a").await;
        },
        async |s: Scene| {
            s.configuration("w", &rolling(600), 2).await;
            s.prepared("a", 2).await;
            s.until_gone("nodes", "a").await;
            s.paved("a").await;
            s.status(MACHINES, "a", &json!({ "slots": [] })).await;
            s.join("a").await;
            s.annotated("a", "2").await;
            s.until((CONFIGURATIONS, "w"), "updated Machine", |w| w["status"]["machines"]["applied"] == 1)
                .await;
        },
        [
            "POST machineconfigurationversions/w-v2",
            "PATCH machineconfigurationversions/w-v2/status",
            "PATCH machines/a/status",
            "PATCH nodes/a",
            "POST namespaces/default/pods/p/eviction",
            "DELETE nodes/a",
        ],
        33
    ),
    flow!(
        "rolling update given up",
        async |s: Scene| {
            paved(s.clone(), 8).await;
            s.pod("p", "a").await;
            // The status has no counts: none may be evicted.
            let budget = json!({ "metadata": { "name": "p" },
                "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": s.name("p") } } } });
            s.apply("poddisruptionbudgets", budget).await;
        },
        async |s: Scene| {
            s.configuration("w", &rolling(8), 2).await;
            s.prepared("a", 2).await;
            let is_free = |n: &Value| {
                n["spec"].get("unschedulable").is_none()
                    && n["metadata"]["annotations"].to_string().contains("drain-failed")
            };
            s.until(("nodes", "a"), "its freedom", is_free).await;
            let says = |w: &Value| w["status"]["conditions"].to_string().contains("DrainTimedOut");
            s.until((CONFIGURATIONS, "w"), "why it rests", says).await;
        },
        [
            "PATCH machines/a/status",
            "PATCH nodes/a",
            "POST namespaces/default/pods/p/eviction",
            "PATCH machineconfigurations/w/status"
        ],
        22
    ),
    flow!(
        "Machine deleted with its Pods drained",
        async |s: Scene| {
            one_paved(s.clone(), &json!({}), &json!({ "deletionPolicy": "Drain" })).await;
            s.pod("p", "a").await;
            s.until((MACHINES, "a"), "its finalizer", |m| m["metadata"].get("finalizers").is_some()).await;
        },
        async |s: Scene| {
            s.delete(MACHINES, "a").await;
            s.until_gone("nodes", "a").await;
            s.stopped("a").await;
            s.until_gone(MACHINES, "a").await;
        },
        [
            "PATCH nodes/a",
            "POST namespaces/default/pods/p/eviction",
            "DELETE nodes/a",
            "PATCH machines/a/status",
            "PATCH machines/a",
        ],
        25
    ),
];

fn rolling(drain: u32) -> Value {
    json!({ "updateStrategy": { "type": "RollingUpdate",
        "rollingUpdate": { "maxUnavailable": 1, "drainTimeoutSeconds": drain, "pauseOnFailure": true } } })
}

async fn three_machines(s: Scene) {
    for name in ["a", "b", "c"] {
        s.machine(name, &json!({ "row": s.name("row") }), &json!({})).await;
    }
}

/// A Machine of a configuration that rolls, with a Node.
async fn paved(s: Scene, drain: u32) {
    one_paved(s, &rolling(drain), &json!({})).await;
}

async fn one_paved(s: Scene, configuration: &Value, machine: &Value) {
    s.configuration("w", configuration, 1).await;
    s.latest("w", 1).await;
    let mut spec = reference();
    spec.as_object_mut().unwrap().extend(machine.as_object().unwrap().clone());
    s.machine("a", &json!({}), &spec).await;
    s.selected("a", "w", 1).await;
    s.set_condition("a", "Paved").await;
    s.status(
        MACHINES,
        "a",
        &json!({ "agent": { "version": "t", "lastHeartbeatTime": "2100-01-01T00:00:00Z" } }),
    )
    .await;
    s.join("a").await;
    s.annotated("a", "1").await;
    s.counted("w-v1", 1).await;
    s.until((CONFIGURATIONS, "w"), "Machine", |w| w["status"]["machines"]["applied"] == 1).await;
}

impl Scene {
    fn all_rows(&self) -> Value {
        json!({ "machineSelector": { "matchLabels": { "row": self.name("row") } } })
    }

    fn one(&self, machine: &str) -> Value {
        json!({ "machineRef": { "name": self.name(machine) } })
    }

    async fn operation(&self, name: &str, of: &Value, more: &Value) {
        let mut spec = json!({ "operationName": "reboot" });
        for fields in [of, more] {
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        }
        self.apply(OPERATIONS, json!({ "metadata": { "name": name }, "spec": spec })).await;
    }

    /// As the agent: takes an operation once it finds it by its label, and ends it. `name` is without the prefix.
    async fn executed(&self, name: &str, state: &str) {
        let is = |o: &Value| o["metadata"]["labels"].get("bedplate.dev/machine").is_some();
        self.until((OPERATIONS, name), "its label", is).await;
        let time = "2026-01-01T00:00:00Z";
        self.change(OPERATIONS, name, |o| {
            o["status"] = json!({ "state": "InProgress", "startTime": time, "executor": "test" });
        })
        .await;
        let now = jiff::Timestamp::now().to_string();
        self.change(OPERATIONS, name, |o| {
            o["status"]["state"] = json!(state);
            o["status"]["completionTime"] = json!(now);
            let condition =
                json!({ "type": state, "status": "True", "reason": "Said", "message": "", "lastTransitionTime": now });
            o["status"]["conditions"] = json!([condition]);
        })
        .await;
    }

    /// As the agent: fetches a version that is selected.
    async fn prepared(&self, machine: &str, number: u32) {
        self.selected(machine, "w", number).await;
        let slots = json!([{ "name": "b", "configurationName": self.name("w"), "version": number, "state": "Prepared" }]);
        self.status(MACHINES, machine, &json!({ "slots": slots })).await;
    }

    /// As the agent: its slot is stopped, for its Node is gone.
    async fn stopped(&self, machine: &str) {
        let change = |machine: &mut Value| {
            let status = machine["status"].as_object_mut().unwrap();
            status.remove("applied");
            status.insert(
                "slots".to_owned(),
                json!([{ "name": "a", "state": "Empty" }, { "name": "b", "state": "Empty" }]),
            );
            for wrong in status["conditions"].as_array_mut().unwrap() {
                if ["Paved", "NodeReady"].iter().any(|kind| wrong["type"] == **kind) {
                    let kind = wrong["type"].as_str().unwrap().to_owned();
                    *wrong = condition(&kind);
                    wrong["status"] = json!("False");
                }
            }
        };
        self.change(MACHINES, machine, change).await;
    }

    /// A Pod that a controller re-creates when it is gone. It ends immediately: no kubelet has to report its end.
    async fn pod(&self, name: &str, node: &str) {
        let owners = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "0", "controller": true }]);
        let pod = json!({ "metadata": { "name": name, "labels": { "app": self.name(name) }, "ownerReferences": owners },
            "spec": { "nodeName": self.name(node), "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "c", "image": "registry.example/c" }] } });
        self.apply("pods", pod).await;
        let status = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        self.status("pods", name, &status).await;
    }
}
