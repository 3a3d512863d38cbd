//! Power with a real API server, under the roles that `deploy/` gives: which of several pxed leads, whose fields are whose,
//! operations that switch a machine behind a simulated BMC, what makes them wait, and what becomes of deleted Machines.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
#[path = "power/held.rs"]
mod held;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "power/pods.rs"]
mod pods;
#[path = "power/server.rs"]
mod server;

use bedplate_tests::bmc::chassis::Action;
use bedplate_tests::bmc::fault::{Dead, Faults};
use bedplate_tests::bmc::service::{PASSWORD, Settings};
use bedplate_tests::bmc::simulator::Simulator;
use bedplate_tests::objects;
use bedplate_tests::pxed::ask;
use held::Held;
use jiff::Timestamp;
use pods::{
    LIMIT, NAMESPACE, Site, all_seen, apply, get, objects, patch, secret, secret_for, secret_with, seen,
};
use serde_json::{Value, json};
use server::Server;

#[test]
fn of_two_pxed_one_leads_and_the_other_follows_one_that_is_killed_or_goes() {
    let site = Site::new("lease");
    let mut one = site.start("one");
    site.led_by("one");
    let mut two = site.start("two");
    one.kill();
    let before = site.lease();
    site.led_by("two");
    let after = site.lease();
    // The times that both have written: the second one leads only after the Lease of the first one has expired.
    let time = |lease: &Value, field: &str| -> Timestamp { lease[field].as_str().unwrap().parse().unwrap() };
    let waited = time(&after, "acquireTime").duration_since(time(&before, "renewTime"));
    let holds = before["leaseDurationSeconds"].as_i64().unwrap();
    assert!(waited.as_secs() >= holds, "{before:#} {after:#}");
    drop(one);
    let mut one = site.start("one");
    assert_eq!(two.terminate(LIMIT).unwrap().code(), Some(0), "{}", two.said());
    assert!(two.said().contains("lease released"), "{}", two.said());
    assert_ne!(site.leader().as_deref(), Some("two"), "the Lease is released before it expires");
    site.led_by("one");
    assert_eq!(one.terminate(LIMIT).unwrap().code(), Some(0), "{}", one.said());
}

