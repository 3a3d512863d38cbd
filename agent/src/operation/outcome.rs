//! Outcomes of an effect, and the meaning of bus errors for it. Part of `run`.

use bedplate_api::reason::operation::AgentOutcome;
use bedplate_process::exit::chain;

use super::progress::End;
use crate::bus::BusError;

/// Outcome of an effect.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The operation is finished.
    End(End),
    /// A reboot or shutdown was requested and accepted.
    Accepted,
    /// Ready for the act itself; or nothing was done, and a retry is possible immediately.
    Ready,
    /// Nothing was done; retry later. With the human-readable reason.
    Later(String),
    /// The agent stops, or the operation was canceled.
    Interrupted,
}

/// Returns the result of an operation that the bus refused.
pub(super) fn bus_end(error: &BusError) -> End {
    let reason = match error {
        BusError::Away { .. } | BusError::NoAccess { .. } | BusError::NotALeader { .. } => {
            AgentOutcome::DbusError
        }
        BusError::NoAnswer { .. } | BusError::JobHangs { .. } => AgentOutcome::TimedOut,
        BusError::NoUnit { .. } => AgentOutcome::ServiceNotFound,
        BusError::NoService { .. } => AgentOutcome::NotSupported,
        BusError::Inhibited { .. } => AgentOutcome::ShutdownInhibited,
        BusError::Refused { .. } => AgentOutcome::Refused,
        BusError::Unexpected { .. } => AgentOutcome::ProtocolError,
    };
    End::failed(reason, chain(error))
}

/// Converts an error before the act: a temporary one is retried, any other ends the operation.
pub(super) fn before_act(error: &BusError) -> Outcome {
    if error.is_transient() { Outcome::Later(chain(error)) } else { Outcome::End(bus_end(error)) }
}
