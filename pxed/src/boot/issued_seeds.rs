//! Issued seeds and the use of their tokens: the once-only part of a boot.
//!
//! ```text
//!   (none) --take: on disk, then the seed's bytes leave--> Taken --claim by a key: on disk--> Claimed --answer--> Answered
//!                                                            |                                   |            same key: same answer
//!                                                            +-- expires                         +-- another key: refused
//!                                                            +-- another boot of the owner enrolls (win): superseded
//! ```
//!
//! Only the SHA-256 of a token is kept. Called by `http` (take) and `enroll` (check, claim, win, answer).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use base64::Engine as _;
use bedplate_api::id::{BootId, Digest};
use bedplate_api::wire::SecretText;
use bedplate_process::exit::chain;
use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};
use rand::TryRng;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::record::{Owner, Record};
use super::table::{Boot, MAX_BOOTS_PER_OWNER, Table as BootTable};
use crate::store::{Change, Store, StoreError, Table};

/// Lifetime of a token: enough for the slowest host to boot, and to ask again after a lost answer.
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_hours(1);

/// Maximum number of seeds of one owner whose tokens are kept: as many as it may have boots. A MAC address can be forged, and each boot that is
/// opened in its name gives a seed.
pub(super) const MAX_SEEDS_PER_OWNER: usize = MAX_BOOTS_PER_OWNER;

/// Record of a seed that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    /// Owner of the boot.
    pub owner: Owner,
    /// SHA-256 of the token's text.
    pub token: Digest,
    /// Time at which it went out.
    pub time: Timestamp,
    /// Expiry time of the token.
    pub expires: Timestamp,
    /// Use of the token.
    #[serde(default)]
    pub claim: Option<Claim>,
    /// True if an operator issued the token, false if a boot took it.
    #[serde(default)]
    pub issued: bool,
    /// True if a host has enrolled since by another token of this owner. The entry stays: its boot's seed must not go out again.
    #[serde(default)]
    pub superseded: bool,
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
        let (token_hash, claim) = (hash(&token), None);
        let taken =
            Self { owner, token: token_hash, time: now, expires, claim, issued: false, superseded: false };
        Some((SecretText(token), taken))
    }

    /// Checks that this key may use the token.
    ///
    /// # Errors
    /// Another key used it.
    pub(crate) fn check_key(&self, key: &Digest) -> Result<(), CheckTokenError> {
        match &self.claim {
            Some(claim) if claim.key != *key => Err(CheckTokenError::Used),
            _ => Ok(()),
        }
    }
}

/// Error of taking a seed.
#[derive(Debug, Error)]
pub enum TakeSeedError {
    /// The seed was already issued.
    #[error("the seed of this boot was already issued")]
    Taken,
    /// The mark could not be written, so the seed does not leave.
    #[error("the record of the seed cannot be stored")]
    Store(#[from] StoreError),
    /// The system has no random numbers.
    #[error("no random numbers")]
    Random,
}

/// Error of checking a token.
#[derive(Debug, Error)]
pub enum CheckTokenError {
    /// No seed of this boot was issued, or it was issued long ago.
    #[error("no seed of this boot was issued")]
    UnknownBoot,
    /// The token is another.
    #[error("the token does not belong to the seed of this boot")]
    WrongToken,
    /// The token has expired.
    #[error("the token expired at {0}")]
    Expired(Timestamp),
    /// Another key used it.
    #[error("the token was used by another key")]
    Used,
    /// A host has enrolled since by another token of its owner.
    #[error("a host has enrolled by a later token of this Machine")]
    Superseded,
    /// The claim could not be written.
    #[error("the use of the token cannot be stored")]
    Store(#[from] StoreError),
}

/// The seeds that went out.
#[derive(Debug, Clone)]
pub struct Seeds {
    store: Store,
    boots: Arc<BootTable>,
    taken: Arc<Lock<Kept>>,
    /// Boots whose row could not be read at the start. Their token is lost.
    unreadable: Arc<HashSet<BootId>>,
}

/// The seeds in memory.
#[derive(Debug, Default)]
struct Kept {
    by_boot: HashMap<BootId, Taken>,
    /// The boots of each owner, the oldest seed first.
    by_owner: HashMap<Owner, VecDeque<BootId>>,
}

impl Kept {
    /// Adds a seed. Returns the boots of the same owner whose seeds were removed: the oldest that no key has claimed and whose boot does
    /// not `live` any more, otherwise the oldest. An owner has at most as many live boots as kept seeds, so the mark of a live boot stays.
    fn insert(&mut self, id: BootId, taken: Taken, lives: impl Fn(BootId) -> bool) -> Vec<BootId> {
        let boots = self.by_owner.entry(taken.owner.clone()).or_default();
        boots.push_back(id);
        self.by_boot.insert(id, taken);
        let mut dropped = Vec::new();
        while boots.len() > MAX_SEEDS_PER_OWNER {
            let is_claimed =
                |id: &BootId| self.by_boot.get(id).is_some_and(|seed: &Taken| seed.claim.is_some());
            // The newest stays: it is about to leave.
            let older = || boots.iter().take(MAX_SEEDS_PER_OWNER);
            let oldest = older()
                .position(|id| !is_claimed(id) && !lives(*id))
                .or_else(|| older().position(|id| !lives(*id)))
                .unwrap_or(0);
            let Some(id) = boots.remove(oldest) else { break };
            self.by_boot.remove(&id);
            dropped.push(id);
        }
        dropped
    }

