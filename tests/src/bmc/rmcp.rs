//! RMCP+ of a simulated BMC: power, boot flags, identity and a short log, behind `bedplate_ipmi::managed`.
//!
//! No sensors, no serial over LAN. The first of a service's systems is the machine.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bedplate_ipmi::crypto::{Password, UserName};
use bedplate_ipmi::managed::{Handler, Managed, Settings, User};
use bedplate_ipmi::session::Privilege;
use bedplate_ipmi::wire::completion::Completion;
use bedplate_ipmi::wire::message::{Request, Response};
use rand::Rng;
use secrecy::SecretString;

use super::chassis::{ActError, Action, By, Chassis, Override, Source};
use super::service::Bmc;

/// Two records: the upper threshold of a temperature, and a fan that is not there.
const LOG: [[u8; 16]; 2] = [
    [1, 0, 2, 0, 0, 0, 0x60, 0x20, 0, 4, 0x01, 0x30, 0x01, 0x59, 0x50, 0x4b],
    [2, 0, 2, 2, 0, 0, 0x60, 0x20, 0, 4, 0x04, 0x32, 0x81, 0x02, 0x00, 0x00],
];
/// Octets 1 and 2 of the boot flags (parameter 5).
const VALID: u8 = 0x80;
const PERSISTENT: u8 = 0x40;
const UEFI: u8 = 0x20;
const PXE: u8 = 0x04;
const DISK: u8 = 0x08;
const DEVICE: u8 = 0x3c;
/// Parameter 3: the boot flags do not expire after 60 s.
const KEEP: u8 = 0x08;

/// The RMCP+ side of a BMC.
pub(super) struct Rmcp {
    managed: Managed,
    /// Settings of the managed side: the password, and true if it accepts sessions.
    set: (String, bool),
    /// Parameter 3.
    clearing: u8,
    uefi: bool,
}

fn settings(bmc: &Bmc, password: &str, full: bool) -> Result<Settings> {
    let name = UserName::new(&bmc.settings.user).context("a user's name for IPMI")?;
    let password = Password::new(&SecretString::from(password)).context("a password for IPMI")?;
    let mut guid = [9; 16];
    if let Some(system) = bmc.systems.first() {
        let hex: Vec<u8> = system.lock().uuid().bytes().filter(u8::is_ascii_hexdigit).collect();
        for (octet, digits) in guid.iter_mut().zip(hex.chunks(2)) {
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            *octet = u8::from_str_radix(digits, 16).unwrap_or(0);
        }
    }
    Ok(Settings {
        guid,
        key: None,
        users: vec![User { name, password, privilege: Privilege::Administrator }],
        suites: bmc.settings.suites.clone(),
        sessions: if full { 0 } else { bmc.settings.ipmi_sessions },
        idle: Duration::from_secs(60),
        remembers: bmc.settings.ipmi_remembers,
    })
}

impl Rmcp {
    pub(super) fn new(bmc: &Bmc) -> Result<Self> {
        let password = bmc.password();
        let managed =
            Managed::new(settings(bmc, &password, false)?, Box::new(|octets| rand::rng().fill_bytes(octets)));
        Ok(Self { managed, set: (password, false), clearing: 0, uefi: false })
    }

    /// Takes a datagram; gives the one to send back.
    pub(super) fn receive(&mut self, bmc: &Bmc, peer: SocketAddr, datagram: &[u8]) -> Option<Vec<u8>> {
        let wanted = (bmc.password(), bmc.faults().sessions_full);
        if wanted != self.set {
            self.managed.set(settings(bmc, &wanted.0, wanted.1).ok()?);
            self.set = wanted;
        }
        let Self { managed, clearing, uefi, .. } = self;
        let mut front = Front { bmc, clearing, uefi, mute: false };
        let answer = managed.receive(&mut front, peer, datagram, Instant::now());
        let mute = front.mute;
        bmc.set_ipmi_sessions(managed.sessions());
        answer.filter(|_| !mute)
    }
}

struct Front<'a> {
    bmc: &'a Bmc,
    clearing: &'a mut u8,
    uefi: &'a mut bool,
    /// The answer is lost.
    mute: bool,
}

fn good(data: &[u8]) -> Response {
    Response { completion: Completion::Ok, data: data.to_vec() }
}

fn bad(completion: Completion) -> Response {
    Response { completion, data: Vec::new() }
}

