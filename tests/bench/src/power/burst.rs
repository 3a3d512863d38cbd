//! Concurrent power cycles of many machines, made through pxed's socket.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::site::{Bmc, Bmcs, Power};
use bedplate_tests::{pxed::ask, wait};

/// Number of threads that make operations concurrently.
const MAKER_COUNT: usize = 8;
/// Interval between two reads of all operations: the resolution of their times.
const READ_INTERVAL: Duration = Duration::from_millis(250);
/// Timeout of an operation, after which it counts as lost.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(300);

/// Result of a burst.
#[derive(Debug)]
pub(super) struct Burst {
    /// Seconds of each operation that is Complete, from the first request of the burst.
    pub(super) took: Vec<f64>,
    /// Operations that are not Complete.
    pub(super) lost: f64,
    /// Machines that were not switched off once and on once.
    pub(super) wrong: f64,
    /// Requests beyond two for each machine: what an answer that was late had sent again.
    pub(super) repeats: f64,
    /// Messages of the failed operations, and other errors.
    pub(super) failures: Vec<String>,
}

/// Makes them for the first healthy ones, and waits for their ends.
///
/// # Errors
/// pxed refuses one, or does not answer.
pub(super) fn run(bmcs: &Bmcs, socket: &Path, count: usize) -> Result<Burst> {
    let chosen: Vec<(usize, &Bmc)> =
        bmcs.all().iter().enumerate().filter(|(_, bmc)| !bmc.dead).take(count).collect();
    let before = bmcs.power()?;
    let started = Instant::now();
    make(socket, &chosen)?;
    let (mut ended, mut looked) = (HashMap::new(), Instant::now());
    let mut failures = Vec::new();
    let waited = wait::until("the last operation", OPERATION_TIMEOUT, || {
        if looked.elapsed() < READ_INTERVAL {
            return Ok(None);
        }
        looked = Instant::now();
        let list = ask(socket, "/v1/operations")?;
        let took = started.elapsed().as_secs_f64();
        for operation in list["items"].as_array().into_iter().flatten() {
            let (name, status) = (operation["metadata"]["name"].as_str(), &operation["status"]);
            let (Some(name), Some(state)) = (name, status["state"].as_str()) else { continue };
            if !matches!(state, "Complete" | "Failed") || ended.contains_key(name) {
                continue;
            }
            if state == "Failed" {
                failures.push(format!("{name}: {}: {}", status["reason"], status["message"]));
            }
            ended.insert(name.to_owned(), (state == "Complete").then_some(took));
        }
        Ok((ended.len() >= count).then_some(()))
    });
    if let Err(error) = waited {
        failures.push(format!("{error:#}"));
    }
    let after = bmcs.power()?;
    let (mut wrong, mut repeats) = (0, 0);
    for (number, bmc) in &chosen {
        let (changes, asked) = since(before.get(&bmc.name), after.get(&bmc.name));
        repeats += asked.len().saturating_sub(2);
        if changes != [false, true] {
            wrong += 1;
            failures.push(format!("cycle-{number} at {}: {changes:?}, asked {asked:?}", bmc.name));
        }
    }
    let took: Vec<f64> = ended.into_values().flatten().collect();
    let (lost, wrong, repeats) = ((count - took.len()) as f64, f64::from(wrong), repeats as f64);
    Ok(Burst { took, lost, wrong, repeats, failures })
}

fn make(socket: &Path, chosen: &[(usize, &Bmc)]) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let maker = || -> Result<()> {
            while let Some((number, _)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                post(socket, *number)?;
            }
            Ok(())
        };
        let makers: Vec<_> = (0..MAKER_COUNT).map(|_| scope.spawn(maker)).collect();
        for maker in makers {
            match maker.join() {
                Ok(made) => made?,
                Err(_) => bail!("a maker of operations panicked"),
            }
        }
        Ok(())
    })
}

fn post(socket: &Path, number: usize) -> Result<()> {
    let object: Value = json!({
        "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
        "metadata": { "name": format!("cycle-{number}") },
        "spec": { "operationName": "powerCycle", "machineRef": { "name": format!("server-{number}") } },
    });
    let body = object.to_string();
    let mut stream = UnixStream::connect(socket).context("no connection to pxed")?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "POST /v1/operations HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 201 "), "an operation is refused: {answer}");
    Ok(())
}

/// Changes of a machine's power since `before`, and the requests to its BMC.
fn since(before: Option<&Power>, after: Option<&Power>) -> (Vec<bool>, Vec<String>) {
    let Some((before, after)) = before.zip(after) else { return Default::default() };
    let changes = after.changes.iter().skip(before.changes.len()).map(|change| change.on).collect();
    let asked = after.asked.iter().skip(before.asked.len()).map(|asked| asked.action.clone()).collect();
    (changes, asked)
}
