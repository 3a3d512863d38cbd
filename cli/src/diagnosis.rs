//! Pure: the event that a Machine waits for, the actor, the time, and the next step of a user, from the object
//! alone.
//!
//! The order is that of `rules::phase`, which decides the reason of `Ready`. Two facts that a phase does not
//! show are added: an unreachable agent, and the next version of a Machine that is Ready. Called by `machine
//! explain`.

use std::collections::BTreeMap;

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::{
    Condition, Machine, MachineStatus, POWER_OFF_FINALIZER, PROVIDER_MANUAL, PROVIDER_PXE, Phase,
    condition_type as type_,
};
use bedplate_api::reason::configuration::{DegradedReason, ProgressingReason};
use bedplate_api::reason::diagnosis::DiagnosisReason;
use bedplate_api::reason::machine::{
    BootedReason, ConfigurationPendingReason, DrainedReason, EnrolledReason, NodeReadyReason, PavedReason,
    ReadyReason,
};
use bedplate_api::reason::{self, Actor, ConditionReason, Reason};
use bedplate_rules::claim::claimant;
use bedplate_rules::phase::{NodeFacts, Plane, Summary, summarize};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

/// Maximum age of an agent's heartbeat. Agents send one every five minutes; after this time an agent is
/// unreachable.
const HEARTBEAT_TIMEOUT: SignedDuration = SignedDuration::from_secs(15 * 60);

/// True if `Ready` has a reason for which a due selection is not made.
fn blocks_selection(ready: &Condition) -> bool {
    let own = [ReadyReason::NodeNameConflict, ReadyReason::NodeReregistered];
    let shown = [
        ConfigurationPendingReason::Claimed,
        ConfigurationPendingReason::ImageUnresolved,
        ConfigurationPendingReason::VersionNotFound,
        ConfigurationPendingReason::ConfigurationNotFound,
    ];
    own.iter().any(|reason| ready.reason == *reason) || shown.iter().any(|reason| ready.reason == *reason)
}

/// Next step of a reason.
fn text(reason: impl Reason) -> &'static str {
    reason.remedy().map_or("", |remedy| remedy.text)
}

/// Next step for a Machine that is paused.
fn unpause() -> &'static str {
    text(ReadyReason::Paused)
}

/// Diagnosis of a Machine: the event it waits for, and the actor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Diagnosis {
    /// The Machine.
    pub(crate) machine: String,
    /// Actor that must act; `None` if the Machine waits for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<Actor>,
    /// The condition's reason.
    pub(crate) reason: String,
    /// Expected event.
    pub(crate) what: String,
    /// Start of the wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    /// Next step for the user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) next: String,
    /// Other faults, which do not block the Machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) also: Vec<String>,
}

/// Configurations with a rolling update, by name, with the failure that has stopped them.
pub(crate) type Rolling = BTreeMap<String, Option<Stopped>>;

/// Failure in a rolling update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// True if the rolling update is paused until a user acts.
    is_paused: bool,
    message: String,
    /// Machines that failed.
    machines: Vec<String>,
}

impl Stopped {
    /// Returns the failure that the conditions of a configuration report.
    pub(crate) fn of(configuration: &MachineConfiguration) -> Option<Self> {
        let status = configuration.status.as_ref()?;
        let of = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
        let degraded = of(DegradedReason::TYPE).filter(|degraded| degraded.status == "True")?;
        let is_paused = of(ProgressingReason::TYPE)
            .is_some_and(|progressing| progressing.reason == ProgressingReason::PausedOnFailure);
        let machines = status.rollout_failures.iter().map(|failure| failure.machine.clone()).collect();
        Some(Self { is_paused, message: degraded.message.clone(), machines })
    }

    fn holds(&self, machine: &str) -> bool {
        self.is_paused || self.machines.iter().any(|failed| failed == machine)
    }
}

struct Look<'a> {
    machine: &'a Machine,
    status: &'a MachineStatus,
    now: Timestamp,
    rolling: &'a Rolling,
}

/// Returns true if a Machine runs another version than its selected one. Then it matters which configurations
/// are rolled out.
pub(crate) fn runs_another(machine: &Machine) -> bool {
    let status = machine.status.as_ref();
    let selected = status.and_then(|status| status.selected.as_ref()).map(|s| (s.name.as_str(), s.version));
    let applied = status.and_then(|status| status.applied.as_ref()).map(|a| (a.name.as_str(), a.version));
    selected.is_some() && applied.is_some() && selected != applied
}

