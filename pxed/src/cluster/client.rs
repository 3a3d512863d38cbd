//! The client of the API server: connected at the start, or waited for while the Machines known from before are served.
//!
//! A kubeconfig that is wrong ends the start, with exit code 64. One that is missing, or whose files are missing, may come at any
//! time: pxed tries again and reports the reason like that of an unreachable API server. The source of Machines connects. Every other
//! part waits for the same client.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use bedplate_api::wire::KubernetesEndpoint;
use bedplate_process::exit::chain;
use bedplate_process::kubeconfig::{ConfigureError, configure};
use bedplate_process::liveness::Pulse;
use kube::config::{Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::machines::source::Update;

/// Interval between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Cause of a request that is not sent.
const NOT_CONNECTED: &str = "the cluster is not connected yet";

/// The client, once there is one. Clones share it.
pub(crate) type Access = watch::Receiver<Option<Client>>;

/// Address and certificate authority of the API server for agents. Set before the client.
pub(crate) type Endpoint = Arc<OnceLock<KubernetesEndpoint>>;

/// Returns the client.
pub(crate) fn connected(access: &Access) -> Result<Client, &'static str> {
    access.borrow().clone().ok_or(NOT_CONNECTED)
}

/// Waits for the client. Never ends if the program stops first.
pub(crate) async fn wait(mut access: Access) -> Client {
    let client = access.wait_for(Option::is_some).await.ok().and_then(|client| client.clone());
    match client {
        Some(client) => client,
        None => std::future::pending().await,
    }
}

/// Cause that there is no client. An unreachable server is not an error.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    /// The kubeconfig, or the proxy of the environment, cannot be used.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// The kubeconfig is no YAML, or has other fields.
    #[error("cannot use the kubeconfig: {0}")]
    Yaml(String),
    /// pxed does not run in a pod, and no kubeconfig is configured.
    #[error(
        "no service account of a Pod was found; name a kubeconfig: kubernetes = {{ kubeconfig = \"/path\" }}"
    )]
    InCluster(#[from] kube::config::InClusterError),
    /// The client cannot be made.
    #[error("cannot create a Kubernetes client")]
    Client(#[source] Box<kube::Error>),
}

/// Describes an error in a kubeconfig. kube would show the lines around it, which may contain a token.
fn describe_kubeconfig(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(problem) => {
            let problem = problem.without_snippet().to_string();
            format!("failed to parse its YAML: {}", problem.lines().next().unwrap_or_default())
        }
        other => chain(other),
    }
}

/// Connects to the cluster.
pub(crate) struct Connector {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    /// Address of the API server for agents, if it is not that of the kubeconfig.
    advertise: Option<String>,
    client: watch::Sender<Option<Client>>,
    endpoint: Endpoint,
}

impl Connector {
    /// Connects, or returns the reason why that is not possible yet.
    ///
    /// # Errors
    /// The configuration is wrong.
    pub(crate) async fn open(
        kubeconfig: Option<PathBuf>,
        context: Option<String>,
        advertise: Option<String>,
    ) -> Result<(Self, Option<String>), ConnectError> {
        let (client, endpoint) = (watch::Sender::new(None), Endpoint::default());
        let connector = Self { kubeconfig, context, advertise, client, endpoint };
        let problem = match connector.connect().await {
            Ok(_) => None,
            Err(error) if connector.passes(&error) => Some(describe(&error)),
            Err(error) => return Err(error),
        };
        Ok((connector, problem))
    }

    /// Returns the place of the client.
    pub(crate) fn access(&self) -> Access {
        self.client.subscribe()
    }

    /// Returns the place of the endpoint.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }

    /// Waits until there is a client, and reports each failed attempt. `None` if `shutdown` came first.
    pub(crate) async fn run(
        &self,
        updates: &mpsc::Sender<Update>,
        pulse: &Pulse,
        shutdown: &CancellationToken,
    ) -> Option<Client> {
        loop {
            pulse.beat();
            if let Ok(client) = connected(&self.access()) {
                return Some(client);
            }
            tokio::select! {
                () = shutdown.cancelled() => return None,
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
            }
            if let Err(error) = self.connect().await {
                // The receiver has ended: pxed stops.
                updates.send(Update::Unreachable { reason: describe(&error) }).await.ok()?;
            }
        }
    }

