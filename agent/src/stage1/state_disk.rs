//! The state disk: inspected, made if the rules allow it, mounted. The rules: `disk_selector`, `state_plan`.
//!
//! A disk is written only after it was selected, found unused, and its content judged. The
//! inspection is read-only. A file system is made under the label `LABEL_NEW`, and gets
//! `LABEL` once its marker is on the disk. So a file system with `LABEL` was complete, and
//! if it is not now, it is damaged. mke2fs, tune2fs and e2fsck come from the root image.
//! Called by the driver.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bedplate_api::id::MachineName;
use bedplate_api::machine::Disk;
use bedplate_api::wire::{DiskSelector, StateDiskRequest, WipeRequest};
use bedplate_process::file;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::de::DeserializeOwned;

use super::console::say;
use super::disk_selector::{SelectDiskError, select_disk};
use super::error::StageError;
use super::state_file::{read_regular, read_regular_json};
use super::state_plan::{
    CLAIM_RECORD, Content, LABEL, LABEL_NEW, MARKER, Marker, StatePlan, WIPE_REQUEST, plan_requested_wipe,
    plan_state_disk,
};
use crate::hardware::disk::observe_disks;

const EDGE_BYTES: u64 = 4 << 20;
const SAMPLE_COUNT: u64 = 256;
const SAMPLE_BYTES: usize = 4096;
/// Offset of an ext superblock, in bytes.
const SUPERBLOCK_OFFSET: u64 = 1024;
const SUPERBLOCK_SIZE: usize = 1024;
/// The head of a disk up to the end of an ext superblock. mke2fs leaves zeros before it.
const HEAD_BYTES: usize = 2048;
/// Offsets of its first copy (mke2fs(8), `sparse_super`): with blocks of 1 KiB,
/// as on small disks, and of 4 KiB.
const COPIES: [u64; 2] = [8193 << 10, 128 << 20];
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const SETTLE_TIME: Duration = Duration::from_secs(2);
const DISK_TIMEOUT: Duration = Duration::from_secs(20);

/// A state disk that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The device, such as `/dev/sda`.
    pub device: String,
    /// True if its file system was made in this boot.
    pub made: bool,
    /// Marker on the disk.
    pub marker: Marker,
}

/// Programs that work on the disk, from the root image.
pub trait Programs {
    /// Runs `program` of the root image with `arguments`. Returns its exit code, or -1, and its output.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(i32, String), StageError>;
}

