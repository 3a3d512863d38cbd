//! New certificates of a cluster, in the form of kubeadm and of the upstream provider.
//!
//! rcgen signs, with the cryptography that all programs of Bedplate link already. Keys and serial numbers are arguments: this crate reads no
//! clock and no randomness. New keys are PKCS #8, which every reader of a cluster takes. Keys of other providers are read as PKCS #8, PKCS #1
//! and SEC 1.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::string::PrintableString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SerialNumber, date_time_ymd,
};
use zeroize::Zeroizing;

use super::{Certificate, CertificatePurpose};

/// Name in a certificate authority.
const AUTHORITY_NAME: &str = "kubernetes";

/// Validity of a certificate authority, if the user has set none.
const AUTHORITY_VALIDITY_DAYS: i32 = 3650;

/// Start of the validity before now, for clocks that are behind.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Validity of the client certificate of an administrator.
const CLIENT_VALIDITY: SignedDuration = SignedDuration::from_hours(365 * 24);

/// Length of a serial number in bytes (RFC 5280, 4.1.2.2: at most 20).
pub const SERIAL_BYTES: usize = 16;

/// Algorithm of new keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAlgorithm {
    /// RSA with this number of bits.
    Rsa2048,
    /// RSA with this number of bits.
    Rsa3072,
    /// RSA with this number of bits.
    Rsa4096,
    /// ECDSA on the curve P-256.
    EcdsaP256,
    /// ECDSA on the curve P-384.
    EcdsaP384,
}

impl KeyAlgorithm {
    /// Reads `encryptionAlgorithm`. None if a newer version of the kind has written it.
    pub fn parse(word: Option<&str>) -> Option<Self> {
        match word {
            None | Some("RSA-2048") => Some(Self::Rsa2048),
            Some("RSA-3072") => Some(Self::Rsa3072),
            Some("RSA-4096") => Some(Self::Rsa4096),
            Some("ECDSA-P256") => Some(Self::EcdsaP256),
            Some("ECDSA-P384") => Some(Self::EcdsaP384),
            Some(_) => None,
        }
    }
}

/// Failure to make a certificate. It has nothing of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MakeCertificateError {
    /// The certificate authority cannot be read.
    #[error("the certificate authority is not a certificate in PEM")]
    Authority,
    /// The key of the certificate authority cannot be read.
    #[error("the key of the certificate authority is not a private key in PEM")]
    AuthorityKey,
    /// The key does not belong to the certificate authority.
    #[error("the key does not belong to the certificate authority")]
    OtherKey,
    /// The time is out of the range of certificates.
    #[error("the validity is out of range")]
    Time,
    /// The certificate cannot be signed.
    #[error("failed to sign the certificate")]
    Sign,
}

/// Last second that a certificate can name: the end of the year 9999.
const MAX_UNIX_SECONDS: u64 = 253_402_300_799;

/// Returns the time since 1970 at a distance from now.
fn since_epoch(now: Timestamp, distance: SignedDuration) -> Result<Duration, MakeCertificateError> {
    let at = now.checked_add(distance).map_err(|_| MakeCertificateError::Time)?;
    let seconds = u64::try_from(at.as_second()).ok().filter(|seconds| *seconds <= MAX_UNIX_SECONDS);
    seconds.map(Duration::from_secs).ok_or(MakeCertificateError::Time)
}

/// Returns a serial number that is positive and never zero.
fn serial(random: &[u8; SERIAL_BYTES]) -> SerialNumber {
    let mut bytes = *random;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from_slice(&bytes)
}

/// Returns a name as Go writes it, with PrintableString where possible. Verifiers compare names byte by byte.
fn name(parts: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, text) in parts {
        let printable = PrintableString::try_from(*text);
        name.push(kind.clone(), printable.map_or_else(|_| DnValue::from(*text), DnValue::PrintableString));
    }
    name
}

/// Makes a certificate authority from a key.
///
/// # Errors
/// The validity is out of range, or the key cannot sign.
pub fn authority(
    purpose: CertificatePurpose,
    key: &KeyPair,
    random: &[u8; SERIAL_BYTES],
    days: Option<i32>,
    now: Timestamp,
) -> Result<Certificate, MakeCertificateError> {
    let days = i64::from(days.unwrap_or(AUTHORITY_VALIDITY_DAYS));
    let mut params = CertificateParams::default();
    params.distinguished_name = name(&[(DnType::CommonName, AUTHORITY_NAME)]);
    params.serial_number = Some(serial(random));
    params.not_before = date_time_ymd(1970, 1, 1) + since_epoch(now, -CLOCK_SKEW)?;
    params.not_after = date_time_ymd(1970, 1, 1) + since_epoch(now, SignedDuration::from_hours(24 * days))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyCertSign,
    ];
    let signed = params.self_signed(key).map_err(|_| MakeCertificateError::Sign)?;
    Ok(Certificate { purpose, certificate: signed.pem().into_bytes(), key: Some(key_pem(key)) })
}

