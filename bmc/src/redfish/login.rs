//! Who asks a Redfish service: a session (DSP0266, "Session management") that is opened once, reused, opened once more when
//! it has expired, and deleted at the end; user name and password with every request where there are no sessions.
//!
//! ```text
//!          no SessionService, or its table is full
//! Fresh ------------------------------------------> Basic --401--> Held
//!   | login                                                         ^
//!   +-------> Open --401--> (login again) --401 -------------------+|
//!   +-- 400, 401, 403 to the login ---------------------------------+
//! ```
//! Held stays: a wrong password is tried once, so that no BMC locks anybody out. Who has new credentials makes a new one.
//!
//! Caller: `redfish`.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use tokio::task::JoinHandle;

use super::document::Document;
use super::message::{self, Secrets};
use super::transport::{Answer, Authorization, Request, Transport};
use crate::error::{BmcError, told};
use crate::model::Credentials;

/// The service root (DSP0266).
const ROOT: &str = "/redfish/v1/";
/// Where sessions are by the standard.
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
/// How often something is read before it has failed.
const ATTEMPTS: u32 = 3;
/// Between two attempts, times the number of the attempt.
const PAUSE: Duration = Duration::from_millis(200);
/// A BMC that asks for more patience gets no more.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// How far the login is.
enum Login {
    Fresh,
    Open {
        token: SecretString,
        place: Option<String>,
    },
    /// `proven`: an answer has shown that the password is taken.
    Basic {
        proven: bool,
    },
    Held(String),
}

/// A service, and who asks it.
pub(crate) struct Session {
    pub(crate) transport: Transport,
    credentials: Credentials,
    login: Login,
    /// A login that a dropped call has left behind: awaited by the next, so that no session is lost in the BMC's table.
    pending: Option<JoinHandle<Result<Login, BmcError>>>,
    root: Option<Document>,
}

impl Session {
    pub(crate) fn new(transport: Transport, credentials: Credentials) -> Self {
        Self { transport, credentials, login: Login::Fresh, pending: None, root: None }
    }

    /// The service root, read once.
    pub(crate) async fn root(&mut self) -> Result<Document, BmcError> {
        if let Some(root) = &self.root {
            return Ok(root.clone());
        }
        let request = Request::new(Method::GET, ROOT);
        // The root is for everybody; some services want to know who asks all the same.
        let mut answer = patient(&self.transport, &request, Authorization::Nobody, ATTEMPTS).await?;
        if answer.status == StatusCode::UNAUTHORIZED {
            self.start(answer.wants_basic).await?;
            answer = self.send(&request).await?;
        }
        if answer.status == StatusCode::UNAUTHORIZED {
            return Err(self.hold(&answer).await);
        }
        let root = self.document(&request, answer)?.root();
        self.root = Some(root.clone());
        Ok(root)
    }

