//! State of all watches, combined.
//!
//! Pure: events and the time in, [`Seen`] out. Called by `watcher`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bedplate_api::claim::MachineClaim;
use bedplate_api::id::{Digest, MachineName};
use bedplate_api::machine::Machine;
use bedplate_api::operation::{MachineOperation, OperationState};
use bedplate_api::reason::operation::AgentOutcome;
use bedplate_api::version::MachineConfigurationVersion;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

use super::freshness::{Contact, Counted};
use super::node_deletion::Asked;
use super::{ClaimObject, NodeState, Seen, Watched, facts};

/// State of all watches.
#[derive(Debug)]
pub(super) struct View {
    own: MachineName,
    /// SHA-256 of the certificate that this host shows.
    fingerprint: Option<Digest>,
    /// True while another certificate is requested, which may count before it arrives.
    expects: Arc<AtomicBool>,
    /// UID of the Machine that was ours last.
    owned: Option<String>,
    contact: Contact,
    machine: Single<Machine>,
    node: Single<Node>,
    /// True if a live read found no Node and the watch has reported none since.
    absent: bool,
    version: Single<MachineConfigurationVersion>,
    /// The name of the version that is watched.
    aim: Option<String>,
    claim: Single<MachineClaim>,
    /// True if the MachineClaim is watched.
    watches_claim: bool,
    operations: Many,
    trouble: BTreeMap<Watched, String>,
}

/// An object that is watched by its name.
#[derive(Debug)]
pub(super) struct Single<K> {
    pub(super) known: Option<Arc<K>>,
    /// A list that is being received.
    list: Option<Arc<K>>,
    pub(super) listed: bool,
}

/// The operations of this host.
#[derive(Debug, Default)]
struct Many {
    known: Operations,
    list: Option<Operations>,
    listed: bool,
}

/// Operations by name.
#[derive(Debug, Default)]
struct Operations {
    open: BTreeMap<String, Arc<MachineOperation>>,
    /// UID, and whether it has shut the host down.
    ended: BTreeMap<String, (String, bool)>,
}

impl<K> Default for Single<K> {
    fn default() -> Self {
        Self { known: None, list: None, listed: false }
    }
}

impl<K: Resource + Debug> Single<K> {
    /// Records an event. Returns true if a list has ended.
    pub(super) fn take(&mut self, event: Event<K>, name: &str) -> bool {
        let own = |object: &K| object.name_any() == name;
        match event {
            Event::Init => self.list = None,
            Event::InitApply(object) if own(&object) => self.list = Some(kept(object)),
            Event::InitDone => {
                self.known = self.list.take();
                self.listed = true;
                return true;
            }
            Event::Apply(object) if own(&object) => self.known = Some(kept(object)),
            Event::Delete(object) if own(&object) => self.known = None,
            Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => {}
        }
        false
    }
}

/// Removes the managed fields, which are as long as the rest of the object.
fn kept<K: ResourceExt>(mut object: K) -> Arc<K> {
    object.managed_fields_mut().clear();
    Arc::new(object)
}

impl Operations {
    fn put(&mut self, object: MachineOperation, own: &MachineName) {
        let name = object.name_any();
        self.remove(&name);
        // Any client may set the label: only the spec counts.
        if object.spec.machine_ref.as_ref().is_none_or(|machine| machine.name != *own) {
            return;
        }
        let status = object.status.as_ref();
        match status.and_then(|status| status.state) {
            Some(OperationState::Complete | OperationState::Failed) => {
                let shut_down = status.and_then(|status| status.reason.as_deref())
                    == Some(AgentOutcome::ShutDown.as_str());
                self.ended.insert(name, (object.uid().unwrap_or_default(), shut_down));
            }
            None | Some(OperationState::Pending | OperationState::InProgress | OperationState::Unknown) => {
                self.open.insert(name, kept(object));
            }
        }
    }

