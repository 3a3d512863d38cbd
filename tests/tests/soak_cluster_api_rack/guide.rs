//! The manifests and commands of docs/guides/cluster-guide.md, with the changes that hosts in namespaces need.

use std::cell::RefCell;
use std::collections::BTreeSet;

use bedplate_tests::control_plane::version;
use bedplate_tests::documents::{commands, documents, examples};
use serde_json::{Value, json};

use super::template::{init, join};

const DOCUMENT: &str = "docs/guides/cluster-guide.md";

/// The guide. It knows which of its parts were used.
pub(crate) struct Guide {
    manifests: Vec<Value>,
    commands: BTreeSet<String>,
    used: RefCell<BTreeSet<String>>,
}

impl Guide {
    /// Reads the guide.
    pub(crate) fn read() -> Self {
        let documents = documents().unwrap();
        let (_, text) = documents.iter().find(|(name, _)| name == DOCUMENT).unwrap();
        let examples = examples(DOCUMENT, text).unwrap();
        let manifests = examples.iter().flat_map(|example| example.text.split("\n---\n"));
        let manifests = manifests.map(|manifest| serde_saphyr::from_str(manifest).unwrap());
        Self {
            manifests: manifests.collect(),
            commands: commands(text).into_iter().collect(),
            used: RefCell::default(),
        }
    }

    /// Returns a manifest as the guide has it.
    pub(crate) fn manifest(&self, kind: &str, name: &str) -> Value {
        let is_it = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == name;
        let found = self.manifests.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}"));
        self.used.borrow_mut().insert(title(found));
        found.clone()
    }

    /// Returns the command that contains this text.
    pub(crate) fn command(&self, part: &str) -> String {
        let found: Vec<&String> = self.commands.iter().filter(|command| command.contains(part)).collect();
        let [command] = found[..] else { panic!("{part:?} is in {found:#?}") };
        self.used.borrow_mut().insert(command.clone());
        command.clone()
    }

    /// Returns the manifests and commands that were not used.
    pub(crate) fn unused(&self) -> Vec<String> {
        let all = self.manifests.iter().map(title).chain(self.commands.iter().cloned());
        all.filter(|one| !self.used.borrow().contains(one)).collect()
    }
}

fn title(manifest: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&manifest["kind"]), text(&manifest["metadata"]["name"]))
}

/// Changes a manifest of Cluster API for hosts in namespaces. Their file systems are in memory, and one version of Kubernetes is built.
pub(crate) fn for_namespaces(manifest: &mut Value) {
    let version = json!(version().unwrap());
    let kind = manifest["kind"].as_str().unwrap().to_owned();
    let spec = &mut manifest["spec"];
    match &*kind {
        "Machine" => spec["version"] = version,
        "MachineDeployment" => spec["template"]["spec"]["version"] = version,
        "BedplateMachine" => spec["stateDisk"] = json!("Any"),
        "KubeadmConfig" => set(spec, init().into_iter().chain(join())),
        "KubeadmConfigTemplate" => set(&mut spec["template"]["spec"], join()),
        _ => {}
    }
}

fn set(spec: &mut Value, settings: impl IntoIterator<Item = (&'static str, Value)>) {
    for (name, value) in settings {
        spec[name] = value;
    }
}
