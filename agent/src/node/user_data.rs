//! User data of a claim between its Secret and the slot: rendered once, and stored in the memory of this boot.
//!
//! ```text
//!   Secret ── plan, render (bootstrap) ── /run/bedplate/claim/user-data.json ── fill: unit and scripts ── start: all other content
//! ```
//! One file holds all of it, so that a killed agent finds the whole or nothing. It is removed when the user data has succeeded or its claim
//! ends. Called by `observe_claim` and `apply::claim`.

use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_api::id::MachineName;
use bedplate_bootstrap::jinja::Facts;
use bedplate_bootstrap::user_data::{
    BOOT_SCRIPT, DIRECTORY, Payload, Rendered, Unsupported, UserData, plan_user_data,
};
use bedplate_process::file::{read_json, remove_optional, write_json};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use crate::model::ProviderId;
use crate::plane::SecretData;
use crate::slot::contents::{SlotFile, SlotLink};
use crate::slot::store::{KeepSlotError, Slots, make_directory};

/// Directory in memory, below `/run`, that no slot sees.
const CLAIM_DIRECTORY: &str = "bedplate/claim";
/// Name of the file in it.
const FILE: &str = "user-data.json";
/// Directory that agent and slot share, as the slot sees it.
const SHARED: &str = "/run/bedplate/";
/// Key of the Secret that has the user data.
const VALUE_KEY: &str = "value";
/// Key of the Secret that has its format.
const FORMAT_KEY: &str = "format";
/// Platform that user data can name.
const PLATFORM: &str = "bedplate";
/// Maximum number of lines of the user data that are hidden in a log excerpt.
const MAX_HIDDEN_LINES: usize = 20_000;

/// User data that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedUserData {
    /// Text for a user, without content of the user data.
    pub(super) why: String,
    /// Keys that are not carried out.
    pub(super) keys: Vec<String>,
}

/// Rendered user data of one claim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoredUserData {
    /// Claim that the data is of.
    pub(super) provider_id: ProviderId,
    files: Vec<StoredFile>,
    memory: Vec<StoredFile>,
    secrets: Secrets,
    link_path: String,
    link_target: String,
}

/// File with its content as base64.
#[derive(Serialize, Deserialize)]
struct StoredFile {
    path: String,
    mode: u32,
    content: String,
}

/// Texts that must not be in a message.
#[derive(Serialize, Deserialize)]
struct Secrets(Vec<String>);

impl Drop for Secrets {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} texts", self.0.len())
    }
}

/// The content is a secret.
impl fmt::Debug for StoredFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:04o})", self.path, self.mode)
    }
}

impl Drop for StoredFile {
    fn drop(&mut self) {
        self.content.zeroize();
    }
}

impl From<&Payload> for StoredFile {
    fn from(payload: &Payload) -> Self {
        Self { path: payload.path.clone(), mode: payload.mode, content: STANDARD.encode(&payload.content) }
    }
}

impl StoredFile {
    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(STANDARD.decode(&self.content).unwrap_or_default())
    }
}

impl StoredUserData {
    /// Plans and renders the user data of a claim.
    ///
    /// # Errors
    /// It has a part that is not carried out, or that is not valid.
    pub(super) fn render(
        secret: &SecretData,
        provider_id: &ProviderId,
        node_name: &MachineName,
    ) -> Result<Self, RefusedUserData> {
        let Some(value) = secret.data.get(VALUE_KEY) else {
            let why = format!("the Secret with the user data has no key {VALUE_KEY}; add it");
            return Err(RefusedUserData { why, keys: vec![VALUE_KEY.to_owned()] });
        };
        let format = secret.data.get(FORMAT_KEY).map(|format| format.as_slice());
        // It stays the same for the claim, also if the claimant is restored from a backup.
        let instance_id = provider_id.as_str().rsplit('/').next().unwrap_or_default();
        let facts = Facts {
            provider_id: provider_id.as_str(),
            node_name: node_name.as_str(),
            local_hostname: node_name.as_str(),
            instance_id,
            platform: PLATFORM,
        };
        let planned = plan_user_data(UserData { value, format }, &facts, Unsupported::Refuse);
        let rendered =
            planned.map(|accepted| (accepted.plan.secrets(), accepted.plan.render())).map_err(|error| {
                let keys = error.0.iter().map(|refusal| refusal.key.clone()).collect();
                RefusedUserData { why: error.to_string(), keys }
            })?;
        let (secrets, Rendered { files, memory, link }) = rendered;
        Ok(Self {
            provider_id: provider_id.clone(),
            files: files.iter().map(StoredFile::from).collect(),
            memory: memory.iter().map(StoredFile::from).collect(),
            secrets: Secrets(secrets.iter().map(|text| text.to_string()).collect()),
            link_path: link.path,
            link_target: link.target,
        })
    }

