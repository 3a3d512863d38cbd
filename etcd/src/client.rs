//! Questions to etcd about its members, over the connection of the caller.
//!
//! ```text
//!   members    each endpoint in turn, until one knows them (linearizable)
//!   may_leave  each other voter in turn, until a quorum of them has answered
//!   remove     each other member in turn, then the member itself
//! ```

use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::timeout;

use crate::member::Member;
use crate::quorum::{is_last, needed, voters_without};

/// Maximum time of a member's answer about its health.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

/// Connection to the gateways of members.
pub trait Gateway: Sync {
    /// Sends a POST request to a path of an endpoint, which is a client URL of a member. Returns the answer. An error is a text for a user.
    fn post(
        &self,
        endpoint: &str,
        path: &str,
        body: Value,
    ) -> impl Future<Output = Result<Value, String>> + Send;
}

/// Failure of a question.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AskError {
    /// There are no endpoints.
    #[error("no member to ask")]
    NoEndpoint,
    /// An endpoint answers without members.
    #[error("{0} names no members")]
    NoMembers(String),
    /// An endpoint names a member that cannot be read.
    #[error("{endpoint} names an invalid member: {problem}")]
    InvalidMember {
        /// The endpoint.
        endpoint: String,
        /// The cause.
        problem: String,
    },
    /// An endpoint does not answer in time.
    #[error("no answer of {0} within {seconds} s", seconds = HEALTH_TIMEOUT.as_secs())]
    TimedOut(String),
    /// The member has no endpoint.
    #[error("a member that never started")]
    NeverStarted,
    /// The request failed, or etcd refused it.
    #[error("{0}")]
    Failed(String),
}

/// Reason why a member must stay in its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MustStay {
    /// The member is the cluster.
    #[error("it is the only member that votes")]
    Last,
    /// The others would have no quorum.
    #[error(
        "{healthy} of its {others} other members answer, and {needed} have to so that it may leave: {failure}"
    )]
    NoQuorum {
        /// Number of other voters that answer.
        healthy: usize,
        /// Number of other voters.
        others: usize,
        /// Number of other voters that must answer.
        needed: usize,
        /// Last failure.
        failure: AskError,
    },
}

/// Asks the members of one cluster.
#[derive(Debug)]
pub struct Client<G> {
    gateway: G,
    endpoints: Vec<String>,
}

impl<G: Gateway> Client<G> {
    /// Makes a client. `endpoints`: client URLs of members, in the order in which they are asked.
    pub fn new(gateway: G, endpoints: Vec<String>) -> Self {
        Self { gateway, endpoints }
    }

