//! Conversion of IPMI failures to the crate's errors, for users, with a remedy.
//!
//! Pure: no clock, no file, no socket. Caller: `link`.

use std::error::Error;

use bedplate_ipmi::client::ClientError;
use bedplate_ipmi::command::ReadAnswerError;
use bedplate_ipmi::session::{RequestError, SessionError, Step};
use bedplate_ipmi::wire::completion::Completion;

use crate::error::BmcError;

/// The error of a request for `what`; `sent`: it changes something, and may have reached the BMC.
pub(super) fn of_client(error: &ClientError, address: &str, what: &str, sent: bool) -> BmcError {
    let (address, what) = (address.to_owned(), what.to_owned());
    match error {
        ClientError::Session(error) => of_session(*error, address),
        // Nothing was sent; only another Secret helps.
        ClientError::Password(_) | ClientError::User(_) => {
            BmcError::AuthenticationFailed { address, problem: chain(error) }
        }
        ClientError::Socket { .. } => BmcError::Unreachable { address, problem: chain(error), sent: false },
        ClientError::Request(RequestError::Unanswered) => {
            BmcError::Unreachable { address, problem: format!("no answer to {what}"), sent }
        }
        ClientError::Request(
            error @ (RequestError::NotSent | RequestError::TooMany | RequestError::TooLong),
        ) => BmcError::Unreachable { address, problem: error.to_string(), sent: false },
        ClientError::TimedOut(after) => BmcError::TimedOut { address, what, after: *after, sent },
        ClientError::Command(ReadAnswerError::Refused(completion)) => {
            of_completion(*completion, address, what, sent)
        }
        ClientError::Command(error @ ReadAnswerError::Answer(_)) => {
            BmcError::Protocol { path: what, problem: chain(error), sent }
        }
    }
}

/// An error with its sources in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// Converts the reason why there is no session. No request was sent in it.
///
/// A refused proof ([`SessionError::ProofRefused`]) counts as a refused login although the BMC has the same password:
/// with status 0x0f to RAKP message 3 a BMC refuses a user (13.24, table 13-15), and counts it toward the lockout of
/// its "bad password threshold". Repeated attempts would lock the account.
fn of_session(error: SessionError, address: String) -> BmcError {
    let problem = error.to_string();
    match error {
        SessionError::WrongPassword | SessionError::UserRefused { .. } | SessionError::ProofRefused => {
            BmcError::AuthenticationFailed { address, problem }
        }
        SessionError::WrongKey => {
            let problem = format!("{problem}; Bedplate does not support Kg: set it to zeros");
            BmcError::AuthenticationFailed { address, problem }
        }
        // Some BMCs are silent to an Open Session with a suite that they do not have; it is not asked for a weaker one then.
        SessionError::Silent { step: Step::Open } => {
            let problem = format!(
                "{problem}; if the BMC does not support cipher suite 17, set bmc.ipmi.cipherSuite to 3"
            );
            BmcError::Unreachable { address, problem, sent: false }
        }
        SessionError::Unreachable { .. } | SessionError::Silent { .. } | SessionError::Lost => {
            BmcError::Unreachable { address, problem, sent: false }
        }
        SessionError::NotSupported => BmcError::NotSupported {
            what: "a session over IPMI 2.0".to_owned(),
            hint: format!("{problem}; enable IPMI over LAN in the settings of the BMC, or use Redfish"),
        },
        SessionError::SuiteRefused { .. } | SessionError::SuiteChanged { .. } => BmcError::NotSupported {
            what: "the requested cipher suite".to_owned(),
            hint: format!("{problem}; set bmc.ipmi.cipherSuite to a supported suite (17 or 3)"),
        },
        SessionError::NoResources => {
            let problem =
                format!("{problem}; close other IPMI sessions, or wait a minute for idle sessions to expire");
            BmcError::Busy { address, problem }
        }
        SessionError::RoleRefused { .. } | SessionError::PrivilegeRefused { .. } => BmcError::Refused {
            what: "the privilege of the session".to_owned(),
            problem: format!(
                "{problem}; give the account this privilege for IPMI over LAN, or set bmc.ipmi.privilege"
            ),
            sent: false,
        },
        SessionError::Refused { .. } => {
            BmcError::Refused { what: "a session".to_owned(), problem, sent: false }
        }
    }
}

