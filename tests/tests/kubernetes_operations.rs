//! MachineOperations on a real API server: bedplate-controller under the role that `deploy/` gives it, agents and pxed under theirs, seen
//! from outside.
//!
//! Executors are simulated: the tests write what an agent or pxed would, as that user.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::objects::{self, Builder, NODE_IMAGE};
use bedplate_tests::{pxed, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// Field manager of agents.
const AGENT: &str = "bedplate-agent";

/// The cluster with its garbage collector, and the controller; all end with the test program.
struct Site {
    kubernetes: Kubernetes,
    controller: Process,
    pxed: Objects,
    _place: Directory,
}

impl Site {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Site> = OnceLock::new();
        SHARED.get_or_init(|| {
            let mut kubernetes = Kubernetes::installed().unwrap();
            kubernetes.start_controllers(&["garbage-collector-controller"]).unwrap();
            let place = Directory::new("operations").unwrap();
            let controller = controller(&kubernetes, &place);
            let pxed = kubernetes.service_account("bedplate-system", "pxed").unwrap();
            let pxed = kubernetes.objects_of(&pxed).unwrap();
            Self { kubernetes, controller, pxed, _place: place }
        })
    }

    fn objects(&self) -> &Objects {
        self.kubernetes.objects().unwrap()
    }

    fn apply(&self, object: &Value) {
        self.objects().apply(object).unwrap();
    }

    /// Applies a Machine of this site.
    fn machine(&self, machine: Builder<Machine>) {
        self.apply(&machine.site("north").json());
    }

    fn operation(&self, operation: &Builder<MachineOperation>) {
        self.apply(&operation.json());
    }

    fn get(&self, name: &str) -> Option<Value> {
        self.objects().get("mop", name).unwrap()
    }

    /// Waits until an object is in a state.
    fn until_of(&self, (kind, name): (&str, &str), what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let found = self
            .objects()
            .until((kind, name), PATIENCE, |object| object.filter(|object| is(object)).cloned());
        found.unwrap_or_else(|error| {
            let last = self.objects().get(kind, name).unwrap_or_default();
            panic!("{kind} {name}: {what}: {error:#}\n{last:#?}\n{}", self.controller.said())
        })
    }

    /// Waits until an operation is in a state.
    fn until(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.until_of(("mop", name), what, is)
    }

    fn until_state(&self, name: &str, state: &str) -> Value {
        self.until(name, state, |operation| operation["status"]["state"] == state)
    }

    fn until_gone(&self, name: &str) {
        self.objects()
            .until(("mop", name), PATIENCE, |object| object.is_none().then_some(()))
            .unwrap_or_else(|error| panic!("deletion of {name}: {error:#}"));
    }

    fn agent(&self, machine: &str) -> Objects {
        let user = format!("bedplate:machine:{machine}");
        let kubeconfig = self.kubernetes.user(&user, &["bedplate:machines"]).unwrap();
        self.kubernetes.objects_of(&kubeconfig).unwrap()
    }

    /// Takes an operation as the Machine's agent does, unless it is taken. Ends it with `end`, if there is one.
    fn carries_out(&self, machine: &str, name: &str, end: Option<&str>) {
        let agent = self.agent(machine);
        let now = jiff::Timestamp::now().to_string();
        let taken = json!({ "state": "InProgress", "startTime": now, "executor": format!("bedplate-agent/{machine}") });
        let is_taken = self.objects().get("mop", name).unwrap().unwrap()["status"]["startTime"].is_string();
        if !is_taken {
            agent.merge_status_as(AGENT, "mop", name, &taken).unwrap();
        }
        if let Some(state) = end {
            let condition = json!({ "type": state, "status": "True", "reason": "Said", "message": "", "lastTransitionTime": now });
            let before = self.objects().get("mop", name).unwrap().unwrap()["status"]["conditions"].clone();
            let conditions = [before.as_array().cloned().unwrap_or_default(), vec![condition]].concat();
            let ended =
                json!({ "state": state, "completionTime": now, "reason": "Said", "conditions": conditions });
            agent.merge_status_as(AGENT, "mop", name, &ended).unwrap();
        }
    }

    fn children(&self, parent: &str) -> Vec<String> {
        let selector = format!("labelSelector=bedplate.dev/parent%3D{parent}");
        names(self.objects().list("mop", &selector).unwrap().iter())
    }

    fn until_children(&self, parent: &str, expected: &[&str]) {
        let is_child = |object: &&Value| object["metadata"]["labels"]["bedplate.dev/parent"] == parent;
        let reached = self.objects().until_among("mop", PATIENCE, |operations| {
            (names(operations.iter().copied().filter(is_child)) == expected).then_some(())
        });
        reached.unwrap_or_else(|error| {
            let (children, last) = (self.children(parent), self.get(parent).unwrap_or_default());
            panic!("children {expected:?}: {error:#}: {children:?}\n{last:#}\n{}", self.controller.said())
        });
    }

    /// Waits until a write is refused. Policies take effect some time after their creation.
    fn until_refused(&self, write: impl Fn() -> anyhow::Result<Value>) -> String {
        let refused = wait::until_asked("the policy", PATIENCE, || Ok(write().err()));
        format!("{:#}", refused.unwrap())
    }
}

