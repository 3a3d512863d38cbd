//! Pure: meaning of each section's keys, with defaults and limits. The only list of keys; docs/reference/configuration.md
//! explains all of them, and a test compares the two.
//!
//! A missing or invalid value is replaced by a placeholder, so that the rest can be checked too; the recorded error
//! prevents the use of the whole configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bedplate_dhcp::settings::AddressRange;
use bedplate_oci::Access;
use ipnet::{IpNet, Ipv4Net};

use super::read::{Reader, Section};
use super::value::{AbsolutePath, AddressOrNetwork, FileName, HostPort, InterfaceName, Label};
use super::{
    BmcConfig, Config, DhcpConfig, DhcpMode, HttpConfig, HttpsConfig, ImageConfig, ImageSource, LimitsConfig,
    LoadersConfig, MetricsConfig, SourceConfig, SubnetConfig, TftpConfig,
};

const PATH: &str = "an absolute path";
const LISTEN: &str = "an address with a port, such as 0.0.0.0:8067 or [::]:8067";
const ADVERTISE: &str = "a host with a port, such as 10.7.0.1:8067";
const ADDRESS: &str = "an IPv4 address";
const RELAY: &str = "an IPv4 address, or a network such as 10.9.0.0/30";
const NETWORK: &str = "a network, such as 10.96.0.0/12";
const NAMESPACE: &str = "a namespace: at most 63 of a-z, 0-9 and '-', not first or last '-'";
const FILE: &str = "a file name (letters, digits, '.', '-', '_') inside loaders.directory";

pub(super) fn read_config(reader: &mut Reader, mut top: Section<'_>) -> Config {
    let (source, secrets_directory) = source(&mut top, reader);
    let config = Config {
        source,
        secrets_directory,
        site: top
            .parse(reader, "site", "a site name: at most 63 of a-z, 0-9 and '-', not first or last '-'")
            .unwrap_or_else(|| "default".parse().expect("\"default\" is a DNS label")),
        state_directory: path(&mut top, reader, "state-directory", "/var/lib/bedplate/pxed"),
        socket: path(&mut top, reader, "socket", "/run/bedplate/pxed.sock"),
        socket_group: top.text(reader, "socket-group"),
        socket_admin_group: top.text(reader, "socket-admin-group"),
        dhcp: dhcp(&mut top, reader),
        tftp: tftp(&mut top, reader),
        http: http(&mut top, reader),
        https: https(&mut top, reader),
        metrics: metrics(&mut top, reader),
        bmc: bmc(&mut top, reader),
        loaders: loaders(&mut top, reader),
        default_image: top.text(reader, "default-image"),
        discovery_image: top.text(reader, "discovery-image"),
        images: {
            let sections = top.named_sections(reader, "images");
            sections.into_iter().map(|(name, section)| (name, image(section, reader))).collect()
        },
        limits: limits(&mut top, reader),
    };
    top.finish(reader);
    config
}

fn path(section: &mut Section<'_>, reader: &mut Reader, key: &'static str, default: &str) -> PathBuf {
    section.parse(reader, key, PATH).map_or_else(|| default.into(), |AbsolutePath(path)| path)
}

fn optional_path(section: &mut Section<'_>, reader: &mut Reader, key: &'static str) -> Option<PathBuf> {
    section.parse(reader, key, PATH).map(|AbsolutePath(path)| path)
}

fn listen(section: &mut Section<'_>, reader: &mut Reader, default: &str) -> SocketAddr {
    section
        .parse(reader, "listen", LISTEN)
        .unwrap_or_else(|| default.parse().expect("a default is a literal address"))
}

fn port(section: &mut Section<'_>, reader: &mut Reader, key: &'static str, default: u16) -> u16 {
    let port = section.integer(reader, key, 1..=u32::from(u16::MAX));
    port.and_then(|p| u16::try_from(p).ok()).unwrap_or(default)
}

