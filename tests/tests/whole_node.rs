//! The whole way on real parts, as a person with kubectl has it: a Machine and a MachineConfiguration are applied; a server that is off
//! comes up over its BMC and the network, its agent makes a slot, a real kubeadm joins a real cluster, and a Pod runs; then what
//! happens to Nodes (docs/design/rules.md, C3, C4, H5-H7, O1). Nothing is stood in for: the test writes what people write, and reads what they read.
//!
//! A rolling update over several machines is `agent_rollout`: hosts in namespaces run the same agent, kubelet and containerd, and three
//! of them cost less than one emulated server. The one here shows that a drain, a repave and a budget of Pods go together on a
//! machine that really boots.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bedplate_tests::bmc::server::BmcKind;
use bedplate_tests::boot::ENROLL_TIMEOUT;
use bedplate_tests::guard;
use bedplate_tests::guest::GuestSlot;
use bedplate_tests::nodes::{self, CONFIGURATION, Nodes, POD_NETWORK, condition, has_applied, has_selected};
use bedplate_tests::qemu::{Disk, Firmware, Spec};
use bedplate_tests::rack::{BRIDGE, Rack};
use bedplate_tests::site::Site;
use bedplate_tests::{control_plane, timeline, wait};
use serde_json::{Value, json};

/// An image is fetched, a container boots, kubeadm joins: under emulation, on a busy machine.
const NODE: Duration = Duration::from_secs(1800);
const NAME: &str = "server-1";
const STATE_DISK: &str =
    "    stateDisk:\n      serial: bed-state\n      wipe: Once\n      wipeToken: first\n";
/// Address on which a Pod answers with its own name. The Pod borrows the node's programs, because there is no registry of Pods' images.
const SAYS: &str = "TCP-LISTEN:8080,fork,reuseaddr";

/// A rack with one server that is off, a cluster, and what nodes need.
struct Whole<'r> {
    /// Ends before the cluster that it reads.
    nodes: Nodes,
    site: Site<'r>,
    rack: &'r Rack,
}

impl<'r> Whole<'r> {
    fn start(test: &'static str, rack: &'r Rack, spec: Spec) -> Result<Self> {
        let server = rack.machine(spec).with_bmc(BmcKind::Redfish)?;
        let kubernetes = nodes::control_plane(rack)?;
        let nodes = Nodes::start(rack, &kubernetes)?;
        let site = Site::with_kubernetes(test, rack, vec![server], kubernetes)?;
        Ok(Self { nodes, site, rack })
    }

    /// Edits the template; the Node's deletion is what brings an edit to a Machine.
    fn edit(&self, more: &Value) -> Result<()> {
        self.nodes.configure(&self.site, &json!({"type": "OnDelete"}), more)
    }

    /// Waits for a state of an object; a failure shows the last output of the host.
    fn until(&self, what: &str, of: (&str, &str), is: impl Fn(&Value) -> bool) -> Result<Value> {
        self.nodes.until(what, NODE, of, is).with_context(|| {
            let serial =
                self.site.server(1).map(|server| guard::last_lines(&server.serial(), 60)).unwrap_or_default();
            format!("serial line:\n{serial}")
        })
    }

    fn machine(&self, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        self.until(what, ("Machine", NAME), is)
    }

    fn version(&self, number: u32) -> Result<Value> {
        let name = format!("{CONFIGURATION}-v{number}");
        self.until(&format!("{name} is made"), ("MachineConfigurationVersion", &name), |_| true)
    }

    /// Waits until the version is applied and its Node Ready, annotated (H5) and noted.
    fn runs(&self, number: u32) -> Result<Value> {
        self.machine(&format!("version {number} is applied"), |machine| has_applied(machine, number))?;
        let of = format!("the Node is Ready, and annotated with version {number}");
        let node = self.until(&of, ("Node", NAME), |node| nodes::is_of(node, number))?;
        let noted = |machine: &Value| machine["status"]["nodeRef"]["uid"] == node["metadata"]["uid"];
        let machine = self.machine("the Machine has its Node", noted)?;
        ensure!(machine["status"]["providerID"] == format!("bedplate://{NAME}"), "{}", machine["status"]);
        Ok(node)
    }

