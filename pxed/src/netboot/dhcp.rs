//! Callbacks of the DHCP engine: identity of a client, its boot decision, and reports.
//!
//! On the packet path: the index, the policy's state and the boots are all in memory. Packets and leases belong to
//! the engine.

use std::net::Ipv4Addr;
use std::sync::Arc;

use bedplate_api::claim::ClaimState;
use bedplate_api::id::MacAddress;
use bedplate_api::machine::{Machine, StateDisk, Wipe};
use bedplate_api::wire::{DiskSelector, Explanation, Stage, StateDiskRequest, WipeRequest};
use bedplate_dhcp::client::{BootAnswer, Client, Clients, Event, KnownClient, Loader, Query};
use jiff::Timestamp;

use crate::boot::{Boots, LoaderKind, Opening, Owner};
use crate::boot_policy::{
    self, Action, Asker, Decision, ImageName, Request, State, Subject, Transport, explain,
};
use crate::machines::{Found, KnownMachine, Machines};
use crate::netboot::state::Present;

/// The owner's side of DHCP.
#[derive(Clone)]
pub(crate) struct BootClients {
    /// The index.
    pub machines: Machines,
    /// The boots.
    pub boots: Boots,
    /// State that the policy reads.
    pub present: Arc<Present>,
    /// URLs by which the loader gets its files over HTTP.
    pub urls: Urls,
    /// Told of each unknown machine that asks, while discovery is on.
    pub discovered: Discovered,
}

/// Callback for each packet of an unknown machine while discovery is on. On the packet path: must return immediately.
pub type Discovered = Arc<dyn Fn(&Query) + Send + Sync>;

/// Builder of URLs of the plain listener.
#[derive(Debug, Clone)]
pub struct Urls {
    /// `host:port` of the configuration; `None`: the address at which the client reached pxed, with `port`.
    pub advertise: Option<String>,
    /// The listener's port.
    pub port: u16,
}

impl Urls {
    /// `http://host:port`, for a client that reaches us at `server`.
    pub fn http(&self, server: Ipv4Addr) -> String {
        format!("http://{}", self.authority(server))
    }

    /// `https://host:port`, likewise.
    pub fn https(&self, server: Ipv4Addr) -> String {
        format!("https://{}", self.authority(server))
    }

    fn authority(&self, server: Ipv4Addr) -> String {
        self.advertise.clone().unwrap_or_else(|| format!("{server}:{}", self.port))
    }
}

/// Converts a Machine for the policy. Without its own image and without a default, the image name states that.
pub fn subject(known: &KnownMachine, default_image: Option<&str>) -> Subject {
    let pxe = known.machine.spec.pxe.as_ref();
    let named = pxe.and_then(|pxe| pxe.image.as_ref());
    let image = match named.map(|image| (&image.reference, &image.name, image.allow_tag)) {
        Some((Some(reference), _, allow_tag)) => {
            ImageName::Reference { reference: reference.clone(), allow_tag }
        }
        Some((None, Some(name), _)) => ImageName::Configured(name.clone()),
        Some((None, None, _)) | None => {
            ImageName::Configured(default_image.unwrap_or("(no default-image)").to_owned())
        }
    };
    Subject {
        name: known.name.clone(),
        uid: known.uid.clone(),
        paused: known.machine.spec.paused,
        firmware: pxe.map(|pxe| pxe.firmware).unwrap_or_default(),
        boot_protocol: pxe.map(|pxe| pxe.boot_protocol).unwrap_or_default(),
        image,
        kernel_arguments: pxe.map(|pxe| pxe.kernel_arguments.clone()).unwrap_or_default(),
        state_disk: pxe.and_then(|pxe| pxe.state_disk.as_ref()).and_then(state_disk).map(|disk| {
            let release = due_wipe(&known.machine);
            StateDiskRequest { release, ..disk }
        }),
        netboot: known.interfaces.iter().filter(|i| i.netboot).map(|i| i.mac).collect(),
    }
}

