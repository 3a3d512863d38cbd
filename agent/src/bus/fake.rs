//! Fakes of systemd, machined and logind for tests of their callers. They record calls. They answer as
//! configured, otherwise like a host on which each call succeeds.
//!
//! Compiled for tests only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_process::lock::Lock;

use super::changes::Teller;
use super::kill_points::KillPoints;
use super::*;

/// Configured failure of a fake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// D-Bus is unavailable.
    Away,
    /// The call is not answered.
    NoAnswer,
    /// The job does not end.
    JobHangs,
}

impl Fault {
    fn error(self, act: &str, unit: Option<&UnitName>) -> BusError {
        let (act, limit) = (act.to_owned(), Duration::from_secs(1));
        match (self, unit) {
            (Self::JobHangs, Some(unit)) => BusError::JobHangs { act, unit: unit.clone(), limit },
            (Self::Away, _) => BusError::Away {
                act,
                socket: "/run/dbus/system_bus_socket".into(),
                source: std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into(),
            },
            _ => BusError::NoAnswer { act, limit },
        }
    }
}

#[derive(Default)]
struct UnitsInner {
    calls: Vec<String>,
    states: BTreeMap<UnitName, UnitState>,
    jobs: BTreeMap<String, VecDeque<JobResult>>,
    runs: VecDeque<Ran>,
    faults: VecDeque<(String, Fault)>,
    tellers: Vec<(BTreeSet<UnitName>, Teller)>,
    kills: KillPoints,
}

/// A systemd in memory. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct FakeUnits(Arc<Lock<UnitsInner>>);

/// A loaded unit in this state.
pub(crate) fn unit_state(active: ActiveState, sub: &str) -> UnitState {
    UnitState {
        load: LoadState::Loaded,
        active,
        sub: sub.to_owned(),
        result: Some("success".to_owned()),
        main_exit: None,
        main_pid: None,
        restarts: Some(0),
        status_text: None,
        changed: None,
        active_since: None,
        has_job: false,
        needs_reload: Some(false),
    }
}

impl FakeUnits {
    /// Sets points at which a test kills the agent before a call.
    pub(crate) fn set_kills(&self, kills: &KillPoints) {
        self.0.lock().kills = kills.clone();
    }

    /// Returns the calls so far, in order: `start a.service`, `daemon-reload`, `run x.service /bin/true`.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.0.lock().calls.clone()
    }

    /// Sets the state of a unit and notifies its watchers.
    pub(crate) fn set(&self, unit: &UnitName, state: UnitState) {
        let mut inner = self.0.lock();
        inner.states.insert(unit.clone(), state);
        for (units, teller) in &inner.tellers {
            if units.contains(unit) {
                teller.changed(unit.clone());
            }
        }
    }

    /// Sets the result of the next job of these words (`start a.service`). The unit is failed then.
    pub(crate) fn job_ends(&self, call: &str, result: JobResult) {
        self.0.lock().jobs.entry(call.to_owned()).or_default().push_back(result);
    }

    /// Sets the result of the next command.
    pub(crate) fn command_ends(&self, ran: Ran) {
        self.0.lock().runs.push_back(ran);
    }

    /// Makes the next call fail that starts with these words.
    pub(crate) fn fail(&self, call: &str, fault: Fault) {
        self.0.lock().faults.push_back((call.to_owned(), fault));
    }

    /// Ends the connection for those who watch.
    pub(crate) fn break_off(&self) {
        for (_, teller) in self.0.lock().tellers.drain(..) {
            teller.end(Fault::Away.error("watch of units", None));
        }
    }

    async fn act(&self, call: &str, unit: Option<&UnitName>) -> Result<(), BusError> {
        let kills = self.0.lock().kills.clone();
        kills.reach(call).await;
        self.note(call, unit)
    }

    fn note(&self, call: &str, unit: Option<&UnitName>) -> Result<(), BusError> {
        let mut inner = self.0.lock();
        inner.calls.push(call.to_owned());
        let place = inner.faults.iter().position(|(wanted, _)| call.starts_with(wanted.as_str()));
        match place.and_then(|place| inner.faults.remove(place)) {
            Some((_, fault)) => Err(fault.error(call, unit)),
            None => Ok(()),
        }
    }

    async fn job(
        &self,
        verb: &str,
        unit: &UnitName,
        then: ActiveState,
        sub: &str,
    ) -> Result<JobResult, BusError> {
        let call = format!("{verb} {unit}");
        self.act(&call, Some(unit)).await?;
        let scripted = self.0.lock().jobs.get_mut(&call).and_then(VecDeque::pop_front);
        let result = scripted.unwrap_or(JobResult::Done);
        let state = if result.is_done() {
            unit_state(then, sub)
        } else {
            UnitState { result: Some("exit-code".to_owned()), ..unit_state(ActiveState::Failed, "failed") }
        };
        self.set(unit, state);
        Ok(result)
    }
}

