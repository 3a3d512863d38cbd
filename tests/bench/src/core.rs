//! The core controllers of Cluster API: thousands of Machines in tens of Clusters, from a MachineDeployment of each Cluster until they are gone.
//!
//! Subjects are `bedplate-cluster --controllers core` and upstream's core manager. Each has an API server of its own with the same objects.
//! This process stands in for the providers (`provider`) and for the workload clusters (`workload`). Writes are counted by the audit log.

mod latency;
mod objects;
mod provider;
mod site;
mod subject;
mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bedplate_tests::cluster_api::CoreManager;
use bedplate_tests::timeline;
use tokio::runtime::Runtime;

use self::site::{Site, Size};
use self::subject::{Subject, UPSTREAM};
use crate::controller::site::Controller;
use crate::controller::{QUIET, count};
use crate::measurement::{Better, Context, OURS, Row, rows};

/// Objects, and with `--quick`.
const SIZES: (Size, Size) = (Size { clusters: 50, replicas: 40 }, Size { clusters: 4, replicas: 10 });
/// Changes of infrastructure objects, and with `--quick`.
const CHANGES: (usize, usize) = (400, 40);
/// Duration of the rest, and with `--quick`.
const RESTS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));
/// Time for which a workload cluster hangs before changes are measured, and with `--quick`.
const HANGS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(15));
/// Index of the workload cluster that hangs.
const HANGING_CLUSTER_INDEX: usize = 1;
/// Number of resources that a note names.
const SHOWN_LINES: usize = 5;

/// Measured quantities, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    First,
    FirstProcessor,
    FirstServer,
    Change,
    ChangeLate,
    ChangeWrites,
    Rest,
    Peak,
    RestProcessor,
    RestWrites,
    Restart,
    RestartWrites,
    Hanging,
    HangingLate,
    Gone,
    LifeWrites,
}

const ALL: [What; 16] = [
    What::First,
    What::FirstProcessor,
    What::FirstServer,
    What::Change,
    What::ChangeLate,
    What::ChangeWrites,
    What::Rest,
    What::Peak,
    What::RestProcessor,
    What::RestWrites,
    What::Restart,
    What::RestartWrites,
    What::Hanging,
    What::HangingLate,
    What::Gone,
    What::LifeWrites,
];

/// Title and unit.
fn title(what: What, size: Size) -> (String, &'static str) {
    let (what, unit) = match what {
        What::First => ("from start until every Machine is Running", "s"),
        What::FirstProcessor => ("processor time of the core until then", "s"),
        What::FirstServer => ("processors that API server and etcd took meanwhile, of all", "%"),
        What::Change => ("an infrastructure object changes: median until its Machine shows it", "ms"),
        What::ChangeLate => ("an infrastructure object changes: p99 until its Machine shows it", "ms"),
        What::ChangeWrites => ("writes of Machines for each such change", ""),
        What::Rest => ("resident memory at rest", "MiB"),
        What::Peak => ("resident memory, maximum", "MiB"),
        What::RestProcessor => ("processor at rest", "% of one"),
        What::RestWrites => ("writes at rest, in a minute", ""),
        What::Restart => ("started again over unchanged objects: until all are reconciled", "s"),
        What::RestartWrites => ("started again over unchanged objects: writes", ""),
        What::Hanging => ("one workload cluster hangs: median of a change in another one", "ms"),
        What::HangingLate => ("one workload cluster hangs: p99 of a change in another one", "ms"),
        What::Gone => ("all MachineDeployments deleted: until no Machine is left", "s"),
        What::LifeWrites => ("writes for the life of a Machine, from its creation until it is gone", ""),
    };
    (format!("{} Machines, {} Clusters: {what}", size.machines(), size.clusters), unit)
}

/// Measured values, by quantity and subject.
type Numbers = BTreeMap<(What, &'static str), (Vec<f64>, String)>;

/// Measures both cores in each round.
///
/// # Errors
/// The runtime cannot be made. A later failure is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let runtime = Runtime::new()?;
    let size = if context.quick { SIZES.1 } else { SIZES.0 };
    let mut numbers = Numbers::new();
    for round in 0..context.rounds {
        for name in [OURS, UPSTREAM] {
            let measured = async {
                let subject =
                    if name == OURS { Subject::Ours } else { Subject::Upstream(CoreManager::new()?) };
                let place = context.directory.path().join(format!("core-{name}-{round}"));
                let mut turn = Turn::start(context, size, subject, place, &mut numbers).await?;
                turn.run().await
            };
            let measured = runtime.block_on(measured);
            context.noted("core", name, measured);
        }
    }
    let row = |what| {
        let subjects = numbers.iter().filter(|((of, _), _)| *of == what);
        let subjects =
            subjects.map(|((_, who), (rounds, note))| ((*who).to_owned(), rounds.clone(), note.clone()));
        let (title, unit) = title(what, size);
        rows(context, &title, unit, Better::Less, subjects)
    };
    Ok(ALL.into_iter().flat_map(row).collect())
}

