//! The infrastructure provider of Cluster API on a real API server, with the roles and policies of `deploy/` (docs/infrastructure-provider.md).
//!
//! `bedplate-cluster` is the real program. The tests stand in for the controllers of Cluster API, and a simulator for the agents: it writes the
//! status of claims, and reads Secrets, with the certificate of an agent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use bedplate_tests::guard::{Directory, Process};
use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::{pxed, wait};
use http::Method;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const PROVIDER: &str = "system:serviceaccount:bedplate-system:bedplate-infrastructure";
const IMAGE: &str =
    "registry.example/node@sha256:0000000000000000000000000000000000000000000000000000000000000001";

/// The cluster with its provider; both end with the test program.
struct Site {
    provider: Mutex<Process>,
    _place: Directory,
}

impl Site {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Site> = OnceLock::new();
        SHARED.get_or_init(|| {
            install();
            let kubernetes = Kubernetes::shared();
            let place = Directory::new("cluster-api").unwrap();
            let kubeconfig =
                kubernetes.service_account("bedplate-system", "bedplate-infrastructure").unwrap();
            let mut command = Command::new(pxed::binary("bedplate-cluster").unwrap());
            command.args(["--controllers=infrastructure", "--listen=127.0.0.1:0", "--log-format=text"]);
            command.arg("--kubeconfig").arg(kubeconfig);
            let log = place.path().join("provider.log");
            let provider = Process::spawn("bedplate-cluster", &mut command, &log).unwrap();
            Self { provider: Mutex::new(provider), _place: place }
        })
    }

    /// Waits until an object is in a state.
    fn until(
        &self,
        team: &Team,
        (kind, name): (&str, &str),
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let is_so = |object: Option<&Value>| object.filter(|object| is(object)).cloned();
        team.objects.until((kind, name), PATIENCE, is_so).unwrap_or_else(|error| {
            let log = self.provider.lock().unwrap().said();
            let found = team.objects.get(kind, name).unwrap().unwrap_or_default();
            panic!("{kind} {name}: {what}: {error:#}\n{found:#}\n{log}")
        })
    }

    fn until_gone(&self, team: &Team, (kind, name): (&str, &str)) {
        let gone = |object: Option<&Value>| object.is_none().then_some(());
        let ended = team.objects.until((kind, name), PATIENCE, gone);
        ended.unwrap_or_else(|error| {
            let log = self.provider.lock().unwrap().said();
            let found = team.objects.get(kind, name).unwrap().unwrap_or_default();
            panic!("deletion of {kind} {name}: {error:#}\n{found:#}\n{log}")
        });
    }
}

/// Installs the provider, and the two kinds of Cluster API that it reads.
fn install() {
    let kubernetes = Kubernetes::shared();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for kind in ["Cluster", "Machine"] {
        let plural = format!("{}s", kind.to_lowercase());
        let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": {
            "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } } });
        let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.cluster.x-k8s.io"),
                "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/cluster-api" } },
            "spec": { "group": "cluster.x-k8s.io", "scope": "Namespaced",
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
                "versions": [{ "name": "v1beta2", "served": true, "storage": true, "schema": schema,
                    "subresources": { "status": {} } }] } });
        kubernetes.objects().unwrap().apply(&definition).unwrap();
    }
    let components = root.join("deploy/cluster-api/infrastructure-components.yaml").display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &components]).unwrap();
    let crds = [
        "crd/clusters.cluster.x-k8s.io",
        "crd/machines.cluster.x-k8s.io",
        "crd/bedplatemachines.infrastructure.cluster.x-k8s.io",
        "crd/bedplateclusters.infrastructure.cluster.x-k8s.io",
    ];
    let mut established = vec!["wait", "--for=condition=Established", "--timeout=60s"];
    established.extend(crds);
    kubernetes.kubectl(&kubernetes.admin(), &established).unwrap();
}

/// Objects of one namespace, with a provisioned Cluster of the same name and a configuration for it.
struct Team {
    name: &'static str,
    objects: Objects,
}

