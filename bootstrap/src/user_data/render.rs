//! Pure: a plan as the files of a slot: a unit, two scripts on disk, and everything secret in memory. Called by `user_data`.
//!
//! ```text
//!  SCRIPT ──► FINISHED there: bootcmd, end
//!         ──► STARTED there:  failure, nothing runs (a part of runcmd may have run, and it cannot be repeated)
//!         ──► STARTED ──► bootcmd ──► steps: write_files, users, deferred files, runcmd ──► sentinel ──► FINISHED
//! ```
//! As in cloud-init, `bootcmd` runs at every start and its status is only logged, and a failing command of `runcmd` does not end the
//! script: the status is that of the last one. Unlike cloud-init, the first file or user that fails ends the run: kubeadm would
//! otherwise start with a part of its files.

use std::fmt;
use std::fmt::Write as _;

use zeroize::Zeroizing;

use super::{Owner, Plan, SENTINEL, User, WriteFile, command};
use crate::unit::{Link, quoted};

/// Name of the unit. `active (exited)` means that the user data succeeded.
pub const NAME: &str = "bedplate-user-data.service";

/// Script that the unit runs.
pub const SCRIPT: &str = "/etc/bedplate/user-data.sh";

/// Script of `bootcmd`. It stays on disk, since it runs at every start.
pub const BOOT_SCRIPT: &str = "/etc/bedplate/user-data-boot.sh";

/// Directory in memory with the steps and their contents. The script removes it after success.
pub const DIRECTORY: &str = "/run/bedplate/user-data";

/// Mark of a run that started.
pub const STARTED: &str = "/var/lib/bedplate/user-data-started";

/// Mark of a run that succeeded.
pub const FINISHED: &str = "/var/lib/bedplate/user-data-finished";

/// Output of all commands. The previous one is next to it with `.1`.
pub const LOG: &str = "/var/log/bedplate/user-data.log";

/// A file with its content, owned by root.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// Absolute path in the slot.
    pub path: String,
    /// Mode, such as `0o600`.
    pub mode: u32,
    /// Content.
    pub content: Zeroizing<Vec<u8>>,
}

/// The content may be a secret.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:04o}, {} bytes)", self.path, self.mode, self.content.len())
    }
}

/// Files that run a plan in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Files of the slot's root. `bootcmd` alone is content of the user data.
    pub files: Vec<Payload>,
    /// Files below [`DIRECTORY`]: everything else of the user data.
    pub memory: Vec<Payload>,
    /// Link that enables the unit.
    pub link: Link,
}

pub(super) fn render(plan: &Plan) -> Rendered {
    let unit_path = format!("/etc/systemd/system/{NAME}");
    let mut files = vec![
        payload(unit_path.clone(), 0o644, unit().into_bytes()),
        payload(SCRIPT.to_owned(), 0o700, script(plan).into_bytes()),
    ];
    if !plan.boot_commands.is_empty() {
        files.push(text(BOOT_SCRIPT.to_owned(), 0o700, command::script(&plan.boot_commands)));
    }
    let mut memory = vec![payload(format!("{DIRECTORY}/steps.sh"), 0o700, steps(plan).into_bytes())];
    for file in plan.files.iter().chain(&plan.deferred_files) {
        let path = format!("{DIRECTORY}/file-{}", file.index);
        memory.push(Payload { path, mode: 0o600, content: file.content.clone() });
    }
    for user in &plan.users {
        memory.extend(user_payloads(user));
    }
    if !plan.run_commands.is_empty() {
        memory.push(text(format!("{DIRECTORY}/runcmd"), 0o700, command::script(&plan.run_commands)));
    }
    let link =
        Link { path: format!("/etc/systemd/system/multi-user.target.wants/{NAME}"), target: unit_path };
    Rendered { files, memory, link }
}

fn payload(path: String, mode: u32, content: Vec<u8>) -> Payload {
    Payload { path, mode, content: Zeroizing::new(content) }
}

fn text(path: String, mode: u32, mut text: Zeroizing<String>) -> Payload {
    payload(path, mode, std::mem::take(&mut *text).into_bytes())
}

/// Returns the secrets of a user: lines for `chpasswd`, `sudoers` and `authorized_keys`.
fn user_payloads(user: &User) -> Vec<Payload> {
    let path = |name: &str| format!("{DIRECTORY}/user-{}-{name}", user.index);
    let joined = |start: &str, lines: &[Zeroizing<String>], before: &str| {
        let size = lines.iter().map(|line| before.len() + line.len() + 1).sum::<usize>();
        let mut all = Zeroizing::new(String::with_capacity(start.len() + size));
        all.push_str(start);
        for line in lines {
            all.push_str(before);
            all.push_str(line);
            all.push('\n');
        }
        all
    };
    let mut found = Vec::new();
    if let Some(hash) = &user.passwd {
        let line = joined(&format!("{}:", user.name), std::slice::from_ref(hash), "");
        found.push(text(path("passwd"), 0o600, line));
    }
    if !user.sudo.is_empty() {
        let head = format!("\n# User rules for {}\n", user.name);
        found.push(text(path("sudo"), 0o600, joined(&head, &user.sudo, &format!("{} ", user.name))));
    }
    if !user.ssh_authorized_keys.is_empty() {
        found.push(text(path("keys"), 0o600, joined("", &user.ssh_authorized_keys, "")));
    }
    found
}

