//! bedplate-controller on a real API server, with the role of `deploy/`: tests each rule from outside.
//!
//! Hosts, Nodes and agents are objects that the tests write; the controller is the real program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "kubernetes_controller/reports.rs"]
mod reports;
#[path = "kubernetes_controller/takeover.rs"]
mod takeover;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use bedplate_api::configuration::NodeRole;
use bedplate_api::machine::Machine;
use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kstatus::{self, Kstatus};
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::objects::{self, Builder, NODE_IMAGE};
use bedplate_tests::{pxed, wait};
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType};
use serde_json::{Value, json};

/// Address of the API server in its EndpointSlice.
const ENDPOINT: &str = "10.7.6.1";
const PATIENCE: Duration = Duration::from_secs(60);

/// The cluster with its controller; both end with the test program.
struct Site {
    place: Directory,
    controller: Process,
}

impl Site {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Site> = OnceLock::new();
        SHARED.get_or_init(|| {
            let kubernetes = Kubernetes::shared();
            kubernetes.protect_versions().unwrap();
            // This API server does not write its own endpoint, and the controller keeps what it has read of it for some seconds.
            let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": { "name": "kubernetes", "namespace": "default" },
                "endpoints": [{ "addresses": [ENDPOINT] }] });
            kubernetes.objects().unwrap().apply(&slice).unwrap();
            let place = Directory::new("controller").unwrap();
            let controller = controller(kubernetes, &place, "first");
            Self { place, controller }
        })
    }

    fn objects(&self) -> &Objects {
        Kubernetes::shared().objects().unwrap()
    }

    /// Returns access with the permissions of the controller.
    fn as_controller(&self) -> Objects {
        self.objects().impersonating(CONTROLLER, &[])
    }

    fn apply(&self, object: &Value) {
        self.objects().apply(object).unwrap();
    }

    fn status(&self, machine: &str, status: &Value) {
        self.objects().merge_status("machine", machine, status).unwrap();
    }

    fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.objects().get(kind, name).unwrap()
    }

    /// Waits until an object is in a state.
    fn until(&self, (kind, name): (&str, &str), what: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.until_within(PATIENCE, (kind, name), what, is)
    }

    fn until_within(
        &self,
        limit: Duration,
        (kind, name): (&str, &str),
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let is_so = |object: Option<&Value>| object.filter(|object| is(object)).cloned();
        self.objects().until((kind, name), limit, is_so).unwrap_or_else(|error| {
            let said = self.controller.said();
            panic!("{kind} {name}: {what}: {error:#}\n{:#}\n{said}", self.get(kind, name).unwrap_or_default())
        })
    }

    fn until_there(&self, kind: &str, name: &str) {
        self.until((kind, name), "its creation", |_| true);
    }

    fn until_gone(&self, kind: &str, name: &str) {
        let gone = |object: Option<&Value>| object.is_none().then_some(());
        let ended = self.objects().until((kind, name), PATIENCE, gone);
        ended.unwrap_or_else(|error| panic!("deletion of {kind} {name}: {error:#}"));
    }

    /// Waits until a write is refused with these words. Policies take effect some time after their creation.
    fn until_refused(&self, words: &str, write: impl Fn() -> anyhow::Result<Value>) {
        let refusal =
            || write().err().map(|error| format!("{error:#}")).filter(|refusal| refusal.contains(words));
        wait::until_asked(words, PATIENCE, || Ok(refusal())).unwrap();
    }

    /// Applies a MachineConfiguration without choices. Each `content` has its own version.
    fn configure(&self, name: &str, content: u32) {
        self.apply(&objects::configuration(name, &objects::numbered_template(content)).json());
    }

    /// Applies a Machine whose host is enrolled.
    fn machine(&self, machine: &Builder<Machine>) {
        let machine = machine.json();
        self.apply(&machine);
        let name = machine["metadata"]["name"].as_str().unwrap();
        self.status(name, &json!({ "conditions": [condition("Enrolled")] }));
    }

    /// Waits until a version is selected, and gives which.
    fn selected(&self, machine: &str, version: u32) -> Value {
        let found = self.until(("machine", machine), &format!("version {version}"), |machine| {
            machine["status"]["selected"]["version"] == version
        });
        found["status"]["selected"].clone()
    }

    /// The host's Node joins with what is selected; its UID.
    fn join(&self, machine: &str) -> String {
        self.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": machine },
            "spec": { "providerID": format!("bedplate://{machine}") } }));
        let uid = self.get("node", machine).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let selected = self.get("machine", machine).unwrap()["status"]["selected"].clone();
        let applied =
            json!({ "name": selected["name"], "version": selected["version"], "slot": "a", "nodeUID": uid });
        let mut patch = vec![json!({ "op": "add", "path": "/status/applied", "value": applied })];
        let machine_now = self.get("machine", machine).unwrap();
        if !machine_now["status"]["conditions"].to_string().contains("NodeReady") {
            patch.push(
                json!({ "op": "add", "path": "/status/conditions/-", "value": condition("NodeReady") }),
            );
        }
        self.objects().edit("machine", machine, "/status", &json!(patch)).unwrap();
        uid
    }
}

