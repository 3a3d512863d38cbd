//! Failure domains of a cluster, and the capacity of a template for autoscaling from zero, by the hosts of the pool
//! (docs/reference/infrastructure-provider.md, "A cluster"; K3).

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use serde_json::{Value, json};

use super::site::{Agent, Site, Team, claims, condition};

const ZONE: &str = "topology.kubernetes.io/zone";
const GIB: u64 = 1 << 30;

fn admin() -> &'static Objects {
    Kubernetes::shared().objects().unwrap()
}

fn label(host: &str, label: &str, value: &str) {
    admin().merge("machine", host, &json!({ "metadata": { "labels": { label: value } } })).unwrap();
}

/// Names of the failure domains of a BedplateCluster.
fn domains(cluster: &Value) -> Vec<&str> {
    let all = cluster["status"]["failureDomains"].as_array().into_iter().flatten();
    all.map(|domain| domain["name"].as_str().unwrap()).collect()
}

fn until_domains(site: &Site, team: &Team, expected: &[&str]) -> Value {
    let what = format!("the domains {expected:?}");
    site.until(team, ("bpc", team.name), &what, |found| domains(found) == expected)
}

/// Creates a Machine of Cluster API for a failure domain.
fn machine_in(team: &Team, name: &str, zone: &str) {
    team.machine(name, None);
    team.change_machine(name, &json!({ "failureDomain": zone, "bootstrap": { "dataSecretName": "" } }));
}

#[test]
fn k3_claimant_gets_a_host_of_its_failure_domain() {
    let site = Site::shared();
    let team = Team::new(site, "zones");
    for (name, namespace, zone) in [
        ("zones-1", "zones", "a"),
        ("zones-2", "zones", "a"),
        ("zones-3", "zones", "b"),
        ("zones-other", "other-zones", "z"),
    ] {
        Agent::new(name, namespace);
        label(name, ZONE, zone);
    }
    let found = team.objects.get("bpc", team.name).unwrap().unwrap();
    assert_eq!(domains(&found), [""; 0], "without a label there are no domains");
    team.objects.merge("bpc", team.name, &json!({ "spec": { "failureDomainLabel": ZONE } })).unwrap();
    let found = until_domains(site, &team, &["a", "b"]);
    assert_eq!(found["status"]["failureDomains"][0], json!({ "name": "a", "controlPlane": true }));
    team.provision();
    machine_in(&team, "w-1", "b");
    let until_claimed = |machine: &str, host: &str, zone: &str| {
        let found = site.until(&team, ("bpm", machine), "a claim", |found| claims(found, "HostClaimed"));
        assert_eq!(found["spec"]["machineName"], host, "{found}");
        assert_eq!(found["status"]["failureDomain"], zone, "{found}");
    };
    until_claimed("w-1", "zones-3", "b");
    // Two hosts of the other domain are free.
    machine_in(&team, "w-2", "b");
    let found =
        site.until(&team, ("bpm", "w-2"), "that it waits", |found| claims(found, "NoEligibleMachine"));
    assert!(condition(&found, "HostClaimed").2.contains("2 are in another failure domain"), "{found}");
    assert!(found["spec"]["machineName"].is_null(), "{found}");
    // Domains and claimants follow the labels of the hosts.
    label("zones-1", ZONE, "c");
    until_domains(site, &team, &["a", "b", "c"]);
    label("zones-2", ZONE, "b");
    until_domains(site, &team, &["b", "c"]);
    until_claimed("w-2", "zones-2", "b");
    machine_in(&team, "w-3", "c");
    until_claimed("w-3", "zones-1", "c");
}

/// Creates a host of a rack with this hardware.
fn host(name: &str, namespace: &str, rack: &str, (threads, memory, architecture): (u32, u64, &str)) {
    let agent = Agent::new(name, namespace);
    label(name, "rack", rack);
    agent.machine(&json!({ "hardware": { "cpu": { "threads": threads, "architecture": architecture },
        "memoryBytes": memory } }));
}

#[test]
fn k3_capacity_of_a_template_is_that_of_its_least_host() {
    let site = Site::shared();
    let team = Team::new(site, "capacity");
    host("capacity-other-pool", "other-capacity", "7", (1, GIB, "amd64"));
    host("capacity-other-rack", team.name, "8", (1, GIB, "amd64"));
    let spec = json!({ "configurationRef": { "name": team.name }, "machineSelector": { "matchLabels": { "rack": "7" } } });
    let template = json!({ "template": { "spec": spec } });
    team.infrastructure("BedplateMachineTemplate", "t", &json!({}), &template);
    let until = |threads: &str, memory: u64, architecture: &Value| {
        let capacity = json!({ "cpu": threads, "memory": memory.to_string() });
        let found = site.until(&team, ("bpmt", "t"), &capacity.to_string(), |found| {
            let status = &found["status"];
            status["capacity"] == capacity && status["nodeInfo"]["architecture"] == *architecture
        });
        assert_eq!(found["status"]["nodeInfo"]["operatingSystem"], "linux", "{found}");
    };
    let amd64 = json!("amd64");
    host("capacity-1", team.name, "7", (16, 64 * GIB, "amd64"));
    until("16", 64 * GIB, &amd64);
    host("capacity-2", team.name, "7", (32, 48 * GIB, "amd64"));
    until("16", 48 * GIB, &amd64);
    // A claimed host counts.
    team.provision();
    team.machine_with("w-1", Some(""), &json!({ "machineSelector": { "matchLabels": { "rack": "7" } } }));
    site.until(&team, ("bpm", "w-1"), "a claim", |found| claims(found, "HostClaimed"));
    host("capacity-3", team.name, "7", (8, 96 * GIB, "arm64"));
    until("8", 48 * GIB, &Value::Null);
    admin().delete("machine", "capacity-3").unwrap();
    until("16", 48 * GIB, &amd64);
    // The hosts leave the selection.
    label("capacity-1", "rack", "9");
    until("32", 48 * GIB, &amd64);
    label("capacity-2", "rack", "9");
    let found =
        site.until(&team, ("bpmt", "t"), "no capacity", |found| found["status"]["capacity"].is_null());
    assert_eq!(found["status"]["nodeInfo"], json!({ "operatingSystem": "linux" }), "{found}");
}
