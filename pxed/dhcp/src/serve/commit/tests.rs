//! Tests of the committer: no answer is sent before its lease is on disk, and no caller waits for the disk.

use std::io;
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;

use bedplate_api::id::MacAddress;
use redb::backends::InMemoryBackend;

use super::*;
use crate::client::{BootAnswer, Client, Clients, Loader, Message};
use crate::lease::{ClientKey, Holder};
use crate::respond::Destination;
use crate::settings::{Mode, Ports, Settings};
use crate::store::tests::store_on;
use crate::wire::MessageType;

/// Externally visible steps of a commit, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Synced,
    Sent(MacAddress),
    Observed(MacAddress),
}

#[derive(Debug, Clone, Default)]
struct Steps(Arc<Mutex<Vec<Step>>>);

impl Steps {
    fn push(&self, step: Step) {
        self.0.lock().unwrap().push(step);
    }

    fn drain(&self) -> Vec<Step> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Clients for Steps {
    fn client(&self, _: &Query) -> Client {
        Client::Unknown { discovery: false }
    }

    fn boot(&self, _: &Query) -> Option<BootAnswer> {
        None
    }

    fn observe(&self, query: &Query, _: &Event) {
        self.push(Step::Observed(query.mac));
    }
}

impl Outlet for Steps {
    fn send(&self, packets: &[&Packet], done: &mut dyn FnMut(&Packet, io::Result<()>)) {
        for packet in packets {
            self.push(Step::Sent(packet.mac));
            done(packet, Ok(()));
        }
    }
}

/// Disk that records each sync, and fails each sync while `broken` is set.
#[derive(Debug)]
struct Disk {
    memory: InMemoryBackend,
    steps: Steps,
    broken: Arc<AtomicBool>,
}

impl redb::StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.memory.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.memory.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.steps.push(Step::Synced);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.memory.write(offset, data)
    }
}

/// Committer with a disk and outlets that record into `steps`.
struct Bench {
    committer: Committer,
    engine: Engine,
    steps: Steps,
    broken: Arc<AtomicBool>,
    directory: tempfile::TempDir,
}

impl Bench {
    /// Creates a bench whose queue has capacity for `room` answers.
    fn new(room: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (steps, broken) = (Steps::default(), Arc::<AtomicBool>::default());
        let disk = Disk { memory: InMemoryBackend::new(), steps: steps.clone(), broken: Arc::clone(&broken) };
        let store = store_on(disk);
        // Creates the table, as in an opened lease file.
        store.write([].iter()).unwrap();
        let (jobs, queue) = sync_channel(room);
        let committer = Committer::new(store, directory.path().join("leases.redb"), queue);
        let settings = Settings {
            mode: Mode::Server,
            interfaces: Vec::new(),
            authoritative: false,
            subnets: Vec::new(),
            ports: Ports::default(),
        };
        let engine = Engine::new(settings, Table::default(), Arc::new(steps.clone()), jobs);
        steps.drain();
        Self { committer, engine, steps, broken, directory }
    }

    fn commit(&mut self, jobs: &[Job]) -> Vec<Step> {
        self.committer.commit(&self.engine, jobs);
        self.steps.drain()
    }

    fn lost(&self) -> u64 {
        self.engine.counters.trouble(Trouble::CommitFailed)
    }
}

fn mac(last: u8) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 0, last])
}

/// Returns a job that acknowledges client `last` through `outlet`.
fn job(last: u8, outlet: &Arc<dyn Outlet>) -> Job {
    let lease = lease(last, last, LeaseState::Bound);
    let query = Query {
        mac: mac(last),
        transaction: 1,
        message: Message::Request,
        loader: Loader::None,
        architectures: Vec::new(),
        uuid: None,
        vendor_class: String::new(),
        host_name: None,
        subnet: lease.holder.network,
        server: std::net::Ipv4Addr::new(10, 7, 0, 1),
        relay: None,
        proxy: false,
    };
    let packet = Packet {
        message: MessageType::Ack,
        to: Destination::Broadcast,
        mac: mac(last),
        source: query.server,
        payload: Vec::new(),
    };
    let event = Event::Acknowledged(lease.address);
    Job { query, event, packet: Some(packet), changes: vec![Change::Put(lease)], outlet: Arc::clone(outlet) }
}

fn lease(last: u8, holder: u8, state: LeaseState) -> Lease {
    let mac = mac(holder);
    let network = "10.7.0.0/24".parse().unwrap();
    let holder = Holder { network, key: ClientKey::Mac(mac) };
    let address = std::net::Ipv4Addr::new(10, 7, 0, last);
    Lease { address, holder, mac, machine: None, state, since: 1, until: 2 }
}

