//! Files with the credentials of BMCs, below a directory: `<namespace>/<name>/username`, `password` and `bmc-addresses`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::secret::SecretReference;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::power::bmc::credentials::{MAX_BYTES, check_namespace, credentials, failed};
use crate::power::bmc::destination::{self, Destinations};
use crate::power::{CredentialsError, CredentialsSource, CredentialsVersion, Issued};
use crate::private_file::{self, Private, is_step};

/// Maximum size of a list of addresses, in bytes.
const MAX_LIST_BYTES: usize = 65_536;
/// Maximum number of files that are read concurrently.
const MAX_CONCURRENT_READS: usize = 4;

/// The files.
#[derive(Debug, Clone)]
pub(crate) struct SecretFiles {
    directory: PathBuf,
    namespaces: Vec<String>,
    /// After a start thousands are read concurrently: a thread for each would take hundreds of stacks.
    turns: Arc<Semaphore>,
}

#[async_trait]
impl CredentialsSource for SecretFiles {
    async fn read(&self, secret: &SecretReference) -> Result<Issued, CredentialsError> {
        let (files, named) = (self.clone(), secret.clone());
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let read = tokio::task::spawn_blocking(move || files.get(&named)).await;
        read.unwrap_or_else(|error| Err(error.to_string())).map_err(|problem| failed(secret, problem.into()))
    }
}

impl SecretFiles {
    /// Makes the reader of files below `directory`, of these namespaces.
    pub(crate) fn new(directory: PathBuf, namespaces: Vec<String>) -> Self {
        Self { directory, namespaces, turns: Arc::new(Semaphore::new(MAX_CONCURRENT_READS)) }
    }

    fn get(&self, secret: &SecretReference) -> Result<Issued, String> {
        check_namespace(&self.namespaces, secret)?;
        if !is_step(&secret.namespace) || !is_step(&secret.name) {
            return Err("its name is not a valid file name".to_owned());
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
        // `MAX_BYTES` of text and a line end. `read` returns one more byte if the file is longer.
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
    fn bmc_secret_files_lose_newline_and_change_version_when_edited() {
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
    fn files_readable_or_owned_by_others_are_rejected_with_remedy() {
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
}
