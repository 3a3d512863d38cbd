//! The sockets of simulated BMCs: HTTPS and UDP, and the faults that lie in whether, when and how something is answered.
//!
//! A task for each socket, none for a machine, no thread for anybody.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rand::RngExt;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_rustls::TlsAcceptor;

use super::redfish::{Call, Reply};
use super::rmcp::Rmcp;
use super::service::Bmc;

/// Delay after an error of a socket.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Size of the receive buffer in bytes: more than the longest datagram of IPMI.
const DATAGRAM_BYTES: usize = 1024;

/// Answers Redfish for as long as the simulator runs.
pub(super) async fn tcp(bmc: Arc<Bmc>, mut listener: TcpListener) {
    let mut opened = bmc.opened.subscribe();
    // Shut: what tokio knows of the old socket stays "closed", and asking it again when it listens would never end.
    let mut shut = false;
    loop {
        tokio::select! {
            biased;
            changed = opened.changed() => match bmc.listener() {
                Ok(again) if changed.is_ok() => (listener, shut) = (again, false),
                Ok(_) | Err(_) => return,
            },
            accepted = listener.accept(), if !shut => match accepted {
                Ok((stream, _)) => {
                    bmc.count(|counters| counters.connections += 1);
                    tokio::spawn(connection(Arc::clone(&bmc), stream));
                }
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => shut = true,
                Err(_) => tokio::time::sleep(RETRY_DELAY).await,
            },
        }
    }
}

async fn connection(bmc: Arc<Bmc>, stream: TcpStream) {
    if bmc.faults().half_open {
        return keep(stream).await;
    }
    let Ok(stream) = TlsAcceptor::from(bmc.tls()).accept(stream).await else { return };
    let service = service_fn(|request| answer(request, Arc::clone(&bmc)));
    // An error of the connection is the client's.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Says nothing until the peer goes away.
async fn keep(mut stream: TcpStream) {
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
}

async fn answer(request: Request<Incoming>, bmc: Arc<Bmc>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    if bmc.faults().is_silent() {
        return std::future::pending().await;
    }
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let call = Call {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        if_match: header("if-match"),
        token: header("x-auth-token"),
        basic: header("authorization").as_deref().and_then(basic),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    let reply =
        if bmc.blocks { tokio::task::block_in_place(|| bmc.redfish(&call)) } else { bmc.redfish(&call) };
    let pending = Pending::new(&bmc);
    pause(bmc.latency()).await;
    drop(pending);
    let faults = bmc.faults();
    let is_power = call.method == "POST" && call.path.contains("/Actions/");
    if faults.is_silent() || (is_power && faults.answers_lost) {
        return std::future::pending().await;
    }
    Ok(response(reply, faults.wrong_json))
}

/// Guard that counts a request as pending until it is dropped.
struct Pending<'b>(&'b Bmc);

impl<'b> Pending<'b> {
    fn new(bmc: &'b Bmc) -> Self {
        bmc.count(|counters| {
            counters.pending += 1;
            counters.max_pending = counters.max_pending.max(counters.pending);
        });
        Self(bmc)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.count(|counters| counters.pending -= 1);
    }
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

fn basic(value: &str) -> Option<(String, String)> {
    let encoded = value.strip_prefix("Basic ")?;
    let text = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

fn response(reply: Reply, half: bool) -> Response<Full<Bytes>> {
    let Reply { status, headers, mut body } = reply;
    if half {
        // Documents are ASCII.
        body.truncate(body.len() / 2);
    }
    let mut response = Response::new(Full::from(body));
    if let Ok(status) = hyper::StatusCode::from_u16(status) {
        *response.status_mut() = status;
    }
    let json = ("content-type", "application/json".to_owned());
    for (name, value) in headers.into_iter().chain([json, ("odata-version", "4.0".to_owned())]) {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Answers RMCP+ for as long as the simulator runs.
pub(super) async fn udp(bmc: Arc<Bmc>, socket: UdpSocket, mut rmcp: Rmcp) {
    let socket = Arc::new(socket);
    loop {
        if socket.readable().await.is_err() {
            pause(RETRY_DELAY).await;
        }
        let Some((datagram, peer)) = take(&socket) else { continue };
        let faults = bmc.faults();
        let lost = || rand::rng().random_range(0..100) < faults.loss_percent;
        if faults.is_silent() || lost() {
            continue;
        }
        let answer = if bmc.blocks {
            tokio::task::block_in_place(|| rmcp.receive(&bmc, peer, &datagram))
        } else {
            rmcp.receive(&bmc, peer, &datagram)
        };
        let Some(answer) = answer.filter(|_| !lost()) else { continue };
        let latency = bmc.latency();
        if latency.is_zero() {
            let _ = socket.try_send_to(&answer, peer);
            continue;
        }
        let socket = Arc::clone(&socket);
        tokio::spawn(async move {
            tokio::time::sleep(latency).await;
            let _ = socket.try_send_to(&answer, peer);
        });
    }
}

/// A datagram, if there is one; thousands of sockets wait without a buffer.
fn take(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut buffer = [0; DATAGRAM_BYTES];
    let (length, peer) = socket.try_recv_from(&mut buffer).ok()?;
    Some((buffer.get(..length)?.to_vec(), peer))
}
