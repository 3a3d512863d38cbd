//! Runs `config`: lists and shows MachineConfigurations and the changes of their versions, and rolls back to a version.
//!
//! A pxed describes a configuration in one answer. For a cluster this module builds the same description.

pub(crate) mod history;
mod rollback;

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_bootstrap::{Plane, check};
use serde_json::json;
use std::borrow::Cow;
use thiserror::Error;

use crate::arguments::{ConfigCommand, ConfigDiff, Global};
use crate::backend::cluster;
use crate::backend::socket;
use crate::changes;
use crate::desk::Desk;
use crate::error::{RunError, read};
use crate::output::Page;
use crate::render::{self, Described};

/// Reason why a configuration's versions cannot be shown, or rolled back.
#[derive(Debug, Error)]
pub(crate) enum ConfigureError {
    #[error("{name} has no version {version}; {there}")]
    NoVersion { name: String, version: i64, there: String },
    #[error("{name} has no version before v{newest}")]
    NoneBefore { name: String, newest: i64 },
    #[error("this pxed reads its configurations from manifests; edit the manifest to change one")]
    Manifests { name: String },
    #[error("Machine {machine} is a protected control plane; it is not repaved when its Node is deleted")]
    ControlPlaneProtected { machine: String },
    #[error(
        "Machine {machine} is a control plane; only its agent can check whether its etcd member may leave, so the Node is kept"
    )]
    ControlPlane { machine: String },
    #[error("Machine {machine} is {why}; its host is not repaved, so the Node is kept")]
    LeftAlone { machine: String, why: String },
    #[error("Machine {machine} has no Node")]
    NoNode { machine: String },
    #[error("the answer is not valid")]
    Answer,
}

impl From<ConfigureError> for RunError {
    fn from(error: ConfigureError) -> Self {
        let hint = error.hint().map(Cow::from);
        Self::of_command(error, hint, false)
    }
}

impl ConfigureError {
    /// Returns the remedy for the caller.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::NoVersion { name, .. } | Self::NoneBefore { name, .. } => {
                Some(format!("see `bedplate config history {name}`"))
            }
            Self::Manifests { name } => Some(format!(
                "copy the earlier version from `bedplate config diff {name}` into the manifest, or name it in spec.configurationRef of a Machine's manifest; for a cluster, use --context or --kubeconfig"
            )),
            Self::ControlPlaneProtected { .. } => Some(
                "see docs/concepts/node.md, \"The first control plane\"; without --delete-node only the reference is written"
                    .to_owned(),
            ),
            Self::ControlPlane { machine } => Some(format!(
                "omit --delete-node, then run `bedplate operation create applyConfiguration --machine {machine} --parameter disruption=allow`; it \
                 checks etcd, and drains the Node"
            )),
            Self::LeftAlone { .. } => {
                Some("resolve that first, or omit --delete-node to write only the reference".to_owned())
            }
            Self::NoNode { .. } => {
                Some("omit --delete-node; the reference counts when the host is paved next".to_owned())
            }
            Self::Answer => None,
        }
    }
}

/// Runs a command of `config`.
pub(crate) async fn run(
    global: &Global,
    command: &ConfigCommand,
    page: &mut Page<'_>,
) -> Result<(), RunError> {
    let desk = Desk::open(global).await?;
    match command {
        ConfigCommand::List => list(&desk, page).await,
        ConfigCommand::Show { name } => {
            let answer = desk.configuration(name).await?;
            if page.is_json() {
                return page.json(&answer);
            }
            let look = page.look();
            page.print(render::configuration(&read::<Described>(&answer)?, look))
        }
        ConfigCommand::History { name } => {
            let rows = history::rows(&described(&desk, name).await?);
            if page.is_json() {
                return page.json(&json!({ "configuration": name, "versions": rows }));
            }
            let look = page.look();
            page.print(render::history(&rows, look))
        }
        ConfigCommand::Diff(arguments) => diff(&desk, arguments, page).await,
        ConfigCommand::Rollback(arguments) => {
            // A pxed that belongs to a cluster, or that has no such configuration, rejects the request here.
            let described = described(&desk, &arguments.name).await?;
            match &desk {
                Desk::Pxed(_) => Err(ConfigureError::Manifests { name: arguments.name.clone() }.into()),
                Desk::Cluster(client) => rollback::run(client, &described, arguments, page).await,
            }
        }
    }
}

async fn list(desk: &Desk, page: &mut Page<'_>) -> Result<(), RunError> {
    let answer = match desk {
        Desk::Pxed(path) => socket::get(path, "/v1/configurations").await?,
        Desk::Cluster(client) => cluster::list::<MachineConfiguration>(client).await?,
    };
    if page.is_json() {
        return page.json(&answer);
    }
    let look = page.look();
    page.print(render::configurations(&read::<Vec<MachineConfiguration>>(&answer["items"])?, look))
}

async fn diff(desk: &Desk, arguments: &ConfigDiff, page: &mut Page<'_>) -> Result<(), RunError> {
    let described = described(desk, &arguments.name).await?;
    // pxed has checked its manifests, and may hide their contents.
    let template = Some(&described.configuration.spec.template).filter(|_| described.origin.is_empty());
    let plane = Plane::Cluster { is_run: described.runs_first() };
    let refusals = template.and_then(|template| check(template, plane).err()).unwrap_or_default().0;
    if !refusals.is_empty() && !page.is_json() {
        // Checked first: a refused edit is in no version, and there may be none.
        let text = render::refusals(&arguments.name, &refusals, page.look());
        page.print(text)?;
    }
    let (from, to) = history::pair(&described, arguments.from, arguments.to)?;
    if page.is_json() {
        let refusals: Vec<String> = refusals.iter().map(|why| format!("spec.template.{why}")).collect();
        let part = |version: &MachineConfigurationVersion| json!({ "version": version.spec.version, "template": version.spec.template });
        return page.json(&json!({
            "configuration": arguments.name, "from": part(from), "to": part(to),
            "changes": changes::changes(&json!(from.spec.template), &json!(to.spec.template)), "refusals": refusals,
        }));
    }
    let look = page.look();
    let text = render::difference(
        (&version_name(from), &from.spec.template),
        (&version_name(to), &to.spec.template),
        look,
    );
    let text = text.ok_or(ConfigureError::Answer)?;
    if text.is_empty() {
        return page.print(format!("{} and {} are the same\n", version_name(from), version_name(to)));
    }
    page.print(text)
}

async fn described(desk: &Desk, name: &str) -> Result<Described, RunError> {
    read(&desk.configuration(name).await?)
}

/// Returns a name such as `workers-v3`.
pub(crate) fn version_name(version: &MachineConfigurationVersion) -> String {
    bedplate_api::version::version_name(&version.spec.configuration_name, version.spec.version)
}
