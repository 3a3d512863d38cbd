//! The house style, as far as a machine can hold it: lengths, heads of files, purity, names; and that documents say of code what is so:
//! paths, links, reasons, metrics, fields.
//!
//! Reads sources as text, compiles nothing. Every violation is listed with its rule and its place; production code only, test modules and
//! test files are not measured.

#![allow(clippy::unwrap_used, clippy::panic)]

mod tidy {
    pub(crate) mod crates;
    pub(crate) mod language;
    pub(crate) mod modules;
    pub(crate) mod reasons;
    pub(crate) mod source;
    pub(crate) mod tree;
    pub(crate) mod words;
}

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tidy::{
    crates::CRATES,
    language,
    modules::PROGRAMS,
    source::{Source, functions},
    tree::{Document, documents, root, sources, texts},
    words,
};

/// Hard limits; the soft ones are 400 and 40 and left to the reviewer.
const MOST_FILE_LINES: usize = 600;
const MOST_FUNCTION_LINES: usize = 60;

/// Fails with every complaint, one a line, and what to do.
fn hold(rule: &str, remedy: &str, complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{rule}\n  {}\n{remedy}\n", complaints.join("\n  "));
}

#[test]
fn rule_1_every_file_opens_with_what_it_does() {
    let wrong: Vec<String> = sources()
        .iter()
        .filter(|file| !file.text.trim_start_matches("#!/usr/bin/env rust-script\n").starts_with("//! "))
        .map(|file| file.path.clone())
        .collect();
    hold(
        "files that do not open with `//!`:",
        "say what the file does, what it will not do, who calls it",
        &wrong,
    );
}

#[test]
fn rule_2_files_are_short() {
    let mut wrong = Vec::new();
    for file in sources().iter().filter(|file| !file.is_test()) {
        let lines = file.production_lines();
        if lines > MOST_FILE_LINES {
            wrong.push(format!("{}: {lines} production lines", file.path));
        }
    }
    hold(
        &format!("files beyond {MOST_FILE_LINES} lines:"),
        "find the room that wants a file of its own",
        &wrong,
    );
}

#[test]
fn rule_2_functions_are_short() {
    let mut wrong = Vec::new();
    for file in sources().iter().filter(|file| !file.is_test()) {
        for function in functions(&file.production_code()) {
            if function.lines > MOST_FUNCTION_LINES {
                wrong.push(format!(
                    "{}:{} {}: {} lines",
                    file.path, function.line, function.name, function.lines
                ));
            }
        }
    }
    hold(
        &format!("functions beyond {MOST_FUNCTION_LINES} lines:"),
        "split by what the steps are, not by where they are",
        &wrong,
    );
}

/// Items that a pure module must not use, each with the alternative.
const IMPURE: [(&str, &str); 11] = [
    ("Instant::now", "take `now` as an argument"),
    ("SystemTime::now", "take `now` as an argument"),
    ("Timestamp::now", "take `now` as an argument"),
    ("tokio::", "leave waiting to the driver"),
    ("tokio_util::", "leave waiting to the driver"),
    ("std::fs", "take the content as an argument"),
    ("File::open", "take the content as an argument"),
    ("std::process", "leave programs to `apply`"),
    ("std::env", "take the value as an argument"),
    ("UdpSocket", "leave sockets to `serve`"),
    ("rand::", "take randomness as an argument"),
];

#[test]
fn rule_4_pure_modules_touch_no_clock_file_process_or_runtime() {
    let mut wrong = Vec::new();
    for file in sources().iter().filter(|file| file.is_pure() && !file.is_test()) {
        let code = file.production_code();
        for (number, line) in (1..).zip(code.lines()) {
            for (word, instead) in IMPURE {
                if line.contains(word) {
                    wrong.push(format!("{}:{number} {word}: {instead}", file.path));
                }
            }
            if grouped_import(line, "fs") || grouped_import(line, "process") || grouped_import(line, "env") {
                wrong.push(format!("{}:{number} {}", file.path, line.trim()));
            }
        }
    }
    hold(
        "modules that call themselves pure and are not:",
        "give it as an argument, or do not say Pure",
        &wrong,
    );
}

