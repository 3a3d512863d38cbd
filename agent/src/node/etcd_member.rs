//! The member of etcd in the slot of a control plane that has joined, by the files that kubeadm wrote into the slot.
//!
//! `bedplate_etcd` asks etcd and decides. Called by `apply` when a slot is left, and by `observe` and applyConfiguration before anything is
//! disturbed for that.

use std::time::Duration;

use bedplate_api::configuration::NodeRole;
use bedplate_api::machine::SlotName;
use bedplate_bootstrap::unit;
use bedplate_etcd::{self as etcd, AskError, MustStay};
use bedplate_process::exit::chain;
use reqwest::Method;
use serde_json::Value;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::effects::Parts;
use crate::kubelet::client::AskNodeError;
use crate::kubelet::connection::{KubeletCredential, Way};
use crate::slot::bind;
use crate::slot::confined_writer::Inside;
use crate::slot::store::{KeepSlotError, Slots};

/// The static Pod of etcd, made by kubeadm.
const MANIFEST: &str = "/etc/kubernetes/manifests/etcd.yaml";
/// Port for clients, next to the port for peers.
const CLIENT_PORT: &str = "2379";
/// Maximum time of all questions before a member leaves.
const MAY_LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a member does not leave its cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaveEtcdError {
    /// The files of the slot do not name etcd's endpoints or credentials.
    #[error(
        "{0}; run `etcdctl member remove` on another control plane, then remove {data} in the slot \
         (docs/concepts/node.md, \"A further control plane\")",
        data = unit::ETCD_DATA
    )]
    Unknown(String),
    /// The member is the cluster.
    #[error(
        "the member is the only one of its cluster; join another control plane first, or remove the slot \
         by hand (docs/concepts/node.md, \"A further control plane\")"
    )]
    Last,
    /// No member answers, or etcd refuses.
    #[error("etcd says: {0}")]
    Etcd(String),
}

impl From<AskError> for LeaveEtcdError {
    fn from(error: AskError) -> Self {
        Self::Etcd(error.to_string())
    }
}

impl From<MustStay> for LeaveEtcdError {
    fn from(reason: MustStay) -> Self {
        match reason {
            MustStay::Last => Self::Last,
            MustStay::NoQuorum { .. } => Self::Etcd(reason.to_string()),
        }
    }
}

/// Checks whether the member in a slot could leave its cluster now. A slot without a member may be left.
///
/// # Errors
/// etcd would refuse the removal, or gives no answer.
pub(crate) async fn may_leave(parts: &Parts, slot: SlotName) -> Result<(), LeaveEtcdError> {
    let read = parts.on_disk(move |slots| Ok(Member::of(slots, slot))).await;
    let member = read.map_err(|error| LeaveEtcdError::Etcd(chain(&error)))??;
    let Some(member) = member else { return Ok(()) };
    let asked = timeout(MAY_LEAVE_TIMEOUT, member.may_leave()).await;
    asked.unwrap_or_else(|_| {
        Err(LeaveEtcdError::Etcd(format!("no answer within {} s", MAY_LEAVE_TIMEOUT.as_secs())))
    })
}

/// Member of etcd in a slot, with a client of its cluster.
pub(super) struct Member {
    /// URL by which other members know it.
    peer: String,
    /// Asks etcd, this member first.
    pub(super) etcd: etcd::Client<SlotCertificate>,
}

impl Member {
    /// Reads the member from the files of a slot, whether it runs or not. None: etcd has no member in this slot.
    pub(super) fn of(slots: &Slots, slot: SlotName) -> Result<Option<Self>, LeaveEtcdError> {
        let has_data = slots.has_mark(slot, unit::ETCD_DATA);
        let text = |path: &str| {
            let unknown = |problem: String| LeaveEtcdError::Unknown(format!("{path} of the slot {problem}"));
            let read = || -> Result<Option<Vec<u8>>, KeepSlotError> {
                let Some((name, path)) = bind::kept(path, NodeRole::ControlPlane) else { return Ok(None) };
                Ok(Inside::open(&slots.places().kept(slot, name))?.read(&path)?)
            };
            let bytes = read().map_err(|error| unknown(format!("cannot be read: {}", chain(&error))))?;
            let bytes = bytes.ok_or_else(|| unknown("is missing".to_owned()))?;
            String::from_utf8(bytes).map_err(|_| unknown("is not UTF-8 text".to_owned()))
        };
        let none_of_kubeadms =
            || LeaveEtcdError::Unknown(format!("{MANIFEST} of the slot was not written by kubeadm"));
        let read = text(MANIFEST).and_then(|manifest| Flags::read(&manifest).ok_or_else(none_of_kubeadms));
        let flags = match read {
            // The cluster may have it keep its data elsewhere.
            Ok(flags) if has_data || flags.data != unit::ETCD_DATA => flags,
            Err(why) if has_data => return Err(why),
            Ok(_) | Err(_) => return Ok(None),
        };
        let certificate = SlotCertificate {
            ca_pem: text(&flags.ca)?,
            certificate_pem: text(&flags.certificate)?,
            key_pem: Zeroizing::new(text(&flags.key)?),
        };
        let etcd = etcd::Client::new(certificate, flags.endpoints);
        Ok(Some(Self { peer: flags.peer, etcd }))
    }

