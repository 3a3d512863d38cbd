//! IPMI 2.0 over LAN (RMCP+) as a [`Bmc`]: the client of `bedplate-ipmi`, its sessions, errors and answers in this crate's words.
//!
//! The session is opened by the first call, used by all, and closed by `close` or when the `Lanplus` is dropped. What changes
//! something is sent once, after a read in the same session; see `link`.
//!
//! Caller: `connect`, `probe`.

mod answers;
mod fault;
mod link;
mod look;

use async_trait::async_trait;
use bedplate_api::machine::{IpmiPrivilege, IpmiSpec};
use bedplate_ipmi::command::boot::{BootDevice, FlagsLast, GetBootFlags};
use bedplate_ipmi::command::chassis::{ChassisControl, GetChassisStatus};
use bedplate_ipmi::command::device::GetDeviceId;
use bedplate_ipmi::crypto::Suite;
use bedplate_ipmi::fru::Fru;
use bedplate_ipmi::session::Privilege;

use crate::error::BmcError;
use crate::model::{
    Bmc, BootMode, BootSource, Console, Credentials, Deadlines, Health, Identity, LogEntry, Performed,
    PowerRequest, PowerState,
};
use crate::resolve::Checked;
use link::Link;
pub(crate) use look::look;

/// More entries of a log are not read.
const MOST_ENTRIES: usize = 256;

/// Settings of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The only suite to use. `None`: 17, and 3 if the BMC reports that it does not have 17.
    pub suite: Option<Suite>,
    /// The privilege level.
    pub privilege: Privilege,
}

impl Settings {
    /// Returns the settings of a Machine.
    pub fn of(spec: Option<&IpmiSpec>) -> Result<Self, BmcError> {
        let suite = match spec.and_then(|spec| spec.cipher_suite) {
            None => None,
            Some(3) => Some(Suite::Sha1),
            Some(17) => Some(Suite::Sha256),
            Some(other) => {
                return Err(BmcError::NotSupported {
                    what: format!("a session with cipher suite {other}"),
                    hint: "set bmc.ipmi.cipherSuite to 17 or 3".to_owned(),
                });
            }
        };
        let privilege = match spec.map(|spec| spec.privilege).unwrap_or_default() {
            IpmiPrivilege::User => Privilege::User,
            IpmiPrivilege::Operator => Privilege::Operator,
            IpmiPrivilege::Administrator => Privilege::Administrator,
        };
        Ok(Self { suite, privilege })
    }
}

/// A machine behind an IPMI 2.0 BMC.
pub(crate) struct Lanplus {
    link: Link,
    deadlines: Deadlines,
    /// Machine's FRU, read once: it does not change while a machine runs.
    fru: Option<Fru>,
    /// Boot flags end after a minute, as the BMC does not take parameter 3.
    forgets: bool,
    /// True if the BMC does not report that boot flags which were set are in force.
    invalid: bool,
}

impl Lanplus {
    /// A client; nothing is sent yet.
    pub(crate) fn new(
        checked: &Checked,
        credentials: Credentials,
        settings: Settings,
        deadlines: Deadlines,
    ) -> Self {
        let link = Link::new(checked, credentials, settings, deadlines);
        Self { link, deadlines, fru: None, forgets: false, invalid: false }
    }

    /// Ends a call at its deadline, and remembers whether it had sent something that changes.
    async fn limited<T>(
        &mut self,
        what: &str,
        call: impl AsyncFnOnce(&mut Link) -> Result<T, BmcError>,
    ) -> Result<T, BmcError> {
        self.link.sent = false;
        let after = self.deadlines.call;
        match tokio::time::timeout(after, call(&mut self.link)).await {
            Ok(result) => result,
            Err(_) => {
                let address = self.link.address.clone();
                Err(BmcError::TimedOut { address, what: what.to_owned(), after, sent: self.link.sent })
            }
        }
    }
}

#[async_trait]
impl Bmc for Lanplus {
    async fn identity(&mut self) -> Result<Identity, BmcError> {
        let what = "reading its identity";
        let known = self.fru.take();
        let read = async |link: &mut Link| {
            let device = link.read(what, GetDeviceId).await?;
            let fru = match &known {
                Some(fru) => fru.clone(),
                None => link.fru().await,
            };
            Ok((device, fru))
        };
        let read = self.limited(what, read).await;
        self.fru = read.as_ref().ok().map(|(_, fru)| fru.clone()).or(known);
        read.map(|(device, fru)| answers::identity(&device, &fru))
    }