/// Returns what a Machine waits for at `now`. `rolling` holds the configurations whose Machines get a newer
/// version without further action.
pub(crate) fn diagnose(machine: &Machine, rolling: &Rolling, now: Timestamp) -> Diagnosis {
    let status = machine.status.clone().unwrap_or_default();
    let look = Look { machine, status: &status, now, rolling };
    let steps = [Look::going, Look::left_alone, Look::claimed_twice, Look::silent, Look::unmet_first];
    let mut found = steps.iter().find_map(|step| step(&look)).unwrap_or_else(|| look.done());
    found.also = look.besides(&found);
    let name = found.machine.clone();
    found.next = found.next.replace("NAME", &name);
    found
}

impl Look<'_> {
    fn says(&self, from: Actor, reason: &str, what: impl Into<String>, next: &str) -> Diagnosis {
        let created = self.machine.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let machine = self.machine.metadata.name.clone().unwrap_or_default();
        let (reason, next) = (reason.to_owned(), next.to_owned());
        Diagnosis {
            machine,
            from: Some(from),
            reason,
            what: what.into(),
            since: created,
            next,
            also: Vec::new(),
        }
    }

    /// Returns the diagnosis of a condition with a known or unknown reason.
    fn of(&self, condition: &Condition) -> Diagnosis {
        let row = reason::of_condition(&condition.type_, &condition.reason);
        let (from, next) = row
            .and_then(|row| row.remedy)
            .map_or((Actor::User, "See `bedplate machine show NAME`."), |remedy| (remedy.actor, remedy.text));
        let what = if condition.message.is_empty() { &condition.reason } else { &condition.message };
        let since = Some(condition.last_transition_time.0);
        Diagnosis { since, ..self.says(from, &condition.reason, what, next) }
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    fn unmet(&self, type_: &str) -> Option<&Condition> {
        self.condition(type_).filter(|condition| condition.status != "True")
    }

    fn is_true(&self, type_: &str) -> bool {
        self.condition(type_).is_some_and(|condition| condition.status == "True")
    }

    fn going(&self) -> Option<Diagnosis> {
        let since = self.machine.metadata.deletion_timestamp.as_ref()?.0;
        let finalizers = self.machine.metadata.finalizers.clone().unwrap_or_default();
        let (from, next) = match finalizers.first().map(String::as_str) {
            Some(POWER_OFF_FINALIZER) if self.machine.spec.paused => (Actor::User, unpause()),
            Some(POWER_OFF_FINALIZER) => (
                Actor::Pxed,
                "No action needed; pxed powers the machine off first: `bedplate power status NAME`.",
            ),
            Some(name) if name.starts_with("bedplate.dev/") => {
                if let Some(drained) = self.condition(type_::DRAINED) {
                    return Some(self.of(drained));
                }
                (Actor::Controller, text(DrainedReason::Draining))
            }
            Some(_) => (Actor::Other, "No action needed; the program that set this finalizer removes it."),
            None => (Actor::Cluster, "No action needed."),
        };
        let what = match finalizers.as_slice() {
            [] => "the Machine is being deleted".to_owned(),
            names => format!("the Machine is being deleted; its finalizers are {}", names.join(", ")),
        };
        Some(Diagnosis { since: Some(since), ..self.says(from, ReadyReason::Deleting.as_str(), what, next) })
    }

    fn left_alone(&self) -> Option<Diagnosis> {
        if self.machine.spec.paused {
            let since = self.condition(type_::READY).filter(|ready| ready.reason == ReadyReason::Paused);
            let since = since.map(|ready| ready.last_transition_time.0);
            let what = "the Machine is paused; no program changes it";
            return Some(Diagnosis {
                since,
                ..self.says(Actor::User, ReadyReason::Paused.as_str(), what, unpause())
            });
        }
        None
    }

    /// Returns the diagnosis of a duplicate claim. It comes first, because pxed then serves none of the
    /// Machines.
    fn claimed_twice(&self) -> Option<Diagnosis> {
        let booted =
            self.unmet(type_::BOOTED).filter(|booted| booted.reason == BootedReason::DuplicateMacAddress)?;
        Some(self.of(booted))
    }

    /// Returns the diagnosis of an unreachable agent, whose last report may be outdated.
    fn silent(&self) -> Option<Diagnosis> {
        let heard = self.status.agent.as_ref()?.last_heartbeat_time.as_ref()?.0;
        if !self.is_true(type_::ENROLLED) || self.now.duration_since(heard) < HEARTBEAT_TIMEOUT {
            return None;
        }
        // The machine is off, so its agent is silent. An unreachable BMC reports no power state.
        if let Some(off) = self.unmet(type_::POWERED_ON).filter(|off| off.status == "False") {
            return Some(self.of(off));
        }
        let what = "the agent does not report any more; its last report of the node may be outdated";
        let next = "Check that the host is up, its clock is right, and it reaches the API server: `bedplate power status NAME`, and `bedplate-agent status` on the host.";
        Some(Diagnosis {
            since: Some(heard),
            ..self.says(Actor::Agent, DiagnosisReason::AgentSilent.as_str(), what, next)
        })
    }

    /// Returns the diagnosis of the first condition that is not met, or of another field that decides, in the order of `rules::phase` and `Ready`.
    fn unmet_first(&self) -> Option<Diagnosis> {
        let ready = self.unmet(type_::READY);
        let is =
            |reason: &str| ready.filter(|ready| ready.reason == reason).map(|ready| ready.message.clone());
        // The reason of `Ready` holds the controller's knowledge of the Node.
        let node = NodeFacts {
            not_ready: is(NodeReadyReason::NodeNotReady.as_str()),
            drained_for: is(ReadyReason::Updating.as_str()),
            failed_turn: None,
        };
        let blocked = ready.filter(|ready| blocks_selection(ready));
        let blocked = blocked.map(|ready| (ready.reason.as_str(), ready.message.as_str()));
        let shown = summarize(Plane::Cluster, self.machine, self.status, &node, blocked);
        if shown.is_ready() {
            return self.joined().or_else(|| self.next_version());
        }
        if let Some(condition) = shown.condition.as_deref().and_then(|type_| self.condition(type_)) {
            return Some(self.of(condition));
        }
        let is_of_ready = blocked.is_some() || node.not_ready.is_some() || node.drained_for.is_some();
        if let Some(ready) = ready.filter(|ready| is_of_ready && ready.reason == shown.reason) {
            return Some(self.of(ready));
        }
        Some(match shown.phase {
            Phase::Enrolled => self.unselected(),
            Phase::RolledBack => self.rolled_back()?,
            Phase::Pending | Phase::Booting => self.unheard(),
            Phase::Claimed | Phase::Failed | Phase::Releasing => self.held(&shown),
            _ => {
                let (what, next) = (
                    "the node is not created yet",
                    "No action needed; `bedplate machine show NAME` has the agent's report.",
                );
                self.says(Actor::Agent, ReadyReason::AwaitingAgent.as_str(), what, next)
            }
        })
    }

    /// Returns the diagnosis of a host that has neither booted nor enrolled.
    fn unheard(&self) -> Diagnosis {
        let site = &self.machine.spec.site;
        match self.machine.spec.provider.as_str() {
            PROVIDER_MANUAL => self.says(
                Actor::User,
                EnrolledReason::AwaitingEnrollment.as_str(),
                "no agent has enrolled; an operator must install it",
                "Run `bedplate machine token NAME` on pxed's machine, then `bedplate-agent enroll` on the host; see docs/concepts/agent.md.",
            ),
            PROVIDER_PXE if self.status.boot.is_none() => self.says(
                Actor::Host,
                BootedReason::AwaitingBoot.as_str(),
                format!("no pxed of site {site} has received a packet of the machine"),
                "Check power, boot order (network first) and MAC address, and that a pxed of the site runs: `bedplate explain NAME`.",
            ),
            PROVIDER_PXE => self.says(
                Actor::Agent,
                EnrolledReason::AwaitingEnrollment.as_str(),
                "the host has booted, and has not enrolled",
                "See the timeline with `bedplate machine show NAME`, and docs/concepts/agent.md.",
            ),
            provider => self.says(
                Actor::Other,
                EnrolledReason::AwaitingEnrollment.as_str(),
                format!("external provider {provider} has not enrolled the host"),
                "Check the controller of that provider; it enrolls the host with a token of `bedplate machine token NAME`; see docs/design/providers.md.",
            ),
        }
    }

    /// Returns the diagnosis of a host that has joined the cluster of its claimant.
    fn joined(&self) -> Option<Diagnosis> {
        let what = format!("the host has joined the cluster of {}", claimant(self.machine)?);
        let since = self.condition(type_::READY).map(|ready| ready.last_transition_time.0);
        Some(Diagnosis {
            from: None,
            since,
            ..self.says(Actor::User, ReadyReason::Joined.as_str(), what, "")
        })
    }

    /// Returns the diagnosis of a host that a claim holds, without a condition that its agent reports.
    fn held(&self, shown: &Summary) -> Diagnosis {
        let row = [PavedReason::TYPE, ReadyReason::TYPE]
            .iter()
            .find_map(|type_| reason::of_condition(type_, &shown.reason));
        let (from, next) =
            row.and_then(|row| row.remedy).map_or((Actor::Agent, ""), |remedy| (remedy.actor, remedy.text));
        let since = self.status.claim.as_ref().map(|claim| claim.since.0);
        Diagnosis { since, ..self.says(from, &shown.reason, shown.message.as_str(), next) }
    }

    fn unselected(&self) -> Diagnosis {
        let since = self.condition(type_::ENROLLED).map(|enrolled| enrolled.last_transition_time.0);
        let next = "Check that it runs: `kubectl -n bedplate-system get deployment bedplate-controller`. Without a cluster, check pxed.";
        let what = "the host is enrolled, and no version is selected yet";
        Diagnosis {
            since,
            ..self.says(Actor::Controller, PavedReason::NoVersionSelected.as_str(), what, next)
        }
    }

    fn rolled_back(&self) -> Option<Diagnosis> {
        let back = self.status.rolled_back.as_ref()?;
        let what = format!("{} failed and was rolled back: {}", back.from.version_name(), back.message);
        let next = format!(
            "Correct the MachineConfiguration, which makes a new version. Or name an earlier one, with updateStrategy OnDelete, because the \
             update continues on the other Machines: `bedplate config rollback {} --machine NAME`.",
            back.from.name
        );
        Some(Diagnosis {
            since: Some(back.time.0),
            ..self.says(Actor::User, ReadyReason::RolledBack.as_str(), what, &next)
        })
    }

    /// Returns the diagnosis of the next version of a Machine that is Ready.
    fn next_version(&self) -> Option<Diagnosis> {
        let (applied, selected) = (self.status.applied.as_ref()?, self.status.selected.as_ref()?);
        if !runs_another(self.machine) {
            return None;
        }
        let name = &selected.name;
        let what = format!("{} is selected, {} is running", selected.version_name(), applied.version_name());
        // The node runs, and the other slot is not filled.
        if let Some(paved) = self
            .condition(type_::PAVED)
            .filter(|c| c.reason != PavedReason::Applied && c.reason != PavedReason::Preparing)
        {
            return Some(Diagnosis { since: None, ..self.of(paved) });
        }
        if let Some(stopped) = self.rolling.get(name) {
            let own = self.machine.metadata.name.as_deref().unwrap_or_default();
            if let Some(stopped) = stopped.as_ref().filter(|stopped| stopped.holds(own)) {
                let what = format!("{what}; the rolling update has stopped: {}", stopped.message);
                let next = format!(
                    "Resolve that to continue the rolling update; see `bedplate config show {name}`."
                );
                return Some(self.says(Actor::User, DiagnosisReason::RolloutStopped.as_str(), what, &next));
            }
            let next =
                format!("No action needed; follow the rolling update with `bedplate config show {name}`.");
            return Some(self.says(Actor::Controller, DiagnosisReason::AwaitingTurn.as_str(), what, &next));
        }
        let next = "To repave the host: `kubectl drain NAME`, then `kubectl delete node NAME`.";
        Some(self.says(Actor::User, DiagnosisReason::AwaitingRepave.as_str(), what, next))
    }

    fn done(&self) -> Diagnosis {
        let since = self.condition(type_::NODE_READY).map(|ready| ready.last_transition_time.0);
        let what = match &self.status.applied {
            Some(applied) => format!("the Node is Ready with {}", applied.version_name()),
            None => "nothing is pending".to_owned(),
        };
        Diagnosis { from: None, since, ..self.says(Actor::User, ReadyReason::Ready.as_str(), what, "") }
    }

    fn besides(&self, found: &Diagnosis) -> Vec<String> {
        let unreachable = self.unmet(type_::BMC_REACHABLE).filter(|bmc| bmc.reason != found.reason);
        let bmc = unreachable.map(|bmc| format!("BMC: {} ({})", bmc.message, bmc.reason));
        // The host runs, and another host asks to enroll as this Machine.
        let other = self
            .condition(type_::ENROLLED)
            .filter(|enrolled| enrolled.reason == EnrolledReason::HeardElsewhere);
        let other = other.filter(|other| other.reason != found.reason).map(|other| other.message.clone());
        // `Ready` may have facts that are not derived here.
        let ready = self.unmet(type_::READY).filter(|_| found.from.is_none());
        let ready =
            ready.map(|ready| format!("Ready is {}: {} ({})", ready.status, ready.message, ready.reason));
        bmc.into_iter().chain(other).chain(ready).collect()
    }
}

#[cfg(test)]
mod tests;
