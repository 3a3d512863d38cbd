//! Commands about power, operations and management controllers: `power`, `operation`, `bmc`.

use std::path::PathBuf;

use bedplate_api::id::{Digest, MachineName};
use clap::{Args, Subcommand, ValueEnum};

use super::name;

/// Commands on a Machine's power.
#[derive(Debug, Subcommand)]
pub(crate) enum PowerCommand {
    /// Show power state, last action, and whether the BMC is reachable
    Status {
        /// The Machine's name
        #[arg(value_parser = name)]
        name: String,
    },
    /// Power a machine on
    On {
        #[command(flatten)]
        act: PowerAct,
        /// Boot device [default: network, for a Machine that pxed netboots]
        #[arg(long, value_enum)]
        boot: Option<Boot>,
    },
    /// Shut the system down, and power the machine off
    Off {
        #[command(flatten)]
        act: PowerAct,
        /// Power off immediately, without a shutdown of the system. With --grace-period: power off when it has
        /// passed
        #[arg(long)]
        force: bool,
        /// Power off by force if the system has not shut down in this time
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(1..))]
        grace_period: Option<i32>,
    },
    /// Power a machine off by force, and on again
    Cycle {
        #[command(flatten)]
        act: PowerAct,
        /// Boot device [default: network, for a Machine that pxed netboots]
        #[arg(long, value_enum)]
        boot: Option<Boot>,
    },
    /// Reset a machine without a loss of power
    Reset {
        #[command(flatten)]
        act: PowerAct,
    },
}

/// Options of every power command.
#[derive(Debug, Args)]
pub(crate) struct PowerAct {
    /// The Machine's name
    pub(crate) name: MachineName,
    /// Wait until the operation is complete, or has failed
    #[arg(long)]
    pub(crate) wait: bool,
    /// Timeout of the operation [default: 300, off and cycle 600; off with a grace period: at least 120 more
    /// than that]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) timeout: Option<i32>,
}

/// Device that a machine boots from after power-on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Boot {
    /// Network, for this boot only
    Network,
    /// Boot order of the firmware
    Default,
}

/// The operations that Bedplate's own programs carry out, and their parameters (docs/guides/bmc.md, docs/guides/machine-operations.md).
const KNOWN: &str = "\
Operations and their parameters:
  powerOn, powerCycle  bootSource=network|default
  powerOff             force=true, gracePeriodSeconds=N
  reset
  reboot, shutdown     drain=true, and with it drainTimeoutSeconds=N, gracePeriodSeconds=N, deleteEmptyDirData=true, force=true
  restartService       service=UNIT, in=slot|host
  packetCapture        interface=NAME, filter=EXPRESSION, seconds=N (30, at most 300), bytes=N (16 MiB, at most 64 MiB)
  applyConfiguration   disruption=deny|allow
pxed carries out the first three lines, the agent on the machine the others. Any other name is for your own program.";

/// Commands on MachineOperations.
#[derive(Debug, Subcommand)]
pub(crate) enum OperationCommand {
    /// Create an operation: powerCycle, reboot, or any other that a program carries out
    #[command(after_help = KNOWN)]
    Create(OperationCreate),
    /// One line for each operation, the oldest first
    List,
    /// Follow one operation until its end, or all operations until Ctrl-C
    Watch {
        /// The operation's name
        #[arg(value_parser = name)]
        name: Option<String>,
    },
}

/// Fields of a new operation.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).multiple(true).args(["machine", "selector", "field_selector"]))]
pub(crate) struct OperationCreate {
    /// Name of the operation: see below
    #[arg(value_name = "OPERATION", value_parser = operation_name)]
    pub(crate) operation: String,
    /// Machine of the operation
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<MachineName>,
    /// Select Machines by labels, in the syntax of kubectl: rack=a,role!=gpu
    #[arg(long, value_name = "LABELS", conflicts_with = "machine")]
    pub(crate) selector: Option<String>,
    /// Select Machines by fields: spec.provider=manual,metadata.name!=a
    #[arg(long, value_name = "FIELDS", conflicts_with = "machine")]
    pub(crate) field_selector: Option<String>,
    /// Parameter of the operation; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = parameter)]
    pub(crate) parameters: Vec<(String, String)>,
    /// Timeout on one Machine [default: the operation's own]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) timeout: Option<i32>,
    /// Time that the object is kept after its end [default: until it is deleted]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) ttl: Option<i32>,
    /// Maximum number of concurrent Machines, with a selector [default: all]
    #[arg(long, value_name = "N", conflicts_with = "machine", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) max_parallel: Option<i32>,
    /// Number of failures after which no further Machine starts, with a selector
    #[arg(long, value_name = "N", conflicts_with = "machine", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) failure_limit: Option<i32>,
}

fn operation_name(text: &str) -> Result<String, String> {
    let ends = |c: char| c.is_ascii_alphanumeric();
    let plain = |c: char| ends(c) || "-.".contains(c);
    if text.len() <= 63 && text.chars().all(plain) && text.starts_with(ends) && text.ends_with(ends) {
        return Ok(text.to_owned());
    }
    Err("use 1 to 63 of A-Z, a-z, 0-9, '-' and '.', without '-' or '.' first or last, such as powerCycle"
        .to_owned())
}

fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("use KEY=VALUE".to_owned()),
    }
}

/// Commands on a management controller.
#[derive(Debug, Subcommand)]
pub(crate) enum BmcCommand {
    /// Show what a BMC is and can do, and what to write into a Machine; changes nothing, and needs neither
    /// pxed nor a cluster
    Probe(ProbeArguments),
}

/// Address, protocol and login of a management controller.
#[derive(Debug, Args)]
pub(crate) struct ProbeArguments {
    /// Address in the form of a Machine's bmc.address: host, host:port, or the URL of a Redfish service
    pub(crate) address: String,
    /// Protocol of the requests
    #[arg(long, value_enum, default_value_t = Protocol::Redfish)]
    pub(crate) protocol: Protocol,
    /// User name for the login; without it, only public data is shown
    #[arg(long, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// File with the password, `-` for standard input [default: ask for the password]
    #[arg(long, value_name = "FILE", requires = "username")]
    pub(crate) password_file: Option<PathBuf>,
    /// System to probe, if a Redfish service has several
    #[arg(long, value_name = "ID")]
    pub(crate) system_id: Option<String>,
    /// Send the password without verifying the BMC's certificate
    #[arg(long, group = "trust")]
    pub(crate) insecure: bool,
    /// Accept the certificate with this public key, as an earlier probe showed it: sha256:...
    #[arg(long, value_name = "PIN", group = "trust")]
    pub(crate) pin: Option<Digest>,
    /// Accept certificates of these certificate authorities (PEM)
    #[arg(long, value_name = "FILE", group = "trust")]
    pub(crate) ca_file: Option<PathBuf>,
}

/// A protocol of management controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// DMTF Redfish
    Redfish,
    /// IPMI 2.0 over LAN
    Ipmi,
}
