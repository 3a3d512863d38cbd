//! From a request to its answer: which resource, which method, or which refusal.
//!
//! Not here: sockets and limits (`serve`). Called by `serve` and by tests in process.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bedplate_api::id::{BootId, SiteName};
use bedplate_api::reason::refusal::BootRefusal;
use bedplate_api::wire::Refusal;
use bedplate_process::listen::socket::Completions;
use bedplate_process::token_bucket::Allowances;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use jiff::Timestamp;

use super::body::Payload;
use super::content::ImagePart;
use super::counters::Counters;
use super::leased::{self, Leases};
use super::path::{self, BootPath, What};
use super::queue::Queue;
use super::streams::Streams;
use super::{content, host, seed, stage};
use crate::boot::Boots;
use crate::images::Images;
use crate::machines::Machines;
use crate::netboot::dhcp::Urls;
use crate::netboot::loaders::Loaders;
use crate::netboot::state::Present;

/// Dependencies of the routes.
#[derive(Clone)]
pub struct Routes {
    /// The index of Machines.
    pub machines: Machines,
    /// The boots.
    pub boots: Boots,
    /// State that the policy reads.
    pub present: Arc<Present>,
    /// The images.
    pub images: Images,
    /// The loaders.
    pub loaders: Arc<ArcSwap<Loaders>>,
    /// URLs of this listener.
    pub urls: Urls,
    /// URLs of the TLS listener, for the seed.
    pub agent_urls: Urls,
    /// The site, for the seed.
    pub site: SiteName,
    /// pxed's certificate authority (PEM), for the seed.
    pub ca_pem: Arc<str>,
    /// The fair queue of root images.
    pub queue: Arc<Queue>,
    /// Root images on their way to each boot.
    pub streams: Arc<Streams>,
    /// Request counters.
    pub counters: Arc<Counters>,
    /// Number of reports that each boot may still send.
    pub reports: Arc<Allowances<BootId>>,
    /// Leases of the machines that boot.
    pub leases: Leases,
}

/// The other end of a connection.
#[derive(Clone)]
pub struct Peer {
    /// The address: for the log, the bar of `leased`, and for limits that protect other clients. It is not an identity.
    pub address: IpAddr,
    /// Receivers of the completion of a body.
    pub completions: Arc<Completions>,
}

/// The answer to a request.
pub async fn answer<B>(routes: &Routes, peer: &Peer, request: Request<B>) -> Response<Payload>
where
    B: hyper::body::Body + Send,
    B::Data: Send,
    B::Error: std::fmt::Display,
{
    let (parts, body) = request.into_parts();
    let found = path::parse(parts.uri.path());
    let response = match host::check(parts.version, &parts.headers) {
        Ok(()) => respond(routes, peer, found, &parts, body).await,
        Err(message) => bad_host(message),
    };
    routes.counters.answered(found.map(|found| found.what).as_ref(), response.status());
    response
}

async fn respond<B>(
    routes: &Routes,
    peer: &Peer,
    found: Option<BootPath<'_>>,
    parts: &Parts,
    body: B,
) -> Response<Payload>
where
    B: hyper::body::Body + Send,
    B::Data: Send,
    B::Error: std::fmt::Display,
{
    let now = Timestamp::now();
    let Some(found) = found else {
        return refuse(BootRefusal::UnknownPath, "this path does not exist");
    };
    let allowed: &[Method] = match found.what {
        What::Stage => &[Method::POST],
        What::Seed => &[Method::GET],
        What::Loader(_) | What::Script | What::Kernel | What::Initrd | What::Rootfs => {
            &[Method::GET, Method::HEAD]
        }
    };
    if !allowed.contains(&parts.method) {
        return method_not_allowed(allowed);
    }
    let Some(boot) = routes.boots.get(found.id, now) else {
        tracing::debug!(boot = %found.id.public_id(), peer = %peer.address, "request for an unknown boot");
        return refuse(
            BootRefusal::UnknownBoot,
            "this boot does not exist or has expired; a new DHCP transaction opens a new boot",
        );
    };
    if let Some(refusal) = leased::bar(routes, &boot.record(), &found.what, peer) {
        return refusal;
    }
    let head = parts.method == Method::HEAD;
    let asked = content::Asked { headers: &parts.headers, head, peer, now };
    match found.what {
        What::Loader(file) => content::loader(routes, &boot, file, &asked),
        What::Script => content::script(routes, &boot, &asked),
        What::Kernel => content::blob(routes, &boot, ImagePart::Kernel, &asked).await,
        What::Initrd => content::blob(routes, &boot, ImagePart::Initrd, &asked).await,
        What::Rootfs => content::blob(routes, &boot, ImagePart::Rootfs, &asked).await,
        What::Seed => seed::seed(routes, &boot, peer, now).await,
        What::Stage => stage::report(routes, &boot.record(), body, now).await,
    }
}

/// Ends the connection: such a client's next bytes need not be a request (RFC 9112, 11.2).
fn bad_host(message: &str) -> Response<Payload> {
    let mut response = refuse(BootRefusal::InvalidHost, message);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn method_not_allowed(allowed: &[Method]) -> Response<Payload> {
    let names = allowed.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
    let mut response = refuse(BootRefusal::MethodNotAllowed, &format!("use {names} for this path"));
    if let Ok(value) = HeaderValue::from_str(&names) {
        response.headers_mut().insert(ALLOW, value);
    }
    response
}

/// A refusal for now.
pub(super) fn refuse_for(seconds: u64, reason: BootRefusal, message: &str) -> Response<Payload> {
    let mut response = refuse(reason, message);
    response.headers_mut().insert(RETRY_AFTER, seconds.into());
    response
}

/// A refusal with its body.
pub(super) fn refuse(reason: BootRefusal, message: &str) -> Response<Payload> {
    let refusal = Refusal { reason: reason.as_str().to_owned(), message: message.to_owned() };
    // Two texts always have a JSON form.
    let bytes = serde_json::to_vec(&refusal).unwrap_or_default();
    // The table has valid codes only; its test checks them.
    let status = StatusCode::from_u16(reason.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = whole(status, "application/json", bytes.into());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// An answer from memory.
pub(super) fn whole(
    status: StatusCode,
    content_type: &'static str,
    bytes: bytes::Bytes,
) -> Response<Payload> {
    let length = bytes.len() as u64;
    let mut response = Response::new(Payload::memory(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length.into());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