/// Makes the key pair of service account tokens from a key.
pub fn service_account(key: &KeyPair) -> Certificate {
    Certificate {
        purpose: CertificatePurpose::ServiceAccount,
        certificate: key.public_key_pem().into_bytes(),
        key: Some(key_pem(key)),
    }
}

fn key_pem(key: &KeyPair) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(key.serialize_pem().into_bytes())
}

/// A client certificate with its key, in PEM.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: Zeroizing<Vec<u8>>,
}

/// Without the key.
impl std::fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClientCertificate({} bytes)", self.certificate.len())
    }
}

/// Makes the client certificate of an administrator of the cluster, valid for a year. The certificate may outlive its authority: a shorter one
/// could not be renewed either.
///
/// # Errors
/// The certificate authority cannot be read, or its key does not belong to it.
pub fn administrator(
    authority: &Certificate,
    key: &KeyPair,
    random: &[u8; SERIAL_BYTES],
    now: Timestamp,
) -> Result<ClientCertificate, MakeCertificateError> {
    let issuer = issuer(authority)?;
    let mut params = CertificateParams::default();
    params.distinguished_name =
        name(&[(DnType::OrganizationName, "system:masters"), (DnType::CommonName, "kubernetes-admin")]);
    params.serial_number = Some(serial(random));
    params.not_before = date_time_ymd(1970, 1, 1) + since_epoch(now, -CLOCK_SKEW)?;
    params.not_after = date_time_ymd(1970, 1, 1) + since_epoch(now, CLIENT_VALIDITY)?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let signed = params.signed_by(key, &issuer).map_err(|_| MakeCertificateError::Sign)?;
    Ok(ClientCertificate { certificate: signed.pem(), key: key_pem(key) })
}

/// Returns true if certificates can be made by a certificate authority: its key belongs to its certificate.
pub fn can_sign(authority: &Certificate) -> bool {
    issuer(authority).is_ok()
}

fn issuer(authority: &Certificate) -> Result<Issuer<'static, KeyPair>, MakeCertificateError> {
    let certificate =
        std::str::from_utf8(&authority.certificate).map_err(|_| MakeCertificateError::Authority)?;
    let authority_key = authority.key.as_ref().and_then(|key| std::str::from_utf8(key).ok());
    let authority_key = authority_key
        .and_then(|pem| KeyPair::from_pem(pem).ok())
        .ok_or(MakeCertificateError::AuthorityKey)?;
    if !belongs(certificate, &authority_key)? {
        return Err(MakeCertificateError::OtherKey);
    }
    Issuer::from_ca_cert_pem(certificate, authority_key).map_err(|_| MakeCertificateError::Authority)
}

/// Returns true if the key is that of the first certificate.
fn belongs(certificate: &str, key: &KeyPair) -> Result<bool, MakeCertificateError> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes())
        .map_err(|_| MakeCertificateError::Authority)?;
    let parsed = pem.parse_x509().map_err(|_| MakeCertificateError::Authority)?;
    Ok(parsed.public_key().raw == key.subject_public_key_info())
}

