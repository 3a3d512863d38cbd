//! Commands of `bedplate` in documents and in messages of all programs. Each must be valid, with its flags.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

use super::parse;

/// Command in a text.
struct Named {
    place: String,
    line: String,
    /// True if it is a complete command line. If false, the text only names a command, perhaps without its
    /// arguments.
    is_whole: bool,
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found
}

/// Lines of code blocks, which are indented or fenced.
fn blocks(path: &Path, text: &str) -> Vec<Named> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let command = line.trim().trim_start_matches("$ ");
        if command.starts_with("```") {
            fenced = !fenced;
        } else if (fenced || line.starts_with("    ")) && command.starts_with("bedplate ") {
            let place = format!("{}:{number}", path.display());
            found.push(Named { place, line: command.to_owned(), is_whole: true });
        }
    }
    found
}

/// Returns the commands of a transcript, which are after a prompt.
fn typed(path: &Path, text: &str) -> Vec<Named> {
    let lines = (1..).zip(text.lines());
    let commands = lines.filter_map(|(number, line)| Some((number, line.strip_prefix("$ ")?)));
    let ours = commands.filter(|(_, line)| line.starts_with("bedplate "));
    let named = |(number, line): (usize, &str)| Named {
        place: format!("{}:{number}", path.display()),
        line: line.to_owned(),
        is_whole: true,
    };
    ours.map(named).collect()
}

/// Returns the texts between backticks, including those that span lines.
fn marked(path: &Path, text: &str) -> Vec<Named> {
    let mut found = Vec::new();
    let mut at = 1;
    for paragraph in text.split("\n\n") {
        for (number, part) in paragraph.split('`').enumerate() {
            let line = part.split_whitespace().collect::<Vec<_>>().join(" ");
            if number % 2 == 1 && line.starts_with("bedplate ") {
                found.push(Named { place: format!("{}:{at}", path.display()), line, is_whole: false });
            }
        }
        at += paragraph.matches('\n').count() + 2;
    }
    found
}

/// Returns the words of a command like a shell, up to a comment or another command. Placeholders are replaced by examples.
fn words(line: &str) -> Vec<OsString> {
    let line =
        [" #", " | ", " > ", " && ", "; "].iter().fold(line, |line, end| line.split(end).next().unwrap());
    // `<MAC address or name>`
    let mut parts = line.split('<');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push('1');
        text.push_str(part.split_once('>').map_or("", |(_, rest)| rest));
    }
    let mut words = Vec::new();
    let mut quote = None;
    let mut word = String::new();
    for c in text.chars().chain([' ']) {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == ' ' => {
                // A number that is also a name.
                let is_placeholder =
                    ["NAME", "MACHINE", "N", "M"].contains(&word.as_str()) || word.contains('{');
                let value = match word.as_str() {
                    "BOOT" | "{boot}" => "0123456789abcdef0123456789abcdef",
                    _ if is_placeholder => "1",
                    word => word,
                };
                if !value.is_empty() {
                    words.push(OsString::from(value));
                }
                word.clear();
            }
            _ => word.push(c),
        }
    }
    words
}

/// Returns the parse error if the text is not a valid command.
fn parse_error(named: &Named) -> Option<String> {
    let error = parse(words(&named.line)).err()?;
    let is_cut = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let is_right = is_help || (is_cut && !named.is_whole);
    (!is_right).then(|| format!("{}: {}\n    {error}", named.place, named.line))
}

#[test]
fn every_command_that_is_named_somewhere_is_one() {
    let mut found = Vec::new();
    let mut documents = files("docs", "md");
    documents.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md"));
    for path in documents {
        let text = std::fs::read_to_string(&path).unwrap();
        found.extend(blocks(&path, &text));
        found.extend(marked(&path, &text));
    }
    for path in files("docs", "txt") {
        found.extend(typed(&path, &std::fs::read_to_string(&path).unwrap()));
    }
    for folder in ["cli/src", "agent/src", "pxed/src", "reconciler/src", "bmc/src", "api/src"] {
        for path in files(folder, "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            // String literals may continue on the next line.
            let text: String = text.split("\\\n").map(str::trim_start).collect();
            found.extend(text.lines().zip(1..).flat_map(|(line, number)| {
                let place = PathBuf::from(format!("{}:{number}", path.display()));
                marked(&place, line)
            }));
        }
    }
    // Exceptions: an input of the MAC address hash (docs/concepts/node.md), and first words of commands in tests.
    found.retain(|named| !named.line.starts_with("bedplate slot ") && !named.place.contains("_tests.rs"));
    assert!(found.len() > 120, "{}: the search does not find them", found.len());
    let wrong: Vec<String> = found.iter().filter_map(parse_error).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
