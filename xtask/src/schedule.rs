//! Decides which job starts next. Pure: `runner` has the clock and the processes.
//!
//! A job starts when all jobs that it needs have succeeded, its lanes have free places, and the cores are not full. The order is that of
//! [`Rank`], then the longest expected time. No job overtakes another one by taking the cores or the lane that the
//! other one waits for, or many small jobs would hold up the longest until the end.

use std::collections::HashMap;
use std::time::Duration;

/// Resource that only a limited number of jobs may use concurrently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Cargo's target directory. Cargo locks it, so a second Cargo would only wait.
    Cargo,
    /// Package manager of the machine.
    Packages,
    /// Booting Linux guests. Their deadlines are valid for at most two concurrent guests.
    Guest,
    /// Hosts in namespaces that run a kubelet. They share the user's inotify instances.
    Node,
}

impl Lane {
    /// Returns the number of places.
    fn capacity(self) -> u32 {
        match self {
            Self::Guest => 2,
            Self::Cargo | Self::Packages | Self::Node => 1,
        }
    }
}

/// Which jobs start first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Tests of one crate and what they need: an early verdict.
    First,
    /// Steps for which other jobs wait.
    Step,
    /// All other tests.
    #[default]
    Test,
}

/// Requirements of a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requirements {
    /// Names of the jobs that must have succeeded.
    pub(crate) needs: Vec<String>,
    /// Lanes with the number of places that the job uses.
    pub(crate) lanes: Vec<(Lane, u32)>,
    /// Mean number of busy cores while the job runs.
    pub(crate) load: f64,
    /// Expected time from start to end.
    pub(crate) expected: Duration,
    /// Its place in the order.
    pub(crate) rank: Rank,
    /// True if no other job may run concurrently.
    pub(crate) alone: bool,
}

/// Decision about the waiting jobs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The job at this index starts now.
    Start(usize),
    /// The job at this index never starts, because the named job failed.
    Skip(usize, String),
    /// No job may start until a running job has ended.
    Wait,
}

/// Returns true if the cores have room for one more job.
///
/// A build step starts as long as some of a core is idle, because it cannot fail by being slow. The parallel part of one build fills
/// the single-threaded parts of another. The steps of [`Rank::First`] keep their cores: someone waits for their verdict.
fn has_room(job: &Requirements, running: &[&Requirements], cores: usize) -> bool {
    let cores = f64::from(u32::try_from(cores).unwrap_or(u32::MAX));
    let busy: f64 = running.iter().map(|other| other.load).sum();
    let verdict_is_near = running.iter().any(|other| other.rank == Rank::First);
    if job.rank == Rank::Step && !verdict_is_near {
        return busy < cores;
    }
    // The sum may exceed the number of cores, because most tests mostly wait. An idle core is always given.
    busy + job.load <= cores + 0.5 || busy <= cores - 1.0
}

/// Decides about the waiting jobs; `ended` has the result of each job that has ended: true if it succeeded.
pub(crate) fn next(
    waiting: &[&Requirements],
    running: &[&Requirements],
    ended: &HashMap<String, bool>,
    cores: usize,
) -> Decision {
    for (index, job) in waiting.iter().enumerate() {
        if let Some(failed) = job.needs.iter().find(|need| ended.get(*need) == Some(&false)) {
            return Decision::Skip(index, failed.clone());
        }
    }
    let ready = |job: &Requirements| job.needs.iter().all(|need| ended.get(need) == Some(&true));
    let mut candidates: Vec<(usize, &Requirements)> =
        waiting.iter().copied().enumerate().filter(|(_, job)| ready(job)).collect();
    candidates.sort_by_key(|(index, job)| (job.alone, job.rank, std::cmp::Reverse(job.expected), *index));
    let mut reserved: Vec<Lane> = Vec::new();
    for (index, job) in candidates {
        if running.is_empty() {
            return Decision::Start(index);
        }
        if job.alone || running.iter().any(|other| other.alone) {
            return Decision::Wait;
        }
        let is_free = |place: &(Lane, u32)| !reserved.contains(&place.0) && !is_full(place, running);
        if !job.lanes.iter().all(is_free) {
            reserved.extend(job.lanes.iter().map(|(lane, _)| lane));
            continue;
        }
        return if has_room(job, running, cores) { Decision::Start(index) } else { Decision::Wait };
    }
    Decision::Wait
}

