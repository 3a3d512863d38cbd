//! Limits of a valid configuration, and how to change them. Printed by `pxed check`.
//!
//! Pure.

use super::{Config, DhcpMode};

/// Returns one line for each subnet that lists no relay, or one if there is no subnet, which mode `proxy` permits: machines are
/// served on the link of an interface only.
pub fn relays(config: &Config) -> Vec<String> {
    if config.dhcp.mode == DhcpMode::Proxy && config.dhcp.subnets.is_empty() {
        let line = "no [[dhcp.subnet]] is configured: only machines on the link of dhcp.interfaces are served; for machines \
                    behind a relay, add a [[dhcp.subnet]] with their network and relays = [\"ADDRESS\"], the relay's address \
                    there and the one that it sends from";
        return vec![line.to_owned()];
    }
    let subnets = config.dhcp.subnets.iter().enumerate();
    let without = subnets.filter(|(_, subnet)| subnet.relays.is_empty() && config.dhcp.mode != DhcpMode::Off);
    let line = |(index, subnet): (usize, &super::SubnetConfig)| {
        format!(
            "dhcp.subnet[{index}] ({}) lists no relay: only machines on the link of dhcp.interfaces are served; for \
             machines behind a relay, add relays = [\"ADDRESS\"] with its address there and the one that it sends from",
            subnet.network
        )
    };
    without.map(line).collect()
}
