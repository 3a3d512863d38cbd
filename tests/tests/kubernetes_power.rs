//! Power with a real API server, under the roles that `deploy/` gives: which of several pxed leads, whose fields are whose,
//! and operations that switch a machine behind a simulated BMC.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "power/pods.rs"]
mod pods;
#[path = "power/server.rs"]
mod server;

use std::time::{Duration, Instant};

use bedplate_tests::bmc::chassis::Action;
use bedplate_tests::bmc::service::PASSWORD;
use bedplate_tests::pxed::ask;
use pods::{LIMIT, NAMESPACE, Site, admin, get, secret};
use serde_json::{Value, json};
use server::Server;

#[test]
fn of_two_pxed_one_leads_and_the_other_follows_one_that_is_killed_or_goes() {
    let site = Site::new("lease");
    let mut one = site.start("one");
    site.until("one leads", || site.leader().filter(|leader| leader == "one"));
    let mut two = site.start("two");
    one.kill();
    let killed = Instant::now();
    site.until("two leads", || site.leader().filter(|leader| leader == "two"));
    // Its last write was at most 5 s before, and holds for 15 s.
    assert!(killed.elapsed() >= Duration::from_secs(9), "{:?}", killed.elapsed());
    drop(one);
    let mut one = site.start("one");
    let told = Instant::now();
    assert_eq!(two.terminate(LIMIT).unwrap().code(), Some(0), "{}", two.said());
    assert!(two.said().contains("the lease was given back"), "{}", two.said());
    site.until("one leads again", || site.leader().filter(|leader| leader == "one"));
    // Given back, not waited for: 2 s until it is seen, 6 s until what was said last is known.
    assert!(told.elapsed() < Duration::from_secs(14), "{:?}", told.elapsed());
    assert_eq!(one.terminate(LIMIT).unwrap().code(), Some(0), "{}", one.said());
}

#[test]
fn what_the_leader_said_of_power_stays_when_another_pxed_says_how_a_boot_goes() {
    let site = Site::new("fields");
    // Led by one that this test plays.
    site.apply(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "bedplate-pxed-fields", "namespace": NAMESPACE },
        "spec": { "holderIdentity": "other_1", "leaseDurationSeconds": 600 },
    }));
    let mac = "52:54:00:00:0f:01";
    site.machine("fields-a", mac, &json!({}));
    let condition = json!({ "type": "PoweredOn", "status": "True", "reason": "PoweredOn", "message": "on",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let power = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "fields-a" },
        "status": { "power": { "state": "On" }, "conditions": [condition], "hardware": { "bmc": { "vendor": "V" } } } });
    let file = site.path("power.json");
    std::fs::write(&file, power.to_string()).unwrap();
    let leader = ["apply", "--server-side", "--subresource=status", "--field-manager=pxed-power", "-f"];
    admin(&[&leader[..], &[&file.display().to_string()]].concat()).unwrap();
    let mut pxed = site.start("one");
    // Two claim one address: pxed says so in its own condition.
    site.machine("fields-b", mac, &json!({}));
    let status = site.until("the condition", || {
        let status = get("machine", "fields-a")["status"].clone();
        status["conditions"].to_string().contains("DuplicateMACAddress").then_some(status)
    });
    assert_eq!(
        (&status["power"]["state"], &status["hardware"]["bmc"]["vendor"]),
        (&json!("On"), &json!("V"))
    );
    assert_eq!(status["conditions"].as_array().unwrap().len(), 2, "{status}");
    // And the other way round.
    admin(&[&leader[..], &[&file.display().to_string()]].concat()).unwrap();
    let machine = get("machine", "fields-a");
    assert!(machine["status"]["conditions"].to_string().contains("DuplicateMACAddress"), "{machine}");
    let managers: Vec<&str> = machine["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["subresource"] == "status")
        .filter_map(|entry| entry["manager"].as_str())
        .collect();
    assert_eq!(managers.len(), 2, "{managers:?}");
    // What pxed's own socket shows of power is the leader's word.
    let shown = ask(&site.path("one.sock"), "/v1/machines/fields-a").unwrap();
    assert_eq!(shown["status"]["power"]["state"], "On");
    assert_eq!(site.leader().as_deref(), Some("other"));
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
    admin(&["delete", "lease", "bedplate-pxed-fields", "-n", NAMESPACE]).unwrap();
}

#[test]
fn operations_switch_a_machine_and_what_is_not_pxeds_is_left_alone() {
    let site = Site::new("power");
    let server = Server::start("5b1e0000-0000-4000-8000-000000000011");
    secret(&site, NAMESPACE, "power-a");
    secret(&site, "default", "power-b");
    site.machine("power-a", "52:54:00:00:10:01", &server.spec(NAMESPACE, "power-a"));
    site.machine("power-b", "52:54:00:00:10:02", &server.spec("default", "power-b"));
    site.operation("left-alone", "reboot", "power-a");
    let mut pxed = site.start("one");

    site.operation("on", "powerOn", "power-a");
    let status = site.ended("on");
    assert_eq!((&status["state"], &status["reason"]), (&json!("Complete"), &json!("PoweredOn")), "{status}");
    assert_eq!(status["executor"], "pxed/power/one");
    assert!(server.is_on());
    site.until("status.power says On", || {
        (get("machine", "power-a")["status"]["power"]["state"] == "On").then_some(())
    });

    site.operation("cycle", "powerCycle", "power-a");
    let status = site.ended("cycle");
    assert_eq!(status["reason"], "PowerCycled", "{status}");
    assert_eq!(server.asked(), [Action::On, Action::ForceOff, Action::On]);

    site.operation("forbidden", "powerOn", "power-b");
    let status = site.ended("forbidden");
    assert_eq!(status["reason"], "CredentialsNotAvailable", "{status}");
    assert!(status["message"].to_string().contains("bmc.secret-namespaces"), "{status}");

    let shown = ask(&site.path("one.sock"), "/v1/operations").unwrap();
    assert_eq!(shown["items"].as_array().unwrap().len(), 4, "{shown}");
    assert_eq!(get("machineoperation", "left-alone")["status"], Value::Null);
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
    assert!(!pxed.said().contains(PASSWORD), "a password in the log");
}