    /// Ends the tokens of the other seeds of this boot's owner. Returns their rows.
    fn supersede_others(&mut self, id: BootId) -> Vec<Change> {
        let Some(owner) = self.by_boot.get(&id).map(|seed| &seed.owner) else { return Vec::new() };
        let boots = self.by_owner.get(owner).cloned().unwrap_or_default();
        let mut changes = Vec::new();
        for other in boots.into_iter().filter(|other| *other != id) {
            if let Some(seed) = self.by_boot.get_mut(&other) {
                seed.superseded = true;
                changes.push(entry(other, seed));
            }
        }
        changes
    }

    fn remove(&mut self, id: &BootId) {
        let Some(taken) = self.by_boot.remove(id) else { return };
        if let Some(boots) = self.by_owner.get_mut(&taken.owner) {
            boots.retain(|boot| boot != id);
            if boots.is_empty() {
                self.by_owner.remove(&taken.owner);
            }
        }
    }
}

impl Seeds {
    /// Reads the seeds of the store, and returns the deletions of those that are not kept: expired ones whose boot is gone, and those beyond
    /// [`MAX_SEEDS_PER_OWNER`].
    pub(super) fn load(
        store: Store,
        boots: Arc<BootTable>,
        now: Timestamp,
    ) -> Result<(Self, Vec<Change>), StoreError> {
        let lives = |id| boots.get(id, now).is_some();
        let (mut seeds, mut gone, mut unreadable) = (Vec::new(), Vec::new(), HashSet::new());
        for (key, value) in store.scan(Table::Seeds)? {
            let id = <[u8; 16]>::try_from(key.as_slice()).ok().map(BootId::from_random);
            match (id, serde_json::from_slice::<Taken>(&value)) {
                (Some(id), Ok(seed)) if now >= seed.expires && !lives(id) => gone.push(id),
                (Some(id), Ok(seed)) => seeds.push((id, seed)),
                // Its boot counts as taken: its token is lost.
                (Some(id), Err(error)) => {
                    tracing::error!(%error, boot = %id.public_id(), "failed to read the seed of a boot");
                    unreadable.insert(id);
                }
                (None, _) => tracing::error!("seed table entry without boot ID skipped"),
            }
        }
        seeds.sort_by_key(|(_, seed)| seed.time);
        let mut kept = Kept::default();
        for (id, seed) in seeds {
            gone.extend(kept.insert(id, seed, lives));
        }
        let deletions = gone.into_iter().map(deletion).collect();
        let taken = Arc::new(Lock::new(kept));
        Ok((Self { store, boots, taken, unreadable: Arc::new(unreadable) }, deletions))
    }

