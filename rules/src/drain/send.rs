//! Reads the Pods of a Node and evicts one, over the connection of the caller. Owns no socket and no clock.
//!
//! The agent connects as the kubelet, bedplate-controller by its own client. Timeouts are the caller's.

use std::future::Future;

use serde_json::Value;

use crate::drain::eviction::{Evicted, eviction, outcome, page};
use crate::drain::pod::Pod;

/// Connection to the API server.
pub trait PodApi: Sync {
    /// Failure of a request.
    type Error: Send;

    /// Sends a POST request with a JSON body, or a GET request without one. Returns the JSON of a successful answer.
    fn request(
        &self,
        path: &str,
        body: Option<Value>,
    ) -> impl Future<Output = Result<Value, Self::Error>> + Send;

    /// Returns the answer of the API server that caused a failure. None: it has not answered.
    fn rejection(error: &Self::Error) -> Option<Rejection>;
}

/// Answer of the API server to a request that it rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// HTTP status.
    pub status: u16,
    /// Text of the API server.
    pub message: String,
    /// Delay in seconds that the API server names.
    pub again: Option<u32>,
}

/// Returns the Pods on a Node.
///
/// # Errors
/// A request failed.
pub async fn pods<A: PodApi>(api: &A, node: &str) -> Result<Vec<Pod>, A::Error> {
    let mut pods = Vec::new();
    let mut token = String::new();
    loop {
        let list = api.request(&page(node, &token), None).await?;
        pods.extend(list["items"].as_array().into_iter().flatten().map(Pod::read));
        token = match list["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => next.to_owned(),
            _ => return Ok(pods),
        };
    }
}

/// Asks the API server to evict this very Pod. `grace`: time in seconds that the Pod has to end; None: its own.
///
/// # Errors
/// The request failed, or the API server rejects it for another reason than a PodDisruptionBudget.
pub async fn evict<A: PodApi>(api: &A, pod: &Pod, grace: Option<u32>) -> Result<Evicted, A::Error> {
    let (path, body) = eviction(pod, grace);
    let Err(error) = api.request(&path, Some(body)).await else { return Ok(Evicted::Accepted) };
    A::rejection(&error).and_then(outcome).ok_or(error)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Waker};

    use serde_json::json;

    use super::*;

    /// An API server that has these answers, last one first, and records the requests.
    struct Fake {
        answers: Mutex<Vec<Result<Value, u16>>>,
        requests: Mutex<Vec<(String, Option<Value>)>>,
    }

    impl PodApi for Fake {
        /// HTTP status; 0: no answer.
        type Error = u16;

        async fn request(&self, path: &str, body: Option<Value>) -> Result<Value, u16> {
            self.requests.lock().unwrap().push((path.to_owned(), body));
            self.answers.lock().unwrap().pop().unwrap()
        }

        fn rejection(error: &u16) -> Option<Rejection> {
            (*error > 0).then(|| Rejection { status: *error, message: "budget".into(), again: Some(10) })
        }
    }

    fn api(answers: Vec<Result<Value, u16>>) -> Fake {
        Fake { answers: answers.into(), requests: Mutex::default() }
    }

    /// Returns the result of a future that never waits.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn list(name: &str, next: &str) -> Value {
        json!({ "metadata": { "continue": next }, "items": [{ "metadata": { "name": name } }] })
    }

    #[test]
    fn pods_are_read_page_by_page() {
        let api = api(vec![Ok(list("c", "")), Ok(list("b", "2")), Ok(list("a", "1"))]);
        let names: Vec<String> = now(pods(&api, "n")).unwrap().into_iter().map(|pod| pod.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        let requests = api.requests.into_inner().unwrap();
        let tokens = requests.iter().map(|(path, _)| path.rsplit('=').next().unwrap());
        assert_eq!(tokens.collect::<Vec<_>>(), ["", "1", "2"]);
        assert!(requests.iter().all(|(path, body)| path.contains("spec.nodeName%3Dn&") && body.is_none()));
    }

    #[test]
    fn page_that_cannot_be_read_is_a_failure() {
        let api = api(vec![Err(503), Ok(list("a", "1"))]);
        assert_eq!(now(pods(&api, "n")), Err(503));
    }

    #[test]
    fn eviction_is_sent_once_and_its_answer_decides() {
        let pod = Pod { namespace: "n".into(), name: "p".into(), uid: "u".into(), ..Pod::default() };
        let held = Evicted::Held { again: Some(10), why: "budget".into() };
        for (answer, result) in [
            (Ok(json!({})), Ok(Evicted::Accepted)),
            (Err(404), Ok(Evicted::Gone)),
            (Err(429), Ok(held)),
            (Err(403), Err(403)),
            (Err(0), Err(0)),
        ] {
            let api = api(vec![answer]);
            assert_eq!(now(evict(&api, &pod, Some(5))), result);
            let requests = api.requests.into_inner().unwrap();
            assert_eq!(requests, [(eviction(&pod, Some(5)).0, Some(eviction(&pod, Some(5)).1))]);
        }
    }
}
