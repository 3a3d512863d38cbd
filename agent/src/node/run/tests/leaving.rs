//! Repave of a further control plane. Its etcd member leaves the cluster first,
//! whenever the agent is killed (docs/design/rules.md, H6).

use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::bus::kill_points::kill_before_each_effect;
use crate::slot::fill_record::LEAVING;

/// Effects of a repave of a further control plane.
const EFFECTS_OF_A_REPAVE: &[(&str, usize)] = &[
    ("daemon-reload", 2),
    ("disk", 65),
    ("edit", 1),
    ("image", 2),
    ("probe", 1),
    ("remove", 1),
    ("request", 1),
    ("reset-failed", 1),
    ("restart", 2),
    ("run", 2),
    ("start", 2),
    ("stop", 3),
];

/// The peer's URL of this host's member: of the slot that runs, whichever that is.
const OWN: &str = "https://10.7.0.12:2380";
const FIRST: &str = "https://10.7.0.11:2380";

/// An etcd cluster: the endpoint of another member, and this host's own, which
/// answers only while the host is a member.
pub(super) struct Etcd {
    ca_pem: String,
    certificate_pem: String,
    key_pem: String,
    ports: [u16; 2],
    members: Mutex<Vec<(u64, &'static str)>>,
    ids: AtomicU32,
    /// The other member takes no removal.
    refuses: AtomicBool,
    /// The other member is not well.
    ill: AtomicBool,
    removed: AtomicU32,
    /// Points at which the agent is killed.
    kills: OnceLock<KillPoints>,
}

impl Etcd {
    /// Starts the etcd cluster of the other member.
    async fn start() -> Arc<Self> {
        let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut authority = CertificateParams::new(vec![]).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = authority.self_signed(&authority_key).unwrap().pem();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &Issuer::new(authority, &authority_key)).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let listeners = [
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        let etcd = Arc::new(Self {
            ca_pem,
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            ports: [0, 1].map(|n: usize| listeners[n].local_addr().unwrap().port()),
            members: Mutex::new(vec![(1, FIRST)]),
            ids: AtomicU32::new(1),
            refuses: AtomicBool::new(false),
            ill: AtomicBool::new(false),
            removed: AtomicU32::new(0),
            kills: OnceLock::new(),
        });
        let acceptor = TlsAcceptor::from(Arc::new(config));
        for (listener, is_own) in listeners.into_iter().zip([true, false]) {
            let (etcd, acceptor) = (Arc::clone(&etcd), acceptor.clone());
            tokio::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (etcd, acceptor) = (Arc::clone(&etcd), acceptor.clone());
                    tokio::spawn(async move {
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        let _ = etcd.serve(stream, is_own).await;
                    });
                }
            });
        }
        etcd
    }

    fn is_member(&self) -> bool {
        self.members.lock().unwrap().iter().any(|(_, peer)| *peer == OWN)
    }

    /// kubeadm joins; what it leaves in the slot.
    pub(super) fn join(&self, slots: &Slots, slot: SlotName) {
        assert!(!self.is_member(), "etcd takes no second member of one peer");
        let id = u64::from(self.ids.fetch_add(1, Ordering::Relaxed)) + 1;
        self.members.lock().unwrap().push((id, OWN));
        let [own, other] = self.ports;
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command:\n    - etcd\n    \
             - --advertise-client-urls=https://127.0.0.1:{own},https://127.0.0.1:{other}\n    \
             - --cert-file=/etc/kubernetes/pki/etcd/server.crt\n    - --data-dir=/var/lib/etcd\n    \
             - --initial-advertise-peer-urls={OWN}\n    - --key-file=/etc/kubernetes/pki/etcd/server.key\n    \
             - --trusted-ca-file=/etc/kubernetes/pki/etcd/ca.crt\n"
        );
        std::fs::create_dir_all(slots.places().kept(slot, "etcd").join("member")).unwrap();
        let kept = slots.places().kept(slot, "kubernetes");
        for (path, text) in [
            ("manifests/etcd.yaml", &manifest),
            ("pki/etcd/ca.crt", &self.ca_pem),
            ("pki/etcd/server.crt", &self.certificate_pem),
            ("pki/etcd/server.key", &self.key_pem),
        ] {
            std::fs::create_dir_all(kept.join(path).parent().unwrap()).unwrap();
            std::fs::write(kept.join(path), text).unwrap();
        }
    }

    /// Answers one request after another.
    async fn serve(
        &self,
        mut stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>,
        is_own: bool,
    ) -> std::io::Result<()> {
        let mut read = Vec::new();
        loop {
            let (path, body) = loop {
                if let Some(request) = take_request(&mut read) {
                    break request;
                }
                if stream.read_buf(&mut read).await? == 0 {
                    return Ok(());
                }
            };
            if is_own && !self.is_member() {
                return Ok(());
            }
            let is_asked = path.ends_with("/maintenance/status");
            if is_asked && !is_own && self.ill.load(Ordering::Relaxed) {
                return Ok(());
            }
            if let Some(kills) = self.kills.get().filter(|_| path.ends_with("/remove")) {
                kills.reach("remove the member").await;
            }
            let answer = self.answer(&path, &body);
            // A removed member does not answer any more.
            if is_own && !self.is_member() {
                return Ok(());
            }
            let (status, text) = answer.map_or_else(
                |why| ("500 Internal Server Error", json!({ "message": why }).to_string()),
                |value| ("200 OK", value.to_string()),
            );
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", text.len());
            stream.write_all(format!("{head}{text}").as_bytes()).await?;
        }
    }

    fn answer(&self, path: &str, body: &serde_json::Value) -> Result<serde_json::Value, &'static str> {
        let mut members = self.members.lock().unwrap();
        if path.ends_with("/remove") {
            if self.refuses.load(Ordering::Relaxed) {
                return Err("etcdserver: re-configuration failed due to not enough started members");
            }
            let before = members.len();
            let asked = body["ID"].as_str().and_then(|id| id.parse::<u64>().ok());
            members.retain(|(id, _)| Some(*id) != asked);
            if members.len() == before {
                return Err("etcdserver: member not found");
            }
            self.removed.fetch_add(1, Ordering::Relaxed);
        }
        let [own, other] = self.ports;
        let reported = members.iter().map(|(id, peer)| {
            let port = if *peer == OWN { own } else { other };
            json!({ "ID": id.to_string(), "peerURLs": [peer], "clientURLs": [format!("https://127.0.0.1:{port}")] })
        });
        Ok(json!({ "members": reported.collect::<Vec<_>>() }))
    }
}

