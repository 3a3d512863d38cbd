//! Which seeds have gone out, and what became of their tokens: the once-only part of a boot.
//!
//! ```text
//!   (none) --take: on disk, then the seed's bytes leave--> Taken --claim by a key: on disk--> Claimed --answer--> Answered
//!                                                            |                                   |            same key: same answer
//!                                                            +-- expires                         +-- another key: refused
//! ```
//!
//! Only the SHA-256 of a token is kept. Called by `http` (take) and `enrol` (check, claim, answer).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use bedplate_api::id::{BootId, Digest};
use bedplate_api::wire::SecretText;
use jiff::{SignedDuration, Timestamp};
use rand::TryRng;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::record::{Owner, Record};
use super::table::Boot;
use crate::store::{Change, Store, StoreError, Table};

/// How long a token is good: enough for the slowest host to boot, and for an answer that was lost to be asked for again.
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_hours(1);

/// What is kept of a seed that went out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    /// Whose it is.
    pub owner: Owner,
    /// SHA-256 of the token's text.
    pub token: Digest,
    /// When it went out.
    pub time: Timestamp,
    /// Until when the token is good.
    pub expires: Timestamp,
    /// Who used the token.
    #[serde(default)]
    pub claim: Option<Claim>,
}

/// The use of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// SHA-256 of the SubjectPublicKeyInfo of the key that used it.
    pub key: Digest,
    /// The certificate that it was given, once there is one (PEM).
    #[serde(default)]
    pub certificate: Option<String>,
}

impl Taken {
    /// A new token and what is kept of it; none: the system has no random numbers.
    fn new(owner: Owner, now: Timestamp) -> Option<(SecretText, Self)> {
        let mut bytes = [0; 32];
        rand::rngs::SysRng.try_fill_bytes(&mut bytes).ok()?;
        let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
        let expires = now.saturating_add(TOKEN_LIFETIME).unwrap_or(now);
        let taken = Self { owner, token: hash(&token), time: now, expires, claim: None };
        Some((SecretText(token), taken))
    }
}

