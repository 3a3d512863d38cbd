//! Pure: the configuration in the words of the engines that it is for.

use bedplate_bmc::address::Reach;
use bedplate_dhcp::settings::{self as dhcp, Mode, Ports, Subnet};
use bedplate_tftp::gate::Limits;
use bedplate_tftp::settings as tftp;

use super::{Config, DhcpConfig, DhcpMode, SubnetConfig};

/// The DHCP engine's settings; none when DHCP is off.
pub(crate) fn dhcp_settings(config: &Config) -> Option<dhcp::Settings> {
    let mode = match config.dhcp.mode {
        DhcpMode::Server => Mode::Server,
        DhcpMode::Proxy => Mode::Proxy,
        DhcpMode::Off => return None,
    };
    Some(dhcp::Settings {
        mode,
        interfaces: config.dhcp.interfaces.clone(),
        authoritative: config.dhcp.authoritative,
        subnets: config.dhcp.subnets.iter().map(|subnet| translate_subnet(subnet, &config.dhcp)).collect(),
        ports: Ports {
            server: config.dhcp.server_port,
            client: config.dhcp.client_port,
            proxy: config.dhcp.proxy_port,
        },
    })
}

fn translate_subnet(subnet: &SubnetConfig, dhcp: &DhcpConfig) -> Subnet {
    let size: u64 = subnet.ranges.iter().map(|range| range.size()).sum();
    // Rounded in favor of Machines.
    let reserve = (size * u64::from(dhcp.discovery_reserve_percent)).div_ceil(100);
    Subnet {
        network: subnet.network,
        ranges: subnet.ranges.clone(),
        reserve,
        routers: subnet.routers.clone(),
        nameservers: subnet.nameservers.clone(),
        domain: subnet.domain.clone(),
        ntp_servers: subnet.ntp_servers.clone(),
        lease_seconds: u32::try_from(subnet.lease.as_secs()).unwrap_or(u32::MAX),
        relays: subnet.relays.clone(),
    }
}

/// The TFTP engine's settings; none when TFTP is off.
pub(crate) fn tftp_settings(config: &Config) -> Option<tftp::Settings> {
    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let limits = Limits {
        sessions: count(config.tftp.max_sessions),
        sessions_per_client: count(config.tftp.max_sessions_per_client),
        ..Limits::default()
    };
    config.tftp.enabled.then(|| tftp::Settings {
        listen: vec![config.tftp.listen],
        limits,
        drain: config.limits.drain,
        ..tftp::Settings::default()
    })
}

/// Returns the addresses at which BMCs may be.
pub(crate) fn bmc_reach(config: &Config) -> Reach {
    Reach { forbidden: config.bmc.forbidden_networks.clone(), allowed: config.bmc.allowed_networks.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings that the reader accepts are accepted by the engine.
    #[test]
    fn a_valid_configuration_is_one_that_the_dhcp_engine_takes() {
        let text = "[source]\nkubernetes = {}\n[dhcp]\nmode = \"server\"\ninterfaces = [\"br0\"]\n\
                    [[dhcp.subnet]]\nnetwork = \"10.7.0.0/24\"\nranges = [\"10.7.0.1-10.7.0.254\"]\nrouters = []\n\
                    relays = [\"10.7.0.255\", \"10.9.0.0/24\"]\n";
        let config = Config::parse(text, &[]).unwrap();
        let settings = dhcp_settings(&config).unwrap();
        assert_eq!(settings.errors(), []);
        assert_eq!(settings.subnets[0].ranges[0].size(), 254);
        assert_eq!(settings.subnets[0].relays.len(), 2);
        assert_eq!(settings.subnets[0].reserve, 64, "a quarter, rounded up");
        assert_eq!(tftp_settings(&config).unwrap().limits.sessions, 1024);
    }
}
