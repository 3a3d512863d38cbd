//! Runs jobs concurrently. Each job has its own control group and log file, and is killed with all its children at its deadline.
//!
//! `schedule` decides which job starts; this module has the processes and the clock. Called by `test`, `check`, `soak`, `demo`, `setup`.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::cgroup::{Group, Run};
use crate::progress::{self, Step};
use crate::schedule::{self, Decision, Lane, Requirements};

/// Interval between two status lines.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(30);
/// Interval at which memory and deadlines are checked.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Priority of jobs with a guest: its firmware and its kernel have timeouts of their own.
const GUEST_PRIORITY: i8 = -2;
/// Time from the start of a job in which it counts as a busy core.
const START_TIME: Duration = Duration::from_secs(20);
/// Maximum time that the children of an ended job may need to end.
const CHILDREN_TIMEOUT: Duration = Duration::from_secs(20);

/// Group of jobs in the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Installs or builds something.
    Step,
    /// Checks something that is not a test.
    Check,
    /// Unit, protocol and API server tests.
    TierA,
    /// Boots of real firmware.
    TierB,
    /// Whole machines.
    TierC,
    /// Long tests that need not run each time.
    Soak,
}

/// Program to run.
pub(crate) struct Job {
    /// Unique name, also of the log; a valid file name.
    pub(crate) name: String,
    /// Group in the summary.
    pub(crate) kind: Kind,
    /// Command that starts the job.
    pub(crate) command: Command,
    /// Requirements for the start.
    pub(crate) requirements: Requirements,
    /// Time after which the job is killed with its children.
    pub(crate) deadline: Duration,
}

/// Resources that a job used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Time from the start of the job to its end.
    pub(crate) wall: Duration,
    /// CPU time of all processes of the job.
    pub(crate) cpu: Duration,
    /// Maximum resident memory of all processes of the job, in bytes, sampled each second.
    pub(crate) peak: u64,
    /// Time in which processes of the job waited for a core and none had one.
    pub(crate) stalled: Duration,
}

/// Job that has ended or never started.
pub(crate) struct Finished {
    /// Name of the job.
    pub(crate) name: String,
    /// Group in the summary.
    pub(crate) kind: Kind,
    /// Output of the job.
    pub(crate) output: String,
    /// Resources that the job used.
    pub(crate) usage: Usage,
    /// Cause of a failure.
    pub(crate) error: Option<anyhow::Error>,
    /// True if it was killed at its deadline.
    pub(crate) overdue: bool,
}

/// Running job.
struct Running {
    name: String,
    kind: Kind,
    requirements: Requirements,
    deadline: Duration,
    group: Arc<Group>,
    log: PathBuf,
    started: Instant,
    peak: u64,
    overdue: bool,
}

impl Running {
    /// Returns what the job uses now. At its start it keeps a core busy, whatever its mean is: it starts API servers or a guest.
    fn requirements(&self) -> Requirements {
        let starts = self.started.elapsed() < START_TIME;
        let load = if starts { self.requirements.load.max(1.0) } else { self.requirements.load };
        Requirements { load, ..self.requirements.clone() }
    }
}

/// End of the main process of a job and of all its children.
struct Ended {
    name: String,
    result: Result<()>,
    wall: Duration,
}

/// Jobs of a run: waiting jobs, running jobs, and the results of ended jobs.
struct Pool {
    run: Run,
    cores: usize,
    sender: Sender<Ended>,
    news: Receiver<Ended>,
    waiting: Vec<Job>,
    running: Vec<Running>,
    ended: HashMap<String, bool>,
}

impl Pool {
    fn new(jobs: Vec<Job>) -> Result<Self> {
        let (sender, news) = mpsc::channel();
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let (running, ended) = (Vec::new(), HashMap::new());
        Ok(Self { run: Run::create()?, cores, sender, news, waiting: jobs, running, ended })
    }

    /// Starts the jobs that may start. Returns a job that cannot run, if there is one.
    fn start(&mut self) -> Option<Finished> {
        loop {
            let waiting: Vec<_> = self.waiting.iter().map(|job| &job.requirements).collect();
            let running: Vec<_> = self.running.iter().map(Running::requirements).collect();
            let running: Vec<_> = running.iter().collect();
            match schedule::next(&waiting, &running, &self.ended, self.cores) {
                Decision::Wait => return None,
                Decision::Skip(index, failed) => {
                    let job = self.waiting.remove(index);
                    return Some(not_run(job, anyhow!("not run, because {failed} failed")));
                }
                Decision::Start(index) => {
                    let job = self.waiting.remove(index);
                    match start(&self.run, &job, &self.sender) {
                        Ok(started) => self.running.push(started),
                        Err(error) => return Some(not_run(job, error)),
                    }
                }
            }
        }
    }

