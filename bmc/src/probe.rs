//! What a BMC can do, before a Machine is written for it: as data, and as text for a person.
//!
//! Reads only; nothing is switched. Caller: the command-line tool.

use std::fmt;

use bedplate_api::id::Digest;
use serde::{Serialize, Serializer};

use crate::error::BmcError;
use crate::model::{Bmc as _, Identity};
use crate::redfish::Redfish;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Who it says that it is.
    pub identity: Identity,
    /// The pin of its certificate, for `bmc.tls.pins`; `None` without TLS.
    #[serde(serialize_with = "as_text")]
    pub pin: Option<Digest>,
    /// Whether the certificate was believed for a reason.
    pub verified: bool,
    /// The ids of its systems; with several, `bmc.systemId` is needed.
    pub systems: Vec<String>,
    /// What its power can be told; `None`: it does not tell.
    pub reset_types: Option<Vec<String>>,
    /// What it can boot from once; `None`: it does not tell.
    pub boot_sources: Option<Vec<String>>,
    /// Whether it has sessions; without, user name and password go with every request.
    pub sessions: bool,
    /// Ways to its serial console, none of them by Redfish.
    pub consoles: Vec<String>,
    /// Its deviations: name, and machines on which it was seen.
    pub quirks: Vec<(&'static str, &'static str)>,
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
        identity: found.identity,
        pin: seen.pin,
        verified: seen.verified,
        systems: found.systems,
        reset_types: found.reset_types,
        boot_sources: found.boot_sources,
        sessions: found.sessions,
        consoles: found.consoles,
        quirks: found.quirks.lines().map(|line| (line.name, line.seen_on)).collect(),
    })
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = &self.identity;
        let join = |parts: &[&Option<String>]| {
            let parts: Vec<&str> = parts.iter().filter_map(|part| part.as_deref()).collect();
            if parts.is_empty() { "not told".to_owned() } else { parts.join(", ") }
        };
        let list = |all: &Option<Vec<String>>| match all {
            None => "not told".to_owned(),
            Some(all) if all.is_empty() => "none".to_owned(),
            Some(all) => all.join(", "),
        };
        writeln!(f, "protocol      {}", join(&[&identity.protocol]))?;
        writeln!(f, "machine       {}", join(&[&identity.vendor, &identity.product, &identity.serial]))?;
        writeln!(f, "BMC           {}", join(&[&identity.controller, &identity.firmware]))?;
        let pin = self.pin.map_or_else(|| "no TLS".to_owned(), |pin| pin.to_string());
        let believed = if self.verified { "" } else { " (not verified)" };
        writeln!(f, "certificate   {pin}{believed}")?;
        let needed = if self.systems.len() > 1 { " (bmc.systemId is needed)" } else { "" };
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
                    quirks.iter().map(|(name, seen_on)| format!("{name} ({seen_on})")).collect();
                write!(f, "quirks        {}", lines.join("\n              "))
            }
        }
    }
}
