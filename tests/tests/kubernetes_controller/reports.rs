//! Reports of the controller on its decisions, for users of kubectl: Events, and the conditions of a MachineConfiguration.

use std::time::Duration;

use bedplate_api::configuration::NodeImage;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::objects::{self, NODE_IMAGE};
use bedplate_tests::registry::Registry;
use bedplate_tests::wait;
use serde_json::{Value, json};

use super::{PATIENCE, Site, pending};

/// A refusal is tried again after half a minute at least.
const LONG: Duration = Duration::from_secs(120);

/// Manifest of an image without layers, and its SHA-256.
const MANIFEST: &str = concat!(
    r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"#,
    r#""mediaType":"application/vnd.oci.empty.v1+json","#,
    r#""digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},"layers":[]}"#,
);
const MANIFEST_HASH: &str = "1ccb399e44f3e0ec86bb1a95031c6b9f81ac77860556a81a90acb79bab8005d9";

/// Returns the note of an Event.
fn note_of(event: &Value) -> String {
    event["note"].as_str().unwrap_or_default().to_owned()
}

/// Status, reason and message of a condition.
fn condition(object: &Value, type_: &str) -> (bool, String, String) {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|c| c["type"] == type_).unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (found["status"] == "True", text("reason"), text("message"))
}

impl Site {
    /// Waits until an object and its Events contain all `words`. Returns the output of `kubectl describe`, which must contain them too.
    fn described(&self, kind: &str, name: &str, words: &[&str]) -> String {
        let there = || -> anyhow::Result<String> {
            let object =
                self.objects().seen(kind, name)?.map(|object| object.to_string()).unwrap_or_default();
            let events = self.objects().all_seen("event")?;
            let about = events.iter().filter(|event| event["regarding"]["name"] == name);
            Ok(about.fold(object, |all, event| {
                all + event["reason"].as_str().unwrap_or_default() + &note_of(event)
            }))
        };
        let holds_all = |text: &str| words.iter().all(|word| text.contains(word));
        let kubernetes = Kubernetes::shared();
        let describe =
            || kubernetes.kubectl(&kubernetes.admin(), &["describe", kind, name]).unwrap_or_default();
        let found = wait::until_asked("its Events", PATIENCE, || Ok(holds_all(&there()?).then_some(())));
        // kubectl may fail, or may have listed the Events before.
        let shown = found.and_then(|()| {
            wait::until_asked("its description", PATIENCE, || {
                Ok(Some(describe()).filter(|text| holds_all(text)))
            })
        });
        shown.unwrap_or_else(|error| {
            panic!("{words:?}: {error:#}\n{}\n{}", describe(), self.controller.said())
        })
    }

    /// Returns the reason of each Event about a Machine, once per occurrence. `SelectionFailed` is omitted, because its occurrences depend on
    /// the configurations of other tests.
    fn events(&self, machine: &str) -> Vec<String> {
        let about = format!(
            "fieldSelector=regarding.kind%3DMachine,regarding.name%3D{machine},reason%21%3DSelectionFailed"
        );
        let events = self.objects().list("event", &about).unwrap();
        let lines = |event: &Value| {
            let times = event["series"]["count"].as_u64().unwrap_or(1).try_into().unwrap();
            vec![event["reason"].as_str().unwrap().to_owned(); times]
        };
        let mut reasons: Vec<String> = events.iter().flat_map(lines).collect();
        reasons.sort();
        reasons
    }

    fn waits_for_deletion(&self, configuration: &str) -> String {
        let found = self.until(("mc", configuration), "an outdated Machine", |object| {
            condition(object, "Progressing").1 == "AwaitingNodeDeletion"
        });
        condition(&found, "Progressing").2
    }
}

#[test]
fn each_decision_is_an_event_and_what_stays_as_it_is_is_none() {
    let site = Site::shared();
    site.machine(&objects::machine("told").label("row", "told"));
    site.described("machine", "told", &["SelectionFailed", "NoConfiguration"]);
    let edit = |content: u32| {
        let template = objects::numbered_template(content);
        site.apply(&objects::configuration("told", &template).selects("row", "told").json());
    };
    edit(1);
    site.selected("told", 1);
    site.join("told");
    site.described("machine", "told", &["told-v1 selected by its machineSelector", "NodeRegistered"]);
    site.described("mc", "told", &["VersionCreated", "told-v1"]);
    site.described("mcv", "told-v1", &["VersionLocked", "Machine told uses it"]);
    site.until(("machine", "told"), "Ready", |m| m["status"]["phase"] == "Ready");
    edit(2);
    let message = site.waits_for_deletion("told");
    assert!(message.contains("1 Machine (told)") && message.contains("told-v2"), "{message}");
    let before = site.events("told");
    eprintln!("{before:#?}");
    for beat in 0..5 {
        site.status("told", &json!({ "agent": { "version": beat.to_string() } }));
    }
    // Told in the order in which things happen: what comes later has passed what would have come before.
    site.objects().delete("node", "told").unwrap();
    site.selected("told", 2);
    let shown = site.described(
        "machine",
        "told",
        &["NodeDeleted", "told-v2 selected by its machineSelector; previously told-v1"],
    );
    assert!(shown.contains("bedplate.dev/controller"), "{shown}");
    let expected = ["NodeDeleted", "NodeRegistered", "VersionApplied", "VersionSelected", "VersionSelected"];
    assert_eq!(site.events("told"), expected, "{shown}");
}

