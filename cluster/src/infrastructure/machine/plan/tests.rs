//! Prerequisites of a claim, the claim that is made, and the status along its life.

use bedplate_api::machine::Condition;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::infrastructure::machine::status::status;

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn machine(metadata: &Value, spec: &Value) -> BedplateMachine {
    let mut value = json!({ "metadata": { "name": "w-1", "namespace": "team-a", "uid": "u-1", "generation": 1,
        "finalizers": [FINALIZER], "labels": { "cluster.x-k8s.io/cluster-name": "c" } },
        "spec": { "configurationRef": { "name": "pool" } } });
    value["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object(value)
}

fn owner(spec: &Value) -> Owner {
    let mut value = json!({ "metadata": { "name": "m-1", "namespace": "team-a", "uid": "o-1" },
        "spec": { "clusterName": "c", "version": "v1.34.4", "bootstrap": { "dataSecretName": "data" } } });
    value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object(value)
}

fn configuration(spec: &Value) -> MachineConfiguration {
    let mut value = json!({ "metadata": { "name": "pool" }, "spec": { "claimPolicy": { "namespaces": ["team-a"] },
        "template": { "image": { "reference": "r.example/node:1" }, "kubernetes": { "version": "v1.34.4" } } } });
    value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object(value)
}

fn host(status: &Value) -> Machine {
    object(json!({ "metadata": { "name": "host-1", "uid": "h-1", "labels": { "zone": "z-1" } },
        "spec": { "provider": "manual", "claimPolicy": { "namespaces": ["team-a"] } }, "status": status }))
}

fn observed(machine: BedplateMachine) -> Observed {
    let cluster = json!({ "metadata": { "name": "c", "namespace": "team-a" }, "spec": {},
        "status": { "initialization": { "infrastructureProvisioned": true } } });
    Observed {
        machine: Arc::new(machine),
        owner: Some(Arc::new(owner(&json!({})))),
        cluster: Some(Arc::new(object(cluster))),
        claim: None,
        host: None,
        configuration: Some(Arc::new(configuration(&json!({})))),
        version: None,
        is_version_read: true,
        failure_domain_label: None,
        now: now(),
    }
}

fn claim(of: &Observed, status: &Value) -> MachineClaim {
    let spec = claim_spec(of).unwrap();
    let mut claim = MachineClaim::new("host-1", spec);
    claim.status = Some(object(status.clone()));
    claim
}

fn recorded() -> BedplateMachine {
    machine(&json!({}), &json!({ "machineName": "host-1" }))
}

fn held() -> BedplateMachine {
    machine(&json!({}), &json!({ "machineName": "host-1", "providerID": "bedplate://host-1/u-1" }))
}

fn condition<'a>(conditions: &'a [Condition], type_: &str) -> (&'a str, &'a str, &'a str) {
    let found = conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (&found.status, &found.reason, &found.message)
}

