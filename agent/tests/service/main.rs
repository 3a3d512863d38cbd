//! The agent's service as a whole against a pxed that fails in every way, over real TLS on loopback.
//!
//! Nothing sleeps for a fixed time: each test waits for a state, with a deadline.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::panic, reason = "a failed step fails the test")]

mod pxed;

use std::time::{Duration, Instant};

use bedplate_agent::service::identity::Identity;
use bedplate_agent::service::run::{RunAgentError, TURN_TIMEOUT, run};
use bedplate_agent::service::state::{Enrollment, Places, Standing};
use bedplate_api::id::BootId;
use bedplate_api::wire::{SecretText, Seed};
use bedplate_process::liveness::Liveness;
use bedplate_process::notify::Notifier;
use jiff::Timestamp;
use pxed::{Fault, Pxed};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const DAY: Duration = Duration::from_secs(86_400);

/// A host's directories, and the agent that runs on them.
struct Host {
    directory: TempDir,
    agent: Option<tokio::task::JoinHandle<Result<(), RunAgentError>>>,
    liveness: Liveness,
    shutdown: CancellationToken,
}

impl Host {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["state", "run", "root/proc"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        let shutdown = CancellationToken::new();
        Self { directory, agent: None, liveness: Liveness::new(shutdown.clone()), shutdown }
    }

    fn places(&self) -> Places {
        let path = |name: &str| self.directory.path().join(name);
        Places { state: path("state"), run: path("run"), root: path("root") }
    }

    fn give_seed(&self, pxed: &Pxed, boot: u8, ca_pem: &str) {
        self.write_seed(&Self::some_seed(pxed, boot, ca_pem));
    }

    fn some_seed(pxed: &Pxed, boot: u8, ca_pem: &str) -> Seed {
        Seed {
            machine: "node-1".parse().unwrap(),
            site: "default".parse().unwrap(),
            boot_id: BootId::from_random([boot; 16]),
            token: Some(SecretText("token".to_owned())),
            ca_pem: ca_pem.to_owned(),
            endpoints: vec!["https://127.0.0.1:1".to_owned(), pxed.url.clone()],
            rootfs: None,
            state_disk: None,
        }
    }

    fn write_seed(&self, seed: &Seed) {
        std::fs::write(self.seed(), serde_json::to_vec(seed).unwrap()).unwrap();
    }

    fn seed(&self) -> std::path::PathBuf {
        self.directory.path().join("run/seed.json")
    }

    fn start(&mut self) {
        self.start_watched(TURN_TIMEOUT);
    }

    fn start_watched(&mut self, patience: Duration) {
        let pulse = self.liveness.part("the service loop", patience);
        let liveness = self.liveness.clone();
        let run = run(self.places(), true, Notifier::default(), pulse, liveness, self.shutdown.clone());
        self.agent = Some(tokio::spawn(run));
    }

