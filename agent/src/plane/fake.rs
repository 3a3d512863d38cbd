//! API server for unit tests. It gives its answers in order, whatever the request.

use std::sync::{Arc, Mutex};

use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// Status and body of each answer.
pub(super) type Answers = Vec<(u16, Value)>;

/// Returns a client of the server. After the last answer, the connection is lost.
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
