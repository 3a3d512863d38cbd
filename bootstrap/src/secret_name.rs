//! Names whose values are secret: in logs, in user data, in command lines.
//!
//! Pure. Called by `user_data`, and by the agent before a log becomes a message.

/// Ends of names whose values are secret, in lower case.
const NAMES: [&str; 10] = [
    "token",
    "password",
    "passwd",
    "secret",
    "apikey",
    "api-key",
    "private-key",
    "key-data",
    "certificatekey",
    "certificate-key",
];

/// Returns true if the value of a name is secret.
pub fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
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
        for name in ["tokens", "key", "secretName", "path"] {
            assert!(!names_secret(name), "{name}");
        }
    }
}
