//! Pure: the open requests of each user, by age. Only the newest few of a user are decided. A kubelet that creates requests without end
//! costs no more than one that creates a few. Updated by `watch`, read by `csr`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;

/// Maximum number of open requests of a user, for one signer, that are decided. A kubelet waits for its newest one.
const MAX_OPEN: usize = 4;

/// Signer and user of a request.
type Asker = (String, String);

/// Creation time and name of a request. The newest one is the last.
type Age = (Timestamp, String);

/// Requests without a decision.
#[derive(Debug, Default)]
pub struct Open {
    by_asker: BTreeMap<Asker, BTreeSet<Age>>,
    /// Requests by name.
    known: HashMap<String, (Asker, Age)>,
}

impl Open {
    /// Adds a request that is open. Returns what [`Self::remove`] returns for an earlier one of its name.
    pub fn put(&mut self, request: &CertificateSigningRequest) -> Option<String> {
        let name = request.name_any();
        let spec = &request.spec;
        let asker = (spec.signer_name.clone(), spec.username.clone().unwrap_or_default());
        let made = request.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let entry = (asker, (made, name.clone()));
        if self.known.get(&name) == Some(&entry) {
            return None;
        }
        let next = self.remove(&name);
        self.by_asker.entry(entry.0.clone()).or_default().insert(entry.1.clone());
        self.known.insert(name, entry);
        next
    }

    /// Removes a request that was decided or deleted. Returns the older request that is one of the newest few from now on.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        let (asker, age) = self.known.remove(name)?;
        let all = self.by_asker.get_mut(&asker)?;
        let was_new = all.iter().rev().take(MAX_OPEN).any(|newest| *newest == age);
        all.remove(&age);
        let next = all.iter().rev().nth(MAX_OPEN - 1).map(|(_, name)| name.clone());
        if all.is_empty() {
            self.by_asker.remove(&asker);
        }
        next.filter(|_| was_new)
    }

    /// Returns true if a request is one of the newest few of its user, or is not known yet.
    pub fn is_new(&self, name: &str) -> bool {
        let Some((asker, age)) = self.known.get(name) else { return true };
        let mut newest = self.by_asker.get(asker).into_iter().flat_map(|all| all.iter().rev().take(MAX_OPEN));
        newest.any(|newest| newest == age)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(name: &str, second: i64, user: &str) -> CertificateSigningRequest {
        let made = Timestamp::from_second(second).unwrap().to_string();
        serde_json::from_value(json!({ "metadata": { "name": name, "creationTimestamp": made },
            "spec": { "request": "", "signerName": "kubernetes.io/kubelet-serving", "username": user } }))
        .unwrap()
    }

    #[test]
    fn trust_5_newest_open_requests_of_each_user_count() {
        let mut open = Open::default();
        assert!(open.is_new("r0"), "not known yet");
        for number in 0..7 {
            // Two in each second, as times have whole seconds.
            open.put(&request(&format!("r{number}"), number / 2, "system:node:a"));
        }
        open.put(&request("other", 0, "system:node:b"));
        let new =
            |open: &Open| (0..7).filter(|number| open.is_new(&format!("r{number}"))).collect::<Vec<_>>();
        assert_eq!((new(&open), open.is_new("other")), (vec![3, 4, 5, 6], true));
        assert_eq!(open.remove("r0"), None, "it was not one of the newest");
        assert_eq!(open.remove("r5").as_deref(), Some("r2"));
        assert!(open.is_new("r2") && !open.is_new("r1"));
        assert_eq!(open.put(&request("r3", 9, "system:node:b")).as_deref(), Some("r1"), "created again");
        assert!(open.is_new("r1") && open.is_new("r3"));
        for name in ["r1", "r2", "r3", "r4", "r6", "other"] {
            open.remove(name);
        }
        assert!(open.by_asker.is_empty() && open.known.is_empty());
    }
}
