//! Operations by Machine, the last write of each parent, and the time since which each operation has its state. Derived from the store
//! of operations only.
//!
//! Updated by `watch`, read by `operation` and by `enqueue`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bedplate_api::condition::Conditions as _;
use bedplate_api::operation::{MachineOperation, OperationState, condition_type};
use bedplate_process::lock::Lock;
use bedplate_rules::operation::{is_finished, state};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use tokio::time::Instant;

/// Period after an operation's end in which the end is reported. A later leader does not report it again.
const REPORT_PERIOD: Duration = Duration::from_secs(60);

/// Time since which an operation has its state. Executors write it by the clocks of hosts, which are not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since {
    /// Time at which the state was first seen.
    pub seen: Timestamp,
    /// True if the change was seen. If false, the state may be older.
    pub came: bool,
    /// Leap of this program's wall clock since then. Earlier timestamps are relative to the clock before the
    /// leap.
    pub leap: SignedDuration,
    /// Time at which the operation was first seen as started. Later writes of its executor do not change it. None: never.
    pub taken: Option<Timestamp>,
}

/// Operations by owner. Shared by the watch of operations and its readers.
#[derive(Debug, Default)]
pub struct Whose(Lock<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_machine: HashMap<String, BTreeSet<String>>,
    /// Writes of parents, by the parent's UID.
    parents: BTreeMap<String, Written>,
    /// States by the operation's name.
    stands: HashMap<String, Stand>,
}

/// State of an operation.
#[derive(Debug)]
struct Stand {
    uid: Option<String>,
    /// Machine of the operation, which never changes. None: the operation has a selector.
    machine: Option<String>,
    state: OperationState,
    /// True if its Machine is reported as paused. The time limit runs from the end of the pause.
    held: bool,
    /// Start of the state, by this program's monotonic clock.
    since: Instant,
    /// Start of the state, by the wall clock.
    first: Timestamp,
    /// True if the operation was seen in another state before.
    came: bool,
    /// Time at which it was first seen taken. Later writes of its executor do not change it.
    taken: Option<Instant>,
    /// True if its end was reported.
    reported: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Written {
    status: Option<Instant>,
    children: Option<Instant>,
}

impl Stand {
    fn is_of(&self, operation: &MachineOperation) -> bool {
        let held = operation.is_true(condition_type::SUSPENDED);
        self.uid == operation.metadata.uid && self.state == reached(operation) && self.held == held
    }
}

/// Returns the state of an operation. An operation without a state is pending. A host that removes the state does not restart the time.
fn reached(operation: &MachineOperation) -> OperationState {
    state(operation).unwrap_or(OperationState::Pending)
}

impl Whose {
    /// Records an operation that was added or changed.
    pub fn put(&self, operation: &MachineOperation, first: Timestamp) {
        let (name, mut inner) = (operation.name_any(), self.0.lock());
        let before = inner.stands.get(&name).filter(|before| before.uid == operation.metadata.uid);
        if before.is_some_and(|before| before.is_of(operation)) {
            return;
        }
        let (since, state) = (Instant::now(), reached(operation));
        let is_taken = state == OperationState::InProgress;
        let stand = Stand {
            uid: operation.metadata.uid.clone(),
            machine: operation.spec.machine_ref.as_ref().map(|machine| machine.name.to_string()),
            state,
            held: operation.is_true(condition_type::SUSPENDED),
            since,
            first,
            came: before.is_some(),
            taken: before.and_then(|before| before.taken).or(is_taken.then_some(since)),
            reported: before.is_some_and(|before| before.reported),
        };
        inner.forget(&name);
        if let Some(machine) = &stand.machine {
            inner.by_machine.entry(machine.clone()).or_default().insert(name.clone());
        }
        inner.stands.insert(name, stand);
    }

