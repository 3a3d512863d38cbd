//! DHCP leases: pxed, Kea (memfile) and dnsmasq, one at a time in the same pair of namespaces, loaded by perfdhcp.
//!
//! Each starts with no leases and a pool of 64,000 addresses, without logs. Rate: the highest at which perfdhcp completes its four-way
//! exchanges. pxed has each lease on disk before its ACK leaves; Kea and dnsmasq write without waiting for the disk.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::measurement::{Better, Context, OURS, Row, configuration, rows};
use bedplate_tests::guard::{self, Process};
use bedplate_tests::netns::Namespace;
use bedplate_tests::{pxed, timeline, wait};

/// Exchanges a second where the first search begins.
const FIRST_RATE: u32 = 2000;
/// Bounds of the search for the rate of a subject.
const RATES: std::ops::RangeInclusive<u32> = 50..=100_000;
/// A rate that perfdhcp reaches to less than this share is beyond perfdhcp.
const MIN_REACHED_SHARE: f64 = 0.85;
/// Kea's own reports count a rate as held up to this share of lost messages, in per cent.
const TOLERATED_LOSS: f64 = 2.5;
/// Rate at which latency and processor time are measured, in exchanges a second.
const MODERATE_RATE: u32 = 500;

const SERVER: &str = "10.7.0.1";
const CLIENT: &str = "10.7.0.250";
const NETWORK: &str = "10.7.0.0/16";
const FIRST: &str = "10.7.1.0";
const LAST: &str = "10.7.250.255";

/// The measured programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Bedplate,
    Kea,
    Dnsmasq,
}

impl Subject {
    const ALL: [Self; 3] = [Self::Bedplate, Self::Kea, Self::Dnsmasq];

    const fn name(self) -> &'static str {
        match self {
            Self::Bedplate => OURS,
            Self::Kea => "kea-dhcp4",
            Self::Dnsmasq => "dnsmasq",
        }
    }

    const fn note(self) -> &'static str {
        match self {
            Self::Bedplate => "on disk before the ACK",
            Self::Kea => "memfile, multi-threaded",
            Self::Dnsmasq => "",
        }
    }

    /// Writes the configuration and gives the command.
    fn command(self, network: &Namespace, place: &Path) -> Result<Command> {
        match self {
            Self::Bedplate => {
                let config = place.join("pxed.toml");
                std::fs::write(&config, pxed_configuration(place)?)?;
                let mut command = network.command(pxed::binary("pxed")?);
                command.arg("run").arg("--config").arg(config).env("BEDPLATE_LOG", "warn");
                Ok(command)
            }
            Self::Kea => {
                let config = place.join("kea.json");
                std::fs::write(&config, kea_configuration(place))?;
                let mut command = network.command("kea-dhcp4");
                command.arg("-c").arg(config);
                command.env("KEA_PIDFILE_DIR", place).env("KEA_LOCKFILE_DIR", place);
                Ok(command)
            }
            Self::Dnsmasq => {
                let mut command = network.command("dnsmasq");
                command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--port=0"]);
                command.args(["--user=root", "--log-facility=/dev/null", "--quiet-dhcp", "--no-ping"]);
                command.args(["--interface=rack0", "--dhcp-authoritative", "--dhcp-lease-max=100000"]);
                command.arg(format!("--dhcp-range={FIRST},{LAST},255.255.0.0,1h"));
                command.arg(format!("--dhcp-leasefile={}", place.join("leases").display()));
                Ok(command)
            }
        }
    }
}

fn pxed_configuration(place: &Path) -> Result<String> {
    // perfdhcp's clients are no Machines: without the last key a quarter of the pool would not be theirs.
    let mut text = "[dhcp]\nmode = \"server\"\ninterfaces = [\"rack0\"]\ndiscovery = true\n\
                    discovery-reserve-percent = 0\n\n"
        .to_owned();
    let _ = writeln!(text, "[[dhcp.subnet]]\nnetwork = \"{NETWORK}\"\nranges = [\"{FIRST}-{LAST}\"]");
    // perfdhcp poses as a relay.
    let _ = writeln!(text, "routers = [\"{SERVER}\"]\nlease-seconds = 3600\nrelays = [\"{CLIENT}\"]");
    configuration(place, &text)
}

fn kea_configuration(place: &Path) -> String {
    serde_json::json!({ "Dhcp4": {
        "interfaces-config": { "interfaces": ["rack0"] },
        "lease-database": { "type": "memfile", "persist": true, "name": place.join("kea.csv"), "lfc-interval": 0 },
        "multi-threading": { "enable-multi-threading": true },
        "valid-lifetime": 3600,
        "subnet4": [{
            "subnet": NETWORK,
            "pools": [{ "pool": format!("{FIRST} - {LAST}") }],
            "option-data": [{ "name": "routers", "data": SERVER }],
        }],
        "loggers": [{ "name": "kea-dhcp4", "severity": "ERROR", "output_options": [{ "output": "stdout" }] }],
    }})
    .to_string()
}

