//! Secrets of nodes without a cluster: files `<namespace>/<name>/<key>` below one directory, read when an agent asks for what its
//! version names.
//!
//! Only the keys that the version names; nothing is kept or logged. (The answer's text is freed without being overwritten.) In a
//! cluster agents ask its API server. Called by `standalone::agents`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_api::configuration::Template;
use bedplate_api::wire::{SecretRequest, SecretResponse, SecretText};
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::private_file::{self, Problem, is_step};

/// A Secret's values together (bytes): what an API server takes.
const MOST_BYTES: usize = 1 << 20;
/// Maximum number of Secrets that are read concurrently: a whole rack may ask at the same time.
const AT_ONCE: usize = 4;
/// The key of a pull secret.
const PULL_KEY: &str = ".dockerconfigjson";
/// The type of a Secret with that key, and of any other.
const PULL_KIND: &str = "kubernetes.io/dockerconfigjson";
const OTHER_KIND: &str = "Opaque";

/// The directory; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct NodeSecrets {
    directory: PathBuf,
    turns: Arc<Semaphore>,
}

/// Error of reading a Secret. Contains no part of the Secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ReadSecretError {
    /// No key of it is there.
    #[error("{0} is missing; create it with mode 0600, owned by root or by pxed's own user")]
    Missing(String),
    /// A key is there and cannot be used.
    #[error("{0}")]
    Unreadable(String),
}

/// The keys of a Secret that a template names; none: it does not name the Secret.
pub(crate) fn named_keys(template: &Template, secret: &SecretRequest) -> BTreeSet<String> {
    let pull = template.image.pull_secret_ref.iter();
    let pull = pull.map(|named| (&named.namespace, &named.name, PULL_KEY));
    let files = template.files.iter().filter_map(|file| file.content_from.as_ref());
    let files = files.map(|from| (&from.secret.namespace, &from.secret.name, from.secret.key.as_str()));
    let named = pull.chain(files).filter(|(namespace, name, _)| {
        (namespace.as_str(), name.as_str()) == (secret.namespace.as_str(), secret.name.as_str())
    });
    named.map(|(_, _, key)| key.to_owned()).collect()
}

impl NodeSecrets {
    /// Creates a reader for the Secrets below `directory`.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Reads these keys of a Secret; missing keys are omitted.
    ///
    /// # Errors
    /// All keys are missing, or one is unusable.
    pub(crate) async fn read(
        &self,
        secret: SecretRequest,
        keys: BTreeSet<String>,
    ) -> Result<SecretResponse, ReadSecretError> {
        let directory = self.directory.clone();
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let read = tokio::task::spawn_blocking(move || read(&directory, &secret, &keys)).await;
        read.unwrap_or_else(|error| Err(ReadSecretError::Unreadable(error.to_string())))
    }
}

