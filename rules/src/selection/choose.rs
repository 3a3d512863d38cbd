//! Pure: selection of a version for a Machine, and its replacement (H3, H4, C3).
//!
//! ```text
//! nothing matches: Pending --a reference, a selector--> Matched --host enrolled--> Select --decided--> Keep
//!                                                                                    ^                  |
//!                                       a user's reference, Node gone, rolling update `------------------'
//! ```
//!
//! A Machine in a pool (`spec.claimPolicy`) is matched by no selector: a MachineClaim chooses its version ([`super::choose_by_claim`]).
//!
//! A selector decides once. Afterwards the Machine behaves like one with a reference without version: later
//! selectors, priorities and labels do not move it. A caller that gets [`Choice::Select`] with `lock` writes
//! `deployed` of that version first, then `selected`. A reader of `selected` then always reads a version that
//! no longer changes.

use std::collections::BTreeMap;

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::{Machine, Selected, SelectionSource, condition_type};
use bedplate_api::reason::machine::ConfigurationPendingReason;
use bedplate_api::version::{MachineConfigurationVersion, version_name};

use crate::claim::{claimant, is_pooled};
use crate::selection::selector::judge;
use crate::selection::version::{is_deployed, is_of};

/// Maximum number of nearly matching configurations that a message names.
const MAX_NEAREST: usize = 3;
const MAX_UNMET: usize = 2;

/// Reason why a version is chosen again for a Machine that has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// `configurationRef` differs from the one of the last choice ([`reference_changed`]).
    PersonChangedReference,
    /// The Node was deleted, and the Machine is repaved.
    NodeGone,
    /// A rolling update has its turn.
    RollingUpdate,
}

/// Choice for a Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The Machine is paused or being deleted: no choice is written.
    LeaveAlone,
    /// Nothing is selected, and no choice is possible.
    Pending(Pending),
    /// Nothing is selected because the host is not enrolled yet. Holds the current match. Nothing is locked.
    Matched(Selected),
    /// Choice to write.
    Select(Select),
    /// The selected version stays. Holds the reason if another choice is due and cannot be made.
    Keep(Option<Pending>),
}

/// A choice that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Select {
    /// Value for `status.selected`.
    pub selected: Selected,
    /// True if the version is not deployed yet. The caller writes that first.
    pub lock: bool,
}

/// Reason why there is no choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Reason for the condition and for programs.
    pub reason: ConfigurationPendingReason,
    /// Message for users.
    pub message: String,
    /// Configurations whose selectors match best. Only with `NoConfiguration`.
    pub nearest: Vec<Miss>,
}

/// A configuration whose selector does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// The configuration's name.
    pub configuration: String,
    /// Requirements of the selector that the Machine does not meet.
    pub unmet: Vec<String>,
}

/// Returns true if a user references another configuration or version than the selected one. Removing the
/// version from the reference is not a change: the selected version stays until the next repave, which takes
/// the newest.
pub fn reference_changed(machine: &Machine) -> bool {
    let selected = machine.status.as_ref().and_then(|status| status.selected.as_ref());
    match (&machine.spec.configuration_ref, selected) {
        (Some(reference), Some(selected)) => {
            selected.source == SelectionSource::Selector
                || reference.name != selected.name
                || reference.version.is_some_and(|version| version != selected.version)
        }
        (None, _) | (_, None) => false,
    }
}

/// Chooses a version for one Machine among all configurations and versions. `again`: reason, for a Machine that has a version.
pub fn choose(
    machine: &Machine,
    again: Option<Again>,
    configurations: &[&MachineConfiguration],
    versions: &[&MachineConfigurationVersion],
) -> Choice {
    if machine.spec.paused || machine.metadata.deletion_timestamp.is_some() {
        return Choice::LeaveAlone;
    }
    let known = Known { configurations, versions };
    let selected = machine.status.as_ref().and_then(|status| status.selected.as_ref());
    match (selected, again) {
        (None, _) => match known.first(machine) {
            Err(pending) => Choice::Pending(pending),
            Ok(select) if !is_enrolled(machine) => Choice::Matched(select.selected),
            Ok(select) => Choice::Select(select),
        },
        (Some(_), None) => Choice::Keep(None),
        (Some(selected), Some(again)) => {
            if let Some(claimed) = claim(machine) {
                return Choice::Keep(Some(claimed));
            }
            match known.next(machine, selected) {
                Err(pending) => Choice::Keep(Some(pending)),
                // The Machine is repaved with the same version.
                Ok(select) if select.selected == *selected && again != Again::NodeGone => Choice::Keep(None),
                Ok(select) => Choice::Select(select),
            }
        }
    }
}

