//! Enrollment: an agent trades its seed's token for a certificate, renews it, and reports (docs/design/rules.md, Trust 3).
//!
//! ```text
//!   agent                               pxed
//!     | POST /v1/enroll token, CSR ------> | token of this boot? of this key? -> signer (own authority or the cluster)
//!     | <------- certificate, or Pending  | the answer is kept: the same token and key get it again
//!     | POST /v1/report (certificate) --> | heartbeat, facts, addresses
//!     | POST /v1/renew (certificate, CSR by the same key) -> a new certificate
//! ```
//!
//! `authority` is pxed's own certificate authority, `request` takes a CSR apart, `signer` and `cluster` sign, `identity`
//! says whose a client certificate is, `tls` makes the listener's certificates, `service` decides, `serve` owns the socket.
//! `record` keeps which key is in force, `takeover` has a new key wait while that one is heard, `permission` lets it in, `alarm` warns.
//! `turn` lets one request at a time write a Machine's key, `pace` bounds how often one host asks. `plane` is the agent API of the plane, `token` makes tokens for hosts that do not netboot.

mod alarm;
pub mod authority;
pub mod counters;
pub mod csr;
pub mod identity;
pub(crate) mod in_force;
pub mod permission;
pub mod plane;
pub(crate) mod rate_limit;
mod record;
pub(crate) mod report_filter;
pub mod serve;
pub mod service;
pub mod signer;
mod takeover;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod token;
pub mod turn;

/// Attribute of a certificate's subject with the Machine's UID: the API server reads it as the user's UID (Kubernetes
/// 1.33 and later). A re-created Machine of the same name has another UID.
pub(crate) const UID_OID: [u64; 8] = [1, 3, 6, 1, 4, 1, 57683, 2];
