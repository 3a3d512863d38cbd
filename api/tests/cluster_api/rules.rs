//! One accepted and one refused object for each validation rule of the core kinds and the bootstrap kinds of Cluster API. The tests of this crate
//! evaluate the rules themselves; the tests on an API server create the objects.

use serde_json::{Value, json};

/// A rule, found by its message.
#[derive(Debug)]
pub(crate) struct Case {
    /// Message of the refusal.
    pub(crate) message: &'static str,
    /// Object before the update, for a rule that compares. None: the objects are created.
    pub(crate) old: Option<Value>,
    pub(crate) accepted: Value,
    pub(crate) refused: Value,
}

/// Returns an object with changes, as a JSON merge patch.
pub(crate) fn with(base: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut merged = base.as_object().cloned().unwrap_or_default();
    for (key, value) in patch {
        if value.is_null() {
            merged.remove(key);
        } else {
            let before = merged.get(key).cloned().unwrap_or_default();
            merged.insert(key.clone(), with(&before, value));
        }
    }
    Value::Object(merged)
}

fn created(message: &'static str, base: &Value, accepted: &Value, refused: &Value) -> Case {
    Case { message, old: None, accepted: with(base, accepted), refused: with(base, refused) }
}

fn updated(message: &'static str, old: &Value, accepted: &Value, refused: &Value) -> Case {
    Case { message, old: Some(old.clone()), accepted: with(old, accepted), refused: with(old, refused) }
}

pub(crate) fn object(kind: &str, spec: &Value) -> Value {
    object_in("cluster.x-k8s.io", kind, spec)
}

fn object_in(group: &str, kind: &str, spec: &Value) -> Value {
    json!({ "apiVersion": format!("{group}/v1beta2"), "kind": kind, "metadata": { "name": "case", "namespace": "default" }, "spec": spec })
}

fn reference(group: &str, kind: &str) -> Value {
    json!({ "apiGroup": format!("{group}.cluster.x-k8s.io"), "kind": kind, "name": "case" })
}

/// Spec of a Machine, as manifests of upstream have it.
pub(crate) fn machine_spec() -> Value {
    json!({ "clusterName": "c", "version": "v1.34.2",
        "bootstrap": { "configRef": reference("bootstrap", "KubeadmConfigTemplate") },
        "infrastructureRef": reference("infrastructure", "BedplateMachineTemplate") })
}

pub(crate) fn cluster() -> Value {
    object("Cluster", &json!({ "infrastructureRef": reference("infrastructure", "BedplateCluster") }))
}

/// Spec of a MachineSet or a MachineDeployment, as manifests of upstream have it: without what upstream's webhooks fill in.
pub(crate) fn set(kind: &str) -> Value {
    object(kind, &json!({ "clusterName": "c", "replicas": 2, "template": { "spec": machine_spec() } }))
}

pub(crate) fn health_check() -> Value {
    object(
        "MachineHealthCheck",
        &json!({ "clusterName": "c", "selector": { "matchLabels": { "pool": "a" } } }),
    )
}

pub(crate) fn drain_rule() -> Value {
    object("MachineDrainRule", &json!({ "drain": { "behavior": "Skip" } }))
}

pub(crate) fn all() -> Vec<Case> {
    let sets = ["MachineSet", "MachineDeployment"].into_iter().flat_map(sets);
    let configs = ["KubeadmConfig", "KubeadmConfigTemplate"].into_iter().flat_map(kubeadm_configs);
    [clusters(), machines(), deployments(), health_checks(), drain_rules(), pools()]
        .into_iter()
        .flatten()
        .chain(sets)
        .chain(configs)
        .collect()
}

fn spec(spec: &Value) -> Value {
    json!({ "spec": spec })
}

