//! Enrollment ID: the group in an agent's certificate that stands for one key of one host (docs/guides/claims.md, "Enrollment group").
//!
//! A Role for one Secret names this group and not the agent's user name. Kubernetes revokes no certificate, so a certificate of an
//! earlier key keeps the user name of its Machine. It never gets the group of the next key.
//!
//! Pure: bytes of a key in, text out. Called by the agent for its request, by pxed and bedplate-controller for their checks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::id::{Digest, ParseIdError};

/// Group of every agent's certificate.
pub const AGENTS_GROUP: &str = "bedplate:machines";

/// Prefix of the user name of an agent's certificate. The Machine's name follows.
pub const AGENT_USER_PREFIX: &str = "bedplate:machine:";

/// Prefix of an enrollment group. The [`KeyId`] follows.
pub const ENROLLMENT_GROUP_PREFIX: &str = "bedplate:enrollment:";

/// ID of an agent's key: the first 128 bits of the SHA-256 of its SubjectPublicKeyInfo (DER), as 32 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; 16]);

impl KeyId {
    /// Returns the ID of a public key, given its SubjectPublicKeyInfo (DER).
    pub fn of_public_key(subject_public_key_info: &[u8]) -> Self {
        Self::of_fingerprint(Digest::from_sha256(Sha256::digest(subject_public_key_info).into()))
    }

    /// Returns the ID of the key with this fingerprint, as `status.enrollment.keyFingerprint` has it.
    pub fn of_fingerprint(fingerprint: Digest) -> Self {
        let mut id = [0; 16];
        id.iter_mut().zip(fingerprint.bytes()).for_each(|(to, from)| *to = from);
        Self(id)
    }

    /// Returns the group of this key.
    pub fn group(self) -> String {
        format!("{ENROLLMENT_GROUP_PREFIX}{self}")
    }
}

impl FromStr for KeyId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::id::hex_bytes(text)
            .map(Self)
            .ok_or_else(|| ParseIdError::new("a key ID of 32 lower-case hex digits", text))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Fault of the groups that an agent's request or certificate names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckGroupsError {
    /// A group of agents is missing, or it is there twice.
    #[error("the groups must be {AGENTS_GROUP} and {expected}, each once")]
    Incomplete {
        /// Enrollment group of the key.
        expected: String,
    },
    /// A group that this key may not have.
    #[error("group {found:?} is not allowed; the groups must be {AGENTS_GROUP} and {expected}")]
    Foreign {
        /// The group, cut to 80 characters.
        found: String,
        /// Enrollment group of the key.
        expected: String,
    },
}

/// Checks that `groups` are exactly the group of agents and the enrollment group of this key. `is_partial`: each may be missing, because
/// the signer sets them.
///
/// # Errors
/// [`CheckGroupsError`].
pub fn check_groups<'a>(
    key: KeyId,
    groups: impl IntoIterator<Item = &'a str>,
    is_partial: bool,
) -> Result<(), CheckGroupsError> {
    let expected = key.group();
    let (mut agents, mut own) = (0_usize, 0_usize);
    for group in groups {
        if group == AGENTS_GROUP {
            agents += 1;
        } else if group == expected {
            own += 1;
        } else {
            return Err(CheckGroupsError::Foreign { found: group.chars().take(80).collect(), expected });
        }
    }
    let least = usize::from(!is_partial);
    if (least..=1).contains(&agents) && (least..=1).contains(&own) {
        Ok(())
    } else {
        Err(CheckGroupsError::Incomplete { expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(of: &[&str], is_partial: bool) -> Result<(), CheckGroupsError> {
        check_groups(KeyId::of_public_key(b"own"), of.iter().copied(), is_partial)
    }

    /// `printf 'key' | sha256sum`: frozen, Roles and certificates hold it.
    #[test]
    fn key_id_is_the_first_half_of_the_keys_fingerprint() {
        let id = KeyId::of_public_key(b"key");
        assert_eq!(id.to_string(), "2c70e12b7a0646f92279f427c7b38e73");
        assert_eq!(id.group(), "bedplate:enrollment:2c70e12b7a0646f92279f427c7b38e73");
        let fingerprint = "sha256:2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683";
        assert_eq!(KeyId::of_fingerprint(fingerprint.parse().unwrap()), id);
    }

    #[test]
    fn trust_3_only_the_two_groups_of_the_key_are_taken() {
        let own = KeyId::of_public_key(b"own").group();
        let other = KeyId::of_public_key(b"other").group();
        assert_eq!(groups(&[AGENTS_GROUP, &own], false), Ok(()));
        assert_eq!(groups(&[&own, AGENTS_GROUP], false), Ok(()));
        for foreign in
            [other.as_str(), "system:masters", "kubeadm:cluster-admins", "bedplate:enrollment:", ""]
        {
            for is_partial in [false, true] {
                let refused = groups(&[AGENTS_GROUP, &own, foreign], is_partial);
                assert!(matches!(refused, Err(CheckGroupsError::Foreign { .. })), "{foreign:?}: {refused:?}");
            }
        }
        assert!(matches!(groups(&[AGENTS_GROUP, &other], false), Err(CheckGroupsError::Foreign { .. })));
        for twice in [[AGENTS_GROUP, &own, &own], [AGENTS_GROUP, AGENTS_GROUP, &own]] {
            for is_partial in [false, true] {
                assert!(
                    matches!(groups(&twice, is_partial), Err(CheckGroupsError::Incomplete { .. })),
                    "{twice:?}"
                );
            }
        }
    }

    #[test]
    fn trust_3_a_group_may_be_missing_only_where_the_signer_sets_it() {
        let own = KeyId::of_public_key(b"own").group();
        for part in [vec![], vec![AGENTS_GROUP], vec![own.as_str()]] {
            assert!(matches!(groups(&part, false), Err(CheckGroupsError::Incomplete { .. })), "{part:?}");
            assert_eq!(groups(&part, true), Ok(()), "{part:?}");
        }
    }
}
