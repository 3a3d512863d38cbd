//! The infrastructure provider of Cluster API on a real API server, with the roles and policies of `deploy/` (docs/reference/infrastructure-provider.md).
//!
//! `bedplate-cluster`, pxed and `bedplate` are the real programs. The tests stand in for the controllers of Cluster API, and a simulator for the
//! agents: it writes the status of claims, and reads Secrets, with the certificate of an agent. BMCs are simulated.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod cluster_api {
    mod cli;
    mod fencing;
    mod gate;
    mod losses;
    mod on_claim;
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) mod site;
    mod topology;
    mod wipe;
    mod wiped_host;
}
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "power/held.rs"]
mod held;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "power/pods.rs"]
mod pods;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "power/server.rs"]
mod server;

use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use cluster_api::site::{Agent, PATIENCE, PROVIDER, Site, Team, claims, condition, ready};
use http::Method;
use serde_json::{Value, json};

const GRANTS: &str = "the policy of grants";

#[test]
fn m6_claim_is_granted_joined_released_and_made_again() {
    let site = Site::shared();
    let team = Team::new(site, "whole-life");
    let agent = Agent::new("whole-life-1", team.name);
    let stranger = Agent::new("whole-life-stranger", "elsewhere");
    team.secret("data");
    team.machine("w-1", None);
    site.until(&team, ("bpm", "w-1"), "the infrastructure", |found| {
        claims(found, "WaitingForClusterInfrastructure")
    });
    team.provision();
    site.until(&team, ("bpm", "w-1"), "the data", |found| claims(found, "WaitingForBootstrapData"));
    assert!(team.objects.get("mcl", &agent.name).unwrap().is_none());
    team.bootstrap_data("w-1", "data");
    let found = site.until(&team, ("bpm", "w-1"), "a claim", |found| claims(found, "HostClaimed"));
    let id = found["spec"]["providerID"].as_str().unwrap().to_owned();
    assert_eq!(id, format!("bedplate://{}/{}", agent.name, found["metadata"]["uid"].as_str().unwrap()));
    assert_eq!(found["spec"]["machineName"], *agent.name);
    let is_granted = |found: &Value| condition(found, "Granted").0 == "True";
    agent.heartbeat();
    let claim = site.until(&team, ("mcl", &agent.name), "the grant", is_granted);
    assert_eq!(
        (&claim["spec"]["nodeName"], &claim["spec"]["bootstrapSecretName"]),
        (&json!("w-1"), &json!("data"))
    );
    // D4: this host alone, and until it has started.
    agent.until_may_read("data", true);
    assert!(stranger.objects.within(team.name).get("secret", "data").is_err());
    agent.report("Preparing");
    let shows = |state: &'static str| move |found: &Value| found["status"]["bootstrap"]["state"] == state;
    site.until(&team, ("bpm", "w-1"), "that the host prepares", shows("Preparing"));
    assert!(agent.may_read("data"));
    agent.report("Bootstrapping");
    let found = site.until(&team, ("bpm", "w-1"), "that it is provisioned", |found| {
        found["status"]["initialization"]["provisioned"] == true
    });
    assert_eq!(found["status"]["addresses"][0]["address"], "10.7.0.5");
    agent.until_may_read("data", false);
    let is_withdrawn = |found: &Value| condition(found, "Granted").1 == "GrantWithdrawn";
    site.until(&team, ("mcl", &agent.name), "the end of the grant", is_withdrawn);
    agent.report("Joined");
    site.until(&team, ("bpm", "w-1"), "that it is ready", |found| ready(found).0 == "True");
    // M9
    team.objects.begin_delete("bpm", "w-1").unwrap();
    site.until(&team, ("bpm", "w-1"), "that it is being released", |found| ready(found).1 == "Releasing");
    let claim = team.objects.get("mcl", &agent.name).unwrap().unwrap();
    assert!(claim["metadata"]["deletionTimestamp"].is_string(), "{claim}");
    agent.report("Releasing");
    // The provider has seen the report, and the claimant stays.
    site.until(&team, ("bpm", "w-1"), "that the host empties itself", shows("Releasing"));
    // The host is claimed again as soon as it is released.
    team.machine("w-2", Some("data"));
    site.until(&team, ("bpm", "w-2"), "that no host is free", |found| claims(found, "NoEligibleMachine"));
    agent.report("Released");
    site.until_gone(&team, ("bpm", "w-1"));
    let found = site.until(&team, ("bpm", "w-2"), "the next claim", |found| claims(found, "HostClaimed"));
    assert_eq!(found["spec"]["machineName"], *agent.name);
    assert_ne!(found["spec"]["providerID"], *id);
    // The claim of a host that was granted nothing goes without a report of the host.
    agent.heartbeat();
    site.until(&team, ("mcl", &agent.name), "the next grant", is_granted);
    team.objects.begin_delete("bpm", "w-2").unwrap();
    site.until(&team, ("mcl", &agent.name), "its deletion", |found| {
        found["metadata"]["deletionTimestamp"].is_string()
    });
    agent.report("Released");
    site.until_gone(&team, ("bpm", "w-2"));
    site.until_gone(&team, ("mcl", &agent.name));
}

