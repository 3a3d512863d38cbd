//! Boots as a whole: transactions, limits, restarts, seeds and tokens, over a real store.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;

use super::*;
use crate::boot::issued_seeds::{TakeSeedError, hash};
use crate::boot_policy::HoldCause;
use crate::http::tests::until;
use crate::store::tests::Held;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn opening(machine: u32, transaction: u32) -> Opening {
    Opening {
        owner: Owner::Machine { name: format!("node{machine}").parse().unwrap(), uid: format!("u{machine}") },
        mac: "52:54:00:00:00:01".parse().unwrap(),
        transaction,
        loader: LoaderKind::Ipxe,
        platform: None,
        server: [10, 7, 0, 2].into(),
    }
}

fn unknown(n: u32) -> Opening {
    let [_, _, c, d] = n.to_be_bytes();
    let mac = bedplate_api::id::MacAddress::new([0x52, 0x54, 0, 0, c, d]);
    Opening { owner: Owner::Unknown { mac }, mac, ..opening(0, n) }
}

fn boots(directory: &tempfile::TempDir) -> Boots {
    boots_that_tell(directory, Arc::new(tell::Silent))
}

fn boots_that_tell(directory: &tempfile::TempDir, tell: Arc<dyn Tell>) -> Boots {
    let store = Store::open(&directory.path().join("store")).unwrap();
    Boots::load(store, tell, SignedDuration::from_mins(10), at(0)).unwrap()
}

#[test]
fn one_transaction_has_one_boot_and_another_transaction_another() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let first = boots.open(&opening(1, 7), at(0)).unwrap();
    assert_eq!(boots.open(&opening(1, 7), at(1)), Some(first));
    let second = boots.open(&opening(1, 8), at(2)).unwrap();
    assert_ne!(first, second);
    assert!(boots.get(first, at(3)).is_some() && boots.get(second, at(3)).is_some());
    assert_ne!(boots.open(&opening(2, 7), at(3)), Some(first));
}

#[test]
fn flood_of_unknown_machines_leaves_a_machines_rate_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let opened = |machine: u32, from: u32| {
        let transactions = from..from + 100;
        transactions.filter(|number| boots.open(&opening(machine, *number), at(0)).is_some()).count()
    };
    assert!(opened(1, 0) >= 16);
    for n in 0..40_000 {
        boots.open(&unknown(n), at(0));
    }
    assert!(opened(1, 1000) < 16, "a token or two have come since");
    assert!(opened(2, 0) >= 16, "a Machine that has opened none has its own rate");
}

#[test]
fn a_boot_expires_unless_its_kernel_was_fetched() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let (idle, alive) =
        (boots.open(&opening(1, 1), at(0)).unwrap(), boots.open(&opening(2, 2), at(0)).unwrap());
    let record = boots.get(alive, at(0)).unwrap().record();
    boots.reached(&record, Stage::Kernel, at(100));
    assert!(boots.get(idle, at(599)).is_some());
    assert!(boots.get(idle, at(600)).is_none());
    assert!(boots.get(alive, at(3600)).is_some());
    boots.tick(at(700));
    assert_eq!(boots.records().len(), 1);
    boots.tick(at(10_000));
    assert_eq!(boots.records().len(), 0);
}

#[test]
fn restart_knows_a_long_held_boot_that_is_stored_once_a_minute() {
    let directory = tempfile::tempdir().unwrap();
    let first = boots(&directory);
    let id = first.open(&opening(1, 7), at(0)).unwrap();
    let written = || first.inner.store.counters().changes.load(Ordering::Relaxed);
    let settled = || futures::executor::block_on(first.inner.store.answers()).unwrap();
    settled();
    let before = written();
    for second in (0..1200).step_by(10) {
        let hold = Hold::new(HoldCause::ImagePending, "image host is being fetched");
        first.hold(&first.get(id, at(second)).unwrap(), &hold, at(second));
    }
    settled();
    let written = written() - before;
    assert!((19..=21).contains(&written), "{written}");
    drop(first);
    assert!(boots(&directory).get(id, at(1700)).is_some());
}