    /// Forgets an operation that was deleted.
    pub fn remove(&self, operation: &MachineOperation) {
        let mut inner = self.0.lock();
        inner.forget(&operation.name_any());
        inner.parents.remove(&operation.uid().unwrap_or_default());
    }

    /// Names of a Machine's operations.
    pub fn of_machine(&self, machine: &str) -> Vec<String> {
        self.0.lock().by_machine.get(machine).into_iter().flatten().cloned().collect()
    }

    /// Returns the time since which an operation has its state.
    pub fn since(&self, operation: &MachineOperation, now: Timestamp) -> Since {
        let inner = self.0.lock();
        let stand = inner.stands.get(&operation.name_any()).filter(|s| s.uid == operation.metadata.uid);
        let ago = |instant: Instant| {
            let passed = SignedDuration::try_from(instant.elapsed()).unwrap_or(SignedDuration::MAX);
            now.saturating_sub(passed).unwrap_or(now)
        };
        let taken = stand.and_then(|stand| stand.taken).map(ago);
        // The store may be older than this record.
        let Some(stand) = stand.filter(|s| s.is_of(operation)) else {
            return Since { seen: now, came: false, leap: SignedDuration::ZERO, taken };
        };
        let seen = ago(stand.since);
        Since { seen, came: stand.came, leap: seen.duration_since(stand.first), taken }
    }

    /// Returns true if an operation's end was seen and not reported yet.
    pub fn tells(&self, operation: &MachineOperation) -> bool {
        let mut inner = self.0.lock();
        let Some(stand) = inner.stands.get_mut(&operation.name_any()) else { return false };
        let is_it = is_finished(operation) && stand.state == reached(operation);
        let is_news = is_it && stand.uid == operation.metadata.uid && stand.came && !stand.reported;
        stand.reported |= is_it;
        is_news && stand.since.elapsed() < REPORT_PERIOD
    }

    /// Records that the counts of a parent were written.
    pub fn wrote(&self, uid: &str) {
        self.0.lock().parents.entry(uid.to_owned()).or_default().status = Some(Instant::now());
    }

    /// Records that children of a parent were created.
    pub fn made(&self, uid: &str) {
        self.0.lock().parents.entry(uid.to_owned()).or_default().children = Some(Instant::now());
    }

    /// Returns the remaining time in which a parent's counts are younger than `pace` and must not be written
    /// again.
    pub fn rests(&self, uid: &str, pace: Duration) -> Duration {
        let written = self.0.lock().parents.get(uid).and_then(|written| written.status);
        written.map_or(Duration::ZERO, |at| pace.saturating_sub(at.elapsed()))
    }

    /// Returns the remaining time in which the store may lack children that were created here, at most `lag`.
    pub fn lags(&self, uid: &str, lag: Duration) -> Duration {
        let made = self.0.lock().parents.get(uid).and_then(|written| written.children);
        made.map_or(Duration::ZERO, |at| lag.saturating_sub(at.elapsed()))
    }

