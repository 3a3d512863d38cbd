//! Requests of pxed and agents that `deploy/` permits and refuses on a real API server (docs/rules.md, "Who writes what" and
//! "Trust" 3 and 4).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bedplate_api::machine::RE_ENROLL_ANNOTATION;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use k8s_openapi::api::authorization::v1::SelfSubjectRulesReview;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::cluster::{admin, api, client, create, machine, operation, with};

/// An agent with a new certificate, and the status of a Machine that is enrolled with it.
pub(super) async fn certified(name: &str) -> (Client, Value) {
    let (kubeconfig, enrollment) = Kubernetes::shared().agent(name).unwrap();
    (client(&kubeconfig).await, json!({ "enrollment": enrollment }))
}

/// Status of a Machine that is enrolled with a certificate that no agent has.
fn enrollment() -> Value {
    json!({ "enrollment": { "certificateFingerprint": format!("sha256:{}", "0".repeat(64)), "keyID": "0".repeat(32) } })
}

/// The agent of a Machine that is there, enrolled with a new certificate.
pub(super) async fn agent(name: &str) -> Client {
    let (agent, enrollment) = certified(name).await;
    apply(&pxed().await, &machine(name), "pxed-enrollment", enrollment).await.unwrap();
    agent
}

pub(super) async fn pxed() -> Client {
    client(&Kubernetes::shared().service_account("bedplate-system", "pxed").unwrap()).await
}

pub(super) fn condition(kind: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// Applies `status` to an object as a writer's whole opinion, the way every program does it.
pub(super) async fn apply(
    client: &Client,
    object: &Value,
    writer: &str,
    status: Value,
) -> Result<(), String> {
    let name = object["metadata"]["name"].as_str().unwrap();
    let applied = json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": { "name": name }, "status": status
    });
    let parameters = PatchParams::apply(writer).force();
    let result = api(client, object).patch_status(name, &parameters, &Patch::Apply(applied)).await;
    result.map(drop).map_err(|error| error.to_string())
}

/// Policies take effect some time after they were made, and nothing in the API says when.
pub(super) fn policies_in_force() {
    let kubernetes = Kubernetes::shared();
    let stranger = kubernetes.user("bedplate:machine:stranger", &["bedplate:machines"]).unwrap();
    let (admin, stranger) = (kubernetes.objects().unwrap(), kubernetes.objects_of(&stranger).unwrap());
    let probe = |kind: &str, field: &str, value: Value| {
        let mut object =
            json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": kind, "metadata": { "name": "probe" } });
        object[field] = value;
        object
    };
    admin.apply(&probe("Machine", "spec", json!({ "provider": "manual" }))).unwrap();
    let status = probe("Machine", "status", json!({ "agent": { "version": "0" } }));
    let spec = json!({ "operationName": "reboot", "machineRef": { "name": "probe" } });
    let operation = probe("MachineOperation", "spec", spec);
    // No role lets agents make operations, so one asks that may do everything and is an agent too.
    let both = admin.impersonating("bedplate:machine:probe", &["bedplate:machines", "system:masters"]);
    wait::until_asked("the policies", Duration::from_secs(60), || {
        let said = |tried: anyhow::Result<Value>| tried.err().map(|why| why.to_string()).unwrap_or_default();
        let machines = said(stranger.apply_as("kubectl", "/status", &status, "&dryRun=All"));
        let operations = said(both.try_create(&operation));
        let are_refused = machines.contains("is not the agent of Machine probe")
            && operations.contains("an agent writes nothing of a MachineOperation but its status");
        Ok(are_refused.then_some(()))
    })
    .unwrap();
}

/// Rights by a client's roles in a namespace and outside of one, a line for each kind of thing. Every client may ask who it
/// is and what it may do.
async fn rights(client: &Client, namespace: &str) -> Vec<String> {
    let review = json!({ "metadata": {}, "spec": { "namespace": namespace } });
    let review: SelfSubjectRulesReview = serde_json::from_value(review).unwrap();
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client.clone());
    let rules = reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap().resource_rules;
    let own = |group: &String| ["authorization.k8s.io", "authentication.k8s.io"].contains(&group.as_str());
    let mut lines = Vec::new();
    for rule in rules.iter().filter(|rule| !rule.api_groups.iter().flatten().any(own)) {
        let text = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().join(",");
        let names =
            rule.resource_names.as_ref().map(|names| format!(" {}", names.join(","))).unwrap_or_default();
        let (groups, resources) = (text(&rule.api_groups), text(&rule.resources));
        lines.push(format!("{} {groups}/{resources}{names}", rule.verbs.join(",")));
    }
    lines.sort();
    lines
}

#[tokio::test]
async fn roles_allow_what_the_programs_do_and_nothing_else() {
    Kubernetes::shared();
    // An agent reads nothing of kube-system: its kubelet joins, and it does not.
    for namespace in ["default", "kube-system"] {
        assert_eq!(
            rights(&certified("agent-rights").await.0, namespace).await,
            [
                "create,get certificates.k8s.io/certificatesigningrequests",
                "get bedplate.dev/machineconfigurations",
                "get,list,watch /nodes",
                "get,list,watch bedplate.dev/machineoperations",
                "get,list,watch bedplate.dev/machines",
                "list,watch bedplate.dev/machineclaims",
                "list,watch bedplate.dev/machineconfigurationversions",
                "patch bedplate.dev/machines/status,machineoperations/status,machineclaims/status",
            ],
            "in {namespace}"
        );
    }
    let everywhere = [
        "approve certificates.k8s.io/signers kubernetes.io/kube-apiserver-client",
        "create,get certificates.k8s.io/certificatesigningrequests",
        "get,list,watch bedplate.dev/machines",
        "list,watch bedplate.dev/machineclaims",
        "list,watch bedplate.dev/machineoperations",
        "patch bedplate.dev/machineoperations/status",
        "patch bedplate.dev/machines",
        "patch bedplate.dev/machines/status",
        "update certificates.k8s.io/certificatesigningrequests/approval",
    ];
    let pxed = pxed().await;
    for (namespace, there) in [
        ("bedplate-system", &["create,get,update coordination.k8s.io/leases", "get /secrets"][..]),
        ("default", &["create,patch events.k8s.io/events"]),
        ("kube-system", &["get /configmaps extension-apiserver-authentication"]),
    ] {
        let mut expected: Vec<&str> = everywhere.iter().chain(there).copied().collect();
        expected.sort_unstable();
        assert_eq!(rights(&pxed, namespace).await, expected, "in {namespace}");
    }
}

