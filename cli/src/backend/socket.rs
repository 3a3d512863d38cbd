//! Asks pxed over its Unix socket: one request, one JSON answer, bounded in time and size.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_api::reason::Reason;
use bedplate_api::reason::refusal::AdminRefusal;
use bedplate_api::wire::Refusal;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use tokio::net::UnixStream;

/// Timeout of a request to pxed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of an answer in bytes: about 10,000 Machines.
const MAX_ANSWER: usize = 256 << 20;

/// Reason why pxed gave no answer.
#[derive(Debug, Error)]
pub(crate) enum AskPxedError {
    #[error("cannot reach pxed at {}", .path.display())]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("pxed at {} does not speak HTTP", .path.display())]
    Speak { path: PathBuf, source: hyper::Error },
    #[error("the answer of pxed is incomplete or too long")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("pxed did not answer within {} s", REQUEST_TIMEOUT.as_secs())]
    Late,
    #[error("pxed rejected the request: {message} ({reason})")]
    Refused { reason: String, message: String },
    #[error("pxed answered {0}")]
    Status(StatusCode),
    #[error("the answer of pxed is not JSON")]
    Json(#[source] serde_json::Error),
}

impl AskPxedError {
    /// Returns the remedy for the caller. `cluster` is true if the cluster could answer instead.
    pub(crate) fn hint(&self, cluster: bool) -> Option<&'static str> {
        match self {
            Self::Connect { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => Some(
                "only root and the group of the socket (default: `bedplate`) may use it; use sudo, or join the group",
            ),
            Self::Connect { .. } | Self::Late if cluster => Some(
                "check pxed with `systemctl status pxed`, or name another socket with --socket, or a cluster with --context",
            ),
            Self::Connect { .. } | Self::Late => Some(
                "only pxed has this data; check pxed with `systemctl status pxed`, or name another socket with --socket",
            ),
            Self::Refused { reason, .. } => match AdminRefusal::parse(reason)? {
                refusal @ (AdminRefusal::NotFound
                | AdminRefusal::MachineNotFound
                | AdminRefusal::OperationNotFound
                | AdminRefusal::UseKubernetesApi) => refusal.remedy().map(|remedy| remedy.text),
                _ => None,
            },
            Self::Speak { .. } | Self::Status(_) | Self::Json(_) => Some(
                "check that this is pxed's socket, and that both programs have the same release: `bedplate --version`, `pxed --version`",
            ),
            Self::Read(_) => Some("repeat the command; pxed's log may have the cause: `journalctl -u pxed`"),
        }
    }

    /// Returns true if the request may have been carried out despite the error.
    pub(crate) fn may_have_happened(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Refused { .. } => false,
            Self::Status(status) => status.is_server_error(),
            Self::Speak { .. } | Self::Read(_) | Self::Late | Self::Json(_) => true,
        }
    }

    /// Returns true if a retry would fail too.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Connect { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
            Self::Refused { .. } | Self::Json(_) => true,
            Self::Speak { .. } | Self::Read(_) | Self::Late | Self::Status(_) => false,
        }
    }
}

/// Sends a GET request to pxed. `path` consists of URL-safe parts.
pub(crate) async fn get(socket: &Path, path: &str) -> Result<Value, AskPxedError> {
    bounded(socket, Method::GET, path, Bytes::new()).await
}

/// Sends a POST request with this object to pxed.
pub(crate) async fn post(
    socket: &Path,
    path: &str,
    object: &(impl Serialize + Sync),
) -> Result<Value, AskPxedError> {
    let body = serde_json::to_vec(object).map_err(AskPxedError::Json)?;
    bounded(socket, Method::POST, path, body.into()).await
}

async fn bounded(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<Value, AskPxedError> {
    let asked = exchange(socket, method, path, body);
    tokio::time::timeout(REQUEST_TIMEOUT, asked).await.map_err(|_| AskPxedError::Late)?
}

async fn exchange(socket: &Path, method: Method, path: &str, body: Bytes) -> Result<Value, AskPxedError> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| AskPxedError::Connect { path: socket.to_owned(), source })?;
    let speak = |source| AskPxedError::Speak { path: socket.to_owned(), source };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(speak)?;
    let driver = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(hyper::header::HOST, "pxed")
        .header(hyper::header::CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .expect("parts of a path are escaped");
    let answer = sender.send_request(request).await.map_err(speak)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(AskPxedError::Read)?;
    driver.abort();
    let body = body.to_bytes();
    if status.is_success() {
        return serde_json::from_slice(&body).map_err(AskPxedError::Json);
    }
    match serde_json::from_slice::<Refusal>(&body) {
        Ok(Refusal { reason, message }) => Err(AskPxedError::Refused { reason, message }),
        Err(_) => Err(AskPxedError::Status(status)),
    }
}

