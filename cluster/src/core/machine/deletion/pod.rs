//! Pure: Pods of a Node as the drain treats them: by kind, by label, by `MachineDrainRule` (DR1). Callers: `drain`, reader of lists.
//!
//! ```text
//! MachineDrainRules -> Selection;   pages of Pods -> PodCollector -> PodsView: Pods that leave or finish, sorted, bounded
//! ```
//! Differences from upstream: finished Pods stay, and a Pod of a DaemonSet stays also if the DaemonSet is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_api::cluster::full::drain::DrainBehavior;
use bedplate_api::cluster::full::{Cluster, Machine, MachineDrainRule};
use bedplate_api::cluster::part::label;
use bedplate_api::selector::LabelSelector;
use bedplate_rules::drain::Pod;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use serde_json::Value;

/// Maximum number of Pods in a view.
const MAX_PODS: usize = 500;
/// Maximum number of claims of Pods that stay.
const MAX_CLAIMS: usize = 1000;
/// Time after the end of its grace for which a Pod on an unreachable Node counts as present.
const UNREACHABLE_GRACE: SignedDuration = SignedDuration::from_secs(1);

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Treatment of a Pod in the drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Treatment {
    /// The Pod is evicted.
    Evict,
    /// The drain waits until the Pod has finished.
    Complete,
    /// The treatment is not known, so the Pod stays and the drain waits. The text is for a user.
    Undecided(String),
}

/// Pod that the drain waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The Pod.
    pub pod: Pod,
    /// Order of its eviction.
    pub order: i32,
    /// The treatment.
    pub treatment: Treatment,
}

/// Pods of a Node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodsView {
    /// Pods that the drain waits for, sorted by order and name, at most 500.
    pub targets: Vec<Target>,
    /// Number of further Pods.
    pub more: usize,
    /// Claims of Pods that stay, as `namespace/name`. Their volumes are not waited for.
    pub kept_claims: BTreeSet<String>,
}

/// Rule with parsed selectors.
#[derive(Debug, Clone)]
struct Rule {
    name: String,
    behavior: DrainBehavior,
    order: i32,
    pods: Vec<(Selector, Selector)>,
}

/// Rules for the Pods of one Machine.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    rules: Vec<Rule>,
}

impl Selection {
    /// Returns the rules that select the Machine, sorted by name. `rules`: those of its namespace.
    ///
    /// # Errors
    /// A selector is invalid. The text is for a user.
    pub fn new(
        rules: &[Arc<MachineDrainRule>],
        machine: &Machine,
        cluster: Option<&Cluster>,
    ) -> Result<Self, String> {
        let no_labels = Labels::new();
        let cluster = cluster.map_or(&no_labels, |cluster| cluster.labels());
        let mut selected = Vec::new();
        for rule in rules {
            let invalid =
                |error| format!("MachineDrainRule {} has an invalid selector: {error}", rule.name_any());
            let machines = rule.spec.machines.iter();
            let machines = machines.map(|one| pair(one.selector.as_ref(), one.cluster_selector.as_ref()));
            let machines = machines.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
            let pods = rule.spec.pods.iter();
            let pods = pods.map(|one| pair(one.selector.as_ref(), one.namespace_selector.as_ref()));
            let pods = pods.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
            let is_for_machine = |(machines, clusters): &(Selector, Selector)| {
                machines.matches(machine.labels()) && clusters.matches(cluster)
            };
            if machines.is_empty() || machines.iter().any(is_for_machine) {
                let drain = &rule.spec.drain;
                let (behavior, order) = (drain.behavior, drain.order.unwrap_or_default());
                selected.push(Rule { name: rule.name_any(), behavior, order, pods });
            }
        }
        selected.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { rules: selected })
    }

    /// Returns true if the labels of namespaces decide.
    pub(crate) fn needs_namespaces(&self) -> bool {
        self.rules.iter().any(|rule| rule.pods.iter().any(|(_, namespaces)| !namespaces.selects_all()))
    }

    /// Returns order and treatment of a Pod that may leave. None: it stays.
    fn treatment(&self, labels: &Labels, namespace: Option<&Labels>) -> Option<(i32, Treatment)> {
        match labels.get(label::DRAIN).map(|value| value.to_ascii_lowercase()).as_deref() {
            Some("skip") => return None,
            Some("wait-completed" | "waitcompleted") => return Some((0, Treatment::Complete)),
            _ => {}
        }
        for rule in &self.rules {
            match rule.selects(labels, namespace) {
                Some(false) => {}
                Some(true) => return rule.treatment(),
                None => {
                    return Some((
                        0,
                        Treatment::Undecided("labels of its namespace are not read yet".to_owned()),
                    ));
                }
            }
        }
        Some((0, Treatment::Evict))
    }
}