/// Why no seed is given.
#[derive(Debug, Error)]
pub enum TakeSeedError {
    /// It went out before.
    #[error("the seed of this boot has gone out")]
    Taken,
    /// The mark could not be written, so the seed does not leave.
    #[error("the seed's mark cannot be written")]
    Store(#[from] StoreError),
    /// The system has no random numbers.
    #[error("no random numbers")]
    Random,
}

/// Why a token is not taken.
#[derive(Debug, Error)]
pub enum CheckTokenError {
    /// No seed of this boot has gone out, or it is long ago.
    #[error("no seed of this boot has gone out")]
    UnknownBoot,
    /// The token is another.
    #[error("the token is not that of this boot's seed")]
    WrongToken,
    /// The token's time is over.
    #[error("the token was good until {0}")]
    Expired(Timestamp),
    /// Another key used it.
    #[error("the token was used by another key")]
    Used,
    /// The claim could not be written.
    #[error("the token's use cannot be written")]
    Store(#[from] StoreError),
}

/// The seeds that went out.
#[derive(Debug)]
pub struct Seeds {
    store: Store,
    taken: Arc<Mutex<HashMap<BootId, Taken>>>,
}

impl Seeds {
    pub(super) fn load(store: Store) -> Result<Self, StoreError> {
        let mut taken = HashMap::new();
        for (key, value) in store.scan(Table::Seeds)? {
            let id = <[u8; 16]>::try_from(key.as_slice()).ok().map(BootId::from_random);
            match (id, serde_json::from_slice(&value)) {
                (Some(id), Ok(seed)) => drop(taken.insert(id, seed)),
                (_, _) => tracing::error!("an entry of the table of seeds cannot be read"),
            }
        }
        Ok(Self { store, taken: Arc::new(Mutex::new(taken)) })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BootId, Taken>> {
        lock(&self.taken)
    }

    /// The boots whose seed has gone out.
    pub(super) fn taken(&self) -> Vec<BootId> {
        self.lock().keys().copied().collect()
    }

    /// Takes the boot's seed: the token for it, whose mark is on disk when this returns. What was begun is brought to its
    /// end even if nobody waits for it any more (the client went away): then that boot's seed is spent.
    ///
    /// # Errors
    /// It was taken before, also by a request that is going on now; or the mark could not be written, and then it can
    /// be tried again.
    pub async fn take(&self, boot: &Arc<Boot>, now: Timestamp) -> Result<SecretText, TakeSeedError> {
        let (record, before) = boot.change(|record: &mut Record| {
            let before = std::mem::replace(&mut record.seed_taken, true);
            (record.clone(), before)
        });
        if before || self.lock().contains_key(&record.id) {
            return Err(TakeSeedError::Taken);
        }
        let Some((token, taken)) = Taken::new(record.opening.owner.clone(), now) else {
            boot.change(|record| record.seed_taken = false);
            return Err(TakeSeedError::Random);
        };
        let (store, seeds, boot) = (self.store.clone(), self.taken.clone(), boot.clone());
        let marked = tokio::spawn(async move {
            let written = put(&store, record.id, &taken).await;
            match written {
                Ok(()) => drop(lock(&seeds).insert(record.id, taken)),
                // A commit that failed may still be on disk: then the next start takes the seed for gone, which is safe.
                Err(_) => boot.change(|record| record.seed_taken = false),
            }
            written
        });
        // A task that does not end: this pxed is being shut down.
        marked.await.unwrap_or(Err(StoreError::Closed))?;
        Ok(token)
    }

    /// A token for a host that boots without us, by an id of its own; on disk when this returns.
    ///
    /// # Errors
    /// It could not be written, or there are no random numbers.
    pub async fn issue(&self, owner: Owner, now: Timestamp) -> Result<(BootId, SecretText), TakeSeedError> {
        let mut bytes = [0; 16];
        rand::rngs::SysRng.try_fill_bytes(&mut bytes).map_err(|_| TakeSeedError::Random)?;
        let id = BootId::from_random(bytes);
        let (token, taken) = Taken::new(owner, now).ok_or(TakeSeedError::Random)?;
        put(&self.store, id, &taken).await?;
        self.lock().insert(id, taken);
        Ok((id, token))
    }

    /// Whether this token is good for that boot, and not used by another key.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check(
        &self,
        id: BootId,
        token: &SecretText,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Taken, CheckTokenError> {
        let seed = self.lock().get(&id).cloned().ok_or(CheckTokenError::UnknownBoot)?;
        // Digests of a secret are compared, so that even a compare in variable time would tell nothing of the token;
        // it is one in constant time all the same.
        if !same(&hash(&token.0), &seed.token) {
            return Err(CheckTokenError::WrongToken);
        }
        if now >= seed.expires {
            return Err(CheckTokenError::Expired(seed.expires));
        }
        match &seed.claim {
            Some(claim) if claim.key != *key => Err(CheckTokenError::Used),
            _ => Ok(seed),
        }
    }

    /// Binds the token to a key; on disk when this returns. Of two keys at once, one wins.
    ///
    /// # Errors
    /// Another key was faster, or the store failed.
    pub async fn claim(&self, id: BootId, key: Digest) -> Result<(), CheckTokenError> {
        let seed = {
            let mut taken = self.lock();
            let seed = taken.get_mut(&id).ok_or(CheckTokenError::UnknownBoot)?;
            match &seed.claim {
                Some(claim) if claim.key != key => return Err(CheckTokenError::Used),
                Some(_) => {}
                None => seed.claim = Some(Claim { key, certificate: None }),
            }
            seed.clone()
        };
        Ok(put(&self.store, id, &seed).await?)
    }

    /// Remembers the answer, so that it can be given again if it was lost.
    ///
    /// # Errors
    /// The store failed.
    pub async fn answer(&self, id: BootId, certificate: &str) -> Result<(), StoreError> {
        let seed = {
            let mut taken = self.lock();
            let Some(seed) = taken.get_mut(&id) else { return Ok(()) };
            if let Some(claim) = &mut seed.claim {
                claim.certificate = Some(certificate.to_owned());
            }
            seed.clone()
        };
        put(&self.store, id, &seed).await
    }

    /// Forgets seeds whose token has expired and whose boot is gone: its URL answers 404 then.
    pub(super) fn sweep(&self, now: Timestamp, lives: impl Fn(BootId) -> bool) -> Vec<Change> {
        let mut taken = self.lock();
        let gone: Vec<_> = taken
            .iter()
            .filter(|(id, seed)| now >= seed.expires && !lives(**id))
            .map(|(id, _)| *id)
            .collect();
        for id in &gone {
            taken.remove(id);
        }
        gone.into_iter().map(|id| Change::Delete(Table::Seeds, id.bytes().to_vec())).collect()
    }
}

/// Every change of a seed is whole before the lock is let go.
fn lock(taken: &Mutex<HashMap<BootId, Taken>>) -> MutexGuard<'_, HashMap<BootId, Taken>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn put(store: &Store, id: BootId, seed: &Taken) -> Result<(), StoreError> {
    // Plain data with text keys: it always has a JSON form.
    let value = serde_json::to_vec(seed).unwrap_or_default();
    store.put(Table::Seeds, &id.bytes(), value).await
}

/// SHA-256 of a text, as a digest.
pub fn hash(text: &str) -> Digest {
    Digest::from_sha256(Sha256::digest(text.as_bytes()).into())
}

/// Compares in a time that does not depend on where they differ.
fn same(a: &Digest, b: &Digest) -> bool {
    let (a, b) = (a.hex(), b.hex());
    a.bytes().zip(b.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
