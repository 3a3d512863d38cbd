//! Pure: texts about a request for a Machine that was refused, for its conditions. Called by the pass and by `condition`.
//!
//! A refused request is repeated with growing delays, and a user must act. Not here: writes of the deletion, whose condition has a text of its own.

use bedplate_api::cluster::full::condition_type;

use super::data::{Given, given};
use super::plan::{Act, Observed};
use super::references::Part;

/// Maximum number of characters of the cause in a message.
const MAX_CAUSE: usize = 512;

/// Request that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Types of conditions, and their texts.
    texts: Vec<(&'static str, String)>,
}

impl Refused {
    /// Makes the record of a write. `cause`: text of the API server.
    pub fn new(act: &Act, observed: &Observed, cause: &str) -> Self {
        let cause = shortened(cause);
        let text = |(type_, state): (&'static str, String)| (type_, format!("{state}: {cause}; permit it"));
        Self { texts: states(act, observed).into_iter().map(text).collect() }
    }

    /// Makes the record of a read of the Secret with `spec.bootstrap.data`. `cause`: text of the API server.
    pub fn read(observed: &Observed, cause: &str) -> Self {
        let Given::Text(name) = given(&observed.machine) else { return Self { texts: Vec::new() } };
        let text = format!("Secret {name} cannot be read: {}; permit it", shortened(cause));
        Self { texts: vec![(condition_type::BOOTSTRAP_CONFIG_READY, text)] }
    }

    /// Returns the text, if the condition of this type shows it.
    pub fn text(&self, type_: &str) -> Option<&str> {
        self.texts.iter().find(|(shown, _)| *shown == type_).map(|(_, text)| text.as_str())
    }
}

/// Returns the types of the conditions that show a write, each with what has not happened.
fn states(act: &Act, observed: &Observed) -> Vec<(&'static str, String)> {
    use condition_type::{BOOTSTRAP_CONFIG_READY, DELETING, INFRASTRUCTURE_READY, NODE_READY};
    match act {
        Act::SetMetadata(change) => {
            let what = if change.finalizers.is_some() { "finalizer" } else { "owner or label" };
            vec![(DELETING, format!("{what} cannot be added"))]
        }
        Act::Adopt(adoption) => {
            let type_ = match adoption.part {
                Part::Bootstrap => BOOTSTRAP_CONFIG_READY,
                Part::Infrastructure => INFRASTRUCTURE_READY,
            };
            vec![(type_, format!("{} cannot be adopted", named(observed, adoption.part)))]
        }
        Act::WriteDataSecret(name) => {
            vec![(BOOTSTRAP_CONFIG_READY, format!("Secret {name} cannot be written"))]
        }
        Act::SetSpec(change) => {
            let data = change.data_secret_name.is_some();
            let data = data.then_some((BOOTSTRAP_CONFIG_READY, "spec.bootstrap.dataSecretName"));
            let fields = [
                change.provider_id.is_some().then_some("spec.providerID"),
                change.failure_domain.is_some().then_some("spec.failureDomain"),
            ];
            let id = fields.into_iter().flatten().next().map(|field| (INFRASTRUCTURE_READY, field));
            let state = |(type_, field): (_, &str)| (type_, format!("{field} cannot be set"));
            data.into_iter().chain(id).map(state).collect()
        }
        Act::SyncNode(patch) => {
            vec![(
                NODE_READY,
                format!("labels, annotations and taints of Node {} cannot be changed", patch.name),
            )]
        }
    }
}

fn named(observed: &Observed, part: Part) -> String {
    let reference = part.reference(&observed.machine);
    reference.map(|reference| format!("{} {}", reference.kind, reference.name)).unwrap_or_default()
}

/// Returns the start of the text of an API server.
pub fn shortened(cause: &str) -> String {
    cause.chars().take(MAX_CAUSE).collect()
}
