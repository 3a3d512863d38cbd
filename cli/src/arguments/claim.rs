//! Commands about the hosts of pools: `claim`.

use bedplate_api::id::MachineName;
use clap::{Args, Subcommand};

use super::name;

/// Commands about MachineClaims.
#[derive(Debug, Subcommand)]
pub(crate) enum ClaimCommand {
    /// One line for each host of a pool: its claimant, its state, and the grant
    List,
    /// One host of a pool: its claim, the record of the host, the version, the next step, and where these disagree
    Explain {
        /// The name of the Machine, which is that of its MachineClaim
        #[arg(value_parser = name)]
        name: String,
    },
    /// Release a host whose claim or claimant is lost, or confirm that a silent host is off
    Release(ClaimRelease),
}

/// Arguments of `claim release`.
#[derive(Debug, Args)]
pub(crate) struct ClaimRelease {
    /// The name of the Machine
    pub(crate) name: MachineName,
    /// Confirm that the host is powered off, so that its claimant is deleted without its release. The host stays held
    #[arg(long)]
    pub(crate) host_is_off: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
}
