//! A layer's compressed bytes, from a registry or an OCI layout, into the stage that inflates them: hashed
//! while they arrive, and resumed by Range after a broken connection.
//!
//! Not here: unpacking. Caller: `ensure`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bedplate_api::id::Digest;
use bytes::{Bytes, BytesMut};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::stream::Piece;
use crate::download::Waits;
use crate::error::EnsureImageError;
use crate::layout::{self, open_regular};
use crate::manifest::Blob;
use crate::partial::blocking;
use crate::registry::{Failure, Repository};
use crate::source::{Options, Progress as TransferProgress};
use crate::store::{Origin, digest_of};

/// Bytes read of a file in one piece.
const CHUNK_BYTES: usize = 1 << 20;

/// Receivers of progress: retries, and the bytes of each step so far.
#[derive(Clone, Copy)]
pub(crate) struct Tell<'a> {
    pub(crate) retry: &'a (dyn Fn(TransferProgress) + Send + Sync),
    pub(crate) bytes: &'a (dyn Fn(u64) + Send + Sync),
}

/// Result of a transfer that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetched {
    Whole,
    /// The other stage stopped and has the reason. If the blob was assembled
    /// from several answers, its bytes may be the reason.
    Unwanted {
        pieced: bool,
    },
    /// The digest differs, but the blob was assembled from several answers: a retry may help.
    Spoiled,
}

/// Output to the next stage, and its digest and size so far.
struct Outgoing<'a> {
    pieces: &'a mpsc::Sender<Piece>,
    hasher: Sha256,
    done: u64,
    size: u64,
}

/// Result of a transfer: true if it was assembled from several answers, and true if its receiver is gone.
struct Ended {
    pieced: bool,
    wanted: bool,
}

/// Failure of one answer.
enum Stop {
    Registry(Failure),
    Unwanted,
    /// The answer is longer than the blob.
    Long,
}

impl Outgoing<'_> {
    async fn send(&mut self, bytes: Bytes, tell: Tell<'_>) -> Result<(), Stop> {
        self.done += bytes.len() as u64;
        if self.done > self.size {
            return Err(Stop::Long);
        }
        self.hasher.update(&bytes);
        self.pieces.send(Piece::Data(bytes)).await.map_err(|_| Stop::Unwanted)?;
        (tell.bytes)(self.done);
        Ok(())
    }
}

/// Sends a blob, then the mark of its completeness.
pub(crate) async fn send(
    origin: &Origin,
    name: &str,
    blob: Blob,
    options: &Options,
    pieces: &mpsc::Sender<Piece>,
    tell: Tell<'_>,
) -> Result<Fetched, EnsureImageError> {
    let mut outgoing = Outgoing { pieces, hasher: Sha256::new(), done: 0, size: blob.size };
    let ended = match origin {
        Origin::Layout(path) => from_layout(path, name, blob, &mut outgoing, tell).await?,
        Origin::Registry(repository) => {
            from_registry(repository, name, blob, options, &mut outgoing, tell).await?
        }
    };
    let Ended { pieced, wanted } = ended;
    if !wanted {
        return Ok(Fetched::Unwanted { pieced });
    }
    let (image, digest) = (name.to_owned(), blob.digest);
    if outgoing.done != blob.size {
        let (expected, found) = (blob.size, outgoing.done);
        return Err(EnsureImageError::SizeMismatch { image, digest, expected, found });
    }
    let found = Digest::from_sha256(outgoing.hasher.finalize().into());
    if found != digest {
        let spoiled = Ok(Fetched::Spoiled);
        return if pieced { spoiled } else { Err(EnsureImageError::DigestMismatch { image, digest, found }) };
    }
    let reported = pieces.send(Piece::Whole).await;
    Ok(if reported.is_ok() { Fetched::Whole } else { Fetched::Unwanted { pieced } })
}

