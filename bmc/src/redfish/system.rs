//! One system of a service: found once, read again for every call, changed by its actions and settings.
//!
//! Caller: `redfish`, which sets the deadline of every call.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::document::{Document, is_path, last_segment};
use super::login::Session;
use super::task::Progress;
use super::transport::{Answer, Request};
use super::{MOST_ENTRIES, boot, inventory, log, reset, task};
use crate::error::BmcError;
use crate::model::{BootMode, BootSource, Health, Identity, LogEntry, Performed, PowerRequest};
use crate::quirks::{Facts, Quirk, Quirks};

/// Pages of a collection that are read.
const MOST_PAGES: usize = 8;
/// Entries of a log that are read one by one, where its list has only links.
const MOST_LINKED: usize = 32;
/// Default interval between reads of a task.
const TASK_PAUSE: Duration = Duration::from_millis(500);
/// Least and most that a task's own wish counts.
const TASK_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The system that was chosen.
#[derive(Clone)]
struct Found {
    path: String,
    quirks: Quirks,
}

/// Abilities of a service and its system.
pub(crate) struct Abilities {
    pub(crate) systems: Vec<String>,
    pub(crate) identity: Identity,
    /// `None`: the service does not report it.
    pub(crate) reset_types: Option<Vec<String>>,
    /// `None`: the service does not report it.
    pub(crate) boot_sources: Option<Vec<String>>,
    pub(crate) sessions: bool,
    pub(crate) consoles: Vec<String>,
    pub(crate) quirks: Quirks,
}

/// One system of a service.
pub(crate) struct System {
    pub(crate) session: Session,
    id: Option<String>,
    found: Option<Found>,
    /// True if this call has sent a changing request.
    pub(crate) sent: bool,
}

impl System {
    pub(crate) fn new(session: Session, id: Option<String>) -> Self {
        Self { session, id, found: None, sent: false }
    }

    /// Returns the deviations of the system, once it was read.
    pub(crate) fn quirks(&self) -> Quirks {
        self.found.as_ref().map(|found| found.quirks.clone()).unwrap_or_default()
    }

    /// The members of a collection, page by page.
    async fn members(&mut self, path: &str) -> Result<Vec<String>, BmcError> {
        let mut found = Vec::new();
        let mut next = Some(path.to_owned());
        for _ in 0..MOST_PAGES {
            let Some(path) = next.take() else { break };
            let page = self.session.get(&path).await?;
            let before = found.len();
            for member in page.links("/Members")? {
                if !found.contains(&member) {
                    found.push(member);
                }
            }
            // Some services lead to the same page again and again.
            next = next_page(&page)?.filter(|_| found.len() > before);
        }
        Ok(found)
    }

    async fn systems(&mut self) -> Result<Vec<String>, BmcError> {
        let root = self.session.root().await?;
        // Some roots omit links to resources that they serve.
        let systems = root.link("/Systems")?.unwrap_or_else(|| "/redfish/v1/Systems".to_owned());
        self.members(&systems).await
    }

    /// Reads the current system.
    pub(crate) async fn read(&mut self) -> Result<(Document, Quirks), BmcError> {
        if let Some(found) = self.found.clone() {
            let read = self.session.get(&found.path).await;
            if matches!(read, Err(BmcError::Protocol { .. })) {
                self.found = None;
            }
            return Ok((read?, found.quirks));
        }
        let systems = self.systems().await?;
        let path = choose(&systems, self.id.as_deref())?;
        let system = self.session.get(&path).await?;
        let root = self.session.root().await?;
        let quirks = Quirks::of(&Facts { root: &root.value, system: &system.value });
        self.found = Some(Found { path, quirks: quirks.clone() });
        Ok((system, quirks))
    }

    /// Reads the BMC itself, if the service lists it.
    async fn controller(&mut self, system: &Document) -> Result<Option<Document>, BmcError> {
        let mut path = system.links("/Links/ManagedBy").unwrap_or_default().into_iter().next();
        if path.is_none()
            && let Some(all) = self.session.root().await?.link("/Managers").unwrap_or_default()
        {
            path = tolerated(self.members(&all).await)?.unwrap_or_default().into_iter().next();
        }
        match path {
            Some(path) => tolerated(self.session.get(&path).await),
            None => Ok(None),
        }
    }