impl Team {
    fn new(site: &Site, name: &'static str) -> Self {
        let objects = Kubernetes::shared().objects().unwrap().within(name);
        objects
            .apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))
            .unwrap();
        let team = Self { name, objects };
        team.objects
            .apply(&json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "metadata": { "name": name },
                "spec": { "claimPolicy": { "namespaces": [name] }, "template": { "image": { "reference": IMAGE },
                    "kubernetes": { "version": "v1.34.4" } } } }))
            .unwrap();
        let reference =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateCluster", "name": name });
        let cluster = team.objects
            .apply(&json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": name },
                "spec": { "infrastructureRef": reference } }))
            .unwrap();
        team.infrastructure("BedplateCluster", name, &json!({}), &json!({}));
        site.until(&team, ("bpc", name), "that it waits for its owner", |found| {
            ready(found).1 == "WaitingForOwner"
        });
        let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": name,
            "uid": cluster["metadata"]["uid"] });
        team.objects.merge("bpc", name, &json!({ "metadata": { "ownerReferences": [owner] } })).unwrap();
        site.until(&team, ("bpc", name), "that it waits for an endpoint", |found| {
            ready(found).1 == "EndpointMissing"
        });
        let endpoint = json!({ "controlPlaneEndpoint": { "host": "10.7.0.9", "port": 6443 } });
        team.objects.merge("bpc", name, &json!({ "spec": endpoint })).unwrap();
        let is_provisioned = |found: &Value| found["status"]["initialization"]["provisioned"] == true;
        let found = site.until(&team, ("bpc", name), "that it is provisioned", is_provisioned);
        assert_eq!(ready(&found).0, "True", "{found}");
        team
    }

    /// Does for the Cluster what the controller of Cluster API does once the infrastructure is provisioned.
    fn provision(&self) {
        let status = json!({ "initialization": { "infrastructureProvisioned": true } });
        self.objects.merge_status("cluster", self.name, &status).unwrap();
    }

    fn infrastructure(&self, kind: &str, name: &str, metadata: &Value, spec: &Value) -> Value {
        let mut object = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": kind,
            "metadata": { "labels": { "cluster.x-k8s.io/cluster-name": self.name } }, "spec": spec });
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        object["metadata"]["name"] = name.into();
        self.objects.apply(&object).unwrap()
    }

    fn machines(&self, name: &str) -> String {
        format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{}/machines{name}", self.name)
    }

    /// A Machine of Cluster API with its BedplateMachine. `data`: name of its bootstrap data.
    fn machine(&self, name: &str, data: Option<&str>) {
        let reference =
            json!({ "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "BedplateMachine", "name": name });
        let mut machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": { "name": name, "labels": { "cluster.x-k8s.io/cluster-name": self.name } },
            "spec": { "clusterName": self.name, "version": "v1.34.4", "infrastructureRef": reference, "bootstrap": {} } });
        if let Some(data) = data {
            machine["spec"]["bootstrap"]["dataSecretName"] = data.into();
        }
        let made =
            self.objects.request(&Method::POST, &self.machines(""), "application/json", &machine).unwrap();
        let owner = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
            "uid": made["metadata"]["uid"], "controller": true });
        let spec = json!({ "configurationRef": { "name": self.name } });
        self.infrastructure("BedplateMachine", name, &json!({ "ownerReferences": [owner] }), &spec);
    }

    fn bootstrap_data(&self, name: &str, data: &str) {
        let patch = json!({ "spec": { "bootstrap": { "dataSecretName": data } } });
        let path = self.machines(&format!("/{name}"));
        self.objects.request(&Method::PATCH, &path, "application/merge-patch+json", &patch).unwrap();
    }

    fn secret(&self, name: &str) {
        self.objects
            .apply(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
                "stringData": { "value": "#cloud-config", "format": "cloud-config" } }))
            .unwrap();
    }
}

/// Agent of a host of a pool.
struct Agent {
    name: String,
    objects: Objects,
}

