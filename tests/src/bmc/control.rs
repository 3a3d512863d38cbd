//! Faults on demand from outside the process: a command is a line of JSON, and so is its answer. For the program
//! `bedplate-bmc-simulator`; tests that have the simulator in themselves call [`Bmc`] instead.
//!
//! ```text
//! {"bmc": "bmc-1", "do": "set-faults", "faults": {"slow-ms": 500}}      {"bmc": "*", "do": "counters"}
//! {"bmc": "bmc-1", "do": "power"}      {"bmc": "bmc-1", "do": "change-certificate"}
//! {"bmc": "bmc-1", "do": "reported"}
//! {"bmc": "bmc-1", "do": "set-password", "password": "..."}             {"bmc": "bmc-1", "do": "drop-sessions"}
//! ```

use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::fault::Faults;
use super::service::Bmc;
use super::simulator::Simulator;

#[derive(Deserialize)]
struct Command {
    /// A name; `*`: all.
    bmc: String,
    #[serde(flatten)]
    what: What,
}

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
enum What {
    SetFaults { faults: Faults },
    SetPassword { password: String },
    ChangeCertificate,
    DropSessions,
    Counters,
    Power,
    Reported,
}

/// Carries out a line; the answer is a line without its end.
pub fn carry_out(simulator: &Simulator, line: &str) -> String {
    let answer = answer(simulator, line);
    answer.unwrap_or_else(|error| json!({ "error": format!("{error:#}") })).to_string()
}

fn answer(simulator: &Simulator, line: &str) -> Result<Value> {
    let command: Command = serde_json::from_str(line).context("not a command")?;
    let mut bmcs = simulator.bmcs();
    bmcs.retain(|bmc| command.bmc == "*" || bmc.name() == command.bmc);
    if bmcs.is_empty() {
        bail!("there is no BMC {:?}", command.bmc);
    }
    let answers = bmcs.iter().map(|bmc| Ok((bmc.name().to_owned(), one(bmc, &command.what)?)));
    Ok(Value::Object(answers.collect::<Result<_>>()?))
}

fn one(bmc: &Bmc, what: &What) -> Result<Value> {
    match what {
        What::SetFaults { faults } => bmc.set_faults(faults.clone())?,
        What::SetPassword { password } => bmc.set_password(password),
        What::ChangeCertificate => return Ok(json!({ "pin": bmc.change_certificate()?.to_string() })),
        What::DropSessions => bmc.drop_sessions(),
        What::Counters => return Ok(serde_json::to_value(bmc.counters())?),
        What::Reported => return Ok(serde_json::to_value(bmc.report_times())?),
        What::Power => return Ok(bmc.systems().iter().map(power).collect()),
    }
    Ok(json!({}))
}

fn power(system: &super::chassis::Shared) -> Value {
    let mut system = system.lock();
    let now = Instant::now();
    let changes = json!(system.changes(now));
    json!({
        "name": system.name(), "on": system.is_on(now), "cycles": system.cycles(now), "asked": system.asked(),
        "changes": changes,
    })
}
