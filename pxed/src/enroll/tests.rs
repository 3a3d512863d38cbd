//! Enrollment end to end, by a TLS client against the real listener.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bedplate_api::enrollment::{AGENTS_GROUP, KeyId};
use bedplate_api::id::BootId;
use bedplate_api::machine::{Hardware, StateDiskStatus};
use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_api::wire::{EnrollRequest, EnrollResponse, Refusal, RenewRequest, Report, SecretText, Seed};
use hyper::Method;
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::counters::{Counters, Enrollment, Renewal, Reported};
use super::permission::Permissions;
use super::plane::AgentPlane;
use super::rate_limit::Paces;
use super::service::Service;
use super::signer::Signer;
use super::tls::Configurations;
use crate::cluster::agents::AskApiServer;
use crate::heard::Heard;
use crate::http::tests::{HOST_CASES, Rig, listening, plain};
use crate::machines::Snapshot;
use crate::standalone::signer::LocalSigner;
use crate::system_of_record::SystemOfRecord;
use bedplate_process::listen::Limits;

mod cluster;
mod failure;
mod lost_store;
mod standalone;
mod takeover;

struct Agents {
    rig: Rig,
    address: SocketAddr,
    counters: Arc<Counters>,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl Agents {
    async fn start(rig: Rig) -> Self {
        let signer = Arc::new(LocalSigner { authority: rig.authority.clone() });
        Self::start_with(rig, signer).await
    }

    async fn start_with(rig: Rig, signer: Arc<dyn Signer>) -> Self {
        Self::start_with_plane(rig, signer, Arc::new(AskApiServer)).await
    }

    async fn start_with_plane(rig: Rig, signer: Arc<dyn Signer>, plane: Arc<dyn AgentPlane>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let configurations = Arc::new(Configurations::new(rig.authority.clone(), None));
        assert_eq!(configurations.believe(rig.authority.pem()), 1);
        let counters = Arc::new(Counters::default());
        let service = Service {
            machines: rig.machines.clone(),
            boots: rig.boots().clone(),
            registry: rig.registry.clone(),
            store: rig.store.clone(),
            plane,
            signer,
            counters: counters.clone(),
            paces: Paces::default(),
            heard: rig.heard.clone(),
            turns: super::turn::Turns::default(),
            listens_first: rig.authority.precedes(rig.store.path()),
        };
        let shutdown = CancellationToken::new();
        let serve = super::serve::serve(
            listener,
            configurations,
            Arc::new(service),
            listening(Limits::default()),
            shutdown.clone(),
        );
        Self { rig, address, counters, shutdown, serving: tokio::spawn(serve) }
    }

    async fn seed(&self, transaction: u32) -> Seed {
        let id = self.rig.open(transaction);
        self.rig.ask(Method::GET, &format!("/b/{id}/seed"), &[]).await.seed()
    }

    fn client(&self, identity: Option<(&str, &KeyPair)>) -> reqwest::Client {
        let config = self.client_config(identity);
        reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy().build().unwrap()
    }

    fn client_config(&self, identity: Option<(&str, &KeyPair)>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.rig.authority.pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        }
    }

