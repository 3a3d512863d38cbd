//! Pure: the order in which a MachineSet deletes its Machines (MS4). Called by the planner of sets.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::{Health, Key, MachineView};

/// Order of deletion among healthy Machines (`spec.deletion.order`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Unavailable Machines, then by name.
    Random,
    /// Newest first.
    Newest,
    /// Oldest first.
    Oldest,
}

/// Class of a Machine. A lower one is deleted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// Already being deleted.
    Deleting,
    /// The user has set the annotation `cluster.x-k8s.io/delete-machine`.
    Marked,
    /// Without a Node, with an unhealthy Node, or with a failed health check.
    Unhealthy,
    Healthy,
}

fn class(machine: &MachineView) -> Class {
    if machine.is_deleting {
        Class::Deleting
    } else if machine.is_marked {
        Class::Marked
    } else if !machine.has_node || machine.is_node_healthy == Some(false) || machine.health == Health::Failed
    {
        Class::Unhealthy
    } else {
        Class::Healthy
    }
}

/// Returns the keys of the Machines, the most expendable first. The same Machines always give the same order.
pub fn delete_order(machines: &[MachineView], order: Order, now: Timestamp) -> Vec<Key> {
    let mut sorted: Vec<&MachineView> = machines.iter().collect();
    sorted.sort_by_key(|machine| {
        let class = class(machine);
        // Only healthy Machines are sorted by age. A clock that runs ahead must not make a Machine older than it can be.
        let created = machine.created.min(now).as_nanosecond();
        let age = match (class, order) {
            (Class::Healthy, Order::Newest) => -created,
            (Class::Healthy, Order::Oldest) => created,
            (Class::Healthy, Order::Random) => i128::from(machine.is_available),
            (Class::Deleting | Class::Marked | Class::Unhealthy, _) => 0,
        };
        (class, age, &machine.key)
    });
    sorted.into_iter().map(|machine| machine.key.clone()).collect()
}

/// Sorts Machines that must be remediated: those that the user has marked, then the newest, which probably run no workload yet.
pub(crate) fn remediation_order(machines: &mut [&MachineView]) {
    machines.sort_by_key(|machine| (!machine.has_remediate, Reverse(machine.created), machine.key.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::tests::{at, machine};

    fn order_of(machines: &[MachineView], order: Order) -> Vec<String> {
        delete_order(machines, order, at(1000)).into_iter().map(|key| key.0).collect()
    }

    #[test]
    fn ms4_deleting_marked_unhealthy_then_age_then_name() {
        let machines = [
            MachineView { created: at(300), ..machine("healthy-new") },
            MachineView { created: at(100), ..machine("healthy-old") },
            MachineView { created: at(100), ..machine("healthy-also") },
            MachineView { has_node: false, ..machine("without-node") },
            MachineView { is_node_healthy: Some(false), ..machine("sick-node") },
            MachineView { health: Health::Failed, ..machine("failed-check") },
            MachineView { is_marked: true, ..machine("marked") },
            MachineView { is_deleting: true, is_marked: true, ..machine("deleting") },
        ];
        let first = ["deleting", "marked", "failed-check", "sick-node", "without-node"];
        let cases = [
            (Order::Newest, ["healthy-new", "healthy-also", "healthy-old"]),
            (Order::Oldest, ["healthy-also", "healthy-old", "healthy-new"]),
            (Order::Random, ["healthy-also", "healthy-new", "healthy-old"]),
        ];
        for (order, last) in cases {
            let expected: Vec<&str> = first.into_iter().chain(last).collect();
            assert_eq!(order_of(&machines, order), expected, "{order:?}");
        }
    }

    #[test]
    fn ms4_unknown_node_health_is_not_unhealthy() {
        let unknown = MachineView { is_node_healthy: None, ..machine("b") };
        assert_eq!(order_of(&[unknown, machine("a")], Order::Random), ["a", "b"]);
    }

    #[test]
    fn ms4_random_order_deletes_unavailable_machines_first() {
        let unavailable = MachineView { is_available: false, ..machine("b") };
        assert_eq!(order_of(&[machine("a"), unavailable.clone()], Order::Random), ["b", "a"]);
        let older = MachineView { created: at(1), ..machine("a") };
        assert_eq!(order_of(&[older, unavailable], Order::Oldest), ["a", "b"], "the user has chosen by age");
    }

    #[test]
    fn ms4_machine_from_the_future_is_the_newest() {
        let future = MachineView { created: at(5000), ..machine("b") };
        let present = MachineView { created: at(1000), ..machine("a") };
        assert_eq!(order_of(&[future.clone(), present.clone()], Order::Newest), ["a", "b"]);
        assert_eq!(order_of(&[future, present], Order::Oldest), ["a", "b"]);
    }
}