/// Sends a file of a layout.
async fn from_layout(
    layout: &Path,
    name: &str,
    blob: Blob,
    outgoing: &mut Outgoing<'_>,
    tell: Tell<'_>,
) -> Result<Ended, EnsureImageError> {
    let path = layout::blob_path(layout, &blob.digest);
    let failed = |source| EnsureImageError::ReadFile { image: name.to_owned(), path: path.clone(), source };
    let at = path.clone();
    let mut file = blocking(move || open_regular(&at)).await.map_err(failed)?;
    loop {
        let read = move || {
            let mut chunk = BytesMut::zeroed(CHUNK_BYTES);
            let length = file.read(&mut chunk)?;
            chunk.truncate(length);
            Ok::<(File, Bytes), std::io::Error>((file, chunk.freeze()))
        };
        let (back, chunk) = blocking(read).await.map_err(failed)?;
        file = back;
        if chunk.is_empty() {
            return Ok(Ended { pieced: false, wanted: true });
        }
        match outgoing.send(chunk, tell).await {
            Ok(()) => {}
            Err(stop) => return Ok(Ended { pieced: false, wanted: !matches!(stop, Stop::Unwanted) }),
        }
    }
}

/// Sends a blob of a registry.
async fn from_registry(
    repository: &Repository,
    name: &str,
    blob: Blob,
    options: &Options,
    outgoing: &mut Outgoing<'_>,
    tell: Tell<'_>,
) -> Result<Ended, EnsureImageError> {
    let what = format!("blob {}", blob.digest);
    let mut waits = Waits::new(options);
    let mut pieced = false;
    loop {
        let before = outgoing.done;
        match answer(repository, blob, outgoing, tell).await {
            Ok(()) | Err(Stop::Long) => return Ok(Ended { pieced, wanted: true }),
            Err(Stop::Unwanted) => return Ok(Ended { pieced, wanted: false }),
            Err(Stop::Registry(failure)) => {
                if outgoing.done >= before + CHUNK_BYTES as u64 {
                    waits.moved_on();
                }
                waits.sleep_or_fail(name, &what, failure, tell.retry).await?;
            }
        }
        pieced = outgoing.done > 0;
    }
}

/// Sends one request, from the end of the bytes so far.
async fn answer(
    repository: &Repository,
    blob: Blob,
    outgoing: &mut Outgoing<'_>,
    tell: Tell<'_>,
) -> Result<(), Stop> {
    let again = |problem| Stop::Registry(Failure::Again { problem, after: None });
    let from = outgoing.done;
    if from == blob.size && from > 0 {
        return Ok(());
    }
    let mut answer = repository.blob(&blob.digest, from).await.map_err(Stop::Registry)?;
    if answer.offset > from {
        return Err(again(format!("asked for bytes from {from}, got bytes from {}", answer.offset)));
    }
    // A registry without ranges starts again; bytes that are here already are dropped.
    let mut skip = from - answer.offset;
    while let Some(mut bytes) = answer.chunk().await.map_err(Stop::Registry)? {
        let dropped = skip.min(bytes.len() as u64);
        skip -= dropped;
        let bytes = bytes.split_off(usize::try_from(dropped).unwrap_or_default());
        if !bytes.is_empty() {
            outgoing.send(bytes, tell).await?;
        }
    }
    if outgoing.done < blob.size {
        return Err(again(format!("the answer ended after {} of {} bytes", outgoing.done, blob.size)));
    }
    Ok(())
}

/// Fetches a small blob and verifies it. The caller has checked its size.
pub(crate) async fn small(
    origin: &Origin,
    name: &str,
    blob: Blob,
    options: &Options,
    retry: &(dyn Fn(TransferProgress) + Send + Sync),
) -> Result<Vec<u8>, EnsureImageError> {
    let (pieces, mut incoming) = mpsc::channel(4);
    let gather = async {
        let mut bytes = Vec::new();
        while let Some(piece) = incoming.recv().await {
            match piece {
                Piece::Data(data) => bytes.extend_from_slice(&data),
                Piece::Whole => break,
            }
        }
        bytes
    };
    let tell = Tell { retry, bytes: &|_| () };
    let (sent, bytes) = {
        let sent = async {
            let sent = send(origin, name, blob, options, &pieces, tell).await;
            drop(pieces);
            sent
        };
        tokio::join!(sent, gather)
    };
    sent?;
    let found = digest_of(&bytes);
    if found == blob.digest {
        return Ok(bytes);
    }
    Err(EnsureImageError::DigestMismatch { image: name.to_owned(), digest: blob.digest, found })
}
