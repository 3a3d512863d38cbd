//! Unknown machines that asked to boot while discovery is on: bounded, remembered over restarts, shown by `bedplate`.
//!
//! Recording is memory only; the store follows behind, at most once a minute for one machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_api::id::MacAddress;
use bedplate_dhcp::client::{Loader, Query};
use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::store::{Change, Store, StoreError, Table};

/// Maximum age of the stored record of a machine that asks again.
const MAX_RECORD_AGE: SignedDuration = SignedDuration::from_secs(60);

/// One unknown machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredMachine {
    /// Hardware address.
    pub mac_address: MacAddress,
    /// Machine identifier, if it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    /// Reported architectures (DHCP option 93).
    pub architectures: Vec<u16>,
    /// Name that the client states for itself (DHCP option 60).
    pub vendor_class: String,
    /// Time at which it asked first.
    pub first_seen: Timestamp,
    /// Time at which it asked last.
    pub last_seen: Timestamp,
}

/// Discovered machines; clones share them.
#[derive(Debug, Clone)]
pub struct Discovered {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    machines: Lock<Machines>,
    limit: usize,
    store: Store,
}

/// Index for the packet path: a flood of unknown machines must not cost a scan of all of them per packet.
#[derive(Debug, Default)]
struct Machines {
    kept: BTreeMap<MacAddress, Kept>,
    /// Time at which each was seen last.
    seen: BTreeSet<(Timestamp, MacAddress)>,
}

impl Machines {
    fn insert(&mut self, kept: Kept) {
        let (mac, seen) = (kept.machine.mac_address, kept.machine.last_seen);
        if let Some(old) = self.kept.insert(mac, kept) {
            self.seen.remove(&(old.machine.last_seen, mac));
        }
        self.seen.insert((seen, mac));
    }

    /// Forgets the machine that was silent longest.
    fn forget_oldest(&mut self) -> Option<Change> {
        let (_, mac) = self.seen.pop_first()?;
        self.kept.remove(&mac);
        Some(Change::Delete(Table::Discovered, key(mac)))
    }
}

#[derive(Debug, Clone)]
struct Kept {
    machine: DiscoveredMachine,
    /// Time at which it was given to the store; none if the store had no room for it.
    written: Option<Timestamp>,
}

impl Discovered {
    /// Loads the discovered machines of the store; at most `limit` are kept.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(store: Store, limit: usize) -> Result<Self, StoreError> {
        let entries = store.scan(Table::Discovered)?;
        let mut machines = Machines::default();
        for (_, value) in &entries {
            let Ok(machine) = serde_json::from_slice::<DiscoveredMachine>(value) else { continue };
            machines.insert(Kept { written: Some(machine.last_seen), machine });
        }
        Ok(Self { inner: Arc::new(Inner { machines: Lock::new(machines), limit, store }) })
    }

    /// An unknown machine asks. What this packet does not say of it, such as its operating system's of its
    /// architecture, an earlier one said.
    pub fn record(&self, query: &Query, now: Timestamp) {
        let mut changes = Vec::new();
        {
            let mut machines = self.inner.machines.lock();
            let old = machines.kept.get(&query.mac).cloned();
            let before = old.as_ref().map(|old| &old.machine);
            let machine = merge(query, before, now);
            let written = old.and_then(|old| old.written).filter(|written| is_fresh(*written, now));
            machines.insert(Kept { machine: machine.clone(), written: written.or(Some(now)) });
            if written.is_some() {
                return;
            }
            if machines.kept.len() > self.inner.limit {
                changes.extend(machines.forget_oldest());
            }
            if let Ok(value) = serde_json::to_vec(&machine) {
                changes.push(Change::Put(Table::Discovered, key(query.mac), value));
            }
        }
        match self.inner.store.write_behind(changes) {
            Ok(true) => {}
            Ok(false) => {
                if let Some(kept) = self.inner.machines.lock().kept.get_mut(&query.mac) {
                    kept.written = None;
                }
            }
            Err(_) => tracing::debug!(mac = %query.mac, "discovered machine not stored, the store is closed"),
        }
    }

    /// Everyone, in the order of the addresses.
    pub fn list(&self) -> Vec<DiscoveredMachine> {
        self.inner.machines.lock().kept.values().map(|kept| kept.machine.clone()).collect()
    }
}

/// Returns true if the stored record is recent enough. A record of the future was written before the clock was set
/// back.
fn is_fresh(written: Timestamp, now: Timestamp) -> bool {
    written <= now && now.duration_since(written) < MAX_RECORD_AGE
}

