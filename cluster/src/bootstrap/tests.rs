//! The group as a whole: its pulses, without an API server.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Parser;
use kube::client::Body;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;

/// The tasks do not run: each loop that has a pulse is silent.
#[tokio::test(start_paused = true)]
async fn healthz_names_each_loop_that_stops() {
    let service = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, kube::Error>>()
    });
    let client = Client::new(service, "default");
    let shutdown = CancellationToken::new();
    let (tasks, liveness) = (Tasks::held(shutdown.clone()), Liveness::new(shutdown.clone()));
    let cli = Cli::parse_from(["bedplate-cluster", "--controllers=bootstrap"]);
    let (tenure, stages) = (Tenure::new(watch::channel(None).1), Stages::new(shutdown.clone()));
    let _started = begin(&client, &cli, &tenure, (&tasks, &liveness, &stages));
    assert_eq!(liveness.check(), Ok(()));
    tokio::time::advance(bedplate_engine::pulse::WATCH_PATIENCE + Duration::from_secs(1)).await;
    let silent = liveness.check().unwrap_err();
    let name = |part: &str| part.split_once(" sent no pulse").map(|(name, _)| name.to_owned());
    let named: BTreeSet<String> = silent.split("; ").filter_map(name).collect();
    assert_eq!(named, tasks.running().into_iter().map(str::to_owned).collect());
    assert_eq!(named.len(), 6, "{named:?}");
}

#[test]
fn each_policy_and_its_binding_is_in_deploy() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/cluster-api/bootstrap-policy.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    for name in POLICIES {
        assert_eq!(text.matches(&format!("\n  name: {name}\n")).count(), 2, "{name}");
        assert_eq!(text.matches(&format!("\n  policyName: {name}\n")).count(), 1, "{name}");
    }
}
