//! /etc/resolv.conf and /etc/hosts, as resolv.conf(5) and hosts(5) have them.
//!
//! Pure: text in, data out. Called by `resolver`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use super::wire::PORT;

/// Limits of glibc.
const MOST_SERVERS: usize = 3;
const MOST_DOMAINS: usize = 6;
const MOST_NDOTS: usize = 15;
/// Maximum timeout of one server, in seconds. A connection has ten seconds in total, and an unreachable
/// server must leave time for the next one.
const MAX_TIMEOUT_SECONDS: u64 = 3;
const MOST_ATTEMPTS: u32 = 3;

/// Servers, search list and attempts of a resolver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Configuration {
    /// Name servers, in the order in which they are asked.
    pub(super) servers: Vec<SocketAddr>,
    /// Domains that are tried behind a short name.
    pub(super) search: Vec<String>,
    /// A name with fewer dots is short.
    pub(super) ndots: usize,
    /// Timeout of one server.
    pub(super) timeout: Duration,
    /// Number of attempts with all servers.
    pub(super) attempts: u32,
}

impl Configuration {
    /// Reads resolv.conf; `zone` returns the numbers of interfaces. Unknown lines are ignored.
    pub(super) fn parse(text: &str, zone: &dyn Fn(&str) -> Option<u32>) -> Self {
        let mut read = Self {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(2),
            attempts: 2,
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => read.servers.extend(words.next().and_then(|word| server(word, zone))),
                // The last one counts.
                Some("search" | "domain") => {
                    let domains = words.map(|domain| domain.trim_end_matches('.'));
                    let domains = domains.filter(|domain| !domain.is_empty()).take(MOST_DOMAINS);
                    read.search = domains.map(str::to_owned).collect();
                }
                Some("options") => words.for_each(|option| read.option(option)),
                _ => {}
            }
        }
        read.servers.truncate(MOST_SERVERS);
        if read.servers.is_empty() {
            read.servers.push((Ipv4Addr::LOCALHOST, PORT).into());
        }
        read
    }

    fn option(&mut self, option: &str) {
        let Some((name, value)) = option.split_once(':') else { return };
        let Ok(value) = value.parse::<u32>() else { return };
        match name {
            "ndots" => self.ndots = usize::try_from(value).unwrap_or(MOST_NDOTS).min(MOST_NDOTS),
            "timeout" => self.timeout = Duration::from_secs(u64::from(value).clamp(1, MAX_TIMEOUT_SECONDS)),
            "attempts" => self.attempts = value.clamp(1, MOST_ATTEMPTS),
            _ => {}
        }
    }

    /// Returns the names to query in turn, until one exists.
    pub(super) fn candidates(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let searched = self.search.iter().map(|domain| format!("{name}.{domain}"));
        let itself = std::iter::once(name.to_owned());
        let dots = name.bytes().filter(|byte| *byte == b'.').count();
        if dots >= self.ndots { itself.chain(searched).collect() } else { searched.chain(itself).collect() }
    }
}

fn server(word: &str, zone: &dyn Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let (address, scope) =
        word.split_once('%').map_or((word, None), |(address, scope)| (address, Some(scope)));
    match (address.parse().ok()?, scope) {
        (address, None) => Some(SocketAddr::new(address, PORT)),
        (IpAddr::V6(address), Some(scope)) => {
            let scope = scope.parse().ok().or_else(|| zone(scope))?;
            Some(SocketAddrV6::new(address, PORT, 0, scope).into())
        }
        (IpAddr::V4(_), Some(_)) => None,
    }
}

/// The addresses that /etc/hosts has of a name; those of IPv4 first.
pub(super) fn hosts(text: &str, name: &str) -> Vec<IpAddr> {
    let name = name.trim_end_matches('.');
    let lines = text.lines().map(|line| line.split_once('#').map_or(line, |(line, _)| line));
    let addresses = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next()?.parse::<IpAddr>().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    });
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Configuration {
        Configuration::parse(text, &|zone| (zone == "eth0").then_some(2))
    }

    #[test]
    fn servers_of_both_families_count_in_their_order_and_the_last_search_list() {
        let read = parse(
            "# by a user\nnameserver 10.7.0.1\nnameserver fd00::53\n nameserver fe80::1%eth0\nnameserver 10.7.0.2\n\
             domain old.example\nsearch rack.example. example ; a comment\noptions rotate ndots:2 timeout:1 attempts:9\n",
        );
        let zoned = SocketAddrV6::new("fe80::1".parse().unwrap(), 53, 0, 2);
        assert_eq!(
            read.servers,
            ["10.7.0.1:53".parse().unwrap(), "[fd00::53]:53".parse().unwrap(), zoned.into()]
        );
        assert_eq!(read.search[..2], ["rack.example", "example"]);
        assert_eq!((read.ndots, read.timeout.as_secs(), read.attempts), (2, 1, MOST_ATTEMPTS));
    }

    #[test]
    fn without_a_server_the_host_is_asked_and_invalid_lines_are_skipped() {
        let read = parse(
            "nameserver here\nnameserver fe80::1%nowhere\nnameserver 10.0.0.1%eth0\noptions ndots:x timeout\n",
        );
        assert_eq!(read.servers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!((read.ndots, read.attempts), (1, 2));
    }

    #[test]
    fn a_short_name_is_looked_for_in_the_domains_first_and_a_long_one_last() {
        let read = parse("search rack.example example\noptions ndots:2\n");
        assert_eq!(read.candidates("api"), ["api.rack.example", "api.example", "api"]);
        assert_eq!(read.candidates("api.k.v"), ["api.k.v", "api.k.v.rack.example", "api.k.v.example"]);
        assert_eq!(read.candidates("api."), ["api."]);
    }

    #[test]
    fn names_of_the_hosts_file_are_known_in_any_case() {
        let text = "127.0.0.1 localhost\nfd00::1 k8s-api # not this\n10.7.0.9\tK8S-API k8s-api.example #k8s-else\nx y\n";
        let is = |name: &str| hosts(text, name).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(is("k8s-api"), ["10.7.0.9", "fd00::1"]);
        assert_eq!(is("k8s-api.example."), ["10.7.0.9"]);
        assert!(is("k8s-else").is_empty() && is("not").is_empty());
    }
}