/// `use std::{fs, ...};` on one line.
fn grouped_import(line: &str, module: &str) -> bool {
    let Some((_, rest)) = line.split_once("use std::{") else { return false };
    rest.split(['{', '}', ',', ';', ' '])
        .any(|word| word == module || word.starts_with(&format!("{module}::")))
}

/// Modules whose very name promises purity (house style 9: protocols are bytes in, bytes out).
const PURE_NAMES: [&str; 6] =
    ["wire.rs", "session.rs", "respond.rs", "plan.rs", "negotiate.rs", "election.rs"];

#[test]
fn rule_4_modules_with_a_pure_name_say_so() {
    let pure_name = |file: &&Source| {
        let name = Path::new(&file.path)
            .file_name()
            .is_some_and(|name| PURE_NAMES.iter().any(|pure| *name == **pure));
        // api/ holds types only, all of it.
        (name || file.path.contains("/boot_policy/mod.rs"))
            && !file.path.starts_with("api/")
            && !file.is_test()
    };
    let all = sources();
    let wrong: Vec<String> =
        all.iter().filter(pure_name).filter(|file| !file.is_pure()).map(|file| file.path.clone()).collect();
    hold(
        "modules without the line `//! Pure: ...` in their head:",
        "make them pure and say so, or name them after what they do",
        &wrong,
    );
}

#[test]
fn rule_16_nothing_is_left_to_do() {
    let mut wrong = Vec::new();
    for file in sources().iter().filter(|file| !file.path.ends_with("tests/tidy.rs")) {
        for (number, line) in (1..).zip(file.code().lines()) {
            for word in ["todo!", "unimplemented!", "dbg!"] {
                if line.contains(word) {
                    wrong.push(format!("{}:{number} {word}", file.path));
                }
            }
        }
    }
    hold("left to do:", "do it, or take it out", &wrong);
}

#[test]
fn names_say_what_is_inside() {
    const DRAWERS: [&str; 9] =
        ["util", "utils", "common", "helper", "helpers", "manager", "misc", "shared_types", "stuff"];
    let mut wrong = Vec::new();
    for file in sources() {
        let path = Path::new(&file.path);
        let named = path.with_extension("");
        if named.components().any(|part| DRAWERS.iter().any(|drawer| part.as_os_str() == *drawer)) {
            wrong.push(file.path.clone());
        }
    }
    hold("drawers:", "name the module after what is in it", &wrong);
}

#[test]
fn rule_25_paths_that_documents_name_exist() {
    let mut wrong = Vec::new();
    for document in documents() {
        for (number, line) in (1..).zip(document.text.lines()) {
            for path in document.named_paths(line) {
                if !root().join(&path).exists() {
                    wrong.push(format!("{}:{number} {path}", document.path));
                }
            }
        }
    }
    hold("documents name what is not there:", "correct the document", &wrong);
}

/// Returns folder and manifest of each member of the workspace.
fn members() -> Vec<(String, String)> {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect(path);
    let workspace = read("Cargo.toml");
    let list = workspace.split("\nmembers = [").nth(1).and_then(|rest| rest.split(']').next());
    let folders = list.expect("members in Cargo.toml").split('"').skip(1).step_by(2);
    let members: Vec<_> =
        folders.map(|folder| (folder.to_owned(), read(&format!("{folder}/Cargo.toml")))).collect();
    assert!(members.iter().any(|(folder, _)| folder == "pxed"), "members are not found: {members:?}");
    members
}

/// Returns the name of the manifest's package.
fn package(manifest: &str) -> &str {
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
    name.expect("a package has a name").trim_matches('"')
}

/// Folders of the members that a manifest depends on, for programs and libraries or for tests.
fn dependencies(members: &[(String, String)], manifest: &str) -> Vec<String> {
    let named = |name: &str| {
        manifest
            .lines()
            .any(|line| line.starts_with(&format!("{name}.")) || line.starts_with(&format!("{name} ")))
    };
    let used = members.iter().filter(|(_, other)| other != manifest && named(package(other)));
    used.map(|(folder, _)| folder.clone()).collect()
}

