//! The boot path's news in a Machine's status: `status.boot`, the conditions `Booted` and `Enrolled`, Events.
//!
//! [`Teller`] is the daemon's [`Tell`]; called by the background task of `boot`, not from the packet path.

use std::net::IpAddr;

use bedplate_api::id::{BootId, MachineName};
use bedplate_api::machine::{
    BootStatus, MachineStatus, MicroTime, PreviousBoot, TimelineEntry, condition_type,
};
use bedplate_api::wire::Stage;
use jiff::Timestamp;

use super::Tell;
use super::record::public_id;
use super::timeline::{Timeline, stage_name};
use crate::machine::Machines;
use crate::status::{EventReason, StatusRegistry, set_condition};

/// Reasons of `Booted` and `Enrolled`.
pub mod reason {
    /// On its way.
    pub const BOOTING: &str = "Booting";
    /// No sign of life for longer than its stage may take.
    pub const STOPPED: &str = "Stopped";
    /// pxed holds it at its script.
    pub const HELD: &str = "Held";
    /// A step fails and is tried again.
    pub const FAILING: &str = "Failing";
    /// systemd and the agent run.
    pub const USERSPACE: &str = "Userspace";
    /// The host has its certificate.
    pub const ENROLLED: &str = "Enrolled";
    /// The host has not enrolled in this boot.
    pub const AWAITING_ENROLMENT: &str = "AwaitingEnrolment";
    /// A boot's seed was asked for a second time.
    pub const SEED_ASKED_TWICE: &str = "SeedAskedTwice";
}

/// Tells the registry of statuses.
#[derive(Clone)]
pub struct Teller {
    /// The statuses.
    pub registry: StatusRegistry,
    /// The Machines: what a boot means depends on what its Machine selects.
    pub machines: Machines,
}

/// What the host's state is kept in, as its Machine selects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A disk; stage-1 goes no further without it.
    Disk,
    /// Memory: it ends with the boot.
    Memory,
}

impl Teller {
    fn state_of(&self, machine: &MachineName) -> State {
        let known = self.machines.load().by_name(machine).cloned();
        let pxe = known.as_ref().and_then(|known| known.machine.spec.pxe.as_ref());
        if pxe.is_some_and(|pxe| pxe.state_disk.is_none()) { State::Memory } else { State::Disk }
    }
}

impl Tell for Teller {
    fn timeline(&self, machine: &MachineName, timeline: &Timeline, now: Timestamp) {
        let stopped = timeline.stopped(now).is_some();
        let state = self.state_of(machine);
        let mut news = Vec::new();
        self.registry.update(machine, |status| {
            let before = status.conditions.clone();
            apply_timeline(status, timeline, state, now);
            let turned = |type_: &str, reason: &str| {
                let of = |conditions: &[bedplate_api::machine::Condition]| {
                    conditions.iter().any(|c| c.type_ == type_ && c.reason == reason)
                };
                of(&status.conditions) && !of(&before)
            };
            if stopped && turned(condition_type::BOOTED, reason::STOPPED) {
                news.push((EventReason::BootStopped, timeline.describe(now)));
            }
            if turned(condition_type::ENROLLED, reason::ENROLLED) {
                news.push((
                    EventReason::Enrolled,
                    format!("the host is enrolled, boot {}", public_id(timeline.id)),
                ));
            }
        });
        for (reason, message) in news {
            self.registry.event(machine, reason, message);
        }
    }

    fn seed_asked_again(&self, machine: &MachineName, boot: BootId, peer: IpAddr, now: Timestamp) {
        let boot = public_id(boot);
        let message = format!(
            "the seed of boot {boot} was asked for again by {peer} and refused: if the machine did not ask twice \
             itself, somebody else on its network knows the URL; boot it again for a fresh seed"
        );
        self.registry.update(machine, |status| {
            let enrolled = status
                .conditions
                .iter()
                .any(|c| c.type_ == condition_type::ENROLLED && c.reason == reason::ENROLLED);
            if !enrolled {
                set_condition(
                    status,
                    condition_type::ENROLLED,
                    false,
                    reason::SEED_ASKED_TWICE,
                    &message,
                    now,
                );
            }
        });
        self.registry.event(machine, EventReason::SeedAskedTwice, message);
    }
}

/// Writes a timeline into a status.
pub fn apply_timeline(status: &mut MachineStatus, timeline: &Timeline, state: State, now: Timestamp) {
    let new_boot =
        status.boot.as_ref().and_then(|boot| boot.started_time.clone()) != Some(MicroTime(timeline.started));
    status.boot = Some(boot_status(timeline));
    let description = timeline.describe(now);
    let (up, reason) = match timeline.stage {
        Stage::Enrolled | Stage::Userspace => (true, reason::USERSPACE),
        _ if timeline.stopped(now).is_some() => (false, reason::STOPPED),
        _ if timeline.held.is_some() => (false, reason::HELD),
        _ if timeline.failing.is_some() => (false, reason::FAILING),
        _ => (false, reason::BOOTING),
    };
    let message = match (up, state) {
        (false, _) => &description,
        (true, State::Disk) => "the host's user space has started",
        (true, State::Memory) => {
            "the host's user space has started; its Machine selects no stateDisk: state is in memory and ends with this boot"
        }
    };
    set_condition(status, condition_type::BOOTED, up, reason, message, now);
    if timeline.stage == Stage::Enrolled {
        let message = "the host has its certificate";
        set_condition(status, condition_type::ENROLLED, true, reason::ENROLLED, message, now);
        return;
    }
    let kept = status
        .conditions
        .iter()
        .any(|c| c.type_ == condition_type::ENROLLED && c.reason == reason::SEED_ASKED_TWICE);
    if new_boot || !kept {
        let message = if up { description } else { format!("waiting for the boot: {description}") };
        set_condition(status, condition_type::ENROLLED, false, reason::AWAITING_ENROLMENT, &message, now);
    }
}

