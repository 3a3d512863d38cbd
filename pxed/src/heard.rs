//! Evidence that the host of a Machine runs: the time at which its key in force was heard last, and later ends of the host.
//!
//! ```text
//!   heard ──no request, no heartbeat for `silent_after`──────────────► silent: a new key may enroll
//!     ▲    ──its agent announced the end, pxed switched or reset it──► silent
//!     └───── a request or a heartbeat by the key in force
//! ```
//! pxed must be able to hear. After a time in which it could not, each key has its whole time again: pxed was paused or restarted, or its
//! source of Machines could not be asked for longer than [`AWAY_LIMIT`]. A shorter interruption of the source does not count as silence.
//!
//! Times of requests are pxed's own. The heartbeat of a cluster is compared only with the one before it: a host's clock may be wrong.
//! A time later than now is from before pxed's clock was set back. It proves nothing, and keeps no key out.
//! [`Evidence`] is pure. Called by `enroll` (may a new key enroll) and `boot::report` (does a packet speak for the host).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::id::{Digest, MachineName};
use bedplate_api::machine::{MachineStatus, Time};
use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};

use crate::machines::{KnownMachine, Snapshot};
use crate::system_of_record::SystemOfRecord;

/// Silence of a key that reports to pxed: more than two heartbeats of 30 s, each late by a tenth. In addition, its agent asks pxed for news
/// every 20 s.
const SILENT_STANDALONE: SignedDuration = SignedDuration::from_secs(70);

/// Time for which pxed listens before it calls such a key silent. An agent that was refused or did not reach pxed asks again after 90 s
/// at most.
const LISTEN_STANDALONE: SignedDuration = SignedDuration::from_secs(120);

/// Silence of a key that reports to the API server: more than one heartbeat of five minutes, written with the next report 33 s
/// later at most, with time for a write that failed.
const SILENT_CLUSTER: SignedDuration = SignedDuration::from_secs(420);

/// Time for which pxed listens before it calls such a key silent. An agent that did not reach the API server writes again after 450 s at
/// most.
const LISTEN_CLUSTER: SignedDuration = SignedDuration::from_secs(480);

/// Time for a last request that was in flight when the machine was switched. No host boots, enrolls and reports in this time.
const IN_FLIGHT: SignedDuration = SignedDuration::from_secs(30);

/// Interval between two calls of [`Heard::listens`].
pub(crate) const LISTEN_INTERVAL: Duration = Duration::from_secs(5);

/// Time without such a call after which pxed could not hear: its host was paused, or has no time for it.
const DEAF_AFTER: SignedDuration = SignedDuration::from_secs(20);

/// Time without the source of Machines after which pxed could not hear. The heartbeats of a shorter interruption are in the objects that
/// the source has afterwards.
const AWAY_LIMIT: SignedDuration = SignedDuration::from_secs(60);

/// Maximum number of keys without a record that are remembered of a Machine: for each candidate there is one of another key.
const UNRECORDED_KEYS: usize = 2;

/// Time for which an administrator's permission lasts.
const ALLOWED_FOR: SignedDuration = SignedDuration::from_hours(1);

/// Maximum difference of the clocks of administrators and of other pxed instances to this one's.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Facts about the key in force of one Machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// Time at which the key was enrolled, by its record.
    pub enrolled: Timestamp,
    /// Time at which the key was heard last; its enrollment counts.
    pub heard: Timestamp,
    /// Time before which the key could not be heard: pxed knows the Machine since then and has heard nothing, or it hears again since then.
    pub deaf_until: Option<Timestamp>,
    /// Start of the interruption that ends at `deaf_until`, in which pxed could hear no key.
    pub deaf_since: Option<Timestamp>,
    /// Sum of the shorter interruptions after `heard` and `deaf_until`. They do not count as silence.
    pub missed: SignedDuration,
    /// Time at which its agent announced that the host goes down, by the host's clock.
    pub going_down: Option<Timestamp>,
    /// Time at which pxed last switched the machine on or off, or reset it.
    pub switched: Option<Timestamp>,
    /// Time at which an administrator allowed another key.
    pub allowed: Option<Timestamp>,
    /// Time of the last permission that is used up.
    pub used: Option<Timestamp>,
    /// Time without a request or heartbeat after which the key is silent.
    pub silent_after: SignedDuration,
    /// Time for which pxed listens after `deaf_until`.
    pub listen_for: SignedDuration,
}

