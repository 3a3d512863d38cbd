//! Reasons: each word of the tables in `api/src/reason` is written somewhere, and no program compares a reason with a text. Called by the
//! tidy tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::source::Source;

/// Folder of the tables.
const TABLES: &str = "api/src/reason/";
/// Status of a condition for each reason. It names every word, and writes none.
const STATES: &str = "api/src/cluster/full/state.rs";
/// Faults of a BMC. The tables that show them are filled from this set by conversion.
const FAULTS: &str = "BmcFault";

/// Returns the reasons as `Enum::Variant`.
fn reasons(tables: &[&Source]) -> BTreeSet<(String, String)> {
    static TABLE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?s)pub enum (\w+): .*?\n    }\n").expect("a regular expression"));
    static ROW: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?m)^ {8}(\w+)(?:\s+= \S+)?:\s").expect("a regular expression"));
    let mut found = BTreeSet::new();
    for table in tables.iter().flat_map(|source| TABLE.captures_iter(&source.text)) {
        let rows = ROW.captures_iter(table.get(0).expect("a match").as_str());
        found.extend(rows.map(|row| (table[1].to_owned(), row[1].to_owned())));
    }
    found
}

/// Reasons that no program writes.
pub(crate) fn unwritten(sources: &[Source]) -> Vec<String> {
    let counts = |source: &&Source| !source.is_test() && source.path != STATES;
    let (tables, others): (Vec<&Source>, Vec<&Source>) =
        sources.iter().filter(counts).partition(|source| source.path.starts_with(TABLES));
    let reasons = reasons(&tables);
    assert!(reasons.len() > 250, "{} reasons: the search does not find them", reasons.len());
    let named: BTreeSet<(String, String)> =
        others.iter().flat_map(|source| named(&source.production_code())).collect();
    let is_written = |(set, reason): &&(String, String)| {
        named.contains(&(set.clone(), reason.clone())) || named.contains(&(FAULTS.to_owned(), reason.clone()))
    };
    let unwritten = reasons.iter().filter(|reason| !is_written(reason));
    unwritten.map(|(set, reason)| format!("{set}::{reason}")).collect()
}

/// Returns the paths `Enum::Variant` of a source. `use Enum as Name` gives the enum another name until the next one of that name.
fn named(code: &str) -> Vec<(String, String)> {
    static NAMED: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\b([A-Z]\w+) as ([A-Z]\w+)|\b([A-Z]\w+)::([A-Z]\w+)").expect("a regular expression")
    });
    let mut enums: BTreeMap<String, String> = BTreeMap::new();
    let mut found = Vec::new();
    for part in NAMED.captures_iter(code) {
        if let (Some(given), Some(name)) = (part.get(1), part.get(2)) {
            enums.insert(name.as_str().to_owned(), given.as_str().to_owned());
        } else {
            let name = enums.get(&part[3]).map_or(&part[3], String::as_str);
            found.push((name.to_owned(), part[4].to_owned()));
        }
    }
    found
}

/// Lines of production code that compare a message, which is written for people, or search it.
pub(crate) fn messages_read(source: &Source) -> Vec<(usize, String)> {
    static READ: LazyLock<Regex> = LazyLock::new(|| {
        let search = "starts_with|ends_with|contains|strip_prefix|strip_suffix|find|split|split_once|rsplit_once|parse";
        Regex::new(&format!(
            r#"\bmessage(\(\))?(\.as_str\(\)|\.as_deref\(\)|\.as_ref\(\))*( [!=]= |\.({search})(::<[^>]*>)?\()|[!=]= [&*]?([\w.]+\.)?message\b|\.message\)+ [!=]= |[!=]= [^|;"]*\.message\b|\.message\b.*\.({search})\("#
        ))
        .expect("a regular expression")
    });
    let text = source.production_text();
    let lines = (1..).zip(text.lines()).filter(|(_, line)| READ.is_match(line));
    lines.map(|(number, line)| (number, line.trim().to_owned())).collect()
}

/// Lines of production code that compare a reason with a text. Reasons of the API server are texts.
pub(crate) fn compared_with_text(source: &Source) -> Vec<(usize, String)> {
    static COMPARED: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"reason(\.as_str\(\)|\.as_deref\(\))?\)? [!=]= (Some\()?"[A-Z]"#)
            .expect("a regular expression")
    });
    let text = source.production_text();
    let lines = (1..).zip(text.lines()).filter(|(_, line)| COMPARED.is_match(line));
    lines.map(|(number, line)| (number, line.trim().to_owned())).collect()
}

#[test]
fn reason_is_found_under_another_name_of_its_enum() {
    let code = "use a::{FirstReason as Reason, b::Other};\nReason::One; fn f() { use SecondReason as Reason; Reason::Two } Other::Three";
    let expected = [("FirstReason", "One"), ("SecondReason", "Two"), ("Other", "Three")];
    assert_eq!(named(code), expected.map(|(set, word)| (set.to_owned(), word.to_owned())));
}

#[test]
fn message_in_any_comparison_is_found() {
    for (line, is_found) in [
        ("condition.is_none_or(|c| c.message != *message)", true),
        ("(&was.reason, &was.message) == (&is.reason, &is.message)", true),
        ("before.map(|before| &before.message) != Some(&held.message)", true),
        ("if held.as_ref() == Some(&x.message) {", true),
        ("if text.message.starts_with(\"403: \") {", true),
        ("held.message.as_deref().unwrap_or_default().contains(word)", true),
        ("found.filter(|c| c.reason == reason).map(|c| c.message.clone())", false),
        ("Rule::new(\"self == oldSelf\").message(\"the spec cannot be changed\")", false),
    ] {
        let text = format!("fn f() {{\n    {line}\n}}\n");
        let source = Source { path: "pxed/src/a.rs".to_owned(), text, test_only: false };
        assert_eq!(!messages_read(&source).is_empty(), is_found, "{line}");
    }
}