/// One core in one round.
struct Turn<'a> {
    context: &'a Context,
    subject: Subject,
    site: Site,
    /// Directory of the logs.
    place: PathBuf,
    numbers: &'a mut Numbers,
}

impl<'a> Turn<'a> {
    async fn start(
        context: &'a Context,
        size: Size,
        subject: Subject,
        place: PathBuf,
        numbers: &'a mut Numbers,
    ) -> Result<Self> {
        let started = Instant::now();
        let site = Site::start(size, &subject).await?;
        timeline::say(&format!("bench core: objects made in {:.1} s", started.elapsed().as_secs_f64()));
        Ok(Self { context, subject, site, place, numbers })
    }

    fn put(&mut self, what: What, number: f64, note: &str) {
        let who = self.subject.name();
        timeline::say(&format!("bench core: {what:?}, {who}: {number:.2} {note}"));
        let (rounds, noted) = self.numbers.entry((what, who)).or_default();
        rounds.push(number);
        note.clone_into(noted);
    }

    fn of<T>(&self, (full, quick): (T, T)) -> T {
        if self.context.quick { quick } else { full }
    }

    async fn run(&mut self) -> Result<()> {
        let mut core = self.subject.spawn(&self.site.kubernetes, &self.place)?;
        let before = BTreeMap::new();
        let first = self.first(&core).await?;
        self.changes((What::Change, What::ChangeLate), None).await?;
        self.rest(&core).await?;
        core.end()?;
        core = self.restart().await?;
        self.hang().await?;
        let last = self.site.until_quiet(QUIET).await?;
        let gone = self.gone().await?;
        self.life(&[(before, first), (last, gone)]);
        core.end()
    }

    /// Measures the first reconciliation. Returns the writes until it was quiet.
    async fn first(&mut self, core: &Controller) -> Result<BTreeMap<String, u64>> {
        let (server, started) = (self.site.processor()?, Instant::now());
        self.site.until_running().await?;
        let (took, about) = (started.elapsed().as_secs_f64(), self.subject.about());
        let (server, own) = (self.site.processor()? - server, core.processor()?);
        self.put(What::First, took, &about);
        self.put(What::FirstProcessor, own, "");
        let share = 100.0 * server / took / count(std::thread::available_parallelism()?.get());
        let note = format!("{:.1} ms for each Machine", 1000.0 * server / count(self.site.size.machines()));
        self.put(What::FirstServer, share, &note);
        let written = self.site.until_quiet(QUIET).await?;
        let note = top(&written, self.site.size.machines());
        timeline::say(&format!("bench core: writes of {}: {note}", self.subject.name()));
        Ok(written)
    }

    async fn changes(&mut self, (median, late): (What, What), hanging: Option<usize>) -> Result<()> {
        let before = self.site.writes()?;
        let mut times = latency::changes(&self.site, self.of(CHANGES), hanging).await?;
        times.sort_by(f64::total_cmp);
        let last = times.len().saturating_sub(1);
        let at = |part: usize| times.get((times.len() * part / 100).min(last)).copied();
        let (fifty, ninety_nine) = at(50).zip(at(99)).context("nothing was measured")?;
        self.put(median, fifty, "");
        self.put(late, ninety_nine, &format!("of {}", times.len()));
        if hanging.is_none() {
            let written = added(&before, &self.site.until_quiet(QUIET).await?);
            let is_of_machine = |(key, _): &(&String, &u64)| key.contains(" machines");
            let of_machines: u64 = written.iter().filter(is_of_machine).map(|(_, number)| number).sum();
            let note = format!("all writes: {}", top(&written, times.len()));
            self.put(What::ChangeWrites, number(of_machines) / count(times.len()), &note);
        }
        Ok(())
    }

