//! One attempt at a login, and retries of reads.
//!
//! Caller: `login`, which decides whether there is an attempt.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;

use super::document::Document;
use super::login::Login;
use super::message::{self, Secrets};
use super::transport::{Answer, Authorization, Request, Transport};
use super::unproven::Account;
use crate::error::{BmcError, printable};
use crate::model::Credentials;

/// Standard path of the sessions.
pub(super) const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
/// Delay between two attempts, times the number of the attempt.
const ATTEMPT_DELAY: Duration = Duration::from_millis(200);
/// A BMC that asks for more patience gets no more.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Returns the path at which sessions are created; `None` if there are none.
pub(super) fn sessions(root: &Document) -> Result<Option<String>, BmcError> {
    match root.link("/Links/Sessions")? {
        Some(place) => Ok(Some(place)),
        None => Ok(root.at("/SessionService").map(|_| SESSIONS.to_owned())),
    }
}

/// Sends; a GET again after a failure of the connection or of a busy service.
pub(super) async fn patient(
    transport: &Transport,
    request: &Request<'_>,
    authorization: Authorization<'_>,
    attempts: u32,
) -> Result<Answer, BmcError> {
    for attempt in 1.. {
        let result = transport.send(request, authorization).await;
        let pause = match &result {
            Ok(answer) if is_busy(answer.status) => answer.retry_after.unwrap_or(ATTEMPT_DELAY * attempt),
            Err(BmcError::Unreachable { .. }) => ATTEMPT_DELAY * attempt,
            Ok(_) | Err(_) => return result,
        };
        if request.method != Method::GET || attempt >= attempts {
            return result;
        }
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
    }
    transport.send(request, authorization).await
}

pub(super) fn is_busy(status: StatusCode) -> bool {
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
        tracing::error!(%error, "failed to encode the login");
    }
    body
}

/// Sends one login attempt, if one is left, with the password only in the request's body. Of the BMC's answer only
/// the status and message IDs are reported: some BMCs repeat the request.
pub(super) async fn log_in(
    transport: Transport,
    credentials: Credentials,
    place: String,
) -> Result<Login, BmcError> {
    let account = Account::new(&transport.address, &credentials.username);
    account.admit()?;
    let result = attempt(&transport, &credentials, &place, &account).await;
    if let Ok(Login::Open { .. }) = &result {
        account.proved();
    }
    result
}

async fn attempt(
    transport: &Transport,
    credentials: &Credentials,
    place: &str,
    account: &Account,
) -> Result<Login, BmcError> {
    let request = Request::new(Method::POST, place).secret(login_body(credentials));
    let unproven = |error: BmcError| {
        account.unproven(&error);
        error
    };
    let senseless = |problem: &str| BmcError::Protocol {
        path: printable(place),
        problem: problem.to_owned(),
        sent: false,
    };
    let answer = transport.send(&request, Authorization::Anonymous).await.map_err(|error| {
        let shown = error.may_have_happened();
        // A login changes nothing of the machine, whatever its result.
        let error = match error {
            BmcError::Protocol { .. } => senseless("the login is redirected to another URL"),
            error => error.with_sent(false),
        };
        if shown { unproven(error) } else { error }
    })?;
    let said = || message::status_and_ids(answer.status, &answer.body, &Secrets::new(credentials, None));
    let address = || transport.address.clone();
    match answer.status {
        status if status.is_success() => {
            let token = answer.token.ok_or_else(|| senseless("the session has no X-Auth-Token"))?;
            let own = Document::parse(&answer.path, None, &answer.body).ok();
            let own = own.and_then(|session| session.link_in("", &session.value).ok());
            Ok(Login::Open { token, place: answer.location.or(own) })
        }
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
            Ok(Login::Basic { proven: false })
        }
        _ if message::has_key(&answer.body, "SessionLimitExceeded") => Ok(Login::Basic { proven: false }),
        // By Base registry and iLO, and by iDRAC.
        _ if ["CreateLimitReachedForResource", "RAC0218"]
            .iter()
            .any(|key| message::has_key(&answer.body, key)) =>
        {
            let hint = "its session table is full; close other sessions, or wait for idle sessions to expire";
            Err(unproven(BmcError::Busy { address: address(), problem: format!("{}; {hint}", said()) }))
        }
        // iLO answers a wrong password with 400.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
            Err(BmcError::AuthenticationFailed { address: address(), problem: said() })
        }
        _ => {
            let problem = format!("the login was answered with {}", said());
            Err(unproven(BmcError::Unreachable { address: address(), problem, sent: false }))
        }
    }
}

/// Ends a session behind the scenes; `by` is a token that is still taken. What cannot be ended, the BMC ends by its own time-out.
pub(super) fn end_later(transport: Transport, by: SecretString, place: String) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { end(&transport, &by, &place).await });
    }
}

/// Ends a session at the BMC.
pub(super) async fn end(transport: &Transport, by: &SecretString, place: &str) {
    let request = Request::new(Method::DELETE, place);
    if let Err(error) = transport.send(&request, Authorization::Token(by)).await {
        // The session's path may be as good as its token.
        let reason = error.reason();
        tracing::debug!(address = %transport.address, %reason, "failed to close a session, it times out");
    }
}
