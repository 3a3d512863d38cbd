//! The cluster's API server as a [`Plane`].
//!
//! Two tasks: one watches, one writes what the node says. Called by `service::ways`.

use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::configuration::SecretRef;
use bedplate_api::id::MachineName;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_api::wire::Report;
use kube::ResourceExt;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::answer::AskServerError;
use super::client::Access;
use super::follow::follow;
use super::gone::{self, Asked};
use super::operation::{self, WriteOperationError};
use super::secret::{self, ReadSecretError, SecretData};
use super::status::NodeTold;
use super::writer::Writer;
use super::{Plane, Seen};

/// A cluster, as one Machine's agent sees it. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    access: watch::Sender<Access>,
    seen: watch::Receiver<Seen>,
    writer: Writer,
    tasks: JoinSet<()>,
}

impl Cluster {
    /// Begins to watch.
    pub fn start(access: Access) -> Self {
        let (access, current) = watch::channel(access);
        let (told, seen) = watch::channel(Seen::default());
        let writer = Writer::new(current.clone(), seen.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(current, told));
        tasks.spawn(writer.clone().run());
        Self { access, seen, writer, tasks }
    }

    /// Goes on with another certificate, of the same Machine.
    pub fn renew(&self, access: Access) {
        self.access.send_replace(access);
    }

    /// Whose agent it serves.
    pub fn machine(&self) -> MachineName {
        self.access.borrow().machine().clone()
    }

    /// Whether it is still watched: a task that has panicked watches no more.
    pub fn is_well(&self) -> bool {
        self.seen.has_changed().is_ok()
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
        let asked = gone::ask(access.client(), access.machine().as_str()).await?;
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

    async fn secret(&self, secret: &SecretRef) -> Result<SecretData, ReadSecretError> {
        let access = self.access.borrow().clone();
        secret::read(access.client(), secret).await
    }
}
