//! Several test programs at once: what each says is kept apart, and handed over when it has ended.
//!
//! Most of them wait most of the time, for leases and time-outs; one after another they would leave the cores idle.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::progress::{self, Step};

/// How often it is said what runs.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// A program to be run.
pub(crate) struct Job {
    /// Its name, for people and for its log.
    pub(crate) name: String,
    /// What runs it.
    pub(crate) command: Command,
    /// Nothing else runs meanwhile.
    pub(crate) alone: bool,
}

/// A program that has ended.
pub(crate) struct Finished {
    /// Its name.
    pub(crate) name: String,
    /// All that it said.
    pub(crate) said: String,
    /// From its start to its end.
    pub(crate) time: Duration,
    /// Why it counts as failed.
    pub(crate) error: Option<anyhow::Error>,
}

enum News {
    Started(String),
    Ended(Finished),
}

/// Runs the jobs, so many at once, in their order; those that want to be alone one by one at the end.
pub(crate) fn run(step: &Step, jobs: Vec<Job>, at_once: usize, mut done: impl FnMut(Finished)) {
    let (alone, together): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.alone);
    let mut left = alone.len() + together.len();
    for (jobs, at_once) in [(together, at_once), (alone, 1)] {
        let jobs = Mutex::new(VecDeque::from(jobs));
        let (sender, news) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                let (jobs, sender) = (&jobs, sender.clone());
                scope.spawn(move || work(jobs, &sender));
            }
            drop(sender);
            let mut running: Vec<String> = Vec::new();
            let mut spoken = Instant::now();
            loop {
                match news.recv_timeout(HEARTBEAT) {
                    Ok(News::Started(name)) => running.push(name),
                    Ok(News::Ended(finished)) => {
                        running.retain(|name| *name != finished.name);
                        left -= 1;
                        done(finished);
                        spoken = Instant::now();
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                let aloud = spoken.elapsed() >= HEARTBEAT;
                step.now(&format!("{left} left, running: {}", running.join(", ")), aloud);
                if aloud {
                    spoken = Instant::now();
                }
            }
        });
    }
}

/// Takes one job after another until none is left.
fn work(jobs: &Mutex<VecDeque<Job>>, sender: &Sender<News>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(mut job) = job else { return };
        let _ = sender.send(News::Started(job.name.clone()));
        let started = Instant::now();
        let path = progress::log_path(&job.name);
        let error = path.as_ref().map_or_else(|e| bail!("{e:#}"), |path| to_its_end(&mut job, path)).err();
        let said = path.ok().and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let _ = sender.send(News::Ended(Finished { name: job.name, said, time: started.elapsed(), error }));
    }
}

fn to_its_end(job: &mut Job, log: &PathBuf) -> Result<()> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let status = job
        .command
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("cannot share a log file")?)
        .stderr(file)
        .status()
        .with_context(|| format!("cannot start {}", job.name))?;
    if status.success() {
        return Ok(());
    }
    bail!("{} ended with {status}; all it said is in {}", job.name, Path::new(log).display())
}