fn names<'o>(objects: impl Iterator<Item = &'o Value>) -> Vec<String> {
    objects.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn controller(kubernetes: &Kubernetes, place: &Directory) -> Process {
    let kubeconfig = kubernetes.service_account("bedplate-system", "bedplate-controller").unwrap();
    let mut command = Command::new(pxed::binary("bedplate-controller").unwrap());
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args(["--instance", "first", "--listen", "127.0.0.1:0", "--log-format", "text"]);
    Process::spawn("bedplate-controller", &mut command, &place.path().join("controller.log")).unwrap()
}

#[test]
fn o1_o5_o7_labeled_operation_is_found_taken_and_ended_by_its_executor() {
    let site = Site::shared();
    site.machine(objects::machine("o5"));
    site.operation(&objects::operation("o5", "reboot").on("o5"));
    let labeled = site.until("o5", "its labels", |operation| {
        operation["metadata"]["labels"]["bedplate.dev/machine"] == "o5"
            && operation["status"]["state"] == "Pending"
    });
    assert_eq!(labeled["metadata"]["labels"]["bedplate.dev/site"], "north");
    // As the agent asks for it.
    let found = site.agent("o5").list("mop", "labelSelector=bedplate.dev/machine%3Do5").unwrap();
    assert_eq!(names(found.iter()), ["o5"]);
    site.carries_out("o5", "o5", Some("Complete"));
    let ended = site.until_state("o5", "Complete");
    assert_eq!(ended["status"]["reason"], "Said");
    // Power is pxed's, and the agent may not say anything about it.
    site.operation(&objects::operation("o7", "powerCycle").on("o5"));
    site.until_state("o7", "Pending");
    let taken = json!({ "state": "InProgress", "executor": "x" });
    let agent = site.agent("o5");
    let refused = site.until_refused(|| agent.merge_status_as(AGENT, "mop", "o7", &taken));
    assert!(refused.contains("does not report on powerOn"), "{refused}");
}

#[test]
fn o5_label_of_another_writer_is_corrected() {
    let site = Site::shared();
    site.machine(objects::machine("wrong"));
    let operation = objects::operation("wrong", "reboot").on("wrong");
    site.operation(&operation.label("bedplate.dev/machine", "another").label("own", "kept"));
    let labeled =
        site.until("wrong", "its label", |o| o["metadata"]["labels"]["bedplate.dev/machine"] == "wrong");
    assert_eq!(labeled["metadata"]["labels"]["own"], "kept");
}

#[test]
fn o2_an_operation_goes_after_its_time_whether_it_was_done_or_not() {
    let site = Site::shared();
    site.machine(objects::machine("o2"));
    for (name, end) in [("o2-done", "Complete"), ("o2-failed", "Failed")] {
        let short_lived = objects::operation(name, "reboot").on("o2");
        site.operation(&short_lived.spec(|spec| spec.ttl_seconds_after_finished = Some(1)));
        site.operation(&objects::operation(&format!("{name}-stays"), "reboot").on("o2"));
        site.until_state(name, "Pending");
        site.carries_out("o2", name, Some(end));
        site.carries_out("o2", &format!("{name}-stays"), Some(end));
        site.until_gone(name);
        assert!(site.get(&format!("{name}-stays")).is_some());
    }
}

#[test]
fn o3_children_begin_as_many_at_once_as_may_and_the_parent_sums_them_up() {
    let site = Site::shared();
    for name in ["o3-a", "o3-b", "o3-c"] {
        site.machine(objects::machine(name).label("row", "o3"));
    }
    let all = objects::operation("all", "reboot").selects("row", "o3").parameter("drain", "true");
    site.operation(&all.spec(|spec| {
        spec.max_parallel = Some(2);
        spec.ttl_seconds_after_finished = Some(1);
    }));
    site.until_children("all", &["all-o3-a", "all-o3-b"]);
    // A later Machine is not a target.
    site.machine(objects::machine("o3-later").label("row", "o3"));
    let child = site.until_state("all-o3-a", "Pending");
    assert_eq!(child["spec"]["parameters"], json!({ "drain": "true" }));
    let labels = &child["metadata"]["labels"];
    assert_eq!(
        (&labels["bedplate.dev/machine"], &labels["bedplate.dev/site"]),
        (&json!("o3-a"), &json!("north"))
    );
    let owner = &child["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["name"], &owner["controller"]), (&json!("all"), &json!(true)));
    site.carries_out("o3-a", "all-o3-a", Some("Complete"));
    site.until_children("all", &["all-o3-a", "all-o3-b", "all-o3-c"]);
    site.carries_out("o3-b", "all-o3-b", None);
    let counts = json!({ "total": 3, "pending": 1, "inProgress": 1, "complete": 1, "failed": 0 });
    let parent = site.until("all", "its sums", |parent| parent["status"]["counts"] == counts);
    assert_eq!(parent["status"]["state"], "InProgress");
    let machines = json!({ "started": ["o3-b", "o3-c"], "complete": ["o3-a"] });
    assert_eq!(parent["status"]["machines"], machines);
    site.carries_out("o3-b", "all-o3-b", Some("Complete"));
    site.carries_out("o3-c", "all-o3-c", Some("Complete"));
    // O2: its time is the children's, too.
    site.until_gone("all");
    for child in ["all-o3-a", "all-o3-b", "all-o3-c"] {
        site.until_gone(child);
    }
}

#[test]
fn o3_parent_fails_at_the_failure_limit_and_names_the_failed_machines() {
    let site = Site::shared();
    for name in ["limit-a", "limit-b", "limit-c"] {
        site.machine(objects::machine(name).label("row", "limit"));
    }
    let limited = objects::operation("limit", "reboot").selects("row", "limit");
    site.operation(&limited.spec(|spec| {
        spec.max_parallel = Some(1);
        spec.failure_limit = Some(1);
    }));
    site.until_children("limit", &["limit-limit-a"]);
    site.carries_out("limit-a", "limit-limit-a", Some("Failed"));
    let parent = site.until_state("limit", "Failed");
    let status = &parent["status"];
    assert_eq!((&status["reason"], &status["counts"]["failed"]), (&json!("MachinesFailed"), &json!(1)));
    let conditions =
        status["conditions"].as_array().unwrap().iter().map(|c| (&c["type"], &c["status"], &c["reason"]));
    let conditions: Vec<_> = conditions.collect();
    let said = ["Failed", "Stalled"].map(|type_| (json!(type_), json!("True"), json!("MachinesFailed")));
    assert_eq!(conditions, said.each_ref().map(|(type_, status, reason)| (type_, status, reason)));
    assert_eq!(status["observedGeneration"], parent["metadata"]["generation"]);
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("limit-a") && message.contains("not started on 2"), "{message}");
    assert_eq!(status["machines"]["notStarted"], json!(["limit-b", "limit-c"]));
    assert_eq!(site.children("limit"), ["limit-limit-a"]);
}

#[test]
fn o3_a_selector_that_matches_nothing_is_complete_at_once() {
    let site = Site::shared();
    site.operation(&objects::operation("nobody", "reboot").selects("row", "nobody"));
    let parent = site.until_state("nobody", "Complete");
    assert_eq!(parent["status"]["reason"], "NothingMatched");
}

#[test]
fn o3_deleted_parent_starts_no_more_children_and_started_ones_finish() {
    let site = Site::shared();
    for name in ["stop-a", "stop-b", "stop-c"] {
        site.machine(objects::machine(name).label("row", "stop"));
    }
    let parent = objects::operation("stop", "reboot").selects("row", "stop");
    site.operation(&parent.spec(|spec| spec.max_parallel = Some(2)));
    site.until_children("stop", &["stop-stop-a", "stop-stop-b"]);
    site.until_state("stop-stop-a", "Pending");
    site.carries_out("stop-a", "stop-stop-a", None);
    site.objects().begin_delete("mop", "stop").unwrap();
    site.until_gone("stop-stop-b");
    assert!(site.get("stop").is_some(), "it waits for what was begun");
    site.carries_out("stop-a", "stop-stop-a", Some("Complete"));
    site.until_gone("stop");
    site.until_gone("stop-stop-a");
    assert!(site.get("stop-stop-c").is_none());
}

#[test]
fn o3_deleted_child_is_not_created_again() {
    let site = Site::shared();
    for name in ["gone-a", "gone-b"] {
        site.machine(objects::machine(name).label("row", "gone"));
    }
    let parent = objects::operation("gone", "reboot").selects("row", "gone");
    site.operation(&parent.spec(|spec| spec.max_parallel = Some(1)));
    site.until_children("gone", &["gone-gone-a"]);
    site.until("gone", "its sums", |parent| parent["status"]["machines"]["started"] == json!(["gone-a"]));
    site.objects().delete("mop", "gone-gone-a").unwrap();
    site.until_children("gone", &["gone-gone-b"]);
    site.carries_out("gone-b", "gone-gone-b", Some("Complete"));
    let parent = site.until_state("gone", "Failed");
    assert_eq!(parent["status"]["machines"], json!({ "complete": ["gone-b"], "failed": ["gone-a"] }));
}

#[test]
fn operation_waits_briefly_for_its_machine_and_fails_without_it() {
    let site = Site::shared();
    site.operation(&objects::operation("nowhere", "reboot").on("nowhere"));
    site.operation(&objects::operation("early", "reboot").on("early"));
    site.machine(objects::machine("early"));
    let failed = site.until_state("nowhere", "Failed");
    assert_eq!(failed["status"]["reason"], "MachineNotFound");
    let early = site.until("early", "its site", |o| o["metadata"]["labels"]["bedplate.dev/site"] == "north");
    assert_eq!(early["status"]["state"], "Pending");
}

#[test]
fn o4_o7_untaken_or_unfinished_operation_fails_and_names_the_executors() {
    let site = Site::shared();
    site.machine(objects::machine("alone"));
    site.operation(&objects::operation("dance", "dance").on("alone").timeout(2));
    let failed = site.until_state("dance", "Failed");
    let message = failed["status"]["message"].as_str().unwrap();
    assert_eq!(failed["status"]["reason"], "NoExecutor");
    assert!(
        message.contains("no bedplate-agent yet") && message.contains("spec.bmc is not set"),
        "{message}"
    );
    // A user's own program takes it in time.
    site.operation(&objects::operation("own", "dance").on("alone").timeout(5));
    site.until_state("own", "Pending");
    let taken = json!({ "state": "InProgress", "executor": "dancer" });
    site.objects().merge_status("mop", "own", &taken).unwrap();
    let late = site.until_state("own", "Failed");
    assert_eq!(
        (&late["status"]["reason"], &late["status"]["executor"]),
        (&json!("TimedOut"), &json!("dancer"))
    );
    // While the Machine is paused no time runs.
    site.machine(objects::machine("paused").paused(true));
    site.operation(&objects::operation("held", "dance").on("paused").timeout(1));
    let held = site.until("held", "that it is held", |o| o["status"]["conditions"][0]["status"] == "True");
    assert_eq!(held["status"]["conditions"][0]["reason"], "MachinePaused");
    site.machine(objects::machine("paused").paused(false));
    let failed = site.until_state("held", "Failed");
    assert_eq!(failed["status"]["reason"], "NoExecutor");
}

/// The attack: the host that should carry an operation out writes its status without pause, so that a write over the version that was read is
/// a conflict, and its parent waits. Costs 1 s of CPU time.
#[test]
fn o1_host_that_writes_without_pause_does_not_keep_an_operation() {
    let site = Site::shared();
    site.machine(objects::machine("busy"));
    // The controller leads.
    site.operation(&objects::operation("busy-first", "dance").on("busy"));
    site.until_state("busy-first", "Pending");
    site.operation(&objects::operation("busy", "dance").on("busy").timeout(2));
    let agent = site.agent("busy");
    let status = |number: u32| json!({ "state": "Pending", "message": number.to_string() });
    std::thread::scope(|scope| {
        // They end with the operation, whose status then stays as it is.
        let write = || {
            (0..)
                .take_while(|number| agent.merge_status_as(AGENT, "mop", "busy", &status(*number)).is_ok())
                .count()
        };
        let writers = [(); 4].map(|()| scope.spawn(write));
        let failed = site.until_state("busy", "Failed");
        assert_eq!(failed["status"]["reason"], "NoExecutor");
        // The number depends on the machine; each writer was at work when the operation ended.
        let writes = writers.map(|writer| writer.join().unwrap());
        assert!(writes.iter().all(|count| *count > 0), "{writes:?}");
    });
}

#[test]
fn controller_creates_no_own_operations_and_changes_only_labels_of_others() {
    let site = Site::shared();
    site.machine(objects::machine("policy"));
    site.operation(&objects::operation("policy", "reboot").on("policy"));
    // An agent may write no status before the operation has a state.
    site.until_state("policy", "Pending");
    let own = site.kubernetes.service_account("bedplate-system", "bedplate-controller").unwrap();
    let own = site.kubernetes.objects_of(&own).unwrap();
    let refuses = |words: &str, write: &dyn Fn() -> anyhow::Result<Value>| {
        let said = || write().err().map(|error| format!("{error:#}")).filter(|said| said.contains(words));
        wait::until_asked(words, PATIENCE, || Ok(said())).unwrap();
    };
    let made = objects::operation("made", "reboot").on("policy").json();
    refuses("may create operations only for the Machines", &|| own.try_create(&made));
    for change in [
        json!({ "labels": { "a": "b" } }),
        json!({ "annotations": { "a": "b" } }),
        json!({ "finalizers": ["example.org/stays"] }),
    ] {
        let change = json!({ "metadata": change });
        refuses("may change only the labels and its finalizer", &|| own.try_merge("mop", "policy", &change));
    }
    // Only the controller writes the sums.
    let sums = json!({ "machines": { "complete": ["policy"] } });
    let agent = site.agent("policy");
    let said = site.until_refused(|| agent.merge_status_as(AGENT, "mop", "policy", &sums));
    assert!(
        said.contains("an agent may write only these fields of the status of a MachineOperation: "),
        "{said}"
    );
    assert!(site.pxed.merge_status("mop", "policy", &sums).is_err());
}

/// The Node of a host joins.
fn join(site: &Site, name: &str, version: u32) {
    site.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "spec": { "providerID": format!("bedplate://{name}") } }));
    let uid = site.objects().get("node", name).unwrap().unwrap()["metadata"]["uid"].clone();
    let applied = json!({ "name": name, "version": version, "slot": "a", "nodeUID": uid });
    machine_says(site, name, &json!({ "applied": applied }));
}

