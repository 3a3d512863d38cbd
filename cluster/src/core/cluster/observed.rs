//! Pure: the objects that decide about a Cluster. Called by the planner and by the pass that reads them.

use std::sync::Arc;

use bedplate_api::cluster::contract::Referenced;
use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineSet, condition_type};
use bedplate_api::cluster::part::{Reference, label};
use jiff::Timestamp;
use kube::{Resource, ResourceExt};

use super::plan::Act;
use crate::core::machine::node::Connection;
use crate::core::object::OfCluster;
use crate::core::reference::{Lookup, owners};

/// Maximum number of characters of the cause of a refusal in a message.
const MAX_CAUSE: usize = 512;

/// Objects that decide about a Cluster.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The Cluster.
    pub cluster: Arc<Cluster>,
    /// Object of `spec.infrastructureRef`. Without meaning if the reference is unset.
    pub infrastructure: Lookup,
    /// Object of `spec.controlPlaneRef`. Without meaning if the reference is unset.
    pub control_plane: Lookup,
    /// MachineDeployments of the cluster, sorted by name.
    pub deployments: Vec<Arc<MachineDeployment>>,
    /// MachineSets of the cluster, sorted by name.
    pub sets: Vec<Arc<MachineSet>>,
    /// Machines of the cluster, sorted by name.
    pub machines: Vec<Arc<Machine>>,
    /// Number of MachinePools of the cluster.
    pub pools: usize,
    /// Secret with the kubeconfig.
    pub kubeconfig: KubeconfigSecret,
    /// Secret with the certificate authority of the cluster.
    pub authority: AuthoritySecret,
    /// Connection to the API server of the cluster.
    pub connection: Connection,
    /// Write of this pass that the API server has refused.
    pub refused: Option<Refused>,
    /// Read of this pass that the API server has refused.
    pub unread: Option<Unread>,
}

/// Read that the API server has refused. A user must act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Type of the condition that shows it.
    pub type_: &'static str,
    /// Text for a user.
    pub text: String,
}

impl Unread {
    /// Makes the record of a refused read. `what`: the objects. `cause`: text of the API server.
    pub fn new(type_: &'static str, what: &str, cause: &str) -> Self {
        Self { type_, text: format!("{what} cannot be read: {}; permit it", shortened(cause)) }
    }
}

/// Write that the API server has refused. A user must act.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    /// The write.
    pub act: Act,
    /// Text of the API server.
    cause: String,
}

impl Refused {
    /// Makes the record of a refused write. `cause`: text of the API server.
    pub fn new(act: Act, cause: &str) -> Self {
        Self { act, cause: shortened(cause) }
    }
}

/// State of the Secret `<cluster>-kubeconfig`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeconfigSecret {
    /// It was not read, because this controller does not make it now.
    NotRead,
    /// It does not exist.
    Absent,
    /// This controller has made it.
    Made {
        /// Time of its renewal.
        renews_at: Timestamp,
    },
    /// Another writer has made or changed it. This controller does not change it.
    Given,
}

/// State of the Secret `<cluster>-ca`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthoritySecret {
    /// It was not read.
    NotRead,
    /// It does not exist.
    Absent,
    /// It has no certificate, or no key that belongs to it.
    Unusable,
    /// It has a certificate and its key.
    Usable,
}

/// Object that a Cluster names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Component {
    /// Object of `spec.infrastructureRef`.
    Infrastructure,
    /// Object of `spec.controlPlaneRef`.
    ControlPlane,
}

/// Relation of a named object to the Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership<'a> {
    /// The Cluster owns it.
    Own,
    /// No Cluster owns it, or one of the same name that does not exist any more.
    Free,
    /// The Cluster of this name owns it.
    Foreign(&'a str),
}

impl Observed {
    /// Returns the reference to a component. None: it is unset.
    pub fn reference(&self, component: Component) -> Option<&Reference> {
        match component {
            Component::Infrastructure => self.cluster.spec.infrastructure_ref.as_ref(),
            Component::ControlPlane => self.cluster.spec.control_plane_ref.as_ref(),
        }
    }

    /// Returns reference and state of a component. None: the reference is unset.
    pub fn component(&self, component: Component) -> Option<(&Reference, &Lookup)> {
        let lookup = match component {
            Component::Infrastructure => &self.infrastructure,
            Component::ControlPlane => &self.control_plane,
        };
        Some((self.reference(component)?, lookup))
    }

