//! Small scripted Redfish service: sessions, one or more systems, ETags, and above all a hook that can replace any
//! answer. Records every request. With a self-signed certificate on loopback.
//!
//! Not a simulator of a machine; only the answers that a client can get. Callers: the tests of this crate.

#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bedplate_api::id::Digest;
use bedplate_api::machine::BmcProtocol;
use bedplate_bmc::address::{Address, Host, Reach};
use bedplate_bmc::redfish::Redfish;
use bedplate_bmc::resolve::Checked;
use bedplate_bmc::tls::{Trust, pin_of};
use bedplate_bmc::{BmcError, Credentials, Deadlines};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub(crate) const SYSTEM: &str = "/redfish/v1/Systems/1";
pub(crate) const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
pub(crate) const RESET: &str = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset";
pub(crate) const PASSWORD: &str = "c0rrect-horse";

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) if_match: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) basic: Option<String>,
    pub(crate) body: Value,
}

impl Seen {
    pub(crate) fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path == path
    }
}

/// Answer of the service.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Is(u16, Vec<(&'static str, String)>, String),
    /// Nothing, ever.
    Hang,
    /// The connection is closed.
    Close,
}

pub(crate) fn json_reply(status: u16, body: &Value) -> Reply {
    Reply::Is(status, vec![("content-type", "application/json".to_owned())], body.to_string())
}

/// An error with a message, as the standard has it.
pub(crate) fn error_reply(status: u16, id: &str, message: &str) -> Reply {
    let info = json!([{ "MessageId": id, "Message": message }]);
    json_reply(status, &json!({"error": {"code": id, "@Message.ExtendedInfo": info}}))
}

type Hook = Box<dyn FnMut(&Seen, &mut State) -> Option<Reply> + Send>;

/// State of the service.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) resources: BTreeMap<String, Value>,
    pub(crate) etags: BTreeMap<String, String>,
    pub(crate) tokens: Vec<String>,
    pub(crate) logins: usize,
    pub(crate) seen: Vec<Seen>,
    /// Counts connections that were accepted, also those whose handshake failed.
    pub(crate) connections: usize,
    /// Connections whose TLS session resumed an earlier one.
    pub(crate) resumed: usize,
    /// Open connections.
    pub(crate) open: usize,
}

impl State {
    pub(crate) fn count(&self, method: &str, path: &str) -> usize {
        self.seen.iter().filter(|seen| seen.is(method, path)).count()
    }

    fn knows(&self, seen: &Seen) -> bool {
        let basic = seen.basic.as_deref() == Some(&basic("admin", PASSWORD));
        basic || seen.token.as_ref().is_some_and(|token| self.tokens.contains(token))
    }

    fn answer(&mut self, seen: &Seen) -> Reply {
        let root = seen.path == "/redfish/v1/";
        match seen.method.as_str() {
            "POST" if seen.path == SESSIONS && self.resources.contains_key(SESSIONS) => {
                self.log_in(&seen.body)
            }
            _ if !root && !self.knows(seen) => {
                error_reply(401, "Base.1.8.NoValidSession", "No valid session.")
            }
            "DELETE" if seen.path.starts_with(SESSIONS) => {
                self.tokens.retain(|token| !seen.path.ends_with(token));
                Reply::Is(204, vec![], String::new())
            }
            "POST" if seen.path == RESET => {
                let on = !matches!(seen.body["ResetType"].as_str(), Some("ForceOff" | "GracefulShutdown"));
                let system = self.resources.get_mut(SYSTEM).unwrap();
                system["PowerState"] = json!(if on { "On" } else { "Off" });
                Reply::Is(204, vec![], String::new())
            }
            "PATCH" => self.patch(seen),
            "GET" => self.get(&seen.path),
            _ => error_reply(405, "Base.1.8.OperationNotAllowed", "Not allowed."),
        }
    }

    fn log_in(&mut self, body: &Value) -> Reply {
        self.logins += 1;
        if body != &json!({"UserName": "admin", "Password": PASSWORD}) {
            return error_reply(401, "Base.1.8.ResourceAtUriUnauthorized", "Invalid user name or password.");
        }
        let token = format!("t{}", self.logins);
        self.tokens.push(token.clone());
        let place = format!("https://bmc.internal.example{SESSIONS}/{token}");
        Reply::Is(201, vec![("x-auth-token", token), ("location", place)], "{}".to_owned())
    }