#[test]
fn refused_edit_is_reported_in_degraded_and_made_once_it_is_permitted() {
    const REFUSAL: &str = "no version of this one";
    let site = Site::shared();
    let policy = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "refuses" }, "spec": { "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{ "apiGroups": ["bedplate.dev"], "apiVersions": ["*"],
                "operations": ["CREATE"], "resources": ["machineconfigurationversions"] }] },
            "validations": [{ "expression": "object.spec.configurationName != 'refused'", "message": REFUSAL }] } });
    let binding = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "refuses" }, "spec": { "policyName": "refuses", "validationActions": ["Deny"] } });
    site.apply(&policy);
    site.apply(&binding);
    let version = objects::version("refused", 9, &objects::template(NODE_IMAGE)).json();
    site.until_refused(REFUSAL, || site.as_controller().try_create(&version));
    site.configure("refused", 1);
    let found = site.until(("mc", "refused"), "Degraded", |mc| condition(mc, "Degraded").0);
    let (_, reason, message) = condition(&found, "Degraded");
    assert_eq!(reason, "VersionInvalid");
    assert!(message.contains("refused-v1") && message.contains(REFUSAL), "{message}");
    assert_eq!(found["status"]["latestVersion"], 0, "no number that was not made");
    site.described("mc", "refused", &["WriteRejected", REFUSAL]);
    // Others are made meanwhile.
    site.configure("taken", 1);
    site.until_there("mcv", "taken-v1");
    site.objects().delete("validatingadmissionpolicybinding", "refuses").unwrap();
    site.until_within(LONG, ("mcv", "refused-v1"), "the version", |_| true);
    site.until(("mc", "refused"), "no trouble", |mc| !condition(mc, "Degraded").0);
}

#[test]
fn tag_is_resolved_once_and_a_silent_registry_delays_no_other_version() {
    let site = Site::shared();
    let layout = site.place.path().join("layout");
    let blobs = layout.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(MANIFEST_HASH), MANIFEST).unwrap();
    let index = json!({ "manifests": [{ "digest": format!("sha256:{MANIFEST_HASH}") }] });
    std::fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let registry = Registry::start_tls_on_loopback(&layout).unwrap();
    let configuration = |tag: &str, authority: Option<&str>| {
        let reference = format!("{}/bedplate/node:{tag}", registry.address());
        let mut template = objects::template(&reference);
        let ca_bundle = authority.map(str::to_owned);
        template.image = NodeImage { allow_tag: true, ca_bundle, ..template.image };
        site.apply(&objects::configuration("tagged", &template).json());
        reference
    };
    // The controller does not trust its certificate: as good as unreachable.
    configuration("1", None);
    site.machine(&objects::machine("tagged").configuration("tagged"));
    let found =
        site.until(("mc", "tagged"), "Degraded", |mc| condition(mc, "Degraded").1 == "ImageUnresolved");
    let message = condition(&found, "Degraded").2;
    assert!(message.contains("tagged-v1") && message.contains("name the digest"), "{message}");
    let waits = site.until(("machine", "tagged"), "ImageUnresolved", |machine| {
        pending(machine).is_some_and(|c| c["reason"] == "ImageUnresolved" && c["status"] == "True")
    });
    assert!(waits["status"].get("selected").is_none());
    assert_eq!(site.get("mcv", "tagged-v1").unwrap()["status"]["deployed"], false);
    site.described("mcv", "tagged-v1", &["ImageUnresolved"]);
    site.configure("beside", 1);
    site.machine(&objects::machine("beside").configuration("beside"));
    site.selected("beside", 1);
    // The edit is tried immediately, and changes the same version.
    let authority = registry.authority().unwrap().to_owned();
    let reference = configuration("1", Some(&authority));
    site.selected("tagged", 1);
    let version = site.get("mcv", "tagged-v1").unwrap();
    let recorded = (&version["status"]["imageDigest"], &version["status"]["imageReference"]);
    assert_eq!(recorded, (&json!(registry.digest()), &json!(reference)));
    assert_eq!(version["status"]["deployed"], true);
    site.until(("mc", "tagged"), "no trouble", |mc| !condition(mc, "Degraded").0);
    // Away: the next version waits, the one in use has what it had.
    drop(registry);
    let mut next = objects::template(&format!("{reference}-next"));
    next.image.allow_tag = true;
    site.apply(&objects::configuration("tagged", &next).json());
    site.until(("mc", "tagged"), "Degraded", |mc| condition(mc, "Degraded").2.contains("tagged-v2"));
    assert_eq!(site.get("mcv", "tagged-v1").unwrap()["status"]["imageDigest"], recorded.0.clone());
}
