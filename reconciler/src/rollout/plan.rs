//! Pure: next steps of a rolling update (C4), from the Machines that `judge` returns.
//!
//! Only the cordon at the start of a turn makes a Machine unavailable, so only it checks the budget. The
//! budget counts all unavailable Machines, for any reason. Taking a Machine only makes its host fetch the
//! version.

use bedplate_api::configuration::{IntOrString, MachineConfiguration, RollingUpdate, UpdateStrategyType};
use jiff::SignedDuration;

use super::observe::{Failure, Member, Place, Rollout};
use crate::cordon::{Failed, UpdateFailure};

/// Next step of a rolling update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Uncordon a Node that the controller has cordoned. Record the failure if the turn has failed.
    Free {
        /// The Machine.
        machine: String,
        /// UID of the Node.
        node_uid: String,
        /// Failure that is recorded on the Node.
        failed: Option<Failed>,
    },
    /// Evict more Pods. Delete the Node when none is left; fail the turn when it times out.
    Drain {
        /// The Machine.
        machine: String,
        /// UID of the Node.
        node_uid: String,
        /// Next version (`<configuration>-v<N>`).
        version: String,
    },
    /// Start the turn of a Machine.
    Cordon {
        /// The Machine.
        machine: String,
        /// UID of the Node.
        node_uid: String,
        /// Next version (`<configuration>-v<N>`).
        version: String,
    },
    /// Select the version, so that the host fetches it.
    Take {
        /// The Machine.
        machine: String,
    },
}

/// Returns the settings of a rolling update. Returns `None` if the configuration has another strategy, or is
/// being deleted.
pub fn settings(configuration: &MachineConfiguration) -> Option<RollingUpdate> {
    let strategy = &configuration.spec.update_strategy;
    let rolls = strategy.type_ == UpdateStrategyType::RollingUpdate
        && configuration.metadata.deletion_timestamp.is_none();
    rolls.then(|| strategy.rolling_update.clone().unwrap_or_else(defaults))
}

/// Returns the defaults of the API.
fn defaults() -> RollingUpdate {
    RollingUpdate {
        max_unavailable: IntOrString::Int(1),
        drain_timeout_seconds: 600,
        pause_on_failure: true,
        drain: None,
    }
}

/// Returns the timeout for draining a Machine of this configuration.
pub fn limit(configuration: Option<&MachineConfiguration>) -> SignedDuration {
    let strategy =
        configuration.and_then(|configuration| configuration.spec.update_strategy.rolling_update.as_ref());
    let seconds =
        strategy.map_or_else(|| defaults().drain_timeout_seconds, |rolling| rolling.drain_timeout_seconds);
    SignedDuration::from_secs(seconds.into())
}

/// Returns the number of Machines that may be unavailable; a percentage is rounded up.
pub fn allowed(max_unavailable: &IntOrString, machines: usize) -> usize {
    match max_unavailable {
        IntOrString::Int(count) => usize::try_from(*count).unwrap_or(0).max(1),
        IntOrString::String(percent) => {
            let percent: usize = percent.trim_end_matches('%').parse().unwrap_or(0);
            (machines * percent).div_ceil(100).max(1)
        }
    }
}

impl Rollout {
    /// Returns the number of unavailable Machines.
    pub fn unavailable(&self) -> usize {
        self.members.iter().filter(|member| member.unavailable.is_some()).count()
    }

    /// Returns true if the hosts that cannot fetch the version outnumber both `allowed` and the hosts that
    /// have it. The version is then at fault, not the hosts. No further host should lose the version in its
    /// other slot.
    pub(crate) fn is_unfetched(&self, allowed: usize) -> bool {
        let count = |is: fn(&Place) -> bool| self.members.iter().filter(|member| is(&member.place)).count();
        let got = |place: &Place| {
            matches!(place, Place::UpToDate | Place::Repaving | Place::Prepared(_) | Place::Draining(_))
        };
        count(|place| matches!(place, Place::Awaiting(..))) > allowed.max(count(got))
    }

    /// Returns true if a failure pauses the update, so that nothing new is started.
    pub fn is_paused(&self, settings: &RollingUpdate) -> bool {
        settings.pause_on_failure && self.failures().next().is_some()
    }

    /// Returns the Machines that failed.
    pub fn failures(&self) -> impl Iterator<Item = (&Member, &Failure)> {
        self.members.iter().filter_map(|member| match &member.place {
            Place::Failed(failure) => Some((member, failure)),
            _ => None,
        })
    }
}

