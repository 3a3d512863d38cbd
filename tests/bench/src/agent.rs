//! The agent: time until a kubelet starts after its Node was deleted, and the agent's use of memory and processor at rest.
//!
//! In namespaces, with a real API server, as in `agent_host`: the kubelet is a stand-in that reports when it listens. The peer is a
//! plain script: each layer through `curl | zstd | tar`, the version's files put in, the container started by systemd-nspawn. It
//! starts from nothing, as a repave without prefetch would; it neither verifies nor joins.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::measurement::{Better, Context, OURS, Row, rows};
use bedplate_tests::agent_host::{AgentHost, JOINS, NODE_TIMEOUT, STARTED, fill, has_applied, image};
use bedplate_tests::guard;
use bedplate_tests::registry::Registry;
use bedplate_tests::{timeline, wait};

const SHELL: &str = "curl, tar, nspawn";
const HEARTBEAT_SECONDS: u32 = 60;
/// Delay until the agent is at rest: the work of a repave is finished, and threads that waited for disks have ended.
const SETTLE_DELAY: Duration = Duration::from_secs(30);

/// Repaves as often as there are rounds, then lets the agent rest.
///
/// # Errors
/// The host or its API server does not start. What fails after that is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let site = AgentHost::start(HEARTBEAT_SECONDS)?;
    site.version(1, JOINS)?;
    site.version(2, JOINS)?;
    let registry = Registry::start(&image()?, &site.network, ([127, 0, 0, 1], 5003).into())?;
    site.host.run("systemctl", &["start", "bedplate-agent.service"])?;
    site.select(1)?;
    site.until_node_is_pending()?;
    site.until("the first version is applied", |status| has_applied(status, 1, "a"))?;
    let mut all = repaves(context, &site, &registry);
    all.extend(rest(context, &site));
    Ok(all)
}

fn repaves(context: &Context, site: &AgentHost, registry: &Registry) -> Vec<Row> {
    let title = "Node deleted until its kubelet has started (image prefetched)";
    let mut measured = [OURS, SHELL].map(|name| (name.to_owned(), Vec::new(), String::new()));
    for round in 0..context.rounds {
        for (name, times, _) in &mut measured {
            let took = if name == OURS { repave(site, round) } else { by_shell(site, registry) };
            let Some(took) = context.noted(title, name, took) else { continue };
            timeline::say(&format!("bench agent: {name}: kubelet started after {:.2} s", took.as_secs_f64()));
            times.push(took.as_secs_f64());
        }
    }
    measured[1].2.push_str("downloads and unpacks first, without verifying; no join");
    rows(context, title, "s", Better::Less, measured)
}

/// One repave into the other slot.
fn repave(site: &AgentHost, round: usize) -> Result<Duration> {
    let (version, slot) = if round.is_multiple_of(2) { (2, "b") } else { (1, "a") };
    let index = usize::from(slot == "b");
    site.select(version)?;
    site.until("the next version is prepared", |status| {
        let slot = &status["slots"][index];
        slot["state"] == "Prepared" && slot["version"] == version
    })?;
    let state = site.host.root().join(format!("var/lib/bedplate/slots/{slot}/state/kubelet"));
    let started = state.join(Path::new(STARTED).file_name().context("a name")?);
    let _ = std::fs::remove_file(&started);
    let since = Instant::now();
    site.delete_node()?;
    wait_for(&started)?;
    let took = since.elapsed();
    site.until_node_is_pending()?;
    site.until("the next version is applied", |status| has_applied(status, version, slot))?;
    Ok(took)
}

/// Makes the node by commands, from nothing.
fn by_shell(site: &AgentHost, registry: &Registry) -> Result<Duration> {
    let place = site.host.root().join("var/lib/bedplate/plain");
    std::fs::create_dir_all(&place)?;
    let script = download(registry, &place)?;
    site.host.run("mkdir", &["-p", "/var/lib/machines", "/run/systemd/nspawn"])?;
    site.host.run("ln", &["-sfn", "/var/lib/bedplate/plain", "/var/lib/machines/plain"])?;
    // A network of its own: the kubelet of the slot that runs has the host's port.
    let nspawn = "[Exec]\nPrivateUsers=no\n[Network]\nVirtualEthernet=no\nPrivate=yes\n";
    site.host.put("/run/systemd/nspawn/plain.nspawn", nspawn.as_bytes(), 0o644)?;
    let since = Instant::now();
    let mut shell = site.network.command("bash");
    guard::run(shell.args(["-c", &script]))?;
    fill(&place)?;
    site.host.run("systemctl", &["start", "--no-block", "systemd-nspawn@plain.service"])?;
    let started = wait_for(&place.join(STARTED));
    let took = since.elapsed();
    let log = || site.host.journal("systemd-nspawn@plain.service").unwrap_or_default();
    let started = started.with_context(log);
    site.host.run("systemctl", &["stop", "systemd-nspawn@plain.service"])?;
    std::fs::remove_dir_all(&place)?;
    started.map(|()| took)
}

