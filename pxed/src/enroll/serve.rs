//! The TLS listener for agents: `/v1/enroll`, `/v1/renew`, `/v1/report`, and if standalone `/v1/watch`, `/v1/operation`, `/v1/node`, `/v1/secret`. Bounds handshakes and bodies; accepting and its limits
//! are `bedplate_process::listen`'s.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_api::wire::{MAX_ENROLL_BYTES, Refusal, WatchResponse};
use bedplate_process::exit::chain;
use bedplate_process::listen::socket::Guarded;
use bedplate_process::listen::{Accepted, Cut, Listening, converse, listen};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::identity::{self, Identity};
use super::plane::Caller;
use super::rate_limit;
use super::service::{Refused, Service, refused};
use super::tls::Configurations;
use crate::http::host;

/// Maximum size of a body by certificate, in bytes: facts of a machine with hundreds of disks.
const MAX_BODY: usize = 1 << 20;

/// For the handshake, and for a body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Paths of the listener.
const PATHS: [&str; 7] =
    ["/v1/enroll", "/v1/renew", "/v1/report", "/v1/watch", "/v1/operation", "/v1/node", "/v1/secret"];

type Answer = Response<Full<Bytes>>;

/// Serves until `shutdown`; returns when all connections have ended.
pub async fn serve(
    listener: TcpListener,
    configurations: Arc<Configurations>,
    service: Arc<Service>,
    how: Listening,
    shutdown: CancellationToken,
) {
    let (limits, counters) = (how.limits, how.counters.clone());
    listen(listener, how, shutdown.clone(), |accepted| {
        let (configurations, service, shutdown) = (configurations.clone(), service.clone(), shutdown.clone());
        let (peer, seat, counters) = (accepted.peer, accepted.seat.clone(), counters.clone());
        async move {
            let stream = tokio::select! {
                () = shutdown.cancelled() => return,
                stream = secure(accepted, &configurations) => match stream {
                    Some(stream) => stream,
                    None => return counters.cut.one(Cut::NoTls),
                },
            };
            let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let address = peer.remote.ip().to_canonical();
            let identity = Arc::new(leaf.and_then(|leaf| identity::read(leaf, address)));
            let ends = shutdown.clone();
            let service = service_fn(move |request| {
                let (service, identity, end) = (service.clone(), identity.clone(), ends.clone());
                async move {
                    let client = Client { identity: identity.as_ref().as_ref(), address };
                    let answer = answer(&service, client, request, &end).await;
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            converse(stream, service, (limits, seat), peer, shutdown).await;
        }
    })
    .await;
}

/// Performs the TLS handshake. `None`: it failed, and the log has the cause.
async fn secure(
    accepted: Accepted<TcpListener>,
    configurations: &Configurations,
) -> Option<TlsStream<Guarded<TcpStream>>> {
    let Accepted { stream, peer, .. } = accepted;
    let config = match configurations.get(peer.local.ip().to_canonical(), Timestamp::now()) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(error = chain(&error), "failed to serve an agent");
            return None;
        }
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(peer = %peer.remote, %error, "TLS handshake of an agent failed");
            None
        }
        Err(_) => {
            tracing::debug!(peer = %peer.remote, "TLS handshake of an agent timed out");
            None
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy)]
struct Client<'a> {
    /// The agent whose certificate was shown.
    identity: Option<&'a Identity>,
    address: IpAddr,
}