    async fn power_state(&mut self) -> Result<PowerState, BmcError> {
        let what = "reading the power state";
        let read = async |link: &mut Link| Ok(answers::power(&link.read(what, GetChassisStatus).await?));
        self.limited(what, read).await
    }

    async fn power(&mut self, request: PowerRequest) -> Result<Performed, BmcError> {
        let (control, name) = match request {
            PowerRequest::On => (ChassisControl::Up, "power up"),
            PowerRequest::GracefulOff => (ChassisControl::SoftShutdown, "soft shutdown (ACPI)"),
            PowerRequest::ForceOff => (ChassisControl::Down, "power down"),
            PowerRequest::Cycle => (ChassisControl::Cycle, "power cycle"),
            PowerRequest::Reset => (ChassisControl::HardReset, "hard reset"),
        };
        let what = request.to_string();
        let act = async |link: &mut Link| {
            link.read(&what, GetChassisStatus).await?;
            link.change(&what, control).await?;
            Ok(Performed(name))
        };
        self.limited(&what, act).await
    }

    async fn next_boot(&mut self) -> Result<Option<BootSource>, BmcError> {
        let what = "reading the next boot's source";
        let read = async |link: &mut Link| {
            let flags = link.read(what, GetBootFlags).await?;
            Ok((flags.valid && flags.device == BootDevice::Pxe).then_some(BootSource::Pxe))
        };
        self.limited(what, read).await
    }

    async fn set_next_boot(&mut self, source: BootSource, mode: Option<BootMode>) -> Result<(), BmcError> {
        if source == BootSource::Http {
            return Err(BmcError::NotSupported {
                what: "booting once by UEFI HTTP".to_owned(),
                hint: "IPMI does not provide it; set bmc.bootSource to PXE".to_owned(),
            });
        }
        let what = "setting the next boot's source";
        let set = self.limited(what, async |link| set_next_boot(link, what, mode).await).await?;
        self.forgets = set.last == FlagsLast::Minute;
        self.invalid = !set.valid;
        Ok(())
    }

    async fn health(&mut self) -> Result<Health, BmcError> {
        let what = "reading its health";
        let read = async |link: &mut Link| {
            let status = link.read(what, GetChassisStatus).await?;
            Ok(answers::health(&status, &link.sensors(what).await?))
        };
        self.limited(what, read).await
    }

    async fn log_tail(&mut self, newest: usize) -> Result<Vec<LogEntry>, BmcError> {
        let (what, most) = ("reading its event log", newest.min(MOST_ENTRIES));
        let read = async |link: &mut Link| {
            let records = link.log_tail(what, most).await?;
            Ok(records.iter().map(answers::log_entry).collect())
        };
        self.limited(what, read).await
    }

    async fn console(&mut self) -> Result<Box<dyn Console>, BmcError> {
        let what = "the serial console";
        self.limited(what, async |link| link.console(what).await).await
    }

    async fn close(&mut self) {
        self.link.close().await;
    }

    fn quirks(&self) -> Vec<String> {
        let mut quirks = Vec::new();
        if self.link.is_weaker() {
            quirks.push("no-cipher-suite-17".to_owned());
        }
        if self.forgets {
            quirks.push("boot-flags-last-a-minute".to_owned());
        }
        if self.invalid {
            quirks.push("boot-flags-not-shown-valid".to_owned());
        }
        quirks
    }
}

/// Boot flags that were set.
struct FlagsSet {
    last: FlagsLast,
    /// True if the BMC reports that they are in force. Some (OpenIPMI's) never do, but follow them, so false is not
    /// an error.
    valid: bool,
}

/// Sets the flags and looks whether they are there.
async fn set_next_boot(link: &mut Link, what: &str, mode: Option<BootMode>) -> Result<FlagsSet, BmcError> {
    link.read(what, GetChassisStatus).await?;
    let last = link.set_next_boot(what, mode).await?;
    match link.read(what, GetBootFlags).await {
        Ok(flags) if flags.device != BootDevice::Pxe => Err(BmcError::Refused {
            what: what.to_owned(),
            problem: "the BMC accepted the boot flags, but does not return them; check for newer firmware"
                .to_owned(),
            sent: true,
        }),
        // They were set; where they cannot be read nothing more is known.
        Ok(flags) => Ok(FlagsSet { last, valid: flags.valid }),
        Err(BmcError::NotSupported { .. } | BmcError::Refused { .. }) => Ok(FlagsSet { last, valid: true }),
        Err(error) => Err(error.with_sent(true)),
    }
}
