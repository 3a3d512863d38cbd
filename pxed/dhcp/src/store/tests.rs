//! Claims about the lease file.

use std::net::Ipv4Addr;

use super::*;
use crate::lease::{ClientKey, Holder, LeaseState};

fn lease(last: u8) -> Lease {
    let mac = bedplate_api::id::MacAddress::new([2, 0, 0, 0, 0, last]);
    Lease {
        address: Ipv4Addr::new(10, 7, 0, last),
        holder: Holder { network: "10.7.0.0/24".parse().unwrap(), key: ClientKey::Mac(mac) },
        mac,
        machine: None,
        state: LeaseState::Bound,
        since: 1,
        until: 2,
    }
}

/// Returns a store that writes to `backend` instead of a file.
pub(crate) fn store_on(backend: impl redb::StorageBackend) -> Store {
    Store { database: redb::Builder::new().create_with_backend(backend).unwrap() }
}

fn files(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn only_its_owner_may_read_the_lease_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leases.redb");
    let _store = Store::open(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn written_leases_are_present_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leases.redb");
    let (store, leases) = Store::open(&path).unwrap();
    assert_eq!(leases, []);
    let changes = [1, 2, 3].map(|last| Change::Put(lease(last)));
    store.write(changes.iter()).unwrap();
    store.write([Change::Remove(lease(2).address)].iter()).unwrap();
    drop(store);
    let (_store, leases) = Store::open(&path).unwrap();
    assert_eq!(leases, [lease(1), lease(3)]);
}

#[test]
fn a_file_of_something_else_is_moved_aside_and_a_new_one_made() {
    for content in [b"not a lease file".to_vec(), vec![0; 100_000], vec![0xa5; 1_000_000]] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.redb");
        std::fs::write(&path, &content).unwrap();
        let (store, leases) = Store::open(&path).unwrap();
        assert_eq!((leases.len(), files(directory.path())), (0, 2));
        store.write([Change::Put(lease(1))].iter()).unwrap();
    }
}

#[test]
fn a_damaged_file_never_keeps_the_server_from_starting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leases.redb");
    let (store, _) = Store::open(&path).unwrap();
    store.write((0..=255).map(|last| Change::Put(lease(last))).collect::<Vec<_>>().iter()).unwrap();
    drop(store);
    let sound = std::fs::read(&path).unwrap();
    for step in 0..24 {
        let mut damaged = sound.clone();
        let at = damaged.len() * step / 24;
        let end = damaged.len().min(at + 4096);
        damaged[at..end].fill(0x5a);
        std::fs::write(&path, &damaged).unwrap();
        let (store, _) = Store::open(&path).unwrap();
        store.write([Change::Put(lease(1))].iter()).unwrap();
    }
    std::fs::write(&path, &sound[..sound.len() / 2]).unwrap();
    Store::open(&path).unwrap();
}

#[test]
fn a_file_that_is_in_use_is_an_error_and_stays_where_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leases.redb");
    let (_store, _) = Store::open(&path).unwrap();
    assert!(matches!(Store::open(&path), Err(OpenStoreError::Open { .. })));
    assert_eq!(files(directory.path()), 1);
}

#[test]
fn panic_while_a_lease_file_is_closed_ends_no_server() {
    struct Damaged;
    impl Drop for Damaged {
        fn drop(&mut self) {
            panic!("a page is invalid");
        }
    }
    close(Damaged);
}