impl Rule {
    /// Returns true if the rule is for the Pod. None: not known.
    fn selects(&self, labels: &Labels, namespace: Option<&Labels>) -> Option<bool> {
        let mut is_unknown = false;
        for (pods, namespaces) in &self.pods {
            if !pods.matches(labels) {
                continue;
            }
            match namespace {
                _ if namespaces.selects_all() => return Some(true),
                Some(namespace) if namespaces.matches(namespace) => return Some(true),
                Some(_) => {}
                None => is_unknown = true,
            }
        }
        if is_unknown { None } else { Some(self.pods.is_empty()) }
    }

    fn treatment(&self) -> Option<(i32, Treatment)> {
        match self.behavior {
            DrainBehavior::Drain => Some((self.order, Treatment::Evict)),
            DrainBehavior::Skip => None,
            DrainBehavior::WaitCompleted => Some((0, Treatment::Complete)),
            DrainBehavior::Unknown => {
                let why = format!("behavior of MachineDrainRule {} is not supported", self.name);
                Some((0, Treatment::Undecided(why)))
            }
        }
    }
}

/// Collector of the Pods of one Node, page by page.
#[derive(Debug)]
pub struct PodCollector<'a> {
    selection: &'a Selection,
    is_unreachable: bool,
    now: Timestamp,
    targets: BTreeMap<(i32, String), Target>,
    more: usize,
    kept_claims: BTreeSet<String>,
}

impl<'a> PodCollector<'a> {
    /// Returns an empty collector. `is_unreachable`: the kubelet of the Node does not report.
    pub fn new(selection: &'a Selection, is_unreachable: bool, now: Timestamp) -> Self {
        Self {
            selection,
            is_unreachable,
            now,
            targets: BTreeMap::new(),
            more: 0,
            kept_claims: BTreeSet::new(),
        }
    }

    /// Adds a Pod as the API server shows it. `namespace`: labels of its namespace, if they are known.
    pub fn add(&mut self, object: &Value, namespace: Option<&Labels>) {
        let pod = Pod::read(object);
        if pod.finished {
            return;
        }
        let labels: Labels =
            object["metadata"]["labels"].as_object().into_iter().flatten().filter_map(text).collect();
        let treatment = if self.is_lost(object) || !pod.has_to_leave() {
            None
        } else {
            self.selection.treatment(&labels, namespace)
        };
        let Some((order, treatment)) = treatment else { return self.keep_claims(object, &pod.namespace) };
        self.targets.insert((order, pod.full_name()), Target { pod, order, treatment });
        if self.targets.len() > MAX_PODS {
            self.targets.pop_last();
            self.more += 1;
        }
    }

    /// Returns the view.
    pub fn finish(self) -> PodsView {
        PodsView {
            targets: self.targets.into_values().collect(),
            more: self.more,
            kept_claims: self.kept_claims,
        }
    }

    /// Returns true if an unreachable kubelet should have ended the Pod.
    fn is_lost(&self, object: &Value) -> bool {
        let deleted = object["metadata"]["deletionTimestamp"].as_str();
        let deleted = deleted.and_then(|time| time.parse::<Timestamp>().ok());
        self.is_unreachable
            && deleted.is_some_and(|deleted| self.now.duration_since(deleted) > UNREACHABLE_GRACE)
    }

    fn keep_claims(&mut self, object: &Value, namespace: &str) {
        let volumes = object["spec"]["volumes"].as_array().into_iter().flatten();
        let claims = volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
        let space = MAX_CLAIMS.saturating_sub(self.kept_claims.len());
        self.kept_claims.extend(claims.take(space).map(|claim| format!("{namespace}/{claim}")));
    }
}

fn text((key, value): (&String, &Value)) -> Option<(String, String)> {
    Some((key.clone(), value.as_str()?.to_owned()))
}

/// Returns both selectors. One that is not set selects all.
fn pair(
    first: Option<&LabelSelector>,
    second: Option<&LabelSelector>,
) -> Result<(Selector, Selector), kube::core::ParseExpressionError> {
    let parse = |selector: Option<&LabelSelector>| Selector::try_from(selector.cloned().unwrap_or_default());
    Ok((parse(first)?, parse(second)?))
}
