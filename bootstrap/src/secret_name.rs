//! Names whose values are secret: in logs, in user data, in command lines.
//!
//! Pure. Called by `user_data`, and by the agent before a log becomes a message.

/// Ends of names whose values are secret, in lower case and with hyphens.
const NAMES: [&str; 12] = [
    "token",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "access-key",
    "apikey",
    "api-key",
    "private-key",
    "key-data",
    "certificatekey",
    "certificate-key",
];

/// Returns true if the value of a name is secret.
pub fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('_', "-");
    NAMES.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d3_values_of_tokens_passwords_and_keys_are_secret() {
        for name in ["--token", "REGISTRY_PASSWORD", "certificateKey", "ssh-private-key", "client-key-data"] {
            assert!(names_secret(name), "{name}");
        }
        for name in ["API_KEY", "AWS_SECRET_ACCESS_KEY", "PRIVATE_KEY", "certificate_key", "SSH_PASSPHRASE"] {
            assert!(names_secret(name), "{name}");
        }
        for name in ["tokens", "key", "secretName", "path"] {
            assert!(!names_secret(name), "{name}");
        }
    }
}