impl Agent {
    /// Creates a Machine that this namespace may claim, with an enrolled agent.
    fn new(name: &str, namespace: &str) -> Self {
        let kubernetes = Kubernetes::shared();
        let admin = kubernetes.objects().unwrap();
        admin
            .apply(&json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": name },
                "spec": { "provider": "manual", "claimPolicy": { "namespaces": [namespace] } } }))
            .unwrap();
        let (kubeconfig, enrollment) = kubernetes.agent(name).unwrap();
        let agent = Self {
            name: name.to_owned(),
            objects: kubernetes.objects_of(&kubeconfig).unwrap().within(namespace),
        };
        agent.machine(&json!({ "enrollment": enrollment }));
        agent.heartbeat();
        agent
    }

    fn machine(&self, status: &Value) {
        Kubernetes::shared().objects().unwrap().merge_status("machine", &self.name, status).unwrap();
    }

    fn heartbeat(&self) {
        // The API server counts in seconds: the heartbeat must not seem older than a claim of the same second.
        let now = jiff::Timestamp::now() + Duration::from_secs(1);
        let addresses = json!([{ "type": "InternalIP", "address": "10.7.0.5" }]);
        self.machine(&json!({ "agent": { "features": ["claims"], "lastHeartbeatTime": now.to_string() }, "addresses": addresses }));
    }

    /// Reports a state of the claim, in the claim and in the Machine.
    fn report(&self, state: &str) {
        let claim = Kubernetes::shared().objects().unwrap().get("mcl", &self.name).unwrap().unwrap();
        let (id, claimant) = (&claim["spec"]["providerID"], &claim["spec"]["claimant"]);
        let since = "2026-01-01T00:00:00Z";
        let claimant = json!({ "namespace": claimant["namespace"], "name": claimant["name"] });
        self.machine(
            &json!({ "claim": { "providerID": id, "claimant": claimant, "state": state, "since": since } }),
        );
        let mut status = json!({ "providerID": id, "state": state, "since": since });
        if state == "Joined" {
            status["node"] = json!({ "name": claim["spec"]["nodeName"], "uid": "n" });
        }
        let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineClaim",
            "metadata": { "name": self.name }, "status": status });
        self.objects.apply_as("bedplate-agent", "/status", &object, "").unwrap();
    }

    fn may_read(&self, secret: &str) -> bool {
        self.objects.get("secret", secret).is_ok()
    }

    fn until_may_read(&self, secret: &str, may: bool) {
        let what = format!("that {} may read the Secret: {may}", self.name);
        wait::until_asked(&what, PATIENCE, || Ok((self.may_read(secret) == may).then_some(()))).unwrap();
    }
}

/// Status and reason of a condition.
fn condition<'a>(object: &'a Value, kind: &str) -> (&'a str, &'a str, &'a str) {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
    let text = |field: &str| found.and_then(|condition| condition[field].as_str()).unwrap_or_default();
    (text("status"), text("reason"), text("message"))
}

fn ready(object: &Value) -> (&str, &str, &str) {
    condition(object, "Ready")
}

fn claims(object: &Value, reason: &str) -> bool {
    condition(object, "HostClaimed").1 == reason
}

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
    assert!(team.objects.get("bpm", "w-1").unwrap().is_some());
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
    let forbidden = "no Role but one that lets read one Secret";
    wait::until_asked("the policy of grants", PATIENCE, || {
        let tried = provider.try_create(&role("other", one.clone()));
        Ok(tried
            .is_err_and(|error| format!("{error:#}").contains("those named bedplate-claim-"))
            .then_some(()))
    })
    .unwrap();
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
    let forbidden = "to no subject but one enrollment group";
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
fn d1_users_choose_no_host_and_change_no_template() {
    let site = Site::shared();
    let team = Team::new(site, "users");
    team.machine("w-1", None);
    let spec = json!({ "template": { "spec": { "configurationRef": { "name": "pool" } } } });
    team.infrastructure("BedplateMachineTemplate", "t", &json!({}), &spec);
    let edit = json!({ "spec": { "template": { "spec": { "configurationRef": { "name": "other" } } } } });
    wait::until_asked("the policy of templates", PATIENCE, || {
        let tried = team.objects.try_merge("bpmt", "t", &edit);
        Ok(tried
            .is_err_and(|error| format!("{error:#}").contains("the spec of a template cannot be changed"))
            .then_some(()))
    })
    .unwrap();
    // The dry run of the topology controller.
    let mut marked = edit.clone();
    marked["metadata"] = json!({ "annotations": { "topology.cluster.x-k8s.io/dry-run": "" } });
    team.objects.try_merge("bpmt", "t", &marked).unwrap();
    refused(team.objects.merge("bpmt", "t", &marked), "the spec of a template cannot be changed");
    let chosen = json!({ "spec": { "machineName": "users-1" } });
    refused(team.objects.merge("bpm", "w-1", &chosen), "written by the infrastructure provider alone");
    let with_host = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachine", "metadata": { "name": "w-2" },
        "spec": { "configurationRef": { "name": "pool" }, "machineName": "users-1" } });
    refused(team.objects.try_create(&with_host), "cannot be set without spec.providerID");
    let in_template = json!({ "template": { "spec": { "configurationRef": { "name": "pool" }, "machineName": "users-1" } } });
    let template = json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachineTemplate",
        "metadata": { "name": "u" }, "spec": in_template });
    refused(team.objects.try_create(&template), "must not be set in a template");
}
