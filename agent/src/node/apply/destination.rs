//! In a cluster: refuses a version whose node would join another cluster than its Machine's, before any slot is stopped.
//!
//! ```text
//!   what the version names ─ authorities ─┬─ none of this cluster, by hash ─► refused
//!                                         └─ own ─ API server there ─┬─ same Machine ───► accepted
//!                                                                    ├─ another answer ─► refused
//!                                                                    └─ none ─► accepted if the join trusts this cluster's authorities alone
//! ```
//! A join that trusts this cluster's authorities alone can fail, but not lead elsewhere. A version that cannot be compared is refused.
//! Called by `prepare`.

use std::path::Path;

use bedplate_api::configuration::KubernetesSpec;
use bedplate_bootstrap::{Authorities, Destination, ca_cert_hashes, destination, named_cluster};

use super::ApplyError;
use crate::node::effects::{Credential, Parts};
use crate::plane::Compared;
use crate::slot::bind::plain_path;
use crate::slot::contents::Contents;

/// API server of a join, as far as the version names it.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    /// URL of the API server.
    server: String,
    /// Authorities that its certificate is verified by (PEM).
    ca_pem: String,
    /// True if the join trusts no authority but this cluster's.
    believes_own_alone: bool,
}

/// Reason for rejecting a version.
#[derive(Debug, PartialEq, Eq)]
enum Doubt {
    /// The version leads to another cluster.
    Other(String),
    /// The cluster of the version was not verified.
    Unverified(String),
}

/// Compares the cluster that a version names, if it names one, with the host's own.
pub(super) async fn check(
    parts: &Parts,
    kubernetes: &KubernetesSpec,
    contents: &Contents,
) -> Result<(), ApplyError> {
    let destination = destination(kubernetes);
    let field = match &destination {
        Destination::Unnamed => return Ok(()),
        Destination::Endpoint(_) => "apiServerEndpoint",
        Destination::Token { .. } => "joinConfiguration.discovery.bootstrapToken",
        Destination::File(_) => "joinConfiguration.discovery.file",
    };
    let own = parts.credentials.current().await.map_err(ApplyError::Credential)?;
    let doubt = match target(&destination, &own, contents) {
        Ok(target) => ask(parts, &own, &target).await,
        Err(doubt) => Some(doubt),
    };
    match doubt {
        None => Ok(()),
        Some(Doubt::Other(why)) => Err(ApplyError::OtherCluster { field, why }),
        Some(Doubt::Unverified(why)) => Err(ApplyError::ClusterUnverified { field, why }),
    }
}

async fn ask(parts: &Parts, own: &Credential, target: &Target) -> Option<Doubt> {
    if target.believes_own_alone && target.server == url(&own.server) {
        return None;
    }
    match parts.home.compare(&target.server, &target.ca_pem).await {
        Compared::Same => None,
        Compared::Other(why) => Some(Doubt::Other(format!("{}: {why}", target.server))),
        Compared::Unknown(why) if target.believes_own_alone => {
            let server = &target.server;
            tracing::warn!(
                server,
                why,
                "API server of the join not reached, trusting this cluster's authorities"
            );
            None
        }
        Compared::Unknown(why) => Some(Doubt::Unverified(format!("{}: {why}", target.server))),
    }
}

fn target(destination: &Destination<'_>, own: &Credential, contents: &Contents) -> Result<Target, Doubt> {
    let unverified = |why: &str| Doubt::Unverified(why.to_owned());
    let own_hashes = ca_cert_hashes(&own.ca_pem).unwrap_or_default();
    let is_own = |hash: &str| own_hashes.iter().any(|own| own == hash);
    match destination {
        Destination::Unnamed | Destination::Endpoint("") | Destination::Token { endpoint: "", .. } => {
            Err(unverified("the field names no API server"))
        }
        Destination::Endpoint(endpoint) => {
            Ok(Target { server: url(endpoint), ca_pem: own.ca_pem.clone(), believes_own_alone: true })
        }
        Destination::Token { hashes, .. }
            if !hashes.is_empty() && !hashes.iter().any(|hash| is_own(hash)) =>
        {
            Err(Doubt::Other("caCertHashes has no hash of this cluster's certificate authority".to_owned()))
        }
        Destination::Token { endpoint, hashes } => {
            let believes_own_alone = !hashes.is_empty() && hashes.iter().all(|hash| is_own(hash));
            Ok(Target { server: url(endpoint), ca_pem: own.ca_pem.clone(), believes_own_alone })
        }
        Destination::File(path) if !path.starts_with('/') => {
            Err(unverified("kubeConfigPath is not a path in the slot"))
        }
        Destination::File(path) => {
            let read = file(contents, path);
            let read = read.ok_or_else(|| unverified("files[] has no entry for kubeConfigPath"))?;
            let named = named_cluster(&read);
            let named = named.ok_or_else(|| unverified("the file is not a kubeconfig with a cluster"))?;
            let ca_pem = match named.authorities {
                Authorities::Held(pem) => Some(pem),
                // A relative path starts at the directory of the kubeconfig.
                Authorities::File(ca) => {
                    let path = Path::new(path).parent().unwrap_or(Path::new("/")).join(ca);
                    file(contents, &path.to_string_lossy())
                }
                Authorities::Unnamed => None,
            };
            let ca_pem = ca_pem.ok_or_else(|| unverified("the kubeconfig has no certificate authority"))?;
            let hashes = ca_cert_hashes(&ca_pem);
            let hashes = hashes.map_err(|error| unverified(&format!("the kubeconfig: {error}")))?;
            let believes_own_alone = hashes.iter().all(|hash| is_own(hash));
            Ok(Target { server: url(&named.server), ca_pem, believes_own_alone })
        }
    }
}

