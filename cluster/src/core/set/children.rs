//! Pure: objects of a set's Machines: which are made now, in which order, and which are removed (MS3, MS7). Called by `act`.
//!
//! ```text
//! name recorded -> infrastructure -> bootstrap -> Machine -> name removed from the record
//! recorded, and not needed any more: objects deleted -> name removed from the record
//! ```
//! Each arrow is a point at which the controller may be killed. The next pass continues from the record.

use std::collections::BTreeSet;
use std::sync::Arc;

use bedplate_api::cluster::part::Reference;
use bedplate_replicas::{Key, SetPlan};
use kube::ResourceExt;

use super::act::Act;
use super::machine::desired;
use super::observe::{Seen, Template};
use super::record::{self, MAX_RECORDS, Recorded};
use super::template::{TemplateObject, made_kind};
use crate::core::reference::Lookup;

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
pub fn plan(seen: &Seen, plan: &SetPlan) -> Children {
    let mut children = Children::default();
    let recorded = record::read(seen.set.annotations());
    let machines: BTreeSet<String> = seen.machines.iter().map(|machine| machine.name_any()).collect();
    let pending: Vec<Recorded> =
        recorded.iter().filter(|one| !machines.contains(&one.name)).cloned().collect();
    let (needed, surplus) = split(seen, plan, pending);
    let fresh = fresh(seen, plan, &needed, &surplus, &mut children);
    let kept = surplus
        .iter()
        .filter(|one| one.objects().any(|of| !matches!(clone_of(seen, &of), Made::Absent | Made::Foreign)));
    let mut record: Vec<Recorded> = needed.iter().chain(kept).chain(&fresh).cloned().collect();
    record.sort_by(|one, other| one.name.cmp(&other.name));
    if record != recorded {
        children.acts.push(Act::Record(record.clone()));
    }
    for one in &surplus {
        remove(seen, one, &mut children);
    }
    if plan.may_create() {
        for one in needed.iter().chain(&fresh) {
            create(seen, one, &mut children);
        }
    }
    children.is_settled = record.is_empty();
    children
}

/// Separates recorded names that are needed from those that are not.
fn split(seen: &Seen, plan: &SetPlan, pending: Vec<Recorded>) -> (Vec<Recorded>, Vec<Recorded>) {
    let is_blocked = plan.create.is_empty() && !plan.may_create();
    let mut wanted = if is_blocked { pending.len() } else { plan.create.len() };
    pending.into_iter().partition(|one| {
        let is_usable = kinds(seen, &one.name) == *one
            && one.objects().all(|of| !matches!(clone_of(seen, &of), Made::Foreign));
        let is_needed = is_usable && wanted > 0;
        wanted -= usize::from(is_needed);
        is_needed
    })
}

/// Returns new names, as far as recorded ones are not enough.
fn fresh(
    seen: &Seen,
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
    let templates = std::iter::once(&seen.infrastructure).chain(&seen.bootstrap);
    let absent: Vec<String> = templates.filter_map(|template| why_absent(seen, template)).collect();
    if !absent.is_empty() {
        children.blocked.extend(absent);
        return Vec::new();
    }
    let is_used = |name: &Key| needed.iter().chain(surplus).any(|one| one.name == name.0);
    let names = plan.create.iter().filter(|name| !is_used(name)).take(missing);
    names.map(|name| kinds(seen, &name.0)).collect()
}

fn why_absent(seen: &Seen, template: &Template) -> Option<String> {
    let spec = &seen.set.spec.template.spec;
    let is_infrastructure = std::ptr::eq(template, &raw const seen.infrastructure);
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
fn kinds(seen: &Seen, name: &str) -> Recorded {
    let spec = &seen.set.spec.template.spec;
    let kind = |of: &Reference| (of.api_group.clone(), made_kind(&of.kind).to_owned());
    Recorded {
        name: name.to_owned(),
        infrastructure: kind(&spec.infrastructure_ref),
        bootstrap: spec.bootstrap.config_ref.as_ref().map(kind),
    }
}

fn clone_of(seen: &Seen, reference: &Reference) -> Made {
    match seen.clones.get(reference) {
        // A name that was not recorded before has no objects. If it has, their creation fails, and the next pass finds them.
        None | Some(Lookup::Absent) => Made::Absent,
        Some(Lookup::NotSynced) => {
            Made::Unknown(format!("objects of kind {} are not read yet", reference.kind))
        }
        Some(Lookup::Unresolved(why)) => Made::Unknown(why.clone()),
        Some(Lookup::Found(object)) => {
            let uid = seen.set.uid().unwrap_or_default();
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
fn remove(seen: &Seen, one: &Recorded, children: &mut Children) {
    let mut objects: Vec<Reference> = one.objects().collect();
    objects.reverse();
    for reference in objects {
        match clone_of(seen, &reference) {
            Made::Ours { uid, is_deleting: false } => {
                children.acts.push(Act::DeleteClone { reference, uid });
            }
            Made::Unknown(why) => children.blocked.push(why),
            Made::Ours { is_deleting: true, .. } | Made::Absent | Made::Foreign => {}
        }
    }
}

/// Makes the objects of a name that do not exist yet, then the Machine.
fn create(seen: &Seen, one: &Recorded, children: &mut Children) {
    let mut acts = Vec::new();
    let objects = [
        (Some(one.infrastructure()), Some(&seen.infrastructure)),
        (one.bootstrap(), seen.bootstrap.as_ref()),
    ];
    for (reference, template) in objects {
        let (Some(reference), Some(template)) = (reference, template) else { continue };
        match clone_of(seen, &reference) {
            Made::Ours { is_deleting: false, .. } => {}
            Made::Ours { is_deleting: true, .. } => {
                children.blocked.push(format!("{} {} is being deleted", reference.kind, reference.name));
                return;
            }
            Made::Unknown(why) => return children.blocked.push(why),
            Made::Foreign => return,
            Made::Absent => match template {
                Template::Found(template) => acts.push(clone_act(seen, template, &reference)),
                Template::Absent | Template::Unknown(_) => {
                    return children.blocked.extend(why_absent(seen, template));
                }
            },
        }
    }
    children.acts.extend(acts);
    children.acts.push(Act::CreateMachine(Arc::new(desired(&seen.set, one))));
}

fn clone_act(seen: &Seen, template: &TemplateObject, reference: &Reference) -> Act {
    Act::CreateClone { reference: reference.clone(), object: template.clone_for(&seen.set, &reference.name) }
}