    async fn connect(&self) -> Result<(), ConnectError> {
        let mut config = match self.kubeconfig.as_deref() {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| match &error {
                    KubeconfigError::Parse(_) => {
                        ConnectError::Yaml(format!("{}: {}", path.display(), describe_kubeconfig(&error)))
                    }
                    _ => ConnectError::Configure(error.into()),
                })?;
                configure(file, self.context.as_deref()).await?
            }
            None => Config::incluster()?,
        };
        config.connect_timeout = Some(Duration::from_secs(10));
        // A server that vanished silently ends here. A healthy one ends a quiet watch after 295 s on its own.
        config.read_timeout = Some(Duration::from_secs(330));
        config.write_timeout = Some(Duration::from_secs(30));
        let endpoint = endpoint(&config, self.advertise.as_deref());
        let client = Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))?;
        if let Some(endpoint) = endpoint {
            // Set by the first connection, which is the only one.
            let _ = self.endpoint.set(endpoint);
        }
        self.client.send_replace(Some(client));
        Ok(())
    }

    /// Returns true if a later attempt may succeed with the same configuration.
    fn passes(&self, error: &ConnectError) -> bool {
        // Its writer may have started: a shell creates the file before the program writes.
        let empty = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == 0);
        if self.kubeconfig.as_ref().is_some_and(empty) {
            return true;
        }
        // A helper program fetches the token or the certificate.
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

/// Returns the error with its cause. kube's own errors repeat their causes.
fn describe(error: &ConnectError) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Returns the endpoint for agents. Without a published authority they could not verify it.
pub(crate) fn endpoint(config: &Config, advertise: Option<&str>) -> Option<KubernetesEndpoint> {
    let mut ca_pem = String::new();
    for der in config.root_cert.iter().flatten() {
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        ca_pem.push_str("-----BEGIN CERTIFICATE-----\n");
        for line in text.as_bytes().chunks(64) {
            ca_pem.push_str(&String::from_utf8_lossy(line));
            ca_pem.push('\n');
        }
        ca_pem.push_str("-----END CERTIFICATE-----\n");
    }
    let own = || config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let server = advertise.map_or_else(own, |advertise| format!("https://{advertise}"));
    (!ca_pem.is_empty()).then_some(KubernetesEndpoint { server, ca_pem })
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
    async fn missing_configuration_is_waited_for_and_invalid_one_is_an_error() {
        install();
        let directory = tempfile::tempdir().unwrap();
        let open = async |text: Option<&str>, context: Option<&str>| {
            let _ = std::fs::remove_file(path(&directory));
            if let Some(text) = text {
                std::fs::write(path(&directory), text).unwrap();
            }
            let opened = Connector::open(Some(path(&directory)), context.map(str::to_owned), None).await;
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
    async fn kubeconfig_error_contains_no_lines_of_the_file() {
        install();
        let directory = tempfile::tempdir().unwrap();
        let text = "users:\n- name: u\n  user:\n    token: hush-hush\n   client: x\n";
        std::fs::write(path(&directory), text).unwrap();
        let error = Connector::open(Some(path(&directory)), None, None).await.err().unwrap();
        let message = bedplate_process::exit::chain(&error);
        assert!(message.contains("line 5") && !message.contains("hush"), "{message}");
        let error = kube::config::Kubeconfig::from_yaml(text).unwrap_err();
        assert!(error.to_string().contains("hush"), "what kube would show");
        assert!(!describe_kubeconfig(&error).contains("hush"));
    }

    #[tokio::test(start_paused = true)]
    async fn late_kubeconfig_is_used_and_reason_is_reported_until_then() {
        install();
        let directory = tempfile::tempdir().unwrap();
        let (cluster, problem) = Connector::open(Some(path(&directory)), None, None).await.unwrap();
        assert!(problem.is_some());
        let (updates, mut received) = mpsc::channel(4);
        let access = cluster.access();
        let waiting = tokio::spawn(async move {
            let (pulse, shutdown) = (Pulse::unwatched(), CancellationToken::new());
            cluster.run(&updates, &pulse, &shutdown).await.is_some()
        });
        for _ in 0..2 {
            let Some(Update::Unreachable { reason }) = received.recv().await else { panic!("the reason") };
            assert!(reason.contains("No such file"), "{reason}");
        }
        assert!(access.borrow().is_none());
        std::fs::write(path(&directory), GOOD).unwrap();
        assert!(waiting.await.unwrap());
        assert!(access.borrow().is_some());
    }
}
