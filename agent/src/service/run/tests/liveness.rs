//! Each loop of an assembled agent has a liveness pulse, in a cluster and without one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bedplate_api::wire::KubernetesEndpoint;
use futures::FutureExt as _;

use super::*;
use crate::service::tasks::TURN_PATIENCE;

/// Loops of the agent in a cluster and without one.
const LOOPS: [&str; 5] = ["node", "operations", "operations view", "trash removal", "userspace report"];

/// Background tasks of the agent outside of its task sets. They belong to one call of D-Bus.
const UNWATCHED: [(&str, usize); 2] = [("bus/changes.rs", 1), ("bus/command.rs", 2)];

/// Names of the loops in a text of `/healthz`.
fn silent(text: &str) -> BTreeSet<String> {
    let named = |part: &str| Some(part.split_once(" sent no pulse")?.0.to_owned());
    text.split("; ").filter_map(named).collect()
}

/// Checks that each task of an agent has a pulse, and that `/healthz` names each task that stands still. No task runs until the test waits.
async fn check(server: Option<&str>, of_decider: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let places = Places { state: path("state/agent"), run: path("run/agent"), root: path("root") };
    for directory in [&places.state, &places.run] {
        std::fs::create_dir_all(directory).unwrap();
    }
    let own = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
    std::fs::write(places.state.join("key.pem"), own.signing_key.serialize_pem()).unwrap();
    let (ca_pem, certificate_pem) = (own.cert.pem(), own.cert.pem());
    let endpoint = |server: &str| KubernetesEndpoint { server: server.to_owned(), ca_pem: ca_pem.clone() };
    let kubernetes = server.map(endpoint);
    let enrollment = Enrollment { ca_pem, certificate_pem, kubernetes, ..enrollment(Timestamp::now()) };
    let identity = Identity::open(&places.state, &enrollment.machine).unwrap();

    let liveness = Liveness::new(CancellationToken::new());
    let reports = report_boot(&places, &liveness);
    let mut ways = Ways::new(places, false, liveness.clone());
    match &enrollment.kubernetes {
        Some(kubernetes) => drop(ways.cluster(&enrollment, kubernetes, &identity).await.unwrap()),
        None => drop(ways.pxed(&enrollment, &identity).unwrap()),
    }
    let started = ways.task_names().into_iter().chain(reports.names().iter().copied());
    let started: BTreeSet<String> = started.map(str::to_owned).collect();
    let expected: BTreeSet<String> = LOOPS.iter().chain(of_decider).map(ToString::to_string).collect();
    assert_eq!(started, expected);
    assert_eq!(liveness.names().into_iter().collect::<BTreeSet<_>>(), started);
    assert_eq!(liveness.check(), Ok(()));
    let _ = tokio::time::advance(TURN_PATIENCE + Duration::from_secs(1)).now_or_never();
    assert_eq!(silent(&liveness.check().unwrap_err()), started);
}

#[tokio::test(start_paused = true)]
async fn healthz_names_each_loop_that_stops_in_a_cluster() {
    check(Some("https://127.0.0.1:1"), &["cluster watch", "status writer"]).await;
}

#[tokio::test(start_paused = true)]
async fn healthz_names_each_loop_that_stops_without_a_cluster() {
    check(None, &["node report", "own Node", "pxed view", "pxed watch"]).await;
}

#[tokio::test(start_paused = true)]
async fn userspace_report_is_watched_until_its_last_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_owned();
    std::fs::create_dir(root.join("proc")).unwrap();
    let line =
        "bedplate.url=http://127.0.0.1:1/b/000102030405060708090a0b0c0d0e0f bedplate.mac=52:54:00:00:00:01\n";
    std::fs::write(root.join("proc/cmdline"), line).unwrap();
    let places = Places { state: root.clone(), run: root.clone(), root };
    let (liveness, start) = (Liveness::new(CancellationToken::new()), Instant::now());
    let reports = report_boot(&places, &liveness);
    assert_eq!(liveness.names(), ["userspace report"]);
    assert_eq!(reports.ended().await, "userspace report");
    let seconds = start.elapsed().as_secs();
    assert!((15..=47).contains(&seconds), "six attempts, after 1, 2, 4, 8 and 16 s: {seconds}");
    assert_eq!((liveness.names(), liveness.check()), (Vec::new(), Ok(())));
}

/// Rust sources below a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn only_dbus_calls_spawn_tasks_outside_of_the_task_sets() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeSet::new();
    for path in sources(&top) {
        let name = path.strip_prefix(&top).unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let count =
            production.matches("tokio::spawn(").count() + production.matches("runtime.spawn(").count();
        if count > 0 && !name.contains("tests") {
            found.insert((name, count));
        }
    }
    assert_eq!(found, UNWATCHED.map(|(name, count)| (name.to_owned(), count)).into());
}