/// Returns the text of a file of the version; none: the version has no such file.
fn file(contents: &Contents, path: &str) -> Option<String> {
    let path = plain_path(path);
    let mut found: Option<Vec<u8>> = None;
    for file in contents.files.iter().filter(|file| plain_path(&file.path) == path) {
        match (&mut found, file.append) {
            (Some(found), true) => found.extend_from_slice(&file.content),
            // The image's content precedes the appended part, and is not known here.
            (None, true) => return None,
            (_, false) => found = Some(file.content.to_vec()),
        }
    }
    String::from_utf8(found?).ok()
}

fn url(endpoint: &str) -> String {
    let endpoint = endpoint.trim_end_matches('/');
    if endpoint.starts_with("https://") { endpoint.to_owned() } else { format!("https://{endpoint}") }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    use super::*;
    use crate::slot::contents::text;

    struct Case {
        own: Credential,
        own_hash: String,
        other_pem: String,
    }

    fn case() -> Case {
        let pem = || rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap().cert.pem();
        let ca_pem = pem();
        let own_hash = ca_cert_hashes(&ca_pem).unwrap().remove(0);
        let (server, certificate_pem) = ("https://own:6443".to_owned(), "CERT".to_owned());
        let own = Credential { server, ca_pem, certificate_pem };
        Case { own, own_hash, other_pem: pem() }
    }

    impl Case {
        /// Returns the server of a join, and true if it trusts the host's own
        /// authorities only; otherwise the doubt.
        fn target(&self, join: &Value, files: &[(&str, &str)]) -> Result<(String, bool), Doubt> {
            let kubernetes = json!({ "version": "v1.34.4", "joinConfiguration": { "discovery": join } });
            let kubernetes = serde_json::from_value(kubernetes).unwrap();
            let files = files.iter().map(|(path, content)| text(path, 0o600, content)).collect();
            let contents = Contents { files, ..Contents::default() };
            let target = target(&destination(&kubernetes), &self.own, &contents);
            target.map(|target| (target.server, target.believes_own_alone))
        }

        fn kubeconfig(&self, ca: &str) -> String {
            format!("clusters:\n- name: c\n  cluster:\n    server: https://alias:6443/\n    {ca}\n")
        }
    }

    #[test]
    fn token_with_hashes_of_other_authorities_alone_leads_elsewhere() {
        let case = case();
        let other = ca_cert_hashes(&case.other_pem).unwrap().remove(0);
        let token = |hashes: Value| json!({ "bootstrapToken": { "apiServerEndpoint": "k:6443", "token": "a.b", "caCertHashes": hashes } });
        let server = "https://k:6443".to_owned();
        assert_eq!(case.target(&token(json!([case.own_hash])), &[]), Ok((server.clone(), true)));
        assert_eq!(case.target(&token(json!([other, case.own_hash])), &[]), Ok((server.clone(), false)));
        assert!(matches!(case.target(&token(json!([other])), &[]), Err(Doubt::Other(_))));
        // kubeadm believes any authority then: only the API server's own word counts.
        assert_eq!(case.target(&token(json!([])), &[]), Ok((server, false)));
        let nowhere = json!({ "bootstrapToken": { "token": "a.b", "caCertHashes": [case.own_hash] } });
        assert!(matches!(case.target(&nowhere, &[]), Err(Doubt::Unverified(_))));
    }

    #[test]
    fn kubeconfig_is_compared_by_authorities_and_refused_if_unreadable() {
        let case = case();
        let join = json!({ "file": { "kubeConfigPath": "/etc/join/c.conf" } });
        let data = |pem: &str| format!("certificate-authority-data: {}", STANDARD.encode(pem));
        let with = |ca: &str| case.target(&join, &[("/etc//join/c.conf", &case.kubeconfig(ca))]);
        let server = "https://alias:6443".to_owned();
        assert_eq!(with(&data(&case.own.ca_pem)), Ok((server.clone(), true)));
        assert_eq!(with(&data(&case.other_pem)), Ok((server.clone(), false)));
        let both = format!("{}{}", case.own.ca_pem, case.other_pem);
        assert_eq!(with(&data(&both)), Ok((server.clone(), false)));
        let both = [
            ("/etc/join/ca.crt", case.own.ca_pem.as_str()),
            ("/etc/join/c.conf", &case.kubeconfig("certificate-authority: ca.crt")),
        ];
        assert_eq!(case.target(&join, &both), Ok((server, true)));
        for doubtful in ["", "certificate-authority: /of/the/image.crt", "certificate-authority-data: Q0E="] {
            assert!(matches!(with(doubtful), Err(Doubt::Unverified(_))), "{doubtful}");
        }
        assert!(matches!(case.target(&join, &[]), Err(Doubt::Unverified(_))), "a file of the image");
        for path in ["https://k.example/join.conf", "join.conf", ""] {
            let join = json!({ "file": { "kubeConfigPath": path } });
            assert!(matches!(case.target(&join, &[(path, "")]), Err(Doubt::Unverified(_))), "{path}");
        }
    }

    #[test]
    fn file_is_the_last_one_written_and_unknown_if_appended_to_the_image() {
        let mut added = text("/a", 0o600, "2");
        added.append = true;
        let of = |files| file(&Contents { files, ..Contents::default() }, "/a");
        assert_eq!(
            of(vec![text("/a", 0o600, "0"), text("/a", 0o600, "1"), added.clone()]),
            Some("12".to_owned())
        );
        assert_eq!(of(vec![added]), None);
        assert_eq!(of(Vec::new()), None);
    }
}
