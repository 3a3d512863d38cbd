//! Loop of the task of one workload cluster: connect by the kubeconfig, list the Nodes, watch them, probe. Called by `task`.
//!
//! ```text
//! connect -> list -> watch, a probe by the present kubeconfig each 10 s -> watch again from the last version
//!    ^        ^                |      | the version is expired, Nodes were not kept, or the kubeconfig has changed
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
/// Maximum duration of a list, in which it holds a place.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which Nodes that no watch follows are unknown: as long as a lost connection needs to be noticed.
const MAX_AGE: Duration = Duration::from_secs(50);
/// Delay until a place for a list is looked for again.
const PLACE_DELAY: Duration = Duration::from_secs(1);

/// Keeps the state of a cluster. Never ends.
pub async fn keep(cluster: &WorkloadCluster) {
    let mut version = None;
    loop {
        let start = Instant::now();
        let ended = match cluster.connect().await {
            Ok(remote) => round(cluster, &remote, version.take()).await,
            Err(error) => Err(error),
        };
        // While a server asks for a pause, each request fails without being sent. So the Nodes of a busy server become unknown too.
        let delay = match ended {
            Ok(next) => {
                version = next;
                MIN_ROUND.saturating_sub(start.elapsed())
            }
            Err(error) => cluster.failed(error),
        };
        sleep(delay).await;
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
    let start = Instant::now();
    let _place = loop {
        if let Some(place) = cluster.list_place() {
            break place;
        }
        if start.elapsed() >= MAX_AGE {
            cluster.unread();
        }
        sleep(PLACE_DELAY).await;
    };
    let mut share = cluster.share_of_list();
    let remote = remote.clone().until(Instant::now() + LIST_TIMEOUT);
    let (index, version) = nodes::list(&remote, &mut share).await?;
    cluster.listed(index);
    Ok(version)
}

/// Follows a watch until its end. Returns the version to continue from. None: a list is next. A probe reads the kubeconfig, because the watch
/// keeps the connection of an earlier one. A change of the Secret ends the watch: the new server may have other Nodes.
async fn watch(
    cluster: &WorkloadCluster,
    remote: &Remote,
    mut version: String,
) -> Result<Option<String>, RemoteError> {
    let mut events = nodes::watch(remote, &version, cluster.share_of_event()).await?;
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
                let present = cluster.connect().await?;
                if !present.is_same(remote) {
                    return Ok(None);
                }
                nodes::probe(&present).await?;
                cluster.answered();
            }
            () = &mut end => return Ok(Some(version)),
        }
    }
}
