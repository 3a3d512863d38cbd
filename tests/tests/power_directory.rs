//! Power without a cluster: operations of manifests and of the socket switch a machine behind a simulated BMC, each once,
//! also over a kill.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "power/server.rs"]
mod server;

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use bedplate_tests::bmc::chassis::Action;
use bedplate_tests::bmc::service::{PASSWORD, USER};
use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::objects;
use bedplate_tests::pxed::{Parts, ask, prepare, serve};
use bedplate_tests::wait;
use serde_json::{Value, json};
use server::Server;

const LIMIT: Duration = Duration::from_secs(60);

struct Rig {
    directory: Directory,
}

impl Rig {
    fn new() -> Self {
        let rig = Self { directory: Directory::new("power-directory").unwrap() };
        std::fs::create_dir_all(rig.path("machines.d")).unwrap();
        let secret = rig.path("credentials/bedplate-system/a");
        std::fs::create_dir_all(&secret).unwrap();
        for (name, text) in [("username", USER), ("password", PASSWORD), ("bmc-addresses", "127.0.0.0/8")] {
            std::fs::write(secret.join(name), format!("{text}\n")).unwrap();
            std::fs::set_permissions(secret.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let at = |name: &str| rig.path(name).display().to_string();
        let source = format!("directory = {:?}", at("machines.d"));
        let bmc = format!(
            "[bmc]\nallowed-networks = [\"127.0.0.0/8\"]\ncredentials-directory = {:?}\npoll-seconds = 5",
            at("credentials")
        );
        prepare(rig.directory.path(), Parts { general: "", source: &source, more: &bmc }).unwrap();
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self) -> Process {
        serve(self.directory.path()).unwrap()
    }

    fn manifest(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        std::fs::write(self.path(&format!("machines.d/{name}.json")), object.to_string()).unwrap();
    }

    fn ended(&self, name: &str) -> Value {
        let ended = wait::until(&format!("the end of {name}"), LIMIT, || {
            let shown = ask(&self.path("pxed.sock"), &format!("/v1/operations/{name}")).unwrap_or_default();
            let status = shown["status"].clone();
            Ok(["Complete", "Failed"].iter().any(|state| status["state"] == **state).then_some(status))
        });
        let log = || std::fs::read_to_string(self.path("pxed.log")).unwrap_or_default();
        ended.unwrap_or_else(|error| panic!("{error:#}\n{}", log()))
    }

    /// Makes an operation through the socket; gives the head of the answer.
    fn post(&self, object: &Value) -> String {
        let mut socket = UnixStream::connect(self.path("pxed.sock")).unwrap();
        let body = object.to_string();
        write!(
            socket,
            "POST /v1/operations HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }
}

fn operation(name: &str, operation: &str) -> Value {
    objects::operation(name, operation).on("a").json()
}

#[test]
fn operations_of_manifests_and_of_the_socket_are_carried_out_once_each() {
    let (rig, server) = (Rig::new(), Server::start("5b1e0000-0000-4000-8000-000000000021"));
    let mut machine = objects::machine("a").pxe("52:54:00:00:20:01").label("rack", "1").json();
    let more = server.spec("bedplate-system", "a");
    machine["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    rig.manifest(&machine);
    rig.manifest(&operation("on", "powerOn"));
    let mut pxed = rig.start();
    let status = rig.ended("on");
    assert_eq!(status["reason"], "PoweredOn", "{status}");
    assert!(server.is_on());

    rig.manifest(&operation("cycle", "powerCycle"));
    let status = rig.ended("cycle");
    assert_eq!(status["reason"], "PowerCycled", "{status}");
    assert!(rig.post(&operation("off", "powerOff")).contains(" 201 "), "made");
    assert!(rig.post(&operation("off", "powerOff")).contains(" 409 "), "its name is taken");
    let status = rig.ended("off");
    assert_eq!(status["reason"], "PoweredOff", "{status}");
    let asked = [Action::On, Action::ForceOff, Action::On, Action::GracefulOff];
    assert_eq!(server.asked(), asked);

    // Killed: no operation is repeated. The end of a later operation shows that all earlier ones were checked.
    pxed.kill();
    drop(pxed);
    let mut pxed = rig.start();
    rig.manifest(&operation("again", "powerOn"));
    let status = rig.ended("again");
    assert_eq!(status["reason"], "PoweredOn", "{status}");
    assert_eq!(server.asked(), [&asked[..], &[Action::On]].concat());
    let shown = ask(&rig.path("pxed.sock"), "/v1/machines/a").unwrap();
    assert_eq!(shown["status"]["power"]["lastAction"]["action"], "PowerOn", "{shown}");

    let mut all = operation("all", "powerOff");
    all["spec"] = json!({ "operationName": "powerOff", "parameters": { "force": "true" },
        "machineSelector": { "matchLabels": { "rack": "1" } } });
    rig.manifest(&all);
    let status = rig.ended("all");
    assert_eq!(
        (&status["state"], &status["counts"]["complete"]),
        (&json!("Complete"), &json!(1)),
        "{status}"
    );
    assert_eq!(rig.ended("all-a")["reason"], "PoweredOff");
    assert!(!server.is_on());
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
    assert!(!pxed.said().contains(PASSWORD), "a password in the log");
}
