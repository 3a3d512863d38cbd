//! The boot path's news in a Machine's status: `status.boot`, the conditions `Booted` and `Enrolled`, Events.
//!
//! [`Teller`] is the daemon's [`Tell`]; called by the background task of `boot`, not from the packet path. A boot of another pxed of the site stays shown
//! by the rule of `status::site_boot`.

use std::net::IpAddr;

use bedplate_api::id::{BootId, MachineName};
use bedplate_api::machine::{
    BootStatus, Condition, MachineStatus, MicroTime, PreviousBoot, TimelineEntry, condition_type,
};
use bedplate_api::reason::event::PxedEvent;
use bedplate_api::reason::machine::{BootedReason, EnrolledReason, PoweredOnReason};
use bedplate_api::wire::Stage;
use jiff::{SignedDuration, Timestamp};

use super::Tell;
use super::timeline::Timeline;
use crate::heard::Heard;
use crate::machines::{KnownMachine, Machines};
use crate::status::conditions::{booted, condition};
use crate::status::site_boot::TakenOver;
use crate::status::{StatusRegistry, set_condition};

/// Time for which the condition reports that another key was refused.
const REFUSAL_SHOWN: SignedDuration = SignedDuration::from_mins(10);

/// Tells the registry of statuses.
#[derive(Clone)]
pub struct Teller {
    /// The statuses.
    pub registry: StatusRegistry,
    /// The Machines: what a boot means depends on what its Machine selects.
    pub machines: Machines,
    /// Requests and heartbeats by the keys in force: packets do not count for a host that is heard.
    pub heard: Heard,
}

/// Place of the host's state, as selected by its Machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A disk. stage-1 does not continue without it.
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

    /// Returns true if this attempt is the host's: it has fetched something since the key in force was heard, or that key is silent. Packets alone do
    /// not speak for a server that was on before pxed knew it.
    fn is_of_host(&self, machine: &MachineName, timeline: &Timeline, now: Timestamp) -> bool {
        let Some(known) = self.machines.load().by_name(machine).cloned() else { return true };
        let is_found = self.registry.read(machine, is_found_running).unwrap_or_default()
            || known.machine.status.as_ref().is_some_and(is_found_running);
        if is_found && timeline.fetched().is_none() {
            return false;
        }
        let evidence = |own: &MachineStatus| {
            let enrolled = self.heard.key_time(&known, own)?;
            Some(self.heard.evidence(&known, own, enrolled, now))
        };
        let Some(evidence) = self.registry.read(machine, evidence).flatten() else { return true };
        timeline.stage == Stage::Enrolled
            || timeline.fetched().is_some_and(|fetched| fetched > evidence.heard)
            || evidence.heard_until(now).is_none()
    }
}

/// Returns true if this pxed's boot is shown in place of another pxed's: the host has opened it or chosen this pxed since the other one was found.
fn replaces(timeline: &Timeline, other: &TakenOver) -> bool {
    timeline.ids.iter().any(|id| id.public_id() == other.boot)
        || timeline.started > other.time
        || timeline.chosen().is_some_and(|chosen| chosen > other.time)
}

fn is_found_running(status: &MachineStatus) -> bool {
    condition(status, condition_type::POWERED_ON).is_some_and(|c| c.reason == PoweredOnReason::FoundRunning)
}

/// Reports that the key in force of a Machine was heard: its host runs, even if packets in its name claim otherwise.
pub(crate) fn tell_heard(registry: &StatusRegistry, heard: &Heard, known: &KnownMachine, now: Timestamp) {
    let refused = heard.last_refused(known).filter(|at| now.duration_since(*at) < REFUSAL_SHOWN);
    registry.update(&known.name, |status| apply_heard(status, refused.is_some(), now));
}

impl Tell for Teller {
    fn timeline(&self, machine: &MachineName, timeline: &Timeline, now: Timestamp) {
        let stopped = timeline.stopped(now).is_some();
        let state = self.state_of(machine);
        // The former boot stays shown until the new one has fetched something, and that of another pxed while the host is with that one.
        let of_other = self.registry.taken_over(machine);
        if !self.is_of_host(machine, timeline, now)
            || of_other.is_some_and(|of_other| !replaces(timeline, &of_other))
        {
            return;
        }
        let mut stops = false;
        self.registry.update(machine, |status| {
            let is_stopped = |status: &MachineStatus| {
                booted(status).is_some_and(|c| c.reason == BootedReason::BootStalled)
            };
            let before = is_stopped(status);
            apply_timeline(status, timeline, state, now);
            stops = stopped && is_stopped(status) && !before;
        });
        if stops {
            let boot = timeline.id.public_id();
            tracing::warn!(%machine, %boot, waiting = timeline.describe(now), "boot stalled");
            self.registry.event(machine, PxedEvent::BootStalled, timeline.describe(now));
        }
    }

