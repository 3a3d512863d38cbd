//! Enrollment after pxed's store was damaged or deleted, without a cluster: no record names the key in force.

use jiff::SignedDuration;

use super::takeover::{a_report, intrude, report};
use super::*;
use crate::enroll::authority::Authority;
use crate::enroll::csr::key_digest;

/// Damage of the store while pxed was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Damaged,
    Deleted,
}

impl Loss {
    /// Loses the store of a pxed that is stopped.
    fn occur(self, authority: &Authority, directory: &std::path::Path) {
        let store = directory.join("state/store");
        match self {
            Self::Damaged => std::fs::write(&store, vec![b'x'; 100_000]).unwrap(),
            Self::Deleted => std::fs::remove_file(&store).unwrap(),
        }
        until_younger(authority, directory);
    }
}

/// Enrolls a host, stops pxed, loses its store and starts it again. Returns the host's certificate and key, too.
async fn after(loss: Loss) -> (Agents, String, KeyPair) {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let Rig { authority, directory, .. } = agents.stop().await;
    loss.occur(&authority, directory.path());
    let agents = Agents::start(Rig::reopen(directory).with_images().await).await;
    assert_eq!(agents.rig.store.was_lost(), loss == Loss::Damaged);
    (agents, certificate, key)
}

/// Waits until a file that is made now is younger than the authority: the clock of a file system moves in steps of milliseconds.
fn until_younger(authority: &Authority, directory: &std::path::Path) {
    while !authority.precedes(tempfile::NamedTempFile::new_in(directory).unwrap().path()) {}
}

/// Lets pxed have listened to node1 for this time.
fn has_listened(agents: &Agents, seconds: i64) {
    let since = Timestamp::now() - SignedDuration::from_secs(seconds);
    agents.rig.heard.follow(&Snapshot::default(), &agents.rig.machines.load(), since);
}

fn waits(answer: &EnrollResponse, text: &str) {
    let EnrollResponse::Pending { message, .. } = answer else { panic!("{answer:?}") };
    assert!(message.contains("no record of the key") && message.contains(text), "{message}");
}

