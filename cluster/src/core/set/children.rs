//! Pure: objects of a set's Machines: which are made now, in which order, and which are removed (MS3, MS7). Called by `act`.
//!
//! ```text
//! name recorded -> infrastructure -> bootstrap -> name used -> Machine -> name removed from the record
//! recorded, and not needed any more: objects deleted -> name removed from the record
//! ```
//! Each arrow is a point at which the controller may be killed. The next pass continues from the record. The Machine adopts its objects and
//! deletes them before its own end. So a used name whose objects are not those of the set belongs to a Machine that was deleted: it is never
//! the name of a second one, whose Node and host could be confused with those of the first.

use std::collections::BTreeSet;
use std::sync::Arc;

use bedplate_api::cluster::part::Reference;
use bedplate_api::cluster::part::annotation::CREATING;
use bedplate_replicas::{Key, SetPlan};
use kube::ResourceExt;

use super::act::Act;
use super::machine::desired;
use super::observe::{Observed, Template};
use super::record::{self, MAX_RECORDS, Recorded};
use super::template::{TemplateObject, made_kind};
use crate::core::reference::Lookup;
use crate::core::replica::Own;

/// Writes for the objects of Machines.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Children {
    /// Writes, in order.
    pub acts: Vec<Act>,
    /// Reasons why objects are not made. Texts for a user.
    pub blocked: Vec<String>,
    /// True if no name is recorded after the writes.
    pub is_settled: bool,
}

/// Object that is made from a template.
enum Made {
    Absent,
    /// The set owns it.
    Ours {
        uid: String,
        is_deleting: bool,
    },
    /// Another object owns it.
    Foreign,
    Unknown(String),
}

/// Decides about the objects of Machines from live reads.
pub fn plan(observed: &Observed, plan: &SetPlan) -> Children {
    let mut children = Children::default();
    let recorded = record::read(observed.set.annotations());
    let machines: BTreeSet<String> = observed.machines.iter().map(|machine| machine.name_any()).collect();
    let pending: Vec<Recorded> =
        recorded.iter().filter(|one| !machines.contains(&one.name)).cloned().collect();
    let (mut needed, surplus) = split(observed, plan, pending);
    needed.extend(fresh(observed, plan, &needed, &surplus, &mut children));
    if plan.may_create() {
        for one in &mut needed {
            create(observed, one, &mut children);
        }
    }
    let kept = surplus.iter().filter(|one| {
        one.objects().any(|of| !matches!(clone_of(observed, &of), Made::Absent | Made::Foreign))
    });
    let mut record: Vec<Recorded> = needed.iter().chain(kept).cloned().collect();
    record.sort_by(|one, other| one.name.cmp(&other.name));
    for one in &surplus {
        remove(observed, one, &mut children);
    }
    // The record precedes the objects. A Machine whose objects exist precedes new objects, which may fail.
    children.acts.sort_by_key(|act| match act {
        Act::DeleteClone { .. } => 0,
        Act::CreateMachine(_) => 1,
        _ => 2,
    });
    children.is_settled = record.is_empty();
    if record != recorded {
        let own = Own::Annotate(CREATING, record::write(&record));
        children.acts.insert(0, Act::Own(own));
    }
    children
}

/// Separates recorded names that are needed from those that are not.
fn split(observed: &Observed, plan: &SetPlan, pending: Vec<Recorded>) -> (Vec<Recorded>, Vec<Recorded>) {
    let is_blocked = plan.create.is_empty() && !plan.may_create();
    let mut wanted = if is_blocked { pending.len() } else { plan.create.len() };
    pending.into_iter().partition(|one| {
        let is_needed = wanted > 0 && is_usable(observed, one);
        wanted -= usize::from(is_needed);
        is_needed
    })
}

/// Returns true if a Machine may be made under a recorded name.
fn is_usable(observed: &Observed, one: &Recorded) -> bool {
    let mut objects = one.objects().map(|of| clone_of(observed, &of));
    let has_kinds = Recorded { is_used: one.is_used, ..kinds(observed, &one.name) } == *one;
    has_kinds
        && objects.all(|made| match made {
            // It cannot be read, so nothing is decided about the name.
            Made::Unknown(_) | Made::Ours { is_deleting: false, .. } => true,
            Made::Ours { is_deleting: true, .. } | Made::Absent => !one.is_used,
            Made::Foreign => false,
        })
}

