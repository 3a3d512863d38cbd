//! Rights that the roles of `deploy/` give to pxed, agents and the providers for Cluster API: these and no others.

use std::path::Path;
use std::time::Duration;

use bedplate_tests::kubernetes::Kubernetes;
use k8s_openapi::api::authorization::v1::SelfSubjectRulesReview;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use super::super::cluster::client;
use super::people::aggregated_groups;
use super::{certified, pxed};

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

/// Rights of a client whose bindings were made just now. The authorizer knows a binding some time later. `lines`: minimum number of rights.
pub(super) async fn rights_in_force(client: &Client, namespace: &str, lines: usize) -> Vec<String> {
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

/// Asserts the rights of a provider for Cluster API, in all namespaces, and that in its own it writes one Lease too.
async fn assert_rights_of_provider(provider: &str, manifest: &str, everywhere: &[&str]) {
    let kubernetes = Kubernetes::shared();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api").join(manifest);
    let manifest = manifest.display().to_string();
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "--server-side", "-f", &manifest]).unwrap();
    let account = kubernetes.service_account("bedplate-system", &format!("bedplate-{provider}")).unwrap();
    let account = client(&account).await;
    let lease = format!("get,update coordination.k8s.io/leases bedplate-cluster-{provider}");
    let leases = ["create coordination.k8s.io/leases", &lease];
    for (namespace, there) in [("bedplate-system", &leases[..]), ("default", &[]), ("kube-system", &[])] {
        let mut expected: Vec<&str> = everywhere.iter().chain(there).copied().collect();
        expected.sort_unstable();
        let found = rights_in_force(&account, namespace, expected.len()).await;
        assert_eq!(found, expected, "in {namespace}");
    }
}

#[tokio::test]
async fn d4_role_of_the_infrastructure_provider_allows_this_and_nothing_else() {
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
    assert_rights_of_provider("infrastructure", "provider.yaml", &everywhere).await;
}

#[tokio::test]
async fn b1_role_of_the_bootstrap_provider_allows_this_and_nothing_else() {
    let everywhere = [
        "get admissionregistration.k8s.io/validatingadmissionpolicies,validatingadmissionpolicybindings bedplate-cluster-secrets",
        "get,list,watch,patch bootstrap.cluster.x-k8s.io/kubeadmconfigs",
        "patch bootstrap.cluster.x-k8s.io/kubeadmconfigs/status",
        "get,list,watch cluster.x-k8s.io/clusters,machines",
        "get,create /secrets",
        "get,create,delete /configmaps",
        "create,patch events.k8s.io/events",
    ];
    assert_rights_of_provider("bootstrap", "bootstrap-provider.yaml", &everywhere).await;
}

#[tokio::test]
async fn k5_role_of_the_core_provider_allows_this_and_nothing_else() {
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
    assert_rights_of_provider("core", "core-provider.yaml", &everywhere).await;
    // Rules of other providers are added by the label of their roles alone.
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "provider-of-racks", "labels": { "cluster.x-k8s.io/aggregate-to-manager": "true" } },
        "rules": [{ "apiGroups": ["racks.example"], "resources": ["racks"], "verbs": ["get"] }] });
    Kubernetes::shared().objects().unwrap().apply(&role).unwrap();
    let groups = aggregated_groups("bedplate-system-core-aggregated").await;
    assert_eq!(groups, ["racks.example".to_owned()].into());
}