fn controller(kubernetes: &Kubernetes, place: &Directory, name: &str) -> Process {
    let kubeconfig = kubernetes.service_account("bedplate-system", "bedplate-controller").unwrap();
    let mut command = Command::new(binary());
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args(["--instance", name, "--listen", "127.0.0.1:0", "--log-format", "text"]);
    // The registry of a test.
    command.arg("--image-allowed-networks=127.0.0.0/8");
    Process::spawn("bedplate-controller", &mut command, &place.path().join(format!("{name}.log"))).unwrap()
}

fn binary() -> PathBuf {
    pxed::binary("bedplate-controller").unwrap()
}

fn condition(kind: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

fn pending(machine: &Value) -> Option<&Value> {
    machine["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == "ConfigurationPending")
}

#[test]
fn c1_c2_c5_versions_follow_edits_and_numbers_are_never_used_again() {
    let site = Site::shared();
    site.configure("edits", 1);
    let first = site.until(("mcv", "edits-v1"), "version 1", |v| v["status"]["deployed"] == false);
    let uid = site.get("mc", "edits").unwrap()["metadata"]["uid"].clone();
    assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], uid);
    site.configure("edits", 2);
    let panic = |v: &Value| v["spec"]["template"]["sysctls"]["kernel.panic"].clone();
    site.until(("mcv", "edits-v1"), "the edit", |v| panic(v) == "2");
    site.machine(&objects::machine("edits").configuration("edits"));
    site.selected("edits", 1);
    site.configure("edits", 3);
    site.until(("mcv", "edits-v2"), "version 2", |v| panic(v) == "3");
    assert_eq!(panic(&site.get("mcv", "edits-v1").unwrap()), "2");
    site.until(("mc", "edits"), "the highest number", |c| c["status"]["latestVersion"] == 2);
    // Version 2 is not in use: it may be deleted, and is created again under another number.
    site.objects().delete("mcv", "edits-v2").unwrap();
    site.until(("mcv", "edits-v3"), "version 3", |v| panic(v) == "3");
    assert!(site.get("mcv", "edits-v2").is_none());
}