/// Path and body of a request that is there as a whole.
fn take_request(read: &mut Vec<u8>) -> Option<(String, serde_json::Value)> {
    let head = read.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
    let length: usize = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
    let body = serde_json::from_slice(read.get(head..head + length)?).unwrap();
    let path = text.split(' ').nth(1)?.to_owned();
    read.drain(..head + length);
    Some((path, body))
}

/// A host that is the second control plane of a cluster, by version 1; version 2 lies ready.
async fn further() -> (World, Arc<Etcd>) {
    let etcd = Etcd::start().await;
    let mut world = World::new();
    world.etcd = Some(Arc::clone(&etcd));
    assert!(etcd.kills.set(world.kills.clone()).is_ok());
    world.select(1);
    assert_eq!(world.settled().await, "Applied");
    world.select(2);
    assert_eq!(world.settled().await, "Applied");
    assert!(etcd.is_member());
    (world, etcd)
}

/// As an agent leaves it that was killed after its mark.
fn mark(world: &World, slot: SlotName) {
    world.parts.slots.set_mark(slot, LEAVING, true).unwrap();
}

fn stage(world: &World, slot: SlotName) -> Stage {
    world.record(slot).unwrap().stage
}

async fn turns(world: &World, count: usize) {
    let mut agent = world.agent();
    for _ in 0..count {
        agent.advance().await;
        agent.attempts = Attempts::default();
    }
}

#[test]
fn h6_control_plane_leaves_once_and_joins_again_despite_kills() {
    in_runtime(kill_before_each_effect(EFFECTS_OF_A_REPAVE, async |kill_at| {
        let (mut world, etcd) = further().await;
        world.kills.arm(kill_at);
        world.delete_node(2);
        assert_eq!(world.settled().await, "Applied", "killed at {kill_at:?}");
        assert!(is_applied(&world, SlotName::B, 2), "killed at {kill_at:?}");
        assert!(world.runs(SlotName::B).await && !world.runs(SlotName::A).await, "killed at {kill_at:?}");
        assert_eq!(etcd.removed.load(Ordering::Relaxed), 1, "killed at {kill_at:?}");
        let peers: Vec<_> = etcd.members.lock().unwrap().iter().map(|(_, peer)| *peer).collect();
        assert_eq!(peers, [FIRST, OWN], "killed at {kill_at:?}");
        world.kills
    }));
}

