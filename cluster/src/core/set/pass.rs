//! The pass over a MachineSet (MS1 to MS10). Called by the worker of the kind. Not here: decisions (`act`), single writes (`write`).
//!
//! ```text
//! stores -> plan -> (a Machine must be made or deleted: live reads -> plan) -> writes in order -> status
//! ```
//! The set itself is written once in a pass, because each write is bound to the resource version that was read. Its change starts the next pass.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::cluster::full::set::MachineSetStatus;
use bedplate_api::cluster::full::{Machine, MachineSet, condition_type as types};
use bedplate_api::cluster::part::Reference;
use bedplate_engine::Context as _;
use bedplate_engine::watches::{self, GroupKind, User};
use bedplate_engine::write::{Failed, WriteError};
use bedplate_replicas::Key;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt};

use super::act::{Act, Change, Plan, plan};
use super::observe::{Observed, Template};
use super::status::status;
use super::template::TemplateObject;
use super::write::{self, Handles};
use super::{record, refusal};
use crate::core::context::World;
use crate::core::event;
use crate::core::live::{self, Read, Reader};
use crate::core::object::{controller, is_deleting};
use crate::core::reference::{Lookup, is_core_owner, refusal};
use crate::metrics::Kind;

/// Types of the conditions of a set that this program writes. Conditions of others are not sent.
pub const CONDITION_TYPES: [&str; 8] = [
    types::SCALING_UP,
    types::SCALING_DOWN,
    types::MACHINES_READY,
    types::MACHINES_UP_TO_DATE,
    types::REMEDIATING,
    types::DELETING,
    types::PAUSED,
    types::FIELDS_SUPPORTED,
];

/// Reconciles a MachineSet.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(object: Arc<MachineSet>, world: Arc<World>) -> Result<Option<Duration>, WriteError> {
    if !world.scope.includes(object.labels()) {
        world.watches.release(&User::of(&*object));
        return Ok(None);
    }
    let (reference, user) = (ObjectRef::from_obj(&*object), User::of(&*object));
    let mut pass = Pass::observe(object, &world);
    let result = world.leading(pass.run()).await;
    if world.stores.sets.get(&reference).is_none() {
        // Deleted meanwhile: this pass may have added the uses of kinds again.
        world.watches.release(&user);
    }
    result
}

/// State of one pass.
struct Pass<'a> {
    world: &'a World,
    observed: Observed,
    handles: Handles,
}

/// Result of the writes of a plan.
#[derive(Default)]
struct Done {
    failed: Failed,
    /// True if the set was written. Its status is written in the next pass.
    is_set_written: bool,
    /// Orphans whose adoption the API server has refused.
    refused: BTreeSet<Key>,
    /// Creations and changes of the set that the API server has refused. Texts for a user.
    refusals: Vec<String>,
}

impl<'a> Pass<'a> {
    /// Reads the stores and the watches of named kinds.
    fn observe(set: Arc<MachineSet>, world: &'a World) -> Self {
        let (stores, namespace) = (&world.stores, set.namespace().unwrap_or_default());
        let cluster = ObjectRef::new(&set.spec.cluster_name).within(&namespace);
        let owner = controller(&*set).filter(|owner| is_core_owner(owner, "MachineDeployment"));
        let deployment =
            owner.and_then(|owner| stores.deployments.get(&ObjectRef::new(&owner.name).within(&namespace)));
        let not_read = || Template::Unknown("templates are not read yet".to_owned());
        let observed = Observed {
            is_live: false,
            machines: live::stored(&stores.machines, &namespace),
            cluster: stores.clusters.get(&cluster),
            deployment,
            control_plane: None,
            refused: BTreeSet::new(),
            infrastructure: not_read(),
            bootstrap: set.spec.template.spec.bootstrap.config_ref.as_ref().map(|_| not_read()),
            clones: std::collections::BTreeMap::new(),
            set,
        };
        let mut pass = Self { world, observed, handles: Handles::default() };
        pass.observe_named();
        pass
    }