    /// A Pod starts, and answers over the network of Pods.
    fn pod_answers(&self, name: &str) -> Result<()> {
        let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true});
        let volume = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {
            "nodeName": NAME, "automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": 1,
            "volumes": [volume("usr", "/usr"), volume("lib", "/usr/lib"), volume("lib64", "/usr/lib64")],
            "containers": [{"name": "says", "image": "localhost/bedplate/pause:1", "imagePullPolicy": "Never",
                "command": ["/usr/bin/socat", SAYS, "EXEC:/usr/bin/cat /proc/sys/kernel/hostname"],
                "volumeMounts": [mount("usr", "/usr"), mount("lib", "/lib"), mount("lib64", "/lib64")]}]}});
        self.nodes.apply(&self.site, &pod)?;
        let running = |pod: &Value| pod["status"]["phase"] == "Running" && pod["status"]["podIP"].is_string();
        let pod = self.until("a Pod runs", ("Pod", name), running)?;
        let (address, node) = (pod["status"]["podIP"].as_str(), pod["status"]["hostIP"].as_str());
        let (address, node) =
            (address.context("no address of the Pod")?, node.context("no address of the Node")?);
        self.rack.network().ip(&format!("route replace {POD_NETWORK} via {node} dev {BRIDGE}"))?;
        let started = Instant::now();
        let said = wait::until("the Pod's answer", NODE, || {
            let mut socat = self.rack.network().command("socat");
            let said =
                guard::run(socat.args(["-T", "5", &format!("TCP:{address}:8080,connect-timeout=5"), "-"]));
            Ok(said.ok().filter(|said| !said.is_empty()))
        })?;
        ensure!(said.trim() == name, "the Pod says {said:?}");
        timeline::say(&format!(
            "  the Pod answers over the Pod network: {:.1} s",
            started.elapsed().as_secs_f64()
        ));
        self.nodes.logs(&self.site, name, NODE)?;
        self.site.kubectl(&["delete", "pod", name, "--wait=false"]).map(drop)
    }

    /// H6: what becomes of a host whose Node is deleted, as far as the choice of its version.
    fn delete_node(&self, number: u32) -> Result<()> {
        timeline::say("  $ kubectl delete node server-1");
        self.site.kubectl(&["delete", "node", NAME, "--wait=true"])?;
        let selected = |machine: &Value| has_selected(machine, number);
        self.machine(&format!("version {number} is selected"), selected).map(drop)
    }

    /// C3, H4, H5: what is applied becomes a Node. Gives its boot's id.
    fn becomes_a_node(&self) -> Result<String> {
        self.edit(&json!({}))?;
        self.site.apply_with(1, STATE_DISK, "")?;
        let boot = self.site.boots(1, "", "Enrolled", ENROLL_TIMEOUT)?;
        let selected = self.machine("version 1 is selected", |machine| has_selected(machine, 1))?;
        ensure!(selected["status"]["selected"]["source"] == "Selector", "{}", selected["status"]);
        ensure!(self.version(1)?["status"]["deployed"] == true, "selected before it was locked");
        self.runs(1)?;
        self.machine("the Machine is Ready", |machine| condition(machine, "Ready")["status"] == "True")?;
        self.pod_answers("first")?;
        Ok(boot)
    }

    /// C4, O1: an edit makes version 2 and disturbs nothing, nor does a reboot bring it: the same slot comes back without another
    /// join. Gives the next boot's id.
    fn outlives_an_edit_and_a_reboot(&self, before: &str) -> Result<String> {
        let joined = self.nodes.object("Node", NAME).context("no Node")?;
        self.edit(&json!({"sysctls": {"vm.max_map_count": "262144"}}))?;
        self.version(2)?;
        let outdated = |configuration: &Value| configuration["status"]["machines"]["outdated"] == 1;
        self.until("one Machine is outdated", ("MachineConfiguration", CONFIGURATION), outdated)?;
        let reboot = self.site.create(1, "reboot", &json!({}))?;
        let boot = self.site.boots(1, before, "Enrolled", ENROLL_TIMEOUT)?;
        let complete = |operation: &Value| operation["status"]["state"] == "Complete";
        let ended = self.until("the reboot is complete", ("MachineOperation", &reboot), complete)?;
        ensure!(ended["status"]["reason"] == "Rebooted", "{}", ended["status"]);
        let id = |node: &Value| node["status"]["nodeInfo"]["bootID"].clone();
        let again = |node: &Value| nodes::is_of(node, 1) && id(node) != id(&joined);
        let node = self.until("the Node of the next boot is Ready", ("Node", NAME), again)?;
        ensure!(node["metadata"]["uid"] == joined["metadata"]["uid"], "the host has joined again: {node}");
        let machine = self.nodes.object("Machine", NAME).unwrap_or_default();
        ensure!(has_selected(&machine, 1), "an edit alone has moved the Machine: {}", machine["status"]);
        Ok(boot)
    }

    /// H6: the Node is deleted, and the newest version comes.
    fn is_repaved(&self) -> Result<()> {
        self.delete_node(2)?;
        self.runs(2)?;
        self.pod_answers("second")
    }

    /// Checks that a version whose kubelet does not start is rolled back: the previous one is Ready again and has the annotation.
    fn is_rolled_back(&self) -> Result<()> {
        let dropin = |unit: &str, text: &str| json!({"name": unit, "dropins": [{"name": "99-broken.conf", "contents": text}]});
        let broken = "[Service]\nExecStartPre=/bin/sh -c 'echo no such device >&2; exit 1'\n";
        // The version makes kubeadm fail early and only once, so the trial ends then. Otherwise kubeadm waits four minutes for the
        // kubelet, and is restarted until the health gate times out. `agent_faults` tests the gate alone.
        self.edit(&json!({
            "units": [dropin("kubelet.service", broken), dropin("bedplate-kubeadm.service", "[Service]\nRestart=no\n")],
            "kubernetes": {"version": control_plane::version()?,
                "joinConfiguration": {"timeouts": {"kubeletHealthCheck": "10s"}}},
        }))?;
        self.version(3)?;
        self.delete_node(3)?;
        let rolled_back = |machine: &Value| machine["status"]["rolledBack"]["from"]["version"] == 3;
        let back = self.machine("version 3 is taken back", rolled_back)?;
        let reason = back["status"]["rolledBack"]["message"].as_str().unwrap_or_default();
        timeline::say(&format!("  because: {reason}"));
        ensure!(reason.contains("no such device"), "the kubelet's own words are not told: {reason}");
        self.runs(2).map(drop)
    }

    /// H7: a person names version 1 and deletes the Node, and the power is cut when the other slot has just been started.
    fn outlives_a_power_cut_in_its_rollback(&self, before: &str) -> Result<()> {
        self.pin(&json!({"name": CONFIGURATION, "version": 1}))?;
        self.machine("version 1 is selected", |machine| has_selected(machine, 1))?;
        self.delete_node(1)?;
        self.machine("version 1 is on trial", |machine| slot(machine, 1)["state"] == "Running")?;
        let cycle = self.site.create(1, "powerCycle", &json!({}))?;
        self.site.completes(&cycle, "PowerCycled")?;
        self.site.boots(1, before, "Enrolled", ENROLL_TIMEOUT)?;
        self.runs(1).map(drop)
    }

    fn pin(&self, reference: &Value) -> Result<()> {
        let patch = json!({"spec": {"configurationRef": reference}}).to_string();
        self.site.kubectl(&["patch", "machine", NAME, "--type=merge", "-p", &patch]).map(drop)
    }

    /// C4: an edit under RollingUpdate drains the Node, as its Pods' budget lets it, and has it paved without anybody deleting it.
    fn is_rolled_on_as_a_budget_lets_it(&self) -> Result<()> {
        self.keep_one_pod()?;
        let before = self.nodes.object("Node", NAME).context("no Node")?;
        let edit = json!({"sysctls": {"vm.max_map_count": "524288"}});
        self.nodes.configure(&self.site, &json!({"type": "RollingUpdate"}), &edit)?;
        self.version(4)?;
        self.pin(&Value::Null)?;
        let held = |configuration: &Value| {
            let said = condition(configuration, "Progressing")["message"].as_str().unwrap_or_default();
            said.contains("default/kept-")
        };
        self.until("the budget holds the drain", ("MachineConfiguration", CONFIGURATION), held)?;
        let node = self.nodes.object("Node", NAME).unwrap_or_default();
        ensure!(node["spec"]["unschedulable"] == true, "it is drained and takes Pods: {node}");
        ensure!(node["metadata"]["uid"] == before["metadata"]["uid"], "deleted before its Pods have left");
        let lets = json!({"spec": {"minAvailable": 0}}).to_string();
        self.site.kubectl(&["patch", "poddisruptionbudget", "kept", "--type=merge", "-p", &lets])?;
        let node = self.runs(4)?;
        ensure!(node["metadata"]["uid"] != before["metadata"]["uid"], "it has not joined again");
        let done = |configuration: &Value| configuration["status"]["machines"]["outdated"] == 0;
        self.until("nothing is outdated", ("MachineConfiguration", CONFIGURATION), done)?;
        self.until_one_pod_is_ready()
    }

    /// A ReplicaSet of one Pod, and a budget that permits no eviction.
    fn keep_one_pod(&self) -> Result<()> {
        let labels = json!({"matchLabels": {"app": "kept"}});
        let pod = json!({"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "kept", "image": "localhost/bedplate/pause:1", "imagePullPolicy": "Never"}]});
        let set = json!({"replicas": 1, "selector": labels,
            "template": {"metadata": {"labels": labels["matchLabels"]}, "spec": pod}});
        let of = |kind: &str, group: &str, spec: &Value| {
            json!({"apiVersion": group, "kind": kind, "spec": spec,
                "metadata": {"name": "kept", "namespace": "default"}})
        };
        self.nodes.apply(&self.site, &of("ReplicaSet", "apps/v1", &set))?;
        let budget = json!({"minAvailable": 1, "selector": labels});
        self.nodes.apply(&self.site, &of("PodDisruptionBudget", "policy/v1", &budget))?;
        self.until_one_pod_is_ready()
    }

    fn until_one_pod_is_ready(&self) -> Result<()> {
        let ready = |pod: &Value| {
            pod["metadata"]["labels"]["app"] == "kept"
                && pod["metadata"].get("deletionTimestamp").is_none()
                && pod["spec"]["nodeName"] == NAME
                && nodes::is_ready(pod)
        };
        let found = wait::until("a Ready Pod of the ReplicaSet", NODE, || {
            Ok(self.nodes.objects("Pod").iter().any(ready).then_some(()))
        });
        found.with_context(|| format!("{:#?}\n{}", self.nodes.objects("Pod"), self.nodes.story()))
    }
}

// One flow, and not a test for each: a boot and the first join take longer than all that comes after.
#[test]
fn c4_h5_h6_h7_o1_server_becomes_a_node_and_survives_all_its_changes() -> Result<()> {
    let rack = Rack::new("whole-node")?;
    let disk = Disk { image: rack.file("state.disk"), serial: "bed-state".to_owned() };
    std::fs::File::create(&disk.image)?.set_len(8 << 30)?;
    let spec = Spec { memory_mib: 2048, disks: vec![disk], ..Rack::spec(1, Firmware::Bios) };
    let whole = Whole::start("whole-node", &rack, spec)?;
    let _slot = GuestSlot::take()?;
    let first = whole.becomes_a_node()?;
    let second = whole.outlives_an_edit_and_a_reboot(&first)?;
    whole.is_repaved()?;
    whole.is_rolled_back()?;
    whole.outlives_a_power_cut_in_its_rollback(&second)?;
    whole.is_rolled_on_as_a_budget_lets_it()?;
    rack.succeeded();
    Ok(())
}

/// The slot that holds a version.
fn slot(machine: &Value, number: u32) -> &Value {
    let slots = machine["status"]["slots"].as_array();
    slots.into_iter().flatten().find(|slot| slot["version"] == number).unwrap_or(&Value::Null)
}
