//! The cluster's API server as [`Decider`] and as [`Home`]: the Node is in the cluster that decides about it.
//!
//! Two tasks: one watches, one writes the state of the node. Called by `service::connections`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bedplate_api::claim::{MachineClaim, MachineClaimStatus};
use bedplate_api::configuration::SecretRef;
use bedplate_api::id::MachineName;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_api::wire::{KubernetesEndpoint, Report};
use bedplate_process::exit::chain;
use bedplate_process::liveness::{Liveness, SILENCE_TIMEOUT};
use bedplate_process::task_set::TaskSet;
use kube::ResourceExt;
use tokio::sync::watch;

use super::certificate::{self, CertificateAnswer};
use super::claim;
use super::client::Access;
use super::comparison::compare;
use super::error::AskServerError;
use super::node_deletion::{self, Asked};
use super::operation::{self, WriteOperationError};
use super::secret::{self, ReadSecretError, SecretData};
use super::status::NodeStatusReport;
use super::watcher::Watcher;
use super::writer::{WRITE_PATIENCE, Writer};
use super::{Compared, Decider, Home, Seen};

/// A cluster, as one Machine's agent sees it. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// Dropped first, so that no task ends because another field is dropped.
    tasks: TaskSet,
    access: watch::Sender<Access>,
    seen: watch::Receiver<Seen>,
    writer: Writer,
    expects: Arc<AtomicBool>,
}

impl Cluster {
    /// Starts to watch.
    pub fn start(access: Access, liveness: &Liveness) -> Self {
        let (access, current) = watch::channel(access);
        let (reported, seen) = watch::channel(Seen::default());
        let writer = Writer::new(current.clone(), seen.clone());
        let expects = Arc::new(AtomicBool::new(false));
        let mut tasks = TaskSet::default();
        let (watcher, node_writer) =
            (Watcher::new(current, reported, Arc::clone(&expects)), writer.of_node());
        tasks.reconcile(liveness, "cluster watch", SILENCE_TIMEOUT, watcher);
        tasks.reconcile(liveness, "status writer", WRITE_PATIENCE, node_writer);
        Self { tasks, access, seen, writer, expects }
    }

    /// Continues with another certificate of the same Machine.
    pub fn renew(&self, access: Access) {
        self.access.send_replace(access);
    }

    /// Announces a request for another certificate of this Machine. Until it arrives, or `expects` is false,
    /// a Machine with another certificate still counts as ours if it was ours.
    pub fn expect(&self, another: bool) {
        self.expects.store(another, Ordering::Relaxed);
    }

    /// Returns the Machine whose agent this serves.
    pub fn machine(&self) -> MachineName {
        self.access.borrow().machine().clone()
    }

    /// Returns the names of the tasks that were started.
    #[cfg(test)]
    pub(crate) fn task_names(&self) -> &[&'static str] {
        self.tasks.names()
    }

    /// Returns the name of a task that ended without a request to stop, as soon as one does.
    pub fn ended(&self) -> impl Future<Output = &'static str> + Send + use<> {
        self.tasks.ended()
    }

    /// Ends the tasks and waits until they have ended.
    pub async fn stop(mut self: Arc<Self>) {
        // Another holder ends them when it drops its handle.
        if let Some(own) = Arc::get_mut(&mut self) {
            own.tasks.stop().await;
        }
    }
}

#[async_trait]
impl Decider for Cluster {
    fn seen(&self) -> watch::Receiver<Seen> {
        let mut seen = self.seen.clone();
        seen.mark_changed();
        seen
    }

    async fn report(&self, report: &Report) -> Result<(), AskServerError> {
        self.writer.report(report).await
    }

    fn report_node(&self, reported: NodeStatusReport) {
        self.writer.report_node(reported);
    }

    async fn write_operation(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError> {
        let access = self.access.borrow().clone();
        operation::write(access.client(), operation, &status).await
    }

    async fn secret(&self, secret: &SecretRef) -> Result<SecretData, ReadSecretError> {
        let access = self.access.borrow().clone();
        secret::read(access.client(), secret).await
    }

    async fn write_claim(
        &self,
        claim: &MachineClaim,
        status: &MachineClaimStatus,
    ) -> Result<(), AskServerError> {
        let access = self.access.borrow().clone();
        claim::write(access.client(), claim, status).await
    }

    async fn configuration_allows(&self, name: &str, namespace: &str) -> Result<bool, AskServerError> {
        let access = self.access.borrow().clone();
        claim::allows(access.client(), name, namespace).await
    }
}

#[async_trait]
impl Home for Cluster {
    async fn node_is_gone(&self, _: &Seen) -> Result<bool, AskServerError> {
        let access = self.access.borrow().clone();
        let asked = node_deletion::ask(access.client(), access.machine().as_str()).await?;
        let known = self.seen.borrow().machine.as_ref().and_then(|machine| machine.uid());
        // Another Machine of this name: this is not the API server that the host knows.
        Ok(matches!(asked, Asked::Gone(machine) if known.is_some() && machine.uid() == known))
    }

    async fn compare(&self, server: &str, ca_pem: &str) -> Compared {
        let machine = self.seen.borrow().machine.clone();
        let Some(uid) = machine.as_ref().and_then(|machine| machine.uid()) else {
            return Compared::Unknown("the Machine of this host was not read yet".to_owned());
        };
        let endpoint = KubernetesEndpoint { server: server.to_owned(), ca_pem: ca_pem.to_owned() };
        let own = self.access.borrow().clone();
        match own.at(&endpoint) {
            Ok(access) => compare(access.client(), access.machine().as_str(), &uid).await,
            Err(error) => Compared::Unknown(chain(&error)),
        }
    }

    async fn kubelet_certificate(
        &self,
        name: &str,
        csr_pem: &str,
    ) -> Result<CertificateAnswer, AskServerError> {
        let access = self.access.borrow().clone();
        certificate::ask(access.client(), name, csr_pem).await
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn cluster_without_its_watch_names_the_task() {
        let own = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        let (pem, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let endpoint = KubernetesEndpoint { server: "https://127.0.0.1:1".to_owned(), ca_pem: pem.clone() };
        let access = Access::new(&endpoint, &"node-1".parse().unwrap(), (&pem, &key)).unwrap();
        let liveness = Liveness::new(CancellationToken::new());
        let Cluster { access, tasks, .. } = Cluster::start(access, &liveness);
        assert_eq!(liveness.check(), Ok(()));
        drop(access);
        assert_eq!(tasks.ended().await, "cluster watch");
    }
}