#[test]
fn boots_of_one_machine_are_bounded_and_the_oldest_goes() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let ids: Vec<_> = (0..16).map(|n| boots.open(&opening(1, n), at(0)).unwrap()).collect();
    assert_eq!(boots.records().len(), table::MAX_BOOTS_PER_OWNER);
    assert!(boots.get(ids[0], at(0)).is_none());
    assert!(boots.get(ids[15], at(0)).is_some());
}

#[test]
fn forged_discovers_cannot_push_out_a_boot_that_has_its_script() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let running = boots.open(&opening(1, 0), at(0)).unwrap();
    let digest = bedplate_api::id::Digest::from_sha256([7; 32]);
    let blob = record::Blob { digest, size: 1 };
    let image = Image {
        name: crate::boot_policy::ImageName::Configured("host".into()),
        digest,
        kernel: blob,
        initrd: blob,
        rootfs: None,
        kernel_arguments: Vec::new(),
    };
    boots.pin(&boots.get(running, at(0)).unwrap(), image);
    let forged: Vec<_> = (1..16).map(|n| boots.open(&opening(1, n), at(1)).unwrap()).collect();
    assert!(boots.get(running, at(2)).is_some());
    assert!(boots.get(forged[14], at(2)).is_some(), "the newest may be the machine's own");
    assert_eq!(boots.records().len(), table::MAX_BOOTS_PER_OWNER);
}

#[test]
fn forged_addresses_cannot_push_out_a_known_machine() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let known = boots.open(&opening(1, 1), at(0)).unwrap();
    let opened = (0..5000).filter(|n| boots.open(&unknown(*n), at(0)).is_some()).count();
    assert!(opened <= 1024, "{opened}");
    assert!(boots.get(known, at(1)).is_some());
}

#[tokio::test]
async fn a_restart_keeps_boots_timelines_and_taken_seeds() {
    let directory = tempfile::tempdir().unwrap();
    let first = boots(&directory);
    let id = first.open(&opening(1, 7), at(0)).unwrap();
    let fresh = first.open(&opening(2, 8), at(0)).unwrap();
    let boot = first.get(id, at(1)).unwrap();
    first.reached(&boot.record(), Stage::Script, at(2));
    first.flush(at(2));
    first.seeds().take(&boot, at(3)).await.unwrap();
    drop(boot);
    drop(first);
    let second = boots(&directory);
    assert_eq!(second.open(&opening(1, 7), at(4)), Some(id));
    assert_eq!(second.timeline(&opening(1, 7).owner).unwrap().stage, Stage::Script);
    let boot = second.get(id, at(4)).unwrap();
    assert!(matches!(second.seeds().take(&boot, at(5)).await, Err(TakeSeedError::Taken)));
    let boot = second.get(fresh, at(4)).unwrap();
    assert!(second.seeds().take(&boot, at(5)).await.is_ok());
}

#[tokio::test]
async fn of_many_that_take_a_seed_at_once_one_gets_it() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let id = boots.open(&opening(1, 7), at(0)).unwrap();
    let boot = boots.get(id, at(1)).unwrap();
    let takes = (0..32).map(|_| {
        let (boots, boot) = (boots.clone(), boot.clone());
        tokio::spawn(async move { boots.seeds().take(&boot, at(2)).await.is_ok() })
    });
    let mut given = 0;
    for take in takes.collect::<Vec<_>>() {
        given += usize::from(take.await.unwrap());
    }
    assert_eq!(given, 1);
}