/// Returns the version that a repave would select for a Machine that has a version, even if it is paused or
/// claimed. Returns `None` if the Machine has no version, or if the version to choose does not exist.
pub fn repave(
    machine: &Machine,
    configurations: &[&MachineConfiguration],
    versions: &[&MachineConfigurationVersion],
) -> Option<Selected> {
    let selected = machine.status.as_ref()?.selected.as_ref()?;
    let next = Known { configurations, versions }.next(machine, selected);
    next.ok().map(|select| select.selected)
}

fn claim(machine: &Machine) -> Option<Pending> {
    let message =
        format!("{} has claimed this Machine; only the claim selects its version", claimant(machine)?);
    Some(pending(ConfigurationPendingReason::Claimed, message))
}

/// Returns the reason why nothing is selected for a Machine in a pool.
pub(super) fn unclaimed(machine: &Machine) -> Option<Pending> {
    let policy = machine.spec.claim_policy.as_ref().filter(|_| is_pooled(machine))?;
    let message = match claimant(machine) {
        Some(by) => format!("the host is held by {by}, and its MachineClaim is missing"),
        None => format!(
            "no MachineClaim holds the host; namespaces in its pool: {}",
            policy.namespaces.join(", ")
        ),
    };
    Some(pending(ConfigurationPendingReason::ClaimPending, message))
}

fn is_enrolled(machine: &Machine) -> bool {
    let conditions = machine.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|c| c.type_ == condition_type::ENROLLED && c.status == "True")
}

pub(super) fn pending(reason: ConfigurationPendingReason, message: String) -> Pending {
    Pending { reason, message, nearest: Vec::new() }
}

/// Objects to choose from.
pub(super) struct Known<'a> {
    pub(super) configurations: &'a [&'a MachineConfiguration],
    pub(super) versions: &'a [&'a MachineConfigurationVersion],
}

impl<'a> Known<'a> {
    /// Makes the first choice.
    fn first(&self, machine: &Machine) -> Result<Select, Pending> {
        if let Some(unclaimed) = unclaimed(machine) {
            return Err(unclaimed);
        }
        if let Some(reference) = &machine.spec.configuration_ref {
            let configuration = self.named(&reference.name)?;
            let version = match reference.version {
                Some(version) => self.numbered(configuration, version)?,
                None => self.newest(configuration)?,
            };
            return Ok(select(version, SelectionSource::Reference));
        }
        let configuration = self.matching(machine)?;
        // C3: the version that Machines have already, or the first one of a new configuration.
        let versions = self.of(configuration);
        let deployed = versions.values().rev().find(|version| is_deployed(version));
        match deployed.or_else(|| versions.get(&1)) {
            Some(version) => Ok(select(version, SelectionSource::Selector)),
            None => Ok(select(self.newest(configuration)?, SelectionSource::Selector)),
        }
    }

    /// Makes a further choice: by the reference, or by the selected configuration as a reference without version.
    fn next(&self, machine: &Machine, selected: &Selected) -> Result<Select, Pending> {
        match &machine.spec.configuration_ref {
            Some(_) => self.first(machine),
            None => Ok(select(self.newest(self.named(&selected.name)?)?, selected.source)),
        }
    }