    async fn post(
        &self,
        client: &reqwest::Client,
        path: &str,
        body: &impl serde::Serialize,
    ) -> (u16, String) {
        let url = format!("https://{}{path}", self.address);
        let response = client.post(url).json(body).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    async fn enroll(&self, request: &EnrollRequest) -> Result<EnrollResponse, (u16, String)> {
        let (status, text) = self.post(&self.client(None), "/v1/enroll", request).await;
        match status {
            200 => Ok(serde_json::from_str(&text).unwrap()),
            status => Err((status, serde_json::from_str::<Refusal>(&text).unwrap().reason)),
        }
    }

    async fn enrolled(&self, transaction: u32, key: &KeyPair) -> (String, BootId) {
        let seed = self.seed(transaction).await;
        match self.enroll(&request(&seed, &csr(key, Some("node1")))).await.unwrap() {
            EnrollResponse::Enrolled { certificate_pem, .. } => (certificate_pem, seed.boot_id),
            other => panic!("{other:?}"),
        }
    }

    fn condition(&self, type_: &str) -> (String, String) {
        self.rig.boots().flush(Timestamp::now());
        let status = self.rig.registry.get(&"node1".parse().unwrap()).unwrap();
        let condition = status.conditions.iter().find(|c| c.type_ == type_).unwrap();
        (condition.status.clone(), condition.reason.clone())
    }

    /// Permits another key of node1, as an administrator does.
    async fn allow(&self) {
        self.allow_at(Timestamp::now()).await;
    }

    async fn allow_at(&self, time: Timestamp) {
        let (machines, store) = (self.rig.machines.clone(), self.rig.store.clone());
        Permissions { machines, store, record: SystemOfRecord::Pxed }
            .allow("node1", None, time)
            .await
            .unwrap();
    }

    async fn stop(self) -> Rig {
        self.shutdown.cancel();
        self.serving.await.unwrap();
        self.rig
    }
}

/// Enrollment group of a key.
fn group_of(key: &KeyPair) -> String {
    KeyId::of_public_key(&key.subject_public_key_info()).group()
}

fn csr(key: &KeyPair, machine: Option<&str>) -> String {
    csr_of(key, machine, None)
}

fn csr_of(key: &KeyPair, machine: Option<&str>, uid: Option<&str>) -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = DistinguishedName::new();
    if let Some(machine) = machine {
        let groups = ["bedplate:machines", &group_of(key)];
        let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        for (type_, group) in types.into_iter().zip(groups) {
            params.distinguished_name.push(type_, group);
        }
        params.distinguished_name.push(DnType::CommonName, format!("bedplate:machine:{machine}"));
    }
    if let Some(uid) = uid {
        params.distinguished_name.push(DnType::CustomDnType(super::UID_OID.to_vec()), uid);
    }
    params.serialize_request(key).unwrap().pem().unwrap()
}

fn request(seed: &Seed, csr_pem: &str) -> EnrollRequest {
    EnrollRequest {
        boot_id: seed.boot_id,
        token: seed.token.clone().unwrap(),
        csr_pem: csr_pem.to_owned(),
        agent_version: "0.1.0".to_owned(),
        facts: Hardware { vendor: Some("QEMU".to_owned()), ..Hardware::default() },
        challenge_answer: None,
    }
}

fn refusal(status: u16, reason: &str) -> Result<EnrollResponse, (u16, String)> {
    Err((status, reason.to_owned()))
}

fn same(a: &Result<EnrollResponse, (u16, String)>, b: &Result<EnrollResponse, (u16, String)>) -> bool {
    format!("{a:?}") == format!("{b:?}")
}

#[tokio::test]
async fn a_host_enrolls_reports_and_renews_with_its_certificate() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let key = KeyPair::generate().unwrap();
    let (certificate, boot) = agents.enrolled(1, &key).await;
    assert_eq!(agents.condition("Enrolled"), ("True".to_owned(), "Enrolled".to_owned()));
    let reports = agents.rig.reports();
    assert!(
        reports.contains("the host is enrolled, boot") && !reports.contains(&boot.to_string()),
        "{reports}"
    );
    let client = agents.client(Some((&certificate, &key)));
    let report = Report {
        agent_version: "0.1.1".to_owned(),
        kernel_boot_id: "k1".to_owned(),
        boot_id: Some(boot),
        facts: Some(Hardware { vendor: Some("Other".to_owned()), ..Hardware::default() }),
        addresses: vec![[10, 7, 0, 21].into()],
        state_disk: Some(StateDiskStatus {
            name: Some("virtio-state".to_owned()),
            wipe_token: Some("t".to_owned()),
        }),
        going_down: false,
    };
    assert_eq!(agents.post(&client, "/v1/report", &report).await.0, 204);
    let status = agents.rig.registry.get(&"node1".parse().unwrap()).unwrap();
    assert_eq!(status.hardware.unwrap().vendor.as_deref(), Some("Other"));
    let state_disk = status.state_disk.unwrap();
    assert_eq!(
        (state_disk.name.as_deref(), state_disk.wipe_token.as_deref()),
        (Some("virtio-state"), Some("t"))
    );
    let agent = status.agent.unwrap();
    assert_eq!((agent.version.as_deref(), agent.boot_id.as_deref()), (Some("0.1.1"), Some("k1")));
    assert!(agent.last_heartbeat_time.is_some());
    assert_eq!(status.addresses[0].address, "10.7.0.21");
    let renewed = agents.post(&client, "/v1/renew", &RenewRequest { csr_pem: csr(&key, None) }).await;
    assert_eq!(renewed.0, 200);
    assert!(renewed.1.contains("BEGIN CERTIFICATE") && !renewed.1.contains(&certificate));
    // The authority sets both groups, whatever part of the subject the request has.
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let (_, read) = X509Certificate::from_der(&der).unwrap();
    let groups: Vec<_> = read.subject().iter_organization().map(|group| group.as_str().unwrap()).collect();
    assert_eq!(groups, [AGENTS_GROUP, group_of(&key).as_str()]);
    let recorded = agents.rig.registry.get(&"node1".parse().unwrap()).unwrap().enrollment.unwrap();
    assert_eq!(recorded.key_id.map(KeyId::group), Some(group_of(&key)));
    let other = RenewRequest { csr_pem: csr(&KeyPair::generate().unwrap(), None) };
    assert_eq!(agents.post(&client, "/v1/renew", &other).await.0, 403);
    let c = &agents.counters;
    assert_eq!((c.enrollments.get(Enrollment::Enrolled), c.enrollments.get(Enrollment::Refused)), (1, 0));
    assert_eq!((c.renewals.get(Renewal::Renewed), c.renewals.get(Renewal::Refused)), (1, 1));
    assert_eq!((c.reports.get(Reported::Taken), c.refusals.get(AgentRefusal::KeyMismatch)), (1, 1));
    agents.stop().await;
}

