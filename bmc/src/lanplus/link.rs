//! The session with a BMC over IPMI: opened when it is needed, opened once more when it is lost, and who may log in.
//!
//! ```text
//! None --login--> Open --lost--> None, and what only reads is asked once more in a new one
//!   '-- password, user, key or proof refused --> Held
//! ```
//! Held stays: a wrong password is tried once, so that no BMC locks anybody out. Who has new credentials makes a new `Link`.
//!
//! **Cipher suites.** Only the configured one. If none is configured: 17, and 3 if the BMC reports that it does not have 17.
//! Once a session stood with 17, a BMC that no longer has it is not followed to 3: who answers may not be the BMC. (The first
//! answer is not signed, as no key is agreed yet: who fears it sets `bmc.ipmi.cipherSuite` to 17.)
//!
//! Caller: `lanplus`, which sets the deadline of every call.

use std::net::SocketAddr;
use std::time::Duration;

use bedplate_ipmi::client::{Client, ClientError, Options};
use bedplate_ipmi::command::Command;
use bedplate_ipmi::command::boot::{BootDevice, FlagsLast};
use bedplate_ipmi::command::device::GetDeviceId;
use bedplate_ipmi::command::fru::{GetFruArea, MACHINE};
use bedplate_ipmi::command::payload::IN_USE;
use bedplate_ipmi::command::sel::SelRecord;
use bedplate_ipmi::command::sensor::Sensor;
use bedplate_ipmi::console;
use bedplate_ipmi::crypto::Suite;
use bedplate_ipmi::fru::{Fru, FruReader};
use bedplate_ipmi::sensors::SensorReader;
use bedplate_ipmi::session::{Retry, SessionError};
use bedplate_ipmi::wire::completion::Completion;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Settings, fault};
use crate::error::BmcError;
use crate::model::{BootMode, Console, Credentials, Deadlines};
use crate::resolve::Checked;

/// Number of transmissions of a packet.
const MAX_TRANSMISSIONS: u32 = 4;
/// The waits for the answers to all attempts, in units of the first: 1, 2, 4 and 4.
const WAITS_IN_UNITS_OF_FIRST: u32 = 11;

/// More sensor records are not read.
const MOST_RECORDS: u16 = 256;

type Login = Result<(Client, Suite), ClientError>;

/// A BMC, and the session with it.
pub(super) struct Link {
    /// Host and port, for messages.
    pub(super) address: String,
    sockets: Vec<SocketAddr>,
    credentials: Credentials,
    settings: Settings,
    options: Options,
    /// The suite of the newest session.
    used: Option<Suite>,
    held: Option<String>,
    /// Login that a dropped call has started: the next call waits for it.
    pending: Option<JoinHandle<Login>>,
    client: Option<Client>,
    /// True if this call has sent a changing request.
    pub(super) sent: bool,
}

impl Link {
    pub(super) fn new(
        checked: &Checked,
        credentials: Credentials,
        settings: Settings,
        deadlines: Deadlines,
    ) -> Self {
        let options = Options {
            privilege: settings.privilege,
            retry: retry(deadlines),
            connect: deadlines.request,
            request: deadlines.request,
            ..Options::default()
        };
        let (address, sockets) = (checked.address().to_string(), checked.sockets().to_vec());
        let (used, held, pending, client) = (None, None, None, None);
        Self { address, sockets, credentials, settings, options, used, held, pending, client, sent: false }
    }

    /// Returns true if the BMC got a weaker suite than the first one that was requested.
    pub(super) fn is_weaker(&self) -> bool {
        self.settings.suite.is_none() && self.used == Some(Suite::Sha1)
    }

    /// The cipher suite of the newest session.
    pub(super) fn suite(&self) -> Option<Suite> {
        self.used
    }

    /// Has a command carried out that only reads; once more in a new session where the old one is lost.
    pub(super) async fn read<C: Command>(&mut self, what: &str, command: C) -> Result<C::Answer, BmcError> {
        let mut reused = self.client.is_some();
        loop {
            let result = self.client().await?.request(&command).await;
            if !self.is_asked_again(result.as_ref().err(), &mut reused) {
                return result.map_err(|error| fault::of_client(&error, &self.address, what, false));
            }
        }
    }

