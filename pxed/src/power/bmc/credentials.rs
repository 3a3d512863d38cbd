//! Reads a BMC's user name and password when they are needed: a Secret of the cluster, or two files without one.
//!
//! Only from the configured namespaces, and with the addresses that each Secret lists (`destination`): a user who may write Machines must
//! not be able to send a Secret of the cluster to an address of their own. What is read is zeroised when it is dropped; nothing is kept or logged. (The answer's text inside the
//! Kubernetes client is freed without that.)

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::secret::SecretReference;
use bedplate_bmc::Credentials;
use bedplate_process::exit::chain;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use secrecy::SecretString;
use tokio::sync::Semaphore;
use zeroize::{Zeroize as _, Zeroizing};

use super::destination::{self, Destinations};
use crate::power::{CredentialsError, CredentialsSource, CredentialsVersion, Issued};
use crate::private_file::{self, Private, is_step};

/// A user name or a password is not longer (bytes); BMCs take far less.
const MAX_BYTES: usize = 4096;
/// Maximum size of a list of addresses in a file, in bytes.
const MAX_LIST_BYTES: usize = 65_536;
/// Files that are read at a time.
const FILES_AT_ONCE: usize = 4;
/// How long the API server may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A client, once there is one.
type Access = Arc<OnceLock<Client>>;

/// Secrets of the cluster.
pub struct ClusterSecrets {
    access: Access,
    namespaces: Vec<String>,
}

/// Files below a directory: `<namespace>/<name>/username`, `password` and `bmc-addresses`.
#[derive(Debug, Clone)]
pub struct SecretFiles {
    directory: PathBuf,
    namespaces: Vec<String>,
    /// After a start thousands are read at once, and each on its own thread is hundreds of stacks.
    turns: Arc<Semaphore>,
}

impl ClusterSecrets {
    /// Secrets of these namespaces, by a client that may come later.
    pub fn new(access: Access, namespaces: Vec<String>) -> Self {
        Self { access, namespaces }
    }

    async fn get(&self, secret: &SecretReference) -> Result<Issued, Problem> {
        check_namespace(&self.namespaces, secret)?;
        let passing = |text: String| Problem { text, transient: true };
        let client =
            self.access.get().ok_or_else(|| passing("the API server cannot be reached yet".to_owned()))?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &secret.namespace);
        let found = match tokio::time::timeout(LIMIT, secrets.get_opt(&secret.name)).await {
            Err(_) => return Err(passing("the API server did not answer in time".to_owned())),
            Ok(Ok(found)) => found.ok_or_else(|| "there is no such Secret: create it".to_owned())?,
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                let namespace = &secret.namespace;
                let text = format!(
                    "pxed may not read Secrets of the namespace {namespace}: bind the Role of deploy/pxed.yaml there"
                );
                return Err(text.into());
            }
            Ok(Err(error)) => return Err(passing(chain(&error))),
        };
        Ok(issue(found)?)
    }
}

/// Why there are none, and whether that may pass by itself.
struct Problem {
    text: String,
    transient: bool,
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self { text, transient: false }
    }
}

/// The credentials in a Secret, whose bytes are zeroised.
fn issue(secret: Secret) -> Result<Issued, String> {
    let metadata = secret.metadata;
    let listed = metadata.annotations.as_ref().and_then(|all| all.get(destination::ANNOTATION));
    let destinations = Destinations::of_annotation(listed.map(String::as_str));
    let version =
        format!("{}/{}", metadata.uid.unwrap_or_default(), metadata.resource_version.unwrap_or_default());
    let mut data = secret.data.unwrap_or_default();
    let mut take = |key| data.remove(key).map(|ByteString(bytes)| Zeroizing::new(bytes));
    let (username, password) = (take("username"), take("password"));
    data.values_mut().for_each(|ByteString(bytes)| bytes.zeroize());
    let credentials = credentials(username, password, "key")?;
    Ok(Issued { credentials, version: CredentialsVersion(version), destinations })
}

