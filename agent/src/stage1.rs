//! Stage-1: what runs as process 1 from the initramfs, until the host's own init takes over.
//!
//! Each step is carried out, said on the console, and tried again if it fails (`plan`); it never ends and never
//! reboots. What it decides is pure (`arguments`, `plan`, `dhcp_session`, `disk_selector`, `state_plan`); effects are
//! in the modules named after them. Called by `main` when this program is process 1.
//!
//! What the initramfs holds
//! - `/init`: this program, static. Nothing else is run from the initramfs.
//! - `/lib/modules/<release>/`: modules uncompressed (`.ko`), with `modules.dep` and `modules.alias` of depmod(8). Those
//!   two may name files that are left out. Loaded are: the fixed list in `modules`, `/etc/bedplate/modules`, what
//!   devices ask for by modalias, and what the kernel asks for by modprobe (this program answers as that, too).
//! - `/bedplate/seed.json`: added by pxed as an archive of its own for each boot.
//! - Directories are made as needed; `/dev/console` comes from the kernel's built-in initramfs.
//!
//! What the root image holds: `/sbin/init`; `/sbin/mke2fs`, `tune2fs` and `e2fsck` if a Machine has a state disk;
//! directories `/dev /proc /sys /run /etc /var/lib`; a DHCP client that identifies itself by the MAC address
//! (systemd-networkd: `ClientIdentifier=mac`, `KeepConfiguration=dhcp-on-stop`), as stage-1 does.
//!
//! What the new root finds: `/run/bedplate/seed.json` (0600), `/run/bedplate/boot.json` (`handover::BootFacts`), the
//! interface up with its address, the host name, `/etc/hostname`, `/etc/resolv.conf` unless that is a link.

pub mod arguments;
pub mod clock;
pub mod console;
pub mod dhcp;
pub mod dhcp_session;
pub mod dhcp_wire;
pub mod disk_selector;
pub mod driver;
pub mod error;
pub mod handover;
pub mod http;
pub mod http_wire;
pub mod link;
pub mod loop_device;
pub mod module_index;
pub mod modules;
pub mod netlink;
pub mod new_root;
pub mod plan;
pub mod root_image;
pub mod state_disk;
mod state_file;
pub mod state_plan;

use std::path::Path;

pub use driver::run;

/// Whether this process has been started for stage-1, or by stage-1 or the kernel for one of its helpers; if so, the
/// helper's exit code. Does not come back for process 1.
pub fn enter(arguments: &[String]) -> Option<u8> {
    if let Some(alias) = modules::kernel_request(arguments) {
        return Some(u8::from(!modules::serve_kernel_request(alias)));
    }
    if let [_, word, root, program, rest @ ..] = arguments
        && word == state_disk::BECOME
    {
        let error = state_disk::become_program(Path::new(root), program, rest);
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{program}: {error}\n").as_bytes());
        return Some(127);
    }
    if std::process::id() == 1 { run() } else { None }
}
