//! Pure: indexes of the stores: versions by configuration, Machines by the configurations that they name, holders of versions.
//! Updated by the watches, one object at a time (`watch`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_api::condition::Conditions as _;
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::configuration::condition_type::DEGRADED;
use bedplate_api::machine::{Applied, Machine, Selected, condition_type};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_rules::claim::{is_claimed, is_pooled};
use bedplate_rules::selection::{References, may_match};

/// Index of all objects that decide about versions and Machines.
#[derive(Debug, Default)]
pub struct Index {
    configurations: BTreeMap<String, Arc<MachineConfiguration>>,
    /// Versions by configuration, then by their own names.
    versions: BTreeMap<String, BTreeMap<String, Arc<MachineConfigurationVersion>>>,
    machines: BTreeMap<String, Arc<Machine>>,
    /// The Machines that name a configuration, by its name.
    users: BTreeMap<String, BTreeSet<String>>,
    /// Machines without a choice and a reference that are in no pool: any configuration may become theirs.
    waiting: BTreeSet<String>,
    references: References,
}

/// Configurations and versions that a Machine may get.
#[derive(Debug, Default)]
pub struct Known {
    /// All configurations.
    pub configurations: Vec<Arc<MachineConfiguration>>,
    /// The versions of those that this Machine may get.
    pub versions: Vec<Arc<MachineConfigurationVersion>>,
}

impl Known {
    /// Returns the objects in the form that `bedplate_rules::selection::choose` takes.
    pub fn slices(&self) -> (Vec<&MachineConfiguration>, Vec<&MachineConfigurationVersion>) {
        (
            self.configurations.iter().map(AsRef::as_ref).collect(),
            self.versions.iter().map(AsRef::as_ref).collect(),
        )
    }
}

impl Index {
    /// Applies a configuration that was added, changed or deleted.
    pub fn configuration(&mut self, name: &str, after: Option<Arc<MachineConfiguration>>) {
        put(&mut self.configurations, name, after);
    }

    /// Applies a version that was added, changed or deleted. `configuration`: its configuration, which never changes.
    pub fn version(
        &mut self,
        configuration: &str,
        name: &str,
        after: Option<Arc<MachineConfigurationVersion>>,
    ) {
        let of = self.versions.entry(configuration.to_owned()).or_default();
        put(of, name, after);
        if of.is_empty() {
            self.versions.remove(configuration);
        }
    }

    /// Applies a Machine that was added, changed or deleted. Returns the configurations that the change
    /// concerns.
    pub fn machine(&mut self, name: &str, after: Option<Arc<Machine>>) -> BTreeSet<String> {
        let now = after.clone();
        let before = put(&mut self.machines, name, after);
        let (before, now) = (before.as_deref(), now.as_deref());
        self.references.change(before, now);
        let (uses_before, uses) = (before.map(Uses::of), now.map(Uses::of));
        if uses_before == uses {
            return BTreeSet::new();
        }
        let (old, new) = (names(uses_before.as_ref()), names(uses.as_ref()));
        for gone in old.difference(&new) {
            if let Some(users) = self.users.get_mut(*gone) {
                users.remove(name);
                if users.is_empty() {
                    self.users.remove(*gone);
                }
            }
        }
        for come in new.difference(&old) {
            self.users.entry((*come).to_owned()).or_default().insert(name.to_owned());
        }
        if uses.as_ref().is_some_and(Uses::waits) {
            self.waiting.insert(name.to_owned());
        } else {
            self.waiting.remove(name);
        }
        old.union(&new).map(|name| (*name).to_owned()).collect()
    }

    /// Returns the holders of versions.
    pub fn references(&self) -> &References {
        &self.references
    }

    /// All configurations.
    pub fn configurations(&self) -> impl Iterator<Item = &Arc<MachineConfiguration>> {
        self.configurations.values()
    }

    /// Returns the versions that are named after a configuration, by number.
    pub fn versions_of(&self, configuration: &str) -> Vec<&Arc<MachineConfigurationVersion>> {
        let mut all: Vec<_> =
            self.versions.get(configuration).into_iter().flat_map(BTreeMap::values).collect();
        all.sort_by_key(|version| version.spec.version);
        all
    }

    /// Returns a version by its configuration and its number.
    pub fn find(&self, (configuration, number): (&str, i64)) -> Option<&Arc<MachineConfigurationVersion>> {
        let mut versions = self.versions.get(configuration).into_iter().flat_map(BTreeMap::values);
        versions.find(|version| version.spec.version == number)
    }

    /// Returns the Machines that name a configuration: by reference, by selection, or by the applied version.
    pub fn users_of(&self, configuration: &str) -> impl Iterator<Item = &Arc<Machine>> {
        let names = self.users.get(configuration).into_iter().flatten();
        names.filter_map(|name| self.machines.get(name))
    }

    /// Returns the Machines that a change of a configuration or its versions may affect: those that name it, and those that wait for any.
    pub fn touched_by(&self, configuration: &str) -> BTreeSet<String> {
        let users = self.users.get(configuration).into_iter().flatten();
        users.chain(&self.waiting).cloned().collect()
    }

