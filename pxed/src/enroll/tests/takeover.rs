//! Attacks on the identity of a Machine whose host runs, and hosts that may take one over.

use bedplate_api::machine::{MachineStatus, PowerState, PowerStatus, Time};
use jiff::SignedDuration;
use rcgen::PublicKeyData as _;
use serde_json::json;

use super::*;
use crate::enroll::csr::{CertificateRequest, key_digest};
use crate::enroll::in_force::{Certified, EnrolledKey, record};
use crate::enroll::signer::{KeyRecord, SignError, Signed};
use crate::store::Table;
use crate::system_of_record::SystemOfRecord;

pub(super) async fn running(agents: &Agents) -> (reqwest::Client, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    (agents.client(Some((&certificate, &key))), key)
}

fn enrolled_key(name: &[u8], generation: i64, time: Timestamp) -> EnrolledKey {
    EnrolledKey { key: key_digest(name), time, generation, permission: None }
}

fn certified(enrolled: EnrolledKey) -> Certified {
    Certified { uid: "u1".to_owned(), enrolled }
}

/// Writes a key into the status, as another pxed does.
fn tell(agents: &Agents, enrolled: &EnrolledKey) {
    let update = |status: &mut MachineStatus| status.enrollment = Some(record(enrolled));
    agents.rig.registry.update(&"node1".parse().unwrap(), update);
}

pub(super) fn a_report() -> serde_json::Value {
    json!({ "agentVersion": "0.1.0", "kernelBootId": "k", "addresses": [] })
}

pub(super) async fn report(agents: &Agents, client: &reqwest::Client) -> u16 {
    agents.post(client, "/v1/report", &a_report()).await.0
}

/// Enrolls another key by a boot of its own.
pub(super) async fn intrude(agents: &Agents, transaction: u32, key: &KeyPair) -> EnrollResponse {
    let seed = agents.seed(transaction).await;
    agents.enroll(&request(&seed, &csr(key, Some("node1")))).await.unwrap()
}

