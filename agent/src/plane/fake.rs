//! An API server for unit tests: answers in the order in which they are given, whatever is asked.

use std::sync::{Arc, Mutex};

use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// Status and body of each answer.
pub(super) type Answers = Vec<(u16, Value)>;

/// A client of it; what comes after the last answer is a lost connection.
pub(super) fn fake(answers: Answers) -> Client {
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let next = answers.lock().unwrap().next();
        async move {
            let (status, body) = next.ok_or_else(|| std::io::Error::other("no more answers"))?;
            let response =
                http::Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, std::io::Error>(response.unwrap())
        }
    });
    Client::new(service, "default")
}
