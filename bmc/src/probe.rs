//! Probe of a BMC before a Machine is created for it: as data, and as text for users.
//!
//! Read-only; changes nothing. Caller: the command-line tool, by [`look`].

use std::fmt;

use bedplate_api::id::Digest;
use bedplate_api::machine::{BmcProtocol, PowerState};
use serde::{Serialize, Serializer};

use crate::address::{Address, Reach};
use crate::error::BmcError;
use crate::lanplus;
use crate::model::{Bmc as _, Credentials, Deadlines, Identity};
use crate::quirks::Line;
use crate::redfish::Redfish;
use crate::resolve::resolve;
use crate::tls::Trust;

/// Result of a probe, of either protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "protocol")]
pub enum Found {
    /// A Redfish service.
    Redfish(Probe),
    /// A BMC that speaks IPMI.
    #[serde(rename = "IPMI")]
    Ipmi(IpmiProbe),
}

/// Probes a BMC. Without credentials there is no login: then the result has public facts only. The certificate is
/// shown even if `trust` does not accept it (see `verified`), since no secret is sent.
pub async fn look(
    address: &str,
    protocol: BmcProtocol,
    credentials: Option<Credentials>,
    trust: &Trust,
    system_id: Option<String>,
    reach: &Reach,
    deadlines: Deadlines,
) -> Result<Found, BmcError> {
    let parsed = Address::parse(address, protocol)?;
    let checked = resolve(&parsed, reach, deadlines.connect).await?;
    if protocol == BmcProtocol::Ipmi {
        return lanplus::look(&checked, credentials, deadlines).await.map(Found::Ipmi);
    }
    if let Some(credentials) = credentials {
        let mut bmc = Redfish::new(&checked, trust, credentials, system_id, deadlines)?;
        return redfish(&mut bmc).await.map(Found::Redfish);
    }
    let anonymous = || Credentials { username: String::new(), password: String::new().into() };
    let mut bmc = Redfish::new(&checked, trust, anonymous(), system_id.clone(), deadlines)?;
    let found = match anonymous_probe(&mut bmc).await {
        Err(BmcError::CertificateChanged { .. } | BmcError::CertificateUntrusted { .. }) => {
            let insecure = Trust::Insecure;
            let mut bmc = Redfish::new(&checked, &insecure, anonymous(), system_id, deadlines)?;
            anonymous_probe(&mut bmc).await
        }
        found => found,
    };
    found.map(Found::Redfish)
}

/// Returns the public facts of a Redfish service.
async fn anonymous_probe(bmc: &mut Redfish) -> Result<Probe, BmcError> {
    let (found, seen) = (bmc.anonymous_root().await?, bmc.certificate());
    Ok(Probe {
        authenticated: false,
        identity: found.as_ref().map(|found| found.identity.clone()).unwrap_or_default(),
        pin: seen.pin,
        verified: seen.verified,
        systems: Vec::new(),
        reset_types: None,
        boot_sources: None,
        sessions: found.as_ref().is_some_and(|found| found.sessions),
        consoles: Vec::new(),
        quirks: found.iter().flat_map(|f| f.quirks.lines()).map(Deviation::of).collect(),
    })
}

/// Result of a probe over IPMI.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IpmiProbe {
    /// True after a login; without it only the channel's public facts are known.
    pub authenticated: bool,
    /// Identity of the BMC and its machine; empty without a login.
    pub identity: Identity,
    /// True if it speaks IPMI 2.0 (RMCP+), which is required.
    pub ipmi_2_0: bool,
    /// True if it also accepts IPMI 1.5 sessions, which are not encrypted.
    pub ipmi_1_5: bool,
    /// True if it has its own key (Kg), with which Bedplate cannot log in.
    pub has_key: bool,
    /// True if a login without a user name is possible.
    pub anonymous: bool,
    /// Numbers of the offered cipher suites. `None`: the BMC does not report them.
    pub suites: Option<Vec<u8>>,
    /// The cipher suite of the session.
    pub suite: Option<u8>,
    /// The highest privilege that the account has over LAN: a value of `bmc.ipmi.privilege`.
    pub privilege: Option<&'static str>,
    /// The power state now.
    pub power: Option<PowerState>,
    /// Power controls of the standard: a BMC does not list them.
    pub power_controls: Vec<&'static str>,
    /// Deviations from the standard.
    pub quirks: Vec<String>,
}

/// Result of a probe over Redfish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// True after a login; without it only the service's public facts are known.
    pub authenticated: bool,
    /// Identity of the BMC and its machine.
    pub identity: Identity,
    /// The pin of its certificate, for `bmc.redfish.tls.pins`; `None` without TLS.
    #[serde(serialize_with = "as_text")]
    pub pin: Option<Digest>,
    /// True if the certificate was verified.
    pub verified: bool,
    /// The ids of its systems; with several, `bmc.redfish.systemID` is needed.
    pub systems: Vec<String>,
    /// Power requests that it accepts; `None`: not reported.
    pub reset_types: Option<Vec<String>>,
    /// Sources that it can boot from once; `None`: not reported.
    pub boot_sources: Option<Vec<String>>,
    /// True if it has sessions; otherwise each request contains user name and password.
    pub sessions: bool,
    /// Ways to its serial console, none of them by Redfish.
    pub consoles: Vec<String>,
    /// Deviations from the standard.
    pub quirks: Vec<Deviation>,
}