#[tokio::test]
async fn trust_3_after_a_damaged_store_no_earlier_key_is_adopted() {
    let (agents, certificate, key) = after(Loss::Damaged).await;
    let host = agents.client(Some((&certificate, &key)));
    let (status, text) = agents.post(&host, "/v1/report", &a_report()).await;
    assert_eq!((status, text.contains("lost its record")), (403, true), "{text}");
    // A new key waits, too: its host may run.
    let seed = agents.seed(2).await;
    let asked = request(&seed, &csr(&KeyPair::generate().unwrap(), Some("node1")));
    waits(&agents.enroll(&asked).await.unwrap(), "was heard at");
    agents.allow().await;
    assert!(matches!(agents.enroll(&asked).await, Ok(EnrollResponse::Enrolled { .. })));
    let reports = agents.rig.reports();
    assert!(
        reports.contains("reason: KeyChanged") && reports.contains("no record of the key before"),
        "{reports}"
    );
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_running_host_without_a_record_keeps_new_keys_out() {
    for loss in [Loss::Damaged, Loss::Deleted] {
        let (agents, certificate, key) = after(loss).await;
        has_listened(&agents, 121);
        let host = agents.client(Some((&certificate, &key)));
        assert_eq!(report(&agents, &host).await, 403, "{loss:?}: the certificate gives no right");
        let seed = agents.seed(2).await;
        let asked = request(&seed, &csr(&KeyPair::generate().unwrap(), Some("node1")));
        // The boot's own news are written first, as they are minutes before a host enrolls.
        agents.rig.reports();
        waits(&agents.enroll(&asked).await.unwrap(), "was heard at");
        assert_eq!(agents.condition("Enrolled").1, "HeardElsewhere", "{loss:?}");
        assert_eq!(report(&agents, &host).await, 403, "{loss:?}");
        agents.stop().await;
    }
}

/// A host that is refused asks again after 90 s at most.
#[tokio::test]
async fn trust_6_refused_host_is_heard_for_two_minutes() {
    let directory = Rig::new().directory;
    let agents = Agents::start(Rig::reopen(directory).with_images().await).await;
    has_listened(&agents, 1000);
    let known = agents.rig.machines.load().by_name(&"node1".parse().unwrap()).unwrap().clone();
    let ago = |seconds| Timestamp::now() - SignedDuration::from_secs(seconds);
    agents.rig.heard.unrecorded(&known, key_digest(b"host"), ago(100));
    let key = KeyPair::generate().unwrap();
    waits(&intrude(&agents, 1, &key).await, "was heard at");
    agents.rig.heard.unrecorded(&known, key_digest(b"host"), ago(121));
    let answer = intrude(&agents, 2, &key).await;
    assert!(matches!(answer, EnrollResponse::Enrolled { .. }), "{answer:?}");
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_host_that_kept_its_key_does_not_keep_itself_out() {
    for loss in [Loss::Damaged, Loss::Deleted] {
        let (agents, certificate, key) = after(loss).await;
        has_listened(&agents, 121);
        let host = agents.client(Some((&certificate, &key)));
        assert_eq!(report(&agents, &host).await, 403, "{loss:?}");
        let answer = intrude(&agents, 2, &key).await;
        assert!(matches!(answer, EnrollResponse::Enrolled { .. }), "{loss:?}: {answer:?}");
        agents.stop().await;
    }
}

#[tokio::test]
async fn trust_6_after_a_lost_store_pxed_listens_before_a_new_key() {
    for loss in [Loss::Damaged, Loss::Deleted] {
        let (agents, ..) = after(loss).await;
        let key = KeyPair::generate().unwrap();
        let seed = agents.seed(2).await;
        let asked = request(&seed, &csr(&key, Some("node1")));
        waits(&agents.enroll(&asked).await.unwrap(), "listens first");
        agents.stop().await;

        let (agents, ..) = after(loss).await;
        has_listened(&agents, 121);
        let answer = intrude(&agents, 2, &key).await;
        assert!(matches!(answer, EnrollResponse::Enrolled { .. }), "{loss:?}: {answer:?}");
        agents.stop().await;
    }
}

#[tokio::test]
async fn trust_6_first_key_does_not_wait_after_a_restart_with_the_store() {
    let directory = Rig::new().directory;
    let agents = Agents::start(Rig::reopen(directory).with_images().await).await;
    let answer = intrude(&agents, 1, &KeyPair::generate().unwrap()).await;
    assert!(matches!(answer, EnrollResponse::Enrolled { .. }), "{answer:?}");
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_first_key_after_a_lost_store_waits_without_a_warning() {
    for loss in [Loss::Damaged, Loss::Deleted] {
        let Rig { authority, directory, .. } = Rig::new();
        loss.occur(&authority, directory.path());
        first_key_waits(Agents::start(Rig::reopen(directory).with_images().await).await).await;
    }
}

async fn first_key_waits(agents: Agents) {
    let seed = agents.seed(1).await;
    let asked = request(&seed, &csr(&KeyPair::generate().unwrap(), Some("node1")));
    agents.rig.reports();
    waits(&agents.enroll(&asked).await.unwrap(), "listens first");
    assert_eq!(agents.condition("Enrolled"), ("False".to_owned(), "AwaitingEnrollment".to_owned()));
    let status = agents.rig.registry.get(&"node1".parse().unwrap()).unwrap();
    let enrolled = status.conditions.iter().find(|c| c.type_ == "Enrolled").unwrap();
    assert!(enrolled.message.contains("listens first"), "{}", enrolled.message);
    assert!(!agents.rig.reports().contains("HeardElsewhere"));
    assert_eq!(agents.counters.enrollments.get(Enrollment::Pending), 1);
    // pxed has switched the machine on since: no host of before runs.
    agents.rig.registry.update(&"node1".parse().unwrap(), |status| {
        let power = serde_json::json!({ "state": "On", "lastSwitchTime": Timestamp::now().to_string() });
        status.power = serde_json::from_value(power).unwrap();
    });
    assert!(matches!(agents.enroll(&asked).await, Ok(EnrollResponse::Enrolled { .. })));
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_issued_token_and_permission_do_not_wait_for_a_lost_store() {
    for is_issued in [true, false] {
        let (agents, ..) = after(Loss::Deleted).await;
        let mut seed = agents.seed(2).await;
        if is_issued {
            let owner = crate::boot::Owner::Machine { name: "node1".parse().unwrap(), uid: "u1".to_owned() };
            let issued = agents.rig.boots().seeds().issue(owner, Timestamp::now()).await.unwrap();
            (seed.boot_id, seed.token) = (issued.0, Some(issued.1));
        } else {
            agents.allow().await;
        }
        let asked = request(&seed, &csr(&KeyPair::generate().unwrap(), Some("node1")));
        let answer = agents.enroll(&asked).await;
        assert!(matches!(answer, Ok(EnrollResponse::Enrolled { .. })), "{is_issued}: {answer:?}");
        agents.stop().await;
    }
}

/// The store comes from a backup, and names the key before. The host that runs is refused, and keeps other keys out.
#[tokio::test]
async fn trust_6_host_that_is_younger_than_a_restored_store_keeps_new_keys_out() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    agents.enrolled(1, &KeyPair::generate().unwrap()).await;
    let directory = agents.stop().await.directory;
    let store = directory.path().join("state/store");
    let backup = std::fs::read(&store).unwrap();
    // Certificates have whole seconds.
    let before = Timestamp::now().as_second();
    while Timestamp::now().as_second() <= before {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let agents = Agents::start(Rig::reopen(directory).with_images().await).await;
    agents.allow().await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(2, &key).await;
    let directory = agents.stop().await.directory;
    std::fs::write(&store, backup).unwrap();

    let agents = Agents::start(Rig::reopen(directory).with_images().await).await;
    has_listened(&agents, 121);
    let host = agents.client(Some((&certificate, &key)));
    assert_eq!(report(&agents, &host).await, 403);
    let known = agents.rig.machines.load().by_name(&"node1".parse().unwrap()).unwrap().clone();
    assert!(agents.rig.heard.last_unrecorded(&known, &key_digest(b"another host")).is_some());
    let answer = intrude(&agents, 3, &KeyPair::generate().unwrap()).await;
    assert!(matches!(answer, EnrollResponse::Pending { .. }), "{answer:?}");
    agents.stop().await;
}
