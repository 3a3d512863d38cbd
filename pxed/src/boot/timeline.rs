//! Progress of a machine's boot: attempts, stages with their times, the stage where it stalled.
//!
//! Pure: `now` is an argument. Called by `boot` on each packet, fetch and report; shown in `status.boot`.
//!
//! ```text
//!   Discover -> Offered -> Acknowledged -> Loader -> Script -> Kernel -> Initrd -> RootFs -> Userspace -> Enrolled
//!   |<----------- firmware, then once more by iPXE ----------->|<------ stage-1 ------>|<---- host ---->|
//! ```
//!
//! An *attempt* starts with a DHCP packet of a loader. Firmware, iPXE and its script are one attempt, although each
//! has its own transaction and so its own boot ID. A new attempt starts where the machine must have restarted:
//! firmware asks although a loader was already fetched, or iPXE asks although a script was.

use crate::boot_policy::Hold;
use crate::status::site_boot::CHOSEN;
use bedplate_api::id::BootId;
use bedplate_api::wire::Stage;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Entries kept of one attempt (docs/troubleshooting/boot.md).
pub const MAX_ENTRIES: usize = 32;

/// Bytes kept of a failure's text.
const MAX_FAILURE: usize = 1024;

/// Firmware that repeats its DHCP, or iPXE that follows it, belongs to the attempt for this many seconds.
const SAME_ATTEMPT_SECONDS: i64 = 300;

/// Program that asked by DHCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starter {
    /// Firmware PXE or UEFI HTTP boot.
    Firmware,
    /// iPXE.
    Ipxe,
}

/// One stage that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The stage.
    pub stage: Stage,
    /// Time at which it was reached, for the first time in this attempt.
    pub time: Timestamp,
}

/// Summary of the previous attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The last boot id.
    pub id: BootId,
    /// Time at which it began.
    pub started: Timestamp,
    /// Last stage of the attempt.
    pub stage: Stage,
    /// Time at which it came there.
    pub reached: Timestamp,
    /// Reported failure, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The latest attempt of one machine, and a summary of the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// The newest boot id of the attempt.
    pub id: BootId,
    /// Every boot id of the attempt, oldest first; a late report of an earlier attempt is not taken for this one.
    #[serde(default)]
    pub ids: Vec<BootId>,
    /// Time at which the attempt began.
    pub started: Timestamp,
    /// The furthest stage.
    pub stage: Stage,
    /// Time of the last progress: a stage was reached, or reported again.
    pub progress: Timestamp,
    /// Attempts since the machine was last enrolled, this one included.
    pub attempts: u32,
    /// Stages in the order in which they were reached.
    pub entries: Vec<Entry>,
    /// Time at which a seed of the attempt left pxed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Timestamp>,
    /// Current failure that stage-1 or the agent reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<(Stage, String)>,
    /// Reason shown on the machine's screen, if pxed holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Hold>,
    /// The attempt before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Summary>,
    /// True if the stall was reported already.
    #[serde(default)]
    pub stop_reported: bool,
}

/// Stalled boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// The stage that it reached last.
    pub stage: Stage,
    /// Since when nothing was heard.
    pub since: Timestamp,
    /// Next expected stage.
    pub next: Stage,
}

impl Timeline {
    /// The first attempt of a machine.
    pub fn new(id: BootId, now: Timestamp) -> Self {
        Self {
            id,
            ids: vec![id],
            started: now,
            stage: Stage::Discover,
            progress: now,
            attempts: 1,
            entries: vec![Entry { stage: Stage::Discover, time: now }],
            seed: None,
            failing: None,
            held: None,
            previous: None,
            stop_reported: false,
        }
    }