#[test]
fn crates_depend_only_on_those_that_their_table_allows() {
    let members = members();
    let mut wrong = Vec::new();
    for (folder, manifest) in &members {
        let Some((_, allowed)) = CRATES.iter().find(|(name, _)| name == folder) else {
            wrong.push(format!("{folder} is not in the table"));
            continue;
        };
        let needs = dependencies(&members, manifest);
        wrong.extend(
            needs
                .iter()
                .filter(|need| !allowed.contains(&need.as_str()))
                .map(|need| format!("{folder} -> {need}")),
        );
    }
    let gone = CRATES.iter().filter(|(name, _)| !members.iter().any(|(folder, _)| folder == name));
    wrong.extend(gone.map(|(name, _)| format!("{name} is in the table and not in Cargo.toml")));
    hold(
        "crates that depend on more than tests/tests/tidy/crates.rs allows:",
        "move what both need into a library, or change the table and say why",
        &wrong,
    );
}

#[test]
fn modules_use_only_modules_below_them() {
    let sources = sources();
    let mut wrong = Vec::new();
    for program in PROGRAMS {
        let unlisted = program.unlisted(&sources);
        wrong.extend(
            unlisted.iter().map(|module| format!("{module}: only in the table, or only in the crate")),
        );
        let upward = program.upward_arrows(&sources);
        wrong.extend(upward.iter().map(|((user, used), file)| format!("{file}: {user} -> {used} runs up")));
    }
    hold(
        "modules of a program that differ from tests/tests/tidy/modules.rs:",
        "move what both need down, or correct the table and say why",
        &wrong,
    );
}

/// Page with the table of crates.
const CRATE_PAGE: &str = "docs/design/architecture.md";
/// File with the counts of today, below the repository.
const DEBT: &str = "tests/tests/tidy/debt.toml";

#[test]
fn words_that_the_writing_guide_replaces_become_fewer() {
    let hits = language::hits(&sources(), &documents());
    let counts = language::counts(&hits);
    if std::env::var_os("BEDPLATE_RECORD_DEBT").is_some() {
        let text = toml::to_string(&counts).expect("counts are TOML");
        let head = "# Lines per folder that the writing guide would word otherwise. A count may only fall; see docs/design/testing.md.\n\n";
        std::fs::write(root().join(DEBT), format!("{head}{text}")).expect("a writable debt.toml");
    }
    let debt = std::fs::read_to_string(root().join(DEBT)).expect(DEBT);
    let debt: language::Counts = toml::from_str(&debt).expect(DEBT);
    let mut wrong = Vec::new();
    for (folder, pattern, allowed, found) in language::differences(&debt, &counts) {
        wrong.push(format!("{folder}, {pattern:?}: {found} lines, {allowed} in the file"));
        if found > allowed {
            let places = hits.iter().filter(|hit| hit.folder == folder && hit.pattern == pattern);
            wrong.extend(places.map(|hit| format!("  {}", hit.place)));
        }
    }
    hold(
        "counts that differ from tests/tests/tidy/debt.toml:",
        "reword the new lines; if there are fewer, record it: BEDPLATE_RECORD_DEBT=1 cargo test -p bedplate-tests --test tidy writing_guide",
        &wrong,
    );
}

#[test]
fn architecture_shows_the_table_of_crates() {
    let page = std::fs::read_to_string(root().join(CRATE_PAGE)).expect(CRATE_PAGE);
    let shown = tidy::crates::arrows();
    assert!(
        page.contains(&shown),
        "{CRATE_PAGE} must contain these lines, generated from tests/tests/tidy/crates.rs:\n\n{shown}"
    );
}

#[test]
fn nothing_refers_to_papers_that_are_not_in_the_repository() {
    // Put together here, so that this file does not name them.
    let papers = [["api", ".md"].concat(), ["seed", "-rules"].concat(), ["house", "-style"].concat()];
    let mut wrong = Vec::new();
    for (path, text) in texts() {
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.to_lowercase();
            let issue =
                line.split("issue ").skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            if issue || papers.iter().any(|paper| line.contains(paper)) {
                wrong.push(format!("{path}:{number} {}", line.trim()));
            }
        }
    }
    hold("papers that nobody has who reads this:", "say it here, or in docs/design/rules.md", &wrong);
}