    /// Forgets a parent that has finished.
    pub fn ended(&self, uid: &str) {
        self.0.lock().parents.remove(uid);
    }
}

impl Inner {
    fn forget(&mut self, name: &str) {
        let Some(machine) = self.stands.remove(name).and_then(|stand| stand.machine) else { return };
        if let Some(names) = self.by_machine.get_mut(&machine) {
            names.remove(name);
            if names.is_empty() {
                self.by_machine.remove(&machine);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn operation(uid: &str, state: Option<&str>) -> MachineOperation {
        serde_json::from_value(json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
            "metadata": { "name": "x", "uid": uid }, "spec": { "operationName": "reboot", "machineRef": { "name": "a" } },
            "status": { "state": state } }))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn since_when_an_operation_is_as_far_as_it_is_is_counted_by_the_own_clock() {
        let (whose, now) = (Whose::default(), Timestamp::from_second(1_000_000).unwrap());
        let pending = operation("u", Some("Pending"));
        let ago = |operation: &MachineOperation| {
            let since = whose.since(operation, now);
            (now.duration_since(since.seen).as_secs(), since.came)
        };
        assert_eq!(ago(&pending), (0, false), "not known yet");
        whose.put(&pending, now);
        tokio::time::advance(Duration::from_secs(5)).await;
        whose.put(&pending, now);
        assert_eq!(ago(&pending), (5, false), "it was so when it was seen first");
        let taken = operation("u", Some("InProgress"));
        whose.put(&taken, now);
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!((ago(&taken), ago(&pending)), ((7, true), (0, false)));
        for leap in [-90_000, 0, 90_000] {
            let leap = SignedDuration::from_secs(leap);
            let now = now + SignedDuration::from_secs(7) + leap;
            let since = whose.since(&taken, now);
            assert_eq!((now.duration_since(since.seen).as_secs(), since.leap), (7, leap));
        }
        whose.put(&operation("anew", Some("InProgress")), now);
        assert_eq!(ago(&operation("anew", Some("InProgress"))), (0, false), "another one of its name");
    }

    /// The attack: the agent of a compromised host takes an operation and releases it every minute.
    #[tokio::test(start_paused = true)]
    async fn o1_time_since_an_operation_was_first_taken_never_restarts() {
        let (whose, now) = (Whose::default(), Timestamp::from_second(1_000_000).unwrap());
        let (pending, taken) = (operation("u", Some("Pending")), operation("u", Some("InProgress")));
        let ago = |operation: &MachineOperation| {
            whose.since(operation, now).taken.map(|taken| now.duration_since(taken).as_secs())
        };
        whose.put(&pending, now);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(ago(&pending), None);
        whose.put(&taken, now);
        for minute in 1..=5 {
            tokio::time::advance(Duration::from_secs(60)).await;
            let other = if minute % 2 == 0 { &taken } else { &pending };
            whose.put(other, now);
            assert_eq!((ago(other), whose.since(other, now).seen), (Some(60 * minute), now));
            // The store is behind.
            assert_eq!(ago(&operation("u", None)), Some(60 * minute));
        }
        whose.put(&operation("another", Some("Pending")), now);
        assert_eq!(ago(&operation("another", Some("Pending"))), None, "another one of its name");
    }

    /// The attack: the agent of a compromised host removes the state again and again, and the controller writes it again.
    #[tokio::test(start_paused = true)]
    async fn o1_pending_operation_whose_state_is_removed_keeps_its_time() {
        let (whose, now) = (Whose::default(), Timestamp::from_second(1_000_000).unwrap());
        let (pending, none) = (operation("u", Some("Pending")), operation("u", None));
        whose.put(&none, now);
        for minute in 1..=5 {
            tokio::time::advance(Duration::from_secs(60)).await;
            whose.put(if minute % 2 == 0 { &none } else { &pending }, now);
            for given in [&none, &pending] {
                let since = whose.since(given, now);
                assert_eq!((now.duration_since(since.seen).as_secs(), since.came), (60 * minute, false));
            }
        }
        whose.put(&operation("u", Some("InProgress")), now);
        let since = whose.since(&operation("u", Some("InProgress")), now);
        assert_eq!((since.seen, since.came, since.taken), (now, true, Some(now)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_news_once_and_only_when_it_was_seen_to_come() {
        let (whose, now) = (Whose::default(), Timestamp::UNIX_EPOCH);
        let ended = operation("u", Some("Complete"));
        whose.put(&ended, now);
        assert!(!whose.tells(&ended), "it had ended before");
        for late in [false, true] {
            whose.put(&operation("v", Some("InProgress")), now);
            let ended = operation("v", Some("Failed"));
            assert!(!whose.tells(&ended), "the store is before what is known here");
            whose.put(&ended, now);
            if late {
                tokio::time::advance(REPORT_PERIOD).await;
            }
            assert_eq!([whose.tells(&ended), whose.tells(&ended)], [!late, false]);
        }
    }
}
