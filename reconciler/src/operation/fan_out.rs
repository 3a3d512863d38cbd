//! Operations with a selector: their Machines, their children, their counts (O3).
//!
//! ```text
//! label -> finalizer -> Machines: one consistent list, into status.machines -> children, up to the limit -> counts -> ... -> its end -> no finalizer
//! ```
//! Each step is written to the parent before the next one starts. Children are the exception: they are
//! created before the status lists them as started. A controller that dies in between loses none, because the
//! next one finds each child by its name, which contains its parent. The parent is read live before a child
//! is created. A stale parent would re-create a child that a user has deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_api::machine::{Machine, Time};
use bedplate_api::operation::{
    MOST_MACHINES, MachineOperation, MachineOperationStatus, OperationMachines, OperationState,
};
use bedplate_api::reason::operation::FanOutOutcome;
use bedplate_engine::list;
use bedplate_engine::write::{self, Failed, WriteError, ask, called};
use bedplate_rules::fan_out::{CHILDREN, Now, Progress, SITE, child, child_name, plan as fan_out, standing};
use bedplate_rules::operation::{End, ended, is_finished, state};
use bedplate_rules::selection::matches;
use jiff::Timestamp;
use kube::api::{ListParams, PartialObjectMeta};
use kube::core::{Request, Selector};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};

use super::plan::{expiry, parent_of};
use crate::FIELD_MANAGER;
use crate::context::World;
use crate::metrics::Kind;

/// Finalizer that keeps a deleted parent until its started children have finished.
pub const FINALIZER: &str = "bedplate.dev/children";
/// Maximum number of children that are created, and that are read live, between two writes of the parent.
const CHILD_BATCH_SIZE: usize = 64;
/// Time after which a child that was created here but is missing in the store is read live.
const MAX_STORE_LAG: Duration = Duration::from_secs(5);
/// Minimum interval between status writes of a parent, per Machine. A write contains all Machine names.
const STATUS_INTERVAL_PER_MACHINE: Duration = Duration::from_micros(100);

/// Brings a parent's children and counts to the desired state.
pub(super) async fn reconcile(
    parent: &MachineOperation,
    world: &World,
) -> Result<Option<Duration>, WriteError> {
    let uid = parent.uid().unwrap_or_default();
    let is_held = parent.finalizers().iter().any(|held| held == FINALIZER);
    let is_leaving = parent.metadata.deletion_timestamp.is_some();
    if !is_leaving && !parent.labels().contains_key(CHILDREN) {
        // The watch returns it with its label. From then on executors do not receive it, nor its many names.
        return label(parent, world).await.map(|()| None);
    }
    let known = parent.status.as_ref().and_then(|status| status.machines.as_ref());
    if is_finished(parent) || is_leaving && known.is_none() {
        world.stores.whose.ended(&uid);
        return end(parent, is_held, is_leaving, world).await;
    }
    if !is_held {
        // A parent that is being deleted needs no finalizer. Otherwise the watch returns the parent with the
        // finalizer.
        return if is_leaving { Ok(None) } else { hold(parent, true, world).await.map(|()| None) };
    }
    let Some(known) = known else { return begin(parent, world).await.map(|()| None) };
    let lists = [&known.not_started, &known.started, &known.complete, &known.failed];
    let total: usize = lists.iter().map(|list| list.len()).sum();
    let rest = world
        .stores
        .whose
        .rests(&uid, STATUS_INTERVAL_PER_MACHINE.saturating_mul(u32::try_from(total).unwrap_or(u32::MAX)));
    if !rest.is_zero() {
        return Ok(Some(rest));
    }
    go_on(parent, known, world).await
}

/// Ends a finished parent: removes its finalizer, and deletes it when its time has expired.
async fn end(
    parent: &MachineOperation,
    is_held: bool,
    is_leaving: bool,
    world: &World,
) -> Result<Option<Duration>, WriteError> {
    if is_held {
        return hold(parent, false, world).await.map(|()| None);
    }
    let now = Timestamp::now();
    match expiry(parent, world.stores.whose.since(parent, now), now).filter(|_| !is_leaving) {
        Some(Ok(())) => super::remove(parent, world).await.map(|()| None),
        Some(Err(left)) => Ok(Some(left)),
        None => Ok(None),
    }
}

async fn label(parent: &MachineOperation, world: &World) -> Result<(), WriteError> {
    let labels = BTreeMap::from([(CHILDREN.to_owned(), String::new())]);
    FIELD_MANAGER.apply_labels(&world.write(Kind::Operation), parent, &labels).await
}

async fn hold(parent: &MachineOperation, held: bool, world: &World) -> Result<(), WriteError> {
    FIELD_MANAGER.set_finalizer(&world.write(Kind::Operation), parent, FINALIZER, held).await
}