/// Waits until the kernel has found the disk that the Machine selected. A rule waits until no more disks
/// appear. `look` is called before each search.
pub(crate) fn await_disk(selector: &DiskSelector, look: &mut dyn FnMut()) -> Result<Disk, StageError> {
    let start = Instant::now();
    let mut disks = observe_disks(Path::new("/"));
    let mut since = Instant::now();
    loop {
        look();
        let now = observe_disks(Path::new("/"));
        if now != disks {
            disks = now;
            since = Instant::now();
        }
        let settled = since.elapsed() > SETTLE_TIME;
        match select_disk(selector, &disks) {
            Ok(disk) if settled || !matches!(selector, DiskSelector::Rule { .. }) => return Ok(disk.clone()),
            Err(error @ SelectDiskError::Several { .. }) => return Err(error.into()),
            Err(error) if start.elapsed() > DISK_TIMEOUT => return Err(error.into()),
            Ok(_) | Err(SelectDiskError::None { .. }) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Prepares `device` as the Machine requests, and mounts it at `target`.
pub fn prepare(
    device: &Path,
    machine: &MachineName,
    request: &StateDiskRequest,
    target: &Path,
    programs: &dyn Programs,
) -> Result<Mounted, StageError> {
    let content = observe_content(device, target)?;
    let plan = plan_state_disk(machine, (&request.wipe, request.release.as_deref()), &content)
        .map_err(|source| StageError::RefuseDisk { device: device.display().to_string(), source })?;
    let is_marked =
        matches!(content, Content::State(_) | Content::Foreign(_) | Content::Headless | Content::Unknown);
    let (made, marker) = match (plan, content) {
        (StatePlan::Make(marker), _) if is_marked => {
            make_again(device, &marker, target, programs)?;
            (true, marker)
        }
        (StatePlan::Make(marker), _) => {
            make(device, &marker, target, programs)?;
            (true, marker)
        }
        (StatePlan::Use, Content::State(marker)) => {
            match use_state(device, machine, &request.wipe, target, programs)? {
                Some(marker) => (true, marker),
                None => (false, marker),
            }
        }
        (StatePlan::Use, _) => return Err(StageError::Internal("the plan uses a state disk without state")),
    };
    Ok(Mounted { device: device.display().to_string(), made, marker })
}

/// Mounts the state at `target`, unless the agent has requested that the disk is made again: returns the marker of the disk that was made then.
///
/// The check comes first, because it replays the journal: without it a request may be missing, or may be
/// there that the agent withdrew before the host lost power. A disk that will be made again does not wait for
/// an operator if the check fails.
fn use_state(
    device: &Path,
    machine: &MachineName,
    wipe: &WipeRequest,
    target: &Path,
    programs: &dyn Programs,
) -> Result<Option<Marker>, StageError> {
    let requested = match check(device, programs) {
        Ok(()) => {
            mount_state(device, target, MsFlags::empty())?;
            let requested = requested_wipe(target, machine, wipe);
            if requested.is_some() {
                unmount(target)?;
            }
            requested
        }
        Err(error) => {
            let look = |root: &Path, mounted: Result<(), Errno>| {
                mounted.ok().and_then(|()| requested_wipe(root, machine, wipe))
            };
            Some(observe_ours(device, target, &look)?.ok_or(error)?)
        }
    };
    if let Some(marker) = &requested {
        make_again(device, marker, target, programs)?;
    }
    Ok(requested)
}

/// Makes a disk that has data.
fn make_again(
    device: &Path,
    marker: &Marker,
    target: &Path,
    programs: &dyn Programs,
) -> Result<(), StageError> {
    erase_superblocks(device).map_err(StageError::system("erase", device.display()))?;
    make(device, marker, target, programs)
}

/// Marker of the disk to make again, if the agent has requested that. A file that cannot be read wipes nothing: the agent of this boot writes the
/// request again.
fn requested_wipe(root: &Path, machine: &MachineName, wipe: &WipeRequest) -> Option<Marker> {
    let requested = read_or_say(&root.join(WIPE_REQUEST))?;
    let recorded = read_or_say(&root.join(CLAIM_RECORD));
    let marker = plan_requested_wipe(machine, wipe, Some(&requested), recorded.as_ref());
    if marker.is_none() {
        say(&format!(
            "wipe request {} ignored; it is not due, or the Machine has another rule",
            requested.token
        ));
    }
    marker
}

fn read_or_say<T: DeserializeOwned>(path: &Path) -> Option<T> {
    read_regular_json(path).unwrap_or_else(|error| {
        say(&format!("{} ignored: {error}", path.display()));
        None
    })
}

/// Reads the content of the disk without writing. Fails if the disk is in use
/// (mounted, RAID member, device-mapper).
fn observe_content(device: &Path, probe: &Path) -> Result<Content, StageError> {
    let open = |exclusive: i32| fs::OpenOptions::new().read(true).custom_flags(exclusive).open(device);
    let mut file = while_busy(|| open(nix::libc::O_EXCL))
        .map_err(StageError::system("open exclusively", device.display()))?;
    let is_block = file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    if !is_block {
        return Err(StageError::Internal("the state disk is not a block device"));
    }
    let read = observe_signature(&mut file).map_err(StageError::system("read", device.display()))?;
    drop(file);
    match read {
        Signature::Blank => Ok(Content::Blank),
        Signature::Headless => Ok(Content::Headless),
        Signature::Unknown => Ok(Content::Unknown),
        Signature::Other(found) => Ok(Content::Foreign(found)),
        Signature::Ours => observe_ours(device, probe, &read_marker),
        Signature::New => observe_ours(device, probe, &read_unfinished),
        Signature::Lost => Ok(Content::Damaged(format!(
            "a file system labeled {LABEL} whose first superblock is lost, with a copy left"
        ))),
    }
}

/// Mounts a file system that has a label of ours for reading, without replaying its journal, and reads it.
fn observe_ours<T>(
    device: &Path,
    probe: &Path,
    read: &dyn Fn(&Path, Result<(), Errno>) -> T,
) -> Result<T, StageError> {
    fs::create_dir_all(probe).map_err(StageError::system("make", probe.display()))?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let mounted = while_busy(|| {
        mount(Some(device), probe, Some("ext4"), flags, Some("noload")).map_err(io::Error::from)
    });
    match mounted.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)) {
        // Errors of the kernel, not of the disk: no driver, no memory, no permission, in use.
        Err(errno @ (Errno::ENODEV | Errno::ENOMEM | Errno::EPERM | Errno::EACCES | Errno::EBUSY)) => {
            Err(StageError::system("mount", device.display())(errno))
        }
        Err(errno) => Ok(read(probe, Err(errno))),
        Ok(()) => {
            let content = read(probe, Ok(()));
            unmount(probe)?;
            Ok(content)
        }
    }
}

/// Reads the marker. A file system with `LABEL` had its marker on the disk,
/// outside of the journal. Without the marker it is damaged.
fn read_marker(root: &Path, mounted: Result<(), Errno>) -> Content {
    let damaged = |what: String| Content::Damaged(format!("a file system labeled {LABEL} {what}"));
    if let Err(errno) = mounted {
        return damaged(format!("that cannot be mounted ({errno})"));
    }
    match read_regular(&root.join(MARKER)) {
        Ok(Some(bytes)) => match serde_json::from_slice(&bytes) {
            Ok(marker) => Content::State(marker),
            Err(error) => damaged(format!("whose {MARKER} is damaged ({error})")),
        },
        Ok(None) => damaged(format!("without {MARKER}")),
        Err(error) => damaged(format!("whose {MARKER} cannot be read ({error})")),
    }
}

/// Checks a file system with `LABEL_NEW`. It was never handed to a host. If it
/// has files, another writer put them there.
fn read_unfinished(root: &Path, mounted: Result<(), Errno>) -> Content {
    if mounted.is_err() {
        return Content::Unfinished;
    }
    let is_ours = |name: &std::ffi::OsStr| {
        name == "lost+found" || name.to_str().is_some_and(|name| name.starts_with(MARKER))
    };
    let empty = fs::read_dir(root).and_then(|mut entries| {
        entries.try_fold(true, |empty, entry| entry.map(|entry| empty && is_ours(&entry.file_name())))
    });
    match empty {
        Ok(true) => Content::Unfinished,
        Ok(false) => Content::Damaged(format!("a file system labeled {LABEL_NEW} with files")),
        Err(error) => {
            Content::Damaged(format!("a file system labeled {LABEL_NEW} that cannot be read ({error})"))
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Signature {
    Blank,
    Ours,
    /// Ours, being made.
    New,
    /// Ours by a copy of its superblock.
    Lost,
    /// Data of no known kind, below a head of zeros.
    Headless,
    /// Data of no known kind.
    Unknown,
    Other(String),
}

/// Blank: both ends (where partition tables, RAID and file systems have their heads) and samples all over are zeros.
fn observe_signature(device: &mut File) -> io::Result<Signature> {
    let size = device.seek(SeekFrom::End(0))?;
    let mut head = vec![0; usize::try_from(EDGE_BYTES.min(size)).unwrap_or(0)];
    device.seek(SeekFrom::Start(0))?;
    device.read_exact(&mut head)?;
    if let Some(signature) = name_signature(&head) {
        return Ok(signature);
    }
    for copy in COPIES {
        if copy.saturating_add(SUPERBLOCK_OFFSET) <= size && is_ours(device, copy)? {
            return Ok(Signature::Lost);
        }
    }
    let mut blank = head.iter().all(|byte| *byte == 0);
    let mut at = size.saturating_sub(EDGE_BYTES);
    device.seek(SeekFrom::Start(at))?;
    blank = blank && is_zero(device, size - at)?;
    for sample in 1..SAMPLE_COUNT {
        at = size / SAMPLE_COUNT * sample;
        device.seek(SeekFrom::Start(at))?;
        blank = blank && is_zero(device, (size - at).min(SAMPLE_BYTES as u64))?;
    }
    let is_headless = head.iter().take(HEAD_BYTES).all(|byte| *byte == 0);
    Ok(match (blank, is_headless) {
        (true, _) => Signature::Blank,
        (false, true) => Signature::Headless,
        (false, false) => Signature::Unknown,
    })
}

/// Returns true if a superblock of a file system of ours begins at `at`.
fn is_ours(device: &mut File, at: u64) -> io::Result<bool> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.seek(SeekFrom::Start(at))?;
    device.read_exact(&mut bytes)?;
    Ok(label_of(&bytes).is_some_and(|label| label == LABEL))
}

fn is_zero(device: &mut File, length: u64) -> io::Result<bool> {
    let mut bytes = Vec::new();
    device.take(length).read_to_end(&mut bytes)?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

/// Signatures of other data, by their offsets. Some begin below a head of zeros, which an interrupted wipe leaves as well.
const KNOWN: [(usize, &[u8], &str); 24] = [
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (512, b"LABELONE", "an LVM physical volume"),
    (0, &[0xfc, 0x4e, 0x2b, 0xa9], "a RAID member (MD)"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a RAID member (MD)"),
    (4120, &BCACHE, "a bcache device"),
    (4120, &BCACHEFS, "a bcachefs file system"),
    (0, b"bluestore block device", "a Ceph OSD"),
    (4086, b"SWAPSPACE2", "swap space"),
    (8182, b"SWAPSPACE2", "swap space"),
    (16374, b"SWAPSPACE2", "swap space"),
    (65526, b"SWAPSPACE2", "swap space"),
    (4086, b"SWAP-SPACE", "swap space"),
    (0, b"XFSB", "an XFS file system"),
    (65600, b"_BHRfS_M", "a btrfs file system"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    (1030, &[0x34, 0x34], "a NILFS2 file system"),
    (2048, b"OCFSV2", "an OCFS2 file system"),
    (32768, b"JFS1", "a JFS file system"),
    (32769, b"CD001", "an ISO 9660 file system"),
    (65588, b"ReIsEr", "a ReiserFS file system"),
    (65536, &[0x01, 0x16, 0x19, 0x70], "a GFS2 file system"),
    (510, &[0x55, 0xaa], "an MBR partition table or boot sector"),
];
const BCACHE: [u8; 16] = *b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: [u8; 16] = *b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
/// Uberblocks of ZFS: each begins with the magic, in either order of its bytes.
const UBERBLOCKS: Range<usize> = 128 << 10..256 << 10;
const UBERBLOCK_STEP: usize = 1 << 10;
const UBERBLOCK: [[u8; 8]; 2] = [[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]];

fn name_signature(head: &[u8]) -> Option<Signature> {
    let at = |offset: usize, bytes: &[u8]| head.get(offset..).is_some_and(|rest| rest.starts_with(bytes));
    let other = |text: &str| Signature::Other(text.to_owned());
    if let Some(label) = head.get(1024..).and_then(label_of) {
        return Some(match label.as_str() {
            LABEL => Signature::Ours,
            LABEL_NEW => Signature::New,
            _ => other(&format!("an ext file system (label {label:?})")),
        });
    }
    let is_zfs =
        UBERBLOCKS.step_by(UBERBLOCK_STEP).any(|offset| UBERBLOCK.iter().any(|magic| at(offset, magic)));
    if is_zfs {
        return Some(other("a ZFS pool"));
    }
    KNOWN.iter().find(|(offset, bytes, _)| at(*offset, bytes)).map(|(.., text)| other(text))
}

/// The label in an ext2/3/4 superblock, if it is one: magic at 56, label of 16 bytes at 120.
fn label_of(superblock: &[u8]) -> Option<String> {
    superblock.get(56..).filter(|rest| rest.starts_with(&[0x53, 0xef]))?;
    let label = String::from_utf8_lossy(superblock.get(120..136)?).into_owned();
    Some(label.trim_end_matches('\0').to_owned())
}

/// Erases what identifies the data of a disk that will be made again. If power fails before mke2fs is done, the next boot must make the disk.
fn erase_superblocks(device: &Path) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(nix::libc::O_EXCL);
    let mut disk = while_busy(|| options.open(device))?;
    for part in plan_erasure(&mut disk)? {
        erase(&mut disk, part)?;
    }
    Ok(())
}

/// Returns the parts of the disk to erase, in this order. The first superblock goes last. Until then the disk counts as state, and its request
/// is read again. From then on it must count as [`Content::Headless`]: no copy of the superblock may be left, and no boot sector above it.
/// Only copies of ours are erased: with blocks of another size, data lies there, perhaps of the very request that this disk is made again for.
fn plan_erasure(disk: &mut File) -> io::Result<Vec<Range<u64>>> {
    let size = disk.seek(SeekFrom::End(0))?;
    let mut parts = Vec::new();
    for at in COPIES {
        if at.saturating_add(SUPERBLOCK_SIZE as u64) <= size && is_ours(disk, at)? {
            parts.push(at..at + SUPERBLOCK_SIZE as u64);
        }
    }
    parts.extend(
        [0..SUPERBLOCK_OFFSET, SUPERBLOCK_OFFSET..HEAD_BYTES as u64]
            .into_iter()
            .filter(|part| part.end <= size),
    );
    Ok(parts)
}

fn erase(disk: &mut File, part: Range<u64>) -> io::Result<()> {
    disk.seek(SeekFrom::Start(part.start))?;
    io::copy(&mut io::repeat(0).take(part.end - part.start), disk)?;
    disk.sync_all()
}

fn make(device: &Path, marker: &Marker, target: &Path, programs: &dyn Programs) -> Result<(), StageError> {
    let path = device.display().to_string();
    run_program(programs, "mke2fs", &["-q", "-F", "-t", "ext4", "-L", LABEL_NEW, &path], &path)?;
    mount_state(device, target, MsFlags::empty())?;
    let written = target.join(MARKER);
    let wrote =
        file::write_json(&written, marker, 0o600).map_err(StageError::system("write", written.display()));
    // Unmounting empties the journal, so a mount without the journal finds the marker.
    unmount(target)?;
    wrote?;
    let sync = || File::open(device).and_then(|disk| disk.sync_all());
    sync().map_err(StageError::system("flush", device.display()))?;
    run_program(programs, "tune2fs", &["-L", LABEL, &path], &path)?;
    sync().map_err(StageError::system("flush", device.display()))?;
    mount_state(device, target, MsFlags::empty())
}

fn run_program(
    programs: &dyn Programs,
    program: &'static str,
    arguments: &[&str],
    device: &str,
) -> Result<(), StageError> {
    match programs.run(program, arguments)? {
        (0, _) => Ok(()),
        (_, output) => Err(StageError::Program { program, device: device.to_owned(), output }),
    }
}

/// Checks a file system. Exit codes of e2fsck(8): 0 clean, 1 corrected. For others an operator must check the
/// disk.
fn check(device: &Path, programs: &dyn Programs) -> Result<(), StageError> {
    let path = device.display().to_string();
    match programs.run("e2fsck", &["-p", &path])? {
        (0 | 1, _) => Ok(()),
        (_, output) => Err(StageError::Program { program: "e2fsck", device: path, output }),
    }
}

fn mount_state(device: &Path, target: &Path, flags: MsFlags) -> Result<(), StageError> {
    fs::create_dir_all(target).map_err(StageError::system("make", target.display()))?;
    let flags = flags | MsFlags::MS_NOATIME | MsFlags::MS_NODEV;
    while_busy(|| mount(Some(device), target, Some("ext4"), flags, None::<&str>).map_err(io::Error::from))
        .map_err(StageError::system("mount", device.display()))
}

fn unmount(target: &Path) -> Result<(), StageError> {
    while_busy(|| umount2(target, MntFlags::empty()).map_err(io::Error::from))
        .map_err(StageError::system("unmount", target.display()))
}

/// Retries while another process holds the disk for a moment: a process that
/// was just forked inherits open files.
fn while_busy<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match act() {
            Err(error)
                if error.raw_os_error() == Some(Errno::EBUSY as i32) && start.elapsed() < BUSY_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// Runs programs in a root directory: this binary starts itself again, changes its root and becomes the program.
#[derive(Debug)]
pub(crate) struct RootPrograms {
    /// The root image's mount point.
    pub root: PathBuf,
}

/// First argument that makes this binary become another program. The root and the program follow.
pub(crate) const BECOME: &str = "become-program-in-root";

impl Programs for RootPrograms {
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(i32, String), StageError> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(BECOME).arg(&self.root).arg(format!("/sbin/{program}")).args(arguments);
        command.env_clear().stdin(Stdio::null());
        let output = command.output().map_err(StageError::system("run", program))?;
        let mut text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
        if text.is_empty() {
            text = format!("{} {}", output.status, String::from_utf8_lossy(&output.stdout).trim());
        }
        text.truncate((0..=text.len().min(400)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
        Ok((output.status.code().unwrap_or(-1), text))
    }
}

/// Becomes another program: the other half of [`RootPrograms`]. It returns only after a failure.
pub(crate) fn become_program(root: &Path, program: &str, arguments: &[String]) -> io::Error {
    use std::os::unix::process::CommandExt;
    let changed = nix::unistd::chroot(root).and_then(|()| nix::unistd::chdir("/"));
    match changed {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(errno) => errno.into(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