    pub(crate) async fn identity(&mut self) -> Result<Identity, BmcError> {
        let (system, _) = self.read().await?;
        let controller = self.controller(&system).await?;
        Ok(inventory::identity(&self.session.root().await?, &system, controller.as_ref()))
    }

    pub(crate) async fn health(&mut self) -> Result<Health, BmcError> {
        let (system, _) = self.read().await?;
        let controller = self.controller(&system).await?;
        Ok(inventory::health(&system, controller.as_ref()))
    }

    async fn reset_types(&mut self, action: &reset::ResetAction) -> Result<Option<Vec<String>>, BmcError> {
        match (&action.allowed, &action.info) {
            (None, Some(info)) => {
                Ok(tolerated(self.session.get(info).await)?.and_then(|info| reset::allowed_by(&info)))
            }
            (allowed, _) => Ok(allowed.clone()),
        }
    }

    pub(crate) async fn power(&mut self, request: PowerRequest) -> Result<Performed, BmcError> {
        let (system, quirks) = self.read().await?;
        let state = inventory::power_state(&system)?;
        let action = reset::action(&system)?;
        let allowed = self.reset_types(&action).await?;
        let kind = reset::choose(request, allowed.as_deref(), state, &quirks)?;
        let post = Request::new(Method::POST, &action.target).json(&json!({ "ResetType": kind }));
        self.change(&post).await?;
        Ok(Performed(kind))
    }

    pub(crate) async fn next_boot(&mut self) -> Result<Option<BootSource>, BmcError> {
        let (system, _) = self.read().await?;
        let settings = self.boot_settings(&system).await?;
        boot::current(settings.as_ref().unwrap_or(&system))
    }

    pub(crate) async fn set_next_boot(
        &mut self,
        source: BootSource,
        mode: Option<BootMode>,
    ) -> Result<(), BmcError> {
        let (system, quirks) = self.read().await?;
        let change = boot::change(&system, source, mode, &quirks)?;
        let settings = self.boot_settings(&system).await?;
        self.patch(settings.as_ref().unwrap_or(&system), &change, &quirks).await
    }

    /// The settings resource, if that is where the boot source is set.
    async fn boot_settings(&mut self, system: &Document) -> Result<Option<Document>, BmcError> {
        let Some(path) = boot::settings(system)? else { return Ok(None) };
        let settings = tolerated(self.session.get(&path).await)?;
        Ok(settings.filter(boot::takes_boot))
    }

    /// Changes a resource that was just read; repeated once with its new state if another client was faster (412).
    async fn patch(&mut self, at: &Document, change: &Value, quirks: &Quirks) -> Result<(), BmcError> {
        let mut patch = Request::new(Method::PATCH, &at.path).json(change);
        let any = || Some("*".to_owned());
        patch.if_match = if quirks.have(Quirk::MatchAnyEtag) { any() } else { at.etag.clone() };
        self.sent = true;
        let mut answer = self.session.exchange(&patch).await?;
        let again = match answer.status {
            StatusCode::PRECONDITION_FAILED => {
                let now = self.session.get(&at.path).await?;
                Some(boot::second_etag(patch.if_match.as_deref(), now.etag))
            }
            StatusCode::PRECONDITION_REQUIRED if patch.if_match.is_none() => Some(any()),
            _ => None,
        };
        if let Some(tag) = again {
            patch.if_match = tag;
            answer = self.session.exchange(&patch).await?;
        }
        self.finish(&patch, answer).await
    }

    async fn change(&mut self, request: &Request<'_>) -> Result<(), BmcError> {
        self.sent = true;
        let answer = self.session.exchange(request).await?;
        self.finish(request, answer).await
    }