/// Result of perfdhcp for one step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load {
    /// DISCOVERs sent.
    sent: f64,
    /// The larger share of lost messages, per cent.
    loss: f64,
    /// Mean time from REQUEST to ACK, milliseconds.
    acknowledged_ms: f64,
    /// Exchanges completed.
    count: f64,
}

fn parse(said: &str) -> Option<Load> {
    let numbers = |name: &str| -> Vec<f64> {
        let values = said.lines().filter_map(|line| line.trim().strip_prefix(name));
        values.filter_map(|value| value.split_whitespace().next()?.parse().ok()).collect()
    };
    Some(Load {
        sent: *numbers("sent packets:").first()?,
        loss: numbers("drops ratio:").into_iter().fold(0.0, f64::max),
        acknowledged_ms: *numbers("avg delay:").get(1)?,
        count: *numbers("received packets:").get(1)?,
    })
}

/// The two namespaces.
struct Wire {
    server: Namespace,
    client: Namespace,
}

impl Wire {
    fn new() -> Result<Self> {
        let (server, client) = (Namespace::new("server")?, Namespace::new("load")?);
        server.add_veth("rack0", &client, "eth0")?;
        server.ip(&format!("address add {SERVER}/16 dev rack0"))?;
        client.ip(&format!("address add {CLIENT}/16 dev eth0"))?;
        Ok(Self { server, client })
    }

    fn load(&self, rate: u32, seconds: u32) -> Result<Load> {
        let mut command = self.client.command("perfdhcp");
        command.args(["-4", "-l", "eth0", "-R", "60000", "-W", "500000"]);
        command.args(["-r", &rate.to_string(), "-p", &seconds.to_string(), SERVER]);
        // perfdhcp ends with 3 when messages were lost, which is a result.
        let output = command.output().context("perfdhcp cannot be run")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        parse(&said).with_context(|| format!("perfdhcp: {said}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// One subject's numbers of one round.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    /// The rate held, as perfdhcp counted it.
    rate: f64,
    /// perfdhcp could do no more.
    client_bound: bool,
    acknowledged_ms: f64,
    processor_ms: f64,
}

/// Outcome of a step of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// Held, at this rate.
    Held(f64),
    /// Held, but perfdhcp itself came no further than this.
    ClientBound(f64),
    Lost,
}

/// The highest rate held: by half as many again up, by a third down, then twice halfway between what held and what did not. Gives the rate
/// as reached, and whether the client was the limit.
fn highest(start: u32, mut step: impl FnMut(u32) -> Result<Step>) -> Result<(f64, bool)> {
    let (mut held, mut lost) = (None, None);
    let mut rate = start;
    loop {
        match step(rate)? {
            Step::Held(reached) => held = Some((rate, reached)),
            Step::ClientBound(reached) => return Ok((reached, true)),
            Step::Lost => lost = Some(rate),
        }
        rate = match (held, lost) {
            (Some(_), Some(_)) => break,
            (Some(_), None) if rate < *RATES.end() => rate + rate / 2,
            (None, Some(_)) if rate > *RATES.start() => rate - rate / 3,
            _ => break,
        };
    }
    let Some((mut low, mut best)) = held else { return Ok((0.0, false)) };
    let Some(mut high) = lost else { return Ok((best, false)) };
    for _ in 0..2 {
        let middle = low + (high - low) / 2;
        match step(middle)? {
            Step::Held(reached) | Step::ClientBound(reached) => (low, best) = (middle, reached),
            Step::Lost => high = middle,
        }
    }
    Ok((best, false))
}

/// One round of one subject; `start` is where the search begins.
fn measure(context: &Context, wire: &Wire, subject: Subject, place: &Path, start: u32) -> Result<Numbers> {
    std::fs::create_dir_all(place)?;
    let mut command = subject.command(&wire.server, place)?;
    let mut process = Process::spawn(subject.name(), &mut command, &place.join("log"))?;
    wait::until(subject.name(), Duration::from_secs(30), || {
        if !process.is_running() {
            bail!("{} has ended: {}", subject.name(), guard::last_lines(&process.said(), 20));
        }
        Ok(wire.load(10, 1).ok().filter(|load| load.count > 0.0))
    })?;
    let before = processor_seconds(process.pid())?;
    let moderate = wire.load(MODERATE_RATE, 2 * context.seconds())?;
    let spent = processor_seconds(process.pid())? - before;
    let (rate, client_bound) = highest(start, |rate| {
        // A second try: one burst of another program's work must not end the search.
        for _ in 0..2 {
            let load = wire.load(rate, context.seconds())?;
            if load.loss <= TOLERATED_LOSS {
                // perfdhcp's own rate counts the time in which it waits for the last answers.
                let seconds = f64::from(context.seconds());
                let held = load.count / seconds;
                let is_reached = load.sent / seconds >= MIN_REACHED_SHARE * f64::from(rate);
                return Ok(if is_reached { Step::Held(held) } else { Step::ClientBound(held) });
            }
        }
        Ok(Step::Lost)
    })?;
    if !process.is_running() {
        bail!("{} has ended under load: {}", subject.name(), guard::last_lines(&process.said(), 20));
    }
    Ok(Numbers {
        rate,
        client_bound,
        acknowledged_ms: moderate.acknowledged_ms,
        processor_ms: spent * 1000.0 / (moderate.count / 1000.0),
    })
}

/// Time on a processor of a process's present threads (`schedstat`, nanoseconds).
fn processor_seconds(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        // A thread may end meanwhile.
        let Ok(stat) = std::fs::read_to_string(thread.path().join("schedstat")) else { continue };
        nanoseconds += stat.split(' ').next().and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    }
    Ok(nanoseconds / 1e9)
}

/// Rate at which a search starts after the last one ended at `rate`.
#[allow(clippy::cast_possible_truncation)]
fn resume(rate: f64) -> u32 {
    // One step below what was held.
    ((rate / 1.5) as u32).clamp(*RATES.start(), *RATES.end())
}

/// Measures every subject in every round.
///
/// # Errors
/// The namespaces cannot be made. A server that does not start or ends under load is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let wire = Wire::new()?;
    let mut all: Vec<(Subject, Numbers)> = Vec::new();
    let mut failed = Vec::new();
    for round in 0..context.rounds {
        for subject in Subject::ALL {
            if failed.contains(&subject) {
                continue;
            }
            let place = context.directory.path().join(format!("dhcp-{round}-{}", subject.name()));
            let last = all.iter().rev().find(|(measured, _)| *measured == subject);
            let start = last.map_or(FIRST_RATE, |(_, numbers)| resume(numbers.rate));
            let numbers = measure(context, &wire, subject, &place, start);
            let Some(numbers) = context.noted("DHCP", subject.name(), numbers) else {
                failed.push(subject);
                continue;
            };
            timeline::say(&format!("bench dhcp {}: {:.0} exchanges/s", subject.name(), numbers.rate));
            all.push((subject, numbers));
        }
    }
    Ok(tabulate(context, &all))
}