/// Returns true if a lane has fewer free places than a job uses.
fn is_full((lane, places): &(Lane, u32), running: &[&Requirements]) -> bool {
    let lanes = running.iter().flat_map(|other| &other.lanes);
    let used: u32 = lanes.filter(|(of, _)| of == lane).map(|(_, places)| places).sum();
    used + places > lane.capacity()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(expected: u64) -> Requirements {
        Requirements { expected: Duration::from_secs(expected), load: 1.0, ..Requirements::default() }
    }

    fn decide(waiting: &[Requirements], running: &[Requirements], ended: &[(&str, bool)]) -> Decision {
        let ended = ended.iter().map(|(name, ok)| ((*name).to_owned(), *ok)).collect();
        next(&waiting.iter().collect::<Vec<_>>(), &running.iter().collect::<Vec<_>>(), &ended, 2)
    }

    #[test]
    fn longest_job_starts_first_and_steps_before_tests_of_the_system() {
        assert_eq!(decide(&[job(1), job(3), job(2)], &[], &[]), Decision::Start(1));
        let step = Requirements { rank: Rank::Step, ..job(2) };
        let units = Requirements { rank: Rank::First, ..job(1) };
        assert_eq!(decide(&[job(9), step.clone()], &[], &[]), Decision::Start(1));
        assert_eq!(decide(&[job(9), step, units], &[], &[]), Decision::Start(2));
    }

    #[test]
    fn job_waits_for_its_needs_and_is_skipped_if_one_failed() {
        let tests = Requirements { needs: vec!["build".to_owned()], ..job(5) };
        assert_eq!(decide(std::slice::from_ref(&tests), &[], &[]), Decision::Wait);
        assert_eq!(decide(std::slice::from_ref(&tests), &[], &[("build", true)]), Decision::Start(0));
        assert_eq!(decide(&[job(9), tests], &[], &[("build", false)]), Decision::Skip(1, "build".to_owned()));
    }

    #[test]
    fn lanes_and_cores_bound_concurrent_jobs() {
        let guest = Requirements { lanes: vec![(Lane::Guest, 1)], load: 0.2, ..job(5) };
        let two = [guest.clone(), guest.clone()];
        assert_eq!(decide(std::slice::from_ref(&guest), &two[..1], &[]), Decision::Start(0));
        assert_eq!(decide(&[guest], &two, &[]), Decision::Wait);
        let busy = [job(1), job(1), job(1)];
        assert_eq!(decide(&[job(1)], &busy, &[]), Decision::Wait);
    }

    /// A step that downloads once ran alone for a minute, because both builds use more than a core.
    #[test]
    fn heavy_job_starts_if_a_core_is_idle() {
        let download = Requirements { load: 0.7, rank: Rank::First, ..job(60) };
        let build = Requirements { load: 1.9, rank: Rank::Step, ..job(480) };
        assert_eq!(
            decide(std::slice::from_ref(&build), std::slice::from_ref(&download), &[]),
            Decision::Start(0)
        );
        assert_eq!(decide(&[build], &[download.clone(), download], &[]), Decision::Wait);
    }

    #[test]
    fn builds_overlap_unless_a_verdict_is_near() {
        let build = |rank| Requirements { load: 1.9, rank, ..job(480) };
        let step = [build(Rank::Step)];
        assert_eq!(decide(&step, &[build(Rank::Step)], &[]), Decision::Start(0));
        assert_eq!(decide(&step, &[build(Rank::Step), build(Rank::Step)], &[]), Decision::Wait);
        assert_eq!(decide(&step, &[build(Rank::First)], &[]), Decision::Wait);
        assert_eq!(decide(&[job(9)], &[build(Rank::Step)], &[]), Decision::Wait);
    }

    /// `whole_node` once started last, because there was always a small job that fitted.
    #[test]
    fn small_job_does_not_take_the_cores_that_a_longer_one_waits_for() {
        let light = Requirements { load: 0.2, ..job(1) };
        assert_eq!(decide(&[job(9), light], &[job(1), job(1), job(1)], &[]), Decision::Wait);
    }

    #[test]
    fn job_does_not_take_the_lane_that_a_longer_one_waits_for() {
        let guests = |places, expected| Requirements {
            lanes: vec![(Lane::Guest, places)],
            load: 0.2,
            ..job(expected)
        };
        let other = Requirements { load: 0.2, ..job(1) };
        let waiting = [guests(2, 9), guests(1, 5), other];
        assert_eq!(decide(&waiting, &[guests(1, 7)], &[]), Decision::Start(2));
        assert_eq!(decide(&waiting[..2], &[guests(1, 7)], &[]), Decision::Wait);
    }

    #[test]
    fn exclusive_job_runs_last_and_alone() {
        let alone = Requirements { alone: true, ..job(60) };
        assert_eq!(decide(&[alone.clone(), job(1)], &[], &[]), Decision::Start(1));
        assert_eq!(decide(std::slice::from_ref(&alone), &[job(1)], &[]), Decision::Wait);
        assert_eq!(decide(&[job(1)], std::slice::from_ref(&alone), &[]), Decision::Wait);
        assert_eq!(decide(&[alone], &[], &[]), Decision::Start(0));
    }

    #[test]
    fn job_heavier_than_the_machine_still_starts_when_nothing_runs() {
        let heavy = Requirements { load: 9.0, ..job(1) };
        assert_eq!(decide(&[heavy], &[], &[]), Decision::Start(0));
    }
}