/// A command that the BMC answered with an error.
fn of_completion(completion: Completion, address: String, what: String, sent: bool) -> BmcError {
    let problem = completion.to_string();
    match completion {
        passing if passing.is_passing() => BmcError::Busy { address, problem },
        Completion::InvalidCommand | Completion::InvalidForLun | Completion::Disabled => {
            BmcError::NotSupported { what, hint: format!("the BMC answered: {problem}") }
        }
        Completion::Privilege => {
            let problem = format!("{problem}; set bmc.ipmi.privilege to Operator or Administrator");
            BmcError::Refused { what, problem, sent: false }
        }
        // The BMC failed while it carried out the command.
        Completion::TimedOut | Completion::NoAnswer | Completion::Unspecified => {
            BmcError::Refused { what, problem, sent }
        }
        _ => BmcError::Refused { what, problem, sent: false },
    }
}

#[cfg(test)]
mod tests {
    use bedplate_ipmi::crypto::Suite;
    use bedplate_ipmi::wire::rakp::Status;

    use super::*;
    use bedplate_api::reason::bmc::BmcFault;

    fn session(error: SessionError) -> BmcError {
        of_client(&ClientError::Session(error), "bmc:623", "power on", true)
    }

    #[test]
    fn why_there_is_no_session_has_a_reason_and_says_that_nothing_was_done() {
        let suite = Suite::Sha256;
        for (error, reason, transient) in [
            (SessionError::WrongPassword, BmcFault::AuthenticationFailed, false),
            (SessionError::UserRefused { status: Status::Name }, BmcFault::AuthenticationFailed, false),
            (SessionError::WrongKey, BmcFault::AuthenticationFailed, false),
            (SessionError::ProofRefused, BmcFault::AuthenticationFailed, false),
            (SessionError::Unreachable { attempts: 4 }, BmcFault::BmcUnreachable, true),
            (SessionError::Silent { step: Step::Proof }, BmcFault::BmcUnreachable, true),
            (SessionError::Lost, BmcFault::BmcUnreachable, true),
            (SessionError::NotSupported, BmcFault::NotSupported, false),
            (
                SessionError::SuiteRefused { suite, status: Status::NoCipherSuite },
                BmcFault::NotSupported,
                false,
            ),
            (SessionError::SuiteChanged { suite }, BmcFault::NotSupported, false),
            (SessionError::NoResources, BmcFault::Refused, true),
            (SessionError::RoleRefused { status: Status::Role(9) }, BmcFault::Refused, false),
            (SessionError::PrivilegeRefused { completion: Completion::Privilege }, BmcFault::Refused, false),
        ] {
            let found = session(error);
            assert_eq!((found.reason(), found.is_transient()), (reason, transient), "{found}");
            assert!(!found.may_have_happened(), "{found}");
        }
    }

    #[test]
    fn only_a_clear_no_says_that_a_change_was_not_done() {
        let unanswered = ClientError::Request(RequestError::Unanswered);
        assert!(of_client(&unanswered, "bmc:623", "power on", true).may_have_happened());
        let not_sent = ClientError::Request(RequestError::NotSent);
        assert!(!of_client(&not_sent, "bmc:623", "power on", true).may_have_happened());
        for (completion, reason, happened) in [
            (Completion::Privilege, BmcFault::Refused, false),
            (Completion::State, BmcFault::Refused, false),
            (Completion::Busy, BmcFault::Refused, false),
            (Completion::InvalidCommand, BmcFault::NotSupported, false),
            (Completion::Unspecified, BmcFault::Refused, true),
            (Completion::TimedOut, BmcFault::Refused, true),
        ] {
            let refused = ClientError::Command(ReadAnswerError::Refused(completion));
            let found = of_client(&refused, "bmc:623", "power on", true);
            assert_eq!((found.reason(), found.may_have_happened()), (reason, happened), "{found}");
        }
    }
}
