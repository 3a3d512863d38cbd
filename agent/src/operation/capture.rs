//! Captures packets of an interface in a file, by tcpdump in a separate unit. Part of `run`.
//!
//! tcpdump runs as a user that does not exist otherwise, with the one capability that a packet socket needs, and writes into a file
//! that systemd opened: the agent needs no right to see packets. Time is bounded by systemd, size by the kernel (RLIMIT_FSIZE). Only
//! the newest captures are kept. The cause of a failure is found by further commands and their exit codes. No text of tcpdump decides.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bedplate_api::operation::MachineOperation;
use bedplate_api::reason::operation::AgentOutcome;
use bedplate_process::exit::chain;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::outcome::{Outcome, bus_end};
use super::parameters::Capture;
use super::pcap::{FILE_HEADER_BYTES, RECORD_HEADER_BYTES, captured, order};
use super::progress::End;
use super::run::Runner;
use crate::bus::{Exit, Output, Ran, Setting, TransientCommand, UnitName, sandbox};

const TCPDUMP: &str = "/usr/bin/tcpdump";
const TEST: &str = "/usr/bin/test";
/// Pseudo-interface of tcpdump.
const ANY: &str = "any";
/// Maximum time of a command that looks for the cause of a failure.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Captures that are kept, the new one included.
const MOST_FILES: usize = 8;
/// Maximum total size of the captures that are kept, in bytes.
const MOST_BYTES: u64 = 128 << 20;
/// Minimum free space after a capture, in bytes.
const MIN_FREE_BYTES: u64 = 64 << 20;
/// SIGXFSZ: the file has reached its size.
const SIGNAL_FILE_SIZE: i32 = nix::libc::SIGXFSZ;
/// Exit code of systemd if the program is missing.
const NO_PROGRAM: i32 = 203;

/// A capture on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    name: String,
    bytes: u64,
    written: SystemTime,
}

/// Content of a capture file.
#[derive(Debug, PartialEq, Eq)]
struct Content {
    bytes: u64,
    packets: u64,
    sha256: String,
}

impl Runner {
    /// Removes old captures, and checks the free space.
    pub(super) async fn prepare_capture(&mut self, capture: &Capture) -> Outcome {
        let (directory, wanted) = (self.parts.captures.clone(), capture.bytes);
        let made = tokio::task::spawn_blocking(move || make_room(&directory, wanted)).await;
        match made.map_err(io::Error::other).and_then(|made| made) {
            Ok(room) if room < capture.bytes + MIN_FREE_BYTES => Outcome::End(End::failed(
                AgentOutcome::InsufficientSpace,
                format!(
                    "{} has {} MiB free, {} are needed; set parameter bytes to a smaller number",
                    self.parts.captures.display(),
                    room >> 20,
                    (capture.bytes + MIN_FREE_BYTES) >> 20
                ),
            )),
            Ok(_) => Outcome::Ready,
            Err(error) => Outcome::Later(format!("{}: {}", self.parts.captures.display(), chain(&error))),
        }
    }

    fn place(&self) -> Option<(PathBuf, UnitName)> {
        let running = self.running.as_ref()?;
        let stem = stem(&running.object);
        let uid: String = stem.rsplit('-').next().unwrap_or_default().to_owned();
        let unit = format!("bedplate-capture-{uid}.service").parse().ok()?;
        Some((self.parts.captures.join(format!("{stem}.pcap")), unit))
    }

    pub(super) async fn capture(&mut self, capture: &Capture) -> Outcome {
        let Some((path, unit)) = self.place() else { return Outcome::Interrupted };
        let command = command(capture, &path, unit.clone());
        match self.parts.units.run(&command).await {
            Ok(ran) => Outcome::End(self.ended(capture, (&path, &unit), &ran).await),
            Err(error) => Outcome::End(bus_end(&error)),
        }
    }

