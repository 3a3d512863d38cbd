//! Verification of certificates: by a pinned public key, by a certificate authority, or not at all. A handshake that
//! fails here ends before a byte of HTTP, so before any credentials.
//!
//! ```text
//! Pin       SHA-256 of the SubjectPublicKeyInfo is one of two; name and expiry do not count (BMCs have neither right)
//! CA        signed by a trusted authority, for the name or address that was requested, not expired
//! Insecure  not verified; reported in `Seen::verified`
//! ```
//!
//! Callers: `redfish`, `probe`.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bedplate_api::id::Digest;
use bedplate_api::machine::{BmcTls, BmcTlsMode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use sha2::{Digest as _, Sha256};
use x509_parser::asn1_rs::Any;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::resumable::Resumable;

/// Trust in certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// One of these public keys.
    Pin(Vec<Digest>),
    /// A certificate of these authorities (PEM); `None`: of the system's.
    Authorities(Option<String>),
    /// Anybody's.
    Insecure,
}

impl Trust {
    /// Returns the trust of a Machine; without `tls` the system's authorities are trusted.
    pub fn of(tls: Option<&BmcTls>) -> Self {
        match tls {
            None => Self::Authorities(None),
            Some(BmcTls { mode: BmcTlsMode::Pin, pins, .. }) => Self::Pin(pins.clone()),
            Some(BmcTls { mode: BmcTlsMode::Ca, ca_bundle, .. }) => Self::Authorities(ca_bundle.clone()),
            Some(BmcTls { mode: BmcTlsMode::Insecure, .. }) => Self::Insecure,
        }
    }
}

/// The pin of a certificate (DER); `None` where it cannot be read.
pub fn pin_of(certificate: &[u8]) -> Option<Digest> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(Digest::from_sha256(Sha256::digest(parsed.public_key().raw).into()))
}

/// Reason why a certificate was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The public key is not one of the pinned keys.
    Changed,
    /// The certificate is invalid or not trusted, with the reason.
    NotTrusted(String),
}

/// Facts of the newest handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// The pin of the certificate.
    pub pin: Option<Digest>,
    /// True if the certificate was verified; always false for [`Trust::Insecure`].
    pub verified: bool,
    /// Reason of the rejection.
    pub refusal: Option<Refusal>,
}

/// Record to which a verifier writes the facts of a handshake.
#[derive(Debug, Clone, Default)]
pub struct Witness(Arc<Mutex<Seen>>);

impl Witness {
    /// Returns the facts of the newest handshake.
    pub fn seen(&self) -> Seen {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Prepares for a handshake, so that its failure is distinguished from an earlier one.
    pub(crate) fn forget_refusal(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).refusal = None;
    }

    fn refuse(&self, refusal: Refusal) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.verified, seen.refusal) = (false, Some(refusal));
    }

    fn tell(&self, seen: Seen) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

/// Creates a TLS client that trusts `trust` and reports to `witness`. The error names the problem with the authorities.
pub fn client_config(trust: &Trust, witness: &Witness) -> Result<ClientConfig, String> {
    let provider =
        CryptoProvider::get_default().ok_or("no TLS provider is installed in this process")?.clone();
    let verifier =
        Verifier { belief: belief(trust, &provider)?, witness: witness.clone(), provider: provider.clone() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::store(Arc::new(Resumable::default()));
    Ok(config)
}

fn belief(trust: &Trust, provider: &Arc<CryptoProvider>) -> Result<Belief, String> {
    match trust {
        Trust::Pin(pins) if pins.is_empty() => Err("bmc.redfish.tls.pins is empty".to_owned()),
        Trust::Pin(pins) => Ok(Belief::Pin(pins.clone())),
        Trust::Insecure => Ok(Belief::Anybody),
        Trust::Authorities(bundle) => authorities(bundle.as_ref(), provider).map(Belief::Authorities),
    }
}

/// Authorities with when they were read; by their PEM, or `None` for the system's.
type Known = HashMap<Option<String>, (Instant, Weak<WebPkiServerVerifier>)>;

/// Period for which the system's authorities are cached.
const SYSTEM_FOR: Duration = Duration::from_secs(600);

/// Returns authorities that all clients with the same trust share: a hundred authorities are 100 KiB, and slow to
/// read.
fn authorities(
    bundle: Option<&String>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, String> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let key = bundle.cloned();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let fresh = |read: &Instant| bundle.is_some() || read.elapsed() < SYSTEM_FOR;
    let found = known.get(&key).filter(|(read, _)| fresh(read)).and_then(|(_, verifier)| verifier.upgrade());
    if let Some(verifier) = found {
        return Ok(verifier);
    }
    let roots = match bundle {
        Some(pem) => roots_of(pem)?,
        None => system_roots()?,
    };
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = verifier.build().map_err(|e| e.to_string())?;
    known.retain(|_, (_, verifier)| verifier.strong_count() > 0);
    known.insert(key, (Instant::now(), Arc::downgrade(&verifier)));
    Ok(verifier)
}

fn roots_of(pem: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|e| format!("bmc.redfish.tls.caBundle is not PEM: {e}"))?;
        roots.add(certificate).map_err(|e| format!("bmc.redfish.tls.caBundle: {e}"))?;
    }
    if roots.is_empty() { Err("bmc.redfish.tls.caBundle has no certificate".to_owned()) } else { Ok(roots) }
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(
            "this system has no certificate authorities; install ca-certificates, or set bmc.redfish.tls"
                .to_owned(),
        );
    }
    Ok(roots)
}

