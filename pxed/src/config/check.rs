//! Pure: checks the configuration as a whole, as keys that are valid one by one may contradict each other.
//!
//! Uses no file and no interface: facts of the host (does the interface exist, does the file exist) are checked at
//! start, so that a configuration can be checked anywhere.

use std::net::{IpAddr, SocketAddr};

use bedplate_dhcp::settings::{AddressRange, MAX_RELAYS, is_too_large};

use super::read::Reader;
use super::{Config, DhcpMode, ImageSource, SubnetConfig};
use crate::boot_policy::argument;

pub(super) fn check(config: &Config, reader: &mut Reader) {
    check_dhcp(config, reader);
    // A placeholder for an unreadable network is not reported again.
    let indexes = 0..config.dhcp.subnets.len();
    let read: Vec<usize> =
        indexes.filter(|index| !reader.is_wrong(&format!("dhcp.subnet[{index}].network"))).collect();
    for (index, subnet) in config.dhcp.subnets.iter().enumerate() {
        if read.contains(&index) {
            check_network(config, index, &read, reader);
        }
        check_subnet(config, index, subnet, reader);
        check_relays(config, index, subnet, reader);
    }
    check_listeners(config, reader);
    check_images(config, reader);
}

fn check_dhcp(config: &Config, reader: &mut Reader) {
    let dhcp = &config.dhcp;
    if dhcp.mode != DhcpMode::Off && dhcp.interfaces.is_empty() {
        reader.problem(
            "dhcp.interfaces",
            "names no interface to listen on",
            "write interfaces = [\"eth0\"], or mode = \"off\"",
        );
    }
    if dhcp.mode == DhcpMode::Server && dhcp.subnets.is_empty() {
        reader.problem(
            "dhcp.mode",
            "is server, but no subnet is given",
            "add [[dhcp.subnet]] with its network",
        );
    }
    for (index, name) in dhcp.interfaces.iter().enumerate() {
        if dhcp.interfaces.iter().take(index).any(|other| other == name) {
            let key = format!("dhcp.interfaces[{index}]");
            reader.problem(&key, format!("{name:?} is named twice"), "remove one");
        }
    }
    if dhcp.discovery && dhcp.mode == DhcpMode::Server && dhcp.subnets.iter().all(|s| s.ranges.is_empty()) {
        reader.problem(
            "dhcp.discovery",
            "is on, but no subnet has addresses to give",
            "add ranges = [\"first-last\"] to a subnet",
        );
    }
}

/// Checks a subnet's keys against its network; `read`: the subnets whose network could be read.
fn check_network(config: &Config, index: usize, read: &[usize], reader: &mut Reader) {
    let Some(subnet) = config.dhcp.subnets.get(index) else { return };
    let network = subnet.network;
    let key = format!("dhcp.subnet[{index}].network");
    if network.addr() != network.network() {
        let message = format!("{network} is an address in its network");
        reader.problem(&key, message, format!("write \"{}\"", network.trunc()));
    }
    let others = config.dhcp.subnets.iter().enumerate().take(index);
    for (before, other) in others.filter(|(before, _)| read.contains(before)) {
        if network.contains(&other.network.network()) || other.network.contains(&network.network()) {
            let message = format!("{network} overlaps {} of dhcp.subnet[{before}]", other.network);
            reader.problem(&key, message, "change one of them, so that they do not overlap");
        }
    }
    for (at, range) in subnet.ranges.iter().enumerate() {
        let key = format!("dhcp.subnet[{index}].ranges[{at}]");
        let edge = network.prefix_len() < 31
            && (range.contains(network.network()) || range.contains(network.broadcast()));
        if !network.contains(&range.first()) || !network.contains(&range.last()) {
            let message = format!("{range} is not inside {network}");
            reader.problem(&key, message, "use addresses of this network");
        } else if edge {
            let message = format!("{range} holds the network's own or its broadcast address");
            reader.problem(&key, message, "exclude the first and the last address of the network");
        }
    }
    for (at, router) in subnet.routers.iter().enumerate().filter(|(_, router)| !network.contains(*router)) {
        let key = format!("dhcp.subnet[{index}].routers[{at}]");
        let message = format!("{router} is not inside {network}");
        reader.problem(&key, message, "use a router inside the network");
    }
}

/// Checks a subnet's keys against each other, independent of its network.
fn check_subnet(config: &Config, index: usize, subnet: &SubnetConfig, reader: &mut Reader) {
    let key = |key: &str| format!("dhcp.subnet[{index}].{key}");
    for (at, range) in subnet.ranges.iter().enumerate() {
        let key = format!("dhcp.subnet[{index}].ranges[{at}]");
        if let Some(other) = subnet.ranges.iter().take(at).find(|other| other.overlaps(*range)) {
            reader.problem(&key, format!("{range} overlaps {other}"), "merge the two ranges");
        }
        for router in subnet.routers.iter().filter(|router| range.contains(**router)) {
            let message = format!("{range} holds the router {router}");
            reader.problem(&key, message, "exclude the router from the ranges");
        }
    }
    if config.dhcp.mode == DhcpMode::Proxy && !subnet.ranges.is_empty() {
        reader.problem(
            &key("ranges"),
            "has no meaning in proxy mode",
            "remove it: the other server gives addresses",
        );
    }
    if subnet
        .domain
        .as_ref()
        .is_some_and(|d| d.is_empty() || d.len() > 253 || !d.is_ascii() || d.contains(' '))
    {
        reader.problem(&key("domain"), "is not a domain name", "write it as rack.example");
    }
}

