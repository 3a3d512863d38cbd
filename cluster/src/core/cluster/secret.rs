//! Pure: the Secrets of a cluster that the Cluster controller reads and makes (K7, K8).
//!
//! Their contents are never logged and never shown. The pass reads them by name.

use bedplate_api::cluster::full::Cluster;
use bedplate_api::cluster::infrastructure::Endpoint;
use bedplate_api::cluster::kubeadm::CLUSTER_SECRET_TYPE;
use bedplate_api::cluster::part::{annotation, label};
use bedplate_bootstrap::certificate::make::{MakeCertificateError, SERIAL_BYTES, can_sign};
use bedplate_bootstrap::certificate::{Certificate, CertificatePurpose};
use bedplate_bootstrap::kubeconfig_secret::{self, KUBECONFIG_KEY, digest, renews_at};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use rcgen::KeyPair;

use super::observed::{AuthoritySecret, KubeconfigSecret};
use super::plan::endpoint;
use crate::core::reference::is_owned_by;
use crate::owner::owner_reference;

/// Returns the name of the Secret with the kubeconfig.
pub(crate) fn kubeconfig_name(cluster: &Cluster) -> String {
    kubeconfig_secret::secret_name(&cluster.name_any())
}

/// Returns the name of the Secret with the certificate authority.
pub(crate) fn authority_name(cluster: &Cluster) -> String {
    CertificatePurpose::ClusterAuthority.secret_name(&cluster.name_any())
}

/// Judges the Secret with the kubeconfig. It is this controller's only if the Cluster owns it, and if its digest is that of the kubeconfig that
/// this controller has written. Otherwise a user has made or changed it. A restored Secret keeps the digest.
pub fn kubeconfig(secret: Option<&Secret>, cluster: &Cluster) -> KubeconfigSecret {
    let Some(secret) = secret else { return KubeconfigSecret::Absent };
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    let value = secret.data.as_ref().and_then(|data| data.get(KUBECONFIG_KEY));
    let value = value.map(|value| value.0.as_slice()).unwrap_or_default();
    let is_own = is_owned_by(secret, "Cluster", uid)
        && secret.annotations().get(annotation::KUBECONFIG_DIGEST) == Some(&digest(value));
    let renews_at = std::str::from_utf8(value).ok().filter(|_| is_own).and_then(renews_at);
    renews_at.map_or(KubeconfigSecret::Given, |renews_at| KubeconfigSecret::Made { renews_at })
}

/// Reads the Secret with the certificate authority.
pub fn authority(secret: Option<Secret>) -> (AuthoritySecret, Option<Certificate>) {
    let Some(secret) = secret else { return (AuthoritySecret::Absent, None) };
    let data = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
    let read = Certificate::read(CertificatePurpose::ClusterAuthority, &data);
    match read.filter(can_sign) {
        Some(certificate) => (AuthoritySecret::Usable, Some(certificate)),
        None => (AuthoritySecret::Unusable, None),
    }
}