async fn answer(
    service: &Service,
    client: Client<'_>,
    request: Request<Incoming>,
    end: &CancellationToken,
) -> Answer {
    decide(service, client, request, end).await.unwrap_or_else(|Refused { reason, message, after }| {
        service.counters.refusals.one(reason);
        let mut answer = json(status(reason), &Refusal { reason: reason.as_str().to_owned(), message });
        if reason == AgentRefusal::InvalidHost {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(after) = after {
            answer.headers_mut().insert(RETRY_AFTER, rate_limit::seconds(after).into());
        }
        answer
    })
}

async fn decide(
    service: &Service,
    Client { identity, address }: Client<'_>,
    request: Request<Incoming>,
    end: &CancellationToken,
) -> Result<Answer, Refused> {
    let now = Timestamp::now();
    let (parts, body) = request.into_parts();
    if let Err(message) = host::check(parts.version, &parts.headers) {
        return refused(AgentRefusal::InvalidHost, message);
    }
    let path = parts.uri.path();
    if !PATHS.contains(&path) {
        return refused(AgentRefusal::UnknownPath, "this path does not exist");
    }
    if parts.method != Method::POST {
        return refused(AgentRefusal::MethodNotAllowed, "use POST for this path");
    }
    if path == "/v1/enroll" {
        let asked = read_up_to(MAX_ENROLL_BYTES, body).await?;
        return Ok(json(StatusCode::OK, &service.enroll(asked, address, now).await?));
    }
    if let Some(identity) = identity {
        check_validity(identity, now)?;
        service.admit(identity, path)?;
    }
    let caller = |identity| Caller { service, identity };
    match (path, identity) {
        ("/v1/renew", Some(identity)) => {
            Ok(json(StatusCode::OK, &service.renew(identity, read(body).await?, now).await?))
        }
        ("/v1/watch", Some(identity)) => {
            let asked = read(body).await?;
            let answer = tokio::select! {
                answer = service.plane.watch(caller(identity), asked) => answer?,
                // pxed is stopping: the request is answered after the restart.
                () = end.cancelled() => WatchResponse::Same,
            };
            Ok(json(StatusCode::OK, &answer))
        }
        ("/v1/operation", Some(identity)) => Ok(json(
            StatusCode::OK,
            &service.plane.write_operation(caller(identity), read(body).await?).await?,
        )),
        ("/v1/node", Some(identity)) => {
            service.plane.report_node(caller(identity), read(body).await?).await?;
            Ok(empty())
        }
        ("/v1/secret", Some(identity)) => {
            Ok(json(StatusCode::OK, &service.plane.secret(caller(identity), read(body).await?).await?))
        }
        (_, Some(identity)) => {
            service.report(identity, read(body).await?, now).await?;
            Ok(empty())
        }
        (_, None) => {
            refused(AgentRefusal::NoClientCertificate, "this path needs the certificate of an enrollment")
        }
    }
}

/// Checks that the certificate has not expired. The handshake checked it once, and a kept connection may outlive it.
fn check_validity(identity: &Identity, now: Timestamp) -> Result<(), Refused> {
    if now <= identity.not_after {
        return Ok(());
    }
    let message = format!("the certificate expired at {}; boot the host again", identity.not_after);
    refused(AgentRefusal::CertificateExpired, message)
}

async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Refused> {
    read_up_to(MAX_BODY, body).await
}

async fn read_up_to<T: DeserializeOwned>(bytes: usize, body: Incoming) -> Result<T, Refused> {
    let collected = tokio::time::timeout(REQUEST_TIMEOUT, Limited::new(body, bytes).collect()).await;
    let bytes = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let message = format!("the body is larger than {} KiB", bytes >> 10);
            return refused(AgentRefusal::BodyTooLarge, message);
        }
        Ok(Err(_)) => return refused(AgentRefusal::InvalidBody, "the body is incomplete"),
        Err(_) => return refused(AgentRefusal::BodyTooSlow, "the body did not arrive in time"),
    };
    // The text of an invalid body may contain a token, so only the position of the error is reported.
    serde_json::from_slice(&bytes).or_else(|error| {
        let message = format!("the body is invalid: line {}, column {}", error.line(), error.column());
        refused(AgentRefusal::InvalidBody, message)
    })
}

fn empty() -> Answer {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    // Plain data with text keys: it always has a JSON form.
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(bytes.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// HTTP status of a refusal. The table has valid codes only.
fn status(reason: AgentRefusal) -> StatusCode {
    StatusCode::from_u16(reason.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
