//! Time from a change of an infrastructure object until its Machine shows it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::objects::{CORE, INFRASTRUCTURE};
use super::provider::MACHINE;
use super::site::{Machine, Site};
use crate::claims::site::{dynamic, status_of};
use crate::controller::latency::watch;

/// Pause between two changes.
const CHANGE_INTERVAL: Duration = Duration::from_millis(20);

/// Changes the addresses of one infrastructure object after the other. Returns the milliseconds of each. `hanging`: Cluster that is not measured;
/// each change has one of a Machine of this Cluster before it.
pub(super) async fn changes(site: &Site, number: usize, hanging: Option<usize>) -> Result<Vec<f64>> {
    let (slow, measured): (Vec<Machine>, Vec<Machine>) =
        site.machines().into_iter().partition(|machine| Some(machine.cluster) == hanging);
    let mut seen = watch(&dynamic(&site.client, CORE, "Machine")).await?;
    let mut times = Vec::new();
    for change in 0..number {
        if !slow.is_empty() {
            let machine = slow.get(change % slow.len()).context("no Machine")?;
            report(site, machine, &addresses(change, hanging)).await?;
        }
        let machine = measured.get(change * 37 % measured.len()).context("no Machine")?;
        let addresses = addresses(change, hanging);
        let started = Instant::now();
        report(site, machine, &addresses).await?;
        seen.until(|object: &kube::api::DynamicObject| {
            object.metadata.name.as_ref() == Some(&machine.name)
                && object.data["status"]["addresses"] == addresses
        })
        .await
        .with_context(|| format!("change of {}", machine.infrastructure))?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
        tokio::time::sleep(CHANGE_INTERVAL).await;
    }
    Ok(times)
}

/// Returns addresses that no change before had. Only the Machine shows them, no set and no Cluster.
fn addresses(change: usize, hanging: Option<usize>) -> Value {
    let phase = if hanging.is_some() { 2 } else { 1 };
    json!([{ "type": "InternalIP", "address": format!("10.{phase}.{}.{}", change / 250, change % 250 + 1) }])
}

async fn report(site: &Site, machine: &Machine, addresses: &Value) -> Result<()> {
    let status = json!({ "addresses": addresses });
    status_of(&site.infrastructure, INFRASTRUCTURE, (MACHINE, &machine.infrastructure), &status).await
}