#[tokio::test]
async fn d4_role_of_the_infrastructure_provider_allows_this_and_nothing_else() {
    let kubernetes = Kubernetes::shared();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api/provider.yaml");
    let manifest = manifest.display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &manifest]).unwrap();
    let policies = "bedplate-claims,bedplate-claim-grants,bedplate-claimed-fields,bedplate-release-operations,bedplate-templates";
    let kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings";
    let policies = format!("get admissionregistration.k8s.io/{kinds} {policies}");
    let everywhere = [
        policies.as_str(),
        "get,list,watch,patch infrastructure.cluster.x-k8s.io/bedplatemachines,bedplateclusters",
        "patch infrastructure.cluster.x-k8s.io/bedplatemachines/status,bedplateclusters/status",
        "list,watch infrastructure.cluster.x-k8s.io/bedplatemachinetemplates",
        "patch infrastructure.cluster.x-k8s.io/bedplatemachinetemplates/status",
        "list,watch cluster.x-k8s.io/clusters,machines",
        "get,list,watch,create,patch,delete bedplate.dev/machineclaims",
        "patch bedplate.dev/machineclaims/status",
        "get,list,watch bedplate.dev/machines",
        "get,list,watch bedplate.dev/machineconfigurations",
        "get bedplate.dev/machineconfigurationversions",
        "get,create bedplate.dev/machineoperations",
        "get,create,patch,delete,escalate,bind rbac.authorization.k8s.io/roles",
        "get,create,patch,delete rbac.authorization.k8s.io/rolebindings",
        "create,patch events.k8s.io/events",
    ];
    let account = kubernetes.service_account("bedplate-system", "bedplate-infrastructure").unwrap();
    let provider = client(&account).await;
    let leases = [
        "create coordination.k8s.io/leases",
        "get,update coordination.k8s.io/leases bedplate-cluster-infrastructure",
    ];
    for (namespace, there) in [("bedplate-system", &leases[..]), ("default", &[]), ("kube-system", &[])] {
        let mut expected: Vec<&str> = everywhere.iter().chain(there).copied().collect();
        expected.sort_unstable();
        let found = rights_in_force(&provider, namespace, expected.len()).await;
        assert_eq!(found, expected, "in {namespace}");
    }
}

#[tokio::test]
async fn b1_role_of_the_bootstrap_provider_allows_this_and_nothing_else() {
    let kubernetes = Kubernetes::shared();
    let manifest =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api/bootstrap-provider.yaml");
    let manifest = manifest.display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &manifest]).unwrap();
    let everywhere = [
        "get admissionregistration.k8s.io/validatingadmissionpolicies,validatingadmissionpolicybindings bedplate-cluster-secrets",
        "get,list,watch,patch bootstrap.cluster.x-k8s.io/kubeadmconfigs",
        "patch bootstrap.cluster.x-k8s.io/kubeadmconfigs/status",
        "get,list,watch cluster.x-k8s.io/clusters,machines",
        "get,create /secrets",
        "get,create,delete /configmaps",
        "create,patch events.k8s.io/events",
    ];
    let account = kubernetes.service_account("bedplate-system", "bedplate-bootstrap").unwrap();
    let provider = client(&account).await;
    let leases = [
        "create coordination.k8s.io/leases",
        "get,update coordination.k8s.io/leases bedplate-cluster-bootstrap",
    ];
    for (namespace, there) in [("bedplate-system", &leases[..]), ("default", &[]), ("kube-system", &[])] {
        let mut expected: Vec<&str> = everywhere.iter().chain(there).copied().collect();
        expected.sort_unstable();
        let found = rights_in_force(&provider, namespace, expected.len()).await;
        assert_eq!(found, expected, "in {namespace}");
    }
}

#[tokio::test]
async fn k5_role_of_the_core_provider_allows_this_and_nothing_else() {
    let kubernetes = Kubernetes::shared();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api/core-provider.yaml");
    let manifest = manifest.display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &manifest]).unwrap();
    let everywhere = [
        "create,patch events.k8s.io/events",
        "get admissionregistration.k8s.io/validatingadmissionpolicies,validatingadmissionpolicybindings bedplate-core-secrets,bedplate-core-writes",
        "get apiextensions.k8s.io/customresourcedefinitions",
        "get,create,patch /secrets",
        "get,list,watch,create,patch,delete cluster.x-k8s.io/machines,machinesets",
        "get,list,watch,create,patch,delete infrastructure.cluster.x-k8s.io,bootstrap.cluster.x-k8s.io,controlplane.cluster.x-k8s.io/*",
        "get,list,watch,patch cluster.x-k8s.io/clusters",
        "get,list,watch,patch,delete cluster.x-k8s.io/machinedeployments",
        "list cluster.x-k8s.io/machinedrainrules,machinepools",
        "list,watch,patch,delete cluster.x-k8s.io/machinehealthchecks",
        "patch cluster.x-k8s.io/clusters/status,machines/status,machinesets/status,machinedeployments/status,machinehealthchecks/status",
        "update cluster.x-k8s.io/clusters/finalizers,machines/finalizers,machinesets/finalizers,machinedeployments/finalizers",
    ];
    let account = kubernetes.service_account("bedplate-system", "bedplate-core").unwrap();
    let provider = client(&account).await;
    let leases =
        ["create coordination.k8s.io/leases", "get,update coordination.k8s.io/leases bedplate-cluster-core"];
    for (namespace, there) in [("bedplate-system", &leases[..]), ("default", &[]), ("kube-system", &[])] {
        let mut expected: Vec<&str> = everywhere.iter().chain(there).copied().collect();
        expected.sort_unstable();
        let found = rights_in_force(&provider, namespace, expected.len()).await;
        assert_eq!(found, expected, "in {namespace}");
    }
    // Rules of other providers are added by the label of their roles alone.
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "provider-of-racks", "labels": { "cluster.x-k8s.io/aggregate-to-manager": "true" } },
        "rules": [{ "apiGroups": ["racks.example"], "resources": ["racks"], "verbs": ["get"] }] });
    kubernetes.objects().unwrap().apply(&role).unwrap();
    let groups = aggregated_groups("bedplate-system-core-aggregated").await;
    assert_eq!(groups, ["racks.example".to_owned()].into());
}

/// User who is bound to one of the roles of `deploy/people.yaml` alone.
async fn person_with(role: &str) -> Client {
    let (kubernetes, user) = (Kubernetes::shared(), format!("person-{}", role.replace(':', "-")));
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": user },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }] });
    kubernetes.objects().unwrap().apply(&binding).unwrap();
    client(&kubernetes.user(&user, &[]).unwrap()).await
}

