//! Clusters of Cluster API on claimed hosts, all of it real but the bodies of the servers: the controllers and clusterctl of the version in
//! tests/kubernetes/cluster-api, bedplate-cluster, bedplate-controller, pxed, the agent under systemd, kubeadm, kubelet, etcd, and a load balancer.
//!
//! One test has no program of upstream's Cluster API: it follows docs/guides/cluster-guide.md.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod soak_cluster_api_rack {
    pub(crate) mod guide;
    pub(crate) mod journey;
    pub(crate) mod power;
    pub(crate) mod site;
    pub(crate) mod template;
}

use bedplate_tests::cluster_api::Expected;
use bedplate_tests::nodes::is_ready;
use bedplate_tests::rack::Rack;
use serde_json::{Value, json};

use self::soak_cluster_api_rack::journey::Journey;
use self::soak_cluster_api_rack::site::{HOSTS, Site};

const CLUSTER: &str = "team-a-1";
const CONTROL_PLANE: &str = "team-a-1-control-plane";
const WORKERS: &str = "team-a-1-workers";
/// Conditions of a Machine whose Node is Ready.
const RUNNING: &[Expected] = &[
    ("BootstrapConfigReady", "True", "Ready"),
    ("InfrastructureReady", "True", "Joined"),
    ("NodeHealthy", "True", "NodeHealthy"),
    ("Available", "True", "Available"),
];

#[test]
fn k2_cluster_lives_on_claimed_hosts_and_gives_them_back() {
    let rack = Rack::new("cluster-api").unwrap();
    let site = Site::start(&rack);
    site.configure("pool");
    site.create_cluster(CLUSTER, "2");
    runs(&site, CLUSTER, 3);
    site.team.merge("machinedeployment", WORKERS, &json!({ "spec": { "replicas": 1 } })).unwrap();
    runs(&site, CLUSTER, 2);
    until_claims(&site, 2);
    upgrades(&site);
    replaces_a_silent_host(&site);
    ends(&site, CLUSTER);

    // The hosts serve another cluster of the same tenant.
    site.create_cluster("team-a-2", "1");
    runs(&site, "team-a-2", 2);
    ends(&site, "team-a-2");
    rack.succeeded();
}

#[test]
fn k6_guide_leads_from_hosts_to_an_upgrade_with_bedplate_alone() {
    let rack = Rack::new("cluster-guide").unwrap();
    let mut journey = Journey::start(&rack);
    journey.puts_hosts_into_a_pool();
    journey.installs_the_providers();
    journey.creates_the_cluster();
    journey.creates_the_first_control_plane();
    journey.gets_the_kubeconfig();
    journey.adds_workers();
    journey.replaces_an_unhealthy_worker();
    journey.replaces_the_control_plane();
    journey.upgrades_the_workers();
    journey.deletes_the_cluster();
    journey.has_used_the_whole_guide();
    rack.succeeded();
}

/// Waits until the cluster and `count` Machines run, and their Nodes are Ready.
fn runs(site: &Site<'_>, cluster: &str, count: usize) {
    site.until_machines(count, RUNNING);
    site.until_conditions(
        ("cluster", cluster),
        &[
            ("InfrastructureReady", "True", "Provisioned"),
            ("ControlPlaneInitialized", "True", "Initialized"),
            ("Available", "True", "Available"),
        ],
    );
    for (kind, name) in [("kcp", "control-plane"), ("machinedeployment", "workers")] {
        site.until_conditions((kind, &format!("{cluster}-{name}")), &[("Available", "True", "Available")]);
    }
    let nodes = site.workload(cluster, &["get", "nodes", "-o", "json"]).unwrap();
    let nodes: Value = serde_json::from_str(&nodes).unwrap();
    let nodes = nodes["items"].as_array().unwrap();
    assert_eq!(nodes.len(), count, "{nodes:#?}");
    assert!(nodes.iter().all(is_ready), "{nodes:#?}");
    let described = site.described(cluster);
    assert!(described.contains(&format!("Cluster/{cluster}")), "{described}");
    let nodes = site.workload(cluster, &["get", "nodes", "-o", "wide"]).unwrap();
    println!("{}\n{described}\n{nodes}", site.tables());
}

