//! Power: thousands of simulated BMCs polled by one pxed, and a thousand concurrent power cycles.
//!
//! Half of the BMCs speak Redfish over TLS, half IPMI; each answers after 50 ms, one in a hundred not at all. They run in a process of
//! their own, next to pxed, in a namespace of this run. The simulator reports when a BMC was read: the moment at which it sent its
//! power state. The peer is a plain client, which goes through the same BMCs by a fixed number of workers and waits 30 s for a silent one.

mod burst;
mod plain;
mod site;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;

use crate::measurement::{Better, Context, OURS, Row, rows};
use bedplate_tests::{netns::Namespace, timeline, wait};
use site::{Bmcs, Driver};

/// BMCs, and with `--quick`.
const BMCS: (u16, u16) = (5000, 500);
/// Number of concurrent operations, and with `--quick`.
const OPERATIONS: (usize, usize) = (1000, 100);
/// Interval between two polls of pxed at one BMC, in seconds (moved by a fifth at most).
const POLL_SECONDS: u64 = 30;
/// Number of workers of the plain client that goes through all BMCs.
const MANY_WORKERS: usize = 50;
/// Number of workers of the plain client that goes through a tenth of them.
const FEW_WORKERS: usize = 10;
/// Timeout of a sweep.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(300);

/// Results of one round, by title and subject.
type Numbers = BTreeMap<(usize, String), (f64, String)>;

/// Measures pxed without BMCs, with healthy ones, with dead ones among them, and the plain client, in each round.
///
/// # Errors
/// The namespace cannot be made. A subject that does not do as it should is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let network = Namespace::new("power")?;
    network.ip(&format!("address add {}/16 dev lo", site::ADDRESS))?;
    site::raise_limits()?;
    let count = if context.quick { BMCS.1 } else { BMCS.0 };
    let titles = titles(context);
    let mut measured: BTreeMap<(usize, String), (Vec<f64>, String)> = BTreeMap::new();
    for round in 0..context.rounds {
        let mut round = Round { context, network: &network, count, round, numbers: Numbers::new() };
        let done = round.run();
        for (key, (number, note)) in round.numbers {
            let (rounds, noted) = measured.entry(key).or_default();
            rounds.push(number);
            *noted = note;
        }
        if context.noted("BMCs", OURS, done).is_none() {
            break;
        }
    }
    let mut all = Vec::new();
    for (place, (title, unit)) in titles.iter().enumerate() {
        let subjects = measured.iter().filter(|((of, _), _)| *of == place);
        let subjects = subjects.map(|((_, who), (rounds, note))| (who.clone(), rounds.clone(), note.clone()));
        all.extend(rows(context, title, unit, Better::Less, subjects));
    }
    Ok(all)
}

/// Measurements, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    First,
    Tenth,
    Median,
    Late,
    MedianAlone,
    LateAlone,
    LateRatio,
    Steady,
    SteadyLate,
    SteadyRatio,
    Processor,
    SteadyProcessor,
    Idle,
    Memory,
    Peak,
    Burst,
    BurstMedian,
    BurstLate,
    Lost,
    Wrong,
    Repeats,
}

