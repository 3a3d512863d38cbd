//! The script that runs kubeadm in a slot. After a kill at any point of its work, the next run succeeds, and
//! a node that has joined is never reset.
//!
//! The script is the rendered one with its folders below a temporary directory. kubeadm is a stand-in that
//! fails on files of an earlier run, like the real one. Every program that the script starts is a point where
//! the power may fail: the script and the program are then killed together.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_api::configuration::Template;
use bedplate_bootstrap::{Discovery, InitInput, Input, JOIN_KUBECONFIG, init, join, unit};
use serde_json::json;

/// Counts a point of work; at the chosen one script and program are killed.
const POINT: &str = r#"
point() {
    count=$(($(cat "$ROOT/count") + 1))
    echo $count >"$ROOT/count"
    if [ $count = "$KILL_AT" ]; then
        kill -9 "$(cat "$ROOT/pid")" $$
    fi
}
"#;

/// Stand-in that works like the real kubeadm: the preflight check refuses existing files, and kubeadm join
/// writes files in the same order.
const KUBEADM: &str = r#"
etc=$ROOT/etc/kubernetes
kubelet=$ROOT/var/lib/kubelet
etcd=$ROOT/var/lib/etcd
echo "$1" >>"$ROOT/events"
echo "stand-in: $*"
point
case $1 in
join)
    for file in "$etc/kubelet.conf" "$etc/bootstrap-kubelet.conf" "$etc/pki/ca.crt"; do
        if [ -e "$file" ]; then
            echo "preflight: $file already exists"
            exit 1
        fi
    done
    [ -e "$ROOT/run/bedplate/kubeconfig" ] || exit 1
    mkdir -p "$etc/pki"
    for file in "$etc/bootstrap-kubelet.conf" "$etc/pki/ca.crt" "$kubelet/config.yaml" "$etc/kubelet.conf"; do
        echo written >"$file"
        point
    done
    rm "$etc/bootstrap-kubelet.conf"
    if [ -e "$ROOT/refuse" ]; then
        rm "$ROOT/refuse"
        exit 1
    fi
    echo joined >>"$ROOT/events"
    ;;
init)
    for file in "$etc/kubelet.conf" "$etcd/member"; do
        if [ -e "$file" ]; then
            echo "preflight: $file already exists"
            exit 1
        fi
    done
    echo written >"$etc/kubelet.conf"
    point
    mkdir -p "$etcd/member"
    point
    echo joined >>"$ROOT/events"
    ;;
reset)
    [ "$2 $3 $5" = "--force --cri-socket --cert-dir" ] || exit 1
    find "$kubelet" -mindepth 1 -delete
    point
    find "$6" -mindepth 1 -delete
    find "$etcd" -mindepth 1 -delete
    rm -f "$etc/kubelet.conf" "$etc/bootstrap-kubelet.conf"
    ;;
esac
"#;

/// A slot's folders with a rendered script.
struct Slot {
    root: tempfile::TempDir,
}

/// Result of one run of the script.
#[derive(Debug, PartialEq, Eq)]
enum Run {
    Succeeded,
    Failed,
    Killed,
}

impl Slot {
    /// Creates the slot of a worker.
    fn new(before: &[&str], after: &[&str]) -> Self {
        Self::of("Worker", before, after)
    }

    /// Creates the slot of a control plane that creates the cluster.
    fn first() -> Self {
        Self::of("ControlPlane", &["pre"], &["post"])
    }

