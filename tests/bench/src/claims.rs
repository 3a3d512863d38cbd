//! The infrastructure provider: hundreds of BedplateMachines that want a host concurrently, of thousands of hosts; then their release.
//!
//! Simulated agents answer immediately (`agents`), and this process stands in for the controllers of Cluster API (`site`), so the times are the
//! provider's with the API server's. They share this machine's processors. The peer is the floor: the same writes alone.

mod agents;
mod floor;
mod shortage;
pub(crate) mod site;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, ensure};
use tokio::runtime::Runtime;

use self::agents::Agents;
use self::floor::FLOOR;
use self::site::{Provider, Selectors, Site, Size};
use crate::controller::{QUIET_TIME, count};
use crate::measurement::{Better, Context, OURS, Row, rows};

/// Objects, and with `--quick`.
const SIZES: (Size, Size) = (Size { hosts: 2000, claims: 500 }, Size { hosts: 200, claims: 50 });
/// Objects of the shortage of hosts, and with `--quick`.
const SHORTAGES: (Size, Size) = (Size { hosts: 100, claims: 500 }, Size { hosts: 10, claims: 50 });

const FULL: &str = "until all hosts are claimed, and the others wait";
const SERVED: &str = "the holders deleted: until all hosts are claimed again";
const BUSY: &str = "processor time of the provider until then";

/// Measured quantities, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Placed,
    Each,
    Joined,
    Conflicts,
    Released,
    Writes,
    Processor,
    Peak,
    ShortPlaced,
    ShortServed,
    ShortReads,
    ShortProcessor,
    OwnPlaced,
    OwnServed,
    OwnProcessor,
}

const ALL: [What; 15] = [
    What::Placed,
    What::Each,
    What::Joined,
    What::Conflicts,
    What::Released,
    What::Writes,
    What::Processor,
    What::Peak,
    What::ShortPlaced,
    What::ShortServed,
    What::ShortReads,
    What::ShortProcessor,
    What::OwnPlaced,
    What::OwnServed,
    What::OwnProcessor,
];

/// Title and unit.
fn title(what: What, Size { hosts, claims }: Size) -> (String, &'static str) {
    let of = |what: &str| format!("{claims} concurrent claims, {hosts} hosts: {what}");
    let own = |what: &str| of(&format!("each with a selector of its own: {what}"));
    match what {
        What::Placed => (of("until all have a providerID"), "s"),
        What::Each => (of("the same, for each claim"), "ms"),
        What::Joined => (of("until all are granted, joined and Ready"), "s"),
        What::Conflicts => (of("refused writes (409) for each claim"), ""),
        What::Released => (of("all deleted: until all are gone"), "s"),
        What::Writes => (of("writes of the provider for a whole life, but Events"), ""),
        What::Processor => (of("processor time of the provider"), "s"),
        What::Peak => (of("resident memory of the provider, maximum"), "MiB"),
        What::ShortPlaced => (of(FULL), "s"),
        What::ShortServed => (of(SERVED), "s"),
        What::ShortReads => (of("reads of a version by the provider, for each claim"), ""),
        What::ShortProcessor => (of(BUSY), "s"),
        What::OwnPlaced => (own(FULL), "s"),
        What::OwnServed => (own(SERVED), "s"),
        What::OwnProcessor => (own(BUSY), "s"),
    }
}

/// Measured values, by quantity and subject.
type Numbers = BTreeMap<(What, &'static str), (Vec<f64>, String)>;

/// Measures the provider in each round, and the floor in the first.
///
/// # Errors
/// The runtime cannot be made. What fails later is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let runtime = Runtime::new()?;
    let size = if context.quick { SIZES.1 } else { SIZES.0 };
    let mut numbers = Numbers::new();
    for round in 0..context.rounds {
        context.noted("claims", OURS, runtime.block_on(ours(context, size, round, &mut numbers)));
        if round == 0 {
            context.noted("claims", FLOOR, runtime.block_on(floor(size, &mut numbers)));
        }
    }
    Ok(table(context, &numbers, size))
}

