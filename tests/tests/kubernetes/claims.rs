//! Writers of a MachineClaim on a real API server with `deploy/claims-policy.yaml` (docs/guides/claims.md, "Writers of a claim").

use std::time::Duration;

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use serde_json::{Value, json};

use super::cluster::{claim, with};

const PROVIDER: &str = "system:serviceaccount:bedplate-system:bedplate-infrastructure";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// Rights that no role limits: what is refused, a policy refuses.
const MASTERS: &str = "system:masters";
const AGENT: &str = "bedplate-agent";
const PROVIDER_MANAGER: &str = "bedplate-cluster-infrastructure";
const NOT_A_WRITER: &str = "only the provider writes a MachineClaim";

fn admin() -> Objects {
    Kubernetes::shared().objects().unwrap().clone()
}

fn provider() -> Objects {
    admin().impersonating(PROVIDER, &[MASTERS])
}

/// An agent of this Machine with a new key, and the ID of the key.
fn agent(machine: &str) -> (Objects, String) {
    let kubernetes = Kubernetes::shared();
    let (kubeconfig, enrollment) = kubernetes.agent(machine).unwrap();
    (kubernetes.objects_of(&kubeconfig).unwrap(), enrollment["keyID"].as_str().unwrap().to_owned())
}

fn with_message(tried: anyhow::Result<Value>) -> Result<Value, String> {
    tried.map_err(|error| format!("{error:#}"))
}

