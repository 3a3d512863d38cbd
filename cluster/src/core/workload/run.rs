//! Loop of the task of one workload cluster: connect by the kubeconfig, list the Nodes, watch them, probe. Called by `task`.
//!
//! ```text
//! connect -> list -> watch, a probe by the present kubeconfig each 10 s -> watch again from the last version
//!    ^        ^                |      | the version is expired, or Nodes were not kept
//!    |        +----------------|------+
//!    +-- delay <-- a request or a probe has failed
//! ```

use std::time::Duration;

use bedplate_workload::{PROBE_INTERVAL, RequestError};
use tokio::time::{Instant, interval_at, sleep};

use super::nodes::{self, Event, WATCH_SECONDS};
use super::remote::{Remote, RemoteError};
use super::task::WorkloadCluster;

/// Minimum time from the start of a watch or a list to the next one.
const MIN_ROUND: Duration = Duration::from_secs(5);
/// Time after which a watch is ended here. The server should have ended it before.
const WATCH_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 30);
/// Delay until a place for a list is looked for again.
const PLACE_DELAY: Duration = Duration::from_secs(1);

/// Keeps the state of a cluster. Never ends.
pub async fn keep(cluster: &WorkloadCluster) {
    let mut version = None;
    loop {
        let start = Instant::now();
        let (remote, ended) = match cluster.connect().await {
            Ok(remote) => {
                let ended = round(cluster, &remote, version.take()).await;
                (Some(remote), ended)
            }
            Err(error) => (None, Err(error)),
        };
        let delay = match ended {
            Ok(next) => {
                version = next;
                MIN_ROUND.saturating_sub(start.elapsed())
            }
            Err(error) => cluster.failed(error),
        };
        let pause = remote.and_then(|remote| remote.paused());
        sleep(delay.max(pause.unwrap_or_default())).await;
    }
}

/// Lists the Nodes, if the version to continue from is not known, and watches them. Returns the version to continue from. None: a list is next.
async fn round(
    cluster: &WorkloadCluster,
    remote: &Remote,
    version: Option<String>,
) -> Result<Option<String>, RemoteError> {
    let version = match version {
        Some(version) => version,
        None => list(cluster, remote).await?,
    };
    if version.is_empty() {
        return Err(RequestError::Answer.into());
    }
    match watch(cluster, remote, version).await {
        Err(RemoteError::Request(RequestError::Failed(410))) => Ok(None),
        ended => Ok(ended?.filter(|_| !cluster.is_partial())),
    }
}

/// Lists the Nodes into the state. Returns the version of the list.
pub async fn list(cluster: &WorkloadCluster, remote: &Remote) -> Result<String, RemoteError> {
    let _place = loop {
        match cluster.list_place() {
            Some(place) => break place,
            None => sleep(PLACE_DELAY).await,
        }
    };
    let (index, version) = nodes::list(remote, cluster.room()).await?;
    cluster.listed(index);
    Ok(version)
}

/// Follows a watch until its end. Returns the version to continue from. A probe reads the kubeconfig, because the watch keeps the connection of an
/// earlier one after the Secret was changed or deleted.
async fn watch(
    cluster: &WorkloadCluster,
    remote: &Remote,
    mut version: String,
) -> Result<Option<String>, RemoteError> {
    let mut events = nodes::watch(remote, &version).await?;
    let end = sleep(WATCH_TIMEOUT);
    tokio::pin!(end);
    let mut probe = interval_at(Instant::now() + PROBE_INTERVAL, PROBE_INTERVAL);
    loop {
        tokio::select! {
            event = events.next() => match event? {
                None => return Ok(Some(version)),
                Some(Event::Expired) => return Ok(None),
                Some(Event::Bookmark(next)) => version = next,
                Some(Event::Changed(change, next)) => {
                    version = next.unwrap_or(version);
                    cluster.changed(change);
                }
            },
            _ = probe.tick() => {
                nodes::probe(&cluster.connect().await?).await?;
                cluster.answered();
            }
            () = &mut end => return Ok(Some(version)),
        }
    }
}