    /// Reads a resource.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Document, BmcError> {
        self.read(&Request::new(Method::GET, path)).await
    }

    /// Reads a page of a log, which may be longer than other resources.
    pub(crate) async fn get_page(&mut self, path: &str) -> Result<Document, BmcError> {
        self.read(&Request::page(path)).await
    }

    async fn read(&mut self, request: &Request<'_>) -> Result<Document, BmcError> {
        let answer = self.exchange(request).await?;
        self.document(request, answer)
    }

    fn document(&self, request: &Request<'_>, answer: Answer) -> Result<Document, BmcError> {
        let answer = self.accepted(request, answer)?;
        Document::parse(&answer.path, answer.etag, &answer.body)
    }

    /// Sends a request as whom we are and hands back whatever came. Only a GET is sent again; anything is after a 401,
    /// which says that it was not done.
    pub(crate) async fn exchange(&mut self, request: &Request<'_>) -> Result<Answer, BmcError> {
        self.log_in().await?;
        let answer = self.send(request).await?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        if matches!(self.login, Login::Open { .. }) {
            tracing::debug!(address = %self.transport.address, "session has expired");
            self.login = Login::Fresh;
            self.log_in().await?;
            let answer = self.send(request).await?;
            if answer.status != StatusCode::UNAUTHORIZED {
                return Ok(answer);
            }
        }
        Err(self.hold(&answer).await)
    }

    /// Sends as whom we are. A password that may be wrong is shown once: a BMC may count it also where it answers 5xx.
    async fn send(&mut self, request: &Request<'_>) -> Result<Answer, BmcError> {
        let attempts = if matches!(self.login, Login::Basic { proven: false }) { 1 } else { ATTEMPTS };
        let answer = patient(&self.transport, request, self.authorization(), attempts).await?;
        if let Login::Basic { proven } = &mut self.login {
            *proven |= answer.status.is_success();
        }
        Ok(answer)
    }

    /// No more attempts with these credentials.
    async fn hold(&mut self, answer: &Answer) -> BmcError {
        let problem = message::status_and_ids(answer.status, &answer.body, &self.secrets());
        self.close().await;
        self.login = Login::Held(problem.clone());
        self.not_authenticated(problem)
    }

    /// Ends the session at the BMC. What cannot be ended, the BMC ends by its own time-out.
    pub(crate) async fn close(&mut self) {
        // A refusal that nobody has waited for is held all the same.
        if let Err(error) = self.await_login().await {
            let reason = error.reason();
            tracing::debug!(address = %self.transport.address, %reason, "login that was left behind has failed");
        }
        let Login::Open { token, place } = &self.login else { return };
        if let Some(place) = place {
            let request = Request::new(Method::DELETE, place);
            let result = self.transport.send(&request, Authorization::Token(token)).await;
            if let Err(error) = result {
                // The session's path may be as good as its token.
                let reason = error.reason();
                tracing::debug!(address = %self.transport.address, %reason, "session is left to its time-out");
            }
        }
        self.login = Login::Fresh;
    }

    fn authorization(&self) -> Authorization<'_> {
        match &self.login {
            Login::Open { token, .. } => Authorization::Token(token),
            Login::Basic { .. } => Authorization::Basic(&self.credentials),
            Login::Fresh | Login::Held(_) => Authorization::Nobody,
        }
    }

    fn secrets(&self) -> Secrets {
        let token = match &self.login {
            Login::Open { token, .. } => Some(token),
            Login::Fresh | Login::Basic { .. } | Login::Held(_) => None,
        };
        Secrets::new(&self.credentials, token)
    }

    fn not_authenticated(&self, problem: String) -> BmcError {
        BmcError::AuthenticationFailed { address: self.transport.address.clone(), problem }
    }

    async fn log_in(&mut self) -> Result<(), BmcError> {
        match &self.login {
            Login::Open { .. } | Login::Basic { .. } => return Ok(()),
            Login::Held(problem) => return Err(self.not_authenticated(problem.clone())),
            Login::Fresh => {}
        }
        if self.pending.is_none() {
            let root = self.root().await?;
            // Reading the root may have logged in.
            if !matches!(self.login, Login::Fresh) {
                return Ok(());
            }
            match sessions(&root)? {
                Some(place) => self.open(place),
                None => self.login = Login::Basic { proven: false },
            }
        }
        self.await_login().await
    }

    /// Logs in where the root is not for everybody.
    async fn start(&mut self, basic: bool) -> Result<(), BmcError> {
        match &self.login {
            Login::Fresh if basic => self.login = Login::Basic { proven: false },
            Login::Fresh if self.pending.is_none() => self.open(SESSIONS.to_owned()),
            Login::Fresh | Login::Open { .. } | Login::Basic { .. } | Login::Held(_) => {}
        }
        self.await_login().await
    }

    fn open(&mut self, place: String) {
        self.pending = Some(tokio::spawn(log_in(self.transport.clone(), self.credentials.clone(), place)));
    }

    async fn await_login(&mut self) -> Result<(), BmcError> {
        let Some(pending) = self.pending.as_mut() else { return Ok(()) };
        let result = pending.await;
        self.pending = None;
        match result {
            Ok(Ok(login)) => {
                self.login = login;
                Ok(())
            }
            Ok(Err(error)) => {
                if let BmcError::AuthenticationFailed { problem, .. } = &error {
                    self.login = Login::Held(problem.clone());
                }
                Err(error)
            }
            Err(_) => Err(BmcError::Unreachable {
                address: self.transport.address.clone(),
                problem: "the login was broken off".to_owned(),
                sent: false,
            }),
        }
    }

    /// What the BMC said, unless it repeats a secret.
    fn problem(&self, answer: &Answer) -> String {
        let (status, secrets) = (answer.status, self.secrets());
        if secrets.are_repeated(&answer.body) {
            return message::status_and_ids(status, &answer.body, &secrets);
        }
        let said = message::message(&answer.body);
        said.map_or_else(|| status.to_string(), |said| format!("{}: {said}", status.as_u16()))
    }

    /// Passes success on; every other status becomes an error in the BMC's own words.
    pub(crate) fn accepted(&self, request: &Request<'_>, answer: Answer) -> Result<Answer, BmcError> {
        let status = answer.status;
        if status.is_success() {
            return Ok(answer);
        }
        let problem = self.problem(&answer);
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
            || status == StatusCode::TOO_MANY_REQUESTS
        {
            let problem = format!("it answers {} with {problem}", request.name());
            let sent = request.method != Method::GET;
            return Err(BmcError::Unreachable { address: self.transport.address.clone(), problem, sent });
        }
        let absent = matches!(
            status,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
        );
        if absent && request.method == Method::GET {
            return Err(BmcError::Protocol { path: answer.path, problem, sent: false });
        }
        if absent {
            let hint = format!("it says {problem}").trim_end_matches('.').to_owned();
            return Err(BmcError::NotSupported { what: request.name(), hint });
        }
        let problem = if status == StatusCode::FORBIDDEN {
            format!("{problem} (give the account the privilege to control power and configure boot)")
        } else {
            problem
        };
        let sent = request.method != Method::GET && !says_not_done(status);
        Err(BmcError::Refused { what: request.name(), problem, sent })
    }
}