fn tabulate(context: &Context, all: &[(Subject, Numbers)]) -> Vec<Row> {
    let of_all = |title: &str, unit, better, number: fn(&Numbers) -> f64| {
        let of_subject = |subject: Subject| {
            let own =
                || all.iter().filter(move |(measured, _)| *measured == subject).map(|(_, numbers)| numbers);
            let mut note = subject.note().to_owned();
            if unit == "1/s" && own().any(|numbers| numbers.client_bound) {
                note.push_str(if note.is_empty() { "" } else { "; " });
                note.push_str("perfdhcp was the limit");
            }
            (subject.name().to_owned(), own().map(number).collect(), note)
        };
        rows(context, title, unit, better, Subject::ALL.map(of_subject))
    };
    let held = format!("DHCP, four-way exchanges a second with at most {TOLERATED_LOSS} % lost");
    let latency = format!("DHCP, REQUEST to ACK at {MODERATE_RATE} exchanges a second, mean");
    let processor = format!("DHCP, processor time of 1000 exchanges at {MODERATE_RATE} a second");
    [
        of_all(&held, "1/s", Better::More, |numbers| numbers.rate),
        of_all(&latency, "ms", Better::Less, |numbers| numbers.acknowledged_ms),
        of_all(&processor, "ms", Better::Less, |numbers| numbers.processor_ms),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfdhcp_is_read() {
        let said = "***Rate statistics***\nRate: 1996.43 4-way exchanges/second, expected rate: 2000\n\
                    ***Statistics for: DISCOVER-OFFER***\nsent packets: 10000\nreceived packets: 9999\ndrops ratio: 0 %\navg delay: 1.4 ms\n\
                    ***Statistics for: REQUEST-ACK***\nsent packets: 9999\nreceived packets: 9984\ndrops ratio: 0.150 %\navg delay: 4.289 ms\n";
        let load = Load { sent: 10_000.0, loss: 0.15, acknowledged_ms: 4.289, count: 9984.0 };
        assert_eq!(parse(said), Some(load));
        assert_eq!(parse("perfdhcp: cannot bind"), None);
    }

    /// A server that holds rates up to `most`, loaded by a client that reaches `client`.
    fn search(start: u32, most: u32, client: u32) -> (f64, bool) {
        let step = |rate: u32| {
            Ok(match rate {
                rate if rate > client && client <= most => Step::ClientBound(client.into()),
                rate if rate > most => Step::Lost,
                rate => Step::Held(rate.into()),
            })
        };
        highest(start, step).expect("a rate")
    }

    #[test]
    fn the_highest_rate_is_found_from_below_and_from_above() {
        assert_eq!(search(1000, 5000, 90_000), (4640.0, false));
        assert_eq!(search(9000, 5000, 90_000), (5000.0, false));
        assert_eq!(search(1000, 10, 90_000), (0.0, false));
    }

    #[test]
    fn a_client_at_its_end_ends_the_search() {
        assert_eq!(search(1000, 5000, 2000), (2000.0, true));
    }
}
