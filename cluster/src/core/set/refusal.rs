//! Pure: texts about writes that the API server has refused, for conditions `ScalingUp` and `Deleting`. Called by `pass`.

use bedplate_api::cluster::full::MachineSet;
use bedplate_api::cluster::part::Reference;
use bedplate_engine::write::WriteError;
use kube::ResourceExt;

use super::act::Act;
use super::template::made_kind;

/// Cause of a refusal with code 404.
pub(crate) const NO_KIND: &str = "its kind or its namespace does not exist";

/// Returns state, cause and next step of a refused creation, or of a refused change of the set. None: no Machine is missing because of the act, or a
/// retry may succeed.
pub fn text(set: &MachineSet, act: &Act, error: &WriteError) -> Option<String> {
    let (what, source) = match act {
        Act::Own(own) => return own.refusal(error),
        Act::CreateClone { reference, .. } => {
            (format!("{} {}", reference.kind, reference.name), template_of(set, reference))
        }
        Act::CreateMachine(machine) => {
            (format!("Machine {}", machine.name_any()), "spec.template of the MachineSet".to_owned())
        }
        Act::Machine(..) | Act::DeleteClone { .. } | Act::Label { .. } => return None,
    };
    let why = error.refusal()?;
    let next = match error {
        WriteError::Forbidden { .. } => "correct the role, quota or policy".to_owned(),
        _ if why == NO_KIND => "install its provider".to_owned(),
        _ => format!("correct {source}"),
    };
    Some(format!("creation of {what} is refused: {why}; {next}"))
}

/// Returns kind and name of the template of an object.
fn template_of(set: &MachineSet, made: &Reference) -> String {
    let spec = &set.spec.template.spec;
    let is_source = |of: &&Reference| of.api_group == made.api_group && made_kind(&of.kind) == made.kind;
    let mut templates = std::iter::once(&spec.infrastructure_ref).chain(&spec.bootstrap.config_ref);
    let found = templates.find(is_source);
    found.map_or_else(|| "its template".to_owned(), |of| format!("{} {}", of.kind, of.name))
}
