//! Trees that look like /sys, /proc and /dev of a virtual machine and of a server. Only for tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

/// Writes files (path and content) below `root`.
pub(crate) fn write(root: &Path, files: &[(&str, &str)]) {
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn link(root: &Path, path: &str, target: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let target = Path::new(target);
    if target.is_relative() {
        fs::create_dir_all(path.parent().unwrap().join(target)).unwrap();
    }
    symlink(target, path).unwrap();
}

/// A QEMU guest: BIOS, one virtio NIC, one virtio disk, a loop device, a CD drive.
pub(crate) fn vm() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    write(
        root.path(),
        &[
            (
                "proc/meminfo",
                "MemTotal:        1012340 kB\nMemFree:          800000 kB\nMemAvailable:     850000 kB\n",
            ),
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: QEMU  TCG CPU version 2.5+\n\nprocessor\t: 1\nmodel name\t: x\n",
            ),
            ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
            ("sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)\n"),
            ("sys/class/dmi/id/product_serial", "Not Specified\n"),
            ("sys/class/dmi/id/product_uuid", "6D5A8B1E-0000-0000-0000-525400000001\n"),
            ("sys/class/dmi/id/bios_vendor", "SeaBIOS\n"),
            ("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n"),
            ("sys/devices/system/cpu/cpu0/topology/core_id", "0\n"),
            ("sys/devices/system/cpu/cpu1/topology/physical_package_id", "1\n"),
            ("sys/devices/system/cpu/cpu1/topology/core_id", "0\n"),
            ("sys/devices/system/cpu/cpufreq/x", ""),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ("sys/class/net/lo/address", "00:00:00:00:00:00\n"),
            ("sys/class/net/eth0/address", "52:54:00:00:00:01\n"),
            ("sys/class/net/eth0/carrier", "1\n"),
            ("sys/class/net/eth0/speed", "-1\n"),
            ("sys/class/net/eth0/ifindex", "2\n"),
            ("sys/block/vda/size", "2097152\n"),
            ("sys/block/vda/serial", "state-1"),
            ("sys/block/vda/removable", "0\n"),
            ("sys/block/vda/queue/rotational", "1\n"),
            ("sys/block/loop0/size", "0\n"),
            ("sys/block/sr0/device/type", "5\n"),
            ("sys/block/sr0/size", "2097151\n"),
        ],
    );
    link(root.path(), "sys/block/vda/device", "../../devices/virtio1");
    link(root.path(), "sys/class/net/eth0/device", "../../../devices/virtio0");
    link(root.path(), "sys/devices/virtio0/driver", "../../bus/virtio/drivers/virtio_net");
    root
}

