//! A machine as its BMC sees it: power, source of the next boot, and a record of every request and every change of power.
//!
//! Behind it is either nothing (power follows after set times, without a task that waits for them) or [`Hardware`], such as
//! a QEMU. Speaks no protocol. Callers: the simulator's protocols, and the backends of foreign BMCs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use bedplate_api::id::MacAddress;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Lifetime of IPMI's boot flags, unless the client makes them persistent (IPMI 2.0 section 28.12).
const FLAGS_LIFETIME: Duration = Duration::from_secs(60);

/// A request to a machine's power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Power on.
    On,
    /// Power off immediately.
    ForceOff,
    /// The power button, pressed shortly: the operating system is asked to shut down.
    GracefulOff,
    /// The reset button.
    Reset,
    /// Off and on again.
    Cycle,
}

/// Protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// The simulator's Redfish.
    Redfish,
    /// The simulator's RMCP+.
    Ipmi,
    /// `ipmi_sim` or sushy-tools.
    Peer,
}

/// Source of a machine's boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Its disk: the order of its own firmware.
    Disk,
    /// The PXE client.
    Pxe,
    /// The UEFI HTTP client.
    Http,
}

/// Hardware of a chassis.
pub trait Hardware: Send {
    /// Switches it on.
    ///
    /// # Errors
    /// It does not start.
    fn power_on(&mut self, boot: Source) -> Result<()>;
    /// Takes its power away; nothing of it runs when this returns.
    fn power_off(&mut self);
    /// Presses its power button shortly (ACPI).
    ///
    /// # Errors
    /// It cannot be reached.
    fn press_button(&mut self) -> Result<()>;
    /// Presses its reset button.
    ///
    /// # Errors
    /// It cannot be reached.
    fn reset(&mut self) -> Result<()>;
    /// Returns true if it has power.
    fn has_power(&mut self) -> bool;
}

/// Delays of a machine without hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// From the request to On.
    pub on: Duration,
    /// From the request to Off.
    pub off: Duration,
    /// From the button to Off; `None`: the operating system does not listen to the button.
    pub graceful: Option<Duration>,
}

impl Default for Delays {
    fn default() -> Self {
        Self { on: Duration::ZERO, off: Duration::ZERO, graceful: Some(Duration::ZERO) }
    }
}

/// A request that a BMC took for this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// The requested action.
    pub action: Action,
    /// By which protocol.
    pub by: By,
    /// When.
    pub at: Timestamp,
    /// True if the machine was on.
    pub was_on: bool,
}

/// A change of power that has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// True if it was switched on, false if off.
    pub on: bool,
    /// When.
    pub at: Timestamp,
    /// Source of its boot, if it was switched on.
    pub boot: Option<Source>,
}

/// Cause why a request was not carried out.
#[derive(Debug)]
pub enum ActError {
    /// Not in this state of power.
    State,
    /// The hardware does not do it.
    Hardware(anyhow::Error),
}

/// Override of the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Override {
    /// With what.
    pub source: Source,
    /// Only for one boot.
    pub once: bool,
}

/// A machine.
pub struct Chassis {
    name: String,
    uuid: String,
    mac: Option<MacAddress>,
    hardware: Option<Box<dyn Hardware>>,
    delays: Delays,
    on: bool,
    /// Changes to come of a machine without hardware, in order.
    due: VecDeque<(Instant, bool)>,
    boot: Option<(Override, Option<Instant>)>,
    /// False report of the power, and its end.
    lie: Option<(bool, Instant)>,
    asked: Vec<Asked>,
    changes: Vec<Change>,
    /// Counts what a client can see: its ETag.
    version: u64,
}

/// A chassis that several can reach.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Chassis>>);

impl Shared {
    /// Locks it.
    pub fn lock(&self) -> MutexGuard<'_, Chassis> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Chassis {
    /// A machine without hardware, off.
    pub fn new(name: &str, uuid: &str, delays: Delays) -> Self {
        Self {
            name: name.to_owned(),
            uuid: uuid.to_owned(),
            mac: None,
            hardware: None,
            delays,
            on: false,
            due: VecDeque::new(),
            boot: None,
            lie: None,
            asked: Vec::new(),
            changes: Vec::new(),
            version: 1,
        }
    }

    /// Puts hardware behind it, with a network card of this address.
    #[must_use]
    pub fn with_hardware(mut self, hardware: impl Hardware + 'static, mac: MacAddress) -> Self {
        self.hardware = Some(Box::new(hardware));
        self.mac = Some(mac);
        self
    }

