//! iPXE script of one boot: kernel, initrd and seed with retries, or a hold with its reason.
//!
//! Pure: text in, text out; the goldens are in `golden`. The iPXE of Debian (2019) understands it, so newer commands
//! are not used. The script contains no secret: its URL already gives access to the boot, and the seed is sent once,
//! by its own URL.
//!
//! ```text
//!  kernel --fails x3--+
//!    |                +--> :again  wait, new DHCP transaction, the script of the new boot (its own seed)
//!  initrd --fails x3--+      ^
//!    |                       |
//!  seed ----fails------------+     (the seed cannot be requested twice)
//!    |                       |
//!  boot ----returns----------+
//! ```

use std::fmt::Write as _;

use bedplate_api::id::{BootId, MacAddress};

use super::Platform;
use super::argument::screen_text;

/// Parameters of every script.
#[derive(Debug, Clone)]
pub struct Frame<'a> {
    /// The Machine's name, or how an unknown machine is called.
    pub machine: &'a str,
    /// The interface that netboots.
    pub mac: MacAddress,
    /// The boot.
    pub boot: BootId,
    /// `http://host:port`, without a slash at the end.
    pub server: &'a str,
}

impl Frame<'_> {
    /// The URL prefix of the files of this boot.
    pub fn base(&self) -> String {
        format!("{}/b/{}", self.server, self.boot)
    }
}

/// Seconds before the second and the third try of one file.
const WAITS: [u32; 2] = [2, 6];

/// Milliseconds without a byte after which iPXE gives a transfer up.
const STALL_TIMEOUT_MS: u32 = 60_000;

/// Seconds before a new DHCP transaction.
const WAIT_BEFORE_DHCP: u32 = 10;

/// Seconds before yet another one.
const WAIT_BETWEEN_DHCP: u32 = 30;

/// Seconds between the questions of a machine that is held.
const WAIT_HELD: u32 = 10;

/// The script that boots. `arguments` have passed [`super::argument::problem`]; on BIOS the loader hands all
/// initrds over as one, on UEFI the kernel opens each `initrd=` by name (the seed first: it is padded, so that what
/// follows it starts at a multiple of four). An unknown platform is treated as UEFI: a BIOS kernel ignores the names.
pub(crate) fn render_boot(frame: &Frame<'_>, platform: Option<Platform>, arguments: &[String]) -> String {
    let base = frame.base();
    let mut command_line = String::new();
    if platform.is_none_or(Platform::is_uefi) {
        command_line.push_str(" initrd=seed.img initrd=initrd.img");
    }
    let _ = write!(command_line, " bedplate.url={base} bedplate.mac={}", frame.mac);
    for argument in arguments {
        command_line.push(' ');
        command_line.push_str(argument);
    }
    let mut script = head(frame);
    script.push_str("imgfree ||\n");
    step(
        &mut script,
        frame,
        "kernel",
        &format!("kernel --timeout {STALL_TIMEOUT_MS} {base}/kernel{command_line}"),
        "initrd",
    );
    step(
        &mut script,
        frame,
        "initrd",
        &format!("initrd --timeout {STALL_TIMEOUT_MS} --name initrd.img {base}/initrd"),
        "seed",
    );
    let machine = frame.machine;
    let _ = write!(
        script,
        ":seed\n\
         echo Bedplate: {machine}: fetching the seed\n\
         initrd --timeout {STALL_TIMEOUT_MS} --name seed.img {base}/seed && goto start ||\n\
         set step seed\n\
         goto again\n\
         :start\n\
         echo Bedplate: {machine}: starting the kernel\n\
         boot ||\n\
         set step the start of the kernel\n"
    );
    script.push_str(&tail(frame));
    script
}

