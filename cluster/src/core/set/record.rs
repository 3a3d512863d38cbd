//! Pure: names of Machines that are being made, recorded in an annotation of their set before the first of their objects exists. A kill
//! between two writes therefore makes no second object, and leaves none that is forgotten. Called by `children`.
//!
//! A name is used up before its Machine is created. So a name without objects is that of a Machine that was never created, or that was
//! deleted meanwhile, and the record tells which.

use std::collections::BTreeMap;

use bedplate_api::cluster::part::Reference;
use bedplate_api::cluster::part::annotation::CREATING;
use serde_json::{Value, json};

/// Maximum number of recorded names. A plan makes at most 10, and names that are cleaned up stay for a while.
pub(crate) const MAX_RECORDS: usize = 20;

/// Name of a Machine that is being made, with the objects that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Name of the Machine and of its objects.
    pub name: String,
    /// API group and kind of the infrastructure object.
    pub infrastructure: (String, String),
    /// API group and kind of the bootstrap object. None: the Machine has none.
    pub bootstrap: Option<(String, String)>,
    /// True if the Machine may have been created. The name is then bound to the objects that exist.
    pub is_used: bool,
}

impl Recorded {
    /// Returns the reference to the infrastructure object.
    pub fn infrastructure(&self) -> Reference {
        self.reference(&self.infrastructure)
    }

    /// Returns the reference to the bootstrap object.
    pub fn bootstrap(&self) -> Option<Reference> {
        self.bootstrap.as_ref().map(|kind| self.reference(kind))
    }

    /// Returns the references to both objects, in the order in which they are made.
    pub fn objects(&self) -> impl Iterator<Item = Reference> {
        std::iter::once(self.infrastructure()).chain(self.bootstrap())
    }

    fn reference(&self, (group, kind): &(String, String)) -> Reference {
        Reference { api_group: group.clone(), kind: kind.clone(), name: self.name.clone() }
    }
}

/// Reads the record. Entries that this program has not written are ignored.
pub fn read(annotations: &BTreeMap<String, String>) -> Vec<Recorded> {
    let text = annotations.get(CREATING).map_or("", String::as_str);
    let entries: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    let mut records: Vec<Recorded> = entries.iter().take(MAX_RECORDS).filter_map(entry).collect();
    records.sort_by(|one, other| one.name.cmp(&other.name));
    records.dedup_by(|one, other| one.name == other.name);
    records
}

fn entry(value: &Value) -> Option<Recorded> {
    let kind = |value: &Value| {
        let (kind, group) = value.as_str()?.split_once('.')?;
        Some((group.to_owned(), kind.to_owned()))
    };
    let name = value.get("name")?.as_str()?.to_owned();
    Some(Recorded {
        name,
        infrastructure: kind(value.get("infrastructure")?)?,
        bootstrap: value.get("bootstrap").and_then(kind),
        is_used: value.get("used").and_then(Value::as_bool) == Some(true),
    })
}

/// Returns the value of the annotation. None: the annotation must be removed.
pub fn write(records: &[Recorded]) -> Option<String> {
    let kind = |(group, kind): &(String, String)| format!("{kind}.{group}");
    let entries = records.iter().map(|one| {
        let mut entry = json!({ "name": one.name, "infrastructure": kind(&one.infrastructure) });
        if let Some(bootstrap) = &one.bootstrap {
            entry["bootstrap"] = kind(bootstrap).into();
        }
        if one.is_used {
            entry["used"] = true.into();
        }
        entry
    });
    let entries: Vec<Value> = entries.collect();
    (!entries.is_empty()).then(|| Value::Array(entries).to_string())
}
