//! Pure: a configuration without what may be secret in it: the content of files, units and drop-ins, and whatever is called a token, a password or
//! a certificate key. Length and a digest stay, so that who compares two versions sees what has changed.
//!
//! The digest is by a key that ends with this pxed: a short secret is not found by trying all. Called by `configuration`.

use bedplate_api::id::Digest;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// A whole object as a text, which kubectl keeps in objects that it has applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Characters of a digest: enough to distinguish two contents.
const DIGEST_PREFIX_LENGTH: usize = 16;

/// Puts a word about it in the place of each text that may be secret.
pub(super) fn conceal(value: &mut Value, key: &[u8; 32]) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match value {
                    Value::String(text) if is_secret(name) => *text = word(text, key),
                    other => conceal(other, key),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| conceal(item, key)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_secret(name: &str) -> bool {
    let lower = name.to_lowercase();
    ["content", "contents", LAST_APPLIED].contains(&name)
        || ["token", "password", "certificatekey"].iter().any(|part| lower.contains(part))
}

fn word(text: &str, key: &[u8; 32]) -> String {
    // The key has a fixed length: no bytes can move between it and the text.
    let digest =
        Digest::from_sha256(Sha256::new().chain_update(key).chain_update(text).finalize().into()).hex();
    format!("(concealed: {} bytes, {})", text.len(), digest.get(..DIGEST_PREFIX_LENGTH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn possible_secrets_are_shown_as_length_and_digest() {
        let object = |secret: &str| {
            json!({
                "metadata": { "annotations": { LAST_APPLIED: secret, "a": "b" } },
                "files": [{ "path": "/etc/a", "content": secret }, { "path": "/etc/b", "contentFrom": { "secret": { "key": "k" } } }],
                "units": [{ "name": "a.service", "contents": secret, "dropins": [{ "name": "b.conf", "contents": secret }] }],
                "initConfiguration": { "bootstrapTokens": [{ "token": secret, "ttl": "1h" }], "certificateKey": secret },
            })
        };
        let concealed = |secret: &str, key: u8| {
            let mut object = object(secret);
            conceal(&mut object, &[key; 32]);
            object
        };
        let shown = concealed("hunter2", 1);
        assert!(!shown.to_string().contains("hunter2"), "{shown:#}");
        assert_eq!(shown.to_string().matches("(concealed: 7 bytes, ").count(), 6, "{shown:#}");
        for kept in ["/etc/a", "\"secret\":{\"key\":\"k\"}", "\"ttl\":\"1h\"", "\"a\":\"b\"", "b.conf"] {
            assert!(shown.to_string().contains(kept), "{kept}: {shown:#}");
        }
        assert_eq!(shown, concealed("hunter2", 1), "the same is the same");
        assert_ne!(shown, concealed("hunter3", 1));
        assert_ne!(shown, concealed("hunter2", 2), "other programs cannot compute the digest");
    }
}
