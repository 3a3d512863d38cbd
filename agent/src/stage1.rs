//! Stage-1: process 1 of the initramfs, until the host's own init takes over.
//!
//! Each step is carried out, reported on the console, and retried if it fails
//! (`plan`). Stage-1 never ends and never reboots. Its decisions are pure
//! (`arguments`, `plan`, `dhcp_session`, `disk_selector`, `state_plan`); effects are
//! in the modules named after them. Called by `main` when this program is process 1.
//!
//! Contents of the initramfs:
//! - `/init`: this program, static. No other program runs from the initramfs.
//! - `/lib/modules/<release>/`: modules uncompressed (`.ko`), with `modules.dep` and `modules.alias` of
//!   depmod(8). Those two may name missing files. Stage-1 loads: the fixed list in `modules`,
//!   `/etc/bedplate/modules`, the modules that devices request by modalias, and those that the kernel
//!   requests by modprobe (this program acts as modprobe, too).
//! - `/bedplate/seed.json`: added by pxed as an archive of its own for each boot.
//! - Directories are made as needed; `/dev/console` comes from the kernel's built-in initramfs.
//!
//! Contents of the root image: `/sbin/init`; `/sbin/mke2fs`, `tune2fs` and `e2fsck` if a Machine has a state
//! disk; directories `/dev /proc /sys /run /etc /var/lib`; a DHCP client that identifies itself by the MAC
//! address (systemd-networkd: `ClientIdentifier=mac`, `KeepConfiguration=dhcp-on-stop`), as stage-1 does.
//!
//! Contents of the new root: `/run/bedplate/seed.json` (0600), `/run/bedplate/boot.json`
//! (`handover::BootFacts`), the interface up with its address, the host name, `/etc/hostname`,
//! `/etc/resolv.conf` unless that is a link.

pub mod arguments;
pub mod clock;
pub mod console;
pub mod dhcp;
pub(crate) mod dhcp_session;
pub(crate) mod dhcp_wire;
pub(crate) mod disk_selector;
pub mod driver;
pub mod error;
pub(crate) mod handover;
pub mod http;
pub(crate) mod http_wire;
pub mod link;
pub(crate) mod loop_device;
pub(crate) mod module_index;
pub mod modules;
pub(crate) mod netlink;
pub mod new_root;
pub mod plan;
pub(crate) mod root_image;
pub mod state_disk;
mod state_file;
pub mod state_plan;

use std::path::Path;

pub use driver::run;

/// Runs stage-1 if this process is process 1, and does not return then. If stage-1 or the kernel started it
/// as a helper, returns the helper's exit code.
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