fn seconds(
    section: &mut Section<'_>,
    reader: &mut Reader,
    key: &'static str,
    limits: std::ops::RangeInclusive<u32>,
    default: u32,
) -> Duration {
    Duration::from_secs(section.integer(reader, key, limits).unwrap_or(default).into())
}

fn source(top: &mut Section<'_>, reader: &mut Reader) -> (SourceConfig, PathBuf) {
    let mut section = top.section(reader, "source");
    let directory = optional_path(&mut section, reader, "directory");
    let secrets = path(&mut section, reader, "secrets-directory", "/etc/bedplate/secrets");
    let mut kubernetes = section.section(reader, "kubernetes");
    let kubeconfig = optional_path(&mut kubernetes, reader, "kubeconfig");
    let context = kubernetes.text(reader, "context");
    let advertise = kubernetes.parse::<HostPort>(reader, "advertise", ADVERTISE);
    kubernetes.finish(reader);
    section.finish(reader);
    let remedy = "write directory = \"/etc/bedplate/machines.d\", or kubernetes = {}";
    match (reader.is_given("source.directory"), reader.is_given("source.kubernetes")) {
        (false, false) => reader.problem("source", "does not name the source of Machines", remedy),
        (true, true) => {
            reader.problem("source.kubernetes", "and source.directory are both given", "keep one");
        }
        (false, true) if reader.is_given("source.secrets-directory") => {
            let remedy = "remove it: in a cluster agents read its Secrets";
            reader.problem("source.secrets-directory", "belongs to source.directory", remedy);
        }
        _ => {}
    }
    let source = match directory {
        Some(directory) => SourceConfig::Directory(directory),
        None => SourceConfig::Kubernetes { kubeconfig, context, advertise },
    };
    (source, secrets)
}

fn dhcp(top: &mut Section<'_>, reader: &mut Reader) -> DhcpConfig {
    let mut section = top.section(reader, "dhcp");
    let modes = [("server", DhcpMode::Server), ("proxy", DhcpMode::Proxy), ("off", DhcpMode::Off)];
    let mode = section.choice(reader, "mode", &modes);
    if !reader.is_given("dhcp.mode") {
        let remedy = "write mode = \"server\" (pxed assigns addresses), \"proxy\" (next to another DHCP server) or \"off\"";
        reader.problem("dhcp.mode", "is missing", remedy);
    }
    let interfaces: Vec<InterfaceName> =
        section.list(reader, "interfaces", "an interface name of at most 15 characters");
    let config = DhcpConfig {
        mode: mode.unwrap_or(DhcpMode::Off),
        interfaces: interfaces.into_iter().map(|InterfaceName(name)| name).collect(),
        authoritative: section.boolean(reader, "authoritative").unwrap_or(true),
        discovery: section.boolean(reader, "discovery").unwrap_or(false),
        discovery_reserve_percent: section
            .integer(reader, "discovery-reserve-percent", 0..=100)
            .unwrap_or(25),
        server_port: port(&mut section, reader, "server-port", 67),
        client_port: port(&mut section, reader, "client-port", 68),
        proxy_port: port(&mut section, reader, "proxy-port", 4011),
        subnets: {
            let sections = section.sections(reader, "subnet");
            sections.into_iter().map(|section| subnet(section, reader)).collect()
        },
    };
    section.finish(reader);
    config
}

fn subnet(mut section: Section<'_>, reader: &mut Reader) -> SubnetConfig {
    let network = section.parse(reader, "network", "a network such as 10.7.0.0/24");
    let given = section.path("network");
    if !reader.is_given(&given) {
        reader.problem(&given, "is missing", "write network = \"10.7.0.0/24\"");
    }
    let subnet = SubnetConfig {
        // The stand-in overlaps no network that a rack may have.
        network: network.unwrap_or_else(|| Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 32)),
        ranges: section.list::<AddressRange>(reader, "ranges", "a range such as 10.7.0.100-10.7.0.199"),
        routers: section.list(reader, "routers", ADDRESS),
        nameservers: section.list(reader, "nameservers", ADDRESS),
        domain: section.text(reader, "domain"),
        ntp_servers: section.list(reader, "ntp-servers", ADDRESS),
        lease: seconds(&mut section, reader, "lease-seconds", 60..=31_536_000, 3600),
        relays: {
            let relays = section.list(reader, "relays", RELAY);
            relays.into_iter().map(|AddressOrNetwork(relay)| relay).collect()
        },
    };
    section.finish(reader);
    subnet
}