    /// Returns the object of a component that the Cluster owns and that is not deleted.
    pub fn own(&self, component: Component) -> Option<&Referenced> {
        let (_, lookup) = self.component(component)?;
        let object = lookup.found()?;
        let is_live = object.metadata.deletion_timestamp.is_none();
        (is_live && ownership(object, &self.cluster) == Ownership::Own).then_some(object)
    }

    /// Returns the text about a refused read or write, if the condition of this type shows it.
    pub fn refusal(&self, type_: &str) -> Option<String> {
        let unread = self.unread.as_ref().filter(|unread| unread.type_ == type_);
        self.refused_write(type_).or_else(|| unread.map(|unread| unread.text.clone()))
    }

    fn refused_write(&self, type_: &str) -> Option<String> {
        let Refused { act, cause } = self.refused.as_ref()?;
        let named = |component: Component| {
            let name = |reference: &Reference| format!("{} {}", reference.kind, reference.name);
            self.reference(component).map(name).unwrap_or_default()
        };
        let (shown, state, remedy) = match act {
            Act::None => return None,
            Act::AddFinalizer => {
                (condition_type::DELETING, "finalizer cannot be added".to_owned(), "permit it")
            }
            Act::RemoveFinalizer => {
                (condition_type::DELETING, "finalizer cannot be removed".to_owned(), "permit it")
            }
            Act::DeleteChildren(_) => {
                (condition_type::DELETING, "objects of the cluster cannot be deleted".to_owned(), "permit it")
            }
            Act::DeleteComponent(component) => {
                (condition_type::DELETING, format!("{} cannot be deleted", named(*component)), "permit it")
            }
            Act::Adopt { component, .. } => {
                (component.condition(), format!("{} cannot be adopted", named(*component)), "permit it")
            }
            Act::SetEndpoint { component, .. } => (
                component.condition(),
                format!("endpoint of {} cannot be copied", named(*component)),
                "permit it, or set spec.controlPlaneEndpoint",
            ),
            Act::MakeKubeconfig => {
                (condition_type::REMOTE_CONNECTION_PROBE, "kubeconfig cannot be made".to_owned(), "permit it")
            }
            Act::RenewKubeconfig => (
                condition_type::REMOTE_CONNECTION_PROBE,
                "kubeconfig cannot be renewed".to_owned(),
                "permit it",
            ),
        };
        (shown == type_).then(|| format!("{state}: {cause}; {remedy}"))
    }

    /// Returns the Machines of the control plane.
    pub(crate) fn control_plane_machines(&self) -> impl Iterator<Item = &Arc<Machine>> {
        self.machines.iter().filter(|machine| is_control_plane(machine))
    }

    /// Returns the Machines of workers.
    pub(crate) fn worker_machines(&self) -> impl Iterator<Item = &Arc<Machine>> {
        self.machines.iter().filter(|machine| !is_control_plane(machine))
    }
}

impl Component {
    /// Returns the name of the reference.
    pub fn field(self) -> &'static str {
        match self {
            Self::Infrastructure => "spec.infrastructureRef",
            Self::ControlPlane => "spec.controlPlaneRef",
        }
    }

    /// Returns the type of the condition that shows the component.
    fn condition(self) -> &'static str {
        match self {
            Self::Infrastructure => condition_type::INFRASTRUCTURE_READY,
            Self::ControlPlane => condition_type::CONTROL_PLANE_AVAILABLE,
        }
    }
}

fn shortened(cause: &str) -> String {
    cause.chars().take(MAX_CAUSE).collect()
}

fn is_control_plane(machine: &Machine) -> bool {
    machine.labels().contains_key(label::CONTROL_PLANE)
}

/// Returns true if an object belongs to the Cluster: its spec names the Cluster, and no other Cluster owns it.
///
/// The label with the cluster's name decides nothing. Every user of the namespace can set it, and it may be missing until the controller of
/// the object sets it.
pub fn is_child<K: OfCluster>(object: &K, cluster: &Cluster) -> bool {
    object.meta().namespace == cluster.metadata.namespace
        && object.cluster_name() == Some(&cluster.name_any())
        && !matches!(ownership(object, cluster), Ownership::Foreign(_))
}

/// Returns the relation of an object to the Cluster (K2).
pub fn ownership<'a, K: Resource>(object: &'a K, cluster: &Cluster) -> Ownership<'a> {
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    if owners(object, "Cluster").any(|owner| owner.uid == uid) {
        return Ownership::Own;
    }
    let name = cluster.name_any();
    let other = owners(object, "Cluster").find(|owner| owner.name != name);
    other.map_or(Ownership::Free, |owner| Ownership::Foreign(&owner.name))
}
