//! The provider is killed before and after each of its writes while a silent host is released (D8). The release lasts from the deletion of the
//! claimant to the end of the claim.
//!
//! Each life takes more than a minute, because the shortest release timeout is 60 s. They run concurrently, each with its own provider.

use std::time::Duration;

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Kubernetes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::proxy::{Death, Proxy, numbers};
use super::site::{Agent, Site, Team, claims, condition, ready};
use crate::nothing_is_left;

/// The release timeout is 60 s at least, and the provider decides again within 60 s.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Kinds of the writes that a release with a fence needs.
const NEEDED: [&str; 4] = [
    "DELETE machineclaims",
    "POST machineoperations",
    "PATCH machineclaims/status",
    "PATCH bedplatemachines",
];

/// A claim from the deletion of its claimant on. Its host is silent until it is off. The provider dies at the numbered write of a kind. Returns the
/// writes, and true if it has died.
fn fenced_life(name: &'static str, death: Option<(&str, (usize, Death))>) -> (Vec<String>, bool) {
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

    match death {
        None => proxy.arm(None),
        Some((kind, death)) => proxy.arm_kind(kind, death),
    }
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
    (proxy.writes(), !proxy.is_armed())
}

/// 45 CPU seconds with the providers and the API server. It takes three minutes, most of them waiting.
#[test]
fn d8_provider_killed_at_any_write_of_a_fence_ends_as_if_it_had_lived() {
    let (writes, _) = fenced_life("fenced", None);
    let numbers = numbers(&writes, &NEEDED);
    let deaths = numbers.iter().enumerate().flat_map(|(index, (kind, number))| {
        (1..=*number).flat_map(move |number| {
            [Death::Before, Death::After].map(|death| (index, kind.clone(), (number, death)))
        })
    });
    let lives: Vec<_> = deaths
        .map(|(index, kind, (number, death))| {
            let name = format!("fenced-{index}-{number}-{death:?}").to_lowercase().leak();
            std::thread::spawn(move || {
                fenced_life(name, Some((&kind, (number, death)))).1.then_some((kind, number, death))
            })
        })
        .collect();
    let deaths: Vec<_> = lives.into_iter().filter_map(|life| life.join().unwrap()).collect();
    println!("{} deaths: {deaths:#?}", deaths.len());
    for needed in NEEDED {
        for death in [Death::Before, Death::After] {
            assert!(
                deaths.contains(&(needed.to_owned(), 1, death)),
                "no death {death:?} {needed}: {deaths:#?}"
            );
        }
    }
}
