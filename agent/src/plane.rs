//! Interfaces to the source of decisions about this host, and to the home of its Node.
//!
//! ```text
//!                 Decider                              Home
//!   Cluster       API server of the host's cluster     the same cluster
//!   Standalone    pxed                                 SlotHome: the cluster that the slot has joined or made
//!
//!   decider --own Machine, selected version, own operations--+
//!   home    --own Node---------------------------------------+--> Seen (one value, published on change)
//!
//!   API server --watch own Machine, own Node, selected version, own operations--> View --> Seen
//!              <--live GET: is the Node gone?--
//!              <--apply own fields of own Machine's status--        Writer <-- host's report, node's progress
//!              <--status of own operations, GET of a Secret that a version names, request for the kubelet's certificate--
//! ```
//!
//! It makes no other requests (docs/design/rules.md, A1), decides nothing, and does not change the host. The node's
//! loop knows [`Decider`] and [`Home`] only, so their implementations may be combined. Called by `service`.

mod certificate;
mod claim;
mod client;
mod cluster;
mod comparison;
mod error;
pub mod facts;
#[cfg(test)]
mod fake;
mod freshness;
mod node_deletion;
mod operation;
mod secret;
mod slot_home;
mod standalone;
pub mod status;
mod view;
mod watcher;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_api::claim::{MachineClaim, MachineClaimStatus};
use bedplate_api::configuration::SecretRef;
use bedplate_api::machine::Machine;
use bedplate_api::operation::{MachineOperation, MachineOperationStatus};
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_api::wire::Report;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

pub use crate::metrics::Watched;
pub use certificate::CertificateAnswer;
pub use client::{Access, PrepareClientError};
pub use cluster::Cluster;
pub use error::AskServerError;
pub use operation::WriteOperationError;
pub use secret::{ReadSecretError, SecretData};
pub use slot_home::{OwnNode, SlotHome};
pub use standalone::Standalone;
pub use status::{ConditionReport, NodeStatusReport, Truth};

use crate::model::Api;

/// Source of decisions about this host: a cluster or pxed. It selects the
/// version, orders operations, has Secrets and takes reports.
#[async_trait]
pub trait Decider: Send + Sync {
    /// Returns the observed state, published on each change and marked as
    /// changed at first. Its Node comes from the home.
    fn seen(&self) -> watch::Receiver<Seen>;

    /// Reports the host's current facts.
    async fn report(&self, report: &Report) -> Result<(), AskServerError>;

    /// Reports the state of the node. It is written when it has changed, once a
    /// report of the host was accepted.
    fn report_node(&self, reported: NodeStatusReport);

    /// Reports the state of an operation, if its object is unchanged since `operation` was read.
    async fn write_operation(
        &self,
        operation: &MachineOperation,
        status: MachineOperationStatus,
    ) -> Result<Arc<MachineOperation>, WriteOperationError>;

    /// Returns the content of a Secret that a version names.
    async fn secret(&self, secret: &SecretRef) -> Result<SecretData, ReadSecretError>;

    /// Writes this host's report on its MachineClaim. Claims need a cluster.
    async fn write_claim(&self, _: &MachineClaim, _: &MachineClaimStatus) -> Result<(), AskServerError> {
        Err(AskServerError::NoClaims)
    }

    /// Asks whether claimants of a namespace may run a MachineConfiguration. Claims need a cluster.
    async fn configuration_allows(&self, _: &str, _: &str) -> Result<bool, AskServerError> {
        Err(AskServerError::NoClaims)
    }
}

/// Cluster in which this host's Node lives.
#[async_trait]
pub trait Home: Send + Sync {
    /// Returns true if the cluster is the one that the slot has joined or made. Then only the slot's kubelet can ask its API server, a slot may
    /// make a cluster of its own, and no controller of the decider reaches the Node.
    fn follows_slot(&self) -> bool {
        false
    }

    /// Notifies the home that the slots, and so the kubelet, may have changed.
    fn slots_changed(&self) {}

