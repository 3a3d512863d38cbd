//! Resolver of host names: a static binary has none, and stage-1 needs one before it has a root.
//!
//! ```text
//!   /etc/hosts ── known ─────────────────────────────────────────────────► addresses
//!        └── not ── for each candidate (search list, ndots): A and AAAA ─► the first that exists
//!                      │   (one that the servers fail to answer for is passed over, as glibc does)
//!                      └── each name server in turn, twice; who answers, counts
//! ```
//! The files are read at each lookup, so changes apply immediately. It does not use nsswitch.conf, mDNS or an
//! encrypted resolver. Callers: `registry`, `reach`, and the agent, for its servers and for stage-1.

mod configuration;
mod query;
mod wire;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use configuration::{Configuration, hosts};
use query::{Asked, ask};
use wire::Kind;

/// Maximum number of attempts per server that DHCP named, and the timeout of each.
const MAX_ATTEMPTS: u32 = 2;
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Resolver of an HTTP client, by this host's /etc/hosts and name servers.
#[derive(Debug, Clone, Copy)]
pub struct HostResolver;

impl Resolve for HostResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // The client puts the URL's port into them.
            let found = resolve(name.as_str().to_owned()).await?.into_iter();
            Ok(Box::new(found.map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

/// Resolves a host name by this host's files; IPv4 addresses come first.
///
/// # Errors
/// The name is unknown, or no server answers.
pub(crate) async fn resolve(name: String) -> io::Result<Vec<IpAddr>> {
    tokio::task::spawn_blocking(move || look_up(&name)).await.unwrap_or_else(|error| Err(error.into()))
}

fn look_up(name: &str) -> io::Result<Vec<IpAddr>> {
    let known = read("/etc/hosts").map(|text| hosts(&text, name)).unwrap_or_default();
    if !known.is_empty() {
        return Ok(known);
    }
    if name.trim_end_matches('.') == "localhost" {
        return Ok(vec![Ipv4Addr::LOCALHOST.into()]);
    }
    let text = read("/etc/resolv.conf").unwrap_or_default();
    find(name, &Configuration::parse(&text, &interface_number))
}

/// Returns the text of a file, whatever the encoding of its comments.
fn read(path: &str) -> io::Result<String> {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Number of a network interface, by which an IPv6 address names it.
fn interface_number(name: &str) -> Option<u32> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    rustix::net::netdevice::name_to_index(&socket, name).ok()
}

/// Resolves a name with these servers.
fn find(name: &str, configuration: &Configuration) -> io::Result<Vec<IpAddr>> {
    let Configuration { servers, timeout, attempts, .. } = configuration;
    let mut refused = None;
    for candidate in configuration.candidates(name) {
        match ask(&candidate, &[Kind::A, Kind::Aaaa], servers, *attempts, *timeout) {
            Asked::Found(addresses) => return Ok(addresses),
            Asked::Absent => {}
            Asked::Refused => refused = refused.or(Some(candidate)),
            // They would be as silent about the next candidate.
            Asked::Silent => return Err(not_resolved(name, &silent(servers))),
        }
    }
    let why = match refused {
        Some(candidate) => format!("{} does not know whether {candidate} exists", listed(servers)),
        None => "the name servers report that the name does not exist".to_owned(),
    };
    Err(not_resolved(name, &why))
}

/// The IPv4 address of a name, by the servers that DHCP named. Blocks for a few seconds at most for each of them.
pub fn ipv4(name: &str, servers: &[Ipv4Addr]) -> Option<Ipv4Addr> {
    let servers: Vec<_> = servers.iter().map(|server| SocketAddr::from((*server, wire::PORT))).collect();
    let Asked::Found(addresses) = ask(name, &[Kind::A], &servers, MAX_ATTEMPTS, ATTEMPT_TIMEOUT) else {
        return None;
    };
    addresses.into_iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    })
}

/// Returns the error of a name that is unknown, or whose servers do not answer.
fn not_resolved(name: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("the name {name} was not resolved: {why}"))
}

fn silent(servers: &[SocketAddr]) -> String {
    format!("no usable answer from {}", listed(servers))
}

fn listed(servers: &[SocketAddr]) -> String {
    let servers: Vec<_> = servers.iter().map(|server| server.ip().to_string()).collect();
    servers.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_has_the_number_that_the_kernel_gave_it() {
        assert_eq!((interface_number("lo"), interface_number("nowhere")), (Some(1), None));
    }

    #[test]
    fn a_comment_in_another_encoding_hides_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        std::fs::write(&path, b"# G\xfcnther\n10.7.0.9 k8s-api\n").unwrap();
        let text = read(path.to_str().unwrap()).unwrap();
        assert_eq!(hosts(&text, "k8s-api"), [IpAddr::from([10, 7, 0, 9])]);
    }
}