    /// Looks up the control plane and the objects of the Machines, and releases the kinds that the set does not name any more.
    fn observe_named(&mut self) {
        let machines = self.observed.owned().into_iter();
        let of_machine = |machine: &Machine| {
            let spec = &machine.spec;
            std::iter::once(&spec.infrastructure_ref).chain(&spec.bootstrap.config_ref).cloned().collect()
        };
        let objects: Vec<Reference> =
            machines.flat_map(|machine| -> Vec<Reference> { of_machine(machine) }).collect();
        let control_plane =
            self.observed.cluster.as_ref().and_then(|cluster| cluster.spec.control_plane_ref.clone());
        self.observed.control_plane = control_plane.clone().map(|of| {
            let lookup = self.look_up(&of);
            (of, lookup)
        });
        for reference in &objects {
            let lookup = self.look_up(reference);
            self.observed.clones.insert(reference.clone(), lookup);
        }
        let named: BTreeSet<GroupKind> = objects.iter().chain(&control_plane).map(kind).collect();
        self.world.watches.keep(&User::of(&*self.observed.set), &named.iter().collect::<Vec<_>>());
    }

    fn look_up(&mut self, reference: &Reference) -> Lookup {
        if let Some(why) = refusal(reference) {
            return Lookup::Unresolved(why);
        }
        let set = &*self.observed.set;
        let namespace = set.namespace().unwrap_or_default();
        let of = watches::Reference { kind: &kind(reference), namespace: &namespace, name: &reference.name };
        let found = self.world.watches.get(&User::of(set), of);
        if let watches::Lookup::Found { resource, .. } = &found {
            self.handles.resources.insert(reference.clone(), resource.clone());
        }
        Lookup::from(&found)
    }

    async fn run(&mut self) -> Result<Option<Duration>, WriteError> {
        let Some(mut plan) = self.plan().await? else { return Ok(None) };
        let mut done = self.apply(&plan).await;
        if !done.refused.is_empty() {
            // The other Machines must not wait for one that cannot be adopted.
            self.observed.refused = std::mem::take(&mut done.refused);
            let Some(next) = self.plan().await? else { return Ok(None) };
            let more = self.apply(&next).await;
            done.failed.note(more.failed.end());
            done.is_set_written |= more.is_set_written;
            done.refusals.extend(more.refusals);
            plan = next;
        }
        plan.blocked.append(&mut done.refusals);
        if !done.is_set_written {
            done.failed.note(self.report(&plan).await);
        }
        done.failed.end().map(|()| plan.again(Timestamp::now()))
    }

    /// Plans, from live reads if they are needed. None: the set was deleted.
    async fn plan(&mut self) -> Result<Option<Plan>, WriteError> {
        let planned = plan(&self.observed, Timestamp::now());
        if !planned.needs_live_read || self.observed.is_live {
            return Ok(Some(planned));
        }
        let is_there = self.read_live().await?;
        Ok(is_there.then(|| plan(&self.observed, Timestamp::now())))
    }

    /// Reads the set, then its Machines, its templates and the objects of recorded names. Returns false if the set was deleted.
    async fn read_live(&mut self) -> Result<bool, WriteError> {
        let client = &self.world.client;
        let Some(set) = live::again(client, &*self.observed.set).await? else { return Ok(false) };
        let namespace = set.namespace().unwrap_or_default();
        let (lists, store) = (&self.world.lists, &self.world.stores.machines);
        self.observed.machines = lists.read(client, &namespace, store).await?;
        self.observed.set = set;
        self.observed.is_live = true;
        self.observe_named();
        let mut reader = Reader::new(client, &namespace);
        if !is_deleting(&*self.observed.set) {
            let spec = self.observed.set.spec.template.spec.clone();
            self.observed.infrastructure = template(&mut reader, spec.infrastructure_ref).await?;
            if let Some(reference) = spec.bootstrap.config_ref {
                self.observed.bootstrap = Some(template(&mut reader, reference).await?);
            }
        }
        self.read_recorded(&mut reader).await.map(|()| true)
    }

