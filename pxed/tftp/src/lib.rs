//! A TFTP server for boot loaders: read requests only (RFC 1350, 2347, 2348, 2349, 7440).
//!
//! Knows nothing of machines: which names exist is asked from [`content::Files`]. The protocol is pure ([`wire`], [`negotiate`],
//! [`session`], [`gate`]); [`server::Server`] runs it on threads of its own.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # async fn example(files: Arc<dyn bedplate_tftp::content::Files>, shutdown: tokio_util::sync::CancellationToken)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use bedplate_tftp::{server::Server, settings::Settings};
//! let server = Arc::new(Server::bind(Settings::default(), files)?);
//! server.run(shutdown).await?;
//! # Ok(())
//! # }
//! ```

mod admit;
mod channel;
pub mod client;
pub mod content;
pub mod counters;
mod endpoint;
pub mod gate;
pub mod name;
pub mod negotiate;
pub mod netascii;
mod places;
pub mod server;
pub mod session;
pub mod settings;
mod spin;
pub mod wire;
mod worker;