impl Handler for Front<'_> {
    fn command(&mut self, privilege: Privilege, request: &Request, now: Instant) -> Response {
        self.bmc.count(|counters| counters.requests += 1);
        let faults = self.bmc.faults();
        if faults.status.is_some() {
            return bad(Completion::Busy);
        }
        let answer = match (request.function, request.command, request.data.as_slice()) {
            (0x00, 0x02 | 0x08, _) if privilege < Privilege::Operator => bad(Completion::Privilege),
            (0x00, 0x02, [control]) => {
                self.mute = faults.answers_lost;
                self.control(*control)
            }
            (0x00, 0x01 | 0x08 | 0x09, data) => match self.bmc.systems.first() {
                Some(system) => self.chassis(request.command, data, &mut system.lock(), now),
                None => bad(Completion::NotPresent),
            },
            (0x06, 0x01, _) => good(&[0x20, 1, 2, 0x45, 2, 0xbf, 0xbe, 0xeb, 0, 0x34, 0x12, 0, 0, 0, 0]),
            (0x06, 0x37, _) => good(&[0xab; 16]),
            (0x0a, 0x40, _) => good(&[0x51, 2, 0, 0xff, 0xff, 2, 0, 0, 0x60, 0, 0, 0, 0, 0x02]),
            (0x0a, 0x42, _) => good(&[1, 0]),
            (0x0a, 0x43, [_, _, low, high, ..]) => record(u16::from_le_bytes([*low, *high])),
            _ => bad(Completion::InvalidCommand),
        };
        if faults.wrong_json { Response { data: Vec::new(), ..answer } } else { answer }
    }

    fn may_log_in(&mut self, _: &UserName, _: Instant) -> bool {
        self.bmc.ipmi_begins()
    }

    fn logged_in(&mut self, _: &UserName, right: bool, _: Instant) {
        self.bmc.ipmi_proved(right);
    }
}

impl Front<'_> {
    fn control(&mut self, control: u8) -> Response {
        let action = match control {
            0 => Action::ForceOff,
            1 => Action::On,
            2 => Action::Cycle,
            3 => Action::Reset,
            5 => Action::GracefulOff,
            _ => return bad(Completion::InvalidField),
        };
        let Some(system) = self.bmc.systems.first() else { return bad(Completion::NotPresent) };
        match self.bmc.act(system, action, By::Ipmi) {
            Ok(()) => good(&[]),
            Err(ActError::State) => bad(Completion::State),
            Err(ActError::Hardware(_)) => bad(Completion::Unspecified),
        }
    }

    /// Chassis status, and the boot options.
    fn chassis(&mut self, command: u8, data: &[u8], system: &mut Chassis, now: Instant) -> Response {
        match (command, data) {
            (0x01, _) => {
                self.bmc.tells();
                good(&[u8::from(system.is_reported_on(now)), 0, 0, 0])
            }
            (0x08, [5, first, second, ..]) => {
                let source = match second & DEVICE {
                    PXE => Some(Source::Pxe),
                    DISK => Some(Source::Disk),
                    _ => None,
                };
                let once = first & PERSISTENT == 0;
                let wanted = source.filter(|_| first & VALID != 0).map(|source| Override { source, once });
                *self.uefi = first & UEFI != 0;
                system.set_boot(wanted, *self.clearing & KEEP == 0, now);
                good(&[])
            }
            (0x08, [3, bits]) => {
                *self.clearing = *bits;
                good(&[])
            }
            (0x08, [0 | 4, ..]) => good(&[]),
            (0x09, [3, ..]) => good(&[1, 3, *self.clearing]),
            (0x09, [5, ..]) => {
                let boot = system.boot_override(now);
                let device = match boot.map(|boot| boot.source) {
                    Some(Source::Pxe) => PXE,
                    Some(Source::Disk) => DISK,
                    // IPMI has no word for it.
                    Some(Source::Http) | None => 0,
                };
                let first = boot.map_or(0, |boot| VALID | if boot.once { 0 } else { PERSISTENT });
                good(&[1, 5, first | if *self.uefi { UEFI } else { 0 }, device, 0, 0, 0])
            }
            _ => bad(Completion::Specific(0x80)),
        }
    }
}

/// A record of the log with the number of the next.
fn record(number: u16) -> Response {
    let at = match number {
        0 => 1,
        0xffff => LOG.len(),
        number => number.into(),
    };
    let Some(record) = at.checked_sub(1).and_then(|at| LOG.get(at)) else {
        return bad(Completion::NotPresent);
    };
    let next = if at == LOG.len() { 0xffff } else { number.max(1) + 1 };
    good(&[&next.to_le_bytes()[..], record].concat())
}
