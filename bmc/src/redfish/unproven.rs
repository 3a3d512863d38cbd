//! Unproven logins: sent, and answered with 5xx or 429, or not at all. A BMC may count each as a wrong password and
//! lock the account, so at most two are sent within a minute for an address and user, by all clients together. A
//! proven success resets the count.
//!
//! Callers: `attempt`, `login`.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::BmcError;

/// Maximum number of unproven logins within [`COUNTING_PERIOD`].
const MAX_UNPROVEN_LOGINS: usize = 2;
/// Period for which a login counts.
const COUNTING_PERIOD: Duration = Duration::from_secs(60);

/// Address and user name.
type Key = (String, String);

/// Shared by all clients of this process: several machines may be behind one address.
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Known(HashMap<Key, (Vec<Instant>, BmcError)>);

impl Known {
    /// Returns the result of the last attempt, if no more may be made now.
    fn held(&self, key: &Key, now: Instant) -> Option<&BmcError> {
        let (times, last) = self.0.get(key)?;
        let counts = times.iter().filter(|time| counts(**time, now)).count();
        (counts >= MAX_UNPROVEN_LOGINS).then_some(last)
    }

    fn note(&mut self, key: Key, error: BmcError, now: Instant) {
        self.0.retain(|_, (times, _)| {
            times.retain(|time| counts(*time, now));
            !times.is_empty()
        });
        let (times, last) = self.0.entry(key).or_insert_with(|| (Vec::new(), error.clone()));
        times.push(now);
        *last = error;
    }
}

fn counts(time: Instant, now: Instant) -> bool {
    now.saturating_duration_since(time) < COUNTING_PERIOD
}

/// Returns the error instead of another attempt; its kind remains.
fn instead_of(last: &BmcError) -> BmcError {
    let seconds = COUNTING_PERIOD.as_secs();
    let why = format!(
        "{MAX_UNPROVEN_LOGINS} logins within {seconds} s did not show whether the password is right; the BMC \
         may lock the account, so the next login is sent {seconds} s later"
    );
    let add = |problem: &str| format!("{problem}; {why}");
    match last.clone() {
        BmcError::Busy { address, problem } => BmcError::Busy { address, problem: add(&problem) },
        BmcError::TimedOut { address, what, after, .. } => {
            BmcError::TimedOut { address, what: add(&what), after, sent: false }
        }
        BmcError::Protocol { path, problem, .. } => {
            BmcError::Protocol { path, problem: add(&problem), sent: false }
        }
        BmcError::Unreachable { address, problem, .. } => {
            BmcError::Unreachable { address, problem: add(&problem), sent: false }
        }
        other => other,
    }
}

/// A user at an address.
pub(super) struct Account(Key);

impl Account {
    pub(super) fn new(address: &str, user: &str) -> Self {
        Self((address.to_owned(), user.to_owned()))
    }

    /// Checks whether the password may be sent now.
    ///
    /// # Errors
    /// The login must not be sent, with the reason.
    pub(super) fn admit(&self) -> Result<(), BmcError> {
        known().held(&self.0, Instant::now()).map_or(Ok(()), |last| Err(instead_of(last)))
    }

    /// It was shown, and this came of it.
    pub(super) fn unproven(&self, error: &BmcError) {
        known().note(self.0.clone(), error.clone(), Instant::now());
    }

    /// The password is right.
    pub(super) fn proved(&self) {
        known().0.remove(&self.0);
    }
}

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_unproven_logins_hold_the_account_for_a_minute_and_no_other() {
        let mut known = Known::default();
        let key = |user: &str| ("bmc:443".to_owned(), user.to_owned());
        let busy = BmcError::Busy { address: "bmc:443".to_owned(), problem: "503".to_owned() };
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        known.note(key("admin"), busy.clone(), at(0));
        assert_eq!(known.held(&key("admin"), at(1)), None);
        known.note(key("admin"), busy.clone(), at(20));
        assert_eq!(known.held(&key("admin"), at(59)), Some(&busy));
        assert_eq!(known.held(&key("other"), at(59)), None);
        // A busy BMC recovers: one more as soon as the first no longer counts.
        assert_eq!(known.held(&key("admin"), at(60)), None);
        known.note(key("admin"), busy.clone(), at(60));
        assert_eq!(known.held(&key("admin"), at(79)), Some(&busy));
        known.note(key("other"), busy, at(200));
        assert_eq!(known.0.len(), 1);
    }

    #[test]
    fn a_held_login_is_still_transient_and_says_when_it_goes_on() {
        let error =
            BmcError::Unreachable { address: "bmc".to_owned(), problem: "500".to_owned(), sent: false };
        let held = instead_of(&error);
        assert!(held.is_transient() && held.reason() == error.reason());
        assert!(
            held.to_string().contains("lock the account, so the next login is sent 60 s later"),
            "{held}"
        );
    }
}
