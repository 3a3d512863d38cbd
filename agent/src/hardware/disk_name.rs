//! The names that udev gives a disk below /dev/disk/by-id (60-persistent-storage.rules), made without udev.
//!
//! Pure: values of /sys in, names out. Only whole disks; bus types that name themselves: ATA, SCSI, NVMe,
//! virtio, MMC. Called by `disk`.

/// Identifiers that a disk reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Name in /sys/block.
    pub kernel_name: String,
    /// SCSI vendor.
    pub vendor: Option<String>,
    /// Model, as the bus shows it; SCSI cuts it at 16 characters.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// World wide identifier with its kind, such as `naa.5000c500a1b2c3d4` or `eui.0025385b71b0a1c2`.
    pub wwid: Option<String>,
    /// Name of an MMC card.
    pub card_name: Option<String>,
    /// Answer of an ATA disk to IDENTIFY DEVICE.
    pub ata: Option<AtaIdentity>,
}

/// The parts of IDENTIFY DEVICE (ATA8-ACS, 7.17) that name a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AtaIdentity {
    /// Serial number, words 10 to 19.
    pub serial: String,
    /// Model, words 27 to 46.
    pub model: String,
}

impl Identity {
    /// Returns the complete model, which the bus would truncate.
    pub(crate) fn full_model(&self) -> Option<String> {
        let ata = self.ata.as_ref().map(|ata| ata.model.clone());
        ata.or_else(|| self.model.clone()).or_else(|| self.card_name.clone())
    }

    /// The serial number as the drive reports it.
    pub(crate) fn full_serial(&self) -> Option<String> {
        self.ata.as_ref().map(|ata| ata.serial.clone()).or_else(|| self.serial.clone())
    }

    /// Returns the world wide name: `0x...` for NAA, otherwise with its kind. A
    /// `t10.` identifier is a text, not a world wide name.
    pub(crate) fn wwn(&self) -> Option<String> {
        let wwid = self.wwid.as_deref()?;
        match wwid.strip_prefix("naa.") {
            Some(hex) => Some(format!("0x{hex}")),
            None => (!wwid.starts_with("t10.")).then(|| wwid.to_owned()),
        }
    }
}

/// Names below /dev/disk/by-id, in no order.
pub(crate) fn by_id_names(disk: &Identity) -> Vec<String> {
    let mut names = Vec::new();
    let serial = disk.full_serial();
    if disk.kernel_name.starts_with("nvme") {
        nvme_names(disk, &mut names);
    } else if disk.kernel_name.starts_with("vd") {
        names.extend(serial.map(|serial| format!("virtio-{}", plain(&serial))));
    } else if disk.kernel_name.starts_with("mmcblk") {
        if let (Some(name), Some(serial)) = (&disk.card_name, serial) {
            names.push(format!("mmc-{}_{}", plain(name), plain(&serial)));
        }
    } else {
        scsi_names(disk, &mut names);
    }
    names
}

fn nvme_names(disk: &Identity, names: &mut Vec<String>) {
    if let (Some(model), Some(serial)) = (&disk.model, &disk.serial) {
        let name = format!("nvme-{}_{}", plain(model), plain(serial));
        if let Some(namespace) = disk.kernel_name.rsplit('n').next() {
            names.push(format!("{name}_{namespace}"));
        }
        names.push(name);
    }
    names.extend(disk.wwid.as_ref().map(|wwid| format!("nvme-{}", plain(wwid))));
}

fn scsi_names(disk: &Identity, names: &mut Vec<String>) {
    if let Some(hex) = disk.wwid.as_deref().and_then(|wwid| wwid.strip_prefix("naa.")) {
        names.push(format!("wwn-0x{hex}"));
        names.push(format!("scsi-3{hex}"));
    }
    if let Some(ata) = &disk.ata {
        names.push(format!("ata-{}_{}", plain(&ata.model), plain(&ata.serial)));
    } else if let (Some(vendor), Some(model), Some(serial)) = (&disk.vendor, &disk.model, &disk.serial) {
        // scsi_id: S for a serial number of page 80h, 0 for a vendor-specific identifier of page 83h, which QEMU has.
        names.push(format!("scsi-S{}_{}_{}", plain(vendor), plain(model), plain(serial)));
        names.push(format!("scsi-0{}_{}_{}", plain(vendor), plain(model), plain(serial)));
    }
}