/// Policies take effect some time after they were made, and nothing in the API says when.
fn in_force() {
    let person = admin().impersonating("somebody", &["system:authenticated", "claims-probe"]);
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "claims-probe" },
        "rules": [{ "apiGroups": ["bedplate.dev"], "resources": ["machineclaims", "machineclaims/status"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"] }] });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "claims-probe" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "claims-probe" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "claims-probe" }] });
    for object in [role, binding] {
        admin().apply(&object).unwrap();
    }
    wait::until_asked("the policy of claims", Duration::from_secs(60), || {
        let refused = with_message(person.try_create(&claim("claims-probe")));
        Ok(refused.is_err_and(|why| why.contains(NOT_A_WRITER)).then_some(()))
    })
    .unwrap();
}

/// A user with every right on claims but `repair`.
fn person() -> Objects {
    admin().impersonating("somebody", &["system:authenticated", "claims-probe"])
}

/// A claim of its provider, for the enrollment with this key.
fn claimed(name: &str, key_id: &str) -> Value {
    let annotated = json!({ "metadata": { "annotations": { "bedplate.dev/enrollment": key_id } } });
    provider().apply_as(PROVIDER_MANAGER, "", &with(&claim(name), &annotated), "").unwrap()
}

fn condition(kind: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// Fields of the status that an agent writes.
fn agents_fields(name: &str) -> Value {
    json!({ "providerID": format!("bedplate://{name}/u-1"), "state": "Joined", "reason": "Applied", "message": "m",
        "node": { "name": "w-1", "uid": "n" }, "since": "2026-01-01T00:00:00Z", "refused": ["ntp"] })
}

#[test]
fn d1_claim_is_written_by_its_provider_and_by_no_role() {
    in_force();
    let (agent, key_id) = agent("claims-main");
    let made = claimed("claims-main", &key_id);
    let by_agent = admin().impersonating("bedplate:machine:claims-main", &["bedplate:machines", MASTERS]);
    let pxed = admin().impersonating("system:serviceaccount:bedplate-system:pxed", &["claims-probe"]);
    let controller =
        admin().impersonating("system:serviceaccount:bedplate-system:bedplate-controller", &["claims-probe"]);
    for (who, by) in
        [("a user", person()), ("an agent", by_agent), ("pxed", pxed), ("the controller", controller)]
    {
        let why = with_message(by.try_create(&claim("claims-new"))).expect_err(who);
        assert!(why.contains(NOT_A_WRITER), "{who}: {why}");
        for patch in [
            json!({ "spec": { "claimant": { "uid": "u-9" } } }),
            json!({ "metadata": { "annotations": { "bedplate.dev/enrollment": "0".repeat(32) } } }),
            json!({ "metadata": { "finalizers": ["example.com/mine"] } }),
        ] {
            let why = with_message(by.merge("mcl", "claims-main", &patch)).expect_err(who);
            assert!(why.contains(NOT_A_WRITER), "{who}: {patch}: {why}");
        }
        let why = with_message(by.can_delete("mcl", "claims-main")).expect_err(who);
        assert!(why.contains(NOT_A_WRITER), "{who}: {why}");
    }
    // The role of agents has no such verb either.
    with_message(agent.can_delete("mcl", "claims-main")).expect_err("the role");
    assert_eq!(admin().get("mcl", "claims-main").unwrap().unwrap()["metadata"], made["metadata"]);
    provider().merge("mcl", "claims-main", &json!({ "spec": { "claimant": { "uid": "u-9" } } })).unwrap();
    provider().can_delete("mcl", "claims-main").unwrap();
}

#[test]
fn d1_provider_writes_only_conditions_of_a_claims_status() {
    in_force();
    let (agent, key_id) = agent("claims-provider");
    claimed("claims-provider", &key_id);
    agent.apply_status(AGENT, ("mcl", "claims-provider"), &agents_fields("claims-provider")).unwrap();
    let provide = |part: &Value| {
        with_message(provider().apply_status(PROVIDER_MANAGER, ("mcl", "claims-provider"), part))
    };
    let own = ["Granted", "Fenced", "Orphaned", "Wiped"].map(condition);
    provide(&json!({ "conditions": own })).unwrap();
    for (name, value) in agents_fields("claims-provider").as_object().unwrap() {
        let other = match name.as_str() {
            "node" => json!({ "name": "w-2", "uid": "m" }),
            "refused" => json!(["mounts"]),
            "state" => json!("Released"),
            "since" => json!("2026-01-02T00:00:00Z"),
            "providerID" => json!("bedplate://claims-provider/u-2"),
            _ => json!("other"),
        };
        let why = provide(&json!({ "conditions": own, name: other })).expect_err(name);
        assert!(why.contains("the provider may write only these conditions in the status"), "{name}: {why}");
        let gone =
            Value::from(std::iter::once((name.clone(), Value::Null)).collect::<serde_json::Map<_, _>>());
        let why = with_message(provider().merge_status("mcl", "claims-provider", &gone)).expect_err(name);
        assert!(
            why.contains("the provider may write only these conditions in the status"),
            "{name} {value}: {why}"
        );
    }
    let why = provide(&json!({ "conditions": [condition("Invented")] })).expect_err("an invented type");
    assert!(why.contains("the provider may write only these conditions in the status"), "{why}");
    let found = admin().get("mcl", "claims-provider").unwrap().unwrap();
    assert_eq!(found["status"]["state"], "Joined");
    assert_eq!(found["status"]["conditions"].as_array().unwrap().len(), own.len());
}

#[test]
fn d4_only_the_agent_of_the_claims_own_enrollment_reports_on_it() {
    in_force();
    let (agent, key_id) = self::agent("claims-agent");
    let (earlier, _) = self::agent("claims-agent");
    let (other, other_key) = self::agent("claims-other");
    claimed("claims-agent", &key_id);
    claimed("claims-other", &other_key);
    let report = |by: &Objects, name: &str| {
        with_message(by.apply_status(AGENT, ("mcl", name), &agents_fields("claims-agent")))
    };
    report(&agent, "claims-agent").unwrap();
    // The attack: a tenant has copied the host's certificate, and the host has another key since.
    let why = report(&earlier, "claims-agent").expect_err("an earlier key");
    assert!(why.contains("is not of the enrollment that the annotation"), "{why}");
    let why = report(&other, "claims-agent").expect_err("another host");
    assert!(why.contains("is not the agent of Machine claims-agent"), "{why}");
    // A further group does not help, also if the API server has signed it.
    let own = format!("bedplate:enrollment:{key_id}");
    let both = admin().impersonating(
        "bedplate:machine:claims-agent",
        &["bedplate:machines", MASTERS, &own, &format!("bedplate:enrollment:{other_key}")],
    );
    let why = report(&both, "claims-agent").expect_err("two enrollment groups");
    assert!(why.contains("is not of the enrollment that the annotation"), "{why}");
    // A claim that names no enrollment is reported on by no agent.
    claimed_without_enrollment("claims-bare");
    let bare = admin().impersonating("bedplate:machine:claims-bare", &["bedplate:machines", MASTERS, &own]);
    let why = with_message(bare.apply_status(AGENT, ("mcl", "claims-bare"), &json!({ "state": "Joined" })))
        .expect_err("no enrollment");
    assert!(why.contains("is not of the enrollment that the annotation"), "{why}");
}

fn claimed_without_enrollment(name: &str) {
    provider().apply_as(PROVIDER_MANAGER, "", &claim(name), "").unwrap();
}

#[test]
fn d1_agent_writes_no_condition_of_a_claim_not_even_as_it_is() {
    in_force();
    let (agent, key_id) = agent("claims-fields");
    claimed("claims-fields", &key_id);
    let granted = json!({ "conditions": [condition("Granted")] });
    let own = agents_fields("claims-fields");
    let write = |manager: &str, part: &Value| {
        with_message(agent.apply_status(manager, ("mcl", "claims-fields"), part))
    };
    let why = write(AGENT, &granted).expect_err("its own go signal");
    assert!(why.contains("an agent must not write conditions"), "{why}");
    provider().apply_status(PROVIDER_MANAGER, ("mcl", "claims-fields"), &granted).unwrap();
    write(AGENT, &own).unwrap();
    let why = write(AGENT, &with(&own, &granted)).expect_err("as it is");
    assert!(why.contains("an agent must not write fields of other managers, not even unchanged"), "{why}");
    for part in [json!({ "conditions": [] }), json!({ "conditions": null })] {
        let why = with_message(agent.merge_status_as(AGENT, "mcl", "claims-fields", &part))
            .expect_err("taken away");
        assert!(why.contains("an agent must not write conditions"), "{part}: {why}");
    }
    for manager in ["another", PROVIDER_MANAGER] {
        let why = write(manager, &own).expect_err(manager);
        assert!(why.contains("an agent must"), "{manager}: {why}");
    }
    // Ownership of the provider is not lost by an agent's write.
    let forget = json!({ "metadata": { "managedFields": [{}] }, "status": { "message": "n" } });
    let path = "/apis/bedplate.dev/v1alpha1/machineclaims/claims-fields/status?fieldManager=bedplate-agent";
    let _ = agent.request(&http::Method::PATCH, path, "application/merge-patch+json", &forget);
    let found = admin().get("mcl", "claims-fields").unwrap().unwrap();
    let managers = found["metadata"]["managedFields"].as_array().unwrap();
    assert!(managers.iter().any(|entry| entry["manager"] == PROVIDER_MANAGER), "{managers:?}");
    assert_eq!(found["status"]["conditions"].as_array().unwrap().len(), 1);
    let why = with_message(person().merge_status("mcl", "claims-fields", &json!({ "state": "Released" })))
        .expect_err("a user");
    assert!(
        why.contains("only the provider and the agent of the host write the status of a MachineClaim"),
        "{why}"
    );
}

/// docs/guides/claims.md, "Repair by an administrator".
#[test]
fn d7_user_with_the_verb_repair_deletes_a_claim_only_after_naming_it() {
    in_force();
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "claims-repair" },
        "rules": [{ "apiGroups": ["bedplate.dev"], "resources": ["machineclaims"], "verbs": ["repair"] }] });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "claims-repair" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "claims-repair" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "claims-repair" }] });
    for object in [role, binding] {
        admin().apply(&object).unwrap();
    }
    let repairer =
        admin().impersonating("somebody", &["system:authenticated", "claims-probe", "claims-repair"]);
    wait::until_asked("the role", Duration::from_secs(60), || {
        Ok(with_message(repairer.try_create(&claim("claims-made"))).is_ok().then_some(()))
    })
    .unwrap();
    for (name, by) in [("claims-role", repairer), ("claims-admin", admin())] {
        claimed_without_enrollment(name);
        let why = with_message(by.begin_delete("mcl", name)).expect_err(name);
        let named = format!("set the annotation bedplate.dev/release of the claim to bedplate://{name}/u-1");
        assert!(why.contains(&named), "{why}");
        let release =
            |value: &str| json!({ "metadata": { "annotations": { "bedplate.dev/release": value } } });
        by.merge("mcl", name, &release("bedplate://another/u-1")).unwrap();
        with_message(by.begin_delete("mcl", name)).expect_err("another claim is named");
        by.merge("mcl", name, &release(&format!("bedplate://{name}/u-1"))).unwrap();
        by.merge("mcl", name, &json!({ "metadata": { "finalizers": ["bedplate.dev/release"] } })).unwrap();
        by.begin_delete("mcl", name).unwrap();
        let held = admin().get("mcl", name).unwrap().unwrap();
        assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");
        by.merge_status("mcl", name, &json!({ "state": "Released" })).unwrap();
        by.merge("mcl", name, &json!({ "metadata": { "finalizers": null } })).unwrap();
        let gone = |object: Option<&Value>| object.is_none().then_some(());
        admin().until(("mcl", name), Duration::from_secs(30), gone).unwrap();
    }
}

#[test]
fn d1_garbage_collector_deletes_a_claim_and_changes_none() {
    in_force();
    claimed_without_enrollment("claims-collected");
    let collector = admin().impersonating(COLLECTOR, &[MASTERS]);
    collector.can_delete("mcl", "claims-collected").unwrap();
    let status =
        with_message(collector.merge_status("mcl", "claims-collected", &json!({ "state": "Released" })));
    // `system:masters` has the verb `repair`; the collector's own role has not.
    let plain = admin().impersonating(COLLECTOR, &["claims-probe"]);
    plain.can_delete("mcl", "claims-collected").unwrap();
    plain
        .merge("mcl", "claims-collected", &json!({ "metadata": { "finalizers": ["foregroundDeletion"] } }))
        .unwrap();
    let why = with_message(plain.merge(
        "mcl",
        "claims-collected",
        &json!({ "spec": { "claimant": { "uid": "u-2" } } }),
    ))
    .expect_err("the spec");
    assert!(why.contains(NOT_A_WRITER), "{why}");
    let why = with_message(plain.merge_status("mcl", "claims-collected", &json!({ "state": "Failed" })))
        .expect_err("the status");
    assert!(why.contains("write the status of a MachineClaim"), "{why} {status:?}");
}