/// Returns new names, as far as recorded ones are not enough.
fn fresh(
    observed: &Observed,
    plan: &SetPlan,
    needed: &[Recorded],
    surplus: &[Recorded],
    children: &mut Children,
) -> Vec<Recorded> {
    let room = MAX_RECORDS.saturating_sub(needed.len() + surplus.len());
    let missing = plan.create.len().saturating_sub(needed.len()).min(room);
    if missing == 0 {
        return Vec::new();
    }
    let templates = std::iter::once(&observed.infrastructure).chain(&observed.bootstrap);
    let absent: Vec<String> = templates.filter_map(|template| why_absent(observed, template)).collect();
    if !absent.is_empty() {
        children.blocked.extend(absent);
        return Vec::new();
    }
    let is_used = |name: &Key| needed.iter().chain(surplus).any(|one| one.name == name.0);
    let names = plan.create.iter().filter(|name| !is_used(name)).take(missing);
    names.map(|name| kinds(observed, &name.0)).collect()
}

fn why_absent(observed: &Observed, template: &Template) -> Option<String> {
    let spec = &observed.set.spec.template.spec;
    let is_infrastructure = std::ptr::eq(template, &raw const observed.infrastructure);
    let reference = match &spec.bootstrap.config_ref {
        Some(bootstrap) if !is_infrastructure => bootstrap,
        Some(_) | None => &spec.infrastructure_ref,
    };
    match template {
        Template::Found(_) => None,
        Template::Absent => Some(format!("{} {} does not exist; create it", reference.kind, reference.name)),
        Template::Unknown(why) => Some(why.clone()),
    }
}

/// Returns the entry of a name for the templates that the set names now.
fn kinds(observed: &Observed, name: &str) -> Recorded {
    let spec = &observed.set.spec.template.spec;
    let kind = |of: &Reference| (of.api_group.clone(), made_kind(&of.kind).to_owned());
    Recorded {
        name: name.to_owned(),
        infrastructure: kind(&spec.infrastructure_ref),
        bootstrap: spec.bootstrap.config_ref.as_ref().map(kind),
        is_used: false,
    }
}

fn clone_of(observed: &Observed, reference: &Reference) -> Made {
    match observed.clones.get(reference) {
        // A name that was not recorded before has no objects. If it has, their creation fails, and the next pass finds them.
        None | Some(Lookup::Absent) => Made::Absent,
        Some(Lookup::NotSynced) => {
            Made::Unknown(format!("objects of kind {} are not read yet", reference.kind))
        }
        Some(Lookup::Unresolved(why)) => Made::Unknown(why.clone()),
        Some(Lookup::Found(object)) => {
            let uid = observed.set.uid().unwrap_or_default();
            let is_ours = object.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid);
            if !is_ours {
                return Made::Foreign;
            }
            let is_deleting = object.metadata.deletion_timestamp.is_some();
            Made::Ours { uid: object.metadata.uid.clone().unwrap_or_default(), is_deleting }
        }
    }
}

/// Deletes the objects of a name that is not needed any more, the last one first.
fn remove(observed: &Observed, one: &Recorded, children: &mut Children) {
    let mut objects: Vec<Reference> = one.objects().collect();
    objects.reverse();
    for reference in objects {
        match clone_of(observed, &reference) {
            Made::Ours { uid, is_deleting: false } => {
                children.acts.push(Act::DeleteClone { reference, uid });
            }
            // Its end queues no set. The wait is reported, and ends the pass with a delay.
            Made::Ours { is_deleting: true, .. } => {
                children.blocked.push(format!("{} {} is being deleted", reference.kind, reference.name));
            }
            Made::Unknown(why) => children.blocked.push(why),
            Made::Absent | Made::Foreign => {}
        }
    }
}

/// Makes the objects of a name that do not exist yet, or the Machine once they exist. The name is used up before.
fn create(observed: &Observed, one: &mut Recorded, children: &mut Children) {
    let mut acts = Vec::new();
    let objects = [
        (Some(one.infrastructure()), Some(&observed.infrastructure)),
        (one.bootstrap(), observed.bootstrap.as_ref()),
    ];
    for (reference, template) in objects {
        let (Some(reference), Some(template)) = (reference, template) else { continue };
        match clone_of(observed, &reference) {
            Made::Ours { is_deleting: false, .. } => {}
            Made::Ours { is_deleting: true, .. } => {
                children.blocked.push(format!("{} {} is being deleted", reference.kind, reference.name));
                return;
            }
            Made::Unknown(why) => return children.blocked.push(why),
            Made::Foreign => return,
            Made::Absent => match template {
                Template::Found(template) => acts.push(clone_act(observed, template, &reference)),
                Template::Absent | Template::Unknown(_) => {
                    return children.blocked.extend(why_absent(observed, template));
                }
            },
        }
    }
    if acts.is_empty() {
        one.is_used = true;
        acts.push(Act::CreateMachine(Arc::new(desired(&observed.set, one))));
    }
    children.acts.extend(acts);
}

fn clone_act(observed: &Observed, template: &TemplateObject, reference: &Reference) -> Act {
    Act::CreateClone {
        reference: reference.clone(),
        object: template.clone_for(&observed.set, &reference.name),
    }
}
