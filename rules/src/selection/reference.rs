//! Pure: Machines that hold versions and configurations (V3, C6).
//!
//! A Machine holds the versions that its `configurationRef`, `selected` and `applied` name, until it is deleted. A Machine that is being
//! deleted still has a node. A `configurationRef` without version holds the configuration, and none of its versions.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_api::machine::Machine;

/// Field of a Machine that names a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// `spec.configurationRef`
    ConfigurationRef,
    /// `status.selected`
    Selected,
    /// `status.applied`
    Applied,
}

/// Machine that holds a version or a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The Machine's name.
    pub machine: String,
    /// Field of the holder.
    pub by: Hold,
}

/// Holders of versions, of all Machines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct References {
    /// Holders by configuration, then by version; `None` is a reference without version.
    held: BTreeMap<String, BTreeMap<Option<i64>, BTreeSet<Holder>>>,
}

impl References {
    /// Collects the references of these Machines. They must be all Machines that exist.
    pub fn of<'a>(machines: impl IntoIterator<Item = &'a Machine>) -> Self {
        let mut references = Self::default();
        for machine in machines {
            references.add(machine);
        }
        references
    }

    /// Adds one of all Machines.
    pub fn add(&mut self, machine: &Machine) {
        let called = machine.metadata.name.as_deref().unwrap_or_default();
        for (by, name, version) in named(machine).into_iter().flatten() {
            let holder = Holder { machine: called.to_owned(), by };
            self.held.entry(name.to_owned()).or_default().entry(version).or_default().insert(holder);
        }
    }

    /// Applies one of all Machines that was added, changed or deleted.
    pub fn change(&mut self, before: Option<&Machine>, after: Option<&Machine>) {
        let (names, after_names) = (before.map(named), after.map(named));
        if before.is_some_and(|b| after.is_some_and(|a| a.metadata.name == b.metadata.name))
            && names == after_names
        {
            return;
        }
        if let Some(before) = before {
            self.remove(before);
        }
        if let Some(after) = after {
            self.add(after);
        }
    }

    fn remove(&mut self, machine: &Machine) {
        let called = machine.metadata.name.as_deref().unwrap_or_default();
        for (by, name, version) in named(machine).into_iter().flatten() {
            let Some(versions) = self.held.get_mut(name) else { continue };
            if let Some(holders) = versions.get_mut(&version) {
                holders.remove(&Holder { machine: called.to_owned(), by });
                if holders.is_empty() {
                    versions.remove(&version);
                }
            }
            if versions.is_empty() {
                self.held.remove(name);
            }
        }
    }

    /// Returns true if any Machine holds the version.
    pub fn is_held(&self, configuration: &str, version: i64) -> bool {
        self.held.get(configuration).is_some_and(|versions| versions.contains_key(&Some(version)))
    }

    /// Returns true if no Machine holds the configuration, neither by a version nor by its name.
    pub fn is_free(&self, configuration: &str) -> bool {
        !self.held.contains_key(configuration)
    }

    /// Returns the holders of a version, sorted by name and then by field.
    pub fn of_version(&self, configuration: &str, version: i64) -> Vec<&Holder> {
        let versions = self.held.get(configuration);
        versions.and_then(|versions| versions.get(&Some(version))).into_iter().flatten().collect()
    }

    /// Returns the Machines that hold a configuration by any of its versions or by its name.
    pub fn of_configuration(&self, configuration: &str) -> BTreeSet<&str> {
        let holders = self.held.get(configuration).into_iter().flat_map(BTreeMap::values).flatten();
        holders.map(|holder| holder.machine.as_str()).collect()
    }

    /// Returns the number of Machines that hold a version.
    pub fn machines(&self, configuration: &str, version: i64) -> usize {
        let holders = self.held.get(configuration).and_then(|versions| versions.get(&Some(version)));
        let mut last = None;
        let mut count = 0;
        // Sorted by name.
        for holder in holders.into_iter().flatten() {
            count += usize::from(last.replace(&holder.machine) != Some(&holder.machine));
        }
        count
    }

    /// Returns the highest version that a Machine has selected. The version existed once, even if it was deleted.
    pub(crate) fn highest_selected(&self, configuration: &str) -> Option<i64> {
        let versions = self.held.get(configuration)?;
        let is_selected = |holders: &BTreeSet<Holder>| holders.iter().any(|h| h.by == Hold::Selected);
        versions.iter().rev().find(|(_, holders)| is_selected(holders)).and_then(|(version, _)| *version)
    }
}

