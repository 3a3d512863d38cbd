//! A TFTP server for boot loaders: read requests only (RFC 1350, 2347, 2348, 2349, 7440).
//!
//! Knows nothing of machines: which names exist is asked from [`content::Files`].

pub mod content;
