//! Key of a slot's kubelet, and the certificate request that is made with it for a join or a renewal.
//!
//! The key is kept in the host's memory, where no slot sees it, until the kubelet has its certificate. A restarted agent continues with the
//! same request. Blocking calls only. Called by `node::apply::kubelet`.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_api::id::MachineName;
use bedplate_api::machine::SlotName;
use bedplate_process::file::{read_optional, remove_optional, write_atomic};
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::{Zeroize as _, Zeroizing};

use super::store::{KeepSlotError, Slots, failed, make_directory};

/// Number of hexadecimal digits in a request's name.
const NAME_DIGITS: usize = 20;
/// Length of a line of PEM (RFC 7468, section 2).
const PEM_LINE: usize = 64;

/// Key and certificate request of a kubelet.
pub(crate) struct KubeletRequest {
    /// Name of the CertificateSigningRequest: the same as long as key and agent's certificate are the same.
    pub name: String,
    /// Certificate request (PKCS#10, PEM).
    pub csr_pem: String,
    /// Private key (PKCS#8, PEM).
    pub key_pem: Zeroizing<String>,
    /// SubjectPublicKeyInfo of the key (DER).
    public_key: Vec<u8>,
}

impl KubeletRequest {
    /// Returns true if the first certificate of `pem` is for this key and has not ended at `now`.
    pub(crate) fn is_answered_by(&self, pem: &str, now: Timestamp) -> bool {
        let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return false };
        X509Certificate::from_der(&der).is_ok_and(|(_, certificate)| {
            certificate.public_key().raw == self.public_key
                && certificate.validity().not_after.timestamp() > now.as_second()
        })
    }
}

impl Slots {
    /// Returns the request of a slot's kubelet. Makes its key if there is none. The name also depends on the agent's certificate: a request
    /// that was denied to one certificate may be approved for the next.
    ///
    /// # Errors
    /// The key cannot be made or written.
    pub(crate) fn kubelet_request(
        &self,
        slot: SlotName,
        machine: &MachineName,
        agent_certificate: &str,
    ) -> Result<KubeletRequest, KeepSlotError> {
        let path = self.places().kubelet_key(slot);
        let unusable = |error: rcgen::Error| failed("make", &path)(io::Error::other(error));
        let mut key = self.kubelet_key(slot)?;
        let public_key = key.subject_public_key_info();
        let csr_pem = csr(&key, machine);
        let key_pem = pem(key.serialized_der());
        key.zeroize();
        let digest = Sha256::new().chain_update(&public_key).chain_update(agent_certificate).finalize();
        let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("bedplate-kubelet-{machine}-{}", digits.get(..NAME_DIGITS).unwrap_or_default());
        Ok(KubeletRequest { name, csr_pem: csr_pem.map_err(unusable)?, key_pem, public_key })
    }

    /// Removes the key of a slot's kubelet: the next request is for another one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn forget_kubelet_key(&self, slot: SlotName) -> Result<(), KeepSlotError> {
        Ok(remove_optional(&self.places().kubelet_key(slot))?)
    }

    fn kubelet_key(&self, slot: SlotName) -> Result<KeyPair, KeepSlotError> {
        let path = self.places().kubelet_key(slot);
        let kept = read_optional(&path)?.map(Zeroizing::new);
        // An unreadable key has no use, and neither has a certificate for it.
        if let Some(key) = kept.and_then(|der| KeyPair::try_from(der.as_slice()).ok()) {
            return Ok(key);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
        let key = key.map_err(|error| failed("make", &path)(io::Error::other(error)))?;
        if let Some(directory) = path.parent() {
            make_directory(directory, 0o700)?;
        }
        write_atomic(&path, key.serialized_der(), 0o600)?;
        Ok(key)
    }
}

/// Makes the request in the only form that the policy of agents permits: no attributes, no other names.
fn csr(key: &KeyPair, machine: &MachineName) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::CommonName, format!("system:node:{machine}"));
    params.distinguished_name = name;
    params.serialize_request(key)?.pem()
}

/// Writes a key as PEM, of which no copy is left in memory.
fn pem(der: &[u8]) -> Zeroizing<String> {
    let body = Zeroizing::new(STANDARD.encode(der));
    // Nothing is moved while it grows.
    let mut pem = Zeroizing::new(String::with_capacity(body.len() * 2 + 2 * PEM_LINE));
    pem.push_str("-----BEGIN PRIVATE KEY-----\n");
    for line in body.as_bytes().chunks(PEM_LINE) {
        pem.push_str(std::str::from_utf8(line).unwrap_or_default());
        pem.push('\n');
    }
    pem.push_str("-----END PRIVATE KEY-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::slot::paths::Places;

    fn slots() -> (tempfile::TempDir, Slots) {
        let directory = tempfile::tempdir().unwrap();
        let below = |name: &str| directory.path().join(name);
        let slots = Slots::new(Places { state: below("s"), run: below("r"), machines: below("m") });
        (directory, slots)
    }

    fn request(slots: &Slots, slot: SlotName, agent: &str) -> KubeletRequest {
        slots.kubelet_request(slot, &"node-1".parse().unwrap(), agent).unwrap()
    }

    fn certificate(key: &str, year: i32) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.self_signed(&KeyPair::from_pem(key).unwrap()).unwrap().pem()
    }

    #[test]
    fn request_is_the_same_until_its_key_is_forgotten() {
        let (_directory, slots) = slots();
        let first = request(&slots, SlotName::A, "CERT");
        let again = request(&slots, SlotName::A, "CERT");
        assert_eq!((&first.name, &first.key_pem), (&again.name, &again.key_pem));
        assert!(first.name.starts_with("bedplate-kubelet-node-1-"), "{}", first.name);
        assert_ne!(first.name, request(&slots, SlotName::A, "RENEWED").name);
        assert_ne!(first.key_pem, request(&slots, SlotName::B, "CERT").key_pem);
        for _ in 0..2 {
            slots.forget_kubelet_key(SlotName::A).unwrap();
        }
        let next = request(&slots, SlotName::A, "CERT");
        assert!(next.name != first.name && next.key_pem != first.key_pem);
    }

    #[test]
    fn kubelet_key_is_in_memory_for_root_and_outside_of_what_a_slot_sees() {
        let (_directory, slots) = slots();
        request(&slots, SlotName::A, "CERT");
        let (path, shared) = (slots.places().kubelet_key(SlotName::A), slots.places().shared(SlotName::A));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert!(path.starts_with(&slots.places().run) && !path.starts_with(shared));
        std::fs::write(&path, "damaged").unwrap();
        let key = request(&slots, SlotName::A, "CERT").key_pem;
        assert_eq!(key, request(&slots, SlotName::A, "CERT").key_pem, "a damaged key is replaced once");
    }

    #[test]
    fn only_a_current_certificate_for_its_key_answers_a_request() {
        let (_directory, slots) = slots();
        let (own, other) = (request(&slots, SlotName::A, ""), request(&slots, SlotName::B, ""));
        let now = Timestamp::now();
        assert!(own.is_answered_by(&certificate(&own.key_pem, 2090), now));
        assert!(!own.is_answered_by(&certificate(&own.key_pem, 2020), now));
        assert!(!own.is_answered_by(&certificate(&other.key_pem, 2090), now));
        assert!(!own.is_answered_by("no PEM", now));
    }
}
