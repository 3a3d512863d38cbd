//! Pure: errors in a kubeconfig with their place and remedy, and the API server that it names. Called by
//! `cluster`.
//!
//! Errors quote only names from the file. The lines around an error may contain a token.

use std::path::Path;

use kube::config::{Cluster, Kubeconfig, KubeconfigError, LoadDataError};
use thiserror::Error;

/// Error in a kubeconfig.
#[derive(Debug, Error)]
#[error("{why}")]
pub(crate) struct Fault {
    why: String,
    /// Remedy for the user.
    pub(crate) remedy: &'static str,
    /// True if there is no file.
    pub(crate) is_absent: bool,
}

const CONTEXTS: &str = "list the contexts with `kubectl config get-contexts`, and name one with --context";
const CORRECT: &str = "correct the kubeconfig, or name another file with --kubeconfig";

/// Converts kube's error about the file at `named`, or about the default file.
pub(crate) fn fault(error: &KubeconfigError, named: Option<&Path>) -> Fault {
    let fault = |why: String, remedy| Fault { why, remedy, is_absent: false };
    match error {
        KubeconfigError::ReadConfig(problem, path) => {
            let is_absent = problem.kind() == std::io::ErrorKind::NotFound;
            let remedy = if is_absent {
                "check the path, or name another file with --kubeconfig or in the variable KUBECONFIG"
            } else {
                "check that it is a file that this user may read"
            };
            let place =
                if named == Some(path.as_path()) { String::new() } else { format!("{}: ", path.display()) };
            Fault { why: format!("{place}{problem}"), remedy, is_absent }
        }
        KubeconfigError::FindPath => Fault {
            why: "there is no home directory".to_owned(),
            remedy: "name a file with --kubeconfig or in the variable KUBECONFIG",
            is_absent: true,
        },
        KubeconfigError::Parse(problem) => {
            let problem = problem.without_snippet().to_string();
            let problem = problem.lines().next().unwrap_or_default().trim_start_matches("error: ");
            fault(
                format!("invalid YAML: {problem}"),
                "correct that line, and check that the file is a kubeconfig",
            )
        }
        KubeconfigError::CurrentContextNotSet => fault("current-context is not set".to_owned(), CONTEXTS),
        KubeconfigError::LoadContext(name) => fault(format!("context {name:?} does not exist"), CONTEXTS),
        KubeconfigError::LoadClusterOfContext(name) => {
            fault(format!("cluster {name:?} of the context does not exist"), CORRECT)
        }
        KubeconfigError::MissingClusterUrl => fault("cluster has no server".to_owned(), CORRECT),
        KubeconfigError::ParseClusterUrl(problem) => {
            fault(format!("server of the cluster is not a URL: {problem}"), CORRECT)
        }
        KubeconfigError::LoadCertificateAuthority(problem) => {
            fault(loaded("cluster's certificate-authority", problem), CORRECT)
        }
        KubeconfigError::LoadClientCertificate(problem) => {
            fault(loaded("user's client-certificate", problem), CORRECT)
        }
        KubeconfigError::LoadClientKey(problem) => fault(loaded("user's client-key", problem), CORRECT),
        KubeconfigError::ParseCertificates(_) => {
            fault("cluster's certificate-authority is not PEM".to_owned(), CORRECT)
        }
        KubeconfigError::ParseProxyUrl(problem) => {
            fault(format!("cluster's proxy-url is not a URL: {problem}"), CORRECT)
        }
        other => fault(other.to_string(), CORRECT),
    }
}

fn loaded(field: &str, problem: &LoadDataError) -> String {
    match problem {
        LoadDataError::DecodeBase64(_) => format!("{field}-data is not base64"),
        LoadDataError::ReadFile(problem, path) => format!("{field} {}: {problem}", path.display()),
        LoadDataError::NoBase64DataOrFile => format!("{field} is missing"),
    }
}

/// Returns the API server of this context, or of the current one.
pub(crate) fn server<'a>(file: &'a Kubeconfig, context: Option<&str>) -> Option<&'a str> {
    cluster(file, context)?.server.as_deref()
}

fn cluster<'a>(file: &'a Kubeconfig, context: Option<&str>) -> Option<&'a Cluster> {
    let context = context.or(file.current_context.as_deref())?;
    let context = file.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    file.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()
}

#[cfg(test)]
mod tests {
    use kube::Config;
    use kube::config::KubeConfigOptions;

    use super::*;

    const GOOD: &str = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443'}}]\n\
        contexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: hush}}]\ncurrent-context: x\n";

    async fn failure_of(text: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, text).unwrap();
        let error = match Kubeconfig::read_from(&path) {
            Ok(file) => {
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap_err()
            }
            Err(error) => error,
        };
        let fault = fault(&error, Some(&path));
        assert!(!fault.is_absent && !fault.remedy.is_empty());
        format!("{fault}; {}", fault.remedy)
    }

    #[tokio::test]
    async fn error_names_its_field_and_a_remedy() {
        for (from, to, field, remedy) in [
            ("current-context: x\n", "", "current-context is not set", "--context"),
            ("current-context: x", "current-context: y", "context \"y\" does not exist", "get-contexts"),
            ("cluster: c,", "cluster: d,", "cluster \"d\" of the context", "--kubeconfig"),
            (
                "'https://10.0.0.1:6443'",
                "'h t'",
                "server of the cluster is not a URL",
                "correct the kubeconfig",
            ),
            (
                "10.0.0.1:6443'",
                "10.0.0.1:6443', proxy-url: 'h t'",
                "proxy-url is not a URL",
                "correct the kubeconfig",
            ),
            (
                "10.0.0.1:6443'",
                "10.0.0.1:6443', certificate-authority: /nope",
                "certificate-authority /nope: No such file",
                "correct the kubeconfig",
            ),
            (
                "10.0.0.1:6443'",
                "10.0.0.1:6443', certificate-authority-data: '!'",
                "certificate-authority-data is not base64",
                "correct the kubeconfig",
            ),
        ] {
            let text = failure_of(&GOOD.replace(from, to)).await;
            assert!(text.contains(field) && text.contains(remedy), "{to}: {text}");
        }
    }

    #[tokio::test]
    async fn kubeconfig_error_does_not_quote_surrounding_lines() {
        let text = failure_of("users:\n- name: u\n  user:\n    token: hush-hush\n   client: x\n").await;
        assert!(text.contains("line 5") && !text.contains("hush"), "{text}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named_once() {
        let path = Path::new("/nonexistent/config");
        let error = Kubeconfig::read_from(path).unwrap_err();
        assert!(fault(&error, Some(path)).to_string().starts_with("No such file"));
        let found = fault(&error, None);
        assert!(found.is_absent && found.to_string().starts_with("/nonexistent/config: No such"), "{found}");
    }

    #[test]
    fn the_api_server_is_that_of_the_context() {
        let file = Kubeconfig::from_yaml(GOOD).unwrap();
        assert_eq!(server(&file, None), Some("https://10.0.0.1:6443"));
        assert_eq!(server(&file, Some("y")), None);
    }
}
