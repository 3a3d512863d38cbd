//! The index of known Machines: by MAC address and by name, as a snapshot that readers take without a lock.
//!
//! [`Snapshot::build`] makes an index of whatever set of Machines it is given, with what is wrong as values, and does
//! nothing else; [`Machines`] only holds the current one. Filled by the source, read by DHCP, TFTP, HTTP and the admin socket.

pub mod discovered;
pub mod source;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use bedplate_api::id::{MacAddress, MachineName, SiteName};
use bedplate_api::machine::{Machine, PROVIDER_PXE};
use ipnet::{IpNet, Ipv4Net};
use tokio::sync::watch;

/// Machine of this site, indexed for the packet path.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownMachine {
    /// The name.
    pub name: MachineName,
    /// Identity that distinguishes a Machine from a later one of the same name: `metadata.uid`, or `directory:<name>`
    /// for a manifest without one.
    pub uid: String,
    /// The whole object, as its source gave it and shares it.
    pub machine: Arc<Machine>,
    /// The interfaces, in the order of the manifest.
    pub interfaces: Vec<Interface>,
    /// The address of its node, if that has one of its own on the host's wire.
    pub slot_mac: MacAddress,
}

/// One interface of a Machine. The API refuses IPv6 settings; objects from before that rule may have some, which are skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Hardware address.
    pub mac: MacAddress,
    /// Fixed addresses.
    pub addresses: Vec<Ipv4Net>,
    /// True if there are fixed addresses and none of them is IPv4.
    pub only_ipv6: bool,
    /// Default router.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers.
    pub nameservers: Vec<Ipv4Addr>,
    /// True if the Machine boots from it.
    pub netboot: bool,
}

/// Owner of a MAC address.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// No Machine's.
    Unknown,
    /// This one's.
    One(Arc<KnownMachine>),
    /// Several claim it; none is served.
    Several(Vec<MachineName>),
}

/// Reason why a Machine, or one of its addresses, is not served.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// The object has no name that can be a host name.
    BadName {
        /// The name as text.
        name: String,
    },
    /// A MAC address that several Machines claim.
    DuplicateMac {
        /// The address.
        mac: MacAddress,
        /// Every Machine that claims it, in the order of the names.
        machines: Vec<MachineName>,
    },
    /// A fixed address that several Machines name.
    DuplicateAddress {
        /// The address.
        address: Ipv4Addr,
        /// The first Machine by name, and another.
        machines: [MachineName; 2],
    },
    /// Two objects have one name.
    DuplicateName {
        /// The name.
        name: MachineName,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { name } => {
                write!(
                    f,
                    "{name:?} is not a Machine name: at most 63 of a-z, 0-9 and '-', not first or last '-'"
                )
            }
            Self::DuplicateMac { mac, machines } => {
                let names: Vec<_> = machines.iter().map(MachineName::as_str).collect();
                write!(f, "{mac} is claimed by {}: none of them is served", names.join(" and "))
            }
            Self::DuplicateAddress { address, machines: [first, other] } => {
                write!(
                    f,
                    "{address} is a fixed address of {first} and {other}: only one at a time can have it"
                )
            }
            Self::DuplicateName { name } => write!(f, "two Machines are named {name}: neither is known"),
        }
    }
}

/// A complete set of known Machines.
#[derive(Debug, Default)]
pub struct Snapshot {
    by_name: BTreeMap<MachineName, Arc<KnownMachine>>,
    by_mac: HashMap<MacAddress, Claim>,
    by_address: HashMap<Ipv4Addr, MacAddress>,
    problems: Vec<Problem>,
    /// Machines of other sites.
    elsewhere: HashSet<String>,
    /// Indices in `problems` of the conflicts of a Machine's addresses.
    contested: HashMap<MachineName, Vec<usize>>,
}

#[derive(Debug)]
enum Claim {
    One(Arc<KnownMachine>),
    Several(Vec<MachineName>),
}

