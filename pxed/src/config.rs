//! pxed's configuration: a TOML file, and flags and `BEDPLATE_*` variables over its top-level keys.
//!
//! `read` parses the document, `section` interprets each key, `check` checks the keys together, `problem` describes
//! errors. All errors are reported together. Read at start and at SIGHUP (`reload`), by `run`.

pub mod advice;
mod check;
pub mod cli;
pub mod problem;
mod read;
pub mod reload;
mod section;
#[cfg(test)]
mod tests;
pub mod translate;
pub mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_api::id::SiteName;
use bedplate_dhcp::settings::AddressRange;
pub use bedplate_oci::Source as ImageSource;
use ipnet::{IpNet, Ipv4Net};
use thiserror::Error;
use toml::de::DeTable;

use self::problem::Problem;
use self::read::{Reader, Section};
use self::value::HostPort;

/// Default path of the configuration file.
pub(crate) const DEFAULT_PATH: &str = "/etc/bedplate/pxed.toml";

/// The whole configuration, valid in itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The group of pxed instances that this one belongs to; only Machines of this site are served (A3).
    pub site: SiteName,
    /// Directory of state that must survive a restart.
    pub state_directory: PathBuf,
    /// The Unix socket for `bedplate`.
    pub socket: PathBuf,
    /// The group that may use the socket besides its owner.
    pub socket_group: Option<String>,
    /// The group that may change things over the socket, in addition to root and pxed's own user.
    pub socket_admin_group: Option<String>,
    /// Source of Machines.
    pub source: SourceConfig,
    /// Directory of standalone nodes' Secrets.
    pub secrets_directory: PathBuf,
    /// DHCP and proxyDHCP.
    pub dhcp: DhcpConfig,
    /// TFTP.
    pub tftp: TftpConfig,
    /// HTTP for loaders.
    pub http: HttpConfig,
    /// TLS for agents.
    pub https: HttpsConfig,
    /// Health and metrics.
    pub metrics: MetricsConfig,
    /// Management controllers.
    pub bmc: BmcConfig,
    /// Boot loader files.
    pub loaders: LoadersConfig,
    /// The image of a Machine that names none.
    pub default_image: Option<String>,
    /// The image of unknown machines, while `dhcp.discovery` is on.
    pub discovery_image: Option<String>,
    /// Images by name.
    pub images: BTreeMap<String, ImageConfig>,
    /// Limits of memory and time.
    pub limits: LimitsConfig,
}

/// Source of Machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceConfig {
    /// A directory of manifests.
    Directory(PathBuf),
    /// The Kubernetes API: in-cluster unless a kubeconfig is named.
    Kubernetes {
        /// A kubeconfig file.
        kubeconfig: Option<PathBuf>,
        /// A context in it; default: its current one.
        context: Option<String>,
        /// Address of the API server for hosts, if it differs from pxed's.
        advertise: Option<HostPort>,
    },
}

impl fmt::Display for SourceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Kubernetes { .. } => f.write_str("kubernetes"),
        }
    }
}

/// Role of pxed in DHCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DhcpMode {
    /// Gives addresses.
    Server,
    /// Another server gives the addresses, pxed only adds what to boot.
    Proxy,
    /// Not at all.
    Off,
}

/// `[dhcp]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpConfig {
    /// Role of pxed in DHCP.
    pub mode: DhcpMode,
    /// The network interfaces to listen on.
    pub interfaces: Vec<String>,
    /// True if clients with a wrong address get a DHCPNAK.
    pub authoritative: bool,
    /// True if unknown machines get a pool address and the discovery image.
    pub discovery: bool,
    /// The share of each subnet's pool that unknown machines are not given, in percent.
    pub discovery_reserve_percent: u32,
    /// UDP port to listen on.
    pub server_port: u16,
    /// UDP port that clients listen on.
    pub client_port: u16,
    /// UDP port for PXE boot server requests.
    pub proxy_port: u16,
    /// The subnets that are served.
    pub subnets: Vec<SubnetConfig>,
}

/// `[[dhcp.subnet]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetConfig {
    /// The subnet.
    pub network: Ipv4Net,
    /// Addresses that may be given to anybody.
    pub ranges: Vec<AddressRange>,
    /// Option 3.
    pub routers: Vec<Ipv4Addr>,
    /// Option 6.
    pub nameservers: Vec<Ipv4Addr>,
    /// Option 15.
    pub domain: Option<String>,
    /// Option 42.
    pub ntp_servers: Vec<Ipv4Addr>,
    /// Option 51.
    pub lease: Duration,
    /// Addresses and small networks of the relays of this subnet.
    pub relays: Vec<Ipv4Net>,
}

