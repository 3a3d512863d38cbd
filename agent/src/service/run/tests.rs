//! State of the loop between two acts, and the plan for it.

use std::sync::LazyLock;

use bedplate_api::enrollment::KeyId;
use bedplate_api::id::BootId;
use jiff::SignedDuration;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};

use super::*;
use crate::plane::AskServerError;

mod liveness;

fn agent(directory: &std::path::Path) -> Agent {
    let path = directory.to_owned();
    let places = Places { state: path.clone(), run: path.clone(), root: path };
    Agent::new(places, true, Notifier::default(), Liveness::new(CancellationToken::new()))
}

/// A certificate that names the enrollment group of its key.
static CERTIFICATE: LazyLock<String> = LazyLock::new(|| certificate(true));

fn certificate(has_group: bool) -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    if has_group {
        let group = KeyId::of_public_key(&key.subject_public_key_info()).group();
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.self_signed(&key).unwrap().pem()
}

fn enrollment(now: Timestamp) -> Enrollment {
    let day = SignedDuration::from_hours(24);
    Enrollment {
        machine: "node-1".parse().unwrap(),
        site: "default".parse().unwrap(),
        boot_id: BootId::from_random([1; 16]),
        endpoints: vec!["https://p:8443".to_owned()],
        ca_pem: "CA".to_owned(),
        certificate_pem: CERTIFICATE.clone(),
        not_before: now - day * 60,
        not_after: now + day * 30,
        heartbeat_seconds: 30,
        kubernetes: None,
        machine_uid: None,
    }
}

/// Returns the next act by a clock that shows `now`.
fn next(agent: &Agent, now: Timestamp) -> Next {
    plan(&agent.observed(now))
}

fn failed() -> Result<Outcome, ActError> {
    Err(ActError::Challenge("x".to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_holds_no_act_back_longer_than_its_own_wait() {
    let directory = tempfile::tempdir().unwrap();
    let (now, hour) = (Timestamp::now(), SignedDuration::from_hours(1));
    let mut agent = agent(directory.path());
    agent.adopt(Some(Enrollment { not_before: now - hour * 48, ..enrollment(now) }));
    assert_eq!(next(&agent, now), Next::Report);
    agent.settle(Act::Report, 2, Ok(Outcome::Done));
    agent.last_report = Some(now);
    assert!(matches!(next(&agent, now), Next::Wait { .. }));
    assert_eq!(next(&agent, now - hour * 3), Next::Report, "the last report is one of the future");
    agent.adopt(Some(enrollment(now)));
    assert_eq!(next(&agent, now + hour), Next::Renew);
    agent.settle(Act::Renew, 1, failed());
    assert_ne!(next(&agent, now + hour), Next::Renew, "it failed just now");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(next(&agent, now + hour - SignedDuration::from_mins(30)), Next::Renew);
}

#[tokio::test(start_paused = true)]
async fn renewal_that_the_cluster_rejects_too_is_not_repeated_immediately() {
    let directory = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let mut agent = agent(directory.path());
    agent.adopt(Some(Enrollment { not_before: now, ..enrollment(now) }));
    agent.last_report = Some(now);
    agent.disowned = true;
    assert_eq!(next(&agent, now), Next::Renew);
    agent.settle(Act::Renew, 1, Ok(Outcome::Done));
    assert_ne!(next(&agent, now), Next::Renew);
    tokio::time::advance(DISOWNED_RENEWAL_INTERVAL * 2).await;
    assert_eq!(next(&agent, now), Next::Renew);
}

#[tokio::test(start_paused = true)]
async fn d4_certificate_without_enrollment_group_is_renewed_once_in_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let mut agent = agent(directory.path());
    let earlier = Enrollment { certificate_pem: certificate(false), not_before: now, ..enrollment(now) };
    agent.adopt(Some(earlier.clone()));
    agent.last_report = Some(now);
    assert_eq!(next(&agent, now), Next::Renew, "immediately");
    // A signer that drops the group is not asked in a circle.
    agent.adopt(Some(earlier));
    agent.last_report = Some(now);
    agent.settle(Act::Renew, 1, Ok(Outcome::Done));
    assert_ne!(next(&agent, now), Next::Renew);
    tokio::time::advance(DISOWNED_RENEWAL_INTERVAL * 2).await;
    assert_eq!(next(&agent, now), Next::Renew);
    agent.adopt(Some(Enrollment { not_before: now, ..enrollment(now) }));
    agent.last_report = Some(now);
    agent.settle(Act::Renew, 1, Ok(Outcome::Done));
    assert_ne!(next(&agent, now), Next::Renew, "the group is there");
}

#[tokio::test(start_paused = true)]
async fn refused_report_is_retried_within_two_seconds() {
    let now = Timestamp::now();
    for status in [401, 403, 404, 409, 422, 429, 500, 503] {
        let directory = tempfile::tempdir().unwrap();
        let mut agent = agent(directory.path());
        agent.adopt(Some(Enrollment { not_before: now, ..enrollment(now) }));
        assert_eq!(next(&agent, now), Next::Report);
        let text = String::new;
        let refused = AskServerError::Refused { what: text(), status, reason: text(), message: text() };
        agent.settle(Act::Report, 2, Err(ActError::Cluster(refused)));
        assert!(matches!(next(&agent, now), Next::Wait { .. }), "{status}");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(next(&agent, now), Next::Report, "{status}");
    }
}