/// Rights of a person with one role.
async fn rights_by(role: &str) -> Vec<String> {
    let rights = rights_in_force(&person_with(role).await, "default", 1).await;
    assert!(!rights.is_empty(), "the binding of {role} does not count");
    rights
}

/// Rights of a client whose bindings were made just now. The authorizer knows a binding some time later. `lines`: minimum number of rights.
async fn rights_in_force(client: &Client, namespace: &str, lines: usize) -> Vec<String> {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let rights = rights(client, namespace).await;
        if rights.len() >= lines || std::time::Instant::now() > deadline {
            return rights;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn roles_of_users_read_operate_and_administer_and_nothing_else() {
    Kubernetes::shared();
    let all = "machines,machineconfigurations,machineconfigurationversions,machineoperations,machineclaims";
    let view = format!("get,list,watch bedplate.dev/{all}");
    assert_eq!(rights_by("bedplate:view").await, [view.as_str()]);
    let operations = "create,delete bedplate.dev/machineoperations";
    assert_eq!(rights_by("bedplate:operate").await, [operations, &view]);
    let writes = "create,update,patch,delete,deletecollection bedplate.dev/machines,machineconfigurations,machineoperations";
    let versions = "delete,deletecollection bedplate.dev/machineconfigurationversions";
    assert_eq!(rights_by("bedplate:admin").await, [writes, versions, &view]);
    // Kubernetes' own roles for namespaces and clusters give none of these rights.
    for role in ["view", "edit", "admin"] {
        let groups = aggregated_groups(role).await;
        assert!(groups.contains("apps"), "{role} selects no roles: {groups:?}");
        assert!(!groups.contains("bedplate.dev") && !groups.contains("*"), "{role}: {groups:?}");
    }
}

/// Returns the API groups of the roles that one of Kubernetes' own roles selects, also through others. The controller that copies their rules
/// does not run here.
async fn aggregated_groups(role: &str) -> BTreeSet<String> {
    let roles: Api<ClusterRole> = Api::all(admin().await);
    let all = roles.list(&ListParams::default()).await.unwrap().items;
    let (mut pending, mut seen, mut groups) = (vec![role.to_owned()], BTreeSet::new(), BTreeSet::new());
    while let Some(name) = pending.pop() {
        let own = all.iter().find(|other| other.name_any() == name).expect("roles come with the API server");
        groups.extend(own.rules.iter().flatten().flat_map(|rule| rule.api_groups.iter().flatten().cloned()));
        let selectors =
            own.aggregation_rule.iter().flat_map(|rule| rule.cluster_role_selectors.iter().flatten());
        for selector in selectors {
            let labels = selector.match_labels.iter().flatten();
            let selected = labels.flat_map(|(key, value)| labeled(&all, key, value));
            pending.extend(selected.filter(|name| seen.insert(name.clone())));
        }
    }
    groups
}

/// Returns the names of the roles that have this label.
fn labeled(all: &[ClusterRole], key: &str, value: &str) -> Vec<String> {
    let found = all.iter().filter(|role| role.labels().get(key).is_some_and(|label| label == value));
    found.map(ClusterRole::name_any).collect()
}

#[tokio::test]
async fn trust_6_permission_for_another_key_is_an_administrators_alone() {
    policies_in_force();
    let object = machine("re-enroll");
    create(&admin().await, &object).await;
    let permission = Patch::Merge(
        json!({ "metadata": { "annotations": { RE_ENROLL_ANNOTATION: "2026-01-01T00:00:00Z" } } }),
    );
    let permit = async |by: &Client| {
        let patched = api(by, &object).patch("re-enroll", &PatchParams::default(), &permission).await;
        patched.map(drop).map_err(|error| error.to_string())
    };
    // By roles.
    rights_by("bedplate:view").await;
    rights_by("bedplate:operate").await;
    let agent = agent("re-enroll").await;
    for by in [&agent, &person_with("bedplate:view").await, &person_with("bedplate:operate").await] {
        let why = permit(by).await.unwrap_err();
        assert!(why.contains("cannot patch resource \"machines\""), "{why}");
    }
    // By policies: with every right that a role can give.
    let said = |user: &str, groups: &[&str]| {
        let by = Kubernetes::shared().objects().unwrap().impersonating(user, groups);
        let patch =
            json!({ "metadata": { "annotations": { RE_ENROLL_ANNOTATION: "2026-01-01T00:00:00Z" } } });
        by.try_merge("machine", "re-enroll", &patch).map_err(|error| error.to_string())
    };
    for (user, groups, words) in [
        (
            "bedplate:machine:re-enroll",
            &["bedplate:machines", "system:masters"][..],
            "an agent writes nothing of a Machine but its status",
        ),
        (
            "system:serviceaccount:bedplate-system:pxed",
            &["system:masters"],
            "pxed changes nothing of a Machine but its own finalizer",
        ),
        (
            "system:serviceaccount:bedplate-system:bedplate-controller",
            &["system:masters"],
            "bedplate-controller",
        ),
    ] {
        let refused = || Ok(said(user, groups).err().filter(|why| why.contains(words)));
        wait::until_asked(user, Duration::from_secs(60), refused).unwrap();
    }
    // Writers of the status cannot change the metadata.
    let whole = api(&agent, &object);
    let patched = whole.patch_status("re-enroll", &PatchParams::default(), &permission).await;
    let annotated = async || {
        let found = api(&admin().await, &object).get("re-enroll").await.unwrap();
        found.metadata.annotations.unwrap_or_default().contains_key(RE_ENROLL_ANNOTATION)
    };
    assert!(!annotated().await, "{patched:?}");
    rights_by("bedplate:admin").await;
    permit(&person_with("bedplate:admin").await).await.unwrap();
    assert!(annotated().await);
}

/// Fields of the status, each with a value, that an agent writes.
pub(super) fn agents_fields() -> Value {
    json!({
        "addresses": [{ "type": "InternalIP", "address": "10.7.0.21" }],
        "agent": { "version": "0.1.0", "lastHeartbeatTime": "2026-01-01T00:00:00Z" },
        "hardware": {
            "vendor": "QEMU", "product": "P", "serial": "S", "uuid": "00000000-0000-0000-0000-000000000001",
            "firmware": {}, "cpu": {}, "memoryBytes": 1, "disks": [{ "name": "vda" }], "nics": [{ "name": "eth0" }],
            "tpm": { "present": false }, "clock": {}
        },
        "stateDisk": { "name": "virtio-state", "wipeToken": "1" },
        "applied": { "name": "workers", "version": 1, "slot": "a" },
        "slots": [{ "name": "a", "state": "Running" }],
        "rolledBack": { "from": { "name": "workers", "version": 2 }, "to": { "name": "workers", "version": 1 },
            "message": "r", "time": "2026-01-01T00:00:00Z" },
        "claim": { "providerID": "bedplate://host/u", "claimant": { "namespace": "team-a", "name": "w-1" }, "state": "Released",
            "since": "2026-01-01T00:00:00Z" },
        "conditions": [condition("Paved"), condition("NodeReady")]
    })
}

/// Statuses with one field that an agent does not write.
fn others_fields() -> Vec<Value> {
    let conditions = [
        "BMCReachable",
        "PoweredOn",
        "Booted",
        "Enrolled",
        "ConfigurationPending",
        "Ready",
        "Stalled",
        "Invented",
    ];
    let conditions = conditions.map(|kind| json!({ "conditions": [condition(kind)] }));
    let fields = [
        json!({ "observedGeneration": 1 }),
        json!({ "phase": "Ready" }),
        json!({ "power": { "state": "Off" } }),
        json!({ "boot": { "stage": "Enrolled" } }),
        enrollment(),
        json!({ "selected": { "name": "workers", "version": 1, "source": "Reference" } }),
        json!({ "nodeRef": { "name": "agent-others", "uid": "u" } }),
        json!({ "observedNode": { "state": "Absent", "observedGeneration": 1 } }),
        json!({ "providerID": "bedplate://other" }),
        json!({ "hardware": { "bmc": { "vendor": "V" } } }),
    ];
    conditions.into_iter().chain(fields).collect()
}

#[test]
fn every_field_of_the_status_is_tried_as_the_agents_or_another_s() {
    let definitions = bedplate_api::crds::definitions();
    let schema = serde_json::to_value(&definitions[0].spec.versions[0].schema).unwrap();
    let names = |value: &Value| -> BTreeSet<String> { value.as_object().unwrap().keys().cloned().collect() };
    let mut stated = [BTreeSet::new(), BTreeSet::new()];
    let status = &schema["openAPIV3Schema"]["properties"]["status"]["properties"];
    stated[0].extend(names(status));
    stated[1].extend(names(&status["hardware"]["properties"]));
    let mut tried = [BTreeSet::new(), BTreeSet::new()];
    for status in others_fields().into_iter().chain([agents_fields()]) {
        tried[0].extend(names(&status));
        tried[1].extend(status.get("hardware").map(names).unwrap_or_default());
    }
    assert_eq!(
        tried, stated,
        "decide who writes a new field: deploy/agent-policy.yaml, docs/rules.md, and here"
    );
}

#[tokio::test]
async fn agent_writes_its_own_fields_of_its_own_machine() {
    policies_in_force();
    let object = machine("agent-own");
    let admin = admin().await;
    create(&admin, &object).await;
    let others = json!({ "phase": "Enrolled", "power": { "state": "On" }, "conditions": [condition("Enrolled")],
        "hardware": { "bmc": { "vendor": "V" } } });
    apply(&admin, &object, "pxed", others).await.unwrap();
    let agent = agent("agent-own").await;
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.unwrap();
    let made = api(&admin, &object).get("agent-own").await.unwrap();
    let status = &made.data["status"];
    let names = |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    for name in names(&agents_fields()) {
        assert!(!status[&name].is_null(), "{name} was not written: {status}");
    }
    assert_eq!(status["hardware"]["bmc"]["vendor"], "V", "what others wrote stays");
    assert_eq!(status["conditions"].as_array().unwrap().len(), 3);
    apply(&agent, &object, "bedplate-agent", json!({ "agent": { "version": "0.1.1" } }))
        .await
        .expect("fewer fields");
}

#[tokio::test]
async fn agent_names_only_versions_of_its_machines_configuration() {
    policies_in_force();
    let object = machine("agent-versions");
    let admin = admin().await;
    create(&admin, &object).await;
    let agent = agent("agent-versions").await;
    let applied = |name: &str, version: u32| {
        json!({ "applied": { "name": name, "version": version, "slot": "a" },
            "slots": [{ "name": "a", "state": "Running", "configurationName": name, "version": version },
                { "name": "b", "state": "Empty" }] })
    };
    let write = async |status: Value| apply(&agent, &object, "bedplate-agent", status).await;
    // The Machine was re-created: the host reports what it has.
    write(applied("before", 3)).await.unwrap();
    let selected = json!({ "selected": { "name": "workers", "version": 2, "source": "Reference" } });
    apply(&admin, &object, "bedplate-controller", selected).await.unwrap();
    for (name, version) in [("before", 3), ("workers", 1), ("workers", 2), ("workers", 3)] {
        write(applied(name, version)).await.unwrap();
    }
    let words = "an agent names no versions but of the configuration that its Machine was given";
    let in_a_slot = json!({ "slots": [{ "name": "b", "state": "Prepared", "configurationName": "others", "version": 1 }] });
    for status in [applied("others", 1), in_a_slot, applied("before", 3)] {
        let why = write(status.clone()).await.expect_err(&status.to_string());
        assert!(why.contains(words), "{why}");
    }
    // A write of less removes the applied version; the agent may still name the selected one.
    write(json!({ "agent": { "version": "0.1.0" } })).await.unwrap();
    let why = write(applied("others", 1)).await.expect_err("nothing is applied");
    assert!(why.contains(words), "{why}");
    let by_hand = Patch::Merge(json!({ "spec": { "configurationRef": { "name": "others" } } }));
    api(&admin, &object).patch("agent-versions", &PatchParams::default(), &by_hand).await.unwrap();
    write(applied("others", 1)).await.unwrap();
}

#[tokio::test]
async fn agent_is_refused_the_fields_of_others() {
    policies_in_force();
    let object = machine("agent-others");
    create(&admin().await, &object).await;
    let before = json!({ "power": { "state": "On" }, "conditions": [condition("Booted")],
        "hardware": { "bmc": { "vendor": "Before" } } });
    apply(&pxed().await, &object, "pxed", before).await.unwrap();
    let agent = agent("agent-others").await;
    let changed = json!({ "conditions": [with(&condition("Booted"), &json!({ "status": "False" }))] });
    for status in others_fields().into_iter().chain([changed]) {
        let why =
            apply(&agent, &object, "bedplate-agent", status.clone()).await.expect_err(&status.to_string());
        assert!(why.contains("an agent writes no "), "{status}: {why}");
    }
    // Not only by server-side apply; and what is there is not taken away either.
    for status in [json!({ "conditions": null }), json!({ "power": null }), json!({ "hardware": null })] {
        let patch = Patch::Merge(json!({ "status": status }));
        let parameters = PatchParams::default();
        let why = api(&agent, &object).patch_status("agent-others", &parameters, &patch).await.unwrap_err();
        assert!(why.to_string().contains("an agent writes no "), "{status}: {why}");
    }
}

/// Returns the entries of `metadata.managedFields` of others than these managers, without their times.
fn ownership(object: &DynamicObject, own: &[&str]) -> Vec<ManagedFieldsEntry> {
    let entries = object.metadata.managed_fields.clone().unwrap_or_default().into_iter();
    let others = entries.filter(|entry| !own.contains(&entry.manager.as_deref().unwrap_or_default()));
    others.map(|entry| ManagedFieldsEntry { time: None, ..entry }).collect()
}

#[tokio::test]
async fn agent_is_refused_to_own_fields_of_others_as_they_are() {
    policies_in_force();
    let object = machine("agent-owner");
    let admin = admin().await;
    create(&admin, &object).await;
    let agent = agent("agent-owner").await;
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.unwrap();
    let enrolled =
        api(&admin, &object).get("agent-owner").await.unwrap().data["status"]["enrollment"].clone();
    let others = others_fields().into_iter().filter(|status| status.get("enrollment").is_none());
    for status in others.chain([json!({ "enrollment": enrolled })]) {
        apply(&admin, &object, "pxed", status.clone()).await.unwrap();
        let before = api(&admin, &object).get("agent-owner").await.unwrap();
        for manager in ["bedplate-agent", "another", "before-first-apply"] {
            let why = apply(&agent, &object, manager, with(&agents_fields(), &status)).await;
            let why = why.expect_err(&format!("{status} by {manager}"));
            assert!(why.contains("not even as they are"), "{status}: {why}");
        }
        // In pxed's name it would take away what it does not name.
        let why = apply(&agent, &object, "pxed", agents_fields()).await.expect_err("in pxed's name");
        assert!(why.contains("an agent writes no "), "{status}: {why}");
        for manager in ["bedplate-agent", "pxed"] {
            let patch = Patch::Merge(json!({ "metadata": { "managedFields": [{}] }, "status": status }));
            let parameters =
                PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
            // Accepted or not: no ownership of others is lost by it.
            let _ = api(&agent, &object).patch_status("agent-owner", &parameters, &patch).await;
            let after = api(&admin, &object).get("agent-owner").await.unwrap();
            let own = ["bedplate-agent"];
            assert_eq!(ownership(&after, &own), ownership(&before, &own), "{status} by {manager}");
        }
    }
    // Only what pxed does not apply any more is removed.
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.unwrap();
    apply(&admin, &object, "pxed", json!({})).await.unwrap();
    let left = api(&admin, &object).get("agent-owner").await.unwrap();
    let own: BTreeSet<_> =
        with(&agents_fields(), &enrollment()).as_object().unwrap().keys().cloned().collect();
    let left: BTreeSet<_> = left.data["status"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(left, own);
}

#[tokio::test]
async fn certificate_counts_only_for_the_machine_that_was_enrolled_with_it() {
    policies_in_force();
    let object = machine("agent-anew");
    let (admin, pxed) = (admin().await, pxed().await);
    let [old, new] = [certified("agent-anew").await, certified("agent-anew").await];
    let write = async |(agent, _): &(Client, Value)| {
        apply(agent, &object, "bedplate-agent", json!({ "agent": { "version": "0.1.0" } })).await
    };
    let refused = async |who: &(Client, Value)| {
        let why = write(who).await.expect_err("another's certificate");
        assert!(why.contains("is not the certificate that Machine agent-anew was enrolled with"), "{why}");
    };
    create(&admin, &object).await;
    refused(&old).await;
    apply(&pxed, &object, "pxed-enrollment", old.1.clone()).await.unwrap();
    write(&old).await.unwrap();
    // Fields that another pxed of the site applies do not refuse the agent.
    apply(&admin, &object, "pxed", json!({ "phase": "Enrolled" })).await.unwrap();
    write(&old).await.unwrap();
    refused(&new).await;
    let machines = api(&admin, &object);
    machines.delete("agent-anew", &kube::api::DeleteParams::default()).await.unwrap();
    create(&admin, &object).await;
    refused(&old).await;
    apply(&pxed, &object, "pxed-enrollment", new.1.clone()).await.unwrap();
    write(&new).await.unwrap();
    refused(&old).await;
}

#[tokio::test]
async fn agent_writes_its_fields_also_if_another_manager_or_none_owns_them() {
    policies_in_force();
    let object = machine("agent-people");
    let admin = admin().await;
    create(&admin, &object).await;
    let agent = agent("agent-people").await;
    let machines = api(&admin, &object);
    let by_hand = Patch::Merge(json!({ "status": { "agent": { "version": "by hand" }, "phase": "Ready" } }));
    machines.patch_status("agent-people", &PatchParams::default(), &by_hand).await.unwrap();
    apply(&agent, &object, "bedplate-agent", agents_fields()).await.expect("over a person's value");
    let forget = Patch::Merge(json!({ "metadata": { "managedFields": [{}] } }));
    machines.patch("agent-people", &PatchParams::default(), &forget).await.unwrap();
    let again = with(&agents_fields(), &json!({ "agent": { "version": "0.1.1" } }));
    apply(&agent, &object, "bedplate-agent", again).await.expect("where nobody is known to own anything");
}

#[tokio::test]
async fn agent_is_refused_other_machines_and_every_spec() {
    policies_in_force();
    let admin = admin().await;
    for name in ["agent-a", "agent-b"] {
        create(&admin, &machine(name)).await;
    }
    let agent = agent("agent-a").await;
    let status = json!({ "agent": { "version": "0" } });
    let why = apply(&agent, &machine("agent-b"), "bedplate-agent", status).await.unwrap_err();
    assert!(why.contains("is not the agent of Machine agent-b"), "{why}");
    let machines = api(&agent, &machine("agent-a"));
    machines.get("agent-a").await.expect("its own Machine");
    let patch = Patch::Merge(json!({ "spec": { "paused": true } }));
    machines.patch("agent-a", &PatchParams::default(), &patch).await.expect_err("specs are people's");
    machines.delete("agent-a", &kube::api::DeleteParams::default()).await.expect_err("no deletion");
}

#[tokio::test]
async fn agent_reports_only_on_its_own_operations_and_not_on_power() {
    policies_in_force();
    let admin = admin().await;
    let of = |name: &str, machine: &str, what: &str| {
        with(
            &operation(name),
            &json!({ "metadata": { "labels": { "bedplate.dev/machine": "agent-ops" } },
            "spec": { "machineRef": { "name": machine }, "operationName": what } }),
        )
    };
    let own = of("own", "agent-ops", "reboot");
    let (other, power) = (of("other", "agent-else", "reboot"), of("power", "agent-ops", "powerCycle"));
    for operation in [&own, &other, &power] {
        create(&admin, operation).await;
    }
    let (agent, _) = certified("agent-ops").await;
    let status = json!({ "state": "InProgress", "executor": "bedplate:machine:agent-ops" });
    apply(&agent, &own, "bedplate-agent", status.clone()).await.unwrap();
    for (operation, words) in [
        // A label that anybody set does not count.
        (&other, "only on operations for its own Machine"),
        (&power, "an agent does not report on powerOn, powerOff, powerCycle and reset"),
    ] {
        let why = apply(&agent, operation, "bedplate-agent", status.clone()).await.expect_err(words);
        assert!(why.contains(words), "{why}");
    }
    let sums = with(&status, &json!({ "counts": { "total": 1 } }));
    let why = apply(&agent, &own, "bedplate-agent", sums).await.expect_err("sums");
    assert!(why.contains("an agent writes no fields of the status of a MachineOperation but "), "{why}");
    // The way the agent writes it: only over the version that it read.
    let old = json!({ "metadata": { "resourceVersion": "1" }, "status": { "state": "Complete" } });
    let why = api(&agent, &own).patch_status("own", &PatchParams::default(), &Patch::Merge(old)).await;
    assert!(matches!(why, Err(kube::Error::Api(status)) if status.code == 409), "an old version");
}

#[tokio::test]
async fn o1_agent_does_not_reopen_an_operation_that_has_ended() {
    policies_in_force();
    let admin = admin().await;
    let spec = json!({ "spec": { "machineRef": { "name": "agent-ended" }, "operationName": "reboot" } });
    let (agent, _) = certified("agent-ended").await;
    let words = "an operation that has ended stays as it is";
    for (name, end) in [("again-complete", "Complete"), ("again-failed", "Failed")] {
        let operation = with(&operation(name), &spec);
        create(&admin, &operation).await;
        let open = ["Pending", "InProgress"].map(|state| json!({ "state": state, "executor": "x" }));
        let ended = json!({ "state": end, "executor": "x", "conditions": [condition(end)] });
        for state in open.iter().chain([&ended]) {
            apply(&agent, &operation, "bedplate-agent", state.clone()).await.unwrap();
        }
        for state in &open {
            let why = apply(&agent, &operation, "bedplate-agent", state.clone()).await.expect_err(words);
            assert!(why.contains(words), "{why}");
        }
    }
}

/// The attack: a compromised host restarts the time of an operation, so that its parent never starts the next Machine.
#[tokio::test]
async fn o1_agent_neither_releases_an_operation_nor_restarts_its_time() {
    policies_in_force();
    let admin = admin().await;
    let own = with(
        &operation("held-by-host"),
        &json!({ "spec": { "machineRef": { "name": "agent-holds" }, "operationName": "reboot" } }),
    );
    create(&admin, &own).await;
    let (agent, _) = certified("agent-holds").await;
    let (start, executor) = ("2026-01-01T00:00:00Z", "bedplate-agent/agent-holds");
    let status = |state: &str| json!({ "state": state, "startTime": start, "executor": executor });
    let words =
        "an agent writes no conditions of a MachineOperation that has not ended but Cordoned, Drained";
    let [suspended, failed, stalled] =
        ["Suspended", "Failed", "Stalled"].map(|type_| json!({ "conditions": [condition(type_)] }));
    for conditions in [&suspended, &stalled] {
        let why = apply(&agent, &own, "bedplate-agent", with(&json!({ "state": "Pending" }), conditions))
            .await
            .expect_err(words);
        assert!(why.contains(words), "{why}");
    }
    apply(&agent, &own, "bedplate-agent", json!({ "state": "Pending" })).await.unwrap();
    // Without a state the controller would write Pending again, and the time until an executor takes it would start again.
    let stateless = "an agent writes no status of a MachineOperation without a state";
    for status in [json!({ "state": null }), json!({ "state": null, "message": "m" })] {
        let patch = Patch::Merge(json!({ "status": status }));
        let written = api(&agent, &own).patch_status("held-by-host", &PatchParams::default(), &patch).await;
        let why = written.expect_err(stateless).to_string();
        assert!(why.contains(stateless), "{status}: {why}");
    }
    let gone = Patch::Merge(json!({ "status": null }));
    let written = api(&agent, &own).patch_status("held-by-host", &PatchParams::default(), &gone).await;
    let why = written.expect_err(stateless).to_string();
    assert!(why.contains(stateless), "{why}");
    apply(&agent, &own, "bedplate-agent", json!({ "message": "m" })).await.expect_err(stateless);
    apply(&agent, &own, "bedplate-agent", status("InProgress")).await.unwrap();
    let (later, other) = (json!({ "startTime": "2026-01-01T00:01:00Z" }), json!({ "executor": "x" }));
    for (change, words) in [
        (status("Pending"), "an operation that was taken is carried out to its end"),
        (
            json!({ "startTime": start, "executor": executor }),
            "an operation that was taken is carried out to its end",
        ),
        (with(&status("InProgress"), &later), "startTime, executor and bootID of an operation stay"),
        (
            with(&with(&status("Complete"), &other), &json!({ "conditions": [condition("Complete")] })),
            "startTime, executor and bootID of an operation stay",
        ),
        (
            json!({ "state": "InProgress", "executor": executor }),
            "startTime, executor and bootID of an operation stay",
        ),
        (with(&status("InProgress"), &suspended), words),
        (with(&status("InProgress"), &stalled), words),
        (
            with(&status("Failed"), &json!({ "conditions": [condition("Failed"), condition("Suspended")] })),
            "an agent writes no conditions of a MachineOperation that has ended but Cordoned, Drained, Complete, Failed, Stalled",
        ),
    ] {
        let why = apply(&agent, &own, "bedplate-agent", change.clone()).await.expect_err(words);
        assert!(why.contains(words), "{change}: {why}");
    }
    let drained = json!({ "bootID": "b", "conditions": [condition("Cordoned"), condition("Drained")] });
    apply(&agent, &own, "bedplate-agent", with(&status("InProgress"), &drained)).await.unwrap();
    let own_conditions = ["Cordoned", "Drained", "Failed", "Stalled"].map(condition);
    assert_eq!(failed["conditions"][0], own_conditions[2]);
    let ended = json!({ "bootID": "b", "observedGeneration": 1, "conditions": own_conditions });
    apply(&agent, &own, "bedplate-agent", with(&status("Failed"), &ended)).await.unwrap();
}

/// Tries until a policy refuses it with these words: policies take effect some time after they were made.
pub(super) async fn refused<T, F>(words: &str, attempt: impl Fn() -> F)
where
    F: Future<Output = kube::Result<T>>,
{
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let why = attempt().await.err().map(|error| error.to_string()).unwrap_or_default();
        if why.contains(words) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "not refused with {words:?}: {why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn dry() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

#[tokio::test]
async fn pxed_watches_machines_and_writes_only_status_and_its_own_finalizer() {
    let object = machine("pxed-writes");
    let admin = admin().await;
    create(&admin, &object).await;
    let pxed = pxed().await;
    let machines = api(&pxed, &object);
    machines.list(&kube::api::ListParams::default()).await.unwrap();
    apply(&pxed, &object, "pxed", json!({ "boot": { "stage": "Offered", "attempts": 1 } })).await.unwrap();
    let words = "pxed changes nothing of a Machine but its own finalizer";
    for change in [
        json!({ "spec": { "paused": true } }),
        json!({ "metadata": { "labels": { "a": "b" } } }),
        json!({ "metadata": { "annotations": { "a": "b" } } }),
        json!({ "metadata": { "finalizers": ["example.com/other"] } }),
        json!({ "metadata": { "finalizers": ["bedplate.dev/power-off", "example.com/other"] } }),
    ] {
        let (machines, patch) = (machines.clone(), Patch::Merge(change));
        refused(words, || async { machines.patch("pxed-writes", &dry(), &patch).await }).await;
    }
    for finalizers in [json!(["bedplate.dev/power-off"]), json!([])] {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
        machines.patch("pxed-writes", &PatchParams::default(), &patch).await.unwrap();
    }
    let foreign = Patch::Merge(json!({ "metadata": { "finalizers": ["example.com/other"] } }));
    api(&admin, &object).patch("pxed-writes", &PatchParams::default(), &foreign).await.unwrap();
    let without = Patch::Merge(json!({ "metadata": { "finalizers": [] } }));
    refused(words, || async { machines.patch("pxed-writes", &dry(), &without).await }).await;
    machines.delete("pxed-writes", &kube::api::DeleteParams::default()).await.expect_err("no deletion");
    let none = Patch::Merge(json!({ "metadata": { "finalizers": [] } }));
    api(&admin, &object).patch("pxed-writes", &PatchParams::default(), &none).await.unwrap();
}

/// Trust 4 for pxed: its credentials permit neither to select a version nor to report for a host.
#[tokio::test]
async fn pxed_writes_its_own_fields_of_a_machines_status_and_no_others() {
    let object = machine("pxed-fields");
    let admin = admin().await;
    create(&admin, &object).await;
    let pxed = pxed().await;
    let machines = api(&pxed, &object);
    let words = "pxed writes no fields of the status of a Machine but";
    let probe = Patch::Merge(json!({ "status": { "phase": "Ready" } }));
    refused(words, || async { machines.patch_status("pxed-fields", &dry(), &probe).await }).await;
    let conditions = ["BMCReachable", "PoweredOn", "Booted", "Enrolled"].map(condition);
    let own = json!({ "boot": { "stage": "Offered", "attempts": 1 }, "power": { "state": "On" },
        "hardware": { "bmc": { "vendor": "V" } }, "enrollment": { "certificateFingerprint": format!("sha256:{}", "0".repeat(64)) },
        "conditions": conditions });
    apply(&pxed, &object, "pxed", own.clone()).await.unwrap();
    let agents = agents_fields();
    let agents = agents.as_object().unwrap().iter().map(|(name, value)| json!({ name: value }));
    let controllers = [
        json!({ "observedGeneration": 1 }),
        json!({ "phase": "Ready" }),
        json!({ "selected": { "name": "workers", "version": 1, "source": "Reference" } }),
        json!({ "nodeRef": { "name": "pxed-fields", "uid": "u" } }),
        json!({ "providerID": "bedplate://other" }),
    ];
    let conditions = ["ConfigurationPending", "Ready", "Stalled", "Drained", "Invented"];
    let conditions = conditions.map(|kind| json!({ "conditions": [condition(kind)] }));
    for status in agents.chain(controllers).chain(conditions) {
        let why = apply(&pxed, &object, "another", status.clone()).await.expect_err(&status.to_string());
        assert!(why.contains("pxed writes no "), "{status}: {why}");
    }
    // pxed cannot remove fields of other writers either.
    apply(&admin, &object, "bedplate-agent", agents_fields()).await.unwrap();
    for status in [json!({ "slots": null }), json!({ "hardware": null }), json!({ "conditions": null })] {
        let patch = Patch::Merge(json!({ "status": status }));
        let why = machines.patch_status("pxed-fields", &PatchParams::default(), &patch).await.unwrap_err();
        assert!(why.to_string().contains("pxed writes no "), "{status}: {why}");
    }
    apply(&pxed, &object, "pxed", json!({})).await.expect("its own fields may go");
}

/// Fields of the status, each with a value, that pxed writes, by the manager that it writes them with.
pub(super) fn pxeds_fields() -> [(&'static str, Value); 3] {
    [
        (
            "pxed",
            json!({ "boot": { "stage": "Offered", "attempts": 1 }, "conditions": [condition("Booted"), condition("Enrolled")] }),
        ),
        (
            "pxed-power",
            json!({ "power": { "state": "On" }, "hardware": { "bmc": { "vendor": "V" } },
                "conditions": [condition("BMCReachable"), condition("PoweredOn")] }),
        ),
        ("pxed-enrollment", enrollment()),
    ]
}

/// The attack: pxed's credentials apply fields of others as they are. A co-owner keeps a field that its writer removes.
#[tokio::test]
async fn trust_3_pxed_does_not_own_fields_of_others_as_they_are() {
    const OWN: [&str; 3] = ["pxed", "pxed-power", "pxed-enrollment"];
    let object = machine("pxed-owner");
    let admin = admin().await;
    create(&admin, &object).await;
    let pxed = pxed().await;
    let machines = api(&pxed, &object);
    let words = "pxed writes no fields of others, not even as they are";
    apply(&admin, &object, "bedplate-controller", json!({ "phase": "Ready" })).await.unwrap();
    let as_it_is = Patch::Apply(json!({ "apiVersion": object["apiVersion"], "kind": object["kind"],
        "metadata": { "name": "pxed-owner" }, "status": { "phase": "Ready" } }));
    let probe = PatchParams { dry_run: true, ..PatchParams::apply("pxed").force() };
    refused(words, || async { machines.patch_status("pxed-owner", &probe, &as_it_is).await }).await;
    // Each part of its own by its manager, also again and on an object that has other owners by now.
    for _ in 0..2 {
        for (manager, status) in pxeds_fields() {
            apply(&pxed, &object, manager, status).await.unwrap();
        }
        apply(&admin, &object, "bedplate-agent", agents_fields()).await.unwrap();
    }
    let agents = agents_fields();
    let agents = agents.as_object().unwrap().iter().map(|(name, value)| json!({ name: value }));
    for status in agents.chain([json!({ "phase": "Ready" })]) {
        let before = api(&admin, &object).get("pxed-owner").await.unwrap();
        for manager in OWN.into_iter().chain(["another", "before-first-apply"]) {
            let why = apply(&pxed, &object, manager, status.clone()).await;
            let why = why.expect_err(&format!("{status} by {manager}"));
            assert!(why.contains(words), "{status} by {manager}: {why}");
        }
        for manager in ["pxed", "bedplate-agent", "bedplate-controller"] {
            let patch = Patch::Merge(json!({ "metadata": { "managedFields": [{}] }, "status": status }));
            let parameters =
                PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
            // Accepted or not: no ownership of others is lost by it.
            let _ = machines.patch_status("pxed-owner", &parameters, &patch).await;
            let after = api(&admin, &object).get("pxed-owner").await.unwrap();
            assert_eq!(ownership(&after, &OWN), ownership(&before, &OWN), "{status} by {manager}");
        }
    }
    // In another writer's name it would remove what it does not name.
    for (_, status) in pxeds_fields() {
        for manager in ["bedplate-agent", "bedplate-controller"] {
            let why = apply(&pxed, &object, manager, status.clone()).await.expect_err(manager);
            assert!(why.contains("pxed writes no "), "{status} by {manager}: {why}");
        }
    }
    // Only what a writer does not apply any more is removed.
    for (manager, status) in pxeds_fields() {
        apply(&pxed, &object, manager, status).await.unwrap();
    }
    apply(&admin, &object, "bedplate-agent", json!({})).await.unwrap();
    let left = api(&admin, &object).get("pxed-owner").await.unwrap();
    let left: BTreeSet<_> = left.data["status"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        left,
        ["boot", "conditions", "enrollment", "hardware", "observedGeneration", "phase", "power"]
            .map(str::to_owned)
            .into()
    );
    for (manager, _) in pxeds_fields() {
        apply(&pxed, &object, manager, json!({})).await.expect("its own fields may go");
    }
}

#[tokio::test]
async fn pxed_reports_only_on_power_operations_and_only_its_own_fields() {
    let power = |name: &str| with(&operation(name), &json!({ "spec": { "operationName": "powerOn" } }));
    let (own, other) = (power("power-own"), operation("power-other"));
    let parent = with(
        &power("power-parent"),
        &json!({ "spec": { "machineRef": null, "machineSelector": { "matchLabels": { "a": "b" } } } }),
    );
    let admin = admin().await;
    for object in [&own, &other, &parent] {
        create(&admin, object).await;
    }
    let pxed = pxed().await;
    let status = Patch::Merge(json!({ "status": { "state": "InProgress", "executor": "pxed/lab/x" } }));
    for name in ["power-other", "power-parent"] {
        let operations = api(&pxed, &own);
        let words = "pxed reports only on powerOn, powerOff, powerCycle and reset of one Machine";
        refused(words, || async { operations.patch_status(name, &dry(), &status).await }).await;
    }
    let operations = api(&pxed, &own);
    let fields = "pxed writes no fields of the status of a MachineOperation but ";
    let conditions = "pxed writes no conditions of a MachineOperation but ";
    for (status, words) in [
        (json!({ "counts": { "total": 1 } }), fields),
        (json!({ "machines": { "complete": ["a"] } }), fields),
        (json!({ "bootID": "b" }), fields),
        (json!({ "conditions": [condition("Suspended")] }), conditions),
        (json!({ "conditions": [condition("Drained")] }), conditions),
    ] {
        let patch = Patch::Merge(json!({ "status": status }));
        refused(words, || async { operations.patch_status("power-own", &dry(), &patch).await }).await;
    }
    operations.patch_status("power-own", &PatchParams::default(), &status).await.unwrap();
    let end = json!({ "state": "Failed", "reason": "TimedOut", "conditions": [condition("Failed"), condition("Stalled")] });
    let end = Patch::Merge(json!({ "status": end }));
    operations.patch_status("power-own", &PatchParams::default(), &end).await.unwrap();
    operations.patch("power-own", &dry(), &status).await.expect_err("only the subresource");
}

#[tokio::test]
async fn pxed_reads_single_secrets_of_its_namespace_and_writes_leases_of_sites() {
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::Secret;
    Kubernetes::shared();
    let pxed = pxed().await;
    let secrets = |namespace: &str| Api::<Secret>::namespaced(pxed.clone(), namespace);
    assert!(secrets("bedplate-system").get_opt("not-there").await.unwrap().is_none());
    secrets("bedplate-system").list(&kube::api::ListParams::default()).await.expect_err("no list");
    secrets("default").get_opt("not-there").await.expect_err("another namespace");
    let leases = Api::<Lease>::namespaced(pxed, "bedplate-system");
    let lease = |name: &str| {
        let value = json!({ "metadata": { "name": name }, "spec": { "holderIdentity": "x" } });
        serde_json::from_value::<Lease>(value).unwrap()
    };
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let foreign = lease("kube-scheduler");
    refused("only Leases named bedplate-pxed-", || async { leases.create(&parameters, &foreign).await })
        .await;
    leases.create(&parameters, &lease("bedplate-pxed-lab")).await.unwrap();
}
