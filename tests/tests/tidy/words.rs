//! Words that code and documents share: metrics, fields, headings. Called by the tidy tests.

use std::collections::BTreeSet;
use std::path::Path;

use super::source::Source;
use super::tree::Document;

/// What stands between backticks on a line.
pub(crate) fn marked(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The words of a text, as code has them.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Names of fields, reasons and kinds on a line of a document: between backticks, two cases, no path, flag or variable around them.
pub(crate) fn names_in(line: &str) -> Vec<&str> {
    let apart = |c: char| c.is_whitespace() || "{}[]()=:,;\"'.".contains(c);
    let is_name = |word: &&str| {
        let cases =
            word.as_bytes().windows(2).any(|two| two[0].is_ascii_lowercase() && two[1].is_ascii_uppercase());
        cases && word.bytes().all(|byte| byte.is_ascii_alphabetic())
    };
    marked(line).flat_map(|marked| marked.split(apart)).filter(is_name).collect()
}

/// Names of metrics that a source makes, without what the encoding adds (`_total`, a unit).
pub(crate) fn metrics_made(source: &Source) -> Vec<String> {
    let made = |word: &&str| {
        let name = word.strip_prefix("bedplate_").and_then(|name| name.split_once('_'));
        name.is_some_and(|(program, _)| ["pxed", "agent", "controller", "cluster"].contains(&program))
    };
    let text = source.production_text();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| line.split('"').skip(1).step_by(2)).filter(made).map(str::to_owned).collect()
}

/// Names of metrics that the first column of a document's tables has, whole.
pub(crate) fn metrics_documented(document: &Document) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut prefix = None;
    for line in document.text.lines() {
        let Some(first) = line.strip_prefix("| ").and_then(|row| row.split('|').next()) else {
            if !line.starts_with("|--") {
                prefix = None;
            }
            continue;
        };
        if let Some((_, rest)) = first.split_once("metric, without `") {
            prefix = rest.split('`').next();
        } else {
            for name in marked(first) {
                let name = name.split('{').next().unwrap_or_default();
                match prefix {
                    Some(prefix) => drop(found.insert(format!("{prefix}{name}"))),
                    None if name.starts_with("bedplate_") => drop(found.insert(name.to_owned())),
                    None => {}
                }
            }
        }
    }
    found
}

/// The heading's name in a link, as forges make it.
pub(crate) fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Links with an anchor on a line: the file as it stands there (empty: this one), and the anchor.
pub(crate) fn anchored_links(line: &str) -> Vec<(&str, &str)> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://")).filter_map(|target| target.split_once('#')).collect()
}

/// Joins a folder of the repository and a relative link.
pub(crate) fn joined(folder: &Path, link: &str) -> String {
    let mut path = folder.to_owned();
    for part in link.split('/') {
        match part {
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.display().to_string()
}

/// Parts of documents that a text names: `docs/concepts/node.md, "Faults"`; the file and the words.
pub(crate) fn parts_named(text: &str) -> Vec<(String, String)> {
    // Comments, and texts of Rust that go on in the next line.
    let joined = text.lines().map(|line| line.trim().trim_start_matches('/').trim_start_matches('!').trim());
    let joined = joined.map(|line| line.strip_suffix('\\').unwrap_or(line)).collect::<Vec<_>>().join(" ");
    let joined = joined.replace("\\\"", "\"");
    let mut found = Vec::new();
    for rest in joined.split("docs/").skip(1) {
        let Some((file, rest)) = rest.split_once(".md, \"") else { continue };
        if let (true, Some((words, _))) = (!file.contains(char::is_whitespace), rest.split_once('"')) {
            found.push((format!("docs/{file}.md"), words.trim_end_matches(',').to_owned()));
        }
    }
    found
}

#[test]
fn parts_of_documents_are_found_over_line_ends() {
    let text = "    // see docs/concepts/node.md, \"A\n    // further one\"\n  \"(docs/a.md, \\\"The \\\n   first\\\")\"; docs/b.md \"no\"";
    let part = |file: &str, words: &str| (file.to_owned(), words.to_owned());
    let found: Vec<_> =
        parts_named(text).into_iter().map(|(file, words)| (file, words.replace("  ", " "))).collect();
    assert_eq!(found, [part("docs/concepts/node.md", "A further one"), part("docs/a.md", "The first")]);
    assert_eq!(anchor("## Reasons of `Paved`, and why"), "reasons-of-paved-and-why");
}
