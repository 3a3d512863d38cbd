//! MachineConfigurations as text: one line for each; one with its versions and the Machines that use them; the history; the difference of
//! two templates.
//!
//! Pure: the time is an argument.

use bedplate_api::configuration::{
    Condition, MachineConfiguration, Template, UpdateStrategyType, condition_type,
};
use bedplate_api::machine::{Applied, ConfigurationRef, Machine, Phase, Selected};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_bootstrap::makes_a_cluster;
use bedplate_bootstrap::template::Refusal;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::machine::{applied, conditions, phase_paint};
use super::table::Table;
use super::{Look, Paint, age, clean, text};
use crate::changes;
use crate::diff;

/// Configuration with its versions and Machines, in the form of pxed's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Described {
    pub(crate) configuration: MachineConfiguration,
    /// File of the manifest. Empty in a cluster.
    #[serde(default)]
    pub(crate) origin: String,
    #[serde(default)]
    pub(crate) versions: Vec<MachineConfigurationVersion>,
    #[serde(default)]
    pub(crate) machines: Vec<Used>,
}

impl Described {
    /// Returns true if a host runs a version by which it made its cluster. A version that is not known counts: the host may have become a Machine of
    /// the cluster that it made before.
    pub(crate) fn runs_first(&self) -> bool {
        let makes = |number: i64| {
            let version = self.versions.iter().find(|version| version.spec.version == number);
            version.is_none_or(|version| makes_a_cluster(&version.spec.template.kubernetes))
        };
        self.machines.iter().filter_map(|used| used.applied.as_ref()).any(|applied| makes(applied.version))
    }

    /// Returns the name of the configuration.
    pub(crate) fn name(&self) -> String {
        self.configuration.metadata.name.clone().unwrap_or_default()
    }
}

/// Version as text shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// N of `<name>-v<N>`.
    pub(crate) version: i64,
    /// Creation time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) made: Option<Timestamp>,
    /// True if a Machine uses or has used the version. Such a version does not change.
    pub(crate) deployed: bool,
    /// Time of the first use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deployed_time: Option<Timestamp>,
    /// Machines that run or reference the version.
    pub(crate) machines: Vec<String>,
    /// Changes since the newest existing version before it; `None` if none exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) changes: Option<Vec<String>>,
}

/// Machine that uses the configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Used {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase: Option<Phase>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configuration_ref: Option<ConfigurationRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selected: Option<Selected>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    applied: Option<Applied>,
}

impl Used {
    /// Returns true if the Machine names, selects or runs this version.
    pub(crate) fn uses(&self, version: i64) -> bool {
        self.configuration_ref.as_ref().and_then(|reference| reference.version) == Some(version)
            || self.selected.as_ref().is_some_and(|selected| selected.version == version)
            || self.applied.as_ref().is_some_and(|applied| applied.version == version)
    }

    /// Returns true if a user has pinned a version.
    pub(crate) fn is_pinned(&self) -> bool {
        self.configuration_ref.as_ref().is_some_and(|reference| reference.version.is_some())
    }
}

/// Returns how a Machine uses the configuration of this name, if it does.
pub(crate) fn used(name: &str, machine: &Machine) -> Option<Used> {
    let status = machine.status.as_ref();
    let used = Used {
        name: machine.metadata.name.clone().unwrap_or_default(),
        phase: status.and_then(|status| status.phase),
        configuration_ref: machine.spec.configuration_ref.clone().filter(|reference| reference.name == name),
        selected: status.and_then(|status| status.selected.clone()).filter(|selected| selected.name == name),
        applied: status.and_then(|status| status.applied.clone()).filter(|applied| applied.name == name),
    };
    let uses = used.configuration_ref.is_some() || used.selected.is_some() || used.applied.is_some();
    uses.then_some(used)
}

