//! The kubelet's certificate for a join and a renewal: the agent asks for it, and only that reaches a slot (docs/design/rules.md, Trust 5).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, CertificateSigningRequestParams, Issuer, KeyPair, PublicKeyData};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::*;
use crate::bus::kill_points::kill_before_each_effect;

/// Effects of a first pave, with the certificate signed at its second read.
const EFFECTS_OF_A_PAVE: &[(&str, usize)] = &[
    ("daemon-reload", 3),
    ("disk", 56),
    ("edit", 1),
    ("image", 4),
    ("probe", 1),
    ("request", 2),
    ("reset-failed", 1),
    ("restart", 2),
    ("run", 1),
    ("start", 3),
    ("stop", 2),
];

/// Answer of the cluster to every request.
#[derive(Default, Clone)]
pub(super) enum Mood {
    /// Signs it.
    #[default]
    Signs,
    /// Signs it at its second read.
    SignsLater,
    /// Signs a certificate that has ended.
    SignsLate,
    /// Leaves it open.
    Waits,
    /// Denies it.
    Denies,
}

/// Certificate requests of a cluster.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) mood: Mutex<Mood>,
    /// Number of reads of each request.
    reads: Mutex<BTreeMap<String, u32>>,
}

impl Requests {
    pub(super) fn ask(&self, name: &str, csr_pem: &str) -> Result<CertificateAnswer, AskServerError> {
        let mut reads = self.reads.lock().unwrap();
        let read = reads.entry(name.to_owned()).or_default();
        *read += 1;
        let pending = CertificateAnswer::Pending { is_approved: false };
        Ok(match self.mood.lock().unwrap().clone() {
            Mood::Signs => CertificateAnswer::Issued(signed(csr_pem, 2090)),
            Mood::SignsLater if *read > 1 => CertificateAnswer::Issued(signed(csr_pem, 2090)),
            Mood::SignsLate => CertificateAnswer::Issued(signed(csr_pem, 2020)),
            Mood::SignsLater | Mood::Waits => pending,
            Mood::Denies => CertificateAnswer::Refused("Denied: Node node-1 is another host's".to_owned()),
        })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.reads.lock().unwrap().keys().cloned().collect()
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }
}

fn signed(csr_pem: &str, year: i32) -> String {
    let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
    let mut csr = CertificateSigningRequestParams::from_pem(csr_pem).unwrap();
    csr.params.not_after = rcgen::date_time_ymd(year, 1, 1);
    csr.signed_by(&issuer).unwrap().pem()
}

/// The subject of the certificate in a kubeconfig, whose key is its own.
pub(super) fn identity(kubeconfig: &str) -> String {
    let data = |name: &str| {
        let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: ")));
        String::from_utf8(STANDARD.decode(line.unwrap().trim_matches('"')).unwrap()).unwrap()
    };
    let key = KeyPair::from_pem(&data("client-key-data")).unwrap();
    let der = CertificateDer::from_pem_slice(data("client-certificate-data").as_bytes()).unwrap();
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    assert_eq!(certificate.public_key().raw, key.subject_public_key_info());
    certificate.subject().to_string()
}

fn key(world: &World) -> std::path::PathBuf {
    world.parts.slots.places().kubelet_key(SlotName::A)
}

/// Turns until the loop reports this text, then kills the agent.
async fn killed_when_reported(world: &mut World, text: &str) {
    let plane = world.plane.clone();
    let is_reported = || {
        let reported = plane.reported.lock().unwrap();
        reported.iter().flat_map(|reported| &reported.paved).any(|paved| paved.message.contains(text))
    };
    let mut agent = world.agent();
    let turns = async {
        loop {
            world.react().await;
            agent.advance().await;
        }
    };
    let reported = async {
        while !is_reported() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = reported => {}
        () = turns => {}
    }
    tokio::task::spawn_blocking(|| ()).await.unwrap();
}