    /// Ends the agent where it stands, as kill -9 would: nothing of it runs on.
    async fn kill(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.abort();
            let _ = agent.await;
        }
    }

    /// Sets another vendor in the host's DMI data.
    fn has_vendor(&self, vendor: &str) {
        let identity = self.directory.path().join("root/sys/class/dmi/id");
        std::fs::create_dir_all(&identity).unwrap();
        std::fs::write(identity.join("sys_vendor"), vendor).unwrap();
    }

    fn enrollment(&self) -> Option<Enrollment> {
        self.places().read_enrollment().unwrap()
    }

    fn standing(&self) -> Standing {
        self.places().read_standing().unwrap().unwrap_or_default()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Polls until `done`, at most half a minute.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_waits_is_alive_one_that_hangs_or_died_is_named() {
    let mut host = Host::new();
    host.start();
    until("it waits", || host.standing().doing.contains("waiting for a seed")).await;
    assert_eq!(host.liveness.check(), Ok(()));
    host.kill().await;
    assert_eq!(host.liveness.check(), Err("the service loop has ended".to_owned()));

    let mut host = Host::new();
    // Opening the FIFO blocks until there is a writer, as on an unreachable file system.
    let made = std::process::Command::new("mkfifo").arg(host.seed()).status().unwrap();
    assert!(made.success());
    host.start_watched(Duration::from_secs(1));
    let silent = |host: &Host| {
        host.liveness.check().is_err_and(|why| why.starts_with("the service loop sent no pulse"))
    };
    until("it hangs", || silent(&host)).await;
    let writer = std::fs::File::options().write(true).open(host.seed()).unwrap();
    std::fs::remove_file(host.seed()).unwrap();
    drop(writer);
    until("it goes on", || host.standing().doing.contains("waiting for a seed")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_becomes_a_certificate_and_reports_follow() {
    let pxed = Pxed::start(DAY).await;
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("a report", || !pxed.seen.lock().unwrap().reports.is_empty()).await;
    assert!(!host.seed().exists(), "the seed is removed when it has done its work");
    let enrollment = host.enrollment().unwrap();
    assert_eq!((enrollment.machine.as_str(), enrollment.heartbeat_seconds), ("node-1", 5));
    until("it says so", || host.standing().enrolled && host.standing().last_report.is_some()).await;
    let seen = pxed.seen.lock().unwrap();
    assert_eq!(seen.reports[0].boot_id, Some(BootId::from_random([1; 16])));
    assert_eq!(seen.reports[0].facts, None, "the enrollment held them already");
    assert_eq!(seen.enrolled, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_say_which_state_disk_is_used_and_how_far_the_clock_was_off() {
    let pxed = Pxed::start(DAY).await;
    let mut host = Host::new();
    let boot = serde_json::json!({
        "machine": "node-1", "site": "default", "bootId": BootId::from_random([1; 16]), "bootUrl": "http://p/b/1",
        "interface": "eth0", "mac": "52:54:00:00:00:01", "address": "10.7.0.9", "dhcpServer": "10.7.0.1",
        "rootfs": format!("sha256:{}", "0".repeat(64)), "failures": 0, "clockWasSet": true,
        "clockOffsetSeconds": -86_400,
        "state": { "kind": "disk", "device": "/dev/vda", "byId": "virtio-state", "made": false, "wipeToken": "t" },
    });
    std::fs::write(host.directory.path().join("run/boot.json"), boot.to_string()).unwrap();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("a report", || !pxed.seen.lock().unwrap().reports.is_empty()).await;
    let report = pxed.seen.lock().unwrap().reports[0].clone();
    let disk = report.state_disk.unwrap();
    assert_eq!((disk.name.as_deref(), disk.wipe_token.as_deref()), (Some("virtio-state"), Some("t")));
    let clock = pxed.seen.lock().unwrap().facts.clone().unwrap().clock.unwrap();
    assert_eq!(clock.boot_offset_seconds, Some(-86_400));
    // A report without the disk would say that state is in memory.
    until("it is kept", || host.standing().state_disk.is_some()).await;
    std::fs::write(host.directory.path().join("run/boot.json"), "{").unwrap();
    host.kill().await;
    let before = pxed.seen.lock().unwrap().reports.len();
    host.start();
    until("a report", || pxed.seen.lock().unwrap().reports.len() > before).await;
    assert_eq!(pxed.seen.lock().unwrap().reports[before].state_disk, Some(disk), "the last that was read");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_machine_asks_for_nothing_and_says_what_it_waits_for() {
    let pxed = Pxed::start(DAY).await;
    let mut host = Host::new();
    let machine = "unknown-525400000001".parse().unwrap();
    host.write_seed(&Seed { machine, token: None, ..Host::some_seed(&pxed, 1, &pxed.ca_pem) });
    host.start();
    until("it says so", || host.standing().doing.contains("create a Machine with that address")).await;
    let standing = host.standing();
    assert!(
        standing.doing.contains("no Machine has the MAC address of unknown-525400000001"),
        "{}",
        standing.doing
    );
    assert_eq!((standing.enrolled, standing.last_error), (false, None));
    assert!(pxed.seen.lock().unwrap().paths.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_is_outlived_with_one_request_and_one_token() {
    let pxed = Pxed::start(DAY).await;
    let faults = [Fault::Pending, Fault::Unavailable, Fault::NoAnswer, Fault::ForeignCertificate];
    pxed.seen.lock().unwrap().faults.extend(faults);
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("an enrollment", || host.enrollment().is_some()).await;
    until("the seed is gone", || !host.seed().exists()).await;
    let error = host.standing().last_error.unwrap();
    assert!(error.contains("another key"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_after_its_token_was_used_enrolls_with_the_same_request() {
    let pxed = Pxed::start(DAY).await;
    pxed.seen.lock().unwrap().faults.push_back(Fault::NoAnswer);
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("the token is taken", || pxed.seen.lock().unwrap().token_used_by.is_some()).await;
    host.kill().await;
    assert!(host.seed().exists() && host.enrollment().is_none());
    host.start();
    until("an enrollment", || host.enrollment().is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_before_it_forgot_the_seed_does_not_enroll_again() {
    let pxed = Pxed::start(DAY).await;
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("an enrollment", || host.enrollment().is_some()).await;
    host.kill().await;
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    let reports = pxed.seen.lock().unwrap().reports.len();
    host.start();
    until("a report", || pxed.seen.lock().unwrap().reports.len() > reports).await;
    assert!(!host.seed().exists());
    let seen = pxed.seen.lock().unwrap();
    assert_eq!(seen.enrolled, 1);
    assert!(seen.reports.last().unwrap().facts.is_some(), "a new process does not know what pxed has");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_boots_seed_is_used_although_a_certificate_is_there() {
    let pxed = Pxed::start(DAY).await;
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("an enrollment", || host.enrollment().is_some()).await;
    host.kill().await;
    host.give_seed(&pxed, 2, &pxed.ca_pem);
    host.start();
    let second = Some(BootId::from_random([2; 16]));
    until("the second enrollment", || host.enrollment().map(|enrollment| enrollment.boot_id) == second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trust_6_next_key_is_shown_by_the_next_enrollment_alone() {
    let pxed = Pxed::start(DAY).await;
    // The renewal of the first certificate is due.
    pxed.seen.lock().unwrap().ages.push_back(DAY * 3 / 4);
    let mut host = Host::new();
    let places = host.places();
    Identity::open(&places.state, &"node-1".parse().unwrap()).unwrap();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("an enrollment", || host.enrollment().is_some()).await;
    Identity::make_next(&places.state).unwrap();
    until("a renewal", || pxed.seen.lock().unwrap().issued.len() == 2).await;
    // The next token.
    pxed.seen.lock().unwrap().token_used_by = None;
    host.give_seed(&pxed, 2, &pxed.ca_pem);
    let next = places.state.join("key.next.pem");
    until("the next key is the host's", || host.enrollment().is_some() && !next.exists()).await;
    let reports = pxed.seen.lock().unwrap().reports.len();
    until("a report with it", || pxed.seen.lock().unwrap().reports.len() > reports).await;
    let seen = pxed.seen.lock().unwrap();
    let [first, renewed, second] = seen.issued.as_slice() else {
        panic!("{} certificates", seen.issued.len())
    };
    assert_eq!(first.key, renewed.key);
    assert_ne!(first.key, second.key);
    assert_eq!(host.enrollment().unwrap().certificate_pem, second.pem);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_of_another_authority_learns_nothing() {
    let pxed = Pxed::start(DAY).await;
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed::authority().0);
    host.start();
    until("a failure", || host.standing().last_error.is_some_and(|error| error.contains("certificate")))
        .await;
    assert!(pxed.seen.lock().unwrap().paths.is_empty());
    assert!(host.seed().exists());
    host.give_seed(&pxed, 2, &pxed.ca_pem);
    until("an enrollment by the right seed", || host.enrollment().is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_token_is_said_and_not_asked_for_in_a_circle() {
    let pxed = Pxed::start(DAY).await;
    pxed.seen.lock().unwrap().refuse_token = true;
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("a refusal", || host.standing().last_error.is_some_and(|error| error.contains("TokenUsed"))).await;
    until("it waits", || host.standing().next_try.is_some()).await;
    let wait = host.standing().next_try.unwrap().duration_since(Timestamp::now());
    assert!(wait.as_secs() > 200, "{wait}");
    assert_eq!(pxed.seen.lock().unwrap().paths.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_is_renewed_by_the_same_key_before_it_expires() {
    let pxed = Pxed::start(DAY).await;
    // A quarter of the certificate's lifetime is left, so its renewal is due.
    pxed.seen.lock().unwrap().ages.push_back(DAY * 3 / 4);
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("a report after the renewal", || {
        let seen = pxed.seen.lock().unwrap();
        let renewed = seen.paths.iter().position(|path| path == "/v1/renew");
        renewed.is_some_and(|renewed| seen.paths[renewed..].iter().any(|path| path == "/v1/report"))
    })
    .await;
    let seen = pxed.seen.lock().unwrap();
    let [first, second] = seen.issued.as_slice() else { panic!("{} certificates", seen.issued.len()) };
    assert_eq!((seen.enrolled, &host.enrollment().unwrap().certificate_pem), (1, &second.pem));
    assert_eq!(first.key, second.key);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_certificate_is_not_sent_and_the_agent_waits_for_a_seed() {
    let pxed = Pxed::start(DAY).await;
    let mut host = Host::new();
    let enrollment = Enrollment {
        machine: "node-1".parse().unwrap(),
        site: "default".parse().unwrap(),
        boot_id: BootId::from_random([1; 16]),
        endpoints: vec![pxed.url.clone()],
        ca_pem: pxed.ca_pem.clone(),
        certificate_pem: "ended".to_owned(),
        not_before: Timestamp::UNIX_EPOCH,
        not_after: "2001-01-01T00:00:00Z".parse().unwrap(),
        heartbeat_seconds: 5,
        kubernetes: None,
        machine_uid: None,
    };
    host.places().write_enrollment(&enrollment).unwrap();
    host.start();
    until("it says so", || host.standing().doing.contains("the certificate expired")).await;
    assert!(pxed.seen.lock().unwrap().paths.is_empty());
    host.give_seed(&pxed, 2, &pxed.ca_pem);
    until("an enrollment", || host.standing().enrolled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_go_on_when_pxed_comes_back() {
    let mut pxed = Pxed::start(DAY).await;
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("a report", || !pxed.seen.lock().unwrap().reports.is_empty()).await;
    pxed.stop();
    until("a failure", || host.standing().last_error.is_some_and(|error| error.contains("report: "))).await;
    pxed.start_again().await;
    let reports = pxed.seen.lock().unwrap().reports.len();
    until("another report", || pxed.seen.lock().unwrap().reports.len() > reports).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_the_agent_writes_its_own_fields_to_the_api_server_alone() {
    let pxed = Pxed::start(DAY).await;
    let server = pxed.start_api_server().await;
    let mut host = Host::new();
    let random = host.directory.path().join("root/proc/sys/kernel/random");
    std::fs::create_dir_all(&random).unwrap();
    std::fs::write(random.join("boot_id"), "0f5d2a3e\n").unwrap();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("a first write", || !server.seen.lock().unwrap().writes.is_empty()).await;
    host.has_vendor("another");
    until("a write of what has changed", || server.seen.lock().unwrap().writes.len() >= 2).await;
    until("it says to whom", || host.standing().reports_to.as_deref() == Some(server.url.as_str())).await;
    assert!(host.standing().last_report.is_some());
    assert!(pxed.seen.lock().unwrap().reports.is_empty(), "nothing of a report is pxed's to write");
    let seen = server.seen.lock().unwrap();
    for write in &seen.writes {
        let (path, query) = write.request.split_once('?').unwrap();
        assert_eq!(path, "PATCH /apis/bedplate.dev/v1alpha1/machines/node-1/status");
        let mut query: Vec<&str> = query.split('&').filter(|part| !part.is_empty()).collect();
        query.sort_unstable();
        assert_eq!(query, ["fieldManager=bedplate-agent", "force=true"]);
        assert_eq!(write.content_type, "application/apply-patch+yaml");
        let body = &write.body;
        assert_eq!(body["apiVersion"], "bedplate.dev/v1alpha1");
        assert_eq!((&body["kind"], &body["metadata"]["name"]), (&"Machine".into(), &"node-1".into()));
        let fields: Vec<_> = body["status"].as_object().unwrap().keys().collect();
        assert_eq!(fields, ["addresses", "agent", "hardware"], "what is left out of an apply is taken back");
        assert_eq!(body["status"]["agent"]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(body["status"]["agent"]["bootID"], "0f5d2a3e");
        assert!(body["status"]["hardware"].get("bmc").is_none(), "the BMC is pxed's to tell");
    }
    let [first, .., last] = seen.writes.as_slice() else { panic!("two writes") };
    let heartbeat = |write: &pxed::StatusWrite| write.body["status"]["agent"]["lastHeartbeatTime"].clone();
    assert_ne!(heartbeat(first), heartbeat(last));
    assert_eq!(last.body["status"]["hardware"]["vendor"], "another");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_without_news_writes_no_object() {
    let pxed = Pxed::start(DAY).await;
    let server = pxed.start_api_server().await;
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("a first report", || host.standing().last_report.is_some()).await;
    for _ in 0..2 {
        let last = host.standing().last_report;
        until("another report", || host.standing().last_report != last).await;
    }
    assert_eq!(server.seen.lock().unwrap().writes.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_of_the_api_server_is_reported_and_retried() {
    let mut tries = tokio::task::JoinSet::new();
    for code in [401_u16, 403, 404, 409, 429, 500, 503] {
        tries.spawn(async move {
            let pxed = Pxed::start(DAY).await;
            let server = pxed.start_api_server().await;
            server.seen.lock().unwrap().refusals.push_back(code);
            let mut host = Host::new();
            host.give_seed(&pxed, 1, &pxed.ca_pem);
            host.start();
            let said = format!("status {code}: refused by the test (Refusal)");
            until("a failure", || host.standing().last_error.is_some_and(|error| error.contains(&said)))
                .await;
            until("a write", || !server.seen.lock().unwrap().writes.is_empty()).await;
        });
    }
    while let Some(ended) = tries.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_when_the_api_server_comes_back() {
    let pxed = Pxed::start(DAY).await;
    let mut server = pxed.start_api_server().await;
    let mut host = Host::new();
    host.give_seed(&pxed, 1, &pxed.ca_pem);
    host.start();
    until("a first write", || !server.seen.lock().unwrap().writes.is_empty()).await;
    server.stop();
    host.has_vendor("another");
    let said = "request for status of Machine node-1 failed";
    until("a failure", || host.standing().last_error.is_some_and(|error| error.contains(said))).await;
    server.seen.lock().unwrap().writes.clear();
    server.start_again().await;
    until("a write", || !server.seen.lock().unwrap().writes.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn userspace_is_reported_to_the_boots_own_url() {
    let (address, mut reports) = pxed::stage_listener().await;
    let mut host = Host::new();
    let line = format!("quiet bedplate.url=http://{address}/b/x bedplate.mac=52:54:00:00:00:01\n");
    std::fs::write(host.directory.path().join("root/proc/cmdline"), line).unwrap();
    host.start();
    let report = tokio::time::timeout(Duration::from_secs(30), reports.recv()).await.unwrap().unwrap();
    assert_eq!(report, r#"/b/x/stage {"stage":"Userspace"}"#);
}
