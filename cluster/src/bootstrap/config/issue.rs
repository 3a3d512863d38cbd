//! Pure: the bootstrap data of a machine, and its Secret. The text is made by `bedplate-bootstrap`.
//!
//! Not here: reads. Called by the planner and by the loop of [`super`].

use std::collections::BTreeMap;

use bedplate_api::cluster::core::CLUSTER_NAME_LABEL;
use bedplate_api::cluster::full::Cluster;
use bedplate_api::cluster::full::cluster::{ClusterEndpoint, NetworkRanges};
use bedplate_api::cluster::infrastructure::Endpoint;
use bedplate_api::cluster::kubeadm::file::SecretKeyRef;
use bedplate_api::cluster::kubeadm::{CLUSTER_SECRET_TYPE, KubeadmConfig, KubeadmConfigSpec};
use bedplate_api::cluster::part::label_value;
use bedplate_bootstrap::capi::{self, ClusterFacts, Issue, Purpose, UserData, certificates_needed};
use bedplate_bootstrap::certificate::Certificate;
use bedplate_bootstrap::token::Token;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use zeroize::Zeroizing;

use super::plan::{Data, Observed};

/// Maximum size of the data. A Secret holds 1 MiB; the rest is for its metadata.
const MAX_DATA: usize = 1024 * 1024 - 16 * 1024;

/// Size of a placeholder. A key or a certificate is smaller.
const PLACEHOLDER_SIZE: usize = 4096;

/// Inputs that were read.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// Certificates.
    pub certificates: &'a [Certificate],
    /// Values of the Secrets that the spec names.
    pub contents: &'a BTreeMap<SecretKeyRef, Zeroizing<Vec<u8>>>,
    /// Bootstrap token.
    pub token: Option<&'a Token>,
}

/// Renders the data.
///
/// # Errors
/// The faults as text, for a condition.
pub fn render(
    observed: &Observed,
    cluster: &Cluster,
    (purpose, version): (Purpose, &str),
    inputs: &Inputs<'_>,
) -> Result<UserData, String> {
    let network = cluster.spec.cluster_network.as_ref();
    let ranges =
        |ranges: Option<&NetworkRanges>| ranges.map(|ranges| ranges.cidr_blocks.clone()).unwrap_or_default();
    let services = ranges(network.and_then(|network| network.services.as_ref()));
    let pods = ranges(network.and_then(|network| network.pods.as_ref()));
    let endpoint = cluster.spec.control_plane_endpoint.as_ref().and_then(ClusterEndpoint::complete);
    let endpoint = endpoint.map(|one| Endpoint { host: one.host, port: i32::from(one.port) });
    let name = cluster.name_any();
    let issue = Issue {
        purpose,
        spec: &observed.config.spec,
        cluster: ClusterFacts {
            name: &name,
            endpoint: endpoint.as_ref(),
            services: &services,
            pods: &pods,
            service_domain: network.and_then(|network| network.service_domain.as_deref()),
        },
        version,
        certificates: inputs.certificates,
        secrets: inputs.contents,
        token: inputs.token,
    };
    let data = capi::render(&issue).map_err(|error| format!("bootstrap data cannot be made: {error}"))?;
    if data.text.len() > MAX_DATA {
        let size = data.text.len();
        return Err(format!("bootstrap data has {size} bytes, a Secret holds {MAX_DATA}; shorten the files"));
    }
    Ok(data)
}

/// Returns certificates of the usual size, for a trial.
pub fn placeholders(purpose: Purpose, spec: &KubeadmConfigSpec) -> Vec<Certificate> {
    let text = || vec![b'x'; PLACEHOLDER_SIZE];
    let placeholder =
        |purpose| Certificate { purpose, certificate: text(), key: Some(Zeroizing::new(text())) };
    certificates_needed(purpose, spec).into_iter().map(|needed| placeholder(needed.purpose)).collect()
}

/// Returns a token for a trial. It is not one of a cluster.
pub(crate) fn placeholder_token() -> Token {
    Token::parse("000000.0000000000000000").expect("it has the form of a token")
}

/// Returns the metadata of a Secret of the cluster that the KubeadmConfig owns.
pub fn metadata(config: &KubeadmConfig, cluster: &str, name: String) -> ObjectMeta {
    let owner =
        config.controller_owner_ref(&()).map(|owner| OwnerReference { block_owner_deletion: None, ..owner });
    ObjectMeta {
        name: Some(name),
        namespace: config.namespace(),
        labels: Some([(CLUSTER_NAME_LABEL.to_owned(), label_value(cluster).into_owned())].into()),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Makes the Secret with the data.
pub fn secret(config: &KubeadmConfig, cluster: &str, data: &UserData) -> Secret {
    let values = [("value", data.text.as_bytes()), ("format", data.format.as_bytes())];
    let values = values.map(|(key, value)| (key.to_owned(), ByteString(value.to_vec())));
    Secret {
        metadata: metadata(config, cluster, config.name_any()),
        type_: Some(CLUSTER_SECRET_TYPE.to_owned()),
        data: Some(values.into()),
        ..Secret::default()
    }
}

/// Returns the state of the Secret that has the name of the data.
pub fn state(config: &KubeadmConfig, secret: Option<&Secret>) -> Data {
    let Some(secret) = secret else { return Data::Absent };
    let is_owner = secret
        .owner_references()
        .iter()
        .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == config.metadata.uid.as_ref());
    let has_value = secret.data.as_ref().is_some_and(|data| data.contains_key("value"));
    if is_owner && has_value { Data::Own } else { Data::Foreign }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config() -> KubeadmConfig {
        serde_json::from_value(
            json!({ "metadata": { "name": "m", "namespace": "team", "uid": "1" }, "spec": {} }),
        )
        .unwrap()
    }

    fn data() -> UserData {
        UserData { text: Zeroizing::new("text".to_owned()), format: "cloud-config", dropped: Vec::new() }
    }

    #[test]
    fn b1_secret_has_the_form_of_the_contract() {
        let secret = secret(&config(), "c", &data());
        let expected = json!({ "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": { "name": "m", "namespace": "team",
                "labels": { "cluster.x-k8s.io/cluster-name": "c" },
                "ownerReferences": [{ "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
                    "kind": "KubeadmConfig", "name": "m", "uid": "1", "controller": true }] },
            "data": { "value": "dGV4dA==", "format": "Y2xvdWQtY29uZmln" } });
        assert_eq!(json!(secret), expected);
    }

    #[test]
    fn b1_secret_of_another_owner_is_foreign() {
        let own = secret(&config(), "c", &data());
        assert_eq!(state(&config(), Some(&own)), Data::Own);
        assert_eq!(state(&config(), None), Data::Absent);
        let with = |change: &dyn Fn(&mut Value)| {
            let mut other = json!(own);
            change(&mut other);
            state(&config(), Some(&serde_json::from_value(other).unwrap()))
        };
        assert_eq!(with(&|one| one["metadata"]["ownerReferences"][0]["uid"] = json!("2")), Data::Foreign);
        assert_eq!(
            with(&|one| one["metadata"]["ownerReferences"][0]["controller"] = json!(false)),
            Data::Foreign
        );
        assert_eq!(with(&|one| one["metadata"]["ownerReferences"] = json!([])), Data::Foreign);
        assert_eq!(with(&|one| one["data"] = json!({})), Data::Foreign);
    }
}
