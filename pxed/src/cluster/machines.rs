//! Machines from the Kubernetes API: a watch with backoff. The server selects the site where it can (Kubernetes 1.31
//! or newer); otherwise this process does.
//!
//! While the server is unreachable the last set stays in force. Changes are gathered briefly before they become a new
//! set; status-only changes, which are mostly pxed's own, are gathered for longer. A recovered watch reports nothing
//! while nothing changes. So after an error the server is asked every [`PROBE_INTERVAL`] until it answers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::id::{MachineName, SiteName};
use bedplate_api::machine::Machine;
use bedplate_process::liveness::Pulse;
use bedplate_process::reconcile::until;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt};
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::runtime::{WatchStreamExt, watcher::Event};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::machines::source::{OtherManifests, SourceEnded, Sourced, Update};

/// Delay in which changes are gathered.
const GATHER_DELAY: Duration = Duration::from_millis(100);
/// Delay in which status-only changes are gathered.
const GATHER_STATUS: Duration = Duration::from_secs(5);

/// Interval between probes of the server after an error.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout of a probe.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// Reads the newest state of this very Machine; `None` if it is gone, or another one has its name.
pub(crate) async fn newest(
    client: &Client,
    machine: &MachineName,
    uid: &str,
) -> kube::Result<Option<Machine>> {
    let found = Api::<BoundedTimes<Machine>>::all(client.clone()).get_opt(machine.as_str()).await?;
    Ok(found.map(|BoundedTimes(found)| found).filter(|found| found.metadata.uid.as_deref() == Some(uid)))
}

/// Watches until `shutdown`.
///
/// # Errors
/// It has ended before.
pub async fn run(
    client: Client,
    site: SiteName,
    updates: mpsc::Sender<Update>,
    pulse: Pulse,
    shutdown: CancellationToken,
) -> Result<(), SourceEnded> {
    let machines = Api::<BoundedTimes<Machine>>::all(client);
    let of_site = watcher::Config::default().fields(&format!("spec.site={site}"));
    let selected = watcher(machines.clone(), of_site).default_backoff().map_ok(BoundedTimes::event);
    let all = watcher(machines.clone(), watcher::Config::default()).default_backoff();
    let all = all.map_ok(BoundedTimes::event);
    let stream = selected_or_all(selected.boxed(), all.boxed());
    let answers = move || {
        let machines = machines.clone();
        async move { machines.list(&ListParams::default().limit(1)).await.is_ok() }.boxed()
    };
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        ended = follow(Box::pin(stream), answers, site, updates, pulse) => match ended? {},
    }
}

/// Returns the watch that the server filters. If the server cannot select by this field, it changes to the watch of all Machines.
fn selected_or_all<'a>(
    selected: BoxStream<'a, Result<Event<Machine>, watcher::Error>>,
    all: BoxStream<'a, Result<Event<Machine>, watcher::Error>>,
) -> impl Stream<Item = Result<Event<Machine>, watcher::Error>> + 'a {
    futures::stream::unfold((Some(selected), all), |(mut selected, mut all)| async move {
        if let Some(stream) = &mut selected {
            match stream.next().await {
                Some(Err(error)) if cannot_select(&error) => {
                    tracing::info!("API server cannot select Machines by site, watching all sites");
                }
                event => return event.map(|event| (event, (selected, all))),
            }
        }
        all.next().await.map(|event| (event, (None, all)))
    })
}

/// Returns true if the server does not know the field of the selector.
fn cannot_select(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 400,
        watcher::Error::WatchError(status) => status.code == 400,
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}

/// Ends when the server has answered, [`PROBE_INTERVAL`] from now at the earliest.
fn back<P>(answers: &P) -> BoxFuture<'static, ()>
where
    P: Fn() -> BoxFuture<'static, bool> + Clone + Send + 'static,
{
    let answers = answers.clone();
    async move {
        loop {
            tokio::time::sleep(PROBE_INTERVAL).await;
            if tokio::time::timeout(PROBE_TIME, answers()).await == Ok(true) {
                return;
            }
        }
    }
    .boxed()
}

/// Machines that the watch reported.
#[derive(Debug, Default)]
struct View {
    /// Complete, once there was a first list.
    machines: BTreeMap<String, Arc<Machine>>,
    /// A list that is being received.
    list: Option<BTreeMap<String, Arc<Machine>>>,
}

/// Part that an event changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Changed {
    Nothing,
    Status,
    Set,
    Complete,
}

