//! Pure: the cluster that the node of a template joins, as far as each host of a plane refuses it.
//!
//! Whether a template that can be compared leads to the host's own cluster is for the host to ask. Called by `template`.

use bedplate_api::configuration::Template;

use crate::destination::{Destination, destination};
use crate::template::Refusal;
use crate::{joins_own_cluster, makes_a_cluster};

/// Place of the hosts of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// Machines are in a cluster, which their nodes join.
    Cluster {
        /// True if a host runs the node by which it made the cluster, by a version of the same configuration. Such a node takes over what can be
        /// changed in place.
        is_run: bool,
    },
    /// pxed runs without a cluster.
    Standalone,
}

/// Checks which cluster the node of a template joins.
pub(crate) fn check_join(template: &Template, plane: Plane) -> Result<(), Refusal> {
    let kubernetes = &template.kubernetes;
    match plane {
        Plane::Cluster { is_run } if makes_a_cluster(kubernetes) => {
            if is_run {
                Ok(())
            } else {
                Err(Refusal::MakesCluster)
            }
        }
        Plane::Cluster { .. } => check_discovery(template),
        Plane::Standalone if joins_own_cluster(kubernetes) => Err(Refusal::NoDiscovery),
        Plane::Standalone => Ok(()),
    }
}

/// Checks that a host of a cluster can tell which cluster the node joins.
fn check_discovery(template: &Template) -> Result<(), Refusal> {
    let plain = |path: &str| -> Vec<String> {
        path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect()
    };
    let is_written =
        |path: &str| template.files.iter().any(|file| !file.append && plain(&file.path) == plain(path));
    match destination(&template.kubernetes) {
        Destination::File(path) if !path.starts_with('/') || !is_written(path) => Err(Refusal::DiscoveryFile),
        Destination::Unnamed
        | Destination::Endpoint(_)
        | Destination::Token { .. }
        | Destination::File(_) => Ok(()),
    }
}
