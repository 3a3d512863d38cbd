//! Pure: the view of a MachineSet that its planner needs, from the objects (MS2 to MS8). Called by `act`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_api::cluster::full::deployment::MachineDeployment;
use bedplate_api::cluster::full::set::{DeletionOrder, MachineSet};
use bedplate_api::cluster::full::{Cluster, Machine, condition_type};
use bedplate_api::cluster::part::{CountOrPercent, Reference, annotation};
use bedplate_api::reason::core::OwnerRemediatedReason;
use bedplate_replicas::{
    Amount, ControlPlaneView, Health, Key, MachineView, NameTemplate, NameTemplateError, NameVariables,
    Order, OwnerView, Preflight, Remediated, Remediation, SetVersion, SetView, Skipped, preflight,
};
use kube::ResourceExt;

use super::template::TemplateObject;
use crate::core::object::{
    condition, controller, created, is_controlled_by, is_deleting, is_selected, is_true, selector,
};
use crate::core::reference::{Lookup, is_core_owner};

/// Objects of a MachineSet, as one pass of its controller has read them.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The set.
    pub set: Arc<MachineSet>,
    /// True if set and Machines were read from the API server, and not from the stores.
    pub is_live: bool,
    /// Machines of the namespace.
    pub machines: Vec<Arc<Machine>>,
    /// Cluster that the set names.
    pub cluster: Option<Arc<Cluster>>,
    /// MachineDeployment that controls the set.
    pub deployment: Option<Arc<MachineDeployment>>,
    /// Control plane object and its reference. None: the Cluster names none.
    pub control_plane: Option<(Reference, Lookup)>,
    /// Orphans whose adoption the API server has refused.
    pub refused: BTreeSet<Key>,
    /// State of the template of the infrastructure.
    pub infrastructure: Template,
    /// State of the template of the bootstrap configuration. None: the set names none.
    pub bootstrap: Option<Template>,
    /// Infrastructure and bootstrap objects of the Machines and of the recorded names.
    pub clones: BTreeMap<Reference, Lookup>,
}

/// State of a template object.
#[derive(Debug, Clone, PartialEq)]
pub enum Template {
    /// The template.
    Found(Arc<TemplateObject>),
    /// The template does not exist.
    Absent,
    /// The template cannot be read. The text is for a user.
    Unknown(String),
}

/// Reason why a set cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPlannable {
    /// The template of names is not valid.
    Names(NameTemplateError),
    /// The selector is not valid.
    Selector,
    /// The MachineDeployment of the set is not read.
    Deployment(String),
}

impl std::fmt::Display for NotPlannable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Names(error) => error.fmt(f),
            Self::Selector => f.write_str("spec.selector is not valid; correct its matchExpressions"),
            Self::Deployment(name) => write!(f, "MachineDeployment {name} is not read yet"),
        }
    }
}

impl Observed {
    /// Returns the Machines that the set controls, and those without a controller that its selector matches, sorted by name.
    pub fn selected(&self) -> Vec<&Machine> {
        let uid = self.set.uid().unwrap_or_default();
        let selector = selector(&self.set.effective_labels().selector);
        let is_ours = |machine: &&Machine| {
            is_controlled_by(*machine, &uid)
                || controller(*machine).is_none() && is_selected(*machine, selector.as_ref())
        };
        let mut machines: Vec<&Machine> =
            self.machines.iter().map(|machine| &**machine).filter(is_ours).collect();
        machines.sort_by_key(|machine| machine.name_any());
        machines
    }

    /// Returns the Machines that the set controls, sorted by name.
    pub fn owned(&self) -> Vec<&Machine> {
        let uid = self.set.uid().unwrap_or_default();
        self.selected().into_iter().filter(|machine| is_controlled_by(*machine, &uid)).collect()
    }
}

