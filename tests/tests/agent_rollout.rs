//! A rolling update over three machines (docs/design/rules.md, C4), with nothing stood in for but the machines' bodies: three hosts of systemd
//! 252 in namespaces with the real agent, real kubelets, containerd and Pods, a real control plane with its scheduler and its
//! disruption controller, and the real bedplate-controller. See `control_plane` for what such hosts lack.
//!
//! At each check: at most one Node out of three may be missing or cordoned, and at least as many Pods are Ready as their budget requires.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bedplate_tests::nodes::{self, CONFIGURATION, Nodes, condition, has_applied};
use bedplate_tests::objects;
use bedplate_tests::rack::Rack;
use bedplate_tests::secret::Secret;
use bedplate_tests::site::Site;
use bedplate_tests::wait;
use bedplate_tests::worker::{self, Worker};
use serde_json::{Value, json};

/// Three drains, joins and gates, on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);
const NAMES: [&str; 3] = ["host-1", "host-2", "host-3"];
/// One more than there are hosts: somewhere two of them stand together, and the second has to wait for the first's successor.
const PODS: usize = NAMES.len() + 1;
/// Minimum number of Pods that are Ready at any time.
const BUDGET: usize = PODS - 1;

/// Three hosts and their cluster. Dropped in this order.
struct Rollout<'r> {
    workers: Vec<Worker>,
    nodes: Nodes,
    site: Site<'r>,
    rack: &'r Rack,
}

impl<'r> Rollout<'r> {
    fn start(rack: &'r Rack) -> Result<Self> {
        let kubernetes = nodes::control_plane(rack)?;
        let nodes = Nodes::start(rack, &kubernetes)?;
        let site = Site::without_servers("rollout", rack, kubernetes)?;
        let mut rollout = Self { workers: Vec::new(), nodes, site, rack };
        rollout.edit(&json!({}))?;
        for (name, last) in NAMES.into_iter().zip(11..) {
            rollout.nodes.apply(&rollout.site, &objects::machine(name).json())?;
            let socket = rollout.socket()?;
            wait::until("the Machine at pxed", LIMIT, || {
                Ok(bedplate_tests::pxed::ask(&socket, &format!("/v1/machines/{name}")).ok())
            })?;
            rollout.workers.push(Worker::enroll(rack.network(), &socket, name, last)?);
        }
        Ok(rollout)
    }

    fn socket(&self) -> Result<PathBuf> {
        Ok(self.site.pxed()?.socket())
    }

