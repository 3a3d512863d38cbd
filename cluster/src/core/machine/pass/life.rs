//! Writes of the life of a Machine: metadata, adoption, data Secret, spec, Node, status. Called by the pass.
//!
//! Each write is bound to the version that was read. A failed act does not hold up the status, which shows its cause.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_api::cluster::full::condition_type::NODE_READY;
use bedplate_api::cluster::full::machine::MachineStatus;
use bedplate_api::cluster::kubeadm::CLUSTER_SECRET_TYPE;
use bedplate_api::cluster::part::label;
use bedplate_bootstrap::kubeconfig_secret::secret_name;
use bedplate_engine::write::{Failed, WriteError, ask};
use bedplate_workload::RequestError;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use kube::{Api, ResourceExt};
use serde_json::{Map, Value, json};

use super::{DATA_KEY, PLACE_DELAY, Turn};
use crate::core::machine::condition;
use crate::core::machine::data::DataSecret;
use crate::core::machine::node::NodePatch;
use crate::core::machine::plan::{Act, MetadataChange, Plan, plan, plan_deleted};
use crate::core::machine::references::{Adoption, SpecChange};
use crate::core::machine::refused::Refused;
use crate::owner::owner_reference;

impl Turn<'_> {
    /// Carries out the next step of a Machine that is not deleted.
    pub(super) async fn live(&mut self) -> Result<Option<Duration>, WriteError> {
        let mut next = plan(&self.observed);
        let mut failed = Failed::default();
        if let Some(act @ Act::WriteDataSecret(_)) = next.act.clone() {
            if self.attempt(act, &mut next, &mut failed).await {
                // Secrets are not watched, so no event starts the next plan.
                self.observed.data_secret = DataSecret::Own { is_current: true };
                next = plan(&self.observed);
            } else {
                next.act = None;
            }
        }
        self.carry_out(next, failed).await
    }

    /// Carries out an act. Returns true if it has succeeded. If it was refused, the status of the plan shows the cause.
    async fn attempt(&mut self, act: Act, next: &mut Plan, failed: &mut Failed) -> bool {
        let done = self.act(act.clone()).await;
        if let Some(cause) = done.as_ref().err().and_then(WriteError::refusal) {
            self.observed.refused = Some(Refused::new(&act, &self.observed, cause));
            let again = if self.observed.is_deleting() {
                plan_deleted(&self.observed, &self.present())
            } else {
                plan(&self.observed)
            };
            next.status = again.status;
        }
        failed.note(done)
    }

    /// Carries out a plan: its act or its status, and both if the act is of the Node or fails. `failed`: failures of earlier steps.
    pub(super) async fn carry_out(
        &mut self,
        mut next: Plan,
        mut failed: Failed,
    ) -> Result<Option<Duration>, WriteError> {
        let (mut act, mut recheck) = (next.act.take(), self.recheck(next.recheck));
        let place = match (&act, &self.observed.cluster) {
            (Some(Act::SyncNode(_)), Some(cluster)) => self.world.workloads.enter(cluster),
            _ => None,
        };
        if place.is_none() && matches!(act, Some(Act::SyncNode(_))) {
            act = None;
            next.status = next.status.and_then(|status| self.with_shown_node(status));
            recheck = Some(recheck.map_or(PLACE_DELAY, |recheck| recheck.min(PLACE_DELAY)));
        }
        let is_status_due = match act {
            None => true,
            Some(act) => {
                let is_of_node = matches!(act, Act::SyncNode(_));
                !self.attempt(act, &mut next, &mut failed).await || is_of_node
            }
        };
        if let Some(status) = next.status.filter(|_| is_status_due) {
            failed.note(self.apply_status(*status).await);
        }
        failed.end().map(|()| recheck)
    }

    /// Returns the status with `NodeReady` as it is shown, unless the state has changed: a turn without a write of the Node does not know if the
    /// write is still refused. None: nothing has changed.
    fn with_shown_node(&self, mut status: Box<MachineStatus>) -> Option<Box<MachineStatus>> {
        let before = self.observed.machine.status.as_ref();
        let shown = before.and_then(|before| condition::get(before, NODE_READY));
        let next = status.conditions.iter_mut().find(|condition| condition.type_ == NODE_READY);
        if let (Some(shown), Some(next)) = (shown, next)
            && (&shown.status, &shown.reason) == (&next.status, &next.reason)
        {
            *next = shown.clone();
        }
        (before != Some(&*status)).then_some(status)
    }

    async fn act(&self, act: Act) -> Result<(), WriteError> {
        let machine = &*self.observed.machine;
        match act {
            Act::SetMetadata(change) => {
                self.wrote();
                let change = json!({ "metadata": metadata(change) });
                self.world.manager.merge(&self.api(), machine, &change).await
            }
            Act::SetSpec(change) => {
                self.wrote();
                self.world.manager.merge(&self.api(), machine, &json!({ "spec": spec(change) })).await
            }
            Act::Adopt(adoption) => self.adopt(&adoption).await,
            Act::WriteDataSecret(name) => self.write_data_secret(&name).await,
            Act::SyncNode(patch) => self.sync_node(&patch).await,
        }
    }

    /// Makes the Machine the controller of a referenced object. A merge replaces the list: owners that give way are removed from it.
    async fn adopt(&self, adoption: &Adoption) -> Result<(), WriteError> {
        let Some((api, resource, object)) = self.part(adoption.part) else { return Ok(()) };
        self.wrote();
        let labels = json!({ label::CLUSTER_NAME: adoption.cluster_name });
        let owners = &adoption.owner_references;
        let change = json!({ "metadata": { "labels": labels, "ownerReferences": owners } });
        self.world.manager.merge_of(&api, resource, object, &change).await
    }

    /// Creates the Secret with `spec.bootstrap.data`, or writes the data into the one that was read.
    async fn write_data_secret(&self, name: &str) -> Result<(), WriteError> {
        let machine = &*self.observed.machine;
        let data = ByteString(machine.spec.bootstrap.data.clone().unwrap_or_default().into_bytes());
        let data = BTreeMap::from([(DATA_KEY.to_owned(), data)]);
        let api: Api<Secret> = self.api();
        self.wrote();
        if let Some(before) = &self.secret {
            return self.world.manager.merge(&api, before, &json!({ "data": data })).await;
        }
        let labels = [(label::CLUSTER_NAME.to_owned(), machine.spec.cluster_name.clone())];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: machine.namespace(),
                labels: Some(labels.into()),
                owner_references: Some(vec![owner_reference(machine, true)]),
                ..ObjectMeta::default()
            },
            type_: Some(CLUSTER_SECRET_TYPE.to_owned()),
            data: Some(data),
            ..Secret::default()
        };
        ask(&format!("Secret {name}"), api.create(&self.world.manager.post(), &secret)).await.map(drop)
    }

    /// Changes the Node. The Node after the write replaces the one that was read, which other turns still see.
    async fn sync_node(&self, patch: &NodePatch) -> Result<(), WriteError> {
        let Some(cluster) = &self.observed.cluster else { return Ok(()) };
        let workloads = &self.world.workloads;
        let what = format!("Node {} of Cluster {}", patch.name, cluster.name_any());
        let later = |why: String| WriteError::Later { what: what.clone(), why, again: None };
        let remote = workloads.connect(cluster).await.map_err(|error| later(error.to_string()))?;
        self.wrote();
        match remote.patch_node(&patch.name, &node(patch)).await {
            Ok(Some(node)) => workloads.replace(cluster, node),
            Ok(None) => {}
            Err(RequestError::Conflict) => {
                if let Ok(Some(node)) = remote.node(&patch.name).await {
                    workloads.replace(cluster, node);
                }
                return Err(WriteError::Conflict { what });
            }
            Err(error @ RequestError::Refused(403)) => {
                let role = format!("see the user of Secret {}", secret_name(&cluster.name_any()));
                return Err(WriteError::Forbidden { what, why: format!("{error}; {role}") });
            }
            Err(error) => return Err(later(error.to_string())),
        }
        Ok(())
    }
}