    /// Waits for the task of a change, if it has become one.
    async fn finish(&mut self, request: &Request<'_>, answer: Answer) -> Result<(), BmcError> {
        let answer = self.session.accepted(request, answer)?;
        if answer.status != StatusCode::ACCEPTED {
            return Ok(());
        }
        // Supermicro accepts without anything to wait for.
        let Some(place) = answer.location.clone().or_else(|| task::place(&answer.path, &answer.body)) else {
            return Ok(());
        };
        let mut pause = answer.retry_after;
        let address = self.session.transport.address.clone();
        loop {
            let (least, most) = TASK_PAUSES;
            tokio::time::sleep(pause.unwrap_or(TASK_PAUSE).clamp(least, most)).await;
            let poll = Request::new(Method::GET, &place);
            let answer =
                self.session.exchange(&poll).await.map_err(|error| after_acceptance(&address, error))?;
            // A monitor that no longer exists has finished; the state shows its result.
            if matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
                return Ok(());
            }
            pause = answer.retry_after;
            let answer =
                self.session.accepted(&poll, answer).map_err(|error| after_acceptance(&address, error))?;
            match task::progress(answer.status == StatusCode::ACCEPTED, &answer.body) {
                Progress::Running => {}
                Progress::Done => return Ok(()),
                Progress::Failed(problem) => {
                    return Err(BmcError::Refused { what: request.name(), problem, sent: true });
                }
            }
        }
    }

    pub(crate) async fn log_tail(&mut self, newest: usize) -> Result<Vec<LogEntry>, BmcError> {
        let newest = newest.min(MOST_ENTRIES);
        let (system, _) = self.read().await?;
        let controller = self.controller(&system).await?;
        let mut services = Vec::new();
        for owner in [Some(&system), controller.as_ref()].into_iter().flatten() {
            if let Some(path) = owner.link("/LogServices")? {
                services.extend(tolerated(self.members(&path).await)?.unwrap_or_default());
            }
        }
        let not_supported = || BmcError::NotSupported {
            what: "reading its event log".to_owned(),
            hint: "neither the system nor its BMC has an event log".to_owned(),
        };
        let service = log::best(&services).ok_or_else(not_supported)?.clone();
        let service = self.session.get(&service).await?;
        let entries = service.link("/Entries")?.ok_or_else(not_supported)?;
        self.entries(entries, newest).await
    }

    async fn entries(&mut self, path: String, newest: usize) -> Result<Vec<LogEntry>, BmcError> {
        let (mut entries, mut links) = (Vec::new(), Vec::new());
        let mut next = Some(path);
        for _ in 0..MOST_PAGES {
            let Some(path) = next.take() else { break };
            let page = self.session.get_page(&path).await?;
            for member in page.list("/Members")? {
                match log::entry(member) {
                    Some(entry) => entries.push(entry),
                    None => links.extend(page.link_in("/Members", member).ok()),
                }
            }
            next = next_page(&page)?;
        }
        if entries.is_empty() {
            links.sort_by_key(|link| std::cmp::Reverse(log::number(link)));
            for link in links.iter().take(newest.min(MOST_LINKED)) {
                let read = tolerated(self.session.get(link).await)?;
                entries.extend(read.and_then(|read| log::entry(&read.value)));
            }
        }
        Ok(log::newest(entries, newest))
    }

    /// Returns the public abilities of the service. `None` if not even its root is public.
    pub(crate) async fn anonymous_root(&mut self) -> Result<Option<Abilities>, BmcError> {
        let Some(root) = self.session.anonymous_root().await? else { return Ok(None) };
        let none = Document { path: String::new(), etag: None, value: json!({}) };
        Ok(Some(Abilities {
            systems: Vec::new(),
            identity: inventory::identity(&root, &none, None),
            reset_types: None,
            boot_sources: None,
            sessions: inventory::has_sessions(&root),
            consoles: Vec::new(),
            quirks: Quirks::of(&Facts { root: &root.value, system: &none.value }),
        }))
    }

    pub(crate) async fn abilities(&mut self) -> Result<Abilities, BmcError> {
        let paths = self.systems().await?;
        let systems: Vec<String> = paths.iter().map(|path| last_segment(path).to_owned()).collect();
        let root = self.session.root().await?;
        let sessions = inventory::has_sessions(&root);
        let (system, quirks) = match self.read().await {
            Ok(read) => read,
            // The result names the chosen system.
            Err(BmcError::AmbiguousSystem { .. }) => {
                let none = Document { path: String::new(), etag: None, value: json!({}) };
                (none, Quirks::default())
            }
            Err(error) => return Err(error),
        };
        let controller = self.controller(&system).await?;
        let action = reset::action(&system).ok();
        let reset_types = match &action {
            Some(action) => self.reset_types(action).await?,
            None => Some(Vec::new()),
        };
        Ok(Abilities {
            systems,
            identity: inventory::identity(&root, &system, controller.as_ref()),
            reset_types,
            boot_sources: if system.at("/Boot").is_some() {
                boot::allowed(&system)
            } else {
                Some(Vec::new())
            },
            sessions,
            consoles: inventory::consoles(&system),
            quirks,
        })
    }
}