/// `[tftp]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TftpConfig {
    /// True if TFTP is served.
    pub enabled: bool,
    /// Listen address (UDP).
    pub listen: SocketAddr,
    /// Maximum number of concurrent transfers.
    pub max_sessions: u32,
    /// Maximum number of concurrent transfers of one client address.
    pub max_sessions_per_client: u32,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Listen address.
    pub listen: SocketAddr,
    /// The `host:port` in URLs; default: the address at which the client was reached, with the listener's port.
    pub advertise: Option<HostPort>,
    /// Maximum number of images that are sent concurrently; further requests wait in a fair queue.
    pub max_streams: u32,
    /// Maximum number of concurrent connections of one client address, here and for agents.
    pub connections_per_client: u32,
    /// Period without a byte after which a client is disconnected.
    pub stall: Duration,
    /// True if script and seed leave only to the address that pxed leased to the boot's Machine.
    pub require_leased_address: bool,
}

/// `[https]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpsConfig {
    /// Listen address.
    pub listen: SocketAddr,
    /// `host:port` that agents get; the default is that of HTTP.
    pub advertise: Option<HostPort>,
}

/// `[metrics]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Listen address.
    pub listen: SocketAddr,
}

/// `[bmc]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BmcConfig {
    /// Namespaces whose Secrets may be read as credentials.
    pub secret_namespaces: Vec<String>,
    /// Directory of standalone BMC credentials.
    pub credentials_directory: PathBuf,
    /// Networks that may be reached although they are refused otherwise.
    pub allowed_networks: Vec<IpNet>,
    /// Networks where no BMC is.
    pub forbidden_networks: Vec<IpNet>,
    /// True if plain HTTP and `tls.mode: Insecure` are allowed.
    pub allow_insecure: bool,
    /// Maximum number of concurrent BMC connections.
    pub connections: u32,
    /// Interval between polls of an idle BMC.
    pub poll: Duration,
    /// Namespace of the site's Lease; `None`: that of the pod.
    pub lease_namespace: Option<String>,
}

/// `[loaders]`: file names inside `directory`; a kind without one cannot boot by that way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadersConfig {
    /// Directory of the files.
    pub directory: PathBuf,
    /// BIOS.
    pub bios: Option<String>,
    /// UEFI x86-64 by TFTP.
    pub uefi_x64: Option<String>,
    /// UEFI x86-64 by HTTP.
    pub uefi_x64_http: Option<String>,
    /// UEFI 32 bit.
    pub uefi_ia32: Option<String>,
    /// UEFI arm64 by TFTP.
    pub uefi_arm64: Option<String>,
    /// UEFI arm64 by HTTP.
    pub uefi_arm64_http: Option<String>,
}

/// `[images.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageConfig {
    /// Source of the image.
    pub source: ImageSource,
    /// Kernel arguments after the image's own and before the Machine's.
    pub kernel_arguments: Vec<String>,
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Lifetime of a boot's URLs.
    pub boot_lifetime: Duration,
    /// Unknown machines remembered.
    pub discovered_machines: u32,
    /// Timeout for transfers after SIGTERM.
    pub drain: Duration,
    /// Maximum size of the image cache, in bytes.
    pub image_cache: u64,
}

/// The configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The file has errors.
    #[error("{}", list(path, problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All errors.
        problems: Vec<Problem>,
    },
}

fn list(path: &Path, problems: &[Problem]) -> String {
    let path = path.display();
    let lines = problems.iter().map(|p| match p.line {
        Some(_) => format!("{path}:{p}"),
        None => format!("{path}: {p}"),
    });
    let count = problems.len();
    let noun = if count == 1 { "error" } else { "errors" };
    format!("{count} {noun} in the configuration\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// A top-level key given by flag or environment: key, value, what it is called there.
pub type Override = (&'static str, String, String);

impl Config {
    /// Reads the file and applies the overrides.
    ///
    /// # Errors
    /// The file cannot be read, or all errors in it.
    pub fn load(path: &Path, overrides: &[Override]) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, overrides)
            .map_err(|problems| ConfigError::Invalid { path: path.to_owned(), problems })
    }

    /// Parses a document.
    ///
    /// # Errors
    /// All errors in it.
    pub fn parse(text: &str, overrides: &[Override]) -> Result<Self, Vec<Problem>> {
        read_document(text, overrides).0
    }
}

/// Reads a document. The keys are all that the reader knows, as patterns such as `dhcp.subnet[].network` and `images.*.layout`.
fn read_document(text: &str, overrides: &[Override]) -> (Result<Config, Vec<Problem>>, BTreeSet<String>) {
    let mut reader = Reader::new(text, overrides.iter().cloned());
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        reader.problem_at(error.span(), error.message(), "this is not valid TOML");
    }
    let config = section::read_config(&mut reader, Section::root(document.get_ref()));
    check::check(&config, &mut reader);
    let (problems, asked) = reader.into_parts();
    (if problems.is_empty() { Ok(config) } else { Err(problems) }, asked)
}
