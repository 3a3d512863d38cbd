//! From a `bmc.address` to the IP addresses that are connected to: a name is asked for once, every answer is checked, and
//! only what was checked is used, so that a name cannot mean another host a moment later.
//!
//! Caller: the code that creates a `Bmc`.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;

use crate::address::{Address, Host, Reach};
use crate::error::BmcError;

/// More addresses of one name are not tried.
const MOST_ADDRESSES: usize = 8;

/// A BMC's address with the sockets that were checked: only [`resolve`] makes it, and only it is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    address: Address,
    /// Never empty.
    sockets: Vec<SocketAddr>,
}

impl Checked {
    /// An IP address, for which no name server is asked.
    pub fn of_ip(ip: IpAddr, address: &Address, reach: &Reach) -> Result<Self, BmcError> {
        reach.check(&address.to_string(), ip)?;
        let address = Address { host: Host::Ip(ip), ..address.clone() };
        Ok(Self { sockets: vec![SocketAddr::new(ip, address.port)], address })
    }

    /// Address as configured.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the socket addresses; never empty.
    pub fn sockets(&self) -> &[SocketAddr] {
        &self.sockets
    }
}

/// Looks up what an address means, and checks every answer.
pub async fn resolve(address: &Address, reach: &Reach, wait: Duration) -> Result<Checked, BmcError> {
    if let Host::Ip(ip) = address.host {
        return Checked::of_ip(ip, address, reach);
    }
    let sockets = resolve_with(address, reach, wait, |name| async move { lookup(&name).await }).await?;
    Ok(Checked { address: address.clone(), sockets })
}

/// Looks up the addresses of a host name. In process, since a static binary has no resolver of the system.
///
/// # Errors
/// The error of the resolver, as text.
async fn lookup(name: &str) -> Result<Vec<IpAddr>, String> {
    let mut builder =
        TokioResolver::builder_tokio().map_err(|e| format!("/etc/resolv.conf cannot be read: {e}"))?;
    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    let resolver = builder.build().map_err(|e| e.to_string())?;
    let found = resolver.lookup_ip(name).await.map_err(|e| e.to_string())?;
    Ok(found.iter().collect())
}

async fn resolve_with<F>(
    address: &Address,
    reach: &Reach,
    wait: Duration,
    lookup: impl FnOnce(String) -> F,
) -> Result<Vec<SocketAddr>, BmcError>
where
    F: Future<Output = Result<Vec<IpAddr>, String>>,
{
    let unreachable =
        |problem: String| BmcError::Unreachable { address: address.to_string(), problem, sent: false };
    let ips = match &address.host {
        Host::Ip(ip) => vec![*ip],
        Host::Name(name) => match tokio::time::timeout(wait, lookup(name.clone())).await {
            Ok(Ok(ips)) => ips,
            Ok(Err(problem)) => return Err(unreachable(format!("its name does not resolve: {problem}"))),
            Err(_) => return Err(unreachable("its name does not resolve: DNS did not answer".to_owned())),
        },
    };
    for ip in &ips {
        reach.check(&address.to_string(), *ip)?;
    }
    if ips.is_empty() {
        return Err(unreachable("its name has no address".to_owned()));
    }
    Ok(ips.into_iter().take(MOST_ADDRESSES).map(|ip| SocketAddr::new(ip, address.port)).collect())
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::BmcProtocol;

    use super::*;
    use bedplate_api::reason::bmc::BmcFault;

    async fn resolved(name: &str, answers: &[&str]) -> Result<Vec<String>, BmcFault> {
        let address = Address::parse(name, BmcProtocol::Redfish).map_err(|e| e.reason())?;
        let ips = answers.iter().map(|ip| ip.parse().unwrap()).collect();
        let (reach, wait) = (Reach::default(), Duration::from_secs(5));
        let found = resolve_with(&address, &reach, wait, |_| async { Ok(ips) }).await;
        found.map(|all| all.iter().map(ToString::to_string).collect()).map_err(|e| e.reason())
    }

    #[tokio::test]
    async fn a_name_is_checked_by_what_it_means() {
        assert_eq!(resolved("bmc.example:8443", &["10.9.0.1"]).await, Ok(vec!["10.9.0.1:8443".to_owned()]));
        assert_eq!(resolved("bmc.example", &["127.0.0.1"]).await, Err(BmcFault::AddressNotAllowed));
        // One bad answer spoils all: a rebinding name hides it among good ones.
        assert_eq!(resolved("bmc.example", &["10.9.0.1", "::1"]).await, Err(BmcFault::AddressNotAllowed));
        assert_eq!(resolved("bmc.example", &[]).await, Err(BmcFault::BmcUnreachable));
        assert_eq!(resolved("169.254.169.254", &[]).await, Err(BmcFault::AddressNotAllowed));
    }

    #[tokio::test]
    async fn a_silent_name_server_costs_no_more_than_the_deadline() {
        let address = Address::parse("bmc.example", BmcProtocol::Redfish).unwrap();
        let forever = |_| std::future::pending();
        let error =
            resolve_with(&address, &Reach::default(), Duration::from_millis(20), forever).await.unwrap_err();
        assert_eq!(error.reason(), BmcFault::BmcUnreachable);
        assert!(!error.may_have_happened());
    }
}
