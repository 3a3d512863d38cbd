//! Transfer of one compressed layer to the disk, in three concurrent stages.
//!
//! ```text
//! fetch (async): bytes --SHA-256--> channel --> inflate (thread) --> channel --SHA-256--> unpack (thread) --> files
//!                 the layer's digest                                  the diff ID
//! ```
//!
//! The end of the channel is not the end of the layer. `Piece::Whole` marks it, sent after the digest was
//! compared. The channels bound the memory.
//!
//! Not here: the source of the bytes (`fetch`), the layer's name (`stage`). Caller: `stage`.

use std::io::{self, BufRead, Read};
use std::os::fd::OwnedFd;
use std::sync::mpsc as blocking;

use bedplate_api::id::Digest;
use bytes::{Buf, Bytes};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::archive::ReadArchiveError;
use super::document::Compression;
use super::error::UnpackLayerError;
use super::unpack::{Bounds, Unpacked, unpack};

/// Maximum number of pieces that wait for the inflating thread.
pub(crate) const MAX_PIECES: usize = 32;
/// Bytes inflated in one step: fits into the second cache of a processor, and a
/// file of this size is one write.
const BUFFER_BYTES: usize = 256 << 10;
/// Maximum number of inflated buffers that wait.
const MAX_BUFFERS: usize = 6;
/// Binary logarithm of the largest accepted window of zstd, in bytes. It is that of `zstd --long`.
const ZSTD_WINDOW: u32 = 27;

/// Message of the transfer.
#[derive(Debug)]
pub(crate) enum Piece {
    Data(Bytes),
    /// End of the transfer; the digest was verified.
    Whole,
}

/// The compressed bytes as they come.
struct Incoming {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
    whole: bool,
}

impl Read for Incoming {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.len().min(to.len());
        if let Some(to) = to.get_mut(..length) {
            self.current.copy_to_slice(to);
        }
        Ok(length)
    }
}

impl BufRead for Incoming {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty() && !self.whole {
            match self.pieces.blocking_recv() {
                Some(Piece::Data(bytes)) => self.current = bytes,
                Some(Piece::Whole) => self.whole = true,
                None => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, length: usize) {
        self.current.advance(length.min(self.current.len()));
    }
}

/// The inflated bytes, hashed as they are used.
struct Inflated {
    buffers: blocking::Receiver<io::Result<Vec<u8>>>,
    used: blocking::Sender<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
    total: u64,
    limit: u64,
    hasher: Sha256,
}

impl Read for Inflated {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(to)?;
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Inflated {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.current.len() {
            self.at = 0;
            let used = std::mem::take(&mut self.current);
            if used.capacity() > 0 {
                // At the end, the receiver may be gone.
                let _ = self.used.send(used);
            }
            if let Ok(buffer) = self.buffers.recv() {
                self.current = buffer?;
            }
            self.total += self.current.len() as u64;
            if self.total > self.limit {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            self.hasher.update(&self.current);
        }
        Ok(self.current.get(self.at..).unwrap_or_default())
    }

    fn consume(&mut self, length: usize) {
        self.at += length;
    }
}

fn decoder(compression: Compression, incoming: Incoming) -> io::Result<Box<dyn Read + Send>> {
    Ok(match compression {
        Compression::None => Box::new(incoming),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(incoming)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(incoming)?;
            decoder.window_log_max(ZSTD_WINDOW)?;
            Box::new(decoder)
        }
    })
}

/// Inflates until the end, an error, or until the receiver is gone. A closed
/// channel without an error is the end of the layer.
fn inflate(
    compression: Compression,
    incoming: Incoming,
    buffers: &blocking::SyncSender<io::Result<Vec<u8>>>,
    used: &blocking::Receiver<Vec<u8>>,
) {
    let mut decoder = match decoder(compression, incoming) {
        Ok(decoder) => decoder,
        Err(error) => return drop(buffers.send(Err(error))),
    };
    loop {
        let mut buffer = used.try_recv().unwrap_or_else(|_| Vec::with_capacity(BUFFER_BYTES));
        buffer.resize(BUFFER_BYTES, 0);
        let mut filled = 0;
        let ended = loop {
            if filled == BUFFER_BYTES {
                break Ok(false);
            }
            match decoder.read(buffer.get_mut(filled..).unwrap_or_default()) {
                Ok(0) => break Ok(true),
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        buffer.truncate(filled);
        let (piece, is_last) = match ended {
            Ok(is_last) => (Ok(buffer), is_last),
            Err(error) => (Err(error), true),
        };
        if buffers.send(piece).is_err() || is_last {
            return;
        }
    }
}

/// Unpacks the pieces into an empty directory. Succeeds only if the layer is complete and matches the
/// configuration. Blocking; inflates in a separate thread.
pub(crate) fn receive(
    pieces: mpsc::Receiver<Piece>,
    compression: Compression,
    diff_id: Digest,
    into: OwnedFd,
    bounds: Bounds,
    largest: u64,
) -> Result<Unpacked, UnpackLayerError> {
    let incoming = Incoming { pieces, current: Bytes::new(), whole: false };
    let (send_buffer, buffers) = blocking::sync_channel(MAX_BUFFERS);
    let (send_used, used) = blocking::channel();
    let inflated = Inflated {
        buffers,
        used: send_used,
        current: Vec::new(),
        at: 0,
        total: 0,
        limit: largest,
        hasher: Sha256::new(),
    };
    let thread = std::thread::Builder::new().name("inflate".to_owned());
    let thread = thread.spawn(move || inflate(compression, incoming, &send_buffer, &used));
    let thread = thread.map_err(|_| UnpackLayerError::Thread)?;
    let (unpacked, inflated) = unpack(inflated, into, bounds).map_err(|error| of_stream(error, largest))?;
    thread.join().map_err(|_| UnpackLayerError::Thread)?;
    let found = Digest::from_sha256(inflated.hasher.finalize().into());
    if found == diff_id {
        Ok(unpacked)
    } else {
        Err(UnpackLayerError::DiffIdMismatch { expected: diff_id, found })
    }
}

/// Converts an I/O error to the error of the stage that caused it.
fn of_stream(error: UnpackLayerError, largest: u64) -> UnpackLayerError {
    match error {
        UnpackLayerError::Archive(ReadArchiveError::Read(error))
            if error.kind() == io::ErrorKind::BrokenPipe =>
        {
            UnpackLayerError::Transfer
        }
        UnpackLayerError::Archive(ReadArchiveError::Read(error))
            if error.kind() == io::ErrorKind::FileTooLarge =>
        {
            UnpackLayerError::TooMuch { what: "bytes", limit: largest }
        }
        error => error,
    }
}
