//! Pure: the claimants that wait for a host, in turn, and the hosts that they may have.
//!
//! A claimant has a host to choose if the line leaves one for it: each claimant whose turn is earlier, and each one that is writing a claim,
//! has its host (`assign`, `tries`). Made by `turn`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use bedplate_api::id::MachineName;
use jiff::Timestamp;

use super::assign::{Seat, assign};
use super::checks::{Checks, Requirements};
use super::tries::{Key, Tries};
use crate::infrastructure::choose::Shortage;

/// Turn of a claimant, ordered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// True if it is not of a control plane.
    pub is_worker: bool,
    /// Time of its creation.
    pub created: Option<Timestamp>,
    /// The namespace and name.
    pub key: Key,
}

/// Claimant without a host.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The turn.
    pub turn: Turn,
    /// The UID.
    pub uid: String,
    /// The requirements.
    pub requirements: Requirements,
}

/// Answer to a claimant for which no host is left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal {
    /// Counts of the hosts.
    pub shortage: Shortage,
    /// Number of claimants with the same requirements that wait too, and whose turn is earlier.
    pub ahead: u32,
}

/// Host of a claimant, and number of claimants with the same requirements that wait too, and whose turn is earlier.
type Answer = (Option<usize>, u32);

/// The line. It holds for one state of the stores.
#[derive(Debug)]
pub struct Line {
    checks: Checks,
    /// Claimants that wait, in turn, with their classes.
    waiting: Vec<(Waiting, usize)>,
    /// Answers to the claimants that wait, for this mark of the choices.
    answers: Option<((u64, usize), Vec<Answer>)>,
}

impl Line {
    /// Makes a line of claimants that wait.
    pub fn new(mut checks: Checks, mut waiting: Vec<Waiting>) -> Self {
        waiting.sort_unstable_by(|one, other| one.turn.cmp(&other.turn));
        let with_class = |one: Waiting| {
            let class = checks.class(&one);
            (one, class)
        };
        let waiting = waiting.into_iter().map(with_class).collect();
        Self { checks, waiting, answers: None }
    }

    /// Ends the line, and keeps the checks of the hosts.
    pub(crate) fn into_checks(self) -> Checks {
        self.checks
    }

    /// Returns the host that is left for a claimant.
    ///
    /// # Errors
    /// There is none.
    pub fn choose(&mut self, asks: &Waiting, tries: &Tries, now: Instant) -> Result<MachineName, Refusal> {
        let class = self.checks.class(asks);
        let survey = self.checks.survey(class);
        let is_eligible = |index: usize| survey.eligible.contains(&index) || survey.failed.contains(&index);
        let own = tries.host(&asks.turn.key, now);
        let own = own.filter(|host| self.checks.index(host).is_some_and(is_eligible));
        if let Some(own) = own {
            return Ok(own.clone());
        }
        let (host, ahead) = self.answer(asks, class, (tries, now));
        host.and_then(|host| self.checks.name(host)).ok_or_else(|| {
            let survey = self.checks.survey(class);
            let wanted = survey.eligible.len() + survey.failed.len();
            Refusal { shortage: survey.shortage.clone().with_wanted(wanted), ahead }
        })
    }

    /// Returns the host that is left for a claimant. All that wait get their answers together: each of them asks repeatedly.
    fn answer(&mut self, asks: &Waiting, class: usize, (tries, now): (&Tries, Instant)) -> Answer {
        let place = self.waiting.binary_search_by(|(one, _)| one.turn.cmp(&asks.turn));
        let is_known =
            |place: &usize| self.waiting[*place].0.uid == asks.uid && self.waiting[*place].1 == class;
        let place = place.ok().filter(is_known).filter(|_| !tries.contains(&asks.turn.key));
        let Some(place) = place else { return self.serve(Some((asks, class)), tries, now).1 };
        let mark = tries.mark(now);
        let answers = self.answers.take().filter(|(of, _)| *of == mark);
        let answers = answers.unwrap_or_else(|| (mark, self.serve(None, tries, now).0));
        self.answers.insert(answers).1[place]
    }

    /// Gives hosts to the claimants that wait, and to one that asks and is not among them. Returns their answers.
    fn serve(&self, asks: Option<(&Waiting, usize)>, tries: &Tries, now: Instant) -> (Vec<Answer>, Answer) {
        let mut taken = vec![false; self.checks.count()];
        tries.hosts(now).filter_map(|host| self.checks.index(host)).for_each(|host| taken[host] = true);
        let is_asking = |one: &Waiting| asks.is_some_and(|(asks, _)| asks.turn.key == one.turn.key);
        let mut places: Vec<Option<usize>> = (0..self.waiting.len())
            .filter(|place| {
                let (one, _) = &self.waiting[*place];
                !is_asking(one) && !tries.contains(&one.turn.key)
            })
            .map(Some)
            .collect();
        if let Some((asks, _)) = asks {
            let is_earlier =
                |place: &Option<usize>| place.is_some_and(|place| self.waiting[place].0.turn < asks.turn);
            places.insert(places.partition_point(is_earlier), None);
        }
        let seat = |place: &Option<usize>| match (place, asks) {
            (Some(place), _) => seat(&self.waiting[*place].0, self.waiting[*place].1),
            (None, Some((asks, class))) => seat(asks, class),
            (None, None) => Seat { class: 0, start: 0 },
        };
        let seats: Vec<Seat> = places.iter().map(seat).collect();
        let surveys = self.checks.surveys();
        let mut without = vec![0; surveys.len()];
        let (mut answers, mut answer) = (vec![(None, 0); self.waiting.len()], (None, 0));
        for ((place, seat), host) in places.iter().zip(&seats).zip(assign(&surveys, &seats, &taken)) {
            let ahead: &mut u32 = &mut without[seat.class];
            *place.map_or(&mut answer, |place| &mut answers[place]) = (host, *ahead);
            *ahead += u32::from(host.is_none());
        }
        (answers, answer)
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
