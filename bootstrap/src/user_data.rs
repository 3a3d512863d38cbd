//! Pure: cloud-init user data of the Cluster API as a plan, and the plan as files of a slot.
//!
//! ```text
//!   Secret ──► format, header ──► jinja ──► yaml ──► file, command, user ──► Plan ──► render: unit, scripts, contents
//! ```
//! The plan has the order of cloud-init: `bootcmd`, `write_files`, `users`, deferred `write_files`, `runcmd`. Nothing is carried out
//! here: the slot runs the rendered scripts as its own root. Data that is only partly supported is refused before anything runs,
//! with every key and its reason. No error and no `Debug` output has content; contents are wiped from memory when they are dropped.
//! Copies inside of the YAML parser are not. Called by `bedplate-agent`.

mod command;
mod file;
mod finding;
mod header;
mod render;
mod scalar;
mod secret;
mod user;
mod yaml;

use std::fmt;

use zeroize::Zeroizing;

pub use self::command::Command;
pub use self::file::{Owner, WriteFile};
pub use self::finding::Refusal;
use self::finding::{Findings, field};
pub use self::render::{BOOT_SCRIPT, DIRECTORY, FINISHED, LOG, NAME, Payload, Rendered, SCRIPT, STARTED};
pub use self::user::User;
use self::yaml::{Node, Value};
use crate::jinja::Facts;

/// Maximum size of user data, in bytes. etcd takes no larger object.
const MAX_USER_DATA_BYTES: usize = 1 << 20;

/// Maximum size of all decoded contents and commands together, in bytes.
const MAX_CONTENT_BYTES: usize = 16 << 20;

/// File by which the Cluster API's providers learn that user data succeeded.
pub const SENTINEL: &str = "/run/cluster-api/bootstrap-success.complete";

/// Keys that a slot cannot carry out: name, reason and next step.
const REFUSED: [(&str, &str, &str); 4] = [
    ("disk_setup", NO_DEVICES, USE_STATE_DISK),
    ("fs_setup", NO_DEVICES, USE_STATE_DISK),
    ("mounts", NO_DEVICES, "use container.binds of the MachineConfiguration"),
    ("ntp", "a node uses the clock of its host", "configure time servers in the host image"),
];
const NO_DEVICES: &str = "a node has no block devices of its own";
const USE_STATE_DISK: &str = "remove it; the node's root is on the state disk";

/// Bootstrap data as a Secret has it.
#[derive(Clone, Copy)]
pub struct UserData<'a> {
    /// Key `value`.
    pub value: &'a [u8],
    /// Key `format`.
    pub format: Option<&'a [u8]>,
}

/// The value is a secret.
impl fmt::Debug for UserData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserData({} bytes)", self.value.len())
    }
}

/// Treatment of parts that are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unsupported {
    /// The user data is refused.
    #[default]
    Refuse,
    /// The rest is carried out, and the parts are reported.
    Ignore,
}

/// Steps of user data in the order of its fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// `bootcmd`, at every start of the slot.
    pub boot_commands: Vec<Command>,
    /// `write_files` without `defer`.
    pub files: Vec<WriteFile>,
    /// `users`.
    pub users: Vec<User>,
    /// `write_files` with `defer`.
    pub deferred_files: Vec<WriteFile>,
    /// `runcmd`.
    pub run_commands: Vec<Command>,
    /// `INSTANCE_ID` of `bootcmd`.
    pub instance_id: String,
}

/// User data that is carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The steps.
    pub plan: Plan,
    /// Parts that are not carried out.
    pub ignored: Vec<Refusal>,
}

/// All reasons for which user data is refused, or the first of many.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PlanUserDataError(pub Vec<Refusal>);

impl fmt::Display for PlanUserDataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("; "))
    }
}

/// Bytes that contents and commands may still have.
struct Budget(usize);

impl Budget {
    fn left(&self) -> usize {
        self.0
    }