/// Finds the Machines of an operation, once.
async fn begin(parent: &MachineOperation, world: &World) -> Result<(), WriteError> {
    let now = Now { room: 0, stopped: false, time: Timestamp::now() };
    let status = match targets(parent, world).await {
        Ok(machines) if machines.len() > MOST_MACHINES => {
            let message = format!(
                "selector matches {} Machines, the maximum is {MOST_MACHINES}; narrow it and create several operations",
                machines.len()
            );
            refused(parent, FanOutOutcome::TooManyMachines, &message, now.time)
        }
        Ok(machines) => {
            let machines: Vec<_> = machines.into_iter().map(|name| (name, None)).collect();
            fan_out(parent, &machines, now).status
        }
        Err(WriteError::Refused { why, .. }) => {
            refused(parent, FanOutOutcome::InvalidSelector, &why, now.time)
        }
        Err(error) => return Err(error),
    };
    FIELD_MANAGER.apply_status(&world.write(Kind::Operation), parent, &status).await?;
    let machines = status.counts.as_ref().map_or(0, |counts| counts.total);
    tracing::info!(
        operation = parent.name_any(),
        machines,
        reason = status.reason,
        "Machines of the operation selected"
    );
    Ok(())
}

fn refused(
    parent: &MachineOperation,
    reason: FanOutOutcome,
    message: &str,
    now: Timestamp,
) -> MachineOperationStatus {
    let before = MachineOperationStatus { start_time: Some(Time(now)), ..MachineOperationStatus::default() };
    let end = End { complete: false, reason: reason.as_str(), message };
    ended(before, end, parent.metadata.generation, now)
}

/// Returns the Machines that the selector matches, by name. All pages are of one state of the store.
async fn targets(parent: &MachineOperation, world: &World) -> Result<Vec<MachineName>, WriteError> {
    let what = "the Machines of a selector";
    let selector = parent.spec.machine_selector.clone().unwrap_or_default();
    let wrong = |why: String| WriteError::Refused { what: what.to_owned(), why };
    let labels = Selector::try_from(selector.labels()).map_err(|error| wrong(error.to_string()))?;
    let parameters = ListParams::default().labels_from(&labels);
    let mut names = Vec::new();
    if selector.match_fields.is_empty() {
        let take = |machine: PartialObjectMeta<Machine>| names.push(machine.name_any());
        list::each(&world.client, what, Request::list_metadata, parameters, take).await?;
    } else {
        let take = |machine: Machine| {
            if matches(&selector, &machine) {
                names.push(machine.name_any());
            }
        };
        list::each(&world.client, what, Request::list, parameters, take).await?;
    }
    let parse = |name: String| name.parse().map_err(|_| wrong(format!("{name} is not a valid Machine name")));
    names.into_iter().map(parse).collect()
}

/// State of a child.
enum Child {
    Known(OperationState),
    /// Another object has the child's name.
    Strange,
    Absent,
}

impl Child {
    /// Compares the owner, which is the creator's claim, and the spec, which is immutable and shows that the
    /// child does what the parent asks for.
    fn of(found: Option<&MachineOperation>, parent: &MachineOperation, machine: &MachineName) -> Self {
        let Some(found) = found else { return Self::Absent };
        let is_owned = parent_of(found).map(|(_, uid)| uid) == parent.metadata.uid.as_deref();
        if !is_owned || found.spec != child(parent, machine).spec {
            return Self::Strange;
        }
        Self::Known(state(found).unwrap_or(OperationState::Pending))
    }

    fn progress(&self) -> Progress {
        match self {
            Self::Known(state) => Some(*state),
            Self::Strange => Some(OperationState::Failed),
            Self::Absent => None,
        }
    }
}

