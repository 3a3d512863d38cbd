//! Pure: volumes that are still attached to the Node of a Machine, and the wait for them. Caller: `plan`; the reader of the lists collects.
//!
//! ```text
//! Node.status.volumesAttached, VolumeAttachments, PersistentVolumes -> VolumeCollector -> VolumesView: names, bounded
//! ```
//! An unreachable Node detaches nothing, so its volumes are not waited for. Volumes of Pods that stay are not waited for.

use std::collections::BTreeSet;

use bedplate_api::cluster::part::annotation;
use bedplate_api::reason::core::MachineDeletingReason as Reason;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;

use super::drain::POLL_INTERVAL;
use super::list;
use super::object::is_infrastructure_alive;
use super::plan::{Act, Needed, Observed, Plan, deadline, is_node_served, later, second, until};

/// Maximum number of names in each set of a collector.
const MAX_VOLUMES: usize = 1000;

/// Volumes that the deletion waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumesView {
    /// Names with their kinds, sorted, at most 5.
    pub names: Vec<String>,
    /// Number of further volumes.
    pub more: usize,
}

/// Waits until the volumes of the Node are detached.
pub(super) fn step(observed: &Observed, name: &str, now: Timestamp) -> Option<Plan> {
    let machine = &*observed.machine;
    if !is_node_served(machine) || machine.annotations().contains_key(annotation::EXCLUDE_VOLUME_DETACH) {
        return None;
    }
    let spec = machine.spec.deletion.as_ref();
    let start = machine.status.as_ref().and_then(|status| status.deletion.as_ref());
    let start = start.and_then(|deletion| deletion.wait_for_node_volume_detach_start_time.as_ref());
    let start = start.map(|time| time.0);
    let limit = deadline(start, spec.and_then(|spec| spec.node_volume_detach_timeout_seconds));
    if limit.is_some_and(|limit| limit <= now) {
        return None;
    }
    let Some(answer) = &observed.node else { return Some(Plan::read(Needed::Node(name.to_owned()))) };
    let failed = |what: &str, why: &str| format!("{what} cannot be read: {}", list::text(why));
    let node = observed.own_node();
    let state = match (answer, &observed.volumes) {
        (Ok(_), _) if node.is_none_or(|node| node.is_unreachable) => return None,
        (Err(_), _) | (_, Some(Err(_))) if !is_infrastructure_alive(observed) => return None,
        (Err(why), _) => failed("Node", why),
        (Ok(_), None) => return Some(Plan::read(Needed::Volumes(name.to_owned()))),
        (Ok(_), Some(Err(why))) => failed("volumes", why),
        (Ok(_), Some(Ok(view))) if view.names.is_empty() && view.more == 0 => return None,
        (Ok(_), Some(Ok(view))) => list::names(&view.names, view.more),
    };
    let reason = Reason::WaitingForVolumeDetach;
    let Some(start) = start else {
        let message = format!("volumes are attached to Node {name}");
        return Some(Plan::act(Act::RecordVolumeStart(now), reason, message));
    };
    let (start, end) = (second(start), until(limit));
    let message = format!("volumes are attached to Node {name}, waited for since {start}: {state}{end}");
    let again = later(now, POLL_INTERVAL);
    Some(Plan::wait(reason, message).again(limit.map_or(again, |limit| limit.min(again))))
}

/// Collector of the volumes of one Node: first its attachments, then all PersistentVolumes, page by page.
#[derive(Debug)]
pub struct VolumeCollector {
    node: String,
    kept_claims: BTreeSet<String>,
    /// Names in the status of the Node without a PersistentVolume yet.
    reported: BTreeSet<String>,
    /// Names of PersistentVolumes of attachments, not found yet.
    attached: BTreeSet<String>,
    waiting: BTreeSet<String>,
    more: usize,
}

impl VolumeCollector {
    /// Returns a collector for a Node, as the API server shows it. `kept_claims`: claims of Pods that stay.
    pub fn new(node: &Value, kept_claims: BTreeSet<String>) -> Self {
        let mut collector = Self {
            node: node["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            kept_claims,
            reported: BTreeSet::new(),
            attached: BTreeSet::new(),
            waiting: BTreeSet::new(),
            more: 0,
        };
        let volumes = node["status"]["volumesAttached"].as_array().into_iter().flatten();
        for name in volumes.filter_map(|volume| volume["name"].as_str()) {
            add(&mut collector.reported, &mut collector.more, name.to_owned());
        }
        collector
    }

    /// Adds a VolumeAttachment of any Node.
    pub fn attachment(&mut self, object: &Value) {
        let spec = &object["spec"];
        if object["status"]["attached"] != true || spec["nodeName"] != self.node.as_str() {
            return;
        }
        match spec["source"]["persistentVolumeName"].as_str() {
            Some(name) => add(&mut self.attached, &mut self.more, name.to_owned()),
            None => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                add(&mut self.waiting, &mut self.more, format!("VolumeAttachment {name}"));
            }
        }
    }

    /// Returns true if nothing is attached. PersistentVolumes need not be read then.
    pub fn is_empty(&self) -> bool {
        self.reported.is_empty() && self.attached.is_empty() && self.waiting.is_empty() && self.more == 0
    }

    /// Adds a PersistentVolume.
    pub fn volume(&mut self, object: &Value) {
        let (name, spec) = (object["metadata"]["name"].as_str().unwrap_or_default(), &object["spec"]);
        let csi = (spec["csi"]["driver"].as_str(), spec["csi"]["volumeHandle"].as_str());
        let reported = match csi {
            (Some(driver), Some(handle)) => {
                self.reported.remove(&format!("kubernetes.io/csi/{driver}^{handle}"))
            }
            _ => false,
        };
        if !(self.attached.remove(name) || reported) {
            return;
        }
        let claim = &spec["claimRef"];
        let is_claim = claim["kind"].as_str() == Some("PersistentVolumeClaim");
        let waiting = match (claim["namespace"].as_str(), claim["name"].as_str()) {
            (Some(namespace), Some(claim)) if is_claim => {
                let claim = format!("{namespace}/{claim}");
                if self.kept_claims.contains(&claim) {
                    return;
                }
                format!("PersistentVolumeClaim {claim}")
            }
            _ => format!("PersistentVolume {name}"),
        };
        add(&mut self.waiting, &mut self.more, waiting);
    }

    /// Returns the view. An attachment without a PersistentVolume counts: its volume may be in use.
    pub fn finish(mut self) -> VolumesView {
        for name in self.attached {
            add(&mut self.waiting, &mut self.more, format!("PersistentVolume {name}"));
        }
        for name in self.reported {
            add(&mut self.waiting, &mut self.more, format!("volume {name}"));
        }
        let more = self.more + self.waiting.len().saturating_sub(list::MAX_NAMES);
        VolumesView { names: self.waiting.into_iter().take(list::MAX_NAMES).collect(), more }
    }
}

/// Adds a name, or counts it if the set is full.
fn add(set: &mut BTreeSet<String>, more: &mut usize, name: String) {
    if set.len() >= MAX_VOLUMES && !set.contains(&name) {
        *more += 1;
    } else {
        set.insert(name);
    }
}
