//! The manifests of README and docs/ on a real API server: every one is accepted, and made. A part of a template is put into one.

use std::collections::BTreeSet;
use std::path::Path;

use bedplate_api::cluster::full::{Cluster, Machine, MachineDeployment, MachineHealthCheck};
use bedplate_api::cluster::unsupported::Unsupported;
use bedplate_tests::documents::{Example, documents, examples};
use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Kubernetes;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Every example as a manifest, moved to the left as a whole.
fn manifest(example: &Example) -> String {
    let lines = example.text.lines().filter(|line| !line.trim().is_empty());
    let indent = lines.map(|line| line.len() - line.trim_start().len()).min().unwrap_or_default();
    let text: String =
        example.text.lines().map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect();
    if text.contains("apiVersion: ") {
        return text;
    }
    // Fields that every template needs and the part may omit.
    let mut template = text;
    if !template.contains("image:\n") {
        template.push_str("image: { reference: registry.example/node:1, allowTag: true }\n");
    }
    if !template.contains("kubernetes:\n") {
        template.push_str("kubernetes: { version: v1.34.4 }\n");
    }
    let template: String = template.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: bedplate.dev/v1alpha1\nkind: MachineConfiguration\nmetadata: {{ generateName: part- }}\nspec:\n  template:\n{template}"
    )
}

/// Lines that look like a manifest outside of the examples: indented, as the output of a command is, they would not be tested.
fn strays(name: &str, text: &str) -> Vec<String> {
    let examples: Vec<Example> = examples(name, text).unwrap();
    let is_in_one = |line: &str| examples.iter().any(|example| example.text.lines().any(|of| of == line));
    let is_manifest = |line: &&str| {
        let line = line.trim_start_matches("- ");
        ["apiVersion:", "kind:", "metadata:", "spec:", "macAddress:"]
            .iter()
            .any(|field| line.starts_with(field))
    };
    let lines =
        (1..).zip(text.lines()).filter(|(_, line)| line.starts_with("    ") && is_manifest(&line.trim()));
    lines
        .filter(|(_, line)| !is_in_one(line))
        .map(|(number, line)| format!("{name}:{number}: {line}"))
        .collect()
}

#[test]
fn no_part_of_a_manifest_stands_outside_of_the_examples() {
    let strays: Vec<String> =
        documents().unwrap().iter().flat_map(|(name, text)| strays(name, text)).collect();
    assert!(strays.is_empty(), "fence it as YAML, as a whole manifest:\n{}", strays.join("\n"));
    assert_eq!(strays_of("    - macAddress: 02:83\n"), 1);
    assert_eq!(strays_of("```yaml\n    - macAddress: 02:83\n```\n"), 0);
}

fn strays_of(text: &str) -> usize {
    strays("x.md", text).len()
}

