//! Pure: gives one host to each claimant, in turn.
//!
//! A claimant whose hosts are all given may move an earlier one to another host (augmenting path), and never leaves an earlier one without a
//! host. So a claimant gets a host whenever that is possible. Called by `line`.

use std::collections::VecDeque;

use crate::infrastructure::choose::Survey;

/// Place of a claimant in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Index of the survey with its hosts.
    pub class: usize,
    /// Number that decides which of its hosts is the first one. It spreads claimants over the hosts.
    pub start: usize,
}

/// Returns the host of each seat. `taken`: true for each host that no seat may have.
pub fn assign(surveys: &[&Survey], seats: &[Seat], taken: &[bool]) -> Vec<Option<usize>> {
    let (given, holders, is_lost) =
        (vec![None; seats.len()], vec![None; taken.len()], vec![false; taken.len()]);
    let mut all = Assignment { surveys, seats, taken, holders, is_lost, given };
    let mut is_exhausted = vec![false; surveys.len()];
    for (index, seat) in seats.iter().enumerate() {
        // A failed search fails for each later seat with the same hosts too.
        if !is_exhausted[seat.class] {
            is_exhausted[seat.class] = !all.place(index);
        }
    }
    all.given
}

struct Assignment<'a> {
    surveys: &'a [&'a Survey],
    seats: &'a [Seat],
    taken: &'a [bool],
    /// Seat of each host.
    holders: Vec<Option<usize>>,
    /// True for each host that a failed search has reached. Their seats may have no other hosts, so no later search finds a free one there.
    is_lost: Vec<bool>,
    /// Host of each seat.
    given: Vec<Option<usize>>,
}

impl<'a> Assignment<'a> {
    /// Hosts that a seat may have, in its order.
    fn hosts(&self, seat: usize) -> impl Iterator<Item = usize> + use<'a> {
        let (Seat { class, start }, taken) = (self.seats[seat], self.taken);
        let survey = self.surveys[class];
        let hosts = from(&survey.eligible, start).chain(from(&survey.failed, start));
        hosts.filter(move |host| !taken[*host])
    }

    /// Gives a host to a seat. Returns false if there is none for it.
    fn place(&mut self, seat: usize) -> bool {
        if let Some(host) = self.hosts(seat).find(|host| self.holders[*host].is_none()) {
            (self.holders[host], self.given[seat]) = (Some(seat), Some(host));
            return true;
        }
        if self.hosts(seat).all(|host| self.is_lost[host]) {
            return false;
        }
        // Seat from which the search has reached each host.
        let mut reached = vec![None; self.holders.len()];
        let mut queue = VecDeque::from([seat]);
        while let Some(one) = queue.pop_front() {
            for host in self.hosts(one) {
                if reached[host].is_some() || self.is_lost[host] {
                    continue;
                }
                reached[host] = Some(one);
                let Some(holder) = self.holders[host] else {
                    self.shift(host, &reached);
                    return true;
                };
                queue.push_back(holder);
            }
        }
        self.is_lost.iter_mut().zip(reached).for_each(|(is_lost, from)| *is_lost |= from.is_some());
        false
    }

    /// Moves each seat of a path to the host that it has reached. `host`: the last host, which is free.
    fn shift(&mut self, mut host: usize, reached: &[Option<usize>]) {
        while let Some(seat) = reached[host] {
            self.holders[host] = Some(seat);
            let Some(before) = self.given[seat].replace(host) else { return };
            host = before;
        }
    }
}

/// Returns all elements, starting with one of them.
fn from(all: &[usize], start: usize) -> impl Iterator<Item = usize> + use<'_> {
    let (before, after) = all.split_at(start.checked_rem(all.len()).unwrap_or_default());
    after.iter().chain(before).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(eligible: &[usize], failed: &[usize]) -> Survey {
        Survey { eligible: eligible.to_vec(), failed: failed.to_vec(), ..Survey::default() }
    }

    fn given(surveys: &[Survey], seats: &[(usize, usize)], taken: &[bool]) -> Vec<Option<usize>> {
        let surveys: Vec<_> = surveys.iter().collect();
        let seats: Vec<_> = seats.iter().map(|&(class, start)| Seat { class, start }).collect();
        assign(&surveys, &seats, taken)
    }

    #[test]
    fn d1_later_claimant_does_not_take_the_host_that_an_earlier_one_needs() {
        let (any, only_first) = (survey(&[0, 1], &[]), survey(&[0], &[]));
        let surveys = [any, only_first];
        // The first claimant leaves host 0 to the second one. The third one waits.
        assert_eq!(given(&surveys, &[(0, 0), (1, 0), (0, 0)], &[false; 2]), [Some(1), Some(0), None]);
        // An earlier claimant keeps its host: there is no other one for it.
        assert_eq!(given(&surveys, &[(1, 0), (1, 0), (0, 0)], &[false; 2]), [Some(0), None, Some(1)]);
        assert_eq!(given(&surveys, &[(0, 0), (1, 0)], &[false, true]), [Some(0), None]);
    }

    #[test]
    fn d1_claimants_start_at_different_hosts_and_take_failed_ones_last() {
        let surveys = [survey(&[0, 1, 2], &[3, 4])];
        let taken = [false; 5];
        assert_eq!(given(&surveys, &[(0, 4)], &taken), [Some(1)]);
        assert_eq!(given(&surveys, &[(0, 4), (0, 4), (0, 1)], &taken), [Some(1), Some(2), Some(0)]);
        let seats = [(0, 1); 6];
        assert_eq!(given(&surveys, &seats, &taken), [Some(1), Some(2), Some(0), Some(4), Some(3), None]);
        assert_eq!(given(&[Survey::default()], &[(0, 7)], &[]), [None]);
    }

    /// Compared with the search of all ways to give hosts.
    #[test]
    fn d1_earliest_possible_claimants_are_served() {
        fn is_possible(wanted: &[Vec<usize>], used: &mut Vec<usize>) -> bool {
            let Some((first, rest)) = wanted.split_first() else { return true };
            first.iter().any(|host| {
                if used.contains(host) {
                    return false;
                }
                used.push(*host);
                let found = is_possible(rest, used);
                used.pop();
                found
            })
        }
        for case in 0..512_usize {
            let masks = [case % 8, case / 8 % 8, case / 64];
            let surveys = masks.map(|mask| {
                let hosts: Vec<usize> = (0..3).filter(|host| mask >> host & 1 == 1).collect();
                survey(&hosts, &[])
            });
            let found = given(&surveys, &[(0, case), (1, case / 3), (2, case / 5)], &[false; 3]);
            let mut served: Vec<Vec<usize>> = Vec::new();
            for (survey, host) in surveys.iter().zip(&found) {
                served.push(survey.eligible.clone());
                let is_served = is_possible(&served, &mut Vec::new());
                assert_eq!(host.is_some(), is_served, "{masks:?} {found:?}");
                assert!(host.is_none_or(|host| survey.eligible.contains(&host)), "{masks:?} {found:?}");
                if !is_served {
                    served.pop();
                }
            }
        }
    }
}