#[async_trait]
impl Units for FakeUnits {
    async fn start(&self, unit: &UnitName, _: Duration) -> Result<JobResult, BusError> {
        self.job("start", unit, ActiveState::Active, "running").await
    }

    async fn stop(&self, unit: &UnitName, _: Duration) -> Result<JobResult, BusError> {
        self.job("stop", unit, ActiveState::Inactive, "dead").await
    }

    async fn restart(&self, unit: &UnitName, _: Duration) -> Result<JobResult, BusError> {
        self.job("restart", unit, ActiveState::Active, "running").await
    }

    async fn reload(&self, unit: &UnitName, _: Duration) -> Result<JobResult, BusError> {
        self.job("reload", unit, ActiveState::Active, "running").await
    }

    async fn daemon_reload(&self) -> Result<(), BusError> {
        self.act("daemon-reload", None).await
    }

    async fn reset_failed(&self, unit: &UnitName) -> Result<(), BusError> {
        self.act(&format!("reset-failed {unit}"), Some(unit)).await
    }

    async fn kill(&self, unit: &UnitName, signal: i32) -> Result<(), BusError> {
        self.act(&format!("kill {unit} {signal}"), Some(unit)).await
    }

    async fn state(&self, unit: &UnitName) -> Result<UnitState, BusError> {
        let call = format!("state {unit}");
        self.note(&call, Some(unit))?;
        // Reads are not recorded.
        self.0.lock().calls.pop();
        let absent = UnitState { load: LoadState::NotFound, ..unit_state(ActiveState::Inactive, "dead") };
        Ok(self.0.lock().states.get(unit).cloned().unwrap_or(absent))
    }

    async fn run(&self, command: &TransientCommand) -> Result<Ran, BusError> {
        self.act(&format!("run {} {}", command.unit, command.argv.join(" ")), Some(&command.unit)).await?;
        let ran = self.0.lock().runs.pop_front();
        Ok(ran.unwrap_or(Ran { exit: Exit::Code(0), output: String::new(), cut: false }))
    }

    async fn changes(&self, units: &BTreeSet<UnitName>) -> Result<Changes, BusError> {
        let (teller, changes) = Changes::pair();
        self.0.lock().tellers.push((units.clone(), teller));
        Ok(changes)
    }
}

#[derive(Default)]
struct MachinesInner {
    containers: BTreeMap<ContainerName, Container>,
    units: BTreeMap<Leader, FakeUnits>,
    kills: KillPoints,
}

impl MachinesInner {
    fn units(&mut self, leader: Leader) -> FakeUnits {
        let units = self.units.entry(leader).or_default().clone();
        units.set_kills(&self.kills);
        units
    }
}

/// A machined in memory. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct FakeMachines(Arc<Lock<MachinesInner>>);

impl FakeMachines {
    /// Adds a running container. Returns its systemd.
    pub(crate) fn add(&self, name: &ContainerName, leader: Leader) -> FakeUnits {
        let container = Container { name: name.clone(), leader };
        let mut inner = self.0.lock();
        inner.containers.insert(name.clone(), container);
        inner.units(leader)
    }