#[tokio::test]
async fn trust_6_new_key_waits_and_is_reported_while_the_old_one_is_heard() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (host, _) = running(&agents).await;
    agents.rig.reports();
    let key = KeyPair::generate().unwrap();
    let seed = agents.seed(2).await;
    let asked = request(&seed, &csr(&key, Some("node1")));
    // The boot's own news are written first, as they are minutes before a host enrolls.
    agents.rig.reports();
    let answer = agents.enroll(&asked).await.unwrap();
    let EnrollResponse::Pending { message, retry_seconds: 15 } = &answer else { panic!("{answer:?}") };
    assert!(message.contains("bedplate machine re-enroll node1"), "{message}");
    assert_eq!(agents.condition("Enrolled"), ("False".to_owned(), "HeardElsewhere".to_owned()));
    let reports = agents.rig.reports();
    let public = seed.boot_id.public_id();
    for text in ["reason: HeardElsewhere", &format!("from 127.0.0.1, boot {public}")] {
        assert!(reports.contains(text), "{text}: {reports}");
    }
    assert!(!reports.contains(&seed.boot_id.to_string()), "{reports}");
    // The host that runs is heard: its Machine is enrolled, and the warning stays to be read.
    assert_eq!(report(&agents, &host).await, 204);
    assert_eq!(agents.condition("Enrolled"), ("True".to_owned(), "HeardElsewhere".to_owned()));
    assert_eq!(agents.condition("Booted").0, "True");
    assert!(matches!(agents.enroll(&asked).await, Ok(EnrollResponse::Pending { .. })));
    assert_eq!(agents.condition("Enrolled").0, "True", "it was heard since that boot's seed left");
    assert_eq!(agents.counters.enrollments.get(Enrollment::HeardElsewhere), 2);

    // An administrator lets it in; the host before is out.
    agents.allow().await;
    assert!(matches!(agents.enroll(&asked).await, Ok(EnrollResponse::Enrolled { .. })));
    assert_eq!(agents.condition("Enrolled"), ("True".to_owned(), "Enrolled".to_owned()));
    assert_eq!(report(&agents, &host).await, 403);
    let reports = agents.rig.reports();
    for text in ["reason: KeyChanged", "reason: KeyReplaced", "from 127.0.0.1"] {
        assert!(reports.contains(text), "{text}: {reports}");
    }
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_a_permission_may_be_for_one_boot_alone() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (_, own) = running(&agents).await;
    let (thief, replaced) = (agents.seed(2).await, agents.seed(3).await);
    let key = KeyPair::generate().unwrap();
    let (machines, store) = (agents.rig.machines.clone(), agents.rig.store.clone());
    let permissions = Permissions { machines, store, record: SystemOfRecord::Pxed };
    let boot = replaced.boot_id.public_id().to_string();
    permissions.allow("node1", Some(boot), Timestamp::now()).await.unwrap();
    let other = request(&thief, &csr(&KeyPair::generate().unwrap(), Some("node1")));
    assert!(
        matches!(agents.enroll(&other).await, Ok(EnrollResponse::Pending { .. })),
        "another boot asks first"
    );
    let asked = request(&replaced, &csr(&key, Some("node1")));
    assert!(matches!(agents.enroll(&asked).await, Ok(EnrollResponse::Enrolled { .. })));
    // A host that enrolls by its own key uses a permission for any boot up, too.
    agents.allow().await;
    assert!(matches!(intrude(&agents, 4, &key).await, EnrollResponse::Enrolled { .. }));
    assert!(matches!(intrude(&agents, 5, &own).await, EnrollResponse::Pending { .. }), "it is used up");
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_own_key_leaves_a_permission_for_another_boot_unused() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (_, own) = running(&agents).await;
    let (machines, store) = (agents.rig.machines.clone(), agents.rig.store.clone());
    let permissions = Permissions { machines, store, record: SystemOfRecord::Pxed };
    let replaced = agents.rig.open(2);
    let boot = replaced.public_id().to_string();
    permissions.allow("node1", Some(boot), Timestamp::now()).await.unwrap();
    // The host that runs boots again, and has its key on a state disk.
    assert!(matches!(intrude(&agents, 3, &own).await, EnrollResponse::Enrolled { .. }));
    // The permitted boot takes its seed after that.
    let seed = agents.rig.ask(Method::GET, &format!("/b/{replaced}/seed"), &[]).await.seed();
    let key = KeyPair::generate().unwrap();
    let answer = agents.enroll(&request(&seed, &csr(&key, Some("node1")))).await;
    assert!(matches!(answer, Ok(EnrollResponse::Enrolled { .. })), "{answer:?}");
    // Its own enrollment has used the permission up.
    let enrollment = agents.rig.registry.get(&"node1".parse().unwrap()).unwrap().enrollment.unwrap();
    assert!(enrollment.permission_time.is_some(), "{enrollment:?}");
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_refusal_names_the_time_since_which_pxed_could_not_hear() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    running(&agents).await;
    let since = Timestamp::now() - SignedDuration::from_secs(300);
    agents.rig.heard.listens(true, since);
    let seed = agents.seed(2).await;
    let asked = request(&seed, &csr(&KeyPair::generate().unwrap(), Some("node1")));
    agents.rig.reports();
    let answer = agents.enroll(&asked).await.unwrap();
    let EnrollResponse::Pending { message, .. } = &answer else { panic!("{answer:?}") };
    let expected = format!("pxed has not listened since {}", since.strftime("%FT%TZ"));
    assert!(message.contains(&expected) && message.contains("120 s after pxed listens again"), "{message}");
    let status = agents.rig.registry.get(&"node1".parse().unwrap()).unwrap();
    let enrolled = status.conditions.into_iter().find(|c| c.type_ == "Enrolled").unwrap();
    assert!(enrolled.message.contains(&expected), "{}", enrolled.message);
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_host_that_goes_down_or_is_reset_is_replaced_without_a_wait() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (host, _) = running(&agents).await;
    let mut last = a_report();
    last["goingDown"] = true.into();
    assert_eq!(agents.post(&host, "/v1/report", &last).await.0, 204);
    let second = KeyPair::generate().unwrap();
    assert!(matches!(intrude(&agents, 2, &second).await, EnrollResponse::Enrolled { .. }));
    assert!(matches!(
        intrude(&agents, 3, &KeyPair::generate().unwrap()).await,
        EnrollResponse::Pending { .. }
    ));
    let name = "node1".parse().unwrap();
    agents.rig.registry.update(&name, |status| {
        status.power = Some(PowerStatus {
            state: PowerState::On,
            observed_time: None,
            last_action: None,
            last_switch_time: Some(Time(Timestamp::now())),
            attempts: None,
            next_attempt_time: None,
            takeover_token: None,
        });
    });
    assert!(matches!(
        intrude(&agents, 4, &KeyPair::generate().unwrap()).await,
        EnrollResponse::Enrolled { .. }
    ));
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_silent_key_is_replaced_and_the_same_key_never_waits() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (_, key) = running(&agents).await;
    assert!(matches!(intrude(&agents, 2, &key).await, EnrollResponse::Enrolled { .. }), "state disk");
    let known = agents.rig.machines.load().by_name(&"node1".parse().unwrap()).unwrap().clone();
    agents.rig.heard.enrolled(&known, Timestamp::now() - SignedDuration::from_secs(71));
    let name = "node1".parse().unwrap();
    let old = Time(Timestamp::now() - SignedDuration::from_secs(3600));
    agents.rig.registry.update(&name, |status| {
        status.enrollment.as_mut().unwrap().key_time = Some(old.clone());
    });
    let row = certified(enrolled_key(b"old", 0, old.0));
    let row = serde_json::to_vec(&row).unwrap();
    agents.rig.store.put(Table::Certificates, b"machine/node1", row).await.unwrap();
    assert!(matches!(
        intrude(&agents, 3, &KeyPair::generate().unwrap()).await,
        EnrollResponse::Enrolled { .. }
    ));
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_token_taken_before_an_enrollment_is_refused_after_it() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let stolen = agents.seed(1).await;
    agents.enrolled(2, &KeyPair::generate().unwrap()).await;
    let thief = request(&stolen, &csr(&KeyPair::generate().unwrap(), Some("node1")));
    assert!(same(&agents.enroll(&thief).await, &refusal(409, "TokenSuperseded")));
    let reports = agents.rig.reports();
    assert!(reports.contains("reason: TokenRefused") && reports.contains("from 127.0.0.1"), "{reports}");
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_packet_changes_no_condition_of_a_running_machine() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (host, _) = running(&agents).await;
    let both = || (agents.condition("Booted").0, agents.condition("Enrolled").0);
    let truths = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(both(), truths("True", "True"));
    let forged = agents.rig.open(2);
    let owner = crate::boot::Owner::Machine { name: "node1".parse().unwrap(), uid: "u1".to_owned() };
    let now = Timestamp::now();
    agents.rig.boots().dhcp_reached(&owner, bedplate_api::wire::Stage::Acknowledged, now);
    assert_eq!(both(), truths("True", "True"), "packets");
    agents.rig.ask(Method::GET, &format!("/b/{forged}/seed"), &[]).await.seed();
    assert_eq!(both(), truths("False", "False"), "its seed was taken");
    assert_eq!(report(&agents, &host).await, 204);
    assert_eq!(both(), truths("True", "True"), "the key in force is heard");
    agents.stop().await;
}

