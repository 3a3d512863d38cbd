//! `bedplate bmc probe`: shows what a BMC is and can do, from this host, and what to write into a Machine for
//! it. It only reads, and uses neither pxed nor a cluster.
//!
//! The address is not restricted as in pxed: the user could connect to it without this program. The password
//! is sent only to a BMC whose certificate the user trusts. Without a password nothing secret is sent, so any
//! certificate is accepted.

mod snippet;

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use bedplate_api::machine::BmcProtocol;
use bedplate_bmc::address::{Address, Reach, Scheme};
use bedplate_bmc::probe::{self, Found};
use bedplate_bmc::tls::Trust;
use bedplate_bmc::{BmcError, Credentials, Deadlines};
use ipnet::IpNet;
use thiserror::Error;

use crate::arguments::{ProbeArguments, Protocol};
use crate::error::RunError;
use crate::output::Page;
use crate::password::{self, ReadPasswordError};
use crate::render;

/// Maximum size of a file of certificate authorities, in bytes.
const MOST_AUTHORITIES: usize = 64 << 10;

/// Reason why a BMC was not asked, or why no password was sent.
#[derive(Debug, Error)]
pub(crate) enum ProbeError {
    #[error(transparent)]
    Password(#[from] ReadPasswordError),
    #[error("cannot read the certificate authorities from {}", .path.display())]
    Authorities { path: PathBuf, source: std::io::Error },
    #[error("{} is longer than the {} KiB that a Machine can hold", .0.display(), MOST_AUTHORITIES >> 10)]
    LongAuthorities(PathBuf),
    #[error("{} has no certificate in PEM format", .0.display())]
    NoAuthorities(PathBuf),
    #[error("{0} is for --protocol redfish; IPMI has no certificates, and one system at an address")]
    NotWithIpmi(&'static str),
    #[error("http:// sends the password without encryption to an unverified BMC")]
    PlainHttp,
    #[error("{}", describe(.0))]
    Bmc(Box<BmcError>),
}

impl From<BmcError> for ProbeError {
    fn from(error: BmcError) -> Self {
        Self::Bmc(Box::new(error))
    }
}

impl From<ProbeError> for RunError {
    fn from(error: ProbeError) -> Self {
        let (hint, is_usage) = (error.hint(), error.is_usage());
        Self::of_command(error, hint, is_usage)
    }
}

impl ProbeError {
    /// Returns true if the command line is invalid.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            Self::NotWithIpmi(_) | Self::PlainHttp => true,
            // This command may reach any address, so the address itself is invalid.
            Self::Bmc(error) => matches!(**error, BmcError::AddressNotAllowed { .. }),
            Self::Password(_)
            | Self::Authorities { .. }
            | Self::LongAuthorities(_)
            | Self::NoAuthorities(_) => false,
        }
    }

    pub(crate) fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::Password(ReadPasswordError::NoTerminal) => {
                "name a file with --password-file, or - for standard input"
            }
            Self::PlainHttp => "use https://, or allow http:// with --insecure",
            Self::Bmc(error) => return bmc_hint(error),
            Self::Password(_)
            | Self::Authorities { .. }
            | Self::LongAuthorities(_)
            | Self::NoAuthorities(_)
            | Self::NotWithIpmi(_) => return None,
        };
        Some(hint.into())
    }
}

/// Returns the error in the words of this command. No Machine and no Secret exists yet.
fn describe(error: &BmcError) -> String {
    match error {
        BmcError::AddressNotAllowed { address, problem } => {
            format!("the address {address:?}: {}", problem.replace("bmc.redfish.systemID", "--system-id"))
        }
        BmcError::Unreachable { address, problem, .. } => {
            format!("no valid answer from {address} ({problem})")
        }
        BmcError::AuthenticationFailed { address, problem } => {
            format!("the BMC at {address} rejects this user name and password ({problem})")
        }
        BmcError::CertificateChanged { address, seen } => {
            format!("the BMC at {address} has another key than --pin: {seen}")
        }
        BmcError::CertificateUntrusted { address, problem, .. } => {
            format!("the certificate of the BMC at {address} is not trusted ({problem})")
        }
        BmcError::AmbiguousSystem { systems } => {
            format!("this BMC has several systems: {}", systems.join(", "))
        }
        BmcError::SystemNotFound { wanted, systems } => {
            format!("this BMC does not have system {wanted}; its systems are: {}", systems.join(", "))
        }
        BmcError::NotSupported { .. }
        | BmcError::TimedOut { .. }
        | BmcError::Refused { .. }
        | BmcError::Busy { .. }
        | BmcError::Protocol { .. } => error.to_string(),
    }
}

