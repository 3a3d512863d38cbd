//! The state disk on loop devices that each test makes itself. They need root; without it they fail and say so.

use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::stage1::loop_device;
use crate::stage1::new_root::STATE;
use crate::stage1::state_plan::RefuseDiskError;

/// mke2fs, tune2fs and e2fsck of the machine that tests run on.
struct HostPrograms;

impl Programs for HostPrograms {
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(i32, String), StageError> {
        // Tests run in threads: what another one has just forked holds this disk until it becomes its program.
        let start = Instant::now();
        loop {
            let mut command = Command::new(program);
            let output = command.env("PATH", "/usr/sbin:/sbin").args(arguments).output().expect(program);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if !text.contains("in use") || start.elapsed() > BUSY_TIMEOUT {
                return Ok((output.status.code().unwrap_or(-1), text));
            }
        }
    }
}

/// A sparse file of 64 MiB behind a loop device; both go with the value.
pub(crate) struct Disk {
    directory: TempDir,
    device: PathBuf,
    _keep: File,
}

impl Disk {
    pub(crate) fn new(prepare: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        File::create(&path).unwrap().set_len(64 << 20).unwrap();
        prepare(&path);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let (device, keep) =
            loop_device::attach_writable(&file).expect("a loop device: tests of the state disk need root");
        Self { directory, device, _keep: keep }
    }

    pub(crate) fn prepare(&self, machine: &str, wipe: WipeRequest) -> Result<Mounted, StageError> {
        self.prepare_for_release(machine, wipe, None)
    }

    fn prepare_for_release(
        &self,
        machine: &str,
        wipe: WipeRequest,
        release: Option<&str>,
    ) -> Result<Mounted, StageError> {
        let (select, release) =
            (DiskSelector::Serial("not used here".to_owned()), release.map(str::to_owned));
        let request = StateDiskRequest { select, wipe, release };
        prepare(&self.device, &machine.parse().unwrap(), &request, &self.target(), &HostPrograms)
    }

    /// Root of a host that has the disk.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.root().join(STATE.trim_start_matches('/'))
    }

    pub(crate) fn unmount(&self) {
        unmount(&self.target()).unwrap();
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(self.directory.path().join("disk")).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.target(), MntFlags::MNT_DETACH);
    }
}