/// Credentials of the bytes that were found.
fn credentials(
    username: Option<Zeroizing<Vec<u8>>>,
    password: Option<Zeroizing<Vec<u8>>>,
    place: &str,
) -> Result<Credentials, String> {
    let text = |name: &str, bytes: Option<Zeroizing<Vec<u8>>>| -> Result<Zeroizing<String>, String> {
        let bytes = bytes.ok_or_else(|| format!("it has no {place} {name}"))?;
        if bytes.len() > MAX_BYTES {
            return Err(format!("its {place} {name} is longer than {MAX_BYTES} bytes"));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| format!("its {place} {name} is no UTF-8 text"))?;
        if text.is_empty() {
            return Err(format!("its {place} {name} is empty"));
        }
        // Of its exact length: what becomes a boxed text is not moved, which would leave a copy behind.
        let mut exact = String::with_capacity(text.len());
        exact.push_str(text);
        Ok(Zeroizing::new(exact))
    };
    let (username, mut password) = (text("username", username)?, text("password", password)?);
    let password = SecretString::from(std::mem::take(&mut *password));
    Ok(Credentials { username: username.to_string(), password })
}

fn check_namespace(namespaces: &[String], secret: &SecretReference) -> Result<(), String> {
    if namespaces.contains(&secret.namespace) {
        return Ok(());
    }
    Err(format!(
        "pxed reads none of the namespace {}: add it to bmc.secret-namespaces in pxed's configuration, or name one of {}",
        secret.namespace,
        if namespaces.is_empty() { "none".to_owned() } else { namespaces.join(", ") }
    ))
}

fn failed(secret: &SecretReference, problem: Problem) -> CredentialsError {
    let Problem { text: problem, transient } = problem;
    CredentialsError { namespace: secret.namespace.clone(), name: secret.name.clone(), problem, transient }
}

#[async_trait]
impl CredentialsSource for ClusterSecrets {
    async fn read(&self, secret: &SecretReference) -> Result<Issued, CredentialsError> {
        self.get(secret).await.map_err(|problem| failed(secret, problem))
    }
}

#[async_trait]
impl CredentialsSource for SecretFiles {
    async fn read(&self, secret: &SecretReference) -> Result<Issued, CredentialsError> {
        let (files, named) = (self.clone(), secret.clone());
        // Nobody closes it.
        let _turn = self.turns.acquire().await;
        let read = tokio::task::spawn_blocking(move || files.get(&named)).await;
        read.unwrap_or_else(|error| Err(error.to_string())).map_err(|problem| failed(secret, problem.into()))
    }
}

impl SecretFiles {
    /// Files below `directory`, of these namespaces.
    pub fn new(directory: PathBuf, namespaces: Vec<String>) -> Self {
        Self { directory, namespaces, turns: Arc::new(Semaphore::new(FILES_AT_ONCE)) }
    }

    fn get(&self, secret: &SecretReference) -> Result<Issued, String> {
        check_namespace(&self.namespaces, secret)?;
        if !is_step(&secret.namespace) || !is_step(&secret.name) {
            return Err("its name is no file name".to_owned());
        }
        let below = Path::new(&secret.namespace).join(&secret.name);
        let (username, first) = self.read_file(&below.join("username"))?;
        let (password, second) = self.read_file(&below.join("password"))?;
        let credentials = credentials(Some(username), Some(password), "file")?;
        let (destinations, third) = self.read_destinations(&below.join(destination::FILE))?;
        let version = CredentialsVersion(format!("{first}/{second}/{third}"));
        Ok(Issued { credentials, version, destinations })
    }

    /// The list of addresses, and its stamp. Without the file nothing is allowed.
    fn read_destinations(&self, below: &Path) -> Result<(Destinations, String), String> {
        match private_file::read(&self.directory, below, MAX_LIST_BYTES) {
            Ok(Private { bytes, .. }) if bytes.len() > MAX_LIST_BYTES => {
                Err(format!("its file {} is longer than {MAX_LIST_BYTES} bytes", destination::FILE))
            }
            Ok(Private { bytes, stamp }) => {
                let text = std::str::from_utf8(&bytes)
                    .map_err(|_| format!("its file {} is not UTF-8 text", destination::FILE))?;
                Ok((Destinations::of_file(Some(text)), stamp))
            }
            Err(private_file::Problem::Missing(_)) => Ok((Destinations::of_file(None), String::new())),
            Err(problem @ private_file::Problem::Unusable(_)) => Err(problem.into_text()),
        }
    }

