//! Gets a client certificate for the kubelet of a slot, and makes the kubeconfig by which kubeadm joins or the kubelet renews.
//!
//! ```text
//!   key of the kubelet, in memory ── request as the agent ── approved, signed ── kubeconfig for the slot
//! ```
//! The agent's own key never enters a slot (docs/design/rules.md, Trust 5): root in a slot could copy it, and it outlives every slot. May be killed
//! anywhere: key and request are found again under one name. Called by `start` and `renew_kubelet`.

use std::time::{Duration, Instant};

use bedplate_api::machine::SlotName;
use bedplate_bootstrap::{JoinIdentity, join_kubeconfig};
use jiff::Timestamp;
use zeroize::Zeroizing;

use super::ApplyError;
use crate::node::effects::{Parts, Say};
use crate::plane::CertificateAnswer;

/// Timeout of one wait for the certificate. The step is repeated, with growing delays.
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(60);
/// First pause between two reads of the request; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Maximum pause between two reads of the request.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Returns a kubeconfig with a new identity of the slot's kubelet. `endpoint` is the API server if the version names one.
pub(super) async fn kubeconfig(
    parts: &Parts,
    slot: SlotName,
    endpoint: Option<&str>,
    say: Say<'_>,
) -> Result<Zeroizing<Vec<u8>>, ApplyError> {
    let credential = parts.credentials.current().await.map_err(ApplyError::Credential)?;
    let (machine, agent) = (parts.machine.clone(), credential.certificate_pem);
    let request = parts.on_disk(move |slots| slots.kubelet_request(slot, &machine, &agent)).await?;
    let (end, mut pause, mut said) = (Instant::now() + CERTIFICATE_TIMEOUT, FIRST_PAUSE, None);
    let refused = |why| ApplyError::CertificateRefused { name: request.name.clone(), why };
    let certificate = loop {
        let asked = parts.home.kubelet_certificate(&request.name, &request.csr_pem).await;
        let missing = match asked.map_err(ApplyError::AskCertificate)? {
            CertificateAnswer::Issued(pem) if request.is_answered_by(&pem, Timestamp::now()) => break pem,
            CertificateAnswer::Issued(_) => {
                // Another request is made by another key, and under another name.
                parts.on_disk(move |slots| slots.forget_kubelet_key(slot)).await?;
                return Err(refused("its certificate is out of date or belongs to another key".to_owned()));
            }
            CertificateAnswer::Refused(why) => return Err(refused(why)),
            CertificateAnswer::Pending { is_approved: true } => "signed",
            CertificateAnswer::Pending { is_approved: false } => "approved",
        };
        if Instant::now() >= end {
            return Err(ApplyError::CertificatePending { name: request.name.clone(), missing });
        }
        if said.replace(missing) != Some(missing) {
            say(format!("waiting for certificate request {} to be {missing}", request.name));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    let identity = JoinIdentity {
        endpoint: endpoint.unwrap_or(&credential.server),
        ca: &credential.ca_pem,
        certificate: &certificate,
        key: &request.key_pem,
    };
    Ok(Zeroizing::new(join_kubeconfig(&identity).as_bytes().to_vec()))
}

/// Removes the key once the slot has it: the next request is for another one.
pub(super) async fn forget(parts: &Parts, slot: SlotName) -> Result<(), ApplyError> {
    Ok(parts.on_disk(move |slots| slots.forget_kubelet_key(slot)).await?)
}