#[tokio::test]
async fn canceled_take_uses_up_the_seed() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let id = boots.open(&opening(1, 7), at(0)).unwrap();
    let boot = boots.get(id, at(1)).unwrap();
    let held = Held::new(&boots.inner.store);
    let taking = tokio::spawn({
        let (boots, boot) = (boots.clone(), boot.clone());
        async move { boots.seeds().take(&boot, at(2)).await.is_ok() }
    });
    until(|| held.waiting() == 1).await;
    taking.abort();
    assert!(taking.await.unwrap_err().is_cancelled(), "the mark is not on disk yet");
    assert_eq!(boots.seeds().taken(), []);
    held.release();
    until(|| boots.seeds().taken() == [id]).await;
    assert!(matches!(boots.seeds().take(&boot, at(3)).await, Err(TakeSeedError::Taken)));
}

#[tokio::test]
async fn seed_is_served_after_its_mark_is_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let id = boots.open(&opening(1, 7), at(0)).unwrap();
    let boot = boots.get(id, at(1)).unwrap();
    let held = Held::new(&boots.inner.store);
    let seeds = boots.seeds();
    let mut taking = std::pin::pin!(seeds.take(&boot, at(2)));
    until(|| {
        assert!(taking.as_mut().now_or_never().is_none(), "served before its mark is on disk");
        held.waiting() == 1
    })
    .await;
    assert_eq!(seeds.taken(), []);
    assert!(matches!(seeds.take(&boot, at(2)).await, Err(TakeSeedError::Taken)), "served twice");
    held.release();
    taking.await.unwrap();
    assert_eq!(seeds.taken(), [id]);
}

#[tokio::test]
async fn token_is_claimed_and_answered_after_each_write_is_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let id = boots.open(&opening(1, 7), at(0)).unwrap();
    let seeds = boots.seeds();
    seeds.take(&boots.get(id, at(1)).unwrap(), at(2)).await.unwrap();
    let held = Held::new(&boots.inner.store);
    let mut claiming = std::pin::pin!(seeds.claim(id, hash("key")));
    assert!(claiming.as_mut().now_or_never().is_none(), "claimed before the claim is on disk");
    let mut answering = std::pin::pin!(seeds.answer(id, "PEM", Vec::new()));
    assert!(answering.as_mut().now_or_never().is_none(), "answered before the answer is on disk");
    assert_eq!(held.waiting(), 2);
    held.release();
    claiming.await.unwrap();
    answering.await.unwrap();
}

#[tokio::test]
async fn failed_write_serves_no_seed_and_uses_up_no_token() {
    use crate::boot::issued_seeds::{CheckTokenError, hash};
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let id = boots.open(&opening(1, 7), at(0)).unwrap();
    let boot = boots.get(id, at(1)).unwrap();
    let (seeds, key) = (boots.seeds(), hash("key"));
    let break_next_write = async || {
        boots.inner.store.answers().await.unwrap();
        crate::store::tests::break_next_write(&boots.inner.store);
    };
    break_next_write().await;
    assert!(matches!(seeds.take(&boot, at(2)).await, Err(TakeSeedError::Store(_))));
    assert_eq!(seeds.taken(), []);
    let token = seeds.take(&boot, at(2)).await.unwrap();
    break_next_write().await;
    assert!(matches!(seeds.claim(id, key).await, Err(CheckTokenError::Store(_))));
    seeds.claim(id, key).await.unwrap();
    break_next_write().await;
    assert!(seeds.answer(id, "PEM", Vec::new()).await.is_err());
    seeds.answer(id, "PEM", Vec::new()).await.unwrap();
    drop(boot);
    drop(boots);
    let boots = self::boots(&directory);
    let claim = boots.seeds().check(id, &token, at(3)).unwrap().claim;
    assert_eq!(claim.unwrap().certificate.as_deref(), Some("PEM"));
}

