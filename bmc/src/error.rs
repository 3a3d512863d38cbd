//! Errors of BMC requests: each message is for users, names the place and states the remedy.
//!
//! Pure: no clock, no file, no socket. No message contains a secret; texts of a BMC are sanitized first. Callers:
//! everything in this crate; pxed shows the text in conditions and operations.

use std::fmt::{self, Write as _};
use std::time::Duration;

use bedplate_api::id::Digest;
use bedplate_api::reason::bmc::BmcFault;
use thiserror::Error;

/// Maximum length of a BMC's own text, in characters.
const MOST_TOLD: usize = 300;
/// Maximum length of an error's text, in bytes: a condition's message is limited, and contains other texts too.
const MAX_ERROR_BYTES: usize = 1024;

/// Reason why a BMC request failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BmcError {
    /// An address that is none, or that may not be reached.
    AddressNotAllowed {
        /// The address, as it was written.
        address: String,
        /// Problem and remedy.
        problem: String,
    },
    /// No answer, or only that it cannot answer now.
    Unreachable {
        /// Host and port.
        address: String,
        /// Description of the failure.
        problem: String,
        /// True if the request may have reached the BMC.
        sent: bool,
    },
    /// User name or password are not taken.
    AuthenticationFailed {
        /// Host and port.
        address: String,
        /// Text of the BMC.
        problem: String,
    },
    /// The BMC cannot do it.
    NotSupported {
        /// Requested function.
        what: String,
        /// Alternative.
        hint: String,
    },
    /// The BMC did not finish in time.
    TimedOut {
        /// Host and port.
        address: String,
        /// Event that was waited for.
        what: String,
        /// Duration of the wait.
        after: Duration,
        /// True if the request may have reached the BMC.
        sent: bool,
    },
    /// The BMC refused the request.
    Refused {
        /// Requested function.
        what: String,
        /// Text of the BMC.
        problem: String,
        /// True if it may have been done or started nevertheless.
        sent: bool,
    },
    /// The BMC has no room or no time for it now; nothing was done. Later it may have.
    Busy {
        /// Host and port.
        address: String,
        /// Text of the BMC, and the remedy if the error persists.
        problem: String,
    },
    /// The public key is none of the pinned ones; no credentials were sent.
    CertificateChanged {
        /// Host and port.
        address: String,
        /// The pin of the certificate that it showed.
        seen: Digest,
    },
    /// No authority that is believed signed the certificate; no credentials were sent.
    CertificateUntrusted {
        /// Host and port.
        address: String,
        /// The pin of the certificate that it showed.
        seen: Option<Digest>,
        /// Description of the problem.
        problem: String,
    },
    /// Several systems, and none is named.
    AmbiguousSystem {
        /// Their ids.
        systems: Vec<String>,
    },
    /// The system that is named is not there.
    SystemNotFound {
        /// The id that was asked for.
        wanted: String,
        /// The ids that are there.
        systems: Vec<String>,
    },
    /// An answer that the protocol does not know.
    Protocol {
        /// URL path, and the field where it is one.
        path: String,
        /// Description of the problem.
        problem: String,
        /// True for an answer to a changing request that does not state that nothing was done.
        sent: bool,
    },
}

impl fmt::Display for BmcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text)?;
        if text.len() <= MAX_ERROR_BYTES {
            return f.write_str(&text);
        }
        let most = MAX_ERROR_BYTES - '…'.len_utf8();
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= most);
        write!(f, "{}…", &text[..ends.last().unwrap_or(0)])
    }
}

impl BmcError {
    /// The whole text, of any length.
    fn write(&self, f: &mut String) -> fmt::Result {
        match self {
            Self::AddressNotAllowed { address, problem } => {
                write!(f, "bmc.address {address}: {problem}")
            }
            Self::Unreachable { address, problem, .. } => {
                write!(
                    f,
                    "the BMC at {address} is unavailable ({problem}); check its network and bmc.address, or restart the BMC"
                )
            }
            Self::AuthenticationFailed { address, problem } => {
                write!(
                    f,
                    "the BMC at {address} rejected the credentials ({problem}); login is suspended so that the account is not locked; correct the Secret"
                )
            }
            Self::NotSupported { what, hint } => {
                write!(f, "the BMC does not support {what}; {hint}")
            }
            Self::TimedOut { address, what, after, .. } => {
                write!(
                    f,
                    "the BMC at {address} timed out after {} s: {what}; check its load and its log",
                    after.as_secs_f32()
                )
            }
            Self::Refused { what, problem, .. } => {
                write!(f, "the BMC refused {what}: {problem}")
            }
            Self::Busy { address, problem } => {
                write!(f, "the BMC at {address} is busy and refused: {problem}")
            }
            Self::CertificateChanged { address, seen } => {
                write!(
                    f,
                    "the certificate of the BMC at {address} has changed, and nothing was sent; if you changed it, add {seen} to bmc.redfish.tls.pins"
                )
            }
            Self::CertificateUntrusted { address, seen, problem } => {
                write!(
                    f,
                    "the certificate of the BMC at {address} is not trusted ({problem}), and nothing was sent; set bmc.redfish.tls.caBundle, or pin it{}",
                    pin_hint(seen.as_ref())
                )
            }
            Self::AmbiguousSystem { systems } => {
                write!(f, "the BMC has several systems ({}); set bmc.redfish.systemID", systems.join(", "))
            }
            Self::SystemNotFound { wanted, systems } => {
                let systems = listed(systems);
                write!(f, "the BMC has no system {wanted} (found: {systems}); correct bmc.redfish.systemID")
            }
            Self::Protocol { path, problem, .. } => {
                write!(f, "the BMC's answer to {path} is invalid: {problem}; check for newer BMC firmware")
            }
        }
    }

