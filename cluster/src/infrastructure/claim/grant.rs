//! The right of one host to read one Secret, for minutes: a Role and a RoleBinding in the namespace of the claimant (D4).
//!
//! The subject is the group of the host's enrollment, not the name of the host: an earlier tenant may have copied a certificate. The policy
//! `bedplate-claim-grants` lets the provider make no other Roles. The BedplateMachine owns both objects, so they go with it in any case.

use bedplate_api::claim::{ENROLLMENT_ANNOTATION, MachineClaim};
use bedplate_api::cluster::infrastructure::BedplateMachine;
use bedplate_api::enrollment::ENROLLMENT_GROUP_PREFIX;
use bedplate_claim::Right;
use bedplate_engine::FieldManager;
use bedplate_engine::object;
use bedplate_engine::write::{WriteError, ask};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;
use kube::{Api, Client, Resource, ResourceExt};

/// API group of Roles.
const GROUP: &str = "rbac.authorization.k8s.io";

/// Objects that let the host of a claim read its Secret.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    role: Role,
    binding: RoleBinding,
}

/// Name of the Role and of the RoleBinding of a claim.
fn name(claim: &MachineClaim) -> String {
    format!("bedplate-claim-{}", claim.name_any())
}

impl Grant {
    /// Makes the grant of a claim. None: the claim names no Secret or no enrollment, so there is nothing to read or no host that may.
    pub fn new(claim: &MachineClaim, claimant: &BedplateMachine) -> Option<Self> {
        let secret = claim.spec.bootstrap_secret_name.clone()?;
        let enrollment = claim.annotations().get(ENROLLMENT_ANNOTATION)?;
        let metadata = ObjectMeta {
            name: Some(name(claim)),
            namespace: Some(claim.spec.claimant.namespace.clone()),
            owner_references: Some(claimant.owner_ref(&()).into_iter().collect()),
            ..ObjectMeta::default()
        };
        let rule = PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec!["secrets".to_owned()]),
            resource_names: Some(vec![secret]),
            verbs: vec!["get".to_owned()],
            ..PolicyRule::default()
        };
        let subject = Subject {
            api_group: Some(GROUP.to_owned()),
            kind: "Group".to_owned(),
            name: format!("{ENROLLMENT_GROUP_PREFIX}{enrollment}"),
            ..Subject::default()
        };
        let role_ref = RoleRef { api_group: GROUP.to_owned(), kind: "Role".to_owned(), name: name(claim) };
        let role = Role { metadata: metadata.clone(), rules: Some(vec![rule]) };
        let binding = RoleBinding { metadata, role_ref, subjects: Some(vec![subject]) };
        Some(Self { role, binding })
    }

    /// Writes the Role, then the RoleBinding.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn write(&self, client: &Client, manager: FieldManager) -> Result<(), WriteError> {
        let namespace = self.role.metadata.namespace.as_deref().unwrap_or_default();
        manager.apply_whole(&Api::namespaced(client.clone(), namespace), &self.role).await?;
        manager.apply_whole(&Api::namespaced(client.clone(), namespace), &self.binding).await
    }
}

/// Reads which of the objects exist: another writer may have deleted them, and a crash may have left them.
///
/// # Errors
/// [`WriteError`]
pub async fn observe(client: &Client, claim: &MachineClaim) -> Result<Right, WriteError> {
    if claim.spec.bootstrap_secret_name.is_none() {
        return Ok(Right::NotNeeded);
    }
    let (name, namespace) = (name(claim), claim.spec.claimant.namespace.as_str());
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let binding = ask(&format!("RoleBinding {namespace}/{name}"), object::get(&bindings, &name)).await?;
    let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
    let role = ask(&format!("Role {namespace}/{name}"), object::get(&roles, &name)).await?;
    Ok(match (role.is_some(), binding.is_some()) {
        (false, false) => Right::Absent,
        (true, true) => Right::Complete,
        (true, false) | (false, true) => Right::Partial,
    })
}

/// Deletes the RoleBinding and the Role of a claim, if they exist.
///
/// # Errors
/// [`WriteError`]
pub async fn withdraw(client: &Client, claim: &MachineClaim) -> Result<(), WriteError> {
    let (name, namespace) = (name(claim), claim.spec.claimant.namespace.as_str());
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    ignore_missing(
        ask(&format!("RoleBinding {namespace}/{name}"), bindings.delete(&name, &DeleteParams::default()))
            .await,
    )?;
    let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
    ignore_missing(
        ask(&format!("Role {namespace}/{name}"), roles.delete(&name, &DeleteParams::default())).await,
    )
}

/// A deletion without preconditions conflicts only if the object is missing.
fn ignore_missing<T>(deleted: Result<T, WriteError>) -> Result<(), WriteError> {
    match deleted {
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn grant(spec: &Value, annotations: &Value) -> Option<Grant> {
        let mut value = json!({ "metadata": { "name": "host-1", "annotations": annotations },
            "spec": { "claimant": { "namespace": "team-a", "name": "w-1", "uid": "u-1" }, "clusterName": "c", "role": "Worker",
                "nodeName": "w-1", "providerID": "bedplate://host-1/u-1", "configurationRef": { "name": "pool" },
                "release": "Empty" } });
        value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let claim: MachineClaim = serde_json::from_value(value).unwrap();
        let claimant = json!({ "metadata": { "name": "w-1", "namespace": "team-a", "uid": "u-1" },
            "spec": { "configurationRef": { "name": "pool" } } });
        Grant::new(&claim, &serde_json::from_value(claimant).unwrap())
    }

    #[test]
    fn d4_grant_names_one_secret_and_one_enrollment() {
        let enrolled = json!({ "bedplate.dev/enrollment": "0123456789abcdef0123456789abcdef" });
        let data = json!({ "bootstrapSecretName": "data" });
        let found = grant(&data, &enrolled).unwrap();
        let role = json!(found.role);
        assert_eq!(role["metadata"]["namespace"], "team-a");
        assert_eq!(role["metadata"]["ownerReferences"][0]["uid"], "u-1");
        let rule = json!({ "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["data"], "verbs": ["get"] });
        assert_eq!(role["rules"], json!([rule]));
        let binding = json!(found.binding);
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        assert_eq!(binding["subjects"][0]["name"], "bedplate:enrollment:0123456789abcdef0123456789abcdef");
        assert!(grant(&json!({}), &enrolled).is_none(), "M3: no user data");
        assert!(grant(&data, &json!({})).is_none());
    }
}
