//! A host without a cluster: the real agent in its own unit on systemd 252, enrolled by hand with a token, carries out operations of
//! the real pxed's directory and socket, through the real command line, over restarts of both.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bedplate_tests::guard::{Directory, Process, run};
use bedplate_tests::host::{End, Host};
use bedplate_tests::netns::Namespace;
use bedplate_tests::objects;
use bedplate_tests::pxed::{ask, binary};
use bedplate_tests::wait;
use serde_json::{Value, json};

/// On a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
const NAME: &str = "node-1";
const UNIT: &str = include_str!("../../systemd/bedplate-agent.service");
/// The unit's own /proc would tell the machine's boot id, which outlives the host.
const BOOT: &str = "[Service]\nBindReadOnlyPaths=/run/boot_id:/proc/sys/kernel/random/boot_id\n";
const GOOD: &str = "[Service]\nExecStart=/bin/sleep infinity\n";
const SERVER: &str = "https://127.0.0.1:8443";

/// pxed's files, and the network that it shares with the host.
struct Site {
    directory: Directory,
    network: Namespace,
}

impl Site {
    fn new() -> Self {
        let site = Self {
            directory: Directory::new("standalone").unwrap(),
            network: Namespace::new("alone").unwrap(),
        };
        for folder in ["machines.d", "host"] {
            std::fs::create_dir_all(site.path(folder)).unwrap();
        }
        for file in ["kernel", "initrd"] {
            std::fs::write(site.path(file), vec![1; 4096]).unwrap();
        }
        let at = |name: &str| site.path(name).display().to_string();
        let config = format!(
            "state-directory = {:?}\nsocket = {:?}\ndefault-image = \"host\"\n[source]\ndirectory = {:?}\n[dhcp]\nmode = \
             \"off\"\n[tftp]\nlisten = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n[https]\nlisten = \
             \"0.0.0.0:8443\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n[images.host]\nkernel = {:?}\ninitrd = {:?}\n",
            at("state"),
            at("pxed.sock"),
            at("machines.d"),
            at("kernel"),
            at("initrd"),
        );
        std::fs::write(site.path("pxed.toml"), config).unwrap();
        site.manifest(&objects::machine(NAME).json());
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn manifest(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        std::fs::write(self.path(&format!("machines.d/{name}.json")), object.to_string()).unwrap();
    }

    fn pxed(&self) -> Process {
        let mut command = self.network.command(binary("pxed").unwrap());
        command.args(["run", "--config"]).arg(self.path("pxed.toml")).env("BEDPLATE_LOG", "info,pxed=debug");
        let mut process = Process::spawn("pxed", &mut command, &self.path("pxed.log")).unwrap();
        wait::until("the Machine at pxed", LIMIT, || {
            assert!(process.is_running(), "{}", process.said());
            Ok(self.ask("/v1/machines/node-1"))
        })
        .unwrap();
        process
    }

    fn ask(&self, path: &str) -> Option<Value> {
        ask(&self.path("pxed.sock"), path).ok()
    }

    /// Output of the command line.
    fn bedplate(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(binary("bedplate").unwrap());
        run(command.arg("--socket").arg(self.path("pxed.sock")).args(arguments)).unwrap()
    }

    /// The host, on state that outlives it.
    fn host(&self) -> Host {
        let host = Host::prepare(NAME)
            .unwrap()
            .network(&self.network)
            .bind(&binary("bedplate-agent").unwrap(), "/usr/bin/bedplate-agent")
            .bind_writable(&self.path("host"), "/var/lib/bedplate");
        let units = [("bedplate-agent", UNIT), ("good", GOOD)];
        let host = units.into_iter().fold(host, |host, (unit, text)| {
            host.file(&format!("/etc/systemd/system/{unit}.service"), text.as_bytes(), 0o644).unwrap()
        });
        let drop_in = "/etc/systemd/system/bedplate-agent.service.d/boot.conf";
        let host = host.file(drop_in, BOOT.as_bytes(), 0o644).unwrap().start().unwrap();
        host.put("/run/boot_id", host.boot_id().as_bytes(), 0o444).unwrap();
        host.run("systemctl", &["start", "bedplate-agent.service", "good.service"]).unwrap();
        host
    }

    fn ended(&self, name: &str, host: &Host) -> Value {
        let ended = wait::until(&format!("the end of {name}"), LIMIT, || {
            let shown = self.ask(&format!("/v1/operations/{name}")).unwrap_or_default();
            let status = shown["status"].clone();
            Ok(["Complete", "Failed"].iter().any(|state| status["state"] == **state).then_some(status))
        });
        ended.unwrap_or_else(|error| panic!("{error:#}\n{}", host.journal("bedplate-agent").unwrap()))
    }
}

fn operation(name: &str, operation: &str, parameters: &Value) -> Value {
    let parameters = serde_json::from_value(parameters.clone()).unwrap();
    objects::operation(name, operation).on(NAME).spec(|spec| spec.parameters = parameters).json()
}

fn main_pid(host: &Host) -> String {
    host.run("systemctl", &["show", "--property=MainPID", "--value", "good.service"]).unwrap()
}

#[test]
fn o7_standalone_host_enrolls_by_hand_and_operates_over_restarts() {
    let site = Site::new();
    let mut pxed = site.pxed();
    let shown = site.ask("/v1/machines/node-1").unwrap();
    let ready = shown["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Ready");
    let waiting = ready.and_then(|ready| ready["message"].as_str()).unwrap_or_default();
    assert!(waiting.contains("bedplate machine token node-1"), "{shown}");
    let mut host = site.host();

    // H1: a person brings the token, by a file.
    let token = site.bedplate(&["machine", "token", NAME]);
    host.put("/root/token", token.as_bytes(), 0o600).unwrap();
    let enroll = ["enroll", "--server", SERVER, "--token-file", "/root/token", "--wait", "100"];
    let said = host.run("/usr/bin/bedplate-agent", &enroll).unwrap();
    assert_eq!(said.trim(), "this host is Machine node-1");
    let again =
        host.run("/usr/bin/bedplate-agent", &["enroll", "--token-file", "/etc/hostname", "--wait", "0"]);
    assert!(again.unwrap_err().to_string().contains("not an enrollment token"));

    // By the command line, and by a manifest.
    let before = main_pid(&host);
    let restart = ["operation", "create", "restartService", "--machine", NAME, "--parameter", "service=good"];
    let made = site.bedplate(&[&["--output", "json"], &restart[..], &["--parameter", "in=host"]].concat());
    let made: Value = serde_json::from_str(&made).unwrap();
    let status = site.ended(made["metadata"]["name"].as_str().unwrap(), &host);
    assert_eq!((&status["state"], &status["reason"]), (&json!("Complete"), &json!("Restarted")), "{status}");
    assert_eq!(status["executor"], "bedplate-agent/node-1");
    assert_ne!(main_pid(&host), before);
    site.manifest(&operation("none", "restartService", &json!({ "service": "none", "in": "host" })));
    let status = site.ended("none", &host);
    assert_eq!(status["state"], "Failed", "{status}");
    assert!(status["message"].as_str().unwrap().contains("none.service"), "{status}");

    // There is no configuration to choose from, and that is said.
    let paved = wait::until("word of the slots", LIMIT, || {
        let shown = site.ask("/v1/machines/node-1").unwrap_or_default();
        let conditions = shown["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let paved = conditions.into_iter().find(|condition| condition["type"] == "Paved");
        Ok(paved.filter(|condition| condition["reason"] == "NoVersionSelected"))
    });
    paved.unwrap();

    // pxed is killed and comes back; the host is rebooted by an operation that it gets then.
    pxed.kill();
    drop(pxed);
    let mut pxed = site.pxed();
    site.manifest(&operation("again", "reboot", &json!({})));
    assert_eq!(host.wait_ended(LIMIT).unwrap(), End::Reboot);
    drop(host);
    let host = site.host();
    let status = site.ended("again", &host);
    assert_eq!((&status["state"], &status["reason"]), (&json!("Complete"), &json!("Rebooted")), "{status}");
    wait::until_asked("pxed's answer in the agent's status", LIMIT, || {
        let said = host.run("/usr/bin/bedplate-agent", &["status"])?;
        Ok(said.contains("none (standalone), pxed answers").then_some(()))
    })
    .unwrap();
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
    assert!(!pxed.said().contains(token.trim()), "a token in the log");
}
