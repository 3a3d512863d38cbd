//! Pure: decides by which proxy an API server is asked.
//!
//! kube 5.0 compares `NO_PROXY` with the address of the proxy instead of that of the server, so that `kubeconfig` decides by this module. It
//! decides as kubectl does, by the rules of golang.org/x/net/http/httpproxy. curl differs: its `.example` exempts `example`, too.

use std::net::IpAddr;

use ipnet::IpNet;

/// Values of the environment variables that concern a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Environment {
    /// `HTTP_PROXY`
    pub http_proxy: Option<String>,
    /// `HTTPS_PROXY`
    pub https_proxy: Option<String>,
    /// `NO_PROXY`
    pub no_proxy: Option<String>,
}

/// Server that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server<'a> {
    /// True if it is asked over TLS.
    pub is_tls: bool,
    /// Host name or address.
    pub host: &'a str,
    /// TCP port.
    pub port: u16,
}

impl Server<'_> {
    /// Returns the name of the variable that names the proxy for this server.
    pub fn variable(self) -> &'static str {
        if self.is_tls { "HTTPS_PROXY" } else { "HTTP_PROXY" }
    }
}

/// Returns the proxy of the environment for requests to a server, as a URL. A value without a scheme is an HTTP proxy.
pub(crate) fn of_environment(environment: &Environment, server: Server<'_>) -> Option<String> {
    let named = if server.is_tls { &environment.https_proxy } else { &environment.http_proxy };
    let proxy = named.as_deref().filter(|proxy| !proxy.is_empty())?;
    let no_proxy = environment.no_proxy.as_deref().unwrap_or_default();
    let is_url = proxy.contains("://");
    let url = if is_url { proxy.to_owned() } else { format!("http://{proxy}") };
    (!is_exempt(server, no_proxy)).then_some(url)
}

/// Returns true if the server is asked without the proxy of the environment: it is this host, or `NO_PROXY` lists it.
fn is_exempt(server: Server<'_>, no_proxy: &str) -> bool {
    let host = server.host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let address = host.parse().ok().map(|address: IpAddr| address.to_canonical());
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    let port = server.port.to_string();
    let entries = no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase());
    entries.filter(|entry| !entry.is_empty()).any(|entry| is_listed(&entry, &host, address, &port))
}

/// Returns true if an entry of `NO_PROXY` lists a host: `*`, a network, or an address, a name or a domain, these with or without a port.
/// `example` is the host and its subdomains, `.example` and `*.example` are the subdomains alone. Other entries match no host.
fn is_listed(entry: &str, host: &str, address: Option<IpAddr>, port: &str) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    let (name, only) = split_port(entry);
    let is_host = match name.parse::<IpAddr>() {
        Ok(listed) => address == Some(listed.to_canonical()),
        Err(_) => is_in_domain(host, name),
    };
    is_host && (only.is_empty() || only == port)
}

fn is_in_domain(host: &str, name: &str) -> bool {
    let name = if name.starts_with("*.") { &name[1..] } else { name };
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(name),
        None if name.is_empty() => false,
        None => host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
    }
}

/// Splits an entry of `NO_PROXY` into host and port. The port is empty if there is none. An IPv6 address with a port is in brackets.
fn split_port(entry: &str) -> (&str, &str) {
    if let Some((host, port)) = entry.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
        return (host, port);
    }
    match entry.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, port),
        Some(_) | None => (entry, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(https_proxy: &str, no_proxy: &str, host: &str) -> Option<String> {
        let environment = Environment {
            https_proxy: Some(https_proxy.to_owned()),
            no_proxy: Some(no_proxy.to_owned()),
            ..Environment::default()
        };
        of_environment(&environment, Server { is_tls: true, host, port: 6443 })
    }

    #[test]
    fn no_proxy_is_compared_with_the_server_and_not_with_the_proxy() {
        for (host, no_proxy, is_exempt) in [
            // The proxy itself is in the network.
            ("192.0.2.1", "10.0.0.0/8", false),
            ("api.example", "10.1.2.3", false),
            ("10.7.0.1", "10.0.0.0/8", true),
            ("10.7.0.1", "10.7.0.1", true),
            ("11.7.0.1", "10.0.0.0/8,1.7.0.1", false),
            ("10.7.0.1", "10.7.0.1:6443", true),
            ("10.7.0.1", "10.7.0.1:443", false),
            ("::ffff:10.7.0.1", "10.0.0.0/8", true),
            ("::ffff:10.7.0.1", "10.7.0.1", true),
            ("[fd00::1]", "fd00::/8", true),
            ("fd00::1", "[fd00::1]:6443", true),
            ("fd00::1", "[fd00::1]:443", false),
            ("api.example", "localhost, api.example", true),
            ("api.example", ".example", true),
            ("api.example", "example", true),
            ("api.example", "*.example", true),
            ("rack.api.example", ".example", true),
            ("example", "example", true),
            ("badexample", ".example", false),
            ("api.example", ".example:6443", true),
            ("api.example", "*.example:443", false),
            ("api.example", "api.example:", true),
            ("badexample", "example", false),
            ("API.Example", "api.example", true),
            ("api.example", "api.example:6443", true),
            ("api.example", "api.example:443", false),
            ("api.example", "*", true),
            ("api.example", "", false),
            // Entries that kube cannot parse.
            ("10.7.0.1", "10.0.0.0/8,", true),
            ("api.example", ",,a b,api.example:x,.", false),
            ("api.example", ":6443", false),
            ("api.example", "*:6443", false),
            ("api.example", "*example", false),
            ("10.7.0.1", "10.0.0.0/8:6443", false),
            ("fd00::1", "[fd00::1]", false),
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
    fn domain_of_no_proxy_with_a_leading_dot_does_not_list_its_own_name() {
        for (host, no_proxy, is_exempt) in [
            ("example", ".example", false),
            ("example", "*.example", false),
            ("example", ".example:6443", false),
            ("api.example", "..example", false),
            ("example", ".example,example", true),
        ] {
            assert_eq!(proxy("10.1.2.3:3128", no_proxy, host).is_none(), is_exempt, "{host} {no_proxy}");
        }
    }

    #[test]
    fn server_without_tls_is_asked_by_http_proxy_and_not_by_https_proxy() {
        let value = |text: &str| Some(text.to_owned());
        let both = Environment {
            http_proxy: value("10.1.2.3:80"),
            https_proxy: value("10.1.2.3:443"),
            no_proxy: None,
        };
        let one = Environment { http_proxy: None, ..both.clone() };
        let server = |is_tls| Server { is_tls, host: "api.example", port: 6443 };
        assert_eq!(of_environment(&both, server(false)), value("http://10.1.2.3:80"));
        assert_eq!(of_environment(&both, server(true)), value("http://10.1.2.3:443"));
        assert_eq!(of_environment(&one, server(false)), None);
        let exempt = Environment { no_proxy: value("api.example"), ..both };
        assert_eq!(of_environment(&exempt, server(false)), None);
        assert_eq!([true, false].map(|tls| server(tls).variable()), ["HTTPS_PROXY", "HTTP_PROXY"]);
    }

    #[test]
    fn a_proxy_without_a_scheme_is_an_http_proxy() {
        assert_eq!(proxy("10.1.2.3:3128", "", "api.example").unwrap(), "http://10.1.2.3:3128");
        assert_eq!(proxy("socks5://10.1.2.3", "", "api.example").unwrap(), "socks5://10.1.2.3");
        assert_eq!(proxy("", "", "api.example"), None);
        assert_eq!(
            of_environment(&Environment::default(), Server { is_tls: true, host: "a", port: 443 }),
            None
        );
    }
}