/// A `stateDisk` in the seed's form; `None` where it names its disk in no way or in several, which the API refuses too.
fn state_disk(disk: &StateDisk) -> Option<StateDiskRequest> {
    let size = |bytes: Option<i64>| bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let mut selectors = Vec::new();
    selectors.extend(disk.by_id.clone().map(DiskSelector::ById));
    selectors.extend(disk.serial.clone().map(DiskSelector::Serial));
    selectors.extend(disk.wwn.clone().map(DiskSelector::Wwn));
    selectors.extend(disk.hctl.clone().map(DiskSelector::Hctl));
    selectors.extend(disk.rule.as_ref().map(|rule| DiskSelector::Rule {
        min_size_bytes: size(rule.min_size_bytes),
        max_size_bytes: size(rule.max_size_bytes),
        rotational: rule.rotational,
        model: rule.model.clone(),
    }));
    let select = selectors.pop().filter(|_| selectors.is_empty())?;
    let wipe = match (disk.wipe, &disk.wipe_token) {
        (Wipe::IfBlank, _) => WipeRequest::IfBlank,
        (Wipe::Once, Some(token)) => WipeRequest::Once(token.clone()),
        (Wipe::Never, _) | (Wipe::Once, None) => WipeRequest::Never,
    };
    Some(StateDiskRequest { select, wipe, release: None })
}

/// Token of the wipe that is due at the release of a claim, as the agent has reported it (D7).
fn due_wipe(machine: &Machine) -> Option<String> {
    let claim = machine.status.as_ref()?.claim.as_ref()?;
    claim.wipe_token.clone().filter(|_| claim.state == ClaimState::Wiping)
}

/// The policy's request that a packet stands for.
fn request(query: &Query) -> Request {
    match query.loader {
        Loader::None => Request::NoNetboot,
        Loader::Pxe => Request::Pxe(query.architectures.clone()),
        Loader::Http => Request::HttpBoot(query.architectures.clone()),
        Loader::Ipxe => Request::Ipxe(query.architectures.clone()),
    }
}

fn loader_kind(loader: Loader) -> Option<LoaderKind> {
    match loader {
        Loader::None => None,
        Loader::Pxe => Some(LoaderKind::Pxe),
        Loader::Http => Some(LoaderKind::Http),
        Loader::Ipxe => Some(LoaderKind::Ipxe),
    }
}

impl BootClients {
    fn decide(&self, query: &Query) -> (Decision, Owner) {
        let request = request(query);
        match self.machines.load().by_mac(query.mac) {
            Found::One(known) => {
                let subject = subject(&known, self.present.default_image().as_deref());
                let netboot = subject.netboot.contains(&query.mac);
                let asker = Asker::Machine { subject: &subject, netboot };
                let decision = boot_policy::decide(asker, &request, self.present.as_ref());
                (decision, Owner::Machine { name: known.name.clone(), uid: known.uid.clone() })
            }
            Found::Unknown => {
                let decision = boot_policy::decide(Asker::Unknown, &request, self.present.as_ref());
                (decision, Owner::Unknown { mac: query.mac })
            }
            Found::Several(_) => {
                let decision = boot_policy::decide(Asker::Claimed, &request, self.present.as_ref());
                (decision, Owner::Unknown { mac: query.mac })
            }
        }
    }

    fn opening(&self, query: &Query, owner: Owner) -> Option<Opening> {
        Some(Opening {
            owner,
            mac: query.mac,
            transaction: query.transaction,
            loader: loader_kind(query.loader)?,
            platform: boot_policy::platform::platform(&query.architectures)
                .filter(|_| !query.architectures.is_empty()),
            server: query.server,
        })
    }

    /// Returns the boot decision for this client, for `bedplate explain <MAC address or name>`; `None` if it is
    /// unknown.
    pub(crate) fn explain(&self, text: &str) -> Option<Explanation> {
        let machines = self.machines.load();
        let state = self.present.as_ref();
        if let Ok(mac) = text.parse() {
            return Some(match machines.by_mac(mac) {
                Found::One(known) => {
                    let subject = subject(&known, self.present.default_image().as_deref());
                    let netboot = subject.netboot.contains(&mac);
                    explain::explain(text.to_owned(), Asker::Machine { subject: &subject, netboot }, state)
                }
                Found::Unknown => explain::explain(text.to_owned(), Asker::Unknown, state),
                Found::Several(_) => explain::explain(text.to_owned(), Asker::Claimed, state),
            });
        }
        let known = machines.by_name(&text.parse().ok()?)?;
        let subject = subject(known, self.present.default_image().as_deref());
        let contested = subject.netboot.iter().any(|mac| matches!(machines.by_mac(*mac), Found::Several(_)));
        if contested {
            return Some(explain::explain(text.to_owned(), Asker::Claimed, state));
        }
        let netboot = !subject.netboot.is_empty();
        Some(explain::explain(text.to_owned(), Asker::Machine { subject: &subject, netboot }, state))
    }
}