#[test]
fn h6_removal_is_finished_after_the_api_server_went_with_its_etcd() {
    in_runtime(async {
        let (world, etcd) = further().await;
        world.delete_node(2);
        mark(&world, SlotName::A);
        etcd.members.lock().unwrap().pop();
        let unit: UnitName = service(SlotName::A).parse().unwrap();
        world.units.set(&unit, unit_state(ActiveState::Inactive, "dead"));
        world.plane.seen.send_modify(|seen| (seen.api, seen.node) = (Api::Away, NodeState::Unknown));
        turns(&world, 3).await;
        assert_eq!(stage(&world, SlotName::A), Stage::Retired);
        assert!(!world.runs(SlotName::A).await, "its start would register the Node that a person deleted");
    });
}

#[test]
fn h6_member_stays_if_its_node_returned_before_the_removal() {
    in_runtime(async {
        let (world, etcd) = further().await;
        mark(&world, SlotName::A);
        world.plane.there.store(true, Ordering::Relaxed);
        turns(&world, 3).await;
        assert!(etcd.is_member());
        assert!(is_applied(&world, SlotName::A, 1) && world.runs(SlotName::A).await);
        assert!(!world.parts.slots.has_mark(SlotName::A, LEAVING));
    });
}

#[test]
fn last_member_stays_and_its_removal_is_canceled() {
    in_runtime(async {
        let (world, etcd) = further().await;
        world.delete_node(2);
        mark(&world, SlotName::A);
        etcd.members.lock().unwrap().remove(0);
        turns(&world, 1).await;
        assert!(etcd.is_member() && world.runs(SlotName::A).await);
        assert!(!world.parts.slots.has_mark(SlotName::A, LEAVING));
        let paved = world.reported().paved.unwrap();
        assert_eq!(paved.reason, PavedReason::ControlPlaneProtected);
        assert!(paved.message.contains("the member is the only one"), "{}", paved.message);
    });
}

#[test]
fn removal_that_etcd_refuses_is_reported_and_the_slot_keeps_running() {
    in_runtime(async {
        let (world, etcd) = further().await;
        etcd.refuses.store(true, Ordering::Relaxed);
        world.delete_node(2);
        turns(&world, 2).await;
        assert!(is_applied(&world, SlotName::A, 1) && world.runs(SlotName::A).await);
        let paved = world.reported().paved.unwrap();
        assert!(paved.message.contains("not enough started members"), "{}", paved.message);
        assert!(!world.parts.slots.has_mark(SlotName::A, LEAVING));
    });
}

#[test]
fn a_member_whose_data_lie_elsewhere_is_taken_out_as_well() {
    in_runtime(async {
        let (mut world, etcd) = further().await;
        let places = world.parts.slots.places();
        std::fs::remove_dir(places.kept(SlotName::A, "etcd").join("member")).unwrap();
        let manifest = places.kept(SlotName::A, "kubernetes").join("manifests/etcd.yaml");
        let text = std::fs::read_to_string(&manifest).unwrap();
        std::fs::write(&manifest, text.replace("/var/lib/etcd", "/srv/etcd")).unwrap();
        world.delete_node(2);
        assert_eq!(world.settled().await, "Applied");
        assert_eq!(etcd.removed.load(Ordering::Relaxed), 1);
        assert!(is_applied(&world, SlotName::B, 2));
    });
}

#[test]
fn o8_last_member_is_reported_until_another_one_joins() {
    in_runtime(async {
        let (mut world, etcd) = further().await;
        etcd.members.lock().unwrap().remove(0);
        world.select(3);
        turns(&world, 3).await;
        let paved = world.reported().paved.unwrap();
        assert_eq!(
            (paved.status, paved.reason),
            (Truth::True, PavedReason::ControlPlaneProtected),
            "{}",
            paved.message
        );
        assert!(paved.message.contains("the member is the only one"), "{}", paved.message);
        assert_eq!(world.record(SlotName::B), None, "version 2 is not selected any more");
        etcd.members.lock().unwrap().push((9, FIRST));
        assert_eq!(world.settled().await, "Applied");
        assert!(world.record(SlotName::B).is_some_and(|record| record.version.version == 3));
    });
}

#[test]
fn o8_member_that_the_quorum_needs_is_held_as_etcd_would() {
    in_runtime(async {
        let (world, etcd) = further().await;
        etcd.ill.store(true, Ordering::Relaxed);
        world.select(3);
        turns(&world, 3).await;
        let paved = world.reported().paved.unwrap();
        assert_eq!(paved.reason, PavedReason::ControlPlaneProtected, "{}", paved.message);
        assert!(paved.message.contains("0 of its 1 other members answer"), "{}", paved.message);
    });
}
