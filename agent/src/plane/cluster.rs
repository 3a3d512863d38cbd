//! The cluster's API server as a [`Plane`].
//!
//! Two tasks: one watches, one writes what the node says. Called by `service::ways`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bedplate_api::configuration::SecretRef;
use bedplate_api::id::MachineName;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_api::wire::{KubernetesEndpoint, Report};
use bedplate_process::exit::chain;
use futures::FutureExt as _;
use kube::ResourceExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::certificate::{self, CertificateAnswer};
use super::client::Access;
use super::comparison::compare;
use super::error::AskServerError;
use super::node_deletion::{self, Asked};
use super::operation::{self, WriteOperationError};
use super::secret::{self, ReadSecretError, SecretData};
use super::status::NodeTold;
use super::watcher::follow;
use super::writer::Writer;
use super::{Compared, Plane, Seen};

/// A cluster, as one Machine's agent sees it. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    access: watch::Sender<Access>,
    seen: watch::Receiver<Seen>,
    writer: Writer,
    expects: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    /// One of them has ended.
    over: CancellationToken,
}

impl Cluster {
    /// Begins to watch.
    pub fn start(access: Access) -> Self {
        let (access, current) = watch::channel(access);
        let (told, seen) = watch::channel(Seen::default());
        let writer = Writer::new(current.clone(), seen.clone());
        let (mut tasks, over) = (JoinSet::new(), CancellationToken::new());
        let expects = Arc::new(AtomicBool::new(false));
        for work in [follow(current, told, Arc::clone(&expects)).boxed(), writer.clone().run().boxed()] {
            let ends = over.clone().drop_guard();
            tasks.spawn(async move {
                let _ends = ends;
                work.await;
            });
        }
        Self { access, seen, writer, expects, tasks, over }
    }

    /// Goes on with another certificate, of the same Machine.
    pub fn renew(&self, access: Access) {
        self.access.send_replace(access);
    }

    /// Another certificate of this Machine's is being asked for: until it is here, or `expects` is false again, a Machine that was ours and
    /// shows another one still is.
    pub fn expect(&self, another: bool) {
        self.expects.store(another, Ordering::Relaxed);
    }

    /// Whose agent it serves.
    pub fn machine(&self) -> MachineName {
        self.access.borrow().machine().clone()
    }

    /// Cancelled once it is watched, or written to, no more: a task has panicked.
    pub fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Ends the tasks and waits until they have ended.
    pub async fn stop(mut self: Arc<Self>) {
        // Whoever else holds it ends them by letting go.
        if let Some(own) = Arc::get_mut(&mut self) {
            own.tasks.shutdown().await;
        }
    }
}

#[async_trait]
impl Plane for Cluster {
    fn seen(&self) -> watch::Receiver<Seen> {
        let mut seen = self.seen.clone();
        seen.mark_changed();
        seen
    }

    async fn node_is_gone(&self) -> Result<bool, AskServerError> {
        let access = self.access.borrow().clone();
        let asked = node_deletion::ask(access.client(), access.machine().as_str()).await?;
        let known = self.seen.borrow().machine.as_ref().and_then(|machine| machine.uid());
        // Another Machine of this name: this API server is not the one that the host knows.
        Ok(matches!(asked, Asked::Gone(machine) if known.is_some() && machine.uid() == known))
    }

    async fn report(&self, report: &Report) -> Result<(), AskServerError> {
        self.writer.report(report).await
    }

    fn tell_node(&self, told: NodeTold) {
        self.writer.tell_node(told);
    }

    async fn write_operation(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError> {
        let access = self.access.borrow().clone();
        operation::write(access.client(), operation, &status).await
    }

    async fn compare(&self, server: &str, ca_pem: &str) -> Compared {
        let machine = self.seen.borrow().machine.clone();
        let Some(uid) = machine.as_ref().and_then(|machine| machine.uid()) else {
            return Compared::Unknown("the own Machine was not read yet".to_owned());
        };
        let endpoint = KubernetesEndpoint { server: server.to_owned(), ca_pem: ca_pem.to_owned() };
        let own = self.access.borrow().clone();
        match own.at(&endpoint) {
            Ok(access) => compare(access.client(), access.machine().as_str(), &uid).await,
            Err(error) => Compared::Unknown(chain(&error)),
        }
    }

    async fn secret(&self, secret: &SecretRef) -> Result<SecretData, ReadSecretError> {
        let access = self.access.borrow().clone();
        secret::read(access.client(), secret).await
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
    use super::*;

    #[tokio::test]
    async fn a_cluster_that_nobody_watches_any_more_says_so() {
        let own = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        let (pem, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let endpoint = KubernetesEndpoint { server: "https://127.0.0.1:1".to_owned(), ca_pem: pem.clone() };
        let access = Access::new(&endpoint, &"node-1".parse().unwrap(), (&pem, &key)).unwrap();
        let mut cluster = Cluster::start(access);
        assert!(!cluster.over().is_cancelled());
        cluster.tasks.abort_all();
        cluster.over().cancelled().await;
        assert!(cluster.tasks.join_next().await.is_some());
    }
}