fn bmc_hint(error: &BmcError) -> Option<Cow<'static, str>> {
    let hint = match error {
        BmcError::CertificateUntrusted { seen: Some(pin), .. }
        | BmcError::CertificateChanged { seen: pin, .. } => {
            return Some(
                format!("no password was sent; if the BMC's own page shows the same key, use --pin {pin}; for a certificate authority, use --ca-file")
                    .into(),
            );
        }
        BmcError::Unreachable { .. } | BmcError::TimedOut { .. } => {
            "check the address, the route to it, and that the BMC has the protocol enabled: --protocol redfish (the default) or --protocol ipmi"
        }
        BmcError::AuthenticationFailed { .. } => {
            "the login was tried only once, because many BMCs lock an account after a few failures; check that the account may use this protocol"
        }
        BmcError::AmbiguousSystem { .. } | BmcError::SystemNotFound { .. } => {
            "name one of them with --system-id"
        }
        _ => return None,
    };
    Some(hint.into())
}

/// Probes the BMC, and prints the result and the manifest snippet.
pub(crate) async fn run(arguments: &ProbeArguments, page: &mut Page<'_>) -> Result<(), RunError> {
    let authorities = arguments.ca_file.as_deref().map(authorities).transpose()?;
    let found = look(arguments, authorities.as_deref()).await?;
    if page.is_json() {
        return page.json(&found);
    }
    let lines: Vec<String> = found.to_string().lines().map(render::clean).collect();
    let snippet = snippet::snippet(arguments, authorities.as_deref(), &found);
    page.print(format!("{}\n\n{snippet}", lines.join("\n")))
}

async fn look(arguments: &ProbeArguments, authorities: Option<&str>) -> Result<Found, ProbeError> {
    let protocol = protocol(arguments.protocol);
    if protocol == BmcProtocol::Ipmi {
        let redfish = [
            (arguments.system_id.is_some(), "--system-id"),
            (arguments.insecure, "--insecure"),
            (arguments.pin.is_some(), "--pin"),
            (authorities.is_some(), "--ca-file"),
        ];
        if let Some((_, flag)) = redfish.into_iter().find(|(given, _)| *given) {
            return Err(ProbeError::NotWithIpmi(flag));
        }
    }
    // An invalid address is reported before the user types a password.
    let plain = Address::parse(&arguments.address, protocol)?.scheme == Scheme::Http;
    if plain && !arguments.insecure && arguments.username.is_some() {
        return Err(ProbeError::PlainHttp);
    }
    let trust = match (arguments.insecure || plain, arguments.pin) {
        (true, _) => Trust::Insecure,
        (false, Some(pin)) => Trust::Pin(vec![pin]),
        (false, None) => Trust::Authorities(authorities.map(str::to_owned)),
    };
    let credentials = match &arguments.username {
        None => None,
        Some(username) => {
            let password = password::read(arguments.password_file.as_deref(), username)?;
            Some(Credentials { username: username.clone(), password })
        }
    };
    // The programs that share this dependency may bring a second provider; the first one that is set counts.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (system, deadlines) = (arguments.system_id.clone(), Deadlines::default());
    let everywhere = everywhere();
    Ok(probe::look(&arguments.address, protocol, credentials, &trust, system, &everywhere, deadlines).await?)
}

fn protocol(protocol: Protocol) -> BmcProtocol {
    match protocol {
        Protocol::Redfish => BmcProtocol::Redfish,
        Protocol::Ipmi => BmcProtocol::Ipmi,
    }
}

/// Returns unrestricted reach: the user may connect to any address that this host can.
fn everywhere() -> Reach {
    let any = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    let allowed = any.into_iter().filter_map(|ip| IpNet::new(ip, 0).ok()).collect();
    Reach { forbidden: Vec::new(), allowed }
}

fn authorities(path: &Path) -> Result<String, ProbeError> {
    let failed = |source| ProbeError::Authorities { path: path.to_owned(), source };
    let mut text = String::new();
    let most = u64::try_from(MOST_AUTHORITIES).unwrap_or_default().saturating_add(1);
    File::open(path).and_then(|file| file.take(most).read_to_string(&mut text)).map_err(failed)?;
    if text.len() > MOST_AUTHORITIES {
        return Err(ProbeError::LongAuthorities(path.to_owned()));
    }
    if !text.contains("-----BEGIN CERTIFICATE-----") {
        return Err(ProbeError::NoAuthorities(path.to_owned()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
