//! The bytes that travel between pxed, stage-1 and agent, as released. If a test here fails, change the code, not the
//! test; a new field gets a default and a test of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Debug;

use bedplate_api::id::{BootId, Digest};
use bedplate_api::machine::{Disk, Firmware, FirmwareMode, Hardware, NodeRef, StateDiskStatus};
use bedplate_api::operation::{MachineOperation, MachineOperationStatus, OperationState};
use bedplate_api::wire::{
    BOOT_MAC_ARGUMENT, BOOT_URL_ARGUMENT, DiskSelector, EnrollRequest, EnrollResponse, ExplainedDecision,
    Explanation, KubernetesEndpoint, NodeReport, OperationWrite, OperationWritten, Refusal, RenewRequest,
    Report, RootFs, SEED_PATH, SecretRequest, SecretResponse, SecretText, Seed, Stage, StageReport,
    StateDiskRequest, WatchRequest, WatchResponse, WipeRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// `value` is written as exactly `bytes`, and `bytes` are read back as it.
fn frozen<T: Serialize + DeserializeOwned + Debug>(value: &T, bytes: &str) {
    assert_eq!(serde_json::to_string(value).unwrap(), bytes);
    let read: T = serde_json::from_str(bytes).unwrap();
    assert_eq!(format!("{read:?}"), format!("{value:?}"));
}

fn boot() -> BootId {
    BootId::from_random([0xab; 16])
}

fn seed() -> Seed {
    Seed {
        machine: "node-1".parse().unwrap(),
        site: "default".parse().unwrap(),
        boot_id: boot(),
        token: Some(SecretText("t0ken".into())),
        ca_pem: "CA".into(),
        endpoints: vec!["https://10.7.0.1:8443".into()],
        rootfs: Some(RootFs {
            url: "http://10.7.0.1:8067/b/x/rootfs".into(),
            digest: Digest::from_sha256([1; 32]),
            size: 5,
        }),
        state_disk: Some(StateDiskRequest {
            select: DiskSelector::ById("virtio-state".into()),
            wipe: WipeRequest::IfBlank,
            release: None,
        }),
    }
}

#[test]
fn seed_is_frozen() {
    frozen(
        &seed(),
        r#"{"machine":"node-1","site":"default","bootId":"abababababababababababababababab","token":"t0ken","caPem":"CA","endpoints":["https://10.7.0.1:8443"],"rootfs":{"url":"http://10.7.0.1:8067/b/x/rootfs","digest":"sha256:0101010101010101010101010101010101010101010101010101010101010101","size":5},"stateDisk":{"select":{"byId":"virtio-state"},"wipe":"ifBlank"}}"#,
    );
    assert_eq!(
        (SEED_PATH, BOOT_URL_ARGUMENT, BOOT_MAC_ARGUMENT),
        ("/bedplate/seed.json", "bedplate.url", "bedplate.mac")
    );
}

#[test]
fn seed_of_an_unknown_machine_holds_no_token() {
    let seed = Seed {
        machine: "unknown-525400000001".parse().unwrap(),
        token: None,
        rootfs: None,
        state_disk: None,
        ..seed()
    };
    frozen(
        &seed,
        r#"{"machine":"unknown-525400000001","site":"default","bootId":"abababababababababababababababab","caPem":"CA","endpoints":["https://10.7.0.1:8443"],"rootfs":null}"#,
    );
}

#[test]
fn disk_selectors_and_wipes_are_frozen() {
    frozen(&DiskSelector::Serial("S".into()), r#"{"serial":"S"}"#);
    frozen(&DiskSelector::Wwn("0x5".into()), r#"{"wwn":"0x5"}"#);
    frozen(&DiskSelector::Hctl("0:0:1:0".into()), r#"{"hctl":"0:0:1:0"}"#);
    frozen(
        &DiskSelector::Rule {
            min_size_bytes: Some(1),
            max_size_bytes: None,
            rotational: Some(false),
            model: Some("M".into()),
        },
        r#"{"rule":{"minSizeBytes":1,"maxSizeBytes":null,"rotational":false,"model":"M"}}"#,
    );
    frozen(&WipeRequest::Never, r#""never""#);
    frozen(&WipeRequest::Once("2026".into()), r#"{"once":"2026"}"#);
}

#[test]
fn stages_are_frozen_in_their_order() {
    let stages = [
        Stage::Discover,
        Stage::Offered,
        Stage::Acknowledged,
        Stage::Loader,
        Stage::Script,
        Stage::Kernel,
        Stage::Initrd,
        Stage::RootFs,
        Stage::Userspace,
        Stage::Enrolled,
    ];
    assert!(stages.is_sorted());
    frozen(
        &stages.to_vec(),
        r#"["Discover","Offered","Acknowledged","Loader","Script","Kernel","Initrd","RootFS","Userspace","Enrolled"]"#,
    );
    frozen(&StageReport { stage: Stage::Userspace, failure: None }, r#"{"stage":"Userspace"}"#);
    frozen(
        &StageReport { stage: Stage::RootFs, failure: Some("404".into()) },
        r#"{"stage":"RootFS","failure":"404"}"#,
    );
}

#[test]
fn enrollment_is_frozen() {
    let facts = Hardware {
        vendor: Some("QEMU".into()),
        firmware: Some(Firmware { mode: Some(FirmwareMode::Uefi), ..Firmware::default() }),
        memory_bytes: Some(1024),
        disks: vec![Disk { by_id: vec!["virtio-state".into()], size_bytes: Some(7), ..Disk::default() }],
        ..Hardware::default()
    };
    frozen(
        &EnrollRequest {
            boot_id: boot(),
            token: SecretText("t0ken".into()),
            csr_pem: "CSR".into(),
            agent_version: "0.1.0".into(),
            facts,
            challenge_answer: None,
        },
        r#"{"bootId":"abababababababababababababababab","token":"t0ken","csrPem":"CSR","agentVersion":"0.1.0","facts":{"vendor":"QEMU","firmware":{"mode":"UEFI"},"memoryBytes":1024,"disks":[{"byID":["virtio-state"],"sizeBytes":7}]}}"#,
    );
    frozen(&RenewRequest { csr_pem: "CSR".into() }, r#"{"csrPem":"CSR"}"#);
    frozen(
        &EnrollResponse::Enrolled {
            certificate_pem: "PEM".into(),
            kubernetes: Some(KubernetesEndpoint { server: "https://k".into(), ca_pem: "CA".into() }),
            heartbeat_seconds: 30,
        },
        r#"{"result":"enrolled","certificatePem":"PEM","kubernetes":{"server":"https://k","caPem":"CA"},"heartbeatSeconds":30}"#,
    );
    frozen(
        &EnrollResponse::Pending { message: "signer".into(), retry_seconds: 2 },
        r#"{"result":"pending","message":"signer","retrySeconds":2}"#,
    );
    frozen(&EnrollResponse::Challenge { challenge: "c".into() }, r#"{"result":"challenge","challenge":"c"}"#);
}

#[test]
fn reports_and_refusals_are_frozen() {
    frozen(
        &Report {
            agent_version: "0.1.0".into(),
            kernel_boot_id: "k".into(),
            boot_id: Some(boot()),
            facts: None,
            addresses: vec!["10.7.0.21".parse().unwrap()],
            state_disk: None,
            going_down: false,
        },
        r#"{"agentVersion":"0.1.0","kernelBootId":"k","bootId":"abababababababababababababababab","addresses":["10.7.0.21"]}"#,
    );
    frozen(
        &Report {
            agent_version: "0.1.0".into(),
            kernel_boot_id: "k".into(),
            boot_id: None,
            facts: None,
            addresses: vec![],
            state_disk: Some(StateDiskStatus {
                name: Some("virtio-state".into()),
                wipe_token: Some("first".into()),
            }),
            going_down: false,
        },
        r#"{"agentVersion":"0.1.0","kernelBootId":"k","addresses":[],"stateDisk":{"name":"virtio-state","wipeToken":"first"}}"#,
    );
    frozen(
        &Report {
            agent_version: "0.1.0".into(),
            kernel_boot_id: "k".into(),
            boot_id: None,
            facts: None,
            addresses: vec![],
            state_disk: None,
            going_down: true,
        },
        r#"{"agentVersion":"0.1.0","kernelBootId":"k","addresses":[],"goingDown":true}"#,
    );
    frozen(
        &Refusal { reason: "TokenUsed".into(), message: "m".into() },
        r#"{"reason":"TokenUsed","message":"m"}"#,
    );
    frozen(
        &Explanation {
            subject: "52:54:00:00:00:01".into(),
            machine: Some("node-1".parse().unwrap()),
            decisions: vec![ExplainedDecision {
                request: "UEFI x64, PXE".into(),
                decision: "TFTP snponly.efi".into(),
                reasons: vec!["r".into()],
            }],
            notes: vec!["n".into()],
        },
        r#"{"subject":"52:54:00:00:00:01","machine":"node-1","decisions":[{"request":"UEFI x64, PXE","decision":"TFTP snponly.efi","reasons":["r"]}],"notes":["n"]}"#,
    );
}

#[test]
fn facts_that_this_version_does_not_know_are_ignored() {
    let facts: Hardware =
        serde_json::from_str(r#"{"vendor":"V","gpu":[{"model":"G"}],"cpu":{"turbo":true}}"#).unwrap();
    assert_eq!(facts.vendor.as_deref(), Some("V"));
}

#[test]
fn secrets_do_not_reach_debug_output() {
    assert!(!format!("{:?}", seed()).contains("t0ken"));
}

#[test]
fn wire_format_of_a_standalone_agent_is_frozen() {
    frozen(&WatchRequest::default(), "{}");
    frozen(&WatchRequest { known: Some("r1".into()) }, r#"{"known":"r1"}"#);
    frozen(&WatchResponse::Same, r#"{"result":"same"}"#);
    let machine = r#"{"apiVersion":"bedplate.dev/v1alpha1","kind":"Machine","metadata":{"name":"a"},"spec":{"provider":"manual"}}"#;
    let machine = serde_json::from_str(machine).unwrap();
    let operation = r#"{"apiVersion":"bedplate.dev/v1alpha1","kind":"MachineOperation","metadata":{"name":"x"},"spec":{"machineRef":{"name":"a"},"operationName":"reboot"}}"#;
    let object: MachineOperation = serde_json::from_str(operation).unwrap();
    let reported = WatchResponse::Changed {
        revision: "r2".into(),
        machine,
        version: None,
        operations: vec![object.clone()],
    };
    let text = serde_json::to_string(&reported).unwrap();
    assert!(text.starts_with(r#"{"result":"changed","revision":"r2","machine":{"apiVersion":"#), "{text}");
    assert!(text.ends_with(&format!(r#""operations":[{operation}]}}"#)), "{text}");
    assert_eq!(serde_json::from_str::<WatchResponse>(&text).unwrap(), reported);
    let status = MachineOperationStatus {
        state: Some(OperationState::InProgress),
        executor: Some("bedplate-agent/a".into()),
        ..MachineOperationStatus::default()
    };
    frozen(
        &OperationWrite { name: "x".into(), uid: "u".into(), resource_version: "1".into(), status },
        r#"{"name":"x","uid":"u","resourceVersion":"1","status":{"state":"InProgress","executor":"bedplate-agent/a"}}"#,
    );
    frozen(&OperationWritten::Gone, r#"{"result":"gone"}"#);
    let written = OperationWritten::Written { operation: Box::new(object.clone()) };
    frozen(&written, &format!(r#"{{"result":"written","operation":{operation}}}"#));
    let changed = OperationWritten::Changed { operation: Box::new(object) };
    frozen(&changed, &format!(r#"{{"result":"changed","operation":{operation}}}"#));
    frozen(&NodeReport::default(), "{}");
    let node = NodeRef::new("a", "n1");
    frozen(
        &NodeReport { node: Some(node), node_gone: Some("n0".into()), ..NodeReport::default() },
        r#"{"node":{"name":"a","uid":"n1"},"nodeGone":"n0"}"#,
    );
    frozen(
        &SecretRequest { namespace: "ns".into(), name: "pull".into() },
        r#"{"namespace":"ns","name":"pull"}"#,
    );
    let data = [("k".to_owned(), SecretText("dg==".into()))].into();
    frozen(&SecretResponse { kind: "Opaque".into(), data }, r#"{"type":"Opaque","data":{"k":"dg=="}}"#);
}
