//! Callbacks of the TFTP engine to its owner: the content of a name, and reports about transfers.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

/// A read request, its name already checked to be relative, without `..`, NUL or control characters, at most 255 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// Address of the client.
    pub peer: SocketAddr,
    /// Our address that was asked.
    pub local: IpAddr,
    /// The file's name.
    pub name: &'a str,
}

/// Reason why a name is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// TFTP error 1.
    NotFound,
    /// TFTP error 2.
    AccessViolation,
    /// TFTP error 0 "busy": a limit was reached.
    Busy,
}

/// Result of a transfer.
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

/// Callbacks to the owner. They are called on the packet path: they must return immediately, without I/O. Loaders are
/// small and held in memory.
pub trait Files: Send + Sync + 'static {
    /// Returns the complete content of a name.
    ///
    /// # Errors
    /// [`OpenError`], which is sent to the client.
    fn open(&self, request: &Request<'_>) -> Result<Bytes, OpenError>;

    /// Tells how a transfer that was opened ended, after `sent` bytes were acknowledged.
    fn finished(&self, request: &Request<'_>, outcome: Outcome, sent: u64);

    /// Reports that an existing file is not sent because the server is at a limit. Any client can cause it, at any rate.
    fn refused(&self, request: &Request<'_>, reason: &dyn Display) {
        let _ = (request, reason);
    }
}
