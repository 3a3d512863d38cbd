//! Limits of concurrent BMC connections, and the only place where passwords are tried.
//!
//! Polling leaves a quarter of all connections to users' operations; an address has at most two connections. A
//! password that was not used yet is tried by one worker only. The result holds for all Machines behind that address,
//! so a wrong password is tried once. A permit is never held during a wait. Caller: `connection`.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use bedplate_bmc::BmcError;
use bedplate_process::lock::Lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::power::CredentialsVersion;

/// Maximum number of concurrent connections to one address.
const PER_ADDRESS: usize = 2;
/// Minimum number of entries before unused ones are removed.
const MIN_ENTRIES_TO_PURGE: usize = 64;

/// For whom a BMC is talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// A poll of an idle Machine.
    Polling,
    /// An operation of a user.
    Operation,
}

/// One user at one address, with one state of the Secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Account {
    /// As the Machine names it.
    pub address: String,
    /// User name.
    pub user: String,
    /// The state of the Secret.
    pub version: CredentialsVersion,
}

/// Result of logging in with an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The account was not tried yet.
    Untried,
    /// The login was accepted.
    Good,
    /// The login was rejected, with this error.
    Wrong(BmcError),
}

/// Verdict on an account; the holder of the lock of an untried account tries it.
pub type Login = tokio::sync::Mutex<Verdict>;

/// Lets workers through.
pub struct Gate {
    all: Arc<Semaphore>,
    polling: Arc<Semaphore>,
    addresses: Shared<String, Semaphore>,
    logins: Shared<Account, Login>,
}

/// Leave to talk to a BMC.
pub struct Pass {
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Gate {
    /// Creates limits for this number of connections.
    pub fn new(connections: usize) -> Self {
        let reserve = (connections / 4).max(1);
        let polling = connections.saturating_sub(reserve).max(1);
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            all: semaphore(connections.max(polling + reserve)),
            polling: semaphore(polling),
            addresses: Shared::default(),
            logins: Shared::default(),
        }
    }

    /// The turnstile of an address.
    pub fn address(&self, address: &str) -> Arc<Semaphore> {
        self.addresses.get(address.to_owned(), || Semaphore::new(PER_ADDRESS))
    }

    /// Returns the shared verdict on an account.
    pub fn login(&self, account: Account) -> Arc<Login> {
        self.logins.get(account, || Login::new(Verdict::Untried))
    }

    /// Returns a permit if one is free and no other worker waits for it.
    pub(crate) fn enter_at_once(&self, address: &Arc<Semaphore>, whom: For) -> Option<Pass> {
        let mut permits = Vec::with_capacity(3);
        for semaphore in self.semaphores(address, whom) {
            permits.push(semaphore.clone().try_acquire_owned().ok()?);
        }
        Some(Pass { _permits: permits })
    }

    fn semaphores<'a>(
        &'a self,
        address: &'a Arc<Semaphore>,
        whom: For,
    ) -> impl Iterator<Item = &'a Arc<Semaphore>> {
        let polling = (whom == For::Polling).then_some(&self.polling);
        [address].into_iter().chain(polling).chain([&self.all])
    }

    /// Waits for a permit. The address is checked first, so that a busy address does not block other workers.
    pub async fn enter(&self, address: &Arc<Semaphore>, whom: For) -> Pass {
        let mut permits = Vec::with_capacity(3);
        for semaphore in self.semaphores(address, whom) {
            // The semaphores are never closed.
            permits.extend(semaphore.clone().acquire_owned().await.ok());
        }
        Pass { _permits: permits }
    }
}

/// Values that workers share; a value is dropped with its last user.
struct Shared<K, V>(Lock<HashMap<K, Weak<V>>>);

impl<K, V> Default for Shared<K, V> {
    fn default() -> Self {
        Self(Lock::default())
    }
}

impl<K: Hash + Eq, V> Shared<K, V> {
    fn get(&self, key: K, new: impl FnOnce() -> V) -> Arc<V> {
        let mut map = self.0.lock();
        if let Some(shared) = map.get(&key).and_then(Weak::upgrade) {
            return shared;
        }
        if map.len() >= MIN_ENTRIES_TO_PURGE && map.len().is_power_of_two() {
            map.retain(|_, weak| weak.strong_count() > 0);
        }
        let shared = Arc::new(new());
        map.insert(key, Arc::downgrade(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn polling_leaves_a_quarter_to_operations() {
        let gate = Gate::new(8);
        let mut passes = Vec::new();
        for n in 0..6 {
            passes.push(gate.enter(&gate.address(&n.to_string()), For::Polling).await);
        }
        let busy = gate.address("x");
        assert!(gate.enter(&busy, For::Polling).now_or_never().is_none());
        assert!(gate.enter_at_once(&busy, For::Polling).is_none());
        assert!(gate.enter_at_once(&busy, For::Operation).is_some());
        assert!(gate.enter(&busy, For::Operation).now_or_never().is_some());
    }

    #[tokio::test]
    async fn an_address_takes_two_at_once_however_many_machines_are_behind_it() {
        let gate = Gate::new(8);
        let (one, other) = (gate.address("a"), gate.address("a"));
        let first = gate.enter(&one, For::Operation).await;
        let _second = gate.enter(&other, For::Operation).await;
        assert!(gate.enter(&other, For::Operation).now_or_never().is_none());
        drop(first);
        assert!(gate.enter(&other, For::Operation).now_or_never().is_some());
    }

    #[test]
    fn unused_entries_are_removed() {
        let gate = Gate::new(8);
        for n in 0..1000 {
            gate.address(&n.to_string());
        }
        assert!(gate.addresses.0.lock().len() <= MIN_ENTRIES_TO_PURGE);
    }
}
