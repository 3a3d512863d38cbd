//! Unknown machines that asked to boot while discovery is on: bounded, remembered over restarts, shown by `bedplate`.
//!
//! Recording is memory only; the store follows behind, and at most once a minute for a machine that merely asks again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bedplate_api::id::MacAddress;
use bedplate_dhcp::client::Query;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::store::{Change, Store, StoreError, Table};

/// How old the store's `lastSeen` may get.
const REFRESH: SignedDuration = SignedDuration::from_secs(60);

/// One unknown machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredMachine {
    /// Hardware address.
    pub mac_address: MacAddress,
    /// Machine identifier, if it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    /// Architectures that it said it has (DHCP option 93).
    pub architectures: Vec<u16>,
    /// What it calls itself (DHCP option 60).
    pub vendor_class: String,
    /// When it asked first.
    pub first_seen: Timestamp,
    /// When it asked last.
    pub last_seen: Timestamp,
}

/// Who was discovered; clones share it.
#[derive(Debug, Clone)]
pub struct Discovered {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    machines: Mutex<BTreeMap<MacAddress, DiscoveredMachine>>,
    limit: usize,
    store: Store,
}

impl Discovered {
    /// What the store remembers; at most `limit` are kept.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(store: Store, limit: usize) -> Result<Self, StoreError> {
        let entries = store.scan(Table::Discovered)?;
        let machines = entries.iter().filter_map(|(_, value)| serde_json::from_slice(value).ok());
        let machines = machines.map(|machine: DiscoveredMachine| (machine.mac_address, machine)).collect();
        Ok(Self { inner: Arc::new(Inner { machines: Mutex::new(machines), limit, store }) })
    }

    /// An unknown machine asks.
    pub fn record(&self, query: &Query, now: Timestamp) {
        let mut changes = Vec::new();
        {
            let mut machines = self.lock();
            let old = machines.get(&query.mac).cloned();
            let machine = DiscoveredMachine {
                mac_address: query.mac,
                uuid: query.uuid.or(old.as_ref().and_then(|old| old.uuid)),
                architectures: query.architectures.iter().copied().take(8).collect(),
                vendor_class: query.vendor_class.chars().filter(|c| !c.is_control()).take(64).collect(),
                first_seen: old.as_ref().map_or(now, |old| old.first_seen),
                last_seen: now,
            };
            let fresh = old.is_some_and(|old| now.duration_since(old.last_seen) < REFRESH);
            if fresh {
                // The time on disk is kept too, so that a machine that asks all the time is written once a minute.
                return;
            }
            machines.insert(query.mac, machine.clone());
            if machines.len() > self.inner.limit {
                changes.extend(forget_oldest(&mut machines));
            }
            if let Ok(value) = serde_json::to_vec(&machine) {
                changes.push(Change::Put(Table::Discovered, key(query.mac), value));
            }
        }
        if self.inner.store.write_behind(changes).is_err() {
            tracing::debug!(mac = %query.mac, "discovered machine not kept: the store is closed");
        }
    }

    /// Everyone, in the order of the addresses.
    pub fn list(&self) -> Vec<DiscoveredMachine> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MacAddress, DiscoveredMachine>> {
        self.inner.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one: whoever was silent longest goes. Linear, and only when the limit is passed.
fn forget_oldest(machines: &mut BTreeMap<MacAddress, DiscoveredMachine>) -> Option<Change> {
    let oldest = machines.values().min_by_key(|machine| machine.last_seen)?.mac_address;
    machines.remove(&oldest);
    Some(Change::Delete(Table::Discovered, key(oldest)))
}

fn key(mac: MacAddress) -> Vec<u8> {
    mac.octets().to_vec()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bedplate_dhcp::client::{Loader, Message};

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
}
