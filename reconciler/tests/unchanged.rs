//! Number of requests per change: one write for each object that changes, none for an object in its desired
//! state.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::Arc;

use bedplate_process::lease::Tenure;
use bedplate_reconciler::{configuration, machine};
use serde_json::{Value, json};
use server::{Asked, Objects, Server, object, refusal};

/// A cluster that keeps what is written.
struct Cluster(Objects);

impl Cluster {
    /// Looks at every object once; what was written meanwhile, and is kept.
    async fn look(&mut self) -> Vec<String> {
        let server = Server::default();
        let first = self.0.machines.first().cloned().unwrap_or_default();
        // The answer to a write is not read beyond its form.
        let answer = move |asked: &Asked| match asked.line.as_str() {
            line if line.starts_with("GET") => refusal(404, "not there"),
            line if line.contains("/machines/") => (200, first.clone()),
            line if line.contains("/machineconfigurations/") => (200, server::configuration(1, &json!({}))),
            _ => (200, server::version(1, &json!({}))),
        };
        let world = server.world(&self.0, Tenure::always(), answer);
        for given in &self.0.configurations {
            configuration::reconcile(Arc::new(object(given)), world.clone()).await.unwrap();
        }
        for given in &self.0.machines {
            machine::reconcile(Arc::new(object(given)), world.clone()).await.unwrap();
        }
        let written: Vec<_> =
            server.asked().into_iter().filter(|asked| !asked.line.starts_with("GET")).collect();
        written.iter().for_each(|asked| self.keep(asked));
        written.into_iter().map(|asked| asked.line).collect()
    }

    fn keep(&mut self, asked: &Asked) {
        if asked.line.starts_with("POST") {
            self.0.versions.push(asked.body.clone());
            return;
        }
        let Objects { configurations, versions, machines, .. } = &mut self.0;
        let all = configurations.iter_mut().chain(versions).chain(machines);
        let named = |object: &&mut Value| {
            (&object["kind"], &object["metadata"]["name"])
                == (&asked.body["kind"], &asked.body["metadata"]["name"])
        };
        let object = all.into_iter().find(named).unwrap_or_else(|| panic!("{asked:?} of nothing"));
        if object["status"].is_null() {
            object["status"] = json!({});
        }
        for (key, value) in asked.body["status"].as_object().unwrap() {
            let before = object["status"][key].as_array().cloned().unwrap_or_default();
            object["status"][key] = value.clone();
            if key == "conditions" {
                let ours = value.as_array().unwrap();
                let others = before.into_iter().filter(|c| ours.iter().all(|our| our["type"] != c["type"]));
                object["status"][key].as_array_mut().unwrap().extend(others);
            }
        }
    }

    /// Changes the Machine `a`.
    fn change(&mut self, change: impl Fn(&mut Value)) {
        change(&mut self.0.machines[0]);
    }
}

fn machine(name: &str) -> Value {
    let mut machine = server::machine(&json!({}));
    machine["metadata"]["name"] = json!(name);
    machine["metadata"]["uid"] = json!(format!("uid-{name}"));
    machine
}

fn cluster() -> Cluster {
    let mut configuration = server::configuration(1, &json!({ "latestVersion": 1 }));
    configuration["spec"]["template"]["image"] =
        json!({ "reference": format!("registry.example/node@sha256:{:064x}", 7) });
    let mut version = server::version(1, &json!({}));
    version["spec"]["template"] = configuration["spec"]["template"].clone();
    let machines = vec![machine("a"), machine("b"), machine("c")];
    Cluster(Objects {
        configurations: vec![configuration],
        versions: vec![version],
        machines,
        ..Objects::default()
    })
}

const CONFIGURATION: &str = "PATCH /machineconfigurations/w/status";

#[tokio::test]
async fn each_object_is_written_once_and_never_in_the_desired_state() {
    let mut cluster = cluster();
    let first = cluster.look().await;
    for machine in ["a", "b", "c"] {
        let line = format!("PATCH /machines/{machine}/status");
        assert_eq!(first.iter().filter(|asked| **asked == line).count(), 1, "{first:?}");
    }
    // The counts follow the Machines.
    let counts = cluster.look().await;
    let all = [CONFIGURATION, "PATCH /machineconfigurationversions/w-v1/status"];
    assert!(counts.iter().all(|asked| all.contains(&asked.as_str())), "{counts:?}");
    assert_eq!(cluster.look().await, Vec::<String>::new(), "nothing has changed");
}

#[tokio::test]
async fn one_change_is_one_write_and_a_heartbeat_none() {
    let mut cluster = cluster();
    while !cluster.look().await.is_empty() {}
    cluster.change(|machine| {
        machine["status"]["agent"] = json!({ "lastHeartbeatTime": "2026-01-02T00:00:00Z" });
    });
    assert_eq!(cluster.look().await, Vec::<String>::new());
    let off = json!({ "type": "PoweredOn", "status": "False", "reason": "PoweringOn", "message": "since 10:00",
        "lastTransitionTime": "2026-01-02T00:00:00Z" });
    cluster.change(|machine| machine["status"]["conditions"].as_array_mut().unwrap().push(off.clone()));
    assert_eq!(cluster.look().await, ["PATCH /machines/a/status"]);
    assert_eq!(cluster.look().await, Vec::<String>::new());
}

#[tokio::test]
async fn an_edit_is_one_version_and_one_status_that_counts_it_already() {
    let mut cluster = cluster();
    while !cluster.look().await.is_empty() {}
    for machine in &mut cluster.0.machines {
        machine["status"]["applied"] = json!({ "name": "w", "version": 1, "slot": "a" });
    }
    while !cluster.look().await.is_empty() {}
    cluster.0.configurations[0]["spec"]["template"]["sysctls"] = json!({ "kernel.panic": "7" });
    let edited = cluster.look().await;
    let configurations: Vec<_> = edited.iter().filter(|asked| !asked.contains("/machines/")).collect();
    assert_eq!(configurations, ["POST /machineconfigurationversions", CONFIGURATION]);
    assert_eq!(cluster.0.configurations[0]["status"]["machines"]["outdated"], 3);
    // The new version gets its zero count; the configuration is not written again.
    let after = cluster.look().await;
    let configurations: Vec<_> = after.iter().filter(|asked| !asked.contains("/machines/")).collect();
    assert_eq!(configurations, ["PATCH /machineconfigurationversions/w-v2/status"]);
}

#[tokio::test]
async fn machine_is_written_once_with_its_first_version_or_the_refusal() {
    let mut cluster = cluster();
    cluster.0.versions.clear();
    cluster.0.configurations[0]["status"] = Value::Null;
    let first = cluster.look().await;
    assert_eq!(first, ["POST /machineconfigurationversions", CONFIGURATION]);
    let second = cluster.look().await;
    let machines: Vec<_> = second.iter().filter(|asked| asked.contains("/machines/")).collect();
    assert_eq!(machines.len(), 3, "{second:?}");
    for machine in &cluster.0.machines {
        assert_eq!(machine["status"]["selected"]["version"], 1);
    }
    let mut cluster = self::cluster();
    cluster.0.versions.clear();
    cluster.0.configurations[0]["status"] = json!({ "latestVersion": 0, "conditions": [{ "type": "Degraded", "status": "True",
        "reason": "VersionInvalid", "message": "it is too large", "lastTransitionTime": "2026-01-02T00:00:00Z" }] });
    let looked = cluster.look().await;
    let machines: Vec<_> = looked.iter().filter(|asked| asked.contains("/machines/")).collect();
    assert_eq!(machines.len(), 3, "each gets a condition: {looked:?}");
}