#[test]
fn d1_one_host_has_one_of_many_claimants() {
    let site = Site::shared();
    let team = Team::new(site, "one-host");
    let agent = Agent::new("one-host-1", team.name);
    team.provision();
    let names = ["w-0", "w-1", "w-2", "w-3", "w-4", "w-5"];
    for name in names {
        team.machine(name, Some(""));
    }
    let mut waiting = names.to_vec();
    for round in 0..3 {
        // The condition of the others counts the missing hosts.
        let held = wait::until_asked("a claimant with the host", PATIENCE, || {
            let has = |name: &&&str| -> bool {
                let found = team.objects.get("bpm", name).unwrap();
                found.is_some_and(|found| claims(&found, "HostClaimed"))
            };
            Ok(waiting.iter().find(has).map(|name| (*name).to_owned()))
        })
        .unwrap();
        // All of them have waited when the host comes free: the oldest is served.
        assert!(round == 0 || held == waiting[0], "{held} is served before {}", waiting[0]);
        waiting.retain(|name| *name != held);
        for name in &waiting {
            let found =
                site.until(&team, ("bpm", name), "that it waits", |found| claims(found, "NoEligibleMachine"));
            let expected = "none of 1 Machines that namespace one-host may claim is eligible";
            assert!(condition(&found, "HostClaimed").2.starts_with(expected), "{found}");
            assert!(found["spec"]["providerID"].is_null(), "{found}");
        }
        // A claim that was never granted ends without a report of the agent.
        agent.heartbeat();
        site.until(&team, ("mcl", &agent.name), "the grant", |found| condition(found, "Granted").0 == "True");
        team.objects.begin_delete("bpm", &held).unwrap();
        site.until(&team, ("mcl", &agent.name), "its deletion", |found| {
            found["metadata"]["deletionTimestamp"].is_string()
        });
        agent.report("Released");
        site.until_gone(&team, ("bpm", &held));
    }
}

#[test]
fn k4_cluster_stays_until_its_machines_are_gone() {
    let site = Site::shared();
    let team = Team::new(site, "going");
    team.provision();
    team.machine("w-1", None);
    site.until(&team, ("bpm", "w-1"), "the data", |found| claims(found, "WaitingForBootstrapData"));
    let found = team.objects.get("bpc", team.name).unwrap().unwrap();
    assert!(
        found["metadata"]["annotations"]["clusterctl.cluster.x-k8s.io/block-move"].is_string(),
        "{found}"
    );
    team.objects.begin_delete("bpc", team.name).unwrap();
    let found = site.until(&team, ("bpc", team.name), "that it waits", |found| ready(found).1 == "Deleting");
    assert!(ready(&found).2.contains("w-1"), "{found}");
    team.objects.begin_delete("bpm", "w-1").unwrap();
    site.until_gone(&team, ("bpm", "w-1"));
    site.until_gone(&team, ("bpc", team.name));
}