/// Merges a packet with the previous record; values of the packet take precedence.
fn merge(query: &Query, before: Option<&DiscoveredMachine>, now: Timestamp) -> DiscoveredMachine {
    let mut architectures: Vec<u16> = query.architectures.iter().copied().take(8).collect();
    let mut vendor_class: String = query.vendor_class.chars().filter(|c| !c.is_control()).take(64).collect();
    if query.loader == Loader::None
        && let Some(before) = before
    {
        architectures.clone_from(&before.architectures);
        vendor_class.clone_from(&before.vendor_class);
    }
    DiscoveredMachine {
        mac_address: query.mac,
        uuid: query.uuid.or(before.and_then(|before| before.uuid)),
        architectures,
        vendor_class,
        first_seen: before.map_or(now, |before| before.first_seen),
        last_seen: now,
    }
}

fn key(mac: MacAddress) -> Vec<u8> {
    mac.octets().to_vec()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bedplate_dhcp::client::Message;

    pub(crate) fn query(last: u8) -> Query {
        Query {
            mac: MacAddress::new([0x52, 0x54, 0, 0, 0, last]),
            transaction: 1,
            message: Message::Discover,
            loader: Loader::Pxe,
            architectures: vec![7],
            uuid: None,
            vendor_class: "PXEClient\u{1b}".to_owned(),
            host_name: None,
            subnet: "10.7.0.0/24".parse().unwrap(),
            server: "10.7.0.1".parse().unwrap(),
            relay: None,
            proxy: false,
        }
    }

    #[tokio::test]
    async fn dhcp_of_a_discovered_machines_system_updates_only_the_time() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
        let discovered = Discovered::load(store.clone(), 2).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        discovered.record(&query(1), at(0));
        for (second, on_disk) in [(20, 0), (80, 80), (100, 80)] {
            let system = Query {
                loader: Loader::None,
                architectures: vec![],
                vendor_class: "Linux".into(),
                ..query(1)
            };
            discovered.record(&system, at(second));
            let machine = discovered.list().remove(0);
            assert_eq!((machine.first_seen, machine.last_seen), (at(0), at(second)));
            assert_eq!((machine.architectures, machine.vendor_class.as_str()), (vec![7], "PXEClient"));
            store.put(Table::Boots, b"after", Vec::new()).await.unwrap();
            let again = Discovered::load(store.clone(), 2).unwrap().list().remove(0);
            assert_eq!(again.last_seen, at(on_disk), "written at most once a minute");
        }
    }

    #[tokio::test]
    async fn the_unknown_are_remembered_up_to_the_limit_over_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
        let discovered = Discovered::load(store.clone(), 2).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        discovered.record(&query(1), at(0));
        discovered.record(&query(2), at(10));
        discovered.record(&query(1), at(100));
        discovered.record(&query(3), at(101));
        let seen = |d: &Discovered| d.list().iter().map(|m| m.mac_address.octets()[5]).collect::<Vec<_>>();
        assert_eq!(seen(&discovered), [1, 3]);
        let first = discovered.list().remove(0);
        assert_eq!(
            (first.first_seen, first.last_seen, first.vendor_class.as_str()),
            (at(0), at(100), "PXEClient")
        );
        store.put(Table::Boots, b"after", Vec::new()).await.unwrap();
        assert_eq!(seen(&Discovered::load(store, 2).unwrap()), [1, 3]);
    }

    #[tokio::test]
    async fn a_clock_that_jumps_back_keeps_no_machine_off_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
        let discovered = Discovered::load(store.clone(), 2).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        for now in [1_000_000, 10] {
            discovered.record(&query(1), at(now));
            store.put(Table::Boots, b"after", Vec::new()).await.unwrap();
            let again = Discovered::load(store.clone(), 2).unwrap().list().remove(0);
            assert_eq!(again.last_seen, at(now));
        }
    }

    #[tokio::test]
    async fn a_machine_that_the_store_had_no_room_for_is_written_when_it_asks_again() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
        let discovered = Discovered::load(store.clone(), 2).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        crate::store::tests::while_full(&store, || discovered.record(&query(1), at(1)));
        store.put(Table::Boots, b"after", Vec::new()).await.unwrap();
        assert_eq!(Discovered::load(store.clone(), 2).unwrap().list(), []);
        discovered.record(&query(1), at(2));
        store.put(Table::Boots, b"after", Vec::new()).await.unwrap();
        assert_eq!(Discovered::load(store, 2).unwrap().list().len(), 1);
    }
}