fn read(
    directory: &Path,
    secret: &SecretRequest,
    keys: &BTreeSet<String>,
) -> Result<SecretResponse, ReadSecretError> {
    let names = [&secret.namespace, &secret.name].into_iter().chain(keys);
    if let Some(name) = names.into_iter().find(|name| !is_step(name)) {
        return Err(ReadSecretError::Unreadable(format!("{name:?} is not a valid file name")));
    }
    let below = Path::new(&secret.namespace).join(&secret.name);
    let (mut data, mut missing, mut room) = (BTreeMap::new(), None, MOST_BYTES);
    for key in keys {
        match private_file::read(directory, &below.join(key), room) {
            Ok(file) if file.bytes.len() > room => {
                let shown = directory.join(&below);
                let text =
                    format!("{} is larger than {} KiB, all keys together", shown.display(), MOST_BYTES >> 10);
                return Err(ReadSecretError::Unreadable(text));
            }
            Ok(file) => {
                room = room.saturating_sub(file.bytes.len());
                data.insert(key.clone(), SecretText(STANDARD.encode(&*file.bytes)));
            }
            Err(Problem::Missing(text)) => drop(missing.get_or_insert(text)),
            Err(Problem::Unusable(text)) => return Err(ReadSecretError::Unreadable(text)),
        }
    }
    if let (true, Some(text)) = (data.is_empty(), missing) {
        return Err(ReadSecretError::Missing(text));
    }
    let kind = if data.contains_key(PULL_KEY) { PULL_KIND } else { OTHER_KIND };
    Ok(SecretResponse { kind: kind.to_owned(), data })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use serde_json::json;

    use super::*;

    fn template() -> Template {
        let from = |namespace: &str, key: &str| {
            json!({ "path": format!("/etc/{namespace}/{key}"),
                "contentFrom": { "secret": { "namespace": namespace, "name": "join", "key": key } } })
        };
        serde_json::from_value(json!({
            "image": { "reference": "r.example/node:1", "allowTag": true,
                "pullSecretRef": { "namespace": "images", "name": "pull" } },
            "kubernetes": { "version": "v1.34.4" },
            "files": [from("nodes", "kubeconfig"), from("nodes", "ca.crt"), from("others", "kubeconfig")],
        }))
        .unwrap()
    }

    fn secret(namespace: &str, name: &str) -> SecretRequest {
        SecretRequest { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn keys(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    fn write(directory: &Path, below: &str, text: &str, mode: u32) {
        let path = directory.join(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_what_the_version_names_is_anybodys_to_ask_for() {
        let named = |namespace, name| named_keys(&template(), &secret(namespace, name));
        assert_eq!(named("images", "pull"), keys(&[".dockerconfigjson"]));
        assert_eq!(named("nodes", "join"), keys(&["ca.crt", "kubeconfig"]));
        assert_eq!(named("others", "join"), keys(&["kubeconfig"]));
        assert_eq!(named("images", "join"), keys(&[]));
    }

    #[tokio::test]
    async fn named_keys_are_read_as_they_lie_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = NodeSecrets::new(directory.path().to_owned());
        write(directory.path(), "nodes/join/kubeconfig", "text\n", 0o600);
        write(directory.path(), "nodes/join/not-named", "x", 0o600);
        write(directory.path(), "images/pull/.dockerconfigjson", "{}", 0o400);
        let read = secrets.read(secret("nodes", "join"), keys(&["kubeconfig", "ca.crt"])).await.unwrap();
        assert_eq!(read.kind, "Opaque");
        assert_eq!(read.data, [("kubeconfig".to_owned(), SecretText(STANDARD.encode("text\n")))].into());
        let read = secrets.read(secret("images", "pull"), keys(&[PULL_KEY])).await.unwrap();
        assert_eq!(read.kind, PULL_KIND);
    }

    #[tokio::test]
    async fn missing_or_exposed_secrets_are_named_with_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = NodeSecrets::new(directory.path().join("in"));
        let ask = async |name: &str| secrets.read(secret("nodes", name), keys(&["key"])).await.unwrap_err();
        let ReadSecretError::Missing(text) = ask("none").await else { panic!("missing") };
        assert!(text.contains("in/nodes/none/key"), "{text}");
        write(directory.path(), "in/nodes/open/key", "s3cret", 0o644);
        let text = ask("open").await.to_string();
        assert!(text.contains("chmod 600") && !text.contains("s3cret"), "{text}");
        write(directory.path(), "in/nodes/large/key", &"x".repeat(MOST_BYTES + 1), 0o600);
        assert!(ask("large").await.to_string().contains("larger than 1024 KiB"));
        write(directory.path(), "outside", "s3cret", 0o600);
        std::fs::create_dir_all(directory.path().join("in/nodes/link")).unwrap();
        symlink(directory.path().join("outside"), directory.path().join("in/nodes/link/key")).unwrap();
        assert!(ask("link").await.to_string().contains("leads out of"));
        assert!(ask("../nodes").await.to_string().contains("not a valid file name"));
    }
}
