//! Pure: a configuration's versions as rows, and the choice of two for a comparison.

use bedplate_api::version::MachineConfigurationVersion;
use serde_json::{Value, json};

use super::ConfigureError;
use crate::changes::changes;
use crate::render::{Described, Row};

/// Returns every version, the newest first.
pub(crate) fn rows(described: &Described) -> Vec<Row> {
    let mut versions: Vec<&MachineConfigurationVersion> = described.versions.iter().collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version.spec.version));
    let before = versions.iter().skip(1).map(|before| Some(json!(before.spec.template))).chain([None]);
    versions.iter().zip(before).map(|(version, before)| row(described, version, before.as_ref())).collect()
}

fn row(described: &Described, version: &MachineConfigurationVersion, before: Option<&Value>) -> Row {
    let status = version.status.clone().unwrap_or_default();
    let number = version.spec.version;
    let users = described.machines.iter().filter(|machine| machine.uses(number));
    Row {
        version: number,
        made: version.metadata.creation_timestamp.as_ref().map(|time| time.0),
        deployed: status.deployed == Some(true),
        deployed_time: status.deployed_time.map(|time| time.0),
        machines: users.map(|machine| machine.name.clone()).collect(),
        changes: before.map(|before| changes(before, &json!(version.spec.template))),
    }
}

/// Returns the version with this number.
pub(crate) fn find(
    described: &Described,
    number: i64,
) -> Result<&MachineConfigurationVersion, ConfigureError> {
    let found = described.versions.iter().find(|version| version.spec.version == number);
    found.ok_or_else(|| {
        let mut numbers: Vec<i64> = described.versions.iter().map(|version| version.spec.version).collect();
        numbers.sort_unstable();
        let numbers: Vec<String> = numbers.iter().map(|number| format!("v{number}")).collect();
        let there = if numbers.is_empty() {
            "no version exists".to_owned()
        } else {
            format!("existing versions: {}", numbers.join(", "))
        };
        ConfigureError::NoVersion { name: described.name(), version: number, there }
    })
}

/// Returns the two versions to compare: the named ones, or the newest and the newest existing one before it.
pub(crate) fn pair(
    described: &Described,
    from: Option<i64>,
    to: Option<i64>,
) -> Result<(&MachineConfigurationVersion, &MachineConfigurationVersion), ConfigureError> {
    let to = match to {
        Some(number) => find(described, number)?,
        None => newest(described)?,
    };
    let from = match from {
        Some(number) => find(described, number)?,
        None => before(described, to.spec.version)?,
    };
    Ok((from, to))
}

/// Returns the newest version.
pub(crate) fn newest(described: &Described) -> Result<&MachineConfigurationVersion, ConfigureError> {
    let newest = described.versions.iter().max_by_key(|version| version.spec.version);
    newest.ok_or_else(|| ConfigureError::NoVersion {
        name: described.name(),
        version: 1,
        there: "no version was created yet".to_owned(),
    })
}

/// Returns the newest version before a number.
pub(crate) fn before(
    described: &Described,
    number: i64,
) -> Result<&MachineConfigurationVersion, ConfigureError> {
    let earlier = described.versions.iter().filter(|version| version.spec.version < number);
    earlier
        .max_by_key(|version| version.spec.version)
        .ok_or_else(|| ConfigureError::NoneBefore { name: described.name(), newest: number })
}
