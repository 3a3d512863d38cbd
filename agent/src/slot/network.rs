//! Network of a slot, as files of host and slot: the host's network, one of its
//! own on the host's wire, or one behind the host.
//!
//! ```text
//!   host      the node's programs ── the host's interfaces
//!   macvlan   mv-eth0, a MAC address of its own, DHCP ── eth0 ── wire     the kernel blocks traffic between host and node
//!   veth      host0 .254 ── ve-bedplate-a .253 ── masquerade, eth0 ── wire     the host's port of the kubelet is the node's
//! ```
//! In a network of its own, the node's networkd is configured by a file of the
//! host, which is written at each start of the slot.
//! Pure. Called by `render`, `contents` and `in_place`.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use bedplate_api::configuration::{ContainerNetwork, Template};
use bedplate_api::id::{MacAddress, MachineName};
use bedplate_api::machine::SlotName;
use serde_json::Value;

use super::contents::{self, Contents, SlotFile, SlotLink};
use super::paths::{Places, letter};
use super::render::{File, RenderSlotError};

/// Socket in the slot for health checks of a kubelet with a network of its own.
pub(crate) const HEALTH_SOCKET: &str = "/run/bedplate/kubelet-health.sock";
/// The unit behind the socket.
pub(crate) const HEALTH_UNIT: &str = "bedplate-health.service";
/// networkd of the host, which a slot behind the host needs.
pub(crate) const HOST_NETWORKD: &str = "systemd-networkd.service";

/// Address of the link between host and slot, from the range for benchmarks (RFC 2544), which no network
/// routes. It is the same on each host, because it is not visible elsewhere.
const HOST_END: &str = "198.18.255.253";
const SLOT_END: &str = "198.18.255.254";
const LINK: u8 = 30;

const HEALTH_PORT: u16 = 10248;
const KUBELET_PORT: u16 = 10250;
const PARAMETERS: &str = "/etc/sysctl.d/99-zz-bedplate.conf";
const MAC_UNIT: &str = "bedplate-mac.service";
const NETWORK_UNIT: &str = "bedplate-network.service";
const HEALTH_SOCKET_UNIT: &str = "bedplate-health.socket";

/// The interface of the host that has its default route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink {
    /// Name of the interface.
    pub interface: String,
    /// The host's address there.
    pub address: Ipv4Addr,
    /// MTU in bytes.
    pub mtu: u32,
}

/// The network of a template's nodes.
pub fn of(template: &Template) -> ContainerNetwork {
    template.container.as_ref().map(|container| container.network).unwrap_or_default()
}

/// Returns true if a node has its own network and its own loopback.
pub fn is_own(template: &Template) -> bool {
    match of(template) {
        ContainerNetwork::Host => false,
        ContainerNetwork::Veth | ContainerNetwork::Macvlan => true,
    }
}

/// Returns a port of the kubelet's configuration. 0 disables it.
fn port(template: &Template, name: &str, usual: u16) -> Option<u16> {
    let configured = template.kubernetes.kubelet_configuration.as_ref();
    match configured.and_then(|fields| fields.get(name)).and_then(Value::as_u64) {
        None => Some(usual),
        Some(0) => None,
        Some(port) => u16::try_from(port).ok(),
    }
}

/// Returns the port of the kubelet's health endpoint on its loopback; none: its configuration disables it.
pub(crate) fn health_port(template: &Template) -> Option<u16> {
    port(template, "healthzPort", HEALTH_PORT)
}

/// Returns true if a kernel parameter belongs to a network namespace, and so to
/// the node's own network if it has one.
pub(crate) fn is_of_network(parameter: &str) -> bool {
    let name = parameter.trim_start_matches('-');
    name.starts_with("net.") || name.starts_with("net/")
}

/// Returns the network part of the slot's `.nspawn` file: binds, then the section `[Network]`.
pub(super) fn nspawn(
    template: &Template,
    slot: SlotName,
    uplink: Option<&Uplink>,
    places: &Places,
) -> Result<String, RenderSlotError> {
    let bind = || {
        format!(
            "# Configuration of the node's networkd; written at each start of the slot.\nBindReadOnly={}:/run/systemd/network\n",
            directory(slot, places).display()
        )
    };
    Ok(match of(template) {
        ContainerNetwork::Host => "\n[Network]\n# The host's network.\nVirtualEthernet=no\n".to_owned(),
        ContainerNetwork::Macvlan => format!(
            "{bind}\n[Network]\n\
             # Separate interface on the link of the host's default route. With macvlan, host and node cannot reach each other there.\n\
             VirtualEthernet=no\nMACVLAN={interface}\n",
            bind = bind(),
            interface = needed(uplink)?.interface,
        ),
        ContainerNetwork::Veth => {
            let published = port(template, "port", KUBELET_PORT).map(|port| {
                format!(
                    "# The API server reaches the kubelet at the host's address.\nPort=tcp:{port}:{port}\n"
                )
            });
            format!(
                "{bind}\
                 # The node's name resolves to the host's address there, so that the kubelet uses it as the Node's.\n\
                 BindReadOnly={hosts}:/etc/hosts\n\n[Network]\n\
                 # Link to the host, which masquerades.\nVirtualEthernet=yes\n{published}",
                bind = bind(),
                hosts = hosts(slot, places).display(),
                published = published.unwrap_or_default(),
            )
        }
    })
}

