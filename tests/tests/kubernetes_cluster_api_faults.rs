//! The infrastructure provider is killed before and after each of its writes in the life of a claim: the claimant gets the same host once, and the
//! host is free at the end. The program, the API server, the roles and the policies of `deploy/` are real; the agent is simulated.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod cluster_api {
    pub(crate) mod proxy;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod site;
}

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Kubernetes;
use serde_json::Value;

use self::cluster_api::proxy::{Death, Proxy};
use self::cluster_api::site::{Agent, Site, Team, condition, ready};

const TEAM: &str = "killed";
/// Kinds of the writes that a whole life needs.
const NEEDED: [&str; 8] = [
    "PATCH namespaces/killed/bedplatemachines/",
    "POST machineclaims/killed-1",
    "PATCH namespaces/killed/roles/bedplate-claim-",
    "PATCH namespaces/killed/rolebindings/bedplate-claim-",
    "DELETE namespaces/killed/rolebindings/bedplate-claim-",
    "DELETE namespaces/killed/roles/bedplate-claim-",
    "DELETE machineclaims/",
    "PATCH machineclaims/killed-1/status",
];

/// A Machine of Cluster API from its creation to its end, on the only host.
fn life(site: &Site, team: &Team, agent: &Agent, name: &str) {
    team.machine(name, Some("data"));
    site.until(team, ("mcl", &agent.name), "a claim", |claim| {
        claim["spec"]["claimant"]["name"] == name && claim["metadata"]["deletionTimestamp"].is_null()
    });
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
    let claim = team.objects.get("mcl", &agent.name).unwrap().unwrap();
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
    for kind in ["role", "rolebinding"] {
        assert_eq!(team.objects.list(kind, "").unwrap(), [Value::Null; 0], "{name}: a grant is left");
    }
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
    let agent = Agent::new("killed-1", TEAM);

    proxy.arm(None);
    life(&site, &team, &agent, "m-0");
    let writes = proxy.writes();
    println!("{} writes: {writes:#?}", writes.len());
    for needed in NEEDED {
        assert!(writes.iter().any(|write| write.contains(needed)), "{needed} in {writes:#?}");
    }
    let (mut deaths, mut missed) = (0, Vec::new());
    for number in 1..=writes.len() {
        for death in [Death::Before, Death::After] {
            proxy.arm(Some((number, death)));
            life(&site, &team, &agent, &format!("m-{number}-{death:?}").to_lowercase());
            // A second one may be that of a claim whose creation was not sent, or whose answer was not read.
            let writes = proxy.writes();
            let creates = |write: &String| write.starts_with("POST machineclaims/");
            let was_killed_there = writes.get(number - 1).is_some_and(creates);
            let creations = writes.iter().filter(|write| creates(write)).count();
            assert!(creations == 1 || was_killed_there && creations == 2, "{number} {death:?}: {writes:#?}");
            if proxy.is_armed() {
                missed.push((number, death));
            } else {
                deaths += 1;
            }
        }
    }
    println!("{deaths} deaths; lives with fewer writes: {missed:?}");
    // Two writes of a status may be one if the states change quickly.
    assert!(deaths + 6 >= 2 * writes.len(), "{deaths} deaths, {missed:?}");
}