/// Tools that wait for objects read `observedGeneration`, the condition's own and that of the status.
#[test]
fn kstatus_of_a_machine_follows_each_edit() {
    let site = Site::shared();
    site.configure("kstatus", 1);
    site.machine(&objects::machine("kstatus").configuration("kstatus"));
    site.selected("kstatus", 1);
    site.join("kstatus");
    site.until(("machine", "kstatus"), "Current", |machine| kstatus::of(machine) == Kstatus::Current);
    site.apply(&objects::machine("kstatus").configuration("kstatus").paused(true).json());
    let is_observed = |machine: &Value| {
        let generation = &machine["metadata"]["generation"];
        let ready = &machine["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["type"] == "Ready")
            .unwrap();
        machine["status"]["observedGeneration"] == *generation
            && ready["observedGeneration"] == *generation
            && ready["reason"] == "Paused"
    };
    let machine = site.until(("machine", "kstatus"), "the edit is observed", is_observed);
    assert_eq!(kstatus::of(&machine), Kstatus::InProgress);
    site.objects().delete("machine", "kstatus").unwrap();
}

#[test]
fn c6_what_is_in_use_and_the_newest_outlive_the_history() {
    let site = Site::shared();
    let edit = |content: u32| {
        let edited = objects::configuration("history", &objects::numbered_template(content));
        site.apply(&edited.spec(|spec| spec.revision_history_limit = 1).json());
    };
    edit(1);
    site.machine(&objects::machine("history-1").configuration("history"));
    site.selected("history-1", 1);
    edit(2);
    site.until_there("mcv", "history-v2");
    site.machine(&objects::machine("history-2").configuration("history"));
    site.selected("history-2", 2);
    edit(3);
    site.until_there("mcv", "history-v3");
    assert!(site.get("mcv", "history-v2").is_some(), "history-2 uses it");
    site.objects().delete("machine", "history-2").unwrap();
    site.until_gone("mcv", "history-v2");
    assert!(site.get("mcv", "history-v1").is_some() && site.get("mcv", "history-v3").is_some());
}

#[test]
fn c3_h3_selector_decides_once_and_an_unmatched_machine_gets_a_reason() {
    let site = Site::shared();
    site.machine(&objects::machine("lonely").label("row", "none"));
    let is_pending = |machine: &Value| pending(machine).is_some_and(|c| c["reason"] == "NoConfiguration");
    site.until(("machine", "lonely"), "ConfigurationPending", is_pending);
    let selecting = |name: &str, priority: i32| {
        let selecting = objects::configuration(name, &objects::numbered_template(1)).selects("row", "c3");
        selecting.spec(|spec| spec.priority = priority)
    };
    site.apply(&selecting("c3-b", 1).json());
    site.apply(&selecting("c3-a", 0).json());
    site.until(("mcv", "c3-a-v1"), "a version", |_| true);
    site.until(("mcv", "c3-b-v1"), "a version", |_| true);
    site.machine(&objects::machine("c3").label("row", "c3"));
    let selected = site.selected("c3", 1);
    assert_eq!((&selected["name"], &selected["source"]), (&json!("c3-b"), &json!("Selector")));
    site.apply(&selecting("c3-a", 9).selects("new", "yes").json());
    site.until(("machine", "lonely"), "the new selector", |machine| {
        pending(machine).is_some_and(|c| c["message"].as_str().unwrap().contains("new=yes"))
    });
    site.machine(&objects::machine("c3-later").label("row", "c3").label("new", "yes"));
    assert_eq!(site.selected("c3-later", 1)["name"], "c3-a");
    assert_eq!(site.selected("c3", 1)["name"], "c3-b", "decided once");
    let lonely = site.until(("machine", "lonely"), "the nearest", |machine| {
        pending(machine)
            .is_some_and(|c| c["message"].as_str().unwrap().contains("requires row=c3, has row=none"))
    });
    assert_eq!(lonely["status"]["phase"], "ConfigurationPending");
}

#[test]
fn h4_h5_h6_h7_node_is_recorded_annotated_and_replaced_after_its_end() {
    let site = Site::shared();
    site.configure("nodes", 1);
    site.machine(&objects::machine("nodes").configuration("nodes"));
    site.selected("nodes", 1);
    let locked = site.get("mcv", "nodes-v1").unwrap();
    assert_eq!(locked["status"]["deployed"], true, "H4: locked before it is selected");
    let uid = site.join("nodes");
    let annotated = |version: &str| {
        let version = version.to_owned();
        move |node: &Value| {
            let there = &node["metadata"]["annotations"];
            there["bedplate.dev/machine-configuration"] == "nodes"
                && there["bedplate.dev/machine-configuration-version"] == version
        }
    };
    site.until(("node", "nodes"), "its annotations", annotated("1"));
    let machine = site.until(("machine", "nodes"), "its Node", |m| m["status"]["nodeRef"]["uid"] == uid);
    assert_eq!(machine["status"]["providerID"], "bedplate://nodes");
    site.until(("machine", "nodes"), "Ready", |m| m["status"]["phase"] == "Ready");
    site.configure("nodes", 2);
    site.until(("mc", "nodes"), "an outdated Machine", |c| c["status"]["machines"]["outdated"] == 1);
    assert_eq!(site.selected("nodes", 1)["version"], 1, "an edit alone moves nothing");
    site.objects().delete("node", "nodes").unwrap();
    site.selected("nodes", 2);
    let machine = site.get("machine", "nodes").unwrap();
    assert!(machine["status"].get("nodeRef").is_none(), "in one write: {machine:#}");
    site.join("nodes");
    site.until(("node", "nodes"), "its annotations", annotated("2"));
    site.until(("machine", "nodes"), "its Node", |m| m["status"].get("nodeRef").is_some());
    site.apply(&objects::machine("nodes").version("nodes", 1).json());
    site.selected("nodes", 1);
    site.objects().delete("node", "nodes").unwrap();
    site.until(("machine", "nodes"), "no Node", |m| m["status"].get("nodeRef").is_none());
    site.join("nodes");
    site.until(("node", "nodes"), "its annotations", annotated("1"));
}

#[test]
fn h1_a_paused_machine_is_left_as_it_is_and_the_phase_decides_nothing() {
    let site = Site::shared();
    site.configure("paused", 1);
    site.machine(&objects::machine("paused").configuration("paused").paused(true));
    let machine = site.until(("machine", "paused"), "Paused", |m| m["status"]["phase"] == "Paused");
    assert!(machine["status"].get("selected").is_none());
    site.status("paused", &json!({ "phase": "Ready" }));
    site.until(("machine", "paused"), "Paused again", |m| m["status"]["phase"] == "Paused");
    site.apply(&objects::machine("paused").configuration("paused").json());
    site.selected("paused", 1);
}

#[test]
fn v1_v3_versions_are_the_controllers_and_what_is_in_use_is_not_deleted() {
    let site = Site::shared();
    site.configure("kept", 1);
    site.machine(&objects::machine("kept").configuration("kept"));
    site.selected("kept", 1);
    let edit = json!({ "metadata": { "labels": { "a": "b" } } });
    site.until_refused("edit the MachineConfiguration", || site.objects().merge("mcv", "kept-v1", &edit));
    for (kind, name, words) in
        [("mcv", "kept-v1", "uses this version"), ("mc", "kept", "uses this configuration")]
    {
        let words = format!("Machine kept {words}");
        // The API server's cache of Machines may be slightly stale.
        site.until_refused(&words, || site.objects().can_delete(kind, name));
        let why = site.objects().begin_delete(kind, name).expect_err("it is in use");
        assert!(format!("{why:#}").contains(&words), "{why:#}");
    }
    site.objects().delete("machine", "kept").unwrap();
    // The API server's own cache of Machines is a moment behind.
    wait::until_asked("the end of its use", PATIENCE, || Ok(site.objects().begin_delete("mc", "kept").ok()))
        .unwrap();
    site.until_gone("mc", "kept");
    site.until_gone("mcv", "kept-v1");
}

#[test]
fn v3_version_without_a_configuration_is_deleted_once_it_is_unused() {
    let site = Site::shared();
    let mut version = objects::version("lost", 1, &objects::template(NODE_IMAGE)).json();
    version["metadata"]["finalizers"] = json!(["bedplate.dev/in-use"]);
    // A version of a configuration whose finalizer a user removed, or that was re-created under its name.
    version["metadata"]["ownerReferences"] = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration",
        "name": "lost", "uid": "00000000-0000-4000-8000-000000000000", "controller": true }]);
    site.as_controller().create(&version).unwrap();
    site.objects().begin_delete("mcv", "lost-v1").unwrap();
    site.until_gone("mcv", "lost-v1");
}