    /// Returns all members, as the first endpoint with a complete answer knows them.
    ///
    /// # Errors
    /// No endpoint gives such an answer; the failure of the last one.
    pub async fn members(&self) -> Result<Vec<Member>, AskError> {
        let mut failure = AskError::NoEndpoint;
        for endpoint in &self.endpoints {
            match self.members_by(endpoint).await {
                Ok(members) => return Ok(members),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn members_by(&self, endpoint: &str) -> Result<Vec<Member>, AskError> {
        let linearizable = json!({ "linearizable": true });
        let mut answer = self.post(endpoint, "/v3/cluster/member/list", linearizable).await?;
        let members = answer.get_mut("members").map(Value::take).unwrap_or_default();
        let members: Option<Vec<Member>> = serde_json::from_value(members).map_err(|error| {
            AskError::InvalidMember { endpoint: endpoint.to_owned(), problem: error.to_string() }
        })?;
        let members = members.filter(|members| !members.is_empty());
        members.ok_or_else(|| AskError::NoMembers(endpoint.to_owned()))
    }

    /// Removes a member, by another one if possible. etcd refuses a removal that costs the quorum.
    ///
    /// # Errors
    /// No member removes it; the failure of the last one. The answer of a member that removes itself may be lost: list the members again.
    pub async fn remove(&self, leaving: &Member, members: &[Member]) -> Result<(), AskError> {
        let others = members.iter().filter(|member| member.id != leaving.id);
        let mut failure = AskError::NoEndpoint;
        for endpoint in others.chain([leaving]).flat_map(|member| &member.client_urls) {
            match self.post(endpoint, "/v3/cluster/member/remove", json!({ "ID": leaving.id })).await {
                Ok(_) => return Ok(()),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Checks whether a member may leave: etcd refuses its removal otherwise.
    ///
    /// # Errors
    /// The member must stay.
    pub async fn may_leave(&self, leaving: &Member, members: &[Member]) -> Result<(), MustStay> {
        if is_last(members, leaving.id) {
            return Err(MustStay::Last);
        }
        let voters = voters_without(members, leaving.id);
        let (others, needed) = (voters.len(), needed(voters.len()));
        let (mut healthy, mut failure) = (0, AskError::NoEndpoint);
        for voter in voters {
            match self.is_healthy(voter).await {
                Ok(()) => healthy += 1,
                Err(error) => failure = error,
            }
            if healthy == needed {
                return Ok(());
            }
        }
        Err(MustStay::NoQuorum { healthy, others, needed, failure })
    }

    /// Checks whether a member answers, each of its endpoints within 3 s.
    ///
    /// # Errors
    /// None of its endpoints does; the failure of the last one.
    pub(crate) async fn is_healthy(&self, member: &Member) -> Result<(), AskError> {
        let mut failure = AskError::NeverStarted;
        for endpoint in &member.client_urls {
            match timeout(HEALTH_TIMEOUT, self.post(endpoint, "/v3/maintenance/status", json!({}))).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => failure = error,
                Err(_) => failure = AskError::TimedOut(endpoint.clone()),
            }
        }
        Err(failure)
    }

    async fn post(&self, endpoint: &str, path: &str, body: Value) -> Result<Value, AskError> {
        self.gateway.post(endpoint, path, body).await.map_err(AskError::Failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A gateway that answers by a function, and records endpoint and end of the path.
    struct Fake<F> {
        answer: F,
        asked: Mutex<Vec<String>>,
    }

    impl<F: Fn(&str, &str) -> Option<Result<Value, String>> + Sync> Gateway for Fake<F> {
        async fn post(&self, endpoint: &str, path: &str, body: Value) -> Result<Value, String> {
            let act = path.rsplit('/').next().unwrap();
            let id = body["ID"].as_str().unwrap_or_default();
            self.asked.lock().unwrap().push(format!("{endpoint} {act} {id}").trim_end().to_owned());
            match (self.answer)(endpoint, act) {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }
    }

    fn client<F>(endpoints: &[&str], answer: F) -> Client<Fake<F>>
    where
        F: Fn(&str, &str) -> Option<Result<Value, String>> + Sync,
    {
        let endpoints = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
        Client::new(Fake { answer, asked: Mutex::default() }, endpoints)
    }

    fn asked<F>(client: &Client<Fake<F>>) -> Vec<String> {
        client.gateway.asked.lock().unwrap().clone()
    }

    fn shown(id: u64) -> Value {
        json!({ "ID": id.to_string(), "peerURLs": [format!("p{id}")], "clientURLs": [format!("c{id}")] })
    }

    fn members(count: u64) -> Vec<Member> {
        (1..=count).map(|id| serde_json::from_value(shown(id)).unwrap()).collect()
    }

    #[tokio::test]
    async fn members_are_those_of_the_first_endpoint_with_a_complete_answer() {
        let client = client(&["c1", "c2", "c3", "c4", "c5"], |endpoint, _| {
            Some(match endpoint {
                "c1" => Err("refused".to_owned()),
                "c2" => Ok(json!({})),
                "c3" => Ok(json!({ "members": [shown(1), { "ID": "x" }] })),
                _ => Ok(json!({ "members": [shown(1), shown(2)] })),
            })
        });
        assert_eq!(client.members().await.unwrap(), members(2));
        assert_eq!(asked(&client), ["c1 list", "c2 list", "c3 list", "c4 list"]);
    }

    #[tokio::test]
    async fn answer_with_an_invalid_member_is_a_failure() {
        for (answer, text) in [
            (json!({}), "c1 names no members"),
            (json!({ "members": [] }), "c1 names no members"),
            (json!({ "members": null }), "c1 names no members"),
            (json!([]), "c1 names no members"),
            (json!({ "members": {} }), "c1 names an invalid member: "),
            (json!({ "members": [{ "peerURLs": ["p"] }] }), "c1 names an invalid member: missing field `ID`"),
        ] {
            let client = client(&["c1"], move |_, _| Some(Ok(answer.clone())));
            let failure = client.members().await.unwrap_err().to_string();
            assert!(failure.starts_with(text), "{failure}");
        }
        let nowhere = client(&[], |_, _| None);
        assert_eq!(nowhere.members().await, Err(AskError::NoEndpoint));
    }

    #[tokio::test]
    async fn another_member_removes_first_and_the_member_itself_last() {
        let members = members(3);
        let client = client(&[], |endpoint, _| {
            Some(if endpoint == "c2" { Ok(json!({})) } else { Err("refused".to_owned()) })
        });
        client.remove(&members[1], &members).await.unwrap();
        assert_eq!(asked(&client), ["c1 remove 2", "c3 remove 2", "c2 remove 2"]);
        let failure = client.remove(&members[0], &members[..1]).await;
        assert_eq!(failure, Err(AskError::Failed("refused".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn member_leaves_only_if_a_quorum_of_the_others_is_healthy() {
        // One of five leaves: three of the other four must answer.
        for (healthy, may) in [(["c2", "c3", "c4"], true), (["c2", "c3", "c1"], false)] {
            let client = client(&[], move |endpoint, _| healthy.contains(&endpoint).then(|| Ok(json!({}))));
            let members = members(5);
            let result = client.may_leave(&members[0], &members).await;
            assert_eq!(result.is_ok(), may, "{result:?}");
            if let Err(reason) = result {
                let text = "2 of its 4 other members answer, and 3 have to so that it may leave: no answer of c5 within 3 s";
                assert_eq!(reason.to_string(), text);
            }
        }
    }

    #[tokio::test]
    async fn last_voter_and_member_that_never_started_give_no_quorum() {
        let client = client(&[], |_, _| Some(Ok(json!({}))));
        let mut members = members(2);
        members[1].client_urls.clear();
        let reason = client.may_leave(&members[0], &members).await.unwrap_err();
        assert!(reason.to_string().ends_with("a member that never started"), "{reason}");
        members[1].is_learner = true;
        assert_eq!(client.may_leave(&members[0], &members).await, Err(MustStay::Last));
        assert!(asked(&client).is_empty());
    }
}
