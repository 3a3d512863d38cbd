//! Rights of the core provider: a thief of its token lists and deletes no Secret, and the policies `bedplate-core-secrets` and
//! `bedplate-core-writes` admit only the writes that the provider makes.

use bedplate_tests::kubernetes::{Kubernetes, Objects};
use bedplate_tests::wait;
use http::Method;
use serde_json::{Value, json};

use super::owned::{CLUSTER_NAME, MACHINE, reference};
use super::site::{PATIENCE, Team, account, install};
use super::workers::infrastructure_template;

/// User of the provider.
const PROVIDER: &str = "system:serviceaccount:bedplate-system:bedplate-core";

/// Annotation of a kubeconfig that the provider has made.
const KUBECONFIG_DIGEST: &str = "bedplate.dev/kubeconfig-digest";

fn refused(tried: anyhow::Result<Value>, words: &str) {
    let why = tried.map_err(|error| format!("{error:#}")).expect_err(words);
    assert!(why.contains(words), "{words:?} in {why}");
}

fn owned_by(version: &str, kind: &str, name: &str) -> Value {
    json!([{ "apiVersion": version, "kind": kind, "name": name, "uid": "1" }])
}

fn owner(kind: &str, name: &str) -> Value {
    owned_by("cluster.x-k8s.io/v1beta2", kind, name)
}

fn secret(name: &str, owners: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": { "name": name, "labels": { CLUSTER_NAME: "c" }, "ownerReferences": owners,
            "annotations": { KUBECONFIG_DIGEST: "sha256:x" } },
        "data": { "value": "YQ==" } })
}

fn host(name: &str, owners: &Value) -> Value {
    json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "BedplateMachine",
        "metadata": { "name": name, "ownerReferences": owners }, "spec": { "configurationRef": { "name": "workers" } } })
}

/// A policy is in force some time after it was created.
fn until_in_force(objects: &Objects) {
    for probe in [secret("other", &json!([])), host("other", &json!([]))] {
        let is_refused = || {
            let refusal = objects.try_create(&probe).err();
            Ok(refusal.filter(|error| format!("{error:#}").contains("the core provider")))
        };
        wait::until_asked("the policy", PATIENCE, is_refused).unwrap();
    }
}

/// Creates a namespace with a paused Cluster and a Machine of the same name. The test does what the provider would do for them.
fn team(name: &'static str) -> Team {
    install();
    let team = Team::without_cluster(name);
    let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": name },
        "spec": { "paused": true, "infrastructureRef": reference("infrastructure", "BedplateCluster", name) } });
    team.objects.create(&cluster).unwrap();
    let machine = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": { "name": name },
        "spec": { "clusterName": name, "bootstrap": { "data": "" },
            "infrastructureRef": reference("infrastructure", "BedplateMachine", name) } });
    let path = format!("/apis/cluster.x-k8s.io/v1beta2/namespaces/{name}/machines");
    team.objects.request(&Method::POST, &path, "application/json", &machine).unwrap();
    team.objects.create(&host(name, &owner("Machine", name))).unwrap();
    let config = json!({ "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig",
        "metadata": { "name": name, "ownerReferences": owner("Machine", name) } });
    team.objects.create(&config).unwrap();
    team.objects.create(&host("free", &json!([]))).unwrap();
    let mut other = owned_by("apps/v1", "Deployment", "d");
    other[0]["controller"] = true.into();
    team.objects.create(&host("of-another", &other)).unwrap();
    let plane = owned_by("controlplane.cluster.x-k8s.io/v1beta2", "KubeadmControlPlane", "k");
    team.objects.create(&host("of-control-plane", &plane)).unwrap();
    team.objects.create(&infrastructure_template("template")).unwrap();
    team
}

