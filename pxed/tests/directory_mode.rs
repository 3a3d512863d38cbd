//! pxed as a process in directory mode, on loopback, DHCP off: errors, reload, broken manifests, kill -9, drain, the
//! watchdog, a cluster that does not exist yet, a host that becomes a node (`node`), and examples of the documents
//! (`documents`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "directory_mode/documents.rs"]
mod documents;
#[path = "directory_mode/node.rs"]
mod node;

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const A: &str = "52:54:00:00:00:0a";
const B: &str = "52:54:00:00:00:0b";

/// Timeout for reaching a state; builds may run on the same machine concurrently.
const DEADLINE: Duration = Duration::from_secs(60);

struct Pxed {
    directory: tempfile::TempDir,
    child: Option<Child>,
}

fn manifest(name: &str, mac: &str) -> String {
    format!(
        "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata:\n  name: {name}\nspec:\n  provider: pxe\n  pxe:\n    \
         interfaces:\n    - macAddress: \"{mac}\"\n"
    )
}

impl Pxed {
    /// A pxed with one image and no Machine; not started.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("machines.d")).unwrap();
        for file in ["kernel", "initrd"] {
            std::fs::write(directory.path().join(file), vec![1; 4096]).unwrap();
        }
        let pxed = Self { directory, child: None };
        pxed.configure("");
        pxed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration, with `more` at its end.
    fn configure(&self, more: &str) {
        let at = |name: &str| self.path(name).display().to_string();
        let text = format!(
            "state-directory = \"{}\"\nsocket = \"{}\"\ndefault-image = \"host\"\n[source]\ndirectory = \"{}\"\n[dhcp]\nmode = \
             \"off\"\n[tftp]\nlisten = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n[https]\nlisten = \
             \"127.0.0.1:0\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n[images.host]\nkernel = \"{}\"\ninitrd = \
             \"{}\"\n{more}",
            at("state"),
            at("pxed.sock"),
            at("machines.d"),
            at("kernel"),
            at("initrd"),
        );
        std::fs::write(self.path("pxed.toml"), text).unwrap();
    }

    fn write(&self, file: &str, text: &str) {
        // As editors do: whole or not at all.
        let temporary = self.path("machines.d/.new");
        std::fs::write(&temporary, text).unwrap();
        std::fs::rename(temporary, self.path("machines.d").join(file)).unwrap();
    }

    fn start(&mut self) {
        self.start_under(&[]);
    }

    /// Starts it with these variables in its environment.
    fn start_under(&mut self, environment: &[(&str, &str)]) {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_pxed"))
            .args(["run", "--log-format", "text", "--config"])
            .arg(self.path("pxed.toml"))
            .env_remove("BEDPLATE_LOG")
            .env_remove("NOTIFY_SOCKET")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        self.until("the socket answers", || self.try_get("/v1/status").is_some());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("started");
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("started");
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "pxed does not end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn try_get(&self, path: &str) -> Option<Value> {
        get(&self.path("pxed.sock"), path)
    }

