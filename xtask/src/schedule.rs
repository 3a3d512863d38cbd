//! Decides which job starts next. Pure: `runner` holds the clock and the processes.
//!
//! A job starts when all jobs that it needs have succeeded, its lanes have free places, and the cores are not full. Among those that
//! may start, build steps come before tests, then the job with the longest expected time.

use std::collections::HashMap;
use std::time::Duration;

/// A resource of which only a limited number of jobs may use a place concurrently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Cargo's target directory: Cargo locks it, so a second Cargo would only wait.
    Cargo,
    /// The package manager of the machine.
    Packages,
    /// Booting Linux guests. Their deadlines hold for two of them.
    Guest,
    /// Hosts in namespaces that run a kubelet. They share the user's inotify instances.
    Node,
}

impl Lane {
    /// Number of places.
    fn capacity(self) -> u32 {
        match self {
            Self::Guest => 2,
            Self::Cargo | Self::Packages | Self::Node => 1,
        }
    }
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
    /// True if other jobs wait for this one, so it starts before tests.
    pub(crate) is_step: bool,
    /// True if no other job may run concurrently.
    pub(crate) alone: bool,
}

/// What the scheduler says of the waiting jobs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The job at this index starts now.
    Start(usize),
    /// The job at this index never starts, because the named job failed.
    Skip(usize, String),
    /// No job may start until one of those that run has ended.
    Wait,
}

/// Busy cores at which no further job starts. More than there are, because most tests wait for something most of the time.
fn full(cores: usize) -> f64 {
    f64::from(u32::try_from(cores).unwrap_or(u32::MAX)) + 1.25
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
    let candidates = waiting.iter().enumerate().filter(|(_, job)| ready(job) && fits(job, running, cores));
    let best = candidates
        .max_by_key(|(index, job)| (!job.alone, job.is_step, job.expected, std::cmp::Reverse(*index)));
    best.map_or(Decision::Wait, |(index, _)| Decision::Start(index))
}

/// Returns true if a job may run next to those that run.
fn fits(job: &Requirements, running: &[&Requirements], cores: usize) -> bool {
    if running.is_empty() {
        return true;
    }
    if job.alone || running.iter().any(|other| other.alone) {
        return false;
    }
    let used = |lane: Lane| -> u32 {
        running
            .iter()
            .flat_map(|other| &other.lanes)
            .filter(|(of, _)| *of == lane)
            .map(|(_, places)| places)
            .sum()
    };
    let free = job.lanes.iter().all(|(lane, places)| used(*lane) + places <= lane.capacity());
    let load: f64 = running.iter().map(|other| other.load).sum();
    free && load + job.load <= full(cores)
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
    fn longest_job_starts_first_and_steps_before_tests() {
        assert_eq!(decide(&[job(1), job(3), job(2)], &[], &[]), Decision::Start(1));
        let step = Requirements { is_step: true, ..job(1) };
        assert_eq!(decide(&[job(9), step], &[], &[]), Decision::Start(1));
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
        let light = Requirements { load: 0.2, ..job(1) };
        assert_eq!(decide(&[job(9), light], &busy, &[]), Decision::Start(1));
    }

    #[test]
    fn lonely_job_runs_last_and_alone() {
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
