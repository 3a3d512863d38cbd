//! Golden texts. To refresh them: `BEDPLATE_UPDATE_GOLDENS=1 cargo test -p bedplate-cli`, then read the difference.

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::BmcProtocol;
use bedplate_api::operation::{MachineOperation, OperationState};
use serde_json::{Value, json};

use super::*;

pub(super) fn look() -> Look {
    Look { now: "2026-01-01T00:10:00Z".parse().unwrap(), color: false }
}

pub(super) fn golden(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/golden").join(name);
    if std::env::var_os("BEDPLATE_UPDATE_GOLDENS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{} differs; refresh with BEDPLATE_UPDATE_GOLDENS=1", path.display());
}

fn machine(name: &str, status: &Value) -> Machine {
    serde_json::from_value(json!({
        "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
        "metadata": { "name": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "provider": "pxe", "pxe": { "interfaces": [
            { "macAddress": "5254.0000.0001", "addresses": ["10.7.0.21/24"] }, { "macAddress": "525400000002" } ] } },
        "status": status
    }))
    .unwrap()
}

#[test]
fn colors_say_which_conditions_are_bad() {
    let look = Look { color: true, ..look() };
    for (kind, status, paint) in [
        ("Ready", "True", Paint::Good),
        ("Ready", "False", Paint::Waiting),
        ("Degraded", "True", Paint::Bad),
        ("Stalled", "True", Paint::Bad),
        ("Failed", "True", Paint::Bad),
        ("Suspended", "True", Paint::Waiting),
        ("Complete", "True", Paint::Good),
    ] {
        let condition = json!({ "type": kind, "status": status, "reason": "Why", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let text = super::machine::conditions(&[serde_json::from_value(condition).unwrap()], look);
        assert!(text.contains(&look.paint(paint, status)), "{kind} {status}: {text:?}");
    }
}

fn booting() -> Machine {
    let at = |seconds: &str| format!("2026-01-01T00:09:{seconds}Z");
    machine(
        "node-2",
        &json!({
            "phase": "Booting",
            "power": { "state": "On", "observedTime": at("50") },
            "selected": { "name": "workers", "version": 3, "source": "Selector" },
            "conditions": [
                { "type": "PoweredOn", "status": "True", "reason": "On", "message": "", "lastTransitionTime": at("00") },
                { "type": "Ready", "status": "False", "reason": "Booting", "lastTransitionTime": at("00"),
                  "message": "waiting for the root file system since 00:09:08" }
            ],
            "hardware": { "vendor": "QEMU", "product": "Standard PC", "cpu": { "threads": 2 }, "memoryBytes": 1_073_741_824,
                "disks": [{}], "nics": [{}, {}] },
            "boot": {
                "id": "0102030405060708090a0b0c0d0e0f10", "startTime": at("00.000000"), "stage": "Initrd", "attempts": 2,
                "timeline": [
                    { "stage": "Discover", "time": at("00.000000") },
                    { "stage": "Offered", "time": at("00.012000") },
                    { "stage": "Acknowledged", "time": at("01.500000") },
                    { "stage": "Loader", "time": at("02.000000"), "message": "snponly.efi by TFTP" },
                    { "stage": "RootFS", "time": at("08.250000"), "failed": true, "message": "404 from \u{1b}[31mpxed" },
                    { "stage": "Initrd", "time": at("07.000000") }
                ],
                "previous": { "id": "000102030405060708090a0b0c0d0e0f", "startTime": "2026-01-01T00:01:00Z",
                    "stage": "Script", "stageTime": "2026-01-01T00:01:05.200000Z", "message": "the kernel was not fetched" }
            }
        }),
    )
}

#[test]
fn list_shows_one_line_for_each_machine_by_name() {
    let ready = machine(
        "node-10",
        &json!({
            "phase": "Ready", "nodeRef": { "name": "node-10", "uid": "u" }, "boot": { "stage": "Enrolled" },
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "all is well",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }]
        }),
    );
    let machines = [booting(), ready, machine("node-1", &json!({}))];
    golden("list.txt", &list(&machines, look()));
    let none = list(&[], look());
    assert!(none.starts_with("no Machines; ") && none.contains("bedplate discovered"), "{none}");
}

#[test]
fn show_prints_conditions_and_the_timeline_in_order_with_durations() {
    golden("show.txt", &show(&booting(), look()));
    golden("show-new.txt", &show(&machine("node-1", &Value::Null), look()));
}

#[test]
fn show_prints_the_slots() {
    let slots = json!([{ "name": "a", "configurationName": "workers", "version": 3, "state": "Running" },
        { "name": "b", "state": "Empty" }]);
    let text = show(&machine("node-1", &json!({ "slots": slots })), look());
    assert!(text.contains("\n  Slot a      Running, workers-v3\n  Slot b      Empty\n"), "{text}");
}

