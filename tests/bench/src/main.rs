//! `cargo xtask bench`: measures pxed against its peers, prints the table, keeps the JSON.
//!
//!     bedplate-bench [agent] [claims] [shortage] [controller] [core] [dhcp] [tftp] [http] [memory] [power] [size] [--rounds N] [--quick] [--idle SECONDS] [--json FILE]
//!
//! All traffic stays in namespaces of this run; nothing is installed or started outside them. Ends with 1 when something of ours could not
//! be measured, with 0 when only a peer could not. docs/design/bench.md says what the numbers mean.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::measurement::{Context, OURS, Row};

mod agent;
mod claims;
mod controller;
mod core;
mod dhcp;
mod http;
mod load;
mod measurement;
mod memory;
mod power;
mod size;
mod tftp;
mod unpack;

type Bench = fn(&Context) -> Result<Vec<Row>>;

const BENCHES: [(&str, Bench); 12] = [
    ("size", size::run),
    ("memory", memory::run),
    ("power", power::run),
    ("tftp", tftp::run),
    ("http", http::run),
    ("dhcp", dhcp::run),
    ("unpack", unpack::run),
    ("agent", agent::run),
    ("controller", controller::run),
    ("claims", claims::run),
    ("shortage", claims::run_short),
    ("core", core::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = tftp::serves(&arguments)
        .or_else(|| unpack::pulls(&arguments))
        .map(|served| served.map(|()| true))
        .unwrap_or_else(|| match Order::try_parse() {
            Ok(order) => run(&order),
            Err(problem) => {
                let _ = problem.print();
                std::process::exit(if problem.use_stderr() { 64 } else { 0 });
            }
        });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures pxed against its peers.
#[derive(Parser)]
#[command(name = "bedplate-bench")]
struct Order {
    /// Benches to run; all if none is named.
    #[arg(value_parser = BENCHES.map(|(name, _)| name))]
    benches: Vec<String>,
    /// Rounds; the median counts [default: 5, with --quick 1].
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroUsize>,
    /// A trial of a minute or two; do not use its numbers as results.
    #[arg(long)]
    quick: bool,
    /// Time for which the agent rests while it is measured [default: 600, with --quick 60].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    idle: Option<u32>,
    /// Keeps the numbers there instead of in target/bench.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Order {
    fn benches(&self) -> impl Iterator<Item = (&'static str, Bench)> {
        BENCHES
            .into_iter()
            .filter(|(name, _)| self.benches.is_empty() || self.benches.iter().any(|asked| asked == name))
    }
}

/// Runs the benches. Returns true if all subjects of Bedplate could be measured.
fn run(order: &Order) -> Result<bool> {
    let rounds = order.rounds.map_or(if order.quick { 1 } else { 5 }, NonZeroUsize::get);
    let mut context = Context::new(rounds, order.quick)?;
    context.idle = order.idle;
    let about = about(&context);
    println!("median of {rounds} rounds, subjects in turn within each\n{about:#}");
    let file = order.json.clone().unwrap_or_else(|| default_file(&about));
    let mut rows = Vec::new();
    for (name, bench) in order.benches() {
        println!("\n{name}");
        let measured = context.noted(name, OURS, bench(&context)).unwrap_or_default();
        println!("{}", measurement::table(&measured));
        rows.extend(measured);
        // After each, so that a run that is cut off leaves what it had.
        keep(&file, &measurement::json(&about, &rows, &context.failures())?)?;
    }
    let failures = context.failures();
    for failure in &failures {
        println!("FAILED {}: {}: {}", failure.title, failure.subject, failure.reason);
    }
    println!("kept in {}", file.canonicalize().unwrap_or(file).display());
    Ok(failures.iter().all(|failure| failure.subject != OURS))
}

fn keep(file: &Path, text: &str) -> Result<()> {
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// `target/bench/<date and time>.json`.
fn default_file(about: &serde_json::Value) -> PathBuf {
    let time = about["time"].as_str().unwrap_or("run").replace([':', '-'], "");
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench").join(format!("{time}.json"))
}

/// Properties that two runs must have in common to be compared.
fn about(context: &Context) -> serde_json::Value {
    let first_line = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        text.lines().next().map(str::to_owned)
    };
    let read = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    serde_json::json!({
        "time": format!("{:.0}", jiff::Timestamp::now()),
        "commit": first_line("git", &["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"]),
        "rounds": context.rounds,
        "quick": context.quick,
        "processor": read("/proc/cpuinfo", "model name"),
        "processors": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "memory": read("/proc/meminfo", "MemTotal"),
        "kernel": first_line("uname", &["-r"]),
        "load": std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
        "peers": {
            "kea": first_line("kea-dhcp4", &["-v"]),
            "dnsmasq": first_line("dnsmasq", &["--version"]),
            "tftp-hpa": first_line("in.tftpd", &["--version"]),
            "atftpd": first_line("atftpd", &["--version"]),
            "nginx": first_line("nginx", &["-v"]),
            "umoci": first_line("umoci", &["--version"]),
            "skopeo": first_line("skopeo", &["--version"]),
            "containerd": first_line("containerd", &["--version"]),
        },
    })
}
