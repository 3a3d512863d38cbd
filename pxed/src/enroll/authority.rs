//! pxed's own certificate authority: made at the first start in the state directory, kept for ever after.
//!
//! Signs the TLS listener's certificates, and in directory mode the agents'. Its key never leaves the directory (0600).
//! Key and certificate appear together, by the rename of a directory. If one is lost, no new authority is made: every host would need
//! another boot.

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::time::SystemTime;

use jiff::{SignedDuration, Timestamp};
use rand::TryRng;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use thiserror::Error;
use x509_parser::pem::Pem;
use zeroize::Zeroizing;

use super::UID_OID;
use crate::private_file;

/// Ten years.
const CA_LIFETIME: Duration = Duration::from_secs(3650 * 86_400);

/// Time before its end from which each start warns that the authority ends.
const WARN_BEFORE: SignedDuration = SignedDuration::from_hours(365 * 24);

/// A host whose clock lags must not take a fresh certificate for one of the future.
pub(super) const BACKDATED_PERIOD: SignedDuration = SignedDuration::from_hours(24);

/// Error of opening the authority.
#[derive(Debug, Error)]
pub enum OpenAuthorityError {
    /// A file cannot be read or written.
    #[error("cannot {act} {path}")]
    File {
        /// Attempted act.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// One of the two files is missing.
    #[error(
        "{missing} is missing although {found} exists; restore it, or remove the directory (then every host must boot again)"
    )]
    Half {
        /// The missing file.
        missing: PathBuf,
        /// The other file.
        found: PathBuf,
    },
    /// The key is readable by others, or not a file of root or pxed's own user.
    #[error("the key of the certificate authority is not private: {0}")]
    Exposed(String),
    /// Key and certificate are there and cannot be used.
    #[error(
        "{path} is damaged; restore it, or remove its directory (then every host re-enrolls at its next boot)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Error of the library.
        #[source]
        source: rcgen::Error,
    },
    /// A key or certificate cannot be made.
    #[error("cannot create the certificate authority")]
    Make(#[source] rcgen::Error),
}

/// Time at which a file was made, if the file system records it.
fn created(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.created()).ok()
}

/// The authority.
pub struct Authority {
    pem: String,
    /// Time at which its certificate file was made. None if the file system does not record it.
    created: Option<SystemTime>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, for the TLS listener.
pub struct ServerIdentity {
    /// The certificate (DER).
    pub certificate: Vec<u8>,
    /// The key (PKCS#8 DER).
    pub key: Vec<u8>,
}

impl Authority {
    /// Opens the authority in `directory`, or creates a new one. Blocking.
    ///
    /// # Errors
    /// [`OpenAuthorityError`].
    pub fn open(directory: &Path, site: &str, now: Timestamp) -> Result<Self, OpenAuthorityError> {
        let (key_path, certificate_path) = (directory.join("ca.key"), directory.join("ca.pem"));
        let file = |act, path: &Path| {
            let path = path.to_owned();
            move |source| OpenAuthorityError::File { act, path, source }
        };
        let key = read_key(directory)?;
        let certificate = read(&certificate_path).map_err(file("read", &certificate_path))?;
        match (key, certificate) {
            (Some(key), Some(pem)) => {
                let key = KeyPair::from_pem(&key)
                    .map_err(|source| OpenAuthorityError::Damaged { path: key_path, source })?;
                let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(|source| {
                    OpenAuthorityError::Damaged { path: certificate_path.clone(), source }
                })?;
                if let Some(end) = ends_soon(&pem, now) {
                    let path = certificate_path.display();
                    tracing::warn!(%path, %end, "authority expires, see docs/getting-started/install.md, \"Limits\"");
                }
                Ok(Self { pem, created: created(&certificate_path), issuer })
            }
            (None, None) => Self::make(directory, site, now),
            (Some(_), None) => Err(OpenAuthorityError::Half { missing: certificate_path, found: key_path }),
            (None, Some(_)) => Err(OpenAuthorityError::Half { missing: key_path, found: certificate_path }),
        }
    }

    /// Makes a new authority in `directory`, which is empty or absent.
    fn make(directory: &Path, site: &str, now: Timestamp) -> Result<Self, OpenAuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(OpenAuthorityError::Make)?;
        let mut params = params(&format!("bedplate pxed {site}"), now, CA_LIFETIME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).map_err(OpenAuthorityError::Make)?.pem();
        let written = write_both(directory, &key.serialize_pem(), &pem);
        written.map_err(|source| OpenAuthorityError::File {
            act: "make",
            path: directory.to_owned(),
            source,
        })?;
        tracing::info!(path = %directory.display(), "certificate authority created");
        Ok(Self { pem, created: created(&directory.join("ca.pem")), issuer: Issuer::new(params, key) })
    }

    /// Returns true if the file at `store` was made after the authority, or if that is not known. At the first start the store is made first: a
    /// younger one replaces a store that was deleted, or comes from a backup.
    pub fn precedes(&self, store: &Path) -> bool {
        self.created.zip(created(store)).is_none_or(|(authority, store)| store > authority)
    }

    /// The certificate (PEM).
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