#[tokio::test]
async fn a_token_is_good_for_one_key_and_a_lost_answer_can_be_had_again() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (seed, other) = (agents.seed(1).await, agents.seed(2).await);
    let key = KeyPair::generate().unwrap();
    let good = request(&seed, &csr(&key, None));
    let wrong = EnrollRequest { token: SecretText("x".repeat(43)), ..good.clone() };
    assert!(same(&agents.enroll(&wrong).await, &refusal(403, "WrongToken")));
    let another_boot = EnrollRequest { boot_id: other.boot_id, ..good.clone() };
    assert!(same(&agents.enroll(&another_boot).await, &refusal(403, "WrongToken")));
    let no_boot = EnrollRequest { boot_id: BootId::from_random([1; 16]), ..good.clone() };
    assert!(same(&agents.enroll(&no_boot).await, &refusal(403, "UnknownBoot")));
    let foreign = EnrollRequest { csr_pem: csr(&key, Some("node2")), ..good.clone() };
    assert!(same(&agents.enroll(&foreign).await, &refusal(400, "InvalidCertificateRequest")));
    let first = agents.enroll(&good).await;
    assert!(matches!(first, Ok(EnrollResponse::Enrolled { .. })), "{first:?}");
    let second_csr = EnrollRequest { csr_pem: csr(&key, Some("node1")), ..good.clone() };
    assert!(same(&agents.enroll(&second_csr).await, &first), "the same token and key get the same answer");
    let thief = EnrollRequest { csr_pem: csr(&KeyPair::generate().unwrap(), None), ..good.clone() };
    assert!(same(&agents.enroll(&thief).await, &refusal(409, "TokenUsed")));
    let c = &agents.counters;
    let (enrolled, repeated) =
        (c.enrollments.get(Enrollment::Enrolled), c.enrollments.get(Enrollment::Repeated));
    assert_eq!((enrolled, repeated, c.enrollments.get(Enrollment::Refused)), (1, 1, 5));
    assert_eq!((c.refusals.get(AgentRefusal::WrongToken), c.refusals.get(AgentRefusal::TokenUsed)), (2, 1));
    // A restart forgets none of it.
    let rig = agents.stop().await;
    let directory = rig.directory.clone();
    drop(rig);
    let agents = Agents::start(Rig::reopen(directory)).await;
    assert!(same(&agents.enroll(&good).await, &first));
    assert!(same(&agents.enroll(&thief).await, &refusal(409, "TokenUsed")));
    agents.stop().await;
}

