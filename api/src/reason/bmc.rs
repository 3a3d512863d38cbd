//! Faults on the way to a management controller (BMC). They appear in `BMCReachable`, in Events, in power operations and in metrics.
//!
//! Pure.

use super::event::PxedEvent;
use super::machine::BmcReachableReason;
use super::operation::PowerOutcome;

/// Declares the faults and their conversions, so that no fault lacks a reason in the sets that show it.
macro_rules! faults {
    ($($(#[doc = $meaning:literal])+ $variant:ident,)+) => {
        /// Fault of a BMC, or of the way to it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum BmcFault {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl BmcFault {
            /// All faults, for closed sets of metric labels.
            pub const ALL: [Self; [$(stringify!($variant)),+].len()] = [$(Self::$variant,)+];

            /// The word, as the API shows it.
            pub fn as_str(self) -> &'static str {
                BmcReachableReason::from(self).as_str()
            }
        }

        impl From<BmcFault> for BmcReachableReason {
            fn from(fault: BmcFault) -> Self {
                match fault { $(BmcFault::$variant => Self::$variant,)+ }
            }
        }

        impl From<BmcFault> for PxedEvent {
            fn from(fault: BmcFault) -> Self {
                match fault { $(BmcFault::$variant => Self::$variant,)+ }
            }
        }

        impl From<BmcFault> for PowerOutcome {
            fn from(fault: BmcFault) -> Self {
                match fault { $(BmcFault::$variant => Self::$variant,)+ }
            }
        }
    };
}

faults! {
    /// The BMC does not answer, or only that it cannot answer now.
    BmcUnreachable,
    /// The BMC rejected the user name or the password.
    AuthenticationFailed,
    /// The BMC does not support the request.
    NotSupported,
    /// The BMC did not finish in time.
    TimedOut,
    /// The BMC rejected the request.
    Refused,
    /// The public key of the BMC is not pinned.
    CertificateChanged,
    /// The certificate of the BMC is not trusted.
    CertificateUntrusted,
    /// The BMC has several systems, and the Machine does not name one.
    AmbiguousSystem,
    /// The BMC does not have the named system.
    SystemNotFound,
    /// The address is invalid, or its network is not allowed.
    AddressNotAllowed,
    /// The BMC sent an answer that violates the protocol.
    ProtocolError,
    /// The credentials do not exist or are unreadable.
    CredentialsUnavailable,
    /// The credentials are not allowed for the address.
    CredentialsNotForThisAddress,
    /// The connection would not be verified.
    InsecureNotAllowed,
    /// Another Machine names the same BMC.
    DuplicateBmc,
}

impl std::fmt::Display for BmcFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_the_same_word_in_conditions_events_and_operations() {
        for fault in BmcFault::ALL {
            assert_eq!(fault.as_str(), PowerOutcome::from(fault).as_str());
            assert_eq!(fault.as_str(), PxedEvent::from(fault).as_str());
        }
    }
}