#[test]
fn rights_of_the_controllers_credentials_are_bounded() {
    let site = Site::shared();
    let kubernetes = Kubernetes::shared();
    let controller = kubernetes.service_account("bedplate-system", "bedplate-controller").unwrap();
    let controller = kubernetes.objects_of(&controller).unwrap();
    let may = |verb: &str, what: &str| {
        let (resource, group) = what.split_once('.').unwrap_or((what, ""));
        let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": { "verb": verb, "group": group, "resource": resource } } });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = controller.request(&http::Method::POST, path, "application/json", &review).unwrap();
        answer["status"]["allowed"].as_bool().unwrap()
    };
    assert!(may("patch", "nodes"));
    for (verb, what) in [
        ("get", "secrets"),
        ("create", "pods"),
        ("update", "nodes"),
        ("delete", "machines.bedplate.dev"),
        ("delete", "machineconfigurations.bedplate.dev"),
        ("create", "certificatesigningrequests.certificates.k8s.io"),
        ("patch", "validatingadmissionpolicies.admissionregistration.k8s.io"),
        ("impersonate", "users"),
    ] {
        assert!(!may(verb, what), "{verb} {what}");
    }
    site.configure("bounded", 1);
    site.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "bounded" } }));
    let as_controller = site.as_controller();
    let apply = |manager: &str, (version, kind): (&str, &str), change: &Value| {
        let mut object = json!({ "apiVersion": version, "kind": kind, "metadata": {} });
        object.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        object["metadata"]["name"] = json!("bounded");
        as_controller.apply_as(manager, "", &object, "")
    };
    let (node, ours) = (("v1", "Node"), ("bedplate.dev/v1alpha1", "MachineConfiguration"));
    // Policies take effect some time after they were made.
    let attempt = std::cell::Cell::new(0);
    site.until_refused("only its finalizer and its annotations here", || {
        attempt.set(attempt.get() + 1);
        apply("probe", node, &json!({ "metadata": { "labels": { "probe": attempt.get().to_string() } } }))
    });
    // As something that is there already, with a value that is none.
    let finalizers = json!({ "metadata": { "finalizers": ["bedplate.dev/in-use"] } });
    for (kind, change, words) in [
        (
            node,
            json!({ "metadata": { "labels": { "a": "b" } } }),
            "only its finalizer and its annotations here",
        ),
        (node, json!({ "metadata": { "annotations": { "a": "b" } } }), "only these annotations here"),
        (node, json!({ "metadata": { "annotations": { "a": "" } } }), "only these annotations here"),
        (node, finalizers.clone(), "only its own finalizer"),
        (node, json!({ "spec": { "unschedulable": true } }), "only its finalizer and its annotations here"),
        (ours, json!({ "spec": { "priority": 7 } }), "only its finalizer and its annotations here"),
        (ours, json!({ "metadata": { "finalizers": ["example.com/other"] } }), "only its own finalizer"),
        (ours, json!({ "metadata": { "annotations": { NODE: "x" } } }), "only these annotations here"),
    ] {
        let why = apply("test", kind, &change).expect_err(&change.to_string());
        assert!(format!("{why:#}").contains(words), "{change}: {why:#}");
    }
    let own = json!({ "metadata": { "annotations": { NODE: "x" } } });
    apply("test", node, &own).unwrap();
    apply("test", ours, &finalizers).unwrap();
}