fn boot_status(timeline: &Timeline) -> BootStatus {
    let mut entries: Vec<_> = timeline
        .entries
        .iter()
        .map(|entry| TimelineEntry {
            stage: entry.stage,
            time: MicroTime(entry.time),
            failed: false,
            message: (entry.stage == Stage::Script).then(|| timeline.held.clone()).flatten(),
        })
        .collect();
    if let Some((stage, failure)) = &timeline.failing {
        entries.truncate(super::timeline::MAX_ENTRIES - 1);
        let message = Some(failure.clone());
        entries.push(TimelineEntry {
            stage: *stage,
            time: MicroTime(timeline.progress),
            failed: true,
            message,
        });
    }
    let previous = timeline.previous.as_ref().map(|previous| {
        let failure =
            previous.failure.as_ref().map(|failure| format!("; failing at {failure}")).unwrap_or_default();
        let message = format!("ended at stage {}{failure}", stage_name(previous.stage));
        let message = message.chars().take(1024).collect();
        PreviousBoot {
            id: public_id(previous.id),
            started_time: MicroTime(previous.started),
            stage: previous.stage,
            stage_time: Some(MicroTime(previous.reached)),
            message: Some(message),
        }
    });
    BootStatus {
        id: Some(public_id(timeline.id)),
        started_time: Some(MicroTime(timeline.started)),
        stage: Some(timeline.stage),
        attempts: Some(i32::try_from(timeline.attempts).unwrap_or(i32::MAX)),
        timeline: entries,
        previous,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn reasons(status: &MachineStatus) -> Vec<(String, String, String)> {
        status.conditions.iter().map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone())).collect()
    }

    fn expect(status: &MachineStatus, booted: (&str, &str), enrolled: (&str, &str)) {
        let expected = [("Booted", booted), ("Enrolled", enrolled)]
            .map(|(t, (s, r))| (t.to_owned(), s.to_owned(), r.to_owned()));
        assert_eq!(reasons(status), expected);
    }

    #[test]
    fn conditions_follow_a_boot_from_its_first_packet_to_enrolment() {
        let mut status = MachineStatus::default();
        let mut timeline = Timeline::new(BootId::from_random([1; 16]), at(0));
        apply_timeline(&mut status, &timeline, State::Disk, at(0));
        expect(&status, ("False", "Booting"), ("False", "AwaitingEnrolment"));
        timeline.reached(Stage::Initrd, at(10));
        apply_timeline(&mut status, &timeline, State::Disk, at(1000));
        expect(&status, ("False", "Stopped"), ("False", "AwaitingEnrolment"));
        let message = &status.conditions[0].message;
        assert!(message.contains("stopped at stage initrd") && message.contains("next would be rootfs"));
        timeline.failed(Stage::Rootfs, "connection refused", at(1010));
        apply_timeline(&mut status, &timeline, State::Disk, at(1010));
        expect(&status, ("False", "Failing"), ("False", "AwaitingEnrolment"));
        let last = status.boot.as_ref().unwrap().timeline.last().unwrap().clone();
        assert_eq!((last.stage, last.failed), (Stage::Rootfs, true));
        timeline.reached(Stage::Userspace, at(1020));
        apply_timeline(&mut status, &timeline, State::Disk, at(1020));
        expect(&status, ("True", "Userspace"), ("False", "AwaitingEnrolment"));
        timeline.reached(Stage::Enrolled, at(1030));
        apply_timeline(&mut status, &timeline, State::Disk, at(1030));
        expect(&status, ("True", "Userspace"), ("True", "Enrolled"));
    }

    #[test]
    fn a_held_or_failing_machine_that_falls_silent_has_stopped() {
        let mut held = Timeline::new(BootId::from_random([1; 16]), at(0));
        held.reached(Stage::Script, at(1));
        held.hold("image host is being fetched", at(1));
        let mut failing = Timeline::new(BootId::from_random([1; 16]), at(0));
        failing.reached(Stage::Initrd, at(1));
        failing.failed(Stage::Rootfs, "no link", at(1));
        for (timeline, reason, text) in
            [(&held, "Held", "image host is being fetched"), (&failing, "Failing", "no link")]
        {
            for (second, reason) in [(30, reason), (3000, "Stopped")] {
                let mut status = MachineStatus::default();
                apply_timeline(&mut status, timeline, State::Disk, at(second));
                let booted = &status.conditions[0];
                assert_eq!(booted.reason, reason, "{}", booted.message);
                assert!(booted.message.contains(text), "{}", booted.message);
                assert_eq!(booted.message.contains("stopped at stage"), second == 3000, "{}", booted.message);
            }
        }
    }

    #[test]
    fn state_that_is_in_memory_is_said_once_the_host_runs() {
        let mut timeline = Timeline::new(BootId::from_random([1; 16]), at(0));
        for (stage, state, said) in [
            (Stage::Initrd, State::Memory, false),
            (Stage::Userspace, State::Memory, true),
            (Stage::Userspace, State::Disk, false),
            (Stage::Enrolled, State::Memory, true),
        ] {
            timeline.reached(stage, at(10));
            let mut status = MachineStatus::default();
            apply_timeline(&mut status, &timeline, state, at(10));
            let message = &status.conditions[0].message;
            assert_eq!(message.contains("state is in memory"), said, "{stage:?} {state:?}: {message}");
        }
    }
}