#[test]
fn show_prints_the_state_disk_and_wipe_that_the_agent_reported() {
    let state_line = |status: &Value, provider: &str| {
        let mut machine = machine("node-1", status);
        machine.spec.provider = provider.to_owned();
        let text = show(&machine, look());
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix("State "));
        line.map(|line| line.trim().to_owned())
    };
    let enrolled = json!({ "version": "0.1.0" });
    let agent = json!({ "version": "0.1.0", "bootID": "00000000-0000-0000-0000-000000000001" });
    let disk = json!({ "name": "virtio-state", "wipeToken": "first" });
    for (status, expected) in [
        (json!({}), None),
        (json!({ "agent": enrolled }), None),
        (json!({ "agent": agent }), Some("in memory, lost with the boot")),
        (json!({ "agent": agent, "stateDisk": { "name": "sda" } }), Some("on disk sda")),
        (
            json!({ "agent": agent, "stateDisk": disk }),
            Some("on disk virtio-state, wipe token \"first\" used"),
        ),
    ] {
        assert_eq!(state_line(&status, "pxe").as_deref(), expected, "{status}");
    }
    // The host was not booted by stage-1, so the place is unknown.
    assert_eq!(state_line(&json!({ "agent": agent }), "manual"), None);
}

#[test]
fn text_from_outside_cannot_steer_the_terminal() {
    let plain = show(&booting(), look());
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let colorful = show(&booting(), Look { color: true, ..look() });
    assert!(colorful.contains("\u{1b}[31mrootfs\u{1b}[0m"));
    assert!(!colorful.contains("\u{1b}[31mpxed"));
}

#[test]
fn explain_names_each_request_its_answer_and_why() {
    let explanation: Explanation = serde_json::from_value(json!({
        "subject": "52:54:00:00:00:01", "machine": "node-1", "decisions": [
            { "request": "UEFI x64, PXE", "decision": "TFTP snponly.efi", "reasons": ["provider is pxe", "firmware is Auto"] },
            { "request": "BIOS, PXE", "decision": "TFTP undionly.kpxe", "reasons": [] } ]
    }))
    .unwrap();
    golden("explain.txt", &explain(&explanation, look()));
    let unknown = Explanation { subject: "x".into(), machine: None, decisions: vec![], notes: vec![] };
    assert_eq!(explain(&unknown, look()), "this pxed does not know a Machine x\n");
    let ignored = Explanation { notes: vec!["relay 10.8.0.1 is not listed".into()], ..unknown };
    assert_eq!(
        explain(&ignored, look()),
        "this pxed does not know a Machine x\nrelay 10.8.0.1 is not listed\n"
    );
}

#[test]
fn discovered_shows_the_latest_first() {
    let machines: Vec<Discovered> = serde_json::from_value(json!([
        { "macAddress": "52:54:00:00:00:07", "architectures": [7, 9], "vendorClass": "PXEClient:Arch:00007",
          "uuid": "6d5a8b1e-0000-0000-0000-525400000001", "stage": "Userspace",
          "firstSeen": "2025-12-30T00:00:00Z", "lastSeen": "2026-01-01T00:09:00Z" },
        { "macAddress": "52:54:00:00:00:08", "architectures": [], "vendorClass": "",
          "firstSeen": "2026-01-01T00:09:30Z", "lastSeen": "2026-01-01T00:09:58Z" }
    ]))
    .unwrap();
    golden("discovered.txt", &discovered(&machines, look()));
}

#[test]
fn ages_are_in_their_largest_unit() {
    let ago = |seconds: i64| age(look().now - SignedDuration::from_secs(seconds), look());
    assert_eq!([ago(119), ago(120), ago(7_200), ago(172_800), ago(-5)], ["119s", "2m", "2h", "2d", "0s"]);
}

fn operation(name: &str, spec: &Value, created: &str, status: &Value) -> MachineOperation {
    serde_json::from_value(json!({
        "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineOperation",
        "metadata": { "name": name, "creationTimestamp": format!("2026-01-01T00:{created}Z") }, "spec": spec, "status": status
    }))
    .unwrap()
}

fn cycling() -> MachineOperation {
    let step = json!({ "name": "Off", "startTime": "2026-01-01T00:09:00Z" });
    operation(
        "node-1-power-cycle-x7k2p",
        &json!({ "operationName": "powerCycle", "machineRef": { "name": "node-1" } }),
        "09:00",
        &json!({ "state": "InProgress", "message": "waiting until the BMC \u{1b}says Off", "step": step }),
    )
}

#[test]
fn operations_are_listed_oldest_first_with_children_after_parents() {
    let failed = operation(
        "a-reset-1",
        &json!({ "operationName": "reset", "machineRef": { "name": "a" } }),
        "00:00",
        &json!({ "state": "Failed", "reason": "AuthenticationFailed", "message": "no" }),
    );
    let many = operation(
        "reboot-7",
        &json!({ "operationName": "reboot", "machineSelector": { "matchLabels": { "rack": "a" } } }),
        "08:00",
        &json!({ "state": "InProgress", "counts": { "total": 7, "complete": 2, "failed": 1 } }),
    );
    let new = operation(
        "node-2-power-on-a",
        &json!({ "operationName": "powerOn", "machineRef": { "name": "node-2" } }),
        "09:59",
        &Value::Null,
    );
    let mut child = operation(
        "reboot-7-node-3",
        &json!({ "operationName": "reboot", "machineRef": { "name": "node-3" } }),
        "09:30",
        &json!({ "state": "Complete", "reason": "Rebooted" }),
    );
    child.metadata.labels = Some([("bedplate.dev/parent".to_owned(), "reboot-7".to_owned())].into());
    golden("operations.txt", &operations(&[new, child, cycling(), many, failed], look()));
    assert!(operations(&[], look()).contains("`bedplate power`"));
}

