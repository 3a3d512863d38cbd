//! Boots in memory: by ID for HTTP and TFTP, by owner for DHCP. Sharded, each shard with a short lock. No lock is
//! held over I/O. Locks are nested only in the order owner, ID.
//!
//! `now` and IDs are arguments. The number of boots is limited per owner, for unknown owners, and in total.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, MutexGuard};

use bedplate_api::id::{BootId, MachineName};
use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};

use super::record::{LoaderKind, Opening, Owner, Record};
use super::timeline::{Starter, Timeline};

const SHARD_COUNT: usize = 16;

/// Maximum number of concurrent boots of one owner; see [`Track::drop_one`] for the order of removal.
pub(crate) const MAX_BOOTS_PER_OWNER: usize = 8;

/// Owners in one shard, 65,536 together; the one that was silent longest is dropped.
const MAX_OWNERS_PER_SHARD: usize = 4096;

/// Unknown machines in one shard, 1,024 together: forged addresses cannot push out what is known.
const MAX_UNKNOWN_PER_SHARD: usize = 64;

/// A boot, shared.
#[derive(Debug)]
pub struct Boot {
    record: Lock<Record>,
}

impl Boot {
    /// A copy of the record.
    pub fn record(&self) -> Record {
        self.record.lock().clone()
    }

    /// Changes the record.
    pub fn change<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        change(&mut self.record.lock())
    }
}

/// State of one owner.
#[derive(Debug)]
pub(crate) struct Track {
    /// The boots, oldest first.
    boots: VecDeque<Arc<Boot>>,
    /// Progress of the boot.
    pub timeline: Timeline,
}

impl Track {
    /// Drops the oldest boot that has not fetched its script, or the oldest if all have: a MAC address can be forged,
    /// and DISCOVERs alone must not end a boot in progress. The newest stays.
    fn drop_one(&mut self) -> Option<BootId> {
        let older = self.boots.len().saturating_sub(1);
        let idle = self.boots.iter().take(older).position(|boot| boot.change(|r| r.image.is_none()));
        self.boots.remove(idle.unwrap_or(0)).map(|boot| boot.change(|record| record.id))
    }
}

/// Result of an opening.
#[derive(Debug)]
pub struct Opened {
    /// The boot.
    pub boot: Arc<Boot>,
    /// The id.
    pub id: BootId,
    /// True if the boot is new; false if the transaction had opened it before.
    pub new: bool,
    /// Boots that had to go.
    pub dropped: Vec<BootId>,
}

/// The table.
#[derive(Debug)]
pub struct Table {
    hasher: RandomState,
    ids: [Lock<HashMap<BootId, Arc<Boot>>>; SHARD_COUNT],
    owners: [Lock<HashMap<Owner, Track>>; SHARD_COUNT],
}

impl Default for Table {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            ids: std::array::from_fn(|_| Lock::default()),
            owners: std::array::from_fn(|_| Lock::default()),
        }
    }
}