#[tokio::test]
async fn trust_3_a_key_that_was_replaced_at_another_pxed_does_not_renew() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (host, key) = running(&agents).await;
    let renewal = || RenewRequest { csr_pem: csr(&key, Some("node1")) };
    assert_eq!(agents.post(&host, "/v1/renew", &renewal()).await.0, 200);
    // As another pxed writes it: the row here still names the key.
    let later = Timestamp::now() + SignedDuration::from_secs(60);
    let other = enrolled_key(b"other", 2, later);
    let write = |enrolled: EnrolledKey| tell(&agents, &enrolled);
    write(other.clone());
    let forget = || agents.rig.store.delete(Table::Certificates, b"machine/node1");
    for lost in [false, true] {
        if lost {
            forget().await.unwrap();
        }
        for (path, body) in
            [("/v1/renew", serde_json::to_value(renewal()).unwrap()), ("/v1/report", a_report())]
        {
            let (status, text) = agents.post(&host, path, &body).await;
            assert_eq!((status, text.contains("KeyReplaced")), (403, true), "{path}, {lost}: {text}");
        }
    }
    // Neither does a lost row shut out the key that the status names.
    write(EnrolledKey { key: key_digest(&key.subject_public_key_info()), ..other });
    assert_eq!(agents.post(&host, "/v1/renew", &renewal()).await.0, 200);
    agents.stop().await;
}