fn machine_says(site: &Site, name: &str, status: &Value) {
    site.objects().merge_status("machine", name, status).unwrap();
}

fn until_machine(site: &Site, name: &str, what: &str, is: impl Fn(&Value) -> bool) {
    site.until_of(("machine", name), what, |machine| is(&machine["status"]));
}

#[test]
fn o8_node_that_was_drained_for_an_operation_is_deleted_for_the_repave() {
    let site = Site::shared();
    let configure = |maximum: u32| {
        let mut template = objects::template(NODE_IMAGE);
        template.kubernetes.kubelet_configuration = Some(json!({ "maxPods": maximum }));
        site.apply(&objects::configuration("o8", &template).json());
    };
    configure(20);
    site.machine(objects::machine("o8").configuration("o8"));
    let enrolled = json!({ "type": "Enrolled", "status": "True", "reason": "Done", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    machine_says(site, "o8", &json!({ "conditions": [enrolled] }));
    until_machine(site, "o8", "version 1", |status| status["selected"]["version"] == 1);
    join(site, "o8", 1);
    until_machine(site, "o8", "its Node", |status| status["nodeRef"]["name"] == "o8");
    configure(30);
    site.until_of(("mcv", "o8-v2"), "version 2", |_| true);

    let apply = objects::operation("o8", "applyConfiguration").on("o8");
    site.operation(&apply.parameter("disruption", "allow"));
    let uid = site.until_state("o8", "Pending")["metadata"]["uid"].as_str().unwrap().to_owned();
    site.carries_out("o8", "o8", None);
    // As the agent does by its kubelet's right, and as another operation would.
    let cordon = |by: &str| {
        let patch = json!({ "metadata": { "annotations": { "bedplate.dev/cordoned-by": by } }, "spec": { "unschedulable": true } });
        site.objects().merge("node", "o8", &patch).unwrap();
    };
    cordon(&uid);
    let drained = json!({ "type": "Drained", "status": "True", "reason": "PodsEvicted", "message": "the Pods were evicted",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    site.agent("o8").merge_status_as(AGENT, "mop", "o8", &json!({ "conditions": [drained] })).unwrap();
    let gone = |node: Option<&Value>| node.is_none().then_some(());
    site.objects().until(("node", "o8"), PATIENCE, gone).expect("the end of its Node");
    until_machine(site, "o8", "version 2 and no Node", |status| {
        status["selected"]["version"] == 2 && status.get("nodeRef").is_none()
    });
    join(site, "o8", 2);
    until_machine(site, "o8", "its new Node", |status| status["nodeRef"]["name"] == "o8");
    site.carries_out("o8", "o8", Some("Complete"));
    site.until_state("o8", "Complete");
    assert!(site.objects().get("node", "o8").unwrap().is_some(), "it is deleted once");
}
