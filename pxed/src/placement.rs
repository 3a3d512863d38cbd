//! Pure: fixed addresses of a Machine that no subnet of this pxed contains. Its interface gets no address then, nor where it asks from another
//! subnet than those of its addresses, which only its message shows (`bedplate_dhcp::Ignored`).
//!
//! Shown by `/readyz` and `bedplate explain`, and published as an Event. The DHCP engine makes the same decision.

use bedplate_api::id::MacAddress;
use bedplate_dhcp::settings::Subnet;

use crate::machine::{Interface, KnownMachine};

/// Returns the interfaces of a Machine whose fixed addresses cannot be given, each with cause and remedy. `subnets` are those
/// that pxed gives addresses in; empty where another server does, or none.
pub fn misplaced(known: &KnownMachine, subnets: &[Subnet]) -> Vec<(MacAddress, String)> {
    if subnets.is_empty() {
        return Vec::new();
    }
    let interfaces = known.interfaces.iter();
    interfaces.filter_map(|interface| Some((interface.mac, problem(interface, subnets)?))).collect()
}

/// Returns the first problem of [`misplaced`] that affects an interface that netboots. None: the Machine can boot.
pub fn obstacle(known: &KnownMachine, subnets: &[Subnet]) -> Option<String> {
    let netboots = |mac| known.interface(mac).is_some_and(|interface| interface.netboot);
    misplaced(known, subnets).into_iter().find(|(mac, _)| netboots(*mac)).map(|(_, problem)| problem)
}

fn problem(interface: &Interface, subnets: &[Subnet]) -> Option<String> {
    let mac = interface.mac;
    if interface.only_ipv6 {
        return Some(format!(
            "fixed addresses of {mac} are IPv6, which pxed does not serve; write IPv4 addresses in \
             spec.pxe.interfaces[].addresses, or remove the field"
        ));
    }
    let is_here = |address| subnets.iter().any(|subnet| subnet.is_host(address));
    if interface.addresses.is_empty() || interface.addresses.iter().any(|address| is_here(address.addr())) {
        return None;
    }
    let addresses: Vec<_> = interface.addresses.iter().map(ToString::to_string).collect();
    let networks: Vec<_> = subnets.iter().map(|subnet| subnet.network.to_string()).collect();
    Some(format!(
        "fixed addresses {} of {mac} are in none of the subnets {}; correct spec.pxe.interfaces[].addresses, or add a \
         [[dhcp.subnet]]",
        addresses.join(", "),
        networks.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{Config, translate};
    use crate::machine::Snapshot;

    fn subnets() -> Vec<Subnet> {
        let text = "[source]\nkubernetes = {}\n[dhcp]\nmode = \"server\"\ninterfaces = [\"br0\"]\n\
                    [[dhcp.subnet]]\nnetwork = \"10.7.0.0/24\"\n[[dhcp.subnet]]\nnetwork = \"10.8.0.0/24\"\n";
        translate::dhcp_settings(&Config::parse(text, &[]).unwrap()).unwrap().subnets
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
            obstacle(&known(&addresses), &subnets()).unwrap(),
            "fixed addresses 10.9.0.21/24, 10.7.0.255/24 of 52:54:00:00:00:01 are in none of the subnets 10.7.0.0/24, \
             10.8.0.0/24; correct spec.pxe.interfaces[].addresses, or add a [[dhcp.subnet]]"
        );
        let ipv6 = obstacle(&known(&serde_json::json!(["fd00::21/64"])), &subnets()).unwrap();
        assert!(ipv6.contains("are IPv6, which pxed does not serve"), "{ipv6}");
    }

    #[test]
    fn one_valid_address_is_enough_and_other_servers_are_not_checked() {
        for addresses in
            [serde_json::json!([]), serde_json::json!(["10.9.0.21/24", "10.8.0.21/24", "fd00::21/64"])]
        {
            assert_eq!(obstacle(&known(&addresses), &subnets()), None, "{addresses}");
        }
        let elsewhere = known(&serde_json::json!(["10.9.0.21/24"]));
        assert_eq!(misplaced(&elsewhere, &[]), []);
        assert_eq!(misplaced(&elsewhere, &subnets()).len(), 2, "of the interface that does not boot, too");
    }
}
