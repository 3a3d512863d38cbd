//! Watches the objects of this host: four watches by name or label, and a fifth one if its Machine is in a
//! pool. After an error, each is opened again with backoff and jitter.
//!
//! No timer polls while the watches are up. They end by their own timeout,
//! after about five minutes each, and resume where they ended.
//! Called by `cluster`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::claim::MachineClaim;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_process::backoff::Backoff;
use bedplate_process::exit::chain;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::client::Access;
use super::error::{AskServerError, why};
use super::node_deletion::{self, Asked};
use super::view::View;
use super::{Seen, Watched};
use crate::metrics::{METRICS, WatchResult};
use crate::model::Api as Contact;

/// Label by which the controller marks the Machine of an operation (O5).
const LABEL: &str = "bedplate.dev/machine";
/// Delay before the next live read, if the watch reports no Node and a live read finds one.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

type Events<K> = BoxStream<'static, Result<Event<K>, watcher::Error>>;

/// The watches of one access.
struct Streams {
    machine: Events<Machine>,
    node: Events<Node>,
    version: Option<(String, Events<MachineConfigurationVersion>)>,
    claim: Option<Events<MachineClaim>>,
    operations: Events<MachineOperation>,
    taken: mpsc::UnboundedReceiver<Watched>,
    /// Kept so that watches can be made later.
    taken_by: mpsc::UnboundedSender<Watched>,
}

/// Event of a watch.
#[expect(clippy::large_enum_variant, reason = "only one exists at a time, and it is consumed immediately")]
pub(super) enum Word {
    Machine(Result<Event<Machine>, watcher::Error>),
    Node(Result<Event<Node>, watcher::Error>),
    Version(Result<Event<MachineConfigurationVersion>, watcher::Error>),
    Operation(Result<Event<MachineOperation>, watcher::Error>),
    Claim(Result<Event<MachineClaim>, watcher::Error>),
    Taken(Watched),
}

/// Pending check of the Node's deletion.
#[derive(Default)]
struct Question {
    asking: Option<BoxFuture<'static, Result<Asked, AskServerError>>>,
    failures: u32,
    not_before: Option<Instant>,
}

/// Publisher of the state. The last state must not count as current after the
/// watch ended, for whatever reason.
struct Published(watch::Sender<Seen>);

impl Drop for Published {
    fn drop(&mut self) {
        self.0.send_modify(|seen| seen.api = Contact::Away);
    }
}

/// The watch, as long as `access` has a sender. It starts again with every new access.
pub(super) struct Watcher {
    access: watch::Receiver<Access>,
    current: Access,
    /// True if another certificate may count already.
    expects: Arc<AtomicBool>,
    view: View,
    streams: Streams,
    question: Question,
    seen: Published,
}

/// Wake source of the watch loop.
#[expect(clippy::large_enum_variant, reason = "only one exists at a time, and its turn consumes it")]
pub(super) enum Woken {
    /// The certificate was renewed.
    Renewed,
    /// A watch has an event.
    Word(Word),
    /// Result of the check of the Node's deletion.
    Asked(Result<Asked, AskServerError>),
}

impl Watcher {
    pub(super) fn new(
        mut access: watch::Receiver<Access>,
        seen: watch::Sender<Seen>,
        expects: Arc<AtomicBool>,
    ) -> Self {
        let current = access.borrow_and_update().clone();
        let (streams, question) = (Streams::open(&current), Question::default());
        let view = View::new(current.machine().clone(), Instant::now().into_std(), Arc::clone(&expects));
        let mut watcher = Self { access, current, expects, view, streams, question, seen: Published(seen) };
        watcher.counts();
        watcher
    }

    /// Watches with the current certificate.
    fn reopen(&mut self) {
        self.current = self.access.borrow_and_update().clone();
        self.streams = Streams::open(&self.current);
        self.question = Question::default();
        self.counts();
    }

    /// The current certificate counts.
    fn counts(&mut self) {
        self.expects.store(false, Ordering::Relaxed);
        self.view.reopened(self.current.fingerprint().to_owned(), Instant::now().into_std());
    }
}