impl Clients for BootClients {
    fn client(&self, query: &Query) -> Client {
        match self.machines.load().by_mac(query.mac) {
            Found::One(known) => {
                let interface = known.interface(query.mac);
                // A pool address in place of the fixed ones would surprise. If another server gives addresses, none of them matters.
                if !query.proxy && interface.is_some_and(|interface| interface.only_ipv6) {
                    return Client::Refused("ipv6-address");
                }
                Client::Known(KnownClient {
                    machine: known.name.clone(),
                    addresses: interface.map(|i| i.addresses.clone()).unwrap_or_default(),
                    gateway: interface.and_then(|i| i.gateway),
                    nameservers: interface.map(|i| i.nameservers.clone()).unwrap_or_default(),
                })
            }
            Found::Unknown if !self.machines.are_known() => Client::Refused("machines-not-known"),
            Found::Unknown => {
                let discovery = self.present.discovery().is_some();
                Client::Unknown { discovery }
            }
            Found::Several(_) => Client::Refused("duplicate-mac"),
        }
    }

    fn boot(&self, query: &Query) -> Option<BootAnswer> {
        let (decision, owner) = self.decide(query);
        match &decision.action {
            Action::Loader { .. } | Action::Script { .. } => {}
            Action::Boot { .. } | Action::Hold(_) | Action::LocalDisk | Action::Refuse(_) => {
                let answer = explain::describe(&decision);
                tracing::debug!(mac = %query.mac, loader = ?query.loader, answer, "no boot answer");
                return None;
            }
        }
        let id = self.boots.open(&self.opening(query, owner)?, Timestamp::now())?;
        let base = self.urls.http(query.server);
        let file = match decision.action {
            Action::Loader { transport: Transport::Tftp, file, .. } => format!("b/{id}/{file}"),
            Action::Loader { transport: Transport::Http, file, .. } => format!("{base}/b/{id}/loader/{file}"),
            _ => format!("{base}/b/{id}/script.ipxe"),
        };
        Some(BootAnswer { next_server: query.server, file })
    }

    fn owner(&self, address: Ipv4Addr) -> Option<MacAddress> {
        self.machines.load().by_address(address)
    }

    fn observe(&self, query: &Query, event: &Event) {
        let owner = match self.machines.load().by_mac(query.mac) {
            Found::One(known) => Owner::Machine { name: known.name.clone(), uid: known.uid.clone() },
            Found::Unknown => {
                let wanted = self.present.discovery().is_some() && self.machines.are_known();
                if matches!(event, Event::Received) && wanted {
                    (self.discovered)(query);
                }
                return;
            }
            Found::Several(_) => return,
        };
        let stage = match event {
            Event::Offered(_) => Stage::Offered,
            Event::Acknowledged(_) | Event::ProxyAnswered => Stage::Acknowledged,
            Event::Received
            | Event::Refused(_)
            | Event::PoolExhausted
            | Event::Declined(_)
            | Event::Released(_) => return,
        };
        // The operating system's own DHCP is none of a boot's stages.
        if query.loader == Loader::None {
            return;
        }
        self.boots.dhcp_reached(&owner, stage, Timestamp::now());
    }
}

#[cfg(test)]
mod tests {
    use bedplate_dhcp::client::Message;

    use super::*;
    use crate::http::tests::{Rig, machine, plain};
    use crate::machines::Snapshot;

    fn clients(rig: &Rig) -> BootClients {
        BootClients {
            machines: rig.machines.clone(),
            boots: rig.boots().clone(),
            present: rig.routes.present.clone(),
            urls: rig.routes.urls.clone(),
            discovered: Arc::new(|_| {}),
        }
    }

    fn query(loader: Loader, architectures: &[u16], transaction: u32) -> Query {
        Query {
            mac: "52:54:00:00:00:01".parse().unwrap(),
            transaction,
            message: Message::Discover,
            loader,
            architectures: architectures.to_vec(),
            uuid: None,
            vendor_class: String::new(),
            host_name: None,
            subnet: "10.7.0.0/24".parse().unwrap(),
            server: [10, 7, 0, 2].into(),
            relay: None,
            proxy: false,
        }
    }