#[test]
fn stolen_token_lists_no_secrets_and_widens_no_rights() {
    let team = team("thief");
    team.objects.create(&secret("thief-ca", &owner("Cluster", "thief"))).unwrap();
    let thief = Kubernetes::shared().objects_of(&account()).unwrap().within("thief");
    until_in_force(&thief);
    for (path, words) in [
        ("/api/v1/secrets", "cannot list"),
        ("/api/v1/namespaces/thief/secrets", "cannot list"),
        ("/api/v1/namespaces/thief/secrets?watch=true", "cannot watch"),
        ("/api/v1/namespaces/thief/configmaps", "cannot list"),
        ("/api/v1/pods", "cannot list"),
        ("/api/v1/nodes", "cannot list"),
        ("/apis/bedplate.dev/v1alpha1/machines", "cannot list"),
        ("/apis/bedplate.dev/v1alpha1/machineclaims", "cannot list"),
    ] {
        refused(thief.request(&Method::GET, path, "application/json", &Value::Null), words);
    }
    // The certificate authority of a Cluster stays as it is, although the Cluster owns it.
    let data = json!({ "data": { "tls.key": "Yg==" } });
    refused(thief.try_merge("secret", "thief-ca", &data), "may write only the kubeconfig of a Cluster");
    refused(thief.begin_delete("secret", "thief-ca"), "cannot delete");
    refused(
        thief.try_create(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" } })),
        "cannot create",
    );
    refused(thief.begin_delete("cluster", "thief"), "cannot delete");
    // Objects of providers.
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    refused(thief.try_merge("bpm", "of-another", &label), "owns");
    refused(thief.can_delete("bpm", "of-another"), "owns");
    let ready = json!({ "initialization": { "provisioned": true } });
    refused(
        thief.merge_status("bpm", "thief", &ready),
        "must not write subresources of objects of other providers",
    );
    let timeout = json!({ "spec": { "releaseTimeoutSeconds": 61 } });
    refused(thief.try_merge("bpm", "thief", &timeout), "only the metadata of objects");
    // The finalizer holds the host until it is released, and a template with an owner could be deleted.
    let finalizers = json!({ "metadata": { "finalizers": ["example.com/other"] } });
    refused(thief.try_merge("bpm", "thief", &finalizers), "must not change finalizers");
    let owners = json!({ "metadata": { "ownerReferences": owner("MachineSet", "w") } });
    refused(thief.try_merge("bpmt", "template", &owners), "must not write templates");
    // An owner that does not exist would delete the Cluster.
    refused(thief.try_merge("cluster", "thief", &owners), "must not change owners of a Cluster");
    let other = json!({ "spec": { "infrastructureRef": { "name": "free" } } });
    refused(thief.try_merge(MACHINE, "thief", &other), "must not change the cluster or the infrastructure");
    // Its own rights and bounds.
    for kind in ["validatingadmissionpolicy", "validatingadmissionpolicybinding"] {
        refused(thief.begin_delete(kind, "bedplate-core-writes"), "cannot delete");
    }
    let everything = json!({ "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }] });
    refused(thief.try_merge("clusterrole", "bedplate-system-core", &everything), "cannot patch");
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "thief", "labels": { "cluster.x-k8s.io/aggregate-to-manager": "true" } }, "rules": [] });
    refused(thief.try_create(&role), "cannot create");
}

