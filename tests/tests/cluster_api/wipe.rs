//! `release: Wipe` with the real provider (docs/guides/claims.md, "Wipe"). The test stands in for pxed and for the agents before and after the wipe.

use serde_json::{Value, json};

use super::site::{Site, Team, claims, condition};
use super::wiped_host::Host;

#[test]
fn d7_wiped_host_is_claimed_again_and_its_former_key_ends_nothing() {
    let site = Site::shared();
    let team = Team::new(site, "wiping");
    let former = Host::new("wiping-1", team.name);
    let name = former.agent.name.as_str();
    former.has_disk(&Value::Null);
    team.secret("data");
    team.provision();
    team.machine("w-1", Some("data"));
    let until_granted = |host: &Host, machine: &str| {
        site.until(&team, ("bpm", machine), "a claim", |found| claims(found, "HostClaimed"));
        host.heartbeat();
        site.until(&team, ("mcl", name), "the grant", |found| condition(found, "Granted").0 == "True")
    };
    let claim = until_granted(&former, "w-1");
    assert_eq!(claim["spec"]["release"], "Wipe", "the stronger one of both");
    for state in ["Preparing", "Bootstrapping", "Joined"] {
        former.agent.report(state);
    }
    team.objects.begin_delete("bpm", "w-1").unwrap();
    site.until(&team, ("mcl", name), "its deletion", |found| {
        found["metadata"]["deletionTimestamp"].is_string()
    });
    for state in ["Releasing", "Wiping"] {
        former.agent.report(state);
    }
    // The claimant does not wait for the wipe.
    site.until_gone(&team, ("bpm", "w-1"));
    let until_unwiped = |reason: &str| {
        site.until(&team, ("mcl", name), reason, |found| condition(found, "Wiped").1 == reason);
    };
    until_unwiped("AwaitingWipe");
    // A client with a copied key reports the whole wipe.
    former.has_disk(&claim["metadata"]["uid"]);
    former.agent.report("Released");
    until_unwiped("KeyNotReplaced");
    // The provider has seen that when it counts the host as one whose key may be a copy.
    former.waits_for_its_key(true);
    team.machine("w-2", Some("data"));
    site.until(&team, ("bpm", "w-2"), "that the host waits for its key", |found| {
        condition(found, "HostClaimed").2.contains("1 wait with another key than the one in force")
    });
    let kept = team.objects.get("mcl", name).unwrap().expect("the former key ended the claim");
    assert_eq!(kept["metadata"]["uid"], claim["metadata"]["uid"]);
    // The former tenant cannot keep the host by a pause.
    let pause = |paused: bool| {
        team.objects.merge("cluster", team.name, &json!({ "spec": { "paused": paused } })).unwrap();
        let status = if paused { "True" } else { "False" };
        site.until(&team, ("bpm", "w-2"), "its pause", |found| condition(found, "Paused").0 == status);
    };
    pause(true);
    // pxed admits the key of the wiped host.
    let next = Host::enroll(name, team.name);
    assert_ne!(next.key, former.key);
    next.waits_for_its_key(false);
    site.until_gone(&team, ("mcl", name));
    pause(false);
    let again = until_granted(&next, "w-2");
    assert_ne!(again["metadata"]["uid"], claim["metadata"]["uid"]);
    assert_eq!(again["metadata"]["annotations"]["bedplate.dev/enrollment"], *next.key);
    next.agent.until_may_read("data", true);
    assert!(!former.agent.may_read("data"), "the former key reads the next tenant's Secret");
    let status = json!({ "providerID": again["spec"]["providerID"], "state": "Released", "since": "2026-01-01T00:00:00Z" });
    let tried = former.agent.objects.apply_status("bedplate-agent", ("mcl", name), &status);
    let why =
        tried.map_err(|error| format!("{error:#}")).expect_err("the former key reports on the next claim");
    assert!(why.contains("is not of the enrollment"), "{why}");
}