#[tokio::test]
async fn trust_3_lost_or_damaged_record_admits_no_certificate() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (host, _) = running(&agents).await;
    let row = b"machine/node1";
    agents.rig.store.put(Table::Certificates, row, b"damaged".to_vec()).await.unwrap();
    let (status, text) = agents.post(&host, "/v1/report", &a_report()).await;
    assert_eq!((status, text.contains("damaged")), (503, true), "{text}");
    // The row is gone, and so is the key in the status, which says that a host has enrolled.
    agents.rig.store.delete(Table::Certificates, row).await.unwrap();
    agents.rig.registry.update(&"node1".parse().unwrap(), |status| status.enrollment = None);
    let (status, text) = agents.post(&host, "/v1/report", &a_report()).await;
    assert_eq!((status, text.contains("KeyReplaced")), (403, true), "{text}");
    // With every record lost, pxed's own certificate still shows that there was one.
    agents.rig.registry.update(&"node1".parse().unwrap(), |status| *status = MachineStatus::default());
    let (status, text) = agents.post(&host, "/v1/report", &a_report()).await;
    assert_eq!((status, text.contains("KeyReplaced")), (403, true), "{text}");
    assert!(agents.rig.store.get(Table::Certificates, row).unwrap().is_none());
    agents.stop().await;
}

/// Signs when `gate` has permits; each request is counted in `entered` before.
struct Gated {
    local: LocalSigner,
    entered: tokio::sync::Semaphore,
    gate: tokio::sync::Semaphore,
}

impl Gated {
    async fn start() -> (Agents, Arc<Self>) {
        let rig = Rig::new().with_images().await;
        let local = LocalSigner { authority: rig.authority.clone() };
        let (entered, gate) = (tokio::sync::Semaphore::new(0), tokio::sync::Semaphore::new(0));
        let signer = Arc::new(Self { local, entered, gate });
        (Agents::start_with(rig, signer.clone()).await, signer)
    }

    /// Waits until this number of requests is at the gate. A request that was refused before never comes.
    async fn reached_by(&self, requests: u32) {
        let reached =
            tokio::time::timeout(Duration::from_secs(60), self.entered.acquire_many(requests)).await;
        reached.expect("the requests are at the gate").unwrap().forget();
    }
}

impl Signer for Gated {
    fn sign<'a>(
        &'a self,
        machine: (&'a bedplate_api::id::MachineName, &'a str),
        request: &'a CertificateRequest,
        purpose: &'a str,
    ) -> futures::future::BoxFuture<'a, Result<Signed, SignError>> {
        Box::pin(async move {
            self.entered.add_permits(1);
            let _permit = self.gate.acquire().await.unwrap();
            self.local.sign(machine, request, purpose).await
        })
    }

    fn put_in_force<'a>(
        &'a self,
        machine: (&'a bedplate_api::id::MachineName, &'a str),
        key: KeyRecord,
        certificate: String,
    ) -> futures::future::BoxFuture<'a, Result<Signed, SignError>> {
        self.local.put_in_force(machine, key, certificate)
    }

    fn needs_whole_subject(&self) -> bool {
        false
    }

    fn kubernetes(&self) -> Option<bedplate_api::wire::KubernetesEndpoint> {
        None
    }
}