fn needed(uplink: Option<&Uplink>) -> Result<&Uplink, RenderSlotError> {
    let fits = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c));
    uplink.filter(|uplink| fits(&uplink.interface)).ok_or(RenderSlotError::NoUplink)
}

fn directory(slot: SlotName, places: &Places) -> PathBuf {
    places.run.join("bedplate/networks").join(letter(slot))
}

fn hosts(slot: SlotName, places: &Places) -> PathBuf {
    places.run.join("bedplate/networks").join(format!("{}.hosts", letter(slot)))
}

/// Returns the additional files of the host: configuration of its networkd and of the node's.
pub(super) fn files(
    template: &Template,
    machine: &MachineName,
    slot: SlotName,
    uplink: Option<&Uplink>,
    places: &Places,
) -> Result<Vec<File>, RenderSlotError> {
    let file = |path: PathBuf, content: String| File { path, mode: 0o644, content };
    let path = directory(slot, places).join("10-bedplate.network");
    match of(template) {
        ContainerNetwork::Host => Ok(Vec::new()),
        ContainerNetwork::Macvlan => needed(uplink).map(|_| vec![file(path, ON_THE_WIRE.to_owned())]),
        ContainerNetwork::Veth => {
            let uplink = needed(uplink)?;
            Ok(vec![
                file(path, behind_the_host(uplink)),
                file(hosts(slot, places), contents::hosts(machine, &uplink.address.to_string())),
                file(places.run.join("systemd/network/10-bedplate-slot.network"), the_hosts_end(uplink)),
            ])
        }
    }
}

fn behind_the_host(uplink: &Uplink) -> String {
    format!(
        "# Written by bedplate-agent on the host: the node's link to its host.\n\
         [Match]\nName=host0\n\n\
         [Link]\n# MTU of the host's uplink: larger packets would be lost, smaller ones are slow.\nMTUBytes={mtu}\n\n\
         [Network]\nAddress={SLOT_END}/{LINK}\nGateway={HOST_END}\nLinkLocalAddressing=no\nLLMNR=no\nMulticastDNS=no\n\n\
         [Address]\n\
         # The host's address, which the kubelet reports as the Node's. The host forwards the kubelet's port on it to the node. Not used\n\
         # for anything else (scope host): packets have the link's address.\n\
         Address={address}/32\nScope=host\n",
        mtu = uplink.mtu,
        address = uplink.address,
    )
}

fn the_hosts_end(uplink: &Uplink) -> String {
    format!(
        "# Written by bedplate-agent: the link of a slot with container.network Veth.\n\
         [Match]\nName=ve-bedplate-*\n\n\
         [Link]\nMTUBytes={mtu}\n# The host is online without it.\nRequiredForOnline=no\n\n\
         [Network]\nAddress={HOST_END}/{LINK}\nLinkLocalAddressing=no\nLLMNR=no\nMulticastDNS=no\n\
         # Packets of the node leave with the host's address.\nIPMasquerade=ipv4\n",
        mtu = uplink.mtu,
    )
}

/// Returns the files in the root of a slot with a network of its own; none for another slot.
pub(super) fn contents(template: &Template, machine: &MachineName, parameters: &[(&str, &str)]) -> Contents {
    if !is_own(template) {
        return Contents::default();
    }
    let unit = |name: &str| format!("/etc/systemd/system/{name}");
    let wanted = |by: &str, name: &str| SlotLink {
        path: format!("/etc/systemd/system/{by}.wants/{name}"),
        target: unit(name),
    };
    let mut files = vec![
        contents::text("/etc/systemd/networkd.conf.d/50-bedplate.conf", 0o644, NETWORKD),
        contents::text(&unit(NETWORK_UNIT), 0o644, NETWORK),
        self::parameters(template, parameters),
    ];
    let mut links = vec![wanted("multi-user.target", NETWORK_UNIT)];
    if of(template) == ContainerNetwork::Macvlan {
        files.push(contents::text(&unit(MAC_UNIT), 0o644, &mac_unit(machine)));
        links.push(SlotLink {
            path: format!("/etc/systemd/system/systemd-networkd.service.requires/{MAC_UNIT}"),
            target: unit(MAC_UNIT),
        });
    }
    let health = health(template);
    if !health.is_empty() {
        links.push(wanted("sockets.target", HEALTH_SOCKET_UNIT));
    }
    files.extend(health);
    Contents { files, links }
}

