//! The member of etcd in the slot of a control plane that has joined: who it is, who is asked about it, and whether it may leave.
//!
//! By what kubeadm wrote into the slot. Called by `apply` when a slot is left, and by `observe` and applyConfiguration before anything is
//! disturbed for that.

use std::time::Duration;

use bedplate_api::configuration::NodeRole;
use bedplate_api::machine::SlotName;
use bedplate_bootstrap::unit;
use bedplate_process::exit::chain;
use reqwest::Method;
use serde_json::{Value, json};
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
/// Where etcd is asked, beside its peers' port.
const CLIENT_PORT: &str = "2379";
/// How long one member may take to say that it is well.
const WELL: Duration = Duration::from_secs(3);
/// And all that is asked before a member leaves.
const ALL: Duration = Duration::from_secs(10);

/// Why a member is not out of its cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaveEtcdError {
    /// The slot does not say how etcd is asked.
    #[error(
        "{0}: take the member out by `etcdctl member remove` on another control plane, then remove {data} in the slot (docs/node.md, \"A further \
         control plane\")",
        data = unit::ETCD_DATA
    )]
    Unknown(String),
    /// It is the cluster.
    #[error(
        "it is the only member, and so the cluster: have another control plane join first, or give the slot up by hand (docs/node.md, \"A \
         further control plane\")"
    )]
    Last,
    /// No member answers, or none does it.
    #[error("etcd says: {0}")]
    Etcd(String),
}

/// Whether the member in a slot could leave its cluster now, as etcd itself will decide when it is asked to. A slot without one may be left.
///
/// # Errors
/// It could not, or nobody says.
pub(crate) async fn may_leave(parts: &Parts, slot: SlotName) -> Result<(), LeaveEtcdError> {
    let read = parts.on_disk(move |slots| Ok(Member::of(slots, slot))).await;
    let member = read.map_err(|error| LeaveEtcdError::Etcd(chain(&error)))??;
    let Some(member) = member else { return Ok(()) };
    let asked = timeout(ALL, member.may_leave()).await;
    asked.unwrap_or_else(|_| Err(LeaveEtcdError::Etcd(format!("no answer within {} s", ALL.as_secs()))))
}

/// Whether nobody else votes.
pub(super) fn is_last(members: &[Value], own: &Value) -> bool {
    !members.iter().any(|one| one != own && votes(one))
}

fn votes(member: &Value) -> bool {
    member["isLearner"] != true
}

/// The member of etcd in a slot, and who it may ask.
pub(super) struct Member {
    /// The URL that others know it by.
    peer: String,
    /// Where etcd may be asked, itself first.
    endpoints: Vec<String>,
    ca_pem: String,
    certificate_pem: String,
    key_pem: Zeroizing<String>,
}

impl Member {
    /// By what kubeadm wrote into the slot, whether it runs or not. An etcd elsewhere has no member here.
    pub(super) fn of(slots: &Slots, slot: SlotName) -> Result<Option<Self>, LeaveEtcdError> {
        let has_data = slots.has_mark(slot, unit::ETCD_DATA);
        let text = |path: &str| {
            let unknown = |problem: String| LeaveEtcdError::Unknown(format!("{path} of the slot {problem}"));
            let read = || -> Result<Option<Vec<u8>>, KeepSlotError> {
                let Some((name, path)) = bind::kept(path, NodeRole::ControlPlane) else { return Ok(None) };
                Ok(Inside::open(&slots.places().kept(slot, name))?.read(&path)?)
            };
            let bytes = read().map_err(|error| unknown(format!("cannot be read: {}", chain(&error))))?;
            let bytes = bytes.ok_or_else(|| unknown("is not there".to_owned()))?;
            String::from_utf8(bytes).map_err(|_| unknown("is no text".to_owned()))
        };
        let none_of_kubeadms =
            || LeaveEtcdError::Unknown(format!("{MANIFEST} of the slot is none of kubeadm's"));
        let read = text(MANIFEST).and_then(|manifest| Flags::read(&manifest).ok_or_else(none_of_kubeadms));
        let flags = match read {
            // The cluster may have it keep its data elsewhere.
            Ok(flags) if has_data || flags.data != unit::ETCD_DATA => flags,
            Err(why) if has_data => return Err(why),
            Ok(_) | Err(_) => return Ok(None),
        };
        Ok(Some(Self {
            endpoints: flags.endpoints,
            peer: flags.peer,
            ca_pem: text(&flags.ca)?,
            certificate_pem: text(&flags.certificate)?,
            key_pem: Zeroizing::new(text(&flags.key)?),
        }))
    }

    pub(super) fn is_own(&self, member: &Value) -> bool {
        urls(member, "peerURLs").any(|url| url == self.peer)
    }

    /// The members, by the first that knows them for sure. An error is a text for a person.
    pub(super) async fn list(&self) -> Result<Vec<Value>, String> {
        let mut said = "no member to ask".to_owned();
        for endpoint in &self.endpoints {
            match self.ask(endpoint, "/v3/cluster/member/list", json!({ "linearizable": true })).await {
                Ok(answer) => match answer["members"].as_array().filter(|members| !members.is_empty()) {
                    Some(members) => return Ok(members.clone()),
                    None => said = format!("{endpoint} names no members"),
                },
                Err(why) => said = why,
            }
        }
        Err(said)
    }

