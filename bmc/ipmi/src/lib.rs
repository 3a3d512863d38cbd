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
//! | [`fru`] | maker, model and serial number of a machine (pure) |
//! | [`sol`] | a serial console's characters in packets, and back (pure) |
//! | [`console`] | a serial console over a session |
//! | [`probe`] | what a BMC can do, asked without an account |
//! | [`sensors`] | a BMC's sensors, one by one |
//! | [`window`] | which sequence numbers are taken (pure) |
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use bedplate_ipmi::{client::{Client, Options}, command::{boot::BootDevice, chassis::{ChassisControl, GetChassisStatus}}};
//! let password = secrecy::SecretString::from("calvin");
//! let client = Client::connect("192.0.2.7:623".parse()?, "root", &password, &Options::default()).await?;
//! if !client.request(&GetChassisStatus).await?.is_on() {
//!     client.set_next_boot(BootDevice::Pxe, true).await?;
//!     client.request(&ChassisControl::Up).await?;
//! }
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Absent: cipher suites below 3, IPMI 1.5 sessions, firmware update, sensors' values in their units, alerts.

pub mod client;
pub mod command;
pub mod console;
pub mod crypto;
pub mod fru;
pub mod managed;
pub mod probe;
pub mod sensors;
pub mod session;
pub mod sol;
pub mod window;
pub mod wire;