/// A two-socket server: UEFI with Secure Boot, a TPM 2.0, two SAS/SATA disks, NVMe (with a hidden path), a USB stick,
/// a RAID device, two NICs and a bond.
pub(crate) fn server() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    write(
        root.path(),
        &[
            ("proc/meminfo", "MemTotal:       263863300 kB\n"),
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7313 16-Core Processor\n"),
            ("sys/class/dmi/id/sys_vendor", "Dell Inc.\n"),
            ("sys/class/dmi/id/product_name", "PowerEdge R6525\n"),
            ("sys/class/dmi/id/product_serial", "ABC1234\n"),
            ("sys/class/dmi/id/bios_version", "2.14.1\n"),
            ("sys/class/tpm/tpm0/tpm_version_major", "2\n"),
            ("run/systemd/timesync/synchronized", ""),
            ("sys/class/net/bond0/address", "aa:bb:cc:00:00:01\n"),
            ("sys/class/net/eno1/address", "AA:BB:CC:00:00:01\n"),
            ("sys/class/net/eno1/carrier", "1\n"),
            ("sys/class/net/eno1/speed", "25000\n"),
            ("sys/class/net/eno2/address", "aa:bb:cc:00:00:02\n"),
            ("sys/block/sda/size", "1172123568\n"),
            ("sys/block/sda/removable", "0\n"),
            ("sys/block/sda/queue/rotational", "1\n"),
            ("sys/block/sdb/size", "7814037168\n"),
            ("sys/block/sdb/removable", "0\n"),
            ("sys/block/sdb/queue/rotational", "1\n"),
            ("sys/block/sdc/size", "60063744\n"),
            ("sys/block/sdc/removable", "1\n"),
            ("sys/block/sdc/queue/rotational", "0\n"),
            ("sys/block/nvme0n1/size", "1875385008\n"),
            ("sys/block/nvme0n1/wwid", "eui.0025385b71b0a1c2\n"),
            ("sys/block/nvme0n1/removable", "0\n"),
            ("sys/block/nvme0n1/queue/rotational", "0\n"),
            ("sys/block/nvme0c0n1/hidden", "1\n"),
            ("sys/block/md127/size", "1000\n"),
            ("sys/devices/0:0:0:0/vendor", "SEAGATE \n"),
            ("sys/devices/0:0:0:0/model", "ST600MM0088     \n"),
            ("sys/devices/0:0:0:0/wwid", "naa.5000c500a1b2c3d4\n"),
            ("sys/devices/0:0:0:0/vpd_pg80", "\0\u{1}\0\u{8}W4210000"),
            ("sys/devices/0:0:0:0/type", "0\n"),
            ("sys/devices/1:0:0:0/vendor", "ATA     \n"),
            ("sys/devices/1:0:0:0/model", "WDC WD40EFRX-68N\n"),
            ("sys/devices/2:0:0:0/vendor", "SanDisk \n"),
            ("sys/devices/nvme0/model", "SAMSUNG MZQL2960HCJR-00A07              \n"),
            ("sys/devices/nvme0/serial", "S64FNE0R500001      \n"),
        ],
    );
    let secure = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    write(root.path(), &[(secure, "\u{6}\0\0\0\u{1}")]);
    fs::write(
        root.path().join("sys/devices/1:0:0:0/vpd_pg89"),
        ata_page("Z1X2", "WDC WD40EFRX-68N32N0 LONG"),
    )
    .unwrap();
    for (disk, device) in [
        ("sda", "0:0:0:0"),
        ("sdb", "1:0:0:0"),
        ("sdc", "2:0:0:0"),
        ("nvme0n1", "nvme0"),
        ("nvme0c0n1", "nvme0"),
    ] {
        link(root.path(), &format!("sys/block/{disk}/device"), &format!("../../devices/{device}"));
    }
    for (core, (socket, id)) in (0..64).map(|n| (n, (n / 32, n % 16))) {
        let topology = format!("sys/devices/system/cpu/cpu{core}/topology");
        write(
            root.path(),
            &[
                (&format!("{topology}/physical_package_id"), &socket.to_string()),
                (&format!("{topology}/core_id"), &id.to_string()),
            ],
        );
    }
    for nic in ["eno1", "eno2"] {
        link(root.path(), &format!("sys/class/net/{nic}/device"), &format!("../../../devices/pci-{nic}"));
        link(root.path(), &format!("sys/devices/pci-{nic}/driver"), "../../bus/pci/drivers/bnxt_en");
    }
    fs::create_dir_all(root.path().join("dev/disk/by-id")).unwrap();
    symlink("../../sda", root.path().join("dev/disk/by-id/scsi-SDELL_PERC")).unwrap();
    root
}

fn ata_page(serial: &str, model: &str) -> Vec<u8> {
    let mut page = vec![0; 572];
    for (word, text) in [(10, format!("{serial:<20}")), (27, format!("{model:<40}"))] {
        for (i, pair) in text.as_bytes().chunks(2).enumerate() {
            page[60 + 2 * word + 2 * i] = pair[1];
            page[60 + 2 * word + 2 * i + 1] = pair[0];
        }
    }
    page
}