    /// Waits at most one sample interval for the end of a job, then measures the running jobs.
    fn wait(&mut self) -> Option<Finished> {
        let news = self.news.recv_timeout(SAMPLE_INTERVAL).ok();
        let finished = news.and_then(|news| {
            let index = self.running.iter().position(|job| job.name == news.name)?;
            Some(finish(self.running.remove(index), news))
        });
        self.running.iter_mut().for_each(sample);
        finished
    }

    /// Records a result, and adds the jobs that follow from it.
    fn take(&mut self, name: String, success: bool, more: Vec<Job>) {
        self.ended.insert(name, success);
        self.waiting.extend(more);
    }
}

/// Runs the jobs, and the jobs that `done` returns for an ended job, until none is left.
///
/// # Errors
/// No control group can be created. A job that fails is not an error here: `done` receives it.
pub(crate) fn run(
    step: &Step,
    jobs: Vec<Job>,
    mut done: impl FnMut(&Step, Finished) -> Vec<Job>,
) -> Result<()> {
    let mut pool = Pool::new(jobs)?;
    let mut spoken = Instant::now();
    loop {
        let mut ended = pool.start();
        if ended.is_none() {
            if pool.running.is_empty() {
                break;
            }
            ended = pool.wait();
        }
        if let Some(finished) = ended {
            let (name, success) = (finished.name.clone(), finished.error.is_none());
            pool.take(name, success, done(step, finished));
            spoken = Instant::now();
        }
        let aloud = spoken.elapsed() >= HEARTBEAT_INTERVAL;
        step.now(&status(pool.waiting.len(), &pool.running), aloud);
        if aloud {
            spoken = Instant::now();
        }
    }
    // A job that needs a missing job can never start. This is a fault in the list of jobs.
    for job in pool.waiting.drain(..) {
        let error = anyhow!("not run, because nothing provides {}", job.requirements.needs.join(", "));
        done(step, not_run(job, error));
    }
    Ok(())
}

fn not_run(job: Job, error: anyhow::Error) -> Finished {
    Finished {
        name: job.name,
        kind: job.kind,
        output: String::new(),
        usage: Usage::default(),
        overdue: false,
        error: Some(error),
    }
}

/// Starts a job and a thread that waits for its end.
fn start(run: &Run, job: &Job, sender: &Sender<Ended>) -> Result<Running> {
    let (group, log, mut child) = prepare(run, job)?;
    let group = Arc::new(group);
    let (started, sender) = (Instant::now(), sender.clone());
    let (name, waits) = (job.name.clone(), group.clone());
    std::thread::spawn(move || {
        let status = child.wait();
        let wall = started.elapsed();
        let left = !waits.wait_empty(CHILDREN_TIMEOUT);
        let result = match status {
            Err(error) => Err(anyhow!(error).context("failed to wait for it")),
            Ok(status) if !status.success() => Err(anyhow!("ended with {status}")),
            Ok(_) if left => {
                Err(anyhow!("left processes running {} s after its end", CHILDREN_TIMEOUT.as_secs()))
            }
            Ok(_) => Ok(()),
        };
        let _ = sender.send(Ended { name, result, wall });
    });
    Ok(Running {
        name: job.name.clone(),
        kind: job.kind,
        requirements: job.requirements.clone(),
        deadline: job.deadline,
        group,
        log,
        started,
        peak: 0,
        overdue: false,
    })
}

fn prepare(run: &Run, job: &Job) -> Result<(Group, PathBuf, std::process::Child)> {
    let group = run.group(&job.name)?;
    let has_guest = job.requirements.lanes.iter().any(|(lane, _)| *lane == Lane::Guest);
    let priority = if has_guest { GUEST_PRIORITY } else { 0 };
    let log = progress::log_path(&job.name)?;
    let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let child = group
        .enter(&job.command, priority)
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("cannot share a log file")?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start {}", job.name))?;
    Ok((group, log, child))
}

/// Measures a job and kills it if its deadline has passed.
fn sample(job: &mut Running) {
    job.peak = job.peak.max(job.group.resident());
    if job.started.elapsed() > job.deadline {
        job.overdue = true;
        job.group.kill();
    }
}

