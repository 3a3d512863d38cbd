//! Boots: opened by a DHCP transaction, named by a random id in every URL, followed by their stages (docs/design/rules.md, Trust 1-2).
//!
//! The packet path only touches memory ([`Boots::open`], [`Boots::reached`]); a background task ([`Boots::run`]) writes
//! timelines behind, tells the status, and drops what has expired. A boot goes to the store behind its opening:
//! kill -9 costs at most the boots of the last moment, whose machines ask again; a seed's mark is on disk before the first byte of the seed leaves. Called by `clients`, `files`,
//! `http` and `enroll`.

pub(crate) mod issued_seeds;
pub mod record;
pub mod report;
pub(crate) mod seed_archive;
pub mod table;
pub mod tell;
#[cfg(test)]
mod tests;
pub mod timeline;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_api::id::{BootId, MachineName};
use bedplate_api::reason::event::PxedEvent;
use bedplate_api::wire::Stage;
use bedplate_process::liveness::Pulse;
use bedplate_process::lock::Lock;
use bedplate_process::log_pace::{LogPace, Omitted};
use bedplate_process::token_bucket::{Allowances, Rate};
use jiff::{SignedDuration, Timestamp};
use rand::TryRng;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::issued_seeds::Seeds;
pub use self::record::{Blob, Image, LoaderKind, Opening, Owner, Record, public_text};
use self::table::Boot;
pub use self::tell::Tell;
use self::timeline::Timeline;
use crate::boot_policy::Hold;
use crate::store::{Change, Store, StoreError, Table as StoreTable};

/// Lifetime of a boot's URLs from the kernel on, for stage reports.
const AFTER_KERNEL: SignedDuration = SignedDuration::from_mins(60);

/// Period without packets after which an unknown machine is forgotten.
const FORGET_UNKNOWN: SignedDuration = SignedDuration::from_hours(1);

/// Boots that one Machine may open. A boot takes two or three, a boot that is repeated as many more; a MAC address can be forged.
const OPENINGS: Rate = Rate { burst: 16, each: Duration::from_secs(2) };

/// Pace at which repeated requests for one seed are reported, in the condition and by an Event.
const ASKED_AGAIN: Rate = Rate { burst: 1, each: Duration::from_secs(60) };

/// Time for which packets without a fetch are reported again, until the host is known to be silent.
const UNPROVEN_TIME: SignedDuration = SignedDuration::from_mins(10);

/// Delay in which changes are gathered into one write and one report.
const SETTLE_DELAY: Duration = Duration::from_millis(50);

/// Interval between checks for boots that expired or stalled.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The boots of this pxed; clones share them.
#[derive(Clone)]
pub struct Boots {
    inner: Arc<Inner>,
}

struct Inner {
    table: Arc<table::Table>,
    seeds: Seeds,
    store: Store,
    tell: Arc<dyn Tell>,
    lifetime: SignedDuration,
    /// Boots that Machines may open. Their number is bounded.
    openings: Allowances<Owner>,
    /// Boots that unknown machines may open. Any client can make up their MAC addresses.
    unknown_openings: Allowances<Owner>,
    asked_again: Allowances<BootId>,
    log: LogPace,
    dirty: Lock<HashSet<Owner>>,
    wake: Notify,
}