fn metadata(change: MetadataChange) -> Value {
    let mut fields = Map::new();
    if let Some(finalizers) = change.finalizers {
        fields.insert("finalizers".to_owned(), json!(finalizers));
    }
    if let Some(owners) = change.owner_references {
        fields.insert("ownerReferences".to_owned(), json!(owners));
    }
    if let Some(name) = change.cluster_name {
        fields.insert("labels".to_owned(), json!({ label::CLUSTER_NAME: name }));
    }
    fields.into()
}

fn spec(change: SpecChange) -> Value {
    let mut fields = Map::new();
    if let Some(name) = change.data_secret_name {
        fields.insert("bootstrap".to_owned(), json!({ "dataSecretName": name }));
    }
    let texts = [("providerID", change.provider_id), ("failureDomain", change.failure_domain)];
    fields.extend(texts.into_iter().filter_map(|(field, text)| Some((field.to_owned(), text?.into()))));
    fields.into()
}

fn node(patch: &NodePatch) -> Value {
    let mut change = json!({ "metadata": { "uid": patch.uid, "resourceVersion": patch.resource_version } });
    for (field, entries) in [("labels", &patch.labels), ("annotations", &patch.annotations)] {
        if !entries.is_empty() {
            change["metadata"][field] = json!(entries);
        }
    }
    if let Some(taints) = &patch.taints {
        change["spec"] = json!({ "taints": taints });
    }
    change
}
