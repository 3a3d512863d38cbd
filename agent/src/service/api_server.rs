//! The way to the cluster's API server: the agent writes its own fields of its own Machine's status there (docs/rules.md, "Who
//! writes what"), by server-side apply, with the certificate that the enrolment brought.
//!
//! Writes nothing else and reads nothing. Called by `run`, where an enrolment names a cluster.

use bedplate_api::id::MachineName;
use bedplate_api::machine::{Address, AgentStatus, Hardware, MachineStatus, Time};
use bedplate_api::wire::{KubernetesEndpoint, Report};
use jiff::Timestamp;
use reqwest::Method;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde_json::{Value, json};

use super::ask::{AskError, Https};
use super::client::Reporter;

/// Who the agent is to server-side apply. Forced: these fields are its own, whoever else wrote them.
const APPLY: &str = "fieldManager=bedplate-agent&force=true";

/// The whole Machine is of no use as an answer.
const ACCEPTED: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Longest lists and texts that the definition of a Machine takes; a longer one would have the whole write refused.
const MAX_DISKS: usize = 256;
const MAX_NICS: usize = 64;
const MAX_TEXT: usize = 63;

/// A way to the API server for one Machine's agent.
#[derive(Debug, Clone)]
pub struct ApiServer {
    https: Https,
    url: String,
    machine: MachineName,
}

impl ApiServer {
    /// The API server of `endpoint`, to which `identity` (certificate chain and key, PEM) is `machine`'s agent.
    pub fn new(
        endpoint: &KubernetesEndpoint,
        machine: &MachineName,
        identity: (&str, &str),
    ) -> Result<Self, AskError> {
        let server = endpoint.server.trim_end_matches('/');
        let url = format!("{server}/apis/bedplate.dev/v1alpha1/machines/{machine}/status");
        let https = Https::new(&endpoint.ca_pem, Some(identity))?;
        Ok(Self { https, url, machine: machine.clone() })
    }
}

impl Reporter for ApiServer {
    /// An apply takes back what it leaves out.
    const KEEPS_FACTS: bool = false;

    async fn report(&self, report: &Report) -> Result<(), AskError> {
        let body = own_fields(&self.machine, report, Timestamp::now()).to_string();
        let request = self.https.request(Method::PATCH, &format!("{}?{APPLY}", self.url));
        // JSON is YAML; older servers know the apply by this name only.
        let request = request.header(CONTENT_TYPE, "application/apply-patch+yaml").header(ACCEPT, ACCEPTED);
        self.https.ask(request.body(body), &self.url, |_| Ok(())).await
    }
}

/// All of a Machine that is this agent's to say.
fn own_fields(machine: &MachineName, report: &Report, now: Timestamp) -> Value {
    let text =
        |text: &str| Some(text.chars().take(MAX_TEXT).collect()).filter(|text: &String| !text.is_empty());
    let agent = AgentStatus {
        version: text(&report.agent_version),
        boot_id: text(&report.kernel_boot_id),
        last_heartbeat: Some(Time(now)),
    };
    let hardware = report.facts.clone().map(|mut facts| {
        facts.disks.truncate(MAX_DISKS);
        facts.nics.truncate(MAX_NICS);
        // The BMC is pxed's to tell.
        Hardware { bmc: None, ..facts }
    });
    let addresses = Address::of_host(machine, &report.addresses);
    let state_disk = report.state_disk.clone();
    let status =
        MachineStatus { agent: Some(agent), hardware, addresses, state_disk, ..MachineStatus::default() };
    json!({
        "apiVersion": "bedplate.dev/v1alpha1",
        "kind": "Machine",
        "metadata": { "name": machine },
        "status": status,
    })
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::{Disk, HardwareBmc, StateDiskStatus};

    use super::*;

    #[test]
    fn a_write_holds_no_more_than_the_definition_takes_and_never_the_bmc() {
        let facts = Hardware {
            disks: vec![Disk::default(); 300],
            bmc: Some(HardwareBmc::default()),
            ..Hardware::default()
        };
        let report = Report {
            agent_version: "v".repeat(100),
            kernel_boot_id: String::new(),
            boot_id: None,
            facts: Some(facts),
            addresses: vec![[10, 7, 0, 2].into()],
            state_disk: Some(StateDiskStatus { name: Some("virtio-state".to_owned()), wipe_token: None }),
        };
        let fields = own_fields(&"node-1".parse().unwrap(), &report, Timestamp::UNIX_EPOCH);
        assert_eq!(fields["status"]["hardware"]["disks"].as_array().unwrap().len(), 256);
        assert_eq!(
            fields["status"]["agent"],
            json!({ "version": "v".repeat(63), "lastHeartbeat": "1970-01-01T00:00:00Z" })
        );
        assert_eq!(fields["status"]["addresses"][0]["address"], "10.7.0.2");
        assert_eq!(fields["status"].as_object().unwrap().len(), 4);
        assert_eq!(fields["status"]["stateDisk"], json!({ "name": "virtio-state" }));
        assert!(fields["status"]["hardware"].get("bmc").is_none());
    }
}
