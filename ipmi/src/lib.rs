//! IPMI 2.0 over LAN (RMCP+, "lanplus"): our own, of both sides. Knows nothing of Bedplate.
//!
//! Cipher suites 3 and 17, never a weaker one. Pure parts take datagrams, the time and randomness as arguments.
//!
//! | room | what |
//! |---|---|
//! | [`wire`] | octets to packets and back (pure) |
//! | [`crypto`] | proofs of the password, session keys, sealed packets (pure) |
//! | [`session`] | a session from the console's side (pure) |
//! | [`managed`] | the BMC's side (pure), for simulators |
//! | [`command`] | typed commands and answers (pure) |
//! | [`client`] | a session over UDP, with tokio |
//! | [`window`] | which sequence numbers are taken (pure) |

pub mod client;
pub mod command;
pub mod crypto;
pub mod managed;
pub mod session;
pub mod window;
pub mod wire;