/// The script that waits and asks for itself again.
pub(crate) fn render_hold(frame: &Frame<'_>, reason: &str) -> String {
    let mut script = head(frame);
    let _ = write!(
        script,
        "echo Bedplate: {machine}: held: {reason}\n\
         echo Bedplate: {machine}: asking again in {WAIT_HELD} s\n\
         sleep {WAIT_HELD}\n\
         chain --timeout {STALL_TIMEOUT_MS} --replace --autofree {base}/script.ipxe ||\n\
         set step the script\n",
        machine = frame.machine,
        reason = screen_text(reason),
        base = frame.base(),
    );
    script.push_str(&tail(frame));
    script
}

fn head(frame: &Frame<'_>) -> String {
    // A screen is often a serial log: it shows the boot as the status does, not as the URLs do.
    let boot = frame.boot.public_id();
    format!("#!ipxe\necho\necho Bedplate: machine {} ({}), boot {boot}\n", frame.machine, frame.mac)
}

/// Adds a fetch of one file with retries; continues at label `next`.
fn step(script: &mut String, frame: &Frame<'_>, name: &str, command: &str, next: &str) {
    let machine = frame.machine;
    let _ = write!(
        script,
        ":{name}\necho Bedplate: {machine}: fetching the {name}\n{command} && goto {next} ||\n"
    );
    for wait in WAITS {
        let _ = write!(
            script,
            "echo Bedplate: {machine}: the {name} could not be fetched, trying again in {wait} s\n\
             sleep {wait}\n\
             {command} && goto {next} ||\n"
        );
    }
    let _ = write!(script, "set step {name}\ngoto again\n");
}

/// A new DHCP transaction opens a new boot, with a seed of its own.
fn tail(frame: &Frame<'_>) -> String {
    format!(
        ":again\n\
         echo Bedplate: {machine}: failed at ${{step}}, starting again with DHCP in {WAIT_BEFORE_DHCP} s\n\
         sleep {WAIT_BEFORE_DHCP}\n\
         :dhcp\n\
         imgfree ||\n\
         dhcp netX || goto dhcp_failed\n\
         isset ${{filename}} || goto dhcp_failed\n\
         chain --timeout {STALL_TIMEOUT_MS} --replace --autofree ${{filename}} ||\n\
         :dhcp_failed\n\
         echo Bedplate: {machine}: no answer from pxed, asking again in {WAIT_BETWEEN_DHCP} s\n\
         sleep {WAIT_BETWEEN_DHCP}\n\
         goto dhcp\n",
        machine = frame.machine,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame<'static> {
        Frame {
            machine: "node1",
            mac: "52:54:00:00:00:01".parse().unwrap(),
            boot: "000102030405060708090a0b0c0d0e0f".parse().unwrap(),
            server: "http://10.7.0.2:8067",
        }
    }

    /// Compares with a file; `BEDPLATE_UPDATE_GOLDENS=1 cargo test -p pxed goldens` writes it.
    fn golden(name: &str, text: &str) {
        let path = format!("{}/src/boot_policy/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("BEDPLATE_UPDATE_GOLDENS").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, expected, "{path} differs; BEDPLATE_UPDATE_GOLDENS=1 updates it");
    }

    #[test]
    fn scripts_equal_their_goldens() {
        let arguments = ["console=ttyS0".to_owned(), "quiet".to_owned()];
        golden("bios.ipxe", &render_boot(&frame(), Some(Platform::Bios), &arguments));
        golden("uefi.ipxe", &render_boot(&frame(), Some(Platform::UefiX64), &arguments));
        golden("hold.ipxe", &render_hold(&frame(), "image host is being fetched (3 of 61 MB)"));
    }

    #[test]
    fn every_goto_has_its_label() {
        for script in [render_boot(&frame(), None, &[]), render_hold(&frame(), "x")] {
            for target in script.split_whitespace().collect::<Vec<_>>().windows(2) {
                if let ["goto", label] = target {
                    assert!(script.contains(&format!("\n:{label}\n")), "{label}\n{script}");
                }
            }
        }
    }

    #[test]
    fn a_message_cannot_become_a_command() {
        let script = render_hold(&frame(), "x\nreboot\n${net0/mac} || shell");
        assert!(!script.contains("\nreboot") && !script.contains("|| shell"), "{script}");
    }
}