const NODE: &str = "bedplate.dev/machine-configuration";
const CONTROLLER: &str = "system:serviceaccount:bedplate-system:bedplate-controller";

#[test]
fn controllers_credentials_write_no_status_fields_of_other_programs() {
    let site = Site::shared();
    site.machine(&objects::machine("fields").paused(true));
    let power = json!({ "state": "Off" });
    site.status("fields", &json!({ "power": power }));
    let as_controller = site.as_controller();
    let try_apply = |status: &Value, more: &str| {
        let machine = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
            "metadata": { "name": "fields" }, "status": status });
        as_controller.apply_as("test", "/status", &machine, more)
    };
    let apply = |status: &Value| try_apply(status, "");
    let words = "only these fields of the status of a Machine";
    let probe = json!({ "slots": [{ "name": "a", "state": "Running" }] });
    site.until_refused(words, || try_apply(&probe, "&dryRun=All"));
    for (what, change) in [
        (
            "which certificate counts",
            json!({ "enrollment": { "certificateFingerprint": format!("sha256:{}", "0".repeat(64)) } }),
        ),
        ("what runs", json!({ "applied": { "name": "fields", "version": 1, "slot": "a" } })),
        ("power", json!({ "power": { "state": "On" } })),
        ("what a host has", json!({ "hardware": { "serial": "x" } })),
        ("slots", json!({ "slots": [{ "name": "a", "state": "Running" }] })),
    ] {
        let why = apply(&change).expect_err(what);
        assert!(format!("{why:#}").contains(words), "{what}: {why:#}");
    }
    let mut enrolled = condition("Enrolled");
    enrolled["status"] = json!("False");
    for condition in [condition("Paved"), enrolled] {
        let why = apply(&json!({ "conditions": [condition] })).expect_err("others' conditions");
        assert!(format!("{why:#}").contains("only these conditions of a Machine"), "{why:#}");
    }
    apply(&json!({ "phase": "Paused", "providerID": "x" })).unwrap();
}

#[test]
fn trust_5_controllers_credentials_approve_only_requests_for_kubelets() {
    let site = Site::shared();
    let ask = |name: &str, signer: &str| {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, "system:node:other");
        let pem = params.serialize_request(&key).unwrap().pem().unwrap().into_bytes();
        let object = json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": { "name": name }, "spec": { "request": k8s_openapi::ByteString(pem), "signerName": signer,
            "usages": ["digital signature", "client auth"] } });
        site.objects().create(&object).unwrap()
    };
    let as_controller = site.as_controller();
    let approve = |request: &Value| approve(&as_controller, request);
    let kubelet = "kubernetes.io/kube-apiserver-client-kubelet";
    let attempt = std::cell::Cell::new(0);
    site.until_refused("only about requests that agents have made", || {
        attempt.set(attempt.get() + 1);
        approve(&ask(&format!("stranger-{}", attempt.get()), kubelet))
    });
    // The role's own limit.
    let client = ask("client", "kubernetes.io/kube-apiserver-client");
    approve(&client).expect_err("another signer");
}

