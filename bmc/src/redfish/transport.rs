//! One HTTP request to a BMC and its whole answer: to the address that was checked and no other, within the deadline,
//! bounded in size. What a status means is `login`'s.
//!
//! Caller: `login`.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{
    ACCEPT, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE,
};
use reqwest::{Client, Method, Response, StatusCode, Url};
use rustls::ClientConfig;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};

use super::document::is_path;
use crate::address::{Host, Scheme};
use crate::error::{BmcError, printable};
use crate::model::{Credentials, Deadlines};
use crate::resolve::Checked;
use crate::tls::{self, Refusal, Trust, Witness};

/// Largest body that is taken, in bytes; a system of a large server has some 30 KiB.
const LARGEST_BODY: usize = 256 << 10;
/// Largest page of a log, in bytes.
const LARGEST_PAGE: usize = 1 << 20;
/// Maximum idle time of a connection: a BMC has few connections and closes idle ones silently; each one costs memory,
/// and while a change is pending the next request follows after 2 s.
const MAX_IDLE_TIME: Duration = Duration::from_secs(4);
/// Redirects that are followed; iLO 5 before 1.40 sends one to the same path with a slash.
const MOST_REDIRECTS: usize = 3;

/// Authorization of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Authorization<'a> {
    Anonymous,
    Basic(&'a Credentials),
    Token(&'a SecretString),
}

/// A request.
#[derive(Clone)]
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) body: Option<Bytes>,
    pub(crate) if_match: Option<String>,
    /// Largest answer that is taken, in bytes.
    largest: usize,
    /// True if a failure must record whether the request was sent, although it changes nothing.
    shows: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn new(method: Method, path: &'a str) -> Self {
        Self { method, path, body: None, if_match: None, largest: LARGEST_BODY, shows: false }
    }

    /// Reads what may be longer: a page of a log.
    pub(crate) fn page(path: &'a str) -> Self {
        Self { largest: LARGEST_PAGE, ..Self::new(Method::GET, path) }
    }

    pub(crate) fn json(mut self, body: &serde_json::Value) -> Self {
        self.body = Some(body.to_string().into());
        self
    }

    /// A body that is overwritten when it was sent.
    pub(crate) fn secret(mut self, body: Zeroizing<Vec<u8>>) -> Self {
        self.body = Some(Bytes::from_owner(body));
        self
    }

    /// Makes failures record whether the request was sent: it contains a password that is not proven yet.
    pub(crate) fn showing(mut self) -> Self {
        self.shows = true;
        self
    }

    fn tells(&self) -> bool {
        self.shows || self.method != Method::GET
    }

    /// `GET /redfish/v1/Systems/1`.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// Path of the answer, after redirects.
    pub(crate) path: String,
    pub(crate) etag: Option<String>,
    /// A path of this server.
    pub(crate) location: Option<String>,
    pub(crate) token: Option<SecretString>,
    pub(crate) retry_after: Option<Duration>,
    /// True if a 401 requests user name and password.
    pub(crate) wants_basic: bool,
    pub(crate) body: Vec<u8>,
}

/// The way to a BMC. Its clones share one client.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    way: Arc<Way>,
    base: Url,
    /// Host and port, for messages.
    pub(crate) address: String,
    pub(crate) witness: Witness,
    pub(crate) deadlines: Deadlines,
}

/// Parameters of HTTP clients, and the present client: with its connection it uses some 40 KiB, which would be wasted
/// for thousands of idle BMCs.
#[derive(Debug)]
struct Way {
    /// With what is needed to resume a TLS session.
    tls: ClientConfig,
    /// A name that was looked up.
    name: Option<(String, Vec<SocketAddr>)>,
    connect: Duration,
    client: Mutex<Option<Client>>,
}

impl Way {
    fn client(&self) -> Result<Client, reqwest::Error> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let mut builder = Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .http1_only()
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(MAX_IDLE_TIME)
            .connect_timeout(self.connect)
            .user_agent(concat!("bedplate/", env!("CARGO_PKG_VERSION")));
        if let Some((name, sockets)) = &self.name {
            builder = builder.resolve_to_addrs(name, sockets);
        }
        Ok(client.insert(builder.build()?).clone())
    }
}