async fn follow<S, P>(
    mut stream: S,
    answers: P,
    site: SiteName,
    updates: mpsc::Sender<Update>,
    pulse: Pulse,
) -> Result<Infallible, SourceEnded>
where
    S: Stream<Item = Result<Event<Machine>, watcher::Error>> + Unpin,
    P: Fn() -> BoxFuture<'static, bool> + Clone + Send + 'static,
{
    // After an error, until the server is known to be back.
    let mut away: Option<BoxFuture<'static, ()>> = None;
    let mut view = View::default();
    let mut complete = false;
    let mut due: Option<Instant> = None;
    loop {
        pulse.beat();
        let update = tokio::select! {
            // A set that is due was received before a later error, so it does not show that the server answers again.
            biased;
            () = until(due) => {
                due = None;
                if !complete {
                    continue;
                }
                view.update()
            }
            event = stream.next() => match event {
                Some(Ok(event)) => {
                    // Init only announces a list; all other events were sent by the server.
                    let came = !matches!(event, Event::Init);
                    let changed = view.take(event, &site);
                    complete |= changed == Changed::Complete;
                    due = sooner(due, changed, Instant::now());
                    if !came || away.take().is_none() {
                        continue;
                    }
                    Update::Reachable
                }
                Some(Err(error)) => {
                    away = Some(back(&answers));
                    Update::Unreachable { reason: bedplate_process::exit::chain(&error) }
                }
                None => return Err(SourceEnded::Watch),
            },
            () = ended(&mut away) => {
                away = None;
                Update::Reachable
            }
            never = pulse.beating() => match never {},
        };
        updates.send(update).await.map_err(|_| SourceEnded::Unheard)?;
    }
}

/// Time at which the next set is due, after a change.
fn sooner(due: Option<Instant>, changed: Changed, now: Instant) -> Option<Instant> {
    let next = match changed {
        Changed::Nothing => return due,
        Changed::Status => now.checked_add(GATHER_STATUS),
        Changed::Set => now.checked_add(GATHER_DELAY),
        Changed::Complete => Some(now),
    };
    match (due, next) {
        (Some(due), Some(next)) => Some(due.min(next)),
        (due, next) => due.or(next),
    }
}

async fn ended(away: &mut Option<BoxFuture<'static, ()>>) {
    match away {
        Some(back) => back.await,
        None => std::future::pending().await,
    }
}

impl View {
    fn take(&mut self, event: Event<Machine>, site: &SiteName) -> Changed {
        match event {
            Event::Init => {
                self.list = Some(BTreeMap::new());
                Changed::Nothing
            }
            Event::InitApply(machine) => {
                if let Some((name, machine)) = ours(machine, site) {
                    self.list.get_or_insert_default().insert(name, machine);
                }
                Changed::Nothing
            }
            Event::InitDone => {
                self.machines = self.list.take().unwrap_or_default();
                Changed::Complete
            }
            Event::Apply(machine) => {
                let name = machine.metadata.name.clone().unwrap_or_default();
                match ours(machine, site) {
                    Some((name, machine)) => {
                        let before = self.machines.insert(name.clone(), machine);
                        match (before, self.machines.get(&name)) {
                            (Some(before), Some(after)) if differs_in_status_only(&before, after) => {
                                Changed::Status
                            }
                            _ => Changed::Set,
                        }
                    }
                    // It may have been ours until now.
                    None => {
                        if self.machines.remove(&name).is_some() {
                            Changed::Set
                        } else {
                            Changed::Nothing
                        }
                    }
                }
            }
            Event::Delete(machine) => {
                let name = machine.metadata.name.unwrap_or_default();
                if self.machines.remove(&name).is_some() { Changed::Set } else { Changed::Nothing }
            }
        }
    }

    fn update(&self) -> Update {
        let machines = self.machines.values().cloned();
        let machines = machines.map(|machine| Sourced { origin: String::new(), machine }).collect();
        Update::Set { machines, others: OtherManifests::NOTHING, problems: Vec::new() }
    }
}

/// Returns the Machine if it is of this site, without what pxed does not read.
fn ours(mut machine: Machine, site: &SiteName) -> Option<(String, Arc<Machine>)> {
    if machine.spec.site != *site {
        return None;
    }
    machine.metadata.managed_fields = None;
    let name = machine.metadata.name.clone()?;
    Some((name, Arc::new(machine)))
}