    fn machines(&self) -> Vec<String> {
        let list = self.try_get("/v1/machines").unwrap_or_default();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|m| m["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    fn status(&self) -> Value {
        self.try_get("/v1/status").unwrap_or_default()
    }

    fn reasons(&self) -> String {
        self.status()["reasons"].to_string()
    }

    fn until(&self, what: &str, state: impl Fn() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !state() {
            assert!(Instant::now() < deadline, "not reached: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Pxed {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn get(socket: &Path, path: &str) -> Option<Value> {
    ask(socket, "GET", path)
}

fn ask(socket: &Path, method: &str, path: &str) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let length = "Content-Length: 0\r\n";
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\n{length}\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

fn check(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pxed")).args(arguments).env_clear().output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said)
}

#[test]
fn configuration_with_errors_exits_with_64_and_lists_all() {
    let pxed = Pxed::new();
    let file = pxed.path("pxed.toml");
    let file = file.to_str().unwrap();
    assert_eq!(check(&["check", "--config", file]).0, Some(0));
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, text.replace("\"off\"", "\"of\"").replace("default-image", "defualt-image"))
        .unwrap();
    for arguments in [&["check", "--config", file][..], &["run", "--config", file], &["--config", file]] {
        let (code, said) = check(arguments);
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("pxed: 2 errors in the configuration"), "{said}");
        assert!(
            said.contains(&format!("{file}:3: defualt-image: is not a known key; did you mean")),
            "{said}"
        );
        assert!(
            said.contains("dhcp.mode: \"of\" is not one of server, proxy or off; did you mean \"off\"?"),
            "{said}"
        );
    }
    assert_eq!(check(&["run", "--config", "/nonexistent/pxed.toml"]).0, Some(64));
    assert_eq!(check(&["--no-such-flag"]).0, Some(64));
    assert_eq!(check(&["--help"]).0, Some(0));
}

#[test]
fn machines_are_known_ready_and_gone_with_their_files() {
    let mut pxed = Pxed::new();
    pxed.write("a.yaml", &manifest("a", A));
    pxed.start();
    pxed.until("a is known", || pxed.machines() == ["a"]);
    pxed.until("ready", || pxed.status()["ready"] == true);
    assert!(pxed.reasons().contains("1 of 1 machines can boot"), "{}", pxed.reasons());
    pxed.write("b.json", &manifest("b", A));
    pxed.until("both claim the address", || pxed.machines() == ["a", "b"] && pxed.status()["ready"] == false);
    for (one, other) in [("a", "b"), ("b", "a")] {
        pxed.until("the condition is there", || {
            let machine = pxed.try_get(&format!("/v1/machines/{one}")).unwrap_or_default();
            let conditions = machine["status"]["conditions"].to_string();
            conditions.contains("DuplicateMACAddress") && conditions.contains(&format!("claimed by {other}"))
        });
    }
    std::fs::remove_file(pxed.path("machines.d/b.json")).unwrap();
    pxed.until("a is alone again", || pxed.machines() == ["a"] && pxed.status()["ready"] == true);
    pxed.signal(Signal::SIGTERM);
    assert_eq!(pxed.wait().code(), Some(0), "{}", pxed.log());
    assert!(!pxed.path("pxed.sock").exists());
}

#[test]
fn broken_manifest_keeps_last_good_content_over_kill_and_restart() {
    let mut pxed = Pxed::new();
    pxed.write("a.yaml", &manifest("a", A));
    pxed.write("b.yaml", &manifest("b", B));
    pxed.start();
    pxed.until("both are known", || pxed.machines() == ["a", "b"]);
    pxed.write("a.yaml", &manifest("a", "53:54:00:00:00:0a"));
    pxed.write("b.yaml", &manifest("c", B));
    pxed.until("b became c, a stays", || pxed.machines() == ["a", "c"]);
    pxed.until("the error is named", || {
        let reasons = pxed.reasons();
        reasons.contains("a.yaml:9: spec.pxe.interfaces[0].macAddress")
            && reasons.contains("last valid content")
    });
    for round in ["kill -9", "again"] {
        pxed.signal(Signal::SIGKILL);
        pxed.wait();
        pxed.start();
        pxed.until("the directory was read", || pxed.status()["source"]["synced"] == true);
        assert_eq!(pxed.machines(), ["a", "c"], "{round}: {}", pxed.log());
    }
    let machine = pxed.try_get("/v1/machines/a").unwrap();
    assert_eq!(machine["spec"]["pxe"]["interfaces"][0]["macAddress"], A);
}

#[test]
fn machines_and_statuses_survive_a_kill_while_directory_is_missing() {
    let mut pxed = Pxed::new();
    pxed.write("a.yaml", &format!("{}---\n{}", manifest("a", A), manifest("b", A)));
    pxed.start();
    let condition = |pxed: &Pxed| {
        let machine = pxed.try_get("/v1/machines/a").unwrap_or_default();
        let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "Booted").unwrap_or_default()
    };
    pxed.until("the status is there", || condition(&pxed)["reason"] == "DuplicateMACAddress");
    let before = condition(&pxed);
    // All that was there before this question.
    pxed.until("the status is on disk", || pxed.status()["statusWrites"]["waiting"] == 0);
    pxed.signal(Signal::SIGKILL);
    pxed.wait();
    std::fs::rename(pxed.path("machines.d"), pxed.path("away")).unwrap();
    pxed.start();
    assert_eq!(pxed.machines(), ["a", "b"]);
    assert_eq!(condition(&pxed), before);
    pxed.until("it says why", || pxed.reasons().contains("serving the stored machines"));
    std::fs::rename(pxed.path("away"), pxed.path("machines.d")).unwrap();
    pxed.until("the directory is read again", || pxed.status()["source"]["synced"] == true);
}

#[test]
fn a_reload_takes_on_what_it_can_names_the_rest_and_refuses_a_bad_file() {
    let mut pxed = Pxed::new();
    pxed.write("a.yaml", &(manifest("a", A).replace("  pxe:\n", "  pxe:\n    image: {name: second}\n")));
    pxed.start();
    pxed.until("its image is unknown", || {
        pxed.reasons().contains("image second is not in the configuration")
    });
    pxed.configure("[images.second]\nlayuot = \"/x\"\n");
    pxed.signal(Signal::SIGHUP);
    pxed.until("the bad file is refused", || {
        pxed.log().contains("keeping the current one") && pxed.log().contains("did you mean \\\"layout\\\"?")
            || pxed.log().contains("did you mean \"layout\"?")
    });
    assert!(pxed.reasons().contains("image second is not in the configuration"));
    let (kernel, initrd) = (pxed.path("kernel"), pxed.path("initrd"));
    pxed.configure(&format!(
        "[images.second]\nkernel = \"{}\"\ninitrd = \"{}\"\n[limits]\ndiscovered-machines = 7\n",
        kernel.display(),
        initrd.display()
    ));
    pxed.signal(Signal::SIGHUP);
    pxed.until("the image is there", || pxed.reasons().contains("1 of 1 machines can boot"));
    pxed.until("what needs a restart is named", || {
        pxed.log().contains("takes effect after a restart") && pxed.log().contains("limits")
    });
}

#[test]
fn a_second_pxed_on_the_same_state_is_refused() {
    let mut pxed = Pxed::new();
    pxed.start();
    let file = pxed.path("pxed.toml");
    let (code, said) = check(&["run", "--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("in use by another process"), "{said}");
}

#[test]
fn an_idle_pxed_feeds_the_watchdog_and_says_how_it_stands() {
    let mut pxed = Pxed::new();
    let path = pxed.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    pxed.start_under(&[("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")]);
    let (mut fed, mut ready) = (0, String::new());
    while fed < 20 || ready.is_empty() {
        let mut buffer = [0; 2048];
        let length = manager.recv(&mut buffer).unwrap();
        let said = String::from_utf8_lossy(&buffer[..length]).into_owned();
        fed += usize::from(said == "WATCHDOG=1");
        if said.starts_with("READY=1") {
            ready = said;
        }
    }
    assert!(!pxed.log().contains("loop stalled"), "{}", pxed.log());
    pxed.signal(Signal::SIGTERM);
    assert_eq!(pxed.wait().code(), Some(0), "{}", pxed.log());
}

#[test]
fn a_kubeconfig_that_is_not_there_yet_is_waited_for_and_a_wrong_one_is_64() {
    let mut pxed = Pxed::new();
    let (file, kubeconfig) = (pxed.path("pxed.toml"), pxed.path("kubeconfig"));
    let text = std::fs::read_to_string(&file).unwrap();
    let directory = format!("directory = \"{}\"", pxed.path("machines.d").display());
    let cluster = format!("kubernetes = {{ kubeconfig = \"{}\" }}", kubeconfig.display());
    std::fs::write(&file, text.replace(&directory, &cluster)).unwrap();
    let notify = pxed.path("notify");
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    pxed.start_under(&[("NOTIFY_SOCKET", notify.to_str().unwrap())]);
    let mut buffer = [0; 2048];
    let length = manager.recv(&mut buffer).unwrap();
    let said = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(
        said.starts_with("READY=1\nSTATUS=not ready: source kubernetes: cannot use the kubeconfig"),
        "{said}"
    );
    assert!(pxed.reasons().contains("No such file"), "{}", pxed.reasons());
    // Port 1 of loopback: no server listens there.
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- {name: c, context: {cluster: k, user: u}}\n\
                clusters:\n- {name: k, cluster: {server: 'https://127.0.0.1:1'}}\nusers:\n- {name: u, user: {}}\n";
    std::fs::write(&kubeconfig, text).unwrap();
    pxed.until("the API server is asked", || {
        let source = pxed.status()["source"]["unreachable"].to_string();
        source != "null" && !source.contains("kubeconfig")
    });
    pxed.signal(Signal::SIGTERM);
    assert_eq!(pxed.wait().code(), Some(0), "{}", pxed.log());
    std::fs::write(&kubeconfig, "kind: [").unwrap();
    let (code, said) = check(&["run", "--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("kubeconfig"), "{said}");
}
