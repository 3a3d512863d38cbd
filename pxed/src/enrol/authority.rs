//! pxed's own certificate authority: made at the first start in the state directory, kept for ever after.
//!
//! Signs the TLS listener's certificates, and in directory mode the agents'. Its key never leaves the directory (0600).

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rand::TryRng;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use thiserror::Error;

use super::UID_OID;

/// Ten years.
const CA_LIFETIME: Duration = Duration::from_secs(3650 * 86_400);

/// A host whose clock lags must not take a fresh certificate for one of the future.
const BACKDATED: i64 = 86_400;

/// Why the authority cannot be used.
#[derive(Debug, Error)]
pub enum OpenAuthorityError {
    /// A file cannot be read or written.
    #[error("cannot {act} {path}")]
    File {
        /// What was tried.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Key and certificate are there and cannot be used.
    #[error(
        "{path} is damaged: restore it, or remove its directory (then every host enrols anew with its next boot)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rcgen::Error,
    },
    /// A key or certificate cannot be made.
    #[error("cannot make the certificate authority")]
    Make(#[source] rcgen::Error),
}

/// The authority.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, for the TLS listener.
pub struct ServerIdentity {
    /// The certificate (DER).
    pub certificate: Vec<u8>,
    /// Its key (PKCS#8 DER).
    pub key: Vec<u8>,
}

impl Authority {
    /// The authority that lies in `directory`, or a new one. Blocking.
    ///
    /// # Errors
    /// [`OpenAuthorityError`].
    pub fn open(directory: &Path, site: &str, now: Timestamp) -> Result<Self, OpenAuthorityError> {
        let (key_path, certificate_path) = (directory.join("ca.key"), directory.join("ca.pem"));
        let file = |act, path: &Path| {
            let path = path.to_owned();
            move |source| OpenAuthorityError::File { act, path, source }
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(file("make", directory))?;
        let key = read(&key_path).map_err(file("read", &key_path))?;
        let certificate = read(&certificate_path).map_err(file("read", &certificate_path))?;
        if let (Some(key), Some(pem)) = (key, certificate) {
            let key = KeyPair::from_pem(&key)
                .map_err(|source| OpenAuthorityError::Damaged { path: key_path, source })?;
            let issuer = Issuer::from_ca_cert_pem(&pem, key)
                .map_err(|source| OpenAuthorityError::Damaged { path: certificate_path, source })?;
            return Ok(Self { pem, issuer });
        }
        // Nobody has seen a key without its certificate: after a crash between the two writes both are made again.
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(OpenAuthorityError::Make)?;
        let mut params = params(&format!("bedplate pxed {site}"), now, CA_LIFETIME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).map_err(OpenAuthorityError::Make)?.pem();
        write(&key_path, &key.serialize_pem()).map_err(file("write", &key_path))?;
        write(&certificate_path, &pem).map_err(file("write", &certificate_path))?;
        tracing::info!(path = %certificate_path.display(), "certificate authority made");
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// Its certificate (PEM).
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for the TLS listener, reached at this address or by this name.
    ///
    /// # Errors
    /// The key or the certificate cannot be made.
    pub fn server(
        &self,
        address: IpAddr,
        host: Option<&str>,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<ServerIdentity, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params("bedplate pxed", now, lifetime);
        params.subject_alt_names = vec![SanType::IpAddress(address)];
        if let Some(host) = host {
            params.subject_alt_names.push(match host.trim_matches(['[', ']']).parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.try_into()?),
            });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(ServerIdentity { certificate: certificate.der().to_vec(), key: key.serialize_der() })
    }

    /// A client certificate (PEM) with this common name, UID and organisation for a key that only its owner has.
    ///
    /// # Errors
    /// The certificate cannot be made.
    pub fn client(
        &self,
        key: &impl PublicKeyData,
        (common_name, uid): (&str, &str),
        organisation: &str,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<String, rcgen::Error> {
        let mut params = params(common_name, now, lifetime);
        params.distinguished_name.push(DnType::OrganizationName, organisation);
        params.distinguished_name.push(DnType::CustomDnType(UID_OID.to_vec()), uid);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }
}

fn params(common_name: &str, now: Timestamp, lifetime: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let epoch = date_time_ymd(1970, 1, 1);
    let seconds = u64::try_from(now.as_second().saturating_sub(BACKDATED)).unwrap_or_default();
    params.not_before = epoch + Duration::from_secs(seconds);
    params.not_after = params.not_before + Duration::from_secs(BACKDATED.unsigned_abs()) + lifetime;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let mut serial = [0; 16];
    // Without random numbers the library derives a serial number from the key, which is unique enough for one.
    if rand::rngs::SysRng.try_fill_bytes(&mut serial).is_ok() {
        serial[0] &= 0x7f;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
    }
    params
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whole or not at all, and on disk before it has its name; 0600 from its first byte.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(directory) => fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn authority_survives_a_restart_and_its_key_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca");
        let first = Authority::open(&path, "default", Timestamp::now()).unwrap();
        let second = Authority::open(&path, "default", Timestamp::now()).unwrap();
        assert_eq!(first.pem(), second.pem());
        let mode = fs::metadata(path.join("ca.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            second.server([10, 7, 0, 2].into(), Some("pxed.example"), Timestamp::now(), CA_LIFETIME).is_ok()
        );
    }

    #[test]
    fn half_made_authority_is_made_again_and_a_damaged_one_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        Authority::open(&path, "default", Timestamp::now()).unwrap();
        fs::remove_file(path.join("ca.pem")).unwrap();
        Authority::open(&path, "default", Timestamp::now()).unwrap();
        fs::write(path.join("ca.pem"), "garbage").unwrap();
        assert!(matches!(
            Authority::open(&path, "default", Timestamp::now()),
            Err(OpenAuthorityError::Damaged { .. })
        ));
    }
}