    /// The newest records of the event log.
    pub(super) async fn log_tail(&mut self, what: &str, most: usize) -> Result<Vec<SelRecord>, BmcError> {
        let mut reused = self.client.is_some();
        loop {
            let result = self.client().await?.log_tail(most).await;
            if !self.is_asked_again(result.as_ref().err(), &mut reused) {
                return result.map_err(|error| fault::of_client(&error, &self.address, what, false));
            }
        }
    }

    /// The sensors, as many as are read in time.
    pub(super) async fn sensors(&mut self, what: &str) -> Result<Vec<Sensor>, BmcError> {
        let until = Instant::now() + self.options.request;
        let mut reader = SensorReader::new(MOST_RECORDS);
        let mut sensors = Vec::new();
        loop {
            let step = reader.step(self.client().await?);
            match tokio::time::timeout_at(until, step).await {
                Ok(Ok(Some(sensor))) => sensors.push(sensor),
                // A BMC without records has no sensors.
                Ok(Ok(None) | Err(ClientError::Command(_))) => return Ok(sensors),
                Ok(Err(error)) => return Err(fault::of_client(&error, &self.address, what, false)),
                Err(_) => {
                    tracing::debug!(address = %self.address, read = sensors.len(), "sensor read timed out");
                    return Ok(sensors);
                }
            }
        }
    }

    /// Reads the machine's FRU, as far as possible in the given time. It is optional: a BMC without one causes no
    /// error.
    pub(super) async fn fru(&mut self) -> Fru {
        let until = Instant::now() + self.options.request;
        let mut reader = None;
        let read = tokio::time::timeout_at(until, async {
            let client = self.client().await.ok()?;
            read_fru(client, &mut reader).await.err()
        })
        .await;
        match read {
            Ok(None) => {}
            Ok(Some(error)) => {
                tracing::debug!(address = %self.address, %error, "failed to read the FRU");
                // The values that were read in a lost session are valid.
                self.is_asked_again(Some(&error), &mut false);
            }
            Err(_) => tracing::debug!(address = %self.address, "FRU read timed out"),
        }
        reader.map(FruReader::finish).unwrap_or_default()
    }

