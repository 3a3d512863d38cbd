//! The repository's files as the tidy tests want them: sources and documents, without what is built. Called by the tidy tests.

use std::path::{Path, PathBuf};

use super::source::Source;
use super::words;

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A document in Markdown.
pub(crate) struct Document {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Every Rust source of ours.
pub(crate) fn sources() -> Vec<Source> {
    let files = files("rs");
    assert!(files.len() > 50, "sources are not found below {}", root().display());
    let test_only: Vec<String> = files.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let source = |(path, text): (String, String)| Source { test_only: test_only.contains(&path), path, text };
    files.into_iter().map(source).collect()
}

/// Files that a source takes in for tests only: `#[cfg(test)] mod NAME;`.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let path = Path::new(path);
    let folder = path.parent().unwrap_or(Path::new(""));
    let owns_folder = path.file_stem().is_some_and(|stem| stem == "mod" || stem == "lib" || stem == "main");
    let folder = if owns_folder { folder.to_owned() } else { path.with_extension("") };
    let named = text.split("#[cfg(test)]").skip(1).filter_map(|rest| {
        let declaration = rest.split(['{', ';']).next()?.trim();
        let (_, name) = declaration.rsplit_once("mod ")?;
        Some(folder.join(format!("{name}.rs")).display().to_string())
    });
    named.collect()
}

/// README and docs/.
pub(crate) fn documents() -> Vec<Document> {
    let files = files("md");
    assert!(files.iter().any(|(path, _)| path == "README.md"), "no README.md");
    files.into_iter().map(|(path, text)| Document { path, text }).collect()
}

/// Every text of the repository with its path, whatever it is.
pub(crate) fn texts() -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&root(), Path::new(""), &|_| true, &mut found);
    found.sort();
    found
}

fn files(extension: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let wanted = |path: &Path| path.extension().is_some_and(|has| has == extension);
    walk(&root(), Path::new(""), &wanted, &mut found);
    found.sort();
    found
}

fn walk(root: &Path, below: &Path, wanted: &dyn Fn(&Path) -> bool, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(root.join(below)).expect("a readable folder").flatten() {
        let name = entry.file_name();
        let path = below.join(&name);
        let hidden = name.as_encoded_bytes().starts_with(b".") && name != ".ci" && name != ".cargo";
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && !hidden && name != "target" && name != "corpus" && name != "artifacts" {
            walk(root, &path, wanted, found);
        } else if kind.is_file() && !hidden && wanted(&path) {
            // What is not UTF-8 is no text: seeds of the fuzz targets.
            let text = std::fs::read_to_string(entry.path());
            found.extend(text.map(|text| (path.display().to_string(), text)));
        }
    }
}

impl Document {
    /// Paths of this repository that a line names: words that begin with one of its folders, and links.
    pub(crate) fn named_paths(&self, line: &str) -> Vec<String> {
        // Without `etcd`: kubeadm keeps certificates in a folder of this name.
        const FOLDERS: [&str; 19] = [
            "agent",
            "api",
            "bmc",
            "bootstrap",
            "cli",
            "cluster",
            "deploy",
            "docs",
            "engine",
            "fuzz",
            "images",
            "oci",
            "process",
            "pxed",
            "reconciler",
            "rules",
            "systemd",
            "tests",
            "xtask",
        ];
        let separators = |c: char| c.is_whitespace() || "`()[]<>,;|\"'*".contains(c);
        let mut paths = Vec::new();
        for word in line.split(separators) {
            let word = word.split('#').next().unwrap_or_default().trim_end_matches(['.', ':']);
            let link = (word.ends_with(".md") || word.starts_with("../")) && !word.contains("://");
            let first = word.split('/').next().unwrap_or_default();
            // One slash at least, else it is a word; patterns and placeholders are no paths.
            let ours = word.contains('/') && FOLDERS.contains(&first);
            if (ours || link) && !word.contains(['*', '…', '{', '$']) && !word.contains("...") {
                paths.push(self.resolve(word, ours));
            }
        }
        paths
    }

    /// A link without a folder of ours at its start is relative to the document.
    fn resolve(&self, word: &str, ours: bool) -> String {
        let folder = Path::new(&self.path).parent().unwrap_or(Path::new(""));
        if ours || root().join(word).exists() { word.to_owned() } else { words::joined(folder, word) }
    }
}
