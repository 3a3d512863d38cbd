//! Leads, or waits to: one Lease in the cluster, so that of several programs one acts.
//!
//! Decisions are `election`'s. Every write names the version that was read; nothing that only a leader may send is sent without
//! [`Tenure::leads`] immediately before. Spawned by a program's `run`.

use std::time::Duration;

use crate::backoff::jittered;
use crate::exit::chain;
use crate::liveness::Pulse;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lease::Tenure;
use crate::lease::election::{Election, LEASE_DURATION, Record, Step};

/// Timeout of one request: less than the time between a renewal and the end of the tenure.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Delay between a failure and the next attempt.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay after acquiring a released Lease. Within it, the watch receives the
/// last writes of the former holder.
const SETTLE_TIME: Duration = Duration::from_secs(6);

/// Candidate in the election of a leader.
pub struct Candidate {
    access: watch::Receiver<Option<Client>>,
    namespace: String,
    name: String,
    field_manager: &'static str,
    me: String,
    tenure: watch::Sender<Option<Instant>>,
    /// The Lease as it was read or written last.
    lease: Option<Lease>,
}

impl Candidate {
    /// Creates a candidate named `instance` for the Lease `name` in `namespace`, which it writes as
    /// `field_manager`. The client may be created later. Also returns the tenure.
    pub fn new(
        access: watch::Receiver<Option<Client>>,
        (namespace, name): (String, String),
        instance: &str,
        field_manager: &'static str,
    ) -> (Self, Tenure) {
        let (tenure, receiver) = watch::channel(None);
        // A name of this process alone: what an earlier one of this host did last is not known here.
        let me = format!("{instance}_{}", uuid::Uuid::new_v4());
        (Self { access, namespace, name, field_manager, me, tenure, lease: None }, Tenure::new(receiver))
    }

    /// Takes part from the end of `ready` until `stop`, then releases the Lease. `begins` is called each time before the tenure begins.
    pub async fn run(
        mut self,
        ready: impl Future<Output = ()> + Send,
        begins: impl Fn() + Send,
        pulse: Pulse,
        stop: CancellationToken,
    ) {
        let mut election = Election::new(self.me.clone());
        tokio::select! {
            () = stop.cancelled() => {}
            () = async {
                tokio::select! {
                    () = ready => {}
                    never = pulse.beating() => match never {},
                }
                self.take_part(&mut election, begins, &pulse).await;
            } => {}
        }
        self.tenure.send_replace(None);
        if election.until().is_some() {
            match tokio::time::timeout(REQUEST_TIMEOUT, self.release(&mut election)).await {
                Ok(Ok(true)) => tracing::info!(lease = self.name, "lease released"),
                Ok(Ok(false)) => {
                    tracing::warn!(lease = self.name, "lease not released, it was changed by another writer");
                }
                Ok(Err(error)) => tracing::warn!(lease = self.name, error, "failed to release the lease"),
                Err(_) => tracing::warn!(lease = self.name, "lease not released in time"),
            }
        }
    }

    /// Removes our name from the Lease. Returns true if that is written. The Lease may have a renewal whose answer was not received: it is read
    /// once, and written again if it still has our name.
    async fn release(&mut self, election: &mut Election) -> Result<bool, String> {
        if self.write(None).await?.is_some() {
            return Ok(true);
        }
        self.read(election).await?;
        let holder = self.lease.as_ref().and_then(|lease| record(lease).holder);
        Ok(holder.as_ref() == Some(&self.me) && self.write(None).await?.is_some())
    }

    async fn take_part(&mut self, election: &mut Election, begins: impl Fn() + Send, pulse: &Pulse) {
        let mut logged = String::new();
        loop {
            pulse.beat();
            let wait = match self.turn(election, &begins).await {
                Ok(until) => {
                    logged.clear();
                    until
                }
                Err(error) => {
                    if logged != error {
                        tracing::warn!(lease = self.name, error, "failed to read or write the Lease");
                        logged = error;
                    }
                    Instant::now() + jittered(RETRY_DELAY, rand::random())
                }
            };
            if self.tenure.borrow().is_some_and(|end| end <= Instant::now()) {
                tracing::warn!(lease = self.name, "Lease not renewed in time, leadership lost");
                self.tenure.send_replace(None);
            }
            tokio::select! {
                () = tokio::time::sleep_until(wait) => {}
                never = pulse.beating() => match never {},
            }
        }
    }

