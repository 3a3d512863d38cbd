//! Reasons of the decision on a CertificateSigningRequest.
//!
//! Pure.

use super::reasons;

reasons! {
    /// Reasons of `Approved` and `Denied`.
    pub enum CertificateDecision: "Decisions on a CertificateSigningRequest" {
        BedplateEnrollment: "pxed checked the one-time token of the host's boot, and approved the certificate of its agent.";
        BedplateAgent: "bedplate-controller checked a kubelet's request against its Machine, and approved or denied it.";
    }
}
