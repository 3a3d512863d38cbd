//! Faults on the way to a management controller (BMC). They appear in `BMCReachable`, in Events, in power operations and in metrics.
//!
//! One list has the rows of the faults that mean the same in each of these sets. `NotSupported`, `TimedOut` and `Refused` have a row in each
//! set: of an operation they mean more than of a connection.
//!
//! Pure.

use super::event::PxedEvent;
use super::machine::BmcReachableReason;
use super::operation::PowerOutcome;

/// Calls a macro with what is given, in brackets, and the rows of the faults behind it.
macro_rules! with_bmc_faults {
    ($then:ident $($given:tt)*) => { $then! { [$($given)*]
            BmcUnreachable = "BMCUnreachable": "The BMC does not answer."
                => Bmc, "See `bedplate power status NAME`; `bedplate bmc probe` asks the BMC from your host.";
            AuthenticationFailed: "The BMC rejected the user name or the password."
                => User, "Correct the Secret that spec.bmc.credentialsSecretRef names. Check that the account is not locked.";
            CertificateChanged: "The public key of the BMC is not one of spec.bmc.redfish.tls.pins. pxed sent nothing."
                => User, "Compare the reported pin with the BMC's own page before you add it to spec.bmc.redfish.tls.pins.";
            CertificateUntrusted: "No trusted authority signed the BMC's certificate, or it expired or names another host. pxed sent nothing."
                => User, "Set spec.bmc.redfish.tls.caBundle, or pin the key: `bedplate bmc probe` shows the pin.";
            AmbiguousSystem: "The BMC has several systems, and the Machine does not name one."
                => User, "Set spec.bmc.redfish.systemID to one of the listed systems.";
            SystemNotFound: "The BMC does not have the system in spec.bmc.redfish.systemID."
                => User, "Set spec.bmc.redfish.systemID to one of the listed systems.";
            AddressNotAllowed: "The address is invalid, or its network is not allowed."
                => User, "Correct spec.bmc.address, or allow its network in pxed's bmc.allowed-networks.";
            ProtocolError: "The answer of the BMC violates the protocol, or it is larger than 256 KiB."
                => Bmc, "Check the firmware version of the BMC, and proxies in between.";
            CredentialsUnavailable: "The Secret does not exist, is unreadable, or is in a namespace that is not allowed."
                => User, "Create the Secret with the keys username and password in a namespace of bmc.secret-namespaces (docs/guides/bmc.md).";
            CredentialsNotForThisAddress: "The Secret does not list the address in spec.bmc.address. pxed sent nothing."
                => User, "Check spec.bmc.address, then list it in the Secret's annotation bedplate.dev/bmc-addresses (docs/guides/bmc.md).";
            InsecureNotAllowed: "The address is http://, or bmc.redfish.tls.mode is Insecure. pxed sent nothing."
                => User, "Use https:// and pin the key: `bedplate bmc probe` shows the pin for spec.bmc.redfish.tls.pins (docs/guides/bmc.md).";
            DuplicateBmc = "DuplicateBMC": "Another Machine names the same BMC and system. pxed drives neither."
                => User, "Correct bmc.address or bmc.redfish.systemID of one of the two Machines.";
    } };
}

/// Declares an enum of reasons that has the faults too.
macro_rules! reasons_with {
    (
        [
            $(#[$of_all:meta])*
            pub enum $name:ident: $title:literal $(, condition $type_:path)? { $($own:tt)* }
        ]
        $($faults:tt)*
    ) => {
        $crate::reason::reasons! {
            $(#[$of_all])*
            pub enum $name: $title $(, condition $type_)? { $($own)* $($faults)* }
        }
    };
}

/// Converts the faults into the sets that show them, so that no fault lacks a reason there.
macro_rules! conversions {
    ([$($own:ident)*] $($variant:ident $(= $word:literal)?: $meaning:literal => $actor:ident, $text:literal;)*) => {
        conversions! { @into BmcReachableReason $($own)* $($variant)* }
        conversions! { @into PxedEvent $($own)* $($variant)* }
        conversions! { @into PowerOutcome $($own)* $($variant)* }
    };
    (@into $set:ident $($variant:ident)*) => {
        impl From<BmcFault> for $set {
            fn from(fault: BmcFault) -> Self {
                match fault { $(BmcFault::$variant => Self::$variant,)* }
            }
        }
    };
}

pub(crate) use {reasons_with, with_bmc_faults};

with_bmc_faults! { reasons_with
    /// Fault of a BMC, or of the way to it.
    pub enum BmcFault: "Faults of a BMC" {
        NotSupported: "The BMC does not support the request.";
        TimedOut: "The BMC did not finish in time.";
        Refused: "The BMC rejected the request.";
    }
}

with_bmc_faults! { conversions NotSupported TimedOut Refused }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Reason;

    #[test]
    fn a_fault_has_the_same_word_in_conditions_events_and_operations() {
        for fault in BmcFault::ALL.iter().copied() {
            let word = fault.as_str();
            assert_eq!(BmcReachableReason::from(fault).as_str(), word);
            assert_eq!(PowerOutcome::from(fault).as_str(), word);
            assert_eq!(PxedEvent::from(fault).as_str(), word);
        }
    }
}