#[test]
fn d2_machine_of_another_version_or_namespace_gets_no_host() {
    let site = Site::shared();
    let team = Team::new(site, "mismatch");
    let _agent = Agent::new("mismatch-1", team.name);
    team.provision();
    team.objects
        .merge(
            "mc",
            team.name,
            &json!({ "spec": { "template": { "kubernetes": { "version": "v1.33.1" } } } }),
        )
        .unwrap();
    team.machine("w-1", Some(""));
    let found = site.until(&team, ("bpm", "w-1"), "the version", |found| claims(found, "VersionMismatch"));
    assert!(found["spec"]["machineName"].is_null(), "{found}");
    team.objects
        .merge("mc", team.name, &json!({ "spec": { "claimPolicy": { "namespaces": ["other"] } } }))
        .unwrap();
    site.until(&team, ("bpm", "w-1"), "the namespace", |found| claims(found, "ConfigurationForbidden"));
}

#[test]
fn paused_machine_is_not_claimed_until_it_is_unpaused() {
    let site = Site::shared();
    let team = Team::new(site, "pausing");
    let _agent = Agent::new("pausing-1", team.name);
    team.provision();
    team.objects.merge("cluster", team.name, &json!({ "spec": { "paused": true } })).unwrap();
    site.until(&team, ("bpc", team.name), "that it is paused", |found| {
        condition(found, "Paused").0 == "True"
    });
    team.machine("w-1", Some(""));
    let found = site
        .until(&team, ("bpm", "w-1"), "that it is paused", |found| condition(found, "Paused").0 == "True");
    assert!(found["metadata"]["finalizers"].is_null(), "{found}");
    team.objects.merge("cluster", team.name, &json!({ "spec": { "paused": false } })).unwrap();
    site.until(&team, ("bpm", "w-1"), "a claim", |found| claims(found, "HostClaimed"));
}

/// Waits until the API server refuses a dry run with these words: a policy is in force some time after it was created.
fn until_refused(what: &str, words: &str, tried: impl Fn() -> anyhow::Result<Value>) {
    let is_refused = || {
        let refused = tried().is_err_and(|error| format!("{error:#}").contains(words));
        Ok(refused.then_some(()))
    };
    wait::until_asked(what, PATIENCE, is_refused).unwrap();
}

fn refused(tried: anyhow::Result<Value>, words: &str) {
    let why = tried.map_err(|error| format!("{error:#}")).expect_err(words);
    assert!(why.contains(words), "{why}");
}

#[test]
fn d4_provider_makes_no_other_roles_than_grants() {
    let _site = Site::shared();
    let provider = Kubernetes::shared().objects().unwrap().impersonating(PROVIDER, &["system:masters"]);
    let role = |name: &str, rule: Value| json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": name }, "rules": [rule] });
    let one =
        json!({ "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["data"], "verbs": ["get"] });
    let forbidden = "only a Role that permits to read one Secret";
    until_refused(GRANTS, "only Roles and RoleBindings named bedplate-claim-", || {
        provider.try_create(&role("other", one.clone()))
    });
    provider.try_create(&role("bedplate-claim-a", one.clone())).unwrap();
    for (field, value) in [
        ("verbs", json!(["get", "list"])),
        ("verbs", json!(["*"])),
        ("resources", json!(["configmaps"])),
        ("resourceNames", json!(["data", "other"])),
        ("resourceNames", json!([])),
        ("apiGroups", json!(["*"])),
    ] {
        let mut rule = one.clone();
        rule[field] = value;
        refused(provider.try_create(&role("bedplate-claim-a", rule)), forbidden);
    }
    let binding = |role: &str, subject: Value| {
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "bedplate-claim-a" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role }, "subjects": [subject] })
    };
    let subject = |kind: &str, name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
    let group = format!("bedplate:enrollment:{}", "0".repeat(32));
    provider.try_create(&binding("bedplate-claim-a", subject("Group", &group))).unwrap();
    let forbidden = "only to one enrollment group";
    refused(provider.try_create(&binding("admin", subject("Group", &group))), forbidden);
    refused(
        provider.try_create(&binding("bedplate-claim-a", subject("User", "bedplate:machine:a"))),
        forbidden,
    );
    refused(
        provider.try_create(&binding("bedplate-claim-a", subject("Group", "bedplate:machines"))),
        forbidden,
    );
}

