//! Virtual machines with the firmware of real ones, always under TCG: `/dev/kvm` may be there and still boot nothing.
//!
//! What a machine says on its serial line goes to a file; power is QMP's. Who starts how many is `rack`'s business.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bedplate_api::id::MacAddress;
use serde_json::{Value, json};

use crate::bmc::chassis::Source;
use crate::guard::{self, Process};
use crate::netns::Namespace;
use crate::wait;

/// Way of a machine from power-on to its loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    /// SeaBIOS with the network card's iPXE ROM.
    Bios,
    /// OVMF's own PXE: TFTP, as most servers' firmware does it.
    UefiPxe,
    /// OVMF's own HTTP boot (architecture 16).
    UefiHttp,
    /// OVMF with the network card's iPXE EFI ROM.
    UefiIpxe,
    /// AAVMF, a 64-bit ARM server's UEFI, with its own PXE.
    Arm64Pxe,
}

/// A machine to be made.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its name, for files and messages.
    pub name: String,
    /// Its network card's address.
    pub mac: MacAddress,
    /// Its firmware.
    pub firmware: Firmware,
    /// Memory in MiB. The root image lies in memory: 1024 boots the host image; 64 is enough for a loader's script.
    pub memory_mib: u32,
    /// Processors.
    pub cpus: u32,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// Time of its hardware's clock at power-on, such as `2020-01-01T00:00:00`, if it is wrong.
    pub clock: Option<&'static str>,
}

/// A disk of a machine.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The raw image.
    pub image: PathBuf,
    /// Serial number, at most 20 characters (virtio).
    pub serial: String,
}

/// A machine with power on. Dropped: unplugged.
#[derive(Debug)]
pub struct Machine {
    name: String,
    process: Process,
    serial: PathBuf,
    qmp: PathBuf,
}

/// CPU of x86 machines. Without instructions for AES, a guest spends most of the time of a download on TLS. More of them than these make
/// Linux and Go slower, because QEMU emulates them with calls.
const CPU: &str = "qemu64,+ssse3,+sse4.1,+aes,+pclmulqdq";
const OVMF: (&str, &str) = ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd");
const AAVMF: (&str, &str) = ("/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd");

impl Machine {
    /// Switches a machine on, its network card on `tap` of `network`, its files in `directory`. It boots from its network.
    ///
    /// # Errors
    /// QEMU or its firmware is missing, or does not start.
    pub fn power_on(spec: &Spec, network: &Namespace, tap: &str, directory: &Path) -> Result<Self> {
        Self::start(spec, true, network, tap, directory)
    }

    /// Powers on a machine with a boot override. Without a disk there is nothing on [`Source::Disk`].
    ///
    /// # Errors
    /// As [`Machine::power_on`].
    pub fn power_on_from(
        boot: Source,
        spec: &Spec,
        network: &Namespace,
        tap: &str,
        directory: &Path,
    ) -> Result<Self> {
        let firmware = match (boot, spec.firmware) {
            (Source::Http, Firmware::UefiPxe | Firmware::UefiIpxe) => Firmware::UefiHttp,
            (Source::Pxe, Firmware::UefiHttp) => Firmware::UefiPxe,
            (_, firmware) => firmware,
        };
        let spec = Spec { firmware, ..spec.clone() };
        Self::start(&spec, boot != Source::Disk, network, tap, directory)
    }