/// Returns the kernel parameters of the node's own network, which starts with the kernel's defaults: `usual`,
/// and the version's.
pub(crate) fn parameters(template: &Template, usual: &[(&str, &str)]) -> SlotFile {
    let mut text = "# Written by bedplate-agent: kernel parameters of the node's own network. Those of the whole host are set there.\n"
        .to_owned();
    let versions = template.sysctls.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in usual.iter().copied().chain(versions).filter(|(name, _)| is_of_network(name)) {
        text.push_str(&format!("-{} = {value}\n", name.trim_start_matches('-')));
    }
    contents::text(PARAMETERS, 0o644, &text)
}

/// Returns the units that relay the kubelet's health port from the node's loopback to the agent.
pub(crate) fn health(template: &Template) -> Vec<SlotFile> {
    let Some(port) = health_port(template).filter(|_| is_own(template)) else { return Vec::new() };
    let socket = format!(
        "# Written by bedplate-agent: the agent on the host checks the kubelet's health here.\n\
         [Unit]\nDescription=Kubelet health for the agent\n\n\
         [Socket]\nListenStream={HEALTH_SOCKET}\nSocketMode=0600\n"
    );
    let service = format!(
        "# Written by bedplate-agent.\n\
         [Unit]\nDescription=Kubelet health for the agent\nRequires={HEALTH_SOCKET_UNIT}\nAfter={HEALTH_SOCKET_UNIT}\n\n\
         [Service]\nExecStart=/usr/lib/systemd/systemd-socket-proxyd --exit-idle-time=5min 127.0.0.1:{port}\n"
    );
    let unit = |name: &str, text: &str| contents::text(&format!("/etc/systemd/system/{name}"), 0o644, text);
    vec![unit(HEALTH_SOCKET_UNIT, &socket), unit(HEALTH_UNIT, &service)]
}

const ON_THE_WIRE: &str = "\
# Written by bedplate-agent on the host: the node's interface on the host's wire. Its MAC address: bedplate-mac.service.
[Match]
Name=mv-*

[Network]
DHCP=ipv4
LLMNR=no
MulticastDNS=no

[DHCPv4]
# A DHCP server may identify the node by its MAC address.
ClientIdentifier=mac
# The other slot reuses the lease.
SendRelease=no
# The node has the Machine's name.
UseHostname=no
";

/// Returns the unit that sets the MAC address. networkd cannot set it, because it continues with another
/// address if this one is in use. Without it, a DHCP server other than pxed would assign another address. The
/// timeout is that of the trial's health gate.
fn mac_unit(machine: &MachineName) -> String {
    format!(
        "# Written by bedplate-agent: MAC address derived from the Machine's name. Both slots use it, so a repave keeps the DHCP lease. The\n\
         # kernel keeps the address of a stopped slot until its last connection is closed: usually a moment, minutes if\n\
         # the peers do not answer. networkd waits for this unit.\n\
         [Unit]\nDescription=MAC address of this node\nBefore=systemd-networkd.service\nStartLimitIntervalSec=0\n\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\n\
         ExecStart=/bin/sh -c 'until ip link set dev \"$(basename /sys/class/net/mv-*)\" address {mac} up; do sleep 1; done'\n\
         TimeoutStartSec=infinity\n\n\
         [Install]\nRequiredBy=systemd-networkd.service\n",
        mac = MacAddress::of_slot(machine),
    )
}

const NETWORKD: &str = "\
# Written by bedplate-agent: networkd must keep the routes and rules of network plug-ins.
[Network]
ManageForeignRoutes=no
ManageForeignRoutingPolicyRules=no
";

const NETWORK: &str = "\
# Written by bedplate-agent: the node's own network is up before other units need it.
[Unit]
Description=Network of this node
Wants=systemd-networkd.service
After=systemd-networkd.service
Before=network-online.target bedplate-kubeadm.service kubelet.service
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/systemd/systemd-networkd-wait-online --any --ipv4 --operational-state=routable --timeout=60
# Restarts networkd if it no longer configures an interface.
ExecStopPost=-/bin/sh -c '[ \"$SERVICE_RESULT\" = success ] || systemctl restart --no-block systemd-networkd.service'
Restart=on-failure
RestartSec=5s

