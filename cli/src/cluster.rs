//! Asks the cluster for Machines, with the kubeconfig and context that the caller named or kubectl would use.

use std::path::PathBuf;

use bedplate_api::machine::Machine;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use thiserror::Error;

use crate::arguments::Global;

/// Why the cluster gave no answer.
#[derive(Debug, Error)]
pub(crate) enum AskClusterError {
    #[error("cannot read the kubeconfig{}", .0.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Kubeconfig(Option<PathBuf>, #[source] Box<KubeconfigError>),
    #[error("cannot use context {context:?} of the kubeconfig{}", .path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Context { context: String, path: Option<PathBuf>, source: Box<KubeconfigError> },
    #[error("cannot make a client for the cluster")]
    Client(#[source] Box<kube::Error>),
    #[error("the cluster has no Machine {0:?}")]
    NotFound(String),
    #[error("the cluster refuses: {message}")]
    Refused { code: u16, message: String },
    #[error("cannot read Machines from the cluster")]
    Read(#[source] Box<kube::Error>),
}

/// kube would print a refusal three times over.
fn read(error: kube::Error) -> AskClusterError {
    match error {
        kube::Error::Api(status) => {
            AskClusterError::Refused { code: status.code, message: status.message.clone() }
        }
        other => AskClusterError::Read(Box::new(other)),
    }
}

impl AskClusterError {
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Context { .. } => Some(
                "`kubectl config get-contexts` shows those that are there; --kubeconfig names another file",
            ),
            Self::Kubeconfig(Some(_), _) => Some("is it there, and is it a kubeconfig?"),
            Self::Kubeconfig(None, _) => Some(
                "pxed's socket is not there either: is pxed running here (systemctl status pxed)? Name its socket with --socket, or a cluster with --kubeconfig",
            ),
            Self::NotFound(_) => Some("`bedplate machine list` shows those that are there"),
            Self::Refused { code: 404, .. } => Some(
                "are the kinds installed? `kubectl apply --server-side -k deploy` in Bedplate's repository",
            ),
            Self::Refused { code: 401 | 403, .. } => {
                Some("may this user read Machines? kubectl auth can-i list machines.bedplate.dev")
            }
            Self::Refused { .. } => None,
            Self::Read(_) => Some(
                "is it reached? `kubectl version` with the same kubeconfig and context; a pxed is asked with --socket",
            ),
            Self::Client(_) => None,
        }
    }
}

async fn machines(global: &Global) -> Result<Api<Machine>, AskClusterError> {
    let error = |error| match global.context.clone() {
        Some(context) => {
            AskClusterError::Context { context, path: global.kubeconfig.clone(), source: Box::new(error) }
        }
        None => AskClusterError::Kubeconfig(global.kubeconfig.clone(), Box::new(error)),
    };
    let kubeconfig = match &global.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let options = KubeConfigOptions { context: global.context.clone(), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig.map_err(error)?, &options).await.map_err(error)?;
    // The programs that share this dependency may bring a second provider; the first one that is set counts.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let client = Client::try_from(config).map_err(|error| AskClusterError::Client(Box::new(error)))?;
    Ok(Api::all(client))
}

/// Every Machine, in the form of pxed's answer.
pub(crate) async fn list(global: &Global) -> Result<Value, AskClusterError> {
    let found = machines(global).await?.list(&ListParams::default()).await;
    let items = found.map_err(read)?.items;
    Ok(json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineList", "items": items }))
}

/// One Machine.
pub(crate) async fn get(global: &Global, name: &str) -> Result<Value, AskClusterError> {
    let found = machines(global).await?.get_opt(name).await;
    let machine = found.map_err(read)?;
    machine.map(|machine| json!(machine)).ok_or_else(|| AskClusterError::NotFound(name.to_owned()))
}
