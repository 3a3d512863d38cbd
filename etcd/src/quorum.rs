//! Pure: the votes of a cluster that a member leaves.
//!
//! The members that stay must have a quorum of healthy voters. Otherwise the cluster accepts no write, not even the removal of the member
//! that left. Learners do not vote.

use crate::member::{Member, MemberId};

/// Returns the number of healthy voters that a cluster needs.
pub fn needed(voters: usize) -> usize {
    voters / 2 + 1
}

/// Returns the voters that stay if a member leaves.
pub(crate) fn voters_without(members: &[Member], leaving: MemberId) -> Vec<&Member> {
    members.iter().filter(|member| member.id != leaving && !member.is_learner).collect()
}

/// Returns true if no other member votes, so that the member is the cluster.
pub fn is_last(members: &[Member], member: MemberId) -> bool {
    voters_without(members, member).is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn member(id: u64, is_learner: bool) -> Member {
        let member = json!({ "ID": id.to_string(), "peerURLs": ["https://u:2380"], "isLearner": is_learner });
        serde_json::from_value(member).unwrap()
    }

    #[test]
    fn member_alone_or_with_learners_is_the_last() {
        let (own, learner) = (member(1, false), member(2, true));
        assert!(is_last(std::slice::from_ref(&own), own.id));
        assert!(is_last(&[own.clone(), learner.clone()], own.id));
        assert!(!is_last(&[learner, own.clone(), member(3, false)], own.id));
    }

    #[test]
    fn needed_voters_are_more_than_half() {
        assert_eq!([1, 2, 3, 4, 5].map(needed), [1, 2, 2, 3, 3]);
    }
}
