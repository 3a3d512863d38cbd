//! Claims that are lost, host Machines that are deleted, and hosts that enroll again while a claim is granted
//! (docs/reference/infrastructure-provider.md, "Failures").

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use serde_json::{Value, json};

use super::site::{Agent, LONG_AGO, PATIENCE, Site, Team, claims, condition, ready};

const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

fn admin() -> &'static Objects {
    Kubernetes::shared().objects().unwrap()
}

/// Has a Machine of Cluster API claim a host, and grants the claim. Returns the MachineClaim.
fn granted(site: &Site, team: &Team, machine: &str, data: &str, agent: &Agent) -> Value {
    team.machine(machine, Some(data));
    site.until(team, ("bpm", machine), "a claim", |found| claims(found, "HostClaimed"));
    agent.heartbeat();
    site.until(team, ("mcl", &agent.name), "the grant", |found| condition(found, "Granted").0 == "True")
}

/// Removes a MachineClaim although its host has not released it.
fn remove_by_force(claim: &Value) {
    let name = claim["metadata"]["name"].as_str().unwrap();
    let annotations = json!({ "bedplate.dev/release": claim["spec"]["providerID"] });
    let metadata = json!({ "finalizers": null, "annotations": annotations });
    admin().merge("mcl", name, &json!({ "metadata": metadata })).unwrap();
    admin().delete("mcl", name).unwrap();
}

/// Waits for an Event about an object. `objects`: of its namespace; Events of objects without one are in `default`.
fn until_event(objects: &Objects, about: &str, reason: &str, note: &str) {
    let is_it = |event: &&&Value| {
        event["reason"] == reason
            && event["regarding"]["name"] == about
            && event["note"].as_str().is_some_and(|text| text.contains(note))
    };
    let found = objects.until_among("event", PATIENCE, |events| events.iter().find(is_it).map(|_| ()));
    found.unwrap_or_else(|error| panic!("Event {reason} about {about}: {error:#}"));
}

/// UIDs of the claims of a namespace, by their claimants.
fn claims_of(team: &Team) -> Vec<(String, String)> {
    let all = admin().list("mcl", "").unwrap().into_iter();
    let own = all.filter(|claim| claim["spec"]["claimant"]["namespace"] == team.name);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    own.map(|claim| (text(&claim["spec"]["claimant"]["name"]), text(&claim["metadata"]["uid"]))).collect()
}

#[test]
fn d1_lost_claim_is_made_again_only_if_its_host_reports_it() {
    let site = Site::shared();
    let team = Team::new(site, "lost");
    let agent = Agent::new("lost-1", team.name);
    team.provision();
    // The host has reported nothing of this claim.
    remove_by_force(&granted(site, &team, "w-1", "", &agent));
    let is_lost = |found: &Value| claims(found, "ClaimLost");
    let lost = site.until(&team, ("bpm", "w-1"), "that the claim is lost", is_lost);
    assert!(
        condition(&lost, "HostClaimed").2.starts_with("MachineClaim lost-1 is deleted or released"),
        "{lost}"
    );
    assert_eq!((ready(&lost).0, ready(&lost).1), ("False", "ClaimLost"), "{lost}");
    until_event(&team.objects, "w-1", "ClaimLost", "MachineClaim lost-1 is deleted or released");
    // Another claimant takes the host. The first one takes neither this host nor another one.
    let second = granted(site, &team, "w-2", "", &agent);
    agent.report("Joined");
    site.until(&team, ("bpm", "w-2"), "that it is ready", |found| ready(found).0 == "True");
    Agent::new("lost-2", team.name);
    let uid = |claim: &Value| claim["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(claims_of(&team), [("w-2".to_owned(), uid(&second))]);
    // The host reports this one.
    remove_by_force(&second);
    let again = site.until(&team, ("mcl", "lost-1"), "the claim", |found| uid(found) != uid(&second));
    assert_eq!(again["spec"], second["spec"]);
    agent.report("Joined");
    site.until(&team, ("bpm", "w-2"), "that it is ready again", |found| ready(found).0 == "True");
    let kept = site.until(&team, ("bpm", "w-1"), "that its claim is lost", is_lost);
    assert_eq!(kept["spec"], lost["spec"]);
    // The first one goes, and leaves the host to the second.
    team.objects.begin_delete("bpm", "w-1").unwrap();
    site.until_gone(&team, ("bpm", "w-1"));
    let kept = team.objects.get("mcl", "lost-1").unwrap().expect("the claim of another claimant");
    assert!(kept["metadata"]["deletionTimestamp"].is_null(), "{kept}");
    assert_eq!(claims_of(&team), [("w-2".to_owned(), uid(&again))]);
}

#[test]
fn m9_claim_of_a_deleted_machine_ends_and_says_so() {
    let site = Site::shared();
    let team = Team::new(site, "gone");
    team.provision();
    let until_end = |machine: &str, host: &str| {
        site.until_gone(&team, ("mcl", host));
        until_event(
            admin(),
            host,
            "HostReleased",
            &format!("Machine {host} does not exist, and its claim ends"),
        );
        site.until_gone(&team, ("bpm", machine));
    };
    let join = |machine: &str, host: &str| {
        let agent = Agent::new(host, team.name);
        granted(site, &team, machine, "", &agent);
        agent.report("Joined");
        site.until(&team, ("bpm", machine), "that it is ready", |found| ready(found).0 == "True");
        admin().delete("machine", host).unwrap();
    };
    join("w-1", "gone-1");
    // The garbage collector follows the owner reference.
    admin().impersonating(COLLECTOR, &["system:masters"]).begin_delete("mcl", "gone-1").unwrap();
    let found =
        site.until(&team, ("bpm", "w-1"), "that the host is gone", |found| claims(found, "MachineGone"));
    assert_eq!(condition(&found, "HostClaimed").2, "Machine gone-1 does not exist", "{found}");
    team.objects.begin_delete("bpm", "w-1").unwrap();
    until_end("w-1", "gone-1");
    // The claimant is deleted before the garbage collector acts.
    join("w-2", "gone-2");
    team.objects.begin_delete("bpm", "w-2").unwrap();
    until_end("w-2", "gone-2");
}

#[test]
fn d4_former_key_reads_nothing_after_the_host_enrolls_again() {
    let site = Site::shared();
    let team = Team::new(site, "keys");
    let former = Agent::new("keys-1", team.name);
    team.provision();
    team.secret("data");
    granted(site, &team, "w-1", "data", &former);
    former.until_may_read("data", true);
    // Only a later report of the next agent lets the provider grant the claim again.
    former.heard(LONG_AGO);
    let next = Agent::of("keys-1", team.name);
    let machine = admin().get("machine", "keys-1").unwrap().unwrap();
    let key = &machine["status"]["enrollment"]["keyID"];
    let is_changed = |found: &Value| {
        let names_it = found["metadata"]["annotations"]["bedplate.dev/enrollment"] == *key;
        names_it && condition(found, "Granted").1 == "EnrollmentChanged"
    };
    let claim = site.until(&team, ("mcl", "keys-1"), "that the key is another one", is_changed);
    assert_eq!(condition(&claim, "Granted").0, "False", "{claim}");
    former.until_may_read("data", false);
    assert!(!next.may_read("data"), "the agent has not reported yet");
    next.heartbeat();
    site.until(&team, ("mcl", "keys-1"), "the next grant", |found| {
        condition(found, "Granted").1 == "Granted"
    });
    next.until_may_read("data", true);
    assert!(!former.may_read("data"), "the former key reads the Secret");
}
