//! The controller: ten thousand Machines and fifty configurations on a real API server, reconciled for the first time, then changed one
//! by one, then at rest.
//!
//! Machines are enrolled and have nothing: selectors choose for half, the other half names its configuration. The API server and etcd share
//! this machine's processors with the controller, so their use is reported, too. The peers are a plain controller in this
//! process (`plain`) and Tinkerbell's (`tink`).

mod floor;
pub(crate) mod latency;
mod plain;
pub(crate) mod site;
mod tink;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::Runtime;

use self::plain::Plain;
use self::site::{Controller, STEP_TIMEOUT, Site, Size};
use crate::measurement::{Better, Context, OURS, Row, rows};
use bedplate_tests::timeline;

/// Number of objects, and with `--quick`.
const SIZES: (Size, Size) =
    (Size { machines: 10_000, configurations: 50 }, Size { machines: 1000, configurations: 10 });
/// Changes of single Machines, and with `--quick`.
const PHASES: (usize, usize) = (400, 40);
/// Edits of configurations, and with `--quick`.
const EDITS: (usize, usize) = (60, 10);
/// Time without a write after which none follows: counts are written after 8 s at the latest.
pub(crate) const QUIET_TIME: Duration = Duration::from_secs(10);
// The bench `core` uses this name.
pub(crate) use self::QUIET_TIME as QUIET;
/// The peer that keeps the same rules.
const PLAIN: &str = "plain, one worker, GET and PUT";

/// Results of one round, by title and subject.
type Numbers = BTreeMap<(usize, &'static str), (f64, String)>;

/// Measures ours in each round, and the peers in the first.
///
/// # Errors
/// The runtime cannot be made. What fails after that is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let runtime = Runtime::new()?;
    let size = if context.quick { SIZES.1 } else { SIZES.0 };
    let mut measured: BTreeMap<(usize, &'static str), (Vec<f64>, String)> = BTreeMap::new();
    for round in 0..context.rounds {
        let mut round = Round { context, size, round, numbers: Numbers::new() };
        let done = runtime.block_on(round.ours());
        context.noted("controller", OURS, done);
        if round.round == 0 {
            let done = runtime.block_on(round.floor());
            context.noted("controller", floor::FLOOR, done);
            let done = runtime.block_on(round.plain());
            context.noted("controller", PLAIN, done);
            let done = runtime.block_on(round.tink());
            context.noted("controller", tink::LIMITED, done);
        }
        for (key, (number, note)) in round.numbers {
            let (rounds, noted) = measured.entry(key).or_default();
            rounds.push(number);
            *noted = note;
        }
    }
    let mut all = Vec::new();
    for (place, (title, unit)) in titles(size).into_iter().enumerate() {
        let subjects = measured.iter().filter(|((of, _), _)| *of == place);
        let subjects =
            subjects.map(|((_, who), (rounds, note))| ((*who).to_owned(), rounds.clone(), note.clone()));
        all.extend(rows(context, &title, unit, Better::Less, subjects));
    }
    Ok(all)
}

/// Measurements, in the order of the table.
#[derive(Debug, Clone, Copy)]
enum What {
    Sync,
    Each,
    SyncRequests,
    SyncServer,
    SyncProcessor,
    Phase,
    PhaseLate,
    PhaseWrites,
    Edit,
    EditLate,
    EditWrites,
    Peak,
    Rest,
    RestProcessor,
    Restart,
    RestartWrites,
}

/// Title and unit of each [`What`].
fn titles(size: Size) -> Vec<(String, &'static str)> {
    let all = format!("{} Machines, {} configurations", size.machines, size.configurations);
    let of = |what: &str| format!("{all}: {what}");
    vec![
        (of("from start until every Machine has a version and a phase"), "s"),
        (of("the same, for each Machine that has them"), "ms"),
        (of("requests until then, for each Machine"), ""),
        (of("processors that API server and etcd took meanwhile, of all"), "%"),
        (of("processor time of the controller until then"), "s"),
        (of("a Machine's status changes: median until its phase"), "ms"),
        (of("a Machine's status changes: p99 until its phase"), "ms"),
        (of("writes for each such change"), ""),
        (of("a configuration is edited: median until its version"), "ms"),
        (of("a configuration is edited: p99 until its version"), "ms"),
        (of("writes for each edit, but those of Machines"), ""),
        (of("resident memory, the most"), "MiB"),
        (of("resident memory, at rest"), "MiB"),
        (of("processor at rest"), "% of one"),
        (of("started again over an unchanged cluster: until it leads and has reconciled all"), "s"),
        (of("started again over an unchanged cluster: writes"), ""),
    ]
}

struct Round<'c> {
    context: &'c Context,
    size: Size,
    round: usize,
    numbers: Numbers,
}