    /// Returns the boots whose seed was issued.
    pub(super) fn taken(&self) -> Vec<BootId> {
        self.taken.lock().by_boot.keys().chain(self.unreadable.iter()).copied().collect()
    }

    /// Returns the boots whose host has enrolled, with their owners.
    pub(super) fn enrolled(&self) -> Vec<(BootId, Owner)> {
        let has_certificate =
            |seed: &Taken| seed.claim.as_ref().is_some_and(|claim| claim.certificate.is_some());
        let kept = self.taken.lock();
        let enrolled = kept.by_boot.iter().filter(|(_, seed)| has_certificate(seed));
        enrolled.map(|(id, seed)| (*id, seed.owner.clone())).collect()
    }

    /// Returns the owner of a boot whose seed was issued.
    pub fn owner(&self, id: BootId) -> Option<Owner> {
        self.taken.lock().by_boot.get(&id).map(|seed| seed.owner.clone())
    }

    /// Takes the boot's seed: returns its token, which is marked on disk by then. A started call is finished even if
    /// the client has gone away; that boot's seed is spent then.
    ///
    /// # Errors
    /// The seed was taken before, or another request is taking it now. If the mark could not be written, the call can
    /// be retried.
    pub async fn take(&self, boot: &Arc<Boot>, now: Timestamp) -> Result<SecretText, TakeSeedError> {
        let (record, before) = boot.change(|record: &mut Record| {
            let before = std::mem::replace(&mut record.seed_taken, true);
            (record.clone(), before)
        });
        if before || self.taken.lock().by_boot.contains_key(&record.id) {
            return Err(TakeSeedError::Taken);
        }
        let Some((token, taken)) = Taken::new(record.opening.owner.clone(), now) else {
            boot.change(|record| record.seed_taken = false);
            return Err(TakeSeedError::Random);
        };
        let (seeds, boot) = (self.clone(), boot.clone());
        let marked = tokio::spawn(async move {
            let written = seeds.store.write(vec![entry(record.id, &taken)]).await;
            match written {
                Ok(()) => seeds.keep(record.id, taken).await,
                // A commit that failed may still be on disk: then the next start takes the seed for gone, which is safe.
                Err(_) => boot.change(|record| record.seed_taken = false),
            }
            written
        });
        // A task that does not end: this pxed is being shut down.
        marked.await.unwrap_or(Err(StoreError::Closed))?;
        Ok(token)
    }

    /// Creates a token for a host that boots without pxed, with its own boot ID. Durable when this returns.
    ///
    /// # Errors
    /// The seed could not be stored, or random numbers are unavailable.
    pub async fn issue(&self, owner: Owner, now: Timestamp) -> Result<(BootId, SecretText), TakeSeedError> {
        let mut bytes = [0; 16];
        rand::rngs::SysRng.try_fill_bytes(&mut bytes).map_err(|_| TakeSeedError::Random)?;
        let id = BootId::from_random(bytes);
        let (token, taken) = Taken::new(owner, now).ok_or(TakeSeedError::Random)?;
        let taken = Taken { issued: true, ..taken };
        self.store.write(vec![entry(id, &taken)]).await?;
        self.keep(id, taken).await;
        Ok((id, token))
    }

    /// Keeps a seed whose row is on disk, and drops those that are too many for its owner, with their rows.
    async fn keep(&self, id: BootId, seed: Taken) {
        let now = seed.time;
        let dropped = self.taken.lock().insert(id, seed, |id| self.boots.get(id, now).is_some());
        if dropped.is_empty() {
            return;
        }
        // Rows that stay because of an error are dropped at the next start.
        if let Err(error) = self.store.write(dropped.into_iter().map(deletion).collect()).await {
            tracing::warn!(error = chain(&error), "failed to delete seeds from the store");
        }
    }

