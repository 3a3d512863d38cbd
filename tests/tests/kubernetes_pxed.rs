//! pxed with a real API server as its source, under the role that `deploy/` gives it: Machines are known, status and Events
//! are written, and a server that is taken away takes nothing with it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::{Kubernetes, Objects, request_line};
use bedplate_tests::objects;
use bedplate_tests::pxed::{Parts, ask, prepare, serve};
use bedplate_tests::wait;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(90);

struct Rig {
    kubernetes: Kubernetes,
    kubeconfig: PathBuf,
    directory: Directory,
}

impl Rig {
    fn new() -> Self {
        let kubernetes = Kubernetes::installed().unwrap();
        let kubeconfig = kubernetes.service_account("bedplate-system", "pxed").unwrap();
        let directory = Directory::new("kubernetes-pxed").unwrap();
        let source = format!("kubernetes = {{ kubeconfig = {:?} }}", kubeconfig.display().to_string());
        let parts = Parts { general: "site = \"rack1\"", source: &source, more: "" };
        prepare(directory.path(), parts).unwrap();
        Self { kubernetes, kubeconfig, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self) -> Process {
        serve(self.directory.path()).unwrap()
    }

    fn apply(&self, name: &str, site: &str, mac: &str) {
        self.objects().apply(&objects::machine(name).pxe(mac).site(site).json()).unwrap();
    }

    fn objects(&self) -> &Objects {
        self.kubernetes.objects().unwrap()
    }

    fn machine(&self, name: &str) -> Value {
        self.objects().get("machine", name).unwrap().unwrap()
    }

    /// Waits until `is` returns true for a Machine's condition.
    fn until_booted(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) {
        let is_so = |machine: Option<&Value>| booted(machine?).filter(|condition| is(condition)).map(drop);
        let reached = self.objects().until(("machine", name), LIMIT, is_so);
        reached.unwrap_or_else(|error| panic!("{name}: {what}: {error:#}\n{}", self.said()));
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.path("pxed.log")).unwrap_or_default()
    }

    fn until(&self, what: &str, mut state: impl FnMut() -> bool) {
        let reached = wait::until(what, LIMIT, || Ok(state().then_some(())));
        reached.unwrap_or_else(|error| panic!("{error:#}\n{}", self.said()));
    }
}

