//! Network interfaces that are hardware, from /sys/class/net.
//!
//! Only reads. Bridges, bonds, VLANs and other virtual interfaces are omitted. Called by `observe_hardware`.

use std::path::Path;

use bedplate_api::machine::Nic;

use super::{link_name, names_in, read_text};

/// At most as many as `status.hardware.nics` takes.
const MAX_NICS: usize = 64;

/// The interfaces of the machine below `root`, by name.
pub(super) fn observe_nics(root: &Path) -> Vec<Nic> {
    let class = root.join("sys/class/net");
    let physical = names_in(&class).into_iter().filter(|name| class.join(name).join("device").exists());
    physical.take(MAX_NICS).map(|name| observe_nic(&class.join(&name), name)).collect()
}

fn observe_nic(path: &Path, name: String) -> Nic {
    // The driver of a virtio device is `virtio_net`; for the rest it is that of the PCI device.
    let driver = link_name(&path.join("device/driver"));
    // Reading `carrier` of an interface that is down fails: link unknown.
    let link = read_text(&path.join("carrier")).map(|text| text == "1");
    let speed = read_text(&path.join("speed")).and_then(|text| text.parse::<i64>().ok());
    Nic {
        mac_address: read_text(&path.join("address")).map(|text| text.to_ascii_lowercase()),
        name: Some(name),
        driver,
        link,
        speed_mbps: speed.filter(|speed| *speed > 0 && *speed < i64::from(u32::MAX)),
    }
}
