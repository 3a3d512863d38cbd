//! Interface of the host's default route, with its address and MTU.
//!
//! Blocking calls only. Called by `node` before a slot with a network of its own starts.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use super::network::Uplink;

/// Default MTU of Ethernet, in bytes.
const DEFAULT_MTU_BYTES: u32 = 1500;
/// Flags of a route (linux/route.h): it is up; it refuses.
const FLAG_UP: u32 = 0x1;
const FLAG_REJECT: u32 = 0x200;

/// Returns the interface of the host's default IPv4 route. None: there is no such route, or the interface has
/// no address.
pub fn uplink(root: &Path) -> Option<Uplink> {
    let routes = fs::read_to_string(root.join("proc/net/route")).ok()?;
    let interface = default_interface(&routes)?.to_owned();
    let address = address_of(&interface)?;
    let mtu = fs::read_to_string(root.join("sys/class/net").join(&interface).join("mtu"));
    let mtu = mtu.ok().and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(DEFAULT_MTU_BYTES);
    Some(Uplink { interface, address, mtu })
}

/// Returns the interface of the default route with the lowest metric in the kernel's table.
fn default_interface(routes: &str) -> Option<&str> {
    let usable = routes.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, destination, _, flags, _, _, metric, mask, ..] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let is_default = destination == "00000000" && mask == "00000000";
        (is_default && flags & FLAG_UP != 0 && flags & FLAG_REJECT == 0)
            .then_some((metric.parse::<u32>().ok()?, interface))
    });
    usable.min_by_key(|(metric, _)| *metric).map(|(_, interface)| interface)
}

fn address_of(interface: &str) -> Option<Ipv4Addr> {
    let mut all = nix::ifaddrs::getifaddrs().ok()?.filter(|found| found.interface_name == interface);
    all.find_map(|found| Some(found.address?.as_sockaddr_in()?.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    #[test]
    fn the_way_out_is_the_default_route_of_the_lowest_metric() {
        let route = |interface: &str, destination: &str, flags: &str, metric: u32, mask: &str| {
            format!("{interface}\t{destination}\t0100070A\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0\n")
        };
        let table = [
            HEAD.to_owned(),
            route("eth3", "00000000", "0201", 1, "00000000"),
            route("eth1", "00000000", "0003", 200, "00000000"),
            route("bond0.7", "00000000", "0003", 100, "00000000"),
            route("eth2", "0000070A", "0001", 0, "00FFFFFF"),
            route("tun0", "00000000", "0003", 0, "00000080"),
        ];
        assert_eq!(default_interface(&table.concat()), Some("bond0.7"));
        assert_eq!(default_interface(HEAD), None);
    }
}
