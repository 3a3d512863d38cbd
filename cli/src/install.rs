//! Installs or updates Bedplate in a cluster: kinds, namespace, policies, roles, controller. Called by `command`.
//!
//! Compares all objects first (dry run of the API server), prints the changes, applies them in order as one field manager, and waits for the
//! controller. Objects of earlier versions that this version does not have are kept.

mod apply;
mod manifest;
mod plan;

use std::borrow::Cow;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::{Instant, sleep};

use self::plan::{Rollout, is_established, rollout};
use crate::arguments::{Global, InstallArguments};
use crate::backend::cluster::{self, AskClusterError};
use crate::backend::kubeconfig::Fault;
use crate::error::RunError;
use crate::output::{Page, Progress};
use crate::render;
use crate::step::{Action, Step};

/// Interval between polls of the API server.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time until new kinds are served.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(60);

/// Reason why Bedplate is not installed.
#[derive(Debug, Error)]
pub(crate) enum InstallError {
    #[error("this API server is {version}: Bedplate needs Kubernetes {}.{} or newer, for ValidatingAdmissionPolicy", manifest::OLDEST.0, manifest::OLDEST.1)]
    TooOld { version: String },
    #[error("there is no kubeconfig")]
    NoKubeconfig(#[source] Fault),
    #[error("the controller's image is unknown")]
    NoImage,
    #[error("{count} objects have fields of another field manager: nothing was changed")]
    Conflicts { count: usize },
    #[error("{what} is not served after {} s", ESTABLISH_TIMEOUT.as_secs())]
    NotEstablished { what: String },
    #[error("all objects are applied, but the controller does not run after {after} s: {line}")]
    NotRunning { line: String, after: u64 },
}

impl From<InstallError> for RunError {
    fn from(error: InstallError) -> Self {
        let (hint, is_usage) = (error.hint().map(Cow::from), error.is_usage());
        Self::of_command(error, hint, is_usage)
    }
}

impl InstallError {
    /// Returns the remedy for the caller.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::TooOld { .. } => Some("nothing was changed; update the cluster first"),
            Self::NoKubeconfig(_) => {
                Some("name the administrator's kubeconfig with --kubeconfig or in the variable KUBECONFIG")
            }
            Self::NoImage => Some(
                "build the image (deploy/Containerfile), push it, and name it with --image; or omit the controller with --without-controller",
            ),
            Self::Conflicts { .. } => Some(
                "keep the values of the named field managers, or take ownership with --force-conflicts; they may overwrite the fields again",
            ),
            Self::NotEstablished { .. } => {
                Some("see `kubectl get crd`; run the same command again to continue")
            }
            Self::NotRunning { .. } => Some(
                "see `kubectl -n bedplate-system describe pods -l app.kubernetes.io/name=bedplate-controller`; run the same command again to wait longer",
            ),
        }
    }

    /// Returns true if the command line is invalid.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::NoImage)
    }
}

/// Installs.
pub(crate) async fn run(
    global: &Global,
    arguments: &InstallArguments,
    page: &mut Page<'_>,
) -> Result<(), RunError> {
    let client = cluster::client(global).await.map_err(|error| match error {
        // Other commands may ask a pxed's socket instead. This one needs the cluster.
        AskClusterError::Kubeconfig(None, source) if source.is_absent => {
            InstallError::NoKubeconfig(source).into()
        }
        error => RunError::from(error),
    })?;
    let version = client.apiserver_version().await;
    let version = version.map_err(|error| cluster::failed(error, "get /version".to_owned()))?;
    if manifest::is_too_old(&version.major, &version.minor) {
        return Err(InstallError::TooOld { version: version.git_version }.into());
    }
    let image = image(&client, arguments).await?;
    let objects = manifest::objects(image.as_deref());
    let steps = look(&client, &objects, arguments.force_conflicts).await?;
    if !page.is_json() {
        let look = page.look();
        page.print(render::steps(&steps, arguments.dry_run, look))?;
    }
    let report = |running: bool| {
        json!({ "apiServer": version.git_version, "dryRun": arguments.dry_run, "objects": steps,
            "controller": { "image": image, "running": running } })
    };
    let count = steps.iter().filter(|step| step.action == Action::Conflict).count();
    if count > 0 || arguments.dry_run {
        if page.is_json() {
            page.json(&report(false))?;
        }
        return if count > 0 { Err(InstallError::Conflicts { count }.into()) } else { Ok(()) };
    }
    apply_all(&client, &objects, &steps, arguments.force_conflicts).await?;
    let deployment = objects.iter().find(|object| manifest::kind(object) == "Deployment");
    let waited = match deployment.filter(|_| !arguments.no_wait) {
        Some(deployment) => Some(wait(&client, deployment, Duration::from_secs(arguments.timeout)).await),
        None => None,
    };
    if page.is_json() {
        page.json(&report(matches!(waited, Some(Ok(_)))))?;
        return waited.transpose().map(drop);
    }
    page.print(match waited.transpose()? {
        Some(line) => format!("installed; {line}\n"),
        None => "installed\n".to_owned(),
    })
}

