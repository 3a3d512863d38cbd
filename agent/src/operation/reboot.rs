//! Reboot and shutdown by logind. Part of `run`.
//!
//! Inhibitors are checked first, so that no Pod is evicted without a reboot.

use bedplate_rules::drain::Drain;
use jiff::Timestamp;

use super::outcome::{Outcome, before_act, bus_end};
use super::run::Runner;
use crate::bus::BusError;

impl Runner {
    /// Prepares a reboot or shutdown: no inhibitor blocks it, and the Pods were evicted.
    pub(super) async fn prepare_power(&mut self, drain: Option<Drain>, deadline: Timestamp) -> Outcome {
        match self.parts.power.blocker().await {
            Err(error) => return before_act(&error),
            Ok(Some(one)) => {
                let act = "end of this boot".to_owned();
                return Outcome::End(bus_end(&BusError::Inhibited { act, who: one.who, why: one.why }));
            }
            Ok(None) => {}
        }
        match drain {
            Some(drain) => self.drain_and_others(&drain, deadline).await,
            None => Outcome::Ready,
        }
    }

    pub(super) async fn reboot(&mut self) -> Outcome {
        asked(self.parts.power.reboot().await)
    }

    pub(super) async fn shut_down(&mut self) -> Outcome {
        asked(self.parts.power.power_off().await)
    }
}

/// Converts the answer. A call that broke may have arrived: the boot ID decides.
fn asked(result: Result<(), BusError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Accepted,
        Err(error) if error.is_transient() => Outcome::Ready,
        Err(error) => Outcome::End(bus_end(&error)),
    }
}