/// With all rights, the account still cannot do more than the policy says.
#[test]
fn policy_admits_only_the_two_secrets_of_the_core() {
    install();
    let objects = Team::without_cluster("core-secrets").objects;
    let provider = objects.impersonating(PROVIDER, &["system:masters"]);
    until_in_force(&provider);
    let words = "kubeconfig of a Cluster and the bootstrap data of a Machine, which own the Secrets";
    for (name, kind, of) in [("c-kubeconfig", "Cluster", "c"), ("m-user-data", "Machine", "m")] {
        let own = secret(name, &owner(kind, of));
        provider.try_create(&own).unwrap();
        refused(provider.try_create(&secret(name, &owner("MachineSet", of))), words);
        refused(provider.try_create(&secret(name, &owner(kind, "other"))), words);
        refused(provider.try_create(&secret(name, &owned_by("example.com/v1", kind, of))), words);
        refused(provider.try_create(&secret(name, &json!([]))), words);
        let mut changed = own.clone();
        changed["type"] = "Opaque".into();
        refused(provider.try_create(&changed), "only Secrets of type cluster.x-k8s.io/secret");
        changed = own;
        changed["metadata"]["labels"] = json!({});
        refused(provider.try_create(&changed), "with the label cluster.x-k8s.io/cluster-name");
    }
    refused(provider.try_create(&secret("c-ca", &owner("Cluster", "c"))), words);
    let mut unmarked = secret("c-kubeconfig", &owner("Cluster", "c"));
    unmarked["metadata"]["annotations"] = json!({});
    refused(provider.try_create(&unmarked), "only a kubeconfig that it has made");
    // A Secret of another owner does not become its own.
    objects.create(&secret("m-user-data", &owner("KubeadmConfig", "m"))).unwrap();
    let owners = json!({ "metadata": { "ownerReferences": owner("Machine", "m") } });
    refused(provider.try_merge("secret", "m-user-data", &owners), words);
    refused(provider.can_delete("secret", "m-user-data"), "must not delete Secrets");
}

#[test]
fn policies_admit_what_the_provider_writes() {
    let team = team("admitted");
    let provider = team.objects.impersonating(PROVIDER, &["system:masters"]);
    until_in_force(&provider);
    // The kubeconfig is renewed. That of a user is not touched, although the Cluster owns it.
    let mut given = secret("e-kubeconfig", &owner("Cluster", "e"));
    given["metadata"]["annotations"] = json!({});
    team.objects.create(&given).unwrap();
    let taken = json!({ "metadata": { "annotations": { KUBECONFIG_DIGEST: "sha256:x" } }, "data": { "value": "Yg==" } });
    refused(provider.try_merge("secret", "e-kubeconfig", &taken), "only a kubeconfig that it has made");
    team.objects.create(&secret("c-kubeconfig", &owner("Cluster", "c"))).unwrap();
    team.objects.create(&secret("d-kubeconfig", &json!([]))).unwrap();
    let data = json!({ "data": { "value": "Yg==" } });
    provider.try_merge("secret", "c-kubeconfig", &data).unwrap();
    refused(provider.try_merge("secret", "d-kubeconfig", &data), "may write only the kubeconfig");
    // Objects of providers: clones, adoption, deletion.
    provider.try_create(&host("w-0", &owner("MachineSet", "w"))).unwrap();
    refused(provider.try_create(&host("w-0", &json!([]))), "that an object of cluster.x-k8s.io owns");
    let deployment = owned_by("apps/v1", "Deployment", "w");
    refused(provider.try_create(&host("w-0", &deployment)), "that an object of cluster.x-k8s.io owns");
    let adoption =
        json!({ "metadata": { "ownerReferences": owner("Machine", "w"), "labels": { CLUSTER_NAME: "c" } } });
    provider.try_merge("bpm", "free", &adoption).unwrap();
    provider.can_delete("bpm", "admitted").unwrap();
    // A Machine that is deleted early has not adopted its object. A template never belongs to a Machine.
    provider.can_delete("bpm", "free").unwrap();
    provider.can_delete("bpm", "of-control-plane").unwrap();
    refused(provider.can_delete("bpmt", "template"), "must not write templates");
    refused(
        provider.try_merge("bpm", "admitted", &json!({ "metadata": { "ownerReferences": null } })),
        "owns",
    );
    // Machines: results of providers. Deployments change timeouts and taints in place.
    let spec = json!({ "spec": { "providerID": "a://b", "deletion": { "nodeDrainTimeoutSeconds": 1 } } });
    provider.merge(MACHINE, "admitted", &spec).unwrap();
    // A reference may name another Machine, which must not become the object of this one.
    let owners = json!({ "metadata": { "ownerReferences": owner("Machine", "w") } });
    refused(provider.try_merge(MACHINE, "admitted", &owners), "must not make a Machine the owner");
    provider
        .merge(
            MACHINE,
            "admitted",
            &json!({ "metadata": { "ownerReferences": owner("Cluster", "admitted") } }),
        )
        .unwrap();
    let other = json!({ "spec": { "providerID": "a://c" } });
    refused(provider.try_merge(MACHINE, "admitted", &other), "must not change a provider's result");
    // Sets and deployments: replicas, and no other template.
    for kind in ["MachineSet", "MachineDeployment"] {
        let template = json!({ "spec": { "clusterName": "admitted", "version": "v1.34.4", "bootstrap": { "dataSecretName": "s" },
            "infrastructureRef": reference("infrastructure", "BedplateMachineTemplate", "template") } });
        let object = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "metadata": { "name": "w" },
            "spec": { "clusterName": "admitted", "replicas": 0, "template": template } });
        team.objects.create(&object).unwrap();
        provider.try_merge(kind, "w", &json!({ "spec": { "replicas": 1 } })).unwrap();
        let version = json!({ "spec": { "template": { "spec": { "version": "v1.34.5" } } } });
        refused(provider.try_merge(kind, "w", &version), "must not change a template of Machines");
    }
    // Health checks: owners, no spec, no deletion.
    let check = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": { "name": "h" },
        "spec": { "clusterName": "admitted", "selector": { "matchLabels": { "a": "b" } } } });
    team.objects.create(&check).unwrap();
    let kind = "machinehealthcheck";
    let adoption = json!({ "metadata": { "ownerReferences": owner("Cluster", "admitted") } });
    provider.try_merge(kind, "h", &adoption).unwrap();
    let selector = json!({ "spec": { "selector": { "matchLabels": { "a": "c" } } } });
    refused(provider.try_merge(kind, "h", &selector), "must not change the spec of a MachineHealthCheck");
    refused(provider.can_delete(kind, "h"), "must not delete a MachineHealthCheck");
    // Others may do what the provider may not.
    team.objects.try_merge("secret", "d-kubeconfig", &data).unwrap();
    team.objects.can_delete("secret", "c-kubeconfig").unwrap();
}

