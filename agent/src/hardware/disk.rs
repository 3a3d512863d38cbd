//! Disks, from /sys/block, with every name by which a Machine may select one.
//!
//! Only reads, also before udev runs: names below /dev/disk/by-id are made as udev makes them and joined with those
//! that are there. Called by `observe_hardware` and by stage-1, which selects the state disk by them.

use std::path::Path;

use bedplate_api::machine::Disk;

use super::disk_name::{AtaIdentity, Identity, by_id_names, read_ata_identity};
use super::{link_name, names_in, read_bytes, read_text};

/// At most as many as `status.hardware.disks` takes.
const MAX_DISKS: usize = 256;
const MAX_NAMES: usize = 16;

/// The disks of the machine below `root`, by kernel name. Partitions, loop devices, memory disks, device-mapper, RAID
/// and optical drives are not disks.
pub(crate) fn observe_disks(root: &Path) -> Vec<Disk> {
    let block = root.join("sys/block");
    let links = by_id_links(root);
    let mut disks = Vec::new();
    for name in names_in(&block) {
        let path = block.join(&name);
        if is_disk(&path, &name) && disks.len() < MAX_DISKS {
            disks.push(observe_disk(&path, name, &links));
        }
    }
    disks
}

fn is_disk(path: &Path, name: &str) -> bool {
    const NOT_DISKS: [&str; 10] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "mtdblock", "zd"];
    let optical = read_text(&path.join("device/type")).as_deref() == Some("5") && !name.starts_with("mmc");
    let hidden = read_text(&path.join("hidden")).as_deref() == Some("1");
    let boot_area = name.starts_with("mmcblk") && (name.contains("boot") || name.contains("rpmb"));
    path.join("device").exists()
        && !NOT_DISKS.iter().any(|prefix| name.starts_with(prefix))
        && !optical
        && !hidden
        && !boot_area
}

fn observe_disk(path: &Path, name: String, links: &[(String, String)]) -> Disk {
    let identity = observe_identity(path, &name);
    let sectors = read_text(&path.join("size")).and_then(|text| text.parse::<i64>().ok());
    let flag = |file: &str| read_text(&path.join(file)).map(|text| text == "1");
    let mut by_id = by_id_names(&identity);
    by_id.extend(links.iter().filter(|(_, target)| *target == name).map(|(link, _)| link.clone()));
    by_id.sort();
    by_id.dedup();
    by_id.truncate(MAX_NAMES);
    Disk {
        by_id,
        hctl: link_name(&path.join("device")).filter(|text| is_hctl(text)),
        model: identity.full_model(),
        serial: identity.full_serial(),
        wwn: identity.wwn(),
        size_bytes: sectors.and_then(|sectors| sectors.checked_mul(512)),
        rotational: flag("queue/rotational"),
        removable: flag("removable"),
        name: Some(name),
    }
}

fn observe_identity(path: &Path, name: &str) -> Identity {
    let device = |file: &str| read_text(&path.join("device").join(file));
    // VPD page 80h (SPC-4, 7.8.15): four bytes of head, then the serial number as text.
    let page80 = read_bytes(&path.join("device/vpd_pg80")).and_then(|page| {
        let text = String::from_utf8(page.get(4..)?.to_vec()).ok()?;
        Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned()).filter(|t| !t.is_empty())
    });
    let ata: Option<AtaIdentity> =
        read_bytes(&path.join("device/vpd_pg89")).and_then(|page| read_ata_identity(&page));
    Identity {
        kernel_name: name.to_owned(),
        vendor: device("vendor").filter(|text| !text.starts_with("0x")),
        model: device("model"),
        // virtio-blk has its serial in the disk's directory, NVMe in its controller's, MMC in its card's.
        serial: page80.or_else(|| device("serial")).or_else(|| read_text(&path.join("serial"))),
        wwid: read_text(&path.join("wwid")).or_else(|| device("wwid")),
        card_name: device("name").filter(|_| name.starts_with("mmcblk")),
        ata,
    }
}

/// Four numbers joined by colons.
fn is_hctl(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() == 4 && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// Returns udev's links, if udev runs: name and kernel name.
fn by_id_links(root: &Path) -> Vec<(String, String)> {
    let directory = root.join("dev/disk/by-id");
    names_in(&directory)
        .into_iter()
        .filter_map(|name| Some((link_name(&directory.join(&name))?, name)).map(|(t, n)| (n, t)))
        .collect()
}
