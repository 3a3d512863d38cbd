//! Networks of registries whose tags the controller resolves. Authors of MachineConfigurations must not reach services through
//! the controller. It never connects to loopback, link-local addresses, metadata services of clouds, and networks that its command
//! line forbids, not even by a redirect or a token service. Called by `image`.

use std::net::IpAddr;

use bedplate_bmc::address::Reach;

/// The networks of the command line.
#[derive(Debug, Default)]
pub struct RegistryReach(pub Reach);

impl bedplate_oci::Reach for RegistryReach {
    fn check(&self, ip: IpAddr) -> Result<(), String> {
        let Some(why) = self.0.refusal(ip) else { return Ok(()) };
        Err(format!("{ip} is {why}; name the digest, or add the network to --image-allowed-networks"))
    }
}

#[cfg(test)]
mod tests {
    use bedplate_oci::Reach as _;
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn tags_are_not_resolved_where_the_command_line_forbids_it() {
        let networks = "--image-forbidden-networks=10.96.0.0/12,10.244.0.0/16";
        let allowed = "--image-allowed-networks=127.0.0.5/32";
        let reach = Cli::try_parse_from(["bedplate-controller", networks, allowed]).unwrap().image_reach();
        for (ip, is_allowed) in [
            ("127.0.0.1", false),
            ("127.0.0.5", true),
            ("169.254.169.254", false),
            ("10.96.0.1", false),
            ("10.244.1.1", false),
            ("::ffff:10.96.0.1", false),
            ("10.7.0.9", true),
        ] {
            let checked = reach.check(ip.parse().unwrap());
            assert_eq!(checked.is_ok(), is_allowed, "{ip}: {checked:?}");
        }
        assert!(RegistryReach::default().check([127, 0, 0, 1].into()).is_err());
        assert!(Cli::try_parse_from(["bedplate-controller", "--image-forbidden-networks=x"]).is_err());
    }

    /// The pair that docs/concepts/controller.md recommends.
    #[test]
    fn tags_are_resolved_only_where_registries_are_allowed() {
        let arguments = [
            "bedplate-controller",
            "--image-forbidden-networks=0.0.0.0/0,::/0",
            "--image-allowed-networks=10.9.0.0/24",
        ];
        let reach = Cli::try_parse_from(arguments).unwrap().image_reach();
        for (ip, is_allowed) in [
            ("10.9.0.7", true),
            ("10.9.1.7", false),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
            ("127.0.0.1", false),
        ] {
            assert_eq!(reach.check(ip.parse().unwrap()).is_ok(), is_allowed, "{ip}");
        }
    }

    #[test]
    fn deployment_and_unit_forbid_the_same_networks_by_a_variable() {
        const VARIABLE: &str = "BEDPLATE_IMAGE_FORBIDDEN_NETWORKS";
        let networks = "10.96.0.0/12,10.244.0.0/16";
        let deployment = include_str!("../../deploy/controller-deployment.yaml");
        assert!(deployment.contains(&format!("- {{name: {VARIABLE}, value: \"{networks}\"}}\n")));
        let unit = include_str!("../../systemd/bedplate-controller.service");
        assert!(unit.contains(&format!("\nEnvironment={VARIABLE}={networks}\n")));
        let command = Cli::command();
        let variables: Vec<_> =
            command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).collect();
        assert!(variables.contains(&VARIABLE) && variables.contains(&"BEDPLATE_IMAGE_ALLOWED_NETWORKS"));
        // `kubectl set env` changes no argument, and arguments outweigh variables.
        assert!(!deployment.contains("--image-") && !unit.contains("--image-"));
    }
}
