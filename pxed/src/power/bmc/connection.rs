//! A worker's line to its BMC: credentials when they are needed, a client that is kept, one question at a time.
//!
//! Nothing that changes power leaves here unless this pxed leads at that moment. Decides nothing. Caller: `worker`.

use std::sync::Arc;

use bedplate_api::machine::{BmcSpec, BmcTlsMode, BootSource, PowerState};
use bedplate_api::secret::SecretReference;
use bedplate_bmc::address::{Address, Scheme};
use bedplate_bmc::{Bmc, BmcError, BmcFault, BootMode, Identity, PowerRequest};
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::destination::RefuseHostError;
use super::limits::{Account, For, Login, Verdict};
use crate::power::fleet::assignment::Shared;
use crate::power::plan::operation::Failure;
use crate::power::{CredentialsError, CredentialsVersion, Tenure};

/// Timeout for closing a session.
const CLOSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Request to a BMC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// The power state.
    State,
    /// Identity of the BMC and its machine.
    Identity,
    /// To change the power.
    Request(PowerRequest),
    /// To boot from there once, as that where it is known.
    Boot(BootSource, Option<BootMode>),
}

impl Question {
    const fn changes(self) -> bool {
        match self {
            Self::State | Self::Identity => false,
            Self::Request(_) | Self::Boot(..) => true,
        }
    }
}

/// Answer of a BMC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The power state.
    State(PowerState),
    /// Identity of the BMC and its machine.
    Identity(Identity),
    /// The BMC has accepted the request.
    Accepted,
}

/// Reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The BMC, or the way to it.
    Bmc(BmcError),
    /// There are no credentials.
    Credentials(CredentialsError),
    /// The credentials are not sent to this address.
    Withheld(WithholdCredentialsError),
    /// Another Machine has the same BMC.
    Contested(Arc<str>),
}

/// Reason why credentials were read and not sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum WithholdCredentialsError {
    /// The author of the Secret did not list the address.
    #[error(
        "Secret {}/{} does not allow its credentials at bmc.address: {why}; a user who may write the Secret must list the BMC's address \
         there: docs/guides/bmc.md, \"Addresses of a Secret\"",
        .secret.namespace, .secret.name
    )]
    NotForThisAddress {
        /// The Secret.
        secret: SecretReference,
        /// Problem of the list, or the missing entry.
        why: RefuseHostError,
    },
    /// The identity of the BMC is not verified.
    #[error(
        "{what} is not allowed, because any host that answers gets the password; pin the BMC's key in bmc.redfish.tls.pins, or set \
         bmc.allow-insecure in pxed's configuration"
    )]
    Insecure {
        /// The part of `spec.bmc`.
        what: &'static str,
    },
}

impl WithholdCredentialsError {
    const fn fault(&self) -> BmcFault {
        match self {
            Self::NotForThisAddress { .. } => BmcFault::CredentialsNotForThisAddress,
            Self::Insecure { .. } => BmcFault::InsecureNotAllowed,
        }
    }
}

impl NoAnswer {
    /// For the state machines.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Bmc(error) => Failure {
                fault: error.reason(),
                message: error.to_string(),
                transient: error.is_transient(),
                sent: error.may_have_happened(),
            },
            Self::Credentials(error) => Failure {
                fault: BmcFault::CredentialsUnavailable,
                message: error.to_string(),
                transient: error.transient,
                sent: false,
            },
            Self::Withheld(error) => {
                Failure { fault: error.fault(), message: error.to_string(), transient: false, sent: false }
            }
            Self::Contested(message) => Failure {
                fault: BmcFault::DuplicateBmc,
                message: message.to_string(),
                transient: false,
                sent: false,
            },
        }
    }
}

