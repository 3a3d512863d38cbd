//! What the owner of a server may choose, with the defaults. Reads no file: the program's configuration fills it in.

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
    /// Who may open how much.
    pub limits: Limits,
    /// Largest block size granted, in bytes; `None`: what the path to the client takes without fragments.
    pub max_block_size: Option<u16>,
    /// Largest window granted, in blocks, 1 to 64.
    pub max_window: u16,
    /// When to send again.
    pub retry: Retry,
    /// How long running transfers may go on after the stop.
    pub drain: Duration,
    /// How long a worker looks for the next acknowledgement before it sleeps, while clients answer that fast: sleeping and waking take longer
    /// than such a client. Not on a processor that others want. Zero: always sleep.
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