/// Returns the image that the caller names, or the installed one. Returns `None` if the controller is
/// omitted.
async fn image(client: &Client, arguments: &InstallArguments) -> Result<Option<String>, RunError> {
    if arguments.without_controller || arguments.image.is_some() {
        return Ok(arguments.image.clone());
    }
    let named = manifest::objects(Some(""));
    let deployment = named.iter().find(|object| manifest::kind(object) == "Deployment");
    let there = match deployment {
        Some(deployment) => apply::get(client, deployment).await?,
        None => None,
    };
    let containers = there.as_ref().map(|there| &there["spec"]["template"]["spec"]["containers"]);
    let image = containers.and_then(|containers| containers[0]["image"].as_str());
    Ok(Some(image.ok_or(InstallError::NoImage)?.to_owned()))
}

/// Returns the changes that an apply would make to each object.
async fn look(client: &Client, objects: &[Value], force: bool) -> Result<Vec<Step>, AskClusterError> {
    let mut progress = Progress::new();
    let started = Instant::now();
    let mut steps = Vec::new();
    for object in objects {
        if progress.is_terminal() {
            progress.show(
                &format!("comparing {} of {} objects", steps.len() + 1, objects.len()),
                started.elapsed(),
            );
        }
        steps.push(apply::look(client, object, force).await?);
    }
    Ok(steps)
}

/// Applies all objects in order, including unchanged ones, so that this field manager owns the fields. Kinds are served before their objects.
async fn apply_all(client: &Client, objects: &[Value], steps: &[Step], force: bool) -> Result<(), RunError> {
    let (mut progress, started) = (Progress::new(), Instant::now());
    let mut kinds = Vec::new();
    for (number, (object, step)) in (1..).zip(objects.iter().zip(steps)) {
        if progress.is_terminal() {
            progress.show(&format!("applying {number} of {} objects", objects.len()), started.elapsed());
        }
        if manifest::kind(object) == manifest::DEFINITION {
            kinds.push(object);
        } else {
            for kind in kinds.drain(..) {
                established(client, kind).await?;
            }
        }
        if !step.left || force {
            apply::apply(client, object, force).await?;
        }
    }
    Ok(())
}

async fn established(client: &Client, definition: &Value) -> Result<(), RunError> {
    let started = Instant::now();
    while started.elapsed() < ESTABLISH_TIMEOUT {
        if apply::get(client, definition).await?.is_some_and(|definition| is_established(&definition)) {
            return Ok(());
        }
        sleep(POLL_INTERVAL / 10).await;
    }
    let what = definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Err(InstallError::NotEstablished { what }.into())
}

/// Waits until the applied controller runs. Shows the progress.
async fn wait(client: &Client, deployment: &Value, limit: Duration) -> Result<String, RunError> {
    let (mut progress, started) = (Progress::new(), Instant::now());
    let mut line = "the controller: not seen yet".to_owned();
    loop {
        match apply::get(client, deployment).await {
            Ok(Some(there)) => match rollout(&there, &apply::pods(client, deployment).await) {
                Rollout::Done(line) => return Ok(line),
                Rollout::Waiting(now) => line = now,
            },
            Ok(None) => "the controller: its Deployment was deleted".clone_into(&mut line),
            Err(error) if error.is_final() => return Err(error.into()),
            Err(error) => line = format!("{error}; retrying"),
        }
        if started.elapsed() >= limit {
            return Err(
                InstallError::NotRunning { line: render::clean(&line), after: limit.as_secs() }.into()
            );
        }
        progress.show(&render::clean(&line), started.elapsed());
        sleep(POLL_INTERVAL).await;
    }
}
