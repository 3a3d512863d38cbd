//! Simulated agents of all hosts: they answer each change of a claim immediately, with the reports of a host whose user data takes no time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use bedplate_api::claim::{ClaimState, MachineClaim};
use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::site::status_of;
use crate::controller::site::AT_ONCE;

const VERSION: &str = "bedplate.dev/v1alpha1";

/// Agents that answer until they are dropped.
pub(super) struct Agents {
    failures: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Agents {
    pub(super) fn start(client: &Client) -> Self {
        let (failures, mut task) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
        task.spawn(follow(client.clone(), failures.clone()));
        Self { failures, _task: task }
    }

    /// Reports that the API server has refused.
    pub(super) fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }
}

async fn follow(client: Client, failures: Arc<AtomicUsize>) {
    let claims: Api<MachineClaim> = Api::all(client.clone());
    let (mut events, mut tasks) =
        (Box::pin(watcher(claims, watcher::Config::default()).default_backoff()), JoinSet::new());
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(event) = events.next().await {
        while tasks.try_join_next().is_some() {}
        let Ok(Event::Apply(claim) | Event::InitApply(claim)) = event else { continue };
        let Some(answer) = answer(&claim) else { continue };
        let (client, failures, places) = (client.clone(), failures.clone(), places.clone());
        tasks.spawn(async move {
            let Ok(_place) = places.acquire().await else { return };
            if report(&client, &claim, answer).await.is_err() {
                failures.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// Next report of an agent.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Heartbeat,
    State(ClaimState),
}

fn answer(claim: &MachineClaim) -> Option<Answer> {
    let status = claim.status.as_ref();
    let state = status.and_then(|status| status.state);
    let granted = status.and_then(|status| status.conditions.iter().find(|found| found.type_ == "Granted"));
    let is_granted = granted.is_some_and(|found| found.status == "True" || found.reason == "GrantWithdrawn");
    match state {
        Some(ClaimState::Released) => None,
        _ if claim.metadata.deletion_timestamp.is_some() => Some(Answer::State(ClaimState::Released)),
        None if is_granted => Some(Answer::State(ClaimState::Bootstrapping)),
        // The claim was just made: its agent must be heard since.
        None if granted.is_none() => Some(Answer::Heartbeat),
        Some(ClaimState::Bootstrapping) => Some(Answer::State(ClaimState::Joined)),
        _ => None,
    }
}

async fn report(client: &Client, claim: &MachineClaim, answer: Answer) -> Result<()> {
    let name = claim.name_any();
    // The API server counts in seconds: the heartbeat must not seem older than a claim of the same second.
    let heard = json!({ "agent": { "lastHeartbeatTime": jiff::Timestamp::now() + Duration::from_secs(1) } });
    let Answer::State(state) = answer else {
        return status_of(client, VERSION, ("Machine", &name), &heard).await;
    };
    let (id, since) = (&claim.spec.provider_id, "2026-01-01T00:00:00Z");
    let claimant = json!({ "namespace": claim.spec.claimant.namespace, "name": claim.spec.claimant.name });
    let record: Value =
        json!({ "claim": { "providerID": id, "claimant": claimant, "state": state, "since": since } });
    status_of(client, VERSION, ("Machine", &name), &record).await?;
    let mut status = json!({ "providerID": id, "state": state, "since": since });
    if state == ClaimState::Joined {
        status["node"] = json!({ "name": claim.spec.node_name, "uid": "n" });
    }
    status_of(client, VERSION, ("MachineClaim", &name), &status).await
}