/// The commands that fetch and unpack the image of the registry into `place`.
fn download(registry: &Registry, place: &Path) -> Result<String> {
    let reference = registry.reference();
    let (name, digest) = reference.split_once('@').context("a digest")?;
    let (address, repository) = name.split_once('/').context("a repository")?;
    let layout = image()?;
    let blob = |digest: &str| -> Result<PathBuf> {
        Ok(layout.join("blobs/sha256").join(digest.strip_prefix("sha256:").context("a digest")?))
    };
    let manifest: Value = serde_json::from_slice(&std::fs::read(blob(digest)?)?)?;
    let mut script = "set -euo pipefail\n".to_owned();
    for layer in manifest["layers"].as_array().context("layers")? {
        let digest = layer["digest"].as_str().context("a digest")?;
        let program = match layer["mediaType"].as_str().and_then(|kind| kind.rsplit_once('+')) {
            Some((_, "zstd")) => "zstd",
            Some((_, "gzip")) => "gzip",
            _ => bail!("{layer} is not expected here"),
        };
        let url = format!("http://{address}/v2/{repository}/blobs/{digest}");
        let to = place.display();
        let _ = writeln!(script, "curl -sf {url} | {program} -dc | tar -xp --numeric-owner -C {to}");
    }
    Ok(script)
}

fn wait_for(file: &Path) -> Result<()> {
    wait::until("the kubelet", NODE_TIMEOUT, || Ok(file.symlink_metadata().is_ok().then_some(())))
}

/// Resources that the agent has used so far.
#[derive(Debug)]
struct Taken {
    /// MB (1,000,000 bytes): resident memory, and the part of it that does not map a file.
    resident: f64,
    own: f64,
    /// Processor time in seconds.
    processor: f64,
    /// Number of times that one of its threads got a processor after it had waited.
    wakes: u64,
    threads: u64,
}

fn rest(context: &Context, site: &AgentHost) -> Vec<Row> {
    let seconds = context.idle_seconds();
    let title = format!("The agent at rest for {seconds} s, a node runs");
    let Some((taken, before)) = context.noted(&title, OURS, at_rest(site, seconds)) else {
        return Vec::new();
    };
    let fresh = "The agent at rest, restarted next to a running node";
    let restarted = site.host.run("systemctl", &["restart", "bedplate-agent.service"]).and_then(|_| {
        pause(SETTLE_DELAY)?;
        look(site)
    });
    let row = |title: &str, unit, value: f64, note: String| {
        rows(context, title, unit, Better::Less, [(OURS.to_owned(), vec![value; context.rounds], note)])
    };
    let of = |taken: &Taken| {
        format!("{:.1} MB of it mapped files, {} threads", taken.resident - taken.own, taken.threads)
    };
    let mut all = row(&format!("{title}: resident memory"), "MB", taken.resident, of(&taken));
    if let Some(restarted) = context.noted(fresh, OURS, restarted) {
        all.extend(row(&format!("{fresh}: resident memory"), "MB", restarted.resident, of(&restarted)));
    }
    let processor = taken.processor - before.processor;
    let share = 100.0 * processor / f64::from(seconds);
    let note = format!("{share:.3} % of one; reports each {HEARTBEAT_SECONDS} s, watchdog included");
    all.extend(row(&format!("{title}: processor time"), "ms", 1000.0 * processor, note));
    let wakes = taken.wakes.saturating_sub(before.wakes) as f64 * 60.0 / f64::from(seconds);
    all.extend(row(&format!("{title}: wake-ups"), "a minute", wakes, String::new()));
    all
}

/// The end and the beginning of a rest.
fn at_rest(site: &AgentHost, seconds: u32) -> Result<(Taken, Taken)> {
    pause(SETTLE_DELAY)?;
    let before = look(site)?;
    pause(Duration::from_secs(u64::from(seconds)))?;
    Ok((look(site)?, before))
}

/// Only time passes.
fn pause(time: Duration) -> Result<()> {
    let started = Instant::now();
    wait::until("a rest", time * 2, || Ok((started.elapsed() >= time).then_some(())))
}

fn look(site: &AgentHost) -> Result<Taken> {
    let pid =
        site.host.run("systemctl", &["show", "--value", "--property=MainPID", "bedplate-agent.service"])?;
    let process = format!("/proc/{}", pid.trim());
    let status = site.host.read(&format!("{process}/status"))?;
    let number = |text: &str, name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| name.to_owned())?;
        Ok(line.split_whitespace().next().context("a number")?.parse()?)
    };
    let megabytes = |name: &str| -> Result<f64> { Ok(number(&status, name)? as f64 * 1024.0 / 1e6) };
    // Processor time and changes of all threads, those that have ended included.
    let stat = site.host.read(&format!("{process}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(") ").context("a stat")?.1.split(' ').collect();
    let ticks = |at: usize| -> Result<f64> { Ok(fields.get(at).context("a stat")?.parse()?) };
    let schedule = site.host.run("sh", &["-c", &format!("cat {process}/task/*/status")])?;
    let wakes = schedule.lines().filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(Taken {
        resident: megabytes("VmRSS:")?,
        own: megabytes("RssAnon:")?,
        // USER_HZ, which is 100 wherever Linux runs.
        processor: (ticks(11)? + ticks(12)?) / 100.0,
        wakes: wakes.filter_map(|count| count.trim().parse::<u64>().ok()).sum(),
        threads: number(&status, "Threads:")?,
    })
}
