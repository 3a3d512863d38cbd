//! State of the node's loop as a file for `bedplate-agent status` and `plan`. It ends with the boot.
//!
//! Written by `run`, read by `cli`.

use std::path::Path;

use bedplate_api::machine::{RolledBack, Slot, SlotName, VersionRef};
use bedplate_api::version::version_name;
use bedplate_process::file::{FileError, read_json, write_json};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::report::describe;
use crate::model::Plan;

/// The file, below `/run/bedplate`.
const FILE: &str = "node.json";

/// State of the node's loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStanding {
    /// Current step or wait.
    pub plan: Planned,
    /// Time since which that is the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Progress of a long step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// View of the cluster.
    pub seen: String,
    /// Content of the slots.
    pub slots: Vec<Slot>,
    /// Versions that failed here and are not tried again by themselves.
    pub refused: Vec<VersionRef>,
    /// Last update that was rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
    /// Trials in a row that failed with no slot to go back to.
    pub failures: u32,
    /// The last failure, kept after things went well again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Time of the last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_time: Option<Timestamp>,
    /// Time of the next step, if nothing changes before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
}

/// A plan as it is printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Planned {
    /// Name of the step, if there is one to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Slot of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotName>,
    /// Reason of the wait, if there is no step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// Human-readable form of the step, or of the event that it waits for.
    pub message: String,
    /// Time at which the wait ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl From<&Plan> for Planned {
    fn from(plan: &Plan) -> Self {
        match plan {
            Plan::Do(step) => Self {
                step: Some(step.act.name().to_owned()),
                slot: Some(step.slot),
                message: describe(step),
                ..Self::default()
            },
            Plan::Wait(wait) => Self {
                wait: Some(wait.reason.as_str().to_owned()),
                message: wait.message.clone(),
                until: wait.until,
                ..Self::default()
            },
        }
    }
}

impl NodeStanding {
    /// Reads the file as last written in this boot.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub(crate) fn read(run: &Path) -> Result<Option<Self>, FileError> {
        read_json(&run.join(FILE))
    }

    /// Writes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, run: &Path) -> Result<(), FileError> {
        write_json(&run.join(FILE), self, 0o644)
    }

    /// Describes the plan and its reason, in lines for users.
    pub(crate) fn describe_plan(&self) -> String {
        let time =
            |value: Option<Timestamp>| value.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"));
        let plan = match (&self.plan.step, &self.plan.wait) {
            (Some(step), _) => format!("do {step}"),
            (None, Some(reason)) => format!("wait ({reason})"),
            (None, None) => "none yet".to_owned(),
        };
        let progress = self.progress.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        lines(&[
            ("Plan", format!("{plan}, since {}", time(self.since))),
            ("Why", format!("{}{progress}", self.plan.message)),
            ("Until", time(self.plan.until)),
            ("Cluster", self.seen.clone()),
        ])
    }

    /// Describes the complete state, in lines for users.
    pub(crate) fn describe(&self) -> String {
        let refused: Vec<String> = self.refused.iter().map(VersionRef::version_name).collect();
        let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let mut text = self.describe_plan();
        for slot in &self.slots {
            let name = match slot.name {
                SlotName::A => "Slot a",
                SlotName::B => "Slot b",
            };
            let holds = match (&slot.configuration_name, slot.version) {
                (Some(configuration), Some(version)) => format!("{}, ", version_name(configuration, version)),
                _ => String::new(),
            };
            let state = format!("{:?}", slot.state).to_lowercase();
            text += &lines(&[(name, format!("{holds}{state}"))]);
        }
        let rolled_back = self.rolled_back.as_ref().map(|back| {
            let first = back.message.lines().next().unwrap_or_default();
            format!(
                "from {} to {} at {:.0}: {first}",
                back.from.version_name(),
                back.to.version_name(),
                back.time.0
            )
        });
        let error = self.last_error.as_ref().map(|error| {
            format!("{} {error}", self.last_error_time.map(|time| format!("{time:.0}")).unwrap_or_default())
        });
        text += &lines(&[
            ("Refused", or_none(refused.join(", "))),
            ("Rolled back", or_none(rolled_back.unwrap_or_default())),
            ("Trials failed", self.failures.to_string()),
            ("Node: last error", or_none(error.unwrap_or_default())),
            ("Node: next try", self.next_try.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"))),
        ]);
        text
    }
}

fn lines(fields: &[(&str, String)]) -> String {
    fields.iter().map(|(name, value)| format!("{name:<17} {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use bedplate_api::reason::machine::PavedReason;

    use super::*;
    use crate::model::{Act, Wait};

    #[test]
    fn plan_states_the_step_or_wait_and_the_reason() {
        let version = VersionRef { name: "workers".to_owned(), version: 4 };
        let plan = Plan::step(SlotName::B, Act::PrepareSlot { version });
        let standing = NodeStanding {
            plan: Planned::from(&plan),
            progress: Some("2 of 3 layers".to_owned()),
            seen: "answers".to_owned(),
            ..NodeStanding::default()
        };
        let text = standing.describe_plan();
        assert!(text.starts_with("Plan              do prepare_slot, since -\n"), "{text}");
        assert!(text.contains("Why               prepares workers-v4 in slot b: 2 of 3 layers\n"), "{text}");
        let wait =
            Wait { reason: PavedReason::Paused, message: "spec.paused is true".to_owned(), until: None };
        let standing = NodeStanding { plan: Planned::from(&Plan::Wait(wait)), ..NodeStanding::default() };
        assert!(standing.describe_plan().starts_with("Plan              wait (Paused)"), "{standing:?}");
    }

    #[test]
    fn standing_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(NodeStanding::read(directory.path()).unwrap(), None);
        let standing = NodeStanding { failures: 2, ..NodeStanding::default() };
        standing.write(directory.path()).unwrap();
        assert_eq!(NodeStanding::read(directory.path()).unwrap(), Some(standing));
    }
}