fn clusters() -> Vec<Case> {
    let base = cluster();
    let full = with(
        &base,
        &spec(
            &json!({ "controlPlaneRef": reference("controlplane", "KubeadmControlPlane"), "topology": { "version": "v1.34.2" } }),
        ),
    );
    let name = |length: usize| json!({ "metadata": { "name": "a".repeat(length) } });
    let removed = |field: &str| spec(&json!({ field: null }));
    let paused = spec(&json!({ "paused": true }));
    let network =
        |part: &str, block: &str| spec(&json!({ "clusterNetwork": { part: { "cidrBlocks": [block] } } }));
    vec![
        created(
            "metadata.name must have at most 63 characters: it is the value of a label",
            &base,
            &name(63),
            &name(64),
        ),
        created(
            "at least one of controlPlaneRef and infrastructureRef must be set",
            &base,
            &spec(&json!({ "infrastructureRef": null, "controlPlaneRef": reference("controlplane", "K") })),
            &spec(&json!({ "infrastructureRef": null, "paused": true })),
        ),
        updated("controlPlaneRef cannot be removed", &full, &paused, &removed("controlPlaneRef")),
        updated("infrastructureRef cannot be removed", &full, &paused, &removed("infrastructureRef")),
        updated("topology cannot be removed", &full, &paused, &removed("topology")),
        created(
            "must be a network in CIDR notation",
            &base,
            &network("pods", "10.244.0.0/16"),
            &network("pods", "10.244.0.0"),
        ),
        created(
            "must be a network in CIDR notation",
            &base,
            &network("services", "fd00:1::/112"),
            &network("services", "10.96.0.0/33"),
        ),
    ]
}

fn machines() -> Vec<Case> {
    let base = object("Machine", &machine_spec());
    let taint = |key: &str| {
        spec(&json!({ "taints": [{ "key": key, "effect": "NoSchedule", "propagation": "Always" }] }))
    };
    let set_by_cluster_api = "taints node.cluster.x-k8s.io/uninitialized and node.cluster.x-k8s.io/outdated-revision are set by Cluster API";
    vec![
        updated(
            "spec.clusterName of a Machine cannot be changed",
            &base,
            &spec(&json!({ "version": "1.34.3" })),
            &spec(&json!({ "clusterName": "d" })),
        ),
        created(
            set_by_cluster_api,
            &base,
            &taint("node.cluster.x-k8s.io/other"),
            &taint("node.cluster.x-k8s.io/uninitialized"),
        ),
        created(set_by_cluster_api, &base, &taint("pool"), &taint("node.cluster.x-k8s.io/outdated-revision")),
        created(
            "taints of the domain node.kubernetes.io are set by Kubernetes; only out-of-service may be set here",
            &base,
            &taint("node.kubernetes.io/out-of-service"),
            &taint("node.kubernetes.io/unreachable"),
        ),
        created(
            "taints of the domain node.cloudprovider.kubernetes.io are set by the cloud provider",
            &base,
            &taint("cloudprovider.kubernetes.io/uninitialized"),
            &taint("node.cloudprovider.kubernetes.io/uninitialized"),
        ),
        created(
            "taint node-role.kubernetes.io/master is obsolete: use node-role.kubernetes.io/control-plane",
            &base,
            &taint("node-role.kubernetes.io/control-plane"),
            &taint("node-role.kubernetes.io/master"),
        ),
    ]
}

