//! TLS requests of the agent: one request with its deadlines, and the client of pxed.

pub mod pxed;
pub mod request;
