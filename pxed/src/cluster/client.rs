//! Access to the cluster: had at the start, or waited for while the Machines known from before are served.
//!
//! A kubeconfig that is wrong ends the start, with exit code 64. One that is not there yet, or whose files are not, may come at any
//! time: it is tried again and the reason is told like that of an API server that is away.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bedplate_process::liveness::Pulse;
use kube::Client;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::cluster::machines::{self, ConnectError};
use crate::machines::source::Update;

/// Between two tries.
const RETRY: Duration = Duration::from_secs(5);

/// A client, once there is one; clones share it.
pub(crate) type Access = Arc<OnceLock<Client>>;

/// The way to a cluster.
pub(crate) struct Cluster {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    access: Access,
}

impl Cluster {
    /// Tries to have access. Gives back what stands in the way, if that may pass.
    ///
    /// # Errors
    /// The configuration is wrong.
    pub(crate) async fn open(
        kubeconfig: Option<PathBuf>,
        context: Option<String>,
    ) -> Result<(Self, Option<String>), ConnectError> {
        let cluster = Self { kubeconfig, context, access: Access::default() };
        let problem = match cluster.connect().await {
            Ok(_) => None,
            Err(error) if cluster.passes(&error) => Some(describe(&error)),
            Err(error) => return Err(error),
        };
        Ok((cluster, problem))
    }

    /// Where the client will be.
    pub(crate) fn access(&self) -> Access {
        self.access.clone()
    }

    /// The client; tells of every failed try. `None`: `shutdown` came first.
    pub(crate) async fn wait(
        &self,
        updates: &mpsc::Sender<Update>,
        pulse: &Pulse,
        shutdown: &CancellationToken,
    ) -> Option<Client> {
        loop {
            pulse.beat();
            if let Some(client) = self.access.get() {
                return Some(client.clone());
            }
            tokio::select! {
                () = shutdown.cancelled() => return None,
                () = tokio::time::sleep(RETRY) => {}
            }
            if let Err(error) = self.connect().await {
                // Nobody listens any more: the end.
                updates.send(Update::Unreachable { reason: describe(&error) }).await.ok()?;
            }
        }
    }

    async fn connect(&self) -> Result<Client, ConnectError> {
        let client = machines::connect(self.kubeconfig.as_deref(), self.context.as_deref()).await?;
        Ok(self.access.get_or_init(|| client).clone())
    }

    /// Whether it may be otherwise without a change of the configuration.
    fn passes(&self, error: &ConnectError) -> bool {
        // Who makes it may have begun: a shell makes the file before the program writes.
        let empty = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == 0);
        if self.kubeconfig.as_ref().is_some_and(empty) {
            return true;
        }
        // A token or certificate that a helper program gets from elsewhere.
        if let ConnectError::Client(error) = error
            && matches!(**error, kube::Error::Auth(_))
        {
            return true;
        }
        let causes = std::iter::successors(Some(error as &dyn Error), |&error| error.source());
        let mut files = causes.filter_map(|error| error.downcast_ref::<io::Error>());
        files.any(|error| error.kind() != io::ErrorKind::InvalidData)
    }
}

/// For people; kube's own errors repeat their causes.
fn describe(error: &ConnectError) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts:\n- name: c\n  context: {cluster: k, user: u}\n\
        clusters:\n- name: k\n  cluster: {server: 'https://127.0.0.1:1'}\n\
        users:\n- name: u\n  user: {}\n";

    fn path(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join("kubeconfig")
    }

    fn install() {
        bedplate_process::tls::install_crypto_provider();
    }

    #[tokio::test]
    async fn what_may_come_yet_is_waited_for_and_what_is_wrong_is_an_error() {
        install();
        let directory = tempfile::tempdir().unwrap();
        let open = async |text: Option<&str>, context: Option<&str>| {
            let _ = std::fs::remove_file(path(&directory));
            if let Some(text) = text {
                std::fs::write(path(&directory), text).unwrap();
            }
            let opened = Cluster::open(Some(path(&directory)), context.map(str::to_owned)).await;
            opened.map(|(_, problem)| problem)
        };
        let missing = open(None, None).await.unwrap().unwrap();
        assert!(missing.contains("No such file") && missing.contains("kubeconfig"), "{missing}");
        assert!(open(Some(""), None).await.unwrap().is_some(), "about to be written");
        let authority = GOOD.replace("{server", "{certificate-authority: /not/there.pem, server");
        assert!(open(Some(&authority), None).await.unwrap().unwrap().contains("/not/there.pem"));
        assert_eq!(open(Some(GOOD), None).await.unwrap(), None);
        for (text, context) in [("kind: [", None), ("kind: Config\n", None), (GOOD, Some("other"))] {
            assert!(open(Some(text), context).await.is_err(), "{text} {context:?}");
        }
    }

    #[tokio::test]
    async fn the_lines_around_a_mistake_in_a_kubeconfig_are_told_to_nobody() {
        install();
        let directory = tempfile::tempdir().unwrap();
        let text = "users:\n- name: u\n  user:\n    token: hush-hush\n   client: x\n";
        std::fs::write(path(&directory), text).unwrap();
        let error = Cluster::open(Some(path(&directory)), None).await.err().unwrap();
        let told = bedplate_process::exit::chain(&error);
        assert!(told.contains("line 5") && !told.contains("hush"), "{told}");
        let error = kube::config::Kubeconfig::from_yaml(text).unwrap_err();
        assert!(error.to_string().contains("hush"), "what kube would show");
        assert!(!machines::told(&error).contains("hush"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubeconfig_that_comes_later_is_used_and_until_then_the_reason_is_told() {
        install();
        let directory = tempfile::tempdir().unwrap();
        let (cluster, problem) = Cluster::open(Some(path(&directory)), None).await.unwrap();
        assert!(problem.is_some());
        let (updates, mut told) = mpsc::channel(4);
        let access = cluster.access();
        let waiting = tokio::spawn(async move {
            let (pulse, shutdown) = (Pulse::unwatched(), CancellationToken::new());
            cluster.wait(&updates, &pulse, &shutdown).await.is_some()
        });
        for _ in 0..2 {
            let Some(Update::Unreachable { reason }) = told.recv().await else { panic!("the reason") };
            assert!(reason.contains("No such file"), "{reason}");
        }
        assert!(access.get().is_none());
        std::fs::write(path(&directory), GOOD).unwrap();
        assert!(waiting.await.unwrap());
        assert!(access.get().is_some());
    }
}