fn refusal(result: Result<Mounted, StageError>) -> RefuseDiskError {
    match result {
        Err(StageError::RefuseDisk { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_blank_disk_is_made_once_and_then_kept() {
    let disk = Disk::new(|_| {});
    assert!(disk.prepare("node-1", WipeRequest::IfBlank).unwrap().made);
    fs::write(disk.target().join("kept"), "x").unwrap();
    disk.unmount();
    for wipe in [WipeRequest::IfBlank, WipeRequest::Never] {
        assert!(!disk.prepare("node-1", wipe).unwrap().made);
        assert_eq!(fs::read(disk.target().join("kept")).unwrap(), b"x");
        disk.unmount();
    }
}

#[test]
fn a_disk_with_foreign_data_is_left_alone_to_the_byte() {
    for (offset, bytes, found) in [
        (510, b"\x55\xaa".as_slice(), "an MBR partition table or boot sector"),
        (512, b"EFI PART", "a GPT partition table"),
        (33 << 20, &[7; 300_000], "data of an unknown kind"),
        ((64 << 20) - 4096, b"x", "data of an unknown kind"),
    ] {
        let disk = Disk::new(|path| {
            let mut file = File::options().write(true).open(path).unwrap();
            file.seek(SeekFrom::Start(offset)).unwrap();
            io::Write::write_all(&mut file, bytes).unwrap();
        });
        let before = disk.bytes();
        for wipe in [WipeRequest::IfBlank, WipeRequest::Never] {
            assert_eq!(
                refusal(disk.prepare("node-1", wipe)),
                RefuseDiskError::Foreign { found: found.to_owned() }
            );
        }
        assert!(before == disk.bytes(), "{found}");
    }
}

#[test]
fn a_foreign_ext4_is_named_by_its_label_and_left_alone() {
    let disk = Disk::new(|path| {
        let (code, text) =
            HostPrograms.run("mke2fs", &["-q", "-t", "ext4", "-L", "data", path.to_str().unwrap()]).unwrap();
        assert_eq!(code, 0, "{text}");
    });
    let before = disk.bytes();
    let refused = refusal(disk.prepare("node-1", WipeRequest::IfBlank));
    assert_eq!(refused, RefuseDiskError::Foreign { found: "an ext file system (label \"data\")".to_owned() });
    assert!(before == disk.bytes());
}

#[test]
fn wipe_once_makes_it_new_for_each_token_and_only_once() {
    let disk = Disk::new(|_| {});
    let once = |token: &str| WipeRequest::Once(token.to_owned());
    for (token, made) in [("t1", true), ("t1", false), ("t2", true), ("t2", false)] {
        let mounted = disk.prepare("node-1", once(token)).unwrap();
        assert_eq!((mounted.made, mounted.marker.wipe_token.as_deref()), (made, Some(token)));
        disk.unmount();
    }
    let refused = refusal(disk.prepare("node-2", WipeRequest::IfBlank));
    assert_eq!(refused, RefuseDiskError::OtherMachine { owner: "node-1".parse().unwrap() });
    assert!(disk.prepare("node-2", once("t2")).unwrap().made, "another Machine's token is not this one's");
}

#[test]
fn d7_token_of_a_claim_makes_no_disk_with_other_data() {
    let known = KNOWN.iter().map(|(offset, bytes, text)| (*offset as u64, *bytes, *text));
    let zfs = [
        (131_072, b"\x0c\xb1\xba\0\0\0\0\0".as_slice(), "a ZFS pool"),
        (197_632, b"\0\0\0\0\0\xba\xb1\x0c".as_slice(), "a ZFS pool"),
    ];
    let unknown = [0, 2047].map(|offset| (offset, b"x".as_slice(), "data of an unknown kind"));
    for (offset, bytes, found) in known.chain(zfs).chain(unknown) {
        let disk = Disk::new(|path| write_at(path, offset, bytes));
        let refused = refusal(disk.prepare_for_release("node-1", WipeRequest::IfBlank, Some("claim-1")));
        assert_eq!(refused, RefuseDiskError::Foreign { found: found.to_owned() }, "{offset}");
    }
    let headless = Disk::new(|path| write_at(path, 2048, b"x"));
    assert!(headless.prepare_for_release("node-1", WipeRequest::IfBlank, Some("claim-1")).unwrap().made);
}

fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset).unwrap();
}

/// Writes the agent's request and its record, with the disk mounted.
fn request_wipe(disk: &Disk, content: &str) {
    fs::write(disk.target().join(WIPE_REQUEST), content).unwrap();
    let token = serde_json::from_str(content).map_or_else(
        |_| "claim-1".to_owned(),
        |request: serde_json::Value| request["token"].as_str().unwrap_or("claim-1").to_owned(),
    );
    record_claim(disk, &serde_json::json!({ "is": "wiping", "token": token, "bootId": "b" }));
}

fn record_claim(disk: &Disk, stage: &serde_json::Value) {
    let path = disk.target().join(CLAIM_RECORD);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, serde_json::json!({ "providerID": "p", "stage": stage }).to_string()).unwrap();
}

#[test]
fn d7_wipe_that_the_agent_requests_is_done_once() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    for token in ["claim-1", "claim-2"] {
        fs::write(disk.target().join("left by a tenant"), "x").unwrap();
        request_wipe(&disk, &format!(r#"{{"token":"{token}"}}"#));
        disk.unmount();
        for made in [true, false] {
            let mounted = disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
            assert_eq!((mounted.made, mounted.marker.wipe_token.as_deref()), (made, Some(token)));
            assert!(!disk.target().join("left by a tenant").exists());
            assert!(!disk.target().join(WIPE_REQUEST).exists());
            disk.unmount();
        }
        disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    }
}

/// mke2fs that is killed once it has removed the former superblock.
struct KilledPrograms;

impl Programs for KilledPrograms {
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(i32, String), StageError> {
        if program == "mke2fs" {
            return Ok((137, "killed".to_owned()));
        }
        HostPrograms.run(program, arguments)
    }
}

#[test]
fn d7_wipe_that_lost_power_is_finished_by_the_token_of_the_claim() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    fs::write(disk.target().join("left by a tenant"), vec![7; 40 << 20]).unwrap();
    request_wipe(&disk, r#"{"token":"claim-1"}"#);
    disk.unmount();
    let select = DiskSelector::Serial("not used here".to_owned());
    let request = StateDiskRequest { select, wipe: WipeRequest::IfBlank, release: None };
    prepare(&disk.device, &"node-1".parse().unwrap(), &request, &disk.target(), &KilledPrograms).unwrap_err();
    let refused = refusal(disk.prepare("node-1", WipeRequest::IfBlank));
    assert_eq!(refused, RefuseDiskError::Foreign { found: "data of an unknown kind".to_owned() });
    let finish = || disk.prepare_for_release("node-1", WipeRequest::IfBlank, Some("claim-1")).unwrap();
    for made in [true, false] {
        let mounted = finish();
        assert_eq!((mounted.made, mounted.marker.wipe_token.as_deref()), (made, Some("claim-1")));
        assert!(!disk.target().join("left by a tenant").exists());
        disk.unmount();
    }
}

#[test]
fn d7_interrupted_wipe_of_a_disk_with_a_boot_sector_is_made_again() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    request_wipe(&disk, r#"{"token":"claim-1"}"#);
    disk.unmount();
    for (offset, bytes) in [(510, b"\x55\xaa".as_slice()), (1023, b"x")] {
        write_at(&disk.device, offset, bytes);
    }
    let parts = plan_erasure(&mut File::open(&disk.device).unwrap()).unwrap();
    let whole = fs::read(&disk.device).unwrap();
    for done in 0..=parts.len() {
        let after = Disk::new(|path| fs::write(path, &whole).unwrap());
        let mut file = File::options().write(true).open(&after.device).unwrap();
        parts[..done].iter().for_each(|part| erase(&mut file, part.clone()).unwrap());
        drop(file);
        let mounted = after.prepare_for_release("node-1", WipeRequest::IfBlank, Some("claim-1"));
        let mounted = mounted.unwrap_or_else(|error| panic!("{done} of {parts:?} erased: {error}"));
        assert_eq!((mounted.made, mounted.marker.wipe_token.as_deref()), (true, Some("claim-1")));
    }
}

#[test]
fn d7_request_that_an_earlier_claim_has_left_wipes_nothing() {
    let other = serde_json::json!({ "is": "wiping", "token": "claim-2", "bootId": "b" });
    for stage in [Some(serde_json::json!({ "is": "joined" })), Some(other), None] {
        let disk = Disk::new(|_| {});
        disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
        fs::write(disk.target().join("kept"), "x").unwrap();
        request_wipe(&disk, r#"{"token":"claim-1"}"#);
        match &stage {
            Some(stage) => record_claim(&disk, stage),
            None => fs::remove_file(disk.target().join(CLAIM_RECORD)).unwrap(),
        }
        disk.unmount();
        assert!(!disk.prepare("node-1", WipeRequest::IfBlank).unwrap().made, "{stage:?}");
        assert_eq!(fs::read(disk.target().join("kept")).unwrap(), b"x");
    }
}

/// e2fsck that finds errors which it does not correct.
struct ErrorsLeft;

impl Programs for ErrorsLeft {
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(i32, String), StageError> {
        if program == "e2fsck" {
            return Ok((4, "UNEXPECTED INCONSISTENCY".to_owned()));
        }
        HostPrograms.run(program, arguments)
    }
}

#[test]
fn d7_disk_that_no_check_repairs_is_made_again_on_request() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    fs::write(disk.target().join("left by a tenant"), "x").unwrap();
    disk.unmount();
    let select = DiskSelector::Serial("not used here".to_owned());
    let request = StateDiskRequest { select, wipe: WipeRequest::IfBlank, release: None };
    let machine = "node-1".parse().unwrap();
    let prepare = || prepare(&disk.device, &machine, &request, &disk.target(), &ErrorsLeft);
    let refused = prepare().unwrap_err();
    assert!(matches!(refused, StageError::Program { program: "e2fsck", .. }), "{refused:?}");
    mount_state(&disk.device, &disk.target(), MsFlags::empty()).unwrap();
    request_wipe(&disk, r#"{"token":"claim-1"}"#);
    disk.unmount();
    let mounted = prepare().unwrap();
    assert_eq!((mounted.made, mounted.marker.wipe_token.as_deref()), (true, Some("claim-1")));
    assert!(!disk.target().join("left by a tenant").exists());
}

#[test]
fn d7_request_that_lies_in_the_journal_is_found_by_the_check_or_the_mount() {
    struct FailedAfterReplay;
    impl Programs for FailedAfterReplay {
        fn run(&self, program: &str, arguments: &[&str]) -> Result<(i32, String), StageError> {
            let ran = HostPrograms.run(program, arguments)?;
            Ok(if program == "e2fsck" { (4, String::new()) } else { ran })
        }
    }
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    request_wipe(&disk, r#"{"token":"claim-1"}"#);
    // The files are flushed and the host loses power: their names may be in the journal alone.
    for name in [WIPE_REQUEST, CLAIM_RECORD] {
        let path = disk.target().join(name);
        File::open(&path).unwrap().sync_all().unwrap();
        file::sync_directory(path.parent().unwrap()).unwrap();
    }
    file::sync_directory(&disk.target()).unwrap();
    let lost = disk.bytes();
    for programs in [&HostPrograms as &dyn Programs, &FailedAfterReplay] {
        let after = Disk::new(|path| fs::write(path, &lost).unwrap());
        let select = DiskSelector::Serial("not used here".to_owned());
        let request = StateDiskRequest { select, wipe: WipeRequest::IfBlank, release: None };
        let machine = "node-1".parse().unwrap();
        let mounted = prepare(&after.device, &machine, &request, &after.target(), programs).unwrap();
        assert_eq!((mounted.made, mounted.marker.wipe_token.as_deref()), (true, Some("claim-1")));
    }
}

#[test]
fn d7_request_that_the_journal_withdraws_wipes_nothing() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    request_wipe(&disk, r#"{"token":"claim-1"}"#);
    disk.unmount();
    mount_state(&disk.device, &disk.target(), MsFlags::empty()).unwrap();
    fs::write(disk.target().join("kept"), "x").unwrap();
    fs::remove_file(disk.target().join(WIPE_REQUEST)).unwrap();
    File::open(disk.target().join("kept")).unwrap().sync_all().unwrap();
    file::sync_directory(&disk.target()).unwrap();
    let lost = disk.bytes();
    let after = Disk::new(|path| fs::write(path, &lost).unwrap());
    assert!(!after.prepare("node-1", WipeRequest::IfBlank).unwrap().made);
    assert_eq!(fs::read(after.target().join("kept")).unwrap(), b"x");
}

#[test]
fn data_where_no_copy_of_the_superblock_is_stays_until_the_disk_is_made() {
    let at = usize::try_from(COPIES[0]).unwrap();
    let disk = Disk::new(|path| {
        let arguments = ["-q", "-F", "-t", "ext4", "-b", "4096", "-L", LABEL, path.to_str().unwrap()];
        assert_eq!(HostPrograms.run("mke2fs", &arguments).unwrap().0, 0);
        let file = File::options().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; SUPERBLOCK_SIZE], COPIES[0]).unwrap();
    });
    erase_superblocks(&disk.device).unwrap();
    let bytes = disk.bytes();
    assert!(bytes[at..at + SUPERBLOCK_SIZE].iter().all(|byte| *byte == 7));
    assert!(bytes[1024..2048].iter().all(|byte| *byte == 0));
}

#[test]
fn d7_no_other_rule_and_no_damaged_request_wipes() {
    let once = || WipeRequest::Once("t1".to_owned());
    for (machine, wipe, content) in [
        ("node-1", WipeRequest::Never, r#"{"token":"claim-1"}"#),
        ("node-1", once(), r#"{"token":"claim-1"}"#),
        ("node-1", WipeRequest::IfBlank, r#"{"token""#),
        ("node-1", WipeRequest::IfBlank, "{}"),
        ("node-2", WipeRequest::IfBlank, r#"{"token":"claim-1"}"#),
    ] {
        let disk = Disk::new(|_| {});
        disk.prepare("node-1", once()).unwrap();
        fs::write(disk.target().join("kept"), "x").unwrap();
        request_wipe(&disk, content);
        disk.unmount();
        let prepared = disk.prepare(machine, wipe.clone());
        if machine == "node-1" {
            assert!(!prepared.unwrap().made, "{wipe:?} {content}");
            assert_eq!(fs::read(disk.target().join("kept")).unwrap(), b"x");
        } else {
            let owner = "node-1".parse().unwrap();
            assert_eq!(refusal(prepared), RefuseDiskError::OtherMachine { owner });
        }
    }
}

#[test]
fn a_disk_that_lost_power_while_it_was_made_is_made_again() {
    for mount_it in [false, true] {
        let disk = Disk::new(|_| {});
        let device = disk.device.to_str().unwrap();
        assert_eq!(
            HostPrograms.run("mke2fs", &["-q", "-F", "-t", "ext4", "-L", "bedplate-new", device]).unwrap().0,
            0
        );
        if mount_it {
            mount_state(&disk.device, &disk.target(), MsFlags::empty()).unwrap();
            fs::write(disk.target().join(format!("{MARKER}.new")), "{").unwrap();
            fs::write(disk.target().join(MARKER), "{").unwrap();
            disk.unmount();
        }
        assert_eq!(refusal(disk.prepare("node-1", WipeRequest::Never)), RefuseDiskError::BlankAndNever);
        assert!(disk.prepare("node-1", WipeRequest::IfBlank).unwrap().made);
        disk.unmount();
        assert!(!disk.prepare("node-1", WipeRequest::IfBlank).unwrap().made);
    }
}

/// A disk of node-1, made by token t1, with a file on it; `damage` is done to it while it is mounted, or afterwards.
fn damaged(mounted: impl FnOnce(&Path), afterwards: &[(u64, &[u8])]) -> Disk {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::Once("t1".to_owned())).unwrap();
    fs::write(disk.target().join("precious"), "x").unwrap();
    mounted(&disk.target());
    disk.unmount();
    for (offset, bytes) in afterwards {
        let mut file = File::options().write(true).open(&disk.device).unwrap();
        file.seek(SeekFrom::Start(*offset)).unwrap();
        io::Write::write_all(&mut file, bytes).unwrap();
        file.sync_all().unwrap();
    }
    disk
}

/// Refused whatever `wipe` says, and not a byte of it is changed.
fn assert_left_alone(disk: &Disk, why: &str) {
    let before = disk.bytes();
    let once = |token: &str| WipeRequest::Once(token.to_owned());
    for wipe in [WipeRequest::IfBlank, WipeRequest::Never, once("t1"), once("t2")] {
        let refused = refusal(disk.prepare("node-1", wipe.clone())).to_string();
        assert!(refused.contains(why), "{wipe:?}: {refused}");
    }
    assert!(before == disk.bytes(), "{why}");
}

#[test]
fn state_of_ours_that_cannot_be_mounted_is_never_made_new() {
    // Superblock's checksum, and its count of inodes per group (offsets 1020 and 40 in the superblock).
    assert_left_alone(&damaged(|_| {}, &[(1024 + 1020, b"\xff\xee\xdd\xcc")]), "cannot be mounted");
    assert_left_alone(&damaged(|_| {}, &[(1024 + 40, &[0; 4])]), "cannot be mounted");
}

#[test]
fn state_of_ours_whose_superblock_is_lost_is_never_made_new() {
    assert_left_alone(&damaged(|_| {}, &[(0, &[0; 4096])]), "first superblock");
    assert_left_alone(&damaged(|_| {}, &[(1024, &[0xa5; 1024])]), "first superblock");
}

#[test]
fn state_of_ours_whose_marker_cannot_be_read_is_never_made_new() {
    let marker = |root: &Path| root.join(MARKER);
    assert_left_alone(&damaged(|root| fs::write(marker(root), "{").unwrap(), &[]), "is damaged");
    assert_left_alone(&damaged(|root| fs::write(marker(root), "").unwrap(), &[]), "is damaged");
    assert_left_alone(&damaged(|root| fs::remove_file(marker(root)).unwrap(), &[]), "without");
    let only_the_marker_was_there = damaged(
        |root| {
            fs::remove_file(marker(root)).unwrap();
            fs::remove_file(root.join("precious")).unwrap();
        },
        &[],
    );
    assert_left_alone(&only_the_marker_was_there, "without");
}

#[test]
fn files_under_the_label_of_being_made_are_never_made_new() {
    let disk = damaged(|_| {}, &[]);
    let relabeled = HostPrograms.run("tune2fs", &["-L", "bedplate-new", disk.device.to_str().unwrap()]);
    assert_eq!(relabeled.unwrap().0, 0);
    assert_left_alone(&disk, "with files");
}

#[test]
fn the_marker_is_on_the_disk_and_not_only_in_the_journal() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    // As after a power cut: a copy of the mounted disk, whose journal is not replayed.
    let after = Disk::new(|path| {
        fs::copy(disk.directory.path().join("disk"), path).unwrap();
    });
    let content = observe_content(&after.device, &after.target()).unwrap();
    assert!(matches!(content, Content::State(_)), "{content:?}");
    assert!(!after.prepare("node-1", WipeRequest::IfBlank).unwrap().made);
}

#[test]
fn the_remedy_that_a_refusal_names_makes_a_damaged_disk_usable() {
    let disk = damaged(|_| {}, &[(0, &[0; 4096])]);
    let file = File::options().write(true).open(&disk.device).unwrap();
    for mebibyte in 0..64 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 1 << 20], mebibyte << 20).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    assert!(disk.prepare("node-1", WipeRequest::Once("t1".to_owned())).unwrap().made);
}

#[test]
fn a_disk_that_is_in_use_is_left_alone() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    let again = disk.prepare("node-1", WipeRequest::Once("t1".to_owned()));
    assert!(matches!(again, Err(StageError::System { act: "open exclusively", .. })), "{again:?}");
}
