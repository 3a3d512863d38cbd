//! Command line and environment: one clap definition. Flags of Cluster API's providers have the names that clusterctl sets.

use std::net::SocketAddr;
use std::path::PathBuf;

use bedplate_process::logging::LogArguments;
use bedplate_workload::Networks;
use clap::{ArgAction, Parser};

use crate::group::Group;
use crate::scope::Scope;

/// Runs a group of controllers of Cluster API over the hosts of Bedplate.
#[derive(Debug, Clone, Parser)]
#[command(name = "bedplate-cluster", version)]
pub struct Cli {
    /// The group of controllers: infrastructure, bootstrap or core
    #[arg(long, env = "BEDPLATE_CONTROLLERS", value_name = "GROUP")]
    pub controllers: Group,
    /// The kubeconfig file; absent: the service account of the pod
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace whose objects are reconciled; absent or empty: all namespaces
    #[arg(long, value_name = "NAMESPACE", default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Reconcile only objects whose label cluster.x-k8s.io/watch-filter has this value; absent or empty: all objects
    #[arg(long, value_name = "VALUE", default_value = "", hide_default_value = true)]
    pub watch_filter: String,
    /// Act only while this process holds the Lease of its group
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        default_value_t = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub leader_elect: bool,
    /// The namespace of the Lease
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "bedplate-system")]
    pub lease_namespace: String,
    /// Name of this process in the Lease and in Events
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value = "bedplate-cluster")]
    pub instance: String,
    /// For bootstrap and core: networks of the API servers of workload clusters, separated by commas; absent: all but those of this host and its link
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub workload_networks: Option<Networks>,
    /// Address of /healthz, /readyz and /metrics
    #[arg(
        long,
        visible_alias = "health-address",
        env = "BEDPLATE_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:9070"
    )]
    pub listen: SocketAddr,
    /// Logging
    #[command(flatten)]
    pub log: LogArguments,
}

impl Cli {
    /// Returns the objects that the process reconciles.
    pub fn scope(&self) -> Scope {
        let set = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Scope { namespace: set(&self.namespace), filter: set(&self.watch_filter) }
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

    fn parse(arguments: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(["bedplate-cluster"].iter().chain(arguments))
    }

    #[test]
    fn flags_that_clusterctl_sets_are_accepted() {
        let flags = [
            "--controllers=infrastructure",
            "--leader-elect",
            "--namespace=team",
            "--watch-filter=blue",
            "--health-address=0.0.0.0:9440",
        ];
        let cli = parse(&flags).unwrap();
        let scope = Scope { namespace: Some("team".to_owned()), filter: Some("blue".to_owned()) };
        assert_eq!((cli.scope(), cli.leader_elect, cli.listen.port()), (scope, true, 9440));
        let cli =
            parse(&["--controllers", "infrastructure", "--leader-elect=false", "--namespace="]).unwrap();
        assert_eq!((cli.scope(), cli.leader_elect), (Scope::default(), false));
    }

    #[test]
    fn networks_of_workload_clusters_are_a_list() {
        let cli = parse(&["--controllers=bootstrap", "--workload-networks=10.0.0.0/8,fd00::/8"]).unwrap();
        let networks = cli.workload_networks.unwrap();
        assert!(networks.allows([10, 1, 2, 3].into()) && !networks.allows([192, 168, 0, 1].into()));
        assert!(parse(&["--controllers=bootstrap", "--workload-networks=rack"]).is_err());
    }

    #[test]
    fn controllers_must_be_named_and_built() {
        assert!(parse(&[]).is_err());
        let error = parse(&["--controllers=control-plane"]).unwrap_err().to_string();
        assert!(
            error.contains(
                "controllers control-plane are not built yet; use infrastructure, bootstrap or core"
            ),
            "{error}"
        );
    }
}