    /// A file's bytes without the line's end, and its stamp.
    fn read_file(&self, below: &Path) -> Result<(Zeroizing<Vec<u8>>, String), String> {
        // A line's end beside the longest text; one more shows that it is too long.
        let Private { mut bytes, stamp } = private_file::read(&self.directory, below, MAX_BYTES + 1)
            .map_err(private_file::Problem::into_text)?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        Ok((bytes, stamp))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::pin::pin;

    use bedplate_bmc::address::Host;
    use futures::FutureExt as _;
    use secrecy::ExposeSecret;

    use super::*;

    fn secret(namespace: &str, name: &str) -> SecretReference {
        SecretReference { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    struct Rig {
        directory: tempfile::TempDir,
        files: SecretFiles,
    }

    impl Rig {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let files = SecretFiles::new(directory.path().join("in"), vec!["bedplate-system".to_owned()]);
            let rig = Self { directory, files };
            std::fs::create_dir_all(rig.path("in/bedplate-system/a")).unwrap();
            rig.write("in/bedplate-system/a/username", "root\n", 0o600);
            rig.write("in/bedplate-system/a/password", "s3cret\r\n", 0o400);
            rig.write("in/bedplate-system/a/bmc-addresses", "10.9.0.0/24\n", 0o600);
            rig
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn write(&self, name: &str, text: &str, mode: u32) {
            let _ = std::fs::remove_file(self.path(name));
            std::fs::write(self.path(name), text).unwrap();
            std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }

        fn read(&self) -> Result<(String, String, CredentialsVersion), String> {
            let issued = self.files.get(&secret("bedplate-system", "a"))?;
            let Issued { credentials, version, .. } = issued;
            Ok((credentials.username, credentials.password.expose_secret().to_owned(), version))
        }
    }

    #[test]
    fn only_four_files_are_read_at_a_time() {
        let rig = Rig::new();
        let named = secret("bedplate-system", "a");
        // One thread: what is given to it before the change has been done when the change is made.
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let others = rig.files.turns.clone().acquire_many_owned(4).await.unwrap();
            let mut fifth = pin!(rig.files.read(&named));
            assert!(fifth.as_mut().now_or_never().is_none());
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            rig.write("in/bedplate-system/a/password", "changed", 0o600);
            drop(others);
            assert_eq!(fifth.await.unwrap().credentials.password.expose_secret(), "changed");
        });
    }

    #[test]
    fn files_are_read_without_their_newline_and_a_changed_one_has_another_version() {
        let rig = Rig::new();
        let (username, password, version) = rig.read().unwrap();
        assert_eq!((username.as_str(), password.as_str()), ("root", "s3cret"));
        assert_eq!(rig.read().unwrap().2, version);
        rig.write("in/bedplate-system/a/password", "other", 0o600);
        assert_ne!(rig.read().unwrap().2, version);
    }

    /// The host is allowed by what was read; the error is why not.
    fn allows(issued: &Issued, host: &str) -> Result<(), String> {
        issued.destinations.check(&Host::parse(host).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_secrets_annotation_says_where_its_credentials_may_go() {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let mut made = Secret {
            data: Some([("username", "u"), ("password", "p")].map(|(k, v)| (k.to_owned(), bytes(v))).into()),
            ..Secret::default()
        };
        let why = allows(&issue(made.clone()).unwrap(), "10.9.0.21").unwrap_err();
        assert!(why.contains("annotation bedplate.dev/bmc-addresses is missing"), "{why}");
        made.metadata.annotations =
            Some([(destination::ANNOTATION.to_owned(), "10.9.0.0/24".to_owned())].into());
        let issued = issue(made).unwrap();
        assert_eq!(allows(&issued, "10.9.0.21"), Ok(()));
        assert!(allows(&issued, "198.51.100.7").unwrap_err().contains("does not list 198.51.100.7"));
    }

    #[test]
    fn a_file_next_to_the_password_says_where_it_may_go() {
        let rig = Rig::new();
        let read = || rig.files.get(&secret("bedplate-system", "a")).unwrap();
        assert_eq!(allows(&read(), "10.9.0.21"), Ok(()));
        assert!(allows(&read(), "198.51.100.7").is_err());
        let (name, version) = ("in/bedplate-system/a/bmc-addresses", read().version);
        rig.write(name, "10.9.0.21\n198.51.100.0/24\n", 0o600);
        assert_eq!(allows(&read(), "198.51.100.7"), Ok(()));
        assert_ne!(read().version, version, "a changed list counts as a changed Secret");
        rig.write(name, "0.0.0.0/0", 0o644);
        assert!(rig.read().unwrap_err().contains("chmod 600"), "others could have written it");
        rig.write(name, &"x".repeat(MAX_LIST_BYTES + 1), 0o600);
        assert!(rig.read().unwrap_err().contains("longer than"));
        std::fs::remove_file(rig.path(name)).unwrap();
        let why = allows(&read(), "10.9.0.21").unwrap_err();
        assert!(why.contains("file bmc-addresses is missing"), "{why}");
    }

    #[test]
    fn what_others_could_read_or_have_written_is_refused_with_its_remedy() {
        let rig = Rig::new();
        for mode in [0o640, 0o604, 0o700, 0o4600] {
            rig.write("in/bedplate-system/a/password", "s3cret", mode);
            let why = rig.read().unwrap_err();
            assert!(why.contains("chmod 600") && !why.contains("s3cret"), "{why}");
        }
        let name = "in/bedplate-system/a/password";
        rig.write(name, &"x".repeat(MAX_BYTES + 1), 0o600);
        assert!(rig.read().unwrap_err().contains("longer than"));
        rig.write(name, "\n", 0o600);
        assert!(rig.read().unwrap_err().contains("is empty"));
        std::fs::remove_file(rig.path(name)).unwrap();
        assert!(rig.read().unwrap_err().contains("cannot be opened"));
    }

    #[test]
    fn no_link_leads_out_of_the_directory_but_one_inside_is_followed() {
        let rig = Rig::new();
        let name = "in/bedplate-system/a/password";
        rig.write("outside", "s3cret", 0o600);
        std::fs::remove_file(rig.path(name)).unwrap();
        symlink(rig.path("outside"), rig.path(name)).unwrap();
        assert!(rig.read().unwrap_err().contains("leads out of"));
        std::fs::remove_file(rig.path(name)).unwrap();
        rig.write("in/bedplate-system/a/real", "s3cret", 0o600);
        symlink("real", rig.path(name)).unwrap();
        assert_eq!(rig.read().unwrap().1, "s3cret");
        for (namespace, name) in
            [("bedplate-system", ".."), ("bedplate-system", "a/../a"), ("bedplate-system", "")]
        {
            assert!(rig.files.get(&secret(namespace, name)).is_err(), "{name}");
        }
    }

    #[test]
    fn other_namespaces_are_not_looked_into_and_the_remedy_is_named() {
        let rig = Rig::new();
        let why = rig.files.get(&secret("kube-system", "a")).unwrap_err();
        assert!(why.contains("bmc.secret-namespaces"), "{why}");
    }

    #[tokio::test]
    async fn that_the_api_server_cannot_be_asked_now_fails_no_operation_at_once() {
        let secrets = ClusterSecrets::new(Access::default(), vec!["bedplate-system".to_owned()]);
        for (namespace, transient) in [("bedplate-system", true), ("kube-system", false)] {
            let error = secrets.read(&secret(namespace, "a")).await.unwrap_err();
            assert_eq!(error.transient, transient, "{error}");
            assert_eq!(
                crate::power::bmc::connection::NoAnswer::Credentials(error).failure().transient,
                transient
            );
        }
    }

    #[test]
    fn a_secret_without_its_keys_says_which() {
        let mut made = Secret::default();
        assert!(issue(made.clone()).unwrap_err().contains("no key username"));
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        made.data =
            Some([("username", "u"), ("password", "p")].map(|(k, v)| (k.to_owned(), bytes(v))).into());
        made.metadata.uid = Some("1".to_owned());
        made.metadata.resource_version = Some("2".to_owned());
        let issued = issue(made).unwrap();
        assert_eq!(issued.version.0, "1/2");
        assert!(!format!("{issued:?}").contains("\"p\""));
    }
}