    fn start(
        spec: &Spec,
        from_network: bool,
        network: &Namespace,
        tap: &str,
        directory: &Path,
    ) -> Result<Self> {
        let file = |suffix: &str| directory.join(format!("{}.{suffix}", spec.name));
        let (serial, qmp) = (file("serial"), file("qmp"));
        // Remains of the machine's last run; the socket of this run is waited for below.
        let _ = std::fs::remove_file(&qmp);
        let arm = spec.firmware == Firmware::Arm64Pxe;
        let program = if arm { "qemu-system-aarch64" } else { "qemu-system-x86_64" };
        let mut command = network.command(program);
        command.args(["-nodefaults", "-display", "none", "-accel", "tcg,thread=multi"]);
        command.args([
            "-m",
            &spec.memory_mib.to_string(),
            "-smp",
            &spec.cpus.to_string(),
            "-name",
            &spec.name,
        ]);
        if !arm {
            command.args(["-cpu", CPU]);
        }
        command.args(["-uuid", &uuid(spec.mac)]);
        command.arg("-serial").arg(format!("file:{}", serial.display()));
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display()));
        command.arg("-netdev").arg(format!("tap,id=n0,ifname={tap},script=no,downscript=no"));
        command.args(["-device", "virtio-rng-pci"]);
        add_firmware(&mut command, spec, from_network, &file("vars"))?;
        if let Some(clock) = spec.clock {
            command.arg("-rtc").arg(format!("base={clock}"));
        }
        add_disks(&mut command, &spec.disks, !from_network);
        let mut process = Process::spawn(&spec.name, &mut command, &file("qemu"))?;
        wait::until(&format!("QMP of {}", spec.name), Duration::from_secs(30), || {
            if !process.is_running() {
                bail!("{program} did not start: {}", process.said());
            }
            Ok(qmp.exists().then_some(()))
        })?;
        Ok(Self { name: spec.name.clone(), process, serial, qmp })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All that came over its serial line, without escape sequences.
    pub fn serial(&self) -> String {
        serial_text(&self.serial)
    }

    /// Waits until the serial line has shown `marker`.
    ///
    /// # Errors
    /// The deadline has passed or QEMU has ended; the last lines are in the message.
    pub fn wait_serial(&mut self, marker: &str, limit: Duration) -> Result<()> {
        let what = format!("{marker:?} on the serial line of {}", self.name);
        let result = wait::until(&what, limit, || {
            if self.serial().contains(marker) {
                return Ok(Some(()));
            }
            if !self.process.is_running() {
                bail!("{} has lost power: {}", self.name, self.process.said());
            }
            Ok(None)
        });
        result.with_context(|| {
            format!("serial line of {}:\n{}", self.name, guard::last_lines(&self.serial(), 25))
        })
    }

    /// Returns true if it has power.
    pub fn has_power(&mut self) -> bool {
        self.process.is_running()
    }

    /// Presses the reset button.
    ///
    /// # Errors
    /// QMP does not answer.
    pub fn reset(&self) -> Result<()> {
        self.qmp("system_reset").map(drop)
    }

    /// Presses the power button shortly (ACPI). An operating system shuts down; firmware and loaders do not listen.
    ///
    /// # Errors
    /// QMP does not answer.
    pub fn press_power_button(&self) -> Result<()> {
        self.qmp("system_powerdown").map(drop)
    }

    /// Stops its processors; what it has written is in its disks' images when this returns.
    ///
    /// # Errors
    /// QMP does not answer.
    pub fn freeze(&self) -> Result<()> {
        self.qmp("stop").map(drop)
    }

    /// Resumes it.
    ///
    /// # Errors
    /// QMP does not answer.
    pub fn thaw(&self) -> Result<()> {
        self.qmp("cont").map(drop)
    }

    /// One QMP command without arguments.
    fn qmp(&self, command: &str) -> Result<Value> {
        let stream = UnixStream::connect(&self.qmp).with_context(|| format!("no QMP of {}", self.name))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        for execute in ["qmp_capabilities", command] {
            writeln!(writer, "{}", json!({ "execute": execute }))?;
            loop {
                line.clear();
                if reader.read_line(&mut line)? == 0 {
                    bail!("{} closed QMP", self.name);
                }
                let answer: Value = serde_json::from_str(&line)?;
                if answer.get("error").is_some() {
                    bail!("{} refused {execute}: {line}", self.name);
                }
                if let Some(result) = answer.get("return") {
                    if execute == command {
                        return Ok(result.clone());
                    }
                    break;
                }
            }
        }
        bail!("{} did not answer {command}", self.name)
    }
}

