//! Fencing of silent hosts with the real provider, the real pxed and a simulated BMC (docs/reference/infrastructure-provider.md, "Failures"; D8).
//!
//! Each test takes more than a minute, because the shortest release timeout is 60 s. They run concurrently, and cost little CPU time.

use std::time::Duration;

use bedplate_tests::bmc::chassis::Action;
use bedplate_tests::bmc::simulator::Simulator;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::cli::bedplate_as_admin;
use super::site::{Agent, LONG_AGO, Site, Team, claims, condition, ready};
use crate::held::Held;
use crate::pods::{self, LIMIT, NAMESPACE, apply, get, secret};

/// The release timeout is 60 s at least, and the provider decides again within 60 s.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Has a claim join on a host, and deletes its claimant. The host is silent from then on.
fn lose(site: &Site, team: &Team, agent: &Agent) {
    team.provision();
    team.machine_with("w-1", Some(""), &json!({ "releaseTimeoutSeconds": 60 }));
    site.until(team, ("bpm", "w-1"), "a claim", |found| claims(found, "HostClaimed"));
    agent.heartbeat();
    site.until(team, ("mcl", &agent.name), "the grant", |found| condition(found, "Granted").0 == "True");
    agent.report("Joined");
    site.until(team, ("bpm", "w-1"), "that it is ready", |found| ready(found).0 == "True");
    team.objects.begin_delete("bpm", "w-1").unwrap();
}

fn until_fenced(team: &Team, claim: &str, status: &str, reason: &str) -> Value {
    let is = |found: Option<&Value>| {
        let found = found?;
        let (is, why, _) = condition(found, "Fenced");
        ((is, why) == (status, reason)).then(|| found.clone())
    };
    team.objects.until(("mcl", claim), TIMEOUT, is).unwrap_or_else(|error| {
        panic!("Fenced {status} {reason}: {error:#}\n{:#}", get("mcl", claim));
    })
}

#[test]
fn d8_claimant_of_a_dead_host_goes_only_after_power_off() {
    let site = Site::shared();
    let pxeds = pods::Site::new("fencing");
    let simulator = Simulator::new().unwrap();
    let server = Held::new(&simulator, 90, true, false);
    secret(NAMESPACE, "fencing");
    let mut spec = server.spec(NAMESPACE, "fencing");
    spec["claimPolicy"] = json!({ "namespaces": ["fencing"] });
    apply(&pxeds.machine_object("fencing-1", "52:54:00:00:c2:01", &spec));
    let (team, agent) = (Team::new(site, "fencing"), Agent::of("fencing-1", "fencing"));
    agent.heartbeat();
    let mut pxed = pxeds.start("one");
    lose(site, &team, &agent);
    let claim = until_fenced(&team, "fencing-1", "False", "PoweringOff");
    let fence = format!("fence-{}", claim["metadata"]["uid"].as_str().unwrap());
    assert!(condition(&claim, "Fenced").2.contains(&fence), "{claim}");
    pxeds.until("the request to the BMC", || (server.asked() == [Action::ForceOff]).then_some(()));
    let operation = get("mop", &fence);
    assert_eq!(operation["spec"]["parameters"], json!({ "force": "true" }), "{operation}");
    // The host is still on.
    assert!(team.objects.get("bpm", "w-1").unwrap().is_some());
    server.hasten();
    assert_eq!(pxeds.ended(&fence)["state"], "Complete");
    until_fenced(&team, "fencing-1", "True", "PoweredOff");
    site.until_gone(&team, ("bpm", "w-1"));
    // The host is held until it has emptied itself, and it stays off.
    team.machine("w-2", Some(""));
    site.until(&team, ("bpm", "w-2"), "that no host is free", |found| claims(found, "NoEligibleMachine"));
    let start = Timestamp::now();
    pxeds.until("two more looks", || (server.bmc.reports_after(start) >= 2).then_some(()));
    assert_eq!(server.asked(), [Action::ForceOff]);
    server.lets_go();
    pxeds.operation("fencing-on", "powerOn", "fencing-1");
    assert_eq!(pxeds.ended("fencing-on")["state"], "Complete");
    agent.report("Released");
    agent.heartbeat();
    site.until(&team, ("bpm", "w-2"), "the next claim", |found| claims(found, "HostClaimed"));
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
}

#[test]
fn d8_dead_host_without_a_bmc_waits_until_a_user_confirms() {
    let site = Site::shared();
    let (team, agent) = (Team::new(site, "silent"), Agent::new("silent-1", "silent"));
    lose(site, &team, &agent);
    let claim = until_fenced(&team, "silent-1", "False", "HostSilent");
    let remedy = "power it off, then confirm it: `bedplate claim release silent-1 --host-is-off`";
    assert!(condition(&claim, "Fenced").2.ends_with(remedy), "{claim}");
    let waiting = site.until(&team, ("bpm", "w-1"), "the remedy", |found| {
        condition(found, "HostClaimed").2.contains(remedy)
    });
    assert_eq!(condition(&waiting, "HostClaimed").1, "Releasing");
    agent.heard(LONG_AGO);
    let (code, _, said) = bedplate_as_admin(&["claim", "release", "silent-1", "--host-is-off", "--yes"]);
    assert_eq!(code, Some(0), "{said}");
    until_fenced(&team, "silent-1", "True", "ConfirmedByUser");
    site.until_gone(&team, ("bpm", "w-1"));
    assert!(team.objects.get("mcl", "silent-1").unwrap().is_some(), "the host is held until it is empty");
    agent.report("Released");
    site.until_gone(&team, ("mcl", "silent-1"));
}