fn next_page(page: &Document) -> Result<Option<String>, BmcError> {
    match page.word("/Members@odata.nextLink")? {
        None => Ok(None),
        Some(next) if is_path(next) => Ok(Some(next.to_owned())),
        Some(_) => Err(page.wrong("/Members@odata.nextLink", "not a path")),
    }
}

/// Reads an optional value: absent or invalid is `None`, unreachable is an error.
fn tolerated<T>(result: Result<T, BmcError>) -> Result<Option<T>, BmcError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(BmcError::Protocol { .. } | BmcError::Refused { .. } | BmcError::NotSupported { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// An error after the BMC has accepted: whatever it is, the BMC may be at work.
fn after_acceptance(address: &str, error: BmcError) -> BmcError {
    match error {
        BmcError::TimedOut { .. } | BmcError::Unreachable { .. } => error.with_sent(true),
        error => {
            let problem = format!("failed to follow the accepted task: {error}");
            BmcError::Unreachable { address: address.to_owned(), problem, sent: true }
        }
    }
}

/// The path of the system that is meant.
fn choose(systems: &[String], wanted: Option<&str>) -> Result<String, BmcError> {
    let ids = || {
        systems.iter().take(32).map(|path| crate::error::printable(last_segment(path))).collect::<Vec<_>>()
    };
    match (wanted, systems) {
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(BmcError::SystemNotFound { wanted: "at all".to_owned(), systems: Vec::new() }),
        (None, _) => Err(BmcError::AmbiguousSystem { systems: ids() }),
        (Some(wanted), _) => {
            let found = systems.iter().find(|path| last_segment(path) == wanted || *path == wanted);
            found
                .cloned()
                .ok_or_else(|| BmcError::SystemNotFound { wanted: wanted.to_owned(), systems: ids() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_api::reason::bmc::BmcFault;

    #[test]
    fn one_system_needs_no_name_several_do() {
        let paths =
            |ids: &[&str]| ids.iter().map(|id| format!("/redfish/v1/Systems/{id}")).collect::<Vec<_>>();
        for (ids, wanted, expected) in [
            (&["1"][..], None, Ok("/redfish/v1/Systems/1")),
            (&["Node1", "Node2"], Some("Node2"), Ok("/redfish/v1/Systems/Node2")),
            (&["Node1"], Some("/redfish/v1/Systems/Node1"), Ok("/redfish/v1/Systems/Node1")),
            (&["Node1", "Node2"], None, Err(BmcFault::AmbiguousSystem)),
            (&["Node1", "Node2"], Some("Node"), Err(BmcFault::SystemNotFound)),
            (&[], None, Err(BmcFault::SystemNotFound)),
        ] {
            let found = choose(&paths(ids), wanted);
            assert_eq!(found.as_deref().map_err(BmcError::reason), expected, "{ids:?} {wanted:?}");
        }
        let error = choose(&paths(&["Node1", "Node2"]), None).unwrap_err().to_string();
        assert_eq!(error, "the BMC has several systems (Node1, Node2); set bmc.redfish.systemID");
    }
}
