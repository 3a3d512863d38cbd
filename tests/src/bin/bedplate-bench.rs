//! `cargo xtask bench`: measures pxed's engines against their peers, prints the table, keeps the JSON.
//!
//!     bedplate-bench [dhcp] [tftp] [http] [--rounds N] [--json FILE]
//!
//! All traffic stays in namespaces of this run; nothing is installed or started outside them.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use bedplate_tests::{
    bench::{self, Context, Row},
    guard::Directory,
};

type Bench = fn(&Context) -> Result<Vec<Row>>;

const BENCHES: [(&str, Bench); 3] =
    [("dhcp", bench::dhcp::run), ("tftp", bench::tftp::run), ("http", bench::http::run)];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = bench::tftp::serves(&arguments).unwrap_or_else(|| match parse(&arguments) {
        Ok(order) => run(&order),
        Err(problem) => {
            eprintln!("error: {problem}");
            std::process::exit(64);
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What was asked for.
struct Order {
    benches: Vec<(&'static str, Bench)>,
    rounds: usize,
    json: Option<String>,
}

fn parse(arguments: &[String]) -> Result<Order, String> {
    let mut order = Order { benches: Vec::new(), rounds: 5, json: None };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => {
                let number =
                    arguments.next().and_then(|number| number.parse().ok()).filter(|number| *number > 0);
                order.rounds = number.ok_or("--rounds wants a number above 0")?;
            }
            "--json" => order.json = Some(arguments.next().ok_or("--json wants a file")?.clone()),
            name => {
                let names = BENCHES.map(|(name, _)| name).join(", ");
                let bench = BENCHES.into_iter().find(|(known, _)| *known == name);
                order.benches.push(bench.ok_or(format!("{name:?} is none of {names}, --rounds, --json"))?);
            }
        }
    }
    if order.benches.is_empty() {
        order.benches = BENCHES.to_vec();
    }
    Ok(order)
}

fn run(order: &Order) -> Result<()> {
    let context = Context { rounds: order.rounds, directory: Directory::new("bench")? };
    println!(
        "median of {} rounds, subjects in turn within each; peers: {}",
        order.rounds,
        bench::tftp::versions().join("; ")
    );
    let mut rows = Vec::new();
    for (name, bench) in &order.benches {
        println!("\n{name}");
        let measured = bench(&context).with_context(|| format!("bench {name}"))?;
        println!("{}", bench::table(&measured));
        rows.extend(measured);
    }
    if let Some(file) = &order.json {
        std::fs::write(file, bench::json(&rows)?).with_context(|| format!("cannot write {file}"))?;
        println!("kept in {file}");
    }
    Ok(())
}