    #[test]
    fn each_loader_gets_a_name_that_holds_its_boot() {
        let rig = Rig::new();
        let clients = clients(&rig);
        let id = |transaction| {
            rig.boots().records().iter().find(|r| r.opening.transaction == transaction).unwrap().id
        };
        let http = clients.boot(&query(Loader::Http, &[16], 1)).unwrap();
        assert_eq!(http.file, format!("http://10.7.0.2:8067/b/{}/loader/ipxe.efi", id(1)));
        let ipxe = clients.boot(&query(Loader::Ipxe, &[7], 2)).unwrap();
        assert_eq!(ipxe.file, format!("http://10.7.0.2:8067/b/{}/script.ipxe", id(2)));
        assert_eq!(clients.boot(&query(Loader::Ipxe, &[7], 2)).unwrap(), ipxe, "OFFER and ACK are equal");
        assert_eq!(clients.boot(&query(Loader::Pxe, &[0], 3)), None, "no loader for BIOS is configured");
        assert_eq!(rig.boots().records().len(), 2);
    }

    #[test]
    fn the_operating_systems_own_dhcp_opens_nothing_and_moves_no_stage() {
        let rig = Rig::new();
        let clients = clients(&rig);
        let system = query(Loader::None, &[], 1);
        assert!(matches!(clients.client(&system), Client::Known(_)));
        clients.observe(&system, &Event::Acknowledged([10, 7, 0, 9].into()));
        assert!(rig.boots().records().is_empty());
    }

    #[test]
    fn a_node_with_its_own_address_is_given_one_and_never_boots() {
        let rig = Rig::new();
        let clients = clients(&rig);
        for loader in [Loader::None, Loader::Pxe, Loader::Http, Loader::Ipxe] {
            let mac = MacAddress::of_slot(&"node1".parse().unwrap());
            let slot = Query { mac, ..query(loader, &[7], 1) };
            let Client::Known(known) = clients.client(&slot) else { panic!("it is node1's") };
            assert_eq!((known.machine.as_str(), known.addresses), ("node1", Vec::new()));
            assert_eq!(clients.boot(&slot), None);
        }
        assert!(rig.boots().records().is_empty());
    }

    #[test]
    fn fixed_addresses_of_ipv6_alone_get_no_pool_address_in_their_place() {
        let rig = Rig::new();
        let clients = clients(&rig);
        let addresses = |addresses: &[&str]| {
            let mut spec = plain();
            spec["pxe"]["interfaces"][0]["addresses"] = serde_json::json!(addresses);
            rig.set_machine(&spec);
        };
        addresses(&["fd00::21/64"]);
        let ipxe = query(Loader::Ipxe, &[7], 1);
        assert_eq!(clients.client(&ipxe), Client::Refused("ipv6-address"));
        let proxied = Query { proxy: true, ..ipxe.clone() };
        assert!(matches!(clients.client(&proxied), Client::Known(_)), "another server gives the address");
        addresses(&["fd00::21/64", "10.7.0.21/24"]);
        let Client::Known(known) = clients.client(&ipxe) else { panic!("it has an address") };
        assert_eq!(known.addresses, ["10.7.0.21/24".parse().unwrap()]);
    }

    #[test]
    fn stages_of_dhcp_reach_the_timeline() {
        let rig = Rig::new();
        let clients = clients(&rig);
        let ipxe = query(Loader::Ipxe, &[7], 1);
        clients.boot(&ipxe).unwrap();
        clients.observe(&ipxe, &Event::Received);
        clients.observe(&ipxe, &Event::Offered([10, 7, 0, 9].into()));
        let owner = rig.boots().records()[0].opening.owner.clone();
        assert_eq!(rig.boots().timeline(&owner).unwrap().stage, Stage::Offered);
        clients.observe(&ipxe, &Event::Acknowledged([10, 7, 0, 9].into()));
        assert_eq!(rig.boots().timeline(&owner).unwrap().stage, Stage::Acknowledged);
    }

    #[test]
    fn unknown_and_contested_addresses_get_nothing() {
        let rig = Rig::new();
        let clients = clients(&rig);
        let site = "default".parse().unwrap();
        rig.machines.store(Snapshot::build(&site, [machine("a", &plain()), machine("b", &plain())]));
        let ipxe = query(Loader::Ipxe, &[7], 1);
        assert_eq!(clients.client(&ipxe), Client::Refused("duplicate-mac"));
        assert_eq!(clients.boot(&ipxe), None);
        rig.machines.store(Snapshot::default());
        assert_eq!(clients.client(&ipxe), Client::Unknown { discovery: false });
        assert_eq!(clients.boot(&ipxe), None);
    }

