//! Our providers next to the controllers of Cluster API: the core, bootstrap and control-plane managers and clusterctl of the version in
//! tests/kubernetes/cluster-api. Agents are simulated. docs/design/testing.md has the mixtures and their times.
//!
//! etcd is external, so the control-plane manager opens no connection to a Pod.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod soak_cluster_api_contract {
    pub(crate) mod kept;
    pub(crate) mod site;
}

use bedplate_tests::cluster_api::{Expected, Programs, Source};
use serde_json::{Value, json};

use self::soak_cluster_api_contract::kept::{assert_kept, kept, leaves_nothing};
use self::soak_cluster_api_contract::site::{CLUSTER, CONTROL_PLANE, HOSTS, Site, WORKERS, next_version};

/// Conditions of a Machine whose host has joined.
const RUNNING: &[Expected] = &[
    ("BootstrapConfigReady", "True", "Ready"),
    ("InfrastructureReady", "True", "Joined"),
    ("NodeHealthy", "True", "NodeHealthy"),
    ("Available", "True", "Available"),
];

#[test]
fn k2_cluster_of_upstream_lives_and_frees_its_hosts() {
    let site = Site::start(Programs::UPSTREAM);
    site.create_cluster();
    runs(&site, 3);
    scales(&site);
    upgrades(&site);
    replaces_a_dead_host(&site);
    pauses(&site);
    ends(&site);
    is_removed(&site);
}

/// Our bootstrap provider under the core and the control plane of upstream: init, joins, a smaller cluster, an upgrade, and the end.
#[test]
fn b1_cluster_of_upstream_lives_with_our_bootstrap_provider() {
    let site = Site::start(Programs { bootstrap: Source::Bedplate, ..Programs::UPSTREAM });
    site.create_cluster();
    runs(&site, 3);
    is_bootstrapped_by_bedplate(&site);
    scales(&site);
    upgrades(&site);
    is_deleted(&site);
    assert_eq!(site.team.list("kubeadmconfig", "").unwrap(), [Value::Null; 0]);
}

/// Upstream's control plane is the only program that is not ours.
#[test]
fn k6_control_plane_of_upstream_lives_over_our_core_and_bootstrap() {
    let site = Site::start(Programs { core: Source::Bedplate, bootstrap: Source::Bedplate });
    site.create_cluster();
    runs(&site, 3);
    is_bootstrapped_by_bedplate(&site);
    is_run_by_our_core(&site);
    scales(&site);
    upgrades(&site);
    replaces_a_dead_host(&site);
    pauses(&site);
    ends(&site);
    leaves_nothing(&site);
}

#[test]
fn k6_control_plane_and_bootstrap_of_upstream_live_over_our_core() {
    let site = Site::start(Programs { core: Source::Bedplate, ..Programs::UPSTREAM });
    site.create_cluster();
    runs(&site, 3);
    is_run_by_our_core(&site);
    scales(&site);
    upgrades(&site);
    is_deleted(&site);
    leaves_nothing(&site);
}

/// The core of upstream is stopped and ours started over the same objects, and then the reverse. Neither change replaces a Machine.
#[test]
fn k5_our_core_takes_over_from_upstreams_and_hands_back() {
    let mut site = Site::start(Programs::UPSTREAM);
    site.create_cluster();
    runs(&site, 3);
    let of_upstream = kept(&site);
    site.take_over();
    site.team.merge("machinedeployment", WORKERS, &json!({ "spec": { "replicas": 3 } })).unwrap();
    runs(&site, 4);
    is_run_by_our_core(&site);
    assert_kept(&site, &of_upstream, 3);
    let of_both = kept(&site);
    site.hand_back();
    scales(&site);
    assert_kept(&site, &of_both, 2);
    upgrades(&site);
    is_deleted(&site);
    leaves_nothing(&site);
}

/// Asserts that the status of each KubeadmConfig is ours.
fn is_bootstrapped_by_bedplate(site: &Site) {
    let configs = site.team.list("kubeadmconfig", "").unwrap();
    assert_eq!(configs.len(), 3, "{}", site.conditions());
    for config in configs {
        assert!(has_status_of(&config, "bedplate-cluster-bootstrap"), "{config}");
    }
}

