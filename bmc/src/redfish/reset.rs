//! Choice of the `ResetType` of a request, among those that the BMC allows.
//!
//! Pure: no clock, no file, no socket. Callers: `redfish`, `probe`.
//!
//! | request | first | else |
//! |---|---|---|
//! | on | `On` | `ForceOn` |
//! | graceful off | `GracefulShutdown` | `PushPowerButton`, only by quirk and only while the power is on |
//! | forced off | `ForceOff` | |
//! | cycle | `PowerCycle` | `ForceRestart`, which takes no power away |
//! | reset | `ForceRestart` | |
//!
//! Off and then on is never made of a cycle here: what dies between the two would leave the machine off. The caller's plan
//! may, step by step.

use super::document::{Document, words_of};
use crate::error::BmcError;
use crate::model::{PowerRequest, PowerState};
use crate::quirks::{Quirk, Quirks};

/// Path of a system's reset action, and its accepted types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResetAction {
    pub(crate) target: String,
    /// `None`: the BMC does not report them.
    pub(crate) allowed: Option<Vec<String>>,
    /// Path of the list of types if it is a separate resource (`@Redfish.ActionInfo`).
    pub(crate) info: Option<String>,
}

const ACTION: &str = "/Actions/#ComputerSystem.Reset";

/// The reset action of a system.
pub(crate) fn action(system: &Document) -> Result<ResetAction, BmcError> {
    let target = system.word(&format!("{ACTION}/target"))?.ok_or_else(|| BmcError::NotSupported {
        what: "changing the power".to_owned(),
        hint: format!("{} has no reset action; check the account's privileges", system.path),
    })?;
    let info = system.word(&format!("{ACTION}/@Redfish.ActionInfo"))?;
    Ok(ResetAction {
        target: target.to_owned(),
        // An empty list has no information.
        allowed: system
            .words(&format!("{ACTION}/ResetType@Redfish.AllowableValues"))
            .filter(|words| !words.is_empty()),
        info: info.map(str::to_owned),
    })
}

/// The types that an ActionInfo allows.
pub(crate) fn allowed_by(info: &Document) -> Option<Vec<String>> {
    let parameters = info.list("/Parameters").ok()?;
    let reset = parameters.iter().find(|p| p.get("Name").and_then(|n| n.as_str()) == Some("ResetType"))?;
    words_of(reset.get("AllowableValues")?).filter(|words| !words.is_empty())
}

/// The type for a request.
pub(crate) fn choose(
    request: PowerRequest,
    allowed: Option<&[String]>,
    state: PowerState,
    quirks: &Quirks,
) -> Result<&'static str, BmcError> {
    let by_button = quirks.have(Quirk::PowerButtonIsGraceful) && state == PowerState::On;
    let wanted: &[&'static str] = match request {
        PowerRequest::On => &["On", "ForceOn"],
        // While it is off, the button would switch it on.
        PowerRequest::GracefulOff if by_button => &["GracefulShutdown", "PushPowerButton"],
        PowerRequest::GracefulOff => &["GracefulShutdown"],
        PowerRequest::ForceOff => &["ForceOff"],
        PowerRequest::Cycle => &["PowerCycle", "ForceRestart"],
        PowerRequest::Reset => &["ForceRestart"],
    };
    let found = match allowed {
        None => wanted.first(),
        Some(allowed) => wanted.iter().find(|wanted| allowed.iter().any(|a| a == *wanted)),
    };
    found.copied().ok_or_else(|| BmcError::NotSupported {
        what: format!("{request} ({})", wanted.join(" or ")),
        hint: format!("it supports {}", allowed.unwrap_or_default().join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        request: PowerRequest,
        allowed: &[&str],
        state: PowerState,
        quirks: &Quirks,
    ) -> Option<&'static str> {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        choose(request, Some(&allowed), state, quirks).ok()
    }

    #[test]
    fn only_what_the_bmc_allows_is_asked_for() {
        use PowerRequest::{Cycle, ForceOff, GracefulOff, On, Reset};
        let full = ["On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle", "PushPowerButton"];
        let few = ["ForceOn", "ForceRestart", "PushPowerButton"];
        let none = Quirks::default();
        for (request, with_all, with_few) in [
            (On, Some("On"), Some("ForceOn")),
            (GracefulOff, Some("GracefulShutdown"), None),
            (ForceOff, Some("ForceOff"), None),
            (Cycle, Some("PowerCycle"), Some("ForceRestart")),
            (Reset, Some("ForceRestart"), Some("ForceRestart")),
        ] {
            assert_eq!(chosen(request, &full, PowerState::On, &none), with_all, "{request}");
            assert_eq!(chosen(request, &few, PowerState::On, &none), with_few, "{request}");
            assert_eq!(choose(request, None, PowerState::On, &none).ok(), with_all, "{request}");
        }
    }

    #[test]
    fn a_power_button_is_pushed_only_where_it_shuts_down() {
        let quirks = Quirks::of_all(&[Quirk::PowerButtonIsGraceful]);
        let allowed = ["On", "ForceOff", "PushPowerButton"];
        for (state, expected) in [
            (PowerState::On, Some("PushPowerButton")),
            (PowerState::Off, None),
            (PowerState::PoweringOff, None),
            (PowerState::Unknown, None),
        ] {
            assert_eq!(chosen(PowerRequest::GracefulOff, &allowed, state, &quirks), expected, "{state:?}");
        }
    }

    #[test]
    fn unsupported_reset_is_reported_with_supported_ones() {
        let allowed = ["On".to_owned(), "Nmi".to_owned()];
        let error = choose(PowerRequest::ForceOff, Some(&allowed), PowerState::On, &Quirks::default());
        assert_eq!(
            error.unwrap_err().to_string(),
            "the BMC does not support forced power off (ForceOff); it supports On, Nmi"
        );
    }
}