/// Returns one part of a path, with reserved bytes escaped (RFC 3986, 2.1).
pub(crate) fn escape(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    part.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Answers one request with these bytes. Returns the request.
    pub(crate) fn pxed(
        answer: &'static str,
    ) -> (tempfile::TempDir, PathBuf, std::thread::JoinHandle<String>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pxed.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![0; 4096];
            let length = stream.read(&mut asked).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..length]).into_owned()
        });
        (directory, path, server)
    }

    #[tokio::test]
    async fn answer_is_read_as_json() {
        let (_directory, path, server) = pxed("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"items\":[]}");
        let answer = get(&path, &format!("/v1/explain/{}", escape("a b/c"))).await.unwrap();
        assert_eq!(answer, serde_json::json!({ "items": [] }));
        assert!(server.join().unwrap().starts_with("GET /v1/explain/a%20b%2Fc HTTP/1.1\r\n"));
    }

    #[tokio::test]
    async fn refusal_is_shown_with_its_reason_and_a_hint() {
        let (_directory, path, _server) = pxed(
            "HTTP/1.1 404 Not Found\r\nContent-Length: 36\r\n\r\n{\"reason\":\"NotFound\",\"message\":\"no\"}",
        );
        let error = get(&path, "/v1/machines/x").await.unwrap_err();
        assert_eq!(error.to_string(), "pxed rejected the request: no (NotFound)");
        assert!(error.hint(true).unwrap().contains("machine list"));
    }

    #[tokio::test]
    async fn socket_of_another_program_is_reported_with_its_path_and_a_hint() {
        for answer in
            ["SSH-2.0-x\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", "HTTP/1.1 500 X\r\n\r\n"]
        {
            let (_directory, path, _server) = pxed(answer);
            let error = get(&path, "/v1/machines").await.unwrap_err();
            assert!(error.hint(true).unwrap().contains("pxed's socket"), "{answer}: {error}");
        }
    }

    #[tokio::test]
    async fn a_pxed_of_a_cluster_sends_the_caller_there() {
        let (_directory, path, server) = pxed(
            "HTTP/1.1 409 Conflict\r\nContent-Length: 44\r\n\r\n{\"reason\":\"UseKubernetesAPI\",\"message\":\"no\"}",
        );
        let object = serde_json::json!({ "kind": "MachineOperation" });
        let error = post(&path, "/v1/operations", &object).await.unwrap_err();
        assert!(error.hint(true).unwrap().contains("--context"), "{error}");
        assert!(error.is_final());
        let asked = server.join().unwrap();
        assert!(asked.starts_with("POST /v1/operations HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("content-length: 27\r\n"), "{asked}");
    }

    #[tokio::test]
    async fn a_user_who_may_only_read_sees_the_remedy() {
        let body = r#"{"reason":"Forbidden","message":"operations are for group bedplate-admin; use sudo"}"#;
        let answer = format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let (_directory, path, _server) = pxed(Box::leak(answer.into_boxed_str()));
        let error = post(&path, "/v1/operations", &serde_json::json!({})).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "pxed rejected the request: operations are for group bedplate-admin; use sudo (Forbidden)"
        );
        assert!(error.is_final() && !error.may_have_happened());
    }

    #[test]
    fn a_socket_that_may_not_be_used_says_who_may() {
        let source = std::io::ErrorKind::PermissionDenied.into();
        let error = AskPxedError::Connect { path: "/run/bedplate/pxed.sock".into(), source };
        let hint = error.hint(false).unwrap();
        assert!(hint.contains("sudo") && hint.contains("`bedplate`"), "{hint}");
    }

    #[tokio::test]
    async fn absent_pxed_is_named_with_its_socket() {
        let error = get(Path::new("/nonexistent/pxed.sock"), "/v1/status").await.unwrap_err();
        assert_eq!(error.to_string(), "cannot reach pxed at /nonexistent/pxed.sock");
        assert!(error.hint(true).unwrap().contains("--context"));
        let only_pxed = error.hint(false).unwrap();
        assert!(only_pxed.contains("--socket") && !only_pxed.contains("--context"), "{only_pxed}");
    }
}
