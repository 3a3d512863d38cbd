//! Reasons that no object has: the command line derives them from several fields.
//!
//! Pure.

use super::reasons;

reasons! {
    /// Reasons that only `bedplate machine explain` shows.
    pub enum DiagnosisReason: "Reasons that only `bedplate machine explain` shows" {
        AgentSilent: "The agent has not reported for 15 minutes."
            => Agent, "On the host: `bedplate-agent status`.";
        AwaitingRepave: "The selected version is not the one that runs. The host is repaved when its Node is deleted."
            => User, "To repave the host, delete its Node: `kubectl delete node NAME`.";
        AwaitingTurn: "A rolling update moves other Machines first."
            => Controller, "No action needed; `bedplate config show` has the progress.";
        RolloutStopped: "A Machine failed, and the rolling update has stopped."
            => User, "See condition Degraded of the MachineConfiguration.";
    }
}
