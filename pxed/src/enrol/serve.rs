//! The TLS listener for agents: `/v1/enrol`, `/v1/renew`, `/v1/report`. Owns the socket; bounds connections, handshakes,
//! heads and bodies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::wire::Refusal;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::identity::{self, Identity};
use super::service::{Refused, Service};
use super::tls::Configurations;
use crate::http::serve::{Limits, Seat, Seats};
use crate::http::socket::Guarded;

/// Bytes of a body: facts of a machine with hundreds of disks.
const MAX_BODY: usize = 1 << 20;

/// For the handshake, and for a body.
const PATIENCE: Duration = Duration::from_secs(20);

type Answer = Response<Full<Bytes>>;

/// Serves until `shutdown`; returns when all connections have ended.
pub async fn serve(
    listener: TcpListener,
    configurations: Arc<Configurations>,
    service: Arc<Service>,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let seats = Arc::new(Seats::default());
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection of an agent could not be accepted");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let Some(seat) = seats.take(peer.ip(), &limits) else {
            tracing::debug!(%peer, "connection of an agent refused: too many");
            continue;
        };
        let (configurations, service) = (configurations.clone(), service.clone());
        connections.spawn(connection(stream, peer, configurations, service, limits, seat, shutdown.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    configurations: Arc<Configurations>,
    service: Arc<Service>,
    limits: Limits,
    seat: Seat,
    shutdown: CancellationToken,
) {
    let Ok(local) = stream.local_addr() else { return };
    let config = match configurations.get(local.ip().to_canonical(), Timestamp::now()) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(error = bedplate_process::exit::chain(&error), "an agent cannot be served");
            return;
        }
    };
    let _ = stream.set_nodelay(true);
    let stream = Guarded::new(stream, Arc::default(), limits.stall);
    let handshake = tokio::time::timeout(PATIENCE, TlsAcceptor::from(config).accept(stream));
    let stream = tokio::select! {
        () = shutdown.cancelled() => return,
        stream = handshake => match stream {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "no TLS with an agent");
                return;
            }
            Err(_) => return,
        },
    };
    let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let identity = Arc::new(leaf.and_then(|leaf| identity::read(leaf)));
    let service = service_fn(move |request| {
        let (service, identity) = (service.clone(), identity.clone());
        async move {
            Ok::<_, std::convert::Infallible>(answer(&service, identity.as_ref().as_ref(), request).await)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection of an agent ended");
    }
    drop(seat);
}

async fn answer(service: &Service, identity: Option<&Identity>, request: Request<Incoming>) -> Answer {
    let now = Timestamp::now();
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if !matches!(path, "/v1/enrol" | "/v1/renew" | "/v1/report") {
        return refuse(StatusCode::NOT_FOUND, "UnknownPath", "there is nothing under this path");
    }
    if parts.method != Method::POST {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "this resource takes POST");
    }
    let Some(identity) = identity else {
        if path != "/v1/enrol" {
            return refuse(
                StatusCode::UNAUTHORIZED,
                "NoClientCertificate",
                "this needs the certificate that an enrolment gave",
            );
        }
        return match read(body).await {
            Ok(request) => respond(service.enrol(request, now).await),
            Err(answer) => answer,
        };
    };
    match path {
        "/v1/enrol" => match read(body).await {
            Ok(request) => respond(service.enrol(request, now).await),
            Err(answer) => answer,
        },
        "/v1/renew" => match read(body).await {
            Ok(request) => respond(service.renew(identity, request, now).await),
            Err(answer) => answer,
        },
        _ => match read(body).await {
            Ok(report) => match service.report(identity, report, now) {
                Ok(()) => empty(),
                Err(refused) => json(refused.status, &refused.refusal),
            },
            Err(answer) => answer,
        },
    }
}

async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Answer> {
    let collected = tokio::time::timeout(PATIENCE, Limited::new(body, MAX_BODY).collect()).await;
    let bytes = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, "BodyTooLarge", "a body has at most 1 MiB"));
        }
        Ok(Err(_)) => {
            return Err(refuse(StatusCode::BAD_REQUEST, "BadBody", "the body did not arrive whole"));
        }
        Err(_) => return Err(refuse(StatusCode::REQUEST_TIMEOUT, "BodyTooSlow", "the body took too long")),
    };
    // The text of a wrong body may hold a token: only where it is wrong is told.
    serde_json::from_slice(&bytes).map_err(|error| {
        let message = format!("not what this takes: line {}, column {}", error.line(), error.column());
        refuse(StatusCode::BAD_REQUEST, "BadBody", &message)
    })
}

fn respond<T: Serialize>(result: Result<T, Refused>) -> Answer {
    match result {
        Ok(answer) => json(StatusCode::OK, &answer),
        Err(refused) => json(refused.status, &refused.refusal),
    }
}

fn empty() -> Answer {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn refuse(status: StatusCode, reason: &str, message: &str) -> Answer {
    json(status, &Refusal { reason: reason.to_owned(), message: message.to_owned() })
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    // Plain data with text keys: it always has a JSON form.
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(bytes.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
