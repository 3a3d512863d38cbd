//! Pure: the differences of two templates, divided into changes of the running node and changes by a repave.
//!
//! Used by `applyConfiguration`, and by a rolling update that need not take a node down. Users see both lists
//! too: each entry prints as the field and its change. Contents of files are never included, because they may
//! be secret.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bedplate_api::configuration::{FileSpec, KubernetesSpec, Taint, TaintEffect, Template};

use crate::kubelet::{Reconfiguration, reconfigure_kubelet};

/// Difference between the template that a node runs and the desired one. Fields that only matter when a node
/// is created (health gate, pull secret) are ignored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Difference {
    /// Can be applied to the running node, in this order.
    pub in_place: Vec<InPlace>,
    /// Changes that need a repave.
    pub needs_repave: Vec<NeedsRepave>,
}

/// A change of a running node.
#[derive(Debug, Clone, PartialEq)]
pub enum InPlace {
    /// Labels of the Node.
    NodeLabels(Edit),
    /// Annotations of the Node.
    NodeAnnotations(Edit),
    /// Taints of the Node. One is known by key and effect.
    Taints {
        /// New, or of another value.
        set: Vec<Taint>,
        /// Removed taints.
        remove: Vec<Taint>,
    },
    /// Kernel parameters of the host. A removed one keeps its value until the host reboots.
    Sysctls(Edit),
    /// Kernel modules of the host. A removed one stays loaded until the host reboots.
    KernelModules {
        /// Modules to load.
        load: Vec<String>,
        /// Modules to drop from the next boot.
        forget: Vec<String>,
    },
    /// A file whose spec permits a change in place.
    File(Box<FileSpec>),
    /// The kubelet's configuration, with a restart of the kubelet.
    KubeletConfiguration(Box<Reconfiguration>),
}

/// Names with values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edit {
    /// New, or of another value.
    pub set: BTreeMap<String, String>,
    /// Removed entries.
    pub remove: Vec<String>,
}

/// A change that waits for a repave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedsRepave {
    /// The template's field.
    pub field: String,
    /// Change of the field.
    pub change: String,
}

impl NeedsRepave {
    fn new(field: impl Into<String>, change: impl Into<String>) -> Self {
        Self { field: field.into(), change: change.into() }
    }
}

impl fmt::Display for NeedsRepave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.change)
    }
}

impl fmt::Display for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taints = |taints: &[Taint]| taints.iter().map(taint_text).collect::<Vec<_>>();
        let (field, set, remove) = match self {
            Self::NodeLabels(edit) => ("kubernetes.nodeLabels", edit.pairs(), edit.remove.clone()),
            Self::NodeAnnotations(edit) => ("kubernetes.nodeAnnotations", edit.pairs(), edit.remove.clone()),
            Self::Taints { set, remove } => ("kubernetes.taints", taints(set), taints(remove)),
            Self::Sysctls(edit) => ("sysctls", edit.pairs(), edit.remove.clone()),
            Self::KernelModules { load, forget } => ("kernelModules", load.clone(), forget.clone()),
            Self::File(file) => return write!(f, "files: {} is written", file.path),
            Self::KubeletConfiguration(_) => {
                return f.write_str("kubernetes.kubeletConfiguration: changes, the kubelet is restarted");
            }
        };
        let until_boot = matches!(self, Self::Sysctls(_) | Self::KernelModules { .. });
        let remove_word = if until_boot { "keeps until the next boot" } else { "removes" };
        let parts = [("sets", set), (remove_word, remove)];
        let parts = parts.iter().filter(|(_, names)| !names.is_empty());
        let parts: Vec<String> = parts.map(|(word, names)| format!("{word} {}", names.join(", "))).collect();
        write!(f, "{field}: {}", parts.join("; "))
    }
}