    /// Verifies by a live read that the Node is deleted. Returns true only if that is certain. `seen`: latest
    /// state of the decider.
    async fn node_is_gone(&self, seen: &Seen) -> Result<bool, AskServerError>;

    /// Asks whether the API server `server`, verified by `ca_pem`, is one of this cluster.
    async fn compare(&self, server: &str, ca_pem: &str) -> Compared;

    /// Asks for a client certificate of this host's kubelet by the request of this name, which is made if there is none.
    async fn kubelet_certificate(
        &self,
        name: &str,
        csr_pem: &str,
    ) -> Result<CertificateAnswer, AskServerError>;
}

/// Result of comparing an API server with those of this host's cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compared {
    /// The server has this host's Machine.
    Same,
    /// The server is another cluster's, or no join would accept it; with the reason for the user.
    Other(String),
    /// The server did not answer; with the reason for the user.
    Unknown(String),
}

/// Observed state. Current if `api` is [`Api::Live`]; otherwise the last known one.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Reachability of the API server: see `freshness`.
    pub api: Api,
    /// The Machine of this host's name; none: not read yet, or not there if `api` is live.
    pub machine: Option<Arc<Machine>>,
    /// True if it is the Machine that this host enrolled for.
    pub ours: bool,
    /// The Node of this host's name.
    pub node: NodeState,
    /// The version that the Machine's `status.selected` names; none: not read yet, or not there.
    pub version: Option<Arc<MachineConfigurationVersion>>,
    /// The MachineClaim of this host's name.
    pub claim: ClaimObject,
    /// The Machine's operations that have not ended, by name.
    pub operations: Vec<Arc<MachineOperation>>,
    /// True if the operations were listed; before that they are unknown.
    pub operations_listed: bool,
    /// Finished operations of the Machine, by UID; the value is true if the operation has shut the host down.
    pub ended: BTreeMap<String, bool>,
    /// Watches that currently fail, with the error.
    pub trouble: BTreeMap<Watched, String>,
}

/// A MachineClaim, as far as it is known.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ClaimObject {
    /// The claim is not watched, was not listed yet, or cannot be watched now.
    #[default]
    Unknown,
    /// The watch has no claim.
    Absent,
    /// The claim exists.
    Present(Arc<MachineClaim>),
}

impl ClaimObject {
    /// The object, if there is one.
    pub fn present(&self) -> Option<&Arc<MachineClaim>> {
        match self {
            Self::Present(claim) => Some(claim),
            Self::Unknown | Self::Absent => None,
        }
    }
}

/// A Node, as far as it is known.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum NodeState {
    /// Not asked yet, or the answer does not count.
    #[default]
    Unknown,
    /// A live read found no Node.
    Absent,
    /// The Node exists; without fields that the agent does not read.
    Present(Arc<Node>),
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            api: Api::Unasked,
            machine: None,
            ours: false,
            node: NodeState::Unknown,
            version: None,
            claim: ClaimObject::Unknown,
            operations: Vec::new(),
            operations_listed: false,
            ended: BTreeMap::new(),
            trouble: BTreeMap::new(),
        }
    }
}

impl Seen {
    /// Describes the state for users: reachability of the API server, the Node, and the version.
    pub fn describe(&self) -> String {
        let api = match self.api {
            Api::Unasked => "not asked yet",
            Api::Live => "answers",
            Api::Away => "does not answer",
        };
        let machine = match &self.machine {
            Some(_) if self.ours => "",
            Some(_) => ", the Machine was replaced or has another certificate",
            None if self.api == Api::Live => ", Machine not found",
            None => "",
        };
        let node = match self.node {
            NodeState::Unknown => "not known",
            NodeState::Absent => "absent",
            NodeState::Present(_) => "present",
        };
        let version = self.version.as_ref().and_then(|version| version.metadata.name.as_deref());
        let trouble: String = self
            .trouble
            .iter()
            .map(|(watched, why)| format!("; watch of {} failed: {why}", watched.name()))
            .collect();
        format!("{api}{machine}; Node {node}; version {}{trouble}", version.unwrap_or("none"))
    }
}