impl Reconcile for Watcher {
    type Event = Woken;

    /// Ends when a watch ends, which none does.
    async fn changed(&mut self) -> Option<Woken> {
        tokio::select! {
            biased;
            changed = self.access.changed() => changed.ok().map(|()| Woken::Renewed),
            word = self.streams.next() => word.map(Woken::Word),
            asked = answered(&mut self.question.asking) => Some(Woken::Asked(asked)),
        }
    }

    async fn turn(&mut self, activation: Activation<Woken>) -> Turn {
        match activation {
            Activation::Start | Activation::Due => {}
            Activation::Changed(Woken::Renewed) => self.reopen(),
            Activation::Changed(Woken::Word(word)) => take(&mut self.view, word),
            Activation::Changed(Woken::Asked(asked)) => self.question.settle(asked, &mut self.view),
        }
        self.streams.aim(&self.current, &mut self.view);
        self.streams.follow_claim(&self.current, &mut self.view);
        let until = publish(&mut self.view, &self.seen.0);
        self.question.ask_if_due(&self.current, &self.view, &self.seen.0);
        let until = [until, self.question.wakes(&self.view)].into_iter().flatten().min();
        until.map_or(Turn::Idle, Turn::At)
    }
}

/// Publishes the state if it is new. Returns when it changes by itself.
fn publish(view: &mut View, reported: &watch::Sender<Seen>) -> Option<Instant> {
    let (seen, until) = view.seen(Instant::now().into_std());
    reported.send_if_modified(|known| {
        if known.api != seen.api {
            tracing::info!(api = seen.describe(), "API server state changed");
        }
        let changed = *known != seen;
        *known = seen;
        changed
    });
    until.map(Instant::from_std)
}

fn take(view: &mut View, word: Word) {
    let now = Instant::now().into_std();
    let (watched, error) = match word {
        Word::Machine(Ok(event)) => return view.take_machine(event),
        Word::Node(Ok(event)) => return view.take_node(event),
        Word::Version(Ok(event)) => return view.take_version(event),
        Word::Operation(Ok(event)) => return view.take_operation(event),
        Word::Claim(Ok(event)) => return view.take_claim(event),
        Word::Taken(watched) => {
            METRICS.watch(watched, WatchResult::Started);
            return view.taken(watched);
        }
        Word::Machine(Err(error)) => (Watched::Machine, error),
        Word::Node(Err(error)) => (Watched::Node, error),
        Word::Version(Err(error)) => (Watched::Version, error),
        Word::Operation(Err(error)) => (Watched::Operations, error),
        Word::Claim(Err(error)) => (Watched::Claim, error),
    };
    METRICS.watch(watched, WatchResult::Failed);
    let error = why(error);
    if view.failed(watched, error.clone(), now) {
        tracing::warn!(watched = watched.name(), error, "watch failed, retrying");
    }
}

impl Streams {
    fn open(access: &Access) -> Self {
        let (taken_by, taken) = mpsc::unbounded_channel();
        let own = format!("metadata.name={}", access.machine());
        let labeled = format!("{LABEL}={}", access.machine());
        Self {
            machine: open(access, Watched::Machine, watcher::Config::default().fields(&own), &taken_by),
            node: open(access, Watched::Node, watcher::Config::default().fields(&own), &taken_by),
            version: None,
            claim: None,
            operations: open(
                access,
                Watched::Operations,
                watcher::Config::default().labels(&labeled),
                &taken_by,
            ),
            taken,
            taken_by,
        }
    }

    /// Watches the version that is selected now.
    fn aim(&mut self, access: &Access, view: &mut View) {
        let selected = view.selected();
        if self.version.as_ref().map(|(name, _)| name) == selected.as_ref() {
            return;
        }
        view.aim(selected.as_deref());
        self.version = selected.map(|name| {
            let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
            (name, open(access, Watched::Version, config, &self.taken_by))
        });
    }