/// Title and unit of each [`What`].
fn titles(context: &Context) -> Vec<(String, &'static str)> {
    let count = if context.quick { BMCS.1 } else { BMCS.0 };
    let operations = if context.quick { OPERATIONS.1 } else { OPERATIONS.0 };
    let (all, dead) = (format!("{count} BMCs"), "1 % dead");
    let titles = [
        (format!("{all}, {dead}: from start until every healthy one was read"), "s"),
        (format!("{} BMCs, {dead}: until every healthy one was read", count / 10), "s"),
        (format!("{all}, {dead}: median of the healthy, from start until read"), "s"),
        (format!("{all}, {dead}: p99 of the healthy, from start until read"), "s"),
        (format!("{all}, none dead: median, from start until read"), "s"),
        (format!("{all}, none dead: p99, from start until read"), "s"),
        (format!("{all}: p99 until read, with dead ones over without"), "x"),
        (
            format!(
                "{all}, {dead}: polled each {POLL_SECONDS} s: longest interval of polls of a healthy one"
            ),
            "s",
        ),
        (format!("{all}, {dead}: polled each {POLL_SECONDS} s: p99 interval of polls"), "s"),
        (format!("{all}: p99 interval of polls, with dead ones over without"), "x"),
        (format!("{all}, {dead}: processor time of pxed until every healthy one was read"), "s"),
        (format!("{all}, {dead}: processor of pxed while it polls"), "% of one"),
        (format!("Resident memory of pxed, {count} Machines without BMC"), "MiB"),
        (format!("Resident memory of pxed, {all}, {dead}, while it polls"), "MiB"),
        (format!("Resident memory of pxed, {all}, {dead}, the most"), "MiB"),
        (format!("{operations} concurrent powerCycles: until the last is Complete"), "s"),
        (format!("{operations} concurrent powerCycles: median of an operation"), "s"),
        (format!("{operations} concurrent powerCycles: p99 of an operation"), "s"),
        (format!("{operations} concurrent powerCycles: operations lost or failed"), ""),
        (format!("{operations} concurrent powerCycles: machines without exactly one off and one on"), ""),
        (
            format!("{operations} concurrent powerCycles: power requests beyond one off and one on of each"),
            "",
        ),
    ];
    titles.into_iter().collect()
}

struct Round<'c> {
    context: &'c Context,
    network: &'c Namespace,
    count: u16,
    round: usize,
    numbers: Numbers,
}

/// Results of one pxed.
struct Sweeps {
    first: Spread,
    steady: Spread,
}

/// Times of BMCs, in seconds.
struct Spread {
    median: f64,
    late: f64,
    last: f64,
}

impl Spread {
    fn of(mut times: Vec<f64>) -> Result<Self> {
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get((times.len() * part / 100).min(times.len() - 1)).copied();
        ensure!(!times.is_empty(), "nothing was measured");
        let (median, late, last) = (at(50), at(99), times.last().copied());
        let all = median.zip(late).zip(last).context("nothing was measured")?;
        Ok(Self { median: all.0.0, late: all.0.1, last: all.1 })
    }
}

