//! Client of the API server for a program that reconciles. Called by `run` of each program.

use std::path::Path;
use std::time::Duration;

use bedplate_process::exit::Failure;
use bedplate_process::kubeconfig::configure;
use kube::config::{Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::retry_after;

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum silence of the API server. The API server ends a quiet watch after 295 s, so a longer silence means that it is unreachable.
const READ_TIMEOUT: Duration = Duration::from_secs(330);
/// Timeout of the sending of a request.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects by a kubeconfig file, or by the service account of the Pod if there is none. Sends no request.
///
/// The client never repeats a request: failed reconciliations are requeued, and watches restart.
///
/// # Errors
/// The configuration cannot be used.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, Failure> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| unusable(path, error))?;
            configure(file, None).await.map_err(Failure::configuration)?
        }
        None => Config::incluster().map_err(Failure::configuration)?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.write_timeout = Some(WRITE_TIMEOUT);
    // A repetition would occupy a worker for minutes, without a log line.
    config.default_retry = false;
    Client::try_from(config).map(retry_after::keeping).map_err(Failure::configuration)
}

/// Returns the failure of a kubeconfig that cannot be read. kube's error shows the lines around it, which may contain a token.
fn unusable(path: &Path, error: KubeconfigError) -> Failure {
    match error {
        KubeconfigError::Parse(problem) => {
            let problem = problem.without_snippet().to_string();
            let problem = problem.lines().next().unwrap_or_default();
            Failure::configuration(format!("kubeconfig {} is not valid YAML: {problem}", path.display()))
        }
        other => Failure::configuration(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_a_kubeconfig_does_not_show_its_lines() {
        let text = "users:\n- name: u\n  user:\n    token: hush-hush\n   client: x\n";
        let error = Kubeconfig::from_yaml(text).unwrap_err();
        assert!(error.to_string().contains("hush"), "kube shows it");
        let shown = format!("{:?}", unusable(Path::new("/k"), error));
        assert!(shown.contains("/k ") && shown.contains("line 5") && !shown.contains("hush"), "{shown}");
    }
}