#[test]
fn every_example_of_the_documents_is_taken_by_an_api_server() {
    let kubernetes = Kubernetes::shared();
    providers(kubernetes);
    let place = Directory::new("documents").unwrap();
    let path = place.path().join("example.yaml");
    let examples: Vec<Example> =
        documents().unwrap().iter().flat_map(|(name, text)| examples(name, text).unwrap()).collect();
    assert!(examples.len() >= 19, "the documents lost their examples: {}", examples.len());
    let mut wrong = Vec::new();
    for example in &examples {
        let text = manifest(example);
        std::fs::write(&path, &text).unwrap();
        let file = path.display().to_string();
        // A name that the API server is to draw can only be created.
        let verb: &[&str] = if text.contains("generateName:") {
            &["create"]
        } else {
            &["apply", "--server-side", "--force-conflicts"]
        };
        for dry_run in [&["--dry-run=server"][..], &[]] {
            let arguments = [verb, dry_run, &["--validate=strict", "-f", &file]].concat();
            if let Err(error) = kubernetes.kubectl(&kubernetes.admin(), &arguments) {
                wrong.push(format!("{}: {error:#}\n{text}", example.place));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Installs the providers of Cluster API, and the namespace of the examples.
fn providers(kubernetes: &Kubernetes) {
    let admin = kubernetes.admin();
    for provider in ["core", "bootstrap", "infrastructure"] {
        let components = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api");
        let components = components.join(format!("{provider}-components.yaml")).display().to_string();
        let apply = ["apply", "--server-side", "-f", &components];
        kubernetes.kubectl(&admin, &apply).unwrap();
    }
    kubernetes.kubectl(&admin, &["create", "namespace", "team-a"]).unwrap();
    let kinds = [
        "clusters.cluster.x-k8s.io",
        "machines.cluster.x-k8s.io",
        "machinedeployments.cluster.x-k8s.io",
        "machinehealthchecks.cluster.x-k8s.io",
        "kubeadmconfigs.bootstrap.cluster.x-k8s.io",
        "kubeadmconfigtemplates.bootstrap.cluster.x-k8s.io",
        "bedplateclusters.infrastructure.cluster.x-k8s.io",
        "bedplatemachines.infrastructure.cluster.x-k8s.io",
        "bedplatemachinetemplates.infrastructure.cluster.x-k8s.io",
    ]
    .map(|kind| format!("crd/{kind}"));
    let established = ["wait", "--for=condition=Established", "--timeout=60s"];
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    kubernetes.kubectl(&admin, &[&established[..], &kinds].concat()).unwrap();
}

/// The objects of docs/guides/cluster-guide.md.
fn objects_of_the_guide() -> Vec<Value> {
    let all = documents().unwrap();
    let (_, text) =
        all.iter().find(|(name, _)| name == "docs/guides/cluster-guide.md").expect("the guide is there");
    let manifests: Vec<String> =
        examples("docs/guides/cluster-guide.md", text).unwrap().iter().map(manifest).collect();
    let parts = manifests.iter().flat_map(|manifest| manifest.split("\n---\n"));
    parts.map(|part| serde_saphyr::from_str(part).unwrap()).collect()
}

/// Calls `visit` with each reference of a value: its field and the name of the object.
fn references(value: &Value, visit: &mut impl FnMut(&str, &str)) {
    for (field, part) in value.as_object().into_iter().flatten() {
        if let (true, Some(name)) = (field.ends_with("Ref"), part["name"].as_str()) {
            visit(part["kind"].as_str().unwrap_or("MachineConfiguration"), name);
        }
        if let (true, Some(name)) = (field == "clusterName", part.as_str()) {
            visit("Cluster", name);
        }
        references(part, visit);
    }
}

#[test]
fn guide_of_a_cluster_refers_only_to_objects_that_it_makes() {
    let objects = objects_of_the_guide();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let made: BTreeSet<(String, String)> =
        objects.iter().map(|object| (text(&object["kind"]), text(&object["metadata"]["name"]))).collect();
    let mut named = BTreeSet::new();
    for object in &objects {
        references(&object["spec"], &mut |kind, name| {
            named.insert((kind.to_owned(), name.to_owned()));
        });
    }
    assert!(named.len() >= 10, "{named:?}");
    let missing: Vec<_> = named.difference(&made).collect();
    assert!(missing.is_empty(), "the guide does not make {missing:?}");
}

#[test]
fn guide_of_a_cluster_sets_no_unsupported_field() {
    fn unsupported<K: Unsupported + DeserializeOwned>(object: &Value) -> Vec<String> {
        let typed: K = serde_json::from_value(object.clone()).unwrap();
        typed.unsupported().iter().map(ToString::to_string).collect()
    }
    let mut checked = BTreeSet::new();
    for object in objects_of_the_guide() {
        let group = object["apiVersion"].as_str().unwrap();
        let found = match (group, object["kind"].as_str().unwrap()) {
            ("cluster.x-k8s.io/v1beta2", "Cluster") => unsupported::<Cluster>(&object),
            ("cluster.x-k8s.io/v1beta2", "Machine") => unsupported::<Machine>(&object),
            ("cluster.x-k8s.io/v1beta2", "MachineDeployment") => unsupported::<MachineDeployment>(&object),
            ("cluster.x-k8s.io/v1beta2", "MachineHealthCheck") => unsupported::<MachineHealthCheck>(&object),
            _ => continue,
        };
        assert_eq!(found, [""; 0], "{object}");
        checked.insert(object["kind"].to_string());
    }
    assert_eq!(checked.len(), 4, "{checked:?}");
}