#[test]
fn trust_5_join_kubeconfig_is_the_kubelets_and_its_key_is_deleted() {
    in_runtime(async {
        let mut world = World::new();
        world.select(1);
        assert_eq!(world.settled().await, "Applied");
        let kubeconfig = world.parts.slots.places().shared(SlotName::A).join("kubeconfig");
        let kubeconfig = std::fs::read_to_string(kubeconfig).unwrap();
        assert_eq!(identity(&kubeconfig), "O=system:nodes, CN=system:node:node-1");
        assert!(!key(&world).exists());
    });
}

#[test]
fn trust_5_agent_killed_before_any_effect_makes_one_request_for_a_join() {
    in_runtime(kill_before_each_effect(EFFECTS_OF_A_PAVE, async |kill_at| {
        let mut world = World::new();
        world.kills.arm(kill_at);
        world.plane.requests.set(Mood::SignsLater);
        world.select(1);
        assert_eq!(world.settled().await, "Applied", "killed at {kill_at:?}");
        let names = world.plane.requests.names();
        assert_eq!(names.len(), 1, "killed at {kill_at:?}: {names:?}");
        world.kills
    }));
}

#[test]
fn trust_5_pending_certificate_is_reported_by_name_and_requested_once() {
    in_runtime(async {
        let mut world = World::new();
        world.plane.requests.set(Mood::Waits);
        world.select(1);
        for _ in 0..3 {
            world.plane.reported.lock().unwrap().clear();
            killed_when_reported(&mut world, "waiting for certificate request bedplate-kubelet-node-1-")
                .await;
            assert!(!world.runs(SlotName::A).await, "a slot has nothing to join by yet");
            assert!(key(&world).exists());
        }
        let reported = world.reported().paved.unwrap();
        assert_eq!((reported.status, reported.reason), (Truth::False, PavedReason::Starting));
        assert!(reported.message.ends_with("to be approved"), "{}", reported.message);
        world.plane.requests.set(Mood::Signs);
        assert_eq!(world.settled().await, "Applied");
        assert_eq!(world.plane.requests.names().len(), 1);
    });
}

#[test]
fn trust_5_denied_certificate_is_reported_and_requested_once() {
    in_runtime(async {
        let mut world = World::new();
        world.plane.requests.set(Mood::Denies);
        world.select(1);
        let mut agent = world.agent();
        for _ in 0..20 {
            world.react().await;
            agent.advance().await;
            agent.attempts = Attempts::default();
        }
        let paved = world.reported().paved.unwrap();
        assert_eq!(paved.reason, PavedReason::CertificateDenied);
        let names = world.plane.requests.names();
        assert_eq!(names.len(), 1, "{names:?}");
        for part in ["Node node-1 is another host's", &format!("kubectl delete csr {}", names[0])] {
            assert!(paved.message.contains(part), "{}", paved.message);
        }
        world.plane.requests.set(Mood::Signs);
        assert_eq!(world.settled().await, "Applied");
        let pending = ApplyError::CertificatePending { name: "r".to_owned(), missing: "approved" };
        assert_eq!(pending.reason(), Some(PavedReason::CertificateApprovalRequired));
    });
}

#[test]
fn trust_5_ended_certificate_is_not_used_and_another_is_requested() {
    in_runtime(async {
        let mut world = World::new();
        world.plane.requests.set(Mood::SignsLate);
        world.select(1);
        let mut agent = world.agent();
        while world.plane.requests.names().len() < 2 {
            agent.advance().await;
            agent.attempts = Attempts::default();
            assert!(!world.runs(SlotName::A).await);
        }
        world.plane.requests.set(Mood::Signs);
        assert_eq!(world.settled().await, "Applied");
    });
}

#[test]
fn trust_5_key_of_a_kubelet_goes_with_its_drained_slot() {
    in_runtime(async {
        let mut world = World::new();
        world.plane.requests.set(Mood::Waits);
        world.select(1);
        killed_when_reported(&mut world, "waiting for certificate request").await;
        assert!(key(&world).exists());
        world.drain();
        let mut agent = world.agent();
        for _ in 0..20 {
            agent.advance().await;
            trash::remove(&world.parts.slots, &Beat::unwatched()).await;
        }
        assert_eq!(world.reported().slots[0].state, SlotState::Empty);
        assert!(!key(&world).exists());
    });
}