    /// Records a new boot ID of a DHCP packet: it either continues the attempt or starts a new one.
    pub fn opened(&mut self, id: BootId, starter: Starter, now: Timestamp) {
        if self.goes_on(starter, now) {
            self.id = id;
            self.progress = now;
            self.stop_reported = false;
            self.ids.push(id);
            if self.ids.len() > MAX_ENTRIES {
                self.ids.remove(0);
            }
            return;
        }
        let attempts = if self.stage == Stage::Enrolled { 1 } else { self.attempts.saturating_add(1) };
        let previous = Summary {
            id: self.id,
            started: self.started,
            stage: self.stage,
            reached: self.entries.last().map_or(self.started, |e| e.time),
            failure: self.failing.take().map(|(stage, text)| format!("{}: {text}", stage.label())),
        };
        *self = Self { attempts, previous: Some(previous), ..Self::new(id, now) };
    }

    /// Returns true if this boot ID belongs to the attempt.
    pub fn has(&self, id: BootId) -> bool {
        self.ids.contains(&id)
    }

    fn goes_on(&self, starter: Starter, now: Timestamp) -> bool {
        if now.as_second().saturating_sub(self.progress.as_second()) > SAME_ATTEMPT_SECONDS {
            return false;
        }
        match starter {
            Starter::Firmware => self.stage < Stage::Loader,
            Starter::Ipxe => {
                self.stage < Stage::Script || (self.stage == Stage::Script && self.held.is_some())
            }
        }
    }

    /// Records a reached stage. Returns true if it is new; a stage that was reached before only counts as progress.
    pub fn reached(&mut self, stage: Stage, now: Timestamp) -> bool {
        self.progress = now;
        let resumed = std::mem::take(&mut self.stop_reported);
        if self.entries.iter().any(|e| e.stage == stage) || self.entries.len() >= MAX_ENTRIES {
            return resumed;
        }
        self.entries.push(Entry { stage, time: now });
        if stage > self.stage {
            self.stage = stage;
            self.failing = None;
            if stage > Stage::Script {
                self.held = None;
            }
        }
        true
    }

    /// Records that a seed of the attempt left pxed.
    pub(crate) fn seed_left(&mut self, now: Timestamp) {
        self.progress = now;
        self.seed.get_or_insert(now);
    }

    /// Returns the time of the last stage that the host reached by choosing this pxed among those of its site.
    pub fn chosen(&self) -> Option<Timestamp> {
        let stages = self.entries.iter().filter(|entry| entry.stage >= CHOSEN).map(|entry| entry.time);
        stages.chain(self.seed).max()
    }

    /// Returns the time at which the attempt first fetched something whose URL has its boot ID. Before it there were packets only, which any
    /// client on the network can send in the name of a machine.
    pub fn fetched(&self) -> Option<Timestamp> {
        let script = self.entries.iter().find(|entry| entry.stage >= Stage::Script).map(|entry| entry.time);
        script.into_iter().chain(self.seed).min()
    }

    /// Something failed at `stage` and will be tried again. Answers whether that is news.
    pub fn failed(&mut self, stage: Stage, failure: &str, now: Timestamp) -> bool {
        self.progress = now;
        let failing = Some((stage, cut(failure)));
        let news = std::mem::take(&mut self.stop_reported) || self.failing != failing;
        self.failing = failing;
        news
    }

    /// The machine waits at its script. Answers whether that is news.
    pub fn hold(&mut self, hold: &Hold, now: Timestamp) -> bool {
        self.progress = now;
        let resumed = std::mem::take(&mut self.stop_reported);
        let hold = Hold::new(hold.cause, cut(&hold.message));
        if self.held.as_ref() == Some(&hold) {
            return resumed;
        }
        self.held = Some(hold);
        true
    }

    /// The machine is no longer held.
    pub fn released(&mut self) -> bool {
        self.held.take().is_some()
    }

    /// Returns the stall of this boot, if it has stalled.
    pub fn stopped(&self, now: Timestamp) -> Option<Stopped> {
        let next = next(self.stage)?;
        let silent = now.as_second().saturating_sub(self.progress.as_second());
        (silent >= patience_seconds(self.stage)).then_some(Stopped {
            stage: self.stage,
            since: self.progress,
            next,
        })
    }

