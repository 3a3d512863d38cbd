//! Facts of whole machines, from fixture trees.

use bedplate_api::machine::{Disk, FirmwareMode, Nic};

use super::fixture::{server, vm};
use super::observe_hardware;

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn facts_of_a_virtual_machine() {
    let root = vm();
    let facts = observe_hardware(root.path());
    assert_eq!((facts.vendor, facts.serial), (text("QEMU"), None), "an unset serial is absent");
    assert_eq!(facts.uuid, text("6d5a8b1e-0000-0000-0000-525400000001"));
    let firmware = facts.firmware.unwrap();
    assert_eq!((firmware.mode, firmware.secure_boot), (Some(FirmwareMode::Bios), None));
    let cpu = facts.cpu.unwrap();
    assert_eq!(cpu.model, text("QEMU TCG CPU version 2.5+"));
    assert_eq!((cpu.sockets, cpu.cores, cpu.threads), (Some(2), Some(2), Some(2)));
    assert_eq!(facts.memory_bytes, Some(1_012_340 * 1024));
    assert_eq!(
        facts.nics,
        [Nic {
            name: text("eth0"),
            mac_address: text("52:54:00:00:00:01"),
            driver: text("virtio_net"),
            link: Some(true),
            speed_mbps: None,
        }]
    );
    assert_eq!(
        facts.disks,
        [Disk {
            name: text("vda"),
            by_id: vec!["virtio-state-1".to_owned()],
            serial: text("state-1"),
            size_bytes: Some(1 << 30),
            rotational: Some(true),
            removable: Some(false),
            ..Disk::default()
        }]
    );
    assert_eq!(facts.tpm.unwrap().present, Some(false));
    let clock = facts.clock.unwrap();
    assert_eq!((clock.source, clock.synchronized), (text("tsc"), Some(false)));
}

#[test]
fn facts_of_a_server() {
    let root = server();
    let facts = observe_hardware(root.path());
    let firmware = facts.firmware.unwrap();
    assert_eq!((firmware.mode, firmware.secure_boot), (Some(FirmwareMode::Uefi), Some(true)));
    let cpu = facts.cpu.unwrap();
    assert_eq!((cpu.sockets, cpu.cores, cpu.threads), (Some(2), Some(32), Some(64)));
    let tpm = facts.tpm.unwrap();
    assert_eq!((tpm.present, tpm.version), (Some(true), text("2.0")));
    assert_eq!(facts.clock.unwrap().synchronized, Some(true));
    let names: Vec<_> = facts.disks.iter().filter_map(|disk| disk.name.as_deref()).collect();
    assert_eq!(names, ["nvme0n1", "sda", "sdb", "sdc"], "no RAID device, no hidden path");
    let sda = &facts.disks[1];
    assert_eq!(
        (&sda.serial, &sda.wwn, &sda.hctl),
        (&text("W4210000"), &text("0x5000c500a1b2c3d4"), &text("0:0:0:0"))
    );
    assert!(sda.by_id.contains(&"scsi-SDELL_PERC".to_owned()), "a name that udev made: {:?}", sda.by_id);
    let nics: Vec<_> = facts.nics.iter().map(|nic| (nic.name.as_deref(), nic.link, nic.speed_mbps)).collect();
    assert_eq!(nics, [(Some("eno1"), Some(true), Some(25_000)), (Some("eno2"), None, None)]);
    assert_eq!(facts.nics[0].mac_address, text("aa:bb:cc:00:00:01"));
    assert_eq!(facts.nics[0].driver, text("bnxt_en"));
}

#[test]
fn an_empty_tree_gives_empty_facts_and_no_error() {
    let root = tempfile::tempdir().unwrap();
    let facts = observe_hardware(root.path());
    assert!(facts.disks.is_empty() && facts.nics.is_empty() && facts.memory_bytes.is_none());
}