fn until_claims(site: &Site<'_>, count: usize) {
    site.until(&format!("{count} claims"), |site| site.claimed().len() == count);
}

/// Names of the hosts of the claimants whose names contain this.
fn hosts(site: &Site<'_>, part: &str) -> Vec<String> {
    let claimants = site.claimants(part);
    claimants.iter().filter_map(|one| one["spec"]["machineName"].as_str().map(str::to_owned)).collect()
}

/// Replaces the control plane and then the worker, each by a new template. etcd moves to another host.
fn upgrades(site: &Site<'_>) {
    let before = hosts(site, "control-plane");
    site.configure("pool-next");
    for name in [CONTROL_PLANE, WORKERS] {
        let spec = json!({ "template": { "spec": { "configurationRef": { "name": "pool-next" }, "stateDisk": "Any",
            "releaseTimeoutSeconds": 60 } } });
        let template = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachineTemplate",
            "metadata": { "name": format!("{name}-next") }, "spec": spec });
        site.team.apply(&template).unwrap();
    }
    let machine = |name: &str| json!({ "infrastructureRef": { "name": format!("{name}-next") } });
    let spec = json!({ "machineTemplate": { "spec": machine(CONTROL_PLANE) } });
    site.team.merge("kcp", CONTROL_PLANE, &json!({ "spec": spec })).unwrap();
    let is_next = |one: &Value| one["spec"]["configurationRef"]["name"] == "pool-next";
    let is_replaced = |site: &Site<'_>, part: &str| {
        let found = site.claimants(part);
        found.len() == 1 && found.iter().all(is_next)
    };
    site.until("a new control plane", |site| is_replaced(site, "control-plane"));
    runs(site, CLUSTER, 2);
    let spec = json!({ "template": { "spec": machine(WORKERS) } });
    site.team.merge("machinedeployment", WORKERS, &json!({ "spec": spec })).unwrap();
    site.until("a new worker", |site| is_replaced(site, "workers"));
    runs(site, CLUSTER, 2);
    until_claims(site, 2);
    assert_ne!(hosts(site, "control-plane"), before, "etcd has moved to another host");
}

/// Cuts the worker's host off from the network. Its Machine is replaced once the BMC has powered the host off.
fn replaces_a_silent_host(site: &Site<'_>) {
    let checks =
        json!({ "unhealthyNodeConditions": [{ "type": "Ready", "status": "Unknown", "timeoutSeconds": 1 }] });
    site.team.merge("machinehealthcheck", WORKERS, &json!({ "spec": { "checks": checks } })).unwrap();
    let [silent] = &site.claimants("workers")[..] else { panic!("not one worker") };
    let (name, host) = (text(&silent["metadata"]["name"]), text(&silent["spec"]["machineName"]));
    site.unplug(host);
    site.until("deletion of the silent Machine", |site| {
        let machines = site.machines();
        let mut silent = machines.iter().filter(|machine| machine["metadata"]["name"] == *name);
        silent.any(|machine| machine["metadata"]["deletionTimestamp"].is_string())
    });
    println!("{host} is silent\n{}", site.tables());
    let server = site.server(host);
    assert!(server.has_power(), "D8: not before the timeout of the release");
    site.until("the end of the silent Machine", |site| site.team.get("bpm", name).unwrap().is_none());
    assert!(!server.has_power(), "D8: the claimant goes after the power-off");
    site.until_conditions(("mcl", host), &[("Fenced", "True", "PoweredOff")]);
    runs(site, CLUSTER, 2);
    assert_ne!(hosts(site, "workers"), [host]);
    assert!(!server.has_power(), "only a user powers it on");
    // The host boots again without its state, and its claim ends.
    let host = HOSTS.into_iter().find(|known| known == &host).unwrap();
    site.power_on(host);
    site.boot(host);
    until_claims(site, 2);
}

/// Deletes the cluster. All of its hosts are free then.
fn ends(site: &Site<'_>, cluster: &str) {
    site.team.begin_delete("cluster", cluster).unwrap();
    site.until("the end of the cluster", |site| site.team.get("cluster", cluster).unwrap().is_none());
    site.until_free();
    assert!(site.claimants("").is_empty());
    println!("{}", site.tables());
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
