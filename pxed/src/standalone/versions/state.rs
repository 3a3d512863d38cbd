//! Pure: the known configurations, their versions and the choice of each Machine, and their form in the store.
//!
//! Values are shared: a state that follows another costs what differs. Called by `plan` and `follow`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{Machine, MachineStatus, NodeRef, Selected, Time};
use bedplate_api::version::{MachineConfigurationVersion, version_name};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::machines::KnownMachine;
use crate::store::{Change, Entry, Table};

/// All of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    /// Configurations by name.
    pub configurations: BTreeMap<String, Arc<Configured>>,
    /// Versions by name (`<configuration>-v<N>`).
    pub versions: BTreeMap<String, Arc<MachineConfigurationVersion>>,
    /// Choices by Machine.
    pub machines: BTreeMap<MachineName, Arc<Chosen>>,
}

/// A configuration and its place in the manifests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Configured {
    /// The file of its manifest.
    pub origin: String,
    /// As the manifest has it, with a UID of pxed's and `status.latestVersion`; one that is in no manifest any more has a
    /// `deletionTimestamp`.
    pub configuration: MachineConfiguration,
}

impl Configured {
    /// Returns true if no manifest has the configuration any more.
    pub fn is_removed(&self) -> bool {
        self.configuration.metadata.deletion_timestamp.is_some()
    }
}

/// Stored choice for one Machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Chosen {
    /// UID of the Machine: a later Machine of the same name starts without a choice.
    pub uid: String,
    /// `status.selected`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<Selected>,
    /// `status.nodeRef`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeRef>,
    /// The UID of the Node that its agent has last seen to be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<String>,
    /// Since when no manifest has the Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_since: Option<Time>,
}

impl Chosen {
    /// Returns true if the Node of this choice is gone.
    pub fn node_is_gone(&self) -> bool {
        self.node.as_ref().is_some_and(|node| self.gone.as_ref() == Some(&node.uid))
    }

    /// With what an agent says of its Node: one that is there, or the UID of one that is gone. Its last word counts; of what is no
    /// Node of this Machine's nothing is kept.
    #[must_use]
    pub fn with_node(&self, machine: &MachineName, node: Option<&NodeRef>, gone: Option<&String>) -> Self {
        let is_uid = |uid: &String| (1..=63).contains(&uid.len());
        let mut chosen = self.clone();
        if let Some(gone) = gone.filter(|uid| is_uid(uid)) {
            chosen.gone = Some(gone.clone());
        } else if let Some(node) = node.filter(|node| node.name == machine.as_str() && is_uid(&node.uid)) {
            (chosen.node, chosen.gone) = (Some(node.clone()), None);
        }
        chosen
    }
}

impl State {
    /// Returns the choice for a Machine of this name and UID.
    pub fn chosen(&self, name: &MachineName, uid: &str) -> Option<&Arc<Chosen>> {
        self.machines.get(name).filter(|chosen| chosen.uid == uid)
    }

    /// The version that a choice names.
    pub fn selected(&self, chosen: &Chosen) -> Option<&Arc<MachineConfigurationVersion>> {
        chosen.selected.as_ref().and_then(|selected| self.version(&selected.name, selected.version))
    }

    /// A version.
    pub fn version(&self, configuration: &str, version: i64) -> Option<&Arc<MachineConfigurationVersion>> {
        self.versions.get(&version_name(configuration, version))
    }

    /// A configuration's versions, the oldest first.
    pub fn versions_of(&self, configuration: &str) -> Vec<&Arc<MachineConfigurationVersion>> {
        let of = self.versions.values().filter(|version| version.spec.configuration_name == configuration);
        let mut versions: Vec<_> = of.collect();
        versions.sort_by_key(|version| version.spec.version);
        versions
    }

    /// Builds the state from three tables; unreadable entries are skipped and named.
    pub(super) fn read(
        configurations: Vec<Entry>,
        versions: Vec<Entry>,
        machines: Vec<Entry>,
    ) -> (Self, Vec<String>) {
        let mut unreadable = Vec::new();
        let state = Self {
            configurations: decode(configurations, &mut unreadable),
            versions: decode(versions, &mut unreadable),
            machines: decode(machines, &mut unreadable)
                .into_iter()
                .filter_map(|(name, chosen)| Some((name.parse().ok()?, chosen)))
                .collect(),
        };
        (state, unreadable)
    }

