//! The end of the controller: with real reconcilers, a real Lease, and an API server of answers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use std::sync::Arc;
use std::time::Duration;

use bedplate_engine::life::{elect, shut_down};
use bedplate_process::lease::Candidate;
use bedplate_process::liveness::Liveness;
use bedplate_process::shutdown::{Shutdown, Stages};
use bedplate_process::tasks::Tasks;
use bedplate_reconciler::metrics::Metrics;
use bedplate_reconciler::reach::RegistryReach;
use bedplate_reconciler::run;
use serde_json::{Value, json};
use server::{Asked, Server, refusal};
use tokio_util::sync::CancellationToken;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/n/leases";
const CREATE: &str = "POST /machineconfigurationversions";

fn list(items: &[Value]) -> (u16, Value) {
    (
        200,
        json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "9" }, "items": items }),
    )
}

/// A cluster with one configuration that has no version yet.
fn answer(asked: &Asked) -> (u16, Value) {
    let (verb, path) = asked.line.split_once(' ').unwrap();
    match (verb, path) {
        ("GET", "/machineconfigurations") => list(&[server::configuration(1, &json!({}))]),
        ("GET", path) if path.starts_with(LEASE) || path.starts_with("/machineconfigurationversions/") => {
            refusal(404, "not there")
        }
        ("GET", _) => list(&[]),
        ("PATCH", "/machineconfigurations/w/status") => {
            (200, server::configuration(1, &asked.body["status"]))
        }
        _ => (201, asked.body.clone()),
    }
}

/// Waits until the server has received a request of this line. It answers a second later.
async fn received(server: &Server, line: &str) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !server.received().iter().any(|asked| asked == line) {
        assert!(tokio::time::Instant::now() < deadline, "no {line}: {:?}", server.received());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn reconciler_finishes_its_writes_before_the_lease_is_released() {
    let server = Server::slow(Duration::from_secs(1));
    let client = server.client(Arc::new(answer));
    let access = tokio::sync::watch::channel(Some(client.clone())).1;
    let lease = ("n".to_owned(), "bedplate-controller".to_owned());
    let (candidate, tenure) = Candidate::new(access, lease, "test", "bedplate-controller");
    let stages = Stages::new(CancellationToken::new());
    let shutdown = stages.token(bedplate_process::shutdown::Stage::Draining);
    let (tasks, liveness) = (Tasks::new(shutdown.clone()), Liveness::new(shutdown));
    let running = (&tasks, &liveness, &stages);
    let (started, _) =
        run::begin(&client, (&tenure, "test"), &Metrics::default(), running, RegistryReach::default());
    elect(candidate, started, running);
    received(&server, CREATE).await;
    let ended = shut_down(Shutdown::new(tasks.clone(), stages.clone(), CancellationToken::new())).await;
    assert!(ended.is_ok(), "{ended:?}");
    let asked = server.asked();
    let lines: Vec<_> = asked.iter().map(|asked| asked.line.as_str()).collect();
    let place = |line: &str| {
        lines.iter().position(|asked| *asked == line).unwrap_or_else(|| panic!("no {line}: {lines:?}"))
    };
    let released = asked.iter().rposition(|asked| asked.line.starts_with("PUT ")).unwrap();
    assert!(place(CREATE) < place("PATCH /machineconfigurations/w/status"), "{lines:?}");
    assert!(place("PATCH /machineconfigurations/w/status") < released, "{lines:?}");
    assert_eq!(asked[released].body["spec"]["holderIdentity"], Value::Null, "{}", asked[released].body);
    let reasons: Vec<_> = server.events().into_iter().map(|(reason, ..)| reason).collect();
    assert_eq!(reasons, ["VersionCreated"]);
}