fn differs_in_status_only(before: &Machine, after: &Machine) -> bool {
    before.spec == after.spec
        && before.metadata.uid == after.metadata.uid
        && before.metadata.labels == after.metadata.labels
        && before.metadata.annotations == after.metadata.annotations
        && before.metadata.deletion_timestamp == after.metadata.deletion_timestamp
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use crate::machines::tests::machine;

    const A: &str = "52:54:00:00:00:0a";

    fn elsewhere(name: &str) -> Machine {
        let mut machine = machine(name, &[A]);
        machine.spec.site = "other".parse().unwrap();
        machine
    }

    async fn updates_of(events: Vec<Result<Event<Machine>, watcher::Error>>) -> Vec<Vec<String>> {
        updates_while(events, || async { false }.boxed()).await
    }

    async fn updates_while<P>(
        events: Vec<Result<Event<Machine>, watcher::Error>>,
        answers: P,
    ) -> Vec<Vec<String>>
    where
        P: Fn() -> BoxFuture<'static, bool> + Clone + Send + 'static,
    {
        let (sender, mut receiver) = mpsc::channel(16);
        let stream = stream::iter(events).chain(stream::pending());
        let site = SiteName::default();
        let task = tokio::spawn(follow(Box::pin(stream), answers, site, sender, Pulse::unwatched()));
        let mut found = Vec::new();
        while let Ok(Some(update)) = tokio::time::timeout(PROBE_INTERVAL * 10, receiver.recv()).await {
            found.push(match update {
                Update::Set { machines, .. } => {
                    machines.iter().map(|s| s.machine.metadata.name.clone().unwrap()).collect()
                }
                Update::Unreachable { .. } => vec!["unreachable".to_owned()],
                Update::Reachable => vec!["reachable".to_owned()],
            });
        }
        task.abort();
        found
    }

    #[tokio::test(start_paused = true)]
    async fn a3_other_sites_are_filtered_and_leave_when_they_move() {
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(machine("a", &[A]))),
            Ok(Event::InitApply(elsewhere("b"))),
            Ok(Event::InitDone),
            Ok(Event::Apply(elsewhere("a"))),
            Ok(Event::Apply(machine("c", &[A]))),
            Ok(Event::Apply(elsewhere("d"))),
        ];
        assert_eq!(updates_of(events).await.last().unwrap(), &["c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a3_a_server_that_cannot_select_the_site_is_asked_for_all() {
        let refused = |code: u16| {
            let status = kube::core::Status { code, ..Default::default() };
            watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
        };
        let all =
            || stream::iter([Ok(Event::Init), Ok(Event::InitApply(machine("a", &[A]))), Ok(Event::InitDone)]);
        let names = |selected: Vec<Result<Event<Machine>, watcher::Error>>| async move {
            let stream = selected_or_all(stream::iter(selected).boxed(), all().boxed());
            let events: Vec<_> = stream.collect().await;
            let applied = events.iter().filter(|event| matches!(event, Ok(Event::InitApply(_)))).count();
            (applied, events.iter().filter(|event| event.is_err()).count())
        };
        assert_eq!(names(vec![Ok(Event::Init), Err(refused(400))]).await, (1, 0));
        let away = vec![Ok(Event::Init), Err(refused(503)), Ok(Event::InitDone)];
        assert_eq!(names(away).await, (0, 1), "an unavailable server may know the field");
    }

    #[tokio::test(start_paused = true)]
    async fn a3_a_machine_that_leaves_the_site_leaves_the_selected_watch() {
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(machine("a", &[A]))),
            Ok(Event::InitDone),
            // The server shows the state before.
            Ok(Event::Delete(machine("a", &[A]))),
            Ok(Event::Apply(machine("c", &[A]))),
        ];
        assert_eq!(updates_of(events).await.last().unwrap(), &["c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_before_the_first_list_is_complete() {
        let events = vec![Ok(Event::Init), Ok(Event::InitApply(machine("a", &[A])))];
        assert_eq!(updates_of(events).await, Vec::<Vec<String>>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_goes_away_during_a_list_leaves_the_last_set() {
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(machine("a", &[A]))),
            Ok(Event::InitDone),
            Err(watcher::Error::NoResourceVersion),
            Ok(Event::Init),
            Err(watcher::Error::NoResourceVersion),
        ];
        let found = updates_of(events).await;
        assert!(found.iter().all(|set| set == &["a"] || set == &["unreachable"]), "{found:?}");
        assert!(found.contains(&vec!["a".to_owned()]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_back_is_known_to_be_although_nothing_changes() {
        let events = || {
            vec![
                Ok(Event::Init),
                Ok(Event::InitDone),
                Err(watcher::Error::NoResourceVersion),
                Ok(Event::Init),
            ]
        };
        let last = |found: Vec<Vec<String>>| found.last().cloned().unwrap();
        assert_eq!(last(updates_of(events()).await), ["unreachable"]);
        let asked = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let third = move || {
            let asked = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move { asked == 2 }.boxed()
        };
        let third = Arc::new(third);
        assert_eq!(last(updates_while(events(), move || third()).await), ["reachable"]);
        let mut events = events();
        events.push(Ok(Event::Apply(elsewhere("b"))));
        assert_eq!(last(updates_of(events).await), ["reachable"], "an event is proof enough");
    }

    #[tokio::test]
    async fn a_watch_that_ends_is_an_error_and_no_quiet_end() {
        let (sender, _updates) = mpsc::channel(1);
        let answers = || async { false }.boxed();
        let (events, site) = (stream::iter([Ok(Event::Init)]), SiteName::default());
        let ended = follow(events, answers, site, sender, Pulse::unwatched()).await;
        assert!(matches!(ended, Err(SourceEnded::Watch)), "{ended:?}");
    }

    #[test]
    fn our_own_status_writes_are_no_new_set() {
        let site = SiteName::default();
        let mut view = View::default();
        assert_eq!(view.take(Event::Apply(machine("a", &[A])), &site), Changed::Set);
        let mut written = machine("a", &[A]);
        written.status = Some(Default::default());
        written.metadata.resource_version = Some("2".to_owned());
        assert_eq!(view.take(Event::Apply(written), &site), Changed::Status);
        assert_eq!(view.take(Event::Apply(machine("a", &["52:54:00:00:00:0b"])), &site), Changed::Set);
        assert_eq!(view.take(Event::Delete(machine("a", &[A])), &site), Changed::Set);
        assert_eq!(view.take(Event::Delete(machine("a", &[A])), &site), Changed::Nothing);
    }
}