    /// Returns the configuration whose selector decides: highest priority, then name. Returns none while one of higher rank may match, because a
    /// choice is made once.
    fn matching(&self, machine: &Machine) -> Result<&'a MachineConfiguration, Pending> {
        let live = self.configurations.iter().filter(|c| c.metadata.deletion_timestamp.is_none());
        let mut misses = Vec::new();
        let mut best: Option<(&MachineConfiguration, Vec<String>)> = None;
        for &configuration in live {
            let Some(selector) = &configuration.spec.machine_selector else { continue };
            let verdict = judge(selector, machine);
            let rank =
                |c: &MachineConfiguration| (std::cmp::Reverse(c.spec.priority), c.metadata.name.clone());
            if !verdict.unmet.is_empty() {
                misses.push(Miss { configuration: name(configuration), unmet: verdict.unmet });
            } else if best.as_ref().is_none_or(|(best, _)| rank(configuration) < rank(best)) {
                best = Some((configuration, verdict.unknown));
            }
        }
        match best {
            None => Err(no_configuration(misses)),
            Some((configuration, unknown)) if unknown.is_empty() => Ok(configuration),
            Some((configuration, unknown)) => {
                let message = format!(
                    "machineSelector of {} requires {}; the agent of the host has not reported it yet",
                    name(configuration),
                    unknown.join(" and ")
                );
                Err(pending(ConfigurationPendingReason::HardwareNotReported, message))
            }
        }
    }

    pub(super) fn named(&self, wanted: &str) -> Result<&'a MachineConfiguration, Pending> {
        let found = self.configurations.iter().find(|c| c.metadata.name.as_deref() == Some(wanted));
        found.copied().ok_or_else(|| {
            pending(
                ConfigurationPendingReason::ConfigurationNotFound,
                format!("MachineConfiguration {wanted} does not exist"),
            )
        })
    }

    /// Returns the versions of a configuration that are not being deleted, by number.
    fn of(&self, configuration: &MachineConfiguration) -> BTreeMap<i64, &'a MachineConfigurationVersion> {
        let of = self.versions.iter().filter(|version| is_of(version, configuration));
        let live = of.filter(|version| version.metadata.deletion_timestamp.is_none());
        live.map(|version| (version.spec.version, *version)).collect()
    }

    pub(super) fn newest(
        &self,
        configuration: &MachineConfiguration,
    ) -> Result<&'a MachineConfigurationVersion, Pending> {
        self.of(configuration).pop_last().map(|(_, version)| version).ok_or_else(|| {
            let message = format!("MachineConfiguration {} has no version yet", name(configuration));
            pending(ConfigurationPendingReason::VersionNotFound, message)
        })
    }

    pub(super) fn numbered(
        &self,
        configuration: &MachineConfiguration,
        number: i64,
    ) -> Result<&'a MachineConfigurationVersion, Pending> {
        let versions = self.of(configuration);
        versions.get(&number).copied().ok_or_else(|| {
            let there: Vec<String> = versions.keys().rev().take(10).map(i64::to_string).collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            let wanted = version_name(&name(configuration), number);
            let message =
                format!("MachineConfigurationVersion {wanted} does not exist; the newest are: {there}");
            pending(ConfigurationPendingReason::VersionNotFound, message)
        })
    }
}

fn name(configuration: &MachineConfiguration) -> String {
    configuration.metadata.name.clone().unwrap_or_default()
}

pub(super) fn select(version: &MachineConfigurationVersion, source: SelectionSource) -> Select {
    let (name, number) = (version.spec.configuration_name.clone(), version.spec.version);
    let selected = Selected { name, version: number, source, provider_id: None, granted: false };
    Select { selected, lock: !is_deployed(version) }
}

fn no_configuration(mut misses: Vec<Miss>) -> Pending {
    misses.sort_by_cached_key(|miss| (miss.unmet.len(), miss.configuration.clone()));
    misses.truncate(MAX_NEAREST);
    let nearest = misses.iter().map(|miss| {
        let more = if miss.unmet.len() > MAX_UNMET { ", ..." } else { "" };
        let unmet: Vec<&str> = miss.unmet.iter().take(MAX_UNMET).map(String::as_str).collect();
        format!("{} (requires {}{more})", miss.configuration, unmet.join("; "))
    });
    let nearest = nearest.collect::<Vec<_>>().join(", ");
    let message = if nearest.is_empty() {
        "spec.configurationRef names no MachineConfiguration, and none has a machineSelector".to_owned()
    } else {
        format!(
            "spec.configurationRef names no MachineConfiguration, and no machineSelector matches; nearest: {nearest}"
        )
    };
    Pending { nearest: misses, ..pending(ConfigurationPendingReason::NoConfiguration, message) }
}