/// ATA Information VPD page (SAT-3, 12.4.2): IDENTIFY DEVICE data from byte 60 on, texts in swapped pairs.
pub(crate) fn read_ata_identity(page: &[u8]) -> Option<AtaIdentity> {
    let text = |first_word: usize, words: usize| {
        let at = 60 + 2 * first_word;
        let (pairs, _) = page.get(at..at + 2 * words)?.as_chunks::<2>();
        let bytes: Vec<u8> = pairs.iter().flat_map(|[high, low]| [*low, *high]).collect();
        let text = String::from_utf8(bytes).ok()?;
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!text.is_empty() && text.bytes().all(|b| (0x20..0x7f).contains(&b))).then(|| text.to_owned())
    };
    Some(AtaIdentity { serial: text(10, 10)?, model: text(27, 20)? })
}

/// Replaces characters like udev: runs of whitespace and characters that do not
/// fit a file name become one `_` each.
fn plain(text: &str) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join("_");
    joined
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) { c } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str, vendor: &str, model: &str, serial: &str, wwid: &str) -> Identity {
        let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
        Identity {
            kernel_name: name.to_owned(),
            vendor: text(vendor),
            model: text(model),
            serial: text(serial),
            wwid: text(wwid),
            card_name: None,
            ata: None,
        }
    }

    #[test]
    fn names_are_those_of_udev() {
        for (disk, expected) in [
            (identity("vda", "", "", "state-1", ""), vec!["virtio-state-1"]),
            (identity("vdb", "", "", "", ""), vec![]),
            (
                identity("nvme0n1", "", "Samsung SSD 980  PRO", "S5GX", "eui.0025385b"),
                vec!["nvme-Samsung_SSD_980_PRO_S5GX_1", "nvme-Samsung_SSD_980_PRO_S5GX", "nvme-eui.0025385b"],
            ),
            (
                identity("sda", "SEAGATE", "ST600MM0088", "W421", "naa.5000c500a1b2c3d4"),
                vec![
                    "wwn-0x5000c500a1b2c3d4",
                    "scsi-35000c500a1b2c3d4",
                    "scsi-SSEAGATE_ST600MM0088_W421",
                    "scsi-0SEAGATE_ST600MM0088_W421",
                ],
            ),
        ] {
            assert_eq!(by_id_names(&disk), expected, "{disk:?}");
        }
    }

    #[test]
    fn ata_identity_is_read_from_swapped_pairs_and_names_the_disk() {
        let mut page = vec![0; 572];
        let put = |page: &mut Vec<u8>, word: usize, length: usize, text: &str| {
            let padded = format!("{text:<length$}");
            for (i, pair) in padded.as_bytes().chunks(2).enumerate() {
                page[60 + 2 * word + 2 * i] = pair[1];
                page[60 + 2 * word + 2 * i + 1] = pair[0];
            }
        };
        put(&mut page, 10, 20, "  Z1X2");
        put(&mut page, 27, 40, "WDC WD40EFRX-68N32N0 LONG");
        let ata = read_ata_identity(&page).unwrap();
        assert_eq!(
            ata,
            AtaIdentity { serial: "Z1X2".to_owned(), model: "WDC WD40EFRX-68N32N0 LONG".to_owned() }
        );
        let disk = Identity { ata: Some(ata), ..identity("sda", "ATA", "WDC WD40EFRX-68N", "Z1X2", "") };
        assert_eq!(by_id_names(&disk), ["ata-WDC_WD40EFRX-68N32N0_LONG_Z1X2"]);
        assert_eq!(disk.full_model().unwrap(), "WDC WD40EFRX-68N32N0 LONG");
        assert_eq!(read_ata_identity(&page[..100]), None);
    }
}
