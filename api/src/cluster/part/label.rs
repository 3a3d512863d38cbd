//! Labels of Cluster API.
//!
//! Not here: who writes them. Callers: the kinds and the controllers of Cluster API.
//!
//! Pure: no clock, no file, no socket.

pub use crate::cluster::core::{CLUSTER_NAME_LABEL as CLUSTER_NAME, CONTROL_PLANE_LABEL as CONTROL_PLANE};

/// Label of a Machine: name of the KubeadmControlPlane that it belongs to, as [`super::label_value`].
pub const CONTROL_PLANE_NAME: &str = "cluster.x-k8s.io/control-plane-name";

/// Label of a Machine: name of the MachineSet that made it, as [`super::label_value`].
pub const SET_NAME: &str = "cluster.x-k8s.io/set-name";

/// Label of a MachineSet and of its Machines: name of the MachineDeployment.
pub const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";

/// Label of a MachineSet and of its Machines: hash of the template and a suffix.
pub const TEMPLATE_HASH: &str = "machine-template-hash";

/// Label of a Node: the infrastructure may take the machine away. Its value has no meaning.
pub const INTERRUPTIBLE: &str = "cluster.x-k8s.io/interruptible";

/// Label of a Pod: `skip` or `wait-completed`. It counts before each MachineDrainRule.
pub const DRAIN: &str = "cluster.x-k8s.io/drain";

/// Label of the definition of a kind: provider that it belongs to.
pub const PROVIDER: &str = "cluster.x-k8s.io/provider";
