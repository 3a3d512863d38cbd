//! Random histories of an operation with a selector, and of planners that know only the object. The limit of concurrent Machines holds, no
//! Machine starts after the failure limit, none starts twice, and the operation ends once.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use bedplate_api::id::MachineName;
use bedplate_api::operation::{MachineOperation, OperationMachines, OperationState};
use bedplate_rules::fan_out::{Now, plan, standing};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

/// Event between two plans.
#[derive(Debug, Clone)]
enum Event {
    /// Changes the state of a started Machine's operation.
    Goes(usize, OperationState),
    /// Deletes a child, as another client would.
    Removed(usize),
    /// Writes the last plan only in part: children are created, the status is not written.
    Killed,
    /// Deletes the parent, as another client would.
    Stopped,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    use OperationState::{Complete, Failed, InProgress};
    let goes = (any::<usize>(), prop_oneof![Just(InProgress), Just(Complete), Just(Complete), Just(Failed)]);
    let event = prop_oneof![
        12 => goes.prop_map(|(which, state)| Event::Goes(which, state)),
        1 => any::<usize>().prop_map(Event::Removed),
        2 => Just(Event::Killed),
        1 => Just(Event::Stopped),
    ];
    proptest::collection::vec(event, 0..80)
}

struct World {
    parent: MachineOperation,
    children: BTreeMap<MachineName, OperationState>,
    /// Machines that were ever started.
    started: BTreeSet<MachineName>,
    stopped: bool,
    machines: usize,
    most: usize,
    limit: usize,
}

impl World {
    fn known(&self) -> OperationMachines {
        self.parent.status.as_ref().and_then(|status| status.machines.clone()).unwrap()
    }

    fn is_over(&self) -> bool {
        let state = self.parent.status.as_ref().and_then(|status| status.state);
        matches!(state, Some(OperationState::Complete | OperationState::Failed))
    }

    /// Plans once. `written`: true if the status is written.
    fn turn(&mut self, written: bool) {
        let known = self.known();
        let gone = |name: &MachineName| known.started.contains(name).then_some(OperationState::Failed);
        let targets = standing(&known, |name| self.children.get(name).copied().or_else(|| gone(name)));
        let now = Now { room: 3, stopped: self.stopped, time: Timestamp::UNIX_EPOCH };
        let fan = plan(&self.parent, &targets, now);
        let failed = targets.iter().filter(|(_, progress)| *progress == Some(OperationState::Failed)).count();
        assert!(fan.start.is_empty() || failed < self.limit && !self.stopped, "started after the limit");
        for name in fan.start {
            assert!(self.started.insert(name.clone()), "{name} is started twice");
            self.children.insert(name, OperationState::Pending);
        }
        let running = self.children.values().filter(|state| !is_end(**state)).count();
        assert!(running <= self.most, "{running} run");
        if written {
            let status = fan.status;
            let (counts, machines) = (status.counts.clone().unwrap(), status.machines.clone().unwrap());
            assert_eq!(counts.total, counts.pending + counts.in_progress + counts.complete + counts.failed);
            let lists = [&machines.not_started, &machines.started, &machines.complete, &machines.failed];
            let all: BTreeSet<_> = lists.into_iter().flatten().collect();
            let total: usize = lists.into_iter().map(Vec::len).sum();
            assert_eq!((all.len(), total), (total, usize::try_from(counts.total).unwrap()));
            assert_eq!(total, self.machines, "a Machine is missing");
            assert!(
                machines.started.iter().all(|name| self.started.contains(name)),
                "not started: {machines:?}"
            );
            assert!(
                !machines.not_started.iter().any(|name| self.started.contains(name)),
                "started: {machines:?}"
            );
            self.parent.status = Some(status);
        }
    }
}

fn is_end(state: OperationState) -> bool {
    matches!(state, OperationState::Complete | OperationState::Failed)
}

proptest! {
    #[test]
    fn o3_whatever_happens_limits_hold_and_every_operation_ends_once(
        machines in 0_usize..12, most in 1_usize..5, limit in 1_usize..5, events in events(),
    ) {
        let names: Vec<MachineName> = (0..machines).map(|n| format!("m{n:02}").parse().unwrap()).collect();
        let parent: MachineOperation = serde_json::from_value(json!({
            "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "metadata": { "name": "all" },
            "spec": { "operationName": "reboot", "machineSelector": { "matchLabels": { "a": "b" } },
                "maxParallel": most, "failureLimit": limit },
            "status": { "state": "InProgress", "machines": { "notStarted": names } },
        })).unwrap();
        let (children, started) = Default::default();
        let mut world = World { parent, children, started, stopped: false, machines, most, limit };
        world.turn(true);
        for event in events {
            if world.is_over() {
                break;
            }
            let open: Vec<_> =
                world.children.iter().filter(|(_, state)| !is_end(**state)).map(|(name, _)| name.clone()).collect();
            let mut written = true;
            match event {
                Event::Goes(which, state) if !open.is_empty() => {
                    world.children.insert(open[which % open.len()].clone(), state);
                }
                Event::Removed(which) if !open.is_empty() => {
                    // A child without an object that reports it is not known to have existed.
                    let name = &open[which % open.len()];
                    if world.known().started.contains(name) {
                        world.children.remove(name);
                    }
                }
                Event::Killed => written = false,
                Event::Stopped => world.stopped = true,
                Event::Goes(..) | Event::Removed(_) => {}
            }
            world.turn(written);
        }
        // All programs finish their work: the operation ends.
        for _ in 0..=2 * machines {
            if world.is_over() {
                break;
            }
            world.children.values_mut().for_each(|state| if !is_end(*state) { *state = OperationState::Complete });
            world.turn(true);
        }
        prop_assert!(world.is_over());
        let status = world.parent.status.clone().unwrap();
        let counts = status.counts.unwrap();
        let complete = status.state == Some(OperationState::Complete);
        prop_assert_eq!(complete, counts.complete == counts.total);
        prop_assert!(status.completion_time.is_some());
    }
}
