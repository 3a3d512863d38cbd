//! The real agent against a real API server, as its own user under the roles of `deploy/`: what it asks for (docs/design/rules.md, A1), what
//! it may not, and what it takes for true. No virtual machine, no pxed: the enrollment is put in its place.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::{Kubernetes, Objects, request_line};
use bedplate_tests::pxed::binary;
use bedplate_tests::wait;
use serde_json::{Value, json};

use super::cluster::{machine, operation, version, with};

const LIMIT: Duration = Duration::from_secs(90);

/// An enrolled host without pxed.
struct Host<'k> {
    kubernetes: &'k Kubernetes,
    name: &'static str,
    directory: Directory,
    agent: Option<Process>,
}

impl<'k> Host<'k> {
    /// Makes Machine, certificate and enrollment; starts nothing.
    fn new(kubernetes: &'k Kubernetes, name: &'static str) -> Self {
        let host = Self { kubernetes, name, directory: Directory::new(name).unwrap(), agent: None };
        for name in ["state", "run"] {
            std::fs::create_dir(host.path(name)).unwrap();
        }
        host.apply(&machine(name));
        host.enroll();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn user(&self) -> String {
        format!("bedplate:machine:{}", self.name)
    }

    fn enroll(&self) {
        let agent = self.kubernetes.certificate(&self.user(), &["bedplate:machines"]).unwrap();
        let ca = std::fs::read_to_string(self.kubernetes.ca()).unwrap();
        let server = format!("https://{}", self.kubernetes.address());
        let enrollment = json!({
            "machine": self.name, "site": "default", "bootId": "0".repeat(32), "endpoints": ["https://127.0.0.1:1"],
            "caPem": ca, "certificatePem": agent.certificate,
            "notBefore": "2020-01-01T00:00:00Z", "notAfter": "2099-01-01T00:00:00Z", "heartbeatSeconds": 5,
            "kubernetes": { "server": server, "caPem": ca },
        });
        std::fs::write(self.path("state/enrollment.json"), enrollment.to_string()).unwrap();
        std::fs::write(self.path("state/key.pem"), &agent.key).unwrap();
        let enrollment = self.kubernetes.enrollment(&agent).unwrap();
        self.status(&json!({ "enrollment": enrollment }));
    }

    fn objects(&self) -> &Objects {
        self.kubernetes.objects().unwrap()
    }

    fn apply(&self, object: &Value) {
        self.objects().apply(object).unwrap();
    }

    /// Merges into this host's own Machine's status, without the field manager of a program.
    fn status(&self, status: &Value) {
        self.objects().merge_status("machine", self.name, status).unwrap();
    }

    /// The own Machine's status.
    fn reported(&self) -> Value {
        self.objects().get("machine", self.name).unwrap().unwrap()["status"].clone()
    }

    fn until_heartbeat(&self) {
        let has = |machine: Option<&Value>| {
            machine?["status"]["agent"]["lastHeartbeatTime"].is_string().then_some(())
        };
        self.objects().until(("machine", self.name), LIMIT, has).expect("a heartbeat");
    }

    fn start(&mut self) {
        let mut command = Command::new(binary("bedplate-agent").unwrap());
        command.args(["run", "--report-only"]).arg("--state-directory").arg(self.path("state"));
        command.arg("--run-directory").arg(self.path("run"));
        self.agent = Some(Process::spawn("bedplate-agent", &mut command, &self.path("agent.log")).unwrap());
    }

    /// The agent's report on the cluster.
    fn says(&self) -> String {
        let standing = std::fs::read(self.path("run/agent.json")).unwrap_or_default();
        let standing: Value = serde_json::from_slice(&standing).unwrap_or_default();
        standing["cluster"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the agent says so.
    fn until(&self, what: &str) {
        let reached = wait::until(what, LIMIT, || Ok(self.says().starts_with(what).then_some(())));
        let said = || self.agent.as_ref().map(Process::said).unwrap_or_default();
        reached.unwrap_or_else(|error| panic!("{error:#}, but it says: {}\n{}", self.says(), said()));
    }

    fn make_node(&self) {
        self.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": self.name } }));
    }

    fn select(&self, number: u32) {
        self.status(&json!({ "selected": { "name": self.name, "version": number, "source": "Reference" } }));
    }

    /// Each kind of request that the agent has made: verb, resource, whose.
    fn asked(&self) -> BTreeSet<String> {
        self.kubernetes.asked_by(&self.user()).unwrap().iter().map(request_line).collect()
    }

    /// Returns the successful list requests of the agent. An API server that is still setting up a kind answers 429.
    fn lists(&self) -> Vec<String> {
        let events = self.kubernetes.asked_by(&self.user()).unwrap();
        let is_got = |event: &&Value| event["verb"] == "list" && event["responseStatus"]["code"] == 200;
        events.iter().filter(is_got).map(request_line).collect()
    }
}

#[test]
fn a1_a_running_agent_asks_for_its_own_and_nothing_else() {
    let mut host = Host::new(Kubernetes::shared(), "a1-own");
    host.apply(&machine("a1-other"));
    host.apply(&version("a1-own", 1));
    host.apply(&version("a1-own", 2));
    for (name, of) in [("a1-op", "a1-own"), ("a1-op-other", "a1-other")] {
        let of = json!({ "metadata": { "labels": { "bedplate.dev/machine": of } }, "spec": { "machineRef": { "name": of } } });
        host.apply(&with(&operation(name), &of));
    }
    host.start();
    host.until("answers; Node absent; version none");
    host.make_node();
    host.select(1);
    host.until("answers; Node present; version a1-own-v1");
    host.select(2);
    host.until("answers; Node present; version a1-own-v2");
    host.until_heartbeat();

    let own = "fieldSelector=metadata.name=a1-own";
    let mut expected = vec![
        "get machines a1-own".to_owned(),
        "get nodes a1-own".to_owned(),
        "patch machines/status a1-own".to_owned(),
    ];
    for verb in ["list", "watch"] {
        expected.push(format!("{verb} machines {own}"));
        expected.push(format!("{verb} nodes {own}"));
        expected.push(format!("{verb} machineconfigurationversions {own}-v1"));
        expected.push(format!("{verb} machineconfigurationversions {own}-v2"));
        expected.push(format!("{verb} machineoperations labelSelector=bedplate.dev/machine=a1-own"));
    }
    let expected: BTreeSet<String> = expected.into_iter().collect();
    // The agent requests its operations concurrently with the rest, and reports only the rest.
    let _ =
        wait::until_asked("each request", LIMIT, || Ok(host.asked().is_superset(&expected).then_some(())));
    assert_eq!(host.asked(), expected);
}

#[test]
fn a_node_that_is_deleted_is_absent_at_once_and_present_when_it_is_back() {
    let mut host = Host::new(Kubernetes::shared(), "agent-node");
    host.make_node();
    host.start();
    host.until("answers; Node present; version none");
    let first = wait::until_asked("a list of each kind", LIMIT, || {
        Ok(Some(host.lists()).filter(|lists| lists.len() >= 3))
    });
    let first = first.unwrap_or_else(|error| panic!("{error:#}: {:?}", host.lists()));
    for kind in ["machines", "nodes", "machineoperations"] {
        let of_kind = first.iter().filter(|list| list.starts_with(&format!("list {kind} "))).count();
        assert_eq!(of_kind, 1, "{kind}: {first:?}");
    }
    for _ in 0..3 {
        host.objects().delete("node", "agent-node").unwrap();
        host.until("answers; Node absent; version none");
        host.make_node();
        host.until("answers; Node present; version none");
    }
    assert_eq!(host.lists(), first, "later changes come from the watch");
}

#[test]
fn fields_of_an_earlier_agent_stay_when_another_one_starts() {
    let mut host = Host::new(Kubernetes::shared(), "agent-again");
    let condition = json!({ "type": "Paved", "status": "True", "reason": "Applied", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let before = json!({ "applied": { "name": "w", "version": 1, "slot": "a" }, "slots": [{ "name": "a", "state": "Running" }],
        "conditions": [condition] });
    host.objects().apply_status("bedplate-agent", ("machine", "agent-again"), &before).unwrap();
    host.start();
    host.until_heartbeat();
    let reported = host.reported();
    for name in ["applied", "slots", "conditions"] {
        assert_eq!(reported[name], before[name], "{reported}");
    }
}

#[test]
fn agent_reports_an_unreachable_api_server_and_then_sees_the_changes() {
    let mut kubernetes = Kubernetes::installed().unwrap();
    let mut host = Host::new(&kubernetes, "agent-away");
    host.make_node();
    host.start();
    host.until("answers; Node present; version none");
    let Host { directory, agent, .. } = host;
    kubernetes.stop_server();
    let standing = || -> String {
        let standing = std::fs::read(directory.path().join("run/agent.json")).unwrap_or_default();
        let standing: Value = serde_json::from_slice(&standing).unwrap_or_default();
        standing["cluster"].as_str().unwrap_or_default().to_owned()
    };
    wait::until("away", LIMIT, || Ok(standing().starts_with("does not answer; Node present").then_some(())))
        .unwrap();
    assert!(
        standing().contains("watch of Node of this host failed: request for the watch failed"),
        "{}",
        standing()
    );
    kubernetes.start_server().unwrap();
    kubernetes.objects().unwrap().delete("node", "agent-away").unwrap();
    let host = Host { kubernetes: &kubernetes, name: "agent-away", directory, agent };
    host.until("answers; Node absent; version none");
}

/// Writes that the agent's user may not do, and objects of others that it may read, as docs/getting-started/install.md lists them.
#[test]
fn agent_reads_other_machines_but_no_secrets_and_writes_only_its_own() {
    let host = Host::new(Kubernetes::shared(), "agent-refused");
    host.make_node();
    let kubeconfig = host.kubernetes.user(&host.user(), &["bedplate:machines"]).unwrap();
    for arguments in [
        &["get", "secrets", "-A"][..],
        &["get", "secret", "-n", "bedplate-system", "any"],
        &["get", "configmaps", "-A"],
        &["get", "pods", "-A"],
        &["get", "certificatesigningrequests"],
        &["get", "machineconfigurations"],
        &["get", "machineconfigurationversion", "any"],
        &["label", "node", "agent-refused", "a=b"],
        &["patch", "node", "agent-refused", "-p", "{\"spec\":{\"unschedulable\":true}}"],
        &["delete", "node", "agent-refused"],
        &["delete", "machine", "agent-refused"],
        &["label", "machine", "agent-refused", "a=b"],
    ] {
        let why =
            host.kubernetes.kubectl(&kubeconfig, arguments).expect_err(&format!("{arguments:?}")).to_string();
        assert!(why.contains("Forbidden") || why.contains("forbidden"), "{arguments:?}: {why}");
    }
    for of_others in ["machines", "machineconfigurationversions", "machineoperations", "nodes"] {
        let listed = host.kubernetes.kubectl(&kubeconfig, &["get", of_others]);
        listed.unwrap_or_else(|why| panic!("{of_others}: {why}"));
    }
}