/// Returns the view of the set.
pub fn observe(observed: &Observed) -> Result<SetView, NotPlannable> {
    let set = &*observed.set;
    let (uid, spec) = (set.uid().unwrap_or_default(), &set.spec);
    let is_set_deleting = is_deleting(set);
    if selector(&set.effective_labels().selector).is_none() && !is_set_deleting {
        return Err(NotPlannable::Selector);
    }
    let machines: Vec<MachineView> =
        observed.selected().into_iter().map(|machine| machine_view(machine, &uid)).collect();
    let names: BTreeSet<Key> = machines.iter().map(|machine| machine.key.clone()).collect();
    let others = observed.machines.iter().map(|machine| Key(machine.name_any()));
    let order = match spec.deletion.as_ref().and_then(|deletion| deletion.order) {
        Some(DeletionOrder::Newest) => Order::Newest,
        Some(DeletionOrder::Oldest) => Order::Oldest,
        Some(DeletionOrder::Random | DeletionOrder::Unknown) | None => Order::Random,
    };
    Ok(SetView {
        uid,
        live_version: set.resource_version().filter(|_| observed.is_live),
        replicas: spec.replicas.and_then(|replicas| u32::try_from(replicas).ok()),
        autoscaler_minimum: autoscaler_minimum(set),
        order,
        machines,
        refused: observed.refused.clone(),
        taken: others.filter(|name| !names.contains(name)).collect(),
        is_deleting: is_set_deleting,
        is_creation_disabled: set
            .annotations()
            .get(annotation::DISABLE_MACHINE_CREATE)
            .is_some_and(|value| value == "true"),
        remediation: remediation(observed)?,
        preflight: preflight_of(observed),
        names: names_of(set)?,
    })
}

/// Returns the minimum size that the annotation of the autoscaler gives.
pub fn autoscaler_minimum(object: &impl ResourceExt) -> Option<u32> {
    object.annotations().get(annotation::AUTOSCALER_MIN_SIZE).and_then(|value| value.parse().ok())
}

/// Returns an amount as the planners have it. A value without a meaning is reported in `FieldsSupported`, and is read as the fallback.
pub fn amount(given: Option<CountOrPercent>, fallback: Amount) -> Amount {
    match given {
        Some(CountOrPercent::Count(count)) => Amount::Count(count),
        Some(CountOrPercent::Percent(percent)) => Amount::Percent(percent),
        Some(CountOrPercent::Unknown) | None => fallback,
    }
}

fn names_of(set: &MachineSet) -> Result<NameTemplate, NotPlannable> {
    let name = set.name_any();
    let template = set.spec.machine_naming.as_ref().and_then(|naming| naming.template.as_deref());
    match template {
        // A deleting set makes no names, and an invalid template must not keep it.
        Some(template) if !is_deleting(set) => {
            let variables = NameVariables { cluster: &set.spec.cluster_name, set: &name };
            NameTemplate::parse(template, variables).map_err(NotPlannable::Names)
        }
        Some(_) | None => Ok(NameTemplate::of_set(&name)),
    }
}

/// Returns the view of a Machine. The UID is that of the set.
pub(crate) fn machine_view(machine: &Machine, uid: &str) -> MachineView {
    let status = machine.status.as_ref();
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    let state = |type_| match condition(conditions, type_).map(|condition| condition.status.as_str()) {
        Some("True") => Some(true),
        Some("False") => Some(false),
        Some(_) | None => None,
    };
    let annotations = machine.annotations();
    MachineView {
        key: Key(machine.name_any()),
        created: created(machine),
        is_deleting: is_deleting(machine),
        is_marked: annotations.contains_key(annotation::DELETE_MACHINE),
        has_remediate: annotations.contains_key(annotation::REMEDIATE_MACHINE),
        has_node: status.is_some_and(|status| status.node_ref.is_some()),
        is_node_healthy: state(condition_type::NODE_HEALTHY),
        is_available: is_true(conditions, condition_type::AVAILABLE),
        health: match state(condition_type::HEALTH_CHECK_SUCCEEDED) {
            Some(true) => Health::Succeeded,
            Some(false) => Health::Failed,
            None => Health::NotChecked,
        },
        remediated: remediated(machine),
        owner: match controller(machine) {
            Some(owner) if owner.uid == uid => OwnerView::This,
            Some(_) => OwnerView::Other,
            None => OwnerView::Orphan,
        },
    }
}