fn finish(job: Running, ended: Ended) -> Finished {
    let cpu = job.group.cpu();
    let peak = job.peak.max(job.group.resident());
    let stalled = job.group.stalled();
    let usage = Usage { wall: ended.wall, cpu: cpu.as_ref().copied().unwrap_or_default(), peak, stalled };
    job.group.end();
    let result = if job.overdue {
        Err(anyhow!("killed at its deadline of {}", progress::seconds(job.deadline)))
    } else {
        ended.result.and(cpu.map(drop))
    };
    let error = result.err().map(|error| anyhow!("{error:#}; its output is in {}", job.log.display()));
    let overdue = job.overdue;
    Finished { name: job.name, kind: job.kind, output: output(&job.log), usage, overdue, error }
}

fn output(log: &Path) -> String {
    std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Returns the status line of waiting and running jobs.
fn status(waiting: usize, running: &[Running]) -> String {
    let names: Vec<String> = running
        .iter()
        .map(|job| format!("{} ({})", job.name, progress::seconds(job.started.elapsed())))
        .collect();
    format!("{waiting} waiting, running: {}", names.join(", "))
}

/// Runs jobs that must all succeed, such as the steps of a build. Shows each with its number, its time and the elapsed total.
///
/// # Errors
/// Names the jobs that failed; the end of their output has been shown.
pub(crate) fn run_all(title: &str, jobs: Vec<Job>, mut note: impl FnMut(&Finished)) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let count = jobs.len();
    let expected = expected(&jobs);
    let (mut number, mut failed) = (0, Vec::new());
    let begin = Instant::now();
    progress::step(title, |step| {
        run(step, jobs, |step, finished| {
            number += 1;
            note(&finished);
            step.say(&format!(
                "  {} {number} of {count}: {} ({}), {} of at most about {}",
                mark(finished.error.is_none()),
                finished.name,
                progress::seconds(finished.usage.wall),
                progress::seconds(begin.elapsed()),
                progress::seconds(expected)
            ));
            if let Some(error) = &finished.error {
                progress::tail(&finished.output).for_each(|line| step.say(&format!("      {line}")));
                step.say(&format!("      {}: {error:#}", finished.name));
                failed.push(finished.name);
            }
            Vec::new()
        })?;
        if !failed.is_empty() {
            bail!("{} failed", failed.join(", "));
        }
        Ok(())
    })
}

/// Returns the time that the jobs need on an idle machine if none of their work is done: their CPU time, divided by the number of
/// cores.
pub(crate) fn expected(jobs: &[Job]) -> Duration {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let busy = |job: &Job| job.requirements.expected.mul_f64(job.requirements.load.max(1.0));
    jobs.iter().map(busy).sum::<Duration>() / u32::try_from(cores).unwrap_or(u32::MAX)
}

/// Returns a mark for success or failure.
pub(crate) fn mark(success: bool) -> String {
    if success { progress::good(" ok ") } else { progress::bad("FAIL") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, script: &str, needs: &[&str]) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            name: format!("runner-test-{name}"),
            kind: Kind::Check,
            command,
            requirements: Requirements {
                needs: needs.iter().map(|need| format!("runner-test-{need}")).collect(),
                ..Requirements::default()
            },
            deadline: Duration::from_secs(60),
        }
    }

    fn errors(jobs: Vec<Job>) -> HashMap<String, Option<String>> {
        let mut seen = HashMap::new();
        progress::step("jobs", |step| {
            run(step, jobs, |_, finished| {
                let error = finished.error.map(|error| format!("{error:#} {}", finished.output));
                seen.insert(finished.name.replace("runner-test-", ""), error);
                Vec::new()
            })
        })
        .unwrap();
        seen
    }

    #[test]
    fn jobs_run_after_their_needs_and_not_after_a_failure() {
        let seen = errors(vec![
            job("c", "true", &["b"]),
            job("b", "exit 3", &["a"]),
            job("a", "true", &[]),
            job("d", "true", &["a"]),
            job("e", "true", &["nothing"]),
        ]);
        assert_eq!(seen["a"], None);
        assert!(seen["b"].as_ref().unwrap().contains("exit status: 3"));
        assert!(seen["c"].as_ref().unwrap().contains("runner-test-b failed"));
        assert_eq!(seen["d"], None);
        assert!(seen["e"].as_ref().unwrap().contains("nothing provides"));
    }

    #[test]
    fn job_past_its_deadline_is_killed_with_its_children_and_named() {
        let hangs = Job {
            deadline: Duration::from_secs(3),
            ..job("hangs", "echo last line; setsid sleep 600 & wait", &[])
        };
        let seen = errors(vec![hangs, job("other", "true", &[])]);
        let error = seen["hangs"].as_ref().unwrap();
        assert!(error.contains("killed at its deadline") && error.contains("last line"), "{error}");
        assert_eq!(seen["other"], None);
    }
}