impl Transport {
    /// A way to what was checked, and nowhere else.
    pub(crate) fn new(checked: &Checked, trust: &Trust, deadlines: Deadlines) -> Result<Self, BmcError> {
        let address = checked.address();
        let wrong = |problem: String| BmcError::AddressNotAllowed { address: address.to_string(), problem };
        let scheme = match address.scheme {
            Scheme::Https => "https",
            Scheme::Http if *trust == Trust::Insecure => "http",
            Scheme::Http => {
                let problem =
                    "http:// sends the password unencrypted; use https:// or bmc.redfish.tls.mode Insecure";
                return Err(wrong(problem.to_owned()));
            }
            Scheme::Rmcp => return Err(wrong("it is an IPMI address".to_owned())),
        };
        let witness = Witness::default();
        let way = Arc::new(Way {
            tls: tls::client_config(trust, &witness).map_err(wrong)?,
            name: match &address.host {
                Host::Name(name) => Some((name.clone(), checked.sockets().to_vec())),
                Host::Ip(_) => None,
            },
            connect: deadlines.connect,
            client: Mutex::default(),
        });
        let base = Url::parse(&format!("{scheme}://{address}/")).map_err(|e| wrong(e.to_string()))?;
        Ok(Self { way, base, address: address.to_string(), witness, deadlines })
    }