fn unit() -> String {
    format!(
        "\
# Written by bedplate-agent: runs the user data of this slot's claimant, once.

[Unit]
Description=User data of this slot
# Any container runtime that the image has; those that it does not have do not matter.
After=network-online.target containerd.service crio.service

[Service]
# Stays \"active (exited)\" after success. When the slot starts again, only bootcmd runs.
Type=oneshot
RemainAfterExit=yes
Environment=HOME=/root
ExecStart=/bin/sh {SCRIPT}
# The agent's health gate has the limit. There is no second try: runcmd cannot be repeated.
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
"
    )
}

/// Functions of both scripts.
const FUNCTIONS: &str = r#"
say() {
    printf 'bedplate: %s\n' "$*"
}

fail() {
    say "$1 failed with status $2"
    exit 1
}
"#;

/// Part of the script above the check of programs: functions, log and marks.
const PREPARATION: &str = r#"
# A mark is on disk before anything relies on it.
mark() {
    printf "" >"$1" || fail "writing $1" $?
    sync "$1" "${1%/*}" || fail "syncing $1" $?
}

# As in cloud-init, a failure of bootcmd does not stop the run.
run_boot() {
    [ -e "$boot" ] || return 0
    say "bootcmd"
    INSTANCE_ID=$instance /bin/sh "$boot" </dev/null || say "bootcmd ended with status $?"
}

mkdir -p "${log%/*}" "${started%/*}"
if [ -f "$log" ] && [ "$(wc -c <"$log")" -gt 1048576 ]; then
    mv -f "$log" "$log.1"
fi
if (umask 077 && : >>"$log"); then
    exec >>"$log" 2>&1
else
    # The output of commands must not reach the journal of the slot.
    say "cannot write $log; the output of the user data is discarded"
    exec >/dev/null 2>&1
fi
say "started at $(date -u +%Y-%m-%dT%H:%M:%SZ)"

if [ -e "$finished" ]; then
    run_boot
    exit 0
fi
if [ -e "$started" ]; then
    say "an earlier run was interrupted; it is not repeated"
    exit 1
fi
[ -e "$data/steps.sh" ] || {
    say "$data/steps.sh is missing; nothing was run"
    exit 1
}
"#;

fn script(plan: &Plan) -> String {
    let instance = quoted(&plan.instance_id);
    let mut script = format!(
        "\
#!/bin/sh
# Written by bedplate-agent, run by {NAME}. It has no content of the user data.
set -u

data={DIRECTORY}
boot={BOOT_SCRIPT}
started={STARTED}
finished={FINISHED}
log={LOG}
instance={instance}
{FUNCTIONS}{PREPARATION}"
    );
    if !plan.programs().is_empty() {
        let _ = write!(
            script,
            "\
for program in {}; do
    command -v $program >/dev/null || {{
        say \"users: the node image has no $program; nothing was run\"
        exit 1
    }}
done
",
            plan.programs().join(" ")
        );
    }
    script += "mark \"$started\"\nrun_boot\n/bin/sh \"$data/steps.sh\" </dev/null || exit 1\n";
    if plan.names_sentinel() {
        let _ = write!(
            script,
            "\
[ -e {SENTINEL} ] || {{
    say \"runcmd ended without {SENTINEL}\"
    exit 1
}}
"
        );
    }
    script += "mark \"$finished\"\nrm -rf \"$data\"\nsay \"done\"\n";
    script
}

/// Functions of the steps.
const STEPS: &str = r#"
# own PATH OWNER
own() {
    [ -z "$2" ] || chown "$2" "$1"
}

# parents PATH OWNER: makes the directories above a path.
parents() {
    [ -z "${1%/*}" ] || [ -d "${1%/*}" ] || {
        parents "${1%/*}" "$2" && mkdir "${1%/*}" && own "${1%/*}" "$2"
    }
}

# write INDEX MODE OWNER PATH
write() {
    say "write_files[$1]"
    parents "$4" "$3" && (umask 077 && cat "$data/file-$1" >"$4") && own "$4" "$3" && chmod "$2" "$4" ||
        fail "write_files[$1]" $?
}

