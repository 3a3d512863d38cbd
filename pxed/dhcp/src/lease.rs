//! Lease table: addresses with their holders and end times. In memory; `store` persists what must survive the
//! process.
//!
//! Pure: time comes in as seconds since 1970 and addresses are drawn in a fixed order. Called by `respond` under the
//! server's lock.
//!
//! ```text
//!             offer              bind                 until passed / release
//!   (none) ----------> Offered ---------> Bound ---------------------------------> Free
//!      Offered --- until passed, or withdrawn ---> Free          Free --- offer to the same or another ---> Offered
//!      Offered | Bound --- decline ---> Declined --- until passed ---> Free
//! ```
//!
//! `Free` remembers its last holder, who gets the same address again unless another client needed it.
//!
//! **Identity of a client.** A known Machine is identified by its hardware address: firmware, iPXE, initramfs and
//! host each send another client identifier, yet they are one machine and must keep one address. Any other client is
//! identified by its client identifier if it sends one, otherwise by its hardware address (RFC 2131, 4.2).

mod pool;

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;

use bedplate_api::id::{MacAddress, MachineName};
use ipnet::Ipv4Net;

use crate::settings::Subnet;
use pool::Pool;

/// Seconds for which an offered address is reserved for its client.
const OFFER_SECONDS: u64 = 60;
/// Seconds for which a pool address that a client found in use is not assigned.
pub(crate) const DECLINED_SECONDS: u64 = 3600;
/// Seconds for which a declined fixed address is not assigned: short, since the Machine has no other address and one
/// packet is weak evidence.
pub(crate) const DECLINED_FIXED_SECONDS: u64 = 120;

/// Seconds since 1970-01-01T00:00:00Z.
pub type Seconds = u64;

/// Identity of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClientKey {
    /// By its hardware address.
    Mac(MacAddress),
    /// By option 61.
    Id(Box<[u8]>),
}

/// A client in a subnet: it may hold one lease in each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The subnet.
    pub network: Ipv4Net,
    /// The client.
    pub key: ClientKey,
}

/// State of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// Kept for a client that was offered it.
    Offered,
    /// Leased.
    Bound,
    /// Found in use by another host.
    Declined,
    /// Not in use; the last holder is remembered.
    Free,
}

impl LeaseState {
    /// Word for users.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Bound => "bound",
            Self::Declined => "declined",
            Self::Free => "free",
        }
    }
}

/// One address and its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// Present or last holder.
    pub holder: Holder,
    /// The hardware address that it was last given to.
    pub mac: MacAddress,
    /// The known Machine, if it is one.
    pub machine: Option<MachineName>,
    /// State of the address.
    pub state: LeaseState,
    /// Time at which the state began.
    pub since: Seconds,
    /// Time at which the state ends.
    pub until: Seconds,
}

/// Change that must be written to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Write this lease in place of what is there for its address.
    Put(Lease),
    /// Forget the address.
    Remove(Ipv4Addr),
}

/// Usage of a subnet's pool, in addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUsage {
    /// The subnet.
    pub network: Ipv4Net,
    /// All addresses of its ranges.
    pub size: u64,
    /// Leased.
    pub bound: u64,
    /// Offered just now.
    pub offered: u64,
    /// Quarantined.
    pub declined: u64,
}

/// The table.
#[derive(Debug, Default)]
pub struct Table {
    leases: HashMap<Ipv4Addr, Lease>,
    /// The address a client would be given again. Its lease always names that client.
    addresses: HashMap<Holder, Ipv4Addr>,
    timers: BTreeSet<(Seconds, Ipv4Addr)>,
    pools: Vec<Pool>,
}

impl Table {
    /// Applies the pools of these subnets. Leases are not changed.
    pub fn configure(&mut self, subnets: &[Subnet]) {
        self.pools = subnets.iter().map(Pool::new).collect();
        let mut free: Vec<(Seconds, Ipv4Addr)> = self
            .leases
            .values()
            .filter(|lease| lease.state == LeaseState::Free)
            .map(|lease| (lease.since, lease.address))
            .collect();
        free.sort_unstable();
        for (_, address) in free {
            self.give_back(address);
        }
    }

