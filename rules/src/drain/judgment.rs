//! Eviction decisions: whether Pods may be evicted without confirmation, and when a blocked eviction is
//! retried.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::drain::pod::Pod;

/// Interval between eviction attempts if the API server names none and a disruption budget blocks the Pod.
const EVICTION_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum wait that the API server may request.
const MAX_EVICTION_DELAY: Duration = Duration::from_secs(60);
/// Maximum number of Pods that a message names.
const MAX_NAMED_PODS: usize = 10;

/// Parameters of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// Timeout of the drain, from its start.
    pub limit: SignedDuration,
    /// Termination grace period of a Pod in seconds. If `None`, the Pod's own period applies.
    pub grace: Option<u32>,
    /// True if Pods are evicted although the data of their emptyDir is lost.
    pub delete_empty_dir: bool,
    /// True if Pods without a controller are evicted too.
    pub force: bool,
}

/// Reason why Pods are not evicted without confirmation, with the names of those Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Pods that no controller re-creates.
    Unmanaged(Vec<String>),
    /// Pods that would lose the content of their emptyDir.
    EmptyDir(Vec<String>),
}

/// Returns the reason why these Pods must not be evicted without confirmation. Returns `None` if they may be
/// evicted.
pub fn refusal(pods: &[Pod], drain: &Drain) -> Option<Refusal> {
    let staying = |wrong: fn(&Pod) -> bool| {
        let names: Vec<String> = pods
            .iter()
            .filter(|pod| pod.has_to_leave() && !pod.leaving && wrong(pod))
            .map(Pod::full_name)
            .collect();
        Some(names).filter(|names| !names.is_empty())
    };
    let unmanaged = if drain.force { None } else { staying(|pod| pod.controller.is_none()) };
    let empty_dir = if drain.delete_empty_dir { None } else { staying(|pod| pod.empty_dir) };
    unmanaged.map(Refusal::Unmanaged).or(empty_dir.map(Refusal::EmptyDir))
}

/// Returns the time at which a blocked eviction is retried, by the seconds that the API server named.
pub fn again(now: Timestamp, named: Option<u32>) -> Timestamp {
    let wait = SignedDuration::try_from(wait(named)).unwrap_or(SignedDuration::ZERO);
    now.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

/// Returns the wait before a blocked eviction is retried. `named` is the number of seconds that the API
/// server requested.
pub fn wait(named: Option<u32>) -> Duration {
    named
        .map_or(EVICTION_INTERVAL, |seconds| Duration::from_secs(seconds.into()))
        .clamp(Duration::from_secs(1), MAX_EVICTION_DELAY)
}

/// Returns the names as text for users, shortened.
pub fn list(names: &[String]) -> String {
    list_of(names, MAX_NAMED_PODS)
}

/// Returns the first names as text for users, at most this many, and how many more there are.
pub fn list_of(names: &[String], most: usize) -> String {
    let shown = names.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
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
    fn losing_pods_or_data_needs_confirmation() {
        let lone = [pod("lone", None)];
        let data = [Pod { empty_dir: true, ..pod("data", Some("StatefulSet")) }];
        assert_eq!(refusal(&lone, &GENTLE), Some(Refusal::Unmanaged(vec!["n/lone".to_owned()])));
        assert_eq!(refusal(&data, &GENTLE), Some(Refusal::EmptyDir(vec!["n/data".to_owned()])));
        assert_eq!(refusal(&lone, &Drain { force: true, ..GENTLE }), None);
        assert_eq!(refusal(&data, &Drain { delete_empty_dir: true, ..GENTLE }), None);
        let daemons = [Pod { empty_dir: true, ..pod("cni", Some("DaemonSet")) }];
        assert_eq!(refusal(&daemons, &GENTLE), None);
        let leaving = [Pod { leaving: true, ..pod("lone", None) }];
        assert_eq!(refusal(&leaving, &GENTLE), None, "the Pod is being deleted already");
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