    async fn ended(&self, capture: &Capture, (path, unit): (&Path, &UnitName), ran: &Ran) -> End {
        let why = match &ran.exit {
            Exit::TimedOut | Exit::Code(0) => format!("{} s", capture.seconds),
            Exit::Signal(SIGNAL_FILE_SIZE) => format!("{} bytes were reached", capture.bytes),
            Exit::Code(_) if is_full(path, capture.bytes) => format!("{} bytes were reached", capture.bytes),
            Exit::Code(_) | Exit::Signal(_) | Exit::Other(_) => {
                let _ = fs::remove_file(path);
                return failed(capture, ran, self.find_fault(capture, unit).await);
            }
        };
        match content(path.to_owned()).await {
            Ok(content) => End::done(AgentOutcome::Captured, self.describe(path, &content, &why)),
            Err(error) => {
                End::failed(AgentOutcome::CaptureFailed, format!("{}: {}", path.display(), chain(&error)))
            }
        }
    }

    /// Finds the parameter because of which a capture has failed.
    async fn find_fault(&self, capture: &Capture, unit: &UnitName) -> Option<Fault> {
        let exits = async |argv: Vec<String>| {
            let ran = self.parts.units.run(&check(argv, unit.clone())).await;
            ran.map(|ran| ran.exit).ok()
        };
        let path = format!("/sys/class/net/{}", capture.interface);
        let is_missing = vec![TEST.to_owned(), "!".to_owned(), "-e".to_owned(), path];
        if capture.interface != ANY && exits(is_missing).await == Some(Exit::Code(0)) {
            return Some(Fault::Interface);
        }
        // tcpdump compiles the filter and ends.
        let compile = |filter| tcpdump(&["-d"], &capture.interface, filter);
        let is_filter = !capture.filter.is_empty()
            && exits(compile("")).await == Some(Exit::Code(0))
            && matches!(exits(compile(&capture.filter)).await, Some(Exit::Code(1..)));
        is_filter.then_some(Fault::Filter)
    }

    fn describe(&self, path: &Path, content: &Content, why: &str) -> String {
        format!(
            "{} on {}: {} packets, {} bytes, sha256:{} ({why})",
            path.display(),
            self.parts.machine,
            content.packets,
            content.bytes,
            content.sha256
        )
    }

    /// Continues a capture that a former agent started.
    pub(super) async fn inspect_capture(&mut self, deadline: Timestamp) -> Outcome {
        let Some((path, unit)) = self.place() else { return Outcome::Interrupted };
        match self.parts.units.state(&unit).await {
            Ok(state) if (!state.active.is_down() || state.has_job) && self.now() < deadline => {
                return Outcome::Later("the capture is running".to_owned());
            }
            Err(error) if error.is_transient() && self.now() < deadline => {
                return Outcome::Later(chain(&error));
            }
            Ok(_) | Err(_) => {}
        }
        let end = match content(path.clone()).await {
            Ok(content) => {
                let what = self.describe(&path, &content, "shorter than requested");
                End::failed(
                    AgentOutcome::Interrupted,
                    format!("the agent was interrupted during the capture; packets so far: {what}"),
                )
            }
            Err(_) => End::failed(
                AgentOutcome::Interrupted,
                "the agent was interrupted and captured no packet; create a new operation",
            ),
        };
        Outcome::End(end)
    }
}

/// Returns the file name: the object's name and a part of its UID. So a
/// re-created object does not overwrite the file.
fn stem(object: &MachineOperation) -> String {
    let plain = |text: &str, most: usize| -> String {
        let signs = text.chars().map(|sign| if sign.is_ascii_alphanumeric() { sign } else { '-' });
        signs.take(most).collect()
    };
    let name = plain(object.metadata.name.as_deref().unwrap_or_default(), 120);
    let uid: String = object
        .metadata
        .uid
        .as_deref()
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(8)
        .collect();
    format!("{name}-{uid}")
}

/// Parameter that the host does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Interface,
    Filter,
}

/// Returns true if a file has reached its size: the kernel cuts the write that would exceed it.
fn is_full(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|about| about.len() >= bytes)
}

fn tcpdump(options: &[&str], interface: &str, filter: &str) -> Vec<String> {
    let filter: &[&str] = if filter.is_empty() { &[] } else { &["--", filter] };
    let all = [&[TCPDUMP, "-n"], options, &["-i", interface], filter].concat();
    all.into_iter().map(str::to_owned).collect()
}

/// Returns a command whose exit code alone counts.
fn check(argv: Vec<String>, unit: UnitName) -> TransientCommand {
    TransientCommand {
        unit,
        description: "Check of a capture for bedplate-agent".to_owned(),
        argv,
        environment: Vec::new(),
        output: Output::Tail,
        limit: CHECK_TIMEOUT,
        settings: settings(1 << 20),
    }
}

