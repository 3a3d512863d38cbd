//! Host that is wiped at its release, for the tests of wipes. The tests stand in for pxed and for its agents.

use std::time::Duration;

use bedplate_api::claim::ReleasePolicy;
use bedplate_api::machine::StateDisk;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::objects;
use serde_json::{Value, json};

use super::site::Agent;

/// A pool host whose Machine asks for a wipe.
pub(crate) struct Host {
    pub(crate) agent: Agent,
    /// ID of the key with which it has enrolled.
    pub(crate) key: String,
}

impl Host {
    /// Creates the Machine, and enrolls its agent.
    pub(crate) fn new(name: &str, namespace: &str) -> Self {
        let machine = objects::machine(name).pxe("52:54:00:00:d7:01").pool(namespace).spec(|spec| {
            let disk = StateDisk { serial: Some("S1".to_owned()), ..StateDisk::default() };
            spec.pxe.as_mut().unwrap().state_disk = Some(disk);
            spec.claim_policy.as_mut().unwrap().release = Some(ReleasePolicy::Wipe);
        });
        Kubernetes::shared().objects().unwrap().apply(&machine.json()).unwrap();
        Self::enroll(name, namespace)
    }

    /// Enrolls an agent with a new key in place of the former one, as pxed does.
    pub(crate) fn enroll(name: &str, namespace: &str) -> Self {
        let agent = Agent::of(name, namespace);
        let found = Kubernetes::shared().objects().unwrap().get("machine", name).unwrap().unwrap();
        let key = found["status"]["enrollment"]["keyID"].as_str().unwrap().to_owned();
        let host = Self { agent, key };
        host.heartbeat();
        host
    }

    pub(crate) fn heartbeat(&self) {
        // The API server counts in seconds: the heartbeat must not seem older than a claim of the same second.
        let now = jiff::Timestamp::now() + Duration::from_secs(1);
        self.agent.machine(
            &json!({ "agent": { "features": ["claims", "wipe"], "lastHeartbeatTime": now.to_string() } }),
        );
    }

    pub(crate) fn has_disk(&self, token: &Value) {
        self.agent.machine(&json!({ "stateDisk": { "name": "virtio-S1", "wipeToken": token } }));
    }

    pub(crate) fn waits_for_its_key(&self, waits: bool) {
        let (status, reason) = if waits { ("False", "HeardElsewhere") } else { ("True", "Enrolled") };
        self.agent.machine(&json!({ "conditions": [{ "type": "Enrolled", "status": status, "reason": reason,
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }));
    }
}
