//! The store's promises: durable when `put` returns, whole batches, a damaged file moved aside.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use super::*;

fn temporary() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pxed.redb");
    (directory, path)
}

#[tokio::test]
async fn written_values_are_present_after_reopening() {
    let (_directory, path) = temporary();
    let store = Store::open(&path).unwrap();
    assert_eq!(store.get(Table::Boots, b"a").unwrap(), None);
    store.put(Table::Boots, b"a", b"1".to_vec()).await.unwrap();
    store.put(Table::Seeds, b"a", b"2".to_vec()).await.unwrap();
    store.put(Table::Boots, b"b", b"3".to_vec()).await.unwrap();
    store.delete(Table::Boots, b"b").await.unwrap();
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.scan(Table::Boots).unwrap(), [(b"a".to_vec(), b"1".to_vec())]);
    assert_eq!(store.get(Table::Seeds, b"a").unwrap().unwrap(), b"2");
}

#[tokio::test]
async fn a_batch_takes_effect_as_a_whole_and_in_its_order() {
    let (_directory, path) = temporary();
    let store = Store::open(&path).unwrap();
    store.put(Table::Machines, b"old", b"x".to_vec()).await.unwrap();
    let put = |key: &[u8]| Change::Put(Table::Machines, key.to_vec(), b"y".to_vec());
    let delete = Change::Delete(Table::Machines, b"old".to_vec());
    store.write(vec![put(b"old"), delete, put(b"new")]).await.unwrap();
    assert_eq!(store.scan(Table::Machines).unwrap(), [(b"new".to_vec(), b"y".to_vec())]);
}

#[tokio::test]
async fn waiting_changes_share_a_commit() {
    let (_directory, path) = temporary();
    let store = Store::open(&path).unwrap();
    // While another user holds the database, changes can only wait.
    let held = store.inner.database.write().unwrap();
    for n in 0..500_u32 {
        store.write_behind(vec![Change::Put(Table::Boots, vec![0; 4], n.to_be_bytes().to_vec())]).unwrap();
    }
    drop(held);
    store.put(Table::Boots, b"last", Vec::new()).await.unwrap();
    assert_eq!(store.counters().changes.load(Ordering::Relaxed), 501);
    assert!(store.counters().commits.load(Ordering::Relaxed) < 50);
    assert_eq!(store.get(Table::Boots, &[0; 4]).unwrap().unwrap(), 499_u32.to_be_bytes());
}

#[tokio::test]
async fn a_disk_that_hangs_costs_no_memory_and_what_is_dropped_is_counted() {
    let (_directory, path) = temporary();
    let store = Store::open(&path).unwrap();
    let put = |n: u32| vec![Change::Put(Table::Boots, n.to_be_bytes().to_vec(), Vec::new())];
    let given = 3 * u32::try_from(writer::MAX_WAITING).unwrap();
    // No commit can end while another user holds the database.
    let held = store.inner.database.write().unwrap();
    for n in 0..given {
        store.write_behind(put(n)).unwrap();
    }
    let dropped = store.counters().dropped.load(Ordering::Relaxed);
    assert!(dropped >= u64::from(given) / 3, "{dropped}");
    let last = store.put(Table::Boots, b"last", Vec::new());
    drop(held);
    last.await.unwrap();
    let kept = store.scan(Table::Boots).unwrap().len() as u64;
    assert_eq!(kept, u64::from(given) - dropped + 1, "who waits for durability waits for room");
}

/// Store whose commits cannot finish before the release.
pub(crate) struct Held {
    store: Store,
    release: std::sync::mpsc::Sender<()>,
    holder: JoinHandle<()>,
}

impl Held {
    pub(crate) fn new(store: &Store) -> Self {
        // The writer is idle from here on, even if it had to reopen the file.
        futures::executor::block_on(store.answers()).unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (taken, holds) = std::sync::mpsc::channel();
        let held = store.clone();
        let holder = std::thread::spawn(move || {
            let _guard = held.inner.database.write().unwrap();
            taken.send(()).unwrap();
            let _ = released.recv();
        });
        holds.recv().unwrap();
        let held = Self { store: store.clone(), release, holder };
        held.occupy_writer();
        held
    }

    /// Sends the writer a change on which it blocks, so that every later request stays in its queue.
    fn occupy_writer(&self) {
        self.store.write_behind(vec![Change::Delete(Table::Boots, b"none".to_vec())]).unwrap();
        while self.waiting() > 0 {
            std::thread::yield_now();
        }
    }