impl Snapshot {
    /// Builds the index of those `machines` that belong to `site`, of all providers.
    pub fn build<M: Into<Arc<Machine>>>(site: &SiteName, machines: impl IntoIterator<Item = M>) -> Self {
        Self::default().next(site, machines)
    }

    /// The index that comes after this one: what was made of an object that is still the same is shared with it.
    pub fn next<M: Into<Arc<Machine>>>(
        &self,
        site: &SiteName,
        machines: impl IntoIterator<Item = M>,
    ) -> Self {
        let mut snapshot = Self::default();
        let mut twice = Vec::new();
        for machine in machines {
            let machine: Arc<Machine> = machine.into();
            if machine.spec.site != *site {
                snapshot.elsewhere.extend(machine.metadata.name.clone());
                continue;
            }
            let name = machine.metadata.name.clone().unwrap_or_default();
            let Ok(name) = name.parse::<MachineName>() else {
                snapshot.problems.push(Problem::BadName { name });
                continue;
            };
            let known = match self.by_name.get(&name) {
                Some(known) if Arc::ptr_eq(&known.machine, &machine) => known.clone(),
                Some(_) | None => Arc::new(KnownMachine::new(name.clone(), machine)),
            };
            if snapshot.by_name.insert(name.clone(), known).is_some() {
                twice.push(name);
            }
        }
        twice.sort();
        twice.dedup();
        for name in twice {
            snapshot.by_name.remove(&name);
            snapshot.problems.push(Problem::DuplicateName { name });
        }
        snapshot.index_addresses();
        snapshot.problems.sort();
        for (index, problem) in snapshot.problems.iter().enumerate() {
            if let Problem::DuplicateMac { machines, .. } = problem {
                for name in machines {
                    snapshot.contested.entry(name.clone()).or_default().push(index);
                }
            }
        }
        snapshot
    }

