//! Pure: the kubeconfig of a cluster's administrator (Secret `<cluster>-kubeconfig`), its digest, and the time of its renewal.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bedplate_api::cluster::infrastructure::Endpoint;
use jiff::{SignedDuration, Timestamp};
use rcgen::KeyPair;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use x509_parser::pem::parse_x509_pem;
use zeroize::Zeroizing;

use crate::capi::host_and_port;
use crate::certificate::Certificate;
use crate::certificate::make::{MakeCertificateError, SERIAL_BYTES, administrator};
use crate::cloud_init::yaml;

/// Key of the Secret.
pub const KUBECONFIG_KEY: &str = "value";

/// Returns the name of the Secret of a cluster.
pub fn secret_name(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

/// Makes the kubeconfig with a new client certificate.
///
/// # Errors
/// The certificate authority cannot be read, or its key does not belong to it.
pub fn kubeconfig(
    cluster: &str,
    endpoint: &Endpoint,
    authority: &Certificate,
    key: &KeyPair,
    random: &[u8; SERIAL_BYTES],
    now: Timestamp,
) -> Result<Zeroizing<String>, MakeCertificateError> {
    let client = administrator(authority, key, random, now)?;
    let user = format!("{cluster}-admin");
    let context = format!("{user}@{cluster}");
    let key = Zeroizing::new(STANDARD.encode(&*client.key));
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": cluster, "cluster": {
            "certificate-authority-data": STANDARD.encode(&authority.certificate),
            "server": format!("https://{}", host_and_port(endpoint)),
        } }],
        "contexts": [{ "name": context, "context": { "cluster": cluster, "user": user } }],
        "current-context": context,
        "users": [{ "name": user, "user": {
            "client-certificate-data": STANDARD.encode(&client.certificate),
            "client-key-data": *key,
        } }],
    });
    Ok(Zeroizing::new(yaml::document(&document)))
}

/// Returns the digest of a kubeconfig: `sha256:` and hex digits. It reveals nothing, because a kubeconfig holds a private key.
pub fn digest(kubeconfig: &[u8]) -> String {
    let mut digest = "sha256:".to_owned();
    for byte in Sha256::digest(kubeconfig) {
        // Writing into a String does not fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

#[derive(Deserialize)]
struct Kubeconfig {
    #[serde(default)]
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedUser {
    #[serde(default)]
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate_data: Option<String>,
}

/// Returns the time at which half of the life of the first client certificate has passed. None: there is none, so it cannot be renewed.
pub fn renews_at(kubeconfig: &str) -> Option<Timestamp> {
    let read: Kubeconfig = serde_saphyr::from_str(kubeconfig).ok()?;
    let pem = read.users.into_iter().find_map(|named| named.user.client_certificate_data)?;
    let pem = STANDARD.decode(pem.trim()).ok()?;
    let (_, pem) = parse_x509_pem(&pem).ok()?;
    let validity = pem.parse_x509().ok()?.validity().clone();
    let (start, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let half = end.checked_sub(start)?.checked_div(2)?;
    Timestamp::from_second(start).ok()?.checked_add(SignedDuration::from_secs(half)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::certificate::CertificatePurpose;
    use crate::certificate::make::authority;

    const RANDOM: [u8; SERIAL_BYTES] = [1; SERIAL_BYTES];

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn made() -> Zeroizing<String> {
        let key = KeyPair::generate().unwrap();
        let ca = authority(CertificatePurpose::ClusterAuthority, &key, &RANDOM, None, now()).unwrap();
        let endpoint = Endpoint { host: "fd00::1".to_owned(), port: 6443 };
        kubeconfig("c1", &endpoint, &ca, &KeyPair::generate().unwrap(), &RANDOM, now()).unwrap()
    }

    #[test]
    fn k8_kubeconfig_names_cluster_user_and_context_as_upstream() {
        let read: Value = serde_saphyr::from_str(&made()).unwrap();
        assert_eq!(read["current-context"], "c1-admin@c1");
        assert_eq!(
            read["contexts"],
            json!([{ "name": "c1-admin@c1", "context": { "cluster": "c1", "user": "c1-admin" } }])
        );
        assert_eq!(
            (&read["clusters"][0]["name"], &read["users"][0]["name"]),
            (&json!("c1"), &json!("c1-admin"))
        );
        assert_eq!(read["clusters"][0]["cluster"]["server"], "https://[fd00::1]:6443");
        let key = STANDARD.decode(read["users"][0]["user"]["client-key-data"].as_str().unwrap()).unwrap();
        assert!(KeyPair::from_pem(std::str::from_utf8(&key).unwrap()).is_ok());
    }

    #[test]
    fn k8_digest_is_that_of_the_bytes() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b""), empty);
        assert_ne!(digest(b"a"), digest(b"b"));
    }

    #[test]
    fn k8_kubeconfig_is_renewed_at_half_of_its_life() {
        // From five minutes before the start of the year to its end.
        assert_eq!(renews_at(&made()).unwrap().to_string(), "2026-07-02T11:57:30Z");
    }

    #[test]
    fn k8_kubeconfig_without_client_certificate_has_no_renewal() {
        for text in [
            "",
            "[",
            "users: []",
            "users: [{user: {token: a}}]",
            "users: [{user: {client-certificate-data: AAAA}}]",
        ] {
            assert_eq!(renews_at(text), None, "{text:?}");
        }
    }
}
