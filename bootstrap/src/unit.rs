//! Pure: the unit and the script that run kubeadm in the slot once, also after kills at any point.
//!
//! The files on disk record the progress:
//!
//! ```text
//!  nothing ──► pre commands ──► ATTEMPT ──► kubeadm ──► JOINED ──► post commands ──► FINISHED
//!                                  ▲            │           └──── killed here: post commands again
//!                                  │            └──────────────── killed or failed here: kubeadm reset, from the start
//!                                  └───────────────────────────── killed before: from the start
//!  etcd's data, and neither mark ──► refused: they are of no attempt of this script
//! ```
//!
//! kubeadm's own files do not show an incomplete join. kubeadm fails on the first file that it wrote (the
//! kubelet's bootstrap configuration, then the CA) long before kubelet.conf exists. So the script records its
//! start, and resets only what it started itself.

use bedplate_api::configuration::Template;

use crate::field_error::{FieldError, FieldErrors, RenderKubeadmError};
use crate::{File, Rendered};

/// Name of the unit in the slot. `active (exited)` means that kubeadm and all commands have succeeded.
pub const NAME: &str = "bedplate-kubeadm.service";

/// Marker that exists while a run of kubeadm has started and not succeeded. It is next to kubeadm's files, so
/// that all are wiped together.
pub const ATTEMPT: &str = "/etc/kubernetes/.bedplate-attempt";

/// Marker that exists when kubeadm has succeeded. It is in the kubelet's state, which persists.
pub const JOINED: &str = "/var/lib/kubelet/.bedplate-joined";

/// Directory that exists while etcd has data. Without [`ATTEMPT`] and [`JOINED`] the script must not reset
/// it: a user has restored a cluster, or removed the marker.
pub const ETCD_DATA: &str = "/var/lib/etcd/member";

/// Marker that exists when the commands after kubeadm have succeeded too.
pub const FINISHED: &str = "/var/lib/kubelet/.bedplate-finished";

/// Output of all attempts. Older output is in the same directory with the suffix `.1`; it is rotated at 1
/// MiB.
pub const LOG: &str = "/var/log/bedplate/kubeadm.log";

/// Start of the line that the script logs first in each attempt. The log contains nothing else until a
/// command or kubeadm writes.
pub const STARTED: &str = "bedplate: started at ";

const SCRIPT: &str = "/etc/bedplate/kubeadm.sh";

/// A symbolic link in the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Absolute path in the slot.
    pub path: String,
    /// Target of the link.
    pub target: String,
}

/// Unit that runs kubeadm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The unit and its script.
    pub files: Vec<File>,
    /// The link that enables the unit.
    pub link: Link,
}

/// Renders the unit and the script that run `rendered` between the template's commands.
///
/// # Errors
/// A command that a shell cannot run.
pub fn render(rendered: &Rendered, template: &Template) -> Result<Unit, RenderKubeadmError> {
    let mut errors = FieldErrors::default();
    let commands = [
        ("preKubeadmCommands", &template.pre_kubeadm_commands),
        ("postKubeadmCommands", &template.post_kubeadm_commands),
    ];
    let [before, after] = commands.map(|(field, commands)| run_all(field, commands, &mut errors));
    let unit_path = format!("/etc/systemd/system/{NAME}");
    let files = vec![
        File { path: unit_path.clone(), mode: 0o644, content: unit() },
        File { path: SCRIPT.to_owned(), mode: 0o700, content: script(rendered, &before, &after) },
    ];
    let link =
        Link { path: format!("/etc/systemd/system/multi-user.target.wants/{NAME}"), target: unit_path };
    errors.or(Unit { files, link })
}

