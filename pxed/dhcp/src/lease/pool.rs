//! Order in which a subnet's pool addresses are assigned: unused ones first, then the one that has been free for
//! longest. The reserve has its own queue, so that a client without access to it does not scan it.
//!
//! Holds no leases: the table knows whether an address is free. Called by the lease table only.
//!
//! Pure: no clock, no randomness. Memory grows with the addresses that were used, not with the ranges' size.

use std::collections::{HashSet, VecDeque};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::settings::{AddressRange, Subnet};

#[derive(Debug)]
pub(super) struct Pool {
    network: Ipv4Net,
    open: Line,
    reserve: Line,
}

/// Addresses that are given one after another.
#[derive(Debug, Default)]
struct Line {
    ranges: Vec<AddressRange>,
    /// Index into `ranges` and offset within it of the first address that was never tried.
    fresh: (usize, u64),
    /// Addresses that may be free again, the one for longest in front, each at most once.
    queue: VecDeque<Ipv4Addr>,
    queued: HashSet<Ipv4Addr>,
}

impl Pool {
    pub(super) fn new(subnet: &Subnet) -> Self {
        let (mut open, mut reserve) = (Line::default(), Line::default());
        let mut left = subnet.reserve;
        for range in subnet.ranges.iter().rev() {
            let (rest, kept) = split(*range, left);
            left = left.saturating_sub(range.size());
            open.ranges.extend(rest);
            reserve.ranges.extend(kept);
        }
        open.ranges.reverse();
        reserve.ranges.reverse();
        Self { network: subnet.network, open, reserve }
    }

    pub(super) const fn network(&self) -> Ipv4Net {
        self.network
    }

    pub(super) fn size(&self) -> u64 {
        self.open.size() + self.reserve.size()
    }

    pub(super) fn contains(&self, address: Ipv4Addr) -> bool {
        self.open.contains(address) || self.reserve.contains(address)
    }

    pub(super) fn give_back(&mut self, address: Ipv4Addr) {
        if self.reserve.contains(address) {
            self.reserve.give_back(address);
        } else {
            self.open.give_back(address);
        }
    }

    /// Takes the next address. `reserve`: true if the client may get one of the reserve. `is_free`: not in use at
    /// present. `is_used`: the table knows it, so it is or will be in the queue. `allowed`: may be assigned to the
    /// client that asks.
    pub(super) fn take(
        &mut self,
        reserve: bool,
        is_free: impl Fn(Ipv4Addr) -> bool,
        is_used: impl Fn(Ipv4Addr) -> bool,
        allowed: impl Fn(Ipv4Addr) -> bool,
    ) -> Option<Ipv4Addr> {
        let open = self.open.take(&is_free, &is_used, &allowed);
        if open.is_some() || !reserve {
            return open;
        }
        self.reserve.take(&is_free, &is_used, &allowed)
    }
}

/// The range without its last `count` addresses, and these.
fn split(range: AddressRange, count: u64) -> (Option<AddressRange>, Option<AddressRange>) {
    if count >= range.size() {
        return (None, Some(range));
    }
    let last = u32::try_from(u64::from(u32::from(range.last())) - count).map_or(range.last(), Ipv4Addr::from);
    let next = u32::from(last).checked_add(1).map(Ipv4Addr::from);
    (AddressRange::new(range.first(), last), next.and_then(|next| AddressRange::new(next, range.last())))
}

impl Line {
    fn size(&self) -> u64 {
        self.ranges.iter().map(|range| range.size()).sum()
    }

    fn contains(&self, address: Ipv4Addr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    fn give_back(&mut self, address: Ipv4Addr) {
        if self.queued.insert(address) {
            self.queue.push_back(address);
        }
    }

    fn take(
        &mut self,
        is_free: impl Fn(Ipv4Addr) -> bool,
        is_used: impl Fn(Ipv4Addr) -> bool,
        allowed: impl Fn(Ipv4Addr) -> bool,
    ) -> Option<Ipv4Addr> {
        while let Some(address) = self.next_fresh() {
            if is_used(address) {
                continue;
            }
            if allowed(address) {
                return Some(address);
            }
            self.give_back(address);
        }
        for _ in 0..self.queue.len() {
            let address = self.queue.pop_front()?;
            self.queued.remove(&address);
            if !is_free(address) {
                continue;
            }
            if allowed(address) {
                return Some(address);
            }
            self.give_back(address);
        }
        None
    }

    fn next_fresh(&mut self) -> Option<Ipv4Addr> {
        loop {
            let (index, offset) = self.fresh;
            let range = self.ranges.get(index)?;
            if offset < range.size() {
                self.fresh = (index, offset + 1);
                let address = u64::from(u32::from(range.first())) + offset;
                return u32::try_from(address).ok().map(Ipv4Addr::from);
            }
            self.fresh = (index + 1, 0);
        }
    }
}