impl Site {
    /// An agent asks for its kubelet's certificate; what becomes of it: `Approved` or `Denied`, and why.
    fn verdict(&self, agent: &Objects, request: &str, machine: &str) -> (String, String) {
        let text = |text: &str| DnValue::PrintableString(text.try_into().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, text("system:nodes"));
        params.distinguished_name.push(DnType::CommonName, text(&format!("system:node:{machine}")));
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap().into_bytes();
        let object = json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": { "name": request }, "spec": { "request": k8s_openapi::ByteString(pem),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"] } });
        agent.create(&object).unwrap();
        let decided = self.until(("csr", request), "a verdict", |csr| csr["status"]["conditions"].is_array());
        let verdict = &decided["status"]["conditions"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&verdict["type"]), text(&verdict["message"]))
    }
}

#[test]
fn trust_5_only_the_last_enrolled_host_gets_its_kubelets_certificate() {
    let site = Site::shared();
    site.machine(&objects::machine("trust").paused(true));
    let (agent, enrollment) = Kubernetes::shared().agent("trust").unwrap();
    let agent = Kubernetes::shared().objects_of(&agent).unwrap();
    site.status("trust", &json!({ "enrollment": enrollment }));
    assert_eq!(site.verdict(&agent, "trust-own", "trust").0, "Approved");
    // Another host was enrolled for the Machine: the first one's certificate is good for the API server yet.
    site.status(
        "trust",
        &json!({ "enrollment": { "certificateFingerprint": format!("sha256:{}", "0".repeat(64)) } }),
    );
    let (verdict, why) = site.verdict(&agent, "trust-replaced", "trust");
    assert_eq!(verdict, "Denied");
    assert!(why.contains("not from the last enrollment of the Machine"), "{why}");
    // Another key was enrolled, whatever certificate is recorded for it.
    let other = json!({ "enrollment": { "certificateFingerprint": enrollment["certificateFingerprint"], "keyID": "0".repeat(32) } });
    site.status("trust", &other);
    let (verdict, why) = site.verdict(&agent, "trust-other-key", "trust");
    assert_eq!(verdict, "Denied");
    assert!(why.contains("enrollment group"), "{why}");
    site.objects().delete("machine", "trust").unwrap();
    assert_eq!(site.verdict(&agent, "trust-deleted", "trust").0, "Denied");
}

/// Approves a certificate request with these credentials.
fn approve(as_controller: &Objects, request: &Value) -> anyhow::Result<Value> {
    let mut decided = request.clone();
    decided["status"]["conditions"] =
        json!([{ "type": "Approved", "status": "True", "reason": "x", "message": "x" }]);
    let name = request["metadata"]["name"].as_str().unwrap();
    let place = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/approval");
    as_controller.request(&http::Method::PUT, &place, "application/json", &decided)
}

/// Makes a kubelet's request for a serving certificate (PEM): its subject's name, a DNS name and addresses.
fn serving_request(subject: &str, dns: &str, addresses: &[&str]) -> k8s_openapi::ByteString {
    let text = |text: &str| DnValue::PrintableString(text.try_into().unwrap());
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, text("system:nodes"));
    params.distinguished_name.push(DnType::CommonName, text(&format!("system:node:{subject}")));
    params.subject_alt_names = vec![SanType::DnsName(dns.try_into().unwrap())];
    let addresses = addresses.iter().map(|address| SanType::IpAddress(address.parse().unwrap()));
    params.subject_alt_names.extend(addresses);
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    k8s_openapi::ByteString(params.serialize_request(&key).unwrap().pem().unwrap().into_bytes())
}

