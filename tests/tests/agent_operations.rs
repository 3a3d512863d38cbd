//! Operations that the agent carries out, against a real systemd 252 in namespaces: services of host and slot, packets of a real
//! interface by a real tcpdump, reboot and shutdown by logind.
//!
//! The loop runs in the test and reaches the host's bus through its root directory; objects are kept by a stand-in for the cluster.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use bedplate_agent::bus::Bus;
use bedplate_agent::kubelet::client::SlotKubelet;
use bedplate_agent::operation::apply::{ApplyError, Configuration};
use bedplate_agent::operation::configuration::Standing as Configured;
use bedplate_agent::operation::journal::file::{Note, NoteDirectory};
use bedplate_agent::operation::ledger::{Ledger, View, WriteOperationError};
use bedplate_agent::operation::plan::Standing;
use bedplate_agent::operation::progress::taken;
use bedplate_agent::operation::run::{Parts, run};
use bedplate_api::machine::VersionRef;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use bedplate_bootstrap::diff::InPlace;
use bedplate_process::liveness::Pulse;
use bedplate_tests::guard::Directory;
use bedplate_tests::host::{End, Host};
use bedplate_tests::netns::Namespace;
use bedplate_tests::objects;
use bedplate_tests::wait::until;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// On a busy machine.
const LONG: Duration = Duration::from_secs(120);
const GOOD: (&str, &str) = ("good.service", "[Service]\nExecStart=/bin/sleep infinity\n");
const BAD: (&str, &str) =
    ("bad.service", "[Service]\nExecStart=/bin/sh -c 'echo cannot find my keys; exit 3'\n");
/// Place of the agent's unit in the shutdown order: D-Bus and logind run until the agent has stopped. The agent itself runs in the test.
const AGENT: (&str, &str) = (
    "agent.service",
    "[Unit]\nAfter=dbus.service systemd-logind.service\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n\
     ExecStop=/bin/sh -c 'touch /run/agent-stops; until [ -e /run/agent-stopped ]; do sleep 0.05; done'\n",
);

/// Keeps one object as an API server does.
struct Paper {
    views: watch::Sender<View>,
    version: AtomicU64,
}

impl Paper {
    fn new(operation: &str, parameters: &Value) -> Result<Arc<Self>> {
        let name = format!("node-1-{}", operation.to_lowercase());
        let parameters = serde_json::from_value(parameters.clone())?;
        let object = objects::operation(&name, operation).on("node-1").metadata(|metadata| {
            metadata.uid = Some("3f2a7c10-1".to_owned());
            metadata.resource_version = Some("1".to_owned());
        });
        let object = object.spec(|spec| spec.parameters = parameters);
        let operations = vec![Arc::new(object.build())];
        let view = View { operations, complete: true, standing: Standing::Ready, ..View::default() };
        Ok(Arc::new(Self { views: watch::Sender::new(view), version: AtomicU64::new(2) }))
    }

    fn object(&self) -> Arc<MachineOperation> {
        Arc::clone(&self.views.borrow().operations[0])
    }

    fn put(&self, status: MachineOperationStatus) -> Arc<MachineOperation> {
        let mut object = (*self.object()).clone();
        object.status = Some(status);
        object.metadata.resource_version = Some(self.version.fetch_add(1, Ordering::SeqCst).to_string());
        let object = Arc::new(object);
        self.views.send_modify(|view| view.operations = vec![Arc::clone(&object)]);
        object
    }

    fn end(&self) -> (bool, String, String) {
        let status = self.object().status.clone().unwrap_or_default();
        let complete = status.state == Some(OperationState::Complete);
        (complete, status.reason.unwrap_or_default(), status.message.unwrap_or_default())
    }
}

#[async_trait]
impl Ledger for Paper {
    async fn write(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError> {
        let now = self.object();
        if now.metadata.resource_version != operation.metadata.resource_version {
            return Err(WriteOperationError::Conflict(Box::new((*now).clone())));
        }
        Ok(self.put(status))
    }
}

/// Nothing here is about configurations.
struct NoConfiguration;

#[async_trait]
impl Configuration for NoConfiguration {
    async fn standing(&self) -> Result<Configured, String> {
        Err("no configuration".to_owned())
    }

