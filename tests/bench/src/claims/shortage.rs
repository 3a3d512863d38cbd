//! Fewer hosts than claimants: the hosts are claimed, their holders are deleted, and the next claimants are served.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::agents::Agents;
use super::site::{Provider, Selectors, Site, Size};
use super::{Numbers, What, put};
use crate::controller::{QUIET_TIME, count};
use crate::measurement::{Context, OURS};

/// Resource of the versions of configurations.
const VERSIONS: &str = "machineconfigurationversions";

pub(super) async fn run(
    context: &Context,
    (size, selectors): (Size, Selectors),
    round: usize,
    numbers: &mut Numbers,
) -> Result<()> {
    let site = Site::start(size, selectors).await?;
    site.publish_version().await?;
    let place = context.directory.path().join(format!("shortage-{selectors:?}-{round}"));
    let mut provider = Provider::start(&site, &place).await?;
    let agents = Agents::start(&site.client);
    provider.until_quiet(QUIET_TIME).await?;
    let (processor, reads) = (provider.processor()?, site.reads(VERSIONS).await?);
    let started = Instant::now();
    site.provision().await?;
    let waiting = size.claims - size.hosts;
    site.until("that all hosts are claimed", |seen| {
        seen.placed().count() == size.hosts && seen.waiting().count() == waiting
    })
    .await?;
    let placed = started.elapsed().as_secs_f64();
    site.until("that all holders are Ready", |seen| seen.ready().count() == size.hosts).await?;
    let started = Instant::now();
    site.delete_holders().await?;
    site.until("that all hosts are claimed again", |seen| {
        seen.count() == waiting && seen.placed().count() == size.hosts
    })
    .await?;
    let served = started.elapsed().as_secs_f64();
    ensure!(agents.failures() == 0, "{} reports of agents were refused", agents.failures());
    let reads = site.reads(VERSIONS).await? - reads;
    let processor = provider.processor()? - processor;
    println!("{selectors:?}, round {round}: {placed:.1} s, {served:.1} s, processor {processor:.1} s");
    let (full, again, busy) = match selectors {
        Selectors::None => (What::ShortPlaced, What::ShortServed, What::ShortProcessor),
        Selectors::Own => (What::OwnPlaced, What::OwnServed, What::OwnProcessor),
    };
    put(numbers, full, OURS, placed, "");
    put(numbers, again, OURS, served, "");
    put(numbers, busy, OURS, processor, "");
    if selectors == Selectors::None {
        put(numbers, What::ShortReads, OURS, reads / count(2 * size.hosts), "");
    }
    provider.end()
}
