//! Foreign TFTP clients against our server in this process, on loopback.
//!
//! busybox, tftp-hpa, atftp and curl, each with the options it knows; a file beyond 65,535 blocks among them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use bedplate_tftp::{
    content::{Files, OpenError, Outcome, Request},
    counters::Refusal,
    server::Server,
    settings::Settings,
};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

/// Beyond 65,535 blocks of 512 bytes, and not a multiple of any block size used.
const HUGE: usize = 33 * 1024 * 1024 + 77;

struct Shelf {
    huge: Bytes,
}

impl Files for Shelf {
    fn open(&self, request: &Request<'_>) -> Result<Bytes, OpenError> {
        match request.name {
            "huge" => Ok(self.huge.clone()),
            "loader.efi" => Ok(self.huge.slice(..1_000_003)),
            "exact" => Ok(self.huge.slice(..512 * 100)),
            "empty" => Ok(Bytes::new()),
            "text" => Ok(Bytes::from_static(b"one\ntwo\n")),
            _ => Err(OpenError::NotFound),
        }
    }

    fn finished(&self, _: &Request<'_>, _: Outcome, _: u64) {}
}

struct Rig {
    server: Arc<Server>,
    shelf: Arc<Shelf>,
    port: String,
    place: tempfile::TempDir,
    shutdown: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Rig {
    fn start() -> Self {
        let mut seed = 1_u32;
        let mut draw = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed.to_be_bytes()[0]
        };
        let shelf = Arc::new(Shelf { huge: (0..HUGE).map(|_| draw()).collect::<Vec<u8>>().into() });
        let settings = Settings { listen: vec!["127.0.0.1:0".parse().unwrap()], ..Settings::default() };
        let server = Arc::new(Server::bind(settings, shelf.clone()).expect("loopback"));
        let port = server.addresses()[0].port().to_string();
        let shutdown = CancellationToken::new();
        let (runner, token) = (server.clone(), shutdown.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(runner.run(token)).expect("clean end");
        });
        let place = tempfile::tempdir().expect("a temporary directory");
        Self { server, shelf, port, place, shutdown, thread: Some(thread) }
    }

    fn local(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Runs a client; `PORT` and `FILE` among its arguments stand for the server's port and the local file.
    fn run(&self, local: &Path, command: &[&str]) -> Output {
        let argument =
            |text: &&str| text.replace("PORT", &self.port).replace("FILE", &local.display().to_string());
        let mut arguments = command.iter().map(argument);
        let program = arguments.next().expect("a program");
        Command::new(&program).args(arguments).current_dir(self.place.path()).output().unwrap_or_else(
            |error| panic!("{program} cannot be run ({error}): cargo xtask setup installs it"),
        )
    }

    /// Fetches `name` and compares every byte.
    fn fetches(&self, name: &str, command: &[&str]) {
        let local = self.local(&format!("{}-{name}", command[0]));
        let output = self.run(&local, command);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{command:?}: {said}");
        let got = std::fs::read(&local).unwrap_or_else(|error| panic!("{command:?}: {error}: {said}"));
        let request = Request { peer: "127.0.0.1:1".parse().unwrap(), local: [127, 0, 0, 1].into(), name };
        let wanted = self.shelf.open(&request).expect("a served file");
        assert!(got == wanted, "{command:?}: {} bytes of {}, or other ones", got.len(), wanted.len());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.cancel();
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}

const NAMES: [&str; 3] = ["loader.efi", "exact", "empty"];

#[test]
fn busybox_fetches() {
    let rig = Rig::start();
    for name in NAMES {
        rig.fetches(name, &["busybox", "tftp", "-g", "-r", name, "-l", "FILE", "127.0.0.1", "PORT"]);
        rig.fetches(
            name,
            &["busybox", "tftp", "-b", "1468", "-g", "-r", name, "-l", "FILE", "127.0.0.1", "PORT"],
        );
    }
}

#[test]
fn tftp_hpa_fetches() {
    let rig = Rig::start();
    for name in NAMES {
        rig.fetches(name, &["tftp", "-m", "octet", "127.0.0.1", "PORT", "-c", "get", name, "FILE"]);
    }
    rig.fetches("text", &["tftp", "-m", "netascii", "127.0.0.1", "PORT", "-c", "get", "text", "FILE"]);
}

#[test]
fn atftp_fetches_with_options_and_windows() {
    let rig = Rig::start();
    let mixes: [&[&str]; 4] = [
        &[],
        &["--option", "blksize 1468"],
        &["--option", "blksize 1468", "--option", "windowsize 16"],
        &["--option", "tsize 0", "--option", "timeout 2", "--option", "windowsize 4"],
    ];
    for name in NAMES {
        for mix in mixes {
            let get = ["-g", "-r", name, "-l", "FILE", "127.0.0.1", "PORT"];
            rig.fetches(name, &[&["atftp"], mix, &get].concat());
        }
    }
}

#[test]
fn curl_fetches() {
    let rig = Rig::start();
    // Not the empty file: curl 7.88 takes its single block and then fails by itself ("getpeername() failed").
    for name in ["loader.efi", "exact"] {
        let url = format!("tftp://127.0.0.1:PORT/{name}");
        for mix in
            [&[][..], &["--tftp-no-options"], &["--tftp-blksize", "1468"], &["--tftp-blksize", "65464"]]
        {
            rig.fetches(name, &[&["curl", "-sS", "-o", "FILE"], mix, &[url.as_str()]].concat());
        }
    }
}

#[test]
fn block_numbers_roll_over_beyond_32_mib() {
    let rig = Rig::start();
    rig.fetches("huge", &["busybox", "tftp", "-g", "-r", "huge", "-l", "FILE", "127.0.0.1", "PORT"]);
    rig.fetches("huge", &["tftp", "-m", "octet", "127.0.0.1", "PORT", "-c", "get", "huge", "FILE"]);
    rig.fetches("huge", &["curl", "-sS", "--tftp-no-options", "-o", "FILE", "tftp://127.0.0.1:PORT/huge"]);
}

#[test]
fn writing_is_refused() {
    let rig = Rig::start();
    let local = rig.local("upload");
    std::fs::write(&local, "no").expect("a writable temporary directory");
    let output =
        rig.run(&local, &["busybox", "tftp", "-p", "-l", "FILE", "-r", "upload", "127.0.0.1", "PORT"]);
    assert!(!output.status.success());
    let output = rig.run(&local, &["curl", "-sS", "-T", "FILE", "tftp://127.0.0.1:PORT/upload"]);
    assert_eq!(
        output.status.code(),
        Some(69),
        "curl: access violation; {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(rig.server.counters().refusal(Refusal::Write), 2);
}

#[test]
fn unknown_file_is_refused() {
    let rig = Rig::start();
    let output = rig.run(&rig.local("x"), &["curl", "-sS", "-o", "FILE", "tftp://127.0.0.1:PORT/nothing"]);
    assert_eq!(output.status.code(), Some(68), "curl: file not found");
    let output = rig.run(
        &rig.local("x"),
        &["curl", "-sS", "--path-as-is", "-o", "FILE", "tftp://127.0.0.1:PORT/../../etc/passwd"],
    );
    assert_eq!(output.status.code(), Some(69), "curl: access violation");
    assert_eq!(rig.server.counters().opened, 0);
}