/// Content of a serial line's file, without escape sequences.
pub fn serial_text(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    without_escapes(&String::from_utf8_lossy(&bytes))
}

/// The UUID of the machine with this network card, as its firmware tells it.
pub fn uuid(mac: MacAddress) -> String {
    format!("6d5a8b1e-0000-4000-8000-{}", mac.to_string().replace(':', ""))
}

fn add_disks(command: &mut Command, disks: &[Disk], boot: bool) {
    let first = |number: usize| if boot && number == 0 { ",bootindex=1" } else { "" };
    for (number, Disk { image, serial }) in disks.iter().enumerate() {
        command.arg("-drive").arg(format!("if=none,id=d{number},format=raw,file={}", image.display()));
        let device = format!("virtio-blk-pci,drive=d{number},serial={serial}{}", first(number));
        command.args(["-device", &device]);
    }
    if boot && disks.is_empty() {
        // An empty disk to boot from; otherwise firmware would continue with the network.
        command.args(["-blockdev", "driver=null-co,node-name=empty,size=1048576,read-zeroes=on"]);
        command.args(["-device", "virtio-blk-pci,drive=empty,bootindex=1"]);
    }
}

fn add_firmware(command: &mut Command, spec: &Spec, from_network: bool, vars: &Path) -> Result<()> {
    let card = |rom: &str| match from_network {
        true => format!("virtio-net-pci,netdev=n0,mac={},bootindex=1{rom}", spec.mac),
        false => format!("virtio-net-pci,netdev=n0,mac={},romfile=", spec.mac),
    };
    match spec.firmware {
        // graphics=off makes SeaBIOS and iPXE talk on the serial line.
        Firmware::Bios => {
            command.args(["-machine", "pc,graphics=off", "-device", &card("")]);
        }
        Firmware::UefiIpxe => {
            command.args(["-machine", "q35", "-device", &card("")]);
            add_flash(command, OVMF, vars)?;
        }
        Firmware::UefiPxe | Firmware::UefiHttp => {
            command.args(["-machine", "q35", "-device", &card(",romfile=")]);
            add_flash(command, OVMF, vars)?;
        }
        Firmware::Arm64Pxe => {
            command.args(["-machine", "virt", "-cpu", "cortex-a57", "-device", &card(",romfile=")]);
            add_flash(command, AAVMF, vars)?;
        }
    }
    // The EDK2 in OVMF tries PXE over IPv4, PXE over IPv6, then HTTP: what is not the subject is switched off.
    let off: &[&str] = match spec.firmware {
        Firmware::UefiHttp => &["IPv4PXESupport", "IPv6PXESupport", "IPv6Support"],
        Firmware::UefiPxe | Firmware::Arm64Pxe => &["IPv6PXESupport", "IPv6Support"],
        Firmware::Bios | Firmware::UefiIpxe => &[],
    };
    for name in off {
        command.args(["-fw_cfg", &format!("name=opt/org.tianocore/{name},string=n")]);
    }
    Ok(())
}

fn add_flash(command: &mut Command, (code, template): (&str, &str), vars: &Path) -> Result<()> {
    if !Path::new(code).exists() {
        bail!("{code} is missing: run `cargo xtask setup`");
    }
    std::fs::copy(template, vars).with_context(|| format!("cannot copy {template}"))?;
    command.arg("-drive").arg(format!("if=pflash,format=raw,readonly=on,file={code}"));
    command.arg("-drive").arg(format!("if=pflash,format=raw,file={}", vars.display()));
    Ok(())
}

/// Leaves out terminal control: firmware paints its screens character by character.
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\x1b' if characters.next() == Some('[') => {
                characters.find(char::is_ascii_alphabetic);
            }
            '\x1b' | '\r' | '\0' => {}
            _ => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_is_left_out_of_the_serial_log() {
        assert_eq!(without_escapes("\x1b[2J\x1b[01;01HBdsDxe\x1b=: go\r\n"), "BdsDxe: go\n");
    }
}