    fn get(&self, path: &str) -> Reply {
        let Some(value) = self.resources.get(path) else {
            return error_reply(404, "Base.1.8.ResourceMissingAtURI", "Not there.");
        };
        let etag = self.etags.get(path).map(|tag| ("etag", tag.clone()));
        Reply::Is(200, etag.into_iter().collect(), value.to_string())
    }

    fn patch(&mut self, seen: &Seen) -> Reply {
        if let Some(tag) = self.etags.get(&seen.path)
            && seen.if_match.as_ref() != Some(tag)
        {
            return error_reply(412, "Base.1.8.PreconditionFailed", "The ETag did not match.");
        }
        let resource = self.resources.get_mut(&seen.path).unwrap();
        for (name, value) in seen.body["Boot"].as_object().unwrap() {
            resource["Boot"][name] = value.clone();
        }
        Reply::Is(204, vec![], String::new())
    }
}

/// A running service; it ends with the test's runtime.
pub(crate) struct Service {
    pub(crate) socket: SocketAddr,
    pub(crate) pin: Digest,
    state: Arc<Mutex<State>>,
    hook: Arc<Mutex<Option<Hook>>>,
    tls: Arc<Mutex<TlsAcceptor>>,
}

/// A certificate for an odd name, and its acceptor.
fn acceptor() -> (TlsAcceptor, Digest) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost.localdomain".to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = certificate.self_signed(&key).unwrap().der().clone();
    let pin = pin_of(&certificate).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    (TlsAcceptor::from(Arc::new(config.with_single_cert(vec![certificate], key).unwrap())), pin)
}

/// Listens on a port that no service of this process had before. A login that proved nothing is remembered by address.
async fn listen() -> TcpListener {
    static USED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if USED.lock().unwrap().insert(listener.local_addr().unwrap().port()) {
            return listener;
        }
    }
}

impl Service {
    /// One system, with sessions.
    pub(crate) async fn start() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let listener = listen().await;
        let (tls, pin) = acceptor();
        let service = Self {
            socket: listener.local_addr().unwrap(),
            pin,
            state: Arc::new(Mutex::new(State { resources: resources(), ..State::default() })),
            hook: Arc::default(),
            tls: Arc::new(Mutex::new(tls)),
        };
        let (state, hook, tls) = (service.state.clone(), service.hook.clone(), service.tls.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                state.lock().unwrap().connections += 1;
                let tls = tls.lock().unwrap().clone();
                let (state, hook) = (state.clone(), hook.clone());
                tokio::spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let kind = stream.get_ref().1.handshake_kind();
                    {
                        let mut state = state.lock().unwrap();
                        state.resumed += usize::from(kind == Some(rustls::HandshakeKind::Resumed));
                        state.open += 1;
                    }
                    let answer = service_fn(|request| answer(request, state.clone(), hook.clone()));
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
                    state.lock().unwrap().open -= 1;
                });
            }
        });
        service
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Answers instead of the service where it gives something.
    pub(crate) fn hook(&self, hook: impl FnMut(&Seen, &mut State) -> Option<Reply> + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    /// New connections are shown another certificate; its pin.
    pub(crate) fn change_certificate(&self) -> Digest {
        let (tls, pin) = acceptor();
        *self.tls.lock().unwrap() = tls;
        pin
    }

    pub(crate) fn set(&self, path: &str, value: Value) {
        self.state().resources.insert(path.to_owned(), value);
    }

    pub(crate) fn client(&self) -> Redfish {
        self.client_with(PASSWORD, None, &Trust::Pin(vec![self.pin]), quick()).unwrap()
    }

    pub(crate) fn client_with(
        &self,
        password: &str,
        system: Option<&str>,
        trust: &Trust,
        deadlines: Deadlines,
    ) -> Result<Redfish, BmcError> {
        let address = Address::parse(&self.socket.to_string(), BmcProtocol::Redfish)?;
        let credentials = Credentials { username: "admin".to_owned(), password: password.into() };
        Redfish::new(&checked(&address), trust, credentials, system.map(str::to_owned), deadlines)
    }
}