    /// Takes a lease from disk. Call [`Table::configure`] afterwards and [`Table::expire`] before the first question.
    pub fn restore(&mut self, lease: Lease) {
        let (address, until) = (lease.address, lease.until);
        self.forget(address);
        if lease.state == LeaseState::Bound || !self.addresses.contains_key(&lease.holder) {
            self.addresses.insert(lease.holder.clone(), address);
        }
        if lease.state != LeaseState::Free {
            self.timers.insert((until, address));
        }
        self.leases.insert(address, lease);
    }

    /// Ends what has passed its time.
    pub fn expire(&mut self, now: Seconds) {
        while let Some(&(until, address)) = self.timers.first() {
            if until > now {
                break;
            }
            self.free(address, until);
        }
    }

    /// Returns the lease of an address.
    pub fn get(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.leases.get(&address)
    }

    /// The lease that this client has, was offered, or had last.
    pub fn of(&self, holder: &Holder) -> Option<&Lease> {
        self.addresses.get(holder).and_then(|address| self.leases.get(address))
    }

    /// Returns true if the client may get the address: it is neither quarantined nor another client's.
    pub(crate) fn is_open_to(&self, address: Ipv4Addr, holder: &Holder) -> bool {
        match self.leases.get(&address) {
            None => true,
            Some(lease) => match lease.state {
                LeaseState::Free => true,
                LeaseState::Offered | LeaseState::Bound => lease.holder == *holder,
                LeaseState::Declined => false,
            },
        }
    }

    /// Takes the address of this subnet's pool that has been free for longest; from the reserve only if there is no
    /// other. `allowed` excludes addresses that this client must not get.
    pub fn allocate(&mut self, network: Ipv4Net, allowed: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        self.take(network, true, allowed)
    }

    /// Takes an address outside the reserve ([`Subnet::reserve`]) without scanning the reserve: it may be large, and
    /// refused clients ask again and again.
    pub(crate) fn allocate_unreserved(
        &mut self,
        network: Ipv4Net,
        allowed: impl Fn(Ipv4Addr) -> bool,
    ) -> Option<Ipv4Addr> {
        self.take(network, false, allowed)
    }

    fn take(
        &mut self,
        network: Ipv4Net,
        reserve: bool,
        allowed: impl Fn(Ipv4Addr) -> bool,
    ) -> Option<Ipv4Addr> {
        let leases = &self.leases;
        let pool = self.pools.iter_mut().find(|pool| pool.network() == network)?;
        pool.take(
            reserve,
            |address| leases.get(&address).is_none_or(|lease| lease.state == LeaseState::Free),
            |address| leases.contains_key(&address),
            allowed,
        )
    }

    /// Reserves an address for a client that gets an offer. An existing lease of the client on the address is not changed.
    /// The caller has checked [`Table::is_open_to`].
    pub fn offer(&mut self, address: Ipv4Addr, holder: Holder, mac: MacAddress, now: Seconds) {
        let bound = |lease: &Lease| lease.state == LeaseState::Bound && lease.holder == holder;
        if self.leases.get(&address).is_some_and(bound) {
            return;
        }
        let previous = self.of(&holder).map(|lease| (lease.address, lease.state));
        let keeps_lease = match previous {
            Some((old, LeaseState::Bound)) => old != address,
            Some((old, LeaseState::Offered)) if old != address => {
                self.free(old, now);
                false
            }
            Some((_, LeaseState::Offered | LeaseState::Declined | LeaseState::Free)) | None => false,
        };
        let until = now + OFFER_SECONDS;
        let lease =
            Lease { address, holder, mac, machine: None, state: LeaseState::Offered, since: now, until };
        self.put(lease, !keeps_lease);
    }