fn tftp(top: &mut Section<'_>, reader: &mut Reader) -> TftpConfig {
    let mut section = top.section(reader, "tftp");
    let config = TftpConfig {
        enabled: section.boolean(reader, "enabled").unwrap_or(true),
        listen: listen(&mut section, reader, "0.0.0.0:69"),
        max_sessions: section.integer(reader, "max-sessions", 1..=65_535).unwrap_or(1024),
        max_sessions_per_client: section.integer(reader, "max-sessions-per-client", 1..=1024).unwrap_or(8),
    };
    section.finish(reader);
    config
}

fn http(top: &mut Section<'_>, reader: &mut Reader) -> HttpConfig {
    let mut section = top.section(reader, "http");
    let config = HttpConfig {
        listen: listen(&mut section, reader, "0.0.0.0:8067"),
        advertise: section.parse::<HostPort>(reader, "advertise", ADVERTISE),
        max_streams: section.integer(reader, "max-streams", 1..=65_535).unwrap_or(64),
        connections_per_client: section.integer(reader, "connections-per-client", 1..=4096).unwrap_or(64),
        stall: seconds(&mut section, reader, "stall-seconds", 1..=3600, 30),
        require_leased_address: section.boolean(reader, "require-leased-address").unwrap_or(true),
    };
    section.finish(reader);
    config
}

fn https(top: &mut Section<'_>, reader: &mut Reader) -> HttpsConfig {
    let mut section = top.section(reader, "https");
    let config = HttpsConfig {
        listen: listen(&mut section, reader, "0.0.0.0:8443"),
        advertise: section.parse::<HostPort>(reader, "advertise", ADVERTISE),
    };
    section.finish(reader);
    config
}

fn metrics(top: &mut Section<'_>, reader: &mut Reader) -> MetricsConfig {
    let mut section = top.section(reader, "metrics");
    let config = MetricsConfig { listen: listen(&mut section, reader, "127.0.0.1:9067") };
    section.finish(reader);
    config
}

fn bmc(top: &mut Section<'_>, reader: &mut Reader) -> BmcConfig {
    let mut section = top.section(reader, "bmc");
    let namespaces: Vec<Label> = section.list(reader, "secret-namespaces", NAMESPACE);
    let secret_namespaces = if reader.is_given("bmc.secret-namespaces") {
        namespaces.into_iter().map(|Label(name)| name).collect()
    } else {
        vec!["bedplate-system".to_owned()]
    };
    let config = BmcConfig {
        secret_namespaces,
        credentials_directory: path(
            &mut section,
            reader,
            "credentials-directory",
            "/etc/bedplate/bmc-credentials",
        ),
        allowed_networks: section.list::<IpNet>(reader, "allowed-networks", NETWORK),
        forbidden_networks: section.list::<IpNet>(reader, "forbidden-networks", NETWORK),
        allow_insecure: section.boolean(reader, "allow-insecure").unwrap_or(false),
        connections: section.integer(reader, "connections", 1..=4096).unwrap_or(128),
        poll: seconds(&mut section, reader, "poll-seconds", 5..=3600, 60),
        lease_namespace: section.parse(reader, "lease-namespace", NAMESPACE).map(|Label(name)| name),
    };
    section.finish(reader);
    config
}

fn loaders(top: &mut Section<'_>, reader: &mut Reader) -> LoadersConfig {
    let mut section = top.section(reader, "loaders");
    let directory = path(&mut section, reader, "directory", "/usr/lib/ipxe");
    let mut file = |key| section.parse(reader, key, FILE).map(|FileName(name)| name);
    let config = LoadersConfig {
        directory,
        bios: file("bios"),
        uefi_x64: file("uefi-x64"),
        uefi_x64_http: file("uefi-x64-http"),
        uefi_ia32: file("uefi-ia32"),
        uefi_arm64: file("uefi-arm64"),
        uefi_arm64_http: file("uefi-arm64-http"),
    };
    section.finish(reader);
    config
}

