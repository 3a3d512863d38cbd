//! Pure: the groups of controllers that a process can run, with the names by which the API server knows each.
//!
//! Each group has a ServiceAccount, a Lease and a field manager of its own, so that one that is stolen has the rights of one group only.

use std::str::FromStr;

use bedplate_engine::FieldManager;
use bedplate_process::events::Source;

/// Group of controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// BedplateClusters, BedplateMachines and the claims of hosts.
    Infrastructure,
    /// KubeadmConfigs.
    Bootstrap,
    /// Clusters, Machines, MachineSets, MachineDeployments and MachineHealthChecks.
    Core,
}

/// Names of the groups that are not built yet.
const NOT_BUILT: [&str; 2] = ["control-plane", "all"];

/// Names of the groups that can run, for messages.
const BUILT: &str = "infrastructure, bootstrap or core";

impl Group {
    /// Returns the name of the group's Lease.
    pub const fn lease(self) -> &'static str {
        match self {
            Self::Infrastructure => "bedplate-cluster-infrastructure",
            Self::Bootstrap => "bedplate-cluster-bootstrap",
            Self::Core => "bedplate-cluster-core",
        }
    }

    /// Returns the field manager of the group's writes.
    pub const fn field_manager(self) -> FieldManager {
        FieldManager::new(self.lease())
    }

    /// Returns the publisher of the group's Events. `instance`: one of several processes of the group.
    pub(crate) fn event_source(self, instance: &str) -> Source {
        let (controller, field_manager) = (self.controller(), self.field_manager().name());
        Source { controller, instance: instance.to_owned(), field_manager }
    }

    /// Returns the name of the group in Events.
    const fn controller(self) -> &'static str {
        match self {
            Self::Infrastructure => "bedplate.dev/cluster-infrastructure",
            Self::Bootstrap => "bedplate.dev/cluster-bootstrap",
            Self::Core => "bedplate.dev/cluster-core",
        }
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "infrastructure" => Ok(Self::Infrastructure),
            "bootstrap" => Ok(Self::Bootstrap),
            "core" => Ok(Self::Core),
            name if NOT_BUILT.contains(&name) => {
                Err(format!("controllers {name} are not built yet; use {BUILT}"))
            }
            name => Err(format!("{name:?} is not a group of controllers; use {BUILT}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_that_is_not_built_is_refused_by_name() {
        assert_eq!("infrastructure".parse(), Ok(Group::Infrastructure));
        assert_eq!("bootstrap".parse(), Ok(Group::Bootstrap));
        assert_eq!("core".parse(), Ok(Group::Core));
        for name in NOT_BUILT {
            let error = name.parse::<Group>().unwrap_err();
            assert_eq!(error, format!("controllers {name} are not built yet; use {BUILT}"));
        }
        let error = "infra".parse::<Group>().unwrap_err();
        assert_eq!(error, "\"infra\" is not a group of controllers; use infrastructure, bootstrap or core");
    }
}