    /// Edits the configuration: what `more` puts over the template that such hosts need.
    fn edit(&self, more: &Value) -> Result<()> {
        let mut template = worker::template()?;
        for (name, value) in more.as_object().into_iter().flatten() {
            template[name] = value.clone();
        }
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"drainTimeoutSeconds": 300}});
        self.nodes.configure(&self.site, &rolling, &template)
    }

    /// A ReplicaSet and its budget.
    fn run_pods(&self) -> Result<()> {
        let labels = json!({"matchLabels": {"app": "web"}});
        let pod = json!({"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "web", "image": "localhost/bedplate/pause:1", "imagePullPolicy": "Never"}]});
        let set = json!({"replicas": PODS, "selector": labels,
            "template": {"metadata": {"labels": labels["matchLabels"]}, "spec": pod}});
        let budget = json!({"minAvailable": BUDGET, "selector": labels});
        let metadata = json!({"name": "web", "namespace": "default"});
        for (group, kind, spec) in
            [("apps/v1", "ReplicaSet", set), ("policy/v1", "PodDisruptionBudget", budget)]
        {
            let object = json!({"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec});
            self.nodes.apply(&self.site, &object)?;
        }
        self.until("all Pods are Ready", || self.pods_ready() == PODS)
    }

    /// Checks that every kubelet has its serving certificate (Trust 5).
    fn all_show_logs(&self) -> Result<()> {
        let stays = |pod: &Value| pod["metadata"].get("deletionTimestamp").is_none();
        let pods: Vec<Value> = self.nodes.objects("Pod").into_iter().filter(stays).collect();
        ensure!(pods.len() >= PODS, "{} Pods instead of {PODS}", pods.len());
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().context("a Pod without a name")?;
            self.nodes.logs(&self.site, name, LIMIT)?;
        }
        Ok(())
    }

    /// Trust 5: what a real kubeadm and kubelet leave in a slot has nothing of the agent's key.
    fn keys_of_agents_stay_outside(&self) -> Result<()> {
        for worker in &self.workers {
            let key = Secret::key(&worker.host.read("/var/lib/bedplate/agent/key.pem")?)?;
            let found = key.files_of_slot(&worker.host, "a")?;
            ensure!(found.is_empty(), "the agent's key is in {found:?}");
        }
        Ok(())
    }

    fn pods_ready(&self) -> usize {
        let counts = |pod: &Value| nodes::is_ready(pod) && pod["metadata"].get("deletionTimestamp").is_none();
        self.nodes.objects("Pod").iter().filter(|pod| counts(pod)).count()
    }

    fn node(&self, name: &str) -> Value {
        self.nodes.seen("Node", name).unwrap_or_default()
    }

    /// Number of Machines with this version, on a Node that is Ready and accepts Pods.
    fn run(&self, version: u32) -> usize {
        let machine = |name: &str| self.nodes.seen("Machine", name).unwrap_or_default();
        let runs =
            |name: &&str| has_applied(&machine(name), version) && nodes::is_of(&self.node(name), version);
        NAMES.into_iter().filter(runs).count()
    }

    fn away(&self) -> Vec<&'static str> {
        let is_away = |name: &&str| {
            let node = self.node(name);
            !nodes::is_ready(&node) || node["spec"]["unschedulable"] == true
        };
        NAMES.into_iter().filter(is_away).collect()
    }

    fn until(&self, what: &str, reached: impl Fn() -> bool) -> Result<()> {
        let started = Instant::now();
        wait::until(what, LIMIT, || Ok(reached().then_some(()))).with_context(|| self.story())?;
        println!("{what}: {:.1} s", started.elapsed().as_secs_f64());
        Ok(())
    }

    /// Waits for `reached`, and checks meanwhile that no more Nodes are unavailable than allowed.
    fn rolls_until(&self, what: &str, reached: impl Fn() -> bool) -> Result<()> {
        let started = Instant::now();
        wait::until(what, LIMIT, || {
            let (away, pods) = (self.away(), self.pods_ready());
            ensure!(away.len() <= 1, "{away:?} are away at once");
            ensure!(pods >= BUDGET, "{pods} Pods are Ready, of which the budget keeps {BUDGET}");
            Ok(reached().then_some(()))
        })
        .with_context(|| self.story())?;
        println!("{what}: {:.1} s", started.elapsed().as_secs_f64());
        Ok(())
    }

    fn story(&self) -> String {
        let events = self.site.kubectl(&["get", "nodes,pods,events", "-A"]).unwrap_or_default();
        let workers: Vec<String> = self.workers.iter().map(Worker::said).collect();
        format!("{}\n{events}\n{}", self.nodes.story(), workers.join("\n"))
    }

    fn configuration(&self) -> Value {
        self.nodes.seen("MachineConfiguration", CONFIGURATION).unwrap_or_default()
    }
}

#[test]
fn c4_rollout_survives_controller_restart_and_stops_at_bad_version() -> Result<()> {
    worker::take_turn()?;
    let rack = Rack::new("rollout")?;
    let mut rollout = Rollout::start(&rack)?;
    rollout.until("three Nodes are Ready", || rollout.run(1) == NAMES.len())?;
    rollout.keys_of_agents_stay_outside()?;
    rollout.run_pods()?;
    rollout.all_show_logs()?;

    let label = |value: &str| {
        let mut template = worker::template()?;
        template["kubernetes"]["nodeLabels"] = json!({"example.com/paved": value});
        Ok::<_, anyhow::Error>(template)
    };
    rollout.edit(&label("second")?)?;
    rollout.rolls_until("one Node has version 2 and the next is drained", || {
        let drained = rollout.away().iter().any(|name| rollout.node(name)["spec"]["unschedulable"] == true);
        rollout.run(2) == 1 && drained
    })?;
    rollout.nodes.restart_controller(rollout.rack)?;
    rollout.rolls_until("three Nodes have version 2", || rollout.run(2) == NAMES.len())?;
    for name in NAMES {
        ensure!(rollout.node(name)["metadata"]["labels"]["example.com/paved"] == "second", "{name}");
    }
    rollout.all_show_logs()?;
    rollout.rolls_until("nothing is outdated", || {
        rollout.configuration()["status"]["machines"]["outdated"] == 0
    })?;

    // The first host that takes it is rolled back, and no other follows.
    let mut bad = worker::template()?;
    // This version never becomes healthy. whole_node and agent_faults wait for a health gate of the usual length.
    bad["preKubeadmCommands"] = json!(["echo no such device >&2; exit 1"]);
    bad["healthGate"] = json!({"timeoutSeconds": 10, "minReadySeconds": 1});
    let before = NAMES.map(|name| rollout.node(name)["metadata"]["uid"].clone());
    rollout.edit(&bad)?;
    rollout.rolls_until("the update is Degraded", || {
        condition(&rollout.configuration(), "Degraded")["status"] == "True"
    })?;
    rollout.rolls_until("three Nodes have version 2 again", || rollout.run(2) == NAMES.len())?;
    let others = NAMES.into_iter().zip(&before);
    let taken: Vec<&str> = others
        .filter(|(name, uid)| rollout.node(name)["metadata"]["uid"] != **uid)
        .map(|(name, _)| name)
        .collect();
    let [name] = taken[..] else { bail!("{taken:?} were taken to a bad version") };
    rollout.rolls_until("the update stays Degraded, and says by whom", || {
        let configuration = rollout.configuration();
        let said = condition(&configuration, "Degraded");
        said["reason"] == "RolledBack" && said["message"].as_str().unwrap_or_default().contains(name)
    })?;

    // An edit by a user continues the update.
    rollout.edit(&label("fourth")?)?;
    rollout.rolls_until("three Nodes have version 4", || rollout.run(4) == NAMES.len())?;
    rollout.rolls_until("nothing is Degraded", || {
        condition(&rollout.configuration(), "Degraded")["status"] != "True"
    })?;
    rack.succeeded();
    Ok(())
}
