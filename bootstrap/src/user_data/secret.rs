//! Pure: texts of user data that must not be in a log or a message. Called by `user_data`.
//!
//! | part | hidden texts |
//! |---|---|
//! | file that only its owner reads | each line, each value |
//! | any other file, `bootcmd`, `runcmd` | lines of PEM blocks, tokens, keys, long random words, values of names such as `certificateKey` |
//! | `users` | hashes of passwords |
//!
//! A text that is hidden although it is public does less harm than a secret that is not.

use std::collections::BTreeSet;

use zeroize::Zeroizing;

use super::{Command, Plan};
use crate::secret_name::names_secret;

/// Minimum length of a hidden text. Shorter ones are words of any log.
const MIN_LENGTH: usize = 8;
/// Minimum length of a word that is hidden because it looks random.
const MIN_RANDOM: usize = 20;
/// Minimum length of a hexadecimal word that is hidden, such as a certificate key.
const MIN_HEXADECIMAL: usize = 32;
/// Maximum number of hidden texts.
const MAX_TEXTS: usize = 20_000;

/// Texts that were found, each once.
#[derive(Default)]
struct Texts(BTreeSet<String>);

impl Texts {
    fn add(&mut self, text: &str) {
        let text = text.trim();
        if text.len() >= MIN_LENGTH && self.0.len() < MAX_TEXTS {
            self.0.insert(text.to_owned());
        }
    }

    /// Adds all of a text that only its owner reads.
    fn add_all(&mut self, text: &str) {
        for line in text.lines() {
            self.add(line);
            let value = line.split_once(['=', ':']).map(|(_, value)| value);
            self.add(value.unwrap_or_default().trim_matches([' ', '"', '\'']));
        }
        self.add_found(text);
    }

    /// Adds the parts of a text that look like secrets.
    fn add_found(&mut self, text: &str) {
        let mut in_block = false;
        for line in text.lines() {
            if line.contains("-----BEGIN ") {
                in_block = true;
            }
            if in_block {
                self.add(line.trim_matches([' ', '"', '\'', ',']));
            }
            if line.contains("-----END ") {
                in_block = false;
            }
            self.add_words(line);
        }
    }

    fn add_words(&mut self, line: &str) {
        let mut name = "";
        for word in line.split(is_between).filter(|word| !word.is_empty()) {
            if is_secret(word) || names_secret(name) && !word.starts_with('/') {
                self.add(word);
            }
            name = word;
        }
    }
}

/// Returns true for a character that is not part of a word.
fn is_between(character: char) -> bool {
    character.is_whitespace() || "\"'`,;:=()[]{}<>|&$\\".contains(character)
}

/// Tokens of kubeadm, certificate keys, and long random words.
fn is_secret(word: &str) -> bool {
    let has = |kind: fn(&u8) -> bool| word.bytes().any(|byte| kind(&byte));
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_token = word
        .split_once('.')
        .is_some_and(|(id, secret)| (id.len(), secret.len()) == (6, 16) && plain(id) && plain(secret));
    let is_hexadecimal = word.len() >= MIN_HEXADECIMAL && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_random = word.len() >= MIN_RANDOM
        && !word.starts_with('/')
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_lowercase)
        && has(u8::is_ascii_digit);
    is_token || is_hexadecimal || is_random
}

/// Returns the texts of a plan that must not be in a log or a message.
pub(super) fn secrets(plan: &Plan) -> Vec<Zeroizing<String>> {
    let mut texts = Texts::default();
    for file in plan.files.iter().chain(&plan.deferred_files) {
        let text = Zeroizing::new(String::from_utf8_lossy(&file.content).into_owned());
        if file.mode & 0o077 == 0 {
            texts.add_all(&text);
        } else {
            texts.add_found(&text);
        }
    }
    for command in plan.boot_commands.iter().chain(&plan.run_commands) {
        match command {
            Command::Shell(text) => texts.add_found(text),
            Command::Arguments(words) => {
                let line: Vec<&str> = words.iter().map(|word| word.as_str()).collect();
                texts.add_found(&Zeroizing::new(line.join(" ")));
            }
        }
    }
    for hash in plan.users.iter().filter_map(|user| user.passwd.as_ref()) {
        texts.add(hash);
    }
    texts.0.into_iter().map(Zeroizing::new).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Unsupported, UserData, plan_user_data};
    use crate::jinja::Facts;

    const CERTIFICATE_KEY: &str = "e6a2eb8581237ab72a4f494f30285ec12a9694d750b9785706a83bfcbbbd2204";

    fn found(text: &str) -> Vec<String> {
        let facts = Facts {
            provider_id: "bedplate://host-1/u-1",
            node_name: "w-1",
            local_hostname: "w-1",
            instance_id: "u-1",
            platform: "bedplate",
        };
        let data = UserData { value: text.as_bytes(), format: None };
        let accepted = plan_user_data(data, &facts, Unsupported::Refuse).unwrap();
        accepted.plan.secrets().iter().map(|secret| secret.to_string()).collect()
    }

    /// All supported keys of the kubeadm provider, with `bootcmd`.
    #[test]
    fn d3_secrets_of_each_supported_key_are_known() {
        let data = format!(
            "## template: jinja\n#cloud-config\nbootcmd:\n- [curl, -H, \"Authorization: Bearer boot-Token-0123456789\"]\n\
             - echo password=correct-horse > /etc/registry\n\
             write_files:\n- path: /etc/kubernetes/pki/sa.key\n  permissions: '0600'\n  content: |\n    -----BEGIN EC PRIVATE KEY-----\n    \
             MHcCAQEEIshortline\n    -----END EC PRIVATE KEY-----\n\
             - path: /etc/plain.conf\n  permissions: '0600'\n  content: |\n    user: operator-of-mine\n    phrase = \"staple battery\"\n\
             - path: /run/kubeadm/kubeadm.yaml\n  permissions: '0640'\n  content: |\n    certificateKey: {CERTIFICATE_KEY}\n    \
             controlPlaneEndpoint: 10.20.0.10:6443\n    token: abcdef.0123456789abcdef\n    imageRepository: registry.k8s.io/kube-system\n\
             users:\n- name: ops\n  passwd: $6$rounds$hashhashhash\n  lock_passwd: false\n\
             runcmd:\n- kubeadm join 10.20.0.10:6443 --token ghijkl.0123456789abcdef --certificate-key {CERTIFICATE_KEY}\n"
        );
        let found = found(&data);
        for secret in [
            "boot-Token-0123456789",
            "correct-horse",
            "MHcCAQEEIshortline",
            "operator-of-mine",
            "staple battery",
            CERTIFICATE_KEY,
            "abcdef.0123456789abcdef",
            "ghijkl.0123456789abcdef",
            "$6$rounds$hashhashhash",
        ] {
            assert!(found.iter().any(|text| text == secret), "{secret}: {found:?}");
        }
        for public in ["10.20.0.10", "kubeadm", "controlPlaneEndpoint", "registry.k8s.io/kube-system"] {
            assert!(!found.iter().any(|text| text == public), "{public}: {found:?}");
        }
    }
}