    /// The Machines that are new or other than in `before`, or whose contested addresses may be.
    pub(crate) fn changed_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = &'a Arc<KnownMachine>> {
        let contested: HashSet<&MachineName> = if self.problems == before.problems {
            HashSet::new()
        } else {
            self.contested.keys().chain(before.contested.keys()).collect()
        };
        self.iter().filter(move |known| {
            let last = before.by_name.get(&known.name);
            contested.contains(&known.name) || last.is_none_or(|last| !Arc::ptr_eq(last, known))
        })
    }

    fn index_addresses(&mut self) {
        let mut first_of: HashMap<Ipv4Addr, &MachineName> = HashMap::new();
        for machine in self.by_name.values() {
            for interface in &machine.interfaces {
                for address in interface.addresses.iter().map(Ipv4Net::addr) {
                    self.by_address.entry(address).or_insert(interface.mac);
                    let first = *first_of.entry(address).or_insert(&machine.name);
                    if *first != machine.name {
                        let machines = [first.clone(), machine.name.clone()];
                        self.problems.push(Problem::DuplicateAddress { address, machines });
                    }
                }
                match self.by_mac.get_mut(&interface.mac) {
                    None => {
                        self.by_mac.insert(interface.mac, Claim::One(machine.clone()));
                    }
                    // Two interfaces of one Machine with one address: still that Machine's.
                    Some(Claim::One(first)) if first.name == machine.name => {}
                    Some(Claim::Several(names)) if names.contains(&machine.name) => {}
                    Some(Claim::Several(names)) => names.push(machine.name.clone()),
                    Some(claim @ Claim::One(_)) => {
                        if let Claim::One(first) = claim {
                            let names = vec![first.name.clone(), machine.name.clone()];
                            *claim = Claim::Several(names);
                        }
                    }
                }
            }
        }
        // Only a node asks with such an address, unless a Machine names it for an interface: then the interface takes
        // precedence.
        for machine in self.by_name.values() {
            self.by_mac.entry(machine.slot_mac).or_insert_with(|| Claim::One(machine.clone()));
        }
        let several = self.by_mac.iter().filter_map(|(mac, claim)| match claim {
            Claim::Several(machines) => Some(Problem::DuplicateMac { mac: *mac, machines: machines.clone() }),
            Claim::One(_) => None,
        });
        self.problems.extend(several);
    }

    /// Returns the owner of this address: an interface, or a node.
    pub(crate) fn by_mac(&self, mac: MacAddress) -> Found {
        match self.by_mac.get(&mac) {
            None => Found::Unknown,
            Some(Claim::One(machine)) => Found::One(machine.clone()),
            Some(Claim::Several(names)) => Found::Several(names.clone()),
        }
    }

    /// The interface whose fixed address this is; the first Machine's by name where several have it.
    pub(crate) fn by_address(&self, address: Ipv4Addr) -> Option<MacAddress> {
        self.by_address.get(&address).copied()
    }

    /// The Machine of this name.
    pub fn by_name(&self, name: &MachineName) -> Option<&Arc<KnownMachine>> {
        self.by_name.get(name)
    }

    /// Returns the Machine of this name, if pxed netboots it.
    pub fn netbooted(&self, name: &MachineName) -> Option<&Arc<KnownMachine>> {
        self.by_name(name).filter(|known| known.is_netbooted())
    }

    /// Returns true if a Machine of this name belongs to another site.
    pub(crate) fn is_elsewhere(&self, name: &MachineName) -> bool {
        self.elsewhere.contains(name.as_str())
    }

    /// Every known Machine, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<KnownMachine>> {
        self.by_name.values()
    }

    /// Returns the number of Machines.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns true if there are no Machines.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the problems of the set, sorted.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The addresses of this Machine that others claim too, each with the others.
    pub(crate) fn contested(&self, name: &MachineName) -> Vec<(MacAddress, Vec<MachineName>)> {
        let problems = self.contested.get(name).into_iter().flatten();
        let duplicates = problems.filter_map(|index| match self.problems.get(*index) {
            Some(Problem::DuplicateMac { mac, machines }) => {
                Some((*mac, machines.iter().filter(|other| *other != name).cloned().collect()))
            }
            _ => None,
        });
        duplicates.collect()
    }
}

impl KnownMachine {
    fn new(name: MachineName, machine: Arc<Machine>) -> Self {
        let uid = match machine.metadata.uid.as_deref() {
            None | Some("") => format!("directory:{name}"),
            Some(uid) => uid.to_owned(),
        };
        let pxe = machine.spec.pxe.as_ref().filter(|_| machine.spec.provider == PROVIDER_PXE);
        let interfaces = pxe.map_or_else(Vec::new, |pxe| {
            let interfaces = pxe.interfaces.iter().enumerate().map(|(index, interface)| Interface {
                mac: interface.mac_address,
                addresses: interface.addresses.iter().filter_map(ipv4_net).collect(),
                only_ipv6: !interface.addresses.is_empty()
                    && interface.addresses.iter().all(|address| ipv4_net(address).is_none()),
                gateway: interface.gateway.as_ref().and_then(ipv4),
                nameservers: interface.nameservers.iter().filter_map(ipv4).collect(),
                netboot: pxe.netboots(index),
            });
            interfaces.collect()
        });
        let slot_mac = MacAddress::of_slot(&name);
        Self { name, uid, machine, interfaces, slot_mac }
    }

    /// Returns true if pxed netboots the machine and switches it on without an operation. Otherwise a user or another program provisions it.
    /// pxed then enrolls its agent, and carries out power operations if it has a BMC.
    pub(crate) fn is_netbooted(&self) -> bool {
        self.machine.spec.provider == PROVIDER_PXE
    }

    /// The interface with this address.
    pub fn interface(&self, mac: MacAddress) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.mac == mac)
    }
}

fn ipv4(address: &IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    }
}