impl Site {
    /// Creates a request for a serving certificate as the kubelet of a Node.
    fn ask_serving(&self, name: &str, node: &str, pem: &k8s_openapi::ByteString) -> Value {
        let kubelet =
            self.objects().impersonating(&format!("system:node:{node}"), &["system:nodes", "system:masters"]);
        let object = json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": { "name": name }, "spec": { "request": pem, "signerName": "kubernetes.io/kubelet-serving",
            "usages": ["digital signature", "server auth"] } });
        kubelet.create(&object).unwrap()
    }

    fn serving_verdict(&self, name: &str, node: &str, pem: &k8s_openapi::ByteString) -> (String, String) {
        self.ask_serving(name, node, pem);
        let decided = self.until(("csr", name), "a verdict", |csr| csr["status"]["conditions"].is_array());
        let verdict = &decided["status"]["conditions"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&verdict["type"]), text(&verdict["message"]))
    }

    /// Applies a Machine whose agent has reported these addresses.
    fn reporting(&self, name: &str, addresses: &[&str]) {
        self.machine(&objects::machine(name).paused(true));
        let addresses: Vec<Value> =
            addresses.iter().map(|address| json!({ "type": "InternalIP", "address": address })).collect();
        self.status(name, &json!({ "addresses": addresses }));
    }

    /// Applies the Node of a kubelet, with the addresses that the kubelet reports.
    fn node(&self, name: &str, provider_id: Option<&str>, addresses: &[&str]) {
        self.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            "spec": { "providerID": provider_id } }));
        let addresses: Vec<Value> =
            addresses.iter().map(|address| json!({ "type": "InternalIP", "address": address })).collect();
        self.objects().merge_status("node", name, &json!({ "addresses": addresses })).unwrap();
    }
}

#[test]
fn trust_5_kubelet_gets_its_serving_certificate_and_no_other() {
    let site = Site::shared();
    site.reporting("serves", &["10.7.9.1", "10.7.9.2", "10.7.9.3"]);
    site.node("serves", Some("bedplate://serves"), &["10.7.9.1", "10.7.9.9"]);
    let own = serving_request("serves", "serves", &["10.7.9.1"]);
    assert_eq!(site.serving_verdict("serves-own", "serves", &own).0, "Approved");
    // Its kubelet registers later.
    site.reporting("serves-late", &["10.7.9.20"]);
    let late = serving_request("serves-late", "serves-late", &["10.7.9.20"]);
    site.ask_serving("serves-late", "serves-late", &late);
    site.node("serves-late", Some("bedplate://serves-late"), &["10.7.9.20"]);
    let approved = |csr: &Value| csr["status"]["conditions"][0]["type"] == "Approved";
    site.until(("csr", "serves-late"), "its approval", approved);
    let service =
        site.get("service", "kubernetes").unwrap()["spec"]["clusterIP"].as_str().unwrap().to_owned();
    site.status("serves", &json!({ "addresses": [{ "type": "InternalIP", "address": service }] }));
    for (name, pem, words) in [
        ("name", serving_request("serves", "other", &["10.7.9.1"]), "is not serves"),
        ("loopback", serving_request("serves", "serves", &["127.0.0.1"]), "127.0.0.1 is not reachable"),
        (
            "service",
            serving_request("serves", "serves", &[&service]),
            "belongs to Service default/kubernetes",
        ),
    ] {
        let (verdict, why) = site.serving_verdict(&format!("serves-{name}"), "serves", &pem);
        assert!(verdict == "Denied" && why.contains(words), "{name}: {verdict} {why}");
    }
}

#[test]
fn trust_5_endpoint_of_api_server_is_for_the_kubelet_of_its_control_plane() {
    let site = Site::shared();
    for (name, role, verdict) in [
        ("endpoint-plane", NodeRole::ControlPlane, "Approved"),
        ("endpoint-worker", NodeRole::Worker, "Denied"),
    ] {
        let mut template = objects::template(NODE_IMAGE);
        template.kubernetes.role = role;
        template.kubernetes.join_configuration = Some(json!({}));
        site.apply(&objects::configuration(name, &template).json());
        site.machine(&objects::machine(name).configuration(name));
        site.selected(name, 1);
        site.status(name, &json!({ "addresses": [{ "type": "InternalIP", "address": ENDPOINT }] }));
        site.node(name, Some(&format!("bedplate://{name}")), &[ENDPOINT]);
        let asked = serving_request(name, name, &[ENDPOINT]);
        let (decided, why) = site.serving_verdict(name, name, &asked);
        assert_eq!(decided, verdict, "{name}: {why}");
        site.objects().delete("machine", name).unwrap();
        site.objects().delete("node", name).unwrap();
    }
}