    /// Sets points at which a test kills the agent before a call.
    pub(crate) fn set_kills(&self, kills: &KillPoints) {
        self.0.lock().kills = kills.clone();
    }

    /// Removes a container.
    pub(crate) fn remove(&self, name: &ContainerName) {
        self.0.lock().containers.remove(name);
    }
}

#[async_trait]
impl Machines for FakeMachines {
    async fn get(&self, name: &ContainerName) -> Result<Option<Container>, BusError> {
        Ok(self.0.lock().containers.get(name).cloned())
    }

    async fn terminate(&self, name: &ContainerName) -> Result<bool, BusError> {
        let kills = self.0.lock().kills.clone();
        kills.reach(&format!("terminate {name}")).await;
        Ok(self.0.lock().containers.remove(name).is_some())
    }

    fn units(&self, leader: Leader) -> Arc<dyn Units> {
        Arc::new(self.0.lock().units(leader))
    }
}

#[derive(Default)]
struct PowerInner {
    kills: KillPoints,
    calls: Vec<String>,
    blocker: Option<Inhibitor>,
}

/// A logind in memory. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct FakePower(Arc<Lock<PowerInner>>);

impl FakePower {
    /// Returns the calls so far: `reboot`, `power-off`.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.0.lock().calls.clone()
    }

    /// Adds an inhibitor that blocks a shutdown.
    pub(crate) fn inhibit(&self, inhibitor: Inhibitor) {
        self.0.lock().blocker = Some(inhibitor);
    }

    /// Sets points at which a test kills the agent before a call.
    pub(crate) fn set_kills(&self, kills: &KillPoints) {
        self.0.lock().kills = kills.clone();
    }

    async fn end(&self, call: &str) -> Result<(), BusError> {
        let kills = self.0.lock().kills.clone();
        kills.reach(call).await;
        let mut inner = self.0.lock();
        if let Some(one) = inner.blocker.clone() {
            return Err(BusError::Inhibited { act: call.to_owned(), who: one.who, why: one.why });
        }
        inner.calls.push(call.to_owned());
        Ok(())
    }
}

#[async_trait]
impl Power for FakePower {
    async fn blocker(&self) -> Result<Option<Inhibitor>, BusError> {
        Ok(self.0.lock().blocker.clone())
    }

    async fn reboot(&self) -> Result<(), BusError> {
        self.end("reboot").await
    }

    async fn power_off(&self) -> Result<(), BusError> {
        self.end("power-off").await
    }
}

mod tests {
    use super::*;

    #[tokio::test]
    async fn watcher_gets_many_changes_as_one_and_then_the_end() {
        let units = FakeUnits::default();
        let unit: UnitName = "kubelet.service".parse().unwrap();
        let other: UnitName = "other.service".parse().unwrap();
        let mut changes = units.changes(&BTreeSet::from([unit.clone()])).await.unwrap();
        units.start(&unit, Duration::ZERO).await.unwrap();
        units.start(&other, Duration::ZERO).await.unwrap();
        units.stop(&unit, Duration::ZERO).await.unwrap();
        assert_eq!(changes.next().await.unwrap(), BTreeSet::from([unit]));
        units.break_off();
        assert!(changes.next().await.unwrap_err().is_transient());
    }

    #[tokio::test]
    async fn a_fault_is_of_the_next_such_call_only() {
        let units = FakeUnits::default();
        let unit: UnitName = "kubelet.service".parse().unwrap();
        units.fail("start kubelet", Fault::JobHangs);
        assert!(matches!(units.start(&unit, Duration::ZERO).await, Err(BusError::JobHangs { .. })));
        units.job_ends("start kubelet.service", JobResult::Failed);
        assert_eq!(units.start(&unit, Duration::ZERO).await.unwrap(), JobResult::Failed);
        assert_eq!(units.state(&unit).await.unwrap().active, ActiveState::Failed);
        assert_eq!(units.start(&unit, Duration::ZERO).await.unwrap(), JobResult::Done);
        assert_eq!(units.calls(), ["start kubelet.service"; 3]);
    }
}