/// A line to one BMC.
pub(crate) struct Line {
    shared: Arc<Shared>,
    tenure: Tenure,
    spec: BmcSpec,
    /// Message if other Machines claim this BMC; nothing is requested then.
    contested: Option<Arc<str>>,
    address: Arc<Semaphore>,
    open: Option<Box<dyn Bmc>>,
    /// Kept with its verdict also while there is no client.
    login: Option<Arc<Login>>,
    version: Option<CredentialsVersion>,
}

impl Line {
    /// To this BMC; nothing is sent yet.
    pub(crate) fn new(shared: Arc<Shared>, spec: BmcSpec, contested: Option<Arc<str>>) -> Self {
        let address = shared.gate.address(&spec.address);
        let tenure = shared.tenure.clone();
        Self { shared, tenure, spec, contested, address, open: None, login: None, version: None }
    }

    /// Returns true if the connection is for this BMC with the same claims.
    pub(crate) fn is_to(&self, spec: &BmcSpec, contested: Option<&Arc<str>>) -> bool {
        self.spec == *spec && self.contested.as_ref() == contested
    }

    /// Returns true if the BMC's identity is not verified.
    pub(crate) fn insecure(&self) -> bool {
        self.open.as_ref().is_some_and(|bmc| bmc.insecure())
    }

    /// Returns the BMC's known deviations from the standard.
    pub(crate) fn quirks(&self) -> Vec<String> {
        self.open.as_ref().map(|bmc| bmc.quirks()).unwrap_or_default()
    }

    /// Asks. May be dropped at any time.
    ///
    /// # Errors
    /// Reason why there is no answer.
    pub(crate) async fn ask(&mut self, question: Question, whom: For) -> Result<Answer, NoAnswer> {
        if let Some(message) = &self.contested {
            return Err(NoAnswer::Contested(message.clone()));
        }
        let bmc = match self.open.take() {
            Some(bmc) => bmc,
            None => self.dial().await?,
        };
        // Stays in place while it is used: a canceled call leaves the client and its session.
        let bmc = self.open.insert(bmc);
        let way =
            Way { shared: &self.shared, tenure: &self.tenure, spec: &self.spec, address: &self.address };
        let answer = way.ask(bmc.as_mut(), self.login.as_deref(), question, whom).await;
        if matches!(answer, Err(BmcError::AuthenticationFailed { .. })) {
            self.open = None;
        }
        if let Err(error) = &answer {
            self.shared.counters.failures.one(error.reason());
        }
        answer.map_err(NoAnswer::Bmc)
    }

    async fn dial(&mut self) -> Result<Box<dyn Bmc>, NoAnswer> {
        let read = self.shared.credentials.read(&self.spec.credentials_secret_ref).await;
        if read.is_err() {
            // Credentials that become readable again count as changed.
            self.version = None;
        }
        let issued = read.map_err(NoAnswer::Credentials)?;
        self.version = Some(issued.version.clone());
        let failed = |error: BmcError| {
            self.shared.counters.failures.one(error.reason());
            NoAnswer::Bmc(error)
        };
        let address = Address::parse(&self.spec.address, self.spec.protocol).map_err(failed)?;
        check_security(&self.spec, &address, self.shared.limits.allow_insecure)
            .map_err(NoAnswer::Withheld)?;
        issued.destinations.check(&address.host).map_err(|why| {
            let secret = self.spec.credentials_secret_ref.clone();
            NoAnswer::Withheld(WithholdCredentialsError::NotForThisAddress { secret, why })
        })?;
        self.login = Some(self.shared.gate.login(Account {
            address: self.spec.address.clone(),
            user: issued.credentials.username.clone(),
            version: issued.version,
        }));
        self.shared.dial.dial(&self.spec, issued.credentials).await.map_err(failed)
    }

    /// Returns true if the credentials differ from those used last. An unreadable Secret does not count as a change.
    pub(crate) async fn has_other_credentials(&mut self) -> bool {
        if self.contested.is_some() {
            return false;
        }
        let read = self.shared.credentials.read(&self.spec.credentials_secret_ref).await;
        read.is_ok_and(|issued| self.version.as_ref() != Some(&issued.version))
    }