impl Boots {
    /// The boots that the store holds.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(
        store: Store,
        tell: Arc<dyn Tell>,
        lifetime: SignedDuration,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let table = table::Table::default();
        let mut gone = Vec::new();
        for (key, value) in store.scan(StoreTable::Boots)? {
            match key.first() {
                Some(b'b') => match serde_json::from_slice::<Record>(&value) {
                    Ok(record) if record.is_live(now) => table.restore(record),
                    Ok(_) | Err(_) => gone.push(Change::Delete(StoreTable::Boots, key)),
                },
                Some(b't') => match serde_json::from_slice::<(Owner, Timeline)>(&value) {
                    Ok((owner, timeline)) => table.restore_timeline(owner, timeline),
                    Err(_) => gone.push(Change::Delete(StoreTable::Boots, key)),
                },
                _ => gone.push(Change::Delete(StoreTable::Boots, key)),
            }
        }
        let table = Arc::new(table);
        let (seeds, expired) = Seeds::load(store.clone(), table.clone(), now)?;
        gone.extend(expired);
        for id in seeds.taken() {
            if let Some(boot) = table.get(id, now) {
                boot.change(|record| record.seed_taken = true);
            }
        }
        if !gone.is_empty() {
            store.write_behind(gone)?;
        }
        let dirty = recover(&table, &seeds, &*tell, now);
        let (openings, unknown_openings) = (Allowances::default(), Allowances::default());
        let asked_again = Allowances::default();
        let log = LogPace::default();
        let (dirty, wake) = (Lock::new(dirty), Notify::new());
        wake.notify_one();
        let inner = Inner {
            table,
            seeds,
            store,
            tell,
            lifetime,
            openings,
            unknown_openings,
            asked_again,
            log,
            dirty,
            wake,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The seeds that went out.
    pub fn seeds(&self) -> &Seeds {
        &self.inner.seeds
    }

    /// Returns the pace of log lines that any client can cause.
    pub fn log_pace(&self) -> &LogPace {
        &self.inner.log
    }

    /// Returns the boot of this DHCP transaction: the one that it has, or a new one. `None`: too many unknown machines, too many
    /// boots of this machine within a short time, or the system has no random numbers.
    pub fn open(&self, opening: &Opening, now: Timestamp) -> Option<BootId> {
        if let Some(id) = self.inner.table.find(opening, now) {
            return Some(id);
        }
        let openings = match opening.owner {
            Owner::Machine { .. } => &self.inner.openings,
            Owner::Unknown { .. } => &self.inner.unknown_openings,
        };
        if openings.take(opening.owner.clone(), OPENINGS, Instant::now()).is_err() {
            let machine = opening.owner.machine().map(MachineName::as_str);
            if let Some(omitted) = self.inner.log.admit("TooManyBoots", machine, Instant::now()) {
                let mac = opening.mac;
                tracing::warn!(machine, %mac, omitted, "boot not opened, too many DHCP transactions");
            }
            return None;
        }
        let mut bytes = [0; 16];
        if let Err(error) = rand::rngs::SysRng.try_fill_bytes(&mut bytes) {
            tracing::error!(%error, "random numbers unavailable, boot not opened");
            return None;
        }
        let id = BootId::from_random(bytes);
        let opened = self.inner.table.open(opening, id, now, self.inner.lifetime)?;
        if opened.new {
            let mut changes: Vec<_> = opened.dropped.iter().map(|id| delete(*id)).collect();
            changes.push(put(&opened.boot.record()));
            self.write_behind(changes);
            self.touch(&opening.owner);
        }
        Some(opened.id)
    }

    /// The boot of this id, while its URLs are good.
    pub fn get(&self, id: BootId, now: Timestamp) -> Option<Arc<Boot>> {
        self.inner.table.get(id, now)
    }

    /// Gives the boot its image with its script. Once the seed is out it names the root file system, so the image stays.
    pub fn pin(&self, boot: &Boot, image: Image) -> Image {
        let (record, pinned, new) = boot.change(|record| {
            let pinned = match &record.image {
                Some(before) if record.seed_taken => before.clone(),
                Some(_) | None => image,
            };
            let new = record.image.as_ref() != Some(&pinned);
            record.image = Some(pinned.clone());
            (record.clone(), pinned, new)
        });
        if new {
            self.write_behind(vec![put(&record)]);
        }
        pinned
    }

    /// A boot reached a stage.
    pub fn reached(&self, record: &Record, stage: Stage, now: Timestamp) {
        if stage >= Stage::Kernel
            && let Some(boot) = self.get(record.id, now)
        {
            let before = record.expires;
            let record = boot.change(|record| {
                record.extend(now, AFTER_KERNEL);
                record.clone()
            });
            if is_longer(before, record.expires) && stage == Stage::Kernel {
                self.write_behind(vec![put(&record)]);
            }
        }
        self.change(&record.opening.owner, |timeline| {
            timeline.has(record.id) && timeline.reached(stage, now)
        });
    }

    /// Records that the seed of a boot left pxed.
    pub(crate) fn seed_left(&self, record: &Record, now: Timestamp) {
        self.change(&record.opening.owner, |timeline| {
            let has = timeline.has(record.id);
            if has {
                timeline.seed_left(now);
            }
            has
        });
    }

    /// DHCP of an owner's current attempt reached a stage.
    pub(crate) fn dhcp_reached(&self, owner: &Owner, stage: Stage, now: Timestamp) {
        self.change(owner, |timeline| timeline.reached(stage, now));
    }

    /// A Machine that is known by its certificate reached a stage in the boot that it names.
    pub(crate) fn owner_reached(&self, owner: &Owner, id: BootId, stage: Stage, now: Timestamp) {
        self.change(owner, |timeline| timeline.has(id) && timeline.reached(stage, now));
    }

    /// Stage-1 or the agent failed at a stage and will try again.
    pub fn failed(&self, record: &Record, stage: Stage, failure: &str, now: Timestamp) {
        let failure = public_text(record.id, failure);
        self.change(&record.opening.owner, |timeline| {
            timeline.has(record.id) && timeline.failed(stage, &failure, now)
        });
    }

    /// The machine waits at its script; its URLs stay good meanwhile.
    pub fn hold(&self, boot: &Boot, hold: &Hold, now: Timestamp) {
        let lifetime = self.inner.lifetime;
        let (before, record) = boot.change(|record| {
            let before = record.expires;
            record.extend(now, lifetime);
            (before, record.clone())
        });
        if is_longer(before, record.expires) {
            self.write_behind(vec![put(&record)]);
        }
        self.change(&record.opening.owner, |timeline| timeline.has(record.id) && timeline.hold(hold, now));
    }

    /// The machine no longer waits at its script.
    pub fn release(&self, record: &Record) {
        self.change(&record.opening.owner, |timeline| timeline.has(record.id) && timeline.released());
    }

    /// The seed of a boot was asked for again.
    pub(crate) fn seed_asked_again(&self, record: &Record, peer: std::net::IpAddr, now: Timestamp) {
        if let Some(machine) = record.opening.owner.machine() {
            let admitted = self.inner.log.admit(
                PxedEvent::SeedRequestedTwice.as_str(),
                Some(machine.as_str()),
                Instant::now(),
            );
            if let Some(omitted) = admitted {
                let boot = record.id.public_id();
                tracing::warn!(%machine, %boot, %peer, omitted, "seed of a boot requested again, refused");
            }
            // For each boot: a request for another boot's seed must not hide this one.
            if self.inner.asked_again.take(record.id, ASKED_AGAIN, Instant::now()).is_err() {
                return;
            }
            // First: a boot that is new to the status would remove the message about its seed.
            if let Some(timeline) = self.timeline(&record.opening.owner) {
                self.inner.tell.timeline(machine, &timeline, now);
            }
            self.inner.tell.seed_asked_again(machine, record.id, peer, now);
        }
    }

    /// The timeline of an owner.
    pub fn timeline(&self, owner: &Owner) -> Option<Timeline> {
        self.inner.table.timeline(owner, |timeline| timeline.clone())
    }

    /// Every boot whose URLs may still be good; for the images that must be kept.
    pub fn records(&self) -> Vec<Record> {
        self.inner.table.records()
    }

    /// Returns the number of boots whose URLs may still be valid.
    pub(crate) fn open_now(&self) -> usize {
        self.inner.table.count()
    }

    /// Forgets every Machine that `known` does not know any more.
    pub fn retain(&self, known: impl Fn(&Owner) -> bool) {
        let gone: Vec<_> = self.inner.table.owners().into_iter().filter(|owner| !known(owner)).collect();
        let mut changes = Vec::new();
        for owner in gone {
            changes.extend(self.inner.table.forget(&owner).into_iter().map(delete));
            changes.push(Change::Delete(StoreTable::Boots, timeline_key(&owner)));
        }
        if !changes.is_empty() {
            self.write_behind(changes);
        }
    }

    fn change(&self, owner: &Owner, change: impl FnOnce(&mut Timeline) -> bool) {
        if self.inner.table.timeline(owner, change) == Some(true) {
            self.touch(owner);
        }
    }

    fn touch(&self, owner: &Owner) {
        let mut dirty = self.inner.dirty.lock();
        if !dirty.contains(owner) {
            dirty.insert(owner.clone());
            self.inner.wake.notify_one();
        }
    }

    fn write_behind(&self, changes: Vec<Change>) {
        if let Err(error) = self.inner.store.write_behind(changes) {
            tracing::warn!(%error, "failed to write a boot to the store");
        }
    }

    /// Writes and reports changes.
    pub fn flush(&self, now: Timestamp) {
        let dirty = {
            let mut dirty = self.inner.dirty.lock();
            std::mem::take(&mut *dirty)
        };
        let mut changes = Vec::new();
        for owner in dirty {
            let Some(timeline) = self.timeline(&owner) else { continue };
            if let Some(machine) = owner.machine() {
                self.inner.tell.timeline(machine, &timeline, now);
            }
            let key = timeline_key(&owner);
            if let Ok(value) = serde_json::to_vec(&(&owner, &timeline)) {
                changes.push(Change::Put(StoreTable::Boots, key, value));
            }
        }
        if !changes.is_empty() {
            self.write_behind(changes);
        }
    }

    /// Drops what has expired, and reports boots that make no progress.
    pub fn tick(&self, now: Timestamp) {
        let swept = self.inner.table.sweep(now, FORGET_UNKNOWN);
        let mut changes: Vec<_> = swept.boots.into_iter().map(delete).collect();
        changes.extend(swept.owners.iter().map(|o| Change::Delete(StoreTable::Boots, timeline_key(o))));
        changes.extend(self.inner.seeds.sweep(now, |id| self.get(id, now).is_some()));
        if !changes.is_empty() {
            self.write_behind(changes);
        }
        for Omitted { reason, subject, count } in self.inner.log.overdue(Instant::now()) {
            tracing::warn!(reason, machine = subject, omitted = count, "log lines omitted");
        }
        for (machine, timeline) in self.inner.table.unproven(now, UNPROVEN_TIME) {
            self.inner.tell.unproven(&machine, &timeline, now);
        }
        self.inner.table.stopped(now).iter().for_each(|owner| self.touch(owner));
    }

    /// Writes, reports and sweeps until `shutdown`, then writes once more.
    pub async fn run(self, pulse: Pulse, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(CHECK_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            pulse.beat();
            tokio::select! {
                () = shutdown.cancelled() => break,
                // The tick wakes this task often enough for a pulse in each turn.
                _ = tick.tick() => self.tick(Timestamp::now()),
                () = self.inner.wake.notified() => {
                    tokio::select! {
                        () = shutdown.cancelled() => break,
                        () = tokio::time::sleep(SETTLE_DELAY) => {}
                    }
                    self.flush(Timestamp::now());
                }
            }
        }
        self.flush(Timestamp::now());
    }
}

/// Completes writes that a crash separated. The order is enrollment, timeline, status. Returns the owners whose timeline must be written to
/// the status.
fn recover(table: &table::Table, seeds: &Seeds, tell: &dyn Tell, now: Timestamp) -> HashSet<Owner> {
    for (id, owner) in seeds.enrolled() {
        table.timeline(&owner, |timeline| {
            timeline.has(id) && timeline.stage < Stage::Enrolled && timeline.reached(Stage::Enrolled, now)
        });
    }
    let is_stale = |owner: &Owner| {
        let timeline = table.timeline(owner, |timeline| timeline.clone());
        owner.machine().zip(timeline).is_some_and(|(machine, timeline)| !tell.is_shown(machine, &timeline))
    };
    table.owners().into_iter().filter(is_stale).collect()
}

/// Returns true if the store needs the new expiry time of a boot's URLs: about once a minute, no matter how often and
/// by how little the time is extended.
fn is_longer(before: Timestamp, now: Timestamp) -> bool {
    let minute = |time: Timestamp| time.as_second().div_euclid(60);
    minute(now) > minute(before)
}

fn record_key(id: BootId) -> Vec<u8> {
    [b"b".as_slice(), &id.bytes()].concat()
}

fn timeline_key(owner: &Owner) -> Vec<u8> {
    match owner {
        Owner::Machine { name, uid } => format!("tm/{name}/{uid}"),
        Owner::Unknown { mac } => format!("tu/{mac}"),
    }
    .into_bytes()
}

fn delete(id: BootId) -> Change {
    Change::Delete(StoreTable::Boots, record_key(id))
}

fn put(record: &Record) -> Change {
    // A record is plain data with text keys: it always has a JSON form.
    let value = serde_json::to_vec(record).unwrap_or_default();
    Change::Put(StoreTable::Boots, record_key(record.id), value)
}