    fn is_shown(&self, machine: &MachineName, timeline: &Timeline) -> bool {
        let expected = Course::of(&boot_status(timeline));
        let shown =
            self.registry.read(machine, |status| status.boot.as_ref().map(Course::of) == Some(expected));
        // A Machine without a status may be deleted.
        shown.unwrap_or(true)
    }

    fn unproven(&self, machine: &MachineName, timeline: &Timeline, now: Timestamp) {
        self.timeline(machine, timeline, now);
    }

    fn seed_asked_again(&self, machine: &MachineName, boot: BootId, peer: IpAddr, now: Timestamp) {
        let boot = boot.public_id();
        let message = format!(
            "the seed of boot {boot} was requested again by {peer} and refused; if the machine did not \
             repeat its request, another host on its network knows the URL; boot the machine again for a new \
             seed"
        );
        self.registry.update(machine, |status| {
            let is_true = |c: &Condition| c.status == "True";
            if !condition(status, condition_type::ENROLLED).is_some_and(is_true) {
                set_condition(status, false, EnrolledReason::SeedRequestedTwice, &message, None, now);
            }
        });
        self.registry.event(machine, PxedEvent::SeedRequestedTwice, message);
    }
}

/// Course of a boot: its status without the messages, which are for users.
#[derive(Debug, PartialEq, Eq)]
struct Course {
    id: Option<BootId>,
    /// Start, seed.
    times: [Option<Timestamp>; 2],
    stage: Option<Stage>,
    attempts: Option<i32>,
    timeline: Vec<(Stage, Option<Timestamp>, bool)>,
    previous: Option<(BootId, Stage)>,
}

impl Course {
    fn of(boot: &BootStatus) -> Self {
        // A status from the store has microseconds.
        let time = |time: &MicroTime| Timestamp::from_microsecond(time.0.as_microsecond()).ok();
        let times = [&boot.start_time, &boot.seed_time].map(|at| at.as_ref().and_then(time));
        let timeline = boot.timeline.iter().map(|entry| (entry.stage, time(&entry.time), entry.failed));
        Self {
            id: boot.id,
            times,
            stage: boot.stage,
            attempts: boot.attempts,
            timeline: timeline.collect(),
            previous: boot.previous.as_ref().map(|previous| (previous.id, previous.stage)),
        }
    }
}

/// Writes a timeline into a status.
pub(crate) fn apply_timeline(status: &mut MachineStatus, timeline: &Timeline, state: State, now: Timestamp) {
    let new_boot =
        status.boot.as_ref().and_then(|boot| boot.start_time.clone()) != Some(MicroTime(timeline.started));
    status.boot = Some(boot_status(timeline));
    let description = timeline.describe(now);
    let (up, reason) = match (timeline.stage, &timeline.held) {
        (Stage::Enrolled | Stage::Userspace, _) => (true, BootedReason::UserspaceStarted),
        _ if timeline.stopped(now).is_some() => (false, BootedReason::BootStalled),
        (_, Some(hold)) => (false, hold.cause.into()),
        _ if timeline.failing.is_some() => (false, BootedReason::StageFailed),
        _ => (false, BootedReason::Booting),
    };
    let message = match (up, state) {
        (false, _) => &description,
        (true, State::Disk) => "user space has started",
        (true, State::Memory) => "user space has started; no stateDisk, so state is lost at the next boot",
    };
    set_condition(status, up, reason, message, None, now);
    if timeline.stage == Stage::Enrolled {
        let message = "the host has its certificate";
        set_condition(status, true, EnrolledReason::Enrolled, message, None, now);
        return;
    }
    let kept = condition(status, condition_type::ENROLLED).filter(|c| c.status != "True").is_some_and(|c| {
        c.reason == EnrolledReason::SeedRequestedTwice || c.reason == EnrolledReason::HeardElsewhere
    });
    if new_boot || !kept {
        let message = if up { description } else { format!("waiting for the boot: {description}") };
        set_condition(status, false, EnrolledReason::AwaitingEnrollment, &message, None, now);
    }
}

