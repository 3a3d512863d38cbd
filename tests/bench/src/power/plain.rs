//! The peer: a plain client, as a script or a small service has it. A fixed number of workers takes the BMCs in turn, asks each for its
//! power state, and waits 30 s for one that does not answer.
//!
//! Redfish is one GET of the system with the password, whose path is given, certificates unchecked; IPMI is a session that is opened,
//! asked once, and closed.

use std::{
    net::SocketAddr,
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bedplate_bmc::tls::{Trust, Witness, client_config};
use bedplate_ipmi::{
    client::{Client, Options},
    command::chassis::GetChassisStatus,
    session::Retry,
};
use secrecy::SecretString;

use super::site::Bmc;
use bedplate_tests::{
    bmc::service::{PASSWORD, USER},
    netns::Namespace,
};

/// Timeout of a BMC.
const BMC_TIMEOUT: Duration = Duration::from_secs(30);

/// Goes through all; seconds from the start until each that answers was read.
///
/// # Errors
/// One that is healthy does not answer.
pub(super) fn run(network: &Namespace, bmcs: &[Bmc], workers: usize) -> Result<Vec<f64>> {
    network.inside(|| {
        // On one thread, which is the one in the namespace.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(sweep(bmcs, workers))
    })
}

async fn sweep(bmcs: &[Bmc], workers: usize) -> Result<Vec<f64>> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let tls = client_config(&Trust::Insecure, &Witness::default()).map_err(anyhow::Error::msg)?;
    let web = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().timeout(BMC_TIMEOUT);
    // It comes back after minutes, if at all: no connection is kept.
    let web = web.pool_max_idle_per_host(0).build()?;
    let bmcs: Arc<[Bmc]> = bmcs.into();
    let (next, started) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..workers {
        let (web, bmcs, next) = (web.clone(), Arc::clone(&bmcs), Arc::clone(&next));
        tasks.spawn(async move {
            let mut read = Vec::new();
            while let Some(bmc) = bmcs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let answered = tokio::time::timeout(BMC_TIMEOUT, ask(&web, bmc)).await;
                match answered.context("no answer").flatten() {
                    Ok(()) => read.push(started.elapsed().as_secs_f64()),
                    Err(error) => ensure!(bmc.dead, "{}: {error:#}", bmc.name),
                }
            }
            Ok(read)
        });
    }
    let mut all = Vec::new();
    while let Some(read) = tasks.join_next().await {
        all.extend(read??);
    }
    Ok(all)
}

async fn ask(web: &reqwest::Client, bmc: &Bmc) -> Result<()> {
    if bmc.pin.is_some() {
        let url = format!("https://{}/redfish/v1/Systems/1", bmc.address);
        let answer = web.get(url).basic_auth(USER, Some(PASSWORD)).send().await?.error_for_status()?;
        let system: serde_json::Value = answer.json().await?;
        ensure!(system["PowerState"] == "On", "it is {}", system["PowerState"]);
        return Ok(());
    }
    let address: SocketAddr = bmc.address.parse()?;
    // It sends again for as long as it waits.
    let retry = Retry { attempts: u32::MAX, ..Retry::default() };
    let options = Options { connect: BMC_TIMEOUT, request: BMC_TIMEOUT, retry, ..Options::default() };
    let client = Client::connect(address, USER, &SecretString::from(PASSWORD), &options).await?;
    let status = client.request(&GetChassisStatus).await;
    client.close().await;
    ensure!(status?.is_on(), "it is off");
    Ok(())
}
