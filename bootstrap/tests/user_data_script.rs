//! The scripts that run user data in a slot: once, in order, with the failures of cloud-init, and without content on disk.
//!
//! The scripts are the rendered ones with their directories below a temporary directory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use bedplate_bootstrap::jinja::Facts;
use bedplate_bootstrap::user_data::{
    DIRECTORY, FINISHED, LOG, SCRIPT, SENTINEL, STARTED, Unsupported, UserData, plan_user_data,
};

const FACTS: Facts<'static> = Facts {
    provider_id: "bedplate://rack-1/6f9c",
    node_name: "md-0-x2x",
    local_hostname: "md-0-x2x.example",
    instance_id: "6f9c",
    platform: "bedplate",
};

struct Slot {
    root: tempfile::TempDir,
}

impl Slot {
    /// Fills a slot. The data names its own directory as `@`.
    fn new(config: &str) -> Self {
        let slot = Self { root: tempfile::tempdir().unwrap() };
        let config =
            format!("#cloud-config\n{}", config.replace('@', &slot.path("/srv").display().to_string()));
        let data = UserData { value: config.as_bytes(), format: None };
        let plan = plan_user_data(data, &FACTS, Unsupported::Refuse).unwrap().plan;
        let rendered = plan.render();
        fs::create_dir_all(slot.path("/srv")).unwrap();
        fs::create_dir_all(slot.path(SENTINEL).parent().unwrap()).unwrap();
        for file in rendered.files.iter().chain(&rendered.memory) {
            let text = String::from_utf8(file.content.to_vec()).unwrap();
            let path = slot.path(&file.path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, slot.moved(&text)).unwrap();
        }
        slot
    }

