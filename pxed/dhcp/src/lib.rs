//! A DHCPv4 server for racks: server, proxyDHCP and relay-fed (RFC 2131, 2132, 3046, 3396, 3527, 4578, 5107, 6842, 8357;
//! PXE 2.1).
//!
//! Decides nothing about machines: whom to serve and what they boot is asked from [`client::Clients`].
//!
//! | room | what |
//! |---|---|
//! | [`wire`] | octets to [`wire::Request`], [`wire::Reply`] to octets |
//! | [`lease`] | who has which address |
//! | [`respond`] | request, settings, leases -> answer as plain data |
//! | [`ignored`] | ignored messages, with their remedy |
//! | `recent` | bounded memory of recent clients |
//! | `store` | leases on disk |
//! | `serve` | sockets and threads |

pub mod client;
pub mod counter;
#[doc(hidden)]
pub mod hostile;
pub mod ignored;
pub mod lease;
mod recent;
pub mod respond;
mod serve;
mod server;
pub mod settings;
mod store;
pub mod wire;

pub use serve::OpenInterfaceError;
pub use server::{BindServerError, COMMIT_THREAD, InterfaceState, ReloadServerError, Server};
pub use store::{OpenStoreError, is_damaged};
