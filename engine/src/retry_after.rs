//! The delay that a busy API server names. Flow control names it in the header Retry-After, other parts in the object of the error.
//!
//! kube's error does not contain the header, so the client of this module writes it into the object. Called by programs for the client
//! that writes; read by `write`, kept by `backoff`.

use std::time::Duration;

use http::{Response, StatusCode, header};
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;

/// Returns a client whose errors contain the delay that the API server names.
pub(crate) fn keeping(client: Client) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        async move { kept(client.send(request).await?).await }
    });
    Client::new(service, "default")
}

/// Returns the delay that an error names.
pub(crate) fn named(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

async fn kept(answer: Response<Body>) -> kube::Result<Response<Body>> {
    let Some(seconds) = in_header(&answer) else { return Ok(answer) };
    let (mut head, body) = answer.into_parts();
    let body = with(&body.collect_bytes().await?, head.status, seconds);
    let body = serde_json::to_vec(&body).map_err(kube::Error::SerdeError)?;
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(head, Body::from(body)))
}

/// Returns the header in seconds. API servers never send a date.
fn in_header(answer: &Response<Body>) -> Option<u32> {
    let is_busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status());
    let text = answer.headers().get(header::RETRY_AFTER).filter(|_| is_busy)?.to_str().ok()?;
    text.trim().parse().ok()
}

/// Returns the error of a body, with the delay in seconds.
fn with(body: &[u8], code: StatusCode, seconds: u32) -> Status {
    let mut status: Status = serde_json::from_slice(body).unwrap_or_else(|_| {
        let words = String::from_utf8_lossy(body);
        Status::failure(words.trim(), "TooManyRequests")
    });
    status.code = code.as_u16();
    let mut details = status.details.take().unwrap_or_else(nothing);
    details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    status.with_details(details)
}

fn nothing() -> StatusDetails {
    let (name, group, kind, uid) = Default::default();
    StatusDetails { name, group, kind, uid, causes: Vec::new(), retry_after_seconds: 0 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn error(code: u16, after: Option<&str>, body: &str) -> Status {
        let (after, body) = (after.map(str::to_owned), body.to_owned());
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let mut answer = Response::builder().status(code);
            if let Some(after) = &after {
                answer = answer.header(header::RETRY_AFTER, after);
            }
            let answer = answer.body(Body::from(body.clone().into_bytes())).unwrap();
            async move { Ok::<_, kube::Error>(answer) }
        });
        let client = keeping(Client::new(service, "default"));
        let request = http::Request::get("/").body(Vec::new()).unwrap();
        match client.request::<serde_json::Value>(request).await {
            Err(kube::Error::Api(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn delay_in_the_header_of_flow_control_is_kept() {
        let busy = error(429, Some("7"), "Too many requests, please try again later.\n").await;
        assert_eq!((busy.code, named(&busy)), (429, Some(Duration::from_secs(7))));
        assert_eq!(busy.message, "Too many requests, please try again later.");
        let away = error(503, Some("1"), "").await;
        assert_eq!((away.code, named(&away)), (503, Some(Duration::from_secs(1))));
    }

    #[tokio::test]
    async fn error_object_keeps_its_content() {
        let body = json!({ "kind": "Status", "code": 429, "message": "the budget", "reason": "TooManyRequests",
            "details": { "retryAfterSeconds": 10, "causes": [{ "message": "needs 2" }] } });
        for after in [None, Some("3"), Some("10")] {
            let held = error(429, after, &body.to_string()).await;
            assert_eq!(named(&held), Some(Duration::from_secs(10)), "{after:?}");
            assert_eq!((held.message.as_str(), held.details.unwrap().causes.len()), ("the budget", 1));
        }
    }

    #[tokio::test]
    async fn answer_without_a_readable_delay_is_unchanged() {
        for (code, after) in [(429, Some("Sun, 06 Nov 1994 08:49:37 GMT")), (429, None), (403, Some("7"))] {
            let error = error(code, after, "no").await;
            assert_eq!((error.code, named(&error), error.message.as_str()), (code, None, "no"));
        }
    }
}