    /// Returns the text with the directories of a slot below the temporary one.
    fn moved(&self, text: &str) -> String {
        let below =
            ["/run/bedplate", "/run/cluster-api", "/etc/bedplate", "/var/lib/bedplate", "/var/log/bedplate"];
        below.iter().fold(text.to_owned(), |text, folder| {
            text.replace(folder, &format!("{}{folder}", self.root.path().display()))
        })
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Returns true if the script succeeded.
    fn run(&self) -> bool {
        Command::new("/bin/sh").arg(self.path(SCRIPT)).current_dir("/").output().unwrap().status.success()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    fn log(&self) -> String {
        self.read(LOG)
    }
}

const ORDER: &str = "\
bootcmd: [echo \"bootcmd $INSTANCE_ID\" >>@/order]
write_files:
- {path: @/late, defer: true, content: late, owner: none}
- {path: @/early, content: early, owner: none}
runcmd: [cat @/early @/late >>@/order, pwd >>@/order]
";

#[test]
fn user_data_runs_once_and_bootcmd_at_every_start() {
    let slot = Slot::new(ORDER);
    assert!(slot.run(), "{}", slot.log());
    assert_eq!(slot.read("/srv/order"), "bootcmd 6f9c\nearlylate/\n");
    assert!(slot.path(FINISHED).exists());
    assert!(slot.run(), "{}", slot.log());
    assert_eq!(slot.read("/srv/order"), "bootcmd 6f9c\nearlylate/\nbootcmd 6f9c\n");
}

#[test]
fn content_leaves_the_memory_after_success_and_is_never_in_the_log() {
    let slot = Slot::new(ORDER);
    assert!(slot.run(), "{}", slot.log());
    assert!(!slot.path(DIRECTORY).exists());
    let log: Vec<String> = slot.log().lines().skip(1).map(str::to_owned).collect();
    assert_eq!(
        log,
        ["bootcmd", "write_files[1]", "write_files[0]", "runcmd", "done"]
            .map(|step| format!("bedplate: {step}"))
    );
    assert!(!slot.read(SCRIPT).contains("early"));
}

/// A part of `runcmd` may have run, and it is not idempotent.
#[test]
fn interrupted_run_is_never_repeated() {
    let slot = Slot::new(ORDER);
    fs::create_dir_all(slot.path(STARTED).parent().unwrap()).unwrap();
    fs::write(slot.path(STARTED), "").unwrap();
    assert!(!slot.run() && !slot.run());
    assert_eq!(slot.read("/srv/order"), "");
    assert!(
        slot.log().ends_with("bedplate: an earlier run was interrupted; it is not repeated\n"),
        "{}",
        slot.log()
    );
    for config in ["runcmd: [kill -9 $PPID; exit 1]\n", "bootcmd: [kill -9 $PPID]\n"] {
        let slot = Slot::new(config);
        assert!(!slot.run());
        assert!(slot.path(STARTED).exists() && !slot.path(FINISHED).exists(), "{config}");
        assert!(!slot.run());
    }
}

#[test]
fn nothing_runs_if_the_memory_has_no_steps() {
    let slot = Slot::new(ORDER);
    fs::remove_dir_all(slot.path(DIRECTORY)).unwrap();
    assert!(!slot.run());
    assert!(!slot.path(STARTED).exists() && slot.read("/srv/order").is_empty(), "{}", slot.log());
}

#[test]
fn sentinel_that_is_named_must_be_there_at_the_end() {
    let slot = Slot::new(&format!("runcmd: [\"false && echo success > {SENTINEL}\", 'true']\n"));
    assert!(!slot.run());
    assert!(slot.log().contains("runcmd ended without"), "{}", slot.log());
    assert!(!slot.path(FINISHED).exists());
    let slot = Slot::new(&format!("runcmd: [\"true && echo success > {SENTINEL}\", 'true']\n"));
    assert!(slot.run(), "{}", slot.log());
}

#[test]
fn last_command_decides_about_runcmd_and_a_failing_one_does_not_end_it() {
    let slot = Slot::new("runcmd: ['false', [no-such-program], echo on >>@/order]\n");
    assert!(slot.run(), "{}", slot.log());
    assert_eq!(slot.read("/srv/order"), "on\n");
    let slot = Slot::new("runcmd: [echo on >>@/order, 'false']\n");
    assert!(!slot.run());
    assert!(slot.log().ends_with("bedplate: runcmd failed with status 1\n"), "{}", slot.log());
    let slot = Slot::new("runcmd: [exit 0, 'false']\n");
    assert!(slot.run(), "{}", slot.log());
}

#[test]
fn failing_bootcmd_ends_nothing() {
    let slot = Slot::new("bootcmd: [exit 7]\nruncmd: [echo on >>@/order]\n");
    assert!(slot.run(), "{}", slot.log());
    assert_eq!(slot.read("/srv/order"), "on\n");
    assert!(slot.log().contains("bedplate: bootcmd ended with status 7\n"), "{}", slot.log());
}

#[test]
fn first_file_that_fails_ends_the_run() {
    let slot = Slot::new(
        "write_files:\n- {path: @/order/a, owner: none}\n- {path: @/b, owner: none}\nruncmd: [touch @/ran]\nbootcmd: [touch @/order]\n",
    );
    assert!(!slot.run());
    assert!(slot.log().ends_with("bedplate: write_files[0] failed with status 1\n"), "{}", slot.log());
    assert!(!slot.path("/srv/b").exists() && !slot.path("/srv/ran").exists());
    assert!(slot.path(DIRECTORY).exists());
}

#[test]
fn files_are_replaced_or_appended_and_get_their_mode() {
    let slot = Slot::new(
        "write_files:\n- {path: '@/a b', content: new, owner: none, permissions: '4711'}\n- {path: @/x/y/c, content: more, append: true, owner: none}\n- {path: @/x/y/c, content: more, append: true, owner: none, permissions: '0600'}\n",
    );
    fs::write(slot.path("/srv/a b"), "something longer").unwrap();
    assert!(slot.run(), "{}", slot.log());
    let mode = |path: &str| fs::metadata(slot.path(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((slot.read("/srv/a b").as_str(), mode("/srv/a b")), ("new", 0o4711));
    assert_eq!((slot.read("/srv/x/y/c").as_str(), mode("/srv/x/y/c")), ("moremore", 0o600));
    assert_eq!(mode("/srv/x/y"), 0o755);
}

#[test]
fn data_with_users_runs_nothing_in_an_image_without_their_programs() {
    let slot = Slot::new("users: [a]\nbootcmd: [touch @/ran]\n");
    let script = slot.read(SCRIPT).replace("for program in useradd", "for program in no-such-program");
    fs::write(slot.path(SCRIPT), script).unwrap();
    assert!(!slot.run());
    assert!(
        slot.log().ends_with("users: the node image has no no-such-program; nothing was run\n"),
        "{}",
        slot.log()
    );
    assert!(!slot.path("/srv/ran").exists() && !slot.path(STARTED).exists());
}

#[test]
fn scripts_have_no_errors_of_syntax() {
    let slot = Slot::new(
        "users: [{name: a, passwd: x, sudo: y, ssh_authorized_keys: z, groups: b, shell: /bin/sh}]\nruncmd: [a]\n",
    );
    for script in [SCRIPT, "/run/bedplate/user-data/steps.sh"] {
        let output = Command::new("/bin/sh").arg("-n").arg(slot.path(script)).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{script}: {output:?}");
    }
}