    /// Drops the client without closing its session; the BMC's name is resolved again next time.
    pub(crate) fn forget(&mut self) {
        self.open = None;
    }

    /// Requests are suspended for a while.
    pub(crate) fn rest(&mut self) {
        if let Some(bmc) = &mut self.open {
            bmc.rest();
        }
    }

    /// Ends the session at the BMC.
    pub(crate) async fn close(&mut self) {
        let Some(mut bmc) = self.open.take() else { return };
        let closing = async {
            let _pass = self.shared.gate.enter(&self.address, For::Operation).await;
            bmc.close().await;
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
            tracing::debug!(address = self.spec.address, "BMC session left open");
        }
    }
}

/// Refuses to send credentials to an unverified BMC, unless that is allowed.
fn check_security(spec: &BmcSpec, address: &Address, allowed: bool) -> Result<(), WithholdCredentialsError> {
    let insecure = |what| Err(WithholdCredentialsError::Insecure { what });
    match spec.tls().map(|tls| tls.mode) {
        _ if allowed => Ok(()),
        _ if address.scheme == Scheme::Http => insecure("an http:// address in bmc.address"),
        Some(BmcTlsMode::Insecure) => insecure("bmc.redfish.tls.mode Insecure"),
        Some(BmcTlsMode::Pin | BmcTlsMode::Ca) | None => Ok(()),
    }
}

/// Limits and accounts that a request passes.
struct Way<'a> {
    shared: &'a Shared,
    tenure: &'a Tenure,
    spec: &'a BmcSpec,
    address: &'a Arc<Semaphore>,
}

impl Way<'_> {
    async fn ask(
        &self,
        bmc: &mut dyn Bmc,
        login: Option<&Login>,
        question: Question,
        whom: For,
    ) -> Result<Answer, BmcError> {
        let mut untried = None;
        if let Some(login) = login {
            let verdict = login.lock().await;
            match &*verdict {
                Verdict::Good => {}
                Verdict::Wrong(error) => return Err(error.clone()),
                Verdict::Untried => untried = Some(verdict),
            }
        }
        let pass = match self.shared.gate.enter_at_once(self.address, whom) {
            Some(pass) => pass,
            None => {
                // After a start thousands of workers wait here, so a poll holds no connection meanwhile.
                if whom == For::Polling {
                    bmc.rest();
                }
                self.shared.gate.enter(self.address, whom).await
            }
        };
        let started = Instant::now();
        let answer = if question.changes() {
            self.tenure.during(put(bmc, question)).await
        } else {
            Some(put(bmc, question).await)
        };
        let Some(answer) = answer else {
            // The worker ends as soon as it sees the same.
            drop((pass, untried));
            return std::future::pending().await;
        };
        self.shared.counters.call(self.spec.protocol, started.elapsed());
        let verdict = match &answer {
            Ok(_) | Err(BmcError::NotSupported { .. }) => Some(Verdict::Good),
            Err(error @ BmcError::AuthenticationFailed { .. }) => Some(Verdict::Wrong(error.clone())),
            Err(_) => None,
        };
        match (untried, verdict, login) {
            (Some(mut known), Some(verdict), _) => *known = verdict,
            (None, Some(wrong @ Verdict::Wrong(_)), Some(login)) => *login.lock().await = wrong,
            (Some(_) | None, Some(_) | None, _) => {}
        }
        answer
    }
}

async fn put(bmc: &mut dyn Bmc, question: Question) -> Result<Answer, BmcError> {
    match question {
        Question::State => bmc.power_state().await.map(Answer::State),
        Question::Identity => bmc.identity().await.map(Answer::Identity),
        Question::Request(request) => bmc.power(request).await.map(|_| Answer::Accepted),
        Question::Boot(source, mode) => bmc.set_next_boot(source, mode).await.map(|()| Answer::Accepted),
    }
}