#[tokio::test]
async fn trust_6_of_two_tokens_at_once_one_enrolls() {
    let (agents, signer) = Gated::start().await;
    let (first, second) = (agents.seed(1).await, agents.seed(2).await);
    let ask = |seed: &Seed| request(seed, &csr(&KeyPair::generate().unwrap(), Some("node1")));
    let (first, second) = (ask(&first), ask(&second));
    let both_wait = async {
        signer.reached_by(2).await;
        signer.gate.add_permits(16);
    };
    let (one, other, ()) = tokio::join!(agents.enroll(&first), agents.enroll(&second), both_wait);
    let is_enrolled = |answer: &Result<EnrollResponse, (u16, String)>| {
        matches!(answer, Ok(EnrollResponse::Enrolled { .. }))
    };
    assert_eq!([&one, &other].map(is_enrolled).iter().filter(|won| **won).count(), 1, "{one:?} {other:?}");
    let (slower, lost) = if is_enrolled(&one) { (&second, other) } else { (&first, one) };
    // It may have come while the faster one was written.
    let is_busy = matches!(lost, Ok(EnrollResponse::Pending { .. }));
    let lost = if is_busy { agents.enroll(slower).await } else { lost };
    assert!(same(&lost, &refusal(409, "TokenSuperseded")), "{lost:?}");
    agents.stop().await;
}

#[tokio::test]
async fn replacement_of_a_key_enrolled_meanwhile_is_reported() {
    let (agents, signer) = Gated::start().await;
    let seed = agents.seed(1).await;
    let asked = request(&seed, &csr(&KeyPair::generate().unwrap(), Some("node1")));
    // Another pxed has enrolled a host, and it is silent by now.
    let meanwhile = async {
        signer.reached_by(1).await;
        let ago = |seconds| Timestamp::now() - SignedDuration::from_secs(seconds);
        tell(&agents, &enrolled_key(b"other", 4, ago(3600)));
        let known = agents.rig.machines.load().by_name(&"node1".parse().unwrap()).unwrap().clone();
        agents.rig.heard.enrolled(&known, ago(71));
        signer.gate.add_permits(1);
    };
    let (answer, ()) = tokio::join!(agents.enroll(&asked), meanwhile);
    assert!(matches!(answer, Ok(EnrollResponse::Enrolled { .. })), "{answer:?}");
    let reports = agents.rig.reports();
    assert!(reports.contains("reason: KeyChanged"), "{reports}");
    assert!(reports.contains("\"generation\":5"), "{reports}");
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_a_key_that_is_heard_again_while_another_is_signed_keeps_it_out() {
    let (agents, signer) = Gated::start().await;
    let name = "node1".parse().unwrap();
    let ago = |seconds| Timestamp::now() - SignedDuration::from_secs(seconds);
    tell(&agents, &enrolled_key(b"host", 1, ago(3600)));
    let known = agents.rig.machines.load().by_name(&name).unwrap().clone();
    agents.rig.heard.enrolled(&known, ago(71));
    let seed = agents.seed(1).await;
    let asked = request(&seed, &csr(&KeyPair::generate().unwrap(), Some("node1")));
    let meanwhile = async {
        signer.reached_by(1).await;
        agents.rig.heard.request(&known, Timestamp::now());
        signer.gate.add_permits(1);
    };
    let (answer, ()) = tokio::join!(agents.enroll(&asked), meanwhile);
    assert!(matches!(answer, Ok(EnrollResponse::Pending { .. })), "{answer:?}");
    assert_eq!(agents.counters.enrollments.get(Enrollment::HeardElsewhere), 1);
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_token_of_another_pxed_older_than_the_key_is_superseded() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let seed = agents.seed(1).await;
    // The host has enrolled by another token at another pxed, and goes down.
    tell(&agents, &enrolled_key(b"host", 1, Timestamp::now()));
    let down = Some(Time(Timestamp::now()));
    agents.rig.registry.update(&"node1".parse().unwrap(), |status| {
        status.agent.get_or_insert_default().going_down_time = down;
    });
    let key = KeyPair::generate().unwrap();
    let stolen = request(&seed, &csr(&key, Some("node1")));
    assert!(same(&agents.enroll(&stolen).await, &refusal(409, "TokenSuperseded")));
    assert!(matches!(intrude(&agents, 2, &key).await, EnrollResponse::Enrolled { .. }), "a later boot");
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_a_key_that_enrolls_again_ends_older_tokens_of_other_pxed() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let (_, key) = running(&agents).await;
    // The key on the state disk was enrolled a day ago.
    let day = Timestamp::now() - SignedDuration::from_hours(24);
    let old = EnrolledKey {
        key: key_digest(&key.subject_public_key_info()),
        ..enrolled_key(b"", 7, Timestamp::from_second(day.as_second()).unwrap())
    };
    tell(&agents, &old);
    assert!(matches!(intrude(&agents, 2, &key).await, EnrollResponse::Enrolled { .. }));
    let enrollment = agents.rig.registry.get(&"node1".parse().unwrap()).unwrap().enrollment.unwrap();
    assert_eq!((enrollment.generation, enrollment.key_fingerprint), (Some(7), Some(old.key)));
    assert!(enrollment.key_time.unwrap().0 > old.time);
    agents.stop().await;
}

#[tokio::test]
async fn trust_6_a_permission_is_used_by_the_key_that_it_let_in() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    running(&agents).await;
    // By a clock that is four minutes ahead.
    agents.allow_at(Timestamp::now() + SignedDuration::from_secs(240)).await;
    let (second, third) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    assert!(matches!(intrude(&agents, 2, &second).await, EnrollResponse::Enrolled { .. }));
    assert!(matches!(intrude(&agents, 3, &third).await, EnrollResponse::Pending { .. }));
    agents.stop().await;
}

