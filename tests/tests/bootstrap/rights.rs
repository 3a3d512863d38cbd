//! Rights of the bootstrap provider: a thief of its token lists and changes no Secret, and the policy `bedplate-cluster-secrets` admits only the
//! objects that the provider makes.

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use http::Method;
use serde_json::{Value, json};

use super::site::{PATIENCE, PROVIDER, Team, account, control_plane, install};

fn refused(tried: anyhow::Result<Value>, words: &str) {
    let why = tried.map_err(|error| format!("{error:#}")).expect_err(words);
    assert!(why.contains(words), "{why}");
}

/// A Secret that the provider may create, for changes.
fn secret(name: &str) -> Value {
    let owner = json!({ "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig", "name": "cp-0",
        "uid": "1", "controller": true });
    json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": { "name": name, "labels": { "cluster.x-k8s.io/cluster-name": "c" }, "ownerReferences": [owner] },
        "data": { "tls.crt": "YQ==" } })
}

fn lock(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "labels": { "cluster.x-k8s.io/cluster-name": "c" } },
        "data": { "lock-information": "{\"machineName\":\"cp-0\"}" } })
}

/// A policy is in force some time after it was created.
fn until_in_force(objects: &Objects) {
    let is_refused = || Ok(objects.try_create(&lock("other")).is_err().then_some(()));
    wait::until_asked("the policy", PATIENCE, is_refused).unwrap();
}

#[test]
fn stolen_token_of_the_provider_lists_and_changes_no_secret() {
    install();
    let team = Team::new("stolen", &control_plane("stolen"));
    team.authorities();
    let thief = Kubernetes::shared().objects_of(&account()).unwrap().within("stolen");
    let list = |path: &str| thief.request(&Method::GET, path, "application/json", &Value::Null);
    refused(list("/api/v1/secrets"), "cannot list");
    refused(list("/api/v1/namespaces/stolen/secrets"), "cannot list");
    let patch = json!({ "data": { "tls.crt": "YQ==" } });
    refused(thief.try_merge("secret", "stolen-ca", &patch), "cannot patch");
    refused(thief.begin_delete("secret", "stolen-ca"), "cannot delete");
    refused(thief.try_merge("cluster", "stolen", &json!({ "spec": { "paused": true } })), "cannot patch");
    refused(thief.begin_delete("cluster", "stolen"), "cannot delete");
    refused(thief.begin_delete("kubeadmconfig", "any"), "cannot delete");
    refused(list("/api/v1/namespaces/stolen/configmaps"), "cannot list");
    until_in_force(&thief);
    refused(thief.try_create(&secret("stolen-kubeconfig")), "may create only the data");
}

/// With all rights, the account still cannot do more than the policy says.
#[test]
fn policy_admits_only_secrets_of_clusters_and_init_locks() {
    install();
    let team = Team::new("bounded", &control_plane("bounded"));
    let provider = team.objects.impersonating(PROVIDER, &["system:masters"]);
    until_in_force(&provider);
    for name in ["cp-0", "c-ca", "c-etcd", "c-proxy", "c-sa"] {
        provider.try_create(&secret(name)).unwrap();
    }
    let with = |field: &str, value: Value| {
        let mut changed = secret("cp-0");
        *changed.pointer_mut(field).unwrap() = value;
        changed
    };
    let words = "may create only the data of a KubeadmConfig and the certificates of a cluster";
    refused(provider.try_create(&with("/metadata/name", json!("other"))), words);
    refused(provider.try_create(&with("/metadata/name", json!("c-kubeconfig"))), words);
    refused(provider.try_create(&with("/metadata/ownerReferences", json!([]))), words);
    refused(provider.try_create(&with("/metadata/ownerReferences/0/controller", json!(false))), words);
    refused(provider.try_create(&with("/metadata/labels", json!({}))), "only objects with the label");
    refused(provider.try_create(&with("/type", json!("example.com/other"))), "type");
    refused(
        provider.try_create(&with("/type", json!("Opaque"))),
        "only Secrets of type cluster.x-k8s.io/secret",
    );
    // Existing Secrets are not changed.
    team.objects.create(&secret("c-ca")).unwrap();
    let words = "must not change or delete Secrets";
    refused(provider.try_merge("secret", "c-ca", &json!({ "data": { "tls.crt": "Yg==" } })), words);
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    refused(provider.try_merge("secret", "c-ca", &label), words);
    refused(provider.can_delete("secret", "c-ca"), words);
    // Others may.
    team.objects.try_merge("secret", "c-ca", &label).unwrap();
    let words = "the ConfigMap of the init lock";
    provider.try_create(&lock("c-lock")).unwrap();
    refused(provider.try_create(&lock("c-other")), words);
    let mut other = lock("c-lock");
    other["data"]["other"] = "a".into();
    refused(provider.try_create(&other), words);
    team.objects.create(&lock("c-lock")).unwrap();
    refused(provider.try_merge("configmap", "c-lock", &json!({ "data": { "lock-information": "" } })), words);
    provider.can_delete("configmap", "c-lock").unwrap();
    // A lock that was restored without its label.
    let none = json!({ "metadata": { "labels": null } });
    team.objects.merge("configmap", "c-lock", &none).unwrap();
    provider.can_delete("configmap", "c-lock").unwrap();
    other["metadata"]["name"] = "d-lock".into();
    team.objects.create(&other).unwrap();
    refused(provider.can_delete("configmap", "d-lock"), words);
}