impl Round<'_> {
    fn put(&mut self, what: What, number: f64) {
        self.put_of(what, OURS, number, String::new());
    }

    fn put_of(&mut self, what: What, who: &str, number: f64, note: String) {
        timeline::say(&format!("bench power: {what:?}, {who}: {number:.2} {note}"));
        self.numbers.insert((what as usize, who.to_owned()), (number, note));
    }

    fn run(&mut self) -> Result<()> {
        self.without_bmcs()?;
        let alone = self.with_bmcs(false)?;
        let dead = self.with_bmcs(true)?;
        self.put(What::MedianAlone, alone.first.median);
        self.put(What::LateAlone, alone.first.late);
        self.put(What::LateRatio, dead.first.late / alone.first.late);
        self.put(What::SteadyRatio, dead.steady.late / alone.steady.late);
        Ok(())
    }

    fn place(&self, name: &str) -> std::path::PathBuf {
        self.context.directory.path().join(format!("power-{}-{name}", self.round))
    }

    fn without_bmcs(&mut self) -> Result<()> {
        let driver = Driver::start(self.network, &self.place("without"), &[], self.count)?;
        let resident = driver.memory("VmRSS:")?;
        self.put(What::Idle, resident);
        Ok(())
    }

    /// A new simulator and a new pxed. With dead ones, then the burst and the plain client too.
    fn with_bmcs(&mut self, dead: bool) -> Result<Sweeps> {
        let place = self.place(if dead { "dead" } else { "healthy" });
        let bmcs = Bmcs::start(self.network, &place, self.count, dead)?;
        let started = Timestamp::now();
        let driver = Driver::start(self.network, &place, bmcs.all(), self.count)?;
        let first = sweep(&bmcs, started)?.until;
        let processor = driver.processor()?;
        driver.wait_all_known(bmcs.healthy().count())?;
        let (from, before) = (Timestamp::now(), driver.processor()?);
        let steady = Spread::of(sweep(&bmcs, from)?.gaps)?;
        let busy = 100.0 * (driver.processor()? - before) / seconds(from, Timestamp::now());
        if dead {
            self.put(What::First, first.last);
            self.put(What::Median, first.median);
            self.put(What::Late, first.late);
            self.put(What::Steady, steady.last);
            self.put(What::SteadyLate, steady.late);
            self.put(What::Processor, processor);
            self.put(What::SteadyProcessor, busy);
            let (resident, most) = (driver.memory("VmRSS:")?, driver.memory("VmHWM:")?);
            self.put(What::Memory, resident);
            self.put(What::Peak, most);
            self.burst(&bmcs, &driver)?;
            drop(driver);
            self.plain(&bmcs)?;
        }
        Ok(Sweeps { first, steady })
    }

    fn burst(&mut self, bmcs: &Bmcs, driver: &Driver<'_>) -> Result<()> {
        let count = if self.context.quick { OPERATIONS.1 } else { OPERATIONS.0 };
        let burst = burst::run(bmcs, &driver.socket(), count)?;
        let spread = Spread::of(burst.took)?;
        self.put(What::Burst, spread.last);
        self.put(What::BurstMedian, spread.median);
        self.put(What::BurstLate, spread.late);
        let note = burst.failures.into_iter().take(3).collect::<Vec<_>>().join("; ");
        self.put_of(What::Lost, OURS, burst.lost, note);
        self.put(What::Wrong, burst.wrong);
        self.put(What::Repeats, burst.repeats);
        Ok(())
    }

    fn plain(&mut self, bmcs: &Bmcs) -> Result<()> {
        let all = bmcs.all();
        // Every tenth would miss the dead.
        let tenth = all.get(..all.len() / 10).unwrap_or_default();
        for (what, workers, of) in [(What::First, MANY_WORKERS, all), (What::Tenth, FEW_WORKERS, tenth)] {
            let who = format!("plain client, {workers} workers");
            let times = plain::run(self.network, of, workers);
            let Some(times) = self.context.noted("BMCs", &who, times) else { continue };
            let silent = of.len() - times.len();
            let spread = Spread::of(times)?;
            let note = format!("{silent} did not answer");
            self.put_of(what, &who, spread.last, note.clone());
            if what == What::First {
                self.put_of(What::Median, &who, spread.median, note.clone());
                self.put_of(What::Late, &who, spread.late, note);
            }
        }
        Ok(())
    }
}

/// Waits until each healthy BMC has sent its state since `from`: after which time, and how long after the time before.
fn sweep(bmcs: &Bmcs, from: Timestamp) -> Result<Sweep> {
    let mut missing = 0;
    let mut looked = Instant::now();
    let all = wait::until("every healthy BMC to be read", SWEEP_TIMEOUT, || {
        // Looking costs the simulator time: once a second is enough, as it says when.
        if looked.elapsed() < Duration::from_secs(1) {
            return Ok(None);
        }
        let report_times = bmcs.report_times()?;
        looked = Instant::now();
        let times = bmcs.healthy().map(|bmc| {
            let times = report_times.get(&bmc.name)?;
            let first = times.iter().position(|time| *time > from)?;
            let before = first.checked_sub(1).and_then(|last| times.get(last));
            let time = times.get(first)?;
            Some((seconds(from, *time), before.map(|before| seconds(*before, *time)), bmc.name.clone()))
        });
        let times: Vec<Option<(f64, Option<f64>, String)>> = times.collect();
        missing = times.iter().filter(|time| time.is_none()).count();
        Ok(times.into_iter().collect::<Option<Vec<_>>>())
    });
    let mut all = all.with_context(|| format!("{missing} were not read"))?;
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let last: Vec<String> =
        all.iter().rev().take(4).map(|(time, _, name)| format!("{name} {time:.1} s")).collect();
    timeline::say(&format!("bench power: read last: {}", last.join(", ")));
    let gaps: Vec<f64> = all.iter().filter_map(|(_, gap, _)| *gap).collect();
    let until = Spread::of(all.into_iter().map(|(time, ..)| time).collect())?;
    Ok(Sweep { until, gaps })
}

/// One poll of every healthy BMC.
struct Sweep {
    /// Since its beginning.
    until: Spread,
    /// Since the poll before, if there was one.
    gaps: Vec<f64>,
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