#[test]
fn ack_is_sent_after_its_lease_is_synced_to_disk() {
    use Step::{Observed, Sent, Synced};
    let mut bench = Bench::new(0);
    let outlets: [Arc<dyn Outlet>; 2] = [Arc::new(bench.steps.clone()), Arc::new(bench.steps.clone())];
    let steps = bench.commit(&[job(1, &outlets[0]), job(2, &outlets[1]), job(3, &outlets[0])]);
    let synced = steps.iter().take_while(|step| **step == Synced).count();
    assert!(synced > 0, "sent before anything was synced: {steps:?}");
    let observed = [1, 2, 3].map(|last| Observed(mac(last)));
    assert_eq!(steps[synced..], [&[1, 3, 2].map(|last| Sent(mac(last))), &observed[..]].concat());
    assert_eq!(bench.engine.counters.sent(MessageType::Ack), 3);
    assert_eq!((bench.engine.counters.commits(), bench.engine.counters.committed_changes()), (1, 3));
    assert_eq!(bench.lost(), 0);
}

#[test]
fn failed_write_sends_nothing_until_the_file_can_be_written() {
    let mut bench = Bench::new(0);
    let outlet: Arc<dyn Outlet> = Arc::new(bench.steps.clone());
    bench.broken.store(true, Ordering::Relaxed);
    assert_eq!(bench.commit(&[job(1, &outlet), job(2, &outlet)]), []);
    assert_eq!(bench.lost(), 2);
    // The committer reopens the file at its path, which is a directory now.
    let path = bench.directory.path().join("leases.redb");
    std::fs::create_dir(&path).unwrap();
    assert_eq!(bench.commit(&[job(3, &outlet)]), []);
    assert_eq!(bench.lost(), 3);
    assert_eq!(bench.engine.counters.sent(MessageType::Ack), 0);
    assert_eq!(bench.engine.counters.commits(), 0);
    std::fs::remove_dir(&path).unwrap();
    assert_eq!(bench.commit(&[job(4, &outlet)]), [Step::Sent(mac(4)), Step::Observed(mac(4))]);
    assert_eq!(bench.lost(), 3);
    drop(bench.committer);
    let (_store, leases) = Store::open(&path).unwrap();
    assert_eq!(leases, [lease(4, 4, LeaseState::Bound)]);
}

#[test]
fn full_queue_drops_the_answer_and_never_blocks_its_caller() {
    let Bench { committer, engine, steps, .. } = Bench::new(1);
    let outlet: Arc<dyn Outlet> = Arc::new(steps);
    let engine = Arc::new(engine);
    let (offered, returned) = sync_channel(0);
    let packet_thread = Arc::clone(&engine);
    // The deadline only bounds how long a blocked caller takes to fail the test.
    std::thread::spawn(move || {
        (1..=3).for_each(|last| packet_thread.offer(job(last, &outlet)));
        offered.send(())
    });
    returned.recv_timeout(Duration::from_secs(60)).expect("offer does not wait for the queue");
    assert_eq!(engine.counters.trouble(Trouble::CommitQueueFull), 2);
    let queued: Vec<MacAddress> = committer.queue.try_iter().map(|job| job.query.mac).collect();
    assert_eq!(queued, [mac(1)]);
}

#[test]
fn lost_removals_stay_removed_when_the_file_is_reopened() {
    use LeaseState::{Bound, Free, Offered};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leases.redb");
    let (store, _) = Store::open(&path).unwrap();
    let on_disk = [lease(1, 1, Bound), lease(2, 2, Bound), lease(3, 3, Bound), lease(4, 4, Bound)];
    store.write(on_disk.map(Change::Put).iter()).unwrap();
    drop(store);
    // Changes that are not on disk: 2 was removed, 3 was freed and offered to another client, 4 was freed, 5 is new.
    let mut table = Table::default();
    let in_memory = [lease(1, 1, Bound), lease(3, 9, Offered), lease(4, 4, Free), lease(5, 5, Bound)];
    in_memory.into_iter().for_each(|lease| table.restore(lease));
    let (store, rows) = Store::open(&path).unwrap();
    store.write(rewrite(&rows, &table).iter()).unwrap();
    drop(store);
    let (_store, mut rows) = Store::open(&path).unwrap();
    rows.sort_by_key(|row| row.address);
    assert_eq!(rows, [lease(1, 1, Bound), lease(4, 4, Free), lease(5, 5, Bound)]);
}
