//! Roles of people: what each reads and writes, and what is an administrator's alone (docs/design/rules.md, "Trust" 6).

use std::collections::BTreeSet;
use std::time::Duration;

use bedplate_api::machine::RE_ENROLL_ANNOTATION;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::wait;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::super::cluster::{admin, api, client, create, machine};
use super::rights::rights_in_force;
use super::{agent, policies_in_force};

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
pub(super) async fn aggregated_groups(role: &str) -> BTreeSet<String> {
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
    let patched_as = |user: &str, groups: &[&str]| {
        let by = Kubernetes::shared().objects().unwrap().impersonating(user, groups);
        let patch =
            json!({ "metadata": { "annotations": { RE_ENROLL_ANNOTATION: "2026-01-01T00:00:00Z" } } });
        by.try_merge("machine", "re-enroll", &patch).map_err(|error| error.to_string())
    };
    for (user, groups, words) in [
        (
            "bedplate:machine:re-enroll",
            &["bedplate:machines", "system:masters"][..],
            "an agent may write only the status of a Machine",
        ),
        (
            "system:serviceaccount:bedplate-system:pxed",
            &["system:masters"],
            "pxed may change only its own finalizer of a Machine",
        ),
        (
            "system:serviceaccount:bedplate-system:bedplate-controller",
            &["system:masters"],
            "bedplate-controller",
        ),
    ] {
        let refused = || Ok(patched_as(user, groups).err().filter(|why| why.contains(words)));
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