    fn of(role: &str, before: &[&str], after: &[&str]) -> Self {
        let slot = Self { root: tempfile::tempdir().unwrap() };
        for folder in ["bin", "etc/kubernetes/pki", "var/lib/kubelet", "var/lib/etcd", "run/bedplate"] {
            fs::create_dir_all(slot.path(folder)).unwrap();
        }
        fs::write(slot.path("etc/kubernetes/pki/version.crt"), "brought by the version").unwrap();
        fs::write(slot.path("events"), "").unwrap();
        slot.restart();
        slot.program("kubeadm", KUBEADM);
        slot.program("pre", "point\necho pre >>\"$ROOT/events\"");
        slot.program("post", "point\necho post >>\"$ROOT/events\"");
        // A kill after the work is the same as a kill before the next program.
        for name in ["rm", "mkdir", "mv", "wc", "date"] {
            slot.program(name, &format!("point\nexec {name} \"$@\""));
        }
        // Nothing here outlasts the kernel.
        slot.program("sync", "point");
        fs::write(slot.path("script"), slot.script(role, before, after)).unwrap();
        slot
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{POINT}\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn script(&self, role: &str, before: &[&str], after: &[&str]) -> String {
        let template: Template = serde_json::from_value(json!({
            "image": {"reference": "r"}, "kubernetes": {"version": "v1.34.4", "role": role},
            "preKubeadmCommands": before, "postKubeadmCommands": after,
        }))
        .unwrap();
        let (node_name, provider_id) = (&"server-1".parse().unwrap(), "bedplate://server-1");
        let (kubernetes, cri_socket) = (&template.kubernetes, "/run/containerd/containerd.sock");
        let discovery = Discovery::File { kubeconfig_path: JOIN_KUBECONFIG };
        let rendered = if role == "Worker" {
            join(&Input { node_name, provider_id, kubernetes, cri_socket, discovery }).unwrap()
        } else {
            init(&InitInput { node_name, provider_id, kubernetes, cri_socket }).unwrap()
        };
        let unit = unit::render(&rendered, &template).unwrap();
        let mut script = unit.files[1].content.clone();
        for folder in
            ["/etc/kubernetes", "/var/lib/kubelet", "/var/lib/etcd", "/run/bedplate", "/var/log/bedplate"]
        {
            script = script.replace(folder, &format!("{}{folder}", self.root.path().display()));
        }
        script
    }

    /// Simulates a reboot of the host: files in memory are rendered again.
    fn restart(&self) {
        fs::write(self.path("run/bedplate/kubeconfig"), "key").unwrap();
    }

    /// Runs the script, killed at this point of its work (from 1), or never (0).
    fn run(&self, kill_at: usize) -> Run {
        fs::write(self.path("count"), "0").unwrap();
        let status = Command::new("/bin/sh")
            .args(["-c", "echo $$ >\"$ROOT/pid\"; exec /bin/sh \"$ROOT/script\""])
            .env("ROOT", self.root.path())
            .env("KILL_AT", kill_at.to_string())
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()))
            .output()
            .unwrap()
            .status;
        match status.code() {
            Some(0) => Run::Succeeded,
            Some(_) => Run::Failed,
            None => Run::Killed,
        }
    }

    fn events(&self) -> Vec<String> {
        fs::read_to_string(self.path("events")).unwrap().lines().map(str::to_owned).collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("var/log/bedplate/kubeadm.log")).unwrap()
    }

    /// Checks the state after a successful run, for any history before it.
    fn assert_joined(&self, story: &str) {
        let events = self.events();
        let there = |name: &str| self.path(name).exists();
        assert!(there("var/lib/kubelet/.bedplate-joined"), "{story}: {events:?}");
        assert!(there("var/lib/kubelet/.bedplate-finished"), "{story}: {events:?}");
        assert!(there("etc/kubernetes/kubelet.conf"), "{story}: {events:?}");
        assert!(there("etc/kubernetes/pki/version.crt"), "{story}: a file of the version is gone");
        assert!(!there("etc/kubernetes/.bedplate-attempt"), "{story}: {events:?}");
        assert!(!there("run/bedplate/kubeconfig"), "{story}: the credential is still there");
        let last = |name: &str| events.iter().rposition(|event| event == name);
        assert!(last("joined") > last("reset"), "{story}: {events:?}");
        assert!(last("post") > last("joined"), "{story}: {events:?}");
        // Each run of kubeadm has had its commands before it.
        for (index, _) in events.iter().enumerate().filter(|(_, event)| *event == "join") {
            assert_eq!(events[index - 1], "pre", "{story}: {events:?}");
        }
    }
}

#[test]
fn script_killed_anywhere_ends_well_at_the_next_run() {
    let mut points = 0;
    for kill_at in 1.. {
        let slot = Slot::new(&["pre"], &["post"]);
        let run = slot.run(kill_at);
        if run == Run::Killed {
            slot.restart();
            assert_eq!(slot.run(0), Run::Succeeded, "killed at {kill_at}: {}", slot.log());
        }
        slot.assert_joined(&format!("killed at {kill_at}"));
        if run == Run::Succeeded {
            break;
        }
        points = kill_at;
    }
    assert!(points > 12, "only {points} points: the stand-ins are not called");
}

#[test]
fn script_killed_again_while_it_takes_an_attempt_back_ends_well() {
    // Number of the kill within kubeadm join: the bootstrap configuration and the CA are written,
    // kubelet.conf is not.
    let within = (1..100).find(|at| {
        let slot = Slot::new(&["pre"], &["post"]);
        slot.run(*at) == Run::Killed && slot.path("etc/kubernetes/pki/ca.crt").exists()
    });
    for again in 1.. {
        let slot = Slot::new(&["pre"], &["post"]);
        assert_eq!(slot.run(within.unwrap()), Run::Killed);
        assert!(!slot.path("etc/kubernetes/kubelet.conf").exists());
        slot.restart();
        let run = slot.run(again);
        if run == Run::Killed {
            slot.restart();
            assert_eq!(slot.run(0), Run::Succeeded, "killed again at {again}: {}", slot.log());
        }
        slot.assert_joined(&format!("killed again at {again}"));
        if run == Run::Succeeded {
            break;
        }
    }
}

#[test]
fn node_that_has_joined_is_left_alone_at_every_later_start() {
    let slot = Slot::new(&["pre"], &["post"]);
    assert_eq!(slot.run(0), Run::Succeeded, "{}", slot.log());
    let events = slot.events();
    assert_eq!(events, ["pre", "join", "joined", "post"]);
    slot.restart();
    assert_eq!(slot.run(0), Run::Succeeded);
    assert_eq!(slot.events(), events);
    slot.assert_joined("started again");
}

