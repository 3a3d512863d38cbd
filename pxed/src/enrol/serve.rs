//! The TLS listener for agents: `/v1/enrol`, `/v1/renew`, `/v1/report`, and without a cluster `/v1/watch`, `/v1/operation`, `/v1/node`, `/v1/secret`. Bounds handshakes and bodies; accepting and its limits
//! are `http::listen`'s.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::wire::{Refusal, WatchResponse};
use bedplate_process::exit::chain;
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

use super::counters::Reason;
use super::identity::{self, Identity};
use super::pace;
use super::service::{Refused, Service, refused};
use super::tls::Configurations;
use crate::counter::Label as _;
use crate::http::host;
use crate::http::listen::{Accepted, Cut, Listening, converse, listen};
use crate::http::socket::Guarded;

/// Bytes of a body: facts of a machine with hundreds of disks.
const MAX_BODY: usize = 1 << 20;

/// For the handshake, and for a body.
const PATIENCE: Duration = Duration::from_secs(20);

/// What there is.
const PATHS: [&str; 7] =
    ["/v1/enrol", "/v1/renew", "/v1/report", "/v1/watch", "/v1/operation", "/v1/node", "/v1/secret"];

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
        let (peer, counters) = (accepted.peer, counters.clone());
        async move {
            let stream = tokio::select! {
                () = shutdown.cancelled() => return,
                stream = secure(accepted, &configurations) => match stream {
                    Some(stream) => stream,
                    None => return counters.cut.one(Cut::NoTls),
                },
            };
            let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let identity = Arc::new(leaf.and_then(|leaf| identity::read(leaf)));
            let ends = shutdown.clone();
            let service = service_fn(move |request| {
                let (service, identity, end) = (service.clone(), identity.clone(), ends.clone());
                async move {
                    let answer = answer(&service, identity.as_ref().as_ref(), request, &end).await;
                    Ok::<_, std::convert::Infallible>(answer)
                }
            });
            converse(stream, service, limits, peer, shutdown).await;
        }
    })
    .await;
}

/// The TLS handshake; `None`: there is no speaking with this client, and the log says why.
async fn secure(
    accepted: Accepted,
    configurations: &Configurations,
) -> Option<TlsStream<Guarded<TcpStream>>> {
    let Accepted { stream, local, peer, .. } = accepted;
    let config = match configurations.get(local.ip().to_canonical(), Timestamp::now()) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(error = chain(&error), "an agent cannot be served");
            return None;
        }
    };
    match tokio::time::timeout(PATIENCE, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "no TLS with an agent");
            None
        }
        Err(_) => {
            tracing::debug!(%peer, "an agent's TLS handshake took too long");
            None
        }
    }
}

async fn answer(
    service: &Service,
    identity: Option<&Identity>,
    request: Request<Incoming>,
    end: &CancellationToken,
) -> Answer {
    decide(service, identity, request, end).await.unwrap_or_else(|Refused { reason, message, after }| {
        service.counters.refusals.one(reason);
        let mut answer = json(reason.status(), &Refusal { reason: reason.word().to_owned(), message });
        if reason == Reason::BadHost {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(after) = after {
            answer.headers_mut().insert(RETRY_AFTER, pace::seconds(after).into());
        }
        answer
    })
}

async fn decide(
    service: &Service,
    identity: Option<&Identity>,
    request: Request<Incoming>,
    end: &CancellationToken,
) -> Result<Answer, Refused> {
    let now = Timestamp::now();
    let (parts, body) = request.into_parts();
    if let Err(message) = host::check(parts.version, &parts.headers) {
        return refused(Reason::BadHost, message);
    }
    let path = parts.uri.path();
    if !PATHS.contains(&path) {
        return refused(Reason::UnknownPath, "there is nothing under this path");
    }
    if parts.method != Method::POST {
        return refused(Reason::MethodNotAllowed, "this resource takes POST");
    }
    if let Some(identity) = identity.filter(|_| path != "/v1/enrol") {
        service.admit(identity, path)?;
    }
    match (path, identity) {
        ("/v1/enrol", _) => Ok(json(StatusCode::OK, &service.enrol(read(body).await?, now).await?)),
        ("/v1/renew", Some(identity)) => {
            Ok(json(StatusCode::OK, &service.renew(identity, read(body).await?, now).await?))
        }
        ("/v1/watch", Some(identity)) => {
            let asked = read(body).await?;
            let told = tokio::select! {
                told = service.watch(identity, asked) => told?,
                // What is asked for comes after a restart.
                () = end.cancelled() => WatchResponse::Same,
            };
            Ok(json(StatusCode::OK, &told))
        }
        ("/v1/operation", Some(identity)) => {
            Ok(json(StatusCode::OK, &service.write_operation(identity, read(body).await?).await?))
        }
        ("/v1/node", Some(identity)) => {
            service.take_node(identity, read(body).await?).await?;
            Ok(empty())
        }
        ("/v1/secret", Some(identity)) => {
            Ok(json(StatusCode::OK, &service.secret(identity, read(body).await?).await?))
        }
        (_, Some(identity)) => {
            service.report(identity, read(body).await?, now).await?;
            Ok(empty())
        }
        (_, None) => {
            refused(Reason::NoClientCertificate, "this needs the certificate that an enrolment gave")
        }
    }
}

async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Refused> {
    let collected = tokio::time::timeout(PATIENCE, Limited::new(body, MAX_BODY).collect()).await;
    let bytes = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            return refused(Reason::BodyTooLarge, "a body has at most 1 MiB");
        }
        Ok(Err(_)) => return refused(Reason::BadBody, "the body did not arrive whole"),
        Err(_) => return refused(Reason::BodyTooSlow, "the body took too long"),
    };
    // The text of a wrong body may hold a token: only where it is wrong is told.
    serde_json::from_slice(&bytes).or_else(|error| {
        let message = format!("not what this takes: line {}, column {}", error.line(), error.column());
        refused(Reason::BadBody, message)
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