impl Evidence {
    /// Returns true if the host is known to have stopped since its key was heard.
    fn has_stopped(&self) -> bool {
        // The end of an earlier host is not the end of the host that has enrolled since.
        let is_own = |at: &Timestamp| *at > self.enrolled;
        let switched = self.switched.filter(is_own).is_some_and(|at| self.heard <= later(at, IN_FLIGHT));
        switched || self.going_down.is_some_and(|at| is_own(&at))
    }

    /// Returns the time at which the key becomes silent if it says nothing more; `None` if it is not heard now.
    pub(crate) fn heard_until(&self, now: Timestamp) -> Option<Timestamp> {
        if self.has_stopped() {
            return None;
        }
        let until = match self.deaf_until.filter(|start| *start >= self.heard) {
            Some(start) => later(start, self.listen_for),
            None => later(self.heard, self.silent_after),
        };
        Some(later(until, self.missed)).filter(|until| now < *until)
    }

    /// Returns the interruption because of which pxed listens again: its start, and its end if it is over.
    pub fn interruption(&self, now: Timestamp) -> Option<(Timestamp, Option<Timestamp>)> {
        let end = self.deaf_until.filter(|end| *end >= self.heard)?;
        Some((self.deaf_since?, Some(end).filter(|end| *end < now)))
    }

    /// Returns the time until which a new key is refused; `None` if it may enroll now.
    pub(crate) fn refuses_until(&self, now: Timestamp) -> Option<Timestamp> {
        if self.is_allowed(now) { None } else { self.heard_until(now) }
    }

    /// Returns true if a new key may enroll only because the key in force is silent. A permission and the known end of the host count
    /// whatever a holder of the old key reports.
    pub(crate) fn rests_on_silence(&self, now: Timestamp) -> bool {
        !self.is_allowed(now) && !self.has_stopped()
    }

    /// Returns true if a permission of an administrator is in force and unused.
    fn is_allowed(&self, now: Timestamp) -> bool {
        let is_good = |at: &Timestamp| now < later(*at, ALLOWED_FOR) && *at <= later(now, CLOCK_SKEW);
        let used = self.used.filter(|used| !is_ahead(*used, now));
        // A status has whole seconds: of two permissions in one second, one is good.
        let is_unused = |at: &Timestamp| used.is_none_or(|used| at.as_second() > used.as_second());
        self.allowed.is_some_and(|at| is_unused(&at) && is_good(&at))
    }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// Returns true if a time is of the future: the clock was set back since, for two clocks do not differ that far.
pub fn is_ahead(time: Timestamp, now: Timestamp) -> bool {
    time > later(now, CLOCK_SKEW)
}

/// Requests and heartbeats by the keys in force, by Machine. Clones share them. Bounded: one entry for each known Machine.
#[derive(Debug, Clone)]
pub struct Heard {
    words: Arc<Lock<HashMap<MachineName, Word>>>,
    ears: Arc<Lock<Ears>>,
    /// Receiver of the agents' reports.
    record: SystemOfRecord,
}

/// Ability of pxed to hear at all: its source of Machines can be asked, and it runs.
#[derive(Debug, Clone, Copy, Default)]
struct Ears {
    /// Time of the last call of [`Heard::listens`].
    last: Option<Timestamp>,
    /// Time since which the source cannot be asked.
    away: Option<Timestamp>,
    /// Sum of the times in which the source could not be asked.
    missed: SignedDuration,
    /// The last time in which pxed could not hear.
    deaf: Option<Deaf>,
}

/// Time in which pxed could hear no key.
#[derive(Debug, Clone, Copy)]
struct Deaf {
    since: Timestamp,
    until: Timestamp,
    /// [`Ears::missed`] at its end.
    missed: SignedDuration,
}

impl Ears {
    /// Records that pxed runs, and whether its source can be asked.
    fn listen(&mut self, reachable: bool, now: Timestamp) {
        let last = self.last.replace(now).unwrap_or(now);
        let was_paused = now > later(last, DEAF_AFTER) || is_ahead(last, now);
        // A start in the future is from before pxed's clock was set back.
        let away = self.away.or((!reachable).then_some(last)).map(|since| since.min(now));
        if away.is_some() {
            let passed = now.duration_since(last).max(SignedDuration::ZERO);
            self.missed = self.missed.saturating_add(passed);
        }
        if was_paused || away.is_some_and(|since| now > later(since, AWAY_LIMIT)) {
            let since = away.unwrap_or(last).min(now);
            self.deaf = Some(Deaf { since, until: now, missed: self.missed });
        }
        self.away = away.filter(|_| !reachable);
    }