/// Renders one call for each command. Each runs in a separate shell, so that it cannot end or break the
/// script.
fn run_all(field: &str, commands: &[String], errors: &mut FieldErrors) -> String {
    let mut lines = String::new();
    for (number, command) in (1..).zip(commands) {
        if command.contains('\0') {
            errors.push(FieldError::InvalidField {
                field: format!("{field}[{}]", number - 1),
                expected: "must not hold a null character".to_owned(),
            });
        }
        lines += &format!("    run {field} {number} {}\n", quoted(command));
    }
    lines
}

/// One word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@+,%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn words<'a>(texts: impl IntoIterator<Item = &'a String>) -> String {
    texts.into_iter().map(|text| quoted(text)).collect::<Vec<_>>().join(" ")
}

fn unit() -> String {
    format!(
        "\
# Written by bedplate-agent: makes a Node of this slot, once.

[Unit]
Description=kubeadm makes a Node of this slot
# Any container runtime that the image has; the others do not matter. network-online.target is reached immediately unless
# a unit configures the network: a slot on the host's network has it already.
After=network-online.target containerd.service crio.service cri-docker.service
# The agent's health gate limits the time, instead of a number of starts.
StartLimitIntervalSec=0

[Service]
# Stays \"active (exited)\" after success, which the agent waits for. When the slot starts again, the script sees
# that the node has joined and exits immediately.
Type=oneshot
RemainAfterExit=yes
# Commands of a version expect HOME.
Environment=HOME=/root
ExecStart=/bin/sh {SCRIPT}
# An API server or a registry may be unavailable for a moment. The script resets the files of a failed attempt.
Restart=on-failure
RestartSec=5s
# Pulling the images of a control plane takes long. The health gate limits the time.
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
"
    )
}

/// Functions that every script starts with. `sync` makes a marker survive a power cut before the next step
/// relies on it.
const FUNCTIONS: &str = r#"
say() {
    printf 'bedplate: %s\n' "$*"
}

fail() {
    say "$1 failed with status $2; retrying"
    exit 1
}

# A mark is on disk before anything relies on it.
mark() {
    printf "" >"$1" || fail "writing $1" $?
    sync "$1" "${1%/*}" || fail "syncing $1" $?
}

# run FIELD NUMBER COMMAND. The command is not logged: it may have secrets, and the end of the log is in the status.
run() {
    say "$1 $2"
    /bin/sh -c "$3" </dev/null || fail "$1 $2" $?
}
"#;