/// Returns one line for each configuration, by name.
pub(crate) fn configurations(configurations: &[MachineConfiguration], look: Look) -> String {
    if configurations.is_empty() {
        return "no MachineConfigurations; see docs/concepts/controller.md, or docs/getting-started/first-control-plane.md without a cluster\n".to_owned();
    }
    let mut configurations: Vec<&MachineConfiguration> = configurations.iter().collect();
    configurations.sort_by_key(|configuration| configuration.metadata.name.as_deref());
    let titles = [
        "NAME",
        "LATEST",
        "DEPLOYED",
        "KUBERNETES",
        "PRIORITY",
        "SELECTED",
        "APPLIED",
        "OUTDATED",
        "STATE",
        "AGE",
    ];
    let mut table = Table::new(&titles);
    for configuration in configurations {
        let status = configuration.status.clone().unwrap_or_default();
        let machines = status.machines.unwrap_or_default();
        let created = configuration.metadata.creation_timestamp.as_ref();
        table.row(vec![
            (configuration.metadata.name.clone().unwrap_or_default(), None),
            (text(status.latest_version.map(|version| format!("v{version}"))), None),
            (text(status.deployed_version.map(|version| format!("v{version}"))), None),
            (configuration.spec.template.kubernetes.version.clone(), None),
            (configuration.spec.priority.to_string(), None),
            (machines.selected.to_string(), None),
            (machines.applied.to_string(), None),
            (machines.outdated.to_string(), (machines.outdated > 0).then_some(Paint::Waiting)),
            state(&status.conditions),
            (text(created.map(|time| age(time.0, look))), None),
        ]);
    }
    table.print(look)
}

/// Returns the state in one word: a fault that a user must resolve, or the progress.
fn state(conditions: &[Condition]) -> (String, Option<Paint>) {
    let find = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_);
    if let Some(degraded) = find(condition_type::DEGRADED).filter(|degraded| degraded.status == "True") {
        return (degraded.reason.clone(), Some(Paint::Bad));
    }
    (text(find(condition_type::PROGRESSING).map(|progressing| progressing.reason.clone())), None)
}

/// Returns all that is known about one configuration.
pub(crate) fn configuration(described: &Described, look: Look) -> String {
    let Described { configuration, origin, versions, machines } = described;
    let name = configuration.metadata.name.clone().unwrap_or_default();
    let heading = format!("MachineConfiguration {}", clean(&name));
    let mut printed =
        format!("{}\n{}", look.paint(Paint::Heading, &heading), summary(configuration, origin, look));
    let found = configuration.status.as_ref().map_or(&[][..], |status| &status.conditions);
    // A standalone pxed does not report this.
    if !found.is_empty() {
        printed.push_str(&format!("\n{}\n", look.paint(Paint::Heading, "Conditions")));
        printed.push_str(&conditions(found, look));
    }
    printed.push_str(&format!("\n{}\n", look.paint(Paint::Heading, "Versions")));
    printed.push_str(&version_lines(versions, look));
    printed.push_str(&format!("\n{}\n", look.paint(Paint::Heading, "Machines")));
    printed.push_str(&machine_lines(machines, look));
    printed
}

fn summary(configuration: &MachineConfiguration, origin: &str, look: Look) -> String {
    let (spec, status) = (&configuration.spec, configuration.status.clone().unwrap_or_default());
    let mut table = Table::indented(2);
    let mut line = |name: &str, value: Option<String>, paint: Option<Paint>| {
        if let Some(value) = value {
            table.row(vec![(name.to_owned(), Some(Paint::Faint)), (value, paint)]);
        }
    };
    let removed = configuration.metadata.deletion_timestamp.as_ref();
    let removed = removed.map(|time| {
        format!("{} ago; kept while Machines use it, not selected for others", age(time.0, look))
    });
    line("Manifest", (!origin.is_empty()).then(|| origin.to_owned()), None);
    line("Removed", removed, Some(Paint::Bad));
    let selector = match &spec.machine_selector {
        None => "none; only Machines that reference it".to_owned(),
        Some(selector) => serde_json::to_string(selector).unwrap_or_default(),
    };
    line("Selector", Some(format!("{selector}, priority {}", spec.priority)), None);
    let updates = match spec.update_strategy.type_ {
        UpdateStrategyType::OnDelete => "OnDelete",
        UpdateStrategyType::RollingUpdate if origin.is_empty() => "RollingUpdate",
        UpdateStrategyType::RollingUpdate => "RollingUpdate; without a cluster as OnDelete",
    };
    line("Updates", Some(updates.to_owned()), None);
    line(
        "History",
        Some(format!("the newest {} versions, and those in use", spec.revision_history_limit)),
        None,
    );
    line("Kubernetes", Some(spec.template.kubernetes.version.clone()), None);
    line("Image", Some(spec.template.image.reference.clone()), None);
    if let Some(counts) = status.machines {
        let counted = format!(
            "{} selected, {} applied, {} outdated, {} unavailable",
            counts.selected, counts.applied, counts.outdated, counts.unavailable
        );
        line("Machines", Some(counted), None);
    }
    table.print(look)
}