    /// Takes bytes. False: there are not enough.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

/// Plans user data.
///
/// # Errors
/// Every part that is not valid and, unless they are ignored, every part that is not supported.
pub fn plan_user_data(
    data: UserData<'_>,
    facts: &Facts<'_>,
    unsupported: Unsupported,
) -> Result<Accepted, PlanUserDataError> {
    let mut found = Findings::default();
    let plan = match header::root(data, facts) {
        Ok(root) => read(&root, facts, &mut found),
        Err(refusal) => return Err(PlanUserDataError(vec![refusal])),
    };
    let Findings { invalid, unsupported: parts } = found;
    let is_refused = unsupported == Unsupported::Refuse && !parts.is_empty();
    if invalid.is_empty() && !is_refused {
        return Ok(Accepted { plan, ignored: parts });
    }
    let parts = if is_refused { parts } else { Vec::new() };
    Err(PlanUserDataError(invalid.into_iter().chain(parts).collect()))
}

fn read(root: &Node, facts: &Facts<'_>, found: &mut Findings) -> Plan {
    let mut plan = Plan { instance_id: facts.instance_id.to_owned(), ..Plan::default() };
    let Value::Map(entries) = &root.value else {
        found.invalid("value", "this is not a map of keys", "write at least runcmd or write_files");
        return plan;
    };
    let mut budget = Budget(MAX_CONTENT_BYTES);
    for (name, node) in entries {
        match name.as_str() {
            "bootcmd" => plan.boot_commands = command::read(name, node, found, &mut budget),
            "runcmd" => plan.run_commands = command::read(name, node, found, &mut budget),
            "users" => plan.users = user::read(node, found),
            "write_files" => {
                let files = file::read(node, found, &mut budget);
                (plan.files, plan.deferred_files) = (files.early, files.deferred);
            }
            _ => {
                let known = REFUSED.iter().find(|(refused, ..)| refused == name);
                let (reason, remedy) = known.map_or(
                    ("this key is not supported", "remove it, or do it in runcmd"),
                    |(_, reason, remedy)| (*reason, *remedy),
                );
                found.unsupported(&field("", name, node.line), reason, remedy);
            }
        }
    }
    plan
}

/// Returns true for the name of a user or a group. No shell changes such a word.
fn is_account(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    starts && name.len() <= 32 && name.bytes().all(plain)
}

impl Plan {
    /// Returns true if a command or the content of a file names the [`SENTINEL`]. Its absence at the end is a failure then.
    pub(crate) fn names_sentinel(&self) -> bool {
        let has = |bytes: &[u8]| bytes.windows(SENTINEL.len()).any(|window| window == SENTINEL.as_bytes());
        let in_command = |command: &Command| match command {
            Command::Shell(text) => has(text.as_bytes()),
            Command::Arguments(words) => words.iter().any(|word| has(word.as_bytes())),
        };
        self.boot_commands.iter().chain(&self.run_commands).any(in_command)
            || self.files.iter().chain(&self.deferred_files).any(|file| has(&file.content))
    }

    /// Returns the programs that the node image must have in addition to a shell and its basic tools.
    pub fn programs(&self) -> &'static [&'static str] {
        if self.users.is_empty() { &[] } else { &["useradd", "groupadd", "usermod", "chpasswd"] }
    }

    /// Renders the unit and the scripts that run the plan in a slot once.
    pub fn render(&self) -> Rendered {
        render::render(self)
    }

    /// Returns the texts that must not be in a log or a message: tokens, keys, passwords, and all of files that only their owner reads.
    pub fn secrets(&self) -> Vec<Zeroizing<String>> {
        secret::secrets(self)
    }

    /// Returns the script that cloud-init would make of `runcmd`.
    pub fn run_script(&self) -> Zeroizing<String> {
        command::script(&self.run_commands)
    }

    /// Returns the script that cloud-init would make of `bootcmd`.
    pub fn boot_script(&self) -> Zeroizing<String> {
        command::script(&self.boot_commands)
    }
}

#[cfg(test)]
mod tests;