#[derive(Debug)]
enum Belief {
    Pin(Vec<Digest>),
    Authorities(Arc<WebPkiServerVerifier>),
    Anybody,
}

#[derive(Debug)]
struct Verifier {
    belief: Belief,
    witness: Witness,
    provider: Arc<CryptoProvider>,
}

type Signature = Result<HandshakeSignatureValid, TlsError>;

/// The public key of a certificate (DER), also of X.509 v1, which webpki does not read.
fn key_of(certificate: &[u8]) -> Result<SubjectPublicKeyInfoDer<'_>, TlsError> {
    let parsed = X509Certificate::from_der(certificate);
    let (_, parsed) = parsed.map_err(|_| TlsError::from(CertificateError::BadEncoding))?;
    Ok(SubjectPublicKeyInfoDer::from(parsed.tbs_certificate.subject_pki.raw))
}

/// Verifies the signature of a TLS 1.2 handshake with a bare key; rustls offers that for TLS 1.3 only.
fn verify_tls12_signature_with_raw_key(
    message: &[u8],
    key: &SubjectPublicKeyInfoDer<'_>,
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Signature {
    let bad = |_| TlsError::from(CertificateError::BadEncoding);
    let (_, sequence) = Any::from_der(key.as_ref()).map_err(bad)?;
    let (rest, algorithm) = Any::from_der(sequence.data).map_err(bad)?;
    let (_, bits) = Any::from_der(rest).map_err(bad)?;
    // No unused bits, then the key.
    let [0, key @ ..] = bits.data else { return Err(CertificateError::BadEncoding.into()) };
    let possible = algorithms.mapping.iter().find(|(scheme, _)| *scheme == dss.scheme);
    let mut possible = possible.map(|(_, possible)| possible.iter()).unwrap_or_default();
    let fits = possible.any(|one| {
        one.public_key_alg_id().as_ref() == algorithm.data
            && one.verify_signature(key, message, dss.signature()).is_ok()
    });
    if fits { Ok(HandshakeSignatureValid::assertion()) } else { Err(CertificateError::BadSignature.into()) }
}

impl Verifier {
    /// A pin proves nothing unless the server proves that it has the key.
    fn signature(&self, verify: impl FnOnce(&WebPkiSupportedAlgorithms) -> Signature) -> Signature {
        let result = match &self.belief {
            Belief::Anybody => Ok(HandshakeSignatureValid::assertion()),
            Belief::Pin(_) | Belief::Authorities(_) => {
                verify(&self.provider.signature_verification_algorithms)
            }
        };
        if let Err(error) = &result {
            let problem = format!("the BMC does not prove that it has the certificate's key: {error}");
            self.witness.refuse(Refusal::NotTrusted(problem));
        }
        result
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let pin = pin_of(end_entity);
        let result = match &self.belief {
            Belief::Anybody => Ok(()),
            Belief::Pin(pins) if pin.is_some_and(|pin| pins.contains(&pin)) => Ok(()),
            Belief::Pin(_) => Err((TlsError::from(CertificateError::UnknownIssuer), Refusal::Changed)),
            Belief::Authorities(authorities) => authorities
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
                .map(drop)
                .map_err(|error| {
                    let refusal = Refusal::NotTrusted(error.to_string());
                    (error, refusal)
                }),
        };
        let verified = result.is_ok() && !matches!(self.belief, Belief::Anybody);
        let refusal = result.as_ref().err().map(|(_, refusal)| refusal.clone());
        self.witness.tell(Seen { pin, verified, refusal });
        result.map(|()| ServerCertVerified::assertion()).map_err(|(error, _)| error)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.signature(|algorithms| match &self.belief {
            Belief::Authorities(_) => verify_tls12_signature(message, cert, dss, algorithms),
            Belief::Pin(_) | Belief::Anybody => {
                verify_tls12_signature_with_raw_key(message, &key_of(cert)?, dss, algorithms)
            }
        })
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.signature(|algorithms| match &self.belief {
            Belief::Authorities(_) => verify_tls13_signature(message, cert, dss, algorithms),
            Belief::Pin(_) | Belief::Anybody => {
                verify_tls13_signature_with_raw_key(message, &key_of(cert)?, dss, algorithms)
            }
        })
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };
    use rustls::{ServerConfig, ServerConnection, Stream};
    use rustls_pki_types::PrivateKeyDer;

    use super::*;

    struct Shown {
        certificate: CertificateDer<'static>,
        key: KeyPair,
    }

    /// A self-signed certificate, of the year 1999 to 2001 and of another name if it is an old one.
    fn self_signed(key: KeyPair, old: bool) -> Shown {
        let name = if old { "localhost.localdomain" } else { "bmc.example" };
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        if old {
            params.not_before = rcgen::date_time_ymd(1999, 1, 1);
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        Shown { certificate: params.self_signed(&key).unwrap().der().clone(), key }
    }

    fn key() -> KeyPair {
        KeyPair::generate().unwrap()
    }

    #[test]
    fn clients_that_believe_the_same_authorities_share_them() {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let bundle = |name: &str| {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.self_signed(&key()).unwrap().pem()
        };
        let (one, other) = (bundle("one"), bundle("other"));
        let first = authorities(Some(&one), &provider).unwrap();
        assert!(Arc::ptr_eq(&first, &authorities(Some(&one), &provider).unwrap()));
        assert!(!Arc::ptr_eq(&first, &authorities(Some(&other), &provider).unwrap()));
    }

    /// Returns the certificate in X.509 v1 form, without version and extensions. Its own signature is never verified.
    fn first_version(shown: &Shown) -> CertificateDer<'static> {
        let sequence = |parts: &[&[u8]]| {
            let data = parts.concat();
            let length = u16::try_from(data.len()).unwrap().to_be_bytes();
            [&[0x30, 0x82], &length[..], &data].concat()
        };
        let elements = |mut data| {
            let mut all: Vec<&[u8]> = Vec::new();
            while let Ok((rest, _)) = Any::from_der(data) {
                all.push(&data[..data.len() - rest.len()]);
                data = rest;
            }
            all
        };
        let (_, certificate) = Any::from_der(&shown.certificate).unwrap();
        let outer = elements(certificate.data);
        let (_, inner) = Any::from_der(outer[0]).unwrap();
        let inner: Vec<&[u8]> =
            elements(inner.data).into_iter().filter(|part| !matches!(part[0], 0xa0 | 0xa3)).collect();
        let der = sequence(&[&sequence(&inner), outer[1], outer[2]]);
        assert_eq!(X509Certificate::from_der(&der).unwrap().1.version().0, 0);
        der.into()
    }

    #[test]
    fn pinned_x509_v1_certificate_is_accepted_and_one_without_its_key_not() {
        for algorithm in [&rcgen::PKCS_RSA_SHA256, &rcgen::PKCS_ECDSA_P256_SHA256] {
            let mut shown = self_signed(KeyPair::generate_for(algorithm).unwrap(), true);
            shown.certificate = first_version(&shown);
            let pin = pin_of(&shown.certificate).unwrap();
            let other = KeyPair::generate_for(algorithm).unwrap();
            for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
                let pinned = Trust::Pin(vec![pin]);
                let (got, seen, _) = handshake_of(&pinned, &shown, &shown.key, &[version]);
                assert_eq!(got, b"password", "{version:?} {seen:?}");
                assert!(seen.verified && seen.refusal.is_none());
                let (got, _, _) = handshake_of(&Trust::Insecure, &shown, &shown.key, &[version]);
                assert_eq!(got, b"password", "{version:?}");
                let (got, seen, sent) = handshake_of(&pinned, &shown, &other, &[version]);
                assert!(!sent && got.is_empty() && !seen.verified, "{version:?}");
                assert!(matches!(seen.refusal, Some(Refusal::NotTrusted(_))), "{seen:?}");
            }
        }
    }

    /// Shakes hands as a client of `trust`, then sends a password; what the server got, and what was seen.
    fn handshake(trust: &Trust, shown: &Shown, signing: &KeyPair) -> (Vec<u8>, Seen, bool) {
        handshake_of(trust, shown, signing, rustls::ALL_VERSIONS)
    }

    fn handshake_of(
        trust: &Trust,
        shown: &Shown,
        signing: &KeyPair,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> (Vec<u8>, Seen, bool) {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let _ = rustls::crypto::CryptoProvider::install_default((*provider).clone());
        let witness = Witness::default();
        let client = Arc::new(client_config(trust, &witness).unwrap());
        let key = PrivateKeyDer::try_from(signing.serialize_der()).unwrap();
        let resolver = Fixed(Arc::new(rustls::sign::CertifiedKey::new(
            vec![shown.certificate.clone()],
            provider.key_provider.load_private_key(key).unwrap(),
        )));
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let server = config.unwrap().with_no_client_auth().with_cert_resolver(Arc::new(resolver));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut connection = ServerConnection::new(Arc::new(server)).unwrap();
            let mut got = Vec::new();
            let _ = Stream::new(&mut connection, &mut socket).read_to_end(&mut got);
            got
        });
        let mut socket = TcpStream::connect(address).unwrap();
        let name = ServerName::try_from("bmc.example").unwrap();
        let mut connection = rustls::ClientConnection::new(client, name).unwrap();
        let sent = Stream::new(&mut connection, &mut socket).write_all(b"password").is_ok();
        connection.send_close_notify();
        let _ = connection.complete_io(&mut socket);
        drop(socket);
        (server.join().unwrap(), witness.seen(), sent)
    }

    #[derive(Debug)]
    struct Fixed(Arc<rustls::sign::CertifiedKey>);

    impl rustls::server::ResolvesServerCert for Fixed {
        fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
            Some(self.0.clone())
        }
    }

    #[test]
    fn a_pinned_key_is_believed_in_either_slot_whatever_name_and_expiry_say() {
        let shown = self_signed(key(), true);
        let pin = pin_of(&shown.certificate).unwrap();
        let other = Digest::from_sha256([7; 32]);
        for pins in [vec![pin], vec![other, pin]] {
            let (got, seen, _) = handshake(&Trust::Pin(pins), &shown, &shown.key);
            assert_eq!(got, b"password");
            assert_eq!(seen, Seen { pin: Some(pin), verified: true, refusal: None });
        }
    }

    #[test]
    fn a_changed_key_is_refused_with_its_pin_before_anything_is_sent() {
        let shown = self_signed(key(), false);
        let (got, seen, sent) =
            handshake(&Trust::Pin(vec![Digest::from_sha256([7; 32])]), &shown, &shown.key);
        assert!(!sent && got.is_empty());
        assert_eq!(seen.refusal, Some(Refusal::Changed));
        assert_eq!(seen.pin, pin_of(&shown.certificate));
        assert!(!seen.verified);
    }

    #[test]
    fn a_copied_certificate_without_its_key_is_refused() {
        let shown = self_signed(key(), false);
        let pin = pin_of(&shown.certificate).unwrap();
        let (got, _, sent) = handshake(&Trust::Pin(vec![pin]), &shown, &key());
        assert!(!sent && got.is_empty());
    }

    #[test]
    fn an_authority_vouches_for_the_name_that_was_asked_for() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, key()).unwrap();
        let trust = Trust::Authorities(Some(authority.pem()));
        for (name, believed) in [("bmc.example", true), ("other.example", false)] {
            let key = key();
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            let certificate = params.signed_by(&key, &authority).unwrap().der().clone();
            let shown = Shown { certificate, key };
            let (got, seen, _) = handshake(&trust, &shown, &shown.key);
            assert_eq!(got == b"password", believed, "{name}");
            assert_eq!(seen.verified, believed, "{name}");
            assert_eq!(matches!(seen.refusal, Some(Refusal::NotTrusted(_))), !believed, "{name}");
        }
    }

    #[test]
    fn insecure_takes_anything_and_says_so() {
        let shown = self_signed(key(), true);
        let (got, seen, _) = handshake(&Trust::Insecure, &shown, &shown.key);
        assert_eq!(got, b"password");
        assert!(!seen.verified && seen.pin == pin_of(&shown.certificate));
    }

    #[test]
    fn an_empty_bundle_is_refused_with_its_field() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let error =
            client_config(&Trust::Authorities(Some("x".to_owned())), &Witness::default()).unwrap_err();
        assert!(error.contains("bmc.redfish.tls.caBundle"), "{error}");
    }
}
