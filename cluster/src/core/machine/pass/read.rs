//! Reads the parts of a workload cluster that a plan of the deletion asks for. Called by the pass.
//!
//! A failed read is a text for a user: the plan decides what it means.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_api::bounded_times::BoundedTimes;
use bedplate_api::cluster::full::MachineDrainRule;
use bedplate_engine::write::ask;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::core::context::World;
use crate::core::machine::deletion::{
    Labels, Needed, NodeAnswer, NodeState, Observed, PodCollector, PodsView, Selection, VolumeCollector,
    VolumesView,
};
use crate::core::machine::node::{NodeView, Workload};
use crate::core::machine::node_condition::{is_expected, reads_node};
use crate::core::machine::plan;
use crate::core::workload::places::Place;
use crate::core::workload::remote::{MAX_PAGES, Page, Remote};

/// Maximum number of MachineDrainRules of a namespace.
const MAX_RULES: u32 = 500;
/// Maximum number of namespaces whose labels are read for one Node.
const MAX_NAMESPACES: usize = 200;

/// Reader of one turn. It connects at its first read.
pub(super) struct Reader<'a> {
    world: &'a World,
    seen: &'a plan::Observed,
    remote: Option<Result<Remote, String>>,
    place: Option<Place>,
}

impl<'a> Reader<'a> {
    /// Makes the reader. `seen`: the objects of the Machine.
    pub(super) fn new(world: &'a World, seen: &'a plan::Observed) -> Self {
        Self { world, seen, remote: None, place: None }
    }

    /// Returns true if the turn has a place for requests to the workload cluster. It keeps the place until its end.
    pub(super) fn enter(&mut self) -> bool {
        if self.place.is_none()
            && let Some(cluster) = &self.seen.cluster
        {
            self.place = self.world.workloads.enter(cluster);
        }
        self.place.is_some() || self.seen.cluster.is_none()
    }

    /// Returns the workload cluster.
    ///
    /// # Errors
    /// It cannot be connected. The text is for a user.
    pub(super) async fn remote(&mut self) -> Result<Remote, String> {
        if let Some(remote) = &self.remote {
            return remote.clone();
        }
        let remote = match &self.seen.cluster {
            Some(cluster) => self.world.workloads.connect(cluster).await.map_err(|error| error.to_string()),
            None => Err("Cluster does not exist".to_owned()),
        };
        self.remote.insert(remote).clone()
    }

    /// Keeps the Node as it is after a write.
    pub(super) fn replace(&self, node: Node) {
        if let Some(cluster) = &self.seen.cluster {
            self.world.workloads.replace(cluster, node);
        }
    }

    /// Reads a part, and puts it into the observed state.
    pub(super) async fn read(&mut self, observed: &mut Observed, needed: Needed) {
        match needed {
            Needed::Node(name) => observed.node = Some(self.node(&name).await),
            Needed::NodeOf(id) => observed.node = Some(self.node_of(&id)),
            Needed::Pods(name) => observed.pods = Some(self.pods(observed, &name).await),
            Needed::Volumes(name) => observed.volumes = Some(self.volumes(observed, &name).await),
        }
    }

    async fn node(&mut self, name: &str) -> Result<NodeAnswer, String> {
        let node = self.remote().await?.node(name).await.map_err(|error| error.to_string())?;
        Ok(node.map_or(NodeAnswer::Absent, |node| NodeAnswer::Found(node_state(&node))))
    }

    /// Returns the Node with a providerID, as the watch shows it. The Machine itself may not have the ID yet.
    fn node_of(&self, id: &str) -> Result<NodeAnswer, String> {
        let Some(cluster) = &self.seen.cluster else { return Err("Cluster does not exist".to_owned()) };
        if !reads_node(self.seen) {
            return Ok(NodeAnswer::Absent);
        }
        let Workload { node, connection } = self.world.workloads.look(cluster, Some(id));
        match node {
            NodeView::Found(node) => Ok(NodeAnswer::Found(node_state(&node))),
            NodeView::Absent => Ok(NodeAnswer::Absent),
            NodeView::Ambiguous(names) => {
                Err(format!("several Nodes have the providerID: {}", names.join(", ")))
            }
            NodeView::Unknown => Ok(NodeAnswer::NotRead { is_expected: is_expected(connection) }),
        }
    }

