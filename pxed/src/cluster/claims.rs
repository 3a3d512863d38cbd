//! MachineClaims of a site from the Kubernetes API: their names alone, for `powerPolicy: OnClaim`.
//!
//! The server selects the site by the label that the provider sets. Metadata alone is read. While the server is unreachable the last set
//! stays in force, and no set is published before the first list is complete. Spawned by `plane`.

use std::collections::BTreeSet;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::claim::MachineClaim;
use bedplate_api::id::SiteName;
use bedplate_process::exit::chain;
use bedplate_process::liveness::Pulse;
use bedplate_rules::fan_out::SITE;
use futures::{Stream, StreamExt, TryStreamExt};
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{self, Access};
use crate::power::plan::claim::Claims;

/// Watches until `shutdown`.
pub async fn run(
    access: Access,
    site: SiteName,
    claims: watch::Sender<Claims>,
    pulse: Pulse,
    shutdown: CancellationToken,
) {
    let follow = async {
        let client = tokio::select! {
            never = pulse.beating() => match never {},
            client = client::wait(access) => client,
        };
        let config = watcher::Config::default().labels(&format!("{SITE}={site}"));
        let claims_of_site = Api::<BoundedTimes<PartialObjectMeta<MachineClaim>>>::all(client);
        let stream = watch_objects(claims_of_site, config).default_backoff().map_ok(BoundedTimes::event);
        follow(Box::pin(stream), &claims, &pulse).await;
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = follow => {}
    }
}

async fn follow<S>(mut stream: S, claims: &watch::Sender<Claims>, pulse: &Pulse)
where
    S: Stream<Item = watcher::Result<Event<PartialObjectMeta<MachineClaim>>>> + Unpin,
{
    let mut view = View::default();
    let mut has_failed = false;
    loop {
        let event = tokio::select! {
            never = pulse.beating() => match never {},
            event = stream.next() => event,
        };
        match event {
            Some(Ok(event)) => {
                if !matches!(event, Event::Init) && std::mem::take(&mut has_failed) {
                    tracing::info!("watch of claims restored");
                }
                if view.take(event) {
                    claims.send_replace(Claims::known(view.names.clone()));
                }
            }
            Some(Err(error)) => {
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(error = chain(&error), "failed to watch claims, retrying");
                }
            }
            None => return,
        }
    }
}

/// Names of the claims that the watch shows.
#[derive(Debug, Default)]
struct View {
    names: BTreeSet<String>,
    /// List that is being received.
    list: BTreeSet<String>,
    /// True after the first complete list.
    is_complete: bool,
}

impl View {
    /// Returns true if the set has changed, and is complete.
    fn take(&mut self, event: Event<PartialObjectMeta<MachineClaim>>) -> bool {
        let name = |claim: PartialObjectMeta<MachineClaim>| claim.metadata.name.unwrap_or_default();
        match event {
            Event::Init => {
                self.list.clear();
                false
            }
            Event::InitApply(claim) => {
                self.list.insert(name(claim));
                false
            }
            Event::InitDone => {
                let list = std::mem::take(&mut self.list);
                let is_new = !std::mem::replace(&mut self.is_complete, true);
                is_new | (std::mem::replace(&mut self.names, list) != self.names)
            }
            Event::Apply(claim) => self.names.insert(name(claim)) && self.is_complete,
            Event::Delete(claim) => self.names.remove(&name(claim)) && self.is_complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::Machine;
    use futures::stream;
    use serde_json::json;

    use super::*;
    use crate::power::plan::claim::ClaimSeen;

    fn claim(name: &str) -> PartialObjectMeta<MachineClaim> {
        serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
    }

    fn machine(name: &str) -> Machine {
        serde_json::from_value(json!({ "metadata": { "name": name },
            "spec": { "provider": "pxe", "powerPolicy": "OnClaim" } }))
        .unwrap()
    }

    #[tokio::test]
    async fn m6_claims_are_known_after_the_first_complete_list() {
        let (sender, receiver) = watch::channel(Claims::default());
        let of = |name: &str| receiver.borrow().of(&machine(name));
        let mut view = View::default();
        let mut take = |event| {
            if view.take(event) {
                sender.send_replace(Claims::known(view.names.clone()));
            }
        };
        take(Event::Init);
        take(Event::InitApply(claim("a")));
        assert_eq!(of("a"), ClaimSeen::Unknown);
        take(Event::InitDone);
        assert_eq!((of("a"), of("b")), (ClaimSeen::Present, ClaimSeen::Absent));
        take(Event::Apply(claim("b")));
        take(Event::Delete(claim("a")));
        assert_eq!((of("a"), of("b")), (ClaimSeen::Absent, ClaimSeen::Present));
        // A list that is interrupted changes nothing.
        take(Event::Init);
        take(Event::Init);
        assert_eq!(of("b"), ClaimSeen::Present);
        take(Event::InitDone);
        assert_eq!(of("b"), ClaimSeen::Absent);
    }

    #[tokio::test]
    async fn a3_an_unreachable_server_leaves_the_last_claims() {
        let (sender, receiver) = watch::channel(Claims::default());
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(claim("a"))),
            Ok(Event::InitDone),
            Err(watcher::Error::NoResourceVersion),
        ];
        follow(stream::iter(events), &sender, &Pulse::unwatched()).await;
        assert_eq!(receiver.borrow().of(&machine("a")), ClaimSeen::Present);
    }
}
