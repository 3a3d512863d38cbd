//! Pure: decides by which proxy an API server is asked.
//!
//! kube 5.0 compares `NO_PROXY` with the address of the proxy instead of that of the server, so that `kubeconfig` decides by this module.

use std::net::IpAddr;

use ipnet::IpNet;

/// Values of the environment variables that concern a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Environment {
    /// `HTTPS_PROXY`
    pub https_proxy: Option<String>,
    /// `NO_PROXY`
    pub no_proxy: Option<String>,
}

/// Server that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server<'a> {
    /// Host name or address.
    pub host: &'a str,
    /// TCP port.
    pub port: u16,
}

/// Returns the proxy of the environment for requests to a server, as a URL. A value without a scheme is an HTTP proxy.
pub fn of_environment(environment: &Environment, server: Server<'_>) -> Option<String> {
    let proxy = environment.https_proxy.as_deref().filter(|proxy| !proxy.is_empty())?;
    let no_proxy = environment.no_proxy.as_deref().unwrap_or_default();
    let is_url = proxy.contains("://");
    let url = if is_url { proxy.to_owned() } else { format!("http://{proxy}") };
    (!is_exempt(server, no_proxy)).then_some(url)
}

/// Returns true if the server is asked without the proxy of the environment: it is this host, or `NO_PROXY` lists it by name, domain, address
/// or network, with or without a port. Invalid entries are skipped, as kubectl does.
fn is_exempt(server: Server<'_>, no_proxy: &str) -> bool {
    let host = server.host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    no_proxy.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.to_ascii_lowercase();
        let Some((entry, port)) = split_port(&entry) else { return false };
        let domain = entry.trim_start_matches('*').trim_start_matches('.');
        let network = entry.parse::<IpNet>().ok().zip(address);
        let is_domain = !domain.is_empty() && address.is_none();
        let matches = entry == "*"
            || host == domain
            || network.is_some_and(|(network, address)| network.contains(&address))
            || (is_domain && host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
        matches && port.is_none_or(|port| port == server.port)
    })
}

/// Splits an entry of `NO_PROXY` into host and port. None: the port is not a number.
fn split_port(entry: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None if entry.matches(':').count() == 1 => {
            let (host, port) = entry.split_once(':')?;
            (host, Some(port))
        }
        // An IPv6 address or network without a port.
        None => (entry, None),
    };
    match port {
        Some(port) => Some((host, Some(port.parse().ok()?))),
        None => Some((host, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(https_proxy: &str, no_proxy: &str, host: &str) -> Option<String> {
        let environment =
            Environment { https_proxy: Some(https_proxy.to_owned()), no_proxy: Some(no_proxy.to_owned()) };
        of_environment(&environment, Server { host, port: 6443 })
    }

    #[test]
    fn no_proxy_is_compared_with_the_server_and_not_with_the_proxy() {
        for (host, no_proxy, is_exempt) in [
            // The proxy itself is in the network.
            ("192.0.2.1", "10.0.0.0/8", false),
            ("api.example", "10.1.2.3", false),
            ("10.7.0.1", "10.0.0.0/8", true),
            ("10.7.0.1", "10.7.0.1", true),
            ("11.7.0.1", "10.0.0.0/8,7.0.1", false),
            ("[fd00::1]", "fd00::/8", true),
            ("fd00::1", "[fd00::1]:6443", true),
            ("fd00::1", "[fd00::1]:443", false),
            ("api.example", "localhost, api.example", true),
            ("api.example", ".example", true),
            ("api.example", "example", true),
            ("api.example", "*.example", true),
            ("badexample", "example", false),
            ("API.Example", "api.example", true),
            ("api.example", "api.example:6443", true),
            ("api.example", "api.example:443", false),
            ("api.example", "*", true),
            ("api.example", "", false),
            // Entries that kube cannot parse.
            ("10.7.0.1", "10.0.0.0/8,", true),
            ("api.example", ",,a b,api.example:x,.", false),
            ("127.0.0.1", "", true),
            ("[::1]", "", true),
            ("localhost", "", true),
        ] {
            let found = proxy("http://10.1.2.3:3128", no_proxy, host);
            let expected = (!is_exempt).then(|| "http://10.1.2.3:3128".to_owned());
            assert_eq!(found, expected, "{host} {no_proxy}");
        }
    }

    #[test]
    fn a_proxy_without_a_scheme_is_an_http_proxy() {
        assert_eq!(proxy("10.1.2.3:3128", "", "api.example").unwrap(), "http://10.1.2.3:3128");
        assert_eq!(proxy("socks5://10.1.2.3", "", "api.example").unwrap(), "socks5://10.1.2.3");
        assert_eq!(proxy("", "", "api.example"), None);
        assert_eq!(of_environment(&Environment::default(), Server { host: "a", port: 443 }), None);
    }
}
