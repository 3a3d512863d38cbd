//! The state disk on loop devices that each test makes itself. They need root; without it they fail and say so.

use std::path::PathBuf;

use bedplate_api::wire::WipeRequest;
use tempfile::TempDir;

use super::super::loop_device;
use super::super::state_plan::RefuseDiskError;
use super::*;

/// mke2fs and e2fsck of the machine that tests run on.
struct HostPrograms;

impl Programs for HostPrograms {
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(i32, String), StageError> {
        let output =
            Command::new(program).env("PATH", "/usr/sbin:/sbin").args(arguments).output().expect(program);
        Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

/// A sparse file of 64 MiB behind a loop device; both go with the value.
struct Disk {
    directory: TempDir,
    device: PathBuf,
    _keep: File,
}

impl Disk {
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        File::create(&path).unwrap().set_len(64 << 20).unwrap();
        prepare(&path);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let (device, keep) =
            loop_device::attach_writable(&file).expect("a loop device: tests of the state disk need root");
        Self { directory, device, _keep: keep }
    }

    fn prepare(&self, machine: &str, wipe: WipeRequest) -> Result<Mounted, StageError> {
        let request = StateDiskRequest { select: DiskSelector::Serial("not used here".to_owned()), wipe };
        prepare(&self.device, &machine.parse().unwrap(), &request, &self.target(), &HostPrograms)
    }

    fn target(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn unmount(&self) {
        umount2(&self.target(), MntFlags::empty()).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
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
fn a_disk_that_lost_power_while_it_was_made_is_made_again() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    fs::remove_file(disk.target().join(MARKER)).unwrap();
    disk.unmount();
    assert_eq!(refusal(disk.prepare("node-1", WipeRequest::Never)), RefuseDiskError::BlankAndNever);
    assert!(disk.prepare("node-1", WipeRequest::IfBlank).unwrap().made);
}

#[test]
fn our_label_over_files_without_a_marker_is_left_alone() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    fs::remove_file(disk.target().join(MARKER)).unwrap();
    fs::write(disk.target().join("precious"), "x").unwrap();
    disk.unmount();
    assert!(matches!(refusal(disk.prepare("node-1", WipeRequest::IfBlank)), RefuseDiskError::Foreign { .. }));
}

#[test]
fn a_disk_that_is_in_use_is_left_alone() {
    let disk = Disk::new(|_| {});
    disk.prepare("node-1", WipeRequest::IfBlank).unwrap();
    let again = disk.prepare("node-1", WipeRequest::Once("t1".to_owned()));
    assert!(matches!(again, Err(StageError::System { act: "get for ourselves", .. })), "{again:?}");
}
