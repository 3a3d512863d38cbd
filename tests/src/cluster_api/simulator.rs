//! Agents without containers: they read the bootstrap data of their claims with their own certificates, check it as the agent does, and
//! create in the workload cluster what a node would create.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_bootstrap::jinja::Facts;
use bedplate_bootstrap::user_data::{Plan, Unsupported, UserData, plan_user_data};
use serde_json::{Value, json};

use super::workload::{self, Joining};
use crate::kubernetes::{Kubernetes, Objects};
use crate::objects;

/// Time after which the simulator looks whether it must end.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Configuration with which kubeadm creates a cluster.
const INIT: &str = "/run/kubeadm/kubeadm.yaml";

/// Steps of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Prepare,
    Join,
    Release,
}

/// Simulated agents of a pool. They end when dropped.
#[derive(Debug)]
pub struct Simulator {
    end: Arc<AtomicBool>,
    shared: Arc<Shared>,
    workload: Objects,
    thread: Option<JoinHandle<()>>,
}

/// State that the thread of the agents and the test share.
#[derive(Debug, Default)]
struct Shared {
    errors: Mutex<Vec<String>>,
    /// Hosts that do nothing.
    silent: Mutex<BTreeSet<String>>,
    /// IDs of the claims that have joined, by host.
    joined: Mutex<BTreeMap<String, Vec<String>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Pool {
    admin: Objects,
    workload: Objects,
    agents: BTreeMap<String, Objects>,
    shared: Arc<Shared>,
    /// Last step of each claim, by UID.
    done: BTreeMap<String, Step>,
}

impl Simulator {
    /// Creates Machines with these names, which `namespace` may claim, and starts their agents. Nodes join `workload`.
    ///
    /// # Errors
    /// An API server refuses an object.
    pub fn start(
        kubernetes: &Kubernetes,
        workload: &Objects,
        namespace: &str,
        names: &[&str],
    ) -> Result<Self> {
        let admin = kubernetes.objects()?.clone();
        let mut agents = BTreeMap::new();
        for name in names {
            admin.apply(&objects::machine(name).pool(namespace).json())?;
            let (kubeconfig, enrollment) = kubernetes.agent(name)?;
            admin.merge_status("machine", name, &json!({ "enrollment": enrollment }))?;
            heartbeat(&admin, name)?;
            agents.insert((*name).to_owned(), kubernetes.objects_of(&kubeconfig)?);
        }
        let shared = Arc::new(Shared::default());
        let done = BTreeMap::new();
        let mut pool = Pool { admin, workload: workload.clone(), agents, shared: shared.clone(), done };
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if let Err(error) = pool.work() {
                    locked(&pool.shared.errors).push(format!("{error:#}"));
                }
            }
        });
        Ok(Self { end, shared, workload: workload.clone(), thread: Some(thread) })
    }

    /// Stops a host: it does nothing until it is started.
    pub fn stop(&self, host: &str) {
        locked(&self.shared.silent).insert(host.to_owned());
    }

    /// Starts a stopped host.
    pub fn start_again(&self, host: &str) {
        locked(&self.shared.silent).remove(host);
    }

    /// Returns the IDs of the claims with which each host has joined.
    pub fn joined(&self) -> BTreeMap<String, Vec<String>> {
        locked(&self.shared.joined).clone()
    }

    /// Sets the condition `Ready` of a Node.
    ///
    /// # Errors
    /// The workload API server refuses it.
    pub fn node_ready(&self, node: &str, status: &str) -> Result<()> {
        workload::ready(&self.workload, node, status)
    }

    /// Returns what failed until now.
    pub fn errors(&self) -> Vec<String> {
        locked(&self.shared.errors).clone()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Pool {
    /// Waits for a claim with a step to do, and does the step.
    fn work(&mut self) -> Result<()> {
        let (done, shared) = (&self.done, &self.shared);
        let found = self.admin.until_among("mcl", LOOK_INTERVAL, |claims| {
            let silent = locked(&shared.silent);
            let mut heard = claims.iter().filter(|claim| !silent.contains(text(&claim["metadata"]["name"])));
            heard.find_map(|claim| Some(((*claim).clone(), due(claim, done)?)))
        });
        let Ok((claim, step)) = found else {
            // No claim has a step to do, unless the API server does not answer.
            return self.admin.list("mcl", "").map(drop);
        };
        // A failed step is not repeated: the test shows the error.
        self.done.insert(text(&claim["metadata"]["uid"]).to_owned(), step);
        match step {
            Step::Prepare => {
                heartbeat(&self.admin, text(&claim["metadata"]["name"]))?;
                self.report(&claim, "Preparing", None)
            }
            Step::Join => self.join(&claim),
            Step::Release => {
                self.report(&claim, "Releasing", None)?;
                self.report(&claim, "Released", None)
            }
        }
    }

    fn join(&self, claim: &Value) -> Result<()> {
        let name = text(&claim["metadata"]["name"]);
        let agent = self.agents.get(name).with_context(|| format!("no agent {name}"))?;
        let agent = agent.within(text(&claim["spec"]["claimant"]["namespace"]));
        let secret = text(&claim["spec"]["bootstrapSecretName"]);
        let secret = agent.get("secret", secret)?.context("no bootstrap data")?;
        let plan = plan(claim, &secret)?;
        self.report(claim, "Bootstrapping", None)?;
        let configuration = init_configuration(&plan);
        let node = workload::join(
            &self.workload,
            &Joining {
                name: text(&claim["spec"]["nodeName"]),
                provider_id: text(&claim["spec"]["providerID"]),
                is_control_plane: claim["spec"]["role"] == "ControlPlane",
                configuration: configuration.as_deref(),
            },
        )?;
        let uid = &node["metadata"]["uid"];
        let id = text(&claim["spec"]["providerID"]).to_owned();
        locked(&self.shared.joined).entry(name.to_owned()).or_default().push(id);
        self.report(claim, "Joined", Some(json!({ "name": claim["spec"]["nodeName"], "uid": uid })))
    }

    /// Reports a state in the Machine and in the claim.
    fn report(&self, claim: &Value, state: &str, node: Option<Value>) -> Result<()> {
        let (name, spec) = (&claim["metadata"]["name"], &claim["spec"]);
        let claimant =
            json!({ "namespace": spec["claimant"]["namespace"], "name": spec["claimant"]["name"] });
        let since = "2026-01-01T00:00:00Z";
        let seen =
            json!({ "providerID": spec["providerID"], "claimant": claimant, "state": state, "since": since });
        self.admin.merge_status("machine", text(name), &json!({ "claim": seen }))?;
        let mut status = json!({ "providerID": spec["providerID"], "state": state, "since": since });
        if let Some(node) = node {
            status["node"] = node;
        }
        let agent = self.agents.get(text(name)).with_context(|| format!("no agent {name}"))?;
        agent.apply_status("bedplate-agent", ("mcl", text(name)), &status).map(drop)
    }
}

/// Returns the next step of a claim.
fn due(claim: &Value, done: &BTreeMap<String, Step>) -> Option<Step> {
    let last = done.get(text(&claim["metadata"]["uid"])).copied();
    if claim["metadata"]["deletionTimestamp"].is_string() {
        return (last != Some(Step::Release)).then_some(Step::Release);
    }
    let conditions = claim["status"]["conditions"].as_array();
    let is_granted =
        conditions.into_iter().flatten().any(|c| c["type"] == "Granted" && c["status"] == "True");
    match last {
        None => Some(Step::Prepare),
        Some(Step::Prepare) if is_granted => Some(Step::Join),
        Some(_) => None,
    }
}

/// Reads bootstrap data as the agent does.
fn plan(claim: &Value, secret: &Value) -> Result<Plan> {
    let read = |key: &str| STANDARD.decode(text(&secret["data"][key])).context("not base64");
    let (value, format) = (read("value")?, read("format")?);
    let facts = Facts {
        provider_id: text(&claim["spec"]["providerID"]),
        node_name: text(&claim["spec"]["nodeName"]),
        local_hostname: text(&claim["spec"]["nodeName"]),
        instance_id: text(&claim["metadata"]["uid"]),
        platform: "bedplate",
    };
    let data = UserData { value: &value, format: Some(&format) };
    Ok(plan_user_data(data, &facts, Unsupported::Refuse)?.plan)
}

/// Returns the `ClusterConfiguration` of `kubeadm init`, or `None` for a join.
fn init_configuration(plan: &Plan) -> Option<String> {
    let file = plan.files.iter().find(|file| file.path == INIT)?;
    let content = String::from_utf8_lossy(&file.content).into_owned();
    content.split("---\n").find(|part| part.contains("kind: ClusterConfiguration")).map(str::to_owned)
}

fn heartbeat(admin: &Objects, name: &str) -> Result<()> {
    // The API server counts in seconds: the heartbeat must not seem older than a claim of the same second.
    let now = jiff::Timestamp::now() + Duration::from_secs(1);
    let addresses = json!([{ "type": "InternalIP", "address": "10.7.0.5" }]);
    let status = json!({ "agent": { "features": ["claims"], "lastHeartbeatTime": now.to_string() },
        "stateDisk": { "name": "sda" }, "addresses": addresses });
    admin.merge_status("machine", name, &status).map(drop)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
