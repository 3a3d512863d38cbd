//! Redfish (DMTF DSP0266) over HTTPS: one system of one service.
//!
//! Our own, tolerant reading of resources: of a document only what is asked for has to be right, since there is no BMC
//! whose every field keeps to the schema.
//!
//! Caller: pxed and `probe`, by [`Redfish`].

mod attempt;
mod boot;
mod document;
mod inventory;
mod log;
mod login;
mod message;
mod reset;
mod system;
mod task;
mod transport;
mod unproven;

use async_trait::async_trait;

use crate::error::BmcError;
use crate::model::{
    Bmc, BootMode, BootSource, Console, Credentials, Deadlines, Health, Identity, LogEntry, Performed,
    PowerRequest, PowerState,
};
use crate::resolve::Checked;
use crate::tls::{Seen, Trust};
use login::Session;
pub(crate) use system::Abilities;
use system::System;
use transport::Transport;

/// More entries of a log are not read.
const MOST_ENTRIES: usize = 256;

/// One system of a Redfish service.
pub struct Redfish {
    system: System,
    deadlines: Deadlines,
    insecure: bool,
}

impl Redfish {
    /// A client; nothing is sent yet.
    pub fn new(
        checked: &Checked,
        trust: &Trust,
        credentials: Credentials,
        system_id: Option<String>,
        deadlines: Deadlines,
    ) -> Result<Self, BmcError> {
        let transport = Transport::new(checked, trust, deadlines)?;
        Ok(Self {
            system: System::new(Session::new(transport, credentials), system_id),
            deadlines,
            insecure: *trust == Trust::Insecure,
        })
    }

    /// Returns the certificate of the newest handshake.
    pub fn certificate(&self) -> Seen {
        self.system.session.transport.witness.seen()
    }

    pub(crate) async fn abilities(&mut self) -> Result<Abilities, BmcError> {
        self.limited("reading its capabilities", async |system| system.abilities().await).await
    }

    pub(crate) async fn anonymous_root(&mut self) -> Result<Option<Abilities>, BmcError> {
        self.limited("reading its root", async |system| system.anonymous_root().await).await
    }

    /// Ends a call at its deadline, and remembers whether it had sent something that changes.
    async fn limited<T>(
        &mut self,
        what: &str,
        call: impl AsyncFnOnce(&mut System) -> Result<T, BmcError>,
    ) -> Result<T, BmcError> {
        self.system.sent = false;
        let after = self.deadlines.call;
        match tokio::time::timeout(after, call(&mut self.system)).await {
            Ok(result) => result,
            Err(_) => {
                let address = self.system.session.transport.address.clone();
                Err(BmcError::TimedOut { address, what: what.to_owned(), after, sent: self.system.sent })
            }
        }
    }
}

#[async_trait]
impl Bmc for Redfish {
    async fn identity(&mut self) -> Result<Identity, BmcError> {
        self.limited("reading its identity", async |system| system.identity().await).await
    }

    async fn power_state(&mut self) -> Result<PowerState, BmcError> {
        let read = async |system: &mut System| inventory::power_state(&system.read().await?.0);
        self.limited("reading the power state", read).await
    }

    async fn power(&mut self, request: PowerRequest) -> Result<Performed, BmcError> {
        self.limited(&request.to_string(), async |system| system.power(request).await).await
    }

    async fn next_boot(&mut self) -> Result<Option<BootSource>, BmcError> {
        self.limited("reading the next boot's source", async |system| system.next_boot().await).await
    }

    async fn set_next_boot(&mut self, source: BootSource, mode: Option<BootMode>) -> Result<(), BmcError> {
        let set = async |system: &mut System| system.set_next_boot(source, mode).await;
        self.limited("setting the next boot's source", set).await
    }

    async fn health(&mut self) -> Result<Health, BmcError> {
        self.limited("reading its health", async |system| system.health().await).await
    }

    async fn log_tail(&mut self, newest: usize) -> Result<Vec<LogEntry>, BmcError> {
        self.limited("reading its event log", async |system| system.log_tail(newest).await).await
    }

    async fn console(&mut self) -> Result<Box<dyn Console>, BmcError> {
        Err(BmcError::NotSupported {
            what: "a serial console".to_owned(),
            hint: "Redfish does not provide it; use the BMC's SSH or web console, or IPMI".to_owned(),
        })
    }

    async fn close(&mut self) {
        // The deadline of the request bounds it.
        self.system.session.close().await;
    }

    fn rest(&mut self) {
        self.system.session.transport.rest();
    }

    fn insecure(&self) -> bool {
        self.insecure
    }

    fn quirks(&self) -> Vec<String> {
        self.system.quirks().lines().map(|line| line.name.to_owned()).collect()
    }
}
