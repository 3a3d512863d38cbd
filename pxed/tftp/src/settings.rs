//! Settings of a server, with their defaults. Reads no file: the program's configuration sets the values.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use crate::{gate::Limits, negotiate::MAX_WINDOW, session::Retry};

/// The server's settings. All but `listen` and `workers` may change while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Addresses to listen on; an unspecified one (0.0.0.0, ::) answers from whichever address was asked.
    pub listen: Vec<SocketAddr>,
    /// Threads that serve; each has its own socket on every address, the kernel spreads the clients over them.
    pub workers: usize,
    /// Limits of requests and transfers.
    pub limits: Limits,
    /// Largest block size granted, in bytes; `None`: what the path to the client takes without fragments.
    pub max_block_size: Option<u16>,
    /// Largest window granted, in blocks, 1 to 64.
    pub max_window: u16,
    /// Retransmission intervals.
    pub retry: Retry,
    /// Timeout for running transfers after the stop.
    pub drain: Duration,
    /// Time for which a worker polls for the next acknowledgment before it sleeps, while clients answer that fast:
    /// sleeping and waking take longer than such a client. Disabled while the processor is contended. Zero: always
    /// sleep.
    pub spin: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 69))],
            workers: std::thread::available_parallelism().map_or(2, |cores| cores.get().min(4)),
            limits: Limits::default(),
            max_block_size: None,
            max_window: MAX_WINDOW,
            retry: Retry::default(),
            drain: Duration::from_secs(30),
            spin: Duration::from_micros(50),
        }
    }
}