/// The attack: a compromised host writes the address of another host into its Node, or has its agent report it.
#[test]
fn trust_5_kubelet_gets_no_certificate_of_another_hosts_address() {
    let site = Site::shared();
    site.reporting("grabs", &["10.7.8.1", "10.7.8.2", "10.7.8.3"]);
    site.node("grabs", Some("bedplate://grabs"), &["10.7.8.4"]);
    site.reporting("victim", &["10.7.8.2"]);
    site.node("victim-node", None, &["10.7.8.3"]);
    let events = |words: &str| {
        let is_found = |event: &Value| {
            event["reason"] == "CertificateApprovalRequired"
                && event["note"].as_str().unwrap_or_default().contains(words)
        };
        site.objects().list("event", "").unwrap().iter().any(is_found)
    };
    for (name, address, words) in [
        ("grabs-said", "10.7.8.4", "has not reported the address 10.7.8.4"),
        ("grabs-machine", "10.7.8.2", "is also claimed by Machine victim"),
        ("grabs-node", "10.7.8.3", "is also claimed by Node victim-node"),
    ] {
        site.ask_serving(name, "grabs", &serving_request("grabs", "grabs", &[address]));
        wait::until_asked(words, PATIENCE, || Ok(events(words).then_some(()))).unwrap();
        let csr = site.get("csr", name).unwrap();
        assert!(csr["status"]["conditions"].is_null(), "{name}: {csr:#}");
    }
    // A Node that kubeadm made is not Bedplate's, even if there is a Machine of its name.
    site.reporting("victim-node", &["10.7.8.30"]);
    site.ask_serving(
        "grabs-foreign",
        "victim-node",
        &serving_request("victim-node", "victim-node", &["10.7.8.30"]),
    );
    wait::until_asked("NodeNameConflict", PATIENCE, || Ok(events("has no providerID").then_some(())))
        .unwrap();
    assert!(site.get("csr", "grabs-foreign").unwrap()["status"]["conditions"].is_null());
}

#[test]
fn trust_5_controllers_credentials_approve_only_a_kubelets_own_name() {
    let site = Site::shared();
    let as_controller = site.as_controller();
    let approve = |request: &Value| approve(&as_controller, request);
    // No Machine has these names, so the controller ignores the requests.
    let words = "only for its own Node";
    let attempt = std::cell::Cell::new(0);
    site.until_refused(words, || {
        attempt.set(attempt.get() + 1);
        let name = format!("lent-probe-{}", attempt.get());
        approve(&site.ask_serving(&name, "lent", &serving_request("lent", "kubernetes", &["10.7.7.1"])))
    });
    for (name, pem) in [
        ("lent-name", serving_request("lent", "kubernetes.default.svc", &["10.7.7.1"])),
        ("lent-longer", serving_request("lent", "lent2", &["10.7.7.1"])),
        ("lent-prefix", serving_request("lent", "len", &["10.7.7.1"])),
    ] {
        let why = approve(&site.ask_serving(name, "lent", &pem)).expect_err(name);
        assert!(format!("{why:#}").contains(words), "{name}: {why:#}");
    }
    for (name, addresses) in
        [("lent-own", &["10.7.7.1"][..]), ("lent-both", &["10.7.7.1", "fd00::1"]), ("lent-none", &[])]
    {
        approve(&site.ask_serving(name, "lent", &serving_request("lent", "lent", addresses))).unwrap();
    }
}

/// In a cluster of its own: an Event that another test waits for would end with the controller that is killed here.
#[test]
fn second_controller_waits_and_continues_when_the_first_was_killed() {
    const LEADS: &str = "Lease acquired, leading";
    let kubernetes = Kubernetes::installed().unwrap();
    let objects = kubernetes.objects().unwrap();
    let place = Directory::new("controllers").unwrap();
    let made = |name: &str| {
        objects.apply(&objects::configuration(name, &objects::numbered_template(1)).json()).unwrap();
        objects.until(("mcv", &format!("{name}-v1")), PATIENCE, |version| version.map(|_| ())).unwrap();
    };
    let mut first = controller(&kubernetes, &place, "first");
    first.wait_said(LEADS, PATIENCE).unwrap();
    let mut second = controller(&kubernetes, &place, "second");
    second.wait_said("caches synced", PATIENCE).unwrap();
    made("before");
    assert!(!second.said().contains(LEADS), "{}", second.said());
    first.kill();
    made("after");
    second.wait_said(LEADS, PATIENCE).unwrap();
}

/// A user who may write one object of a kind chooses the times of its managed fields too.
#[test]
fn trust_4_uncountable_time_of_one_machine_stops_no_controller() {
    let site = Site::shared();
    site.machine(&objects::machine("timeless").paused(true));
    let unpause = json!({ "op": "add", "path": "/spec/paused", "value": false });
    site.objects().edit_at("machine", "timeless", &unpause, "9999-12-31T23:59:59Z").unwrap();
    let mut next = controller(Kubernetes::shared(), &site.place, "second");
    next.wait_said("caches synced", PATIENCE).unwrap();
    site.objects().delete("machine", "timeless").unwrap();
}