#[test]
fn power_fields_of_the_leader_stay_when_another_pxed_reports_a_boot() {
    let site = Site::new("fields");
    // Led by one that this test plays.
    apply(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "bedplate-pxed-fields", "namespace": NAMESPACE },
        "spec": { "holderIdentity": "other_1", "leaseDurationSeconds": 600 },
    }));
    let mac = "52:54:00:00:0f:01";
    site.machine("fields-a", mac, &json!({}));
    let condition = json!({ "type": "PoweredOn", "status": "True", "reason": "PoweredOn", "message": "on",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let power = json!({ "power": { "state": "On" }, "conditions": [condition], "hardware": { "bmc": { "vendor": "V" } } });
    let leader_says = || objects().apply_status("pxed-power", ("machine", "fields-a"), &power).unwrap();
    leader_says();
    let mut pxed = site.start("one");
    // Two claim one address: pxed says so in its own condition.
    site.machine("fields-b", mac, &json!({}));
    let status = site.until_of(("machine", "fields-a"), "the condition", |machine| {
        let status = &machine["status"];
        status["conditions"].to_string().contains("DuplicateMACAddress").then(|| status.clone())
    });
    assert_eq!(
        (&status["power"]["state"], &status["hardware"]["bmc"]["vendor"]),
        (&json!("On"), &json!("V"))
    );
    assert_eq!(status["conditions"].as_array().unwrap().len(), 2, "{status}");
    // And the other way round.
    leader_says();
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
    // Power fields at pxed's own socket are the leader's.
    let shown = ask(&site.path("one.sock"), "/v1/machines/fields-a").unwrap();
    assert_eq!(shown["status"]["power"]["state"], "On");
    assert_eq!(site.leader().as_deref(), Some("other"));
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
    objects().within(NAMESPACE).delete("lease", "bedplate-pxed-fields").unwrap();
}

#[test]
fn trust_9_credentials_go_only_to_the_addresses_that_the_secret_lists() {
    let site = Site::new("listed");
    let annotation = "bedplate.dev/bmc-addresses";
    let servers: Vec<Server> =
        (1..=3).map(|n| Server::start(&format!("5b1e0000-0000-4000-8000-00000000009{n}"))).collect();
    let names = ["listed-none", "listed-other", "listed-own"];
    for (n, annotations) in
        [json!({}), json!({ annotation: "192.0.2.0/24" }), json!({ annotation: "127.0.0.1" })]
            .iter()
            .enumerate()
    {
        secret_for(NAMESPACE, names[n], PASSWORD, annotations);
        site.machine(names[n], &format!("52:54:00:00:90:0{n}"), &servers[n].spec(NAMESPACE, names[n]));
        site.operation(names[n], "powerOn", names[n]);
    }
    let mut pxed = site.start("one");
    for n in 0..2 {
        let status = site.ended(names[n]);
        assert_eq!(status["reason"], "CredentialsNotForThisAddress", "{status}");
        let message = status["message"].to_string();
        assert!(message.contains(names[n]) && message.contains(annotation), "{message}");
        site.until_of(("machine", names[n]), "the condition BMCReachable", |machine| {
            (condition(machine, "BMCReachable").0 == "CredentialsNotForThisAddress").then_some(())
        });
        assert_eq!(servers[n].bmc.counters().connections, 0, "a BMC was connected to");
    }
    assert_eq!(site.ended(names[2])["state"], "Complete");
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
}

#[test]
fn operations_switch_a_machine_and_what_is_not_pxeds_is_left_alone() {
    let site = Site::new("power");
    let server = Server::start("5b1e0000-0000-4000-8000-000000000011");
    secret(NAMESPACE, "power-a");
    secret("default", "power-b");
    site.machine("power-a", "52:54:00:00:10:01", &server.spec(NAMESPACE, "power-a"));
    let forbidden = Server::start("5b1e0000-0000-4000-8000-000000000012");
    site.machine("power-b", "52:54:00:00:10:02", &forbidden.spec("default", "power-b"));
    site.operation("left-alone", "reboot", "power-a");
    let mut pxed = site.start("one");

    site.operation("on", "powerOn", "power-a");
    let status = site.ended("on");
    assert_eq!((&status["state"], &status["reason"]), (&json!("Complete"), &json!("PoweredOn")), "{status}");
    assert_eq!(status["executor"], "pxed/power/one");
    assert!(server.is_on());
    site.until_of(("machine", "power-a"), "status.power is On", |machine| {
        (machine["status"]["power"]["state"] == "On").then_some(())
    });

    site.operation("cycle", "powerCycle", "power-a");
    let status = site.ended("cycle");
    assert_eq!(status["reason"], "PowerCycled", "{status}");
    assert_eq!(server.asked(), [Action::On, Action::ForceOff, Action::On]);

    site.operation("forbidden", "powerOn", "power-b");
    let status = site.ended("forbidden");
    assert_eq!(status["reason"], "CredentialsUnavailable", "{status}");
    assert!(status["message"].to_string().contains("bmc.secret-namespaces"), "{status}");

    let shown = ask(&site.path("one.sock"), "/v1/operations").unwrap();
    let shown: Vec<_> = shown["items"].as_array().unwrap().iter().map(|o| &o["metadata"]["name"]).collect();
    let all = ["left-alone", "on", "cycle", "forbidden"];
    assert!(all.iter().all(|name| shown.contains(&&json!(name))), "{shown:?}");
    // As the API server makes it: nothing was written.
    assert_eq!(get("mop", "left-alone")["status"], json!({ "observedGeneration": -1 }));
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
    assert!(!pxed.said().contains(PASSWORD), "a password in the log");
}

/// The reason of a Machine's condition, with its message.
fn condition(machine: &Value, kind: &str) -> (String, String) {
    let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

#[test]
fn deleted_machine_is_removed_once_it_is_off_or_may_stay_on() {
    let site = Site::new("deleted");
    let simulator = Simulator::new().unwrap();
    let no_button = Settings { reset_types: vec!["On", "ForceOff", "ForceRestart"], ..Settings::new("one") };
    let servers = [
        ("listens", Held::new(&simulator, 60, true, true)),
        ("listens-too", Held::new(&simulator, 61, false, true)),
        ("has-no-button", Held::with(&simulator, 62, true, true, no_button)),
        ("is-kept", Held::new(&simulator, 63, true, true)),
        ("is-away", Held::new(&simulator, 64, true, true)),
    ];
    secret(NAMESPACE, site.name);
    let machines = servers.iter().enumerate().map(|(number, (name, server))| {
        server.lets_go();
        let mut spec = server.spec(NAMESPACE, site.name);
        spec["deletionPolicy"] = json!(if *name == "is-kept" { "Retain" } else { "PowerOff" });
        site.machine_object(name, &format!("52:54:00:00:50:{number:02x}"), &spec)
    });
    site.apply_all(&machines.collect::<Vec<_>>());
    let mut pxed = site.start("one");
    site.until("all are seen, and all but one are held", || {
        let machines = servers.iter().map(|(name, _)| (*name, seen("machine", name)));
        let is_there = |(name, machine): (&str, Value)| {
            let finalizers = &machine["metadata"]["finalizers"];
            let held = *finalizers == json!(["bedplate.dev/power-off"]);
            machine["status"]["power"]["state"] == "On" && held == (name != "is-kept")
        };
        machines.into_iter().all(is_there).then_some(())
    });
    assert_eq!(get("machine", "is-kept")["metadata"]["finalizers"], Value::Null);
    let (_, away) = &servers[4];
    away.bmc.set_faults(Faults { dead: Some(Dead::Refused), ..Faults::default() }).unwrap();
    for (name, _) in &servers {
        objects().begin_delete("machine", name).unwrap();
    }
    let there = || -> Vec<String> {
        let machines = all_seen("machine");
        let names = machines.iter().filter_map(|machine| machine["metadata"]["name"].as_str());
        names.filter(|name| servers.iter().any(|(ours, _)| ours == name)).map(str::to_owned).collect()
    };
    site.until("all but one gone", || (there() == ["is-away"]).then_some(()));
    let asked: Vec<Vec<Action>> = servers.iter().map(|(_, server)| server.asked()).collect();
    let (graceful, forced) = (vec![Action::GracefulOff], vec![Action::ForceOff]);
    assert_eq!(asked, [graceful.clone(), graceful, forced, vec![], vec![]]);
    assert!(servers[..3].iter().all(|(_, server)| server.changes().len() == 1));
    site.until("a condition and an Event that say what to do", || {
        let (_, message) = condition(&seen("machine", "is-away"), "PoweredOn");
        let event = all_seen("event")
            .into_iter()
            .find(|event| event["reason"] == "PowerOffPending" && event["regarding"]["name"] == "is-away")?;
        let remedy = "set deletionPolicy to Retain";
        (message.contains(remedy) && event["note"].to_string().contains(remedy)).then_some(())
    });
    patch("is-away", &json!({ "deletionPolicy": "Retain" }));
    site.until("the last one gone", || there().is_empty().then_some(()));
    assert_eq!(away.asked(), []);
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
}

#[test]
fn an_operation_of_a_paused_machine_waits_and_says_so_once() {
    let site = Site::new("paused");
    let simulator = Simulator::new().unwrap();
    let server = Held::new(&simulator, 70, true, true);
    server.lets_go();
    secret(NAMESPACE, site.name);
    let mut spec = server.spec(NAMESPACE, site.name);
    spec["paused"] = json!(true);
    site.machine("paused-a", "52:54:00:00:60:01", &spec);
    let mut pxed = site.start("one");
    site.operation("paused-cycle", "powerCycle", "paused-a");
    let waiting = site.until_of(("mop", "paused-cycle"), "it reports that it waits", |operation| {
        (operation["status"]["state"] == "Pending").then(|| operation.clone())
    });
    assert!(waiting["status"]["message"].to_string().contains("the Machine is paused"), "{waiting}");
    looks_again(&site, &server, 2);
    let version = |operation: &Value| operation["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&get("mop", "paused-cycle")), version(&waiting));
    assert_eq!(server.asked(), []);
    patch("paused-a", &json!({ "paused": false }));
    assert_eq!(site.ended("paused-cycle")["reason"], "PowerCycled");
    assert_eq!(server.asked(), [Action::ForceOff, Action::On]);
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
}

/// Root on a host has the key of its agent, and may choose the times of the Machine's managed fields with it.
#[test]
fn trust_4_machine_with_an_uncountable_time_is_powered_and_reported() {
    const LAST: &str = "9999-12-31T23:59:59Z";
    let site = Site::new("timeless");
    let server = Server::start("5b1e0000-0000-4000-8000-000000000013");
    secret(NAMESPACE, site.name);
    let mut spec = server.spec(NAMESPACE, site.name);
    spec["paused"] = json!(true);
    site.machine("timeless-a", "52:54:00:00:10:03", &spec);
    let mut pxed = site.start("one");
    let unpause = json!({ "op": "add", "path": "/spec/paused", "value": false });
    objects().edit_at("machine", "timeless-a", &unpause, LAST).unwrap();
    site.operation("timeless-on", "powerOn", "timeless-a");
    let mark =
        json!({ "op": "add", "path": "/metadata/annotations", "value": { "example.com/mark": "true" } });
    objects().edit_at("mop", "timeless-on", &mark, LAST).unwrap();
    assert_eq!(site.ended("timeless-on")["reason"], "PoweredOn");
    site.until_of(("machine", "timeless-a"), "status.power is On", |machine| {
        (machine["status"]["power"]["state"] == "On").then_some(())
    });
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
    for failure in ["decoding", "deserializ"] {
        assert!(!pxed.said().contains(failure), "{}", pxed.said());
    }
}

#[test]
fn wrong_password_is_tried_once_and_a_corrected_one_is_used() {
    let site = Site::new("wrong");
    let simulator = Simulator::new().unwrap();
    // Two Machines with an operation, two without.
    let servers: Vec<Held> = (0..4).map(|n| Held::new(&simulator, 80 + n, n % 2 == 0, true)).collect();
    let name = |n: usize| format!("wrong-{n}");
    secret_with(NAMESPACE, site.name, "wr0ng-horse");
    let machines = servers.iter().enumerate().map(|(n, server)| {
        server.lets_go();
        let mac = format!("52:54:00:00:70:{n:02x}");
        site.machine_object(&name(n), &mac, &server.spec(NAMESPACE, site.name))
    });
    site.apply_all(&machines.collect::<Vec<_>>());
    let mut pxed = site.start("one");
    let are = |reason: &str| {
        site.until(&format!("BMCReachable: {reason}"), || {
            let is = |n| condition(&seen("machine", &name(n)), "BMCReachable").0 == reason;
            (0..4).all(is).then_some(())
        });
    };
    let cycle = |n: usize, round: usize| {
        objects::operation(&format!("wrong-{n}-{round}"), "powerCycle").on(&name(n)).json()
    };
    are("AuthenticationFailed");
    // Wrong logins at Redfish; at RMCP+ the started ones, and a busy machine may send that twice.
    let tries = || -> Vec<u32> {
        let counters = servers.iter().map(|server| server.bmc.counters());
        counters.map(|counters| counters.wrong_logins + counters.ipmi_attempts).collect()
    };
    let once = tries();
    assert!(once[0] == 1 && once[2] == 1, "{once:?}");
    site.apply_all(&[cycle(0, 1), cycle(1, 1)]);
    for n in 0..2 {
        let status = site.ended(&format!("wrong-{n}-1"));
        assert_eq!(status["reason"], "AuthenticationFailed", "{status}");
    }
    assert_eq!(tries(), once);
    secret(NAMESPACE, site.name);
    site.apply_all(&[cycle(0, 2), cycle(1, 2)]);
    for (n, server) in servers[..2].iter().enumerate() {
        let status = site.ended(&format!("wrong-{n}-2"));
        assert_eq!(status["reason"], "PowerCycled", "{status}");
        assert_eq!(server.asked(), [Action::ForceOff, Action::On]);
    }
    are("Reachable");
    assert!(servers.iter().all(|server| server.bmc.counters().wrong_logins <= 1));
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
    assert!(!pxed.said().contains("wr0ng-horse"), "a password in the log");
}

/// Waits until pxed has read the power state this often again.
fn looks_again(site: &Site, server: &Held, times: usize) {
    let start = Timestamp::now();
    site.until("more looks", || (server.bmc.reports_after(start) >= times).then_some(()));
}

fn is_because(site: &Site, machine: &str, reason: &str) {
    site.until_of(("machine", machine), reason, |machine| {
        (condition(machine, "PoweredOn").0 == reason).then_some(())
    });
}

/// The test acts as the agent.
#[test]
fn o4_a_machine_that_its_agent_shut_down_stays_off_until_an_operation() {
    let site = Site::new("down");
    let simulator = Simulator::new().unwrap();
    let server = Held::new(&simulator, 80, true, true);
    secret(NAMESPACE, site.name);
    let mut spec = server.spec(NAMESPACE, site.name);
    spec["powerPolicy"] = json!("Managed");
    site.machine("down-a", "52:54:00:00:70:01", &spec);
    let mut pxed = site.start("one");
    is_because(&site, "down-a", "FoundRunning");
    site.operation("down-now", "shutdown", "down-a");
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap().to_string();
    let status = json!({ "state": "Complete", "reason": "ShutDown", "startTime": now, "completionTime": now,
        "executor": "bedplate-agent/down-a", "conditions": [{ "type": "Complete", "status": "True", "reason": "ShutDown",
            "message": "", "lastTransitionTime": now }] });
    objects().apply_status("bedplate-agent", ("mop", "down-now"), &status).unwrap();
    server.goes_off();
    is_because(&site, "down-a", "PoweredOffByOperation");
    objects().delete("mop", "down-now").unwrap();
    looks_again(&site, &server, 3);
    assert_eq!(server.asked(), [], "pxed switched a shut-down machine on");
    is_because(&site, "down-a", "PoweredOffByOperation");
    site.operation("down-on", "powerOn", "down-a");
    assert_eq!(site.ended("down-on")["reason"], "PoweredOn");
    assert_eq!(server.asked(), [Action::On]);
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
}

#[test]
fn h2_a_takeover_token_is_used_once_by_two_pxed() {
    let site = Site::new("takeover");
    let simulator = Simulator::new().unwrap();
    let server = Held::new(&simulator, 81, true, true);
    server.lets_go();
    secret(NAMESPACE, site.name);
    let mut spec = server.spec(NAMESPACE, site.name);
    spec["powerPolicy"] = json!("Managed");
    site.machine("takeover-a", "52:54:00:00:70:02", &spec);
    let mut one = site.start("one");
    is_because(&site, "takeover-a", "FoundRunning");
    looks_again(&site, &server, 2);
    assert_eq!(server.asked(), [], "without a token it is left running");
    let interfaces = json!([{ "macAddress": "52:54:00:00:70:02" }]);
    patch("takeover-a", &json!({ "pxe": { "interfaces": interfaces, "takeover": "rack-7" } }));
    looks_again(&site, &server, 2);
    assert_eq!(server.asked(), [], "nothing shows yet that the Machine has no Node");
    let generation =
        objects().get("machine", "takeover-a").unwrap().unwrap()["metadata"]["generation"].clone();
    let report = |state: &str| {
        let observed = json!({ "state": state, "observedGeneration": generation });
        let reported = json!({ "phase": "Pending", "observedNode": observed });
        objects().apply_status("bedplate-controller", ("machine", "takeover-a"), &reported).unwrap();
    };
    report("Foreign");
    looks_again(&site, &server, 2);
    assert_eq!(server.asked(), [], "a Node of its name may run on it");
    report("Absent");
    site.until("one power cycle", || (server.changes().len() == 2).then_some(()));
    let token = |machine: &Value| machine["status"]["power"]["takeoverToken"] == "rack-7";
    site.until_of(("machine", "takeover-a"), "the token in its status", |machine| {
        token(machine).then_some(())
    });
    one.kill();
    let mut two = site.start("two");
    site.led_by("two");
    looks_again(&site, &server, 3);
    assert_eq!(server.asked(), [Action::ForceOff, Action::On]);
    assert_eq!(two.terminate(LIMIT).unwrap().code(), Some(0), "{}", two.said());
}

#[test]
fn o7_power_operations_work_for_every_provider_with_a_bmc() {
    let site = Site::new("provider");
    secret(NAMESPACE, site.name);
    let providers = ["manual", "azure"];
    let servers: Vec<Server> =
        (1..=2).map(|n| Server::start(&format!("5b1e0000-0000-4000-8000-00000000008{n}"))).collect();
    for (provider, server) in providers.iter().zip(&servers) {
        let bmc = server.spec(NAMESPACE, site.name)["bmc"].clone();
        apply(&json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
            "metadata": { "name": format!("provider-{provider}") },
            "spec": { "provider": provider, "site": site.name, "bmc": bmc } }));
    }
    let mut pxed = site.start("one");
    for (provider, server) in providers.iter().zip(&servers) {
        let machine = format!("provider-{provider}");
        site.until_of(("machine", &machine), "its power state", |machine| {
            let is_reported = machine["status"]["power"]["state"] == "Off";
            (is_reported && condition(machine, "BMCReachable").0 == "Reachable").then_some(())
        });
        assert_eq!(server.asked(), [], "only pxe is switched on without an operation");
        site.operation(&format!("on-{provider}"), "powerOn", &machine);
        assert_eq!(site.ended(&format!("on-{provider}"))["reason"], "PoweredOn");
        assert_eq!(server.asked(), [Action::On]);
    }
    assert_eq!(pxed.terminate(LIMIT).unwrap().code(), Some(0), "{}", pxed.said());
}