    /// Takes one step. Returns when the next one is due.
    async fn turn(
        &mut self,
        election: &mut Election,
        begins: &(impl Fn() + Send),
    ) -> Result<Instant, String> {
        // A leader knows the content of the Lease: its own last write, or the next one is refused.
        if election.until().is_none_or(|until| until <= Instant::now().into_std()) {
            self.read(election).await?;
        }
        let step = election.next(Instant::now().into_std());
        if let Step::Wait(until) = step {
            return Ok(until.into());
        }
        let (leads, released) = (election.until().is_some(), election.is_released());
        if step == Step::Acquire && released && !leads {
            tokio::time::sleep(SETTLE_TIME).await;
        }
        let started = Instant::now();
        match tokio::time::timeout(REQUEST_TIMEOUT, self.write(Some(step))).await {
            Ok(Ok(Some(record))) => {
                election.wrote(record, started.into_std());
                self.lead(election, leads, begins);
                Ok(Instant::now())
            }
            // Another candidate was faster: read its name.
            Ok(Ok(None)) => {
                self.read(election).await?;
                self.lead(election, leads, begins);
                Ok(Instant::now() + RETRY_DELAY)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err("the API server did not answer in time".to_owned()),
        }
    }

    fn lead(&self, election: &Election, led: bool, begins: &(impl Fn() + Send)) {
        let until = election.until().map(Instant::from_std);
        match (led && self.tenure.borrow().is_some(), until) {
            (false, Some(_)) => {
                begins();
                tracing::info!(lease = self.name, instance = self.me, "Lease acquired, leading");
            }
            (true, None) => {
                tracing::warn!(lease = self.name, "Lease held by another instance, leadership lost");
            }
            _ => {}
        }
        self.tenure.send_replace(until);
    }

    fn leases(&self) -> Result<Api<Lease>, String> {
        let client = self.access.borrow().clone().ok_or("the cluster is not connected yet")?;
        Ok(Api::namespaced(client, &self.namespace))
    }

    async fn read(&mut self, election: &mut Election) -> Result<(), String> {
        let leases = self.leases()?;
        let found = tokio::time::timeout(REQUEST_TIMEOUT, leases.get_opt(&self.name)).await;
        let found = found.map_err(|_| "the API server did not answer in time")?;
        self.lease = found.map_err(|error| chain(&error))?;
        election.see(self.lease.as_ref().map(record), Instant::now().into_std());
        Ok(())
    }

    /// Writes our name into the Lease, or with `None` takes it out. `None`: it has changed meanwhile.
    async fn write(&mut self, step: Option<Step>) -> Result<Option<Record>, String> {
        let leases = self.leases()?;
        let now = MicroTime(Timestamp::now());
        let before = self.lease.clone();
        let mut lease = before.unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            spec: None,
        });
        lease.metadata.managed_fields = None;
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.lease_duration_seconds = i32::try_from(LEASE_DURATION.as_secs()).ok();
        spec.renew_time = Some(now.clone());
        match step {
            Some(Step::Create | Step::Acquire) => {
                spec.acquire_time = Some(now);
                spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
                spec.holder_identity = Some(self.me.clone());
            }
            Some(Step::Renew | Step::Wait(_)) => spec.holder_identity = Some(self.me.clone()),
            None => spec.holder_identity = None,
        }
        let parameters =
            PostParams { field_manager: Some(self.field_manager.to_owned()), ..PostParams::default() };
        let written = match step {
            Some(Step::Create) => leases.create(&parameters, &lease).await,
            Some(_) | None => leases.replace(&self.name, &parameters, &lease).await,
        };
        match written {
            Ok(written) => {
                let record = record(&written);
                self.lease = Some(written);
                Ok(Some(record))
            }
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(None),
            Err(error) => Err(chain(&error)),
        }
    }
}

fn record(lease: &Lease) -> Record {
    let (metadata, spec) = (&lease.metadata, lease.spec.clone().unwrap_or_default());
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Record {
        version: format!("{}/{}", text(&metadata.uid), text(&metadata.resource_version)),
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        duration: seconds.map_or(LEASE_DURATION, Duration::from_secs),
    }
}
