//! Requests and answers of the Eviction API. A PodDisruptionBudget holds an eviction by a 429 that may name a delay.

use serde_json::{Value, json};

use crate::drain::pod::Pod;
use crate::drain::send::Rejection;

/// Number of Pods in one answer. Each may have tens of KiB.
const PAGE_PODS: usize = 25;

/// Result of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    /// The Pod ends.
    Accepted,
    /// A PodDisruptionBudget does not allow it now.
    Held {
        /// Delay in seconds that the API server names.
        again: Option<u32>,
        /// Text of the API server.
        why: String,
    },
    /// The Pod was already deleted.
    Gone,
}

/// Returns the path of one page of the Pods on a Node. `token`: end of the page before it, empty for the first. A kubelet may list only by a
/// selector of its own Node.
pub(super) fn page(node: &str, token: &str) -> String {
    let token = token.replace('=', "%3D").replace('+', "%2B").replace('/', "%2F");
    format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&limit={PAGE_PODS}&continue={token}")
}

/// Returns path and body of the request that evicts this very Pod.
pub(super) fn eviction(pod: &Pod, grace: Option<u32>) -> (String, Value) {
    let mut options = json!({ "preconditions": { "uid": pod.uid } });
    if let Some(grace) = grace {
        options["gracePeriodSeconds"] = grace.into();
    }
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": options,
    });
    (format!("/api/v1/namespaces/{}/pods/{}/eviction", pod.namespace, pod.name), body)
}

/// Returns the result of a rejected eviction. None: the API server forbids it. 409: another Pod has the name now. 500: several budgets hold
/// the Pod.
pub(super) fn outcome(rejection: Rejection) -> Option<Evicted> {
    match rejection.status {
        404 | 409 => Some(Evicted::Gone),
        429 | 500 => Some(Evicted::Held { again: rejection.again, why: rejection.message }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_that_a_budget_holds_is_no_failure_and_a_forbidden_one_is() {
        let outcome =
            |status, message: &str, again| outcome(Rejection { status, message: message.to_owned(), again });
        let held = Evicted::Held { again: Some(10), why: "budget".into() };
        assert_eq!(outcome(429, "budget", Some(10)), Some(held));
        assert_eq!(outcome(404, "", None), Some(Evicted::Gone));
        assert_eq!(outcome(403, "", None), None);
        assert_eq!(outcome(503, "", None), None);
    }

    #[test]
    fn eviction_is_of_this_very_pod_and_a_page_continues_the_last_one() {
        let pod = Pod { namespace: "n".into(), name: "p".into(), uid: "u".into(), ..Pod::default() };
        let (path, body) = eviction(&pod, Some(0));
        assert_eq!(path, "/api/v1/namespaces/n/pods/p/eviction");
        let options = json!({ "preconditions": { "uid": "u" }, "gracePeriodSeconds": 0 });
        assert_eq!(body["deleteOptions"], options);
        assert!(page("a", "x=+/").ends_with("spec.nodeName%3Da&limit=25&continue=x%3D%2B%2F"));
    }
}
