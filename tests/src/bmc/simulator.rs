//! Many simulated BMCs in one process, on a runtime of their own. The caller binds their sockets in the right
//! network namespace.

use std::net::{TcpListener, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use super::chassis::Shared;
use super::rmcp::Rmcp;
use super::serve;
use super::service::{Bmc, Settings};

/// Number of threads of a simulator.
pub const THREAD_COUNT: usize = 2;

/// A running simulator; its BMCs end with it.
pub struct Simulator {
    /// Taken when dropped.
    runtime: Option<Runtime>,
    bmcs: Mutex<Vec<Arc<Bmc>>>,
}

impl std::fmt::Debug for Simulator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Simulator")
    }
}

/// Sockets of a BMC.
#[derive(Debug, Default)]
pub struct Listen {
    /// For Redfish.
    pub tcp: Option<TcpListener>,
    /// For RMCP+; the machine is the first of the systems.
    pub udp: Option<UdpSocket>,
}

impl Simulator {
    /// Without BMCs yet, on two threads.
    ///
    /// # Errors
    /// No threads.
    pub fn new() -> Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder
            .worker_threads(THREAD_COUNT)
            .thread_name("bmc")
            .enable_all()
            .build()
            .context("no runtime")?;
        Ok(Self { runtime: Some(runtime), bmcs: Mutex::default() })
    }

    /// Adds a BMC with its machines.
    ///
    /// # Errors
    /// A socket cannot be used, or user and password are nothing for IPMI.
    pub fn add(&self, settings: Settings, systems: Vec<Shared>, listen: Listen) -> Result<Arc<Bmc>> {
        let runtime = self.runtime.as_ref().context("the simulator has ended")?;
        let _inside = runtime.enter();
        let tcp = listen.tcp.map(|tcp| {
            tcp.set_nonblocking(true)?;
            let address = tcp.local_addr()?;
            anyhow::Ok((tcp, address))
        });
        let tcp = tcp.transpose().context("a listener")?;
        let is_redfish = tcp.is_some();
        let bmc = Arc::new(Bmc::new(settings, systems, tcp)?);
        if let Some(udp) = listen.udp {
            udp.set_nonblocking(true)?;
            let rmcp = Rmcp::new(&bmc)?;
            let udp = tokio::net::UdpSocket::from_std(udp).context("a UDP socket")?;
            runtime.spawn(serve::udp(Arc::clone(&bmc), udp, rmcp));
        }
        if is_redfish {
            let listener = bmc.listener()?;
            runtime.spawn(serve::tcp(Arc::clone(&bmc), listener));
        }
        self.bmcs.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&bmc));
        Ok(bmc)
    }

    /// All BMCs, in the order in which they came.
    pub fn bmcs(&self) -> Vec<Arc<Bmc>> {
        self.bmcs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
