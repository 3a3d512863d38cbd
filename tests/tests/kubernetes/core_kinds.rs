//! The core kinds and the bootstrap kinds of Cluster API on a real API server, with our own definitions. Each rule accepts one object and refuses
//! another. The other tests try forms of texts, objects in the form of upstream's guides, and fields that the definitions do not have.

use std::path::Path;
use std::sync::OnceLock;

use bedplate_api::cluster::full::pool;
use bedplate_api::crds::bootstrap_definitions;
use bedplate_tests::kubernetes::Kubernetes;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::cluster::admin;

#[path = "../../../api/tests/cluster_api/rules.rs"]
mod rules;

use rules::{Case, with};

const KINDS: [&str; 9] = [
    "clusters.cluster.x-k8s.io",
    "machines.cluster.x-k8s.io",
    "machinesets.cluster.x-k8s.io",
    "machinedeployments.cluster.x-k8s.io",
    "machinehealthchecks.cluster.x-k8s.io",
    "machinedrainrules.cluster.x-k8s.io",
    "machinepools.cluster.x-k8s.io",
    "kubeadmconfigs.bootstrap.cluster.x-k8s.io",
    "kubeadmconfigtemplates.bootstrap.cluster.x-k8s.io",
];

/// Returns a client of a cluster with the definitions.
async fn installed() -> Client {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        install(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api/core-components.yaml"));
        install_all(&bootstrap_definitions());
        let names = KINDS.map(|name| format!("crd/{name}"));
        wait_for("Established", &names.each_ref().map(String::as_str));
    });
    admin().await
}

/// Applies a file with definitions.
fn install(file: &Path) {
    let kubernetes = Kubernetes::shared();
    let file = file.display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &file]).unwrap();
}

fn install_all(definitions: &[CustomResourceDefinition]) {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": definitions });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), list.to_string()).unwrap();
    install(file.path());
}

/// Waits until objects have a condition.
fn wait_for(condition: &str, names: &[&str]) {
    let kubernetes = Kubernetes::shared();
    let condition = format!("--for=condition={condition}");
    let arguments = [&["wait", &condition, "--timeout=60s"][..], names].concat();
    kubernetes.kubectl(&kubernetes.admin(), &arguments).unwrap();
}

/// Interface to the kind of an object.
fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let kind = object["kind"].as_str().unwrap();
    let api_version = object["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap();
    let resource = ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    };
    Api::namespaced_with(client.clone(), "default", &resource)
}

fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

fn typed(object: &Value) -> DynamicObject {
    serde_json::from_value(object.clone()).unwrap()
}

/// Creates an object without storing it. Returns the refusal.
async fn creation(client: &Client, object: &Value) -> Option<String> {
    api(client, object).create(&dry_run(), &typed(object)).await.err().map(|error| error.to_string())
}

/// Replaces a stored object without storing the result. Returns the refusal.
async fn update(client: &Client, stored: &DynamicObject, object: &Value) -> Option<String> {
    let mut object_with_version = typed(object);
    object_with_version.metadata = stored.metadata.clone();
    let api = api(client, object);
    let replaced = api.replace(&stored.name_any(), &dry_run(), &object_with_version).await;
    replaced.err().map(|error| error.to_string())
}

