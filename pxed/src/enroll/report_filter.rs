//! Pure: what is kept of an agent's report, field by field: no more than the Machine's definition takes, and of what it
//! leaves open, no more than a person would read. Longer texts are cut: a report is not refused for the length of a name.
//!
//! Called by `service` and `standalone`.

use bedplate_api::machine::{
    Applied, Clock, Condition, Cpu, Disk, Firmware, Hardware, Nic, RolledBack, Slot, StateDiskStatus, Tpm,
    VersionRef,
};

/// Characters of a version or an id.
pub(crate) const WORD: usize = 63;
/// Of a configuration's name.
const CONFIGURATION: usize = 240;
/// Of a condition's message.
const MESSAGE: usize = 4096;
/// Of the reason of a roll-back.
const REASON: usize = 1024;
/// Characters of any other text.
const TEXT: usize = 256;
/// Disks, names of one disk, network interfaces.
const DISKS: usize = 256;
const NAMES: usize = 16;
const NICS: usize = 64;

/// The beginning of a text.
pub(crate) fn cut(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        // It is kept for as long as the Machine is.
        text.shrink_to_fit();
    }
    text
}

fn text(text: Option<String>) -> Option<String> {
    text.map(|text| cut(text, TEXT))
}

/// The state disk in use.
pub(crate) fn state_disk(disk: StateDiskStatus) -> StateDiskStatus {
    let StateDiskStatus { name, wipe_token } = disk;
    StateDiskStatus { name: text(name), wipe_token: wipe_token.map(|token| cut(token, WORD)) }
}

/// What runs on a host.
pub(crate) fn applied(applied: Applied) -> Applied {
    let Applied { name, version, slot, image_digest, node_uid, time } = applied;
    Applied {
        name: cut(name, CONFIGURATION),
        version,
        slot,
        image_digest,
        node_uid: node_uid.map(|uid| cut(uid, WORD)),
        time,
    }
}

/// What is in a slot.
pub(crate) fn slot(slot: Slot) -> Slot {
    let Slot { name, configuration_name, version, image_digest, state } = slot;
    let configuration_name = configuration_name.map(|name| cut(name, CONFIGURATION));
    Slot { name, configuration_name, version, image_digest, state }
}

/// An update that was rolled back.
pub(crate) fn rolled_back(back: RolledBack) -> RolledBack {
    let RolledBack { from, to, message, time } = back;
    let of = |VersionRef { name, version }| VersionRef { name: cut(name, CONFIGURATION), version };
    RolledBack { from: of(from), to: of(to), message: cut(message, REASON), time }
}

/// A condition.
pub(crate) fn condition(condition: Condition) -> Condition {
    let Condition { type_, status, reason, message, last_transition_time, observed_generation } = condition;
    Condition {
        type_: cut(type_, WORD),
        status: cut(status, WORD),
        reason: cut(reason, WORD),
        message: cut(message, MESSAGE),
        last_transition_time,
        observed_generation,
    }
}

/// The facts, without the BMC's, which are pxed's own to tell.
pub(crate) fn hardware(facts: Hardware) -> Hardware {
    let Hardware {
        vendor,
        product,
        serial,
        uuid,
        firmware,
        cpu,
        memory_bytes,
        disks,
        nics,
        tpm,
        clock,
        bmc: _,
    } = facts;
    Hardware {
        vendor: text(vendor),
        product: text(product),
        serial: text(serial),
        uuid: text(uuid),
        firmware: firmware.map(|Firmware { mode, vendor, version, date, secure_boot }| Firmware {
            mode,
            vendor: text(vendor),
            version: text(version),
            date: text(date),
            secure_boot,
        }),
        cpu: cpu.map(|Cpu { model, sockets, cores, threads, architecture }| Cpu {
            model: text(model),
            sockets,
            cores,
            threads,
            architecture: text(architecture),
        }),
        memory_bytes,
        disks: disks.into_iter().take(DISKS).map(disk).collect(),
        nics: nics.into_iter().take(NICS).map(nic).collect(),
        tpm: tpm.map(|Tpm { present, version }| Tpm { present, version: text(version) }),
        clock: clock.map(|Clock { source, synchronized, boot_offset_seconds }| Clock {
            source: text(source),
            synchronized,
            boot_offset_seconds,
        }),
        bmc: None,
    }
}

fn disk(disk: Disk) -> Disk {
    let Disk { name, by_id, serial, wwn, hctl, model, size_bytes, rotational, removable } = disk;
    Disk {
        name: text(name),
        by_id: by_id.into_iter().take(NAMES).map(|name| cut(name, TEXT)).collect(),
        serial: text(serial),
        wwn: text(wwn),
        hctl: text(hctl),
        model: text(model),
        size_bytes,
        rotational,
        removable,
    }
}

fn nic(nic: Nic) -> Nic {
    let Nic { name, mac_address, driver, link, speed_mbps } = nic;
    Nic { name: text(name), mac_address: text(mac_address), driver: text(driver), link, speed_mbps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_every_text_and_list_in_a_report_only_so_much_is_kept() {
        let long = || Some("ä".repeat(10_000));
        let disk = Disk {
            name: long(),
            by_id: vec!["x".repeat(10_000); 100],
            serial: long(),
            wwn: long(),
            hctl: long(),
            model: long(),
            ..Disk::default()
        };
        let nic = Nic { name: long(), mac_address: long(), driver: long(), ..Nic::default() };
        let facts = Hardware {
            vendor: long(),
            product: long(),
            serial: long(),
            uuid: long(),
            firmware: Some(Firmware { vendor: long(), version: long(), date: long(), ..Firmware::default() }),
            cpu: Some(Cpu { model: long(), architecture: long(), ..Cpu::default() }),
            disks: vec![disk; 300],
            nics: vec![nic; 300],
            tpm: Some(Tpm { version: long(), ..Tpm::default() }),
            clock: Some(Clock { source: long(), ..Clock::default() }),
            ..Hardware::default()
        };
        let kept = serde_json::to_value(hardware(facts)).unwrap();
        check(&kept);
        assert_eq!(kept["disks"].as_array().unwrap().len(), 256);
        assert_eq!(kept["nics"].as_array().unwrap().len(), 64);
        assert_eq!(kept["disks"][0]["byID"].as_array().unwrap().len(), 16);
        let kept = state_disk(StateDiskStatus { name: long(), wipe_token: long() });
        assert_eq!(kept.name.unwrap().chars().count(), 256);
        assert_eq!(kept.wipe_token.unwrap().chars().count(), 63);
    }

    fn check(value: &serde_json::Value) {
        use serde_json::Value;
        match value {
            Value::String(text) => {
                assert!(text.chars().count() <= 256, "{} characters", text.chars().count());
            }
            Value::Array(items) => items.iter().for_each(check),
            Value::Object(map) => map.values().for_each(check),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    #[test]
    fn what_fits_is_kept_as_it_is() {
        let disk =
            StateDiskStatus { name: Some("virtio-state".to_owned()), wipe_token: Some("a".to_owned()) };
        assert_eq!(state_disk(disk.clone()), disk);
        assert_eq!(cut("äöü".to_owned(), 3), "äöü");
        assert_eq!(cut("äöü".to_owned(), 2), "äö");
    }
}