    /// Describes the pending step for users: one sentence without a final period.
    pub fn describe(&self, now: Timestamp) -> String {
        let mut text = match (self.stopped(now), next(self.stage)) {
            (Some(stopped), _) => format!(
                "boot stalled at stage {} since {}; next is {}: {}",
                stopped.stage.label(),
                second(stopped.since),
                stopped.next.label(),
                pending(stopped.next)
            ),
            (None, Some(next)) => format!(
                "at stage {} since {}; next is {}",
                self.stage.label(),
                second(self.progress),
                next.label()
            ),
            (None, None) => format!("{} at {}", self.stage.label(), second(self.progress)),
        };
        if let Some(Hold { message: held, .. }) = &self.held {
            match self.stopped(now) {
                Some(_) => text.push_str(&format!("; the boot was held: {held}")),
                None => text = format!("held at stage {}: {held}", self.stage.label()),
            }
        }
        if let Some((stage, failure)) = &self.failing {
            text.push_str(&format!("; failing at {}: {failure}", stage.label()));
        }
        if self.attempts > 1 {
            text.push_str(&format!(" (attempt {})", self.attempts));
        }
        text
    }
}

/// The stage after this one.
pub const fn next(stage: Stage) -> Option<Stage> {
    Some(match stage {
        Stage::Discover => Stage::Offered,
        Stage::Offered => Stage::Acknowledged,
        Stage::Acknowledged => Stage::Loader,
        Stage::Loader => Stage::Script,
        Stage::Script => Stage::Kernel,
        Stage::Kernel => Stage::Initrd,
        Stage::Initrd => Stage::RootFs,
        Stage::RootFs => Stage::Userspace,
        Stage::Userspace => Stage::Enrolled,
        Stage::Enrolled | Stage::Unknown => return None,
    })
}

/// Describes the step that leads to a stage, for users.
const fn pending(stage: Stage) -> &'static str {
    match stage {
        Stage::Discover => "a DHCP packet of the machine",
        Stage::Offered => "an address for the machine",
        Stage::Acknowledged => "the machine takes the address",
        Stage::Loader => "the firmware fetches the loader",
        Stage::Script => "the loader fetches its script by HTTP",
        Stage::Kernel => "the loader fetches the kernel",
        Stage::Initrd => "the loader fetches the initrd",
        Stage::RootFs => "the kernel starts, and stage-1 fetches the root file system",
        Stage::Userspace => "systemd starts the agent",
        Stage::Enrolled => "the agent enrolls over TLS",
        Stage::Unknown => "a stage of a later version",
    }
}

/// Seconds of silence after which a boot counts as stopped: twice what the slowest machines were seen to need.
const fn patience_seconds(stage: Stage) -> i64 {
    match stage {
        Stage::Discover | Stage::Offered | Stage::Acknowledged | Stage::Loader => 60,
        Stage::Script | Stage::Kernel => 120,
        Stage::Initrd | Stage::RootFs => 300,
        Stage::Userspace | Stage::Enrolled | Stage::Unknown => 180,
    }
}