    async fn change(&self, _: &[InPlace]) -> Result<(), ApplyError> {
        Err(ApplyError::NotSupported("no configuration".to_owned()))
    }

    async fn may_repave(&self, _: &VersionRef) -> Result<(), ApplyError> {
        Err(ApplyError::NotSupported("no configuration".to_owned()))
    }

    async fn repave(&self, _: &VersionRef) -> Result<(), ApplyError> {
        Err(ApplyError::NotSupported("no configuration".to_owned()))
    }
}

fn parts(host: &Host, paper: &Arc<Paper>, state: &Path) -> Result<Parts> {
    let bus = Bus::at(&host.root());
    let machines = Arc::new(bus.machined());
    let machine: bedplate_api::id::MachineName = "node-1".parse()?;
    let node = Arc::new(SlotKubelet::new(machines.clone(), &host.root(), machine.clone()));
    Ok(Parts {
        machine,
        boot_id: host.boot_id().to_owned(),
        clock: Arc::new(Timestamp::now),
        ledger: paper.clone(),
        notes: Arc::new(NoteDirectory::new(&state.join("operations"))),
        units: Arc::new(bus.manager()),
        machines,
        power: Arc::new(bus.logind()),
        node,
        configuration: Arc::new(NoConfiguration),
        captures: state.join("captures"),
    })
}

/// Runs the loop until the operation has ended.
async fn carried_out(parts: Parts, paper: &Paper) -> Result<(bool, String, String)> {
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(run(parts, paper.views.subscribe(), Pulse::unwatched(), shutdown.clone()));
    let over = |view: &View| {
        let state = view.operations[0].status.as_ref().and_then(|status| status.state);
        matches!(state, Some(OperationState::Complete | OperationState::Failed))
    };
    let mut views = paper.views.subscribe();
    tokio::time::timeout(LONG, views.wait_for(over)).await.context("the operation does not end")??;
    shutdown.cancel();
    task.await?;
    Ok(paper.end())
}

/// A host with these units and a directory that is at the same place inside and outside.
fn host(name: &str, units: &[(&str, &str)], state: &Directory, network: Option<&Namespace>) -> Result<Host> {
    let path = state.path().to_str().context("a plain path")?;
    let mut host = Host::prepare(name)?.bind_writable(state.path(), path);
    for (unit, text) in units {
        host = host.file(&format!("/etc/systemd/system/{unit}"), text.as_bytes(), 0o644)?;
    }
    if let Some(network) = network {
        host = host.network(network);
    }
    host.start()
}

fn main_pid(host: &Host, unit: &str) -> Result<String> {
    host.run("systemctl", &["show", "--property=MainPID", "--value", unit])
}

#[tokio::test]
async fn o7_a_service_of_the_host_is_restarted_and_one_that_fails_says_why() -> Result<()> {
    let state = Directory::new("operations")?;
    let host = host("services", &[GOOD, BAD], &state, None)?;
    host.run("systemctl", &["start", "good.service"])?;
    let before = main_pid(&host, "good.service")?;
    let good = Paper::new("restartService", &json!({"service": "good", "in": "host"}))?;
    let end = carried_out(parts(&host, &good, state.path())?, &good).await?;
    assert_eq!((end.0, end.1.as_str()), (true, "Restarted"), "{}", end.2);
    assert_ne!(main_pid(&host, "good.service")?, before);

    let other = Directory::new("operations")?;
    let bad = Paper::new("restartService", &json!({"service": "bad.service", "in": "host"}))?;
    let end = carried_out(parts(&host, &bad, other.path())?, &bad).await?;
    assert_eq!(end.1, "ServiceFailed", "{}", end.2);
    assert!(end.2.contains("cannot find my keys"), "{}", end.2);
    assert!(!end.0);
    Ok(())
}

#[tokio::test]
async fn o1_a_restart_that_a_killed_agent_asked_for_is_found_and_not_repeated() -> Result<()> {
    for asked in [true, false] {
        let state = Directory::new("operations")?;
        let host = host("killed", &[GOOD], &state, None)?;
        host.run("systemctl", &["start", "good.service"])?;
        let paper = Paper::new("restartService", &json!({"service": "good", "in": "host"}))?;
        let parts = parts(&host, &paper, state.path())?;
        paper.put(taken(None, "bedplate-agent/node-1", host.boot_id(), Timestamp::now()));
        let note = Note {
            uid: "3f2a7c10-1".to_owned(),
            name: "o".to_owned(),
            boot_id: host.boot_id().to_owned(),
            started: Timestamp::now(),
            end: None,
        };
        parts.notes.put(&note).await?;
        if asked {
            host.run("systemctl", &["restart", "good.service"])?;
        }
        let before = main_pid(&host, "good.service")?;
        let end = carried_out(parts, &paper).await?;
        assert_eq!(
            (end.0, end.1.as_str()),
            if asked { (true, "Restarted") } else { (false, "Interrupted") },
            "{}",
            end.2
        );
        assert_eq!(main_pid(&host, "good.service")?, before);
    }
    Ok(())
}

#[tokio::test]
async fn o7_a_service_of_the_slot_is_restarted_by_the_slots_own_systemd() -> Result<()> {
    let state = Directory::new("operations")?;
    let host = host("slot", &[], &state, None)?;
    let none = Paper::new("restartService", &json!({"service": "good"}))?;
    assert_eq!(carried_out(parts(&host, &none, state.path())?, &none).await?.1, "NoRunningSlot");

    host.add_container("bedplate-a")?;
    let unit = "/var/lib/bedplate/test-bedplate-a/upper/etc/systemd/system/good.service";
    host.put(unit, GOOD.1.as_bytes(), 0o644)?;
    host.run("systemctl", &["start", "systemd-nspawn@bedplate-a.service"])?;
    let other = Directory::new("operations")?;
    let good = Paper::new("restartService", &json!({"service": "good"}))?;
    let end = carried_out(parts(&host, &good, other.path())?, &good).await?;
    assert_eq!((end.0, end.1.as_str()), (true, "Restarted"), "{}", end.2);
    assert!(end.2.contains("of the slot is active"), "{}", end.2);
    host.run("machinectl", &["terminate", "bedplate-a"])?;
    Ok(())
}

/// Captures on `eth0` while datagrams arrive there at port 6767.
async fn captured(parameters: Value, state: &Directory) -> Result<(bool, String, String)> {
    let (here, there) = (Namespace::new("here")?, Namespace::new("there")?);
    here.add_veth("eth0", &there, "peer0")?;
    for (namespace, address, device) in [(&here, "10.77.0.1/24", "eth0"), (&there, "10.77.0.2/24", "peer0")] {
        namespace.ip(&format!("address add {address} dev {device}"))?;
        namespace.ip(&format!("link set {device} up"))?;
    }
    let host = host("capture", &[], state, Some(&here))?;
    let paper = Paper::new("packetCapture", &parameters)?;
    let parts = parts(&host, &paper, state.path())?;
    let over = Arc::new(AtomicBool::new(false));
    let sender = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            there.inside(|| {
                let socket = UdpSocket::bind("10.77.0.2:0")?;
                while !over.load(Ordering::SeqCst) {
                    socket.send_to(&[7; 1000], "10.77.0.1:6767")?;
                    std::thread::park_timeout(Duration::from_millis(10));
                }
                Ok(())
            })
        }
    });
    let end = carried_out(parts, &paper).await;
    over.store(true, Ordering::SeqCst);
    sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    let left = host.run("systemctl", &["list-units", "--all", "--plain", "--no-legend", "bedplate-*"])?;
    ensure!(left.trim().is_empty(), "units are left: {left}");
    end
}