    /// Number of requests in the writer's queue.
    pub(crate) fn waiting(&self) -> usize {
        writer::MAX_WAITING - self.store.inner.writer.as_ref().unwrap().requests.capacity()
    }

    pub(crate) fn release(self) {
        drop(self.release);
        self.holder.join().unwrap();
    }
}

#[tokio::test]
async fn liveness_query_hangs_with_a_commit_and_is_answered_when_idle() {
    let (_directory, path) = temporary();
    let store = Store::open(&path).unwrap();
    store.answers().await.unwrap();
    assert_eq!(store.counters().commits.load(Ordering::Relaxed), 0);
    let held = Held::new(&store);
    let mut asked = std::pin::pin!(store.answers());
    assert!(tokio::time::timeout(std::time::Duration::from_millis(200), asked.as_mut()).await.is_err());
    held.release();
    asked.await.unwrap();
    assert_eq!(store.counters().commits.load(Ordering::Relaxed), 1);
}

/// Acts while no more changes can wait for the disk.
pub(crate) fn while_full(store: &Store, act: impl FnOnce()) {
    let held = Held::new(store);
    while store.write_behind(vec![Change::Delete(Table::Boots, b"none".to_vec())]).unwrap() {}
    act();
    held.release();
}

/// The next change fails, as after an I/O error; what is in the file stays.
pub(crate) fn break_next_write(store: &Store) {
    drop(store.inner.database.write().unwrap().take());
}

/// The next change fails and finds a damaged file.
pub(crate) fn damage(store: &Store, path: &Path) {
    break_next_write(store);
    std::fs::write(path, vec![b'x'; 100_000]).unwrap();
}

#[tokio::test]
async fn file_recreated_while_running_changes_the_generation_reopening_not() {
    let (directory, path) = temporary();
    let store = Store::open(&path).unwrap();
    let mut generation = store.generation();
    store.put(Table::Boots, b"a", Vec::new()).await.unwrap();
    break_next_write(&store);
    assert!(store.put(Table::Boots, b"b", Vec::new()).await.is_err());
    store.put(Table::Boots, b"b", Vec::new()).await.unwrap();
    assert_eq!(store.scan(Table::Boots).unwrap().len(), 2);
    assert!(!generation.has_changed().unwrap());
    damage(&store, &path);
    assert!(store.put(Table::Boots, b"c", Vec::new()).await.is_err());
    generation.changed().await.unwrap();
    store.put(Table::Boots, b"c", Vec::new()).await.unwrap();
    assert_eq!(store.scan(Table::Boots).unwrap().len(), 1);
    assert!(directory.path().join("pxed.redb.damaged-1").exists());
    assert!(store.generation().has_changed().unwrap(), "a late caller also sees the change");
}

#[tokio::test]
async fn requests_are_answered_while_a_read_waits() {
    let (_directory, path) = temporary();
    let store = Store::open(&path).unwrap();
    store.put(Table::Boots, b"a", b"1".to_vec()).await.unwrap();
    let held = Held::new(&store);
    let mut read = std::pin::pin!(store.fetch(Table::Boots, b"a".to_vec()));
    // On the runtime's only thread, a read that held it up would never end.
    assert!(tokio::time::timeout(std::time::Duration::from_millis(20), read.as_mut()).await.is_err());
    held.release();
    assert_eq!(read.await.unwrap().unwrap(), b"1");
}

#[test]
fn panic_while_a_database_is_closed_ends_no_task() {
    struct Damaged;
    impl Drop for Damaged {
        fn drop(&mut self) {
            panic!("a page is invalid");
        }
    }
    open::close(Some(Damaged));
}