    #[test]
    fn no_client_counts_as_unknown_before_the_machines_are_known() {
        let rig = Rig::new();
        let clients = BootClients { machines: Machines::default(), ..clients(&rig) };
        let ipxe = query(Loader::Ipxe, &[7], 1);
        assert_eq!(clients.client(&ipxe), Client::Refused("machines-not-known"));
        clients.machines.store(Snapshot::default());
        assert_eq!(clients.client(&ipxe), Client::Unknown { discovery: false });
    }

    #[test]
    fn an_explanation_is_what_the_packet_would_get() {
        let rig = Rig::new();
        let clients = clients(&rig);
        for subject in ["node1", "52:54:00:00:00:01"] {
            let explanation = clients.explain(subject).unwrap();
            let of = |request: &str| {
                explanation.decisions.iter().find(|d| d.request == request).unwrap().decision.clone()
            };
            assert_eq!(of("UEFI x64, HTTP boot"), "HTTP ipxe.efi");
            assert_eq!(of("BIOS, PXE"), "no answer (no-loader)");
        }
        assert!(clients.explain("52:54:00:00:00:99").unwrap().machine.is_none());
        assert!(clients.explain("nobody").is_none());
    }

    #[test]
    fn d7_boot_gets_the_token_only_while_the_wipe_is_due() {
        let machine = |claim: serde_json::Value| -> Machine {
            let spec = serde_json::json!({ "provider": "pxe" });
            let object = serde_json::json!({ "metadata": { "name": "a" }, "spec": spec, "status": { "claim": claim } });
            serde_json::from_value(object).unwrap()
        };
        let claim = |state: &str, token: Option<&str>| {
            serde_json::json!({ "providerID": "bedplate://a/u", "claimant": { "namespace": "n", "name": "w" },
                "state": state, "since": "2026-01-01T00:00:00Z", "wipeToken": token })
        };
        assert_eq!(due_wipe(&machine(claim("Wiping", Some("claim-1")))).as_deref(), Some("claim-1"));
        for other in [claim("Released", Some("claim-1")), claim("Wiping", None), serde_json::Value::Null] {
            assert_eq!(due_wipe(&machine(other.clone())), None, "{other}");
        }
    }

    #[test]
    fn d7_subject_of_a_boot_has_the_token_and_the_rule_of_its_disk() {
        let of = |disk: serde_json::Value, state: &str| {
            let claim = serde_json::json!({ "providerID": "bedplate://a/u", "claimant": { "namespace": "n", "name": "w" },
                "state": state, "since": "2026-01-01T00:00:00Z", "wipeToken": "claim-1" });
            let spec =
                serde_json::json!({ "provider": "pxe", "pxe": { "interfaces": [], "stateDisk": disk } });
            let object = serde_json::json!({ "metadata": { "name": "a" }, "spec": spec, "status": { "claim": claim } });
            let known = KnownMachine {
                name: "a".parse().unwrap(),
                uid: "u".to_owned(),
                machine: Arc::new(serde_json::from_value(object).unwrap()),
                interfaces: Vec::new(),
                slot_mac: "52:54:00:00:00:01".parse().unwrap(),
            };
            subject(&known, None).state_disk.map(|disk| (disk.wipe, disk.release))
        };
        let token = Some("claim-1".to_owned());
        let disk = serde_json::json!({ "serial": "S1" });
        assert_eq!(of(disk.clone(), "Wiping"), Some((WipeRequest::IfBlank, token.clone())));
        assert_eq!(of(disk, "Released"), Some((WipeRequest::IfBlank, None)));
        // Stage-1 ignores the token then.
        let never = serde_json::json!({ "serial": "S1", "wipe": "Never" });
        assert_eq!(of(never, "Wiping"), Some((WipeRequest::Never, token)));
        assert_eq!(of(serde_json::Value::Null, "Wiping"), None);
    }

    #[test]
    fn a_state_disk_that_is_named_in_two_ways_is_none() {
        let disk = |value| serde_json::from_value::<StateDisk>(value).unwrap();
        let one = state_disk(&disk(serde_json::json!({ "serial": "S1", "wipe": "Once", "wipeToken": "t" })));
        let expected = StateDiskRequest {
            select: DiskSelector::Serial("S1".to_owned()),
            wipe: WipeRequest::Once("t".to_owned()),
            release: None,
        };
        assert_eq!(one, Some(expected));
        assert_eq!(state_disk(&disk(serde_json::json!({ "serial": "S1", "wwn": "0x1" }))), None);
        assert_eq!(state_disk(&disk(serde_json::json!({}))), None);
    }
}
