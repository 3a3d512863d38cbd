//! Reference page of commands: compares the definition of a program with the section of the program in docs/reference/commands.md.
//!
//! Included by the unit tests of each program. Not part of the libraries.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

/// Variable that makes [`compare`] write the section instead of failing.
const RECORD: &str = "BEDPLATE_RECORD_COMMANDS";

/// Compares the section of a program in the page at `path` with its definition.
pub(crate) fn compare(path: &str, mut command: Command) {
    command.build();
    let program = command.get_name().to_owned();
    let section = section(&mut command);
    let page = std::fs::read_to_string(path).expect(path);
    let (before, rest) = page.split_once(&format!("\n## {program}\n")).expect("a heading for the program");
    let (committed, after) = rest.split_at(rest.find("\n## ").unwrap_or(rest.len()));
    if committed == section {
        return;
    }
    if std::env::var_os(RECORD).is_some() {
        let page = format!("{before}\n## {program}\n{section}{after}");
        std::fs::write(path, page).expect("a writable page");
        return;
    }
    let with_end = |text: &str| {
        text.lines().map(str::to_owned).chain(["(end of the section)".to_owned()]).collect::<Vec<_>>()
    };
    let (of_page, of_program) = (with_end(committed), with_end(&section));
    let first = of_page.iter().zip(&of_program).find(|(page, program)| page != program);
    panic!(
        "docs/reference/commands.md differs from the commands of {program}; run the test again with {RECORD}=1\n\
         first different line (page, program): {first:#?}"
    );
}

/// Returns the section without its heading.
fn section(command: &mut Command) -> String {
    let mut text = String::new();
    for part in [command.get_about(), command.get_after_long_help()].into_iter().flatten() {
        write!(text, "\n{part}\n").expect("a String takes all text");
    }
    write!(text, "\n    {}\n", command.render_usage()).expect("a String takes all text");
    let options = rows(command, true);
    if !options.is_empty() {
        let title = if command.has_subcommands() { "Options of every command:\n\n" } else { "" };
        write!(text, "\n{title}{}", table(&options)).expect("a String takes all text");
    }
    let mut leaves = Vec::new();
    collect(command, &mut leaves);
    if !leaves.is_empty() {
        text.push_str("\n| command | task |\n|---|---|\n");
    }
    for leaf in &leaves {
        let (name, about) = (name(leaf), leaf.get_about().map(ToString::to_string).unwrap_or_default());
        let shown = match rows(leaf, false).is_empty() {
            true => format!("`{name}`"),
            false => format!("[`{name}`](#{})", name.replace(' ', "-")),
        };
        writeln!(text, "| {shown} | {} |", cell(&about)).expect("a String takes all text");
    }
    for leaf in &mut leaves {
        let rows = rows(leaf, false);
        if !rows.is_empty() {
            let (name, usage) = (name(leaf), leaf.render_usage());
            write!(text, "\n### {name}\n\n    {usage}\n\n{}", table(&rows)).expect("a String takes all text");
            text.push_str(&block(leaf));
        }
    }
    text
}

/// Returns the text after the help of a command, as a block that keeps its lines.
fn block(command: &Command) -> String {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = help.lines().map(|line| format!("    {line}").trim_end().to_owned() + "\n");
    let text: String = lines.collect();
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Adds the commands that have no commands of their own, in the order of the help.
fn collect(command: &Command, leaves: &mut Vec<Command>) {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set())
    {
        match inner.has_subcommands() {
            true => collect(inner, leaves),
            false => leaves.push(inner.clone()),
        }
    }
}

/// Name of a command with the names above it.
fn name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// Rows of the arguments of a command. Those that every command takes are rows of the program only.
fn rows(command: &Command, is_program: bool) -> Vec<[String; 4]> {
    let is_own = |arg: &&Arg| is_program || !arg.is_global_set();
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    command.get_arguments().filter(is_own).filter(is_shown).map(row).collect()
}

/// Row of an argument: its form, default, variable and meaning.
fn row(arg: &Arg) -> [String; 4] {
    let takes_values = arg.get_action().takes_values();
    let names = arg.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>"));
    let value = if takes_values { names.collect::<Vec<_>>().join(" ") } else { String::new() };
    let long = arg.get_long().map(|long| format!("`{}`", format!("--{long} {value}").trim_end()));
    let short = arg.get_short().map(|short| format!("`-{short}`"));
    let aliases =
        arg.get_visible_aliases().unwrap_or_default().into_iter().map(|alias| format!("`--{alias}`"));
    let mut forms: Vec<String> = short.into_iter().chain(long).chain(aliases).collect();
    if forms.is_empty() {
        let optional = || format!("[{}]", value.trim_start_matches('<').trim_end_matches('>'));
        forms.push(format!("`{}`", if arg.is_required_set() { value.clone() } else { optional() }));
    }
    let mut default = Vec::new();
    if arg.is_required_set() {
        default.push("required".to_owned());
    }
    if matches!(arg.get_action(), ArgAction::Append) {
        default.push("may be repeated".to_owned());
    }
    if takes_values && !arg.is_hide_default_value_set() {
        default.extend(arg.get_default_values().iter().map(|value| format!("`{}`", value.display())));
    }
    let variable = arg.get_env().map(|name| format!("`{}`", name.display())).unwrap_or_default();
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let values = if takes_values { values(arg) } else { String::new() };
    [forms.join(", "), default.join(", "), variable, format!("{help}{values}")]
}

/// Returns the values of an argument that takes words of a set, with their help.
fn values(arg: &Arg) -> String {
    let values = arg.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set()).map(|value| match value.get_help() {
        Some(help) => format!("`{}` ({help})", value.get_name()),
        None => format!("`{}`", value.get_name()),
    });
    let values: Vec<String> = values.collect();
    if values.is_empty() { String::new() } else { format!(". Values: {}", values.join(", ")) }
}

fn table(rows: &[[String; 4]]) -> String {
    let mut text = String::from("| argument | default | variable | meaning |\n|---|---|---|---|\n");
    for row in rows {
        let cells = row.each_ref().map(|text| cell(text));
        writeln!(text, "| {} |", cells.join(" | ")).expect("a String takes all text");
    }
    text.replace("|  |", "| |").replace("|  |", "| |")
}

/// Text of a cell on one line.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