/// Returns the reason of condition `OwnerRemediated`, if it is False. A reason of another program counts as a mark.
pub fn remediated(machine: &Machine) -> Option<Remediated> {
    let conditions = machine.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let condition = condition(conditions, condition_type::OWNER_REMEDIATED)?;
    if condition.status != "False" {
        return None;
    }
    let reason = bedplate_api::reason::Reason::parse(&condition.reason);
    Some(match reason {
        Some(OwnerRemediatedReason::CannotBeRemediated) => Remediated::CannotBe,
        Some(OwnerRemediatedReason::RemediationDeferred) => Remediated::Deferred,
        Some(OwnerRemediatedReason::MachineDeleting) => Remediated::Deleting,
        Some(OwnerRemediatedReason::WaitingForRemediation) | None => Remediated::Waiting,
    })
}

fn remediation(observed: &Observed) -> Result<Remediation, NotPlannable> {
    let owner = controller(&*observed.set).filter(|owner| is_core_owner(owner, "MachineDeployment"));
    let (Some(owner), false) = (owner, is_deleting(&*observed.set)) else {
        return Ok(Remediation { is_current_revision: true, max_in_flight: None });
    };
    let deployment =
        observed.deployment.as_deref().filter(|deployment| deployment.uid().as_deref() == Some(&owner.uid));
    let Some(deployment) = deployment else { return Err(NotPlannable::Deployment(owner.name.clone())) };
    let revision = deployment.annotations().get(annotation::REVISION);
    let given = deployment.spec.remediation.as_ref().and_then(|remediation| remediation.max_in_flight);
    let replicas = deployment.spec.replicas.and_then(|replicas| u32::try_from(replicas).ok()).unwrap_or(0);
    Ok(Remediation {
        is_current_revision: revision == observed.set.annotations().get(annotation::REVISION),
        // A limit without a meaning must not mean that there is none.
        max_in_flight: given.map(|given| (amount(Some(given), Amount::Count(1)), replicas)),
    })
}

fn preflight_of(observed: &Observed) -> Vec<Preflight> {
    let set = &*observed.set;
    let skipped = set.annotations().get(annotation::SKIP_PREFLIGHT_CHECKS);
    let skipped = skipped.map(|text| Skipped::parse(text)).unwrap_or_default();
    let template = &set.spec.template.spec;
    let is_kubeadm =
        template.bootstrap.config_ref.as_ref().is_some_and(|of| of.kind == "KubeadmConfigTemplate");
    let version = SetVersion { version: template.version.clone(), is_kubeadm };
    let control_plane = match &observed.control_plane {
        None => ControlPlaneView::Unversioned,
        Some((reference, lookup)) => control_plane_view(reference, lookup),
    };
    preflight(&version, &control_plane, &skipped)
}

fn control_plane_view(reference: &Reference, lookup: &Lookup) -> ControlPlaneView {
    let kind = &reference.kind;
    match lookup {
        Lookup::Found(object) => match object.contract.version.clone() {
            None => ControlPlaneView::Unversioned,
            Some(version) => ControlPlaneView::Versioned {
                version,
                status_version: object.contract.status_version.clone(),
            },
        },
        Lookup::Absent => ControlPlaneView::Unknown(format!("{kind} {} does not exist", reference.name)),
        Lookup::NotSynced | Lookup::Unresolved(_) => {
            ControlPlaneView::Unknown(lookup.unknown(kind).unwrap_or_default())
        }
    }
}
