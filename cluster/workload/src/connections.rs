//! The clients of all workload clusters: one for each cluster, made again when its kubeconfig changes.

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_process::lock::Lock;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::connect::{ConnectError, client};
use crate::kubeconfig::Kubeconfig;
use crate::networks::Networks;
use crate::workload::Workload;

/// Maximum number of clusters. Above it, the one that was used longest ago is forgotten; its next use connects again.
const MAX_CLUSTERS: usize = 1024;

/// A Cluster of the management cluster. Another one of the same name has another UID, and so another client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// Clients of workload clusters. Clones share them.
#[derive(Clone, Default)]
pub struct Connections {
    networks: Arc<Networks>,
    clusters: Arc<Lock<HashMap<ClusterKey, Connection>>>,
}

struct Connection {
    /// Hash of the kubeconfig.
    hash: [u8; 32],
    workload: Workload,
    used: Instant,
}

impl Connections {
    /// Makes connections within these networks.
    pub fn new(networks: Networks) -> Self {
        Self { networks: Arc::new(networks), clusters: Arc::default() }
    }

    /// Returns the client of a cluster whose kubeconfig has this text. Sends no request.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn connect(&self, cluster: &ClusterKey, kubeconfig: &[u8]) -> Result<Workload, ConnectError> {
        let (hash, now) = (Sha256::digest(kubeconfig).into(), Instant::now());
        if let Some(known) = self.clusters.lock().get_mut(cluster)
            && known.hash == hash
        {
            known.used = now;
            return Ok(known.workload.clone());
        }
        let made = Kubeconfig::parse(kubeconfig).map_err(ConnectError::from);
        let made = made.and_then(|kubeconfig| client(&kubeconfig, &self.networks)).map(Workload::new);
        let mut clusters = self.clusters.lock();
        match made {
            Ok(workload) => {
                clusters.insert(cluster.clone(), Connection { hash, workload: workload.clone(), used: now });
                if clusters.len() > MAX_CLUSTERS {
                    forget_oldest(&mut clusters);
                }
                Ok(workload)
            }
            Err(error) => {
                clusters.remove(cluster);
                Err(error)
            }
        }
    }

    /// Forgets a cluster that was deleted.
    pub fn forget(&self, cluster: &ClusterKey) {
        self.clusters.lock().remove(cluster);
    }

    /// Returns the number of clusters with a client.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.clusters.lock().len()
    }
}

fn forget_oldest(clusters: &mut HashMap<ClusterKey, Connection>) {
    let oldest = clusters.iter().min_by_key(|(_, connection)| connection.used).map(|(key, _)| key.clone());
    if let Some(oldest) = oldest {
        clusters.remove(&oldest);
    }
}