#[tokio::test]
async fn o7_capture_stores_matching_packets_and_reports_the_digest() -> Result<()> {
    let state = Directory::new("operations")?;
    let (complete, reason, message) =
        captured(json!({"interface": "eth0", "filter": "udp dst port 6767", "seconds": "3"}), &state).await?;
    assert!(complete, "{reason}: {message}");
    let path = state.path().join("captures/node-1-packetcapture-3f2a7c10.pcap");
    let bytes = std::fs::read(&path).with_context(|| message.clone())?;
    assert!(bytes.len() > 5000 && message.starts_with(&path.display().to_string()), "{message}");
    let digest = std::process::Command::new("sha256sum").arg(&path).output()?;
    let digest = String::from_utf8(digest.stdout)?;
    let digest = digest.split_whitespace().next().context("a digest")?;
    assert!(message.contains(&format!("{} bytes, sha256:{digest} (3 s)", bytes.len())), "{message}");
    Ok(())
}

#[tokio::test]
async fn o7_a_capture_ends_at_its_size_after_a_whole_packet() -> Result<()> {
    let state = Directory::new("operations")?;
    let (complete, reason, message) =
        captured(json!({"interface": "eth0", "seconds": "60", "bytes": "10000"}), &state).await?;
    assert!(complete && message.contains("10000 bytes were reached"), "{reason}: {message}");
    let path = state.path().join("captures/node-1-packetcapture-3f2a7c10.pcap");
    let length = std::fs::metadata(path)?.len();
    assert!((8000..=10_000).contains(&length), "{length}: {message}");
    Ok(())
}

