//! The infrastructure provider is killed before and after each of its writes in the life of a claim: the claimant gets one of three hosts, one claim
//! is created for it, and the host is free at the end. The program, the API server, the roles and the policies of `deploy/` are real; the agent is simulated.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod cluster_api {
    pub(crate) mod proxy;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod site;
}

use std::collections::BTreeSet;

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Kubernetes;
use serde_json::Value;

use self::cluster_api::proxy::{Death, Proxy};
use self::cluster_api::site::{Agent, Site, Team, condition, ready};

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
    let claims = team.objects.list("mcl", "").unwrap();
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
    for kind in ["role", "rolebinding", "mcl"] {
        assert_eq!(team.objects.list(kind, "").unwrap(), [Value::Null; 0], "{name}: one is left: {kind}");
    }
    agent.name.clone()
}

/// 32 CPU seconds.
#[test]
fn d1_provider_killed_at_any_write_ends_as_if_it_had_lived() {
    let place = Directory::new("killed").unwrap();
    let log = place.path().join("provider.log");
    let site = Site::installed(&log);
    let account = Kubernetes::shared().service_account("bedplate-system", "bedplate-infrastructure").unwrap();
    let proxy = Proxy::start(&account, place.path(), &log);
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
