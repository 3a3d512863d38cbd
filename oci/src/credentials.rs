//! User name and password of a registry, from a file of the form that
//! `docker login` and `podman login` write (`config.json`, `auth.json`; the same
//! as a Kubernetes Secret's `.dockerconfigjson`). Read again for each pull.
//!
//! Only `auths` is used: helper programs are never run. No value ever reaches a message, a log or `Debug`.
//!
//! Caller: `registry`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::EnsureImageError;
use crate::layout::open_regular;
use crate::partial::blocking;

/// Maximum size of the file in bytes. `docker login` writes smaller ones.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// User name and password of a registry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) username: String,
    pub(crate) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

impl Credentials {
    /// The value of an Authorization header (RFC 7617).
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.username, self.password)))
    }
}

/// Returns the credentials of a file for a repository. `registries` are the names of its registry.
pub(crate) async fn read(
    name: &str,
    path: &Path,
    registries: &[&str],
    repository: &str,
) -> Result<Credentials, EnsureImageError> {
    let at = path.to_owned();
    let (who, bytes) = blocking(move || read_file(&at)).await.map_err(|source| {
        EnsureImageError::ReadFile { image: name.to_owned(), path: path.to_owned(), source }
    })?;
    let refused =
        |problem| EnsureImageError::Credentials { image: name.to_owned(), path: path.to_owned(), problem };
    if !who.is_private() {
        let mode = who.mode & 0o7777;
        return Err(refused(format!("mode {mode:04o} permits access by other users; run chmod 0600")));
    }
    find(&bytes, registries, repository).map_err(refused)
}

/// Mode and owner of a file.
#[derive(Debug, Clone, Copy)]
struct Access {
    mode: u32,
    owner: u32,
}

impl Access {
    /// Returns true if only its owner can use it, or if it belongs to root and a
    /// group may read it. The latter is the case for a Kubernetes Secret's files in a
    /// pod that is not root (`fsGroup`, mode 0440). Only root may choose that group.
    fn is_private(self) -> bool {
        let others = if self.owner == 0 { 0o037 } else { 0o077 };
        self.mode & others == 0
    }
}

fn read_file(path: &Path) -> io::Result<(Access, Vec<u8>)> {
    // Opened once: mode and content are of the same file.
    let file = open_regular(path)?;
    let metadata = file.metadata()?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {MAX_FILE_BYTES} bytes"),
        ));
    }
    Ok((Access { mode: metadata.mode(), owner: metadata.uid() }, bytes))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    creds_store: Option<IgnoredAny>,
    cred_helpers: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<IgnoredAny>,
}

/// The entry of the longest key that fits, in words that give nothing away otherwise.
fn find(bytes: &[u8], registries: &[&str], repository: &str) -> Result<Credentials, String> {
    let config: DockerConfig = serde_json::from_slice(bytes).map_err(|error| {
        // serde_json quotes values, so only the position is reported.
        let (line, column) = (error.line(), error.column());
        format!("the file does not have the form {{\"auths\": {{...}}}} (line {line}, column {column})")
    })?;
    let fitting = config.auths.iter().filter(|(key, _)| {
        let key = place(key);
        registries.iter().any(|registry| {
            let whole = format!("{registry}/{repository}");
            whole.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    });
    let Some((key, entry)) = fitting.max_by_key(|(key, _)| place(key).len()) else {
        let helpers = config.creds_store.is_some() || config.cred_helpers.is_some();
        let hint = if helpers { "; credential helpers are not run" } else { "" };
        return Err(format!("there is no entry for {} in auths{hint}", registries.first().unwrap_or(&"")));
    };
    let (username, password) = match (&entry.auth, &entry.username, &entry.password) {
        (Some(auth), _, _) if !auth.is_empty() => {
            decode(auth).ok_or_else(|| format!("auth of {key} is not base64 of user:password"))?
        }
        (_, Some(username), Some(password)) => (username.clone(), password.clone()),
        _ if entry.identitytoken.is_some() => {
            return Err(format!("{key} has an identity token; write user name and password or access token"));
        }
        _ => return Err(format!("{key} has neither auth nor username and password")),
    };
    Ok(Credentials { username, password })
}

/// Returns a key without the prefix and suffix that Docker adds to the host: `https://index.docker.io/v1/`.
fn place(key: &str) -> &str {
    let key = key.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key)
}

fn decode(auth: &str) -> Option<(String, String)> {
    let text = String::from_utf8(STANDARD.decode(auth.trim()).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.trim_end_matches('\0').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str, registries: &[&str], repository: &str) -> Result<String, String> {
        find(text.as_bytes(), registries, repository).map(|c| format!("{}={}", c.username, c.password))
    }

    #[test]
    fn the_entry_of_the_longest_fitting_key_counts() {
        let text = format!(
            r#"{{"auths": {{"r.example": {{"auth": "{}"}}, "r.example/team": {{"username": "b", "password": "2"}},
                "https://index.docker.io/v1/": {{"auth": "{}"}}, "r.example:5000": {{"username": "d", "password": "4"}}}},
                "credsStore": "desktop"}}"#,
            STANDARD.encode("a:1:x"),
            STANDARD.encode("c:3\0"),
        );
        for (registries, repository, expected) in [
            (vec!["r.example"], "host", "a=1:x"),
            (vec!["r.example"], "team/host", "b=2"),
            (vec!["r.example"], "teams/host", "a=1:x"),
            (vec!["index.docker.io", "docker.io"], "library/host", "c=3"),
            (vec!["r.example:5000"], "host", "d=4"),
        ] {
            assert_eq!(user(&text, &registries, repository).as_deref(), Ok(expected), "{registries:?}");
        }
        let missing = user(&text, &["r.example.evil"], "host").unwrap_err();
        assert_eq!(missing, "there is no entry for r.example.evil in auths; credential helpers are not run");
    }

    #[test]
    fn only_its_owner_may_use_the_file_or_a_group_may_read_it_if_it_is_roots() {
        for (mode, owner, private) in [
            (0o600, 1000, true),
            (0o100_400, 0, true),
            (0o440, 0, true),
            (0o640, 0, true),
            (0o440, 1000, false),
            (0o660, 0, false),
            (0o444, 0, false),
            (0o604, 1000, false),
        ] {
            assert_eq!(Access { mode, owner }.is_private(), private, "{mode:o} {owner}");
        }
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry.json");
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, 0o600.into(), 0).unwrap();
        assert_eq!(read_file(&path).unwrap_err().to_string(), "not a regular file");
    }

    #[test]
    fn no_message_holds_a_value_of_the_file() {
        for text in [
            r#"{"auths": {"r.example": "s3cret"}}"#,
            r#"{"auths": {"r.example": {"auth": ["s3cret"]}}}"#,
            r#"{"auths": {"r.example": {"auth": "s3cret"}}}"#,
            r#"{"auths": {"r.example": {"username": "s3cret"}}}"#,
            r#"{"auths": {"r.example": {"identitytoken": "s3cret"}}}"#,
            r#"{"auths": {"other.example": {"auth": "s3cret"}}}"#,
            "s3cret",
        ] {
            let problem = user(text, &["r.example"], "host").unwrap_err();
            assert!(!problem.contains("s3cret") && !problem.is_empty(), "{problem}");
        }
        let secret = Credentials { username: "s3cret".to_owned(), password: "s3cret".to_owned() };
        assert!(!format!("{secret:?}").contains("s3cret"));
    }
}
