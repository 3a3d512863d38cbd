//! Pure: problems of the manifests for users, in `/readyz` and in the log. Called by `follow`.

use std::collections::BTreeMap;

use bedplate_api::configuration::UpdateStrategyType;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{DeletionPolicy, MachineStatus};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_bootstrap::makes_a_cluster;
use bedplate_rules::claim::is_pooled;
use bedplate_rules::selection::{Choice, References, Select, choose};

use super::plan::{Manifests, by_name, cluster_of};
use super::state::{State, with_status};
use crate::machines::{KnownMachine, Snapshot};
use crate::power::plan::claim::follows_claims;

/// Number of names in a text.
const MAX_NAMES: usize = 10;

/// Problems of the manifests, and objects that are kept although no manifest has them, as texts for users.
pub(super) fn problems(
    state: &State,
    manifests: &Manifests,
    machines: Option<&Snapshot>,
    references: &References,
    status_of: &dyn Fn(&MachineName) -> Option<MachineStatus>,
) -> Vec<String> {
    let twice = by_name(manifests).into_iter().filter(|(_, places)| places.len() > 1);
    let twice = twice.map(|(name, places)| {
        let places: Vec<String> = places.iter().map(|sourced| sourced.place()).collect();
        format!("MachineConfiguration {name} is defined in {}; neither is used", places.join(" and in "))
    });
    let kept = state.configurations.iter().filter(|(_, configured)| configured.is_removed());
    let kept = kept.map(|(name, configured)| {
        let machines: Vec<&str> = references.of_configuration(name).into_iter().collect();
        format!(
            "MachineConfiguration {name} was removed from its manifest ({}) and is kept while it is in use \
             by {}; write it again, or give these Machines another one",
            configured.origin,
            machines.join(" and ")
        )
    });
    let drained = machines.into_iter().flat_map(Snapshot::iter);
    let drained =
        drained.filter(|known| known.machine.spec.deletion_policy == DeletionPolicy::Drain).map(|known| {
            format!(
                "Machine {}: deletionPolicy Drain has no effect without a cluster, so the node continues to \
                 run after its manifest is removed; write Retain or PowerOff",
                known.name
            )
        });
    let rolling = state.configurations.iter().filter(|(_, configured)| {
        let strategy = &configured.configuration.spec.update_strategy;
        !configured.is_removed() && strategy.type_ == UpdateStrategyType::RollingUpdate
    });
    let rolling = rolling.map(|(name, _)| {
        format!(
            "MachineConfiguration {name}: updateStrategy RollingUpdate works as OnDelete without a cluster; \
             delete the Nodes one by one, or write OnDelete"
        )
    });
    let pooled = machines.into_iter().flat_map(Snapshot::iter);
    let pooled = pooled.filter(|known| is_pooled(&known.machine)).map(|known| {
        format!(
            "Machine {}: claimPolicy needs a cluster, so no claim and no selector selects a version here; remove claimPolicy",
            known.name
        )
    });
    let on_claim = machines.into_iter().flat_map(Snapshot::iter);
    let on_claim = on_claim.filter(|known| follows_claims(&known.machine)).map(|known| {
        format!(
            "Machine {}: powerPolicy OnClaim needs a cluster, so pxed does not power the Machine on here; set Managed or Unmanaged",
            known.name
        )
    });
    let first = first_control_planes(state, machines, status_of);
    twice.chain(kept).chain(drained).chain(rolling).chain(pooled).chain(on_claim).chain(first).collect()
}

