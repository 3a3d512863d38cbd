//! Listener for operators and monitoring: `/healthz`, `/readyz`, `/metrics`.
//!
//! Serves no boot traffic and no secrets. It is bound to loopback unless configured, or to a socket in the
//! file system that only its owner may open. Called by the program's `run`.

use std::{
    convert::Infallible,
    io::{self, ErrorKind},
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::listen::{self, Limits, Listening, accept::Accept};
use crate::liveness::{Liveness, Pulse};

/// Readiness of the program, and the reasons against it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readiness {
    /// True: send it work.
    pub ready: bool,
    /// One line each: missing parts, or notes for the operator if the program is ready.
    pub reasons: Vec<String>,
}

/// Health of the program. Called on each request: must answer immediately, from memory.
pub trait Health: Send + Sync + 'static {
    /// Returns the current readiness.
    fn readiness(&self) -> Readiness;

    /// Checks that the program runs at all; an `Err` is a reason for a restart.
    ///
    /// # Errors
    /// The part that does not respond.
    fn liveness(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Ready as long as it runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct AlwaysReady;

impl Health for AlwaysReady {
    fn readiness(&self) -> Readiness {
        Readiness { ready: true, reasons: Vec::new() }
    }
}

impl Health for Liveness {
    fn readiness(&self) -> Readiness {
        Readiness { ready: self.check().is_ok(), reasons: Vec::new() }
    }

    fn liveness(&self) -> Result<(), String> {
        self.check()
    }
}

impl<F: Fn() -> Readiness + Send + Sync + 'static> Health for F {
    fn readiness(&self) -> Readiness {
        self()
    }
}

/// The address is unavailable.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for health and metrics")]
pub struct BindHealthError {
    /// The address.
    pub address: SocketAddr,
    source: std::io::Error,
}

/// Binds the listener.
///
/// # Errors
/// The address is taken or not ours.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindHealthError> {
    TcpListener::bind(address).await.map_err(|source| BindHealthError { address, source })
}

/// The socket is unavailable.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {} for health and metrics", path.display())]
pub struct BindHealthSocketError {
    /// Path of the socket.
    pub path: PathBuf,
    source: io::Error,
}

/// Binds a socket in the file system that only the program's own user may open.
/// A socket without a listener is replaced.
///
/// # Errors
/// Another file is there, the socket has a listener, or the directory is not writable.
pub fn bind_socket(path: &Path) -> Result<UnixListener, BindHealthSocketError> {
    replace_socket(path).map_err(|source| BindHealthSocketError { path: path.to_owned(), source })
}

fn replace_socket(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(ErrorKind::AlreadyExists.into()),
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(ErrorKind::AddrInUse.into());
        }
        Ok(_) => std::fs::remove_file(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Answers until `shutdown`, then lets running answers finish for a second.
///
/// # Errors
/// None.
pub async fn serve(
    listener: impl Accept,
    health: Arc<dyn Health>,
    registry: Arc<Registry>,
    pulse: Pulse,
    shutdown: CancellationToken,
) -> Result<(), Infallible> {
    let how = Listening { name: "health", limits: Limits::LOCAL, counters: Arc::default(), pulse };
    listen::serve_router(listener, how, router(health, registry), shutdown).await;
    Ok(())
}

/// The three routes, for a program that puts them behind a listener of its own.
pub fn router(health: Arc<dyn Health>, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health)
        .route("/metrics", get(metrics).with_state(registry))
}

