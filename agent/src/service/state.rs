//! State files of the agent: the enrollment in its state directory, the seed and its own status below /run.
//!
//! One file contains the complete enrollment, so that it is written atomically.
//! Called by `run` and by `bedplate-agent status`.

use std::path::PathBuf;

use bedplate_api::id::{BootId, MachineName, SiteName};
use bedplate_api::machine::StateDiskStatus;
use bedplate_api::wire::{KubernetesEndpoint, Seed};
use bedplate_process::file::{FileError, read_json, remove_optional, write_json};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::stage1::handover::BootFacts;

/// Directories of the agent's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Survives restarts; on a state disk it survives reboots: `/var/lib/bedplate/agent`.
    pub state: PathBuf,
    /// Ends with the boot: `/run/bedplate`.
    pub run: PathBuf,
    /// Root of the trees that facts are read from: `/`.
    pub root: PathBuf,
}

/// Result of an enrollment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enrollment {
    /// The Machine that this host is.
    pub machine: MachineName,
    /// Site of the Machine.
    pub site: SiteName,
    /// The boot by whose seed it enrolled.
    pub boot_id: BootId,
    /// Base URLs of pxed, in the order to try.
    pub endpoints: Vec<String>,
    /// Certificate authorities that pxed's certificate is verified by (PEM).
    pub ca_pem: String,
    /// The certificate chain (PEM), leaf first.
    pub certificate_pem: String,
    /// Start of the certificate's validity.
    pub not_before: Timestamp,
    /// Expiry of the certificate.
    pub not_after: Timestamp,
    /// Seconds between reports.
    pub heartbeat_seconds: u32,
    /// The API server, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesEndpoint>,
    /// UID of the Machine, once the cluster's Machine has this certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_uid: Option<String>,
}

/// Human-readable state of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// The agent's version.
    pub version: String,
    /// The Machine, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineName>,
    /// The site, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteName>,
    /// Human-readable description of the current act or wait.
    pub doing: String,
    /// True if there is a valid certificate.
    pub enrolled: bool,
    /// Expiry of the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<Timestamp>,
    /// Disk with the state of this boot, from stage-1's facts when they could last be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_disk: Option<StateDiskStatus>,
    /// Destination of reports: the API server of the cluster, otherwise pxed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports_to: Option<String>,
    /// State of the connection to the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The last report that was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_report: Option<Timestamp>,
    /// The last failure, kept after things went well again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Time of the last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error_time: Option<Timestamp>,
    /// Time of the next act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
    /// Time since which this is the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

impl Places {
    /// The seed, if stage-1 left one and it has not done its work yet.
    pub(crate) fn read_seed(&self) -> Result<Option<Seed>, FileError> {
        read_json(&self.run.join("seed.json"))
    }

    /// Leaves a seed for the service, whole or not at all.
    pub fn write_seed(&self, seed: &Seed) -> Result<(), FileError> {
        std::fs::create_dir_all(&self.run).map_err(FileError::at("create", &self.run))?;
        write_json(&self.run.join("seed.json"), seed, 0o600)
    }

    /// Removes the seed.
    pub(crate) fn forget_seed(&self) -> Result<(), FileError> {
        remove_optional(&self.run.join("seed.json"))
    }

    /// Reads the facts of stage-1 about this boot; `None`: the host was not netbooted.
    pub(crate) fn read_boot_facts(&self) -> Result<Option<BootFacts>, FileError> {
        read_json(&self.run.join("boot.json"))
    }

    /// The enrollment, if there is one.
    pub fn read_enrollment(&self) -> Result<Option<Enrollment>, FileError> {
        read_json(&self.state.join("enrollment.json"))
    }

    /// Stores the enrollment, and a kubeconfig if there is a cluster. Both are on disk when it returns.
    pub fn write_enrollment(&self, enrollment: &Enrollment) -> Result<(), FileError> {
        if let Some(kubernetes) = &enrollment.kubernetes {
            write_json(&self.state.join("kubeconfig"), &self.kubeconfig(enrollment, kubernetes), 0o600)?;
        }
        write_json(&self.state.join("enrollment.json"), enrollment, 0o600)
    }

