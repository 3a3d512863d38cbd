//! Order of stage-1's steps, and the reaction to a failed one.
//!
//! Pure: no step is carried out here. Called by stage-1's driver.
//!
//! ```text
//!   read-boot-arguments -> load-modules -> find-interface -> get-address -> read-seed
//!     -> fetch-root -> mount-root -> state-disk -> hand-over -> (exec init)
//! ```
//! A failed step is retried after a delay, without a limit. `fetch-root` sometimes returns to `get-address`,
//! because the network may have changed. Stage-1 never reboots the host, so that an operator can read its
//! console.

use std::fmt;
use std::time::Duration;

use bedplate_process::backoff::Backoff;

/// One step of stage-1, in the order in which they are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Read `bedplate.url` and `bedplate.mac` from the kernel's command line.
    ReadBootArguments,
    /// Load the kernel modules of the present devices.
    LoadModules,
    /// Find the interface by its MAC address, set it up, wait for its carrier.
    FindInterface,
    /// Get an address by DHCP.
    GetAddress,
    /// Read the boot's seed.
    ReadSeed,
    /// Fetch the root image and verify its digest.
    FetchRoot,
    /// Mount the image read-only.
    MountRoot,
    /// Find the state disk, and make it if necessary.
    StateDisk,
    /// Build the new root and start its init.
    HandOver,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 9] = [
        Self::ReadBootArguments,
        Self::LoadModules,
        Self::FindInterface,
        Self::GetAddress,
        Self::ReadSeed,
        Self::FetchRoot,
        Self::MountRoot,
        Self::StateDisk,
        Self::HandOver,
    ];

    /// The step after this one.
    pub fn next(self) -> Option<Self> {
        Self::ALL.iter().copied().find(|step| *step > self)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadBootArguments => "read-boot-arguments",
            Self::LoadModules => "load-modules",
            Self::FindInterface => "find-interface",
            Self::GetAddress => "get-address",
            Self::ReadSeed => "read-seed",
            Self::FetchRoot => "fetch-root",
            Self::MountRoot => "mount-root",
            Self::StateDisk => "state-disk",
            Self::HandOver => "hand-over",
        })
    }
}

/// Reaction to a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Step to continue with.
    pub step: Step,
    /// Delay before it.
    pub wait: Duration,
}

/// Delay between two attempts of a step.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Number of consecutive failures of `fetch-root` after which a new address is requested.
const NEW_ADDRESS_AFTER: u32 = 4;

/// Decides the reaction to the failure of `step`, which has failed `failures` times in a row (1 for the
/// first). `random` is at least 0 and less than 1.
pub(crate) fn plan_retry(step: Step, failures: u32, random: f64) -> Retry {
    let again = match step {
        Step::FetchRoot if failures.is_multiple_of(NEW_ADDRESS_AFTER) => Step::GetAddress,
        // Drivers may need their time, or the first pass may have met a device that was not there yet.
        Step::FindInterface if failures.is_multiple_of(2) => Step::LoadModules,
        _ => step,
    };
    Retry { step: again, wait: BACKOFF.delay(failures, random) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_to_the_end() {
        let mut step = Step::ReadBootArguments;
        let mut names = vec![step.to_string()];
        while let Some(next) = step.next() {
            step = next;
            names.push(step.to_string());
        }
        assert_eq!(
            names.join(" "),
            "read-boot-arguments load-modules find-interface get-address read-seed fetch-root mount-root state-disk hand-over"
        );
    }

    #[test]
    fn waits_grow_to_a_bound_and_never_end() {
        for (failures, least, most) in [
            (1, 750, 1250),
            (2, 1500, 2500),
            (5, 12_000, 20_000),
            (6, 22_500, 37_500),
            (64, 22_500, 37_500),
            (u32::MAX, 22_500, 37_500),
        ] {
            for random in [0.0, 0.4, 0.999] {
                let wait = plan_retry(Step::ReadSeed, failures, random).wait.as_millis();
                assert!((least..most).contains(&wait), "{failures} {random}: {wait}");
            }
        }
    }

    #[test]
    fn a_failed_step_is_tried_again_from_itself() {
        for step in Step::ALL {
            assert_eq!(plan_retry(step, 1, 0.0).step, step);
        }
    }

    #[test]
    fn a_fetch_that_goes_on_failing_asks_for_a_new_address() {
        let steps: Vec<_> = (1..=8).map(|failures| plan_retry(Step::FetchRoot, failures, 0.0).step).collect();
        assert_eq!(steps.iter().filter(|step| **step == Step::GetAddress).count(), 2, "{steps:?}");
    }

    #[test]
    fn an_interface_that_stays_away_has_modules_loaded_again() {
        assert_eq!(plan_retry(Step::FindInterface, 2, 0.0).step, Step::LoadModules);
    }
}