impl Edit {
    fn between(running: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> Self {
        let set = wanted.iter().filter(|(name, value)| running.get(*name) != Some(value));
        let remove = running.keys().filter(|name| !wanted.contains_key(*name));
        Self {
            set: set.map(|(name, value)| (name.clone(), value.clone())).collect(),
            remove: remove.cloned().collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    fn pairs(&self) -> Vec<String> {
        self.set.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }
}

/// Returns the changes that take a node from `running` to `wanted`.
pub fn diff(running: &Template, wanted: &Template) -> Difference {
    // Every field is named, so that a new one cannot be forgotten here.
    let Template {
        image,
        kubernetes,
        files,
        units,
        sysctls,
        kernel_modules,
        pre_kubeadm_commands,
        post_kubeadm_commands,
        container,
        health_gate: _,
    } = wanted;
    let mut difference = Difference::default();
    if running.image.reference != image.reference {
        let change = format!("{} -> {}", running.image.reference, image.reference);
        difference.needs_repave.push(NeedsRepave::new("image.reference", change));
    }
    let edit = Edit::between(&running.sysctls, sysctls);
    difference.in_place_if(!edit.is_empty(), || InPlace::Sysctls(edit));
    let load = missing(kernel_modules, &running.kernel_modules);
    let forget = missing(&running.kernel_modules, kernel_modules);
    let differ = !load.is_empty() || !forget.is_empty();
    difference.in_place_if(differ, || InPlace::KernelModules { load, forget });
    difference.files(&running.files, files);
    for (field, differs) in [
        ("units", running.units != *units),
        ("preKubeadmCommands", running.pre_kubeadm_commands != *pre_kubeadm_commands),
        ("postKubeadmCommands", running.post_kubeadm_commands != *post_kubeadm_commands),
        ("container", running.container != *container),
    ] {
        difference.repave_if(differs, field);
    }
    difference.kubernetes(&running.kubernetes, kubernetes);
    difference
}

impl Difference {
    /// Returns true if both templates give the same node.
    pub fn is_empty(&self) -> bool {
        self.in_place.is_empty() && self.needs_repave.is_empty()
    }

    fn in_place_if(&mut self, differs: bool, change: impl FnOnce() -> InPlace) {
        if differs {
            self.in_place.push(change());
        }
    }

    fn repave_if(&mut self, differs: bool, field: &str) {
        if differs {
            self.needs_repave.push(NeedsRepave::new(field, "changes"));
        }
    }

    fn kubernetes(&mut self, running: &KubernetesSpec, wanted: &KubernetesSpec) {
        let KubernetesSpec {
            version,
            api_server_endpoint,
            node_labels,
            node_annotations,
            taints,
            kubelet_configuration,
            kubelet_extra_args,
            role,
            cluster_configuration,
            init_configuration,
            join_configuration,
        } = wanted;
        if running.version != *version {
            let change = format!("{} -> {version}", running.version);
            self.needs_repave.push(NeedsRepave::new("kubernetes.version", change));
        }
        for (field, differs) in [
            ("kubernetes.apiServerEndpoint", running.api_server_endpoint != *api_server_endpoint),
            ("kubernetes.kubeletExtraArgs", running.kubelet_extra_args != *kubelet_extra_args),
            ("kubernetes.role", running.role != *role),
            ("kubernetes.clusterConfiguration", running.cluster_configuration != *cluster_configuration),
            ("kubernetes.initConfiguration", running.init_configuration != *init_configuration),
            ("kubernetes.joinConfiguration", running.join_configuration != *join_configuration),
        ] {
            self.repave_if(differs, field);
        }
        let labels = Edit::between(&running.node_labels, node_labels);
        self.in_place_if(!labels.is_empty(), || InPlace::NodeLabels(labels));
        let annotations = Edit::between(&running.node_annotations, node_annotations);
        self.in_place_if(!annotations.is_empty(), || InPlace::NodeAnnotations(annotations));
        self.taints(&running.taints, taints);
        if running.kubelet_configuration != *kubelet_configuration {
            self.kubelet(running, wanted);
        }
    }

    fn taints(&mut self, running: &[Taint], wanted: &[Taint]) {
        let same = |a: &Taint, b: &Taint| a.key == b.key && a.effect == b.effect;
        let set: Vec<Taint> = wanted.iter().filter(|taint| !running.contains(taint)).cloned().collect();
        let gone = |taint: &&Taint| !wanted.iter().any(|other| same(taint, other));
        let remove: Vec<Taint> = running.iter().filter(gone).cloned().collect();
        self.in_place_if(!set.is_empty() || !remove.is_empty(), || InPlace::Taints { set, remove });
    }

    /// Compares the kubelet's configuration. The running kubeadm writes it for the running kubelet, so it
    /// cannot change together with the release.
    fn kubelet(&mut self, running: &KubernetesSpec, wanted: &KubernetesSpec) {
        const FIELD: &str = "kubernetes.kubeletConfiguration";
        if running.version != wanted.version {
            self.needs_repave.push(NeedsRepave::new(FIELD, "changes with the version"));
            return;
        }
        match reconfigure_kubelet(wanted) {
            Ok(how) => self.in_place.push(InPlace::KubeletConfiguration(Box::new(how))),
            Err(error) => self.needs_repave.push(NeedsRepave::new(FIELD, error.to_string())),
        }
    }

    fn files(&mut self, running: &[FileSpec], wanted: &[FileSpec]) {
        let paths: BTreeSet<&str> = running.iter().chain(wanted).map(|file| file.path.as_str()).collect();
        for path in paths {
            let of = |files: &[FileSpec]| -> Vec<FileSpec> {
                files.iter().filter(|file| file.path == path).map(content).collect()
            };
            let (before, after) = (of(running), of(wanted));
            if before == after {
                continue;
            }
            let marked = wanted.iter().find(|file| file.path == path && file.in_place.is_some());
            match (marked, before.as_slice(), after.as_slice()) {
                // Text that was appended to a file cannot be removed from it.
                (Some(file), [] | [FileSpec { append: false, .. }], [FileSpec { append: false, .. }]) => {
                    self.in_place.push(InPlace::File(Box::new(file.clone())));
                }
                (_, [], _) => self.needs_repave.push(NeedsRepave::new(format!("files: {path}"), "is new")),
                (_, _, []) => self.needs_repave.push(NeedsRepave::new(format!("files: {path}"), "is gone")),
                _ => self.needs_repave.push(NeedsRepave::new(format!("files: {path}"), "changes")),
            }
        }
    }
}

/// Returns the file without its rules for changes.
fn content(file: &FileSpec) -> FileSpec {
    FileSpec { in_place: None, ..file.clone() }
}

/// Returns the entries of `some` that `others` lacks.
fn missing(some: &[String], others: &[String]) -> Vec<String> {
    some.iter().filter(|name| !others.contains(name)).cloned().collect()
}

fn taint_text(taint: &Taint) -> String {
    let effect = match taint.effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    };
    match taint.value.as_deref() {
        None | Some("") => format!("{}:{effect}", taint.key),
        Some(value) => format!("{}={value}:{effect}", taint.key),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn full() -> Value {
        json!({
            "image": {"reference": "r/a@sha256:1"},
            "kubernetes": {
                "version": "v1.34.4",
                "nodeLabels": {"a": "1", "b": "1"},
                "nodeAnnotations": {"a": "1"},
                "taints": [{"key": "k", "effect": "NoSchedule"}],
                "kubeletConfiguration": {"maxPods": 50},
            },
            "files": [
                {"path": "/etc/plain", "content": "x"},
                {"path": "/etc/marked", "content": "x", "inPlace": {"restartUnits": ["a.service"]}},
            ],
            "sysctls": {"vm.swappiness": "1"},
            "kernelModules": ["overlay"],
        })
    }

    fn template(value: Value) -> Template {
        serde_json::from_value(value).unwrap()
    }

    /// Returns the in-place and the repave differences for a change of the full template at this JSON
    /// pointer.
    fn changed(pointer: &str, value: Value) -> (Vec<String>, Vec<String>) {
        let mut wanted = full();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = wanted.pointer_mut(parent).unwrap();
        match parent.as_object_mut() {
            Some(fields) if value.is_null() => drop(fields.remove(name)),
            Some(fields) => drop(fields.insert(name.to_owned(), value)),
            None => parent[name.parse::<usize>().unwrap()] = value,
        }
        let difference = diff(&template(full()), &template(wanted));
        let text = |items: &[InPlace]| items.iter().map(ToString::to_string).collect();
        let repave = difference.needs_repave.iter().map(ToString::to_string).collect();
        (text(&difference.in_place), repave)
    }

    #[test]
    fn same_template_differs_in_nothing() {
        assert!(diff(&template(full()), &template(full())).is_empty());
        for (pointer, value) in [
            ("/healthGate", json!({"timeoutSeconds": 60})),
            ("/image/pullSecretRef", json!({"namespace": "n", "name": "s"})),
            ("/files/1/inPlace", Value::Null),
        ] {
            assert_eq!(changed(pointer, value), (vec![], vec![]), "{pointer}");
        }
    }

    #[test]
    fn difference_of_one_kind_is_not_empty() {
        for (field, value) in [("sysctls", json!({})), ("units", json!([{"name": "a.service"}]))] {
            let mut wanted = full();
            wanted[field] = value;
            let difference = diff(&template(full()), &template(wanted));
            assert_eq!(difference.in_place.len() + difference.needs_repave.len(), 1, "{field}");
            assert!(!difference.is_empty(), "{field}");
        }
    }

    #[test]
    fn taint_of_another_effect_replaces_the_one_of_its_key() {
        let taints = json!([{"key": "k", "effect": "NoExecute"}]);
        let text = "kubernetes.taints: sets k:NoExecute; removes k:NoSchedule";
        assert_eq!(changed("/kubernetes/taints", taints), (vec![text.to_owned()], vec![]));
    }

    #[test]
    fn changes_that_a_running_node_can_take_are_in_place() {
        for (pointer, value, text) in [
            (
                "/kubernetes/nodeLabels",
                json!({"a": "2", "c": "3"}),
                "kubernetes.nodeLabels: sets a=2, c=3; removes b",
            ),
            ("/kubernetes/nodeAnnotations", json!({}), "kubernetes.nodeAnnotations: removes a"),
            (
                "/kubernetes/taints",
                json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]),
                "kubernetes.taints: sets k=v:NoSchedule",
            ),
            ("/kubernetes/taints", json!([]), "kubernetes.taints: removes k:NoSchedule"),
            (
                "/kubernetes/kubeletConfiguration",
                json!({"maxPods": 60}),
                "kubernetes.kubeletConfiguration: changes, the kubelet is restarted",
            ),
            ("/sysctls", json!({"a.b": "1"}), "sysctls: sets a.b=1; keeps until the next boot vm.swappiness"),
            ("/kernelModules", json!(["overlay", "nbd"]), "kernelModules: sets nbd"),
            ("/files/1/content", json!("y"), "files: /etc/marked is written"),
        ] {
            assert_eq!(changed(pointer, value), (vec![text.to_owned()], vec![]));
        }
    }

    #[test]
    fn everything_else_needs_a_repave() {
        let repeated = json!({"path": "/etc/marked", "content": "y", "append": true, "inPlace": {}});
        for (pointer, value, text) in [
            ("/image/reference", json!("r/b@sha256:2"), "image.reference: r/a@sha256:1 -> r/b@sha256:2"),
            ("/kubernetes/version", json!("v1.34.5"), "kubernetes.version: v1.34.4 -> v1.34.5"),
            ("/kubernetes/role", json!("ControlPlane"), "kubernetes.role: changes"),
            ("/kubernetes/apiServerEndpoint", json!("h:1"), "kubernetes.apiServerEndpoint: changes"),
            (
                "/kubernetes/kubeletExtraArgs",
                json!([{"name": "v", "value": "1"}]),
                "kubernetes.kubeletExtraArgs: changes",
            ),
            ("/kubernetes/joinConfiguration", json!({}), "kubernetes.joinConfiguration: changes"),
            ("/kubernetes/initConfiguration", json!({}), "kubernetes.initConfiguration: changes"),
            ("/kubernetes/clusterConfiguration", json!({}), "kubernetes.clusterConfiguration: changes"),
            ("/units", json!([{"name": "a.service"}]), "units: changes"),
            ("/preKubeadmCommands", json!(["true"]), "preKubeadmCommands: changes"),
            ("/postKubeadmCommands", json!(["true"]), "postKubeadmCommands: changes"),
            ("/container", json!({"network": "Veth"}), "container: changes"),
            ("/files/0/content", json!("y"), "files: /etc/plain: changes"),
            ("/files/1", repeated, "files: /etc/marked: changes"),
        ] {
            assert_eq!(changed(pointer, value), (vec![], vec![text.to_owned()]));
        }
        let gone = changed("/files", json!([{"path": "/etc/new", "content": "x"}]));
        let paths = ["files: /etc/marked: is gone", "files: /etc/new: is new", "files: /etc/plain: is gone"];
        assert_eq!(gone, (vec![], paths.map(str::to_owned).to_vec()));
    }

    #[test]
    fn new_file_that_is_marked_is_written_in_place() {
        let mut files = full()["files"].clone();
        files.as_array_mut().unwrap().push(json!({"path": "/etc/new", "content": "x", "inPlace": {}}));
        assert_eq!(changed("/files", files), (vec!["files: /etc/new is written".to_owned()], vec![]));
    }

    #[test]
    fn kubelet_configuration_waits_where_it_cannot_be_patched() {
        let mut wanted = full();
        wanted["kubernetes"]["version"] = json!("v1.34.5");
        wanted["kubernetes"]["kubeletConfiguration"] = json!({"maxPods": 60});
        let difference = diff(&template(full()), &template(wanted));
        assert_eq!(difference.in_place, vec![]);
        assert_eq!(difference.needs_repave.len(), 2);

        let (mut old, mut other) = (full(), full());
        old["kubernetes"]["version"] = json!("v1.24.0");
        other["kubernetes"]["version"] = json!("v1.24.0");
        other["kubernetes"]["kubeletConfiguration"] = json!({"maxPods": 60});
        let difference = diff(&template(old), &template(other));
        assert_eq!(difference.in_place, vec![]);
        assert!(difference.needs_repave[0].change.contains("1.25"), "{difference:?}");
    }
}