#[cfg(test)]
mod tests {
    use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256};
    use x509_parser::certificate::X509Certificate;
    use x509_parser::pem::parse_x509_pem;

    use super::*;

    const RANDOM: [u8; SERIAL_BYTES] = [0xff; SERIAL_BYTES];

    fn now() -> Timestamp {
        "2026-01-01T00:00:00.5Z".parse().unwrap()
    }

    fn made(key: &KeyPair, days: Option<i32>) -> Certificate {
        authority(CertificatePurpose::ClusterAuthority, key, &RANDOM, days, now()).unwrap()
    }

    fn with<T>(pem: &[u8], look: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
        let (_, pem) = parse_x509_pem(pem).unwrap();
        look(&pem.parse_x509().unwrap())
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[test]
    fn kb2_ca_is_valid_from_five_minutes_ago_for_3650_days() {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        with(&made(&key, None).certificate, |ca| {
            assert_eq!(ca.validity().not_before.timestamp(), at("2025-12-31T23:55:00Z"));
            assert_eq!(ca.validity().not_after.timestamp(), at("2035-12-30T00:00:00Z"));
            assert_eq!(
                (ca.subject().to_string(), ca.issuer().to_string()),
                ("CN=kubernetes".into(), "CN=kubernetes".into())
            );
            let constraints = ca.basic_constraints().unwrap().unwrap().value;
            assert!(constraints.ca && constraints.path_len_constraint == Some(0));
            let usage = ca.key_usage().unwrap().unwrap().value;
            assert!(
                usage.digital_signature()
                    && usage.key_encipherment()
                    && usage.key_cert_sign()
                    && !usage.crl_sign()
            );
            assert!(ca.raw_serial()[0] == 0x7f && ca.raw_serial().len() == SERIAL_BYTES);
            assert!(ca.verify_signature(None).is_ok());
        });
        with(&made(&key, Some(1)).certificate, |ca| {
            assert_eq!(ca.validity().not_after.timestamp(), at("2026-01-02T00:00:00Z"));
        });
    }

    #[test]
    fn kb2_validity_that_a_certificate_cannot_name_is_an_error() {
        let key = KeyPair::generate().unwrap();
        let purpose = CertificatePurpose::EtcdAuthority;
        let late = "9999-12-30T00:00:00Z".parse().unwrap();
        assert_eq!(authority(purpose, &key, &RANDOM, None, late).unwrap_err(), MakeCertificateError::Time);
        let early = "1960-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(authority(purpose, &key, &RANDOM, None, early).unwrap_err(), MakeCertificateError::Time);
    }

    #[test]
    fn kb2_sa_holds_a_public_key() {
        let key = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
        let pair = service_account(&key);
        assert!(pair.certificate.starts_with(b"-----BEGIN PUBLIC KEY-----"));
        let again = KeyPair::from_pem(std::str::from_utf8(pair.key.as_ref().unwrap()).unwrap()).unwrap();
        assert_eq!(again.public_key_pem().into_bytes(), pair.certificate);
    }

    #[test]
    fn k8_administrator_is_signed_by_the_authority() {
        for algorithm in [&PKCS_RSA_SHA256, &PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384] {
            let ca = made(&KeyPair::generate_for(algorithm).unwrap(), None);
            let client = administrator(&ca, &KeyPair::generate().unwrap(), &RANDOM, now()).unwrap();
            with(client.certificate.as_bytes(), |client| {
                with(&ca.certificate, |ca| {
                    assert!(client.verify_signature(Some(ca.public_key())).is_ok());
                    assert_eq!(
                        client.issuer().as_raw(),
                        ca.subject().as_raw(),
                        "verifiers compare the bytes"
                    );
                });
                assert_eq!(client.subject().to_string(), "O=system:masters, CN=kubernetes-admin");
                assert_eq!(client.validity().not_after.timestamp(), at("2027-01-01T00:00:00Z"));
                assert!(client.extended_key_usage().unwrap().unwrap().value.client_auth);
            });
        }
    }

    /// Upstream's control plane provider writes `RSA PRIVATE KEY`.
    #[test]
    fn k8_key_of_another_provider_signs_in_each_form() {
        for pem in [include_str!("../../goldens/capi/pkcs1.pem"), include_str!("../../goldens/capi/sec1.pem")]
        {
            let mut ca = made(&KeyPair::from_pem(pem).unwrap(), None);
            ca.key = Some(Zeroizing::new(pem.as_bytes().to_vec()));
            let client = administrator(&ca, &KeyPair::generate().unwrap(), &RANDOM, now()).unwrap();
            with(client.certificate.as_bytes(), |client| {
                with(&ca.certificate, |ca| {
                    assert!(client.verify_signature(Some(ca.public_key())).is_ok());
                });
            });
        }
    }

    #[test]
    fn k8_key_of_another_authority_signs_nothing() {
        let mut ca = made(&KeyPair::generate().unwrap(), None);
        let refused =
            |ca: &Certificate| administrator(ca, &KeyPair::generate().unwrap(), &RANDOM, now()).unwrap_err();
        ca.key = Some(Zeroizing::new(KeyPair::generate().unwrap().serialize_pem().into_bytes()));
        assert_eq!(refused(&ca), MakeCertificateError::OtherKey);
        ca.key = Some(Zeroizing::new(b"no PEM".to_vec()));
        assert_eq!(refused(&ca), MakeCertificateError::AuthorityKey);
        ca.key = None;
        assert_eq!(refused(&ca), MakeCertificateError::AuthorityKey);
        let mut ca = made(&KeyPair::generate().unwrap(), None);
        ca.certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
        assert_eq!(refused(&ca), MakeCertificateError::Authority);
    }

    #[test]
    fn kb2_algorithm_of_keys_is_that_of_the_cluster() {
        assert_eq!(KeyAlgorithm::parse(None), Some(KeyAlgorithm::Rsa2048));
        assert_eq!(KeyAlgorithm::parse(Some("ECDSA-P384")), Some(KeyAlgorithm::EcdsaP384));
        assert_eq!(KeyAlgorithm::parse(Some("RSA-9000")), None);
    }
}