/// Messages of a rule for MachineSets and for MachineDeployments.
fn of_kind(kind: &str, messages: [&'static str; 2]) -> &'static str {
    messages[usize::from(kind == "MachineDeployment")]
}

fn sets(kind: &str) -> Vec<Case> {
    let base = set(kind);
    let template = |template: &Value| spec(&json!({ "template": template }));
    let taint = |key: &str| {
        let taints = json!([{ "key": key, "effect": "NoSchedule", "propagation": "Always" }]);
        template(&json!({ "spec": { "taints": taints } }))
    };
    let naming = |naming: &str| spec(&json!({ "machineNaming": { "template": naming } }));
    let selects = |labels: &Value| {
        spec(&json!({ "selector": { "matchLabels": { "pool": "a", "cluster.x-k8s.io/cluster-name": "c" } },
            "template": { "metadata": { "labels": labels } } }))
    };
    vec![
        updated(
            of_kind(
                kind,
                [
                    "clusterName of a MachineSet cannot be changed",
                    "clusterName of a MachineDeployment cannot be changed",
                ],
            ),
            &base,
            &spec(&json!({ "replicas": null })),
            &spec(&json!({ "clusterName": "d", "template": { "spec": { "clusterName": "d" } } })),
        ),
        created(
            of_kind(
                kind,
                [
                    "template.spec.clusterName of a MachineSet must be its clusterName",
                    "template.spec.clusterName of a MachineDeployment must be its clusterName",
                ],
            ),
            &base,
            &json!({}),
            &template(&json!({ "spec": { "clusterName": "d" } })),
        ),
        created(
            of_kind(
                kind,
                [
                    "the template of a MachineSet must set configRef, dataSecretName or data of bootstrap; otherwise Machines wait for ever",
                    "the template of a MachineDeployment must set configRef, dataSecretName or data of bootstrap; otherwise Machines wait for ever",
                ],
            ),
            &base,
            &template(&json!({ "spec": { "bootstrap": { "configRef": null, "data": "" } } })),
            &template(&json!({ "spec": { "bootstrap": { "configRef": null } } })),
        ),
        created(
            of_kind(
                kind,
                [
                    "selector.matchLabels of a MachineSet must be among the labels of its template",
                    "selector.matchLabels of a MachineDeployment must be among the labels of its template",
                ],
            ),
            &base,
            &selects(&json!({ "pool": "a" })),
            &selects(&json!({ "pool": "b" })),
        ),
        created(
            of_kind(
                kind,
                [
                    "the template of a MachineSet must not set the taint node-role.kubernetes.io/control-plane: its Machines are workers",
                    "the template of a MachineDeployment must not set the taint node-role.kubernetes.io/control-plane: its Machines are workers",
                ],
            ),
            &base,
            &taint("pool"),
            &taint("node-role.kubernetes.io/control-plane"),
        ),
        created(
            "machineNaming.template must contain {{ .random }}, so that no name is used twice",
            &base,
            &naming("{{ .machineSet.name }}-{{ .random }}"),
            &naming("{{ .machineSet.name }}"),
        ),
    ]
}

fn deployments() -> Vec<Case> {
    let base = set("MachineDeployment");
    let name = |length: usize| json!({ "metadata": { "name": "a".repeat(length) } });
    let rolling = |rolling: Value| spec(&json!({ "rollout": { "strategy": { "rollingUpdate": rolling } } }));
    let both = "maxSurge and maxUnavailable must not both be 0: no Machine could be replaced";
    let zero = json!({ "maxSurge": 0, "maxUnavailable": 0 });
    vec![
        created(
            "metadata.name must have at most 63 characters: it is the value of a label",
            &base,
            &name(63),
            &name(64),
        ),
        created(
            both,
            &base,
            &rolling(json!({ "maxSurge": "0%", "maxUnavailable": 0 })),
            &rolling(zero.clone()),
        ),
        created(both, &base, &rolling(json!({ "maxSurge": 0 })), &rolling(zero)),
    ]
}

fn health_checks() -> Vec<Case> {
    let base = health_check();
    let selector = |selector: Value| spec(&json!({ "selector": selector }));
    let timeout = |seconds: i32| spec(&json!({ "checks": { "nodeStartupTimeoutSeconds": seconds } }));
    let range = |range: &str| spec(&json!({ "remediation": { "triggerIf": { "unhealthyInRange": range } } }));
    let condition = |type_: &str| {
        let condition = json!({ "type": type_, "status": "False", "timeoutSeconds": 60 });
        spec(&json!({ "checks": { "unhealthyMachineConditions": [condition] } }))
    };
    let another = "selector of a MachineHealthCheck must not name another cluster than clusterName";
    let named = |name: &str| selector(json!({ "matchLabels": { "cluster.x-k8s.io/cluster-name": name } }));
    vec![
        updated(
            "clusterName of a MachineHealthCheck cannot be changed",
            &base,
            &timeout(30),
            &spec(&json!({ "clusterName": "d" })),
        ),
        created(
            "selector of a MachineHealthCheck must not be empty",
            &base,
            &selector(
                json!({ "matchLabels": null, "matchExpressions": [{ "key": "pool", "operator": "Exists" }] }),
            ),
            &selector(json!({ "matchLabels": null })),
        ),
        created(another, &base, &named("c"), &named("d")),
        created(
            "nodeStartupTimeoutSeconds must be 0 (without limit) or at least 30",
            &base,
            &timeout(0),
            &timeout(29),
        ),
        created(
            "a health check must not depend on a condition that itself depends on health checks",
            &base,
            &condition("InfrastructureReady"),
            &condition("OwnerRemediated"),
        ),
        created("unhealthyInRange must not end below its start", &base, &range("[3-3]"), &range("[10-9]")),
    ]
}

fn drain_rules() -> Vec<Case> {
    let base = drain_rule();
    let entry = |value: &str| json!({ "selector": { "matchLabels": { "pool": value } } });
    let entries = |field: &str, values: [&str; 2]| spec(&json!({ field: values.map(entry) }));
    vec![
        created(
            "order may only be set when behavior is Drain",
            &base,
            &spec(&json!({ "drain": { "behavior": "Drain", "order": -1 } })),
            &spec(&json!({ "drain": { "order": 1 } })),
        ),
        created(
            "two entries of machines must not be equal",
            &base,
            &entries("machines", ["a", "b"]),
            &entries("machines", ["a", "a"]),
        ),
        created(
            "two entries of pods must not be equal",
            &base,
            &entries("pods", ["a", "b"]),
            &entries("pods", ["a", "a"]),
        ),
    ]
}

/// No MachinePool is accepted. A MachineDeployment is accepted instead.
fn pools() -> Vec<Case> {
    let refused = object("MachinePool", &json!({ "clusterName": "c", "replicas": 1 }));
    let message = "MachinePools are not supported: use a MachineDeployment";
    vec![Case { message, old: None, accepted: set("MachineDeployment"), refused }]
}

/// Returns a KubeadmConfig with a spec, or a template of it.
pub(crate) fn kubeadm_config(kind: &str, spec: &Value) -> Value {
    let group = "bootstrap.cluster.x-k8s.io";
    if kind == "KubeadmConfig" {
        object_in(group, kind, spec)
    } else {
        object_in(group, kind, &json!({ "template": { "spec": spec } }))
    }
}

fn kubeadm_configs(kind: &str) -> Vec<Case> {
    let case = |message: &'static str, accepted: Value, refused: Value| Case {
        message,
        old: None,
        accepted: kubeadm_config(kind, &accepted),
        refused: kubeadm_config(kind, &refused),
    };
    let secret = json!({ "secret": { "name": "s", "key": "k" } });
    let files = |files: Value| json!({ "files": files });
    let users = |user: Value| json!({ "users": [user] });
    let discovery = |user: Value| {
        let file = json!({ "kubeConfigPath": "/k", "kubeConfig": { "user": user } });
        json!({ "joinConfiguration": { "discovery": { "file": file } } })
    };
    let partition = |layout: Value| json!({ "diskSetup": { "partitions": [with(&json!({ "device": "/dev/a" }), &layout)] } });
    let shares =
        |shares: [i32; 2]| json!({ "diskLayout": shares.map(|share| json!({ "percentage": share })) });
    let arguments = |names: [&str; 2]| {
        let arguments = names.map(|name| json!({ "name": name, "value": name.len().to_string() }));
        json!({ "clusterConfiguration": { "apiServer": { "extraArgs": arguments } } })
    };
    let twice = json!({ "extraArgs": [{ "name": "a", "value": "1" }, { "name": "a", "value": "2" }] });
    vec![
        case(
            "content and contentFrom exclude each other",
            files(json!([{ "path": "/a", "content": "x" }, { "path": "/b", "contentFrom": secret }])),
            files(json!([{ "path": "/a", "content": "x", "contentFrom": secret }])),
        ),
        case(
            "each path can be written once",
            files(json!([{ "path": "/a" }, { "path": "/b" }])),
            files(json!([{ "path": "/a" }, { "path": "/a" }])),
        ),
        case(
            "passwd and passwdFrom exclude each other",
            users(json!({ "name": "u", "passwdFrom": secret })),
            users(json!({ "name": "u", "passwd": "x", "passwdFrom": secret })),
        ),
        case(
            "exactly one of authProvider and exec must be set",
            discovery(json!({ "exec": { "command": "c" } })),
            discovery(json!({ "exec": { "command": "c" }, "authProvider": { "name": "a" } })),
        ),
        case(
            "the percentages of diskLayout must not exceed 100",
            partition(shares([60, 40])),
            partition(shares([60, 41])),
        ),
        case(
            "exactly one of layout and diskLayout must be set",
            partition(json!({ "layout": false })),
            partition(json!({})),
        ),
        case(
            "each argument can be set once",
            arguments(["a", "b"]),
            json!({ "clusterConfiguration": { "scheduler": twice } }),
        ),
    ]
}