/// Writes into a status that the key in force was heard. `refused`: another key was refused recently, and the message about it stays.
fn apply_heard(status: &mut MachineStatus, refused: bool, now: Timestamp) {
    let enrolled = condition(status, condition_type::ENROLLED);
    let kept =
        enrolled.filter(|c| refused && c.reason == EnrolledReason::HeardElsewhere).map(|c| c.message.clone());
    if let Some(message) = kept {
        set_condition(status, true, EnrolledReason::HeardElsewhere, &message, None, now);
    } else if enrolled.is_none_or(|c| c.status != "True" || c.reason != EnrolledReason::Enrolled) {
        let message = "the host's agent reports with the certificate of its enrollment";
        set_condition(status, true, EnrolledReason::Enrolled, message, None, now);
    }
    let of_boot = [
        BootedReason::Booting,
        BootedReason::BootStalled,
        BootedReason::ImagePending,
        BootedReason::ImageUnavailable,
        BootedReason::InvalidKernelArguments,
        BootedReason::MachinePaused,
        BootedReason::StageFailed,
    ];
    if booted(status).is_some_and(|c| of_boot.iter().any(|reason| c.reason == *reason)) {
        let message = "the host's agent reports; a later boot of this Machine has not enrolled";
        set_condition(status, true, BootedReason::UserspaceStarted, message, None, now);
    }
}

/// Writes into a status that a new key waits. `is_up`: the key in force was heard since that key's boot began.
pub(crate) fn apply_heard_elsewhere(status: &mut MachineStatus, is_up: bool, message: &str, now: Timestamp) {
    set_condition(status, is_up, EnrolledReason::HeardElsewhere, message, None, now);
}