async fn healthz(State(health): State<Arc<dyn Health>>) -> Response {
    match health.liveness() {
        Ok(()) => (StatusCode::OK, "ok\n").into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn readyz(State(health): State<Arc<dyn Health>>) -> Response {
    let readiness = health.readiness();
    let (status, head) = if readiness.ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
    };
    let mut body = format!("{head}\n");
    for reason in &readiness.reasons {
        body.push_str(reason);
        body.push('\n');
    }
    (status, body).into_response()
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut body = String::new();
    if prometheus_client::encoding::text::encode(&mut body, &registry).is_err() {
        return (StatusCode::INTERNAL_SERVER_ERROR, "a metric cannot be encoded\n").into_response();
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    struct Broken;

    impl Health for Broken {
        fn readiness(&self) -> Readiness {
            Readiness {
                ready: false,
                reasons: vec!["image host: not fetched".into(), "store: read-only".into()],
            }
        }

        fn liveness(&self) -> Result<(), String> {
            Err("the store stands still".into())
        }
    }

    async fn ask(health: Arc<dyn Health>, path: &str) -> String {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        counter.inc();
        registry.register("bedplate_test_packets", "Packets", counter);
        let listener = bind("127.0.0.1:0".parse().expect("address")).await.expect("bind");
        let address = listener.local_addr().expect("bound");
        let shutdown = CancellationToken::new();
        let server =
            tokio::spawn(serve(listener, health, Arc::new(registry), Pulse::unwatched(), shutdown.clone()));
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("connect");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("ask");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answer");
        shutdown.cancel();
        server.await.expect("join").expect("served");
        answer
    }

    #[tokio::test]
    async fn ready_program_says_so() {
        let answer = ask(Arc::new(AlwaysReady), "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nready\n"), "{answer}");
        assert!(ask(Arc::new(AlwaysReady), "/healthz").await.ends_with("ok\n"));
    }

    #[tokio::test]
    async fn program_that_is_not_ready_gives_every_reason() {
        let answer = ask(Arc::new(Broken), "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.ends_with("not ready\nimage host: not fetched\nstore: read-only\n"), "{answer}");
        let answer = ask(Arc::new(Broken), "/healthz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.ends_with("the store stands still\n"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn metrics_are_openmetrics_text() {
        let answer = ask(Arc::new(AlwaysReady), "/metrics").await;
        assert!(answer.contains("application/openmetrics-text"), "{answer}");
        assert!(answer.contains("bedplate_test_packets_total 1\n"), "{answer}");
        assert!(answer.ends_with("# EOF\n"), "{answer}");
    }

    #[tokio::test]
    async fn socket_is_private_and_replaces_a_stale_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("metrics.sock");
        drop(bind_socket(&path).expect("bind"));
        let listener = bind_socket(&path).expect("bind where a dead one is");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let shutdown = CancellationToken::new();
        let registry = Arc::new(Registry::default());
        let server = tokio::spawn(serve(
            listener,
            Arc::new(AlwaysReady),
            registry,
            Pulse::unwatched(),
            shutdown.clone(),
        ));
        let mut stream = tokio::net::UnixStream::connect(&path).await.expect("connect");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .expect("ask");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answer");
        assert!(answer.ends_with("# EOF\n"), "{answer}");
        assert!(bind_socket(&path).is_err(), "the address is in use");
        shutdown.cancel();
        server.await.expect("join").expect("served");
        let file = directory.path().join("file");
        std::fs::write(&file, "kept").expect("write");
        assert!(bind_socket(&file).is_err() && file.exists());
    }

    #[tokio::test]
    async fn closure_is_health_enough() {
        let health = || Readiness { ready: true, reasons: vec!["3 of 4 machines can boot".into()] };
        assert!(ask(Arc::new(health), "/readyz").await.ends_with("ready\n3 of 4 machines can boot\n"));
    }

    #[tokio::test]
    async fn connections_that_say_nothing_do_not_keep_out_one_that_asks() {
        let listener = bind("127.0.0.1:0".parse().expect("address")).await.expect("bind");
        let address = listener.local_addr().expect("bound");
        let shutdown = CancellationToken::new();
        let registry = Arc::new(Registry::default());
        let server = tokio::spawn(serve(
            listener,
            Arc::new(AlwaysReady),
            registry,
            Pulse::unwatched(),
            shutdown.clone(),
        ));
        let mut held = Vec::new();
        for client in 1..=8 {
            for _ in 0..32 {
                let socket = tokio::net::TcpSocket::new_v4().expect("socket");
                socket.bind(SocketAddr::from(([127, 0, 0, client], 0))).expect("bind");
                held.push(socket.connect(address).await.expect("connect"));
            }
        }
        let mut refused = 0;
        for stream in &mut held {
            let mut byte = [0];
            let read = tokio::time::timeout(Duration::from_millis(5), stream.read(&mut byte));
            refused += usize::from(read.await.is_ok());
        }
        assert!(refused >= 256 - 64, "{refused}: 64 in all");
        for client in [1, 200] {
            // A refused connection ends without an answer. Silent connections lose their places after some time.
            let answered = async {
                loop {
                    let socket = tokio::net::TcpSocket::new_v4().expect("socket");
                    socket.bind(SocketAddr::from(([127, 0, 0, client], 0))).expect("bind");
                    let mut stream = socket.connect(address).await.expect("connect");
                    let mut answer = String::new();
                    if stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.is_ok()
                        && stream.read_to_string(&mut answer).await.is_ok()
                        && !answer.is_empty()
                    {
                        return answer;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let answer = tokio::time::timeout(Duration::from_secs(30), answered).await.expect("an answer");
            assert!(answer.ends_with("ok\n"), "{answer}");
        }
        shutdown.cancel();
        server.await.expect("join").expect("served");
    }

    #[tokio::test(start_paused = true)]
    async fn open_scraper_does_not_hold_up_the_stop() {
        let listener = bind("127.0.0.1:0".parse().expect("address")).await.expect("bind");
        let address = listener.local_addr().expect("bound");
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve(
            listener,
            Arc::new(AlwaysReady),
            Arc::new(Registry::default()),
            Pulse::unwatched(),
            shutdown.clone(),
        ));
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("connect");
        stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.expect("half a request");
        shutdown.cancel();
        server.await.expect("join").expect("served");
    }
}
