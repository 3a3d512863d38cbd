//! Commands about MachineConfigurations (`config`), and the command that installs Bedplate into a cluster (`install`).

use bedplate_api::id::MachineName;
use clap::{Args, Subcommand};

use super::name;

/// Commands on MachineConfigurations.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// One line for each MachineConfiguration
    List,
    /// One MachineConfiguration: its versions, and the Machines that use them
    Show {
        /// The MachineConfiguration's name
        #[arg(value_parser = name)]
        name: String,
    },
    /// Show the differences of two versions [default: the newest, and the one before it]
    Diff(ConfigDiff),
    /// Show the versions: creation times, users, changes
    History {
        /// The MachineConfiguration's name
        #[arg(value_parser = name)]
        name: String,
    },
    /// Roll back to an earlier version in a cluster: write its template into the MachineConfiguration, or reference it in one Machine
    Rollback(ConfigRollback),
}

/// Versions to compare.
#[derive(Debug, Args)]
pub(crate) struct ConfigDiff {
    /// The MachineConfiguration's name
    #[arg(value_parser = name)]
    pub(crate) name: String,
    /// First version of the comparison [default: the one before --to]
    #[arg(long, value_name = "N", value_parser = number())]
    pub(crate) from: Option<i64>,
    /// Second version of the comparison [default: the newest]
    #[arg(long, value_name = "M", value_parser = number())]
    pub(crate) to: Option<i64>,
}

/// Version to roll back to.
#[derive(Debug, Args)]
pub(crate) struct ConfigRollback {
    /// The MachineConfiguration's name
    #[arg(value_parser = name)]
    pub(crate) name: String,
    /// Version to roll back to [default: the one before the newest; for a Machine, the one before its selected version]
    #[arg(long, value_name = "N", value_parser = number())]
    pub(crate) to: Option<i64>,
    /// Roll back only this Machine: reference the version in it
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<MachineName>,
    /// Delete the Machine's Node, too, so that its host is repaved now
    #[arg(long, requires = "machine")]
    pub(crate) delete_node: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
}

fn number() -> clap::builder::RangedI64ValueParser<i64> {
    clap::value_parser!(i64).range(1..)
}

/// Options for installing Bedplate into a cluster.
#[derive(Debug, Args)]
pub(crate) struct InstallArguments {
    /// Image of bedplate-controller, which no registry has until you push it [default: the one that is installed]
    #[arg(long, value_name = "IMAGE", conflicts_with = "without_controller", value_parser = image)]
    pub(crate) image: Option<String>,
    /// Omit the controller's Deployment
    #[arg(long)]
    pub(crate) without_controller: bool,
    /// Check all objects by a dry run of the API server, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Take ownership of fields that another field manager applies
    #[arg(long)]
    pub(crate) force_conflicts: bool,
    /// Do not wait until the controller runs
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Maximum time to wait for the controller
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
}

/// Checks the characters of an image reference.
fn image(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@[]".contains(c);
    match text {
        "" => Err("the reference is empty".to_owned()),
        text if text.chars().all(plain) => Ok(text.to_owned()),
        _ => Err("such as registry.example/bedplate/controller:0.1.0".to_owned()),
    }
}