impl Round<'_> {
    fn put(&mut self, what: What, who: &'static str, number: f64, note: String) {
        timeline::say(&format!("bench controller: {what:?}, {who}: {number:.2} {note}"));
        self.numbers.insert((what as usize, who), (number, note));
    }

    fn times(&mut self, (median, late): (What, What), who: &'static str, mut times: Vec<f64>) -> Result<()> {
        times.sort_by(f64::total_cmp);
        let at =
            |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1))).copied();
        let (fifty, ninety_nine) = at(50).zip(at(99)).context("nothing was measured")?;
        self.put(median, who, fifty, String::new());
        self.put(late, who, ninety_nine, format!("of {}", times.len()));
        Ok(())
    }

    /// A cluster with its objects, and how long they took.
    async fn site(&self, protected: bool) -> Result<Site> {
        let started = Instant::now();
        let site = Site::start(self.size, protected).await?;
        timeline::say(&format!("bench controller: objects made in {:.1} s", started.elapsed().as_secs_f64()));
        Ok(site)
    }

    async fn ours(&mut self) -> Result<()> {
        let site = self.site(true).await?;
        let place = self.context.directory.path().join(format!("controller-{}", self.round));
        let (server, requests) = (site.processor()?, site.requests().await?);
        let started = Instant::now();
        let mut controller = Controller::start(&site, &place)?;
        controller.until_it_leads().await?;
        let waited = started.elapsed().as_secs_f64();
        controller.until_idle(count(self.size.machines)).await?;
        let took = started.elapsed().as_secs_f64();
        let (server, own) = (site.processor()? - server, controller.processor()?);
        // The last writes may still be on their way.
        let mut chosen = 0;
        for _ in 0..3 {
            chosen = chosen.max(site.chosen().await?);
        }
        ensure!(chosen == self.size.machines, "{chosen} Machines have a version");
        let written = controller.until_quiet(QUIET_TIME).await?;
        let asked = site.requests().await?;
        let (events, asked) = (asked[0] - requests[0], asked[1] - requests[1]);
        let note =
            format!("{written:.0} writes of all objects until it was quiet, and {events:.0} of Events");
        self.put(What::SyncRequests, OURS, asked / count(self.size.machines), note);
        self.synced(OURS, took, server, own)?;
        let note = format!("{waited:.1} s of it until it leads, of a site that has no Lease yet");
        self.put(What::Sync, OURS, took, note);
        self.changes(&site, &mut controller).await?;
        self.rest(&controller, OURS).await?;
        controller.end()?;
        let started = Instant::now();
        let mut controller = Controller::start(&site, &place)?;
        controller.until_idle(0.0).await?;
        self.put(What::Restart, OURS, started.elapsed().as_secs_f64(), String::new());
        let written = controller.until_quiet(QUIET_TIME).await?;
        self.put(What::RestartWrites, OURS, written, String::new());
        controller.end()
    }

    /// Records the time of a first pass over all objects, and the processor seconds of the server and the controller in it.
    fn synced(&mut self, who: &'static str, took: f64, server: f64, own: f64) -> Result<()> {
        self.written(who, took, server)?;
        self.put(What::SyncProcessor, who, own, String::new());
        Ok(())
    }

    /// Records the time until all were written, and the processor seconds of the server in it.
    fn written(&mut self, who: &'static str, took: f64, server: f64) -> Result<()> {
        let all = count(self.size.machines);
        self.put(What::Sync, who, took, String::new());
        self.put(What::Each, who, 1000.0 * took / all, String::new());
        let share = 100.0 * server / took / count(std::thread::available_parallelism()?.get());
        let note = format!("{:.2} ms for each Machine", 1000.0 * server / all);
        self.put(What::SyncServer, who, share, note);
        Ok(())
    }

    async fn rest(&mut self, controller: &Controller, who: &'static str) -> Result<()> {
        let (peak, busy) = (controller.memory("VmHWM:")?, controller.processor()?);
        tokio::time::sleep(QUIET_TIME).await;
        self.put(What::Peak, who, peak, String::new());
        self.put(What::Rest, who, controller.memory("VmRSS:")?, String::new());
        let share = 100.0 * (controller.processor()? - busy) / QUIET_TIME.as_secs_f64();
        self.put(What::RestProcessor, who, share, String::new());
        Ok(())
    }

    async fn changes(&mut self, site: &Site, controller: &mut Controller) -> Result<()> {
        let (phases, edits) = if self.context.quick { (PHASES.1, EDITS.1) } else { (PHASES.0, EDITS.0) };
        let before = controller.writes("").await?;
        let times = latency::phases(site, phases).await?;
        self.times((What::Phase, What::PhaseLate), OURS, times)?;
        let after = controller.until_quiet(QUIET_TIME).await?;
        self.put(What::PhaseWrites, OURS, (after - before) / count(phases), String::new());
        let of_machines = controller.writes("kind=\"Machine\"").await?;
        let times = latency::edits(site, edits, 1).await?;
        self.times((What::Edit, What::EditLate), OURS, times)?;
        let all = controller.until_quiet(QUIET_TIME).await?;
        let of_machines = controller.writes("kind=\"Machine\"").await? - of_machines;
        let note =
            format!("and {:.0} of Machines, whose Ready names the newer version", of_machines / count(edits));
        self.put(What::EditWrites, OURS, (all - after - of_machines) / count(edits), note);
        Ok(())
    }

    async fn plain(&mut self) -> Result<()> {
        let site = self.site(false).await?;
        let started = Instant::now();
        let plain = Plain::start(&site.client);
        while plain.chosen() < self.size.machines {
            ensure!(started.elapsed() < STEP_TIMEOUT, "only {} Machines have a version", plain.chosen());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let took = started.elapsed().as_secs_f64();
        self.put(What::Sync, PLAIN, took, String::new());
        self.put(What::Each, PLAIN, 1000.0 * took / count(self.size.machines), String::new());
        let requests = count(plain.requests()) / count(self.size.machines);
        self.put(What::SyncRequests, PLAIN, requests, "lists not counted".to_owned());
        let (phases, edits) = if self.context.quick { (PHASES.1, EDITS.1) } else { (PHASES.0, EDITS.0) };
        let times = latency::phases(&site, phases / 4).await?;
        self.times((What::Phase, What::PhaseLate), PLAIN, times)?;
        let times = latency::edits(&site, edits / 4, 1).await?;
        self.times((What::Edit, What::EditLate), PLAIN, times)
    }
}

pub(crate) fn count(number: usize) -> f64 {
    number as f64
}