/// Plans the steps for one configuration. `settings`: None if it has no rolling update.
pub fn plan(rollout: &Rollout, settings: Option<&RollingUpdate>) -> Vec<Step> {
    let Some(settings) = settings else { return give_up_all(rollout) };
    if rollout.is_paused(settings) {
        return give_up_all(rollout);
    }
    let mut steps: Vec<Step> =
        rollout.members.iter().filter(|member| member.is_held_in_vain()).filter_map(free).collect();
    let allowed = allowed(&settings.max_unavailable, rollout.members.len());
    let mut used = rollout.unavailable();
    let mut at_hand = 0;
    for member in &rollout.members {
        let (machine, Some(node_uid)) = (member.name.clone(), member.node_uid.clone()) else { continue };
        match &member.place {
            Place::Draining(version) => {
                at_hand += 1;
                steps.push(go_on(rollout, member, machine, node_uid, version));
            }
            Place::Prepared(version) => {
                at_hand += 1;
                if used < allowed {
                    used += 1;
                    steps.push(Step::Cordon { machine, node_uid, version: version.clone() });
                }
            }
            Place::Preparing(_) => at_hand += 1,
            // These Machines are left as they are, and the others continue. A registry that one host cannot
            // reach does not stop the update.
            Place::Awaiting(..)
            | Place::UpToDate
            | Place::Repaving
            | Place::Skipped(_)
            | Place::Failed(_)
            | Place::Outdated(_) => {}
        }
    }
    let outdated = rollout.members.iter().filter(|member| matches!(member.place, Place::Outdated(_)));
    let room = if rollout.is_unfetched(allowed) { 0 } else { allowed.saturating_sub(at_hand) };
    let taken = outdated.take(room);
    steps.extend(taken.map(|member| Step::Take { machine: member.name.clone() }));
    steps
}

fn go_on(rollout: &Rollout, member: &Member, machine: String, node_uid: String, version: &str) -> Step {
    let version = version.to_owned();
    if member.hold.as_ref().is_some_and(|hold| hold.cordoned) {
        return Step::Drain { machine, node_uid, version };
    }
    let message = "Node was uncordoned during the drain".to_owned();
    let failed =
        Failed { version, generation: rollout.generation, reason: UpdateFailure::Uncordoned, message };
    Step::Free { machine, node_uid, failed: Some(failed) }
}

/// Uncordons Nodes that were cordoned for a rolling update that no longer applies.
fn give_up_all(rollout: &Rollout) -> Vec<Step> {
    let draining = |member: &&Member| matches!(member.place, Place::Draining(_));
    let held = rollout.members.iter().filter(|member| member.is_held_in_vain() || draining(member));
    held.filter_map(free).collect()
}

fn free(member: &Member) -> Option<Step> {
    let node_uid = member.node_uid.clone()?;
    Some(Step::Free { machine: member.name.clone(), node_uid, failed: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(places: &[Place]) -> Rollout {
        let members = places.iter().enumerate().map(|(number, place)| Member {
            name: format!("m{number}"),
            unavailable: None,
            place: place.clone(),
            hold: None,
            node_uid: Some(format!("n{number}")),
            departs: false,
        });
        let configuration = "w".to_owned();
        Rollout { configuration, generation: 1, members: members.collect() }
    }

    #[test]
    fn c4_a_host_that_does_not_get_the_version_keeps_no_other_from_its_turn() {
        let v2 = || "w-v2".to_owned();
        let awaiting = || Place::Awaiting(v2(), "ImageUnavailable".to_owned());
        let (outdated, preparing) = (|| Place::Outdated(v2()), || Place::Preparing(v2()));
        let take = |number: usize| Step::Take { machine: format!("m{number}") };
        let cordon = |number: usize| {
            let (machine, node_uid) = (format!("m{number}"), format!("n{number}"));
            Step::Cordon { machine, node_uid, version: v2() }
        };
        for (places, steps) in [
            (vec![preparing(), outdated()], vec![]),
            (vec![awaiting(), outdated()], vec![take(1)]),
            (vec![awaiting(), preparing(), outdated()], vec![]),
            (vec![awaiting(), Place::Prepared(v2()), outdated()], vec![cordon(1)]),
            // The version is at fault, not the hosts. The others keep the version of their other slot.
            (vec![awaiting(), awaiting(), outdated()], vec![]),
            (vec![awaiting(), awaiting(), Place::UpToDate, Place::UpToDate, outdated()], vec![take(4)]),
        ] {
            assert_eq!(plan(&rollout(&places), Some(&defaults())), steps, "{places:?}");
        }
    }

    #[test]
    fn c4_a_percentage_is_rounded_up_and_one_machine_may_always_be_updated() {
        let percent = |text: &str, machines| allowed(&IntOrString::String(text.to_owned()), machines);
        assert_eq!(
            [percent("25%", 3), percent("25%", 4), percent("25%", 5), percent("100%", 7)],
            [1, 1, 2, 7]
        );
        assert_eq!([percent("1%", 0), allowed(&IntOrString::Int(3), 1)], [1, 3]);
    }
}