/// The rules' numbers as they are written in comments (`H2`) and at the beginning of tests' names (`h2_...`).
fn rules_named(source: &Source) -> Vec<(usize, String)> {
    let is_rule = |word: &str| {
        let digits = word.strip_prefix(['H', 'C', 'V', 'O', 'A', 'D']).unwrap_or_default();
        (1..=2).contains(&digits.len())
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && !digits.starts_with('0')
    };
    let mut named = Vec::new();
    for (number, line) in (1..).zip(source.text.lines()) {
        let comment = line.split_once("//").map_or("", |(_, comment)| comment);
        let words = comment.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned);
        let function = line.split_once("fn ").and_then(|(_, name)| name.split('_').next());
        let all = words.chain(function.map(str::to_uppercase));
        named.extend(all.filter(|word| is_rule(word)).map(|word| (number, word)));
        let trust = comment.split("Trust ").skip(1).filter_map(|rest| rest.chars().next());
        named.extend(trust.filter(char::is_ascii_digit).map(|digit| (number, format!("Trust {digit}"))));
    }
    named
}

#[test]
fn rules_that_code_names_by_number_are_explained() {
    let rules = std::fs::read_to_string(root().join("docs/design/rules.md")).expect("docs/design/rules.md");
    let (_, trust) = rules.split_once("## Trust").expect("a section on trust");
    let explained = |rule: &str| match rule.strip_prefix("Trust ") {
        Some(number) => trust.lines().any(|line| line.starts_with(&format!("{number}. "))),
        None => rules.contains(&format!("**{rule}**")),
    };
    let mut wrong = Vec::new();
    let mut count = 0;
    for source in sources() {
        for (number, rule) in rules_named(&source) {
            count += 1;
            if !explained(&rule) {
                wrong.push(format!("{}:{number} {rule}", source.path));
            }
        }
    }
    assert!(count > 10, "only {count} rules are named: the search does not find them");
    hold("rules that docs/design/rules.md does not explain:", "explain them there", &wrong);
}

fn manual() -> Vec<Document> {
    documents().into_iter().filter(|document| document.path.starts_with("docs/")).collect()
}

#[test]
fn every_reason_is_written_by_a_program() {
    let unwritten = tidy::reasons::unwritten(&sources());
    hold("reasons that no program writes:", "remove them from api/src/reason", &unwritten);
}

#[test]
fn reasons_are_compared_as_values() {
    // Reasons of the API server and of other programs.
    const OTHERS: [&str; 4] =
        ["agent/src/plane/", "cli/src/backend", "cli/src/install", "cli/src/run_operation"];
    let mut wrong = Vec::new();
    for source in sources() {
        let theirs = OTHERS.iter().any(|folder| source.path.starts_with(folder));
        if source.is_test() || source.path.starts_with("tests/") || theirs {
            continue;
        }
        let lines = tidy::reasons::compared_with_text(&source);
        wrong.extend(lines.into_iter().map(|(number, line)| format!("{}:{number} {line}", source.path)));
    }
    hold("reasons that are compared as texts:", "compare with a value of api/src/reason", &wrong);
}

#[test]
fn messages_are_read_by_people_alone() {
    const ALLOWED: [(&str, &str); 2] = [
        ("engine/src/write.rs", "the API server has no reason for an object that is too large"),
        ("cli/src/confirm.rs", "the API server has no reason for a test of a JSON patch that fails"),
    ];
    // Messages of protocols are another thing.
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for source in sources() {
        let others = ["tests/", "xtask/", "bmc/ipmi/", "pxed/dhcp/", "pxed/tftp/"];
        if source.is_test() || others.iter().any(|folder| source.path.starts_with(folder)) {
            continue;
        }
        for (number, line) in tidy::reasons::messages_read(&source) {
            match ALLOWED.iter().find(|(path, _)| *path == source.path) {
                Some((path, _)) => _ = used.insert(*path),
                None => wrong.push(format!("{}:{number} {line}", source.path)),
            }
        }
    }
    wrong.extend(
        ALLOWED
            .iter()
            .filter(|(path, _)| !used.contains(path))
            .map(|(path, _)| format!("{path}: not any more")),
    );
    hold("messages that a program compares or searches:", "keep what it must know in a typed field", &wrong);
}

