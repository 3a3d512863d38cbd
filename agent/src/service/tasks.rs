//! The node's loop, the removal of former contents of slots, and the host's operations, next to the loop that enrolls and reports.
//!
//! Both begin with the cluster and end before it. Called by `connections`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_process::exit::chain;
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use bedplate_process::task_set::TaskSet;
use tokio::sync::Notify;

use super::host::blocking;
use super::state::Places;
use crate::bus::{Bus, Machines};
use crate::hardware::read_text;
use crate::kubelet::client::SlotKubelet;
use crate::kubelet::credential::SlotCredential;
use crate::node::effects::{Credential, Credentials, Parts, Store};
use crate::node::health_gate::HostGate;
use crate::node::run::NodeLoop;
use crate::node::trash;
use crate::operation::view::{ViewFeed, serve};
use crate::plane::{Decider, Home};
use crate::slot;
use crate::slot::store::Slots;

/// Maximum time of a turn of the node's loop or of an operation without progress: kubeadm runs, containers stop, a slow disk is flushed.
pub(super) const TURN_PATIENCE: Duration = Duration::from_secs(1800);

/// Starts the tasks that change the host for this Machine. Jobs of systemd continue after the tasks end.
pub(super) fn start(
    decider: Arc<dyn Decider>,
    home: Arc<dyn Home>,
    places: &Places,
    machine: MachineName,
    liveness: &Liveness,
) -> TaskSet {
    let (mut tasks, wake) = (TaskSet::default(), Arc::new(Notify::new()));
    let shutdown = tasks.shutdown();
    let liveness = liveness.until(shutdown.clone());
    let parts = parts(decider, home, places, machine);
    let node = NodeLoop::new(parts.clone(), places.run.clone(), Arc::clone(&wake));
    tasks.spawn("node", node.run(liveness.part("node", TURN_PATIENCE), shutdown.clone()));
    let pulse = liveness.part("trash removal", TURN_PATIENCE);
    let removal = trash::serve(parts.slots.clone(), Arc::clone(&wake), pulse, shutdown.clone());
    tasks.spawn("trash removal", removal);
    let (feed, views) = ViewFeed::new(parts.decider.seen());
    tasks.reconcile(&liveness, "operations view", SILENCE_TIMEOUT, feed);
    let pulse = liveness.part("operations", TURN_PATIENCE);
    tasks.spawn("operations", serve(parts, wake, views, pulse, shutdown));
    tasks
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

fn parts(decider: Arc<dyn Decider>, home: Arc<dyn Home>, places: &Places, machine: MachineName) -> Parts {
    let bus = Bus::host();
    let machines: Arc<dyn Machines> = Arc::new(bus.machined());
    let slots = slots(places);
    let state = slots.places().state.clone();
    let boot_id = read_text(&places.root.join("proc/sys/kernel/random/boot_id")).unwrap_or_default();
    let kubelet = Arc::new(SlotKubelet::new(Arc::clone(&machines), &places.root, machine.clone()));
    Parts {
        machine,
        boot_id: boot_id.trim().to_owned(),
        root: places.root.clone(),
        slots,
        units: Arc::new(bus.manager()),
        machines: Arc::clone(&machines),
        power: Arc::new(bus.logind()),
        images: Arc::new(Store::new(state)),
        node: kubelet.clone(),
        claimed_node: kubelet,
        gate: Arc::new(HostGate::new(machines, &places.root)),
        decider,
        home,
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
        let kubernetes = enrollment.kubernetes.ok_or("the enrollment of this host names no cluster")?;
        Ok(Credential {
            server: kubernetes.server,
            ca_pem: kubernetes.ca_pem,
            certificate_pem: enrollment.certificate_pem,
        })
    }
}