#[test]
fn policy_admits_an_endpoint_once_and_no_other_change_with_it() {
    let team = team("endpoint");
    let provider = team.objects.impersonating(PROVIDER, &["system:masters"]);
    until_in_force(&provider);
    let endpoint = |host: &str| json!({ "spec": { "controlPlaneEndpoint": { "host": host, "port": 6443 } } });
    let words = "an endpoint that is not set";
    for (field, value) in [
        ("paused", json!(false)),
        ("paused", Value::Null),
        ("topology", json!({ "classRef": { "name": "c" }, "version": "v1.34.4" })),
        ("infrastructureRef", json!({ "name": "other" })),
    ] {
        let mut change = endpoint("10.7.0.9");
        change["spec"][field] = value;
        refused(provider.try_merge("cluster", "endpoint", &change), words);
    }
    let metadata = json!({ "metadata": { "finalizers": ["cluster.cluster.x-k8s.io"] } });
    provider.try_merge("cluster", "endpoint", &metadata).unwrap();
    let set = provider.merge("cluster", "endpoint", &endpoint("10.7.0.9")).unwrap();
    assert_eq!(set["spec"]["controlPlaneEndpoint"]["host"], "10.7.0.9");
    refused(provider.try_merge("cluster", "endpoint", &endpoint("10.7.0.66")), words);
    // A user has given the host alone.
    let host = json!({ "spec": { "controlPlaneEndpoint": { "host": "10.7.0.9", "port": null } } });
    team.objects.merge("cluster", "endpoint", &host).unwrap();
    provider.merge("cluster", "endpoint", &endpoint("10.7.0.9")).unwrap();
    refused(provider.try_merge("cluster", "endpoint", &json!({ "spec": { "paused": null } })), words);
    team.objects.try_merge("cluster", "endpoint", &endpoint("10.7.0.66")).unwrap();
}