#[tokio::test]
async fn missing_or_foreign_certificate_cannot_report() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let report = serde_json::json!({});
    assert_eq!(agents.post(&agents.client(None), "/v1/report", &report).await.0, 401);
    let (key, elsewhere) = (KeyPair::generate().unwrap(), tempfile::tempdir().unwrap());
    let authority = super::authority::Authority::open(elsewhere.path(), "default", Timestamp::now()).unwrap();
    let forged = authority
        .client(
            &key,
            ("bedplate:machine:node1", "u1"),
            [AGENTS_GROUP, &group_of(&key)],
            Timestamp::now(),
            Duration::from_secs(3600),
        )
        .unwrap();
    let url = format!("https://{}/v1/report", agents.address);
    let result = agents.client(Some((&forged, &key))).post(url).json(&report).send().await;
    assert!(result.is_err(), "a certificate of another authority ends the connection");
    let stranger = agents
        .rig
        .authority
        .client(
            &key,
            ("bedplate:machine:node1", "u1"),
            ["others", &group_of(&key)],
            Timestamp::now(),
            Duration::from_secs(3600),
        )
        .unwrap();
    let client = agents.client(Some((&stranger, &key)));
    assert_eq!(agents.post(&client, "/v1/report", &report).await.0, 401);
    agents.stop().await;
}

#[tokio::test]
async fn recreated_machine_is_not_confused_with_the_old_one() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let seed = agents.seed(2).await;
    let mut recreated = crate::http::tests::machine("node1", &plain());
    recreated.metadata.uid = Some("u2".to_owned());
    agents.rig.machines.store(Snapshot::build(&"default".parse().unwrap(), [recreated]));
    let late = agents.enroll(&request(&seed, &csr(&key, None))).await;
    assert!(same(&late, &refusal(404, "MachineGone")));
    let client = agents.client(Some((&certificate, &key)));
    let renew = RenewRequest { csr_pem: csr(&key, None) };
    assert_eq!(agents.post(&client, "/v1/renew", &renew).await.0, 404);
    agents.stop().await;
}

#[tokio::test]
async fn certificate_of_earlier_machine_is_refused_with_current_key() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let key = KeyPair::generate().unwrap();
    let (before, _) = agents.enrolled(1, &key).await;
    let former = agents.client(Some((&before, &key)));
    let report = serde_json::json!({ "agentVersion": "0.1.0", "kernelBootId": "k", "addresses": [] });
    let forget = || agents.rig.store.delete(crate::store::Table::Certificates, b"machine/node1");
    forget().await.unwrap();
    assert_eq!(
        agents.post(&former, "/v1/report", &report).await.0,
        204,
        "a lost store alone refuses no host"
    );
    let mut recreated = crate::http::tests::machine("node1", &plain());
    recreated.metadata.uid = Some("u2".to_owned());
    agents.rig.machines.store(Snapshot::build(&"default".parse().unwrap(), [recreated]));
    let renew = serde_json::to_value(RenewRequest { csr_pem: csr(&key, None) }).unwrap();
    for (path, body) in [("/v1/report", &report), ("/v1/renew", &renew)] {
        let (status, text) = agents.post(&former, path, body).await;
        assert_eq!((status, text.contains("MachineGone")), (404, true), "{path}: {text}");
    }
    // Here the same host, with the key on its state disk, enrolls for the new Machine; its old certificate stays refused.
    let seed = {
        let opening = crate::boot::Opening {
            owner: crate::boot::Owner::Machine { name: "node1".parse().unwrap(), uid: "u2".to_owned() },
            ..agents.rig.opening(3)
        };
        let id = agents.rig.boots().open(&opening, Timestamp::now()).unwrap();
        agents.rig.ask(Method::GET, &format!("/b/{id}/seed"), &[]).await.seed()
    };
    let enrolled = agents.enroll(&request(&seed, &csr(&key, None))).await;
    let Ok(EnrollResponse::Enrolled { certificate_pem, .. }) = enrolled else { panic!("{enrolled:?}") };
    assert_eq!(agents.post(&former, "/v1/report", &report).await.0, 404);
    let current = agents.client(Some((&certificate_pem, &key)));
    assert_eq!(agents.post(&current, "/v1/report", &report).await.0, 204);
    agents.stop().await;
}