    /// Reads the objects of recorded names that have no Machine. The watch of their kind may not show them yet.
    async fn read_recorded(&mut self, reader: &mut Reader) -> Result<(), WriteError> {
        let machines: BTreeSet<String> =
            self.observed.machines.iter().map(|machine| machine.name_any()).collect();
        for recorded in record::read(self.observed.set.annotations()) {
            if machines.contains(&recorded.name) {
                continue;
            }
            for reference in recorded.objects() {
                let read = reader.referenced(&reference).await?;
                if let Read::Found(_, resource) = &read {
                    self.handles.resources.insert(reference.clone(), resource.clone());
                }
                self.observed.clones.insert(reference, Lookup::from(&read));
            }
        }
        Ok(())
    }

    /// Applies the writes in order. A failure does not hold up writes about other objects: the plan counts a Machine until it is deleted. Nothing is
    /// made after a failed write of the set, because its name may not be recorded, or after a failed creation.
    async fn apply(&self, plan: &Plan) -> Done {
        let (mut done, mut is_held) = (Done::default(), false);
        let mut written = BTreeSet::new();
        for act in &plan.acts {
            let is_own = matches!(act, Act::Own(_));
            let key = if let Act::Machine(key, _) = act { Some(key) } else { None };
            // Another write of the Machine is bound to a resource version that has passed.
            let is_passed = key.is_some_and(|key| written.contains(key)) || is_own && done.is_set_written;
            if is_passed || is_held && is_chained(act) {
                is_held |= is_chained(act);
                continue;
            }
            self.world.counters.wrote(Kind::CoreSet);
            let result = write::carry_out(&self.observed, &self.handles, act, self.world).await;
            is_held |= result.is_err() && is_chained(act);
            if result.is_ok() {
                self.world.publish(&*self.observed.set, event::of_set(act));
            }
            // A refused write leaves the resource version as it was read, so the status does not wait.
            done.is_set_written |= is_own && result.as_ref().err().and_then(WriteError::refusal).is_none();
            let refusal =
                result.as_ref().err().and_then(|error| refusal::text(&self.observed.set, act, error));
            done.refusals.extend(refusal);
            written.extend(key.cloned());
            match (act, result) {
                (Act::Machine(key, Change::Adopt), Err(error)) if error.refusal().is_some() => {
                    // The pass continues without the Machine, so its caller does not report the error.
                    self.world.rejected(Kind::CoreSet, self.observed.set.object_ref(&()), &error);
                    done.refused.insert(key.clone());
                }
                (_, result) => drop(done.failed.note(result)),
            }
        }
        done
    }

    /// Writes the status, if it changes.
    async fn report(&self, plan: &Plan) -> Result<(), WriteError> {
        let set = &*self.observed.set;
        let own = |mut status: MachineSetStatus| {
            status.conditions.retain(|one| CONDITION_TYPES.contains(&one.type_.as_str()));
            status.deprecated = None;
            status
        };
        let next = own(status(&self.observed, plan, Timestamp::now()));
        if set.status.clone().map(own).as_ref() == Some(&next) {
            return Ok(());
        }
        self.world.counters.wrote(Kind::CoreSet);
        let api = write::sets(set, self.world);
        self.world.manager.apply_status(&api, set, &next).await.map(drop)
    }
}

async fn template(reader: &mut Reader, reference: Reference) -> Result<Template, WriteError> {
    Ok(match reader.object(&reference).await? {
        Read::Absent => Template::Absent,
        Read::Unresolved(why) => Template::Unknown(why),
        Read::Found(object, resource) => {
            let what = format!("{} {}", reference.kind, reference.name);
            match TemplateObject::read(&resource.api_version, reference, &object.data) {
                Ok(template) => Template::Found(Arc::new(template)),
                Err(error) => Template::Unknown(format!("{what} is not usable: {error}; correct it")),
            }
        }
    })
}

fn kind(reference: &Reference) -> GroupKind {
    GroupKind::new(&reference.api_group, &reference.kind)
}

/// Returns true if the act is part of the chain from the record to the Machine: it depends on the success of the earlier ones.
fn is_chained(act: &Act) -> bool {
    matches!(act, Act::Own(_) | Act::CreateClone { .. } | Act::CreateMachine(_))
}
