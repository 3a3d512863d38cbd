//! The controller's command line and environment: one clap definition.

use std::net::SocketAddr;
use std::path::PathBuf;

use bedplate_bmc::address::Reach;
use bedplate_process::logging::LogArguments;
use clap::Parser;
use ipnet::IpNet;

use crate::reach::RegistryReach;

/// Makes versions of MachineConfigurations, selects them for Machines, follows Nodes, and approves kubelets' certificates.
#[derive(Debug, Clone, Parser)]
#[command(name = "bedplate-controller", version)]
pub struct Cli {
    /// Kubeconfig file [default: the service account of the pod]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease that elects one of several controllers
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "bedplate-system")]
    pub namespace: String,
    /// Holder identity of this controller in the Lease
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value = "bedplate-controller")]
    pub instance: String,
    /// Listen address of /healthz, /readyz and /metrics
    #[arg(long, env = "BEDPLATE_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:9069")]
    pub listen: SocketAddr,
    /// Networks whose registries never resolve a tag (CIDR, separated by commas): the cluster's services and pods
    #[arg(long, env = "BEDPLATE_IMAGE_FORBIDDEN_NETWORKS", value_name = "NETWORKS", value_delimiter = ',')]
    pub image_forbidden_networks: Vec<IpNet>,
    /// Networks whose registries may resolve a tag although they are forbidden otherwise
    #[arg(long, env = "BEDPLATE_IMAGE_ALLOWED_NETWORKS", value_name = "NETWORKS", value_delimiter = ',')]
    pub image_allowed_networks: Vec<IpNet>,
    /// Logging
    #[command(flatten)]
    pub log: LogArguments,
}

impl Cli {
    /// Returns the networks in which registries may be.
    pub(crate) fn image_reach(&self) -> RegistryReach {
        let (forbidden, allowed) = (&self.image_forbidden_networks, &self.image_allowed_networks);
        RegistryReach(Reach { forbidden: forbidden.clone(), allowed: allowed.clone() })
    }
}

#[cfg(test)]
#[path = "../../process/tests/commands_page/mod.rs"]
mod commands_page;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_match_the_page_of_commands() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/commands.md");
        commands_page::compare(page, <Cli as clap::CommandFactory>::command());
    }
}
