//! Enrolment: an agent trades its seed's token for a certificate, renews it, and reports (docs/rules.md, Trust 3).
//!
//! ```text
//!   agent                               pxed
//!     | POST /v1/enrol token, CSR ------> | token of this boot? of this key? -> signer (own authority or the cluster)
//!     | <------- certificate, or Pending  | the answer is kept: the same token and key get it again
//!     | POST /v1/report (certificate) --> | heartbeat, facts, addresses
//!     | POST /v1/renew (certificate, CSR by the same key) -> a new certificate
//! ```
//!
//! `authority` is pxed's own certificate authority, `request` takes a CSR apart, `signer` and `cluster` sign, `identity`
//! says whose a client certificate is, `tls` makes the listener's certificates, `service` decides, `serve` owns the socket.
//! `pace` bounds how often one host asks. `standalone` is what an agent has instead of a cluster where pxed has none, `token` makes tokens for hosts that do not netboot.

pub mod authority;
mod bounds;
pub mod cluster;
pub mod counters;
pub mod identity;
pub mod pace;
pub mod request;
pub mod serve;
pub mod service;
pub mod signer;
pub mod standalone;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod token;

/// The group of every agent's certificate.
pub const GROUP: &str = "bedplate:machines";

/// The user name of an agent's certificate, before the Machine's name.
pub const USER_PREFIX: &str = "bedplate:machine:";

/// Where an agent's certificate names its Machine's UID: the subject's attribute that the API server takes for a user's UID
/// (Kubernetes 1.33 and later). A Machine that was made anew under its old name has another.
pub const UID_OID: [u64; 8] = [1, 3, 6, 1, 4, 1, 57683, 2];