fn script(rendered: &Rendered, before: &str, after: &str) -> String {
    let kubeadm = words(&rendered.command);
    let action = rendered.command.get(..2).unwrap_or_default().join(" ");
    let socket = quoted(&rendered.cri_socket);
    let remove = |paths: &[String], indent: &str| {
        if paths.is_empty() { String::new() } else { format!("{indent}rm -f {}\n", words(paths)) }
    };
    let leftovers = remove(&rendered.leftovers, "        ");
    let credentials = remove(&rendered.credentials, "");
    format!(
        r#"#!/bin/sh
# Written by bedplate-agent, run by {NAME}. It may be killed anywhere and is run again then.
set -u

attempt={ATTEMPT}
joined={JOINED}
finished={FINISHED}
etcd={ETCD_DATA}
log={LOG}
{FUNCTIONS}
# The output of all attempts, at most two files of a MiB or one attempt each.
mkdir -p "${{log%/*}}" "${{attempt%/*}}" "${{joined%/*}}"
if [ -f "$log" ] && [ "$(wc -c <"$log")" -gt 1048576 ]; then
    mv -f "$log" "$log.1"
fi
if (umask 077 && : >>"$log"); then
    exec >>"$log" 2>&1
else
    say "cannot write $log"
fi
say "started at $(date -u +%Y-%m-%dT%H:%M:%SZ)"

if [ ! -e "$joined" ]; then
    if [ -e "$attempt" ]; then
        say "an attempt failed; resetting its files"
        # An empty directory instead of /etc/kubernetes/pki, because the reset would delete certificates of the version.
        mkdir -p /run/bedplate/no-certificates
        kubeadm reset --force --cri-socket {socket} --cert-dir /run/bedplate/no-certificates ||
            fail "kubeadm reset" $?
{leftovers}        rm -f "$attempt"
    elif [ -e "$etcd" ]; then
        # A restored cluster, or one whose mark was removed. kubeadm would fail on it, and the next reset would delete it.
        say "$etcd existed before kubeadm ran; kubeadm is not started. To keep that cluster: touch $joined; to start without it: remove $etcd"
        exit 1
    fi
{before}    mark "$attempt"
    {kubeadm} </dev/null || fail "{action}" $?
    mark "$joined"
fi
# Credentials of the join. The mark of the attempt is removed last, so that no reset can follow a success.
{credentials}rm -f "$attempt"

if [ ! -e "$finished" ]; then
{after}    mark "$finished"
fi
say "done"
"#
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::configuration::tests::golden;

    fn rendered() -> Rendered {
        Rendered {
            files: Vec::new(),
            command: ["kubeadm", "join", "--config", "/run/bedplate/kubeadm.yaml"]
                .map(str::to_owned)
                .to_vec(),
            node_annotations: std::collections::BTreeMap::new(),
            credentials: vec!["/run/bedplate/kubeconfig".to_owned()],
            leftovers: vec!["/etc/kubernetes/pki/ca.crt".to_owned()],
            cri_socket: "unix:///run/containerd/containerd.sock".to_owned(),
        }
    }

    fn template(before: &[&str], after: &[&str]) -> Template {
        serde_json::from_value(json!({
            "image": {"reference": "r"}, "kubernetes": {"version": "v1.34.4"},
            "preKubeadmCommands": before, "postKubeadmCommands": after,
        }))
        .unwrap()
    }

    #[test]
    fn unit_and_script_equal_their_goldens() {
        let template = template(&["modprobe br_netfilter", "echo 'it''s'\nexit 0"], &["touch /etc/ready"]);
        let unit = render(&rendered(), &template).unwrap();
        let says = format!("say \"{}$(date", STARTED.trim_start_matches("bedplate: "));
        assert!(unit.files[1].content.contains(&says), "{says}");
        golden(NAME, &unit.files[0].content);
        golden("kubeadm-join.sh", &unit.files[1].content);
        assert_eq!((unit.files[0].mode, unit.files[1].mode), (0o644, 0o700));
        let init = Rendered {
            command: ["kubeadm", "init", "--config", "/run/bedplate/kubeadm.yaml", "--upload-certs"]
                .map(str::to_owned)
                .to_vec(),
            credentials: Vec::new(),
            leftovers: Vec::new(),
            ..rendered()
        };
        let unit = render(&init, &self::template(&[], &[])).unwrap();
        golden("kubeadm-init.sh", &unit.files[1].content);
    }

    #[test]
    fn a_command_is_logged_by_field_and_number_and_never_by_its_text() {
        let directory = tempfile::tempdir().unwrap();
        let script = format!("set -u\n{FUNCTIONS}\nrun preKubeadmCommands 1 'exit 3; : correct-horse'\n");
        let path = directory.path().join("run.sh");
        std::fs::write(&path, script).unwrap();
        let ran = std::process::Command::new("/bin/sh").arg(&path).output().unwrap();
        let said = String::from_utf8(ran.stdout).unwrap();
        assert!(!said.contains("correct-horse"), "{said}");
        assert!(said.contains("preKubeadmCommands 1 failed with status 3"), "{said}");
    }

    #[test]
    fn command_is_one_word_whatever_it_holds() {
        assert_eq!(quoted("unix:///run/x.sock"), "unix:///run/x.sock");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a'b\n$(c) \\"), "'a'\\''b\n$(c) \\'");
    }

    #[test]
    fn command_with_a_null_character_is_refused() {
        let said = render(&rendered(), &template(&[], &["a", "b\0"])).unwrap_err().to_string();
        assert_eq!(said, "postKubeadmCommands[1] must not hold a null character");
    }
}