    /// Closes the connection if nothing is asked on it; the next request opens another.
    pub(crate) fn rest(&self) {
        self.way.client.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Sends a request and takes the whole answer in.
    pub(crate) async fn send(
        &self,
        request: &Request<'_>,
        authorization: Authorization<'_>,
    ) -> Result<Answer, BmcError> {
        let after = self.deadlines.request;
        match tokio::time::timeout(after, self.send_following(request, authorization)).await {
            Ok(result) => result,
            Err(_) => Err(BmcError::TimedOut {
                address: self.address.clone(),
                what: request.name(),
                after,
                sent: request.tells(),
            }),
        }
    }

    async fn send_following(
        &self,
        request: &Request<'_>,
        authorization: Authorization<'_>,
    ) -> Result<Answer, BmcError> {
        let changes = request.method != Method::GET;
        let mut path = request.path.to_owned();
        for hop in 0..=MOST_REDIRECTS {
            // A redirect does not prove that nothing was done.
            let after = |error: BmcError| if hop > 0 && changes { error.with_sent(true) } else { error };
            let answer = self.send_once(request, &path, authorization).await.map_err(after)?;
            if !answer.status().is_redirection() {
                return self.take(request, answer, path).await;
            }
            let next = self.redirected(request, &path, &answer);
            path = next.map_err(|error| error.with_sent(changes))?;
        }
        Err(self.senseless(request.path, "the redirects form a loop").with_sent(changes))
    }

    async fn send_once(
        &self,
        request: &Request<'_>,
        path: &str,
        authorization: Authorization<'_>,
    ) -> Result<Response, BmcError> {
        let url = self.base.join(path).ok().filter(|url| is_path(path) && url.origin() == self.base.origin());
        let url = url.ok_or_else(|| self.senseless(path, "the URL is not on this BMC"))?;
        let client = self.way.client().map_err(|error| self.failed(request, error).with_sent(false))?;
        let mut built = client.request(request.method.clone(), url);
        built = built.header(ACCEPT, "application/json").header("OData-Version", "4.0");
        if let Some(body) = &request.body {
            built = built.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        if let Some(tag) = request.if_match.as_deref().and_then(|tag| HeaderValue::from_str(tag).ok()) {
            built = built.header(IF_MATCH, tag);
        }
        built = match authorization {
            Authorization::Anonymous => built,
            Authorization::Basic(who) => built.basic_auth(&who.username, Some(who.password.expose_secret())),
            Authorization::Token(token) => {
                let mut value = HeaderValue::from_str(token.expose_secret())
                    .map_err(|_| self.senseless(path, "the session token is invalid"))?;
                value.set_sensitive(true);
                built.header("X-Auth-Token", value)
            }
        };
        self.witness.forget_refusal();
        built.send().await.map_err(|error| self.failed(request, error))
    }

    /// Returns the target of a redirect, if it is on this server and the method may be repeated.
    fn redirected(&self, request: &Request<'_>, path: &str, answer: &Response) -> Result<String, BmcError> {
        let place = answer.headers().get(LOCATION).and_then(|h| h.to_str().ok());
        let url = place.and_then(|place| self.base.join(path).ok()?.join(place).ok());
        let url = url.ok_or_else(|| self.senseless(path, "the redirect has no valid URL"))?;
        if url.origin() != self.base.origin() {
            let host = printable(url.host_str().unwrap_or_default());
            return Err(
                self.senseless(path, &format!("the redirect to {host} leaves this BMC and is not followed"))
            );
        }
        let repeats =
            matches!(answer.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        if request.method != Method::GET && !repeats {
            return Err(self.senseless(path, "a request other than GET is redirected"));
        }
        Ok(path_of(&url))
    }

    async fn take(
        &self,
        request: &Request<'_>,
        mut answer: Response,
        path: String,
    ) -> Result<Answer, BmcError> {
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| self.failed(request, error))? {
            if body.len() + chunk.len() > request.largest && request.method != Method::GET {
                // The request was carried out; its body is not needed.
                break;
            }
            if body.len() + chunk.len() > request.largest {
                return Err(self
                    .senseless(&path, &format!("the answer is larger than {} KiB", request.largest >> 10)));
            }
            body.extend_from_slice(&chunk);
        }
        let headers = answer.headers();
        let text = |name: &str| headers.get(name).and_then(|h| h.to_str().ok()).map(str::to_owned);
        // Behind address translation a BMC reports its own address: only the path counts.
        let location = text(LOCATION.as_str())
            .and_then(|place| self.base.join(&place).ok())
            .map(|url| path_of(&url))
            .filter(|path| is_path(path));
        let retry_after = text(RETRY_AFTER.as_str()).and_then(|t| t.parse().ok()).map(Duration::from_secs);
        Ok(Answer {
            status: answer.status(),
            etag: text(ETAG.as_str()),
            location,
            token: text("x-auth-token").filter(|token| !token.is_empty()).map(SecretString::from),
            retry_after,
            wants_basic: wants_basic(headers),
            body,
            path,
        })
    }

    fn senseless(&self, path: &str, problem: &str) -> BmcError {
        BmcError::Protocol { path: printable(path), problem: problem.to_owned(), sent: false }
    }

    /// Classifies a failed exchange: the certificate, the connection, or the answer.
    fn failed(&self, request: &Request<'_>, error: reqwest::Error) -> BmcError {
        let address = self.address.clone();
        let seen = self.witness.seen();
        match (seen.refusal, seen.pin) {
            (Some(Refusal::Changed), Some(seen)) => return BmcError::CertificateChanged { address, seen },
            (Some(Refusal::Changed), None) => {
                let problem = "its certificate cannot be read".to_owned();
                return BmcError::CertificateUntrusted { address, seen: None, problem };
            }
            (Some(Refusal::NotTrusted(problem)), seen) => {
                return BmcError::CertificateUntrusted { address, seen, problem: printable(&problem) };
            }
            (None, _) => {}
        }
        let sent = !error.is_connect() && request.tells();
        let error = error.without_url();
        let mut problem = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            problem = format!("{problem}: {cause}");
            source = cause.source();
        }
        BmcError::Unreachable { address, problem: printable(&problem), sent }
    }
}

fn path_of(url: &Url) -> String {
    url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()))
}

fn wants_basic(headers: &HeaderMap) -> bool {
    let schemes = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|h| h.to_str().ok());
    schemes
        .into_iter()
        .any(|scheme| scheme.trim_start().get(..5).is_some_and(|s| s.eq_ignore_ascii_case("basic")))
}