async fn go_on(
    parent: &MachineOperation,
    known: &OperationMachines,
    world: &World,
) -> Result<Option<Duration>, WriteError> {
    let (uid, stopped) = (parent.uid().unwrap_or_default(), parent.metadata.deletion_timestamp.is_some());
    let look = |name: &MachineName| {
        let found = world.stores.operations.get(&ObjectRef::new(&child_name(parent, name)));
        Child::of(found.as_deref(), parent, name)
    };
    let lag = world.stores.whose.lags(&uid, MAX_STORE_LAG);
    let mut removed = BTreeMap::new();
    if lag.is_zero() {
        let absent = known.started.iter().filter(|name| matches!(look(name), Child::Absent));
        for name in absent.take(CHILD_BATCH_SIZE) {
            let child = child_name(parent, name);
            let found = world.live(&child).await?;
            // Another client deleted the child. The result is unknown, and the operation is not repeated.
            let progress =
                Child::of(found.as_ref(), parent, name).progress().unwrap_or(OperationState::Failed);
            removed.insert(name, progress);
        }
    }
    let mut targets = standing(known, |name| removed.get(name).copied().or_else(|| look(name).progress()));
    let now = Now { room: CHILD_BATCH_SIZE, stopped, time: Timestamp::now() };
    let mut fan = fan_out(parent, &targets, now);
    let mut failed = Failed::default();
    if !fan.start.is_empty() {
        make(parent, &fan.start, &mut targets, &mut failed, world).await?;
        fan = fan_out(parent, &targets, Now { room: 0, ..now });
    }
    if stopped {
        failed.note(call_off(parent, known, world).await);
    }
    if parent.status.as_ref() != Some(&fan.status) {
        let all = world.write(Kind::Operation);
        world.stores.whose.wrote(&uid);
        if failed.note(FIELD_MANAGER.apply_status(&all, parent, &fan.status).await.map(drop))
            && is_end(&fan.status)
        {
            let (operation, MachineOperationStatus { reason, message, .. }) =
                (parent.name_any(), &fan.status);
            tracing::info!(operation, reason, message, "operation finished");
        }
    }
    failed.end()?;
    Ok(Some(lag).filter(|lag| !lag.is_zero()))
}

fn is_end(status: &MachineOperationStatus) -> bool {
    matches!(status.state, Some(OperationState::Complete | OperationState::Failed))
}

/// Creates children. Records in `targets` which have started, and which cannot be created.
async fn make(
    parent: &MachineOperation,
    start: &[MachineName],
    targets: &mut [(MachineName, Progress)],
    failed: &mut Failed,
    world: &World,
) -> Result<(), WriteError> {
    let (all, what) = (Api::<MachineOperation>::all(world.client.clone()), called(parent));
    let live = ask(&what, all.get_metadata_opt(&parent.name_any())).await?;
    if live.and_then(|live| live.resource_version()) != parent.resource_version() {
        return Err(WriteError::Conflict { what });
    }
    world.stores.whose.made(&parent.uid().unwrap_or_default());
    for name in start {
        let progress = match make_one(parent, name, world).await {
            Ok(()) => OperationState::Pending,
            Err(WriteError::Refused { what: operation, why }) => {
                tracing::warn!(operation, why, "failed to create operation, counting its Machine as failed");
                OperationState::Failed
            }
            // The other children would fail, too, or the watch returns the child.
            Err(error) => {
                failed.note(Err(error));
                break;
            }
        };
        if let Some(target) = targets.iter_mut().find(|(target, _)| target == name) {
            target.1 = Some(progress);
        }
    }
    Ok(())
}

async fn make_one(parent: &MachineOperation, machine: &MachineName, world: &World) -> Result<(), WriteError> {
    let mut child = child(parent, machine);
    if let Some(found) = world.stores.machines.get(&ObjectRef::new(machine.as_str())) {
        let labels = child.metadata.labels.get_or_insert_default();
        labels.insert(SITE.to_owned(), found.spec.site.to_string());
    }
    child.metadata.owner_references = parent.controller_owner_ref(&()).map(|owner| vec![owner]);
    let (name, parameters) = (child.name_any(), FIELD_MANAGER.post());
    let all: Api<MachineOperation> = world.write(Kind::Operation);
    match ask(&called(&child), all.create(&parameters, &child)).await {
        Ok(_) => {
            tracing::info!(operation = name, "child operation created");
            Ok(())
        }
        // The child was created earlier but not recorded, or it is another object that the store will show.
        Err(WriteError::Conflict { what }) => {
            match Child::of(world.live(&name).await?.as_ref(), parent, machine) {
                Child::Known(_) => Ok(()),
                Child::Strange | Child::Absent => Err(WriteError::Conflict { what }),
            }
        }
        Err(error) => Err(error),
    }
}

/// Deletes children that no executor has taken. Started ones continue until they finish.
async fn call_off(
    parent: &MachineOperation,
    known: &OperationMachines,
    world: &World,
) -> Result<(), WriteError> {
    let mut failed = Failed::default();
    for name in &known.started {
        let found = world.stores.operations.get(&ObjectRef::new(&child_name(parent, name)));
        let Some(child) = found.filter(|found| found.metadata.deletion_timestamp.is_none()) else { continue };
        if let Child::Known(OperationState::Pending) = Child::of(Some(&child), parent, name) {
            let all = world.write::<MachineOperation>(Kind::Operation);
            let gone = write::delete(&all, &child.name_any(), child.uid(), child.resource_version()).await;
            failed.note(gone);
        }
    }
    failed.end()
}