#[tokio::test]
async fn trust_2_a_boot_whose_seed_cannot_be_read_counts_as_taken() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let id = boots.open(&opening(1, 7), at(0)).unwrap();
    boots.seeds().take(&boots.get(id, at(1)).unwrap(), at(2)).await.unwrap();
    let damaged = b"damaged".to_vec();
    boots.inner.store.put(crate::store::Table::Seeds, &id.bytes(), damaged).await.unwrap();
    drop(boots);
    assert_eq!(self::boots(&directory).seeds().taken(), [id]);
}

#[tokio::test]
async fn a_token_serves_one_key_and_only_its_own_boot() {
    use crate::boot::issued_seeds::{CheckTokenError, hash};
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let ids = [boots.open(&opening(1, 7), at(0)).unwrap(), boots.open(&opening(2, 7), at(0)).unwrap()];
    let token = boots.seeds().take(&boots.get(ids[0], at(1)).unwrap(), at(2)).await.unwrap();
    boots.seeds().take(&boots.get(ids[1], at(1)).unwrap(), at(2)).await.unwrap();
    let (key, other) = (hash("key"), hash("other"));
    let seeds = boots.seeds();
    assert!(seeds.check(ids[0], &token, at(3)).is_ok());
    assert!(matches!(seeds.check(ids[1], &token, at(3)), Err(CheckTokenError::WrongToken)));
    assert!(matches!(seeds.check(ids[0], &token, at(9999)), Err(CheckTokenError::Expired(_))));
    seeds.claim(ids[0], key).await.unwrap();
    seeds.claim(ids[0], key).await.unwrap();
    assert!(matches!(seeds.claim(ids[0], other).await, Err(CheckTokenError::Used)));
    let claimed = seeds.check(ids[0], &token, at(3)).unwrap();
    assert!(matches!(claimed.check_key(&other), Err(CheckTokenError::Used)));
    seeds.answer(ids[0], "PEM", Vec::new()).await.unwrap();
    let seed = seeds.check(ids[0], &token, at(3)).unwrap();
    seed.check_key(&key).unwrap();
    assert_eq!(seed.claim.unwrap().certificate.as_deref(), Some("PEM"));
}

#[test]
fn boots_of_one_machine_are_paced_and_others_are_not_delayed() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let opened = |machine| (0..1000).filter(|n| boots.open(&opening(machine, *n), at(0)).is_some()).count();
    let forged = opened(1);
    assert!((16..=17).contains(&forged), "{forged}");
    assert!(boots.open(&opening(1, 15), at(1)).is_some(), "a transaction that has its boot keeps it");
    assert!(opened(2) >= 16);
}

#[tokio::test]
async fn kept_seeds_of_one_owner_are_bounded() {
    use crate::boot::issued_seeds::MAX_SEEDS_PER_OWNER;
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let rows = |boots: &Boots| boots.inner.store.scan(StoreTable::Seeds).unwrap().len();
    let take = async |machine, transaction| {
        let id = boots.open(&opening(machine, transaction), at(0)).unwrap();
        (id, boots.seeds().take(&boots.get(id, at(1)).unwrap(), at(i64::from(transaction))).await.unwrap())
    };
    let (other, other_token) = take(2, 0).await;
    for transaction in 0..15 {
        take(1, transaction).await;
    }
    let (newest, token) = take(1, 15).await;
    assert_eq!(boots.seeds().taken().len(), MAX_SEEDS_PER_OWNER + 1, "one is another Machine's");
    assert_eq!(rows(&boots), MAX_SEEDS_PER_OWNER + 1);
    for (id, token) in [(newest, &token), (other, &other_token)] {
        assert!(boots.seeds().check(id, token, at(16)).is_ok());
    }
    // Boots that live keep the mark that their seed is gone.
    let live: Vec<_> = boots.records().into_iter().map(|record| record.id).collect();
    assert!(live.iter().all(|id| boots.seeds().taken().contains(id)));
    drop(boots);
    let boots = self::boots(&directory);
    assert_eq!(boots.seeds().taken().len(), MAX_SEEDS_PER_OWNER + 1);
}