    /// The serial console. It takes the session with it: the next call opens another.
    pub(super) async fn console(&mut self, what: &str) -> Result<Box<dyn Console>, BmcError> {
        self.read(what, GetDeviceId).await?;
        let Some(client) = self.client.take() else { return Err(self.lost()) };
        match console::open(client, self.options.retry).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) if error.completion() == Some(Completion::Specific(IN_USE)) => {
                let problem = "another session uses the serial console; close it first".to_owned();
                Err(BmcError::Busy { address: self.address.clone(), problem })
            }
            Err(error) => Err(fault::of_client(&error, &self.address, what, false)),
        }
    }

    /// Returns true if the reused session is lost, so that a new one may succeed.
    fn is_asked_again(&mut self, error: Option<&ClientError>, reused: &mut bool) -> bool {
        let lost = matches!(error, Some(ClientError::Request(_) | ClientError::Session(_)));
        if lost {
            tracing::debug!(address = %self.address, reused, "session lost");
            self.client = None;
        }
        std::mem::take(reused) && lost
    }

    /// Sends a changing request once, in an open session: the caller has just read something in it.
    pub(super) async fn change<C: Command>(&mut self, what: &str, command: C) -> Result<C::Answer, BmcError> {
        self.client().await?;
        let Some(client) = &self.client else { return Err(self.lost()) };
        self.sent = true;
        let result = client.request(&command).await;
        self.changed(what, result)
    }

    /// Has the machine boot from the network next time.
    pub(super) async fn set_next_boot(
        &mut self,
        what: &str,
        mode: Option<BootMode>,
    ) -> Result<FlagsLast, BmcError> {
        self.client().await?;
        let Some(client) = &self.client else { return Err(self.lost()) };
        self.sent = true;
        // The bit means BIOS or UEFI. If the mode is unknown, UEFI is set: firmware without UEFI ignores the bit, and
        // some machines with both would boot as BIOS without it.
        let efi = mode != Some(BootMode::Legacy);
        let result = client.set_next_boot(BootDevice::Pxe, efi).await;
        // Several commands: whichever failed, another may have been taken.
        result.map_err(|error| fault::of_client(&error, &self.address, what, true).with_sent(true))
    }

    fn changed<T>(&mut self, what: &str, result: Result<T, ClientError>) -> Result<T, BmcError> {
        // The session was over before anything was sent in it.
        self.sent = !matches!(result, Err(ClientError::Session(_)));
        result.map_err(|error| fault::of_client(&error, &self.address, what, self.sent))
    }

    fn lost(&self) -> BmcError {
        fault::of_client(&ClientError::Session(SessionError::Lost), &self.address, "", false)
    }

    async fn client(&mut self) -> Result<&Client, BmcError> {
        if let Some(problem) = self.held.clone() {
            return Err(BmcError::AuthenticationFailed { address: self.address.clone(), problem });
        }
        if self.client.as_ref().is_some_and(|client| client.failure().is_some()) {
            self.client = None;
        }
        if self.client.is_none() {
            self.log_in().await?;
        }
        match &self.client {
            Some(client) => Ok(client),
            None => Err(self.lost()),
        }
    }

    async fn log_in(&mut self) -> Result<(), BmcError> {
        let suites: &[Suite] = match (self.settings.suite, self.used) {
            (Some(Suite::Sha1), _) => &[Suite::Sha1],
            (Some(Suite::Sha256), _) | (None, Some(Suite::Sha256)) => &[Suite::Sha256],
            (None, None | Some(Suite::Sha1)) => &[Suite::Sha256, Suite::Sha1],
        };
        let pending = self.pending.get_or_insert_with(|| {
            let (sockets, credentials) = (self.sockets.clone(), self.credentials.clone());
            tokio::spawn(log_in(sockets, credentials, self.options.clone(), suites))
        });
        let result = pending.await;
        self.pending = None;
        match result {
            Ok(Ok((client, suite))) => {
                self.client = Some(client);
                self.used = Some(suite);
                Ok(())
            }
            Ok(Err(error)) => {
                let error = fault::of_client(&error, &self.address, "a session", false);
                if let BmcError::AuthenticationFailed { problem, .. } = &error {
                    self.held = Some(problem.clone());
                }
                Err(error)
            }
            Err(_) => Err(self.lost()),
        }
    }

    /// Ends the session at the BMC.
    pub(super) async fn close(&mut self) {
        if self.pending.is_some()
            && let Err(error) = self.log_in().await
        {
            let reason = error.reason();
            tracing::debug!(address = %self.address, %reason, "abandoned login failed");
        }
        if let Some(client) = self.client.take() {
            client.close().await;
        }
    }
}

async fn read_fru(client: &Client, reader: &mut Option<FruReader>) -> Result<(), ClientError> {
    let area = client.request(&GetFruArea { device: MACHINE }).await?;
    let reader = reader.insert(FruReader::new(area));
    while let Some(part) = reader.next() {
        match client.request(&part).await {
            Ok(octets) => reader.take(&octets),
            Err(ClientError::Command(_)) => reader.refused(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// All attempts together last as long as a connection may.
pub(super) fn retry(deadlines: Deadlines) -> Retry {
    let first = (deadlines.connect / WAITS_IN_UNITS_OF_FIRST).max(Duration::from_millis(10));
    Retry { first, most: first * 4, attempts: MAX_TRANSMISSIONS }
}

/// Tries the addresses of a BMC until one answers, and the suites until one is not refused as unknown.
async fn log_in(
    sockets: Vec<SocketAddr>,
    credentials: Credentials,
    options: Options,
    suites: &'static [Suite],
) -> Login {
    let mut failed = ClientError::Session(SessionError::Lost);
    for socket in sockets {
        for suite in suites.iter().copied() {
            let options = Options { suite, ..options.clone() };
            match Client::connect(socket, &credentials.username, &credentials.password, &options).await {
                Ok(client) => return Ok((client, suite)),
                Err(error) => failed = error,
            }
            if !matches!(failed, ClientError::Session(SessionError::SuiteRefused { .. })) {
                break;
            }
        }
        let silent = SessionError::Unreachable { attempts: options.retry.attempts };
        if !matches!(&failed, ClientError::Session(error) if *error == silent)
            && !matches!(failed, ClientError::Socket { .. })
        {
            break;
        }
    }
    Err(failed)
}
