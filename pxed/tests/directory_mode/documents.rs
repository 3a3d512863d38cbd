//! The manifests of README and docs/ as pxed reads them from its directory. Those without a name are for an API server alone.

use std::path::Path;

use pxed::standalone::manifests::parse::read_manifest;

/// Returns the fenced YAML blocks that are manifests, with their first line numbers.
fn manifests(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut block: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match &mut block {
            None if line == "```yaml" => block = Some((number + 1, String::new())),
            Some(_) if line == "```" => found.extend(block.take()),
            Some((_, text)) => text.push_str(&format!("{line}\n")),
            None => {}
        }
    }
    found.retain(|(_, text)| text.starts_with("apiVersion: ") && !text.contains("generateName:"));
    found
}

#[test]
fn every_manifest_of_the_documents_is_taken_from_a_directory() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => paths.push(path),
            }
        }
    }
    let (mut count, mut wrong) = (0, Vec::new());
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        for (line, text) in manifests(&std::fs::read_to_string(path).unwrap()) {
            count += 1;
            if let Err(problems) = read_manifest(&text) {
                let mut problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
                // An example for hosts of a cluster: they join that cluster.
                problems.retain(|problem| !problem.contains("discovery must be set on a standalone host"));
                if problems.is_empty() {
                    continue;
                }
                wrong.push(format!("{}:{line}: {}", path.display(), problems.join("; ")));
            }
        }
    }
    assert!(count >= 9, "{count}: the documents lost their examples");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
