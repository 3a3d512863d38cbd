//! Requests of a task for the Nodes of a workload cluster: a list page by page, a watch, and a probe. Called by `run`.
//!
//! The server is not trusted: pages, lists, lines of a watch and their times have limits.

use std::pin::Pin;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_workload::RequestError;
use futures::{AsyncBufRead, AsyncBufReadExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, WatchParams};
use kube::core::{ObjectList, WatchEvent};
use kube::{Client, ResourceExt};

use super::budget::Share;
use super::index::{MAX_NODES, NodeIndex};
use super::remote::{Remote, nodes};
use super::state::NodeChange;

/// Number of Nodes in a page. Each may have tens of KiB.
const PAGE_SIZE: u32 = 200;
/// Maximum number of pages of a list.
const MAX_PAGES: usize = 50;
/// Maximum size of all answers of a list in bytes.
const MAX_LIST: usize = 64 * 1024 * 1024;
/// Maximum size of an event in bytes. API servers store no object above 1.5 MiB.
const MAX_EVENT: usize = 2 * 1024 * 1024;
/// Duration of a watch in seconds, after which the server ends it.
pub const WATCH_SECONDS: u32 = 290;

const _: () = assert!(PAGE_SIZE as usize * MAX_PAGES == MAX_NODES, "a list has as many Nodes as are kept");

/// Event of a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A Node has changed. The version to continue from, if it has one.
    Changed(NodeChange, Option<String>),
    /// The version to continue from.
    Bookmark(String),
    /// The watch cannot continue: a list is needed.
    Expired,
}

/// Watch of the Nodes.
pub struct Events {
    answer: Pin<Box<dyn AsyncBufRead + Send>>,
    line: Vec<u8>,
    /// Bytes of the line. A tenant could leave many lines without an end.
    share: Share,
}

/// Lists the Nodes. `share`: their bytes, which are taken while they are read. Returns them with the version of the list.
///
/// # Errors
/// [`RequestError`]
pub async fn list(remote: &Remote, share: &mut Share) -> Result<(NodeIndex, String), RequestError> {
    let (mut index, mut bytes, mut version) = (NodeIndex::default(), 0, None);
    let mut parameters = ListParams::default().limit(PAGE_SIZE);
    for _ in 0..MAX_PAGES {
        let request = nodes().list(&parameters);
        let ask = |client: Client| async move {
            client.request_text(request.map_err(kube::Error::BuildRequest)?).await
        };
        let text = remote.ask(ask).await?.ok_or(RequestError::Failed(404))?;
        bytes += text.len();
        let page: ObjectList<BoundedTimes<Node>> =
            serde_json::from_str(&text).map_err(|_| RequestError::Answer)?;
        drop(text);
        for BoundedTimes(node) in page.items {
            index.put(node, share.room());
            share.resize(index.bytes());
        }
        version = version.or(page.metadata.resource_version.filter(|version| !version.is_empty()));
        let next = page.metadata.continue_.filter(|next| !next.is_empty());
        let Some(next) = next else { return Ok((index, version.unwrap_or_default())) };
        if bytes > MAX_LIST {
            break;
        }
        parameters = parameters.continue_token(&next);
    }
    index.set_partial();
    Ok((index, version.unwrap_or_default()))
}

/// Starts a watch of the Nodes after a version. `share`: bytes of an event while it is read.
///
/// # Errors
/// [`RequestError`]
pub async fn watch(remote: &Remote, version: &str, share: Share) -> Result<Events, RequestError> {
    let request = nodes().watch(&WatchParams::default().timeout(WATCH_SECONDS), version);
    let ask = |client: Client| async move {
        let answer = client.request_stream(request.map_err(kube::Error::BuildRequest)?).await?;
        Ok::<_, kube::Error>(Box::pin(answer) as Pin<Box<dyn AsyncBufRead + Send>>)
    };
    let answer = remote.ask(ask).await?.ok_or(RequestError::Failed(404))?;
    Ok(Events { answer, line: Vec::new(), share })
}

/// Asks the API server for its version.
///
/// # Errors
/// [`RequestError`]
pub async fn probe(remote: &Remote) -> Result<(), RequestError> {
    let ask = |client: Client| async move {
        let request = http::Request::get("/version").body(Vec::new()).map_err(kube::Error::HttpError)?;
        client.request_text(request).await
    };
    remote.ask(ask).await.map(drop)
}

impl Events {
    /// Waits for the next event. None: the watch has ended. A caller may drop the wait and wait again.
    ///
    /// # Errors
    /// [`RequestError`]
    pub async fn next(&mut self) -> Result<Option<Event>, RequestError> {
        loop {
            // A lost connection ends the watch. The next one shows whether the server answers.
            let Ok(part) = self.answer.fill_buf().await else { return Ok(None) };
            if part.is_empty() {
                return Ok(None);
            }
            let end = part.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(part.len(), |end| end + 1);
            if self.line.len() + used > MAX_EVENT || used > self.share.room() {
                return Err(RequestError::Answer);
            }
            self.line.extend_from_slice(&part[..used]);
            self.share.resize(self.line.len());
            self.answer.consume_unpin(used);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                self.share.resize(0);
                if !line.trim_ascii().is_empty() {
                    return event(&line).map(Some);
                }
            }
        }
    }
}

fn event(line: &[u8]) -> Result<Event, RequestError> {
    let event: WatchEvent<BoundedTimes<Node>> =
        serde_json::from_slice(line).map_err(|_| RequestError::Answer)?;
    Ok(match event {
        WatchEvent::Added(BoundedTimes(node)) | WatchEvent::Modified(BoundedTimes(node)) => {
            let version = node.resource_version();
            Event::Changed(NodeChange::There(Box::new(node)), version)
        }
        WatchEvent::Deleted(BoundedTimes(node)) => {
            let version = node.resource_version();
            Event::Changed(NodeChange::Gone(node.name_any()), version)
        }
        WatchEvent::Bookmark(bookmark) => Event::Bookmark(bookmark.metadata.resource_version),
        WatchEvent::Error(status) if status.code == 410 => Event::Expired,
        WatchEvent::Error(status) => return Err(RequestError::Failed(status.code)),
    })
}