#[tokio::test]
async fn a_token_with_many_keys_is_asked_at_one_pace() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    running(&agents).await;
    let (seed, client) = (agents.seed(2).await, agents.client(None));
    let mut refused = None;
    for _ in 0..100 {
        let asked = request(&seed, &csr(&KeyPair::generate().unwrap(), Some("node1")));
        let (status, text) = agents.post(&client, "/v1/enroll", &asked).await;
        if status != 200 {
            refused = Some((status, text));
            break;
        }
    }
    let (status, text) = refused.expect("a token that is held back has no limit");
    assert_eq!((status, text.contains("RateLimited")), (429, true), "{text}");
    agents.stop().await;
}

#[tokio::test]
async fn refused_tokens_beyond_the_pace_are_counted_in_the_next_line() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let seed = agents.seed(1).await;
    let mut wrong = request(&seed, "");
    wrong.token = SecretText("x".repeat(43));
    let unknown = EnrollRequest { boot_id: BootId::from_random([7; 16]), ..wrong.clone() };
    for asked in [&wrong, &unknown] {
        for _ in 0..9 {
            assert!(agents.enroll(asked).await.is_err());
        }
    }
    let minute = std::time::Instant::now() + Duration::from_secs(61);
    let mut omitted = agents.rig.boots().log_pace().overdue(minute);
    omitted.retain(|omitted| omitted.reason == "TokenRefused");
    omitted.sort_by_key(|omitted| omitted.subject.clone());
    let counts: Vec<_> = omitted.iter().map(|omitted| (omitted.subject.as_deref(), omitted.count)).collect();
    assert_eq!(counts, [(None, 8), (Some("node1"), 8)]);
    agents.stop().await;
}

