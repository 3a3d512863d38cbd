//! What the TFTP engine asks of its owner: the content behind a name, and whom to tell how a transfer went.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

/// A read request, its name already checked to be relative, without `..`, NUL or control characters, at most 255 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// Who asks.
    pub peer: SocketAddr,
    /// Our address that was asked.
    pub local: IpAddr,
    /// The file's name.
    pub name: &'a str,
}

/// Why a name is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// TFTP error 1.
    NotFound,
    /// TFTP error 2.
    AccessViolation,
    /// TFTP error 0 "busy": a limit was reached.
    Busy,
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The last block was acknowledged.
    Complete,
    /// The client ended it with an ERROR (as EDK2 does after its size probe).
    ClientAborted,
    /// The client fell silent.
    TimedOut,
    /// The server is stopping.
    Stopped,
}

/// The owner's side. Called on the packet path: returns at once, without I/O. Loaders are small and held in memory.
pub trait Files: Send + Sync + 'static {
    /// The whole content behind a name.
    ///
    /// # Errors
    /// [`OpenError`], which the client is told.
    fn open(&self, request: &Request<'_>) -> Result<Bytes, OpenError>;

    /// Tells how a transfer that was opened ended, after `sent` bytes were acknowledged.
    fn finished(&self, request: &Request<'_>, outcome: Outcome, sent: u64);

    /// Reports that an existing file is not sent because the server is at a limit. Any client can cause it, at any rate.
    fn refused(&self, request: &Request<'_>, reason: &dyn Display) {
        let _ = (request, reason);
    }
}
