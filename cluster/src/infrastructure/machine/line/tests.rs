//! The host of each claimant by the line and by the choices of others.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::claim::ReleasePolicy;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::super::checks::Host;
use super::*;
use crate::infrastructure::choose::Request;

fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(seconds)
}

fn host(name: &str, rack: &str, status: &Value) -> Host {
    let mut object = json!({ "metadata": { "name": name, "labels": { "rack": rack } },
        "spec": { "provider": "manual", "claimPolicy": { "namespaces": ["team-a"] } },
        "status": { "enrollment": { "keyID": "0123456789abcdef0123456789abcdef" },
            "agent": { "features": ["claims"], "lastHeartbeatTime": "2026-01-01T00:55:00Z" } } });
    object["status"].as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    Host { machine: Arc::new(serde_json::from_value(object).unwrap()), is_claimed: false }
}

/// Claimant of a host in a rack. `created`: seconds.
fn claimant(name: &str, created: i64, rack: Option<&str>) -> Waiting {
    let selector =
        rack.map(|rack| serde_json::from_value(json!({ "matchLabels": { "rack": rack } })).unwrap());
    let request = Request {
        uid: name,
        namespace: "team-a",
        selector: selector.as_ref(),
        failure_domain: None,
        needs_state_disk: false,
        release: ReleasePolicy::Empty,
    };
    let turn =
        Turn { is_worker: true, created: Some(at(created)), key: ("team-a".to_owned(), name.to_owned()) };
    Waiting { turn, uid: name.to_owned(), requirements: Requirements::new(&request) }
}

fn line(hosts: &[Host], waiting: &[Waiting], now: Timestamp) -> Line {
    Line::new(Checks::new(hosts.to_vec(), now), waiting.to_vec())
}

fn chosen(line: &mut Line, asks: &Waiting, tries: &Tries) -> String {
    match line.choose(asks, tries, Instant::now()) {
        Ok(host) => host.to_string(),
        Err(refusal) => format!("{} ahead", refusal.ahead),
    }
}

#[test]
fn d1_free_host_is_left_for_the_oldest_claimant() {
    let (a, b, c) = (claimant("a", 0, None), claimant("b", 1, None), claimant("c", 2, None));
    let none = json!({});
    let mut line = line(&[host("h-1", "1", &none)], &[c.clone(), a.clone(), b.clone()], at(0));
    let tries = Tries::default();
    assert_eq!([&a, &b, &c].map(|one| chosen(&mut line, one, &tries)), ["h-1", "0 ahead", "1 ahead"]);
    let refusal = line.choose(&c, &tries, Instant::now()).unwrap_err();
    let text = "none of 1 Machines that namespace team-a may claim is eligible: 1 are reserved for earlier claimants";
    assert_eq!(refusal.shortage.message("team-a"), text);
    // A claimant that has not waited has the turn of its age.
    assert_eq!(chosen(&mut line, &claimant("d", -1, None), &tries), "h-1");
    assert_eq!(chosen(&mut line, &claimant("e", 3, None), &tries), "2 ahead");
}

#[test]
fn d1_host_that_a_claimant_has_chosen_is_left_for_it() {
    let (a, b) = (claimant("a", 0, None), claimant("b", 1, None));
    let none = json!({});
    let hosts = [host("h-1", "1", &none), host("h-2", "1", &none)];
    let mut before = line(&hosts, std::slice::from_ref(&a), at(0));
    let (mut tries, start) = (Tries::default(), Instant::now());
    let later = start + Duration::from_secs(60);
    // A younger claimant has recorded a host. Its claim is not in the store.
    tries.begin(b.turn.key.clone(), "h-1".parse().unwrap(), start);
    assert_eq!(chosen(&mut before, &a, &tries), "h-2");
    assert_eq!(chosen(&mut before, &claimant("c", -1, None), &tries), "h-2", "also for an older one");
    assert_eq!(chosen(&mut before, &claimant("d", 2, None), &tries), "0 ahead");
    assert_eq!(chosen(&mut before, &b, &tries), "h-1", "its own choice");
    // Its writes fail for a minute: the host is for others.
    let mut line = line(&hosts[..1], &[a.clone(), b.clone()], at(60));
    assert_eq!(line.choose(&a, &tries, later).unwrap().as_str(), "h-1");
    tries.begin(a.turn.key.clone(), "h-1".parse().unwrap(), start);
    let host = line.choose(&claimant("c", 2, None), &tries, later).unwrap();
    assert_eq!(host.as_str(), "h-1", "the writes of both earlier claimants fail");
}