/// Problems of Machines whose node makes a cluster (`kubeadm init`): further Machines with the same `apiServerEndpoint` make clusters of
/// their own, and a cluster in memory ends with a reboot of its host. Machines count that have such a version, or that get one when their
/// hosts enroll; not those that have another version and would be repaved with such a one.
fn first_control_planes(
    state: &State,
    machines: Option<&Snapshot>,
    status_of: &dyn Fn(&MachineName) -> Option<MachineStatus>,
) -> Vec<String> {
    if !state.versions.values().any(|version| makes_a_cluster(&version.spec.template.kubernetes)) {
        return Vec::new();
    }
    let configurations: Vec<_> = state.configurations.values().map(|of| &of.configuration).collect();
    let versions: Vec<_> = state.versions.values().map(|version| &**version).collect();
    let mut by_configuration: BTreeMap<&str, FirstControlPlanes<'_>> = BTreeMap::new();
    for known in machines.into_iter().flat_map(Snapshot::iter) {
        let chosen = state.chosen(&known.name, &known.uid).map(|chosen| &**chosen);
        let mut machine = with_status(known, chosen, status_of(&known.name).as_ref());
        let is_selected = machine.selected().is_some();
        let version = if is_selected {
            cluster_of(state, &machine)
        } else {
            // The host of a Machine that is not paused any more may be selected immediately.
            machine.spec.paused = false;
            matched(state, choose(&machine, None, &configurations, &versions))
        };
        if let Some(version) = version {
            let firsts = by_configuration.entry(&version.spec.configuration_name).or_default();
            firsts.have_endpoint |= version.spec.template.kubernetes.api_server_endpoint.is_some();
            firsts.selected += usize::from(is_selected);
            firsts.all.push(known);
        }
    }
    by_configuration.iter().flat_map(|(name, firsts)| firsts.problems(name)).collect()
}

/// Returns the version that makes a cluster, if it is the choice for a Machine without a selected version.
fn matched(state: &State, choice: Choice) -> Option<&MachineConfigurationVersion> {
    let selected = match choice {
        Choice::Matched(selected) | Choice::Select(Select { selected, .. }) => selected,
        Choice::LeaveAlone | Choice::Pending(_) | Choice::Keep(_) => return None,
    };
    let version = state.version(&selected.name, selected.version)?;
    makes_a_cluster(&version.spec.template.kubernetes).then_some(&**version)
}

/// Machines whose nodes make clusters by versions of one configuration.
#[derive(Default)]
struct FirstControlPlanes<'a> {
    all: Vec<&'a KnownMachine>,
    selected: usize,
    have_endpoint: bool,
}

impl FirstControlPlanes<'_> {
    fn problems(&self, configuration: &str) -> Vec<String> {
        let several = (self.all.len() > 1 && self.have_endpoint).then(|| {
            let next = match self.selected {
                0 | 1 => "before further hosts enroll, select another configuration for them, by labels or spec.configurationRef",
                _ => "keep one, and give the others another configuration (docs/concepts/node.md, \"The first control plane\")",
            };
            format!(
                "MachineConfiguration {configuration}: each of the Machines {} makes a cluster of its own, with the same \
                 apiServerEndpoint; {next}",
                listed(&self.all)
            )
        });
        let has_disk =
            |known: &KnownMachine| known.machine.spec.pxe.as_ref().is_none_or(|pxe| pxe.state_disk.is_some());
        let in_memory: Vec<&KnownMachine> =
            self.all.iter().copied().filter(|known| !has_disk(known)).collect();
        let in_memory = (!in_memory.is_empty()).then(|| {
            format!(
                "MachineConfiguration {configuration} makes a cluster, and these Machines have no state disk, so a reboot of the host ends \
                 its cluster: {}; set spec.pxe.stateDisk before the host makes its cluster",
                listed(&in_memory)
            )
        });
        several.into_iter().chain(in_memory).collect()
    }
}

/// Returns at most [`MAX_NAMES`] names as text.
fn listed(machines: &[&KnownMachine]) -> String {
    let names: Vec<&str> = machines.iter().take(MAX_NAMES).map(|known| known.name.as_str()).collect();
    let rest = machines.len().saturating_sub(MAX_NAMES);
    let more = if rest > 0 { format!(", and {rest} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}