#[tokio::test]
async fn claimed_seed_stays_while_unclaimed_ones_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let (owner, key) = (opening(1, 0).owner, hash("key"));
    let (id, token) = boots.seeds().issue(owner.clone(), at(0)).await.unwrap();
    boots.seeds().claim(id, key).await.unwrap();
    for second in 1..50 {
        boots.seeds().issue(owner.clone(), at(second)).await.unwrap();
    }
    assert!(boots.seeds().check(id, &token, at(51)).is_ok());
}

#[tokio::test]
async fn expired_seeds_are_dropped_while_loading() {
    let directory = tempfile::tempdir().unwrap();
    let first = boots(&directory);
    for machine in 0..100 {
        first.seeds().issue(opening(machine, 0).owner, at(-7200)).await.unwrap();
    }
    first.seeds().issue(opening(1, 0).owner, at(0)).await.unwrap();
    drop(first);
    let second = boots(&directory);
    assert_eq!(second.seeds().taken().len(), 1);
    second.inner.store.answers().await.unwrap();
    assert_eq!(second.inner.store.scan(StoreTable::Seeds).unwrap().len(), 1);
}

#[tokio::test]
async fn trust_6_enrollment_ends_all_other_tokens_and_no_seed_leaves_twice() {
    use crate::boot::issued_seeds::{CheckTokenError, hash};
    let directory = tempfile::tempdir().unwrap();
    let boots = boots(&directory);
    let take = async |boots: &Boots, machine, transaction| {
        let id = boots.open(&opening(machine, transaction), at(0)).unwrap();
        (id, boots.seeds().take(&boots.get(id, at(1)).unwrap(), at(2)).await.unwrap())
    };
    let (claimed, unclaimed) = (take(&boots, 1, 1).await, take(&boots, 1, 2).await);
    let (own, other) = (take(&boots, 1, 3).await, take(&boots, 2, 4).await);
    boots.seeds().claim(claimed.0, hash("old")).await.unwrap();
    boots.seeds().claim(own.0, hash("own")).await.unwrap();
    let ended = boots.seeds().win(own.0).unwrap();
    assert!(matches!(boots.seeds().win(unclaimed.0), Err(CheckTokenError::Superseded)), "the slower one");
    boots.seeds().answer(own.0, "PEM", ended).await.unwrap();
    drop(boots);
    let boots = self::boots(&directory);
    let check =
        |(id, token): &(BootId, bedplate_api::wire::SecretText)| boots.seeds().check(*id, token, at(3));
    assert!(check(&own).is_ok() && check(&other).is_ok());
    for ended in [&claimed, &unclaimed] {
        assert!(matches!(check(ended), Err(CheckTokenError::Superseded)));
        let claim = boots.seeds().claim(ended.0, hash("thief")).await;
        assert!(matches!(claim, Err(CheckTokenError::Superseded)));
        let again = boots.seeds().take(&boots.get(ended.0, at(3)).unwrap(), at(3)).await;
        assert!(matches!(again, Err(TakeSeedError::Taken)));
    }
}

#[derive(Default)]
struct Counting {
    timelines: AtomicUsize,
    asked: AtomicUsize,
}

impl Tell for Counting {
    fn timeline(&self, _: &bedplate_api::id::MachineName, _: &Timeline, _: Timestamp) {
        self.timelines.fetch_add(1, Ordering::Relaxed);
    }
    fn seed_asked_again(
        &self,
        _: &bedplate_api::id::MachineName,
        _: BootId,
        _: std::net::IpAddr,
        _: Timestamp,
    ) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }
}

/// A status that shows one stage.
#[derive(Default)]
struct Shown(Lock<Option<Stage>>);