#[test]
fn d1_host_is_left_for_a_claimant_that_can_have_no_other() {
    let rack = claimant("b", 1, Some("1"));
    let none = json!({});
    let hosts = [host("h-1", "1", &none), host("h-2", "2", &none)];
    let tries = Tries::default();
    // Each of them starts at one of both hosts.
    for index in 0..10 {
        let any = claimant(&format!("a-{index}"), 0, None);
        let mut line = line(&hosts, &[any.clone(), rack.clone()], at(0));
        assert_eq!([&any, &rack].map(|one| chosen(&mut line, one, &tries)), ["h-2", "h-1"]);
        assert_eq!(chosen(&mut line, &claimant("c", 2, None), &tries), "0 ahead");
    }
}

#[test]
fn d1_host_that_has_released_a_claimant_is_for_others() {
    let released = json!({ "claim": { "providerID": "bedplate://h-1/a", "state": "Released",
        "claimant": { "namespace": "team-a", "name": "a" }, "since": "2026-01-01T00:00:00Z" } });
    let (a, b) = (claimant("a", 0, None), claimant("b", 1, None));
    let mut line = line(&[host("h-1", "1", &released)], &[a.clone(), b.clone()], at(0));
    let tries = Tries::default();
    assert_eq!([&a, &b].map(|one| chosen(&mut line, one, &tries)), ["0 ahead", "h-1"]);
    let refusal = line.choose(&a, &tries, Instant::now()).unwrap_err();
    assert!(!refusal.shortage.has_wanted(), "{refusal:?}");
}

#[test]
fn d1_claimants_that_choose_concurrently_spread_over_the_hosts() {
    let none = json!({});
    let hosts: Vec<_> = (0..50).map(|index| host(&format!("h-{index:02}"), "1", &none)).collect();
    let mut line = line(&hosts, &[], at(0));
    let tries = Tries::default();
    let chosen: HashSet<_> = (0..50)
        .map(|index| self::chosen(&mut line, &claimant(&format!("c-{index}"), 0, None), &tries))
        .collect();
    assert!(chosen.len() > 20, "{}", chosen.len());
}

#[test]
fn d1_answers_to_all_that_wait_hold_until_a_choice_changes() {
    let waiting = [claimant("a", 0, None), claimant("b", 1, None), claimant("c", 2, None)];
    let none = json!({});
    let mut line = line(&[host("h-1", "1", &none), host("h-2", "1", &none)], &waiting, at(0));
    let (mut tries, start) = (Tries::default(), Instant::now());
    let [a, b, c] = &waiting;
    let hosts = [a, b].map(|one| chosen(&mut line, one, &tries));
    assert_eq!(HashSet::from(hosts.clone()), HashSet::from(["h-1".to_owned(), "h-2".to_owned()]));
    assert_eq!(chosen(&mut line, c, &tries), "0 ahead");
    // Another claimant chooses the host that was left for the first one.
    tries.begin(claimant("d", 3, None).turn.key, hosts[0].parse().unwrap(), start);
    assert_eq!([a, b, c].map(|one| chosen(&mut line, one, &tries)), [&hosts[1], "0 ahead", "1 ahead"]);
    // Its writes fail.
    let late = start + Duration::from_secs(60);
    assert!(line.choose(b, &tries, late).is_ok() && line.choose(c, &tries, late).is_err());
}

#[test]
fn d1_hosts_are_checked_once_for_each_class_and_change() {
    let none = json!({});
    let hosts = ["h-1", "h-2", "h-3"].map(|name| host(name, "1", &none));
    let (one, same, other) = (claimant("a", 0, None), claimant("b", 1, None), claimant("c", 2, Some("1")));
    let mut checks = Checks::new(hosts.to_vec(), at(0));
    let classes = [&one, &same, &other].map(|one| checks.class(one));
    assert_eq!(classes, [0, 0, 1]);
    assert_eq!(checks.surveys().len(), 2);
    // All of them are silent by now. Only the host that has changed is checked.
    let later = at(1800);
    let mut changed = hosts.to_vec();
    changed[1] = host("h-2", "1", &none);
    let mut checks = checks.renewed(changed.clone(), later);
    assert_eq!(classes, [&one, &same, &other].map(|one| checks.class(one)));
    for survey in checks.surveys() {
        assert_eq!(survey.eligible, [0, 2]);
        let text = "none of 1 Machines that namespace team-a may claim is eligible: 1 have not reported for 15 minutes, or their clocks are ahead";
        assert_eq!(survey.shortage.message("team-a"), text);
    }
    changed[1] = hosts[1].clone();
    changed[0].is_claimed = true;
    let checks = checks.renewed(changed.clone(), at(0));
    assert!(checks.surveys().iter().all(|survey| survey.eligible == [1, 2]));
    // A host that comes or goes makes all indexes new.
    let mut checks = checks.renewed(changed[1..].to_vec(), at(0));
    assert_eq!((checks.surveys().len(), checks.class(&other)), (0, 0));
    assert_eq!(checks.survey(0).eligible, [0, 1]);
}
