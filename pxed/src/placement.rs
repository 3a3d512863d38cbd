//! Pure: fixed addresses of a Machine that this pxed cannot give, and those that it gives otherwise than they are written.
//!
//! An interface gets no address if none of its fixed addresses can be given. The same holds where it asks from another subnet than those of
//! its addresses, which only its message shows (`bedplate_dhcp::Ignored`). Shown by `/readyz` and `bedplate explain`; what keeps a Machine
//! from booting is also published as an Event. The DHCP engine makes the same decision.

use std::net::Ipv4Addr;

use bedplate_api::id::MacAddress;
use bedplate_dhcp::settings::Subnet;

use crate::machines::{Interface, KnownMachine};

/// The networks in which pxed gives addresses.
#[derive(Debug, Clone, Default)]
pub struct Networks {
    /// The subnets; empty where another server gives addresses, or none.
    pub subnets: Vec<Subnet>,
    /// Addresses of pxed's own interfaces, which no machine gets.
    pub own: Vec<Ipv4Addr>,
}

/// Returns the interfaces of a Machine whose fixed addresses cannot be assigned, each with cause and remedy.
pub(crate) fn misplaced(known: &KnownMachine, networks: &Networks) -> Vec<(MacAddress, String)> {
    let text = |interface| problem(interface, networks).or_else(|| deviation(interface, networks));
    let interfaces = known.interfaces.iter();
    interfaces.filter_map(|interface| Some((interface.mac, text(interface)?))).collect()
}

/// Returns the first problem that keeps an interface from its address and that affects one that netboots. None: the Machine can boot.
pub(crate) fn obstacle(known: &KnownMachine, networks: &Networks) -> Option<String> {
    let netboots = known.interfaces.iter().filter(|interface| interface.netboot);
    netboots.filter_map(|interface| problem(interface, networks)).next()
}

/// Returns the first deviation from the configured fixed addresses. The Machine can boot.
pub fn remark(known: &KnownMachine, networks: &Networks) -> Option<String> {
    known.interfaces.iter().find_map(|interface| deviation(interface, networks))
}

/// Returns the reason why an interface gets none of its fixed addresses.
fn problem(interface: &Interface, networks: &Networks) -> Option<String> {
    let (mac, subnets) = (interface.mac, &networks.subnets);
    if subnets.is_empty() {
        return None;
    }
    if interface.only_ipv6 {
        return Some(format!(
            "fixed addresses of {mac} are IPv6, which pxed does not serve; write IPv4 addresses in \
             spec.pxe.interfaces[].addresses, or remove the field"
        ));
    }
    let is_own = |address| networks.own.contains(&address);
    let is_given = |address| !is_own(address) && subnets.iter().any(|subnet| subnet.is_host(address));
    let mut addresses = interface.addresses.iter().map(ipnet::Ipv4Net::addr);
    if interface.addresses.is_empty() || addresses.clone().any(is_given) {
        return None;
    }
    let all: Vec<_> = interface.addresses.iter().map(ToString::to_string).collect();
    let all = all.join(", ");
    let here: Vec<_> = subnets.iter().map(|subnet| subnet.network.to_string()).collect();
    let here = here.join(", ");
    Some(match addresses.find(|address| is_own(*address)) {
        Some(own) => format!(
            "fixed addresses {all} of {mac} cannot be given, because {own} is pxed's own address; write an address of the \
             subnets {here} that no host has in spec.pxe.interfaces[].addresses"
        ),
        None => format!(
            "fixed addresses {all} of {mac} are in none of the subnets {here}; correct spec.pxe.interfaces[].addresses, or \
             add a [[dhcp.subnet]]"
        ),
    })
}