#[test]
fn failed_join_is_taken_back_before_the_next() {
    let slot = Slot::new(&["pre"], &["post"]);
    fs::write(slot.path("refuse"), "").unwrap();
    assert_eq!(slot.run(0), Run::Failed);
    assert!(slot.log().contains("kubeadm join failed with status 1"), "{}", slot.log());
    assert!(slot.path("run/bedplate/kubeconfig").exists(), "the next attempt needs it");
    assert_eq!(slot.run(0), Run::Succeeded, "{}", slot.log());
    assert_eq!(slot.events(), ["pre", "join", "reset", "pre", "join", "joined", "post"]);
    slot.assert_joined("failed once");
}

#[test]
fn cluster_without_its_marker_is_not_reset_and_continues_with_it() {
    let slot = Slot::first();
    assert_eq!(slot.run(0), Run::Succeeded, "{}", slot.log());
    let events = slot.events();
    fs::remove_dir_all(slot.path("var/lib/kubelet")).unwrap();
    for _ in 0..2 {
        slot.restart();
        assert_eq!(slot.run(0), Run::Failed);
        assert_eq!(slot.events(), events, "{}", slot.log());
        assert!(slot.path("var/lib/etcd/member").exists());
        assert!(!slot.path("etc/kubernetes/.bedplate-attempt").exists(), "the next run would reset");
    }
    let last = slot.log().lines().last().unwrap().to_owned();
    assert!(last.contains("kubeadm is not started") && last.contains(".bedplate-joined"), "{last}");
    fs::write(slot.path("var/lib/kubelet/.bedplate-joined"), "").unwrap();
    assert_eq!(slot.run(0), Run::Succeeded, "{}", slot.log());
    assert_eq!(slot.events()[events.len()..], ["post"]);
}

#[test]
fn cluster_that_was_restored_into_a_fresh_slot_is_not_reset() {
    let slot = Slot::first();
    fs::create_dir_all(slot.path("var/lib/etcd/member")).unwrap();
    assert_eq!((slot.run(0), slot.run(0)), (Run::Failed, Run::Failed));
    assert_eq!(slot.events(), [""; 0]);
    fs::remove_dir_all(slot.path("var/lib/etcd/member")).unwrap();
    assert_eq!(slot.run(0), Run::Succeeded, "{}", slot.log());
}

#[test]
fn killed_first_control_plane_resets_its_etcd_and_creates_the_cluster() {
    for kill_at in 1.. {
        let slot = Slot::first();
        let run = slot.run(kill_at);
        if run == Run::Killed {
            slot.restart();
            assert_eq!(slot.run(0), Run::Succeeded, "killed at {kill_at}: {}", slot.log());
        }
        assert!(slot.path("var/lib/etcd/member").exists(), "killed at {kill_at}");
        assert!(slot.path("var/lib/kubelet/.bedplate-joined").exists(), "killed at {kill_at}");
        if run == Run::Succeeded {
            assert!(kill_at > 10, "only {kill_at} points");
            break;
        }
    }
}

#[test]
fn command_before_kubeadm_that_fails_ends_the_attempt() {
    let slot = Slot::new(&["echo one; exit 3", "pre"], &["post"]);
    assert_eq!(slot.run(0), Run::Failed);
    assert_eq!(slot.events(), [""; 0]);
    let log = slot.log();
    assert!(log.contains("one\nbedplate: preKubeadmCommands 1 failed with status 3"), "{log}");
}

#[test]
fn command_after_kubeadm_that_fails_does_not_undo_the_join() {
    let slot = Slot::new(&["pre"], &["post", "test -e \"$ROOT/allowed\""]);
    assert_eq!(slot.run(0), Run::Failed);
    assert!(!slot.path("run/bedplate/kubeconfig").exists(), "kubeadm has succeeded");
    fs::write(slot.path("allowed"), "").unwrap();
    assert_eq!(slot.run(0), Run::Succeeded, "{}", slot.log());
    assert_eq!(slot.events(), ["pre", "join", "joined", "post", "post"]);
}

#[test]
fn command_of_any_text_is_one_command() {
    let odd = "printf '%s' \"it's \\$HOME\" >\"$ROOT/odd\"\nexit 0\n";
    let slot = Slot::new(&[odd, "pre"], &["post"]);
    assert_eq!(slot.run(0), Run::Succeeded, "{}", slot.log());
    assert_eq!(fs::read_to_string(slot.path("odd")).unwrap(), "it's $HOME");
}

#[test]
fn log_is_bounded_and_roots_alone() {
    let slot = Slot::new(&["pre"], &["post"]);
    let log = slot.path("var/log/bedplate/kubeadm.log");
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    fs::write(&log, "x".repeat(1 << 21)).unwrap();
    assert_eq!(slot.run(0), Run::Succeeded);
    assert!(fs::metadata(&log).unwrap().len() < 1 << 20);
    assert_eq!(fs::metadata(log.with_extension("log.1")).unwrap().len(), 1 << 21);
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn scripts_are_understood_by_the_shell() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens");
    for name in ["kubeadm-join.sh", "kubeadm-init.sh"] {
        let output = Command::new("/bin/sh").arg("-n").arg(goldens.join(name)).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