    /// Reads what is stored in this boot.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(slots: &Slots) -> Result<Option<Self>, KeepSlotError> {
        Ok(read_json(&path(slots))?)
    }

    /// Stores it for this boot.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, slots: &Slots) -> Result<(), KeepSlotError> {
        let path = path(slots);
        if let Some(directory) = path.parent() {
            make_directory(directory, 0o700)?;
        }
        Ok(write_json(&path, self, 0o600)?)
    }

    /// Removes what is stored in this boot.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(super) fn forget(slots: &Slots) -> Result<(), KeepSlotError> {
        Ok(remove_optional(&path(slots))?)
    }

    /// Returns the files of the slot's root: the unit and its scripts.
    pub(super) fn root_files(&self) -> impl Iterator<Item = SlotFile> {
        self.files.iter().map(|file| SlotFile {
            path: file.path.clone(),
            owner: "root:root".to_owned(),
            mode: file.mode,
            append: false,
            content: file.bytes(),
        })
    }

    /// Returns the link that enables the unit.
    pub(super) fn link(&self) -> SlotLink {
        SlotLink { path: self.link_path.clone(), target: self.link_target.clone() }
    }

    /// Returns what the slot gets in memory: names below the shared directory, and contents.
    pub(super) fn shared_files(&self) -> Vec<(String, Zeroizing<Vec<u8>>)> {
        let below = |path: &str| path.strip_prefix(SHARED).map(str::to_owned);
        self.memory.iter().filter_map(|file| Some((below(&file.path)?, file.bytes()))).collect()
    }

    /// Returns the texts that must not be in a message: all that looks like a secret, and each line of contents and commands.
    pub(super) fn secrets(&self) -> Vec<String> {
        let found = self.secrets.0.iter().cloned();
        let boot = self.files.iter().filter(|file| file.path == BOOT_SCRIPT);
        let texts = self.memory.iter().chain(boot);
        let texts = texts.map(|file| String::from_utf8_lossy(&file.bytes()).into_owned());
        let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        found.chain(lines.take(MAX_HIDDEN_LINES)).collect()
    }
}

/// Returns the name of the directory below what agent and slot share.
pub(super) fn shared_directory() -> &'static str {
    DIRECTORY.strip_prefix(SHARED).unwrap_or(DIRECTORY)
}

fn path(slots: &Slots) -> PathBuf {
    slots.places().run.join(CLAIM_DIRECTORY).join(FILE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::slot::sample::slots;

    fn secret(keys: &[(&str, &str)]) -> SecretData {
        let value = |text: &str| Zeroizing::new(text.as_bytes().to_vec());
        let data = keys.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect();
        SecretData { kind: "cluster.x-k8s.io/secret".to_owned(), data }
    }

    fn render(keys: &[(&str, &str)]) -> Result<StoredUserData, RefusedUserData> {
        let id = ProviderId::from("bedplate://host-1/u-1".to_owned());
        StoredUserData::render(&secret(keys), &id, &"w-1".parse().unwrap())
    }

    #[test]
    fn d3_user_data_is_stored_in_memory_for_root_alone_and_removed() {
        let (_directory, slots) = slots();
        assert!(StoredUserData::read(&slots).unwrap().is_none());
        let text = "## template: jinja\n#cloud-config\nwrite_files:\n- path: /etc/id\n  content: secret {{ ds.meta_data.provider_id }} \
                    {{ ds.meta_data.local_hostname }} {{ v1.instance_id }}\n";
        render(&[("value", text), ("format", "cloud-config")]).unwrap().write(&slots).unwrap();
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let file = path(&slots);
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        let stored = StoredUserData::read(&slots).unwrap().unwrap();
        assert_eq!(stored.provider_id.as_str(), "bedplate://host-1/u-1");
        let shared = stored.shared_files();
        let content = shared.iter().find(|(name, _)| name == "user-data/file-0").unwrap();
        assert_eq!(content.1.as_slice(), b"secret bedplate://host-1/u-1 w-1 u-1");
        assert!(
            stored.root_files().any(|file| file.path == "/etc/systemd/system/bedplate-user-data.service")
        );
        assert!(stored.root_files().all(|file| !String::from_utf8_lossy(&file.content).contains("secret")));
        assert!(stored.secrets().iter().any(|line| line.starts_with("secret ")));
        assert!(!format!("{stored:?}").contains("c2Vjcm"));
        StoredUserData::forget(&slots).unwrap();
        assert!(StoredUserData::read(&slots).unwrap().is_none());
    }

    #[test]
    fn d3_refused_user_data_names_its_keys_and_no_content() {
        let refused =
            render(&[("value", "#cloud-config\nntp: {servers: [hunter2]}\nmounts: []\n")]).unwrap_err();
        assert_eq!(refused.keys, ["ntp", "mounts"]);
        assert!(refused.why.contains("ntp") && !refused.why.contains("hunter2"), "{}", refused.why);
        let missing = render(&[("data", "x")]).unwrap_err();
        assert_eq!(missing.keys, ["value"]);
        let ignition = render(&[("value", "{}"), ("format", "ignition")]).unwrap_err();
        assert_eq!(ignition.keys, ["format"]);
    }
}