    async fn rest(&mut self, core: &Controller) -> Result<()> {
        let (before, busy, rest) = (self.site.until_quiet(QUIET).await?, core.processor()?, self.of(RESTS));
        tokio::time::sleep(rest).await;
        let seconds = rest.as_secs_f64();
        let (share, memory) = (100.0 * (core.processor()? - busy) / seconds, core.memory("VmRSS:")?);
        let peak = core.memory("VmHWM:")?;
        let written = added(&before, &self.site.writes()?);
        self.put(What::Rest, memory, "");
        self.put(What::Peak, peak, "");
        self.put(What::RestProcessor, share, "");
        self.put(What::RestWrites, total(&written) * 60.0 / seconds, &top(&written, 1));
        Ok(())
    }

    async fn restart(&mut self) -> Result<Controller> {
        let (before, size) = (self.site.writes()?, self.site.size);
        let started = Instant::now();
        let mut core = self.subject.spawn(&self.site.kubernetes, &self.place)?;
        let subject = &self.subject;
        core.until(|metrics| subject.is_idle(metrics, size)).await?;
        let (took, about) = (started.elapsed().as_secs_f64(), self.subject.about());
        self.put(What::Restart, took, &about);
        let written = added(&before, &self.site.until_quiet(QUIET).await?);
        self.put(What::RestartWrites, total(&written), &top(&written, 1));
        Ok(core)
    }

    async fn hang(&mut self) -> Result<()> {
        self.site.workloads.hang(HANGING_CLUSTER_INDEX, true)?;
        tokio::time::sleep(self.of(HANGS)).await;
        let measured = self.changes((What::Hanging, What::HangingLate), Some(HANGING_CLUSTER_INDEX)).await;
        self.site.workloads.hang(HANGING_CLUSTER_INDEX, false)?;
        measured
    }

    /// Measures the deletion. Returns the writes until it was quiet.
    async fn gone(&mut self) -> Result<BTreeMap<String, u64>> {
        let started = Instant::now();
        self.site.delete_deployments().await?;
        self.site.until_gone().await?;
        let took = started.elapsed().as_secs_f64();
        self.put(What::Gone, took, &format!("{} Nodes left", self.site.workloads.nodes()));
        self.site.until_quiet(QUIET).await
    }

    /// Adds the writes of phases, each given by the counts before and after it.
    fn life(&mut self, phases: &[(Counts, Counts)]) {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        for (key, number) in phases.iter().flat_map(|(before, after)| added(before, after)) {
            *all.entry(key).or_default() += number;
        }
        let machines = self.site.size.machines();
        let nodes = number(self.site.workloads.writes()) / count(machines);
        let note = format!("for each: {}; and {nodes:.1} of Nodes", top(&all, machines));
        self.put(What::LifeWrites, total(&all) / count(machines), &note);
    }
}

/// Writes by user and resource.
type Counts = BTreeMap<String, u64>;

/// Returns the writes after a state of the counts.
fn added(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let since = |(key, number): (&String, &u64)| {
        let more = number - before.get(key).copied().unwrap_or_default();
        (more > 0).then(|| (key.clone(), more))
    };
    after.iter().filter_map(since).collect()
}

fn total(written: &BTreeMap<String, u64>) -> f64 {
    number(written.values().sum())
}

/// Returns the most frequent writes, divided by a number of objects.
fn top(written: &BTreeMap<String, u64>, among: usize) -> String {
    let mut all: Vec<_> = written.iter().collect();
    all.sort_by_key(|(_, number)| std::cmp::Reverse(**number));
    let shown =
        all.iter().take(SHOWN_LINES).map(|(key, of)| format!("{key} {:.2}", number(**of) / count(among)));
    shown.collect::<Vec<_>>().join(", ")
}

fn number(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
        all.iter().map(|(key, number)| ((*key).to_owned(), *number)).collect()
    }

    #[test]
    fn writes_of_a_phase_are_those_since_its_start() {
        let before = counts(&[("patch machines", 3), ("create machines", 2)]);
        let after = counts(&[("patch machines", 8), ("create machines", 2), ("delete machines", 1)]);
        let written = added(&before, &after);
        assert_eq!(written, counts(&[("patch machines", 5), ("delete machines", 1)]));
        assert_eq!(top(&written, 2), "patch machines 2.50, delete machines 0.50");
        assert_eq!(total(&written), 6.0);
    }
}