fn command(capture: &Capture, path: &Path, unit: UnitName) -> TransientCommand {
    // Each packet is written immediately, so a kill loses none.
    let options = ["-U", "--immediate-mode", "-w", "-"];
    TransientCommand {
        unit,
        description: format!("Packets of {} for bedplate-agent", capture.interface),
        argv: tcpdump(&options, &capture.interface, &capture.filter),
        environment: Vec::new(),
        output: Output::Split(path.to_owned()),
        limit: Duration::from_secs(capture.seconds.into()),
        settings: settings(capture.bytes),
    }
}

/// Returns the sandbox of tcpdump: a packet socket, and nothing else.
fn settings(bytes: u64) -> Vec<(&'static str, Setting)> {
    const CAP_NET_RAW: u64 = 1 << 13;
    sandbox(vec![
        ("DynamicUser", Setting::Flag(true)),
        ("AmbientCapabilities", Setting::Number(CAP_NET_RAW)),
        ("CapabilityBoundingSet", Setting::Number(CAP_NET_RAW)),
        // Limit of the file's size. The file is open already.
        ("LimitFSIZE", Setting::Number(bytes)),
        ("MemoryMax", Setting::Number(256 << 20)),
        ("TasksMax", Setting::Number(16)),
        ("ProtectProc", Setting::Word("invisible")),
        ("InaccessiblePaths", Setting::List(vec!["-/var/lib/bedplate", "-/run/bedplate", "-/run/dbus"])),
        // AF_INET and AF_UNIX: asking for an interface; AF_NETLINK: listing them.
        ("RestrictAddressFamilies", Setting::Only(vec!["AF_PACKET", "AF_NETLINK", "AF_INET", "AF_UNIX"])),
    ])
}

/// Returns the result of a failed capture.
fn failed(capture: &Capture, ran: &Ran, fault: Option<Fault>) -> End {
    let said = ran.output.lines().filter(|line| !line.contains("packets ")).collect::<Vec<_>>().join("; ");
    let Capture { interface, filter, .. } = capture;
    match (&ran.exit, fault) {
        (Exit::Code(NO_PROGRAM), _) => End::failed(
            AgentOutcome::NotSupported,
            format!("the host has no {TCPDUMP}; use a host image with it"),
        ),
        (_, Some(Fault::Filter)) => End::failed(
            AgentOutcome::InvalidParameters,
            format!("parameter filter {filter:?} is not a BPF expression: {said}"),
        ),
        (_, Some(Fault::Interface)) => End::failed(
            AgentOutcome::InterfaceNotFound,
            format!("the host has no interface {interface}: {said}"),
        ),
        (exit, None) => {
            End::failed(AgentOutcome::CaptureFailed, format!("tcpdump exited with {exit:?}: {said}"))
        }
    }
}

/// Makes the directory, and removes the oldest files for a new one of this size. Returns the free space.
fn make_room(directory: &Path, wanted: u64) -> io::Result<u64> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut kept = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_file() {
            let name = entry.file_name().to_string_lossy().into_owned();
            kept.push(Kept { name, bytes: about.len(), written: about.modified()? });
        }
    }
    for name in too_old(kept, wanted) {
        fs::remove_file(directory.join(name))?;
    }
    let about = nix::sys::statvfs::statvfs(directory)?;
    Ok(about.blocks_available().saturating_mul(about.fragment_size()))
}

/// Returns the captures to remove for a new one of this size, oldest first.
fn too_old(mut kept: Vec<Kept>, wanted: u64) -> Vec<String> {
    kept.sort_by_key(|one| std::cmp::Reverse(one.written));
    let mut bytes = wanted;
    let mut names = Vec::new();
    for (place, one) in kept.into_iter().enumerate() {
        bytes = bytes.saturating_add(one.bytes);
        if place + 1 >= MOST_FILES || bytes > MOST_BYTES {
            names.push(one.name);
        }
    }
    names.reverse();
    names
}