    /// For several to reach.
    pub fn share(self) -> Shared {
        Shared(Arc::new(Mutex::new(self)))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its UUID.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Its network card's address.
    pub fn mac(&self) -> Option<MacAddress> {
        self.mac
    }

    /// Returns true if real hardware is behind it, whose requests take time.
    pub fn has_hardware(&self) -> bool {
        self.hardware.is_some()
    }

    /// Counts up with every change that a client can see.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All requests so far.
    pub fn asked(&self) -> &[Asked] {
        &self.asked
    }

    /// All changes of power so far.
    pub fn changes(&mut self, now: Instant) -> &[Change] {
        self.settle(now);
        &self.changes
    }

    /// Number of times that it was switched off and then on again.
    pub fn cycles(&mut self, now: Instant) -> usize {
        self.changes(now).windows(2).filter(|pair| !pair[0].on && pair[1].on).count()
    }

    /// Returns true if it is on.
    pub fn is_on(&mut self, now: Instant) -> bool {
        self.settle(now);
        self.on
    }

    /// Returns true if its BMC reports that it is on.
    pub fn is_reported_on(&mut self, now: Instant) -> bool {
        let on = self.is_on(now);
        match self.lie {
            Some((reported, until)) if now < until => reported,
            _ => on,
        }
    }

    /// Carries out a request; for `lie` after it the former power is reported.
    ///
    /// # Errors
    /// It makes no sense now, or the hardware fails.
    pub fn act(&mut self, action: Action, by: By, lie: Duration, now: Instant) -> Result<(), ActError> {
        let reported = self.is_reported_on(now);
        self.asked.push(Asked { action, by, at: Timestamp::now(), was_on: self.on });
        match action {
            Action::On if self.on && self.due.is_empty() => return Ok(()),
            Action::ForceOff if !self.on && self.due.is_empty() => return Ok(()),
            Action::GracefulOff | Action::Reset | Action::Cycle if !self.on => return Err(ActError::State),
            Action::On | Action::ForceOff | Action::GracefulOff | Action::Reset | Action::Cycle => {}
        }
        self.lie = (!lie.is_zero()).then(|| (reported, now + lie));
        self.version += 1;
        if self.hardware.is_some() {
            return self.act_on_hardware(action, now).map_err(ActError::Hardware);
        }
        let Delays { on, off, graceful } = self.delays;
        let due: &[(Duration, bool)] = match (action, graceful) {
            (Action::On, _) => &[(on, true)],
            (Action::ForceOff, _) => &[(off, false)],
            (Action::Cycle, _) => &[(off, false), (off + on, true)],
            (Action::GracefulOff, Some(graceful)) => &[(graceful, false)],
            (Action::GracefulOff, None) => &[],
            (Action::Reset, _) => {
                self.take_boot(now);
                return Ok(());
            }
        };
        self.due = due.iter().map(|(delay, on)| (now + *delay, *on)).collect();
        self.settle(now);
        Ok(())
    }

    /// Records a request and does nothing.
    pub fn ignore(&mut self, action: Action, by: By, now: Instant) {
        let was_on = self.is_on(now);
        self.asked.push(Asked { action, by, at: Timestamp::now(), was_on });
    }

    /// Other times, for requests from now on.
    pub fn set_delays(&mut self, delays: Delays) {
        self.delays = delays;
    }

    /// Lets happen now what is due later.
    pub fn hasten(&mut self, now: Instant) {
        self.due.iter_mut().for_each(|(at, _)| *at = now);
        self.settle(now);
    }

    /// Takes the hardware away, with its power.
    pub fn unplug(&mut self) {
        if let Some(mut hardware) = self.hardware.take() {
            hardware.power_off();
            if self.on {
                self.changed(false, None);
            }
        }
    }

    fn act_on_hardware(&mut self, action: Action, now: Instant) -> Result<()> {
        let boot = match action {
            Action::On | Action::Cycle => self.take_boot(now),
            // A running machine gets another boot order only by a restart.
            Action::Reset => match self.boot_override(now) {
                Some(_) => self.take_boot(now),
                None => return self.hardware.as_mut().map_or(Ok(()), |hardware| hardware.reset()),
            },
            Action::GracefulOff => {
                return self.hardware.as_mut().map_or(Ok(()), |hardware| hardware.press_button());
            }
            Action::ForceOff => Source::Disk,
        };
        if let Some(hardware) = &mut self.hardware
            && action != Action::On
        {
            hardware.power_off();
        }
        if matches!(action, Action::ForceOff | Action::Cycle) {
            self.changed(false, None);
        }
        if action != Action::ForceOff {
            if let Some(hardware) = &mut self.hardware {
                hardware.power_on(boot)?;
            }
            if action != Action::Reset {
                self.changed(true, Some(boot));
            }
        }
        Ok(())
    }

    fn changed(&mut self, on: bool, boot: Option<Source>) {
        self.on = on;
        self.version += 1;
        self.changes.push(Change { on, at: Timestamp::now(), boot });
    }

    /// Lets happen what is due.
    fn settle(&mut self, now: Instant) {
        if let Some(hardware) = &mut self.hardware {
            // A guest can switch itself off; nothing else does it behind the BMC's back.
            if self.on && !hardware.has_power() {
                self.changed(false, None);
            }
            return;
        }
        while let Some((_, on)) = self.due.front().copied().filter(|(at, _)| *at <= now) {
            self.due.pop_front();
            if on != self.on {
                let boot = on.then(|| self.take_boot(now));
                self.changed(on, boot);
            }
        }
    }

    /// Override of the next boot.
    pub fn boot_override(&self, now: Instant) -> Option<Override> {
        let (boot, until) = self.boot?;
        until.is_none_or(|until| now < until).then_some(boot)
    }

    /// Sets or clears it; `expires`: as IPMI's boot flags do.
    pub fn set_boot(&mut self, boot: Option<Override>, expires: bool, now: Instant) {
        self.boot = boot.map(|boot| (boot, expires.then(|| now + FLAGS_LIFETIME)));
        self.version += 1;
    }

    fn take_boot(&mut self, now: Instant) -> Source {
        let Some(boot) = self.boot_override(now) else { return Source::Disk };
        if boot.once {
            self.boot = None;
        }
        boot.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT: Duration = Duration::ZERO;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn power_follows_after_its_time_and_a_cycle_is_one() {
        let delays = Delays { on: seconds(2), off: seconds(1), graceful: None };
        let mut chassis = Chassis::new("a", "u", delays);
        let now = Instant::now();
        chassis.act(Action::On, By::Redfish, NOT, now).unwrap();
        assert!(!chassis.is_on(now + seconds(1)) && chassis.is_on(now + seconds(2)));
        chassis.act(Action::GracefulOff, By::Redfish, NOT, now + seconds(3)).unwrap();
        assert!(chassis.is_on(now + seconds(9)), "this system does not listen to the button");
        chassis.act(Action::Cycle, By::Redfish, NOT, now + seconds(10)).unwrap();
        assert!(!chassis.is_on(now + seconds(11)) && chassis.is_on(now + seconds(13)));
        assert_eq!((chassis.cycles(now + seconds(13)), chassis.asked().len()), (1, 3));
    }

    #[test]
    fn a_boot_override_counts_once_and_ipmis_for_a_minute() {
        let mut chassis = Chassis::new("a", "u", Delays::default());
        let now = Instant::now();
        let pxe = Some(Override { source: Source::Pxe, once: true });
        chassis.set_boot(pxe, true, now);
        assert_eq!((chassis.boot_override(now), chassis.boot_override(now + FLAGS_LIFETIME)), (pxe, None));
        chassis.act(Action::On, By::Ipmi, NOT, now).unwrap();
        chassis.act(Action::Cycle, By::Ipmi, NOT, now).unwrap();
        let boots: Vec<_> = chassis.changes(now).iter().filter_map(|change| change.boot).collect();
        assert_eq!(boots, [Source::Pxe, Source::Disk]);
    }

    #[test]
    fn a_lying_bmc_tells_the_power_of_before() {
        let mut chassis = Chassis::new("a", "u", Delays::default());
        let now = Instant::now();
        chassis.act(Action::On, By::Redfish, seconds(10), now).unwrap();
        assert!(chassis.is_on(now) && !chassis.is_reported_on(now + seconds(9)));
        assert!(chassis.is_reported_on(now + seconds(10)));
    }

    #[test]
    fn changes_that_are_due_in_an_hour_can_be_brought_forward() {
        let mut chassis = Chassis::new("a", "u", Delays { on: seconds(3600), ..Delays::default() });
        let now = Instant::now();
        chassis.act(Action::On, By::Redfish, NOT, now).unwrap();
        assert!(!chassis.is_on(now + seconds(3599)));
        chassis.hasten(now);
        chassis.set_delays(Delays::default());
        chassis.act(Action::Cycle, By::Redfish, NOT, now).unwrap();
        assert!(chassis.is_on(now) && chassis.cycles(now) == 1);
    }

    #[test]
    fn nothing_is_reset_that_is_off() {
        let mut chassis = Chassis::new("a", "u", Delays::default());
        let answer = chassis.act(Action::Cycle, By::Ipmi, NOT, Instant::now());
        assert!(matches!(answer, Err(ActError::State)) && chassis.changes(Instant::now()).is_empty());
    }
}