    /// A kubeconfig (JSON, which is YAML) that names the key by its path: the key stays in one file.
    fn kubeconfig(&self, enrollment: &Enrollment, kubernetes: &KubernetesEndpoint) -> serde_json::Value {
        use base64::Engine as _;
        let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bedplate", "cluster": {
                "server": kubernetes.server,
                "certificate-authority-data": encode(&kubernetes.ca_pem),
            }}],
            "users": [{"name": "agent", "user": {
                "client-certificate-data": encode(&enrollment.certificate_pem),
                "client-key": self.state.join("key.pem"),
            }}],
            "contexts": [{"name": "bedplate", "context": {"cluster": "bedplate", "user": "agent"}}],
            "current-context": "bedplate",
        })
    }

    /// Reads the last stored state of the agent.
    pub fn read_standing(&self) -> Result<Option<Standing>, FileError> {
        read_json(&self.run.join("agent.json"))
    }

    /// Returns the state of an agent that has just started, with the results of an earlier one in this boot.
    pub(crate) fn begin_standing(&self, version: &str) -> Standing {
        let before = self.read_standing().ok().flatten();
        let state_disk = before.and_then(|standing| standing.state_disk);
        Standing { version: version.to_owned(), state_disk, ..Standing::default() }
    }

    /// Stores the state of the agent.
    pub(crate) fn write_standing(&self, standing: &Standing) -> Result<(), FileError> {
        write_json(&self.run.join("agent.json"), standing, 0o644)
    }
}

impl Standing {
    /// Describes the state in lines for users.
    pub fn describe(&self) -> String {
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let time =
            |value: Option<Timestamp>| value.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"));
        let error = self.last_error.as_ref().map(|error| format!("{} {error}", time(self.last_error_time)));
        [
            ("Machine", text(self.machine.as_ref().map(ToString::to_string))),
            ("Site", text(self.site.as_ref().map(ToString::to_string))),
            ("Enrolled", if self.enrolled { "yes" } else { "no" }.to_owned()),
            ("Doing", format!("{}, since {}", self.doing, time(self.since))),
            ("Certificate ends", time(self.certificate_ends)),
            ("Reports to", text(self.reports_to.clone())),
            ("Cluster", text(self.cluster.clone())),
            ("Last report", time(self.last_report)),
            ("Next try", time(self.next_try)),
            ("Last error", text(error)),
            ("Version", self.version.clone()),
        ]
        .iter()
        .map(|(name, value)| format!("{name:<17} {value}\n"))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_enrollment_is_kept_whole_with_a_kubeconfig_for_root_only() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let places = Places { state: path.clone(), run: path.clone(), root: path.clone() };
        let kubernetes = KubernetesEndpoint { server: "https://k:6443".to_owned(), ca_pem: "CA".to_owned() };
        let enrollment = Enrollment {
            machine: "node-1".parse().unwrap(),
            site: "default".parse().unwrap(),
            boot_id: BootId::from_random([1; 16]),
            endpoints: vec!["https://p:8443".to_owned()],
            ca_pem: "CA".to_owned(),
            certificate_pem: "CERT".to_owned(),
            not_before: Timestamp::UNIX_EPOCH,
            not_after: Timestamp::UNIX_EPOCH,
            heartbeat_seconds: 30,
            kubernetes: Some(kubernetes),
            machine_uid: None,
        };
        assert_eq!(places.read_enrollment().unwrap(), None);
        places.write_enrollment(&enrollment).unwrap();
        assert_eq!(places.read_enrollment().unwrap(), Some(enrollment));
        let config: serde_json::Value = read_json(&path.join("kubeconfig")).unwrap().unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://k:6443");
        assert_eq!(config["users"][0]["user"]["client-certificate-data"], "Q0VSVA==");
        let mode = std::fs::metadata(path.join("kubeconfig")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn standing_is_printed_in_lines() {
        let standing = Standing {
            version: "0.1.0".to_owned(),
            doing: "waiting for a seed".to_owned(),
            since: Some(Timestamp::UNIX_EPOCH),
            ..Standing::default()
        };
        let text = standing.describe();
        assert!(
            text.contains("Doing             waiting for a seed, since 1970-01-01T00:00:00Z\n"),
            "{text}"
        );
        assert!(text.starts_with("Machine           -\n"), "{text}");
    }
}
