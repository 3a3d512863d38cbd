//! A candidate against a stand-in for the API server that has one Lease.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Candidate, Tenure};
use crate::liveness::{Liveness, Pulse, SILENCE_TIMEOUT};
use crate::lock::Lock;

/// The Lease, and how its writes are answered.
struct Server {
    lease: Value,
    /// Number of writes that were accepted.
    writes: u64,
    /// Write that is accepted and not answered.
    unanswered: u64,
    /// Name that another writer puts into the Lease just before the next write.
    taken_by: Option<&'static str>,
}

impl Server {
    fn new(unanswered: u64) -> Arc<Lock<Self>> {
        let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "l", "namespace": "n", "uid": "u", "resourceVersion": "0" }, "spec": {} });
        Arc::new(Lock::new(Self { lease, writes: 0, unanswered, taken_by: None }))
    }

    fn holder(&self) -> Option<String> {
        self.lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }

    fn change(&mut self, lease: Value) {
        let version = self.lease["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        self.lease = lease;
        self.lease["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    }

    /// Accepts a write if it names the version that is there. None: it is accepted and not answered.
    fn replace(&mut self, sent: Value) -> Option<(u16, Value)> {
        if let Some(other) = self.taken_by.take() {
            let mut lease = self.lease.clone();
            lease["spec"]["holderIdentity"] = json!(other);
            self.change(lease);
        }
        if sent["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"] {
            return Some((
                409,
                json!({ "status": "Failure", "message": "", "reason": "Conflict", "code": 409 }),
            ));
        }
        self.change(sent);
        self.writes += 1;
        (self.writes != self.unanswered).then(|| (200, self.lease.clone()))
    }
}

fn client(server: &Arc<Lock<Server>>) -> Client {
    let server = server.clone();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let server = server.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = to_bytes(Body::new(body), usize::MAX).await.unwrap();
            let answer = match parts.method {
                Method::GET => Some((200, server.lock().lease.clone())),
                _ => server.lock().replace(serde_json::from_slice(&body).unwrap()),
            };
            let Some((status, value)) = answer else { return std::future::pending().await };
            let body = kube::client::Body::from(serde_json::to_vec(&value).unwrap());
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        }
    });
    Client::new(service, "n")
}

/// Starts a candidate that leads, and returns its task.
async fn lead(server: &Arc<Lock<Server>>) -> (tokio::task::JoinHandle<()>, CancellationToken, Tenure) {
    let access = watch::channel(Some(client(server))).1;
    let (candidate, tenure) = Candidate::new(access, ("n".to_owned(), "l".to_owned()), "one", "test");
    let stop = CancellationToken::new();
    let task = tokio::spawn(candidate.run(async {}, || {}, Pulse::unwatched(), stop.clone()));
    let mut leads = tenure.clone();
    while !leads.leads() {
        leads.changed().await;
    }
    (task, stop, tenure)
}

#[tokio::test(start_paused = true)]
async fn lease_is_released_although_the_last_renewal_was_not_answered() {
    // The first write acquires the Lease, the second one renews it.
    let server = Server::new(2);
    let (task, stop, tenure) = lead(&server).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(server.lock().writes, 2, "the renewal is in the Lease");
    stop.cancel();
    task.await.unwrap();
    assert_eq!((server.lock().holder(), tenure.leads()), (None, false));
}

#[tokio::test(start_paused = true)]
async fn lease_of_another_holder_is_not_released() {
    let server = Server::new(0);
    let (task, stop, _) = lead(&server).await;
    server.lock().taken_by = Some("two");
    stop.cancel();
    task.await.unwrap();
    assert_eq!(server.lock().holder().as_deref(), Some("two"));
}

#[tokio::test(start_paused = true)]
async fn candidate_takes_part_as_soon_as_it_is_ready_and_beats_before() {
    let server = Server::new(0);
    let access = watch::channel(Some(client(&server))).1;
    let (candidate, mut tenure) = Candidate::new(access, ("n".to_owned(), "l".to_owned()), "one", "test");
    let (stop, (ready, is_ready)) = (CancellationToken::new(), oneshot::channel::<()>());
    let liveness = Liveness::new(stop.clone());
    let pulse = liveness.part("lease", SILENCE_TIMEOUT);
    let task = tokio::spawn(candidate.run(async { is_ready.await.unwrap() }, || {}, pulse, stop.clone()));
    tokio::time::sleep(SILENCE_TIMEOUT * 3 + Duration::from_millis(50)).await;
    assert_eq!((liveness.check(), server.lock().writes), (Ok(()), 0));
    ready.send(()).unwrap();
    let start = Instant::now();
    while !tenure.leads() {
        tenure.changed().await;
    }
    // A Lease that was released is left alone for 6 s.
    assert_eq!(start.elapsed().as_millis() / 100, 60);
    stop.cancel();
    task.await.unwrap();
}
