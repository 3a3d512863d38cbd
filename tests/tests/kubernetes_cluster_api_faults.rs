//! The infrastructure provider is killed before and after each of its writes in the life of a claim: the claimant gets one of three hosts, one claim
//! is created for it, and the host is free at the end. The same for the writes of a release with a wipe, and of a fence. The program, the API
//! server, the roles and the policies of `deploy/` are real; the agent is simulated. Each test has a provider for its namespace. A second provider
//! takes over from a killed one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod cluster_api {
    mod fence_faults;
    pub(crate) mod proxy;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod site;
    mod takeover;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod wiped_host;
}

use std::collections::BTreeSet;

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Kubernetes;
use serde_json::{Value, json};

use self::cluster_api::proxy::{Death, Proxy, numbers};
use self::cluster_api::site::{Agent, Site, Team, condition, ready};
use self::cluster_api::wiped_host::Host;

const TEAM: &str = "killed";
/// Kinds of the writes that a whole life needs: start and end of their lines.
const NEEDED: [(&str, &str); 8] = [
    ("PATCH namespaces/killed/bedplatemachines/", ""),
    ("POST machineclaims/killed-", ""),
    ("PATCH namespaces/killed/roles/bedplate-claim-", ""),
    ("PATCH namespaces/killed/rolebindings/bedplate-claim-", ""),
    ("DELETE namespaces/killed/rolebindings/bedplate-claim-", ""),
    ("DELETE namespaces/killed/roles/bedplate-claim-", ""),
    ("DELETE machineclaims/killed-", ""),
    ("PATCH machineclaims/killed-", "/status"),
];

/// A Machine of Cluster API from its creation to its end, on one of the hosts. Returns the name of the host.
fn life(site: &Site, team: &Team, agents: &[Agent], name: &str) -> String {
    agents.iter().for_each(Agent::heartbeat);
    team.machine(name, Some("data"));
    let found = site.until(team, ("bpm", name), "a host", |found| found["spec"]["providerID"].is_string());
    let host = found["spec"]["machineName"].as_str().unwrap();
    let agent = agents.iter().find(|agent| agent.name == host).unwrap();
    agent.heartbeat();
    let granted =
        site.until(team, ("mcl", &agent.name), "the grant", |claim| condition(claim, "Granted").0 == "True");
    agent.until_may_read("data", true);
    agent.report("Preparing");
    agent.report("Bootstrapping");
    agent.until_may_read("data", false);
    agent.report("Joined");
    let found = site.until(team, ("bpm", name), "that it is ready", |found| {
        ready(found).0 == "True" && found["status"]["initialization"]["provisioned"] == true
    });
    assert_eq!(found["spec"]["machineName"], *agent.name, "{name}");
    assert_eq!(found["spec"]["providerID"], granted["spec"]["providerID"], "{name}");
    let claims = claims_of(team);
    let [claim] = &claims[..] else { panic!("{name} has not one claim: {claims:#?}") };
    assert_eq!(claim["spec"]["claimant"]["name"], *name, "{claim:#}");
    assert_eq!(claim["metadata"]["uid"], granted["metadata"]["uid"], "{name}: it is the first claim");
    team.objects.begin_delete("bpm", name).unwrap();
    site.until(team, ("mcl", &agent.name), "its deletion", |claim| {
        claim["metadata"]["deletionTimestamp"].is_string()
    });
    // M9
    site.until(team, ("bpm", name), "that it waits for the host", |found| ready(found).1 == "Releasing");
    assert!(team.objects.get("bpm", name).unwrap().is_some(), "{name}: the claimant waits for the host (M9)");
    agent.report("Released");
    site.until_gone(team, ("bpm", name));
    site.until_gone(team, ("mcl", &agent.name));
    nothing_is_left(team, name);
    agent.name.clone()
}

/// MachineClaims of the claimants of a team.
fn claims_of(team: &Team) -> Vec<Value> {
    let label = format!("labelSelector=bedplate.dev/namespace%3D{}", team.name);
    team.objects.list("mcl", &label).unwrap()
}

fn nothing_is_left(team: &Team, name: &str) {
    for kind in ["role", "rolebinding"] {
        assert_eq!(team.objects.list(kind, "").unwrap(), [Value::Null; 0], "{name}: one is left: {kind}");
    }
    assert_eq!(claims_of(team), [Value::Null; 0], "{name}: a claim is left");
}