# append INDEX MODE OWNER PATH
append() {
    say "write_files[$1]"
    parents "$4" "$3" && (umask 077 && cat "$data/file-$1" >>"$4") && own "$4" "$3" && chmod "$2" "$4" ||
        fail "write_files[$1]" $?
}

# groups INDEX GROUP...: makes those that are missing.
groups() {
    index=$1
    shift
    for group; do
        groupadd -f "$group" || fail "users[$index].groups" $?
    done
}

# add INDEX NAME OPTION...
add() {
    index=$1
    name=$2
    shift 2
    useradd -m "$@" "$name" || fail "users[$index]" $?
    if [ -e "$data/user-$index-passwd" ]; then
        chpasswd -e <"$data/user-$index-passwd" || fail "users[$index].passwd" $?
    fi
}

# rules INDEX: rules for sudo.
rules() {
    sudoers=/etc/sudoers
    directory=$sudoers.d
    (umask 027 && mkdir -p "$directory") && chmod 0750 "$directory" || fail "users[$1].sudo" $?
    if ! grep -Eqs "^[#@]includedir[[:space:]]+$directory/?[[:space:]]*\$" "$sudoers"; then
        (umask 0337 && printf '\n#includedir %s\n' "$directory" >>"$sudoers") || fail "users[$1].sudo" $?
    fi
    (umask 0337 && cat "$data/user-$1-sudo" >>"$directory/90-cloud-init-users") || fail "users[$1].sudo" $?
}

# keys INDEX NAME HOME: adds those that are missing.
keys() {
    file=$3/.ssh/authorized_keys
    (umask 077 && mkdir -p "$3/.ssh" && : >>"$file") && chmod 0700 "$3/.ssh" && chmod 0600 "$file" ||
        fail "users[$1].ssh_authorized_keys" $?
    while IFS= read -r key; do
        grep -Fxqe "$key" "$file" || printf '%s\n' "$key" >>"$file" || fail "users[$1].ssh_authorized_keys" $?
    done <"$data/user-$1-keys"
    chown "$2:" "$3/.ssh" "$file" || fail "users[$1].ssh_authorized_keys" $?
}
"#;

fn steps(plan: &Plan) -> String {
    let mut steps =
        format!("# Steps of the user data, in order.\nset -u\ndata={DIRECTORY}\n{FUNCTIONS}{STEPS}\n");
    for file in &plan.files {
        steps += &file_step(file);
    }
    for user in &plan.users {
        steps += &user_steps(user);
    }
    for file in &plan.deferred_files {
        steps += &file_step(file);
    }
    if !plan.run_commands.is_empty() {
        steps += "say \"runcmd\"\n/bin/sh \"$data/runcmd\" </dev/null || fail \"runcmd\" $?\n";
    }
    steps
}

fn file_step(file: &WriteFile) -> String {
    let verb = if file.append { "append" } else { "write" };
    let owner = quoted(&owner(&file.owner));
    format!("{verb} {} {:04o} {owner} {}\n", file.index, file.mode, quoted(&file.path))
}

/// Returns an owner as chown(1) reads it.
fn owner(owner: &Owner) -> String {
    let user = owner.user.as_deref().unwrap_or_default();
    owner.group.as_ref().map_or_else(|| user.to_owned(), |group| format!("{user}:{group}"))
}

fn user_steps(user: &User) -> String {
    let User { index, name, .. } = user;
    let groups: Vec<&str> = user.groups.iter().chain(&user.primary_group).map(String::as_str).collect();
    let joined = Some(user.groups.join(",")).filter(|groups| !groups.is_empty());
    let options = [
        ("--comment", &user.gecos),
        ("--gid", &user.primary_group),
        ("--groups", &joined),
        ("--home", &user.homedir),
        ("--inactive", &user.inactive),
        ("--shell", &user.shell),
    ];
    let mut add = String::new();
    for (option, value) in options {
        if let Some(value) = value {
            add += &format!(" {option} {}", quoted(value));
        }
    }
    let mut steps = format!("say \"users[{index}]\"\nif ! id -u {name} >/dev/null 2>&1; then\n");
    if !groups.is_empty() {
        let _ = writeln!(steps, "    groups {index} {}", groups.join(" "));
    }
    let _ = writeln!(steps, "    add {index} {name}{add}\nfi");
    if user.lock_passwd {
        let _ = writeln!(steps, "usermod --lock {name} || fail \"users[{index}].lock_passwd\" $?");
    }
    if !user.sudo.is_empty() {
        let _ = writeln!(steps, "rules {index}");
    }
    if !user.ssh_authorized_keys.is_empty() {
        // The shell replaces `~name` by the home directory; the name has plain characters only.
        let _ = writeln!(steps, "home=~{name}\nkeys {index} {name} \"$home\"");
    }
    steps
}