    /// Leases an address and frees the client's earlier one. Returns the changes to write. The caller has checked
    /// [`Table::is_open_to`].
    pub fn bind(
        &mut self,
        address: Ipv4Addr,
        holder: Holder,
        mac: MacAddress,
        machine: Option<MachineName>,
        now: Seconds,
        seconds: u32,
    ) -> Vec<Change> {
        let mut changes = Vec::with_capacity(1);
        let before = self.of(&holder).filter(|lease| lease.address != address);
        if let Some((old, state)) = before.map(|lease| (lease.address, lease.state)) {
            match state {
                LeaseState::Bound => {
                    self.free(old, now);
                    changes.push(Change::Remove(old));
                }
                LeaseState::Offered => self.free(old, now),
                LeaseState::Declined | LeaseState::Free => {}
            }
        }
        let since = match self.leases.get(&address) {
            Some(lease) if lease.state == LeaseState::Bound && lease.holder == holder => lease.since,
            Some(_) | None => now,
        };
        let until = now + u64::from(seconds);
        let lease = Lease { address, holder, mac, machine, state: LeaseState::Bound, since, until };
        changes.push(Change::Put(lease.clone()));
        self.put(lease, true);
        changes
    }

    /// The client took another server's offer: ours is open again.
    pub fn withdraw(&mut self, holder: &Holder, now: Seconds) {
        if let Some(lease) = self.of(holder)
            && lease.state == LeaseState::Offered
        {
            self.free(lease.address, now);
        }
    }

    /// Releases the lease of a client. `None` if it has no lease on this address.
    pub fn release(&mut self, address: Ipv4Addr, holder: &Holder, now: Seconds) -> Option<Vec<Change>> {
        let lease = self.leases.get(&address)?;
        let held = matches!(lease.state, LeaseState::Bound | LeaseState::Offered) && lease.holder == *holder;
        if !held {
            return None;
        }
        self.free(address, now);
        let lease = self.leases.get(&address)?;
        Some(vec![Change::Put(lease.clone())])
    }

    /// The client found the address in use. `None` when it was not its.
    pub(crate) fn decline(
        &mut self,
        address: Ipv4Addr,
        holder: &Holder,
        now: Seconds,
        seconds: u64,
    ) -> Option<Vec<Change>> {
        let lease = self.leases.get(&address)?;
        let held = matches!(lease.state, LeaseState::Bound | LeaseState::Offered) && lease.holder == *holder;
        if !held {
            return None;
        }
        let lease = Lease { state: LeaseState::Declined, since: now, until: now + seconds, ..lease.clone() };
        self.put(lease.clone(), false);
        Some(vec![Change::Put(lease)])
    }

    /// Every lease, in no order.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    /// Returns the usage of the pools.
    pub fn usage(&self) -> Vec<PoolUsage> {
        let mut usage: Vec<PoolUsage> = self
            .pools
            .iter()
            .map(|pool| PoolUsage {
                network: pool.network(),
                size: pool.size(),
                bound: 0,
                offered: 0,
                declined: 0,
            })
            .collect();
        for lease in self.leases.values() {
            let pool = self.pools.iter().position(|pool| pool.contains(lease.address));
            let Some(usage) = pool.and_then(|index| usage.get_mut(index)) else { continue };
            match lease.state {
                LeaseState::Bound => usage.bound += 1,
                LeaseState::Offered => usage.offered += 1,
                LeaseState::Declined => usage.declined += 1,
                LeaseState::Free => {}
            }
        }
        usage
    }

    /// Writes a lease in place of what its address was. `remember`: it becomes the client's address; otherwise it is that no longer.
    fn put(&mut self, lease: Lease, remember: bool) {
        self.forget(lease.address);
        self.timers.insert((lease.until, lease.address));
        if remember {
            self.addresses.insert(lease.holder.clone(), lease.address);
        }
        self.leases.insert(lease.address, lease);
    }

    fn forget(&mut self, address: Ipv4Addr) {
        let Some(old) = self.leases.remove(&address) else { return };
        self.timers.remove(&(old.until, address));
        if self.addresses.get(&old.holder) == Some(&address) {
            self.addresses.remove(&old.holder);
        }
    }

    fn free(&mut self, address: Ipv4Addr, now: Seconds) {
        let Some(lease) = self.leases.get_mut(&address) else { return };
        self.timers.remove(&(lease.until, address));
        lease.state = LeaseState::Free;
        lease.since = now;
        lease.until = now;
        self.give_back(address);
    }

    fn give_back(&mut self, address: Ipv4Addr) {
        if let Some(pool) = self.pools.iter_mut().find(|pool| pool.contains(address)) {
            pool.give_back(address);
        }
    }
}

#[cfg(test)]
mod tests;
