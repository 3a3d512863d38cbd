//! Digests that a running `ensure` of this process needs, whenever they were used last: `collect` keeps them.
//!
//! Callers: the store and `files` pin, `collect` asks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bedplate_api::id::Digest;

/// Every pinned digest and how many pin it.
#[derive(Debug, Default)]
pub(crate) struct Pins(Mutex<HashMap<Digest, usize>>);

/// Pins until it is dropped.
#[derive(Debug)]
pub(crate) struct Pinned<'a> {
    pins: &'a Pins,
    digests: Vec<Digest>,
}

impl Pins {
    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pin(&self, digests: impl IntoIterator<Item = Digest>) -> Pinned<'_> {
        let digests: Vec<Digest> = digests.into_iter().collect();
        let mut pins = self.lock();
        for digest in &digests {
            *pins.entry(*digest).or_default() += 1;
        }
        Pinned { pins: self, digests }
    }

    /// Runs `act` unless the digest is pinned. It cannot be pinned meanwhile.
    pub(crate) fn unless_pinned<T>(&self, digest: &Digest, act: impl FnOnce() -> T) -> Option<T> {
        let pins = self.lock();
        (!pins.contains_key(digest)).then(act)
    }

    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.lock().contains_key(digest)
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut pins = self.pins.lock();
        for digest in &self.digests {
            if let Some(count) = pins.get_mut(digest) {
                *count = count.saturating_sub(1);
            }
        }
        pins.retain(|_, count| *count > 0);
    }
}
