//! The node's loop and the host's operations, beside the loop that enrolls and reports.
//!
//! Both begin with the cluster and end before it. Called by `ways`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_process::exit::chain;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::host::blocking;
use super::state::Places;
use crate::bus::{Bus, Machines};
use crate::hardware::read_text;
use crate::kubelet::client::SlotKubelet;
use crate::kubelet::credential::SlotCredential;
use crate::node::effects::{Credential, Credentials, Parts, Store};
use crate::node::health_gate::HostGate;
use crate::node::run::NodeLoop;
use crate::plane::Plane;
use crate::slot;
use crate::slot::store::Slots;

/// What acts upon the host. Ends when it is stopped or dropped.
pub(super) struct NodeTasks {
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
    /// One of them has ended, by a panic for instance.
    over: CancellationToken,
}

impl fmt::Debug for NodeTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeTasks").field("running", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl NodeTasks {
    /// Begins, for this Machine of this cluster.
    pub(super) fn start(plane: Arc<dyn Plane>, places: &Places, machine: MachineName) -> Self {
        let (shutdown, wake) = (CancellationToken::new(), Arc::new(Notify::new()));
        let parts = parts(plane, places, machine);
        let node = NodeLoop::new(parts.clone(), places.run.clone(), Arc::clone(&wake));
        let node = node.run(shutdown.clone()).boxed();
        let power = Arc::new(Bus::host().logind());
        let operations = crate::operation::view::serve(parts, power, wake, shutdown.clone()).boxed();
        Self::of([node, operations], shutdown)
    }

    fn of(work: [BoxFuture<'static, ()>; 2], shutdown: CancellationToken) -> Self {
        let (mut tasks, over) = (JoinSet::new(), CancellationToken::new());
        for work in work {
            let ends = over.clone().drop_guard();
            tasks.spawn(async move {
                let _ends = ends;
                work.await;
            });
        }
        Self { tasks, shutdown, over }
    }

    /// Cancelled once one of them has ended, however it did.
    pub(super) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Ends it and waits until it has ended. What was begun in systemd goes on there.
    pub(super) async fn stop(mut self) {
        self.shutdown.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The slots on disk: `/var/lib/bedplate` above the agent's own `/var/lib/bedplate/agent`, `/run` above `/run/bedplate`.
fn slots(places: &Places) -> Slots {
    let state = places.state.parent().map_or_else(|| PathBuf::from("/var/lib/bedplate"), PathBuf::from);
    let run = places.run.parent().map_or_else(|| PathBuf::from("/run"), PathBuf::from);
    Slots::new(slot::paths::Places { state, run, ..Default::default() })
}

/// The kubelet of this host's node.
pub(super) fn kubelet(places: &Places) -> SlotCredential {
    SlotCredential::new(Arc::new(Bus::host().machined()), &places.root, slots(places))
}

fn parts(plane: Arc<dyn Plane>, places: &Places, machine: MachineName) -> Parts {
    let bus = Bus::host();
    let machines: Arc<dyn Machines> = Arc::new(bus.machined());
    let slots = slots(places);
    let state = slots.places().state.clone();
    let boot_id = read_text(&places.root.join("proc/sys/kernel/random/boot_id")).unwrap_or_default();
    Parts {
        machine: machine.clone(),
        boot_id: boot_id.trim().to_owned(),
        root: places.root.clone(),
        slots,
        units: Arc::new(bus.manager()),
        machines: Arc::clone(&machines),
        images: Arc::new(Store::new(state)),
        node: Arc::new(SlotKubelet::new(Arc::clone(&machines), &places.root, machine)),
        gate: Arc::new(HostGate::new(machines, &places.root)),
        plane,
        credentials: Arc::new(Held { places: places.clone() }),
        disk: Arc::default(),
    }
}

/// The enrollment at the time of a join: its certificate may have been renewed since the agent began.
struct Held {
    places: Places,
}

#[async_trait]
impl Credentials for Held {
    async fn current(&self) -> Result<Credential, String> {
        let places = self.places.clone();
        let read = blocking(move || places.read_enrollment().map_err(|error| chain(&error)));
        let enrollment = read.await?.ok_or("the host is not enrolled")?;
        let kubernetes =
            enrollment.kubernetes.ok_or("there is no cluster that this host's certificate is good for")?;
        Ok(Credential {
            server: kubernetes.server,
            ca_pem: kubernetes.ca_pem,
            certificate_pem: enrollment.certificate_pem,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_has_died_is_not_forgotten_after_it_was_asked_for_once() {
        let dies = async { panic!("as a bug does") };
        let tasks = NodeTasks::of([dies.boxed(), std::future::pending().boxed()], CancellationToken::new());
        for _ in 0..3 {
            tasks.over().cancelled().await;
            assert!(tasks.over().is_cancelled());
        }
    }
}
