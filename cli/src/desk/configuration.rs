//! A configuration of a cluster in the form of pxed's answer.

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::version::MachineConfigurationVersion;
use serde_json::{Value, json};

use crate::backend::cluster;
use crate::error::{RunError, read};
use crate::render::{self, Described};

/// Joins a configuration, its versions from the newest on, and the Machines that use it.
fn describe(
    configuration: MachineConfiguration,
    versions: Vec<MachineConfigurationVersion>,
    machines: &[Machine],
) -> Described {
    let mut versions: Vec<_> = versions
        .into_iter()
        .filter(|version| bedplate_rules::selection::is_of(version, &configuration))
        .collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version.spec.version));
    let name = configuration.metadata.name.clone().unwrap_or_default();
    let machines = machines.iter().filter_map(|machine| render::used(&name, machine)).collect();
    Described { configuration, origin: String::new(), versions, machines }
}

/// Reads a configuration with its versions and Machines.
///
/// # Errors
/// The cluster cannot be asked, or there is no such configuration.
pub(super) async fn of_cluster(client: &kube::Client, name: &str) -> Result<Value, RunError> {
    let configuration = cluster::get::<MachineConfiguration>(client, name).await?;
    let versions = cluster::list::<MachineConfigurationVersion>(client).await?;
    let machines = cluster::list::<Machine>(client).await?;
    Ok(json!(describe(configuration, read(&versions["items"])?, &read::<Vec<Machine>>(&machines["items"])?)))
}
