//! Sockets and threads around `respond`: one thread per interface that never waits for the disk, one committer that does.
//!
//! Decides nothing about the protocol. Called by [`crate::Server`].
//!
//! ```text
//! interface thread: recvmmsg -> decode -> lock table, respond, queue what needs the disk, unlock -> sendmmsg the rest
//! committer:        take what is queued -> one transaction, fsync -> sendmmsg its answers -> tell the owner
//! ```
//!
//! The queue is bounded; when it is full the answer is dropped and counted, and the client asks again.

mod commit;
mod frame;
mod interface;
mod socket;
mod system;

use std::io;

use crate::respond::Packet;

pub(crate) use commit::{Committer, Job};
pub(crate) use interface::{Worker, spawn};
pub use socket::OpenInterfaceError;
pub(crate) use socket::Sockets;

/// Sender of finished answers on one interface.
pub(crate) trait Outlet: std::fmt::Debug + Send + Sync {
    /// Sends all packets; calls `done` for each with the kernel's result.
    fn send(&self, packets: &[&Packet], done: &mut dyn FnMut(&Packet, io::Result<()>));
}
