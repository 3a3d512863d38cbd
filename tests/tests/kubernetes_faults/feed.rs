//! One watch of each kind for all gates. The API server sends each event once, not once for each of the concurrent controllers, and the
//! event is parsed once.
//!
//! A feed starts at the version that the first gate has listed. A gate with an older list has its own watch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{Request, Uri};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Delay between two requests of a feed.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// All feeds, by path and selectors of the watch.
pub(crate) struct Feeds {
    client: Client,
    runtime: Handle,
    feeds: Mutex<HashMap<String, Arc<Feed>>>,
}

/// Events of one kind since a version.
struct Feed {
    since: u64,
    /// Events by the prefix of their objects' names.
    scopes: Mutex<HashMap<String, Scope>>,
    /// True after the last event.
    over: watch::Sender<bool>,
}

/// Events of one run, each with its version, and their number.
#[derive(Default)]
struct Scope {
    events: Vec<(u64, Bytes)>,
    count: watch::Sender<usize>,
}

/// Parts of an event that are used.
#[derive(Deserialize)]
pub(crate) struct Event<'a> {
    #[serde(rename = "type")]
    type_: &'a str,
    #[serde(borrow)]
    object: Object<'a>,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata<'a> {
    name: &'a str,
    resource_version: &'a str,
}

impl<'a> Event<'a> {
    /// Reads a line of a watch; `None` if it is not about an object.
    pub(crate) fn of(line: &'a [u8]) -> Option<Self> {
        let event: Event<'_> = serde_json::from_slice(line).ok()?;
        ["ADDED", "MODIFIED", "DELETED"].contains(&event.type_).then_some(event)
    }

    pub(crate) fn name(&self) -> &'a str {
        self.object.metadata.name
    }

    /// Returns the prefix of a run's objects: the part up to and including the first hyphen.
    fn scope(&self) -> &'a str {
        let name = self.name();
        name.find('-').map_or(name, |end| &name[..=end])
    }

    fn version(&self) -> Option<u64> {
        self.object.metadata.resource_version.parse().ok()
    }
}

impl Feeds {
    pub(crate) fn new(client: Client, runtime: Handle) -> Self {
        Self { client, runtime, feeds: Mutex::default() }
    }

    /// Returns the events of a run that a watch requests. `None` if the feed starts too late.
    pub(crate) fn subscribe(
        &self,
        watch: &Uri,
        scope: &str,
    ) -> Option<impl Stream<Item = Bytes> + Send + 'static> {
        let query = |name: &str| {
            let parameters = watch.query().unwrap_or_default().split('&');
            parameters.filter_map(|parameter| parameter.split_once('=')).find(|(key, _)| *key == name)
        };
        let since: u64 = query("resourceVersion")?.1.parse().ok()?;
        let selectors = ["labelSelector", "fieldSelector"].into_iter().filter_map(query);
        let selectors: String = selectors.map(|(key, value)| format!("&{key}={value}")).collect();
        let place = format!("{}?watch=true{selectors}", watch.path());
        let feed = {
            let mut feeds = self.feeds.lock().unwrap();
            feeds.retain(|_, feed| !*feed.over.borrow());
            let begin = || {
                let (scopes, over) = Default::default();
                let feed = Arc::new(Feed { since, scopes, over });
                self.runtime.spawn(feed.clone().follow(self.client.clone(), place.clone()));
                feed
            };
            feeds.entry(place.clone()).or_insert_with(begin).clone()
        };
        (feed.since <= since).then(|| feed.events(scope.to_owned(), since))
    }

    /// Drops the events of a finished run.
    pub(crate) fn forget(&self, scope: &str) {
        for feed in self.feeds.lock().unwrap().values() {
            feed.scopes.lock().unwrap().remove(scope);
        }
    }
}

impl Feed {
    /// Follows the watch until its version has expired in the API server.
    async fn follow(self: Arc<Self>, client: Client, place: String) {
        let mut last = self.since;
        // A refused connection fails immediately, and an API server that is stopped refuses all of them.
        while self.follow_once(&client, &place, &mut last).await.is_some() {
            tokio::time::sleep(RETRY_DELAY).await;
        }
        self.over.send_replace(true);
    }

    /// Follows one request to its end. Returns `None` if its version is too old.
    async fn follow_once(&self, client: &Client, place: &str, last: &mut u64) -> Option<()> {
        let request = Request::get(format!("{place}&resourceVersion={last}")).body(Body::empty()).unwrap();
        let Ok(answer) = client.send(request).await else { return Some(()) };
        let mut data = answer.into_body().into_data_stream();
        let mut rest = Vec::new();
        while let Some(Ok(chunk)) = data.next().await {
            rest.extend_from_slice(&chunk);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let tail = rest.split_off(end + 1);
                let line = Bytes::from(std::mem::replace(&mut rest, tail));
                *last = self.take(&line)?;
            }
        }
        Some(())
    }

    /// Stores an event and returns its version.
    fn take(&self, line: &Bytes) -> Option<u64> {
        let event = Event::of(line)?;
        let version = event.version()?;
        let mut scopes = self.scopes.lock().unwrap();
        let scope = scopes.entry(event.scope().to_owned()).or_default();
        scope.events.push((version, line.clone()));
        scope.count.send_replace(scope.events.len());
        Some(version)
    }

    /// Returns the events of a run after a version: the stored events, then each new one.
    fn events(self: Arc<Self>, scope: String, since: u64) -> impl Stream<Item = Bytes> + Send + 'static {
        let count = self.scopes.lock().unwrap().entry(scope.clone()).or_default().count.subscribe();
        let over = self.over.subscribe();
        stream::unfold(
            (self, scope, since, count, over),
            |(feed, scope, since, mut count, mut over)| async move {
                loop {
                    count.mark_unchanged();
                    let new: Vec<(u64, Bytes)> = {
                        let scopes = feed.scopes.lock().unwrap();
                        let events = &scopes.get(&scope)?.events;
                        events[events.partition_point(|(version, _)| *version <= since)..].to_vec()
                    };
                    if let Some((last, _)) = new.last() {
                        let (last, all) =
                            (*last, new.iter().flat_map(|(_, line)| line.to_vec()).collect::<Vec<u8>>());
                        return Some((Bytes::from(all), (feed, scope, last, count, over)));
                    }
                    tokio::select! {
                        changed = count.changed() => changed.ok()?,
                        // Not `changed()`: the feed may have ended before this receiver was made.
                        _ = over.wait_for(|over| *over) => return None,
                    }
                }
            },
        )
    }
}