/// Returns a fixed address that the interface gets otherwise than it is written, or not at all, although it gets one.
fn deviation(interface: &Interface, networks: &Networks) -> Option<String> {
    let mac = interface.mac;
    interface.addresses.iter().find_map(|address| {
        let host = address.addr();
        if let Some(subnet) = networks.subnets.iter().find(|subnet| subnet.has_relay(host)) {
            let network = subnet.network;
            return Some(format!(
                "fixed address {address} of {mac} is in the relays of {network}, and pxed ignores messages that come from it as \
                 from a relay; remove it from spec.pxe.interfaces[].addresses, or from relays in [[dhcp.subnet]]"
            ));
        }
        let subnet = networks.subnets.iter().find(|subnet| subnet.is_host(host))?;
        if networks.own.contains(&host) {
            return Some(format!(
                "fixed address {address} of {mac} is pxed's own address and is not assigned; remove it from \
                 spec.pxe.interfaces[].addresses"
            ));
        }
        let (network, length) = (subnet.network, subnet.network.prefix_len());
        (address.prefix_len() != length).then(|| {
            format!(
                "fixed address {address} of {mac} has another prefix length than its subnet {network}, and the machine gets \
                 that of the subnet; write {host}/{length} in spec.pxe.interfaces[].addresses"
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{Config, translate};
    use crate::machines::Snapshot;

    fn networks() -> Networks {
        let text = "[source]\nkubernetes = {}\n[dhcp]\nmode = \"server\"\ninterfaces = [\"br0\"]\n\
                    [[dhcp.subnet]]\nnetwork = \"10.7.0.0/24\"\n[[dhcp.subnet]]\nnetwork = \"10.8.0.0/24\"\n";
        let subnets = translate::dhcp_settings(&Config::parse(text, &[]).unwrap()).unwrap().subnets;
        Networks { subnets, own: vec![[10, 7, 0, 1].into()] }
    }

    fn known(addresses: &serde_json::Value) -> Arc<KnownMachine> {
        let spec = serde_json::json!({ "provider": "pxe", "pxe": { "interfaces": [
            { "macAddress": "52:54:00:00:00:01", "addresses": addresses },
            { "macAddress": "52:54:00:00:00:02", "addresses": ["192.0.2.5/24"] } ] } });
        let machine = crate::http::tests::machine("node1", &spec);
        let snapshot = Snapshot::build(&"default".parse().unwrap(), [machine]);
        snapshot.iter().next().unwrap().clone()
    }

    #[test]
    fn fixed_addresses_of_no_subnet_are_named_with_their_remedy() {
        let addresses = serde_json::json!(["10.9.0.21/24", "10.7.0.255/24"]);
        assert_eq!(
            obstacle(&known(&addresses), &networks()).unwrap(),
            "fixed addresses 10.9.0.21/24, 10.7.0.255/24 of 52:54:00:00:00:01 are in none of the subnets 10.7.0.0/24, \
             10.8.0.0/24; correct spec.pxe.interfaces[].addresses, or add a [[dhcp.subnet]]"
        );
        let ipv6 = obstacle(&known(&serde_json::json!(["fd00::21/64"])), &networks()).unwrap();
        assert!(ipv6.contains("are IPv6, which pxed does not serve"), "{ipv6}");
    }

    #[test]
    fn one_valid_address_is_enough_and_other_servers_are_not_checked() {
        for addresses in
            [serde_json::json!([]), serde_json::json!(["10.9.0.21/24", "10.8.0.21/24", "fd00::21/64"])]
        {
            assert_eq!(obstacle(&known(&addresses), &networks()), None, "{addresses}");
        }
        let elsewhere = known(&serde_json::json!(["10.9.0.21/24"]));
        assert_eq!(misplaced(&elsewhere, &Networks::default()), []);
        assert_eq!(misplaced(&elsewhere, &networks()).len(), 2, "of the interface that does not boot, too");
    }

    #[test]
    fn prefix_that_differs_from_the_subnets_is_named_and_holds_nothing_up() {
        let differs = known(&serde_json::json!(["10.7.0.21/8", "10.8.0.21/24"]));
        let expected = "fixed address 10.7.0.21/8 of 52:54:00:00:00:01 has another prefix length than its subnet 10.7.0.0/24, \
                        and the machine gets that of the subnet; write 10.7.0.21/24 in spec.pxe.interfaces[].addresses";
        assert_eq!(remark(&differs, &networks()).as_deref(), Some(expected));
        assert_eq!(misplaced(&differs, &networks())[0].1, expected);
        assert_eq!(obstacle(&differs, &networks()), None, "it can boot");
        for addresses in [serde_json::json!(["10.7.0.21/24"]), serde_json::json!(["10.9.0.21/8"])] {
            assert_eq!(remark(&known(&addresses), &networks()), None, "{addresses}");
        }
    }

    #[test]
    fn trust_6_fixed_address_that_is_listed_as_a_relay_is_named() {
        let mut networks = networks();
        networks.subnets[1].relays.push("10.7.0.0/28".parse().unwrap());
        let why = remark(&known(&serde_json::json!(["10.7.0.15/24"])), &networks).unwrap();
        assert!(
            why.starts_with(
                "fixed address 10.7.0.15/24 of 52:54:00:00:00:01 is in the relays of 10.8.0.0/24"
            ),
            "{why}"
        );
        assert_eq!(remark(&known(&serde_json::json!(["10.7.0.16/24"])), &networks), None);
    }

    #[test]
    fn pxeds_own_address_is_named_as_a_fixed_one() {
        let alone = known(&serde_json::json!(["10.7.0.1/24", "10.9.0.21/24"]));
        let why = obstacle(&alone, &networks()).unwrap();
        assert!(why.contains("because 10.7.0.1 is pxed's own address"), "{why}");
        let other = known(&serde_json::json!(["10.7.0.1/24", "10.8.0.21/24"]));
        assert_eq!(obstacle(&other, &networks()), None);
        let why = remark(&other, &networks()).unwrap();
        assert!(why.contains("10.7.0.1/24 of 52:54:00:00:00:01 is pxed's own address"), "{why}");
    }
}