#[tokio::test]
async fn trust_3_a_clusters_certificate_needs_a_record_and_its_own_machine() {
    let rig = Rig::new();
    let service = Service {
        machines: rig.machines.clone(),
        boots: rig.boots().clone(),
        registry: rig.registry.clone(),
        store: rig.store.clone(),
        plane: Arc::new(AskApiServer),
        signer: Arc::new(LocalSigner { authority: rig.authority.clone() }),
        counters: Arc::default(),
        paces: Paces::default(),
        heard: Heard::new(SystemOfRecord::Cluster),
        turns: super::turn::Turns::default(),
        listens_first: false,
    };
    let now = Timestamp::now();
    let ago = |minutes| now - jiff::SignedDuration::from_mins(minutes);
    let mut recreated = crate::http::tests::machine("node1", &plain());
    recreated.metadata.creation_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(ago(10)));
    let certificate = super::csr::key_digest(b"certificate");
    // Made 20 minutes ago, and dated back by 5 as kube-controller-manager does; then one that was made 9 minutes ago. A status without any
    // record is that of a cluster that was restored from before the enrollment.
    for (not_before, is_recorded, expected) in [
        (ago(25), true, Some(AgentRefusal::MachineGone)),
        (ago(14), true, None),
        (ago(25), false, Some(AgentRefusal::MachineGone)),
        (ago(14), false, Some(AgentRefusal::KeyReplaced)),
    ] {
        let record = is_recorded.then(|| serde_json::json!({ "certificateFingerprint": certificate }));
        let status = serde_json::json!({ "enrollment": record });
        recreated.status = Some(serde_json::from_value(status).unwrap());
        rig.machines.store(Snapshot::build(&"default".parse().unwrap(), [recreated.clone()]));
        let identity = super::identity::Identity {
            machine: "node1".parse().unwrap(),
            uid: None,
            not_before,
            not_after: Timestamp::MAX,
            key: super::csr::key_digest(b"key"),
            certificate,
            serial: "1".to_owned(),
            peer: [127, 0, 0, 1].into(),
        };
        let report: Report = serde_json::from_value(
            serde_json::json!({ "agentVersion": "0", "kernelBootId": "k", "addresses": [] }),
        )
        .unwrap();
        let outcome = service.report(&identity, report, now).await;
        let reason = outcome.as_ref().err().map(|refused| refused.reason);
        assert_eq!(reason, expected, "{not_before} {is_recorded}");
    }
}

#[tokio::test]
async fn a_request_for_another_machines_uid_is_refused() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (seed, key) = (agents.seed(1).await, KeyPair::generate().unwrap());
    let foreign = request(&seed, &csr_of(&key, Some("node1"), Some("u0")));
    assert!(same(&agents.enroll(&foreign).await, &refusal(400, "InvalidCertificateRequest")));
    let own = request(&seed, &csr_of(&key, Some("node1"), Some("u1")));
    assert!(matches!(agents.enroll(&own).await, Ok(EnrollResponse::Enrolled { .. })));
    agents.stop().await;
}

#[tokio::test]
async fn a_certificate_whose_key_was_replaced_neither_reports_nor_renews() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (old, new) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let seed = agents.seed(1).await;
    let first = request(&seed, &csr(&old, None));
    let Ok(EnrollResponse::Enrolled { certificate_pem, .. }) = agents.enroll(&first).await else { panic!() };
    let former = agents.client(Some((&certificate_pem, &old)));
    let report = Report {
        agent_version: "0.1.0".to_owned(),
        kernel_boot_id: "k".to_owned(),
        boot_id: None,
        facts: None,
        addresses: Vec::new(),
        state_disk: None,
        going_down: false,
    };
    assert_eq!(agents.post(&former, "/v1/report", &report).await.0, 204);
    agents.allow().await;
    let (certificate, _) = agents.enrolled(2, &new).await;
    // Not even the old token makes the old key current.
    assert!(same(&agents.enroll(&first).await, &refusal(409, "TokenSuperseded")));
    for (path, body) in [
        ("/v1/report", serde_json::to_value(&report).unwrap()),
        ("/v1/renew", serde_json::to_value(RenewRequest { csr_pem: csr(&old, None) }).unwrap()),
    ] {
        let (status, text) = agents.post(&former, path, &body).await;
        assert_eq!((status, text.contains("KeyReplaced")), (403, true), "{path}: {text}");
    }
    let current = agents.client(Some((&certificate, &new)));
    let renew = RenewRequest { csr_pem: csr(&new, None) };
    assert_eq!(agents.post(&current, "/v1/renew", &renew).await.0, 200);
    assert_eq!(agents.post(&current, "/v1/report", &report).await.0, 204);
    agents.stop().await;
}

