//! Connections of an enrolled agent to pxed and to the cluster.
//!
//! Opened with the current certificate. With another certificate, pxed's
//! connection is opened again, and the cluster's continues. Called by `run`.

use std::sync::Arc;

use bedplate_api::id::MachineName;
use bedplate_api::machine::Hardware;
use bedplate_api::wire::{KubernetesEndpoint, Report};
use bedplate_process::liveness::Liveness;
use bedplate_process::task_set::TaskSet;
use futures::FutureExt as _;
use futures::future::select_all;
use tokio::sync::watch;

use super::identity::Identity;
use super::state::{Enrollment, Places};
use super::tasks;
use crate::https::pxed::PxedClient;
use crate::https::request::AskError;
use crate::model::Api;
use crate::plane::{Access, Cluster, Decider as _, PrepareClientError, Seen, SlotHome, Standalone};

/// The connections that were used so far.
pub(super) struct Ways {
    places: Places,
    liveness: Liveness,
    /// True if no task changes the host.
    report_only: bool,
    /// Tasks that change the host for the cluster.
    node: Option<TaskSet>,
    pxed: Option<PxedClient>,
    cluster: Option<Arc<Cluster>>,
    /// pxed as the decider, when standalone.
    standalone: Option<Arc<Standalone>>,
    /// Home of the Node, if it is the cluster of the slot.
    slot_home: Option<Arc<SlotHome>>,
    /// State from the cluster, or from pxed when standalone, with unread changes.
    seen: Option<watch::Receiver<Seen>>,
    /// True if the connection to the cluster has a replaced certificate.
    renewed: bool,
    /// The facts that pxed accepted last.
    pub(super) facts_taken: Option<Hardware>,
}

impl Ways {
    /// Creates it without connections.
    pub(super) fn new(places: Places, report_only: bool, liveness: Liveness) -> Self {
        let (node, pxed, cluster, standalone, slot_home, seen, facts_taken) = Default::default();
        Self {
            places,
            liveness,
            report_only,
            node,
            pxed,
            cluster,
            standalone,
            slot_home,
            seen,
            renewed: false,
            facts_taken,
        }
    }