fn version_lines(versions: &[MachineConfigurationVersion], look: Look) -> String {
    if versions.is_empty() {
        return "  none yet\n".to_owned();
    }
    let mut table = Table::indented(2);
    for version in versions {
        let status = version.status.clone().unwrap_or_default();
        let deployed = match (status.deployed, status.deployed_time.as_ref()) {
            (Some(true), Some(time)) => format!("deployed {} ago", age(time.0, look)),
            (Some(true), None) => "deployed".to_owned(),
            (Some(false) | None, _) => "not deployed; an edit changes it".to_owned(),
        };
        let machines = match status.machines.unwrap_or_default() {
            1 => "1 Machine".to_owned(),
            count => format!("{count} Machines"),
        };
        table.row(vec![
            (version.metadata.name.clone().unwrap_or_default(), None),
            (version.spec.template.kubernetes.version.clone(), None),
            (deployed, None),
            (machines, None),
        ]);
    }
    table.print(look)
}

/// Returns a line for each version, the newest first.
pub(crate) fn history(rows: &[Row], look: Look) -> String {
    if rows.is_empty() {
        return "no versions yet\n".to_owned();
    }
    let mut table = Table::new(&["VERSION", "MADE", "DEPLOYED", "MACHINES", "CHANGED"]);
    for row in rows {
        let ago = |time: Option<jiff::Timestamp>| time.map(|time| format!("{} ago", age(time, look)));
        let deployed = match (row.deployed, ago(row.deployed_time)) {
            (true, Some(ago)) => ago,
            (true, None) => "yes".to_owned(),
            (false, _) => "no".to_owned(),
        };
        table.row(vec![
            (format!("v{}", row.version), None),
            (text(ago(row.made)), None),
            (deployed, (!row.deployed).then_some(Paint::Waiting)),
            (row.machines.len().to_string(), None),
            (summary_of(row.changes.as_deref()), None),
        ]);
    }
    table.print(look)
}

fn summary_of(changes: Option<&[String]>) -> String {
    match changes {
        None => "(no earlier version is kept)".to_owned(),
        Some([]) => "nothing".to_owned(),
        Some(changes) => changes::line(changes),
    }
}

/// Prints the fields because of which no host can make a node of a template.
pub(crate) fn refusals(name: &str, refusals: &[Refusal], look: Look) -> String {
    let heading = format!(
        "MachineConfiguration {}: no host can create a node from its template, so no version is created",
        clean(name)
    );
    let lines = refusals.iter().map(|why| format!("  {}\n", clean(&format!("spec.template.{why}"))));
    format!("{}\n{}\n", look.paint(Paint::Bad, &heading), lines.collect::<String>())
}

/// Returns the difference of two templates as a unified diff of their YAML. Returns `None` if they cannot be
/// written as YAML.
pub(crate) fn difference(from: (&str, &Template), to: (&str, &Template), look: Look) -> Option<String> {
    let yaml = |template: &Template| serde_saphyr::to_string(template).ok();
    let (one, other) = (yaml(from.1)?, yaml(to.1)?);
    let paint = |sign: char, line: &str| {
        let line = clean(line);
        match sign {
            '-' => look.paint(Paint::Bad, &line),
            '+' => look.paint(Paint::Good, &line),
            '@' => look.paint(Paint::Faint, &line),
            _ => line,
        }
    };
    Some(diff::unified((from.0, &one), (to.0, &other), &paint))
}

fn machine_lines(machines: &[Used], look: Look) -> String {
    if machines.is_empty() {
        return "  none\n".to_owned();
    }
    let mut table = Table::indented(2);
    for machine in machines {
        let named = machine.configuration_ref.as_ref().map(|reference| match reference.version {
            Some(version) => format!("references v{version}"),
            None => "references it".to_owned(),
        });
        let selected =
            machine.selected.as_ref().map(|s| format!("selected v{}, by {:?}", s.version, s.source));
        table.row(vec![
            (machine.name.clone(), None),
            (text(machine.phase.map(|phase| format!("{phase:?}"))), machine.phase.map(phase_paint)),
            (text(named), None),
            (text(selected), None),
            (text(machine.applied.as_ref().map(|a| format!("applied {}", applied(a, look)))), None),
        ]);
    }
    table.print(look)
}