#[tokio::test]
async fn only_its_owner_may_read_the_file() {
    let (_directory, path) = temporary();
    let _store = Store::open(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_second_pxed_on_the_same_store_is_refused() {
    let (_directory, path) = temporary();
    let _store = Store::open(&path).unwrap();
    assert!(matches!(Store::open(&path), Err(StoreError::InUse { .. })));
}

#[tokio::test]
async fn a_file_that_is_no_store_is_moved_aside() {
    let (directory, path) = temporary();
    std::fs::write(&path, vec![b'x'; 100_000]).unwrap();
    let store = Store::open(&path).unwrap();
    store.put(Table::Boots, b"a", b"1".to_vec()).await.unwrap();
    assert_eq!(std::fs::read(directory.path().join("pxed.redb.damaged-1")).unwrap().len(), 100_000);
}

#[tokio::test]
async fn a_store_with_flipped_bytes_is_moved_aside_and_serves_on() {
    let (directory, path) = temporary();
    let store = Store::open(&path).unwrap();
    for n in 0..50_u8 {
        store.put(Table::Machines, &[n], vec![n; 4000]).await.unwrap();
    }
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    for byte in bytes.iter_mut().skip(4096).step_by(512) {
        *byte ^= 0xff;
    }
    std::fs::write(&path, bytes).unwrap();
    let store = Store::open(&path).unwrap();
    store.put(Table::Boots, b"a", b"1".to_vec()).await.unwrap();
    assert!(directory.path().join("pxed.redb.damaged-1").exists());
}

#[tokio::test]
async fn pxed_starts_and_keeps_the_file_whichever_page_is_damaged() {
    let (directory, path) = temporary();
    let store = Store::open(&path).unwrap();
    for table in Table::ALL {
        let puts = (0..40_u8).map(|n| Change::Put(table, vec![n; 20], vec![n; 3000]));
        store.write(puts.collect()).await.unwrap();
    }
    drop(store);
    let sound = std::fs::read(&path).unwrap();
    let last = sound.len() - 4096;
    let mut moved = 0;
    for step in 0..=24 {
        let at = last * step / 24;
        for fill in [0x00, 0x5a, 0xff] {
            let mut damaged = sound.clone();
            damaged[at..at + 4096].fill(fill);
            std::fs::write(&path, &damaged).unwrap();
            let store = Store::open(&path).unwrap();
            let found: usize = Table::ALL.iter().map(|table| store.scan(*table).unwrap().len()).sum();
            store.put(Table::Boots, b"a", b"1".to_vec()).await.unwrap();
            drop(store);
            let aside = directory.path().join(format!("pxed.redb.damaged-{}", moved + 1));
            if aside.exists() {
                moved += 1;
                assert_eq!((found, std::fs::metadata(&aside).unwrap().len()), (0, sound.len() as u64));
            } else {
                assert_eq!(
                    found,
                    40 * Table::ALL.len(),
                    "nothing is lost in silence: page at {at}, {fill:#x}"
                );
            }
        }
    }
    assert!(moved > 10, "{moved}");
}

#[test]
fn lost_content_of_a_damaged_file_is_named_for_every_table() {
    let lost = open::lost();
    for word in ["boots", "seeds", "machines", "statuses", "key", "discovered"] {
        assert!(lost.contains(word), "{lost}");
    }
    assert_eq!(lost.split("; ").count(), Table::ALL.len());
}

/// The child of the test below: puts numbers for ever, and says each one aloud once it is durable.
#[test]
#[ignore = "the child process of a_killed_process_loses_nothing_that_was_acknowledged"]
fn child_that_puts_until_it_is_killed() {
    let Some(path) = std::env::var_os("PXED_STORE_TEST_FILE") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(Path::new(&path)).unwrap();
        for n in 0_u32.. {
            store.put(Table::Boots, &n.to_be_bytes(), vec![7; 300]).await.unwrap();
            println!("\ndurable {n}");
        }
    });
}

#[test]
fn a_killed_process_loses_nothing_that_was_acknowledged() {
    let (_directory, path) = temporary();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "store::tests::child_that_puts_until_it_is_killed"])
        .env("PXED_STORE_TEST_FILE", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    while acknowledged.len() < 30 {
        let line = lines.next().expect("the child goes on until it is killed").unwrap();
        acknowledged.extend(line.strip_prefix("durable ").map(|n| n.parse::<u32>().unwrap()));
    }
    child.kill().unwrap();
    acknowledged.extend(
        lines
            .map_while(Result::ok)
            .filter_map(|l| l.strip_prefix("durable ").and_then(|n| n.parse::<u32>().ok())),
    );
    child.wait().unwrap();
    let store = Store::open(&path).unwrap();
    for n in acknowledged {
        assert!(
            store.get(Table::Boots, &n.to_be_bytes()).unwrap().is_some(),
            "{n} was acknowledged and is lost"
        );
    }
    assert!(!path.with_extension("redb.damaged-1").exists());
}