[Install]
WantedBy=multi-user.target
";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "it is written where it is used")]
    fn template(network: &str, kubernetes: Value) -> Template {
        let mut fields = json!({"version": "v1.34.4"});
        for (name, value) in kubernetes.as_object().unwrap() {
            fields[name] = value.clone();
        }
        serde_json::from_value(json!({"image": {"reference": "r.example/node", "allowTag": true}, "kubernetes": fields,
            "container": {"network": network}, "sysctls": {"net.core.somaxconn": "4096", "vm.swappiness": "1"}}))
        .unwrap()
    }

    fn name() -> MachineName {
        "node-1".parse().unwrap()
    }

    fn uplink(interface: &str) -> Uplink {
        Uplink { interface: interface.to_owned(), address: [10, 7, 0, 101].into(), mtu: 9000 }
    }

    fn text(contents: &Contents, path: &str) -> String {
        let file = contents.files.iter().find(|file| file.path == path).unwrap();
        String::from_utf8(file.content.to_vec()).unwrap()
    }

    #[test]
    fn a_node_on_the_hosts_network_gets_nothing_of_a_network() {
        let template = template("Host", json!({}));
        assert_eq!(contents(&template, &name(), &[("net.ipv4.ip_forward", "1")]), Contents::default());
        assert_eq!(files(&template, &name(), SlotName::A, None, &Places::default()).unwrap(), []);
    }

    #[test]
    fn a_node_with_its_own_network_sets_what_is_of_a_network_itself() {
        let contents = contents(
            &template("Macvlan", json!({})),
            &name(),
            &[("net.ipv4.ip_forward", "1"), ("vm.overcommit_memory", "1")],
        );
        let parameters = text(&contents, PARAMETERS);
        assert!(
            parameters.ends_with("\n-net.ipv4.ip_forward = 1\n-net.core.somaxconn = 4096\n"),
            "{parameters}"
        );
    }

    #[test]
    fn the_agent_reaches_the_kubelets_own_health_port_or_none_if_it_is_closed() {
        let of = |kubelet: Value| {
            let template = template("Veth", json!({"kubeletConfiguration": kubelet}));
            contents(&template, &name(), &[("net.x", "1")])
        };
        let unit = "/etc/systemd/system/bedplate-health.service";
        assert!(text(&of(json!({})), unit).contains(" 127.0.0.1:10248\n"));
        assert!(text(&of(json!({"healthzPort": 11000})), unit).contains(" 127.0.0.1:11000\n"));
        let closed = of(json!({"healthzPort": 0}));
        assert!(!closed.files.iter().any(|file| file.path.contains("health")));
        assert_eq!(closed.links.len(), 1);
    }

    #[test]
    fn a_host_without_a_way_out_has_no_place_for_such_a_node() {
        let places = Places::default();
        for network in ["Macvlan", "Veth"] {
            let template = template(network, json!({}));
            let odd = uplink("eth0 eth1");
            for uplink in [None, Some(&odd)] {
                let error = files(&template, &name(), SlotName::A, uplink, &places).unwrap_err();
                assert_eq!(error, RenderSlotError::NoUplink);
            }
        }
    }

    #[test]
    fn both_slots_have_one_address_on_the_wire() {
        let template = template("Macvlan", json!({}));
        let unit = text(&contents(&template, &name(), &[]), "/etc/systemd/system/bedplate-mac.service");
        assert!(unit.contains(" address 02:83:90:9c:ab:61 up;"), "{unit}");
        let nspawn = nspawn(&template, SlotName::B, Some(&uplink("bond0.7")), &Places::default()).unwrap();
        assert!(nspawn.ends_with("\nMACVLAN=bond0.7\n"), "{nspawn}");
    }

    #[test]
    fn networkd_never_brings_the_node_up_with_another_address() {
        let contents = contents(&template("Macvlan", json!({})), &name(), &[]);
        let unit = text(&contents, "/etc/systemd/system/bedplate-mac.service");
        assert!(unit.contains("\nBefore=systemd-networkd.service\n"), "{unit}");
        assert!(unit.contains("\nTimeoutStartSec=infinity\n"), "{unit}");
        let needs = "/etc/systemd/system/systemd-networkd.service.requires/bedplate-mac.service";
        assert!(contents.links.iter().any(|link| link.path == needs), "{:?}", contents.links);
    }

    #[test]
    fn the_kubelets_own_port_is_published() {
        let of = |kubelet: Value| {
            let template = template("Veth", json!({"kubeletConfiguration": kubelet}));
            nspawn(&template, SlotName::A, Some(&uplink("eth0")), &Places::default()).unwrap()
        };
        assert!(of(json!({})).ends_with("\nPort=tcp:10250:10250\n"));
        assert!(of(json!({"port": 11250})).ends_with("\nPort=tcp:11250:11250\n"));
    }
}
