//! Pure: annotations of a Machine that hold its deletion before or after the drain. Caller: `plan`.
//!
//! Not here: their removal. The program that has set an annotation removes it.

use bedplate_api::cluster::full::Machine;
use bedplate_api::cluster::part::annotation;
use bedplate_api::reason::core::MachineDeletingReason as Reason;
use kube::ResourceExt;

use super::list;
use super::plan::Plan;

/// Maximum number of characters of the owner that an annotation names.
const MAX_OWNER_CHARACTERS: usize = 50;

/// Maximum number of characters of the name of an annotation.
const MAX_KEY_CHARACTERS: usize = 90;

/// Prefix of the annotations and reason of the wait.
pub(super) type Hooks = (&'static str, Reason);

/// Hooks before the drain.
pub(super) const PRE_DRAIN: Hooks = (annotation::PRE_DRAIN_HOOK_PREFIX, Reason::WaitingForPreDrainHook);
/// Hooks after the drain.
pub(super) const PRE_TERMINATE: Hooks =
    (annotation::PRE_TERMINATE_HOOK_PREFIX, Reason::WaitingForPreTerminateHook);

/// Waits while there is a hook.
pub(super) fn step(machine: &Machine, (prefix, reason): Hooks) -> Option<Plan> {
    let annotations = machine.annotations().iter().filter(|(key, _)| key.starts_with(prefix));
    let hooks: Vec<String> = annotations.map(|(key, owner)| named(key, owner)).collect();
    if hooks.is_empty() {
        return None;
    }
    let message =
        format!("annotations block the deletion: {}; their programs remove them", list::names(&hooks, 0));
    Some(Plan::wait(reason, message))
}

/// Returns the annotation and the owner that its value names.
fn named(key: &str, owner: &str) -> String {
    match owner {
        "" => key.to_owned(),
        owner => format!(
            "{} (owner {})",
            list::cut(key, MAX_KEY_CHARACTERS),
            list::cut(owner, MAX_OWNER_CHARACTERS)
        ),
    }
}
