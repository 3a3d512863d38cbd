//! Manifests and commands in the code blocks of README and docs/.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// First words of the commands that a document shows for a shell.
const PROGRAMS: [&str; 3] = ["kubectl ", "bedplate ", "etcdctl"];

/// Manifests of one block.
#[derive(Debug)]
pub struct Example {
    /// Document and first line.
    pub place: String,
    /// Content of the block.
    pub text: String,
}

/// Returns README and the documents of docs/, with their paths in the repository.
///
/// # Errors
/// A document cannot be read.
pub fn documents() -> Result<Vec<(String, String)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut paths = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => paths.push(path),
            }
        }
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let read = |path: &Path| {
        let name = path.strip_prefix(&root)?.display().to_string();
        let text = std::fs::read_to_string(path);
        Ok((name, text.with_context(|| format!("cannot read {}", path.display()))?))
    };
    paths.iter().map(|path| read(path)).collect()
}

/// Returns the blocks of a document that are YAML or JSON, and those that a shell passes to kubectl.
///
/// # Errors
/// A block does not end.
pub fn examples(name: &str, text: &str) -> Result<Vec<Example>> {
    let mut found = Vec::new();
    let mut block: Option<(&str, Example)> = None;
    let start = |line: usize| Example { place: format!("{name}:{line}"), text: String::new() };
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim();
        match &mut block {
            None if ["```yaml", "```yml", "```json"].contains(&trimmed) => {
                block = Some(("```", start(number + 1)));
            }
            None if trimmed.contains("kubectl") && trimmed.ends_with("<<EOF") => {
                block = Some(("EOF", start(number + 1)));
            }
            None => {}
            Some((end, _)) if trimmed == *end => found.extend(block.take().map(|(_, example)| example)),
            Some((_, example)) => example.text.push_str(&format!("{line}\n")),
        }
    }
    ensure!(block.is_none(), "{name}: a block does not end");
    Ok(found)
}

/// Returns the commands of a document: those in indented lines and in blocks of text. A command ends with the first line without a backslash.
pub fn commands(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut fence = None;
    let mut continues = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(language) = trimmed.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language) };
            continues = false;
            continue;
        }
        let is_shown = fence.map_or_else(|| line.starts_with("    "), |language| language == "text");
        match found.last_mut().filter(|_| continues) {
            Some(command) => command.push_str(&format!("\n{trimmed}")),
            None if is_shown && PROGRAMS.iter().any(|program| trimmed.starts_with(program)) => {
                found.push(trimmed.to_owned());
            }
            None => continue,
        }
        continues = trimmed.ends_with('\\');
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_indented_lines_and_in_blocks_of_text() {
        let text = "kubectl in a sentence\n\n    kubectl get a\n\n```text\nkubectl patch b \\\n    -p c\nno command\n```\n\
                    ```yaml\n    kubectl: d\n```\n    bedplate claim list\n";
        assert_eq!(commands(text), ["kubectl get a", "kubectl patch b \\\n-p c", "bedplate claim list"]);
    }

    #[test]
    fn block_that_does_not_end_is_an_error() {
        assert!(examples("a.md", "```yaml\na: 1\n").is_err());
        assert_eq!(examples("a.md", "```yaml\na: 1\n```\n").unwrap()[0].place, "a.md:2");
    }
}
