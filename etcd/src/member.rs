//! Pure: a member as the gateway shows it.
//!
//! The gateway omits fields with default values: a member that has not started has no name and no client URLs. Identifiers are decimal
//! numbers in strings. Anything else is an error: a program that misreads a member could remove another one.

use serde::{Deserialize, Serialize};

/// Identifier of a member, unique in its cluster. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct MemberId(u64);

impl TryFrom<String> for MemberId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
        let id = text.parse().ok().filter(|id| is_decimal && *id != 0);
        id.map(Self).ok_or_else(|| format!("{text:?} is not a valid member ID"))
    }
}

impl From<MemberId> for String {
    fn from(id: MemberId) -> Self {
        id.0.to_string()
    }
}

/// Member of an etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Shown")]
pub struct Member {
    /// Identifier.
    pub id: MemberId,
    /// Name that the member was started with. Empty: it has not started.
    pub name: String,
    /// URLs for other members, at least one.
    pub peer_urls: Vec<String>,
    /// URLs for clients. Empty: it has not started.
    pub client_urls: Vec<String>,
    /// True if the member does not vote.
    pub is_learner: bool,
}

impl Member {
    /// Returns true if other members reach this one by the URL.
    pub fn has_peer_url(&self, url: &str) -> bool {
        self.peer_urls.iter().any(|known| known == url)
    }
}

/// The fields in the gateway's JSON.
#[derive(Deserialize)]
struct Shown {
    #[serde(rename = "ID")]
    id: MemberId,
    #[serde(default)]
    name: String,
    #[serde(default, rename = "peerURLs")]
    peer_urls: Vec<String>,
    #[serde(default, rename = "clientURLs")]
    client_urls: Vec<String>,
    #[serde(default, rename = "isLearner")]
    is_learner: bool,
}

impl TryFrom<Shown> for Member {
    type Error = String;

    fn try_from(shown: Shown) -> Result<Self, String> {
        let Shown { id, name, peer_urls, client_urls, is_learner } = shown;
        if peer_urls.is_empty() {
            return Err(format!("member {} has no peerURLs", id.0));
        }
        Ok(Self { id, name, peer_urls, client_urls, is_learner })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(member: Value) -> Result<Member, serde_json::Error> {
        serde_json::from_value(member)
    }

    #[test]
    fn member_is_read_as_etcd_3_6_shows_it() {
        let started = read(json!({ "ID": "10276657743932975437", "name": "cp1",
            "peerURLs": ["https://10.7.0.11:2380"], "clientURLs": ["https://10.7.0.11:2379"] }));
        let expected = Member {
            id: MemberId(10_276_657_743_932_975_437),
            name: "cp1".to_owned(),
            peer_urls: vec!["https://10.7.0.11:2380".to_owned()],
            client_urls: vec!["https://10.7.0.11:2379".to_owned()],
            is_learner: false,
        };
        assert_eq!(started.unwrap(), expected);
        let joining = json!({ "ID": "7", "peerURLs": ["https://10.7.0.12:2380"], "isLearner": true });
        let joining = read(joining).unwrap();
        assert!(joining.is_learner && joining.name.is_empty() && joining.client_urls.is_empty());
        assert!(joining.has_peer_url("https://10.7.0.12:2380") && !joining.has_peer_url("https://10.7.0.1"));
    }

    #[test]
    fn member_id_is_a_positive_decimal_number_in_a_string() {
        for id in [
            json!("0"),
            json!(""),
            json!("-1"),
            json!("+1"),
            json!("1.5"),
            json!("8e9d05a0"),
            json!(7),
            json!(null),
            json!("18446744073709551616"),
        ] {
            assert!(read(json!({ "ID": id, "peerURLs": ["u"] })).is_err(), "{id}");
        }
        assert!(read(json!({ "peerURLs": ["u"] })).is_err());
        let id: MemberId = serde_json::from_value(json!("18446744073709551615")).unwrap();
        assert_eq!(json!(id), "18446744073709551615");
    }

    #[test]
    fn member_with_a_field_of_another_type_is_an_error() {
        for (field, value) in [
            ("name", json!(1)),
            ("peerURLs", json!("u")),
            ("peerURLs", json!([])),
            ("clientURLs", json!([null])),
            ("isLearner", json!("true")),
        ] {
            let mut member = json!({ "ID": "1", "peerURLs": ["u"] });
            member[field] = value;
            assert!(read(member.clone()).is_err(), "{member}");
        }
    }
}