    async fn pods(&mut self, observed: &Observed, name: &str) -> Result<PodsView, String> {
        let selection = self.selection().await?;
        let remote = self.remote().await?;
        let is_unreachable = observed
            .node
            .as_ref()
            .is_some_and(|answer| matches!(answer, Ok(NodeAnswer::Found(node)) if node.is_unreachable));
        let mut collector = PodCollector::new(&selection, is_unreachable, self.seen.now);
        let mut namespaces = Namespaces { remote: &remote, known: BTreeMap::new() };
        let mut token = String::new();
        for _ in 0..MAX_PAGES {
            let Page { items, next } = remote.pods(name, &token).await.map_err(|error| error.to_string())?;
            for pod in &items {
                let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
                let labels =
                    if selection.needs_namespaces() { namespaces.labels(namespace).await? } else { None };
                collector.add(pod, labels);
            }
            if next.is_empty() {
                return Ok(collector.finish());
            }
            token = next;
        }
        Err("Node has too many Pods for one list".to_owned())
    }

    /// Returns the rules for the Pods of the Machine.
    async fn selection(&self) -> Result<Selection, String> {
        let machine = &*self.seen.machine;
        let namespace = machine.namespace().unwrap_or_default();
        let api: Api<BoundedTimes<MachineDrainRule>> = Api::namespaced(self.world.client.clone(), &namespace);
        let list = ask("MachineDrainRules", api.list(&ListParams::default().limit(MAX_RULES))).await;
        let list = list.map_err(|error| error.to_string())?;
        if list.metadata.continue_.is_some_and(|next| !next.is_empty()) {
            return Err(format!("namespace has more than {MAX_RULES} MachineDrainRules; delete some"));
        }
        let rules: Vec<_> = list.items.into_iter().map(|BoundedTimes(rule)| Arc::new(rule)).collect();
        Selection::new(&rules, machine, self.seen.cluster.as_deref())
    }

    /// Reads the volumes of a Node, and the claims of its Pods that stay.
    async fn volumes(&mut self, observed: &Observed, name: &str) -> Result<VolumesView, String> {
        let kept_claims = match &observed.pods {
            Some(Ok(view)) => view.kept_claims.clone(),
            Some(Err(_)) | None => self.pods(observed, name).await?.kept_claims,
        };
        let remote = self.remote().await?;
        let node = remote.node(name).await.map_err(|error| error.to_string())?;
        let Some(node) = node else { return Ok(VolumesView::default()) };
        let mut collector = VolumeCollector::new(&json!(node), kept_claims);
        let attachments = remote.each_attachment(|object| collector.attachment(object)).await;
        attachments.map_err(|error| error.to_string())?;
        if !collector.is_empty() {
            let volumes = remote.each_volume(|object| collector.volume(object)).await;
            volumes.map_err(|error| error.to_string())?;
        }
        Ok(collector.finish())
    }
}

/// Labels of namespaces, each read once.
struct Namespaces<'a> {
    remote: &'a Remote,
    known: BTreeMap<String, Option<Labels>>,
}

impl Namespaces<'_> {
    /// Returns the labels of a namespace. None: they are not known.
    async fn labels(&mut self, name: &str) -> Result<Option<&Labels>, String> {
        if !self.known.contains_key(name) && self.known.len() < MAX_NAMESPACES {
            let labels = self.remote.namespace_labels(name).await.map_err(|error| error.to_string())?;
            self.known.insert(name.to_owned(), labels);
        }
        Ok(self.known.get(name).and_then(Option::as_ref))
    }
}

/// Returns the facts of a Node that count.
pub(super) fn node_state(node: &Node) -> NodeState {
    let spec = node.spec.as_ref();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    NodeState {
        name: node.name_any(),
        uid: node.uid().unwrap_or_default(),
        provider_id: spec.and_then(|spec| spec.provider_id.clone()),
        is_unschedulable: spec.and_then(|spec| spec.unschedulable) == Some(true),
        is_unreachable: conditions
            .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown"),
        is_deleting: node.metadata.deletion_timestamp.is_some(),
    }
}