fn known(socket: &Path) -> Vec<String> {
    let list = ask(socket, "/v1/machines").unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|m| m["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

fn reasons(socket: &Path) -> String {
    ask(socket, "/v1/status").unwrap_or_default()["reasons"].to_string()
}

fn booted(machine: &Value) -> Option<Value> {
    let conditions = machine["status"]["conditions"].as_array()?;
    conditions.iter().find(|c| c["type"] == "Booted").cloned()
}

#[test]
fn pxed_reports_its_sites_machines_and_keeps_them_in_an_api_outage() {
    let mut rig = Rig::new();
    let socket = rig.path("pxed.sock");
    rig.apply("one", "rack1", "52:54:00:00:00:0a");
    rig.apply("elsewhere", "rack2", "52:54:00:00:00:0b");
    let mut pxed = rig.start();
    rig.until("one is known", || known(&socket) == ["one"]);
    rig.until("ready", || ask(&socket, "/v1/status").unwrap_or_default()["ready"] == true);

    // Two claim one address: both say so in their status, as pxed's fields, and in an Event.
    rig.apply("two", "rack1", "52-54-00-00-00-0A");
    rig.until("two is known", || known(&socket) == ["one", "two"]);
    for (name, other) in [("one", "two"), ("two", "one")] {
        let claimed = format!("claimed by {other}");
        rig.until_booted(name, "the condition", |condition| {
            condition["reason"] == "DuplicateMACAddress"
                && condition["message"].to_string().contains(&claimed)
        });
        let machine = rig.machine(name);
        let managers = machine["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let ours = managers.iter().find(|m| m["manager"] == "pxed").cloned().unwrap();
        assert_eq!(
            (ours["operation"].as_str(), ours["subresource"].as_str()),
            (Some("Apply"), Some("status"))
        );
        assert_eq!(machine["status"]["phase"], Value::Null, "phase is the controller's");
    }
    let two = |events: &[&Value]| {
        (events.iter().filter(|event| event["reason"] == "DuplicateMACAddress").count() >= 2).then_some(())
    };
    rig.objects().until_among("event", LIMIT, two).expect("the Events");
    let before = booted(&rig.machine("one")).unwrap();

    // The server goes, pxed is killed and comes again: it knows what it knew.
    rig.kubernetes.stop_server();
    pxed.kill();
    drop(pxed);
    let mut pxed = rig.start();
    assert_eq!(known(&socket), ["one", "two"]);
    rig.until("it says why", || reasons(&socket).contains("serving the stored machines"));
    let shown = ask(&socket, "/v1/machines/one").unwrap();
    assert_eq!(booted(&shown).unwrap()["lastTransitionTime"], before["lastTransitionTime"]);

    // The server comes back: changes are seen, and nothing that did not change was written.
    rig.kubernetes.start_server().unwrap();
    rig.until("the source is read", || {
        ask(&socket, "/v1/status").unwrap_or_default()["source"]["synced"] == true
    });
    assert_eq!(booted(&rig.machine("one")).unwrap(), before);
    rig.objects().delete("machine", "two").unwrap();
    rig.until("two is gone", || known(&socket) == ["one"]);
    let is_its_own = |condition: &Value| condition["reason"] == "AwaitingBoot";
    rig.until_booted("one", "only this Machine claims its address", is_its_own);

    // A Machine that is re-created under its old name has no past.
    rig.objects().delete("machine", "one").unwrap();
    rig.apply("one", "rack1", "52:54:00:00:00:0c");
    let shown = || ask(&socket, "/v1/machines/one").unwrap_or_default();
    rig.until("the new one is known", || shown()["spec"].to_string().contains("52:54:00:00:00:0c"));
    assert_eq!(booted(&shown()), None, "{}", shown());
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
}

/// Kubernetes 1.31 and newer select Machines by a field. Costs the start of an API server, 12 s of CPU time.
#[test]
fn a3_pxed_asks_for_objects_of_its_site_alone() {
    let rig = Rig::new();
    let socket = rig.path("pxed.sock");
    rig.apply("one", "rack1", "52:54:00:00:00:0a");
    rig.apply("elsewhere", "rack2", "52:54:00:00:00:0b");
    let operation = |name: &str| objects::operation(name, "powerOn");
    for made in [
        operation("own").label("bedplate.dev/site", "rack1").on("one"),
        operation("new").label("own", "x").on("one"),
        operation("elsewhere").label("bedplate.dev/site", "rack2").on("elsewhere"),
        operation("parent").label("bedplate.dev/children", "").selects("a", "b"),
    ] {
        rig.objects().apply(&made.json()).unwrap();
    }
    let pxed = rig.start();
    let operations = || {
        let list = ask(&socket, "/v1/operations").unwrap_or_default();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|o| o["metadata"]["name"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    rig.until("its operations are known", || operations() == ["new", "own"].map(str::to_owned).into());
    rig.until("one is known", || known(&socket) == ["one"]);
    let selectors = [
        "machines fieldSelector=spec.site=rack1",
        "machineclaims labelSelector=bedplate.dev/site=rack1",
        "machineoperations labelSelector=bedplate.dev/site=rack1",
        "machineoperations labelSelector=!bedplate.dev/site,!bedplate.dev/children",
    ];
    let expected: BTreeSet<String> =
        selectors.iter().flat_map(|of| ["list", "watch"].map(|verb| format!("{verb} {of}"))).collect();
    let reads = || -> BTreeSet<String> {
        let lines = rig.kubernetes.asked_by_pxed(&rig.kubeconfig).unwrap();
        let of_ours = lines.iter().filter(|event| event["objectRef"]["apiGroup"] == "bedplate.dev");
        // One Machine's head shows whether the server answers again.
        let of_ours = of_ours.filter(|event| !event["requestURI"].to_string().contains("limit=1\""));
        of_ours.map(request_line).filter(|line| !line.starts_with("patch ")).collect()
    };
    let _ = wait::until_asked("each request", LIMIT, || Ok(reads().is_superset(&expected).then_some(())));
    assert_eq!(reads(), expected, "{}", pxed.said());
}