impl Tell for Shown {
    fn timeline(&self, _: &bedplate_api::id::MachineName, timeline: &Timeline, _: Timestamp) {
        *self.0.lock() = Some(timeline.stage);
    }
    fn is_shown(&self, _: &bedplate_api::id::MachineName, timeline: &Timeline) -> bool {
        *self.0.lock() == Some(timeline.stage)
    }
    fn seed_asked_again(
        &self,
        _: &bedplate_api::id::MachineName,
        _: BootId,
        _: std::net::IpAddr,
        _: Timestamp,
    ) {
    }
}

/// Restarts with a status that shows `before`, and waits until it shows `after`.
async fn restart_shows(directory: &tempfile::TempDir, before: Stage, after: Stage) {
    let tell = Arc::new(Shown(Lock::new(Some(before))));
    let boots = boots_that_tell(directory, tell.clone());
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(boots.run(Pulse::unwatched(), shutdown.clone()));
    until(|| *tell.0.lock() == Some(after)).await;
    shutdown.cancel();
    running.await.unwrap();
    assert_eq!(*tell.0.lock(), Some(after));
}

#[tokio::test]
async fn stage_that_a_crash_kept_from_the_status_is_in_it_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    // The boot is recent: the loop reports a stopped one in any case.
    let (boots, now) = (boots(&directory), Timestamp::now());
    let id = boots.open(&opening(1, 1), now).unwrap();
    boots.reached(&boots.get(id, now).unwrap().record(), Stage::Userspace, now);
    boots.flush(now);
    boots.inner.store.answers().await.unwrap();
    drop(boots);
    restart_shows(&directory, Stage::Script, Stage::Userspace).await;
}

#[tokio::test]
async fn enrollment_that_was_answered_before_a_crash_ends_its_boot_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let id = {
        let boots = boots(&directory);
        let id = boots.open(&opening(1, 1), at(0)).unwrap();
        boots.seeds().take(&boots.get(id, at(1)).unwrap(), at(2)).await.unwrap();
        boots.seeds().claim(id, hash("key")).await.unwrap();
        boots.reached(&boots.get(id, at(1)).unwrap().record(), Stage::Userspace, at(2));
        boots.flush(at(2));
        boots.inner.store.answers().await.unwrap();
        id
    };
    // A key without a certificate has not enrolled.
    restart_shows(&directory, Stage::Userspace, Stage::Userspace).await;
    boots(&directory).seeds().answer(id, "PEM", Vec::new()).await.unwrap();
    restart_shows(&directory, Stage::Userspace, Stage::Enrolled).await;
}

#[test]
fn flood_of_seed_requests_is_reported_once_a_minute_per_boot() {
    let directory = tempfile::tempdir().unwrap();
    let tell = Arc::new(Counting::default());
    let boots = boots_that_tell(&directory, tell.clone());
    let ids = [1, 2].map(|transaction| boots.open(&opening(1, transaction), at(0)).unwrap());
    let records = ids.map(|id| boots.get(id, at(0)).unwrap().record());
    for n in 0..1000_u16 {
        let [high, low] = n.to_be_bytes();
        for record in &records {
            boots.seed_asked_again(record, [10, 7, high, low].into(), at(1));
        }
    }
    assert_eq!((tell.asked.load(Ordering::Relaxed), tell.timelines.load(Ordering::Relaxed)), (2, 2));
}

#[test]
fn packet_storm_is_reported_once_and_stall_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let tell = Arc::new(Counting::default());
    let boots = boots_that_tell(&directory, tell.clone());
    for n in 0..1000 {
        let id = boots.open(&opening(1, n % 8), at(0)).unwrap();
        let record = boots.get(id, at(0)).unwrap().record();
        boots.reached(&record, Stage::Offered, at(0));
    }
    boots.flush(at(1));
    assert_eq!(tell.timelines.load(Ordering::Relaxed), 1);
    for second in [120, 125, 130] {
        boots.tick(at(second));
        boots.flush(at(second));
    }
    assert_eq!(tell.timelines.load(Ordering::Relaxed), 2);
}