    /// Has another member remove this one; itself, if no other does.
    pub(super) async fn remove(&self, own: &Value, members: &[Value]) -> Result<(), String> {
        let others = members.iter().filter(|one| !self.is_own(one));
        let others = others.flat_map(|one| urls(one, "clientURLs"));
        let own_urls = urls(own, "clientURLs");
        let mut said = "no member to ask".to_owned();
        for endpoint in others.chain(own_urls) {
            let body = json!({ "ID": own["ID"] });
            match self.ask(endpoint, "/v3/cluster/member/remove", body).await {
                Ok(_) => return Ok(()),
                Err(why) => said = why,
            }
        }
        Err(said)
    }

    /// Asked before: etcd lets nobody go whose loss would cost the quorum of who stays.
    async fn may_leave(&self) -> Result<(), LeaveEtcdError> {
        let members = self.list().await.map_err(LeaveEtcdError::Etcd)?;
        let Some(own) = members.iter().find(|one| self.is_own(one)) else { return Ok(()) };
        if is_last(&members, own) {
            return Err(LeaveEtcdError::Last);
        }
        let others: Vec<&Value> = members.iter().filter(|one| *one != own && votes(one)).collect();
        let (all, needed) = (others.len(), others.len() / 2 + 1);
        let (mut well, mut said) = (0, String::new());
        for other in others {
            match self.is_well(other).await {
                Ok(()) => well += 1,
                Err(why) => said = why,
            }
            if well == needed {
                return Ok(());
            }
        }
        Err(LeaveEtcdError::Etcd(format!(
            "{well} of its {all} other members answer, and {needed} have to so that it may leave: {said}"
        )))
    }

    /// Whether another member answers. An error is a text for a person.
    async fn is_well(&self, other: &Value) -> Result<(), String> {
        let mut said = "a member that never started".to_owned();
        for endpoint in urls(other, "clientURLs") {
            match timeout(WELL, self.ask(endpoint, "/v3/maintenance/status", json!({}))).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(why)) => said = why,
                Err(_) => said = format!("no answer of {endpoint} within {} s", WELL.as_secs()),
            }
        }
        Err(said)
    }

    async fn ask(&self, endpoint: &str, path: &str, body: Value) -> Result<Value, String> {
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

fn urls<'m>(member: &'m Value, field: &str) -> impl Iterator<Item = &'m str> {
    member[field].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// What etcd was started with.
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
    /// Out of a manifest of kubeadm's; none: it is none.
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
        // Those that were there when this one joined: whoever came later is told by any of them.
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
    use super::*;

    const KUBEADMS: &str = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command:\n    - etcd\n    \
        - --advertise-client-urls=https://10.7.0.12:2379\n    - --cert-file=/etc/kubernetes/pki/etcd/server.crt\n    \
        - --client-cert-auth=true\n    - --data-dir=/var/lib/etcd\n    - --initial-advertise-peer-urls=https://10.7.0.12:2380\n    \
        - --initial-cluster=cp1=https://10.7.0.11:2380,cp2=https://10.7.0.12:2380\n    \
        - --key-file=/etc/kubernetes/pki/etcd/server.key\n    - --peer-key-file=/etc/kubernetes/pki/etcd/peer.key\n    \
        - --trusted-ca-file=/etc/kubernetes/pki/etcd/ca.crt\n";

    #[test]
    fn etcd_is_asked_itself_first_then_those_that_were_there_when_it_joined() {
        let flags = Flags::read(KUBEADMS).unwrap();
        assert_eq!(flags.endpoints, ["https://10.7.0.12:2379", "https://10.7.0.11:2379"]);
        assert_eq!(flags.peer, "https://10.7.0.12:2380");
        assert_eq!(flags.data, unit::ETCD_DATA);
        assert_eq!(flags.key, "/etc/kubernetes/pki/etcd/server.key");
        assert_eq!(Flags::read("kind: Pod\n"), None);
        assert_eq!(Flags::read(&KUBEADMS.replace("trusted-ca", "x")), None);
    }

    #[test]
    fn the_own_member_is_known_by_its_peers_url_for_one_that_never_started_has_no_name() {
        let flags = Flags::read(KUBEADMS).unwrap();
        let member = Member {
            peer: flags.peer,
            endpoints: flags.endpoints,
            ca_pem: String::new(),
            certificate_pem: String::new(),
            key_pem: Zeroizing::default(),
        };
        assert!(member.is_own(&json!({ "ID": "1", "peerURLs": ["https://10.7.0.12:2380"] })));
        assert!(!member.is_own(&json!({ "ID": "2", "name": "cp2", "peerURLs": ["https://10.7.0.11:2380"] })));
        assert!(!member.is_own(&json!({})));
    }

    #[test]
    fn who_is_alone_or_beside_such_as_only_learn_is_the_last_member() {
        let own = json!({ "ID": "1" });
        let learner = json!({ "ID": "2", "isLearner": true });
        assert!(is_last(std::slice::from_ref(&own), &own));
        assert!(is_last(&[own.clone(), learner.clone()], &own));
        assert!(!is_last(&[learner, own.clone(), json!({ "ID": "3" })], &own));
    }
}
