//! Links that a stopped slot left on the host's network: bridges, tunnels and
//! veth pairs of its network plug-ins.
//!
//! The next slot's Node may get another address range. Then no Pod can start while the old `cni0` exists. So
//! the links of the host are recorded before a slot starts. Additional links are deleted once no slot runs:
//!
//! ```text
//!   no slot runs ── remember ── slot starts ... slot has stopped ── leftovers, `ip link delete` ── forget
//! ```
//! Not deleted: hardware, links that networkd is configured for, and links that users rather than network
//! plug-ins create while a slot runs (bonds, VLANs, VPNs). The record is in `/run`, because links do not
//! outlive a boot either. Blocking calls only. Called by `node`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bedplate_process::file::{read_json, remove_optional, write_json};

use super::store::{KeepSlotError, Slots, make_directory};

/// Links that the kernel makes with a module, and that must not be removed.
const KERNELS: [&str; 9] =
    ["ip6_vti0", "ip6gre0", "ip6tnl0", "ip_vti0", "erspan0", "gre0", "gretap0", "sit0", "tunl0"];
/// Kinds (`DEVTYPE`) of links that users create.
const PEOPLES: [&str; 5] = ["bond", "vlan", "wireguard", "wlan", "wwan"];

/// Names and numbers.
type Links = BTreeMap<String, String>;

impl Slots {
    fn noted(&self) -> PathBuf {
        self.places().run.join("bedplate/links.json")
    }

    /// Records the links of the host at `root`.
    ///
    /// # Errors
    /// The note cannot be written.
    pub(crate) fn remember_links(&self, root: &Path) -> Result<(), KeepSlotError> {
        let noted = self.noted();
        noted.parent().map_or(Ok(()), |directory| make_directory(directory, 0o755))?;
        Ok(write_json(&noted, &links(root), 0o600)?)
    }

    /// Returns links that network plug-ins have made since. None: there is no record.
    ///
    /// # Errors
    /// The note cannot be read.
    pub(crate) fn leftover_links(&self, root: &Path) -> Result<Vec<String>, KeepSlotError> {
        let Some(before) = read_json::<Links>(&self.noted())? else { return Ok(Vec::new()) };
        let new = links(root).into_iter().filter(|(name, number)| before.get(name) != Some(number));
        Ok(new.filter(|(name, number)| is_plug_ins(root, name, number)).map(|(name, _)| name).collect())
    }

    /// Removes the record.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn forget_links(&self) -> Result<(), KeepSlotError> {
        Ok(remove_optional(&self.noted())?)
    }
}

fn links(root: &Path) -> Links {
    let entries = fs::read_dir(root.join("sys/class/net")).into_iter().flatten().flatten();
    let link = |entry: fs::DirEntry| {
        let number = fs::read_to_string(entry.path().join("ifindex")).ok()?;
        Some((entry.file_name().into_string().ok()?, number.trim().to_owned()))
    };
    entries.filter_map(link).collect()
}

fn is_plug_ins(root: &Path, name: &str, number: &str) -> bool {
    let link = root.join("sys/class/net").join(name);
    let is_virtual = fs::read_link(&link).is_ok_and(|target| target.to_string_lossy().contains("/virtual/"));
    let uevent = fs::read_to_string(link.join("uevent")).unwrap_or_default();
    let is_peoples =
        uevent.lines().filter_map(|line| line.strip_prefix("DEVTYPE=")).any(|kind| PEOPLES.contains(&kind));
    let networkd = fs::read_to_string(root.join("run/systemd/netif/links").join(number)).unwrap_or_default();
    is_virtual
        && name != "lo"
        && !KERNELS.contains(&name)
        && !is_peoples
        && !link.join("tun_flags").exists()
        && !networkd.lines().any(|line| line.starts_with("NETWORK_FILE="))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::slot::sample::slots;

    /// A host's `/sys/class/net`.
    struct Host(tempfile::TempDir);

    impl Host {
        fn link(&self, name: &str, number: u32, below: &str, kind: &str) {
            let device = self.0.path().join("sys/devices").join(below).join("net").join(name);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("ifindex"), format!("{number}\n")).unwrap();
            fs::write(device.join("uevent"), format!("{kind}INTERFACE={name}\n")).unwrap();
            let class = self.0.path().join("sys/class/net");
            fs::create_dir_all(&class).unwrap();
            symlink(format!("../../devices/{below}/net/{name}"), class.join(name)).unwrap();
        }
    }

    fn world() -> (Host, Slots) {
        let (directory, slots) = slots();
        let host = Host(directory);
        host.link("lo", 1, "virtual", "");
        host.link("eth0", 2, "pci0000:00", "");
        host.link("docker0", 3, "virtual", "DEVTYPE=bridge\n");
        (host, slots)
    }

    #[test]
    fn networkd_of_the_host_ignores_routes_and_links_of_network_plug_ins() {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/host/files");
        let settings = fs::read_to_string(files.join("etc/systemd/networkd.conf.d/bedplate.conf")).unwrap();
        for setting in ["ManageForeignRoutes=no", "ManageForeignRoutingPolicyRules=no"] {
            assert!(settings.lines().any(|line| line == setting), "{setting}");
        }
        let setup = fs::read_to_string(files.join("usr/lib/bedplate/host-setup")).unwrap();
        assert!(
            setup.contains("match=\"Type=ether\nKind=!*\"\n"),
            "a Pod's pair of interfaces asks no DHCP server"
        );
    }

    #[test]
    fn bridge_of_a_stopped_slot_is_a_leftover_and_host_links_are_not() {
        let (host, slots) = world();
        let root = host.0.path();
        assert_eq!(slots.leftover_links(root).unwrap(), Vec::<String>::new(), "nothing was noted");
        slots.remember_links(root).unwrap();
        host.link("cni0", 10, "virtual", "DEVTYPE=bridge\n");
        host.link("flannel.1", 11, "virtual", "DEVTYPE=vxlan\n");
        host.link("vethab", 12, "virtual", "");
        assert_eq!(slots.leftover_links(root).unwrap(), ["cni0", "flannel.1", "vethab"]);
        slots.forget_links().unwrap();
        slots.forget_links().unwrap();
        assert_eq!(slots.leftover_links(root).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn links_of_users_hardware_networkd_and_the_kernel_stay() {
        let (host, slots) = world();
        let root = host.0.path();
        slots.remember_links(root).unwrap();
        host.link("eth1", 20, "pci0000:01", "");
        host.link("bond0", 21, "virtual", "DEVTYPE=bond\n");
        host.link("wg0", 22, "virtual", "DEVTYPE=wireguard\n");
        host.link("tunl0", 23, "virtual", "");
        host.link("tun0", 24, "virtual", "");
        fs::write(root.join("sys/class/net/tun0/tun_flags"), "0x1\n").unwrap();
        host.link("br-office", 25, "virtual", "DEVTYPE=bridge\n");
        fs::create_dir_all(root.join("run/systemd/netif/links")).unwrap();
        fs::write(
            root.join("run/systemd/netif/links/25"),
            "ADMIN_STATE=configured\nNETWORK_FILE=/etc/x.network\n",
        )
        .unwrap();
        assert_eq!(slots.leftover_links(root).unwrap(), Vec::<String>::new());
    }
}
