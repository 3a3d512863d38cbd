//! The provider is killed before and after each of its writes while a silent host is released (D8). The release lasts from the deletion of the
//! claimant to the end of the claim.
//!
//! Each life takes more than a minute, because the shortest release timeout is 60 s. They run concurrently, each with its own provider.

use std::time::Duration;

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Kubernetes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::proxy::{Death, Proxy};
use super::site::{Agent, Site, Team, claims, condition, ready};
use crate::nothing_is_left;

/// The release timeout is 60 s at least, and the provider decides again within 60 s.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Kinds of the writes that a release with a fence needs: start and end of their lines, after the name of the team.
const NEEDED: [(&str, &str); 4] = [
    ("DELETE machineclaims/", ""),
    ("POST machineoperations/fence-", ""),
    ("PATCH machineclaims/", "/status"),
    ("PATCH namespaces/", "/bedplatemachines/w-1"),
];

/// A claim from the deletion of its claimant on. Its host is silent until it is off. Returns the writes, and the one at which the provider died.
fn fenced_life(name: &'static str, death: Option<(usize, Death)>) -> (Vec<String>, Option<String>) {
    let place = Directory::new(name).unwrap();
    let log = place.path().join("provider.log");
    let site = Site::installed(&log);
    let kubernetes = Kubernetes::shared();
    let account = kubernetes.service_account("bedplate-system", "bedplate-infrastructure").unwrap();
    let proxy = Proxy::start(&account, place.path(), &log, name);
    let (team, agent) = (Team::new(&site, name), Agent::new(name, name));
    let admin = kubernetes.objects().unwrap();
    let bmc = json!({ "protocol": "IPMI", "address": "127.0.0.1:1",
        "credentialsSecretRef": { "namespace": "bedplate-system", "name": "none" } });
    admin.merge("machine", name, &json!({ "spec": { "powerPolicy": "Unmanaged", "bmc": bmc } })).unwrap();
    team.provision();
    team.machine_with("w-1", Some(""), &json!({ "releaseTimeoutSeconds": 60 }));
    site.until(&team, ("bpm", "w-1"), "a claim", |found| claims(found, "HostClaimed"));
    agent.heartbeat();
    let claim =
        site.until(&team, ("mcl", name), "the grant", |found| condition(found, "Granted").0 == "True");
    agent.report("Joined");
    site.until(&team, ("bpm", "w-1"), "that it is ready", |found| ready(found).0 == "True");

    proxy.arm(death);
    team.objects.begin_delete("bpm", "w-1").unwrap();
    let until = |(kind, object): (&str, &str), what: &str, is: &dyn Fn(Option<&Value>) -> bool| {
        let is_so = |found: Option<&Value>| is(found).then_some(());
        team.objects.until((kind, object), TIMEOUT, is_so).unwrap_or_else(|error| {
            let found = team.objects.get(kind, object).unwrap().unwrap_or_default();
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("{kind} {object}: {what}: {error:#}\n{found:#}\n{said}")
        });
    };
    let fence = format!("fence-{}", claim["metadata"]["uid"].as_str().unwrap());
    until(("mop", &fence), "its creation", &|found| found.is_some());
    until(("mcl", name), "PoweringOff", &|found| condition(found.unwrap(), "Fenced").1 == "PoweringOff");
    let claimant = team.objects.get("bpm", "w-1").unwrap();
    assert!(claimant.is_some(), "{name}: the claimant of a host that may run is gone (D8)");
    let complete = json!({ "type": "Complete", "status": "True", "reason": "PoweredOff", "message": "",
        "lastTransitionTime": Timestamp::now().to_string() });
    let off = json!({ "state": "Complete", "reason": "PoweredOff", "observedGeneration": 1, "conditions": [complete] });
    admin.merge_status("mop", &fence, &off).unwrap();
    until(("bpm", "w-1"), "its end", &|found| found.is_none());
    until(("mcl", name), "PoweredOff", &|found| condition(found.unwrap(), "Fenced").1 == "PoweredOff");
    let fences = admin.list("mop", "").unwrap();
    let fences = fences.iter().filter(|operation| operation["spec"]["machineRef"]["name"] == *name);
    assert_eq!(fences.count(), 1, "{name}: one operation powers the host off");
    agent.report("Released");
    until(("mcl", name), "its end", &|found| found.is_none());
    nothing_is_left(&team, name);
    let writes = proxy.writes();
    let died_at = death.filter(|_| !proxy.is_armed()).and_then(|(number, _)| writes.get(number - 1).cloned());
    (writes, died_at)
}

fn is_kind(write: &str, (start, end): (&str, &str)) -> bool {
    write.starts_with(start) && write.ends_with(end)
}

/// 45 CPU seconds with the providers and the API server. It takes three minutes, most of them waiting.
#[test]
fn d8_provider_killed_at_any_write_of_a_fence_ends_as_if_it_had_lived() {
    let (writes, _) = fenced_life("fenced", None);
    println!("{} writes: {writes:#?}", writes.len());
    for kind in NEEDED {
        assert!(writes.iter().any(|write| is_kind(write, kind)), "{kind:?} in {writes:#?}");
    }
    let deaths = (1..=writes.len()).flat_map(|number| [(number, Death::Before), (number, Death::After)]);
    let lives: Vec<_> = deaths
        .map(|(number, death)| {
            let name = format!("fenced-{number}-{death:?}").to_lowercase().leak();
            std::thread::spawn(move || fenced_life(name, Some((number, death))).1)
        })
        .collect();
    let died_at: Vec<_> = lives.into_iter().filter_map(|life| life.join().unwrap()).collect();
    println!("{} deaths: {died_at:#?}", died_at.len());
    // The order of the writes may change, so a kind may meet one of both deaths only.
    for kind in NEEDED {
        assert!(died_at.iter().any(|write| is_kind(write, kind)), "no death at {kind:?}: {died_at:#?}");
    }
}
