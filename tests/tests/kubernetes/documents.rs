//! The manifests of README and docs/ on a real API server: every one is accepted, and made. A part of a template is put into one.

use std::path::Path;

use bedplate_tests::guard::Directory;
use bedplate_tests::kubernetes::Kubernetes;

/// An example, and where it begins.
struct Example {
    place: String,
    text: String,
}

/// What is fenced as YAML or JSON, and what a shell is shown to give to kubectl.
fn examples(name: &str, text: &str) -> Vec<Example> {
    let mut found = Vec::new();
    let mut block: Option<(&str, Example)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim();
        match &mut block {
            None if ["```yaml", "```yml", "```json"].contains(&trimmed) => {
                block = Some(("```", example(name, number + 1)));
            }
            None if trimmed.contains("kubectl") && trimmed.ends_with("<<EOF") => {
                block = Some(("EOF", example(name, number + 1)));
            }
            None => {}
            Some((end, _)) if trimmed == *end => found.extend(block.take().map(|(_, example)| example)),
            Some((_, example)) => example.text.push_str(&format!("{line}\n")),
        }
    }
    assert!(block.is_none(), "{name}: a block does not end");
    found
}

fn example(name: &str, line: usize) -> Example {
    Example { place: format!("{name}:{line}"), text: String::new() }
}

/// Every example as a manifest, moved to the left as a whole.
fn manifest(example: &Example) -> String {
    let lines = example.text.lines().filter(|line| !line.trim().is_empty());
    let indent = lines.map(|line| line.len() - line.trim_start().len()).min().unwrap_or_default();
    let text: String =
        example.text.lines().map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect();
    if text.contains("apiVersion: ") {
        return text;
    }
    // What it does not say itself is needed by every template.
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

fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = vec![root.join("README.md")];
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    paths.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    paths.sort();
    let read = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    paths.iter().map(|path| read(path)).collect()
}

/// What can be a line of a manifest and stands in no example: indented, as the output of a command is, it would be applied by nobody.
fn strays(name: &str, text: &str) -> Vec<String> {
    let examples: Vec<Example> = examples(name, text);
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
    let strays: Vec<String> = documents().iter().flat_map(|(name, text)| strays(name, text)).collect();
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
    infrastructure(kubernetes);
    let place = Directory::new("documents").unwrap();
    let path = place.path().join("example.yaml");
    let examples: Vec<Example> = documents().iter().flat_map(|(name, text)| examples(name, text)).collect();
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

/// Installs the kinds of the infrastructure provider of Cluster API, and the namespace of the examples.
fn infrastructure(kubernetes: &Kubernetes) {
    let components =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-api/infrastructure-components.yaml");
    let (admin, components) = (kubernetes.admin(), components.display().to_string());
    kubernetes.kubectl(&admin, &["apply", "--server-side", "-f", &components]).unwrap();
    kubernetes.kubectl(&admin, &["create", "namespace", "team-a"]).unwrap();
    let kinds = ["bedplateclusters", "bedplatemachinetemplates"]
        .map(|kind| format!("crd/{kind}.infrastructure.cluster.x-k8s.io"));
    let established = ["wait", "--for=condition=Established", "--timeout=60s", &kinds[0], &kinds[1]];
    kubernetes.kubectl(&admin, &established).unwrap();
}
