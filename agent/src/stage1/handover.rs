//! Files that stage-1 leaves for the host: `/run/bedplate/boot.json`, the seed, and the text of resolv.conf.
//!
//! Types and texts; the driver writes them. The agent reads boot.json and the
//! seed, and reports state and clock of boot.json.

use std::fmt::Write;
use std::net::Ipv4Addr;

use bedplate_api::id::{BootId, Digest, MacAddress, MachineName, SiteName};
use bedplate_api::machine::StateDiskStatus;
use serde::{Deserialize, Serialize};

use super::dhcp_wire::Lease;

/// Path of this boot's facts on the host.
pub(crate) const BOOT_FACTS: &str = "/run/bedplate/boot.json";
/// Path of the seed on the host until the agent has enrolled.
pub(crate) const HOST_SEED: &str = "/run/bedplate/seed.json";

/// Facts of this boot. They contain no secret; the boot's URL is as public as the kernel's command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BootFacts {
    /// The Machine.
    pub machine: MachineName,
    /// Site of the Machine.
    pub site: SiteName,
    /// The boot.
    pub boot_id: BootId,
    /// The boot's base URL.
    pub boot_url: String,
    /// Name of the interface in the initramfs; udev may rename it later.
    pub interface: String,
    /// Hardware address of the interface.
    pub mac: MacAddress,
    /// Address of the interface.
    pub address: Ipv4Addr,
    /// Server that granted the address.
    pub dhcp_server: Ipv4Addr,
    /// The root image.
    pub rootfs: Digest,
    /// Storage of state.
    pub state: StateFacts,
    /// Number of failures of all steps.
    pub failures: u32,
    /// True if the clock was set from pxed's.
    pub clock_was_set: bool,
    /// Seconds by which the clock was ahead of pxed's before that; absent: pxed sent no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_seconds: Option<i64>,
}

/// Storage of state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum StateFacts {
    /// State in memory: it ends with the boot.
    Memory,
    /// State on the selected disk.
    #[serde(rename_all = "camelCase")]
    Disk {
        /// Device in the initramfs.
        device: String,
        /// First name below /dev/disk/by-id, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by_id: Option<String>,
        /// True if its file system was made in this boot.
        made: bool,
        /// The wipe token that the disk remembers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wipe_token: Option<String>,
    },
}

impl StateFacts {
    /// The state disk as `status.stateDisk` has it; `None`: state is in memory.
    pub(crate) fn to_status(&self) -> Option<StateDiskStatus> {
        let Self::Disk { device, by_id, wipe_token, .. } = self else { return None };
        // The API server would refuse the complete write for a text that exceeds the limit in the definition
        // of a Machine.
        let text = |text: &str, most: usize| Some(text.chars().take(most).collect());
        let name = by_id.as_deref().unwrap_or(device.trim_start_matches("/dev/"));
        Some(StateDiskStatus {
            name: text(name, 256),
            wipe_token: wipe_token.as_deref().and_then(|token| text(token, 63)),
        })
    }
}

/// resolv.conf(5) of a lease.
pub(crate) fn resolv_conf(lease: &Lease) -> String {
    let mut text = String::new();
    if let Some(domain) = &lease.domain {
        let _ = writeln!(text, "search {domain}");
    }
    for server in &lease.nameservers {
        let _ = writeln!(text, "nameserver {server}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_names_domain_and_servers() {
        let mut lease = Lease {
            address: Ipv4Addr::new(10, 7, 0, 9),
            prefix: 24,
            routes: vec![],
            nameservers: vec![Ipv4Addr::new(10, 7, 0, 1)],
            domain: Some("rack.example".to_owned()),
            seconds: None,
        };
        assert_eq!(resolv_conf(&lease), "search rack.example\nnameserver 10.7.0.1\n");
        (lease.nameservers, lease.domain) = (vec![], None);
        assert_eq!(resolv_conf(&lease), "");
    }

    #[test]
    fn state_says_its_kind() {
        let json = serde_json::to_string(&StateFacts::Memory).unwrap();
        assert_eq!(json, r#"{"kind":"memory"}"#);
        let disk =
            StateFacts::Disk { device: "/dev/vda".to_owned(), by_id: None, made: true, wipe_token: None };
        assert_eq!(
            serde_json::to_string(&disk).unwrap(),
            r#"{"kind":"disk","device":"/dev/vda","made":true}"#
        );
    }

    #[test]
    fn status_names_a_state_disk_by_id_and_the_token_that_was_used() {
        assert_eq!(StateFacts::Memory.to_status(), None);
        for (by_id, name) in [(Some("virtio-state".to_owned()), "virtio-state"), (None, "vda")] {
            let wipe_token = Some("first".to_owned());
            let disk = StateFacts::Disk { device: "/dev/vda".to_owned(), by_id, made: false, wipe_token };
            let status = disk.to_status().unwrap();
            assert_eq!((status.name.as_deref(), status.wipe_token.as_deref()), (Some(name), Some("first")));
        }
    }
}