#[tokio::test]
async fn seed_of_an_unknown_machine_has_no_token_and_enrolls_no_host() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let text = "default-image = 'host'\ndiscovery-image = 'host'\n[source]\nkubernetes = {}\n[dhcp]\nmode = 'off'\ndiscovery = true\n\
                [images.host]\nkernel = '/k'\ninitrd = '/i'\n";
    agents.rig.routes.present.configure(&crate::config::Config::parse(text, &[]).unwrap());
    let open = |transaction| {
        let mac = "52:54:00:00:00:09".parse().unwrap();
        let owner = crate::boot::Owner::Unknown { mac };
        let opening = crate::boot::Opening { owner, mac, ..agents.rig.opening(transaction) };
        agents.rig.boots().open(&opening, Timestamp::now()).unwrap()
    };
    let seed = agents.rig.ask(Method::GET, &format!("/b/{}/seed", open(1)), &[]).await.seed();
    assert_eq!((seed.machine.as_str(), seed.token), ("unknown-525400000009", None));
    // This holds even if such a token was stolen.
    let (boot_id, key) = (open(2), KeyPair::generate().unwrap());
    let boot = agents.rig.boots().get(boot_id, Timestamp::now()).unwrap();
    let token = agents.rig.boots().seeds().take(&boot, Timestamp::now()).await.unwrap();
    let stolen = Seed { boot_id, token: Some(token), ..agents.seed(3).await };
    assert!(same(&agents.enroll(&request(&stolen, &csr(&key, None))).await, &refusal(403, "UnknownMachine")));
    agents.stop().await;
}

#[tokio::test]
async fn rfc9112_3_2_agent_request_with_bad_host_gets_400() {
    let agents = Agents::start(Rig::new()).await;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(agents.client_config(None)));
    for (version, fields, status) in HOST_CASES {
        let stream = TcpStream::connect(agents.address).await.unwrap();
        let mut stream = connector.connect(agents.address.ip().into(), stream).await.unwrap();
        let head = format!("GET /v1/enroll HTTP/{version}\r\n{fields}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        let text = String::from_utf8(text).unwrap();
        // The resource itself takes POST only.
        let expected = if status == 200 { " 405 " } else { " 400 " };
        assert!(text.len() > 8 && text[8..].starts_with(expected), "{version} {fields:?}: {text}");
        assert_eq!(text.contains("\"InvalidHost\""), status == 400, "{fields:?}: {text}");
    }
    assert_eq!(agents.counters.refusals.get(AgentRefusal::InvalidHost), 9);
    agents.stop().await;
}

#[tokio::test]
async fn malformed_request_is_refused_without_echo_of_the_token() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let body = serde_json::json!({ "token": "topsecret", "bootId": 1 });
    let (status, text) = agents.post(&agents.client(None), "/v1/enroll", &body).await;
    assert_eq!(status, 400);
    assert!(!text.contains("topsecret"), "{text}");
    let large = serde_json::json!({ "token": "x".repeat(2 << 20) });
    assert_eq!(agents.post(&agents.client(None), "/v1/enroll", &large).await.0, 413);
    assert_eq!(agents.post(&agents.client(None), "/v1/nothing", &body).await.0, 404);
    agents.stop().await;
}

#[test]
fn agents_get_an_api_server_address_that_they_reach() {
    let mut config = kube::Config::new("https://10.96.0.1/".parse().unwrap());
    assert_eq!(
        crate::cluster::client::endpoint(&config, None),
        None,
        "hosts cannot verify pxed without an authority"
    );
    config.root_cert = Some(vec![vec![1, 2, 3]]);
    let server = |advertise| crate::cluster::client::endpoint(&config, advertise).unwrap().server;
    assert_eq!(server(None), "https://10.96.0.1");
    assert_eq!(server(Some("api.rack.example:6443")), "https://api.rack.example:6443");
}
