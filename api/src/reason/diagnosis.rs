//! Reasons that no object has: the command line derives them from several fields.
//!
//! Pure.

use super::reasons;

reasons! {
    /// Reasons that only `bedplate machine explain` shows.
    pub enum DiagnosisReason: "Reasons that only `bedplate machine explain` shows" {
        AgentSilent: "The agent has not reported for 15 minutes."
            => Agent, "On the host: `bedplate-agent status`.";
        AwaitingRepave: "Another version is selected than the one that runs. The host gets it when its Node is deleted."
            => User, "Delete the Node when it suits: `kubectl delete node NAME`.";
        AwaitingTurn: "A rolling update moves other Machines first."
            => Controller, "No action needed; `bedplate config show` has the progress.";
        RolloutStopped: "The rolling update does not continue, because a Machine failed."
            => User, "See condition Degraded of the MachineConfiguration.";
    }
}
