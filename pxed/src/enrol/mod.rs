//! Enrolment: an agent trades its seed's token for a certificate, renews it, and reports (api.md, Trust 3).
//!
//! `authority` is pxed's own certificate authority.

pub mod authority;
