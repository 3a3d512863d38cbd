//! systemd's Manager on a bus: jobs until they finish, states, reload of unit files.
//!
//! The match rule for JobRemoved is added before a job is requested, and signals between call and reply are
//! kept. So the end of a job is never missed. A job that outlives its deadline stays queued in systemd; the
//! same request joins it. Called by `node` and `operation` through the trait `Units`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use serde::Serialize;
use tokio::time::timeout;
use zbus::{DynamicType, Message, OwnedObjectPath, OwnedVariant, Variant};

use super::Units;
use super::changes::{Changes, watch};
use super::command::{self, Ran, TransientCommand};
use super::error::BusError;
use super::link::{Link, Object, Service, broken};
use super::name::UnitName;
use super::state::{ActiveState, JobResult, LoadState, MainExit, UnitState, time};

const SERVICE: Service = Service { name: "org.freedesktop.systemd1", package: None };
pub(super) const MANAGER: Object<'static> = Object {
    service: SERVICE,
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
/// systemd reads all units and runs all generators before it answers; under emulation that takes seconds.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(90);
const NO_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// systemd of the host or of a slot.
#[derive(Debug, Clone)]
pub struct Manager {
    link: Arc<Link>,
}

impl Manager {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Returns true if the host is being shut down or rebooted now.
    pub async fn is_stopping(&self) -> Result<bool, BusError> {
        let state = self.link.property::<String>("state of systemd", MANAGER, "SystemState").await?;
        Ok(state.as_deref() == Some("stopping"))
    }

    /// Calls a method that queues a job and waits for the end of that job.
    pub(super) async fn job<B: Serialize + DynamicType + Sync>(
        &self,
        act: &str,
        unit: &UnitName,
        limit: Duration,
        method: &'static str,
        body: &B,
    ) -> Result<JobResult, BusError> {
        let accepted = AtomicBool::new(false);
        match timeout(limit, self.job_without_limit(act, unit, method, body, &accepted)).await {
            Ok(result) => result,
            Err(_) if accepted.load(Ordering::Relaxed) => {
                Err(BusError::JobHangs { act: act.to_owned(), unit: unit.clone(), limit })
            }
            Err(_) => Err(BusError::NoAnswer { act: act.to_owned(), limit }),
        }
    }

    async fn job_without_limit<B: Serialize + DynamicType + Sync>(
        &self,
        act: &str,
        unit: &UnitName,
        method: &'static str,
        body: &B,
        accepted: &AtomicBool,
    ) -> Result<JobResult, BusError> {
        let mut removed = self.link.signals(act, MANAGER, "JobRemoved").await?;
        self.link.subscribe(act, MANAGER).await?;
        let call = self.link.call::<_, OwnedObjectPath>(act, MANAGER, method, body);
        tokio::pin!(call);
        let mut early = Vec::new();
        let job = loop {
            tokio::select! {
                reply = &mut call => break reply.map_err(|error| no_unit(act, unit, error))?,
                message = removed.next() => {
                    early.extend(message.and_then(Result::ok).as_ref().and_then(job_removed));
                }
            }
        };
        accepted.store(true, Ordering::Relaxed);
        let job = job.as_str();
        if let Some((_, result)) = early.into_iter().find(|(path, _)| path == job) {
            return Ok(result);
        }
        while let Some(message) = removed.next().await {
            let message = message.map_err(|error| self.link.away(act, error))?;
            if let Some((_, result)) = job_removed(&message).filter(|(path, _)| path == job) {
                return Ok(result);
            }
        }
        Err(self.link.away(act, broken()))
    }

    async fn plain_job(
        &self,
        what: &str,
        method: &'static str,
        unit: &UnitName,
        limit: Duration,
    ) -> Result<JobResult, BusError> {
        self.job(&format!("{what} of {unit}"), unit, limit, method, &(unit.as_str(), "replace")).await
    }

    /// A property of a unit; `kind` names its interface (`Unit`, `Service`).
    async fn unit_property<T: TryFrom<OwnedVariant>>(
        &self,
        unit: &UnitName,
        kind: &'static str,
        name: &'static str,
    ) -> Result<Option<T>, BusError> {
        let path = unit.path();
        let object = Object { service: SERVICE, path: &path, interface: kind };
        self.link.property(&format!("state of {unit}"), object, name).await
    }

    /// Returns the exit of a service's main process.
    pub(super) async fn main_exit(&self, unit: &UnitName) -> Result<Option<MainExit>, BusError> {
        let (code, status) = tokio::try_join!(
            self.unit_property(unit, "org.freedesktop.systemd1.Service", "ExecMainCode"),
            self.unit_property(unit, "org.freedesktop.systemd1.Service", "ExecMainStatus"),
        )?;
        Ok(MainExit::from_numbers(code, status))
    }
}

/// Interface of a kind of unit; `None` for kinds that have no result.
fn interface(unit: &UnitName) -> Option<&'static str> {
    match unit.kind() {
        "service" => Some("org.freedesktop.systemd1.Service"),
        "mount" => Some("org.freedesktop.systemd1.Mount"),
        "socket" => Some("org.freedesktop.systemd1.Socket"),
        "timer" => Some("org.freedesktop.systemd1.Timer"),
        "path" => Some("org.freedesktop.systemd1.Path"),
        "scope" => Some("org.freedesktop.systemd1.Scope"),
        "swap" => Some("org.freedesktop.systemd1.Swap"),
        "automount" => Some("org.freedesktop.systemd1.Automount"),
        _ => None,
    }
}