    /// Makes a client certificate (PEM) with this common name, UID and two groups (organizations), for a key that only its owner has.
    ///
    /// # Errors
    /// The certificate cannot be made.
    pub fn client(
        &self,
        key: &impl PublicKeyData,
        (common_name, uid): (&str, &str),
        groups: [&str; 2],
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<String, rcgen::Error> {
        let mut params = params(common_name, now, lifetime);
        // The library keeps one value for each type of its own.
        let further = DnType::CustomDnType(vec![2, 5, 4, 10]);
        for (type_, group) in [DnType::OrganizationName, further].into_iter().zip(groups) {
            params.distinguished_name.push(type_, group);
        }
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
    let seconds =
        u64::try_from(now.as_second().saturating_sub(BACKDATED_PERIOD.as_secs())).unwrap_or_default();
    params.not_before = epoch + Duration::from_secs(seconds);
    params.not_after = params.not_before + BACKDATED_PERIOD.unsigned_abs() + lifetime;
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

/// Returns the time at which a certificate ends, if that is soon or has passed.
fn ends_soon(pem: &str, now: Timestamp) -> Option<Timestamp> {
    let block = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
    let end = block.parse_x509().ok()?.validity().not_after.timestamp();
    let end = Timestamp::from_second(end).ok()?;
    (end.duration_since(now) < WARN_BEFORE).then_some(end)
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Maximum size of a key's file, in bytes.
const MAX_KEY_BYTES: usize = 16 << 10;

/// Reads the key (PEM), if its file exists and is private.
fn read_key(directory: &Path) -> Result<Option<Zeroizing<String>>, OpenAuthorityError> {
    match private_file::read(directory, Path::new("ca.key"), MAX_KEY_BYTES) {
        Ok(private) => Ok(Some(Zeroizing::new(String::from_utf8_lossy(&private.bytes).into_owned()))),
        Err(private_file::Problem::Missing(_)) => Ok(None),
        Err(private_file::Problem::Unusable(problem)) => Err(OpenAuthorityError::Exposed(problem)),
    }
}

/// Writes both files, or none if it is interrupted. They are on disk when it returns.
fn write_both(directory: &Path, key: &str, certificate: &str) -> io::Result<()> {
    let new = directory.with_extension("new");
    match fs::remove_dir_all(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&new)?;
    write(&new.join("ca.key"), key)?;
    write(&new.join("ca.pem"), certificate)?;
    fs::File::open(&new)?.sync_all()?;
    fs::rename(&new, directory)?;
    match directory.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

/// Writes a new file with mode 0600 from its first byte. It is on disk when this returns.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
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
        let made = || tempfile::NamedTempFile::new_in(directory.path()).unwrap();
        let mut store = made();
        // The clock of a file system moves in steps of milliseconds.
        while !second.precedes(store.path()) {
            store = made();
        }
        assert!(first.precedes(store.path()), "the store was made again");
        let other = Authority::open(&directory.path().join("other"), "default", Timestamp::now()).unwrap();
        assert!(!other.precedes(store.path()), "the first start makes the store first");
        assert!(other.precedes(&directory.path().join("gone")));
        let mode = fs::metadata(path.join("ca.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            second.server([10, 7, 0, 2].into(), Some("pxed.example"), Timestamp::now(), CA_LIFETIME).is_ok()
        );
    }

    #[test]
    fn end_of_the_authority_is_logged_from_a_year_before() {
        let directory = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let made = Authority::open(&directory.path().join("ca"), "default", now).unwrap();
        let after = |days: i64| now + SignedDuration::from_hours(days * 24);
        assert_eq!(ends_soon(made.pem(), after(3650 - 366)), None);
        let end = ends_soon(made.pem(), after(3650 - 364)).unwrap();
        assert!(after(3649) < end && end <= after(3650), "{end}");
        assert_eq!(ends_soon(made.pem(), after(4000)), Some(end), "it has ended");
    }

    #[test]
    fn half_of_an_authority_is_an_error_with_a_remedy_and_never_replaced() {
        for (gone, other) in [("ca.pem", "ca.key"), ("ca.key", "ca.pem")] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("ca");
            Authority::open(&path, "default", Timestamp::now()).unwrap();
            let kept = fs::read(path.join(other)).unwrap();
            fs::remove_file(path.join(gone)).unwrap();
            let Err(error) = Authority::open(&path, "default", Timestamp::now()) else { panic!("{gone}") };
            let text = error.to_string();
            assert!(text.contains(gone) && text.contains("restore it"), "{text}");
            assert_eq!(fs::read(path.join(other)).unwrap(), kept);
        }
    }

    #[test]
    fn an_authority_that_was_not_finished_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca");
        fs::create_dir_all(directory.path().join("ca.new")).unwrap();
        fs::write(directory.path().join("ca.new/ca.key"), "half").unwrap();
        Authority::open(&path, "default", Timestamp::now()).unwrap();
        assert!(!directory.path().join("ca.new").exists());
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca");
        Authority::open(&path, "default", Timestamp::now()).unwrap();
        fs::set_permissions(path.join("ca.key"), fs::Permissions::from_mode(0o640)).unwrap();
        let Err(error) = Authority::open(&path, "default", Timestamp::now()) else { panic!("it was read") };
        assert!(matches!(&error, OpenAuthorityError::Exposed(why) if why.contains("chmod 600")), "{error}");
    }

    #[test]
    fn a_damaged_authority_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca");
        Authority::open(&path, "default", Timestamp::now()).unwrap();
        fs::write(path.join("ca.pem"), "garbage").unwrap();
        assert!(matches!(
            Authority::open(&path, "default", Timestamp::now()),
            Err(OpenAuthorityError::Damaged { .. })
        ));
    }
}