    /// Returns what is known at `now`: the source is as it was at the last call.
    fn at(&self, now: Timestamp) -> Self {
        let mut ears = *self;
        ears.listen(self.away.is_none(), now);
        ears
    }
}

/// Time, and the sum of the interruptions until then.
#[derive(Debug, Clone, Copy)]
struct Moment {
    time: Timestamp,
    /// [`Ears::missed`] at this time.
    missed: SignedDuration,
}

#[derive(Debug, Clone)]
struct Word {
    uid: String,
    /// Time since which pxed knows the Machine, and would have heard it.
    since: Moment,
    /// Time of the last request or of the last change of the heartbeat, by pxed's clock.
    at: Option<Moment>,
    /// The heartbeat as its host wrote it.
    heartbeat: Option<Time>,
    /// Time at which another key was refused last.
    refused: Option<Timestamp>,
    /// Keys without a record that asked with a certificate of this Machine, newest first, and the times of their last requests.
    unrecorded: Vec<(Digest, Timestamp)>,
}

impl Word {
    fn new(uid: &str, now: Moment) -> Self {
        Self {
            uid: uid.to_owned(),
            since: now,
            at: None,
            heartbeat: None,
            refused: None,
            unrecorded: Vec::new(),
        }
    }

    /// Forgets times of the future: the clock was set back, and pxed listens from now on.
    fn correct(&mut self, now: Moment) {
        let is_future = |moment: Moment| is_ahead(moment.time, now.time);
        if is_future(self.since) || self.at.is_some_and(is_future) {
            (self.since, self.at, self.refused) = (now, None, None);
        }
        self.unrecorded.retain(|(_, at)| !is_ahead(*at, now.time));
    }
}

impl Heard {
    /// Makes the evidence of a process that has heard nothing yet.
    pub fn new(record: SystemOfRecord) -> Self {
        Self { words: Arc::default(), ears: Arc::default(), record }
    }

    /// Returns the receiver of the agents' reports, which has the records of their keys.
    pub fn record(&self) -> SystemOfRecord {
        self.record
    }

    /// Records that this process runs. `reachable`: its source of Machines can be asked. Called every [`LISTEN_INTERVAL`]. After a time without
    /// such a call, or [`AWAY_LIMIT`] without the source, each key has its time again: pxed could not hear it.
    pub fn listens(&self, reachable: bool, now: Timestamp) {
        self.ears.lock().listen(reachable, now);
    }

    fn moment(&self, now: Timestamp) -> Moment {
        Moment { time: now, missed: self.ears.lock().at(now).missed }
    }

    /// Records a request by the key in force of this Machine.
    pub fn request(&self, known: &KnownMachine, now: Timestamp) {
        let now = self.moment(now);
        change(&mut self.words.lock(), known, now, |word| word.at = Some(now));
    }

    /// Records that a key was enrolled for this Machine.
    pub fn enrolled(&self, known: &KnownMachine, now: Timestamp) {
        let now = self.moment(now);
        change(&mut self.words.lock(), known, now, |word| (word.at, word.refused) = (Some(now), None));
    }

    /// Records a request by a key of which no record is left, with a certificate of this Machine.
    pub fn unrecorded(&self, known: &KnownMachine, key: Digest, now: Timestamp) {
        let moment = self.moment(now);
        change(&mut self.words.lock(), known, moment, |word| {
            word.unrecorded.retain(|(other, _)| *other != key);
            word.unrecorded.insert(0, (key, now));
            word.unrecorded.truncate(UNRECORDED_KEYS);
        });
    }

    /// Returns the time of the last such request by another key than this one: no key keeps itself out.
    pub(crate) fn last_unrecorded(&self, known: &KnownMachine, but: &Digest) -> Option<Timestamp> {
        let words = self.words.lock();
        let word = words.get(&known.name).filter(|word| word.uid == known.uid)?;
        word.unrecorded.iter().find(|(key, _)| key != but).map(|(_, at)| *at)
    }

