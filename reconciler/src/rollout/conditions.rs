//! Pure: state of a rolling update, for `Progressing` and `Degraded` of its configuration (docs/guides/rolling-updates.md).

use bedplate_api::condition::MAX_MESSAGE;
use bedplate_api::configuration::{MachineConfiguration, RollingUpdate, RolloutFailure};
use bedplate_api::machine::Machine;
use bedplate_api::reason::configuration::{DegradedReason, ProgressingReason};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_rules::drain::list_of;

use super::observe::{Clocks, Member, Nodes, Place, Rollout, judge};
use super::plan::{allowed, settings};
use crate::configuration_conditions::Standing;

/// Maximum number of Machines per group that a message names.
const MAX_NAMED_MACHINES: usize = 3;
/// Maximum number of failures in a status.
const MAX_FAILURES: usize = 16;

/// Returns the state of a configuration's rolling update. Returns `None` if the configuration does not roll
/// out.
pub fn standing(
    configuration: &MachineConfiguration,
    machines: &[&Machine],
    nodes: Nodes<'_>,
    versions: &[&MachineConfigurationVersion],
    clocks: Clocks<'_>,
) -> Option<Standing> {
    let settings = settings(configuration)?;
    let rollout = judge(configuration, machines, nodes, versions, clocks);
    Some(Standing {
        progressing: progressing(&rollout, &settings),
        degraded: degraded(&rollout, &settings),
        failures: failures(&rollout),
    })
}

fn progressing(rollout: &Rollout, settings: &RollingUpdate) -> (bool, ProgressingReason, String) {
    let members = &rollout.members;
    if members.is_empty() {
        return (
            false,
            ProgressingReason::NoMachines,
            "no Machine uses this MachineConfiguration".to_owned(),
        );
    }
    let done = members.iter().filter(|member| member.place == Place::UpToDate).count();
    let mut parts =
        vec![format!("{done} of {} Machines run the version that a repave would select", members.len())];
    let at_hand: Vec<String> = members.iter().filter_map(at_hand).collect();
    let skipped: Vec<String> = members.iter().filter_map(skipped).collect();
    let awaiting: Vec<String> = members.iter().filter_map(awaiting).collect();
    let waiting = members.iter().filter(|m| matches!(m.place, Place::Outdated(_))).count();
    parts.extend(at_hand.first().map(|_| some(&at_hand)));
    if waiting > 0 {
        parts.push(format!("{waiting} waiting for their turn"));
    }
    parts.extend(awaiting.first().map(|_| some(&awaiting)));
    if !skipped.is_empty() {
        parts.push(format!("skipped: {}", some(&skipped)));
    }
    let may_begin = members.iter().any(|member| matches!(member.place, Place::Prepared(_)));
    let budget = used_up(rollout, settings).filter(|_| may_begin);
    parts.extend(budget.clone());
    let is_unfetched = rollout.is_unfetched(allowed(&settings.max_unavailable, members.len()));
    let (moves, reason) = match () {
        () if rollout.is_paused(settings) => (false, ProgressingReason::PausedOnFailure),
        () if budget.is_some() => (true, ProgressingReason::MaxUnavailableReached),
        () if !at_hand.is_empty() || waiting > 0 && !is_unfetched => (true, ProgressingReason::RollingOut),
        () if !awaiting.is_empty() => (true, ProgressingReason::AwaitingPrefetch),
        () if rollout.failures().next().is_some() || !skipped.is_empty() => {
            (false, ProgressingReason::MachinesSkipped)
        }
        () => (false, ProgressingReason::UpToDate),
    };
    (moves, reason, parts.join("; "))
}

fn at_hand(member: &Member) -> Option<String> {
    let name = &member.name;
    match &member.place {
        Place::Repaving => Some(format!("{name} is being paved")),
        Place::Preparing(version) => Some(format!("{name} is fetching {version}")),
        Place::Prepared(version) => Some(format!("{name} has fetched {version}")),
        Place::Draining(version) => {
            let hold = member.hold.as_ref();
            let since = hold.and_then(|hold| hold.began).map(|began| format!(" since {began:.0}"));
            let pending =
                hold.and_then(|hold| hold.pending.as_ref()).map(|pods| format!(", waiting for {pods}"));
            let (since, pending) = (since.unwrap_or_default(), pending.unwrap_or_default());
            Some(format!("{name} is being drained for {version}{since}{pending}"))
        }
        Place::UpToDate | Place::Skipped(_) | Place::Failed(_) | Place::Outdated(_) | Place::Awaiting(..) => {
            None
        }
    }
}

fn skipped(member: &Member) -> Option<String> {
    match &member.place {
        Place::Skipped(skip) => Some(format!("{} ({})", member.name, skip.message())),
        _ => None,
    }
}

/// Returns the pending event of a Machine that may never occur. The Machine's turn may still come at any
/// time.
fn awaiting(member: &Member) -> Option<String> {
    match &member.place {
        Place::Awaiting(version, reason) => {
            Some(format!("{} has not prepared {version} ({reason}; see its condition Paved)", member.name))
        }
        _ => None,
    }
}

/// Returns the reason why the next Machine's turn cannot start.
fn used_up(rollout: &Rollout, settings: &RollingUpdate) -> Option<String> {
    let allowed = allowed(&settings.max_unavailable, rollout.members.len());
    let used = rollout.unavailable();
    let why = rollout.members.iter();
    let why = why.filter_map(|member| Some(format!("{} ({})", member.name, member.unavailable?)));
    let why: Vec<String> = why.collect();
    (used >= allowed).then(|| {
        format!(
            "no further Machine can start: {used} unavailable, maxUnavailable is {allowed}: {}",
            some(&why)
        )
    })
}

fn degraded(rollout: &Rollout, settings: &RollingUpdate) -> Option<(DegradedReason, String)> {
    let (_, gravest) = rollout.failures().next()?;
    let messages = rollout.failures().map(|(Member { name, .. }, failure)| {
        format!("{name}: {}; {}", failure.message, failure.remedy.replace("NAME", name))
    });
    let messages: Vec<String> = messages.collect();
    let more = if settings.pause_on_failure {
        "rolling update is paused until this is resolved (pauseOnFailure); "
    } else {
        ""
    };
    Some((gravest.reason, format!("{more}{}", some(&messages))))
}

/// Returns the first Machines that failed, by name.
fn failures(rollout: &Rollout) -> Vec<RolloutFailure> {
    let failed = rollout.failures().map(|(member, failure)| RolloutFailure {
        machine: member.name.clone(),
        reason: failure.reason.as_str().to_owned(),
        message: failure.message.chars().take(MAX_MESSAGE).collect(),
    });
    failed.take(MAX_FAILURES).collect()
}

/// Returns the first names, and the number of the others.
fn some(all: &[String]) -> String {
    list_of(all, MAX_NAMED_MACHINES)
}