    /// Returns the name of a task that ended without a request to stop, as soon as one does.
    pub(super) fn broken(&self) -> impl Future<Output = &'static str> + Send + use<> {
        let cluster = self.cluster.as_ref().map(|cluster| cluster.ended().boxed());
        let standalone = self.standalone.as_ref().map(|standalone| standalone.ended().boxed());
        let slot_home = self.slot_home.as_ref().map(|home| home.ended().boxed());
        let node = self.node.as_ref().map(|node| node.ended().boxed());
        let ended: Vec<_> = [cluster, standalone, slot_home, node].into_iter().flatten().collect();
        async move {
            if ended.is_empty() {
                return std::future::pending().await;
            }
            select_all(ended).await.0
        }
    }

    /// Returns the names of the tasks that were started.
    #[cfg(test)]
    pub(super) fn task_names(&self) -> Vec<&'static str> {
        let sets = [
            self.node.as_ref().map(TaskSet::names),
            self.cluster.as_ref().map(|cluster| cluster.task_names()),
            self.standalone.as_ref().map(|standalone| standalone.task_names()),
            self.slot_home.as_ref().map(|home| home.task_names()),
        ];
        sets.into_iter().flatten().flatten().copied().collect()
    }

    /// Drops the connection to pxed, because the certificate was renewed.
    pub(super) fn forget(&mut self) {
        self.pxed = None;
        self.renewed = true;
    }

    /// Returns the connection to pxed.
    pub(super) fn pxed(
        &mut self,
        enrollment: &Enrollment,
        identity: &Identity,
    ) -> Result<PxedClient, AskError> {
        if let Some(client) = &self.pxed {
            return Ok(client.clone());
        }
        let key = identity.key_pem();
        let shown = (enrollment.certificate_pem.as_str(), key.as_str());
        let client = PxedClient::new(&enrollment.endpoints, &enrollment.ca_pem, Some(shown))?;
        self.pxed = Some(client.clone());
        if enrollment.kubernetes.is_none() {
            self.follow_pxed(&enrollment.machine, client.clone());
        }
        Ok(client)
    }

    /// Follows pxed instead of the cluster.
    fn follow_pxed(&mut self, machine: &MachineName, client: PxedClient) {
        if let Some(standalone) = self.standalone.as_ref().filter(|known| known.machine() == machine) {
            return standalone.renew(client);
        }
        // Tasks of another Machine are stopped as by a kill of the agent.
        self.node = None;
        let kubelet = Arc::new(tasks::kubelet(&self.places));
        let home = Arc::new(SlotHome::start(machine.clone(), kubelet, &self.liveness));
        let standalone = Arc::new(Standalone::start(machine.clone(), client, home.node(), &self.liveness));
        if !self.report_only {
            let (decider, home) = (standalone.clone(), home.clone());
            self.node = Some(tasks::start(decider, home, &self.places, machine.clone(), &self.liveness));
        }
        self.seen = Some(standalone.seen());
        // It follows the Node of the home before it, which ends after it.
        self.standalone = Some(standalone);
        self.slot_home = Some(home);
    }

    /// Returns the connection to the cluster.
    pub(super) async fn cluster(
        &mut self,
        enrollment: &Enrollment,
        kubernetes: &KubernetesEndpoint,
        identity: &Identity,
    ) -> Result<Arc<Cluster>, PrepareClientError> {
        let known = self.cluster.as_ref().filter(|cluster| cluster.machine() == enrollment.machine).cloned();
        if let Some(cluster) = known.clone().filter(|_| !self.renewed) {
            return Ok(cluster);
        }
        let key = identity.key_pem();
        let access = Access::new(kubernetes, &enrollment.machine, (&enrollment.certificate_pem, &key))?;
        let cluster = match known {
            Some(cluster) => {
                cluster.renew(access);
                cluster
            }
            None => {
                self.close().await;
                let cluster = Arc::new(Cluster::start(access, &self.liveness));
                let machine = enrollment.machine.clone();
                if !self.report_only {
                    let (decider, home) = (cluster.clone(), cluster.clone());
                    self.node = Some(tasks::start(decider, home, &self.places, machine, &self.liveness));
                }
                cluster
            }
        };
        self.seen = Some(cluster.seen());
        self.cluster = Some(cluster.clone());
        self.renewed = false;
        Ok(cluster)
    }

    /// Returns the UID of the cluster's Machine, and true if it has this host's
    /// certificate; none: currently unknown.
    pub(super) fn machine(&self) -> Option<(String, bool)> {
        let seen = self.cluster.as_ref()?.seen();
        let seen = seen.borrow();
        let uid = seen.machine.as_ref().filter(|_| seen.api == Api::Live)?.metadata.uid.clone()?;
        Some((uid, seen.ours))
    }

    /// Announces that another certificate is requested, which the cluster may have before this host, or that
    /// it is not.
    pub(super) fn expect(&self, another: bool) {
        if let Some(cluster) = &self.cluster {
            cluster.expect(another);
        }
    }

    /// Describes the state of the cluster, or of pxed when standalone, for users. None if it was never asked.
    pub(super) fn describe_cluster(&mut self) -> Option<String> {
        let said = self.seen.as_mut()?.borrow_and_update().describe();
        Some(if self.standalone.is_some() { format!("none (standalone), pxed {said}") } else { said })
    }

    /// Waits for a change of the cluster's state.
    pub(super) async fn changed(&mut self) {
        let ended = match &mut self.seen {
            Some(seen) => seen.changed().await.is_err(),
            None => true,
        };
        if ended {
            std::future::pending::<()>().await;
        }
    }

    /// Reports to pxed, without facts that it has.
    pub(super) async fn report_to_pxed(
        &mut self,
        client: &PxedClient,
        mut report: Report,
    ) -> Result<(), AskError> {
        let facts = report.facts.clone();
        if facts == self.facts_taken {
            report.facts = None;
        }
        client.report(&report).await?;
        self.facts_taken = facts;
        Ok(())
    }

    /// Closes the connection to the cluster.
    pub(super) async fn close(&mut self) {
        self.seen = None;
        if let Some(mut node) = self.node.take() {
            node.stop().await;
        }
        if let Some(cluster) = self.cluster.take() {
            cluster.stop().await;
        }
        if let Some(standalone) = self.standalone.take() {
            standalone.stop().await;
        }
        if let Some(home) = self.slot_home.take() {
            home.stop().await;
        }
    }
}
