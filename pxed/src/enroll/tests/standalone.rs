//! Standalone agents: the answers that an agent gets, the writes that it may do, and its restriction to its own
//! Machine.

use bedplate_api::machine::{NodeRef, SlotName, SlotState};
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use bedplate_api::reason::refusal::AgentRefusal;
use bedplate_api::wire::{NodeReport, OperationWrite, OperationWritten, WatchRequest, WatchResponse};
use bedplate_process::liveness::Pulse;
use serde_json::json;

use super::*;
use crate::enroll::token::{IssueTokenError, Tokens};
use crate::power::OperationDesk as _;
use crate::standalone::agents::LocalAgents;
use crate::standalone::node_secrets::NodeSecrets;
use crate::standalone::operations::LocalOperations;
use crate::standalone::versions::NodeChoice;

fn operation(name: &str, machine: &str) -> MachineOperation {
    let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation", "metadata": { "name": name },
        "spec": { "machineRef": { "name": machine }, "operationName": "reboot" } });
    serde_json::from_value(object).unwrap()
}

/// An enrolled agent's client, and what it asks.
struct Agent<'a> {
    agents: &'a Agents,
    client: reqwest::Client,
}

impl Agent<'_> {
    async fn watch(&self, known: Option<&str>) -> WatchResponse {
        let request = WatchRequest { known: known.map(str::to_owned) };
        let (status, text) = self.agents.post(&self.client, "/v1/watch", &request).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    async fn operations(&self, known: Option<&str>) -> (String, Vec<MachineOperation>) {
        match self.watch(known).await {
            WatchResponse::Changed { revision, machine, operations, .. } => {
                assert_eq!(machine.metadata.name.as_deref(), Some("node1"));
                (revision, operations)
            }
            WatchResponse::Same => panic!("nothing new"),
        }
    }

    async fn write(&self, operation: &MachineOperation, state: OperationState) -> OperationWritten {
        let (metadata, text) = (&operation.metadata, |text: &Option<String>| text.clone().unwrap());
        let write = OperationWrite {
            name: text(&metadata.name),
            uid: text(&metadata.uid),
            resource_version: text(&metadata.resource_version),
            status: MachineOperationStatus { state: Some(state), ..MachineOperationStatus::default() },
        };
        let (status, text) = self.agents.post(&self.client, "/v1/operation", &write).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

async fn standalone() -> (Agents, LocalOperations) {
    let rig = Rig::new().with_images().await;
    let operations =
        LocalOperations::open(rig.store.clone(), rig.machines.clone(), rig.registry.clone(), false)
            .unwrap()
            .0;
    let signer = Arc::new(LocalSigner { authority: rig.authority.clone() });
    let (choice, choosing) =
        NodeChoice::open(rig.store.clone(), rig.machines.clone(), rig.registry.clone()).unwrap();
    tokio::spawn(choosing.run(Pulse::unwatched(), CancellationToken::new()));
    let secrets = NodeSecrets::new(rig.directory.path().join("secrets"));
    let (machines, registry) = (rig.machines.clone(), rig.registry.clone());
    let plane = LocalAgents { machines, registry, operations: operations.clone(), choice, secrets };
    (Agents::start_with_plane(rig, signer, Arc::new(plane)).await, operations)
}

#[tokio::test]
async fn o7_standalone_agent_gets_its_operations_and_reports_their_progress() {
    let (agents, operations) = standalone().await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let agent = Agent { agents: &agents, client: agents.client(Some((&certificate, &key))) };
    let (revision, none) = agent.operations(None).await;
    assert!(none.is_empty());

    // It hangs until there is something new.
    let (given, made) =
        tokio::join!(agent.operations(Some(&revision)), operations.create(operation("x", "node1")));
    assert_eq!(given.1, [made.unwrap()]);
    let taken = match agent.write(&given.1[0], OperationState::InProgress).await {
        OperationWritten::Written { operation } => operation,
        other => panic!("{other:?}"),
    };
    assert_eq!(operations.get("x").unwrap().status, taken.status);
    // By what it had read before.
    let late = agent.write(&given.1[0], OperationState::Complete).await;
    assert!(matches!(&late, OperationWritten::Changed { operation } if *operation == taken), "{late:?}");
    let done = agent.write(&taken, OperationState::Complete).await;
    let OperationWritten::Written { operation: done } = done else { panic!("{done:?}") };
    assert!(agent.operations(Some(&given.0)).await.1.is_empty(), "it has ended");
    // An end is the end.
    let again = agent.write(&done, OperationState::InProgress).await;
    assert!(matches!(again, OperationWritten::Changed { .. }), "{again:?}");
    agents.stop().await;
}

#[tokio::test]
async fn a1_standalone_agent_cannot_access_operations_of_other_machines() {
    let (agents, operations) = standalone().await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let agent = Agent { agents: &agents, client: agents.client(Some((&certificate, &key))) };
    let mut power = operation("power", "node1");
    power.spec.operation_name = "powerCycle".to_owned();
    let power = operations.create(power).await.unwrap();
    let manifest = crate::machines::source::SourcedOperation {
        origin: "x".to_owned(),
        line: 1,
        operation: Arc::new(operation("other", "node2")),
    };
    assert_eq!(operations.take(vec![manifest], true).await, Vec::<String>::new());
    let other = operations.get("other").unwrap();
    assert!(agent.operations(None).await.1.is_empty());
    for operation in [&power, &other] {
        let written = agent.write(operation, OperationState::Complete).await;
        assert!(matches!(written, OperationWritten::Gone), "{written:?}");
    }
    assert_eq!(operations.get("other").unwrap(), other);
    let (status, _) = agents.post(&agents.client(None), "/v1/watch", &WatchRequest::default()).await;
    assert_eq!(status, 401);
    agents.stop().await;
}

#[tokio::test]
async fn slots_of_a_host_are_shown_and_fields_of_pxed_are_kept() {
    let (agents, _) = standalone().await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let client = agents.client(Some((&certificate, &key)));
    let condition = |kind: &str| {
        let condition = json!({ "type": kind, "status": "False", "reason": "NoVersionSelected", "message": "none",
            "lastTransitionTime": "2026-01-01T00:00:00Z" });
        serde_json::from_value(condition).unwrap()
    };
    let slot = bedplate_api::machine::Slot {
        name: SlotName::A,
        configuration_name: None,
        version: None,
        image_digest: None,
        state: SlotState::Empty,
    };
    let node = NodeReport {
        slots: vec![slot],
        conditions: vec![condition("Paved"), condition("Enrolled")],
        ..NodeReport::default()
    };
    assert_eq!(agents.post(&client, "/v1/node", &node).await.0, 204);
    assert_eq!(agents.condition("Paved"), ("False".to_owned(), "NoVersionSelected".to_owned()));
    assert_eq!(agents.condition("Enrolled").0, "True", "not the agent's to say");
    agents.stop().await;
}

/// A node that runs version 1 of a configuration, and has it in slot a.
fn runs(configuration: &str) -> NodeReport {
    let applied = json!({ "name": configuration, "version": 1, "slot": "a", "nodeUID": "u".repeat(100) });
    let slot = json!({ "name": "a", "configurationName": configuration, "version": 1, "state": "Running" });
    serde_json::from_value(json!({ "applied": applied, "slots": [slot] })).unwrap()
}

/// node1 is given a configuration by a person.
fn refer(agents: &Agents, configuration: &str) {
    let machines = &agents.rig.machines;
    let known = machines.load().by_name(&"node1".parse().unwrap()).unwrap().clone();
    let mut machine = (*known.machine).clone();
    machine.spec.configuration_ref = serde_json::from_value(json!({ "name": configuration })).unwrap();
    machines.store(Snapshot::build(&"default".parse().unwrap(), [machine]));
}

#[tokio::test]
async fn v3_host_claims_only_selected_configurations_and_limited_text() {
    let (agents, _) = standalone().await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let client = agents.client(Some((&certificate, &key)));
    let status = || agents.rig.registry.get(&"node1".parse().unwrap()).unwrap();
    let report = async |node: &NodeReport| assert_eq!(agents.post(&client, "/v1/node", node).await.0, 204);
    let names = || {
        let status = status();
        let slot = status.slots[0].configuration_name.clone().unwrap_or_default();
        (status.applied.map(|applied| applied.name).unwrap_or_default(), slot)
    };
    let both = |name: &str| (name.to_owned(), name.to_owned());

    report(&runs("others")).await;
    assert_eq!(names(), both(""));
    assert_eq!((status().slots[0].version, status().slots[0].state), (None, SlotState::Running));
    refer(&agents, "first");
    report(&runs("first")).await;
    assert_eq!(names(), both("first"));
    refer(&agents, "second");
    report(&runs("first")).await;
    assert_eq!(names(), both("first"), "it runs what was given before");
    report(&runs("others")).await;
    assert_eq!(names(), both(""));

    let long = "x".repeat(10_000);
    refer(&agents, &long[..240]);
    let mut node = runs(&long);
    let of = json!({ "name": long, "version": 1 });
    let back = json!({ "from": of, "to": of, "message": long, "time": "2026-01-01T00:00:00Z" });
    node.rolled_back = serde_json::from_value(back).unwrap();
    report(&node).await;
    assert_eq!(names(), both(&long[..240]));
    assert_eq!(status().applied.unwrap().node_uid.unwrap().len(), 63);
    let back = status().rolled_back.unwrap();
    assert_eq!((back.from.name.len(), back.to.name.len(), back.message.len()), (240, 240, 1024));
    agents.stop().await;
}

#[tokio::test]
async fn agent_gets_recorded_node_state_and_reports_missing_parts_again() {
    let (agents, _) = standalone().await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let agent = Agent { agents: &agents, client: agents.client(Some((&certificate, &key))) };
    refer(&agents, "first");
    let applied = async || match agent.watch(None).await {
        WatchResponse::Changed { machine, .. } => {
            let status = machine.status.unwrap();
            (status.applied.map(|applied| applied.name), status.slots.len())
        }
        WatchResponse::Same => panic!("nothing new"),
    };
    let node = runs("first");
    assert_eq!(agents.post(&agent.client, "/v1/node", &node).await.0, 204);
    assert_eq!(applied().await, (Some("first".to_owned()), 1));

    // Its manifest is missing for a moment.
    let before = agents.rig.machines.load();
    let machine = before.by_name(&"node1".parse().unwrap()).unwrap().machine.clone();
    agents.rig.machines.store(Snapshot::default());
    agents.rig.registry.follow(&before, &agents.rig.machines.load());
    let (status, _) = agents.post(&agent.client, "/v1/watch", &WatchRequest::default()).await;
    assert_ne!(status, 200);
    agents.rig.machines.store(Snapshot::build(&"default".parse().unwrap(), [machine]));
    assert_eq!(applied().await, (None, 0));
    agents.stop().await;
}

#[tokio::test]
async fn agent_without_a_cluster_knows_the_generation_of_its_machine() {
    let (agents, _) = standalone().await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let agent = Agent { agents: &agents, client: agents.client(Some((&certificate, &key))) };
    let machines = &agents.rig.machines;
    let mut machine = (*machines.load().by_name(&"node1".parse().unwrap()).unwrap().machine).clone();
    machine.metadata.generation = Some(2);
    machines.store(Snapshot::build(&"default".parse().unwrap(), [machine]));
    let WatchResponse::Changed { machine, .. } = agent.watch(None).await else { panic!("it is new") };
    assert_eq!(machine.metadata.generation, Some(2), "its conditions are of this generation");
    agents.stop().await;
}

/// Enrolls another host next to node1, with its own key and certificate.
async fn second_host(agents: &Agents) -> reqwest::Client {
    let by_hand = json!({ "provider": "manual" });
    let both =
        [crate::http::tests::machine("node1", &plain()), crate::http::tests::machine("node2", &by_hand)];
    agents.rig.machines.store(Snapshot::build(&"default".parse().unwrap(), both));
    let owner = crate::boot::Owner::Machine { name: "node2".parse().unwrap(), uid: "u1".to_owned() };
    let (boot_id, token) = agents.rig.boots().seeds().issue(owner, Timestamp::now()).await.unwrap();
    let key = KeyPair::generate().unwrap();
    let asked = EnrollRequest {
        boot_id,
        token,
        csr_pem: csr(&key, Some("node2")),
        agent_version: "0.1.0".to_owned(),
        facts: Hardware::default(),
        challenge_answer: None,
    };
    match agents.enroll(&asked).await.unwrap() {
        EnrollResponse::Enrolled { certificate_pem, .. } => agents.client(Some((&certificate_pem, &key))),
        other => panic!("{other:?}"),
    }
}

/// Sends this number of requests and returns the number that was accepted; the others were rejected as too many.
async fn flood(
    agents: &Agents,
    client: &reqwest::Client,
    path: &str,
    bodies: Vec<serde_json::Value>,
) -> usize {
    let mut taken = 0;
    for body in bodies {
        let url = format!("https://{}{path}", agents.address);
        let response = client.post(url).json(&body).send().await.unwrap();
        if response.status() == 429 {
            let after: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert!((1..=10).contains(&after), "{after}");
            let refusal: Refusal = response.json().await.unwrap();
            assert_eq!(refusal.reason, "RateLimited");
        } else {
            assert!(response.status().is_success(), "{path}: {response:?}");
            taken += 1;
        }
    }
    taken
}

#[tokio::test]
async fn flooding_host_is_rate_limited_and_other_host_is_not_affected() {
    let (agents, operations) = standalone().await;
    let healthy = second_host(&agents).await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let hostile = agents.client(Some((&certificate, &key)));
    operations.create(operation("x", "node1")).await.unwrap();
    let kept = operations.get("x").unwrap();
    let of = |number: usize| {
        let node = NodeRef::new("node1", format!("n{number}"));
        json!(NodeReport { node: Some(node), ..NodeReport::default() })
    };
    // By a version that is not the present one: nothing is written, but it costs as much.
    let progress = json!({ "name": "x", "uid": kept.metadata.uid, "resourceVersion": "0", "status": { "state": "InProgress" } });
    let renewal = json!({ "csrPem": csr(&key, Some("node1")) });
    let changes = || agents.rig.store.counters().changes.load(std::sync::atomic::Ordering::Relaxed);
    let report = json!({ "agentVersion": "0.1.0", "kernelBootId": "b", "addresses": [] });

    let (before, started) = (changes(), std::time::Instant::now());
    let nodes = flood(&agents, &hostile, "/v1/node", (0..300).map(of).collect()).await;
    let written = changes() - before;
    let writes = flood(&agents, &hostile, "/v1/operation", vec![progress; 400]).await;
    let renewals = flood(&agents, &hostile, "/v1/renew", vec![renewal; 60]).await;
    let reports = flood(&agents, &hostile, "/v1/report", vec![report.clone(); 100]).await;
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!((30..=30 + seconds).contains(&nodes), "{nodes} in {seconds} s");
    assert!(written <= nodes as u64 + 5, "{written} of {nodes}");
    assert!((120..=120 + 4 * seconds).contains(&writes), "{writes} in {seconds} s");
    assert!((20..=20 + seconds).contains(&renewals), "{renewals} in {seconds} s");
    assert!((30..=30 + seconds).contains(&reports), "{reports} in {seconds} s");
    let refused = u64::try_from(300 + 400 + 60 + 100 - nodes - writes - renewals - reports).unwrap();
    assert_eq!(agents.counters.refusals.get(AgentRefusal::RateLimited), refused);

    // As much as an agent says in minutes.
    for number in 0..20 {
        let node = NodeRef::new("node2", format!("n{number}"));
        let node = NodeReport { node: Some(node), ..NodeReport::default() };
        assert_eq!(agents.post(&healthy, "/v1/node", &node).await.0, 204);
        assert_eq!(agents.post(&healthy, "/v1/report", &report).await.0, 204);
        assert_eq!(agents.post(&healthy, "/v1/watch", &WatchRequest::default()).await.0, 200);
    }
    // Nor does the Machine's own next host.
    agents.allow().await;
    let next = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(2, &next).await;
    let next = agents.client(Some((&certificate, &next)));
    assert_eq!(agents.post(&next, "/v1/report", &report).await.0, 204);
    assert_eq!(agents.post(&next, "/v1/node", &of(0)).await.0, 204);
    agents.stop().await;
}

#[tokio::test]
async fn repeated_token_is_rate_limited_and_wrong_one_uses_no_allowance() {
    let (agents, _) = standalone().await;
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let seed = agents.seed(1).await;
    let mut wrong = request(&seed, &csr(&key, Some("node1")));
    wrong.token = SecretText("x".repeat(43));
    for _ in 0..50 {
        let refused = agents.enroll(&wrong).await;
        assert!(same(&refused, &refusal(403, "WrongToken")), "{refused:?}");
    }
    let right = json!(request(&seed, &csr(&key, Some("node1"))));
    let started = std::time::Instant::now();
    let taken = flood(&agents, &agents.client(None), "/v1/enroll", vec![right; 100]).await;
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!((30..=30 + seconds).contains(&taken), "{taken} in {seconds} s");
    agents.allow().await;
    let fresh = agents.seed(2).await;
    let enrolled = agents.enroll(&request(&fresh, &csr(&other, Some("node1")))).await;
    assert!(matches!(enrolled, Ok(EnrollResponse::Enrolled { .. })), "{enrolled:?}");
    agents.stop().await;
}

#[tokio::test]
async fn an_agent_of_a_cluster_is_sent_to_its_api_server() {
    let agents = Agents::start(Rig::new().with_images().await).await;
    let key = KeyPair::generate().unwrap();
    let (certificate, _) = agents.enrolled(1, &key).await;
    let client = agents.client(Some((&certificate, &key)));
    let (status, text) = agents.post(&client, "/v1/watch", &WatchRequest::default()).await;
    assert_eq!(status, 409, "{text}");
    assert_eq!(serde_json::from_str::<Refusal>(&text).unwrap().reason, "UseKubernetesAPI");
    agents.stop().await;
}

#[tokio::test]
async fn h1_a_host_that_a_person_installs_enrolls_once_by_a_token_of_the_socket() {
    let (agents, _) = standalone().await;
    let urls = crate::netboot::dhcp::Urls { advertise: Some("p.example:8443".to_owned()), port: 8443 };
    let tokens = Tokens {
        machines: agents.rig.machines.clone(),
        boots: agents.rig.boots().clone(),
        urls,
        site: "default".parse().unwrap(),
        ca_pem: agents.rig.authority.pem().to_owned(),
    };
    let now = Timestamp::now();
    let netbooted = tokens.issue("node1", now).await;
    assert!(matches!(netbooted, Err(IssueTokenError::Netbooted(_))), "its seed comes with its boot");
    assert!(matches!(tokens.issue("nobody", now).await, Err(IssueTokenError::NoMachine(_))));

    let of_provider = |provider: &str| -> bedplate_api::machine::Machine {
        let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "node1" },
            "spec": { "provider": provider } });
        serde_json::from_value(object).unwrap()
    };
    let know = |machine| agents.rig.machines.store(Snapshot::build(&"default".parse().unwrap(), [machine]));
    know(of_provider("azure"));
    assert!(
        tokens.issue("node1", now).await.unwrap().token.is_some(),
        "every provider but pxe enrolls by a token"
    );
    know(of_provider("manual"));
    let seed = tokens.issue("node1", now).await.unwrap();
    assert_eq!(seed.endpoints, ["https://p.example:8443"]);
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let response = agents.enroll(&request(&seed, &csr(&key, Some("node1")))).await.unwrap();
    let EnrollResponse::Enrolled { certificate_pem, .. } = response else { panic!("{response:?}") };
    assert_eq!(agents.condition("Enrolled"), ("True".to_owned(), "Enrolled".to_owned()));
    let stolen = agents.enroll(&request(&seed, &csr(&other, Some("node1")))).await;
    assert!(same(&stolen, &refusal(409, "TokenUsed")), "{stolen:?}");
    let agent = Agent { agents: &agents, client: agents.client(Some((&certificate_pem, &key))) };
    assert!(agent.operations(None).await.1.is_empty());
    agents.stop().await;
}
