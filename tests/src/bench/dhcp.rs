//! DHCP leases: pxed, Kea (memfile) and dnsmasq, one at a time in the same pair of namespaces, loaded by perfdhcp.
//!
//! Each starts with no leases and a pool of 64,000 addresses. Rate: the highest step at which perfdhcp still completes
//! its four-way exchanges. pxed has each lease on disk before its ACK leaves; Kea and dnsmasq write without waiting.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::bench::{Better, Context, OURS, Row};
use crate::guard::{self, Process};
use crate::netns::Namespace;
use crate::{pxed, wait};

/// Exchanges a second of the first step; each further one has half as many again.
const FIRST_RATE: u32 = 1000;
/// Beyond it perfdhcp itself is the limit.
const LAST_RATE: u32 = 60_000;
/// Seconds of one step.
const STEP_SECONDS: u32 = 3;
/// Kea's own reports count a rate as held up to this share of lost messages, in per cent.
const TOLERATED_LOSS: f64 = 2.5;
/// Where latency and processor time are taken, exchanges a second.
const MODERATE_RATE: u32 = 500;

const SERVER: &str = "10.7.0.1";
const NETWORK: &str = "10.7.0.0/16";
const FIRST: &str = "10.7.1.0";
const LAST: &str = "10.7.250.255";

/// Who is measured.
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
    std::fs::create_dir_all(place.join("machines.d"))?;
    let at = |name: &str| place.join(name).display().to_string();
    let mut text = format!(
        "state-directory = {:?}\nsocket = {:?}\ndefault-image = \"host\"\ndiscovery-image = \"host\"\n\n[source]\ndirectory = {:?}\n\n",
        at("state"),
        at("pxed.sock"),
        at("machines.d")
    );
    let _ = writeln!(text, "[dhcp]\nmode = \"server\"\ninterfaces = [\"rack0\"]\ndiscovery = true\n");
    let _ = writeln!(text, "[[dhcp.subnet]]\nnetwork = \"{NETWORK}\"\nranges = [\"{FIRST}-{LAST}\"]");
    let _ = writeln!(text, "routers = [\"{SERVER}\"]\nlease-seconds = 3600\n");
    let _ = writeln!(text, "[images.host]\n{}", pxed::stub_image(place)?);
    Ok(text)
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

/// What perfdhcp says of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load {
    /// Exchanges completed a second.
    rate: f64,
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
        rate: *numbers("Rate:").first()?,
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
        client.ip("address add 10.7.0.250/16 dev eth0")?;
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
    rate: f64,
    acknowledged_ms: f64,
    processor_ms: f64,
}

fn measure(wire: &Wire, subject: Subject, place: &Path) -> Result<Numbers> {
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
    let moderate = wire.load(MODERATE_RATE, 2 * STEP_SECONDS)?;
    let spent = processor_seconds(process.pid())? - before;
    let mut held = 0.0;
    let mut rate = FIRST_RATE;
    while rate <= LAST_RATE {
        // A second try: one burst of somebody else's work must not end the search.
        let holds = |load: &Load| load.loss <= TOLERATED_LOSS;
        let first = wire.load(rate, STEP_SECONDS)?;
        let load = if holds(&first) { first } else { wire.load(rate, STEP_SECONDS)? };
        if !holds(&load) {
            break;
        }
        held = load.rate;
        rate += rate / 2;
    }
    if !process.is_running() {
        bail!("{} has ended under load: {}", subject.name(), guard::last_lines(&process.said(), 20));
    }
    Ok(Numbers {
        rate: held,
        acknowledged_ms: moderate.acknowledged_ms,
        processor_ms: spent * 1000.0 / (moderate.count / 1000.0),
    })
}

/// User and system time of a process, all its threads (`/proc/PID/stat`, fields 14 and 15; 100 ticks a second).
fn processor_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").context("no process name in its stat")?.1;
    let ticks: Vec<f64> = fields.split(' ').skip(11).take(2).filter_map(|f| f.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

/// Measures every subject in every round.
///
/// # Errors
/// A server or perfdhcp cannot be started, or a server ends under load.
pub fn run(context: &Context) -> Result<Vec<Row>> {
    let wire = Wire::new()?;
    let mut all: Vec<(Subject, Numbers)> = Vec::new();
    for round in 0..context.rounds {
        for subject in Subject::ALL {
            let place = context.directory.path().join(format!("dhcp-{round}-{}", subject.name()));
            let numbers = measure(&wire, subject, &place)?;
            crate::timeline::say(&format!("bench dhcp {}: {:.0} exchanges/s", subject.name(), numbers.rate));
            all.push((subject, numbers));
        }
    }
    let row = |title: &str, unit, better, subject: Subject, number: fn(&Numbers) -> f64| Row {
        title: title.to_owned(),
        subject: subject.name().to_owned(),
        unit,
        better,
        rounds: all.iter().filter(|(s, _)| *s == subject).map(|(_, numbers)| number(numbers)).collect(),
        note: subject.note().to_owned(),
    };
    let held = format!("DHCP, four-way exchanges a second with at most {TOLERATED_LOSS} % lost");
    let latency = format!("DHCP, REQUEST to ACK at {MODERATE_RATE} exchanges a second, mean");
    let processor = format!("DHCP, processor time of 1000 exchanges at {MODERATE_RATE} a second");
    let mut rows = Vec::new();
    for subject in Subject::ALL {
        rows.push(row(&held, "1/s", Better::More, subject, |n| n.rate));
        rows.push(row(&latency, "ms", Better::Less, subject, |n| n.acknowledged_ms));
        rows.push(row(&processor, "ms", Better::Less, subject, |n| n.processor_ms));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfdhcp_is_read() {
        let said = "***Rate statistics***\nRate: 1996.43 4-way exchanges/second, expected rate: 2000\n\
                    ***Statistics for: DISCOVER-OFFER***\nreceived packets: 9999\ndrops ratio: 0 %\navg delay: 1.4 ms\n\
                    ***Statistics for: REQUEST-ACK***\nreceived packets: 9984\ndrops ratio: 0.150 %\navg delay: 4.289 ms\n";
        let load = Load { rate: 1996.43, loss: 0.15, acknowledged_ms: 4.289, count: 9984.0 };
        assert_eq!(parse(said), Some(load));
        assert_eq!(parse("perfdhcp: cannot bind"), None);
    }
}