/// Makes the Secret with a new kubeconfig. None: the Cluster has no endpoint.
///
/// # Errors
/// The certificate authority cannot be read, or its key does not belong to it.
pub fn make(
    cluster: &Cluster,
    authority: &Certificate,
    key: &KeyPair,
    random: &[u8; SERIAL_BYTES],
    now: Timestamp,
) -> Result<Option<Secret>, MakeCertificateError> {
    let Some(endpoint) = endpoint(cluster) else { return Ok(None) };
    let endpoint = Endpoint { host: endpoint.host, port: endpoint.port.into() };
    let name = cluster.name_any();
    let text = kubeconfig_secret::kubeconfig(&name, &endpoint, authority, key, random, now)?;
    let owner = owner_reference(cluster, false);
    Ok(Some(Secret {
        metadata: ObjectMeta {
            name: Some(kubeconfig_name(cluster)),
            namespace: cluster.namespace(),
            labels: Some([(label::CLUSTER_NAME.to_owned(), name)].into()),
            annotations: Some([(annotation::KUBECONFIG_DIGEST.to_owned(), digest(text.as_bytes()))].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some(CLUSTER_SECRET_TYPE.to_owned()),
        data: Some([(KUBECONFIG_KEY.to_owned(), ByteString(text.as_bytes().to_vec()))].into()),
        ..Secret::default()
    }))
}

#[cfg(test)]
mod tests {
    use bedplate_bootstrap::certificate::make;
    use serde_json::{Value, json};

    use super::*;

    fn cluster() -> Cluster {
        serde_json::from_value(json!({ "metadata": { "name": "c1", "namespace": "ns", "uid": "u1" },
            "spec": { "controlPlaneEndpoint": { "host": "h", "port": 6443 } } }))
        .unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn made() -> Secret {
        let random = [1; SERIAL_BYTES];
        let key = KeyPair::generate().unwrap();
        let authority =
            make::authority(CertificatePurpose::ClusterAuthority, &key, &random, None, now()).unwrap();
        super::make(&cluster(), &authority, &KeyPair::generate().unwrap(), &random, now()).unwrap().unwrap()
    }

    #[test]
    fn k8_made_secret_has_upstreams_form_and_a_renewal() {
        let secret = made();
        assert_eq!(
            (secret.name_any().as_str(), secret.namespace().as_deref()),
            ("c1-kubeconfig", Some("ns"))
        );
        assert_eq!(secret.type_.as_deref(), Some("cluster.x-k8s.io/secret"));
        assert_eq!(secret.labels()["cluster.x-k8s.io/cluster-name"], "c1");
        let read = kubeconfig(Some(&secret), &cluster());
        assert!(matches!(read, KubeconfigSecret::Made { renews_at: at } if at > now()), "{read:?}");
    }

    #[test]
    fn k8_secret_of_another_writer_is_given() {
        let mut secret = made();
        secret.metadata.owner_references = None;
        assert_eq!(kubeconfig(Some(&secret), &cluster()), KubeconfigSecret::Given);
        assert_eq!(kubeconfig(None, &cluster()), KubeconfigSecret::Absent);
        // A user has given a token in a Secret that the Cluster owns.
        let mut token = made();
        let text = b"users: [{ name: u, user: { token: t } }]".to_vec();
        token.data = Some([(KUBECONFIG_KEY.to_owned(), ByteString(text))].into());
        assert_eq!(kubeconfig(Some(&token), &cluster()), KubeconfigSecret::Given);
    }

    /// The owner is the Cluster, and it has a client certificate.
    #[test]
    fn k8_kubeconfig_of_a_user_with_a_certificate_is_given() {
        let (own, mut others, mut edited) = (made(), made(), made());
        assert!(matches!(kubeconfig(Some(&own), &cluster()), KubeconfigSecret::Made { .. }));
        others.metadata.annotations = None;
        assert_eq!(kubeconfig(Some(&others), &cluster()), KubeconfigSecret::Given);
        edited.data.clone_from(&others.data);
        assert_eq!(kubeconfig(Some(&edited), &cluster()), KubeconfigSecret::Given, "a user has changed it");
    }

    #[test]
    fn k7_authority_with_the_key_of_another_is_not_usable() {
        let made = |seed: u8| {
            let key = KeyPair::generate().unwrap();
            make::authority(CertificatePurpose::ClusterAuthority, &key, &[seed; SERIAL_BYTES], None, now())
                .unwrap()
        };
        let secret = |certificate: &Certificate| {
            let data = certificate.data().into_iter().map(|(key, value)| (key, ByteString(value)));
            Some(Secret { data: Some(data.collect()), ..Secret::default() })
        };
        let mut certificate = made(1);
        assert_eq!(authority(secret(&certificate)).0, AuthoritySecret::Usable);
        certificate.key = made(2).key;
        assert_eq!(authority(secret(&certificate)).0, AuthoritySecret::Unusable);
    }

    #[test]
    fn k7_authority_without_key_is_not_usable() {
        let secret = |data: Value| -> Secret { serde_json::from_value(json!({ "data": data })).unwrap() };
        assert_eq!(authority(None).0, AuthoritySecret::Absent);
        let no_pem = json!({ "tls.crt": "YQ==", "tls.key": "YQ==" });
        for data in [json!({}), json!({ "tls.crt": "YQ==" }), no_pem] {
            assert_eq!(authority(Some(secret(data))).0, AuthoritySecret::Unusable);
        }
    }
}