    /// Watches the MachineClaim while it counts.
    fn follow_claim(&mut self, access: &Access, view: &mut View) {
        let needed = view.needs_claim();
        if self.claim.is_some() == needed {
            return;
        }
        view.watch_claim(needed);
        let config = || watcher::Config::default().fields(&format!("metadata.name={}", access.machine()));
        self.claim = needed.then(|| open(access, Watched::Claim, config(), &self.taken_by));
    }

    /// Returns the next event; `None`: a watch has ended permanently.
    async fn next(&mut self) -> Option<Word> {
        let version = async {
            match &mut self.version {
                Some((_, events)) => events.next().await,
                None => std::future::pending().await,
            }
        };
        let claim = async {
            match &mut self.claim {
                Some(events) => events.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The acceptance of a watch precedes its events.
            biased;
            Some(watched) = self.taken.recv() => Some(Word::Taken(watched)),
            event = self.machine.next() => event.map(Word::Machine),
            event = self.node.next() => event.map(Word::Node),
            event = version => event.map(Word::Version),
            event = self.operations.next() => event.map(Word::Operation),
            event = claim => event.map(Word::Claim),
        }
    }
}

fn open<K>(
    access: &Access,
    watched: Watched,
    config: watcher::Config,
    taken: &mpsc::UnboundedSender<Watched>,
) -> Events<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let taken = taken.clone();
    let client = access.watching(move || {
        // The receiver is gone: the streams are being dropped.
        let _ = taken.send(watched);
    });
    let api = Api::<BoundedTimes<K>>::all(client);
    watcher(api, config).default_backoff().map_ok(BoundedTimes::event).boxed()
}

/// Waits for the answer to a question that is being asked.
async fn answered(
    asking: &mut Option<BoxFuture<'static, Result<Asked, AskServerError>>>,
) -> Result<Asked, AskServerError> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

impl Question {
    /// Starts a live read immediately when the watch reports that there is no Node.
    fn ask_if_due(&mut self, access: &Access, view: &View, seen: &watch::Sender<Seen>) {
        let live = seen.borrow().api == Contact::Live;
        let early = self.not_before.is_some_and(|time| Instant::now() < time);
        if self.asking.is_some() || early || !live || !view.asks_for_node() {
            return;
        }
        let (client, name) = (access.client().clone(), access.machine().clone());
        self.asking = Some(async move { node_deletion::ask(&client, name.as_str()).await }.boxed());
    }

    fn wakes(&self, view: &View) -> Option<Instant> {
        self.not_before.filter(|time| self.asking.is_none() && view.asks_for_node() && Instant::now() < *time)
    }

    fn settle(&mut self, asked: Result<Asked, AskServerError>, view: &mut View) {
        self.asking = None;
        match asked {
            Ok(asked) => view.answered(asked),
            Err(error) => {
                tracing::warn!(error = chain(&error), "failed to verify that the Node is deleted");
            }
        }
        if view.asks_for_node() {
            self.failures = self.failures.saturating_add(1);
            self.not_before = Some(Instant::now() + BACKOFF.delay(self.failures, rand::random()));
        } else {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::wire::KubernetesEndpoint;
    use bedplate_process::liveness::Pulse;
    use bedplate_process::reconcile::Task;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn state_is_outdated_as_soon_as_the_watch_ends() {
        let own = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        let (pem, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let endpoint = KubernetesEndpoint { server: "https://127.0.0.1:1".to_owned(), ca_pem: pem.clone() };
        let access = Access::new(&endpoint, &"node-1".parse().unwrap(), (&pem, &key)).unwrap();
        let (_access, current) = watch::channel(access);
        let (tell, mut seen) = watch::channel(Seen::default());
        let mut watcher = Watcher::new(current, tell, Arc::default());
        let task = tokio::spawn(async move {
            Task::new(Pulse::unwatched()).run(&mut watcher, CancellationToken::new()).await
        });
        let refused = seen.wait_for(|seen| seen.trouble.len() == 3).await.unwrap().clone();
        assert_eq!(refused.api, Contact::Unasked, "the first answers are awaited for a while");
        assert!(refused.describe().contains("Connection refused"), "{}", refused.describe());
        task.abort();
        seen.wait_for(|seen| seen.api == Contact::Away).await.unwrap();
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