    /// Returns the other configurations that Machines of this one or waiting Machines name. Their counts include the version of a repave.
    pub fn related_configurations(&self, configuration: &str) -> BTreeSet<String> {
        let names = self.users.get(configuration).into_iter().flatten().chain(&self.waiting);
        let machines = names.filter_map(|name| self.machines.get(name));
        let named: BTreeSet<&str> = machines.flat_map(|machine| Uses::of(machine).names()).collect();
        named.into_iter().filter(|name| *name != configuration).map(str::to_owned).collect()
    }

    /// Returns true if the index has the Machine.
    pub(crate) fn machine_is_known(&self, name: &str) -> bool {
        self.machines.contains_key(name)
    }

    /// Returns true if the index has the version.
    pub(crate) fn version_is_known(&self, version: &MachineConfigurationVersion) -> bool {
        self.find(version.key()).is_some()
    }

    /// Returns true if the index has the configuration.
    pub(crate) fn configuration_is_known(&self, name: &str) -> bool {
        self.configurations.contains_key(name)
    }

    /// Returns the configurations and versions that a Machine may get.
    pub fn known(&self, machine: &Machine, claimed: Option<&str>) -> Known {
        let names: BTreeSet<&str> = self.may_get(machine).into_iter().chain(claimed).collect();
        let versions = names.into_iter().flat_map(|name| self.versions_of(name)).cloned();
        Known {
            configurations: self.configurations.values().cloned().collect(),
            versions: versions.collect(),
        }
    }

    /// Returns true if a Machine without a version may get one that is just being created. A condition
    /// written now would be outdated immediately.
    pub(crate) fn needs_first_version(&self, machine: &Machine) -> bool {
        let is_made = |name: &str| {
            let configuration = self.configurations.get(name);
            configuration.is_some_and(|configuration| makes_versions(configuration))
                && !self.versions.contains_key(name)
        };
        machine.selected().is_none() && self.may_get(machine).into_iter().any(is_made)
    }

    /// Returns the configurations whose versions may be selected for a Machine.
    fn may_get<'a>(&'a self, machine: &'a Machine) -> BTreeSet<&'a str> {
        let selected = machine.selected().map(|selected| selected.name.as_str());
        let reference = machine.spec.configuration_ref.as_ref().map(|reference| reference.name.as_str());
        if selected.is_none() && is_pooled(machine) {
            return BTreeSet::new();
        }
        if selected.is_none() && reference.is_none() {
            let selects = |configuration: &MachineConfiguration| {
                let selector = configuration.spec.machine_selector.as_ref();
                selector.is_some_and(|selector| may_match(selector, machine))
            };
            let all = self.configurations.iter().filter(|(_, configuration)| selects(configuration));
            return all.map(|(name, _)| name.as_str()).collect();
        }
        selected.into_iter().chain(reference).collect()
    }
}

/// Returns true if a configuration's versions can be created: it is not being deleted, and no version was
/// refused.
pub(crate) fn makes_versions(configuration: &MachineConfiguration) -> bool {
    configuration.metadata.deletion_timestamp.is_none() && !configuration.is_true(DEGRADED)
}

fn names<'a>(uses: Option<&Uses<'a>>) -> BTreeSet<&'a str> {
    uses.into_iter().flat_map(Uses::names).collect()
}

/// Inserts or removes an object. Returns the previous one.
fn put<K>(map: &mut BTreeMap<String, Arc<K>>, name: &str, after: Option<Arc<K>>) -> Option<Arc<K>> {
    match (after, map.get_mut(name)) {
        (Some(after), Some(there)) => Some(std::mem::replace(there, after)),
        (Some(after), None) => map.insert(name.to_owned(), after),
        (None, _) => map.remove(name),
    }
}

/// Fields of a Machine that matter to the configurations it names. Heartbeats are not among them.
#[derive(Debug, PartialEq, Eq)]
struct Uses<'a> {
    reference: Option<(&'a str, Option<i64>)>,
    selected: Option<(&'a str, i64)>,
    applied: Option<(&'a str, i64)>,
    rolled_back: Option<(&'a str, i64)>,
    has_node: bool,
    /// Other fields that decide the choice after the Machine's Node is gone.
    left_alone: bool,
    claimed: bool,
    pooled: bool,
    enrolled: bool,
    labels: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Uses<'a> {
    fn of(machine: &'a Machine) -> Self {
        let status = machine.status.as_ref();
        let reference = machine.spec.configuration_ref.as_ref();
        let unchosen = machine.selected().is_none();
        Self {
            reference: reference.map(|r| (r.name.as_str(), r.version)),
            selected: machine.selected().map(Selected::key),
            applied: machine.applied().map(Applied::key),
            rolled_back: status.and_then(|status| status.rolled_back.as_ref()).map(|back| back.from.key()),
            has_node: status.is_some_and(|status| status.node_ref.is_some()),
            left_alone: machine.spec.paused || machine.metadata.deletion_timestamp.is_some(),
            claimed: is_claimed(machine),
            pooled: is_pooled(machine),
            enrolled: unchosen && machine.is_true(condition_type::ENROLLED),
            labels: machine.metadata.labels.as_ref().filter(|_| unchosen && reference.is_none()),
        }
    }

    fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let reference = self.reference.map(|(name, _)| name);
        let versions = [self.selected, self.applied].into_iter().flatten();
        reference.into_iter().chain(versions.map(|(name, _)| name))
    }

    fn waits(&self) -> bool {
        self.reference.is_none() && self.selected.is_none() && !self.pooled
    }
}
