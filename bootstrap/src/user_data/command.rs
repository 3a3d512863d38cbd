//! Pure: `bootcmd` and `runcmd`. Called by `user_data`.

use std::fmt;

use zeroize::Zeroizing;

use super::finding::Findings;
use super::scalar::Scalar;
use super::yaml::{Node, Value};
use super::{Budget, MAX_CONTENT_BYTES};

/// Maximum number of commands of one key.
const MAX_COMMANDS: usize = 1_000;

/// Maximum number of arguments of all commands of one key.
const MAX_ARGUMENTS: usize = 10_000;

/// First line of a script.
const HEAD: &str = "#!/bin/sh\n";

/// One command.
#[derive(Clone, PartialEq, Eq)]
pub enum Command {
    /// Text, which is a line of the script as it is.
    Shell(Zeroizing<String>),
    /// List, each item of which is one word.
    Arguments(Vec<Zeroizing<String>>),
}

/// A command may contain a secret.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(text) => write!(f, "Shell({} bytes)", text.len()),
            Self::Arguments(words) => write!(f, "Arguments({})", words.len()),
        }
    }
}

/// Reads a list of commands. An empty item is skipped, as by cloud-init.
pub(super) fn read(key: &str, node: &Node, found: &mut Findings, budget: &mut Budget) -> Vec<Command> {
    let Value::List(items) = &node.value else {
        found.invalid(key, "this is not a list", "write a list of commands");
        return Vec::new();
    };
    if items.len() > MAX_COMMANDS {
        found.invalid(key, format!("there are more than {MAX_COMMANDS} commands"), "put them into a script");
        return Vec::new();
    }
    let (mut commands, mut arguments) = (Vec::with_capacity(items.len()), 0);
    for (index, item) in items.iter().enumerate() {
        let place = format!("{key}[{index}]");
        match &item.value {
            Value::Scalar(Scalar::Null) => {}
            Value::List(words) => {
                arguments += words.len();
                if arguments > MAX_ARGUMENTS {
                    let reason = format!("there are more than {MAX_ARGUMENTS} arguments");
                    found.invalid(key, reason, "put them into a script");
                    return Vec::new();
                }
                let words = words.iter().enumerate();
                let words = words.map(|(at, word)| argument(&format!("{place}[{at}]"), word, found, budget));
                // Every argument is checked, also after one that is refused.
                let words: Vec<_> = words.collect();
                commands.extend(words.into_iter().collect::<Option<Vec<_>>>().map(Command::Arguments));
            }
            Value::Text(text) => commands.extend(word(&place, text, found, budget).map(Command::Shell)),
            Value::Scalar(_) | Value::Bytes(_) | Value::Map(_) => {
                found.invalid(&place, "this is neither text nor a list", "put it in quotes");
            }
        }
    }
    commands
}

/// Reads an argument. An integer is taken if its text is what cloud-init would make of it.
fn argument(
    place: &str,
    node: &Node,
    found: &mut Findings,
    budget: &mut Budget,
) -> Option<Zeroizing<String>> {
    match &node.value {
        Value::Text(text) => word(place, text, found, budget),
        Value::Scalar(Scalar::Integer { value, is_decimal: true }) => Some(Zeroizing::new(value.to_string())),
        _ => {
            found.not_text(place);
            None
        }
    }
}

fn word(place: &str, text: &str, found: &mut Findings, budget: &mut Budget) -> Option<Zeroizing<String>> {
    if text.contains('\0') {
        found.invalid(place, "there is a null character", "remove it");
        return None;
    }
    if !budget.take(text.len()) {
        let reason = format!("all contents and commands together exceed {MAX_CONTENT_BYTES} bytes");
        found.invalid(place, reason, "put them into the node image");
        return None;
    }
    Some(Zeroizing::new(text.to_owned()))
}

/// Returns a script of commands, as cloud-init's `shellify` makes it.
pub(super) fn script(commands: &[Command]) -> Zeroizing<String> {
    let quoted = |word: &str| word.len() + 3 * word.matches('\'').count() + 3;
    let length = |command: &Command| match command {
        Command::Shell(text) => text.len() + 1,
        Command::Arguments(words) => words.iter().map(|word| quoted(word)).sum::<usize>() + 1,
    };
    let length = HEAD.len() + commands.iter().map(length).sum::<usize>();
    let mut script = Zeroizing::new(String::with_capacity(length));
    script.push_str(HEAD);
    for command in commands {
        match command {
            Command::Shell(text) => script.push_str(text),
            Command::Arguments(words) => {
                for (at, word) in words.iter().enumerate() {
                    if at > 0 {
                        script.push(' ');
                    }
                    script.push('\'');
                    for (part, text) in word.split('\'').enumerate() {
                        script.push_str(if part > 0 { r"'\''" } else { "" });
                        script.push_str(text);
                    }
                    script.push('\'');
                }
            }
        }
        script.push('\n');
    }
    script
}