fn image(mut section: Section<'_>, reader: &mut Reader) -> ImageConfig {
    let layout = optional_path(&mut section, reader, "layout");
    let tag = section.text(reader, "tag");
    let digest = section.parse(reader, "digest", "a digest: sha256: and 64 lower-case hex digits");
    let reference = section.text(reader, "reference");
    let allow_tag = section.boolean(reader, "allow-tag").unwrap_or(false);
    let access = Access {
        insecure_http: section.boolean(reader, "insecure-http").unwrap_or(false),
        ca_file: optional_path(&mut section, reader, "ca-file"),
        credentials_file: optional_path(&mut section, reader, "credentials-file"),
        is_confined: false,
    };
    let kernel = optional_path(&mut section, reader, "kernel");
    let initrd = optional_path(&mut section, reader, "initrd");
    let rootfs = optional_path(&mut section, reader, "rootfs");
    let kernel_arguments = section.list(reader, "kernel-arguments", "a kernel argument");
    check_image_form(&section, reader);
    section.finish(reader);
    let source = match (layout, reference) {
        (Some(path), _) => ImageSource::Layout { path, tag, digest },
        (None, Some(reference)) => ImageSource::Registry { reference, allow_tag, access },
        (None, None) => ImageSource::Files {
            kernel: kernel.unwrap_or_default(),
            initrd: initrd.unwrap_or_default(),
            rootfs,
        },
    };
    ImageConfig { source, kernel_arguments }
}

/// An image has exactly one of three forms, and each key belongs to one of them.
fn check_image_form(section: &Section<'_>, reader: &mut Reader) {
    const FORMS: [(&str, &[&str]); 3] = [
        ("layout", &["tag", "digest"]),
        ("reference", &["allow-tag", "insecure-http", "ca-file", "credentials-file"]),
        ("kernel", &["initrd", "rootfs"]),
    ];
    let given: Vec<_> = FORMS.iter().filter(|(key, _)| reader.is_given(&section.path(key))).collect();
    let whole = section.path("");
    let whole = whole.trim_end_matches('.');
    match given.as_slice() {
        [(form, _)] => {
            for (other, keys) in FORMS.iter().filter(|(other, _)| other != form) {
                for key in keys.iter().map(|key| section.path(key)).collect::<Vec<_>>() {
                    if reader.is_given(&key) {
                        let message = format!("has no meaning without {other}");
                        reader.problem(&key, message, format!("remove it, or use {other} instead of {form}"));
                    }
                }
            }
            if *form == "kernel" && !reader.is_given(&section.path("initrd")) {
                reader.problem(&section.path("initrd"), "is required with kernel", "name the initrd's file");
            }
        }
        [] => {
            let remedy = "write layout = \"/directory\", reference = \"registry/name@sha256:...\", or kernel and initrd";
            reader.problem(whole, "does not name the source of the image", remedy);
        }
        _ => reader.problem(whole, "has more than one of layout, reference and kernel", "keep one"),
    }
}

fn limits(top: &mut Section<'_>, reader: &mut Reader) -> LimitsConfig {
    let mut section = top.section(reader, "limits");
    let config = LimitsConfig {
        boot_lifetime: seconds(&mut section, reader, "boot-lifetime-seconds", 60..=86_400, 1800),
        discovered_machines: section.integer(reader, "discovered-machines", 0..=1_000_000).unwrap_or(4096),
        drain: seconds(&mut section, reader, "drain-seconds", 0..=3600, 30),
        image_cache: u64::from(
            section.integer(reader, "image-cache-mib", 256..=16_777_216).unwrap_or(65_536),
        ) << 20,
    };
    section.finish(reader);
    config
}
