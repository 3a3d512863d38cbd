//! The Eviction API as it is asked and as it answers: a PodDisruptionBudget holds an eviction by a 429 that may name a time.

use serde_json::{Value, json};

use crate::drain::pod::Pod;

/// Pods in one answer: each may have tens of KiB.
const PAGE: usize = 25;

/// A request that is sent by POST.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Path on the API server.
    pub path: String,
    /// JSON.
    pub body: Value,
}

/// What became of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    /// The Pod is ending.
    Accepted,
    /// Not now, because of a PodDisruptionBudget.
    Held {
        /// After so many seconds again, if the API server says.
        again: Option<u32>,
        /// In its words.
        why: String,
    },
    /// There is no such Pod any more.
    Gone,
}

/// Path of one page of the Pods on a Node; `token`: what the page before it ended with, empty for the first. A selector of its own Node is
/// what a kubelet may list by.
pub fn page(node: &str, token: &str) -> String {
    let token = token.replace('=', "%3D").replace('+', "%2B").replace('/', "%2F");
    format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&limit={PAGE}&continue={token}")
}

/// Asks for the end of this very Pod, which may take `grace` seconds; none: its own time.
pub fn evict(pod: &Pod, grace: Option<u32>) -> Request {
    let mut options = json!({ "preconditions": { "uid": pod.uid } });
    if let Some(grace) = grace {
        options["gracePeriodSeconds"] = grace.into();
    }
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": options,
    });
    Request { path: format!("/api/v1/namespaces/{}/pods/{}/eviction", pod.namespace, pod.name), body }
}

/// What a refused eviction means, by its HTTP status; none: a refusal in earnest. 409: it is another Pod of that name by now. 500: more
/// than one budget holds it.
pub fn outcome(status: u16, message: &str, again: Option<u32>) -> Option<Evicted> {
    match status {
        404 | 409 => Some(Evicted::Gone),
        429 | 500 => Some(Evicted::Held { again, why: message.to_owned() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_that_a_budget_holds_is_no_refusal_and_a_forbidden_one_is() {
        let held = Evicted::Held { again: Some(10), why: "budget".into() };
        assert_eq!(outcome(429, "budget", Some(10)), Some(held));
        assert_eq!(outcome(404, "", None), Some(Evicted::Gone));
        assert_eq!(outcome(403, "", None), None);
        assert_eq!(outcome(503, "", None), None);
    }

    #[test]
    fn an_eviction_is_of_this_very_pod_and_a_page_goes_on_where_the_last_one_ended() {
        let pod = Pod { namespace: "n".into(), name: "p".into(), uid: "u".into(), ..Pod::default() };
        let request = evict(&pod, Some(0));
        assert_eq!(request.path, "/api/v1/namespaces/n/pods/p/eviction");
        let options = json!({ "preconditions": { "uid": "u" }, "gracePeriodSeconds": 0 });
        assert_eq!(request.body["deleteOptions"], options);
        assert!(page("a", "x=+/").ends_with("spec.nodeName%3Da&limit=25&continue=x%3D%2B%2F"));
    }
}