/// The job's path and its result, from the signal JobRemoved.
fn job_removed(message: &Message) -> Option<(String, JobResult)> {
    let (_, job, _, result): (u32, OwnedObjectPath, String, String) = message.body().deserialize().ok()?;
    Some((job.as_str().to_owned(), JobResult::from_word(&result)))
}

/// systemd's own word for a missing unit becomes ours.
fn no_unit(act: &str, unit: &UnitName, error: BusError) -> BusError {
    if error.refusal() == Some(NO_UNIT) {
        return BusError::NoUnit { act: act.to_owned(), unit: unit.clone() };
    }
    error
}

#[async_trait]
impl Units for Manager {
    async fn start(&self, unit: &UnitName, limit: Duration) -> Result<JobResult, BusError> {
        self.plain_job("start", "StartUnit", unit, limit).await
    }

    async fn stop(&self, unit: &UnitName, limit: Duration) -> Result<JobResult, BusError> {
        match self.plain_job("stop", "StopUnit", unit, limit).await {
            Err(BusError::NoUnit { .. }) => Ok(JobResult::Done),
            other => other,
        }
    }

    async fn restart(&self, unit: &UnitName, limit: Duration) -> Result<JobResult, BusError> {
        self.plain_job("restart", "RestartUnit", unit, limit).await
    }

    async fn reload(&self, unit: &UnitName, limit: Duration) -> Result<JobResult, BusError> {
        self.plain_job("reload", "ReloadUnit", unit, limit).await
    }

    async fn daemon_reload(&self) -> Result<(), BusError> {
        self.link.call_within(RELOAD_TIMEOUT, "daemon-reload", MANAGER, "Reload", &()).await
    }

    async fn reset_failed(&self, unit: &UnitName) -> Result<(), BusError> {
        let act = format!("reset of {unit}");
        match self.link.call(&act, MANAGER, "ResetFailedUnit", &unit.as_str()).await {
            Err(error) if error.refusal() == Some(NO_UNIT) => Ok(()),
            other => other,
        }
    }

    async fn kill(&self, unit: &UnitName, signal: i32) -> Result<(), BusError> {
        let act = format!("signal {signal} to {unit}");
        let body = (unit.as_str(), "all", signal);
        let sent = self.link.call(&act, MANAGER, "KillUnit", &body).await;
        sent.map_err(|error| no_unit(&act, unit, error))
    }

    async fn state(&self, unit: &UnitName) -> Result<UnitState, BusError> {
        const UNIT: &str = "org.freedesktop.systemd1.Unit";
        // One after the other on the wire, answered one after the other: no round trip for each.
        let (load, active, sub, changed, active_since, needs_reload, job) = tokio::try_join!(
            self.unit_property::<String>(unit, UNIT, "LoadState"),
            self.unit_property::<String>(unit, UNIT, "ActiveState"),
            self.unit_property::<String>(unit, UNIT, "SubState"),
            self.unit_property::<u64>(unit, UNIT, "StateChangeTimestamp"),
            self.unit_property::<u64>(unit, UNIT, "ActiveEnterTimestamp"),
            self.unit_property::<bool>(unit, UNIT, "NeedDaemonReload"),
            self.unit_property::<OwnedVariant>(unit, UNIT, "Job"),
        )?;
        let result = match interface(unit) {
            Some(interface) => self.unit_property(unit, interface, "Result").await?,
            None => None,
        };
        let mut state = UnitState {
            load: LoadState::from_word(&load.unwrap_or_default()),
            active: ActiveState::from_word(&active.unwrap_or_default()),
            sub: sub.unwrap_or_default(),
            result,
            main_exit: None,
            main_pid: None,
            restarts: None,
            status_text: None,
            changed: time(changed),
            active_since: time(active_since),
            has_job: job.is_some_and(|job| has_job(&job)),
            needs_reload,
        };
        if unit.kind() == "service" {
            const OF_SERVICE: &str = "org.freedesktop.systemd1.Service";
            let (exit, pid, restarts, text) = tokio::try_join!(
                self.main_exit(unit),
                self.unit_property::<u32>(unit, OF_SERVICE, "MainPID"),
                self.unit_property::<u32>(unit, OF_SERVICE, "NRestarts"),
                self.unit_property::<String>(unit, OF_SERVICE, "StatusText"),
            )?;
            state.main_exit = exit;
            state.main_pid = pid.filter(|pid| *pid != 0);
            state.restarts = restarts;
            state.status_text = text.filter(|text| !text.is_empty());
        }
        Ok(state)
    }

    async fn run(&self, command: &TransientCommand) -> Result<Ran, BusError> {
        command::run(self, command).await
    }

    async fn changes(&self, units: &BTreeSet<UnitName>) -> Result<Changes, BusError> {
        watch(&self.link, units).await
    }
}

/// Property `Job`: number and path, 0 and `/` for none.
fn has_job(job: &Variant<'_>) -> bool {
    let Variant::Structure(job) = job else { return false };
    matches!(job.fields().first(), Some(Variant::U32(id)) if *id != 0)
}