fn ipv4_net(net: &IpNet) -> Option<Ipv4Net> {
    match net {
        IpNet::V4(net) => Some(*net),
        IpNet::V6(_) => None,
    }
}

/// The current snapshot; clones share it.
#[derive(Debug, Clone)]
pub struct Machines {
    current: Arc<ArcSwap<Snapshot>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Default for Machines {
    fn default() -> Self {
        Self { current: Arc::default(), changes: Arc::new(watch::Sender::new(0)) }
    }
}

impl Machines {
    /// Returns the current snapshot. Never waits. A held snapshot is immutable.
    pub fn load(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Makes `snapshot` the current one.
    pub fn store(&self, snapshot: Snapshot) {
        self.current.store(Arc::new(snapshot));
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Returns true if a set was loaded. Before that, a machine that is not in the set may be a Machine.
    pub(crate) fn are_known(&self) -> bool {
        *self.changes.borrow() > 0
    }

    /// Tells of every new snapshot.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A Machine with these addresses.
    pub(crate) fn machine(name: &str, macs: &[&str]) -> Machine {
        let interfaces: Vec<_> = macs.iter().map(|mac| serde_json::json!({ "macAddress": mac })).collect();
        serde_json::from_value(serde_json::json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": name },
            "spec": { "provider": "pxe", "pxe": { "interfaces": interfaces } },
        }))
        .unwrap()
    }

    fn site() -> SiteName {
        SiteName::default()
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.iter().map(|m| m.name.as_str()).collect()
    }

    const A: &str = "52:54:00:00:00:0a";
    const B: &str = "52:54:00:00:00:0b";

    #[test]
    fn a_machine_is_found_by_each_of_its_addresses_and_by_its_name() {
        let snapshot = Snapshot::build(&site(), [machine("one", &[A, "52-54-00-00-00-0B"])]);
        for mac in [A, B] {
            let Found::One(found) = snapshot.by_mac(mac.parse().unwrap()) else { panic!("{mac} is known") };
            assert_eq!(found.name.as_str(), "one");
        }
        let found = snapshot.by_name(&"one".parse().unwrap()).unwrap();
        assert_eq!(found.uid, "directory:one");
        assert_eq!(found.interfaces.iter().map(|i| i.netboot).collect::<Vec<_>>(), [true, false]);
        assert_eq!(snapshot.by_mac("52:54:00:00:00:0c".parse().unwrap()), Found::Unknown);
    }

    #[test]
    fn a3_only_machines_of_the_own_site_are_known() {
        let mut elsewhere = machine("elsewhere", &[A]);
        elsewhere.spec.site = "other".parse().unwrap();
        let snapshot = Snapshot::build(&site(), [elsewhere, machine("ours", &[A])]);
        assert_eq!(names(&snapshot), ["ours"]);
        assert!(snapshot.is_elsewhere(&"elsewhere".parse().unwrap()));
        assert!(snapshot.problems().is_empty());
    }

    #[test]
    fn a3_machines_of_every_provider_are_known_and_only_pxe_is_booted() {
        for provider in ["manual", "azure"] {
            let mut other = machine("by-hand", &[A]);
            other.spec.provider = provider.to_owned();
            let snapshot = Snapshot::build(&site(), [other, machine("ours", &[A])]);
            assert_eq!(names(&snapshot), ["by-hand", "ours"]);
            let name = "by-hand".parse().unwrap();
            assert!(snapshot.netbooted(&name).is_none() && !snapshot.is_elsewhere(&name), "{provider}");
            let Found::One(found) = snapshot.by_mac(A.parse().unwrap()) else { panic!("{provider}") };
            assert_eq!(
                found.name.as_str(),
                "ours",
                "addresses of a Machine that pxed does not boot are not claimed"
            );
        }
    }

