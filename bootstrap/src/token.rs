//! Pure: bootstrap tokens: their form, their Secret in the workload cluster, and the time of their renewal.
//!
//! A token lives 15 minutes and is renewed until the Node of the machine exists. Only the ID is not secret.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use zeroize::Zeroizing;

/// Lifetime of a token.
pub const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_mins(15);

/// Remaining lifetime above which a token is not renewed. So it is renewed every 5 min: one failure does no harm.
const FRESH_LIFETIME: SignedDuration = SignedDuration::from_mins(10);

/// Namespace of the Secrets of tokens.
pub const TOKEN_NAMESPACE: &str = "kube-system";

/// Type of the Secrets of tokens.
pub const TOKEN_SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

/// Key of the time at which a token expires.
pub const EXPIRATION_KEY: &str = "expiration";

/// Group of machines that join.
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

const ID_CHARACTERS: usize = 6;
const SECRET_CHARACTERS: usize = 16;

/// Characters of a token.
const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Number of random bytes that make a token. A byte in 64 is not used; that fewer than 22 of 128 are left does not happen.
pub const RANDOM_BYTES: usize = 128;

/// A bootstrap token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: Zeroizing<String>,
}

/// Without the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

fn is_part(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| ALPHABET.contains(&byte))
}

/// Returns true if a text has the form of the ID of a token.
pub fn is_token_id(text: &str) -> bool {
    is_part(text, ID_CHARACTERS)
}

impl Token {
    /// Reads a token such as `abcdef.0123456789abcdef`.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.split_once('.')?;
        let is_valid = is_token_id(id) && is_part(secret, SECRET_CHARACTERS);
        is_valid.then(|| Self { id: id.to_owned(), secret: Zeroizing::new(secret.to_owned()) })
    }

    /// Makes a token. None if the bytes are not random.
    pub fn from_random(random: &[u8; RANDOM_BYTES]) -> Option<Self> {
        // The last four values would make four characters likelier than others.
        let usable = random.iter().filter(|byte| usize::from(**byte) < 256 / ALPHABET.len() * ALPHABET.len());
        let mut characters = usable.map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
        let id: String = characters.by_ref().take(ID_CHARACTERS).collect();
        let secret = Zeroizing::new(characters.take(SECRET_CHARACTERS).collect::<String>());
        (secret.len() == SECRET_CHARACTERS).then_some(Self { id, secret })
    }

    /// Returns the ID.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the complete token.
    pub fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}.{}", self.id, *self.secret))
    }

    /// Returns the data of the token's Secret.
    pub fn data(&self, now: Timestamp) -> BTreeMap<&'static str, Zeroizing<String>> {
        [
            ("token-id", self.id.clone()),
            ("token-secret", (*self.secret).clone()),
            (EXPIRATION_KEY, expiration(now)),
            ("usage-bootstrap-authentication", "true".to_owned()),
            ("usage-bootstrap-signing", "true".to_owned()),
            ("auth-extra-groups", GROUP.to_owned()),
            ("description", "Made by bedplate-cluster for a machine that joins.".to_owned()),
        ]
        .map(|(key, value)| (key, Zeroizing::new(value)))
        .into()
    }
}

/// Returns the name of the Secret of a token.
pub fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// Returns the time at which a token that is made or renewed now expires.
pub fn expiration(now: Timestamp) -> String {
    let at = now.saturating_add(TOKEN_LIFETIME).unwrap_or(Timestamp::MAX);
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the time of the next renewal. A time that cannot be read is renewed now.
pub fn renews_at(expiration: Option<&str>, now: Timestamp) -> Timestamp {
    let expires = expiration.and_then(|text| text.parse::<Timestamp>().ok());
    let due = expires.and_then(|expires| expires.checked_sub(FRESH_LIFETIME).ok());
    due.filter(|due| *due > now).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: &str = "2026-01-01T00:00:00.5Z";

    #[test]
    fn kb6_token_has_an_id_of_6_and_a_secret_of_16_characters() {
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        assert_eq!((token.id(), token.text().as_str()), ("abcdef", "abcdef.0123456789abcdef"));
        for text in
            ["", "abcdef", "abcde.0123456789abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef"]
        {
            assert_eq!(Token::parse(text), None, "{text:?}");
        }
        assert!(!format!("{token:?}").contains("0123456789"));
    }

    #[test]
    fn kb6_secret_of_the_token_lets_a_node_join_for_15_minutes() {
        let now: Timestamp = NOW.parse().unwrap();
        let data = Token::parse("abcdef.0123456789abcdef").unwrap().data(now);
        let value = |key| data[key].as_str();
        assert_eq!(secret_name(value("token-id")), "bootstrap-token-abcdef");
        assert_eq!(value("token-secret"), "0123456789abcdef");
        assert_eq!(value("expiration"), "2026-01-01T00:15:00Z");
        assert_eq!(
            (value("usage-bootstrap-signing"), value("usage-bootstrap-authentication")),
            ("true", "true")
        );
        assert_eq!(value("auth-extra-groups"), "system:bootstrappers:kubeadm:default-node-token");
    }

    #[test]
    fn kb6_token_is_renewed_every_five_minutes() {
        let now: Timestamp = NOW.parse().unwrap();
        let due = renews_at(Some(&expiration(now)), now);
        assert!(due > now && due <= now + SignedDuration::from_mins(5), "{due}");
        assert_eq!(renews_at(Some("2026-01-01T00:10:00Z"), now), now);
        assert_eq!(renews_at(Some("not a time"), now), now);
        assert_eq!(renews_at(None, now), now);
    }

    #[test]
    fn bytes_that_are_not_random_make_no_token() {
        assert_eq!(Token::from_random(&[0xff; RANDOM_BYTES]), None);
    }

    proptest! {
        #[test]
        fn kb6_made_token_is_valid(random in proptest::array::uniform32(any::<u8>())) {
            let mut bytes = [7; RANDOM_BYTES];
            bytes[..32].copy_from_slice(&random);
            let token = Token::from_random(&bytes).unwrap();
            prop_assert_eq!(Token::parse(&token.text()), Some(token));
        }
    }
}
