//! Check of the addresses of Machines' image references: networks where no BMC may be are refused. The author of a Machine must not reach
//! services through pxed. Images of the configuration are the operator's, and may be anywhere.

use std::net::IpAddr;

use bedplate_oci::Reach;

/// The networks of the configuration.
#[derive(Debug)]
pub(crate) struct MachineReach(pub bedplate_bmc::address::Reach);

impl Reach for MachineReach {
    fn check(&self, ip: IpAddr) -> Result<(), String> {
        let Some(why) = self.0.refusal(ip) else { return Ok(()) };
        Err(format!("{ip} is {why}; add the network to bmc.allowed-networks if a registry is there"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_of_machines_do_not_reach_what_bmc_addresses_do_not() {
        let networks = |text: &str| vec![text.parse().unwrap()];
        let reach = bedplate_bmc::address::Reach {
            forbidden: networks("10.96.0.0/12"),
            allowed: networks("127.0.0.5/32"),
        };
        for (ip, allowed) in [
            ("127.0.0.1", false),
            ("127.0.0.5", true),
            ("169.254.169.254", false),
            ("10.96.0.1", false),
            ("::ffff:10.96.0.1", false),
            ("10.7.0.9", true),
            ("198.51.100.7", true),
        ] {
            let checked = MachineReach(reach.clone()).check(ip.parse().unwrap());
            assert_eq!(checked.is_ok(), allowed, "{ip}: {checked:?}");
        }
    }
}
