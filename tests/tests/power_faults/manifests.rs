//! Operations that stand in the directory of manifests: once each, whatever happens to their files.

use bedplate_tests::bmc::chassis::Delays;
use serde_json::json;

use super::rig::{LIMIT, Protocol, Rig, order};

#[test]
fn operation_of_a_manifest_runs_once_over_touch_rename_and_restart() {
    let rig = Rig::new("manifests", "127.0.0.0/8");
    let station = rig.station("server", Protocol::Redfish, 1, Delays::default());
    rig.machine("server", &station.spec(1));
    let cycle = |name: &str| order(name, "server", "powerCycle", &json!({})).to_string();
    rig.manifest("first", &cycle("first"));
    let pxed = rig.start();
    assert_eq!(rig.ended("first", LIMIT).0, "Complete");
    let before = station.asked().len();
    let mut marks = 0;
    // An operation that is made later has ended: what the directory says was read before.
    let mut all_is_quiet = |what: &str| {
        marks += 1;
        let name = format!("mark-{marks}");
        rig.manifest("mark", &order(&name, "server", "powerOn", &json!({})).to_string());
        let (state, reason, message) = rig.ended(&name, LIMIT);
        assert_eq!((&*state, &*reason), ("Complete", "PoweredOn"), "{what}: {message}");
        assert_eq!(station.asked().len(), before, "{what}: {:?}", station.asked());
    };
    std::fs::write(rig.path("machines.d/first.yaml"), cycle("first")).unwrap();
    all_is_quiet("written again");
    rig.manifest("first", &format!("# a remark\n{}\n", cycle("first")));
    all_is_quiet("an editor's rename");
    std::fs::rename(rig.path("machines.d/first.yaml"), rig.path("machines.d/other.yaml")).unwrap();
    all_is_quiet("another file name");
    std::fs::remove_file(rig.path("machines.d/other.yaml")).unwrap();
    all_is_quiet("its file is gone");
    rig.manifest("first", &cycle("first"));
    all_is_quiet("its file is back");
    let _pxed = rig.restart(pxed);
    all_is_quiet("a restart");
    assert_eq!(rig.operation("first")["reason"], "PowerCycled");
}

#[test]
fn invalid_operation_is_refused_with_file_and_line_and_blocks_no_other() {
    let rig = Rig::new("wrong-manifests", "127.0.0.0/8");
    let station = rig.station("server", Protocol::Ipmi, 1, Delays::default());
    rig.machine("server", &station.spec(1));
    rig.manifest("first", &order("first", "server", "powerOn", &json!({})).to_string());
    let _pxed = rig.start();
    assert_eq!(rig.ended("first", LIMIT).0, "Complete");
    let until_logged = |words: &[&str]| {
        rig.wait(&format!("{words:?} in the log"), LIMIT, || {
            let log = rig.log();
            log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
        });
    };
    // Another spec by the same name, on the second line.
    rig.manifest("first", &format!("\n{}", order("first", "server", "powerOff", &json!({}))));
    until_logged(&["first.yaml:2", "choose a new name"]);
    rig.manifest(
        "wrong",
        "apiVersion: bedplate.dev/v1alpha1\nkind: MachineOperation\nmetadata:\n  name: wrong\nspec: 7\n",
    );
    until_logged(&["wrong.yaml"]);
    rig.manifest("unknown", &order("unknown", "server", "explode", &json!({})).to_string());
    until_logged(&["unknown.yaml", "explode"]);
    rig.manifest("broken", "{");
    until_logged(&["broken.yaml"]);
    let huge = "x".repeat(1 << 20);
    rig.manifest(
        "huge",
        &order("huge", "server", "powerOff", &json!({ "parameters": { "force": huge } })).to_string(),
    );
    until_logged(&["huge.yaml:1", "spec.parameters.force", "at most 4096"]);
    let parameters = json!({ "parameters": { "force": "perhaps" } });
    rig.manifest("value", &order("value", "server", "powerOff", &parameters).to_string());
    let (state, reason, message) = rig.ended("value", LIMIT);
    assert_eq!((&*state, &*reason), ("Failed", "InvalidParameters"), "{message}");
    assert!(message.contains("force") && message.contains("perhaps"), "{message}");
    assert!(station.is_on(), "{:?}", station.asked());
    // The others continue, new ones too.
    let other = rig.station("other", Protocol::Redfish, 1, Delays::default());
    rig.machine("other", &other.spec(1));
    rig.wait("a machine of another file to be on", LIMIT, || other.is_on().then_some(()));
    rig.manifest("cycle", &order("cycle", "server", "powerCycle", &json!({})).to_string());
    assert_eq!(rig.ended("cycle", LIMIT).0, "Complete");
    assert_eq!(station.changes(), [true, false, true]);
    let log = rig.log();
    assert!(log.lines().all(|line| line.len() < 20_000), "a line of the log has no end");
}