#[test]
fn a_text_neither_steers_a_terminal_nor_rearranges_its_line() {
    assert_eq!(clean("a\u{1b}[2Jb\u{202e}c\u{61c}d\te"), "a [2Jb c d e");
}

#[test]
fn progress_of_an_operation_is_one_clean_line() {
    assert_eq!(
        progress(&cycling(), look()),
        "node-1-power-cycle-x7k2p: powerCycle of node-1 InProgress (Off): waiting until the BMC  says Off"
    );
    let mut done = cycling();
    let status = done.status.as_mut().unwrap();
    status.state = Some(OperationState::Complete);
    status.reason = Some("PowerCycled".to_owned());
    status.message = None;
    assert_eq!(
        progress(&done, look()),
        "node-1-power-cycle-x7k2p: powerCycle of node-1 Complete (PowerCycled)"
    );
}

#[test]
fn power_shows_state_last_action_attempts_and_what_the_bmc_says() {
    let mut on = machine(
        "node-1",
        &json!({
            "power": { "state": "Off", "observedTime": "2026-01-01T00:09:30Z", "attempts": 2,
                "nextAttemptTime": "2026-01-01T00:11:30Z",
                "lastAction": { "action": "PowerOn", "time": "2026-01-01T00:08:00Z", "message": "to netboot" } },
            "conditions": [
                { "type": "BMCReachable", "status": "False", "reason": "BMCUnreachable", "lastTransitionTime": "2026-01-01T00:09:50Z",
                  "message": "no answer since 00:09:50, next try at 00:10:05" },
                { "type": "PoweredOn", "status": "False", "reason": "Off", "lastTransitionTime": "2026-01-01T00:09:00Z",
                  "message": "switched on again at 00:11:30" },
                { "type": "Ready", "status": "False", "reason": "Off", "lastTransitionTime": "2026-01-01T00:09:00Z", "message": "" }
            ]
        }),
    );
    on.spec.bmc = serde_json::from_value(json!({
        "protocol": "Redfish", "address": "https://10.9.0.21", "credentialsSecretRef": { "namespace": "bedplate-system", "name": "bmc" }
    }))
    .unwrap();
    golden("power.txt", &power(&on, look()));
    if let Some(bmc) = &mut on.spec.bmc {
        bmc.protocol = BmcProtocol::Ipmi;
    }
    assert!(power(&on, look()).contains("IPMI https://10.9.0.21"));
    golden("power-new.txt", &power(&machine("node-2", &Value::Null), look()));
}

#[test]
fn configurations_are_shown_with_their_versions_and_who_uses_them() {
    let template = json!({ "image": { "reference": "r.example/node:1", "allowTag": true }, "kubernetes": { "version": "v1.34.4" } });
    let version = |number: u32, status: &Value| {
        json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfigurationVersion",
            "metadata": { "name": format!("w-v{number}") },
            "spec": { "configurationName": "w", "version": number, "template": template }, "status": status })
    };
    let removed = json!({ "name": "w", "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:09:00Z" });
    let counts = json!({ "selected": 2, "applied": 1, "outdated": 1, "unavailable": 1 });
    let configuration = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "metadata": removed,
        "spec": { "machineSelector": { "matchLabels": { "rack": "1" } }, "template": template,
            "updateStrategy": { "type": "RollingUpdate" } },
        "status": { "latestVersion": 2, "deployedVersion": 1, "machines": counts } });
    let selected = |number: u32| json!({ "name": "w", "version": number, "source": "Selector" });
    let applied = json!({ "name": "w", "version": 1, "slot": "a", "time": "2026-01-01T00:05:00Z" });
    let described = json!({ "configuration": configuration, "origin": "/etc/bedplate/machines.d/w.yaml",
        "versions": [version(2, &json!({ "deployed": false, "machines": 0 })),
            version(1, &json!({ "deployed": true, "deployedTime": "2026-01-01T00:04:00Z", "machines": 2 }))],
        "machines": [{ "name": "a", "phase": "Ready", "configurationRef": { "name": "w", "version": 1 },
            "selected": selected(1), "applied": applied }, { "name": "b", "phase": "Paving", "selected": selected(1) }] });
    let listed: MachineConfiguration = serde_json::from_value(configuration).unwrap();
    let shown: Described = serde_json::from_value(described).unwrap();
    golden(
        "configurations.txt",
        &(configurations(&[listed], look()) + &super::configuration(&shown, look())),
    );
    assert!(configurations(&[], look()).starts_with("no MachineConfigurations"));
}