/// Returns the versions that the fields of a Machine name.
fn named(machine: &Machine) -> [Option<(Hold, &str, Option<i64>)>; 3] {
    let status = machine.status.as_ref();
    let reference = machine.spec.configuration_ref.as_ref();
    let selected = status.and_then(|status| status.selected.as_ref());
    let applied = status.and_then(|status| status.applied.as_ref());
    [
        reference.map(|r| (Hold::ConfigurationRef, r.name.as_str(), r.version)),
        selected.map(|s| (Hold::Selected, s.name.as_str(), Some(s.version))),
        applied.map(|a| (Hold::Applied, a.name.as_str(), Some(a.version))),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "JSON literals read better without borrows")]
    fn machine(name: &str, reference: Value, selected: Value, applied: Value) -> Machine {
        serde_json::from_value(json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": name },
            "spec": { "provider": "manual", "configurationRef": reference },
            "status": { "selected": selected, "applied": applied },
        }))
        .unwrap()
    }

    #[test]
    fn v3_a_version_is_held_by_reference_selection_and_use() {
        let machines = [
            machine(
                "a",
                json!({ "name": "w", "version": 1 }),
                json!({ "name": "w", "version": 2, "source": "Reference" }),
                json!({ "name": "w", "version": 3, "slot": "a" }),
            ),
            machine("b", json!({ "name": "w" }), Value::Null, Value::Null),
            machine("c", Value::Null, Value::Null, Value::Null),
        ];
        let references = References::of(&machines);
        for (version, by) in [(1, Hold::ConfigurationRef), (2, Hold::Selected), (3, Hold::Applied)] {
            assert_eq!(references.of_version("w", version), [&Holder { machine: "a".to_owned(), by }]);
            assert_eq!(references.machines("w", version), 1);
        }
        assert!(references.of_version("w", 4).is_empty() && !references.is_held("w", 4));
        assert!(references.is_held("w", 1) && references.is_free("x") && !references.is_free("w"));
        assert_eq!(references.of_configuration("w"), BTreeSet::from(["a", "b"]));
        assert!(references.of_configuration("x").is_empty());
        assert_eq!(
            references.highest_selected("w"),
            Some(2),
            "reports of agents and references of users create no numbers"
        );
    }

    #[test]
    fn a_machine_that_holds_a_version_twice_is_one_machine() {
        let same = json!({ "name": "w", "version": 1, "source": "Selector" });
        let a = machine("a", Value::Null, same, json!({ "name": "w", "version": 1, "slot": "b" }));
        assert_eq!(References::of([&a]).machines("w", 1), 1);
    }

    #[test]
    fn v3_each_machine_that_holds_a_version_counts_once() {
        let same = json!({ "name": "w", "version": 1, "source": "Selector" });
        let machines = ["a", "b", "c"].map(|name| machine(name, Value::Null, same.clone(), Value::Null));
        for count in 0..=machines.len() {
            assert_eq!(References::of(machines.iter().take(count)).machines("w", 1), count);
        }
    }

    #[test]
    fn v3_references_follow_a_machine_of_another_name_with_the_same_versions() {
        let [a, b] = ["a", "b"].map(|name| machine(name, json!({ "name": "w" }), Value::Null, Value::Null));
        let mut followed = References::of([&a]);
        followed.change(Some(&a), Some(&b));
        assert_eq!(followed, References::of([&b]));
    }

    #[test]
    fn v3_incremental_references_equal_those_of_all_machines() {
        let of = |version: i64| json!({ "name": "w", "version": version, "source": "Selector" });
        let states = [
            machine("a", json!({ "name": "w" }), of(1), json!({ "name": "w", "version": 1, "slot": "a" })),
            machine("a", json!({ "name": "x", "version": 2 }), of(2), Value::Null),
            machine("a", Value::Null, Value::Null, json!({ "name": "w", "version": 2, "slot": "b" })),
        ];
        let other = machine("b", json!({ "name": "w" }), of(2), Value::Null);
        let mut followed = References::of([&other]);
        let mut before = None;
        for after in states.iter().chain(&states).map(Some).chain([None]) {
            followed.change(before, after);
            assert_eq!(followed, References::of(after.into_iter().chain([&other])));
            before = after;
        }
    }
}