/// An address on loopback.
pub(crate) fn checked(address: &Address) -> Checked {
    let reach = Reach { allowed: vec!["127.0.0.0/8".parse().unwrap()], forbidden: Vec::new() };
    let Host::Ip(ip) = address.host else { unreachable!("{address}") };
    Checked::of_ip(ip, address, &reach).unwrap()
}

/// Deadlines that no good answer on loopback misses.
pub(crate) fn quick() -> Deadlines {
    let seconds = std::time::Duration::from_secs;
    Deadlines { connect: seconds(5), request: seconds(10), call: seconds(20) }
}

async fn answer(
    request: Request<hyper::body::Incoming>,
    state: Arc<Mutex<State>>,
    hook: Arc<Mutex<Option<Hook>>>,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let header = |name: &str| request.headers().get(name).map(|h| h.to_str().unwrap().to_owned());
    let mut seen = Seen {
        method: request.method().to_string(),
        path: request.uri().to_string(),
        if_match: header("if-match"),
        token: header("x-auth-token"),
        basic: header("authorization"),
        body: Value::Null,
    };
    let body = request.into_body().collect().await.unwrap().to_bytes();
    seen.body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let reply = {
        let mut state = state.lock().unwrap();
        state.seen.push(seen.clone());
        let hooked = hook.lock().unwrap().as_mut().and_then(|hook| hook(&seen, &mut state));
        hooked.unwrap_or_else(|| state.answer(&seen))
    };
    match reply {
        Reply::Hang => std::future::pending().await,
        Reply::Close => Err(std::io::Error::other("closed by the test")),
        Reply::Is(status, headers, body) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            Ok(response.body(Full::from(body)).unwrap())
        }
    }
}

pub(crate) fn basic(user: &str, password: &str) -> String {
    use base64::Engine;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}

/// A service root, one system, its BMC and a log.
fn resources() -> BTreeMap<String, Value> {
    let link = |path: &str| json!({ "@odata.id": path });
    let members = |paths: &[&str]| json!({"Members": paths.iter().map(|p| link(p)).collect::<Vec<_>>()});
    let root = json!({
        "RedfishVersion": "1.15.0", "Vendor": "Contoso", "Systems": link("/redfish/v1/Systems"),
        "Managers": link("/redfish/v1/Managers"), "SessionService": link("/redfish/v1/SessionService"),
        "Links": {"Sessions": link(SESSIONS)},
    });
    let system = json!({
        "Id": "1", "Manufacturer": "Contoso", "Model": "C-1", "SerialNumber": "S1", "PowerState": "Off",
        "Status": {"Health": "OK", "HealthRollup": "OK"},
        "Boot": {"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None", "BootSourceOverrideMode": "UEFI",
            "BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe", "UefiHttp", "Hdd"]},
        "Actions": {"#ComputerSystem.Reset": {"target": RESET,
            "ResetType@Redfish.AllowableValues": ["On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle"]}},
        "Links": {"ManagedBy": [link("/redfish/v1/Managers/1")]},
        "LogServices": link("/redfish/v1/Systems/1/LogServices"),
    });
    [
        ("/redfish/v1/", root),
        (SESSIONS, members(&[])),
        ("/redfish/v1/Systems", members(&[SYSTEM])),
        (SYSTEM, system),
        ("/redfish/v1/Managers", members(&["/redfish/v1/Managers/1"])),
        (
            "/redfish/v1/Managers/1",
            json!({"FirmwareVersion": "2.1", "Model": "BMC-1", "Status": {"Health": "OK"}}),
        ),
        ("/redfish/v1/Systems/1/LogServices", members(&["/redfish/v1/Systems/1/LogServices/Sel"])),
        (
            "/redfish/v1/Systems/1/LogServices/Sel",
            json!({"Entries": link("/redfish/v1/Systems/1/LogServices/Sel/Entries")}),
        ),
        (
            "/redfish/v1/Systems/1/LogServices/Sel/Entries",
            json!({"Members": [
            {"Created": "2026-11-20T10:00:00Z", "Severity": "OK", "Message": "Powered on."},
            {"Created": "2026-11-21T10:00:00Z", "Severity": "Critical", "Message": "Fan 1 failed."}]}),
        ),
    ]
    .map(|(path, value)| (path.to_owned(), value))
    .into()
}