fn second(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// At most [`MAX_FAILURE`] bytes, without control characters.
fn cut(text: &str) -> String {
    let mut kept = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if kept.len() + c.len_utf8() > MAX_FAILURE {
            break;
        }
        kept.push(c);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_policy::HoldCause;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn id(n: u8) -> BootId {
        BootId::from_random([n; 16])
    }

    #[test]
    fn firmware_ipxe_and_script_are_one_attempt() {
        let mut timeline = Timeline::new(id(1), at(0));
        timeline.opened(id(2), Starter::Firmware, at(3));
        assert!(timeline.reached(Stage::Offered, at(4)));
        assert!(timeline.reached(Stage::Acknowledged, at(5)));
        assert!(timeline.reached(Stage::Loader, at(6)));
        timeline.opened(id(3), Starter::Ipxe, at(8));
        assert!(!timeline.reached(Stage::Acknowledged, at(9)));
        assert!(timeline.reached(Stage::Script, at(10)));
        assert_eq!((timeline.attempts, timeline.id, timeline.stage), (1, id(3), Stage::Script));
        assert!(timeline.previous.is_none());
    }

    #[test]
    fn a_machine_that_starts_over_begins_a_new_attempt() {
        let mut timeline = Timeline::new(id(1), at(0));
        timeline.reached(Stage::Kernel, at(5));
        timeline.failed(Stage::RootFs, "connection refused", at(6));
        timeline.opened(id(2), Starter::Ipxe, at(20));
        assert_eq!((timeline.attempts, timeline.stage), (2, Stage::Discover));
        let previous = timeline.previous.clone().unwrap();
        assert_eq!((previous.id, previous.stage, previous.reached), (id(1), Stage::Kernel, at(5)));
        assert_eq!(previous.failure.as_deref(), Some("rootfs: connection refused"));
        timeline.reached(Stage::Loader, at(22));
        timeline.opened(id(3), Starter::Firmware, at(24));
        assert_eq!(timeline.attempts, 3);
        timeline.reached(Stage::Enrolled, at(50));
        timeline.opened(id(4), Starter::Firmware, at(60));
        assert_eq!(timeline.attempts, 1);
    }

    fn fetching() -> Hold {
        Hold::new(HoldCause::ImagePending, "image host is being fetched")
    }

    fn paused() -> Hold {
        Hold::new(HoldCause::MachinePaused, "the Machine is paused")
    }

    #[test]
    fn a_held_machine_that_asks_again_is_no_new_attempt() {
        let mut timeline = Timeline::new(id(1), at(0));
        timeline.reached(Stage::Script, at(1));
        assert!(timeline.hold(&fetching(), at(1)));
        assert!(!timeline.hold(&fetching(), at(11)));
        timeline.opened(id(2), Starter::Ipxe, at(30));
        assert_eq!(timeline.attempts, 1);
        assert_eq!(timeline.describe(at(31)), "held at stage script: image host is being fetched");
    }

    #[test]
    fn a_boot_that_stops_says_where_and_what_came_next() {
        let mut timeline = Timeline::new(id(1), at(0));
        timeline.reached(Stage::Offered, at(1));
        assert_eq!(timeline.stopped(at(30)), None);
        assert_eq!(
            timeline.describe(at(90)),
            "boot stalled at stage offered since 2023-11-14T22:13:21Z; next is acknowledged: the machine takes the \
             address"
        );
        timeline.reached(Stage::Enrolled, at(100));
        assert_eq!(timeline.stopped(at(1_000_000)), None);
    }

    #[test]
    fn a_machine_that_stopped_and_is_heard_again_is_news_and_can_stop_again() {
        let mut timeline = Timeline::new(id(1), at(0));
        timeline.reached(Stage::Script, at(1));
        timeline.hold(&paused(), at(1));
        timeline.stop_reported = true;
        assert!(timeline.hold(&paused(), at(500)));
        assert!(!timeline.hold(&paused(), at(510)));
        timeline.failed(Stage::RootFs, "no link", at(520));
        timeline.stop_reported = true;
        assert!(timeline.failed(Stage::RootFs, "no link", at(900)));
        assert!(!timeline.failed(Stage::RootFs, "no link", at(910)));
        timeline.stop_reported = true;
        timeline.opened(id(2), Starter::Ipxe, at(1000));
        assert!(!timeline.stop_reported);
    }

    #[test]
    fn entries_and_texts_are_bounded() {
        let mut timeline = Timeline::new(id(1), at(0));
        for n in 0..100 {
            timeline.reached(Stage::Kernel, at(n));
        }
        assert_eq!(timeline.entries.len(), 2);
        timeline.failed(Stage::RootFs, &"ü\n".repeat(4000), at(101));
        assert!(timeline.failing.unwrap().1.len() <= MAX_FAILURE);
    }
}