fn waits(observed: &Observed) -> HostClaimedReason {
    match next(observed) {
        Next::Wait(reason, _) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn m6_no_host_is_chosen_before_infrastructure_and_bootstrap_data() {
    let mut seen = observed(machine(&json!({}), &json!({})));
    assert_eq!(next(&seen), Next::Protocol(ClaimantStep::Choose));
    seen.owner = Some(Arc::new(owner(&json!({ "bootstrap": {} }))));
    assert_eq!(waits(&seen), HostClaimedReason::WaitingForBootstrapData);
    seen.cluster = Some(Arc::new(object(json!({ "metadata": { "name": "c" }, "spec": {} }))));
    assert_eq!(waits(&seen), HostClaimedReason::WaitingForClusterInfrastructure);
    seen.cluster = None;
    assert_eq!(waits(&seen), HostClaimedReason::WaitingForOwner);
    // M3: empty data needs no Secret.
    let mut seen = observed(recorded());
    seen.owner = Some(Arc::new(owner(&json!({ "bootstrap": { "dataSecretName": "" } }))));
    assert_eq!(claim_spec(&seen).unwrap().bootstrap_secret_name, None);
}

#[test]
fn d2_configuration_must_exist_allow_the_namespace_and_have_the_version() {
    let mut seen = observed(machine(&json!({}), &json!({})));
    seen.configuration =
        Some(Arc::new(configuration(&json!({ "claimPolicy": { "namespaces": ["team-b"] } }))));
    assert_eq!(waits(&seen), HostClaimedReason::ConfigurationForbidden);
    seen.configuration = Some(Arc::new(configuration(&json!({ "claimPolicy": null }))));
    assert_eq!(waits(&seen), HostClaimedReason::ConfigurationForbidden);
    seen.configuration = None;
    assert_eq!(waits(&seen), HostClaimedReason::ConfigurationNotFound);
    let mut seen = observed(machine(&json!({}), &json!({})));
    seen.owner = Some(Arc::new(owner(&json!({ "version": "v1.35.0" }))));
    assert_eq!(waits(&seen), HostClaimedReason::VersionMismatch);
    for version in ["1.34.4", "v1.34.4"] {
        seen.owner = Some(Arc::new(owner(&json!({ "version": version }))));
        assert_eq!(next(&seen), Next::Protocol(ClaimantStep::Choose), "{version}");
    }
    let pinned = json!({ "configurationRef": { "name": "pool", "version": 3 } });
    let mut seen = observed(machine(&json!({}), &pinned));
    assert_eq!(waits(&seen), HostClaimedReason::ConfigurationNotFound);
    seen.version = Some(Arc::new(version(3, "v1.33.0")));
    assert_eq!(waits(&seen), HostClaimedReason::VersionMismatch);
}

fn version(number: i64, kubernetes: &str) -> MachineConfigurationVersion {
    object(
        json!({ "metadata": { "name": format!("pool-v{number}") }, "spec": { "configurationName": "pool", "version": number,
        "template": { "image": { "reference": "r.example/node:1" }, "kubernetes": { "version": kubernetes } } } }),
    )
}

#[test]
fn d2_claim_names_the_version_that_was_checked() {
    let mut seen = observed(recorded());
    assert_eq!(claim_spec(&seen).unwrap().configuration_ref.version, None);
    seen.version = Some(Arc::new(version(4, "v1.34.4")));
    assert_eq!(claim_spec(&seen).unwrap().configuration_ref.version, Some(4));
    // The configuration has changed, and has no version of its present template yet.
    seen.version = Some(Arc::new(version(4, "v1.33.0")));
    assert_eq!(claim_spec(&seen).unwrap().configuration_ref.version, None);
    let given = json!({ "machineName": "host-1", "configurationRef": { "name": "pool", "version": 3 } });
    let mut seen = observed(machine(&json!({}), &given));
    seen.version = Some(Arc::new(version(3, "v1.33.0")));
    assert_eq!(claim_spec(&seen).unwrap().configuration_ref.version, Some(3));
}

/// Status of a host that is enrolled and heard.
fn enrolled(more: &Value) -> Value {
    let mut status = json!({ "enrollment": { "keyID": "0123456789abcdef0123456789abcdef" },
        "agent": { "features": ["claims"], "lastHeartbeatTime": "2026-01-01T00:59:00Z" } });
    status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    status
}

fn record(namespace: &str, id: &str, state: &str) -> Value {
    json!({ "claim": { "providerID": id, "claimant": { "namespace": namespace, "name": "w-1" }, "state": state,
        "since": "2026-01-01T00:00:00Z" } })
}

#[test]
fn d1_recorded_host_is_claimed_only_if_it_is_eligible() {
    let step = |status: &Value, spec: Option<Value>| {
        let mut seen = observed(recorded());
        let mut host = host(status);
        if let Some(policy) = spec {
            host.spec.claim_policy = serde_json::from_value(policy).unwrap();
        }
        seen.host = Some(Arc::new(host));
        next(&seen)
    };
    let none = json!({});
    assert_eq!(step(&enrolled(&none), None), Next::Protocol(ClaimantStep::CreateClaim));
    for (status, policy) in [
        (enrolled(&none), Some(json!({ "namespaces": ["team-b"] }))),
        (enrolled(&none), Some(Value::Null)),
        (none.clone(), None),
        (enrolled(&record("team-b", "bedplate://host-1/u-9", "Joined")), None),
        (enrolled(&record("team-a", "bedplate://host-1/u-1", "Released")), None),
        (enrolled(&json!({ "selected": { "name": "w", "version": 1, "source": "Selector" } })), None),
    ] {
        let found = step(&status, policy.clone());
        assert_eq!(found, Next::Protocol(ClaimantStep::Forget), "{status} {policy:?}");
    }
    let mut seen = observed(recorded());
    seen.host = Some(Arc::new(host(&enrolled(&none))));
    seen.configuration =
        Some(Arc::new(configuration(&json!({ "claimPolicy": { "namespaces": ["team-b"] } }))));
    assert_eq!(waits(&seen), HostClaimedReason::ConfigurationForbidden);
    seen.owner = Some(Arc::new(owner(&json!({ "bootstrap": {} }))));
    assert_eq!(waits(&seen), HostClaimedReason::WaitingForBootstrapData);
}

#[test]
fn d8_lost_claim_of_a_silent_host_is_not_made_again_at_the_release() {
    let spec = json!({ "machineName": "host-1", "providerID": "bedplate://host-1/u-1" });
    let mut seen = observed(machine(&json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), &spec));
    let own = record("team-a", "bedplate://host-1/u-1", "Joined");
    seen.host = Some(Arc::new(host(&enrolled(&own))));
    assert_eq!(next(&seen), Next::Protocol(ClaimantStep::CreateClaim));
    seen.host = Some(Arc::new(host(&own)));
    let decided = next(&seen);
    assert_eq!(decided, Next::Protocol(ClaimantStep::AwaitHost));
    let found = status(&seen, &decided, now());
    let message = condition(&found.conditions, "HostClaimed").2;
    assert!(
        message.contains("power it off, then confirm it: `bedplate claim release host-1 --host-is-off`"),
        "{message}"
    );
    let mut off = host(&own);
    off.metadata.annotations =
        Some([("bedplate.dev/host-is-off".to_owned(), "bedplate://host-1/u-1".to_owned())].into());
    seen.host = Some(Arc::new(off));
    assert_eq!(next(&seen), Next::Protocol(ClaimantStep::RemoveFinalizer));
}

#[test]
fn paused_object_is_left_as_it_is() {
    let paused = machine(
        &json!({ "annotations": { "cluster.x-k8s.io/paused": "" }, "deletionTimestamp": "2026-01-01T00:00:00Z" }),
        &json!({}),
    );
    let seen = observed(paused);
    assert_eq!(next(&seen), Next::Paused);
    let status = status(&seen, &Next::Paused, now());
    assert_eq!(condition(&status.conditions, "Paused").0, "True");
    assert_eq!(status.conditions.len(), 1);
}

#[test]
fn d1_claim_has_the_recorded_host_and_the_claimants_uid() {
    let seen = observed(recorded());
    let spec = claim_spec(&seen).unwrap();
    assert_eq!(spec.provider_id, "bedplate://host-1/u-1");
    assert_eq!((spec.cluster_name.as_str(), spec.role), ("c", NodeRole::Worker));
    assert_eq!(spec.bootstrap_secret_name.as_deref(), Some("data"));
    // Restored from a backup: the UID is another one, the ID of the claim stays.
    let restored = machine(
        &json!({ "uid": "u-2" }),
        &json!({ "machineName": "host-1", "providerID": "bedplate://host-1/u-1" }),
    );
    let spec = claim_spec(&observed(restored)).unwrap();
    assert_eq!((spec.provider_id.as_str(), spec.claimant.uid.as_str()), ("bedplate://host-1/u-1", "u-2"));
}

#[test]
fn d5_node_name_is_a_dns_label_of_its_own() {
    assert_eq!(node_name("w-1").as_str(), "w-1");
    let long = "a.".repeat(60) + "b";
    let names = [node_name(&long), node_name(&format!("{long}c")), node_name("a.b")];
    assert!(names.iter().all(|name| name.as_str().len() <= 63), "{names:?}");
    assert!(names[0] != names[1] && names[2].as_str().starts_with("a-b-"), "{names:?}");
}

#[test]
fn claim_of_another_claimant_is_forgotten_or_lost() {
    let other =
        observed(machine(&json!({ "name": "w-2", "uid": "u-2" }), &json!({ "machineName": "host-1" })));
    let claim = Arc::new(claim(&other, &json!({})));
    let mut seen = observed(recorded());
    (seen.claim, seen.host) = (Some(claim.clone()), Some(Arc::new(host(&json!({})))));
    assert_eq!(next(&seen), Next::Protocol(ClaimantStep::Forget));
    let mut seen = observed(held());
    (seen.claim, seen.host) = (Some(claim), Some(Arc::new(host(&json!({})))));
    let decided = next(&seen);
    assert_eq!(decided, Next::Protocol(ClaimantStep::Lost));
    let status = status(&seen, &decided, now());
    assert_eq!(condition(&status.conditions, "HostClaimed").1, "ClaimLost");
    assert_eq!(condition(&status.conditions, "Ready").0, "False");
}

#[test]
fn d1_lost_claim_object_is_made_again_only_if_the_host_still_runs_it() {
    let reported = |id: &str, state: &str| {
        json!({ "claim": { "providerID": id, "claimant": { "namespace": "team-a", "name": "w-1" }, "state": state,
            "since": "2026-01-01T00:00:00Z" } })
    };
    for (status, expected) in [
        (reported("bedplate://host-1/u-1", "Joined"), ClaimantStep::CreateClaim),
        (reported("bedplate://host-1/u-1", "Released"), ClaimantStep::Lost),
        (reported("bedplate://host-1/u-2", "Joined"), ClaimantStep::Lost),
        (record("team-b", "bedplate://host-1/u-1", "Joined"), ClaimantStep::Lost),
        (json!({}), ClaimantStep::Lost),
    ] {
        let mut seen = observed(held());
        seen.host = Some(Arc::new(host(&status)));
        assert_eq!(next(&seen), Next::Protocol(expected), "{status}");
    }
    let seen = observed(held());
    let decided = next(&seen);
    assert_eq!(condition(&status(&seen, &decided, now()).conditions, "HostClaimed").1, "MachineGone");
}

#[test]
fn m7_provisioned_follows_the_start_of_the_bootstrap_and_stays() {
    let mut seen = observed(held());
    seen.host =
        Some(Arc::new(host(&json!({ "addresses": [{ "type": "InternalIP", "address": "10.7.0.5" }] }))));
    seen.failure_domain_label = Some("zone".to_owned());
    let id = "bedplate://host-1/u-1";
    let mut last = None;
    for (state, provisioned, ready, reason) in [
        (json!({}), None, "False", "Preparing"),
        (json!({ "providerID": id, "state": "Preparing" }), None, "False", "Preparing"),
        // An earlier claim of the host.
        (json!({ "providerID": "bedplate://host-1/u-0", "state": "Joined" }), None, "False", "Preparing"),
        (json!({ "providerID": id, "state": "Bootstrapping" }), Some(true), "False", "Bootstrapping"),
        (
            json!({ "providerID": id, "state": "Joined", "node": { "name": "w-1", "uid": "n" } }),
            Some(true),
            "True",
            "Joined",
        ),
        (
            json!({ "providerID": id, "state": "Failed", "reason": "Interrupted" }),
            Some(true),
            "False",
            "Failed",
        ),
    ] {
        seen.claim = Some(Arc::new(claim(&seen, &state)));
        let decided = next(&seen);
        assert_eq!(decided, Next::Protocol(ClaimantStep::Claimed));
        let found = status(&seen, &decided, now());
        assert_eq!(found.initialization.as_ref().and_then(|found| found.provisioned), provisioned, "{state}");
        assert_eq!((found.ready, condition(&found.conditions, "Ready").0), (provisioned, ready), "{state}");
        assert_eq!(condition(&found.conditions, "Ready").1, reason, "{state}");
        assert_eq!((found.addresses.len(), found.failure_domain.as_deref()), (1, Some("z-1")));
        let mut next = (*seen.machine).clone();
        next.status = Some(found.clone());
        seen.machine = Arc::new(next);
        last = Some(found);
    }
    assert!(condition(&last.unwrap().conditions, "Ready").2.contains("Interrupted"));
}

#[test]
fn m9_deleted_object_stays_until_its_host_is_released() {
    let deleted = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
    let spec = json!({ "machineName": "host-1", "providerID": "bedplate://host-1/u-1" });
    let mut seen = observed(machine(&deleted, &spec));
    seen.host = Some(Arc::new(host(&json!({}))));
    seen.claim = Some(Arc::new(claim(&seen, &json!({}))));
    (seen.owner, seen.cluster) = (None, None);
    assert_eq!(next(&seen), Next::Protocol(ClaimantStep::DeleteClaim));
    let mut going = (**seen.claim.as_ref().unwrap()).clone();
    going.metadata.deletion_timestamp = Some(bedplate_api::machine::Time(now()));
    seen.claim = Some(Arc::new(going.clone()));
    let decided = next(&seen);
    assert_eq!(decided, Next::Protocol(ClaimantStep::AwaitRelease));
    let found = status(&seen, &decided, now());
    assert_eq!(condition(&found.conditions, "Ready").1, "Releasing");
    let message = condition(&found.conditions, "Ready").2;
    assert!(
        message.contains("power it off, then confirm it: `bedplate claim release host-1 --host-is-off`"),
        "{message}"
    );
    let mut fenced = going.clone();
    let is_fenced = json!({ "type": "Fenced", "status": "True", "reason": "PoweredOff", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    fenced.status = Some(object(json!({ "conditions": [is_fenced] })));
    seen.claim = Some(Arc::new(fenced));
    assert_eq!(next(&seen), Next::Protocol(ClaimantStep::RemoveFinalizer), "D8");
    for state in ["Released", "Wiping"] {
        going.status = Some(object(json!({ "providerID": "bedplate://host-1/u-1", "state": state })));
        seen.claim = Some(Arc::new(going.clone()));
        assert_eq!(next(&seen), Next::Protocol(ClaimantStep::RemoveFinalizer), "{state}");
    }
    seen.claim = None;
    assert_eq!(next(&seen), Next::Protocol(ClaimantStep::RemoveFinalizer));
}

#[test]
fn d7_claim_names_the_stronger_release_of_claimant_and_host() {
    for (asked, policy, expected) in [
        (None, None, "Empty"),
        (Some("Wipe"), None, "Wipe"),
        (None, Some("Wipe"), "Wipe"),
        (Some("Empty"), Some("Wipe"), "Wipe"),
        (Some("Wipe"), Some("Empty"), "Wipe"),
    ] {
        let mut spec = json!({ "machineName": "host-1" });
        if let Some(asked) = asked {
            spec["release"] = json!(asked);
        }
        let mut seen = observed(machine(&json!({}), &spec));
        let mut one = host(&json!({}));
        one.spec.claim_policy.as_mut().unwrap().release = policy.map(|policy| object(json!(policy)));
        seen.host = Some(Arc::new(one));
        let made = claim_spec(&seen).unwrap();
        assert_eq!(json!(made.release), expected, "{asked:?} {policy:?}");
    }
}

#[test]
fn d1_host_with_a_clock_ahead_is_not_silent_when_its_claim_is_lost() {
    let record = json!({ "providerID": "bedplate://host-1/u-1", "claimant": { "namespace": "team-a", "name": "w-1" },
        "state": "Joined", "since": "2026-01-01T00:00:00Z" });
    for (heartbeat, expected) in [
        ("2026-01-01T00:59:00Z", Host::RunsOwn),
        ("2026-01-01T00:30:00Z", Host::SilentOwn),
        ("2027-01-01T00:00:00Z", Host::RunsOwn),
    ] {
        let status = json!({ "claim": record, "agent": { "lastHeartbeatTime": heartbeat } });
        let seen = Observed { host: Some(Arc::new(host(&status))), ..observed(held()) };
        assert_eq!(super::host(&seen), expected, "{heartbeat}");
    }
}
