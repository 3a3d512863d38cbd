//! Certificates of a cluster: their Secrets are read live, and created if they do not exist. No Secret is ever replaced.
//!
//! The planner decides which certificate is created. Called by the loop of [`super`].

use bedplate_api::cluster::full::Cluster;
use bedplate_api::cluster::kubeadm::{CLUSTER_SECRET_TYPE, KubeadmConfig};
use bedplate_bootstrap::certificate::make::{KeyAlgorithm, MakeCertificateError, authority, service_account};
use bedplate_bootstrap::certificate::{Certificate, CertificatePurpose};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Resource as _, ResourceExt};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, RsaKeySize};

use super::issue::metadata;
use super::plan::Found;

/// Failure to make a certificate. It has nothing of a key.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The algorithm is that of a newer version.
    #[error(
        "clusterConfiguration.encryptionAlgorithm is not supported; use RSA-2048, RSA-3072, RSA-4096, ECDSA-P256 or ECDSA-P384"
    )]
    Algorithm,
    /// No key can be made.
    #[error("no key can be generated")]
    Key,
    /// The certificate cannot be signed.
    #[error(transparent)]
    Certificate(#[from] MakeCertificateError),
}

/// Reads the Secret of a certificate.
pub fn found(purpose: CertificatePurpose, secret: Option<Secret>) -> Found {
    let Some(secret) = secret else { return Found::Absent };
    let data = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
    Certificate::read(purpose, &data).map_or(Found::Empty, Found::Certificate)
}

/// Makes a certificate as the spec asks for it. It takes up to seconds.
///
/// # Errors
/// The algorithm is not supported, or the validity is out of range.
pub fn make(
    purpose: CertificatePurpose,
    config: &KubeadmConfig,
    now: Timestamp,
) -> Result<Certificate, MakeError> {
    let cluster = config.spec.cluster_configuration.as_ref();
    let word = cluster.and_then(|cluster| cluster.encryption_algorithm.as_deref());
    let key = match KeyAlgorithm::parse(word).ok_or(MakeError::Algorithm)? {
        KeyAlgorithm::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        KeyAlgorithm::Rsa3072 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072),
        KeyAlgorithm::Rsa4096 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096),
        KeyAlgorithm::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
        KeyAlgorithm::EcdsaP384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
    };
    let key = key.map_err(|_| MakeError::Key)?;
    if purpose == CertificatePurpose::ServiceAccount {
        return Ok(service_account(&key));
    }
    let days = cluster.and_then(|cluster| cluster.ca_certificate_validity_period_days);
    Ok(authority(purpose, &key, &rand::random(), days, now)?)
}

/// Makes the Secret of a certificate. The Cluster owns it too, so it outlives the KubeadmConfig of the first machine: garbage collection deletes
/// an object when all of its owners are gone.
pub fn secret(config: &KubeadmConfig, cluster: &Cluster, certificate: &Certificate) -> Secret {
    let name = certificate.purpose.secret_name(&cluster.name_any());
    let data = certificate.data().into_iter().map(|(key, value)| (key, ByteString(value))).collect();
    let mut metadata = metadata(config, &cluster.name_any(), name);
    metadata.owner_references.get_or_insert_default().extend(cluster.owner_ref(&()));
    Secret { metadata, type_: Some(CLUSTER_SECRET_TYPE.to_owned()), data: Some(data), ..Secret::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(cluster: &serde_json::Value) -> KubeadmConfig {
        serde_json::from_value(json!({ "metadata": { "name": "a", "namespace": "team", "uid": "1" },
            "spec": { "clusterConfiguration": cluster } }))
        .unwrap()
    }

    #[test]
    fn kb2_secret_of_a_made_certificate_is_read_again() {
        let config = config(&json!({ "encryptionAlgorithm": "ECDSA-P256" }));
        let cluster = json!({ "metadata": { "name": "c", "uid": "2" }, "spec": {} });
        let cluster: Cluster = serde_json::from_value(cluster).unwrap();
        for (purpose, name) in [
            (CertificatePurpose::ClusterAuthority, "c-ca"),
            (CertificatePurpose::EtcdAuthority, "c-etcd"),
            (CertificatePurpose::FrontProxyAuthority, "c-proxy"),
            (CertificatePurpose::ServiceAccount, "c-sa"),
        ] {
            let made = make(purpose, &config, "2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
            let secret = secret(&config, &cluster, &made);
            assert_eq!((secret.name_any().as_str(), secret.namespace().as_deref()), (name, Some("team")));
            assert_eq!(secret.type_.as_deref(), Some("cluster.x-k8s.io/secret"));
            let owners = secret.owner_references().iter();
            let owners: Vec<_> = owners.map(|owner| (owner.uid.as_str(), owner.controller)).collect();
            assert_eq!(owners, [("1", Some(true)), ("2", None)], "it outlives the first machine");
            assert_eq!(found(purpose, Some(secret)), Found::Certificate(made));
        }
        assert_eq!(found(CertificatePurpose::EtcdAuthority, None), Found::Absent);
        assert_eq!(found(CertificatePurpose::EtcdAuthority, Some(Secret::default())), Found::Empty);
    }

    #[test]
    fn kb2_unknown_algorithm_makes_no_certificate() {
        let config = config(&json!({ "encryptionAlgorithm": "Later" }));
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let error = make(CertificatePurpose::ClusterAuthority, &config, now).unwrap_err();
        assert!(matches!(error, MakeError::Algorithm), "{error}");
    }
}