    /// Returns the changes that turn a store with `self` into a store with `next`.
    pub(super) fn changes(&self, next: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        differences(Table::Configurations, &self.configurations, &next.configurations, &mut changes);
        differences(Table::Versions, &self.versions, &next.versions, &mut changes);
        differences(Table::Choices, &self.machines, &next.machines, &mut changes);
        changes
    }
}

/// Machine as the rules see it: with its reported status and its stored choice.
pub(super) fn with_status(
    known: &KnownMachine,
    chosen: Option<&Chosen>,
    status: Option<&MachineStatus>,
) -> Machine {
    let mut machine = Machine::clone(&known.machine);
    machine.metadata.uid = Some(known.uid.clone());
    machine.status = Some(MachineStatus {
        selected: chosen.and_then(|chosen| chosen.selected.clone()),
        node_ref: chosen.and_then(|chosen| chosen.node.clone()),
        ..status.cloned().unwrap_or_default()
    });
    machine
}

fn decode<T: DeserializeOwned>(
    entries: Vec<Entry>,
    unreadable: &mut Vec<String>,
) -> BTreeMap<String, Arc<T>> {
    let mut found = BTreeMap::new();
    for (key, value) in entries {
        let name = String::from_utf8_lossy(&key).into_owned();
        match serde_json::from_slice(&value) {
            Ok(value) => drop(found.insert(name, Arc::new(value))),
            Err(error) => unreadable.push(format!("{name}: {error}")),
        }
    }
    found
}

fn differences<K: Ord + ToString, V: Serialize + PartialEq>(
    table: Table,
    before: &BTreeMap<K, Arc<V>>,
    after: &BTreeMap<K, Arc<V>>,
    changes: &mut Vec<Change>,
) {
    for (key, value) in after {
        let same = before.get(key).is_some_and(|before| Arc::ptr_eq(before, value) || before == value);
        // Plain data with text keys: it always has a JSON form.
        if !same && let Ok(bytes) = serde_json::to_vec(&**value) {
            changes.push(Change::Put(table, key.to_string().into_bytes(), bytes));
        }
    }
    let gone = before.keys().filter(|key| !after.contains_key(key));
    changes.extend(gone.map(|key| Change::Delete(table, key.to_string().into_bytes())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str) -> NodeRef {
        NodeRef::new("a", uid)
    }

    #[test]
    fn an_agents_last_word_about_its_own_node_counts() {
        let name: MachineName = "a".parse().unwrap();
        let there = Chosen::default().with_node(&name, Some(&node("1")), None);
        assert_eq!(there.node, Some(node("1")));
        assert!(!there.node_is_gone());
        let gone = there.with_node(&name, None, Some(&"1".to_owned()));
        assert!(gone.node_is_gone());
        assert_eq!(gone.with_node(&name, None, None), gone, "nobody knows");
        assert!(
            !gone.with_node(&name, Some(&node("2")), None).node_is_gone(),
            "the kubelet has re-created it"
        );
        assert!(!there.with_node(&name, None, Some(&"9".to_owned())).node_is_gone(), "another one's");
        let others = NodeRef::new("b", "1");
        assert_eq!(there.with_node(&name, Some(&others), None), there);
        assert_eq!(there.with_node(&name, Some(&node(&"x".repeat(64))), None), there);
    }

    #[test]
    fn only_what_differs_is_written_and_read_back_it_is_the_same() {
        let name: MachineName = "a".parse().unwrap();
        let chosen = Chosen { uid: "directory:a".to_owned(), node: Some(node("1")), ..Chosen::default() };
        let state = State { machines: [(name.clone(), Arc::new(chosen))].into(), ..State::default() };
        let changes = State::default().changes(&state);
        let [Change::Put(Table::Choices, key, value)] = changes.as_slice() else { panic!("{changes:?}") };
        let (read, unreadable) = State::read(Vec::new(), Vec::new(), vec![(key.clone(), value.clone())]);
        assert_eq!((&read, unreadable.len()), (&state, 0));
        assert_eq!(state.changes(&read), Vec::new());
        assert_eq!(read.changes(&State::default()), [Change::Delete(Table::Choices, b"a".to_vec())]);
        let (_, unreadable) = State::read(vec![(b"w".to_vec(), b"{".to_vec())], Vec::new(), Vec::new());
        assert!(unreadable[0].starts_with("w: "), "{unreadable:?}");
    }
}
