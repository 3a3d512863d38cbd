//! What a person would want to know as it happens: Events in the cluster, log lines everywhere.
//!
//! [`Gate`] is pure: the same thing is told once in ten minutes, a rack that comes up is not a storm of Events, and one Machine leaves room
//! for the Events of others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bedplate_api::id::MachineName;
use bedplate_bmc::Reason;

use crate::token_bucket::{Allowances, Rate};

/// What happened. A closed set: each is a reason in `kubectl describe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventReason {
    /// Several Machines claim one address.
    DuplicateMACAddress,
    /// The Machine's fixed addresses are in no subnet of pxed.
    AddressOutsideSubnets,
    /// The image that the Machine is to boot is not there.
    ImageNotAvailable,
    /// A boot stopped at some stage.
    BootStopped,
    /// The host has its certificate.
    Enrolled,
    /// A boot's seed was asked for a second time.
    SeedAskedTwice,
    /// A new key was enrolled in place of another one.
    KeyChanged,
    /// A host with an earlier key was refused.
    KeyReplaced,
    /// A new key waits, because the key in force is still heard.
    HeardElsewhere,
    /// An enrollment token was refused.
    TokenRefused,
    /// pxed has changed the power.
    PowerChanged,
    /// The BMC does not answer, or not usefully: in the condition's word for it.
    Bmc(Reason),
    /// The BMC answers again.
    BMCReachable,
    /// User name and password are not there, or not readable.
    CredentialsNotAvailable,
    /// The Secret does not list the address of the BMC.
    CredentialsNotForThisAddress,
    /// Nothing proves who answers at the address of the BMC.
    InsecureNotAllowed,
    /// The machine was switched on often enough.
    PowerOnAttemptsExhausted,
    /// A deleted Machine waits to be switched off.
    PowerOffAwaited,
    /// Several Machines claim one BMC.
    DuplicateBMC,
    /// An operation on its power has failed.
    OperationFailed,
}

impl EventReason {
    /// The reason in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DuplicateMACAddress => "DuplicateMACAddress",
            Self::AddressOutsideSubnets => "AddressOutsideSubnets",
            Self::ImageNotAvailable => "ImageNotAvailable",
            Self::BootStopped => "BootStopped",
            Self::Enrolled => "Enrolled",
            Self::SeedAskedTwice => "SeedAskedTwice",
            Self::KeyChanged => "KeyChanged",
            Self::KeyReplaced => "KeyReplaced",
            Self::HeardElsewhere => "HeardElsewhere",
            Self::TokenRefused => "TokenRefused",
            Self::PowerChanged => "PowerChanged",
            Self::Bmc(reason) => reason.as_str(),
            Self::BMCReachable => "BMCReachable",
            Self::CredentialsNotAvailable => "CredentialsNotAvailable",
            Self::CredentialsNotForThisAddress => "CredentialsNotForThisAddress",
            Self::InsecureNotAllowed => "InsecureNotAllowed",
            Self::PowerOnAttemptsExhausted => "PowerOnAttemptsExhausted",
            Self::PowerOffAwaited => "PowerOffAwaited",
            Self::DuplicateBMC => "DuplicateBMC",
            Self::OperationFailed => "OperationFailed",
        }
    }

    /// Whether a person has to do something.
    pub fn is_warning(self) -> bool {
        match self {
            Self::DuplicateMACAddress
            | Self::AddressOutsideSubnets
            | Self::ImageNotAvailable
            | Self::BootStopped
            | Self::SeedAskedTwice
            | Self::KeyReplaced
            | Self::HeardElsewhere
            | Self::TokenRefused
            | Self::Bmc(_)
            | Self::CredentialsNotAvailable
            | Self::CredentialsNotForThisAddress
            | Self::InsecureNotAllowed
            | Self::PowerOnAttemptsExhausted
            | Self::PowerOffAwaited
            | Self::DuplicateBMC
            | Self::OperationFailed => true,
            Self::Enrolled | Self::KeyChanged | Self::PowerChanged | Self::BMCReachable => false,
        }
    }
}

/// One thing that happened to a Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The Machine.
    pub machine: MachineName,
    /// Its uid, if it is known.
    pub uid: Option<String>,
    /// What happened.
    pub reason: EventReason,
    /// What happened, for a person.
    pub message: String,
}

/// How long the same event of a Machine is not told again.
const QUIET: Duration = Duration::from_secs(600);
/// Events at once, before the rate applies.
const BURST: f64 = 100.0;
/// Events a second.
const RATE: f64 = 5.0;
/// Events of one Machine: at most half of all, as any client on the boot network can cause some.
const SHARE: Rate = Rate { burst: 50, each: Duration::from_millis(400) };
/// Remembered events at most; the oldest half goes when there are more.
const REMEMBERED: usize = 20_000;

/// Lets through what is new, at a bounded rate.
#[derive(Debug)]
pub struct Gate {
    told: HashMap<(MachineName, EventReason), (String, Instant)>,
    tokens: f64,
    filled: Instant,
    shares: Allowances<MachineName>,
}

impl Gate {
    /// A gate that has let nothing through yet.
    pub fn new(now: Instant) -> Self {
        Self { told: HashMap::new(), tokens: BURST, filled: now, shares: Allowances::default() }
    }

    /// Whether this event is to be published.
    pub fn admit(&mut self, event: &Event, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * RATE).min(BURST);
        self.filled = now;
        let key = (event.machine.clone(), event.reason);
        let repeated = self.told.get(&key).is_some_and(|(message, time)| {
            *message == event.message && now.saturating_duration_since(*time) < QUIET
        });
        if repeated || self.tokens < 1.0 || self.shares.take(event.machine.clone(), SHARE, now).is_err() {
            return false;
        }
        self.tokens -= 1.0;
        if self.told.len() >= REMEMBERED {
            self.told.retain(|_, (_, time)| now.saturating_duration_since(*time) < QUIET / 2);
            if self.told.len() >= REMEMBERED {
                self.told.clear();
            }
        }
        self.told.insert(key, (event.message.clone(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(machine: &str, message: &str) -> Event {
        let machine = machine.parse().unwrap();
        Event { machine, uid: None, reason: EventReason::BootStopped, message: message.to_owned() }
    }

    #[test]
    fn the_same_event_is_told_once_in_ten_minutes() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        assert!(gate.admit(&event("a", "at kernel"), now));
        assert!(!gate.admit(&event("a", "at kernel"), now + QUIET / 2));
        assert!(gate.admit(&event("a", "at initrd"), now));
        assert!(gate.admit(&event("b", "at kernel"), now));
        assert!(gate.admit(&event("b", "at kernel"), now + QUIET));
    }

    #[test]
    fn a_rack_that_fails_at_once_is_no_storm() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        let admitted = (0..1000).filter(|n| gate.admit(&event(&format!("m{n}"), "x"), now)).count();
        assert_eq!(admitted, 100);
        assert!(gate.admit(&event("later", "x"), now + Duration::from_secs(1)));
    }

    #[test]
    fn one_machines_events_leave_room_for_those_of_others() {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        let mut flood =
            |now| (0..1000).filter(|n| gate.admit(&event("a", &format!("{now:?} {n}")), now)).count();
        assert_eq!((flood(now), flood(now + Duration::from_secs(4))), (50, 10));
        assert!(gate.admit(&event("b", "x"), now + Duration::from_secs(4)));
    }
}