/// Asserts that our core writes the status of each Machine, MachineSet and MachineDeployment, and of the Cluster.
fn is_run_by_our_core(site: &Site) {
    for kind in ["cluster", "clustermachine", "machineset", "machinedeployment", "machinehealthcheck"] {
        for object in site.team.list(kind, "").unwrap() {
            assert!(has_status_of(&object, "bedplate-cluster-core"), "{object}");
        }
    }
}

/// Returns true if a field manager has written the status of an object.
fn has_status_of(object: &Value, manager: &str) -> bool {
    let is_it = |entry: &Value| entry["manager"] == manager && entry["subresource"] == "status";
    object["metadata"]["managedFields"].as_array().is_some_and(|managers| managers.iter().any(is_it))
}

/// Waits until the cluster and `count` Machines run.
fn runs(site: &Site, count: usize) {
    site.until_machines(count, RUNNING);
    site.until_conditions(
        ("cluster", CLUSTER),
        &[
            ("InfrastructureReady", "True", "Provisioned"),
            ("ControlPlaneInitialized", "True", "Initialized"),
            ("Available", "True", "Available"),
        ],
    );
    site.until_conditions(("kcp", CONTROL_PLANE), &[("Available", "True", "Available")]);
    site.until_conditions(("machinedeployment", WORKERS), &[("Available", "True", "Available")]);
    println!("{count} Machines run\n{}", site.conditions());
    assert_eq!(site.simulator.errors(), [""; 0], "{}", site.conditions());
}

fn scales(site: &Site) {
    site.team.merge("machinedeployment", WORKERS, &json!({ "spec": { "replicas": 1 } })).unwrap();
    runs(site, 2);
    site.until("two claims", |site| site.claimed().len() == 2);
}

/// Upgrades the control plane and then the workers, each by a new template.
fn upgrades(site: &Site) {
    let version = next_version();
    site.configure("pool-next", &version);
    for name in [CONTROL_PLANE, WORKERS] {
        let spec = json!({ "template": { "spec": { "configurationRef": { "name": "pool-next" } } } });
        let template = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachineTemplate",
            "metadata": { "name": format!("{name}-next") }, "spec": spec });
        site.team.apply(&template).unwrap();
    }
    let machine = |name: &str| json!({ "infrastructureRef": { "name": format!("{name}-next") } });
    let spec = json!({ "version": version, "machineTemplate": { "spec": machine(CONTROL_PLANE) } });
    site.team.merge("kcp", CONTROL_PLANE, &json!({ "spec": spec })).unwrap();
    site.until("a control plane of the new version", |site| {
        let found = site.team.get("kcp", CONTROL_PLANE).unwrap().unwrap();
        found["status"]["version"] == *version && site.machines().len() == 2
    });
    let mut spec = machine(WORKERS);
    spec["version"] = version.clone().into();
    let spec = json!({ "spec": { "template": { "spec": spec } } });
    site.team.merge("machinedeployment", WORKERS, &spec).unwrap();
    site.until("Machines of the new version", |site| {
        let machines = site.machines();
        machines.len() == 2 && machines.iter().all(|machine| machine["spec"]["version"] == *version)
    });
    runs(site, 2);
    // The hosts run the configuration of the new templates. Those of the old Machines are free.
    site.until("two claims", |site| site.claimed().len() == 2);
    for kind in ["bpm", "mcl"] {
        let found = site.team.list(kind, "").unwrap();
        let is_next = |one: &Value| one["spec"]["configurationRef"]["name"] == "pool-next";
        assert!(found.len() == 2 && found.iter().all(is_next), "{kind}: {found:#?}");
    }
}

/// Stops the host of the worker. The Machine is replaced once a user has confirmed that the host is off.
fn replaces_a_dead_host(site: &Site) {
    let checks =
        json!({ "unhealthyNodeConditions": [{ "type": "Ready", "status": "Unknown", "timeoutSeconds": 1 }] });
    site.team.merge("machinehealthcheck", WORKERS, &json!({ "spec": { "checks": checks } })).unwrap();
    let dead = site.worker();
    let (name, host) = (text(&dead["metadata"]["name"]), text(&dead["spec"]["machineName"]));
    site.simulator.stop(host);
    site.simulator.node_ready(name, "Unknown").unwrap();
    site.until_machine(
        name,
        &[
            ("HealthCheckSucceeded", "False", "UnhealthyNode"),
            ("OwnerRemediated", "False", "MachineDeleting"),
            ("InfrastructureReady", "False", "Releasing"),
            ("Deleting", "True", "WaitingForInfrastructureDeletion"),
        ],
    );
    println!("{host} is dead\n{}", site.conditions());
    let annotations = json!({ "bedplate.dev/host-is-off": dead["spec"]["providerID"] });
    site.team.merge("machine", host, &json!({ "metadata": { "annotations": annotations } })).unwrap();
    site.until("the end of the dead Machine", |site| site.team.get("bpm", name).unwrap().is_none());
    runs(site, 2);
    assert_ne!(site.worker()["spec"]["machineName"], *host);
    site.until_conditions(("mcl", host), &[("Fenced", "True", "ConfirmedByUser")]);
    // The host is powered on again, and releases its claim.
    site.simulator.start_again(host);
    site.until("two claims", |site| site.claimed().len() == 2);
}