/// Checks a list of relays, whose `giaddr` is trusted. No client may be in it.
fn check_relays(config: &Config, index: usize, subnet: &SubnetConfig, reader: &mut Reader) {
    for (at, relays) in subnet.relays.iter().enumerate() {
        let key = format!("dhcp.subnet[{index}].relays[{at}]");
        if is_too_large(*relays) {
            let message = format!("{relays} has more than {MAX_RELAYS} addresses");
            reader.problem(&key, message, "list the relays' own addresses");
            continue;
        }
        let all = AddressRange::new(relays.network(), relays.broadcast());
        let mut ranges = config.dhcp.subnets.iter().flat_map(|subnet| &subnet.ranges);
        if let Some(range) = ranges.find(|range| all.is_some_and(|all| all.overlaps(**range))) {
            let message = format!("{relays} contains addresses of the range {range}");
            reader.problem(&key, message, "list only relays: a client in this list could pose as any other");
        }
    }
}

fn check_listeners(config: &Config, reader: &mut Reader) {
    let tcp = [
        ("http.listen", config.http.listen),
        ("https.listen", config.https.listen),
        ("metrics.listen", config.metrics.listen),
    ];
    let any = IpAddr::from([0, 0, 0, 0]);
    let mut udp = Vec::new();
    if config.tftp.enabled {
        udp.push(("tftp.listen", config.tftp.listen));
    }
    if config.dhcp.mode != DhcpMode::Off {
        udp.push(("dhcp.server-port", SocketAddr::new(any, config.dhcp.server_port)));
        if config.dhcp.mode == DhcpMode::Proxy {
            udp.push(("dhcp.proxy-port", SocketAddr::new(any, config.dhcp.proxy_port)));
        }
        if config.dhcp.server_port == config.dhcp.client_port {
            reader.problem("dhcp.client-port", "is the same as dhcp.server-port", "use different ports");
        }
    }
    for listeners in [tcp.as_slice(), udp.as_slice()] {
        for (index, (key, address)) in listeners.iter().enumerate() {
            if let Some((other, _)) = listeners.iter().take(index).find(|(_, other)| clash(*address, *other))
            {
                reader.problem(
                    key,
                    format!("{address} clashes with {other}"),
                    "use another port for each listener",
                );
            }
        }
    }
}

/// Returns true if two sockets conflict: the same port, and the same or an unspecified address. For port 0 the system
/// chooses a free one.
fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let same_address = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && same_address
}

fn check_images(config: &Config, reader: &mut Reader) {
    let names: Vec<&str> = config.images.keys().map(String::as_str).collect();
    let used = [("default-image", &config.default_image), ("discovery-image", &config.discovery_image)];
    for (key, name) in used {
        let Some(name) = name else { continue };
        if !config.images.contains_key(name) {
            let remedy = match super::problem::nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("add [images.{name}]"),
            };
            reader.problem(key, format!("{name:?} is not one of the images"), remedy);
        }
    }
    if config.dhcp.discovery && config.discovery_image.is_none() {
        let remedy = "name an image for unknown machines: discovery-image = \"...\"";
        reader.problem("dhcp.discovery", "is on without a discovery-image", remedy);
    }
    for (name, image) in &config.images {
        let key = format!("images.{name}");
        if name.is_empty() || name.len() > 63 || !name.bytes().all(is_name_byte) {
            reader.problem(&key, "is not a name", "use at most 63 of a-z, A-Z, 0-9, '-', '_' and '.'");
        }
        if let ImageSource::Registry { access, .. } = &image.source
            && access.insecure_http
            && access.ca_file.is_some()
        {
            let remedy = "remove it, or insecure-http";
            reader.problem(&format!("{key}.ca-file"), "has no meaning with insecure-http", remedy);
        }
        match &image.source {
            ImageSource::Registry { reference, allow_tag: false, .. } if !reference.contains("@sha256:") => {
                let message = format!("{reference:?} has no digest");
                let remedy = "add @sha256:..., or allow-tag = true if the image may change under this name";
                reader.problem(&format!("{key}.reference"), message, remedy);
            }
            ImageSource::Layout { tag: Some(_), digest: Some(_), .. } => {
                reader.problem(&format!("{key}.digest"), "and tag are both set", "keep one");
            }
            ImageSource::Registry { .. } | ImageSource::Layout { .. } | ImageSource::Files { .. } => {}
        }
        check_arguments(&format!("{key}.kernel-arguments"), &image.kernel_arguments, reader);
    }
}

/// Rejects arguments that iPXE or the kernel would not read unchanged: they would hold every machine of the image.
fn check_arguments(key: &str, arguments: &[String], reader: &mut Reader) {
    if let Some(message) = argument::too_long(arguments) {
        reader.problem(key, message, "write fewer or shorter ones");
    }
    for (at, argument) in arguments.iter().enumerate() {
        if let Some((why, remedy)) = argument::fault(argument) {
            let shown: String = argument.chars().take(40).collect();
            reader.problem(&format!("{key}[{at}]"), format!("{shown:?} {why}"), remedy);
        }
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}