fn boot_status(timeline: &Timeline) -> BootStatus {
    let mut entries: Vec<_> = timeline
        .entries
        .iter()
        .map(|entry| TimelineEntry {
            stage: entry.stage,
            time: MicroTime(entry.time),
            failed: false,
            message: timeline
                .held
                .as_ref()
                .filter(|_| entry.stage == Stage::Script)
                .map(|hold| hold.message.clone()),
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
        let message = format!("ended at stage {}{failure}", previous.stage.label());
        let message = message.chars().take(1024).collect();
        PreviousBoot {
            id: previous.id.public_id(),
            start_time: MicroTime(previous.started),
            stage: previous.stage,
            stage_time: Some(MicroTime(previous.reached)),
            message: Some(message),
        }
    });
    BootStatus {
        id: Some(timeline.id.public_id()),
        start_time: Some(MicroTime(timeline.started)),
        seed_time: timeline.seed.map(MicroTime),
        stage: Some(timeline.stage),
        attempts: Some(i32::try_from(timeline.attempts).unwrap_or(i32::MAX)),
        timeline: entries,
        previous,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_policy::{Hold, HoldCause};
    use crate::http::tests::Rig;

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

    #[tokio::test]
    async fn trust_6_a_packet_leaves_status_boot_as_it_is() {
        let (rig, now) = (Rig::new(), Timestamp::now());
        let name: MachineName = "node1".parse().unwrap();
        let known = rig.machines.load().by_name(&name).unwrap().clone();
        let shown = |now| {
            rig.boots().flush(now);
            rig.registry.get(&name).unwrap_or_default().boot.and_then(|boot| boot.id)
        };
        let record = |id| rig.boots().get(id, now).unwrap().record();
        let first = rig.open(1);
        rig.boots().reached(&record(first), Stage::Userspace, now);
        assert_eq!(shown(now), Some(first.public_id()));
        let enrollment = serde_json::json!({ "keyFingerprint": format!("sha256:{}", "ab".repeat(32)), "keyTime": now.to_string() });
        rig.registry.update(&name, |status| status.enrollment = serde_json::from_value(enrollment).unwrap());
        rig.heard.request(&known, now);
        let second = rig.open(2);
        assert_eq!(shown(now), Some(first.public_id()), "anyone can send a packet");
        let later = now + SignedDuration::from_secs(10);
        rig.boots().reached(&record(second), Stage::Script, later);
        assert_eq!(shown(later), Some(second.public_id()), "it has read the boot's URL since");
    }

    #[tokio::test]
    async fn status_that_was_read_from_the_store_shows_its_timeline() {
        let (rig, now) = (Rig::new(), Timestamp::now());
        let name: MachineName = "node1".parse().unwrap();
        let teller = || Teller {
            registry: rig.registry.clone(),
            machines: rig.machines.clone(),
            heard: rig.heard.clone(),
        };
        let (id, owner) = (rig.open(1), rig.opening(1).owner);
        let is_shown = || teller().is_shown(&name, &rig.boots().timeline(&owner).unwrap());
        assert!(is_shown(), "a Machine without a status");
        rig.boots().flush(now);
        let kept = serde_json::to_string(&rig.registry.get(&name).unwrap()).unwrap();
        rig.registry.update(&name, |status| *status = serde_json::from_str(&kept).unwrap());
        assert!(is_shown(), "{kept}");
        rig.registry.update(&name, |status| {
            for entry in &mut status.boot.as_mut().unwrap().timeline {
                entry.message = Some("other words".to_owned());
            }
        });
        assert!(is_shown(), "no message decides");
        rig.boots().reached(&rig.boots().get(id, now).unwrap().record(), Stage::Script, now);
        assert!(!is_shown(), "{kept}");
    }

    #[tokio::test]
    async fn h2_packets_are_not_shown_as_a_boot_of_a_server_that_was_found_running() {
        let (rig, now) = (Rig::new(), Timestamp::now());
        let name: MachineName = "node1".parse().unwrap();
        rig.registry.update(&name, |status| {
            set_condition(status, true, PoweredOnReason::FoundRunning, "it runs", None, now);
        });
        let id = rig.open(1);
        let boot = || rig.registry.get(&name).unwrap().boot;
        for second in [0, 300] {
            let now = now + SignedDuration::from_secs(second);
            rig.boots().tick(now);
            rig.boots().flush(now);
        }
        assert_eq!(boot(), None);
        assert!(!rig.reports().contains("BootStalled"), "{}", rig.reports());
        rig.boots().reached(&rig.boots().get(id, now).unwrap().record(), Stage::Script, now);
        rig.boots().flush(now);
        assert!(boot().is_some(), "it boots");
    }

    #[test]
    fn conditions_follow_a_boot_from_its_first_packet_to_enrollment() {
        let mut status = MachineStatus::default();
        let mut timeline = Timeline::new(BootId::from_random([1; 16]), at(0));
        apply_timeline(&mut status, &timeline, State::Disk, at(0));
        expect(&status, ("False", "Booting"), ("False", "AwaitingEnrollment"));
        timeline.reached(Stage::Initrd, at(10));
        apply_timeline(&mut status, &timeline, State::Disk, at(1000));
        expect(&status, ("False", "BootStalled"), ("False", "AwaitingEnrollment"));
        let message = &status.conditions[0].message;
        assert!(message.contains("boot stalled at stage initrd") && message.contains("next is rootfs"));
        timeline.failed(Stage::RootFs, "connection refused", at(1010));
        apply_timeline(&mut status, &timeline, State::Disk, at(1010));
        expect(&status, ("False", "StageFailed"), ("False", "AwaitingEnrollment"));
        let last = status.boot.as_ref().unwrap().timeline.last().unwrap().clone();
        assert_eq!((last.stage, last.failed), (Stage::RootFs, true));
        timeline.reached(Stage::Userspace, at(1020));
        apply_timeline(&mut status, &timeline, State::Disk, at(1020));
        expect(&status, ("True", "UserspaceStarted"), ("False", "AwaitingEnrollment"));
        timeline.reached(Stage::Enrolled, at(1030));
        apply_timeline(&mut status, &timeline, State::Disk, at(1030));
        expect(&status, ("True", "UserspaceStarted"), ("True", "Enrolled"));
    }

    #[test]
    fn a_held_or_failing_machine_that_falls_silent_has_stopped() {
        let mut held = Timeline::new(BootId::from_random([1; 16]), at(0));
        held.reached(Stage::Script, at(1));
        held.hold(&Hold::new(HoldCause::ImagePending, "image host is being fetched"), at(1));
        let mut failing = Timeline::new(BootId::from_random([1; 16]), at(0));
        failing.reached(Stage::Initrd, at(1));
        failing.failed(Stage::RootFs, "no link", at(1));
        for (timeline, reason, text) in
            [(&held, "ImagePending", "image host is being fetched"), (&failing, "StageFailed", "no link")]
        {
            for (second, reason) in [(30, reason), (3000, "BootStalled")] {
                let mut status = MachineStatus::default();
                apply_timeline(&mut status, timeline, State::Disk, at(second));
                let booted = &status.conditions[0];
                assert_eq!(booted.reason, reason, "{}", booted.message);
                assert!(booted.message.contains(text), "{}", booted.message);
                assert_eq!(
                    booted.message.contains("boot stalled at stage"),
                    second == 3000,
                    "{}",
                    booted.message
                );
            }
        }
    }

    #[test]
    fn state_that_is_in_memory_is_said_once_the_host_runs() {
        let mut timeline = Timeline::new(BootId::from_random([1; 16]), at(0));
        for (stage, state, expected) in [
            (Stage::Initrd, State::Memory, false),
            (Stage::Userspace, State::Memory, true),
            (Stage::Userspace, State::Disk, false),
            (Stage::Enrolled, State::Memory, true),
        ] {
            timeline.reached(stage, at(10));
            let mut status = MachineStatus::default();
            apply_timeline(&mut status, &timeline, state, at(10));
            let message = &status.conditions[0].message;
            assert_eq!(message.contains("state is lost"), expected, "{stage:?} {state:?}: {message}");
        }
    }
}