    fn remove(&mut self, name: &str) {
        self.open.remove(name);
        self.ended.remove(name);
    }
}

impl Many {
    fn take(&mut self, event: Event<MachineOperation>, own: &MachineName) {
        match event {
            Event::Init => self.list = Some(Operations::default()),
            Event::InitApply(object) => self.list.get_or_insert_default().put(object, own),
            Event::InitDone => {
                self.known = self.list.take().unwrap_or_default();
                self.listed = true;
            }
            Event::Apply(object) => self.known.put(object, own),
            Event::Delete(object) => self.known.remove(&object.name_any()),
        }
    }
}

impl View {
    pub(super) fn new(own: MachineName, now: Instant, expects: Arc<AtomicBool>) -> Self {
        Self {
            own,
            fingerprint: None,
            expects,
            owned: None,
            contact: Contact::new(now),
            machine: Single::default(),
            node: Single::default(),
            absent: false,
            version: Single::default(),
            aim: None,
            claim: Single::default(),
            watches_claim: false,
            operations: Many::default(),
            trouble: BTreeMap::new(),
        }
    }

    /// Resets all watches: they are opened again with this certificate.
    pub(super) fn reopened(&mut self, fingerprint: Digest, now: Instant) {
        self.fingerprint = Some(fingerprint);
        self.contact.broken(Counted::Machine, now);
        self.contact.broken(Counted::Node, now);
        self.trouble.clear();
        // A claim counts only as the latest list has it.
        self.claim = Single::default();
    }

    pub(super) fn take_machine(&mut self, event: Event<Machine>) {
        if self.machine.take(event.modify(trim_machine), self.own.as_str()) {
            self.heard(Watched::Machine);
            self.contact.listed(Counted::Machine);
        }
    }

    pub(super) fn take_node(&mut self, event: Event<Node>) {
        // A list may have missed a Node that was created and deleted, so earlier knowledge is invalid.
        self.absent &= !matches!(event, Event::Init | Event::Apply(_));
        if self.node.take(event.modify(trim), self.own.as_str()) {
            self.heard(Watched::Node);
            self.contact.listed(Counted::Node);
        }
    }

    pub(super) fn take_version(&mut self, event: Event<MachineConfigurationVersion>) {
        if self.version.take(event, self.aim.as_deref().unwrap_or_default()) {
            self.heard(Watched::Version);
        }
    }

    pub(super) fn take_claim(&mut self, event: Event<MachineClaim>) {
        if self.claim.take(event, self.own.as_str()) {
            self.heard(Watched::Claim);
        }
    }

    /// Starts or ends the watch of the MachineClaim.
    pub(super) fn watch_claim(&mut self, watches: bool) {
        if self.watches_claim != watches {
            self.watches_claim = watches;
            self.claim = Single::default();
        }
        self.heard(Watched::Claim);
    }

    /// Returns true if the MachineClaim counts: the Machine is in a pool, or its host still holds a claim.
    pub(super) fn needs_claim(&self) -> bool {
        let Some(machine) = &self.machine.known else { return false };
        let claim = machine.status.as_ref().and_then(|status| status.claim.as_ref());
        machine.spec.claim_policy.is_some() || claim.is_some_and(|claim| claim.state.holds_host())
    }

    fn claim(&self) -> ClaimObject {
        if !self.claim.listed || self.trouble.contains_key(&Watched::Claim) {
            return ClaimObject::Unknown;
        }
        self.claim.known.clone().map_or(ClaimObject::Absent, ClaimObject::Present)
    }

    pub(super) fn take_operation(&mut self, event: Event<MachineOperation>) {
        if matches!(event, Event::InitDone) {
            self.heard(Watched::Operations);
        }
        self.operations.take(event, &self.own);
    }

    /// Sets the version to watch. Its known state stays known, even with another credential.
    pub(super) fn aim(&mut self, name: Option<&str>) {
        if self.aim.as_deref() != name {
            self.aim = name.map(str::to_owned);
            self.version = Single::default();
        }
        self.heard(Watched::Version);
    }