    /// The one word for it.
    pub const fn reason(&self) -> BmcFault {
        match self {
            Self::AddressNotAllowed { .. } => BmcFault::AddressNotAllowed,
            Self::Unreachable { .. } => BmcFault::BmcUnreachable,
            Self::AuthenticationFailed { .. } => BmcFault::AuthenticationFailed,
            Self::NotSupported { .. } => BmcFault::NotSupported,
            Self::TimedOut { .. } => BmcFault::TimedOut,
            Self::Refused { .. } | Self::Busy { .. } => BmcFault::Refused,
            Self::CertificateChanged { .. } => BmcFault::CertificateChanged,
            Self::CertificateUntrusted { .. } => BmcFault::CertificateUntrusted,
            Self::AmbiguousSystem { .. } => BmcFault::AmbiguousSystem,
            Self::SystemNotFound { .. } => BmcFault::SystemNotFound,
            Self::Protocol { .. } => BmcFault::ProtocolError,
        }
    }

    /// Returns true if the BMC may have carried out the failed request: its state must be read before a repetition.
    pub const fn may_have_happened(&self) -> bool {
        match self {
            Self::Unreachable { sent, .. }
            | Self::TimedOut { sent, .. }
            | Self::Refused { sent, .. }
            | Self::Protocol { sent, .. } => *sent,
            Self::AddressNotAllowed { .. }
            | Self::AuthenticationFailed { .. }
            | Self::NotSupported { .. }
            | Self::Busy { .. }
            | Self::CertificateChanged { .. }
            | Self::CertificateUntrusted { .. }
            | Self::AmbiguousSystem { .. }
            | Self::SystemNotFound { .. } => false,
        }
    }

    /// Returns true if the same request may succeed a little later without a user's action.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Busy { .. } | Self::Protocol { .. } => {
                true
            }
            Self::Refused { .. }
            | Self::AddressNotAllowed { .. }
            | Self::AuthenticationFailed { .. }
            | Self::NotSupported { .. }
            | Self::CertificateChanged { .. }
            | Self::CertificateUntrusted { .. }
            | Self::AmbiguousSystem { .. }
            | Self::SystemNotFound { .. } => false,
        }
    }

    /// Returns the error of a request that may have changed something, if its kind records that.
    #[must_use]
    pub(crate) fn with_sent(mut self, now: bool) -> Self {
        if let Self::Unreachable { sent, .. }
        | Self::TimedOut { sent, .. }
        | Self::Refused { sent, .. }
        | Self::Protocol { sent, .. } = &mut self
        {
            *sent = now;
        }
        self
    }
}

fn pin_hint(seen: Option<&Digest>) -> String {
    seen.map(|pin| format!(" with {pin} in bmc.redfish.tls.pins")).unwrap_or_default()
}

fn listed(systems: &[String]) -> String {
    if systems.is_empty() { "none".to_owned() } else { systems.join(", ") }
}

/// Returns true for invisible characters that affect others: control characters, and direction marks, by which a text
/// can rearrange its line.
pub fn is_hidden(sign: char) -> bool {
    sign.is_control()
        || matches!(sign, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Sanitizes a text of a BMC for users: no control characters, spaces collapsed, at most 300 characters.
pub fn printable(text: &str) -> String {
    let visible: String =
        text.chars().take(8 * MOST_TOLD).map(|c| if is_hidden(c) { ' ' } else { c }).collect();
    let folded = visible.split_whitespace().collect::<Vec<_>>().join(" ");
    if folded.chars().count() <= MOST_TOLD {
        return folded;
    }
    folded.chars().take(MOST_TOLD - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use bedplate_api::reason::Reason;

    use super::*;

    #[test]
    fn text_of_a_bmc_is_sanitized_and_shortened() {
        assert_eq!(printable("  a\u{1b}[31m\r\nb\t c\u{202e}d "), "a [31m b c d");
        let long = printable(&"é".repeat(5000));
        assert_eq!(long.chars().count(), MOST_TOLD);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn reasons_are_words_and_no_two_are_the_same() {
        let words: std::collections::BTreeSet<&str> = BmcFault::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(words.len(), BmcFault::ALL.len());
        assert!(words.iter().all(|word| word.bytes().all(|b| b.is_ascii_alphabetic())));
    }

    #[test]
    fn changed_certificate_is_reported_with_its_new_pin() {
        let error = BmcError::CertificateChanged {
            address: "10.9.0.21:443".to_owned(),
            seen: Digest::from_sha256([0xab; 32]),
        };
        assert!(error.to_string().contains(&format!("sha256:{}", "ab".repeat(32))), "{error}");
        assert!(!error.may_have_happened());
    }

    #[test]
    fn no_error_is_longer_than_a_condition_takes() {
        let error = BmcError::AmbiguousSystem { systems: vec!["é".repeat(300); 32] };
        let text = error.to_string();
        assert!(
            text.len() <= MAX_ERROR_BYTES && text.len() > MAX_ERROR_BYTES - 8 && text.ends_with('…'),
            "{}",
            text.len()
        );
    }
}
