//! Login to a Redfish service: a session (DSP0266, "Session management") that is opened once, reused, reopened once
//! when it has expired, and deleted at the end; user name and password with every request if there are no sessions.
//!
//! ```text
//!          no SessionService, or its table is full
//! Fresh ------------------------------------------> Basic --401--> Held
//!   | login                                                         ^
//!   +-------> Open --401--> (login again) --401 -------------------+|
//!   +-- 400, 401, 403 to the login ---------------------------------+
//! ```
//! Held is final: a wrong password is tried once, so that no BMC locks an account. For new credentials a new login is
//! created.
//!
//! Caller: `redfish`.

use reqwest::{Method, StatusCode};
use secrecy::SecretString;
use tokio::task::JoinHandle;

use super::attempt::{SESSIONS, end, end_later, is_busy, log_in, patient, sessions};
use super::document::{Document, Kept};
use super::message::{self, Secrets};
use super::transport::{Answer, Authorization, Request, Transport};
use super::unproven::Account;
use crate::error::BmcError;
use crate::model::Credentials;

/// The service root (DSP0266).
const ROOT: &str = "/redfish/v1/";
/// Maximum number of attempts of a read.
const MAX_READ_ATTEMPTS: u32 = 3;
/// State of the login.
pub(super) enum Login {
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

/// A service with the credentials.
pub(crate) struct Session {
    pub(crate) transport: Transport,
    credentials: Credentials,
    login: Login,
    /// Login that a dropped call has started: the next call waits for it, so that no session is lost in the BMC's
    /// table.
    pending: Option<JoinHandle<Result<Login, BmcError>>>,
    root: Option<Kept>,
}

impl Session {
    pub(crate) fn new(transport: Transport, credentials: Credentials) -> Self {
        Self { transport, credentials, login: Login::Fresh, pending: None, root: None }
    }

    /// The service root, read once.
    pub(crate) async fn root(&mut self) -> Result<Document, BmcError> {
        if let Some(root) = &self.root {
            return root.document();
        }
        let request = Request::new(Method::GET, ROOT);
        // The root is public, but some services ask for credentials.
        let mut answer =
            patient(&self.transport, &request, Authorization::Anonymous, MAX_READ_ATTEMPTS).await?;
        if answer.status == StatusCode::UNAUTHORIZED {
            self.start(answer.wants_basic).await?;
            answer = self.send(&request).await?;
        }
        if answer.status == StatusCode::UNAUTHORIZED {
            return Err(self.hold(&answer).await);
        }
        let root = self.document(&request, answer)?.root();
        self.root = Some(Kept::of(&root));
        Ok(root)
    }

    /// Reads the service root if it is public, without a login.
    pub(crate) async fn anonymous_root(&mut self) -> Result<Option<Document>, BmcError> {
        let request = Request::new(Method::GET, ROOT);
        let answer = patient(&self.transport, &request, Authorization::Anonymous, MAX_READ_ATTEMPTS).await?;
        if matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Ok(None);
        }
        Ok(Some(self.document(&request, answer)?.root()))
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
            tracing::debug!(address = %self.transport.address, "session expired");
            let old = std::mem::replace(&mut self.login, Login::Fresh);
            self.log_in().await?;
            self.end_old(old);
            let answer = self.send(request).await?;
            if answer.status != StatusCode::UNAUTHORIZED {
                return Ok(answer);
            }
        }
        Err(self.hold(&answer).await)
    }

    /// Ends the previous session, if it is open. Some BMCs reuse its path for the next session.
    fn end_old(&self, old: Login) {
        if let (Login::Open { place: Some(old), .. }, Login::Open { token, place: Some(new) }) =
            (old, &self.login)
            && old != *new
        {
            end_later(self.transport.clone(), token.clone(), old);
        }
    }

    /// Sends as whom we are.
    async fn send(&mut self, request: &Request<'_>) -> Result<Answer, BmcError> {
        if matches!(self.login, Login::Basic { proven: false }) {
            return self.send_unproven(request).await;
        }
        patient(&self.transport, request, self.authorization(), MAX_READ_ATTEMPTS).await
    }

    /// Shows a password that may be wrong, once: a BMC may count it also where it answers 5xx.
    async fn send_unproven(&mut self, request: &Request<'_>) -> Result<Answer, BmcError> {
        let account = Account::new(&self.transport.address, &self.credentials.username);
        account.admit()?;
        let result = patient(&self.transport, &request.clone().showing(), self.authorization(), 1).await;
        match &result {
            Ok(answer) if answer.status.is_success() => {
                account.proved();
                self.login = Login::Basic { proven: true };
            }
            Ok(answer) if is_busy(answer.status) => {
                let problem = format!("{} was answered with {}", request.name(), answer.status.as_u16());
                let address = self.transport.address.clone();
                account.unproven(&BmcError::Unreachable { address, problem, sent: false });
            }
            Err(error) if error.may_have_happened() => account.unproven(error),
            Ok(_) | Err(_) => {}
        }
        let changes = request.method != Method::GET;
        result.map_err(|error| if changes { error } else { error.with_sent(false) })
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
        // A refusal also counts if its caller was dropped.
        if let Err(error) = self.await_login().await {
            let reason = error.reason();
            tracing::debug!(address = %self.transport.address, %reason, "abandoned login failed");
        }
        if let Login::Open { token, place: Some(place) } = &self.login {
            end(&self.transport, token, place).await;
        }
        if matches!(self.login, Login::Open { .. }) {
            self.login = Login::Fresh;
        }
    }

    fn authorization(&self) -> Authorization<'_> {
        match &self.login {
            Login::Open { token, .. } => Authorization::Token(token),
            Login::Basic { .. } => Authorization::Basic(&self.credentials),
            Login::Fresh | Login::Held(_) => Authorization::Anonymous,
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
                problem: "the login was interrupted".to_owned(),
                sent: false,
            }),
        }
    }

    /// Returns the text of the BMC, unless it repeats a secret.
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
            let problem = format!("{} was answered with {problem}", request.name());
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
            let hint = format!("the BMC answered {problem}").trim_end_matches('.').to_owned();
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

/// A session that is dropped without `close` is ended in the background, even while it is being opened.
impl Drop for Session {
    fn drop(&mut self) {
        let transport = self.transport.clone();
        if let Some(pending) = self.pending.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                if let Ok(Ok(Login::Open { token, place: Some(place) })) = pending.await {
                    end(&transport, &token, &place).await;
                }
            });
        } else if let Login::Open { token, place: Some(place) } = &self.login {
            end_later(transport, token.clone(), place.clone());
        }
    }
}

/// Returns true if a status means that nothing was done. Any other failure leaves that open.
fn says_not_done(status: StatusCode) -> bool {
    // 408: what was too slow for the BMC may have been enough for it.
    status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT
}