    #[test]
    fn address_of_two_machines_belongs_to_neither_and_both_are_named() {
        let machines = [machine("two", &[A, B]), machine("one", &[A]), machine("three", &[A])];
        let snapshot = Snapshot::build(&site(), machines);
        let Found::Several(claimants) = snapshot.by_mac(A.parse().unwrap()) else { panic!("A is contested") };
        assert_eq!(claimants.iter().map(MachineName::as_str).collect::<Vec<_>>(), ["one", "three", "two"]);
        assert!(matches!(snapshot.by_mac(B.parse().unwrap()), Found::One(_)));
        let contested = snapshot.contested(&"one".parse().unwrap());
        assert_eq!(contested, [(A.parse().unwrap(), vec!["three".parse().unwrap(), "two".parse().unwrap()])]);
        assert_eq!(snapshot.problems().len(), 1);
        assert_eq!(
            snapshot.problems()[0].to_string(),
            format!("{A} is claimed by one and three and two: none of them is served")
        );
    }

    #[test]
    fn a_nodes_own_address_is_its_machines_unless_a_machine_names_it() {
        let slot = |name: &str| MacAddress::of_slot(&name.parse().unwrap());
        let taker = slot("one").to_string();
        let snapshot = Snapshot::build(&site(), [machine("one", &[A]), machine("two", &[B, &taker])]);
        let owner = |mac| match snapshot.by_mac(mac) {
            Found::One(known) => known.name.to_string(),
            other => panic!("{mac}: {other:?}"),
        };
        assert_eq!(owner(slot("two")), "two");
        assert_eq!(owner(slot("one")), "two", "what a Machine names counts");
        assert_eq!(snapshot.problems(), []);
        let Found::One(two) = snapshot.by_mac(slot("two")) else { panic!("it is known") };
        assert_eq!(two.interface(slot("two")), None, "it has no fixed address, and does not netboot");
    }

    #[test]
    fn fixed_address_of_two_machines_is_reported() {
        let with_address = |name: &str, mac: &str| {
            let mut machine = serde_json::to_value(machine(name, &[mac])).unwrap();
            machine["spec"]["pxe"]["interfaces"][0]["addresses"] = serde_json::json!(["10.7.0.44/24"]);
            serde_json::from_value::<Machine>(machine).unwrap()
        };
        let snapshot = Snapshot::build(&site(), [with_address("two", B), with_address("one", A)]);
        let problems: Vec<_> = snapshot.problems().iter().map(ToString::to_string).collect();
        assert_eq!(problems, ["10.7.0.44 is a fixed address of one and two: only one at a time can have it"]);
        assert_eq!(snapshot.by_address([10, 7, 0, 44].into()), Some(A.parse().unwrap()));
        assert_eq!(snapshot.contested(&"one".parse().unwrap()), []);
    }

    #[test]
    fn two_machines_of_one_name_are_both_unknown_and_leave_their_addresses() {
        let machines = [machine("one", &[A]), machine("one", &[B]), machine("two", &[B])];
        let snapshot = Snapshot::build(&site(), machines);
        assert_eq!(names(&snapshot), ["two"]);
        assert!(matches!(snapshot.by_mac(B.parse().unwrap()), Found::One(_)));
        assert_eq!(snapshot.problems(), [Problem::DuplicateName { name: "one".parse().unwrap() }]);
    }

    #[test]
    fn name_that_is_not_a_host_name_is_reported() {
        let snapshot = Snapshot::build(&site(), [machine("rack1.node", &[A])]);
        assert!(snapshot.is_empty());
        assert_eq!(snapshot.problems(), [Problem::BadName { name: "rack1.node".to_owned() }]);
    }

    #[test]
    fn a_held_snapshot_outlives_the_next_one() {
        let machines = Machines::default();
        machines.store(Snapshot::build(&site(), [machine("one", &[A])]));
        let held = machines.load();
        machines.store(Snapshot::default());
        assert_eq!((held.len(), machines.load().len()), (1, 0));
    }
}