    /// Records that another key was refused for this Machine.
    pub fn refused(&self, known: &KnownMachine, now: Timestamp) {
        let moment = self.moment(now);
        change(&mut self.words.lock(), known, moment, |word| word.refused = Some(now));
    }

    /// Returns the time at which another key was refused last.
    pub(crate) fn last_refused(&self, known: &KnownMachine) -> Option<Timestamp> {
        self.words.lock().get(&known.name).filter(|word| word.uid == known.uid)?.refused
    }

    /// Records the Machines that are new, and the heartbeats of those that have changed. Returns those whose host was heard. The first
    /// heartbeat that is seen may be an old one.
    pub fn follow<'a>(
        &self,
        before: &'a Snapshot,
        snapshot: &'a Snapshot,
        now: Timestamp,
    ) -> Vec<&'a Arc<KnownMachine>> {
        let now = self.moment(now);
        let mut words = self.words.lock();
        words.retain(|name, word| snapshot.by_name(name).is_some_and(|known| known.uid == word.uid));
        let heard = snapshot.changed_since(before).filter(|known| {
            let agent = known.machine.status.as_ref().and_then(|status| status.agent.as_ref());
            let heartbeat = agent.and_then(|agent| agent.last_heartbeat_time.clone());
            let goes_down = agent.is_some_and(|agent| agent.going_down_time.is_some());
            change(&mut words, known, now, |word| {
                let Some(heartbeat) = heartbeat else { return false };
                let is_new = word.heartbeat.as_ref().is_some_and(|before| *before != heartbeat);
                word.heartbeat = Some(heartbeat);
                if is_new {
                    word.at = Some(now);
                }
                is_new && !goes_down
            })
        });
        heard.collect()
    }

    /// Returns the time at which the key in force was enrolled, by the status; `None` if it names none. `own`: the status that pxed keeps.
    pub fn key_time(&self, known: &KnownMachine, own: &MachineStatus) -> Option<Timestamp> {
        let status = self.record.select(Some(own), known.machine.status.as_ref());
        Some(status?.enrollment.as_ref()?.key_time.as_ref()?.0)
    }

    /// Returns the evidence about the key in force of a Machine, which was enrolled at this time. `own`: the status that pxed keeps. The caller knows of
    /// permissions.
    pub fn evidence(
        &self,
        known: &KnownMachine,
        own: &MachineStatus,
        enrolled: Timestamp,
        now: Timestamp,
    ) -> Evidence {
        let object = known.machine.status.as_ref();
        let agent = self.record.select(Some(own), object).and_then(|status| status.agent.as_ref());
        let ears = self.ears.lock().at(now);
        let moment = Moment { time: now, missed: ears.missed };
        let (at, since) = change(&mut self.words.lock(), known, moment, |word| (word.at, word.since));
        // For an earlier heartbeat only the time that its host wrote is known.
        let kept =
            agent.and_then(|agent| agent.last_heartbeat_time.as_ref()).map(|time| time.0.min(since.time));
        let switched = [Some(own), object].into_iter().flatten().filter_map(switched);
        // No key was enrolled in the future.
        let first = if is_ahead(enrolled, now) { since.time } else { enrolled };
        let is_new = at.is_none().then_some(since.time);
        // An end in the future is from before pxed's clock was set back.
        let deaf = ears.deaf.map(|deaf| Deaf { until: deaf.until.min(now), ..deaf });
        let deaf = deaf.filter(|deaf| is_new.is_none_or(|since| since <= deaf.until));
        let counted = at.unwrap_or(since).missed.max(deaf.map_or(SignedDuration::ZERO, |deaf| deaf.missed));
        let (silent_after, listen_for) = match self.record {
            SystemOfRecord::Pxed => (SILENT_STANDALONE, LISTEN_STANDALONE),
            SystemOfRecord::Cluster => (SILENT_CLUSTER, LISTEN_CLUSTER),
        };
        Evidence {
            enrolled,
            heard: at.map(|at| at.time).or(kept).map_or(first, |at| at.max(first)),
            deaf_until: deaf.map(|deaf| deaf.until).or(is_new),
            deaf_since: deaf.map(|deaf| deaf.since),
            missed: ears.missed.saturating_sub(counted),
            going_down: agent.and_then(|agent| agent.going_down_time.as_ref()).map(|time| time.0),
            // A switch of the future would end every host until then.
            switched: switched.filter(|at| *at <= now).max(),
            allowed: None,
            used: None,
            silent_after,
            listen_for,
        }
    }
}

