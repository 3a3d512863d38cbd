//! Restarts a service of the host or of the slot, and checks that it stays up. Part of `run`.

use bedplate_api::reason::operation::AgentOutcome;
use std::sync::Arc;
use std::time::Duration;

use bedplate_process::exit::chain;
use jiff::Timestamp;
use tokio::time::sleep;

use super::outcome::{Outcome, before_act, bus_end};
use super::parameters::Place;
use super::progress::End;
use super::run::Runner;
use crate::bus::journal::last_lines;
use crate::bus::{ActiveState, BusError, LoadState, UnitName, UnitState, Units};
use crate::kubelet::slot_root;
use crate::node::log_excerpt::with_log;

/// Delay before the check of a restarted service, because many fail at the start.
const CHECK_DELAY: Duration = Duration::from_secs(2);
/// Maximum lines read from the journal for a message.
const MAX_JOURNAL_LINES: u32 = 15;
/// Maximum number of characters of the journal in a message.
const MAX_LOG_CHARS: usize = 2000;

impl Runner {
    /// systemd of the place; none: no slot runs.
    async fn systemd(&self, place: Place) -> Result<Option<Arc<dyn Units>>, BusError> {
        match place {
            Place::Host => Ok(Some(Arc::clone(&self.parts.units))),
            Place::Slot => slot_root::units(self.parts.machines.as_ref()).await,
        }
    }

    /// Checks that the service exists.
    pub(super) async fn prepare_restart(&mut self, unit: &UnitName, place: Place) -> Outcome {
        let state = match self.systemd(place).await {
            Ok(Some(units)) => units.state(unit).await,
            Ok(None) => {
                let message =
                    "no slot runs, so the host has no node; set parameter in=host for services of the host";
                return Outcome::End(End::failed(AgentOutcome::NoRunningSlot, message));
            }
            Err(error) => Err(error),
        };
        let state = match state {
            Ok(state) => state,
            Err(error) => return before_act(&error),
        };
        let whose = whose(place);
        let end = match &state.load {
            LoadState::Loaded => return Outcome::Ready,
            LoadState::NotFound => {
                End::failed(AgentOutcome::ServiceNotFound, format!("{unit} not found in {whose}"))
            }
            LoadState::Masked => {
                End::failed(AgentOutcome::ServiceMasked, format!("{unit} is masked in {whose}"))
            }
            LoadState::Bad(word) => End::failed(
                AgentOutcome::ServiceNotLoaded,
                format!("the file of {unit} in {whose} is not valid: {word}"),
            ),
        };
        Outcome::End(end)
    }

    pub(super) async fn restart(&mut self, unit: &UnitName, place: Place, deadline: Timestamp) -> Outcome {
        let left = Duration::try_from(deadline.duration_since(self.now())).unwrap_or_default();
        let units = match self.systemd(place).await {
            Ok(Some(units)) => units,
            Ok(None) => {
                return Outcome::End(End::failed(
                    AgentOutcome::NoRunningSlot,
                    "the slot has stopped during the operation",
                ));
            }
            Err(error) => return Outcome::End(bus_end(&error)),
        };
        if let Err(error) = units.restart(unit, left.max(Duration::from_secs(1))).await {
            return Outcome::End(bus_end(&error));
        }
        sleep(CHECK_DELAY).await;
        match units.state(unit).await {
            Ok(state) => Outcome::End(judge(units.as_ref(), unit, place, &state).await),
            Err(error) => Outcome::End(bus_end(&error)),
        }
    }

    /// Inspects a restart that an earlier agent requested, or was about to request.
    pub(super) async fn inspect_restart(
        &mut self,
        unit: &UnitName,
        place: Place,
        started: Timestamp,
        deadline: Timestamp,
    ) -> Outcome {
        let over = self.now() >= deadline;
        let late = |why: String| Outcome::End(End::failed(AgentOutcome::TimedOut, why));
        let looked = match self.systemd(place).await {
            Ok(Some(units)) => units.state(unit).await.map(|state| (units, state)),
            Ok(None) => {
                return Outcome::End(End::failed(
                    AgentOutcome::Interrupted,
                    "the slot has stopped during the operation",
                ));
            }
            Err(error) => Err(error),
        };
        let (units, state) = match looked {
            Ok(looked) => looked,
            Err(error) if error.is_transient() && !over => return Outcome::Later(chain(&error)),
            Err(error) => return late(chain(&error)),
        };
        let changed = state.active_since.max(state.changed);
        match (state.has_job, changed.is_some_and(|changed| changed >= started)) {
            (true, _) if !over => Outcome::Later(format!("{unit} is being restarted")),
            (true, _) => late(format!("the job of {unit} does not finish; see `systemctl list-jobs`")),
            (false, true) => Outcome::End(judge(units.as_ref(), unit, place, &state).await),
            (false, false) => {
                let message = format!(
                    "the agent was interrupted during the request, and {unit} was not restarted; the \
                     request is not repeated; create a new operation"
                );
                Outcome::End(End::failed(AgentOutcome::Interrupted, message))
            }
        }
    }
}

fn whose(place: Place) -> &'static str {
    match place {
        Place::Host => "the host",
        Place::Slot => "the slot",
    }
}

/// Returns the result by the unit's state after the restart.
async fn judge(units: &dyn Units, unit: &UnitName, place: Place, state: &UnitState) -> End {
    let whose = whose(place);
    let well = state.result.as_deref().is_none_or(|result| result == "success");
    match &state.active {
        ActiveState::Active | ActiveState::Reloading => {
            let process = state.main_pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
            End::done(
                AgentOutcome::Restarted,
                format!("{unit} of {whose} is active ({}{process})", state.sub),
            )
        }
        ActiveState::Inactive if well => {
            End::done(AgentOutcome::Restarted, format!("{unit} of {whose} has finished"))
        }
        ActiveState::Inactive
        | ActiveState::Failed
        | ActiveState::Activating
        | ActiveState::Deactivating
        | ActiveState::Other(_) => {
            let result = state.result.as_deref().unwrap_or("no result");
            let tail = tail(units, unit).await;
            End::failed(
                AgentOutcome::ServiceFailed,
                format!(
                    "{unit} of {whose} was restarted but does not run ({}, {result}); journal: {tail}",
                    state.sub
                ),
            )
        }
    }
}

/// Returns the unit's last journal lines, with secrets hidden.
async fn tail(units: &dyn Units, unit: &UnitName) -> String {
    match last_lines(units, unit, MAX_JOURNAL_LINES, None).await {
        Ok(text) if text.is_empty() => "nothing".to_owned(),
        Ok(text) => with_log("", &text, &[], MAX_LOG_CHARS),
        Err(error) => format!("not readable: {}", chain(&error)),
    }
}