#[test]
fn d4_stolen_token_of_the_provider_reads_no_secret_and_writes_no_host() {
    let _site = Site::shared();
    let kubernetes = Kubernetes::shared();
    let account = kubernetes.service_account("bedplate-system", "bedplate-infrastructure").unwrap();
    let thief = kubernetes.objects_of(&account).unwrap().within("bedplate-system");
    let admin = kubernetes.objects().unwrap();
    let object = |kind: &str, name: &str, spec: Value| json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec });
    admin.apply(&object("Machine", "stolen", json!({ "provider": "manual" }))).unwrap();
    refused(thief.request(&Method::GET, "/api/v1/secrets", "application/json", &Value::Null), "cannot list");
    refused(thief.get("secret", "any").map(Option::unwrap_or_default), "cannot get");
    let paused = json!({ "spec": { "paused": true } });
    refused(thief.try_merge("machine", "stolen", &paused), "cannot patch");
    refused(thief.merge_status("machine", "stolen", &json!({ "phase": "Ready" })), "cannot patch");
    refused(thief.begin_delete("machine", "stolen"), "cannot delete");
    let template = json!({ "image": { "reference": "registry.example/node:1" }, "kubernetes": { "version": "v1.34.4" } });
    let configuration = object("MachineConfiguration", "stolen", json!({ "template": template }));
    refused(thief.try_create(&configuration), "cannot create");
    // A dry run: the shared provider needs its Role.
    until_refused(GRANTS, "only Roles and RoleBindings named bedplate-claim-", || {
        thief.can_delete("role", "bedplate:infrastructure-lease")
    });
    let spec = json!({ "machineRef": { "name": "stolen" }, "operationName": "shutdown" });
    let words = "only MachineOperations powerOff named fence-";
    let shutdown = object("MachineOperation", "stolen", spec);
    until_refused("the policy of operations", words, || thief.try_create(&shutdown));
    for (name, operation) in [("release-a", "reboot"), ("release-b", "powerCycle"), ("fence-a", "reboot")] {
        let spec = json!({ "machineRef": { "name": "stolen" }, "operationName": operation });
        refused(thief.try_create(&object("MachineOperation", name, spec)), words);
    }
    let many = json!({ "machineSelector": { "matchLabels": { "rack": "7" } }, "operationName": "powerOff" });
    refused(
        thief.try_create(&object("MachineOperation", "fence-all", many)),
        "only MachineOperations for one Machine by name",
    );
}

#[test]
fn d1_users_choose_no_host_and_change_no_template() {
    let site = Site::shared();
    let team = Team::new(site, "users");
    team.machine("w-1", None);
    let spec = json!({ "template": { "spec": { "configurationRef": { "name": "pool" } } } });
    team.infrastructure("BedplateMachineTemplate", "t", &json!({}), &spec);
    let edit = json!({ "spec": { "template": { "spec": { "configurationRef": { "name": "other" } } } } });
    let words = "the spec of a template cannot be changed";
    until_refused("the policy of templates", words, || team.objects.try_merge("bpmt", "t", &edit));
    // The dry run of the topology controller.
    let mut marked = edit.clone();
    marked["metadata"] = json!({ "annotations": { "topology.cluster.x-k8s.io/dry-run": "" } });
    team.objects.try_merge("bpmt", "t", &marked).unwrap();
    refused(team.objects.merge("bpmt", "t", &marked), words);
    let chosen = json!({ "spec": { "machineName": "users-1" } });
    let words = "only the infrastructure provider writes";
    until_refused("the policy of claimed fields", words, || team.objects.try_merge("bpm", "w-1", &chosen));
    let with_host = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachine", "metadata": { "name": "w-2" },
        "spec": { "configurationRef": { "name": "pool" }, "machineName": "users-1" } });
    refused(team.objects.try_create(&with_host), "cannot be set without spec.providerID");
    let in_template = json!({ "template": { "spec": { "configurationRef": { "name": "pool" }, "machineName": "users-1" } } });
    let template = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachineTemplate",
        "metadata": { "name": "u" }, "spec": in_template });
    refused(team.objects.try_create(&template), "must not be set in a template");
}