#[test]
fn names_that_documents_mark_are_in_the_code() {
    // Names of other projects, which do not occur in this code.
    const OTHERS: [&str; 8] = [
        "ReadOnly",
        "VmRSS",
        "credHelpers",
        "defaultMode",
        "hostPort",
        "maxPerCore",
        "renewTime",
        "systemReserved",
    ];
    let texts = texts();
    let ours = texts.iter().filter(|(path, _)| !path.ends_with(".md") && !path.starts_with("tests/"));
    let known: BTreeSet<&str> = ours.flat_map(|(_, text)| words::words(text)).collect();
    let mut wrong = Vec::new();
    for document in documents() {
        for (number, line) in (1..).zip(document.text.lines()) {
            for name in words::names_in(line) {
                if !known.contains(name) && !OTHERS.contains(&name) {
                    wrong.push(format!("{}:{number} {name}", document.path));
                }
            }
        }
    }
    hold(
        "fields, reasons or kinds that documents name and no code has:",
        "correct the document, or name it as another's here",
        &wrong,
    );
}

#[test]
fn every_metric_is_in_the_documents_and_no_other() {
    let documented: BTreeSet<String> = manual().iter().flat_map(words::metrics_documented).collect();
    let made: BTreeSet<String> = sources()
        .iter()
        .filter(|source| {
            !source.is_test() && source.path.contains("/src/") && !source.path.starts_with("tests/")
        })
        .flat_map(words::metrics_made)
        .collect();
    assert!(made.len() > 50, "{}: the search does not find them", made.len());
    let spelled = |name: &str| ["", "_total", "_seconds", "_seconds_total"].map(|end| format!("{name}{end}"));
    let missing = made.iter().filter(|name| !spelled(name).iter().any(|name| documented.contains(name)));
    let missing: Vec<String> = missing.cloned().collect();
    hold("metrics that no table of docs/ has:", "add a row", &missing);
    let known: BTreeSet<String> = made.iter().flat_map(|name| spelled(name)).collect();
    let made_up: Vec<String> = documented.difference(&known).cloned().collect();
    hold("metrics that docs/ has and no program:", "correct the table", &made_up);
}

#[test]
fn links_into_documents_lead_to_a_heading() {
    let documents = documents();
    let headings: BTreeMap<&str, BTreeSet<String>> = documents
        .iter()
        .map(|document| {
            let lines = document.text.lines().filter(|line| line.starts_with('#'));
            (document.path.as_str(), lines.map(words::anchor).collect())
        })
        .collect();
    let mut wrong = Vec::new();
    for document in &documents {
        let folder = Path::new(&document.path).parent().unwrap_or(Path::new(""));
        for (number, line) in (1..).zip(document.text.lines()) {
            for (file, anchor) in words::anchored_links(line) {
                let target =
                    if file.is_empty() { document.path.clone() } else { words::joined(folder, file) };
                if !headings.get(target.as_str()).is_some_and(|there| there.contains(anchor)) {
                    wrong.push(format!("{}:{number} {target}#{anchor}", document.path));
                }
            }
        }
    }
    hold("links to headings that are not there:", "correct the link", &wrong);
}

#[test]
fn index_links_every_page() {
    let documents = documents();
    let index =
        documents.iter().find(|document| document.path == "docs/README.md").expect("the index exists");
    let pages = documents.iter().filter_map(|document| document.path.strip_prefix("docs/"));
    let missing: Vec<String> = pages
        .filter(|page| *page != "README.md" && !index.text.contains(&format!("({page})")))
        .map(ToOwned::to_owned)
        .collect();
    hold("pages that docs/README.md does not link:", "add a row to the index", &missing);
}

#[test]
fn parts_of_documents_that_are_named_are_there() {
    let folded = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let documents: BTreeMap<String, String> =
        documents().into_iter().map(|document| (document.path, folded(&document.text))).collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (path, text) in texts() {
        if path.ends_with("tidy/words.rs") {
            continue;
        }
        for (file, part) in words::parts_named(&text) {
            count += 1;
            if !documents.get(&file).is_some_and(|document| document.contains(&folded(&part))) {
                wrong.push(format!("{path}: {file}, {part:?}"));
            }
        }
    }
    assert!(count > 20, "{count}: the search does not find them");
    hold("parts of documents that are not there:", "name the part as it is headed", &wrong);
}