/// A paused cluster claims no host.
fn pauses(site: &Site) {
    let pause = |paused: bool| {
        site.team.merge("cluster", CLUSTER, &json!({ "spec": { "paused": paused } })).unwrap();
    };
    let paused: &[Expected] = &[("Paused", "True", "Paused")];
    pause(true);
    let worker = site.worker();
    for object in
        [("bpc", CLUSTER), ("bpm", text(&worker["metadata"]["name"])), ("machinedeployment", WORKERS)]
    {
        site.until_conditions(object, paused);
    }
    is_not_claimed(site, &worker);
    site.team.merge("machinedeployment", WORKERS, &json!({ "spec": { "replicas": 2 } })).unwrap();
    println!("paused\n{}", site.conditions());
    pause(false);
    runs(site, 3);
}

/// Creates a BedplateMachine that lacks nothing but a host: the controllers of a paused cluster create none.
fn is_not_claimed(site: &Site, worker: &Value) {
    let name = "while-paused";
    let metadata = json!({ "name": name, "labels": { "cluster.x-k8s.io/cluster-name": CLUSTER },
        "ownerReferences": worker["metadata"]["ownerReferences"] });
    let waiting = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachine",
        "metadata": metadata, "spec": { "configurationRef": worker["spec"]["configurationRef"] } });
    site.team.apply(&waiting).unwrap();
    site.until_conditions(("bpm", name), &[("Paused", "True", "Paused")]);
    let found = site.team.get("bpm", name).unwrap().unwrap();
    assert!(found["spec"]["machineName"].is_null() && found["metadata"]["finalizers"].is_null(), "{found}");
    assert_eq!(site.claimed().len(), 2, "{} hosts", HOSTS.len());
    site.team.begin_delete("bpm", name).unwrap();
    site.until("the end of a BedplateMachine", |site| site.team.get("bpm", name).unwrap().is_none());
}

/// Deletes the cluster. Its hosts are released.
fn is_deleted(site: &Site) {
    site.team.begin_delete("cluster", CLUSTER).unwrap();
    site.until("the end of the cluster", |site| site.team.get("cluster", CLUSTER).unwrap().is_none());
    site.until("a pool without claims", |site| site.claimed().is_empty());
}

/// Deletes the cluster. Some of its hosts had been claimed repeatedly.
fn ends(site: &Site) {
    is_deleted(site);
    assert!(site.team.list("bpm", "").unwrap().is_empty());
    let joined = site.simulator.joined();
    println!("{joined:#?}");
    // Three Machines at first, two of the upgrade, one for the dead host and one more at the end, on four hosts.
    assert_eq!(joined.values().map(Vec::len).sum::<usize>(), 7, "{joined:?}");
    let mut ids: Vec<&String> = joined.values().flatten().collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 7, "{joined:?}");
}

/// Removes the provider, but no hosts (docs/reference/infrastructure-provider.md).
fn is_removed(site: &Site) {
    site.clusterctl(&["delete", "--infrastructure", "bedplate"], &[]);
    assert_eq!(site.team.list("machine", "").unwrap().len(), HOSTS.len());
    let system = site.team.within("bedplate-system");
    assert!(system.get("serviceaccount", "bedplate-infrastructure").unwrap().is_none());
    for kind in ["clusterrole", "clusterrolebinding"] {
        assert!(system.get(kind, "bedplate-system-infrastructure").unwrap().is_none(), "{kind}");
    }
    assert!(system.get("validatingadmissionpolicy", "bedplate-claim-grants").unwrap().is_none());
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