/// 32 CPU seconds.
#[test]
fn d1_provider_killed_at_any_write_ends_as_if_it_had_lived() {
    let place = Directory::new("killed").unwrap();
    let log = place.path().join("provider.log");
    let site = Site::installed(&log);
    let account = Kubernetes::shared().service_account("bedplate-system", "bedplate-infrastructure").unwrap();
    let proxy = Proxy::start(&account, place.path(), &log, TEAM);
    let team = Team::new(&site, TEAM);
    team.provision();
    team.secret("data");
    let agents = ["killed-1", "killed-2", "killed-3"].map(|name| Agent::new(name, TEAM));

    proxy.arm(None);
    let mut hosts = BTreeSet::from([life(&site, &team, &agents, "m-0")]);
    let writes = proxy.writes();
    println!("{} writes: {writes:#?}", writes.len());
    for (start, end) in NEEDED {
        let is_found = writes.iter().any(|write| write.starts_with(start) && write.ends_with(end));
        assert!(is_found, "{start} {end} in {writes:#?}");
    }
    let (mut deaths, mut missed) = (0, Vec::new());
    for number in 1..=writes.len() {
        for death in [Death::Before, Death::After] {
            proxy.arm(Some((number, death)));
            hosts.insert(life(&site, &team, &agents, &format!("m-{number}-{death:?}").to_lowercase()));
            let (writes, is_dead) = (proxy.writes(), !proxy.is_armed());
            // A write before which the provider died was not sent.
            let is_sent = |index: usize| !(is_dead && death == Death::Before && index + 1 == number);
            let creates = |(index, write): &(usize, &String)| {
                write.starts_with("POST machineclaims/") && is_sent(*index)
            };
            let creations = writes.iter().enumerate().filter(creates).count();
            assert_eq!(creations, 1, "{number} {death:?}: {writes:#?}");
            if proxy.is_armed() {
                missed.push((number, death));
            } else {
                deaths += 1;
            }
        }
    }
    println!("{deaths} deaths on {hosts:?}; lives with fewer writes: {missed:?}");
    assert_eq!(hosts.len(), agents.len(), "each host is claimed in some life: {hosts:?}");
    // Two writes of a status may be one if the states change quickly.
    assert!(deaths + 6 >= 2 * writes.len(), "{deaths} deaths, {missed:?}");
}

const WIPED_TEAM: &str = "wiped";
/// Kinds of the writes that a release with a wipe needs.
const NEEDED_FOR_WIPE: [&str; 4] =
    ["DELETE machineclaims", "PATCH bedplatemachines", "PATCH machineclaims/status", "PATCH machineclaims"];

/// A Machine of Cluster API from its creation to the wipe of its host. `arm`: arms the proxy before the release.
fn wiped_life(site: &Site, team: &Team, name: &str, arm: impl FnOnce()) {
    let former = Host::enroll("wiped-1", team.name);
    let until_claim =
        |what: &str, is: &dyn Fn(&Value) -> bool| site.until(team, ("mcl", &former.agent.name), what, is);
    team.machine(name, Some("data"));
    site.until(team, ("bpm", name), "a host", |found| found["spec"]["providerID"].is_string());
    former.heartbeat();
    let granted = until_claim("the grant", &|claim| condition(claim, "Granted").0 == "True");
    assert_eq!(granted["spec"]["release"], "Wipe", "{name}");
    former.agent.report("Joined");
    site.until(team, ("bpm", name), "that it is ready", |found| ready(found).0 == "True");
    until_claim("the end of the grant", &|claim| condition(claim, "Granted").1 == "GrantWithdrawn");
    arm();
    team.objects.begin_delete("bpm", name).unwrap();
    until_claim("its deletion", &|claim| claim["metadata"]["deletionTimestamp"].is_string());
    former.agent.report("Wiping");
    site.until_gone(team, ("bpm", name));
    until_claim("that it waits for the wipe", &|claim| condition(claim, "Wiped").1 == "AwaitingWipe");
    // D7: the claim waits for the disk and for the next key.
    let next = Host::enroll("wiped-1", team.name);
    until_claim("the next key", &|claim| {
        claim["metadata"]["annotations"]["bedplate.dev/enrollment"] == *next.key
    });
    next.has_disk(&granted["metadata"]["uid"]);
    let before =
        team.objects.get("mcl", "wiped-1").unwrap().expect("the claim of a host that has not reported");
    assert_eq!(before["metadata"]["uid"], granted["metadata"]["uid"], "{name}");
    let tenants = before["metadata"]["annotations"]["bedplate.dev/tenant-enrollments"].as_str();
    assert!(tenants.is_some_and(|keys| keys.contains(&former.key)), "{name}: the former key: {before:#}");
    next.agent.report("Released");
    site.until_gone(team, ("mcl", "wiped-1"));
    nothing_is_left(team, name);
}

/// 17 CPU seconds.
#[test]
fn d7_provider_killed_at_any_write_of_a_wipe_ends_as_if_it_had_lived() {
    let place = Directory::new("wiped").unwrap();
    let log = place.path().join("provider.log");
    let site = Site::installed(&log);
    let account = Kubernetes::shared().service_account("bedplate-system", "bedplate-infrastructure").unwrap();
    let proxy = Proxy::start(&account, place.path(), &log, WIPED_TEAM);
    let team = Team::new(&site, WIPED_TEAM);
    team.provision();
    team.secret("data");
    Host::new("wiped-1", WIPED_TEAM).has_disk(&json!(null));

    wiped_life(&site, &team, "m-0", || proxy.arm(None));
    let writes = proxy.writes();
    let numbers = numbers(&writes, &NEEDED_FOR_WIPE);
    let mut deaths = Vec::new();
    for (index, (kind, number)) in numbers.iter().enumerate() {
        for (number, death) in
            (1..=*number).flat_map(|number| [(number, Death::Before), (number, Death::After)])
        {
            let name = format!("m-{index}-{number}-{death:?}").to_lowercase();
            wiped_life(&site, &team, &name, || proxy.arm_kind(kind, (number, death)));
            // Two writes of a status may be one if the states change quickly.
            if !proxy.is_armed() {
                deaths.push((kind.as_str(), number, death));
            }
        }
    }
    println!("{} deaths: {deaths:#?}", deaths.len());
    for needed in NEEDED_FOR_WIPE {
        for death in [Death::Before, Death::After] {
            assert!(deaths.contains(&(needed, 1, death)), "no death {death:?} {needed}: {deaths:#?}");
        }
    }
}
