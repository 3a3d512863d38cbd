//! Results for answers of the kubelet's API server, and for a missing answer.

use async_trait::async_trait;
use bedplate_process::liveness::{Liveness, PULSE_INTERVAL};
use bedplate_process::task_set::TaskSet;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;

/// No kubelet is there; the second question about it is never answered.
#[derive(Default)]
struct HangingKubelet(std::sync::atomic::AtomicBool);

#[async_trait]
impl FindKubelet for HangingKubelet {
    async fn find(&self) -> Result<Kubelet, String> {
        if self.0.swap(true, std::sync::atomic::Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(Kubelet::Nowhere)
    }
}

#[tokio::test(start_paused = true)]
async fn search_for_a_kubelet_that_hangs_is_named_by_the_watchdog() {
    let liveness = Liveness::new(CancellationToken::new());
    let (look, kubelet) = (Arc::new(Notify::new()), Arc::new(HangingKubelet::default()));
    let (reported, _seen) = watch::channel(OwnNode::default());
    let mut tasks = TaskSet::default();
    let follower = NodeFollower::new(kubelet, "a".parse().unwrap(), Arc::clone(&look), reported);
    tasks.reconcile(&liveness, "own Node", PULSE_INTERVAL * 2, follower);
    tokio::time::sleep(PULSE_INTERVAL * 10).await;
    assert_eq!(liveness.check(), Ok(()), "it waits");
    look.notify_one();
    tokio::time::sleep(PULSE_INTERVAL * 3).await;
    assert!(liveness.check().unwrap_err().starts_with("own Node sent no"));
}

fn machine(status: serde_json::Value) -> Machine {
    let mut object = json!({ "metadata": { "name": "a" }, "spec": { "provider": "manual" } });
    object["status"] = status;
    serde_json::from_value(object).unwrap()
}

fn node(uid: &str) -> Node {
    serde_json::from_value(json!({ "metadata": { "name": "a", "uid": uid } })).unwrap()
}

fn uid(state: Option<NodeState>) -> Option<String> {
    match state {
        Some(NodeState::Present(node)) => node.metadata.uid.clone(),
        _ => None,
    }
}

#[test]
fn node_that_pxed_knows_exists_without_being_ready() {
    let fresh = machine(json!({}));
    let noted = machine(json!({ "nodeRef": { "name": "a", "uid": "n" } }));
    for own in [OwnNode::Nowhere, OwnNode::NotJoined] {
        assert_eq!(node_state(&own, Some(&fresh)), Some(NodeState::Absent), "{own:?}");
    }
    assert_eq!(uid(node_state(&OwnNode::Nowhere, Some(&noted))).as_deref(), Some("n"));
    assert_eq!(node_state(&OwnNode::NotJoined, Some(&noted)), Some(NodeState::Unknown));
    let asleep = OwnNode::Asleep { node_uid: "m".to_owned() };
    assert_eq!(uid(node_state(&asleep, Some(&fresh))).as_deref(), Some("m"));
}

#[test]
fn h6_silence_is_no_word_that_the_node_is_gone() {
    let known = machine(json!({ "nodeRef": { "name": "a", "uid": "n" } }));
    let silent = |runs_api| OwnNode::Silent { why: "refused".to_owned(), runs_api };
    assert_eq!(node_state(&silent(false), Some(&known)), None, "as it was, until it is old");
    assert_eq!(node_state(&silent(true), Some(&known)), Some(NodeState::Unknown));
    assert_eq!(node_state(&OwnNode::Unasked, Some(&known)), None);
    assert_eq!(node_state(&OwnNode::Gone, Some(&known)), Some(NodeState::Absent));
}

#[test]
fn result_of_a_live_read_holds_until_the_watch_reports_a_node() {
    let mut followed = Watched { name: "a".parse().unwrap(), single: Single::default(), absent: false };
    assert!(!followed.asks(), "nothing was listed yet");
    followed.take(Event::Init);
    followed.take(Event::InitDone);
    assert!(followed.asks() && followed.own().is_none(), "a watch's word is not enough");
    followed.absent = true;
    assert_eq!(followed.own(), Some(OwnNode::Gone));
    followed.take(Event::Apply(node("n")));
    assert!(matches!(followed.own(), Some(OwnNode::Present(_))));
    followed.take(Event::Delete(node("n")));
    assert!(followed.asks() && followed.own().is_none());
}