/// Measures the provider while there are fewer hosts than claimants: without selectors, then with a selector of each claimant.
///
/// # Errors
/// The runtime cannot be made. What fails later is noted.
pub(crate) fn run_short(context: &Context) -> Result<Vec<Row>> {
    let runtime = Runtime::new()?;
    let size = if context.quick { SHORTAGES.1 } else { SHORTAGES.0 };
    let mut numbers = Numbers::new();
    for round in 0..context.rounds {
        for selectors in [Selectors::None, Selectors::Own] {
            let measured = shortage::run(context, (size, selectors), round, &mut numbers);
            context.noted("shortage", OURS, runtime.block_on(measured));
        }
    }
    Ok(table(context, &numbers, size))
}

/// Returns the rows of the quantities that were measured.
fn table(context: &Context, numbers: &Numbers, size: Size) -> Vec<Row> {
    let row = |what| {
        let subjects = numbers.iter().filter(|((of, _), _)| *of == what);
        let subjects =
            subjects.map(|((_, who), (rounds, note))| ((*who).to_owned(), rounds.clone(), note.clone()));
        let (title, unit) = title(what, size);
        rows(context, &title, unit, Better::Less, subjects)
    };
    ALL.into_iter().flat_map(row).collect()
}

fn put(numbers: &mut Numbers, what: What, who: &'static str, number: f64, note: &str) {
    let (rounds, noted) = numbers.entry((what, who)).or_default();
    rounds.push(number);
    note.clone_into(noted);
}

async fn ours(context: &Context, size: Size, round: usize, numbers: &mut Numbers) -> Result<()> {
    let site = Site::start(size, Selectors::None).await?;
    let place = context.directory.path().join(format!("claims-{round}"));
    let mut provider = Provider::start(&site, &place).await?;
    let agents = Agents::start(&site.client);
    let (conflicts, processor) = (site.conflicts().await?, provider.processor()?);
    let written = provider.until_quiet(QUIET_TIME).await?;
    let started = Instant::now();
    site.provision().await?;
    site.until("that all claimants have a host", |seen| seen.placed().count() == size.claims).await?;
    let placed = started.elapsed().as_secs_f64();
    site.until("that all claimants are Ready", |seen| seen.ready().count() == size.claims).await?;
    let joined = started.elapsed().as_secs_f64();
    site.ensure_no_host_twice()?;
    let refused: BTreeMap<String, f64> = site.conflicts().await?;
    let refused = refused.into_iter().map(|(who, all)| (all - conflicts.get(&who).unwrap_or(&0.0), who));
    let refused: Vec<(f64, String)> = refused.filter(|(number, _)| *number > 0.0).collect();
    provider.until_quiet(QUIET_TIME).await?;
    let started = Instant::now();
    site.delete_claimants().await?;
    site.until("that all claimants are gone", |seen| seen.count() == 0).await?;
    let released = started.elapsed().as_secs_f64();
    let writes = (provider.until_quiet(QUIET_TIME).await? - written) / count(size.claims);
    ensure!(agents.failures() == 0, "{} reports of agents were refused", agents.failures());
    put(numbers, What::Placed, OURS, placed, "");
    let note = format!("{:.0} claims a second", count(size.claims) / placed);
    put(numbers, What::Each, OURS, 1000.0 * placed / count(size.claims), &note);
    put(numbers, What::Joined, OURS, joined, "");
    let all: f64 = refused.iter().map(|(number, _)| number).sum();
    let whose: Vec<String> = refused.into_iter().map(|(number, who)| format!("{who}: {number:.0}")).collect();
    put(numbers, What::Conflicts, OURS, all / count(size.claims), &whose.join(", "));
    put(numbers, What::Released, OURS, released, "");
    put(numbers, What::Writes, OURS, writes, "");
    put(numbers, What::Processor, OURS, provider.processor()? - processor, "claimed and released");
    put(numbers, What::Peak, OURS, provider.memory("VmHWM:")?, "");
    provider.end()
}

async fn floor(size: Size, numbers: &mut Numbers) -> Result<()> {
    let site = Site::start(size, Selectors::None).await?;
    let started = Instant::now();
    let writes = floor::place(&site).await?;
    let placed = started.elapsed().as_secs_f64();
    put(numbers, What::Placed, FLOOR, placed, "");
    put(numbers, What::Each, FLOOR, 1000.0 * placed / count(size.claims), "");
    put(numbers, What::Writes, FLOOR, count(writes) / count(size.claims), "until the providerID alone");
    Ok(())
}
