//! Pure: the hosts of the pool, checked once for all claimants with the same requirements.
//!
//! A host is checked again for each of these when it changes. Made by `turn`, read by `line`.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bedplate_api::claim::ReleasePolicy;
use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::selector::MachineSelector;
use jiff::Timestamp;

use super::line::Waiting;
use crate::infrastructure::choose::{Check, Request, Survey, check};

/// Requirements of claimants on a host.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirements {
    namespace: String,
    selector: Option<MachineSelector>,
    failure_domain: Option<(String, String)>,
    needs_state_disk: bool,
    release: ReleasePolicy,
}

// No field has a value that is not equal to itself.
impl Eq for Requirements {}

impl Hash for Requirements {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.namespace, &self.failure_domain, self.needs_state_disk).hash(hasher);
        let Some(selector) = &self.selector else { return };
        selector.match_labels.hash(hasher);
        for one in selector.match_expressions.iter().flatten() {
            (&one.key, &one.operator, &one.values).hash(hasher);
        }
        for one in &selector.match_fields {
            (&one.key, &one.operator, &one.values).hash(hasher);
        }
    }
}

impl Requirements {
    /// Copies the requirements of a claimant.
    pub fn new(request: &Request<'_>) -> Self {
        Self {
            namespace: request.namespace.to_owned(),
            selector: request.selector.cloned(),
            failure_domain: request.failure_domain.map(|(label, value)| (label.to_owned(), value.to_owned())),
            needs_state_disk: request.needs_state_disk,
            release: request.release,
        }
    }

    fn request<'a>(&'a self, uid: &'a str) -> Request<'a> {
        let domain = self.failure_domain.as_ref();
        Request {
            uid,
            namespace: &self.namespace,
            selector: self.selector.as_ref(),
            failure_domain: domain.map(|(label, value)| (label.as_str(), value.as_str())),
            needs_state_disk: self.needs_state_disk,
            release: self.release,
        }
    }
}

/// Host of the pool.
#[derive(Debug, Clone)]
pub struct Host {
    /// The Machine.
    pub machine: Arc<Machine>,
    /// True if there is a MachineClaim with its name.
    pub is_claimed: bool,
}

impl Host {
    fn name(&self) -> &str {
        self.machine.metadata.name.as_deref().unwrap_or_default()
    }

    /// UID of the claimant that the host has recorded.
    fn recorded(&self) -> Option<&str> {
        let claim = self.machine.status.as_ref()?.claim.as_ref()?;
        claim.provider_id.rsplit('/').next()
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.machine, &other.machine) && self.is_claimed == other.is_claimed
    }
}

/// Requirements, and the UID of their only claimant if a host has recorded it: it does not get that host again.
type Key = (Requirements, Option<String>);

/// Claimants with the same hosts.
#[derive(Debug)]
struct Class {
    key: Key,
    /// Check of each host.
    checks: Vec<Check>,
    survey: Survey,
}

/// The hosts and their checks.
#[derive(Debug)]
pub struct Checks {
    /// Hosts by their names.
    hosts: Vec<Host>,
    /// UIDs of the claimants that hosts have recorded.
    recorded: HashSet<String>,
    classes: Vec<Class>,
    /// Indexes of the classes.
    indexes: HashMap<Key, usize>,
    now: Timestamp,
}

impl Checks {
    /// Takes the hosts of the pool at a time. None is checked yet.
    pub fn new(mut hosts: Vec<Host>, now: Timestamp) -> Self {
        hosts.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        let recorded = recorded(&hosts);
        Self { hosts, recorded, classes: Vec::new(), indexes: HashMap::new(), now }
    }

    /// Takes the hosts of the pool at a later time. Those that have changed are checked again.
    #[must_use]
    pub fn renewed(self, hosts: Vec<Host>, now: Timestamp) -> Self {
        let new = Self::new(hosts, now);
        let is_same = |(one, other): (&Host, &Host)| one.name() == other.name();
        if self.hosts.len() != new.hosts.len() || !self.hosts.iter().zip(&new.hosts).all(is_same) {
            return new;
        }
        let (mut classes, before) = (self.classes, self.hosts);
        for (index, host) in
            new.hosts.iter().enumerate().filter(|(index, host)| !host.is_same(&before[*index]))
        {
            classes.iter_mut().for_each(|class| class.check_again(index, host, now));
        }
        Self { classes, indexes: self.indexes, ..new }
    }

    /// Returns the class of a claimant. The hosts are checked if it is a new one.
    pub fn class(&mut self, waiting: &Waiting) -> usize {
        let key = (waiting.requirements.clone(), self.recorded.get(&waiting.uid).cloned());
        if let Some(index) = self.indexes.get(&key) {
            return *index;
        }
        self.classes.push(Class::new(key.clone(), &self.hosts, self.now));
        self.indexes.insert(key, self.classes.len() - 1);
        self.classes.len() - 1
    }

    /// Hosts of a class.
    pub(crate) fn survey(&self, class: usize) -> &Survey {
        &self.classes[class].survey
    }

    /// Hosts of each class.
    pub(crate) fn surveys(&self) -> Vec<&Survey> {
        self.classes.iter().map(|class| &class.survey).collect()
    }

    /// Number of the hosts.
    pub const fn count(&self) -> usize {
        self.hosts.len()
    }

    /// Returns the index of a host.
    pub fn index(&self, host: &MachineName) -> Option<usize> {
        self.hosts.binary_search_by(|one| one.name().cmp(host.as_str())).ok()
    }

    /// Returns the name of a host.
    pub fn name(&self, index: usize) -> Option<MachineName> {
        self.hosts.get(index)?.name().parse().ok()
    }
}

impl Class {
    fn new(key: Key, hosts: &[Host], now: Timestamp) -> Self {
        let mut class = Self { key, checks: Vec::with_capacity(hosts.len()), survey: Survey::default() };
        for (index, host) in hosts.iter().enumerate() {
            let check = class.check(host, now);
            class.checks.push(check);
            class.survey.add(index, check);
        }
        class
    }

    fn check(&self, host: &Host, now: Timestamp) -> Check {
        let (requirements, only) = &self.key;
        // No host has recorded the others.
        let uid = only.as_deref().unwrap_or_default();
        check(&requirements.request(uid), &host.machine, host.is_claimed, now)
    }

    fn check_again(&mut self, index: usize, host: &Host, now: Timestamp) {
        let check = self.check(host, now);
        let before = std::mem::replace(&mut self.checks[index], check);
        if before != check {
            self.survey.remove(index, before);
            self.survey.add(index, check);
        }
    }
}

fn recorded(hosts: &[Host]) -> HashSet<String> {
    hosts.iter().filter_map(Host::recorded).map(str::to_owned).collect()
}