#[tokio::test]
async fn o6_a_filter_or_an_interface_that_tcpdump_does_not_know_is_named() -> Result<()> {
    for (parameters, expected) in [
        (json!({"interface": "eth0", "filter": "udp port port"}), "InvalidParameters"),
        (json!({"interface": "eth9"}), "InterfaceNotFound"),
    ] {
        let (complete, reason, message) = captured(parameters, &Directory::new("operations")?).await?;
        assert_eq!((complete, reason.as_str()), (false, expected), "{message}");
    }
    Ok(())
}

#[tokio::test]
async fn o1_reboot_completes_in_the_next_boot_and_shutdown_before_power_off() -> Result<()> {
    for (operation, how) in [("reboot", End::Reboot), ("shutdown", End::PowerOff)] {
        let state = Directory::new("operations")?;
        let first = host("first", &[AGENT], &state, None)?;
        first.run("systemctl", &["start", AGENT.0])?;
        let paper = Paper::new(operation, &json!({"drain": "true"}))?;
        let shutdown = CancellationToken::new();
        let agent = run(
            parts(&first, &paper, state.path())?,
            paper.views.subscribe(),
            Pulse::unwatched(),
            shutdown.clone(),
        );
        let agent = tokio::spawn(agent);
        let first = tokio::task::spawn_blocking(move || {
            let stops = first.root().join("run/agent-stops");
            until("the stop of the agent", LONG, || Ok(stops.exists().then_some(())))?;
            anyhow::Ok(first)
        });
        let mut first = first.await??;
        shutdown.cancel();
        agent.await?;
        first.put("/run/agent-stopped", b"", 0o644)?;
        let ended = tokio::task::spawn_blocking(move || first.wait_ended(LONG)).await??;
        assert_eq!(ended, how);
        if operation == "shutdown" {
            assert_eq!(paper.end().1, "ShutDown", "{}", paper.end().2);
            continue;
        }
        assert_eq!(
            paper.object().status.as_ref().and_then(|status| status.state),
            Some(OperationState::InProgress)
        );
        let second = host("second", &[], &state, None)?;
        let end = carried_out(parts(&second, &paper, state.path())?, &paper).await?;
        assert_eq!((end.0, end.1.as_str()), (true, "Rebooted"), "{}", end.2);
        assert_eq!(second.run("systemctl", &["is-system-running"])?.trim(), "running");
    }
    Ok(())
}
