//! Transfer of one blob from a registry into the store: resumed by Range,
//! verified, retried with backoff and jitter.
//!
//! ```text
//!   partial on disk --> ask from offset --206 at offset--> append --complete--> compare digest --> commit
//!        ^                  |    |                           |                     |
//!        |                  |    +--200: start again-------> |                     +--differs, parts of it came earlier: once again
//!        +--wait, no attempt left: fail <--------------------+--breaks off
//! ```
//!
//! Caller: the store.

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::BytesMut;
use std::io;
use std::time::Duration;

use crate::error::EnsureImageError;
use crate::layout::finish;
use crate::manifest::Blob;
use crate::partial::{Partial, SharedPartial};
use crate::registry::{Failure, Repository};
use crate::source::{Options, Progress};
use crate::store::{Store, Tell};

/// Bytes collected before they are hashed and written.
const CHUNK_BYTES: usize = 1 << 20;

/// Delays between attempts, and their limit.
#[derive(Debug)]
pub(crate) struct Waits {
    builder: ExponentialBuilder,
    next: ExponentialBackoff,
    longest: Duration,
    attempts: u32,
    failed: u32,
}

impl Waits {
    pub(crate) fn new(options: &Options) -> Self {
        let builder = ExponentialBuilder::default()
            .with_min_delay(options.first_wait)
            .with_max_delay(options.longest_wait)
            .without_max_times()
            .with_jitter();
        let (next, longest) = (builder.build(), options.longest_wait);
        Self { builder, next, longest, attempts: options.attempts.max(1), failed: 0 }
    }

    /// Restarts the count of failures after progress.
    pub(crate) fn moved_on(&mut self) {
        self.failed = 0;
        self.next = self.builder.build();
    }

    /// Returns the delay before the next attempt; `None`: no attempt is left.
    fn after_failure(&mut self, asked: Option<Duration>) -> Option<Duration> {
        self.failed += 1;
        if self.failed >= self.attempts {
            return None;
        }
        let own = self.next.next().unwrap_or(self.longest);
        Some(asked.map_or(own, |asked| asked.max(own)).min(self.longest))
    }

    pub(crate) fn failed(&self) -> u32 {
        self.failed
    }

    /// Reports a failure and sleeps before the next attempt, or returns the error if no attempt is left.
    pub(crate) async fn sleep_or_fail(
        &mut self,
        name: &str,
        what: &str,
        failure: Failure,
        tell: Tell<'_>,
    ) -> Result<(), EnsureImageError> {
        let (image, what) = (name.to_owned(), what.to_owned());
        let (problem, asked) = match failure {
            Failure::Refused { problem } => {
                return Err(EnsureImageError::Refused { image, what, problem });
            }
            Failure::TooLarge { limit } => return Err(EnsureImageError::TooLarge { image, what, limit }),
            Failure::Again { problem, after } => (problem, after),
        };
        let Some(wait) = self.after_failure(asked) else {
            let attempts = self.failed();
            return Err(EnsureImageError::Unreachable { image, what, attempts, problem });
        };
        tracing::debug!(image = %name, %what, %problem, ?wait, "registry failed, retrying");
        tell(Progress::Retry { problem, wait });
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// Failure of one attempt.
enum Stop {
    Registry(Failure),
    Disk(io::Error),
}

/// Ensures that the blob is in the store.
pub(crate) async fn run(
    store: &Store,
    name: &str,
    repository: &Repository,
    blob: Blob,
    tell: Tell<'_>,
) -> Result<(), EnsureImageError> {
    let target = store.path(&blob.digest);
    let path = store.partial_path(&blob.digest.hex());
    let disk = |e| store.write_error(name, path.clone(), e);
    let Some(shared) = SharedPartial::open(path.clone(), || target.exists()).await.map_err(disk)? else {
        return Ok(());
    };
    let what = format!("blob {}", blob.digest);
    let mut waits = Waits::new(store.options());
    let mut best = shared.with(|p| Ok(p.written())).await.map_err(disk)?;
    // Bytes of an earlier attempt may cause a wrong digest. Bytes of one answer are the registry's fault.
    let mut pieced = best > 0;
    loop {
        let outcome = attempt(&shared, repository, blob, tell).await;
        let written = shared.with(|p| Ok(p.written())).await.map_err(disk)?;
        if written >= best + CHUNK_BYTES as u64 {
            waits.moved_on();
            best = written;
        }
        match outcome {
            Ok(()) if pieced && written == blob.size => {
                match finish(store, name, &shared, blob).await {
                    Err(EnsureImageError::DigestMismatch { .. }) => pieced = false,
                    result => return result,
                }
                continue;
            }
            Ok(()) => return finish(store, name, &shared, blob).await,
            Err(Stop::Disk(error)) => return Err(disk(error)),
            Err(Stop::Registry(failure)) => waits.sleep_or_fail(name, &what, failure, tell).await?,
        }
        pieced = written > 0;
    }
}

/// Sends one request; `Ok` when the partial has at least as many bytes as the blob should have.
async fn attempt(
    shared: &SharedPartial,
    repository: &Repository,
    blob: Blob,
    tell: Tell<'_>,
) -> Result<(), Stop> {
    let mut offset = shared.with(|p| Ok(p.written())).await.map_err(Stop::Disk)?;
    if offset > blob.size {
        shared.with(Partial::restart).await.map_err(Stop::Disk)?;
        offset = 0;
    }
    tell(Progress::Transfer { digest: blob.digest, done: offset, total: blob.size });
    if offset == blob.size && offset > 0 {
        return Ok(());
    }
    let mut answer = repository.blob(&blob.digest, offset).await.map_err(Stop::Registry)?;
    if answer.offset != offset {
        shared.with(Partial::restart).await.map_err(Stop::Disk)?;
        if answer.offset != 0 {
            let problem = format!("asked for bytes from {offset}, got bytes from {}", answer.offset);
            return Err(Stop::Registry(Failure::Again { problem, after: None }));
        }
    }
    let mut gathered = BytesMut::with_capacity(CHUNK_BYTES);
    loop {
        let chunk = answer.chunk().await;
        let ended = !matches!(chunk, Ok(Some(_)));
        if let Ok(Some(bytes)) = &chunk {
            gathered.extend_from_slice(bytes);
        }
        if gathered.len() >= CHUNK_BYTES || (ended && !gathered.is_empty()) {
            let bytes = gathered.split().freeze();
            let append = move |p: &mut Partial| p.append(&bytes).map(|()| p.written());
            let written = shared.with(append).await.map_err(Stop::Disk)?;
            tell(Progress::Transfer { digest: blob.digest, done: written, total: blob.size });
            if written > blob.size {
                return Ok(());
            }
        }
        if ended {
            chunk.map_err(Stop::Registry)?;
            let written = shared.with(|p| Ok(p.written())).await.map_err(Stop::Disk)?;
            if written >= blob.size {
                return Ok(());
            }
            let problem = format!("the answer ended after {written} of {} bytes", blob.size);
            return Err(Stop::Registry(Failure::Again { problem, after: None }));
        }
    }
}