    pub(super) fn is_own(&self, member: &etcd::Member) -> bool {
        member.has_peer_url(&self.peer)
    }

    async fn may_leave(&self) -> Result<(), LeaveEtcdError> {
        let members = self.etcd.members().await?;
        let Some(own) = members.iter().find(|one| self.is_own(one)) else { return Ok(()) };
        Ok(self.etcd.may_leave(own, &members).await?)
    }
}

/// Connection to etcd by the certificate of the member in the slot.
pub(super) struct SlotCertificate {
    ca_pem: String,
    certificate_pem: String,
    key_pem: Zeroizing<String>,
}

impl etcd::Gateway for SlotCertificate {
    async fn post(&self, endpoint: &str, path: &str, body: Value) -> Result<Value, String> {
        let credential = KubeletCredential {
            server: endpoint.trim_end_matches('/').to_owned(),
            ca_pem: self.ca_pem.clone(),
            certificate_pem: self.certificate_pem.clone(),
            key_pem: self.key_pem.clone(),
        };
        let asked = async {
            let way = Way::new(&credential)?;
            way.ask(Method::POST, path, Some(("application/json", body))).await
        };
        asked.await.map_err(|error| match error {
            AskNodeError::Refused { url, status, message, .. } => format!("{message} ({status} of {url})"),
            error => chain(&error),
        })
    }
}

/// Arguments that etcd was started with.
#[derive(Debug, PartialEq, Eq)]
struct Flags {
    peer: String,
    endpoints: Vec<String>,
    ca: String,
    certificate: String,
    key: String,
    /// The directory of its data.
    data: String,
}

impl Flags {
    /// Reads a manifest of kubeadm. None: another program wrote it.
    fn read(manifest: &str) -> Option<Self> {
        let manifest: Value = serde_saphyr::from_str(manifest).ok()?;
        let command = manifest["spec"]["containers"][0]["command"].as_array()?;
        let flag = |name: &str| {
            let values = command.iter().filter_map(Value::as_str);
            let mut values =
                values.filter_map(|word| word.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('='));
            values.next().map(str::to_owned)
        };
        let mut endpoints: Vec<String> =
            flag("advertise-client-urls")?.split(',').map(str::to_owned).collect();
        // Members at the time of the join. Any of them knows the later ones.
        let initial = flag("initial-cluster").unwrap_or_default();
        for peer in initial.split(',').filter_map(|member| member.split_once('=')) {
            let host = peer.1.rsplit_once(':').map_or(peer.1, |(host, _)| host);
            let endpoint = format!("{host}:{CLIENT_PORT}");
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        Some(Self {
            peer: flag("initial-advertise-peer-urls")?.split(',').next()?.to_owned(),
            endpoints,
            ca: flag("trusted-ca-file")?,
            certificate: flag("cert-file")?,
            key: flag("key-file")?,
            data: format!("{}/member", flag("data-dir")?.trim_end_matches('/')),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KUBEADMS: &str = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command:\n    - etcd\n    \
        - --advertise-client-urls=https://10.7.0.12:2379\n    - --cert-file=/etc/kubernetes/pki/etcd/server.crt\n    \
        - --client-cert-auth=true\n    - --data-dir=/var/lib/etcd\n    - --initial-advertise-peer-urls=https://10.7.0.12:2380\n    \
        - --initial-cluster=cp1=https://10.7.0.11:2380,cp2=https://10.7.0.12:2380\n    \
        - --key-file=/etc/kubernetes/pki/etcd/server.key\n    - --peer-key-file=/etc/kubernetes/pki/etcd/peer.key\n    \
        - --trusted-ca-file=/etc/kubernetes/pki/etcd/ca.crt\n";

    #[test]
    fn etcd_is_asked_itself_first_then_the_members_that_it_joined() {
        let flags = Flags::read(KUBEADMS).unwrap();
        assert_eq!(flags.endpoints, ["https://10.7.0.12:2379", "https://10.7.0.11:2379"]);
        assert_eq!(flags.peer, "https://10.7.0.12:2380");
        assert_eq!(flags.data, unit::ETCD_DATA);
        assert_eq!(flags.key, "/etc/kubernetes/pki/etcd/server.key");
        assert_eq!(Flags::read("kind: Pod\n"), None);
        assert_eq!(Flags::read(&KUBEADMS.replace("trusted-ca", "x")), None);
    }

    #[test]
    fn own_member_is_known_by_its_peer_url_even_before_it_started() {
        let flags = Flags::read(KUBEADMS).unwrap();
        let certificate = SlotCertificate {
            ca_pem: String::new(),
            certificate_pem: String::new(),
            key_pem: Zeroizing::default(),
        };
        let member = Member { peer: flags.peer, etcd: etcd::Client::new(certificate, flags.endpoints) };
        let read = |shown: Value| serde_json::from_value::<etcd::Member>(shown).unwrap();
        assert!(member.is_own(&read(json!({ "ID": "1", "peerURLs": ["https://10.7.0.12:2380"] }))));
        let other = json!({ "ID": "2", "name": "cp2", "peerURLs": ["https://10.7.0.11:2380"] });
        assert!(!member.is_own(&read(other)));
    }
}
