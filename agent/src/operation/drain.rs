//! Which Pods have to leave before the host goes down, which stay, and which nobody may evict unasked.
//!
//! As `kubectl drain` decides: Pods of DaemonSets and the kubelet's own stay; Pods with an emptyDir need `deleteEmptyDirData`, Pods
//! without a controller `force`. Pure: Pods in, a judgement out. Called by `evict`.

use jiff::{SignedDuration, Timestamp};

use super::order::Drain;

/// Between two tries to evict a Pod that its disruption budget holds, if the API server names no time.
const AGAIN: SignedDuration = SignedDuration::from_secs(5);
/// Longest wait that the API server may name.
const LONGEST: SignedDuration = SignedDuration::from_secs(60);
/// So many are named to a person.
const NAMED: usize = 10;

/// What counts of a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Kind of the object that makes it again, if one does.
    pub controller: Option<String>,
    /// The kubelet's own, from a file: the API server shows it only.
    pub mirror: bool,
    /// It has a volume that ends with it.
    pub empty_dir: bool,
    /// Its containers have ended for good.
    pub finished: bool,
    /// It is being deleted.
    pub leaving: bool,
}

impl Pod {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether it has to leave.
    pub fn has_to_leave(&self) -> bool {
        !self.mirror && !self.finished && self.controller.as_deref() != Some("DaemonSet")
    }
}

/// Why these Pods are not evicted unasked; none: they are.
pub fn refusal(pods: &[Pod], drain: &Drain) -> Option<(&'static str, String)> {
    let staying = |wrong: fn(&Pod) -> bool| {
        let names: Vec<String> = pods
            .iter()
            .filter(|pod| pod.has_to_leave() && !pod.leaving && wrong(pod))
            .map(Pod::full_name)
            .collect();
        Some(names).filter(|names| !names.is_empty())
    };
    if !drain.force
        && let Some(names) = staying(|pod| pod.controller.is_none())
    {
        let names = list(&names);
        return Some((
            "UnmanagedPods",
            format!("nobody makes these Pods again: {names}; parameter force evicts them"),
        ));
    }
    if !drain.delete_empty_dir
        && let Some(names) = staying(|pod| pod.empty_dir)
    {
        let names = list(&names);
        return Some((
            "EmptyDirData",
            format!(
                "these Pods would lose what is in their emptyDir: {names}; parameter deleteEmptyDirData evicts them"
            ),
        ));
    }
    None
}

/// When an eviction is tried again that was held, by the seconds that the API server named.
pub fn again(now: Timestamp, named: Option<u32>) -> Timestamp {
    let named = named.map(|seconds| SignedDuration::from_secs(seconds.into()));
    let wait = named.unwrap_or(AGAIN).clamp(SignedDuration::from_secs(1), LONGEST);
    now.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

/// Names for a person, not too many.
pub fn list(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENTLE: Drain =
        Drain { limit: SignedDuration::from_secs(600), grace: None, delete_empty_dir: false, force: false };

    fn pod(name: &str, controller: Option<&str>) -> Pod {
        Pod {
            namespace: "n".into(),
            name: name.into(),
            controller: controller.map(str::to_owned),
            ..Pod::default()
        }
    }

    #[test]
    fn pods_of_daemonsets_the_kubelets_own_and_those_that_have_ended_stay() {
        assert!(pod("a", Some("ReplicaSet")).has_to_leave() && pod("a", None).has_to_leave());
        assert!(!pod("a", Some("DaemonSet")).has_to_leave());
        assert!(!Pod { mirror: true, ..pod("a", Some("Node")) }.has_to_leave());
        assert!(!Pod { finished: true, ..pod("a", Some("Job")) }.has_to_leave());
    }

    #[test]
    fn pods_that_would_be_lost_and_data_that_would_be_lost_need_a_parameter() {
        let lone = [pod("lone", None)];
        let data = [Pod { empty_dir: true, ..pod("data", Some("StatefulSet")) }];
        assert_eq!(refusal(&lone, &GENTLE).unwrap().0, "UnmanagedPods");
        assert!(refusal(&data, &GENTLE).unwrap().1.contains("n/data; parameter deleteEmptyDirData"));
        assert_eq!(refusal(&lone, &Drain { force: true, ..GENTLE }), None);
        assert_eq!(refusal(&data, &Drain { delete_empty_dir: true, ..GENTLE }), None);
        let daemons = [Pod { empty_dir: true, ..pod("cni", Some("DaemonSet")) }];
        assert_eq!(refusal(&daemons, &GENTLE), None);
        assert_eq!(
            refusal(&[Pod { leaving: true, ..pod("lone", None) }], &GENTLE),
            None,
            "somebody else does it"
        );
    }

    #[test]
    fn a_held_eviction_is_tried_again_when_the_api_server_says() {
        let now = Timestamp::UNIX_EPOCH;
        let wait = |named| again(now, named).duration_since(now).as_secs();
        assert_eq!((wait(None), wait(Some(0)), wait(Some(10)), wait(Some(3600))), (5, 1, 10, 60));
    }

    #[test]
    fn many_names_are_cut() {
        let names: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(list(&names), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }
}