#[tokio::test]
async fn certificate_that_expires_on_a_kept_connection_is_refused() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let key = KeyPair::generate().unwrap();
    agents.enrolled(1, &key).await;
    // On a busy machine, a certificate may expire before the connection is made. The next one is valid for longer.
    let mut kept = None;
    // Each is shorter than the time for which the listener keeps an idle connection.
    for seconds in [2, 7, 15] {
        let (made, valid) = (Timestamp::now(), Duration::from_secs(seconds));
        let identity = ("bedplate:machine:node1", "u1");
        let groups = [AGENTS_GROUP, &group_of(&key)];
        let short = agents.rig.authority.client(&key, identity, groups, made, valid).unwrap();
        let client = agents.client(Some((&short, &key)));
        let url = format!("https://{}/v1/report", agents.address);
        if client.post(url).json(&a_report()).send().await.is_ok_and(|answer| answer.status() == 204) {
            kept = Some((client, made + valid));
            break;
        }
    }
    let (client, end) = kept.expect("no connection was made within 15 s");
    // The connection is kept. Reports in the meantime would exceed the rate of reports.
    crate::http::tests::until(|| Timestamp::now() > end).await;
    for (path, body) in [
        ("/v1/report", a_report()),
        ("/v1/renew", serde_json::to_value(RenewRequest { csr_pem: csr(&key, None) }).unwrap()),
    ] {
        let (status, text) = agents.post(&client, path, &body).await;
        assert_eq!((status, text.contains("CertificateExpired")), (401, true), "{path}: {text}");
    }
    agents.stop().await;
}

#[tokio::test]
async fn enrollment_is_at_most_64_kib_and_its_token_is_checked_first() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let seed = agents.seed(1).await;
    let mut asked = request(&seed, "no certificate request");
    let good = asked.token.clone();
    asked.token = SecretText("x".repeat(43));
    assert!(same(&agents.enroll(&asked).await, &refusal(403, "WrongToken")));
    asked.token = good;
    assert!(same(&agents.enroll(&asked).await, &refusal(400, "InvalidCertificateRequest")));
    asked.facts.vendor = Some("x".repeat(64 << 10));
    assert!(same(&agents.enroll(&asked).await, &refusal(413, "BodyTooLarge")));
    agents.stop().await;
}

#[tokio::test]
async fn a_boot_that_was_opened_before_its_machine_changed_gets_no_seed() {
    let rig = Rig::new().with_images().await;
    let seed = |id| format!("/b/{id}/seed");
    let id = rig.open(1);
    let mut spec = plain();
    spec["pxe"]["interfaces"][0]["macAddress"] = "52:54:00:00:00:77".into();
    rig.set_machine(&spec);
    assert_eq!(rig.ask(Method::GET, &seed(id), &[]).await.status, 404, "corrected MAC address");
    let contested = [("node1", &plain()), ("node2", &plain())]
        .map(|(name, spec)| crate::http::tests::machine(name, spec));
    rig.machines.store(Snapshot::build(&"default".parse().unwrap(), contested));
    assert_eq!(rig.ask(Method::GET, &seed(id), &[]).await.status, 404, "contested");
    let mut spec = plain();
    spec["paused"] = true.into();
    rig.set_machine(&spec);
    assert_eq!(rig.ask(Method::GET, &seed(id), &[]).await.status, 503, "paused");
    rig.set_machine(&plain());
    assert_eq!(rig.ask(Method::GET, &seed(id), &[]).await.status, 200);
}

#[test]
fn the_record_of_a_key_names_it_by_its_digest_and_time() {
    let enrolled = enrolled_key(b"k", 3, Timestamp::UNIX_EPOCH);
    let json = serde_json::to_value(record(&enrolled)).unwrap();
    let expected = json!({ "keyFingerprint": key_digest(b"k"), "keyID": KeyId::of_public_key(b"k"),
        "keyTime": "1970-01-01T00:00:00Z", "generation": 3 });
    assert_eq!(json, expected);
}
