//! Pure: the view of a MachineDeployment that its planner needs, from the objects (MD1 to MD8). Called by `act`.

use std::collections::BTreeSet;
use std::sync::Arc;

use bedplate_api::cluster::full::deployment::{MachineDeployment, StrategyType};
use bedplate_api::cluster::full::set::{MachineSet, MachineTemplate};
use bedplate_api::cluster::full::{Cluster, Machine, condition_type};
use bedplate_api::cluster::part::{Reference, annotation};
use bedplate_replicas::{
    Amount, BootstrapView, DeploymentView, Key, RefView, SetSummary, Strategy, TemplateView, implied_replicas,
};
use kube::ResourceExt;

use crate::core::object::{
    Conditions as _, controller, created, is_controlled_by, is_deleting, is_selected, is_true, selector,
    stable_hash,
};
use crate::core::reference::Lookup;
use crate::core::set::observe::{amount, autoscaler_minimum};

/// Objects of a MachineDeployment, as one pass of its controller has read them.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The deployment.
    pub deployment: Arc<MachineDeployment>,
    /// True if deployment and sets were read from the API server, and not from the stores.
    pub is_live: bool,
    /// MachineSets of the namespace.
    pub sets: Vec<Arc<MachineSet>>,
    /// Machines of the namespace.
    pub machines: Vec<Arc<Machine>>,
    /// Cluster that the deployment names.
    pub cluster: Option<Arc<Cluster>>,
    /// Orphans whose adoption the API server has refused.
    pub refused: BTreeSet<Key>,
    /// Templates that the deployment names, with their kinds.
    pub templates: Vec<(String, Lookup)>,
}

impl Observed {
    /// Returns the sets that the deployment controls, sorted by name.
    pub fn owned(&self) -> Vec<&MachineSet> {
        let uid = self.deployment.uid().unwrap_or_default();
        let mut sets: Vec<&MachineSet> =
            self.sets.iter().map(|set| &**set).filter(|set| is_controlled_by(*set, &uid)).collect();
        sets.sort_by_key(|set| set.name_any());
        sets
    }

    /// Returns the sets without a controller that the selector matches.
    pub fn orphans(&self) -> Vec<&MachineSet> {
        let selector = selector(&self.deployment.effective_labels().selector);
        let is_orphan = |set: &&MachineSet| {
            controller(*set).is_none() && !is_deleting(*set) && is_selected(*set, selector.as_ref())
        };
        self.sets.iter().map(|set| &**set).filter(is_orphan).collect()
    }

    /// Returns the Machines of the sets that the deployment controls, sorted by name.
    pub(crate) fn owned_machines(&self) -> Vec<&Machine> {
        let uids: Vec<String> = self.owned().iter().filter_map(|set| set.uid()).collect();
        let is_owned = |machine: &&Machine| uids.iter().any(|uid| is_controlled_by(*machine, uid));
        let mut machines: Vec<&Machine> =
            self.machines.iter().map(|machine| &**machine).filter(is_owned).collect();
        machines.sort_by_key(|machine| machine.name_any());
        machines
    }
}

/// Returns the view of the deployment. None: its selector is not valid.
pub fn observe(observed: &Observed) -> Option<DeploymentView> {
    let deployment = &*observed.deployment;
    selector(&deployment.effective_labels().selector)?;
    let sets: Vec<SetSummary> =
        observed.owned().into_iter().map(|set| summary(set, &observed.machines)).collect();
    let replicas = deployment.spec.replicas.and_then(|replicas| u32::try_from(replicas).ok());
    let rollout = deployment.spec.rollout.as_ref();
    Some(DeploymentView {
        uid: deployment.uid().unwrap_or_default(),
        name: Key(deployment.name_any()),
        replicas: replicas.unwrap_or_else(|| implied_replicas(&sets, autoscaler_minimum(deployment))),
        strategy: strategy(deployment),
        template: template(&deployment.spec.template),
        rollout_after: rollout.and_then(|rollout| rollout.after.as_ref()).map(|after| after.0),
        is_paused: deployment.spec.paused == Some(true),
        sets,
        templates_exist: observed.templates.iter().all(|(_, lookup)| lookup.found().is_some()),
    })
}

/// Returns the strategy of a deployment. A strategy of a later version is read as the default, and is reported.
pub fn strategy(deployment: &MachineDeployment) -> Strategy {
    let strategy = deployment.spec.rollout.as_ref().and_then(|rollout| rollout.strategy.as_ref());
    if strategy.and_then(|strategy| strategy.type_) == Some(StrategyType::OnDelete) {
        return Strategy::OnDelete;
    }
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    Strategy::RollingUpdate {
        surge: amount(rolling.and_then(|rolling| rolling.max_surge), Amount::Count(1)),
        unavailable: amount(rolling.and_then(|rolling| rolling.max_unavailable), Amount::Count(0)),
    }
}

/// Returns the rollout-relevant fields of a template.
pub fn template(template: &MachineTemplate) -> TemplateView {
    let (spec, bootstrap) = (&template.spec, &template.spec.bootstrap);
    let reference = |of: &Reference| RefView {
        group: of.api_group.clone(),
        kind: of.kind.clone(),
        name: of.name.clone(),
    };
    let bootstrap = match (&bootstrap.config_ref, &bootstrap.data_secret_name, &bootstrap.data) {
        (Some(config), _, _) => BootstrapView::Config(reference(config)),
        (None, Some(secret), _) => BootstrapView::Secret(secret.clone()),
        (None, None, Some(data)) => BootstrapView::Data(stable_hash(data.as_bytes())),
        (None, None, None) => BootstrapView::Nothing,
    };
    TemplateView {
        version: spec.version.clone(),
        bootstrap,
        infrastructure: reference(&spec.infrastructure_ref),
        failure_domain: spec.failure_domain.clone(),
    }
}

fn summary(set: &MachineSet, machines: &[Arc<Machine>]) -> SetSummary {
    let uid = set.uid().unwrap_or_default();
    let owned: Vec<&Machine> = machines
        .iter()
        .map(|machine| &**machine)
        .filter(|machine| is_controlled_by(*machine, &uid))
        .collect();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (deleting, present): (Vec<&Machine>, Vec<&Machine>) =
        owned.into_iter().partition(|machine| is_deleting(*machine));
    let available =
        present.iter().filter(|machine| is_true(machine.conditions(), condition_type::AVAILABLE)).count();
    let existing = number(present.len());
    let text = |key: &str| set.annotations().get(key);
    let observed = set.status.as_ref().and_then(|status| status.observed_generation);
    SetSummary {
        key: Key(set.name_any()),
        created: created(set),
        template: template(&set.spec.template),
        asked: set.spec.replicas.map_or(existing, |replicas| u32::try_from(replicas).unwrap_or(0)),
        existing,
        available: number(available),
        deleting: number(deleting.len()),
        revision: text(annotation::REVISION).and_then(|text| text.parse().ok()).unwrap_or(0),
        max_replicas: text(annotation::MAX_REPLICAS).and_then(|text| text.parse().ok()),
        desired_replicas: text(annotation::DESIRED_REPLICAS).and_then(|text| text.parse().ok()),
        is_observed: observed >= set.metadata.generation,
        is_deleting: is_deleting(set),
    }
}