/// Truncates a capture file after its last complete packet, and reads it.
async fn content(path: PathBuf) -> io::Result<Content> {
    let read = tokio::task::spawn_blocking(move || {
        let file = File::options().read(true).write(true).open(path)?;
        let (bytes, packets) = whole(&file)?;
        file.set_len(bytes)?;
        let mut reader = &file;
        reader.seek(SeekFrom::Start(0))?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match reader.read(&mut buffer)? {
                0 => break,
                length => hash.update(&buffer[..length]),
            }
        }
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Content { bytes, packets, sha256 })
    });
    read.await.map_err(io::Error::other)?
}

/// Returns the end of the last complete packet, and the number of packets.
fn whole(file: &File) -> io::Result<(u64, u64)> {
    let length = file.metadata()?.len();
    let mut reader = BufReader::new(file);
    let mut header = [0; FILE_HEADER_BYTES];
    reader.read_exact(&mut header)?;
    let order = order(&header).ok_or_else(|| io::Error::other("not a capture file"))?;
    let (mut end, mut packets) = (FILE_HEADER_BYTES as u64, 0);
    let mut record = [0; RECORD_HEADER_BYTES];
    while end + RECORD_HEADER_BYTES as u64 <= length {
        reader.read_exact(&mut record)?;
        let captured = captured(order, &record);
        let next = end + RECORD_HEADER_BYTES as u64 + u64::from(captured);
        if next > length {
            break;
        }
        reader.seek_relative(captured.into())?;
        (end, packets) = (next, packets + 1);
    }
    Ok((end, packets))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn packet(length: u32) -> Vec<u8> {
        let mut bytes = vec![0; RECORD_HEADER_BYTES];
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes.resize(RECORD_HEADER_BYTES + length as usize, 7);
        bytes
    }

    #[tokio::test]
    async fn a_capture_that_was_cut_ends_after_its_last_whole_packet() {
        let mut header = vec![0; FILE_HEADER_BYTES];
        header[..4].copy_from_slice(&0xa1b2_c3d4_u32.to_le_bytes());
        let two = [header, packet(60), packet(9000)].concat();
        for (extra, packets) in
            [(vec![], 2), (packet(10)[..20].to_vec(), 2), (vec![1, 2, 3], 2), (packet(0), 3)]
        {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&[two.clone(), extra.clone()].concat()).unwrap();
            let content = content(file.path().to_owned()).await.unwrap();
            let bytes = if packets == 3 { two.len() + RECORD_HEADER_BYTES } else { two.len() };
            assert_eq!((content.packets, content.bytes), (packets, bytes as u64));
            assert_eq!(fs::metadata(file.path()).unwrap().len(), bytes as u64);
        }
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert!(content(empty.path().to_owned()).await.is_err());
    }

    #[test]
    fn the_newest_captures_are_kept_by_number_and_by_size() {
        let kept = |bytes: &[u64]| -> Vec<Kept> {
            let one = |(age, bytes): (usize, &u64)| Kept {
                name: age.to_string(),
                bytes: *bytes,
                written: SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age as u64),
            };
            bytes.iter().enumerate().map(one).collect()
        };
        assert_eq!(too_old(kept(&[1; 7]), 1), Vec::<String>::new());
        assert_eq!(too_old(kept(&[1; 9]), 1), ["8", "7"]);
        assert_eq!(too_old(kept(&[60 << 20, 10 << 20, 1]), 64 << 20), ["2", "1"]);
    }

    #[test]
    fn exit_code_and_fault_become_a_reason_whatever_tcpdump_says() {
        let capture = Capture { interface: "eth9".into(), filter: "port port".into(), seconds: 1, bytes: 1 };
        for said in ["", "syntax error in expression", "No such device exists", "File too large"] {
            let reason = |code: i32, fault| {
                let ran = Ran { exit: Exit::Code(code), output: said.to_owned(), cut: false };
                failed(&capture, &ran, fault).reason
            };
            assert_eq!(reason(203, None), "NotSupported");
            assert_eq!(reason(1, Some(Fault::Filter)), "InvalidParameters");
            assert_eq!(reason(1, Some(Fault::Interface)), "InterfaceNotFound");
            assert_eq!(reason(1, None), "CaptureFailed");
        }
    }

    #[test]
    fn capture_is_full_once_its_file_has_its_size() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0; 1024]).unwrap();
        let full = [1023, 1024, 1025].map(|bytes| is_full(file.path(), bytes));
        assert_eq!(full, [true, true, false]);
        assert!(!is_full(Path::new("/nonexistent"), 0));
    }
}