    /// Checks that this token is valid for that boot. It costs a hash, so dearer checks come later. [`Taken::check_key`] checks the key.
    ///
    /// # Errors
    /// Reason why the token is not valid.
    pub fn check(&self, id: BootId, token: &SecretText, now: Timestamp) -> Result<Taken, CheckTokenError> {
        let seed = self.taken.lock().by_boot.get(&id).cloned().ok_or(CheckTokenError::UnknownBoot)?;
        // Digests of a secret are compared, so that even a compare in variable time would tell nothing of the token;
        // The comparison takes constant time in any case.
        if !same(&hash(&token.0), &seed.token) {
            return Err(CheckTokenError::WrongToken);
        }
        if now >= seed.expires {
            return Err(CheckTokenError::Expired(seed.expires));
        }
        if seed.superseded { Err(CheckTokenError::Superseded) } else { Ok(seed) }
    }

    /// Decides that a host enrolls by the token of this boot, before its key is put in force: every other token of
    /// the owner becomes invalid. Returns their rows, for [`Self::answer`]. Of two concurrent tokens, one wins.
    ///
    /// # Errors
    /// Another token was faster, or its seed is gone.
    pub(crate) fn win(&self, id: BootId) -> Result<Vec<Change>, CheckTokenError> {
        let mut kept = self.taken.lock();
        match kept.by_boot.get(&id) {
            None => Err(CheckTokenError::UnknownBoot),
            Some(seed) if seed.superseded => Err(CheckTokenError::Superseded),
            Some(_) => Ok(kept.supersede_others(id)),
        }
    }

    /// Binds the token to a key; on disk when this returns. Of two concurrent keys, one wins.
    ///
    /// # Errors
    /// Another key was faster, or the store failed.
    pub async fn claim(&self, id: BootId, key: Digest) -> Result<(), CheckTokenError> {
        let seed = {
            let mut taken = self.taken.lock();
            let seed = taken.by_boot.get_mut(&id).ok_or(CheckTokenError::UnknownBoot)?;
            if seed.superseded {
                return Err(CheckTokenError::Superseded);
            }
            seed.check_key(&key)?;
            seed.claim.get_or_insert(Claim { key, certificate: None });
            seed.clone()
        };
        Ok(self.store.write(vec![entry(id, &seed)]).await?)
    }

    /// Remembers the answer, so that it can be given again if it was lost. It is on disk in one commit with these changes, or none of them
    /// is: an answer that is given again has its key in force.
    ///
    /// # Errors
    /// The store failed.
    pub async fn answer(
        &self,
        id: BootId,
        certificate: &str,
        mut changes: Vec<Change>,
    ) -> Result<(), StoreError> {
        let set = |seed: &mut Taken| {
            if let Some(claim) = &mut seed.claim {
                claim.certificate = Some(certificate.to_owned());
            }
        };
        let seed = self.taken.lock().by_boot.get(&id).cloned();
        changes.extend(seed.map(|mut seed| {
            set(&mut seed);
            entry(id, &seed)
        }));
        self.store.write(changes).await?;
        if let Some(seed) = self.taken.lock().by_boot.get_mut(&id) {
            set(seed);
        }
        Ok(())
    }

    /// Forgets seeds whose token has expired and whose boot is gone: its URL answers 404 then.
    pub(super) fn sweep(&self, now: Timestamp, lives: impl Fn(BootId) -> bool) -> Vec<Change> {
        let mut taken = self.taken.lock();
        let gone: Vec<_> = taken
            .by_boot
            .iter()
            .filter(|(id, seed)| now >= seed.expires && !lives(**id))
            .map(|(id, _)| *id)
            .collect();
        for id in &gone {
            taken.remove(id);
        }
        gone.into_iter().map(deletion).collect()
    }
}

fn entry(id: BootId, seed: &Taken) -> Change {
    // Plain data with text keys: it always has a JSON form.
    let value = serde_json::to_vec(seed).unwrap_or_default();
    Change::Put(Table::Seeds, id.bytes().to_vec(), value)
}

fn deletion(id: BootId) -> Change {
    Change::Delete(Table::Seeds, id.bytes().to_vec())
}

/// SHA-256 of a text, as a digest.
pub(crate) fn hash(text: &str) -> Digest {
    Digest::from_sha256(Sha256::digest(text.as_bytes()).into())
}

/// Compares in a time that does not depend on where they differ.
fn same(a: &Digest, b: &Digest) -> bool {
    let (a, b) = (a.hex(), b.hex());
    a.bytes().zip(b.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