impl Table {
    #[allow(clippy::cast_possible_truncation, reason = "only the low bits choose a shard")]
    fn shard<'a, K: Hash, V>(&self, shards: &'a [Lock<V>; SHARD_COUNT], key: &K) -> MutexGuard<'a, V> {
        shards[self.hasher.hash_one(key) as usize % SHARD_COUNT].lock()
    }

    /// The boot of this id, if its URLs are good.
    pub fn get(&self, id: BootId, now: Timestamp) -> Option<Arc<Boot>> {
        let boot = self.shard(&self.ids, &id).get(&id).cloned()?;
        boot.change(|record| record.is_live(now)).then_some(boot)
    }

    /// The boot of this transaction, or a new one under `id`. `None`: too many unknown machines.
    pub fn open(
        &self,
        opening: &Opening,
        id: BootId,
        now: Timestamp,
        lifetime: SignedDuration,
    ) -> Option<Opened> {
        let mut owners = self.shard(&self.owners, &opening.owner);
        let mut dropped = make_room(&mut owners, &opening.owner)?;
        if let Some(boot) = owners.get(&opening.owner).and_then(|track| track.same(opening, now)) {
            let id = boot.change(|record| record.id);
            return Some(Opened { boot, id, new: false, dropped });
        }
        let expires = now.saturating_add(lifetime).unwrap_or(now);
        let record =
            Record { id, opening: opening.clone(), opened: now, expires, image: None, seed_taken: false };
        let boot = Arc::new(Boot { record: Lock::new(record) });
        let starter = match opening.loader {
            LoaderKind::Pxe | LoaderKind::Http => Starter::Firmware,
            LoaderKind::Ipxe => Starter::Ipxe,
        };
        let track = owners
            .entry(opening.owner.clone())
            .and_modify(|track| track.timeline.opened(id, starter, now))
            .or_insert_with(|| Track { boots: VecDeque::new(), timeline: Timeline::new(id, now) });
        track.boots.push_back(boot.clone());
        while track.boots.len() > MAX_BOOTS_PER_OWNER {
            dropped.extend(track.drop_one());
        }
        self.shard(&self.ids, &id).insert(id, boot.clone());
        drop(owners);
        for id in &dropped {
            self.shard(&self.ids, id).remove(id);
        }
        Some(Opened { boot, id, new: true, dropped })
    }

    /// Returns the boot that this transaction has already.
    pub fn find(&self, opening: &Opening, now: Timestamp) -> Option<BootId> {
        let owners = self.shard(&self.owners, &opening.owner);
        let boot = owners.get(&opening.owner)?.same(opening, now)?;
        Some(boot.change(|record| record.id))
    }

    /// Puts back what was kept.
    pub fn restore(&self, record: Record) {
        let id = record.id;
        let owner = record.opening.owner.clone();
        let opened = record.opened;
        let boot = Arc::new(Boot { record: Lock::new(record) });
        let mut owners = self.shard(&self.owners, &owner);
        let track = owners
            .entry(owner)
            .or_insert_with(|| Track { boots: VecDeque::new(), timeline: Timeline::new(id, opened) });
        track.boots.push_back(boot.clone());
        track.boots.make_contiguous().sort_by_key(|boot| boot.change(|record| record.opened));
        self.shard(&self.ids, &id).insert(id, boot);
    }

    /// Puts back a timeline that was kept.
    pub(crate) fn restore_timeline(&self, owner: Owner, timeline: Timeline) {
        let mut owners = self.shard(&self.owners, &owner);
        let track = owners
            .entry(owner)
            .or_insert_with(|| Track { boots: VecDeque::new(), timeline: timeline.clone() });
        track.timeline = timeline;
    }

    /// Looks at or changes an owner's timeline.
    pub fn timeline<T>(&self, owner: &Owner, change: impl FnOnce(&mut Timeline) -> T) -> Option<T> {
        self.shard(&self.owners, owner).get_mut(owner).map(|track| change(&mut track.timeline))
    }

    /// Drops what has expired, and owners of whom nothing is left that anybody asks for. Answers the ids.
    pub fn sweep(&self, now: Timestamp, forget_unknown_after: SignedDuration) -> Swept {
        let mut swept = Swept::default();
        for shard in &self.owners {
            let mut owners = shard.lock();
            for track in owners.values_mut() {
                track.boots.retain(|boot| {
                    let (id, live) = boot.change(|record| (record.id, record.is_live(now)));
                    if !live {
                        swept.boots.push(id);
                    }
                    live
                });
            }
            owners.retain(|owner, track| {
                let silent = now.duration_since(track.timeline.progress);
                let keep =
                    owner.machine().is_some() || !track.boots.is_empty() || silent < forget_unknown_after;
                if !keep {
                    swept.owners.push(owner.clone());
                }
                keep
            });
        }
        for id in &swept.boots {
            self.shard(&self.ids, id).remove(id);
        }
        swept
    }

    /// Returns the Machines whose newest attempt started within `recent` and has not fetched anything. Whether the attempt is shown depends on
    /// what is heard of the host meanwhile.
    pub fn unproven(&self, now: Timestamp, recent: SignedDuration) -> Vec<(MachineName, Timeline)> {
        let mut unproven = Vec::new();
        for shard in &self.owners {
            for (owner, track) in shard.lock().iter() {
                let Some(machine) = owner.machine() else { continue };
                let timeline = &track.timeline;
                if timeline.fetched().is_none() && now.duration_since(timeline.progress) < recent {
                    unproven.push((machine.clone(), timeline.clone()));
                }
            }
        }
        unproven
    }

    /// Returns owners whose boot has stalled and marks them as reported.
    pub fn stopped(&self, now: Timestamp) -> Vec<Owner> {
        let mut stopped = Vec::new();
        for shard in &self.owners {
            for (owner, track) in shard.lock().iter_mut() {
                if !track.timeline.stop_reported && track.timeline.stopped(now).is_some() {
                    track.timeline.stop_reported = true;
                    stopped.push(owner.clone());
                }
            }
        }
        stopped
    }

    /// Forgets an owner: its Machine is gone. Answers the ids of its boots.
    pub fn forget(&self, owner: &Owner) -> Vec<BootId> {
        let track = self.shard(&self.owners, owner).remove(owner);
        let ids: Vec<_> =
            track.into_iter().flat_map(|track| track.boots).map(|b| b.change(|r| r.id)).collect();
        for id in &ids {
            self.shard(&self.ids, id).remove(id);
        }
        ids
    }

    /// Every owner.
    pub fn owners(&self) -> Vec<Owner> {
        self.owners.iter().flat_map(|shard| shard.lock().keys().cloned().collect::<Vec<_>>()).collect()
    }

    /// Returns the number of boots.
    pub fn count(&self) -> usize {
        self.ids.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Every record.
    pub fn records(&self) -> Vec<Record> {
        self.ids
            .iter()
            .flat_map(|shard| shard.lock().values().map(|b| b.record()).collect::<Vec<_>>())
            .collect()
    }
}

/// Boots that a sweep dropped.
#[derive(Debug, Default)]
pub struct Swept {
    /// Boots that expired.
    pub boots: Vec<BootId>,
    /// Unknown machines that fell silent.
    pub owners: Vec<Owner>,
}

impl Track {
    fn same(&self, opening: &Opening, now: Timestamp) -> Option<Arc<Boot>> {
        let is_same = |boot: &&Arc<Boot>| {
            boot.change(|record| {
                let of = &record.opening;
                record.is_live(now)
                    && of.transaction == opening.transaction
                    && of.mac == opening.mac
                    && of.loader == opening.loader
                    && of.server == opening.server
            })
        };
        self.boots.iter().rev().find(is_same).cloned()
    }
}

/// Drops the owner that was silent longest where a new one finds no room. `None`: the new one has to go without.
fn make_room(owners: &mut HashMap<Owner, Track>, new: &Owner) -> Option<Vec<BootId>> {
    if owners.contains_key(new) {
        return Some(Vec::new());
    }
    let known = new.machine().is_some();
    if !known && owners.keys().filter(|owner| owner.machine().is_none()).count() >= MAX_UNKNOWN_PER_SHARD {
        return None;
    }
    if owners.len() < MAX_OWNERS_PER_SHARD {
        return Some(Vec::new());
    }
    let silent =
        owners.iter().min_by_key(|(_, track)| track.timeline.progress).map(|(owner, _)| owner.clone())?;
    let track = owners.remove(&silent)?;
    Some(track.boots.iter().map(|boot| boot.change(|record| record.id)).collect())
}