fn change<T>(
    words: &mut HashMap<MachineName, Word>,
    known: &KnownMachine,
    now: Moment,
    change: impl FnOnce(&mut Word) -> T,
) -> T {
    let word = words.entry(known.name.clone()).or_insert_with(|| Word::new(&known.uid, now));
    if word.uid != known.uid {
        *word = Word::new(&known.uid, now);
    }
    word.correct(now);
    change(word)
}

/// Returns the time of the last power request that pxed sent. An action may have found nothing to do.
fn switched(status: &MachineStatus) -> Option<Timestamp> {
    Some(status.power.as_ref()?.last_switch_time.as_ref()?.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::http::tests::{machine, plain};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    /// Returns the evidence of a key that was enrolled at 0 and heard at 1000.
    fn evidence() -> Evidence {
        Evidence {
            enrolled: at(0),
            heard: at(1000),
            deaf_until: None,
            deaf_since: None,
            missed: SignedDuration::ZERO,
            going_down: None,
            switched: None,
            allowed: None,
            used: None,
            silent_after: SILENT_STANDALONE,
            listen_for: LISTEN_STANDALONE,
        }
    }

    fn refused(evidence: Evidence, now: i64) -> bool {
        evidence.refuses_until(at(now)).is_some()
    }

    #[test]
    fn trust_6_a_key_that_is_heard_keeps_others_out_until_it_is_silent() {
        assert_eq!(evidence().refuses_until(at(1069)), Some(at(1070)));
        assert_eq!(evidence().refuses_until(at(1070)), None);
        // A request whose time is later than now: the clock was set back.
        assert!(refused(evidence(), 10));
    }

    /// The holder of an old key that reported every few seconds kept the permitted host out.
    #[test]
    fn trust_6_permission_and_end_of_the_host_do_not_rest_on_silence() {
        let now = at(1100);
        assert!(evidence().rests_on_silence(now));
        assert!(!Evidence { allowed: Some(at(1099)), ..evidence() }.rests_on_silence(now));
        assert!(!Evidence { switched: Some(at(1050)), ..evidence() }.rests_on_silence(now));
        assert!(!Evidence { going_down: Some(at(1050)), ..evidence() }.rests_on_silence(now));
        let used = Evidence { allowed: Some(at(1099)), used: Some(at(1099)), ..evidence() };
        assert!(used.rests_on_silence(now));
    }

    #[test]
    fn trust_6_host_that_was_switched_after_it_was_heard_is_replaced() {
        for (switched, refuses) in [(1001, false), (970, false), (969, true), (0, true), (-5, true)] {
            let switched = Evidence { switched: Some(at(switched)), ..evidence() };
            assert_eq!(refused(switched, 1010), refuses, "{switched:?}");
        }
        // The next host has enrolled since: the reset is not an excuse for a third one.
        let next = Evidence { enrolled: at(1020), heard: at(1020), switched: Some(at(1001)), ..evidence() };
        assert!(refused(next, 1021));
        assert!(!refused(Evidence { going_down: Some(at(1000)), ..evidence() }, 1001));
        assert!(refused(Evidence { going_down: Some(at(1000)), ..next }, 1021), "that was the host before");
    }

    #[test]
    fn trust_6_a_permission_is_for_one_key_and_one_hour() {
        let allowed = |at_second| Evidence { allowed: Some(at(at_second)), ..evidence() };
        assert!(!refused(allowed(500), 1010));
        assert!(refused(Evidence { used: Some(at(500)), ..allowed(500) }, 1010), "it was used");
        assert!(!refused(Evidence { used: Some(at(499)), ..allowed(500) }, 1010), "an earlier one was used");
        assert!(refused(Evidence { heard: at(4099), ..allowed(500) }, 4100), "it expired");
        assert!(refused(allowed(1400), 1010), "a time of the future would never expire");
    }

    #[test]
    fn trust_6_a_permission_by_a_clock_that_is_ahead_is_for_one_key_too() {
        // Given at 1000 by a clock that is four minutes ahead, used at 1060.
        let given = Evidence { allowed: Some(at(1240)), ..evidence() };
        assert!(!refused(given, 1060));
        let used = Evidence { enrolled: at(1060), heard: at(1060), used: given.allowed, ..given };
        assert!(refused(used, 1061));
        // Used by a clock that was set back since: the next permission counts.
        assert!(!refused(Evidence { used: Some(at(30_000)), allowed: Some(at(1005)), ..evidence() }, 1010));
    }

    #[test]
    fn trust_6_a_pxed_that_could_not_hear_listens_again() {
        let heard = Heard::new(SystemOfRecord::Cluster);
        let snapshot = known(&json!({}));
        let node = snapshot.by_name(&"node1".parse().unwrap()).unwrap();
        let own = MachineStatus::default();
        let until = |now| heard.evidence(node, &own, at(0), at(now)).refuses_until(at(now));
        heard.enrolled(node, at(0));
        let listen = |reachable, times: std::ops::RangeInclusive<i64>| {
            times.step_by(5).for_each(|second| heard.listens(reachable, at(second)));
        };
        listen(true, 0..=420);
        assert_eq!(until(420), None, "silent, and pxed has listened");
        // The API server is unavailable for some time.
        listen(false, 425..=2000);
        assert_eq!(until(2000), Some(at(2480)), "nothing is known meanwhile");
        listen(true, 2005..=2010);
        assert_eq!(until(2010), Some(at(2485)), "the agents may write again since 2005");
        listen(true, 2015..=2485);
        assert_eq!(until(2485), None);
        // pxed's host was paused: the first request comes before the next tick.
        assert_eq!(until(5000), Some(at(5480)));
        listen(true, 5005..=5005);
        assert_eq!(until(5005), Some(at(5485)));
        // A permission counts all the same.
        let evidence = heard.evidence(node, &own, at(0), at(5005));
        assert_eq!(Evidence { allowed: Some(at(5000)), ..evidence }.refuses_until(at(5005)), None);
    }

    /// Listens every 5 s until `end`; the source is unreachable in the last `away` seconds of each `period`.
    fn flap(heard: &Heard, (away, period): (i64, i64), end: i64) {
        (0..=end).step_by(5).for_each(|second| heard.listens(second % period < period - away, at(second)));
    }

    #[test]
    fn trust_6_error_every_seven_minutes_does_not_make_pxed_deaf() {
        let heard = Heard::new(SystemOfRecord::Cluster);
        let snapshot = known(&json!({}));
        let node = snapshot.by_name(&"node1".parse().unwrap()).unwrap();
        let own = MachineStatus::default();
        heard.enrolled(node, at(0));
        // 30 s of each 420 s: the watch fails, and the next question is answered.
        flap(&heard, (30, 420), 455);
        let evidence = |now| heard.evidence(node, &own, at(0), at(now));
        assert_eq!(evidence(454).refuses_until(at(454)), Some(at(455)), "the 35 s do not count");
        assert_eq!(evidence(455).refuses_until(at(455)), None, "silent for 420 s in which pxed heard");
        assert_eq!(evidence(455).interruption(at(455)), None);
    }

    #[test]
    fn trust_6_short_interruptions_never_add_up_to_silence() {
        let heard = Heard::new(SystemOfRecord::Cluster);
        let snapshot = known(&json!({}));
        let node = snapshot.by_name(&"node1".parse().unwrap()).unwrap();
        let own = MachineStatus::default();
        heard.enrolled(node, at(0));
        // No agent gets a heartbeat through in the 10 s of each minute.
        flap(&heard, (50, 60), 3600);
        let until = heard.evidence(node, &own, at(0), at(3600)).refuses_until(at(3600));
        assert!(until.is_some_and(|until| until >= at(3600)), "{until:?}");
        // A key that was heard after some of them has no more time by those.
        heard.request(node, at(3600));
        let until = heard.evidence(node, &own, at(0), at(3601)).refuses_until(at(3601));
        assert_eq!(until, Some(at(4020)));
    }

    #[test]
    fn trust_6_interruption_of_more_than_a_minute_is_named() {
        for (away, expected) in [(55, None), (65, Some((at(95), Some(at(165)))))] {
            let heard = Heard::new(SystemOfRecord::Cluster);
            let snapshot = known(&json!({}));
            let node = snapshot.by_name(&"node1".parse().unwrap()).unwrap();
            let own = MachineStatus::default();
            heard.enrolled(node, at(0));
            let listen = |reachable, times: std::ops::Range<i64>| {
                times.step_by(5).for_each(|second| heard.listens(reachable, at(second)));
            };
            listen(true, 0..100);
            listen(false, 100..100 + away);
            if away == 65 {
                let evidence = heard.evidence(node, &own, at(0), at(164));
                assert_eq!(evidence.interruption(at(164)), Some((at(95), None)), "it lasts");
            }
            listen(true, 100 + away..200);
            let evidence = heard.evidence(node, &own, at(0), at(200));
            assert_eq!(evidence.interruption(at(200)), expected, "{away}");
        }
    }

    #[test]
    fn trust_6_interruption_over_a_clock_that_is_set_back_ends_deaf() {
        let mut ears = Ears::default();
        ears.listen(true, at(10_000));
        ears.listen(false, at(10_005));
        ears.listen(false, at(0));
        assert_eq!(ears.deaf.unwrap().until, at(0));
        for second in (5..=100).step_by(5) {
            ears.listen(false, at(second));
        }
        assert_eq!(ears.deaf.unwrap().until, at(100), "more than a minute by the new clock");
    }

    #[test]
    fn trust_6_of_two_keys_without_a_record_each_hears_the_other() {
        let heard = Heard::new(SystemOfRecord::Pxed);
        let snapshot = known(&json!({}));
        let node = snapshot.by_name(&"node1".parse().unwrap()).unwrap();
        let key = |number: u8| Digest::from_sha256([number; 32]);
        for (number, second) in [(1, 10), (2, 20), (3, 30), (3, 40)] {
            heard.unrecorded(node, key(number), at(second));
        }
        let others = [1, 2, 3, 4].map(|number| heard.last_unrecorded(node, &key(number)));
        assert_eq!(others, [Some(at(40)), Some(at(40)), Some(at(20)), Some(at(40))]);
        assert_eq!(heard.evidence(node, &MachineStatus::default(), at(0), at(41)).heard, at(0));
        // The clock is set back.
        heard.request(node, at(-1000));
        assert_eq!(heard.last_unrecorded(node, &key(4)), None);
    }

    #[test]
    fn trust_6_a_key_enrolled_in_the_future_is_silent_after_the_start() {
        let (heard, hours) = (Heard::new(SystemOfRecord::Pxed), 8 * 3600);
        let snapshot = known(&json!({}));
        let node = snapshot.by_name(&"node1".parse().unwrap()).unwrap();
        let own = MachineStatus::default();
        let evidence = |now| heard.evidence(node, &own, at(hours), at(now));
        // The clock is eight hours ahead, then it is set back.
        heard.enrolled(node, at(hours));
        let until = |now| evidence(now).refuses_until(at(now));
        assert_eq!(until(hours + 1), Some(at(hours + 70)));
        assert_eq!(until(100), Some(at(220)), "pxed listens first");
        assert_eq!(until(220), None);
        heard.request(node, at(230));
        assert_eq!(until(240), Some(at(300)), "its host is heard");
        let allowed = Evidence { allowed: Some(at(235)), used: None, ..evidence(240) };
        assert_eq!(allowed.refuses_until(at(240)), None, "a permission lifts it");
        // After a restart, nothing in memory is of the future.
        let again = Heard::new(SystemOfRecord::Pxed);
        let until = |now| again.evidence(node, &own, at(hours), at(now)).refuses_until(at(now));
        assert_eq!((until(300), until(420)), (Some(at(420)), None));
    }

    #[test]
    fn trust_6_a_switch_of_the_future_ends_no_host() {
        let heard = Heard::new(SystemOfRecord::Pxed);
        let snapshot = known(&json!({}));
        let node = snapshot.by_name(&"node1".parse().unwrap()).unwrap();
        let own = json!({ "power": { "state": "On", "lastSwitchTime": at(30_000).to_string() } });
        let own: MachineStatus = serde_json::from_value(own).unwrap();
        heard.request(node, at(1000));
        let evidence = heard.evidence(node, &own, at(0), at(1001));
        assert_eq!(evidence.refuses_until(at(1001)), Some(at(1070)));
    }

    #[test]
    fn trust_6_new_machine_is_observed_before_its_key_counts_as_silent() {
        let heard = Heard::new(SystemOfRecord::Pxed);
        let (day, name) = (86_400, "node1".parse().unwrap());
        let own = json!({ "agent": { "lastHeartbeatTime": at(day - 10).to_string() } });
        let own: MachineStatus = serde_json::from_value(own).unwrap();
        let (none, moved) = (Snapshot::default(), known(&json!({})));
        let until = |now| {
            let node = moved.by_name(&name).unwrap();
            heard.evidence(node, &own, at(0), at(now)).refuses_until(at(now))
        };
        heard.follow(&none, &none, at(0));
        heard.follow(&none, &moved, at(day));
        assert_eq!((until(day + 60), until(day + 120)), (Some(at(day + 120)), None));
        // Its manifest is missing for a moment.
        heard.follow(&moved, &none, at(2 * day));
        heard.follow(&none, &moved, at(2 * day + 5));
        assert_eq!(until(2 * day + 60), Some(at(2 * day + 125)));
    }

    #[test]
    fn trust_6_a_restarted_pxed_listens_before_it_calls_a_key_silent() {
        let restarted = Evidence { deaf_until: Some(at(5000)), ..evidence() };
        assert_eq!(restarted.refuses_until(at(5001)), Some(at(5120)));
        assert!(!refused(restarted, 5120));
        assert_eq!(
            Evidence { heard: at(5010), ..restarted }.refuses_until(at(5011)),
            Some(at(5080)),
            "heard since"
        );
        assert!(!refused(Evidence { switched: Some(at(1001)), ..restarted }, 5001), "it was reset before");
    }

    fn known(status: &Value) -> Snapshot {
        let mut machine = machine("node1", &plain());
        machine.status = serde_json::from_value(status.clone()).unwrap();
        Snapshot::build(&"default".parse().unwrap(), [machine])
    }

    fn cluster(heartbeat: &str, more: &Value) -> Snapshot {
        let mut status = json!({ "enrollment": { "keyTime": at(0).to_string() },
            "agent": { "lastHeartbeatTime": heartbeat } });
        status["power"] = more["power"].clone();
        known(&status)
    }

    #[test]
    fn heartbeat_in_a_cluster_counts_by_its_change_not_by_the_hosts_clock() {
        let heard = Heard::new(SystemOfRecord::Cluster);
        let name = "node1".parse().unwrap();
        let first = cluster("2100-01-01T00:00:00Z", &json!({}));
        assert!(heard.follow(&Snapshot::default(), &first, at(0)).is_empty(), "it may be an old one");
        let own = MachineStatus::default();
        let until = |snapshot: &Snapshot, now| {
            heard.evidence(snapshot.by_name(&name).unwrap(), &own, at(0), at(now)).refuses_until(at(now))
        };
        assert_eq!(until(&first, 479), Some(at(480)), "eight minutes since it is known");
        assert_eq!(until(&first, 480), None);
        let second = cluster("1990-01-01T00:05:00Z", &json!({}));
        assert_eq!(heard.follow(&first, &second, at(500)).len(), 1);
        assert_eq!(until(&second, 919), Some(at(920)));
        let power = |more: &Value| cluster("1990-01-01T00:05:00Z", &json!({ "power": more }));
        let reset = json!({ "state": "On", "lastSwitchTime": at(600).to_string() });
        assert_eq!(until(&power(&reset), 610), None, "reset by the pxed that leads");
    }

    #[test]
    fn trust_6_an_operation_that_found_the_machine_on_lets_no_new_key_in() {
        let heard = Heard::new(SystemOfRecord::Pxed);
        let action = json!({ "action": "PowerOn", "time": at(600).to_string() });
        let own = json!({ "power": { "state": "On", "lastAction": action } });
        let own: MachineStatus = serde_json::from_value(own).unwrap();
        let snapshot = known(&json!({}));
        let node = snapshot.by_name(&"node1".parse().unwrap()).unwrap();
        heard.request(node, at(590));
        let evidence = heard.evidence(node, &own, at(0), at(610));
        assert_eq!(evidence.refuses_until(at(610)), Some(at(660)));
    }

    #[test]
    fn re_created_machine_is_not_heard_by_heartbeats_of_the_former_one() {
        let heard = Heard::new(SystemOfRecord::Pxed);
        let snapshot = known(&json!({}));
        let known = snapshot.by_name(&"node1".parse().unwrap()).unwrap().clone();
        heard.request(&known, at(500));
        let own = MachineStatus::default();
        assert_eq!(heard.evidence(&known, &own, at(0), at(501)).heard, at(500));
        let again = KnownMachine { uid: "u2".to_owned(), ..KnownMachine::clone(&known) };
        assert_eq!(heard.evidence(&again, &own, at(1), at(501)).heard, at(1));
    }
}