/// Deviation of a service from the standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deviation {
    /// The name, stable.
    pub name: &'static str,
    /// Machines and firmware on which it was seen.
    pub seen_on: &'static str,
}

impl Deviation {
    fn of(line: &Line) -> Self {
        Self { name: line.name, seen_on: line.seen_on }
    }
}

fn as_text<S: Serializer>(pin: &Option<Digest>, serializer: S) -> Result<S::Ok, S::Error> {
    pin.map(|pin| pin.to_string()).serialize(serializer)
}

/// Asks a Redfish service what it can do, and ends the session.
pub async fn redfish(bmc: &mut Redfish) -> Result<Probe, BmcError> {
    let found = bmc.abilities().await;
    bmc.close().await;
    let (found, seen) = (found?, bmc.certificate());
    Ok(Probe {
        authenticated: true,
        identity: found.identity,
        pin: seen.pin,
        verified: seen.verified,
        systems: found.systems,
        reset_types: found.reset_types,
        boot_sources: found.boot_sources,
        sessions: found.sessions,
        consoles: found.consoles,
        quirks: found.quirks.lines().map(Deviation::of).collect(),
    })
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = &self.identity;
        let join = |parts: &[&Option<String>]| {
            let parts: Vec<&str> = parts.iter().filter_map(|part| part.as_deref()).collect();
            if parts.is_empty() { "not reported".to_owned() } else { parts.join(", ") }
        };
        let list = |all: &Option<Vec<String>>| match all {
            None => "not reported".to_owned(),
            Some(all) if all.is_empty() => "none".to_owned(),
            Some(all) => all.join(", "),
        };
        writeln!(f, "protocol      {}", join(&[&identity.protocol]))?;
        writeln!(f, "machine       {}", join(&[&identity.vendor, &identity.product, &identity.serial]))?;
        writeln!(f, "BMC           {}", join(&[&identity.controller, &identity.firmware]))?;
        let pin = self.pin.map_or_else(|| "no TLS".to_owned(), |pin| pin.to_string());
        let believed = if self.verified { "" } else { " (not verified)" };
        writeln!(f, "certificate   {pin}{believed}")?;
        let needed = if self.systems.len() > 1 { " (bmc.redfish.systemID is needed)" } else { "" };
        if !self.authenticated {
            return write!(f, "more          needs user name and password");
        }
        writeln!(f, "systems       {}{needed}", list(&Some(self.systems.clone())))?;
        writeln!(f, "power         {}", list(&self.reset_types))?;
        writeln!(f, "boot once     {}", list(&self.boot_sources))?;
        writeln!(
            f,
            "login         {}",
            if self.sessions { "session" } else { "password with every request" }
        )?;
        writeln!(f, "console       {}", list(&Some(self.consoles.clone())))?;
        match self.quirks.as_slice() {
            [] => write!(f, "quirks        none"),
            quirks => {
                let lines: Vec<String> =
                    quirks.iter().map(|quirk| format!("{} ({})", quirk.name, quirk.seen_on)).collect();
                write!(f, "quirks        {}", lines.join("\n              "))
            }
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redfish(probe) => probe.fmt(f),
            Self::Ipmi(probe) => probe.fmt(f),
        }
    }
}

impl fmt::Display for IpmiProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = &self.identity;
        let speaks = match (self.ipmi_2_0, self.ipmi_1_5) {
            (true, false) => "IPMI 2.0",
            (true, true) => "IPMI 2.0; IPMI 1.5 too, which is not encrypted; disable it",
            (false, _) => "IPMI 1.5 only: Bedplate needs 2.0",
        };
        let suites = match &self.suites {
            None => "not reported".to_owned(),
            Some(suites) => {
                let numbers: Vec<String> = suites.iter().map(ToString::to_string).collect();
                // Suite 0 accepts every client that knows a user name.
                let open = if suites.contains(&0) { " (0 requires no password; disable it)" } else { "" };
                format!("{}{open}", numbers.join(", "))
            }
        };
        writeln!(f, "protocol      {speaks}")?;
        writeln!(f, "suites        {suites}")?;
        if self.has_key {
            writeln!(
                f,
                "key           the BMC has its own key (Kg), which Bedplate does not support; set it to zeros"
            )?;
        }
        if self.anonymous {
            writeln!(f, "accounts      login without a user name is possible; disable it")?;
        }
        if !self.authenticated {
            return write!(f, "more          needs user name and password");
        }
        let machine = [&identity.vendor, &identity.product, &identity.serial].map(Option::as_deref);
        let machine = machine.into_iter().flatten().collect::<Vec<_>>().join(", ");
        writeln!(f, "machine       {}", if machine.is_empty() { "not reported" } else { &machine })?;
        let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "not reported".to_owned());
        writeln!(f, "BMC           {}, {}", shown(&identity.controller), shown(&identity.firmware))?;
        let suite = self.suite.map_or_else(|| "none".to_owned(), |suite| suite.to_string());
        writeln!(f, "session       cipher suite {suite}, privilege {}", self.privilege.unwrap_or("none"))?;
        writeln!(
            f,
            "power         {:?}; {}",
            self.power.unwrap_or(PowerState::Unknown),
            self.power_controls.join(", ")
        )?;
        writeln!(f, "boot once     Pxe")?;
        write!(
            f,
            "quirks        {}",
            if self.quirks.is_empty() { "none".to_owned() } else { self.quirks.join(", ") }
        )
    }
}