/// Where sessions are made; `None`: there are none.
fn sessions(root: &Document) -> Result<Option<String>, BmcError> {
    match root.link("/Links/Sessions")? {
        Some(place) => Ok(Some(place)),
        None => Ok(root.at("/SessionService").map(|_| SESSIONS.to_owned())),
    }
}

/// Sends; a GET again after a failure of the connection or of a busy service.
async fn patient(
    transport: &Transport,
    request: &Request<'_>,
    authorization: Authorization<'_>,
    attempts: u32,
) -> Result<Answer, BmcError> {
    for attempt in 1.. {
        let result = transport.send(request, authorization).await;
        let pause = match &result {
            Ok(answer) if is_busy(answer.status) => answer.retry_after.unwrap_or(PAUSE * attempt),
            Err(BmcError::Unreachable { .. }) => PAUSE * attempt,
            Ok(_) | Err(_) => return result,
        };
        if request.method != Method::GET || attempt >= attempts {
            return result;
        }
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
    }
    transport.send(request, authorization).await
}

/// Whether a status says that nothing was done. Any other, unless it is success, leaves that open.
fn says_not_done(status: StatusCode) -> bool {
    // 408: what was too slow for the BMC may have been enough for it.
    status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT
}

fn is_busy(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS
        || (status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED)
}

/// The body of a login, borrowed: the password is copied once, into what is overwritten.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct LoginBody<'a> {
    user_name: &'a str,
    password: &'a str,
}

fn login_body(credentials: &Credentials) -> Zeroizing<Vec<u8>> {
    let (user_name, password) = (credentials.username.as_str(), credentials.password.expose_secret());
    // Room for the worst escaping (`\u0000`): a buffer that grows would leave copies behind.
    let mut body = Zeroizing::new(Vec::with_capacity(64 + 6 * (user_name.len() + password.len())));
    if let Err(error) = serde_json::to_writer(&mut *body, &LoginBody { user_name, password }) {
        // Two texts written to memory: it does not happen, and an empty login is refused.
        tracing::error!(%error, "login cannot be written");
    }
    body
}

/// One attempt, with the password in nothing but the request's body. What the BMC says to it is told only as status and
/// message ids: some repeat the request.
async fn log_in(transport: Transport, credentials: Credentials, place: String) -> Result<Login, BmcError> {
    let request = Request::new(Method::POST, &place).secret(login_body(&credentials));
    let senseless =
        |problem: &str| BmcError::Protocol { path: told(&place), problem: problem.to_owned(), sent: false };
    // Whatever comes of a login, it changes nothing of the machine.
    let answer = transport.send(&request, Authorization::Nobody).await.map_err(|error| match error {
        BmcError::Protocol { .. } => senseless("it redirects the login elsewhere"),
        error => error.with_sent(false),
    })?;
    let said = || message::status_and_ids(answer.status, &answer.body, &Secrets::new(&credentials, None));
    let address = || transport.address.clone();
    match answer.status {
        status if status.is_success() => {
            let token = answer.token.ok_or_else(|| senseless("a session without X-Auth-Token"))?;
            let own = Document::parse(&answer.path, None, &answer.body).ok();
            let own = own.and_then(|session| session.link_in("", &session.value).ok());
            Ok(Login::Open { token, place: answer.location.or(own) })
        }
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
            Ok(Login::Basic { proven: false })
        }
        _ if message::has_key(&answer.body, "SessionLimitExceeded") => Ok(Login::Basic { proven: false }),
        // iLO answers a wrong password with 400.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
            Err(BmcError::AuthenticationFailed { address: address(), problem: said() })
        }
        _ => {
            let problem = format!("it answers the login with {}", said());
            Err(BmcError::Unreachable { address: address(), problem, sent: false })
        }
    }
}
