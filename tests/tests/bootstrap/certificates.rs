//! Certificates of a cluster: made only if no control plane object makes them, and only before the control plane is initialized (B3, K7).

use std::io::Write as _;
use std::process::Command;

use bedplate_bootstrap::ca_cert_hashes;
use bedplate_tests::guard::run;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::site::{Site, Team, condition, control_plane, decoded};

const PURPOSES: [&str; 4] = ["ca", "etcd", "proxy", "sa"];

/// True if a condition names these Secrets as missing.
fn lacks(found: &Value, names: &[String]) -> bool {
    let (status, _, message) = condition(found, "CertificatesAvailable");
    status != "True" && names.iter().all(|name| message.contains(name))
}

/// Checks name and validity of a new certificate authority.
fn is_authority_of_ten_years(certificate: &str) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(certificate.as_bytes()).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-subject", "-startdate", "-enddate"]);
    openssl.args(["-nameopt", "RFC2253", "-dateopt", "iso_8601", "-in"]).arg(file.path());
    let said = run(&mut openssl).unwrap();
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    assert_eq!(value("subject"), Some("CN=kubernetes"), "{said}");
    let [start, end] =
        ["notBefore", "notAfter"].map(|name| value(name).unwrap().parse::<Timestamp>().unwrap());
    let age = Timestamp::now().duration_since(start);
    let skew = SignedDuration::from_mins(5);
    assert!(age >= skew && age < skew + SignedDuration::from_mins(5), "{said}");
    assert_eq!(end.duration_since(start), SignedDuration::from_hours(3650 * 24) + skew, "{said}");
}

#[test]
fn b3_certificates_are_made_if_no_control_plane_object_makes_them() {
    let site = Site::shared();
    let team = Team::new("alone", &json!({}));
    team.provision();
    team.control_plane("cp-0", &json!({}));
    let config = site.until_ready(&team, "cp-0");
    for purpose in PURPOSES {
        let secret = team.get("secret", &team.secret_name(purpose));
        assert_eq!(secret["type"], "cluster.x-k8s.io/secret", "{purpose}");
        assert_eq!(secret["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"], "alone", "{purpose}");
        let owner = &secret["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], config["metadata"]["uid"], "{purpose}");
        let (certificate, key) = (decoded(&secret, "tls.crt"), decoded(&secret, "tls.key"));
        assert!(key.contains("PRIVATE KEY"), "{purpose}");
        match purpose {
            "sa" => assert!(certificate.starts_with("-----BEGIN PUBLIC KEY-----"), "{certificate}"),
            _ => {
                assert_eq!(ca_cert_hashes(&certificate).unwrap().len(), 1, "{purpose}");
                is_authority_of_ten_years(&certificate);
            }
        }
    }
    assert!(!team.has_secret("alone-kubeconfig"), "the kubeconfig has another writer (K7)");
}

#[test]
fn k7_missing_certificates_of_a_control_plane_object_are_named() {
    let site = Site::shared();
    let team = Team::new("with-kcp", &control_plane("with-kcp"));
    team.provision();
    team.control_plane("cp-0", &json!({}));
    let names = PURPOSES.map(|purpose| team.secret_name(purpose));
    site.until(&team, ("kubeadmconfig", "cp-0"), "the certificates", |found| lacks(found, &names));
    for name in &names {
        assert!(!team.has_secret(name), "{name}");
    }
    team.authorities();
    let config = site.until_ready(&team, "cp-0");
    assert_eq!(condition(&config, "CertificatesAvailable").0, "True", "{config:#}");
    let data = team.data("cp-0");
    for (path, _, purpose, key) in super::data::PKI {
        let secret = team.get("secret", &team.secret_name(purpose));
        assert_eq!(data.file(path).trim_end(), decoded(&secret, key).trim_end(), "{path}");
    }
}

#[test]
fn k7_certificates_are_never_made_again_after_initialization() {
    let site = Site::shared();
    let team = Team::new("lost", &json!({}));
    team.kubeconfig();
    team.initialize();
    team.control_plane("cp-1", &json!({}));
    let names = PURPOSES.map(|purpose| team.secret_name(purpose));
    site.until(&team, ("kubeadmconfig", "cp-1"), "the certificates", |found| lacks(found, &names));
    for name in &names {
        assert!(!team.has_secret(name), "{name}");
    }
    assert!(!team.has_secret("cp-1"));
}
