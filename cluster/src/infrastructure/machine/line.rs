//! Pure: the claimants that wait for a host, in turn, and the hosts that they may have.
//!
//! A claimant has a host to choose if the line leaves one for it: each claimant whose turn is earlier, and each one that is writing a claim,
//! has its host (`assign`, `tries`). Hosts are checked once for all claimants with the same requirements. Made by `turn`.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use bedplate_api::claim::ReleasePolicy;
use bedplate_api::id::MachineName;
use bedplate_api::machine::Machine;
use bedplate_api::selector::MachineSelector;
use jiff::Timestamp;
use kube::ResourceExt;

use super::assign::{Seat, assign};
use super::tries::{Key, Tries};
use crate::infrastructure::choose::{Request, Shortage, Survey, survey};

/// Turn of a claimant, ordered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// True if it is not of a control plane.
    pub is_worker: bool,
    /// Time of its creation.
    pub created: Option<Timestamp>,
    /// Its namespace and name.
    pub key: Key,
}

/// Claimant without a host.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// Its turn.
    pub turn: Turn,
    /// Its UID.
    pub uid: String,
    /// Its requirements.
    pub requirements: Requirements,
}

/// Requirements of claimants on a host.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirements {
    namespace: String,
    selector: Option<MachineSelector>,
    failure_domain: Option<(String, String)>,
    needs_state_disk: bool,
    release: ReleasePolicy,
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

/// Claimants with the same hosts.
#[derive(Debug)]
struct Class {
    requirements: Requirements,
    /// Its only claimant, which has had a host: it does not get that one again.
    only: Option<String>,
    survey: Survey,
}

/// Host of the pool.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its Machine.
    pub machine: Arc<Machine>,
    /// True if there is a MachineClaim with its name.
    pub is_claimed: bool,
}

/// Answer to a claimant for which no host is left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal {
    /// Counts of the hosts.
    pub shortage: Shortage,
    /// Number of claimants with the same requirements that wait too, and whose turn is earlier.
    pub ahead: u32,
}

/// The line. It holds for one state of the stores.
#[derive(Debug)]
pub struct Line {
    /// Names of the hosts.
    hosts: Vec<String>,
    /// Indexes of the hosts by their names.
    indexes: HashMap<String, usize>,
    /// UIDs of the claimants that hosts have recorded.
    recorded: HashSet<String>,
    classes: Vec<Class>,
    /// Claimants that wait, in turn, with their classes.
    waiting: Vec<(Waiting, usize)>,
    /// Time for which the hosts were checked.
    now: Timestamp,
}

impl Line {
    /// Makes a line of claimants that wait. Hosts are checked for them and for the claimant that `asks`.
    pub fn new(hosts: &[Host], mut waiting: Vec<Waiting>, asks: &Waiting, now: Timestamp) -> Self {
        let recorded = hosts.iter().filter_map(|host| {
            let claim = host.machine.status.as_ref()?.claim.as_ref()?;
            claim.provider_id.rsplit('/').next().map(str::to_owned)
        });
        let names: Vec<String> = hosts.iter().map(|host| host.machine.name_any()).collect();
        let indexes = names.iter().cloned().zip(0..).collect();
        let (classes, recorded) = (Vec::new(), recorded.collect());
        let mut line = Self { hosts: names, indexes, recorded, classes, waiting: Vec::new(), now };
        line.check(hosts, asks);
        waiting.sort_unstable_by(|one, other| one.turn.cmp(&other.turn));
        for one in waiting {
            let class = line.check(hosts, &one);
            line.waiting.push((one, class));
        }
        line
    }

    /// Returns true if the hosts were checked for claimants like this one.
    pub fn knows(&self, waiting: &Waiting) -> bool {
        self.class(waiting).is_some()
    }

    fn class(&self, waiting: &Waiting) -> Option<usize> {
        let only = self.recorded.get(&waiting.uid);
        let is_same =
            |class: &Class| class.only.as_ref() == only && class.requirements == waiting.requirements;
        self.classes.iter().position(is_same)
    }

    /// Returns the class of a claimant. The hosts are checked if it is a new one.
    fn check(&mut self, hosts: &[Host], waiting: &Waiting) -> usize {
        if let Some(class) = self.class(waiting) {
            return class;
        }
        let only = self.recorded.get(&waiting.uid).cloned();
        let hosts = hosts.iter().map(|host| (&*host.machine, host.is_claimed));
        let survey = survey(&waiting.requirements.request(&waiting.uid), hosts, self.now);
        self.classes.push(Class { requirements: waiting.requirements.clone(), only, survey });
        self.classes.len() - 1
    }

    /// Returns the host that is left for a claimant.
    ///
    /// # Errors
    /// There is none.
    pub fn choose(&self, asks: &Waiting, tries: &Tries, now: Instant) -> Result<MachineName, Refusal> {
        let Some(class) = self.class(asks) else { return Err(Refusal::default()) };
        let survey = &self.classes[class].survey;
        let is_eligible = |index: usize| survey.eligible.contains(&index) || survey.failed.contains(&index);
        let own = tries.host(&asks.turn.key, now).filter(|host| self.index(host).is_some_and(is_eligible));
        if let Some(own) = own {
            return Ok(own.clone());
        }
        let mut taken = vec![false; self.hosts.len()];
        tries.hosts(now).filter_map(|host| self.index(host)).for_each(|host| taken[host] = true);
        let is_other =
            |(one, _): &&(Waiting, usize)| one.turn.key != asks.turn.key && !tries.contains(&one.turn.key);
        let others = self.waiting.iter().filter(is_other);
        let place = others.clone().take_while(|(one, _)| one.turn < asks.turn).count();
        let mut seats: Vec<Seat> = others.map(|(one, class)| seat(one, *class)).collect();
        seats.insert(place, seat(asks, class));
        let surveys: Vec<&Survey> = self.classes.iter().map(|class| &class.survey).collect();
        let given = assign(&surveys, &seats, &taken);
        let host = given[place].and_then(|host| self.hosts[host].parse().ok());
        host.ok_or_else(|| {
            let ahead = seats.iter().zip(&given).take(place);
            let ahead = ahead.filter(|(seat, given)| seat.class == class && given.is_none()).count();
            let wanted = survey.eligible.len() + survey.failed.len();
            let shortage = survey.shortage.clone().with_wanted(wanted);
            Refusal { shortage, ahead: ahead.try_into().unwrap_or(u32::MAX) }
        })
    }

    fn index(&self, host: &MachineName) -> Option<usize> {
        self.indexes.get(host.as_str()).copied()
    }
}

fn seat(waiting: &Waiting, class: usize) -> Seat {
    let mut hasher = DefaultHasher::new();
    waiting.uid.hash(&mut hasher);
    // The upper half does not matter.
    let start = usize::try_from(hasher.finish() % u64::from(u32::MAX)).unwrap_or_default();
    Seat { class, start }
}

#[cfg(test)]
mod tests;