#[tokio::test]
async fn core_rules_accept_one_object_and_refuse_another() {
    let client = installed().await;
    let mut problems = Vec::new();
    for (number, Case { message, old, accepted, refused }) in (0..).zip(rules::all()) {
        let number: u32 = number;
        let (accepted, refused) = match old {
            None => (creation(&client, &accepted).await, creation(&client, &refused).await),
            Some(old) => {
                let old = with(&old, &json!({ "metadata": { "name": format!("case-{number}") } }));
                let stored = api(&client, &old).create(&PostParams::default(), &typed(&old)).await.unwrap();
                let outcome =
                    (update(&client, &stored, &accepted).await, update(&client, &stored, &refused).await);
                api(&client, &old).delete(&stored.name_any(), &DeleteParams::default()).await.unwrap();
                outcome
            }
        };
        if let Some(why) = accepted {
            problems.push(format!("{message}: refused what it should accept: {why}"));
        }
        if !refused.as_ref().is_some_and(|why| why.contains(message)) {
            problems.push(format!("{message}: {}", refused.unwrap_or_else(|| "accepted".to_owned())));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Labels for an object.
fn labels(count: usize) -> Value {
    (0..count)
        .map(|number| (format!("label-{number}"), Value::from("a")))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Forms of texts and numbers: a field, a value that is accepted, and one that is refused.
fn forms() -> Vec<(Value, &'static str, Value, Value)> {
    let machine = rules::object("Machine", &rules::machine_spec());
    let deployment = rules::set("MachineDeployment");
    let rolling =
        |value: Value| json!({ "rollout": { "strategy": { "rollingUpdate": { "maxSurge": value } } } });
    let in_flight = |value: Value| json!({ "remediation": { "maxInFlight": value } });
    let trigger = |field: &str, value: Value| json!({ "remediation": { "triggerIf": { field: value } } });
    let version = |version: &str| json!({ "version": version });
    let naming = |template: &str| json!({ "machineNaming": { "template": template } });
    let selector = |count| json!({ "selector": { "matchLabels": labels(count) } });
    let template = |count| json!({ "template": { "metadata": { "labels": labels(count) } } });
    vec![
        (machine.clone(), "spec.version", version("1.34.2+build.7"), version("1.34")),
        (machine.clone(), "spec.version", version("v1.34.2-rc.1"), version("v1.034.2")),
        (
            machine.clone(),
            "spec.deletion",
            json!({ "deletion": { "nodeDrainTimeoutSeconds": 0 } }),
            json!({ "deletion": {} }),
        ),
        (
            machine,
            "spec.readinessGates",
            json!({ "readinessGates": [{ "conditionType": "a/B" }] }),
            json!({ "readinessGates": [] }),
        ),
        (deployment.clone(), "maxSurge", rolling(json!("150%")), rolling(json!("1000%"))),
        (deployment.clone(), "spec.template.metadata.labels", template(64), template(65)),
        (rules::health_check(), "spec.selector.matchLabels", selector(63), selector(64)),
        (deployment.clone(), "maxSurge", rolling(json!(0)), rolling(json!(-1))),
        (deployment.clone(), "maxInFlight", in_flight(json!("10%")), in_flight(json!("10"))),
        (deployment, "machineNaming", naming("a-{{ .random }}"), json!({ "machineNaming": {} })),
        (
            rules::health_check(),
            "unhealthyInRange",
            trigger("unhealthyInRange", json!("[1-3]")),
            trigger("unhealthyInRange", json!("1-3")),
        ),
        (
            rules::health_check(),
            "unhealthyLessThanOrEqualTo",
            trigger("unhealthyLessThanOrEqualTo", json!("40%")),
            trigger("unhealthyLessThanOrEqualTo", json!("40")),
        ),
    ]
}

#[tokio::test]
async fn core_forms_accept_one_value_and_refuse_another() {
    let client = installed().await;
    let mut problems = Vec::new();
    for (base, field, accepted, refused) in forms() {
        if let Some(why) = creation(&client, &with(&base, &json!({ "spec": accepted }))).await {
            problems.push(format!("{field}: refused {accepted}: {why}"));
        }
        let why = creation(&client, &with(&base, &json!({ "spec": refused }))).await;
        if !why.as_ref().is_some_and(|why| why.contains(field)) {
            problems.push(format!("{field}: {refused}: {}", why.unwrap_or_else(|| "accepted".to_owned())));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Objects in the form of upstream's guides are applied, and each of their fields is stored.
#[tokio::test]
async fn m1_objects_in_the_form_of_upstream_apply_unchanged() {
    let client = installed().await;
    let cluster = with(
        &rules::cluster(),
        &json!({ "spec": { "clusterNetwork": { "pods": { "cidrBlocks": ["192.168.0.0/16"] }, "serviceDomain": "cluster.local" },
            "controlPlaneRef": { "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "c" } } }),
    );
    let deployment = with(
        &rules::set("MachineDeployment"),
        &json!({ "spec": { "selector": { "matchLabels": {} }, "rollout": { "strategy": { "type": "OnDelete" } } } }),
    );
    let registration = json!({ "nodeRegistration": { "kubeletExtraArgs": [{ "name": "v", "value": "2" }] } });
    let config = rules::kubeadm_config(
        "KubeadmConfig",
        &json!({ "joinConfiguration": registration, "preKubeadmCommands": ["hostname"] }),
    );
    let without_spec = with(&config, &json!({ "spec": null }));
    let others = [config, without_spec, rules::health_check(), rules::drain_rule(), rules::set("MachineSet")];
    for object in [cluster, deployment].into_iter().chain(others) {
        let apply = PatchParams { dry_run: true, ..PatchParams::apply("sample") };
        let applied = api(&client, &object).patch("case", &apply, &Patch::Apply(&object)).await.unwrap();
        let stored = serde_json::to_value(applied).unwrap();
        assert_eq!(with(&stored, &object), stored, "{object}");
    }
}

/// A field that the definitions do not have is refused by its name. Otherwise it would be dropped without a report.
#[tokio::test]
async fn field_of_a_later_version_is_refused_by_its_name() {
    let client = installed().await;
    let object = with(&rules::cluster(), &json!({ "spec": { "clusterNetwork": { "later": 1 } } }));
    let apply = PatchParams { dry_run: true, ..PatchParams::apply("sample") };
    let applied = api(&client, &object).patch("case", &apply, &Patch::Apply(&object)).await;
    let why = applied.unwrap_err().to_string();
    assert!(why.contains(".spec.clusterNetwork.later: field not declared in schema"), "{why}");
}

/// Controllers of upstream list MachinePools when they start.
#[tokio::test]
async fn machine_pools_can_be_listed() {
    let client = installed().await;
    let pools = api(&client, &rules::object("MachinePool", &json!({})));
    assert!(pools.list(&ListParams::default()).await.unwrap().items.is_empty());
}

/// A takeover from an earlier core may find MachinePools. Their finalizers must be removable, or they could never be deleted.
#[tokio::test]
async fn machine_pool_of_an_earlier_core_can_be_deleted() {
    let client = installed().await;
    let mut definition = pool::definition();
    let group = "earlier.bedplate.dev";
    definition.metadata.name = Some(format!("machinepools.{group}"));
    definition.spec.group = group.to_owned();
    let mut earlier = definition.clone();
    for version in &mut earlier.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()).unwrap();
        schema.x_kubernetes_validations = None;
    }
    install_all(&[earlier]);
    wait_for("Established", &[&format!("crd/machinepools.{group}")]);
    let pool = json!({ "apiVersion": format!("{group}/v1beta2"), "kind": "MachinePool",
        "metadata": { "name": "case", "namespace": "default", "finalizers": ["earlier.bedplate.dev/pool"] }, "spec": { "replicas": 1 } });
    let pools = api(&client, &pool);
    pools.create(&PostParams::default(), &typed(&pool)).await.unwrap();
    install_all(&[definition]);
    let another = with(&pool, &json!({ "metadata": { "name": "another" } }));
    refused_once_the_rule_is_served(&client, &another).await;
    pools.delete("case", &DeleteParams::default()).await.unwrap();
    let patch = json!({ "metadata": { "finalizers": null } });
    pools.patch("case", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    assert!(pools.get_opt("case").await.unwrap().is_none());
}

/// Tries to create an object until its definition refuses it. The API server serves a changed definition with a delay.
async fn refused_once_the_rule_is_served(client: &Client, object: &Value) {
    for _ in 0..600 {
        if let Some(why) = creation(client, object).await {
            assert!(why.contains("MachinePools are not supported"), "{why}");
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the rule is not served");
}