    /// Records that the API server has accepted a watch.
    pub(super) fn taken(&mut self, watched: Watched) {
        if let Some(counted) = counted(watched) {
            self.contact.taken(counted);
        }
        self.heard(watched);
    }

    fn heard(&mut self, watched: Watched) {
        self.trouble.remove(&watched);
    }

    /// Records that a watch has failed. Returns true if that is new.
    pub(super) fn failed(&mut self, watched: Watched, why: String, now: Instant) -> bool {
        if let Some(counted) = counted(watched) {
            self.contact.broken(counted, now);
        }
        self.trouble.insert(watched, why).is_none()
    }

    /// Returns true if the watch reports no Node and no live read has confirmed it yet.
    pub(super) fn asks_for_node(&self) -> bool {
        self.node.listed && self.node.known.is_none() && !self.absent
    }

    /// Records the result of the live read.
    pub(super) fn answered(&mut self, asked: Asked) {
        let Asked::Gone(machine) = asked else { return };
        // A result about another Machine of this name, or one older than the
        // watch's newest event, is ignored.
        let known = self.machine.known.as_ref().and_then(|known| known.uid());
        self.absent = self.asks_for_node() && known.is_some() && known == machine.uid();
    }

    /// Returns the name of the version to watch.
    pub(super) fn selected(&self) -> Option<String> {
        Some(self.machine.known.as_ref()?.status.as_ref()?.selected.as_ref()?.version_name())
    }

    fn is_ours(&mut self, machine: &Machine) -> bool {
        let uid = machine.uid().filter(|uid| !uid.is_empty());
        if facts::is_ours(machine, self.fingerprint) {
            self.owned = uid;
            return true;
        }
        self.expects.load(Ordering::Relaxed) && uid.is_some() && uid == self.owned
    }

    /// Returns the state, and when it changes if nothing happens.
    pub(super) fn seen(&mut self, now: Instant) -> (Seen, Option<Instant>) {
        let (api, until) = self.contact.state(now);
        let node = match &self.node.known {
            Some(node) => NodeState::Present(node.clone()),
            None if self.absent => NodeState::Absent,
            None => NodeState::Unknown,
        };
        let machine = self.machine.known.clone();
        let ours = machine.as_ref().is_some_and(|machine| self.is_ours(machine));
        let seen = Seen {
            api,
            ours,
            machine,
            node,
            version: self.version.known.clone(),
            claim: self.claim(),
            operations: self.operations.known.open.values().cloned().collect(),
            operations_listed: self.operations.listed,
            ended: self.operations.known.ended.values().cloned().collect(),
            trouble: self.trouble.clone(),
        };
        (seen, until)
    }
}

fn counted(watched: Watched) -> Option<Counted> {
    match watched {
        Watched::Machine => Some(Counted::Machine),
        Watched::Node => Some(Counted::Node),
        Watched::Version | Watched::Operations | Watched::Claim => None,
    }
}

/// Removes fields of a Machine that the agent does not read and that change
/// with each heartbeat, so that its own writes are not changes.
fn trim_machine(machine: &mut Machine) {
    machine.metadata.resource_version = None;
    if let Some(status) = &mut machine.status {
        (status.agent, status.hardware) = (None, None);
    }
}

/// Removes fields of a Node that the agent does not read, above all its list of
/// images, and those that change with each kubelet heartbeat.
pub(super) fn trim(node: &mut Node) {
    node.metadata.resource_version = None;
    if let Some(status) = &mut node.status {
        let mut conditions = status.conditions.take();
        conditions.iter_mut().flatten().for_each(|condition| condition.last_heartbeat_time = None);
        *status = k8s_openapi::api::core::v1::NodeStatus { conditions, ..Default::default() };
    }
}

#[cfg(test)]
mod tests;
