//! The Debian packages that building and testing need, listed here and nowhere else, and how they are installed:
//! only what is missing, and without starting or enabling a single service.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{host, progress};

/// Compilers and plain tools.
const TOOLS: &[&str] = &[
    "bsdutils",
    "ca-certificates",
    "cpio",
    "curl",
    "e2fsprogs",
    "g++",
    "gcc",
    "git",
    "iproute2",
    "libc6-dev",
    "openssl",
    "procps",
    "socat",
    "systemd",
    "tcpdump",
    "util-linux",
    "wrk",
    "xz-utils",
    "zstd",
];
/// Packages for building the images.
const IMAGE: &[&str] = &["busybox-static", "mmdebstrap", "squashfs-tools"];
/// Virtual machines, their firmware, TPM and BMC.
const MACHINES: &[&str] = &[
    "ipmitool",
    "ipxe",
    "ipxe-qemu",
    "openipmi",
    "ovmf",
    "qemu-efi-aarch64",
    "qemu-system-arm",
    "qemu-system-x86",
    "qemu-utils",
    "swtpm",
    "swtpm-tools",
];
/// Third-party clients and servers. atftpd is not among them: it conflicts with tftpd-hpa.
const PEERS: &[&str] = &[
    "atftp",
    "containerd",
    "dnsmasq-base",
    "haproxy",
    "isc-dhcp-client",
    "isc-dhcp-relay",
    "kea-admin",
    "kea-dhcp4-server",
    "nginx-light",
    "python3-venv",
    "skopeo",
    "systemd-container",
    "tftp-hpa",
    "tftpd-hpa",
    "udhcpc",
    "umoci",
    "wget",
];
/// Packages with the services that Debian would start now and at every boot.
const SERVICES: &[(&str, &str)] = &[
    ("containerd", "containerd"),
    ("haproxy", "haproxy"),
    ("ipmitool", "ipmievd"),
    ("isc-dhcp-relay", "isc-dhcp-relay"),
    ("kea-dhcp4-server", "kea-dhcp4-server"),
    ("nginx-light", "nginx"),
    ("openipmi", "openipmi"),
    ("tftpd-hpa", "tftpd-hpa"),
];
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// Start of this program's policy file. The ID of the process that wrote it follows.
const NO_SERVICES: &str = "#!/bin/sh\n# by cargo xtask setup, which removes it when it ends, process ";

fn all() -> impl Iterator<Item = &'static str> {
    [TOOLS, IMAGE, MACHINES, PEERS].into_iter().flatten().copied()
}

/// The packages that are not installed.
pub(crate) fn missing() -> Result<Vec<&'static str>> {
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${Package} ${db:Status-Status}\n"])
        .output()
        .context("cannot run dpkg-query to see which packages are installed")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let installed: std::collections::HashSet<&str> =
        text.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    Ok(all().filter(|package| !installed.contains(package)).collect())
}

/// Keeps packages from starting their services while it lives (Debian policy 9.3.3.1). An existing policy of
/// another program stays.
struct NoServices {
    ours: bool,
}

impl NoServices {
    fn new() -> Result<Self> {
        remove_left_over()?;
        if Path::new(POLICY).exists() {
            return Ok(Self { ours: false });
        }
        let text = format!("{NO_SERVICES}{}\nexit 101\n", std::process::id());
        std::fs::write(POLICY, text).with_context(|| format!("cannot write {POLICY}"))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(POLICY, mode).with_context(|| format!("cannot make {POLICY} executable"))?;
        Ok(Self { ours: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours {
            let _ = std::fs::remove_file(POLICY);
        }
    }
}

/// Returns true if the policy was written by a setup that no longer runs.
fn is_left_over(policy: &str) -> bool {
    let process = policy.strip_prefix(NO_SERVICES).and_then(|rest| rest.lines().next());
    process.is_some_and(|process| !Path::new("/proc").join(process).exists())
}

/// Removes the policy that a killed setup left: with it no package of anybody's starts its services.
pub(crate) fn remove_left_over() -> Result<()> {
    if std::fs::read_to_string(POLICY).is_ok_and(|text| is_left_over(&text)) {
        std::fs::remove_file(POLICY).with_context(|| format!("cannot remove {POLICY}"))?;
    }
    Ok(())
}

pub(crate) fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
    command.args(["-q", "-y", "-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3"]).args(arguments);
    command
}

/// Installs the missing packages.
pub(crate) fn install() -> Result<()> {
    let missing = missing()?;
    if missing.is_empty() {
        return Ok(());
    }
    // A third party's broken source must not stop us: what counts is whether the packages install.
    let _ = progress::step("apt-get update", |step| step.run(&mut apt(&["update"])));
    let _policy = NoServices::new()?;
    progress::step(&format!("apt-get install, {} packages", missing.len()), |step| {
        step.run(apt(&["install", "--no-install-recommends"]).args(&missing))
    })?;
    for (_, service) in SERVICES.iter().filter(|(package, _)| missing.contains(package)) {
        // Also disabled at the next boot: a second DHCP server on a user's network causes an outage.
        let _ = Command::new("systemctl").args(["--quiet", "disable", service]).output();
    }
    let left = self::missing()?;
    if !left.is_empty() {
        bail!("still not installed: {}", left.join(" "));
    }
    Ok(())
}

/// GRUB's network loader for arm64 UEFI, a file that no amd64 package holds:
/// `<cache>/downloads/grub-efi-arm64-bin/usr/lib/grub/arm64-efi/monolithic/grubnetaa64.efi`.
pub(crate) fn arm64_loader() -> PathBuf {
    host::cache().join("downloads/grub-efi-arm64-bin/usr/lib/grub/arm64-efi/monolithic/grubnetaa64.efi")
}

/// Fetches the arm64 loader by an apt state of its own, so that this machine does not get a foreign architecture.
pub(crate) fn fetch_arm64_loader() -> Result<()> {
    if arm64_loader().is_file() {
        return Ok(());
    }
    progress::step("download grub-efi-arm64-bin", |step| {
        let work = host::cache().join("downloads/apt-arm64");
        for place in ["state/lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(work.join(place))
                .with_context(|| format!("cannot make {}", work.display()))?;
        }
        std::fs::write(work.join("status"), "").context("cannot write an empty dpkg status")?;
        let sources = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n";
        std::fs::write(work.join("sources.list"), sources).context("cannot write sources.list")?;
        let at = |name: &str| work.join(name).display().to_string();
        let options = [
            "APT::Architecture=arm64".to_owned(),
            "APT::Architectures=arm64".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State={}", at("state")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            format!("Dir::Etc::sourcelist={}", at("sources.list")),
        ];
        for act in [&["update"][..], &["download", "grub-efi-arm64-bin"]] {
            let mut command = apt(&[]);
            for option in &options {
                command.args(["-o", option]);
            }
            step.run(command.args(act).current_dir(&work))?;
        }
        let package = std::fs::read_dir(&work)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|e| e == "deb"))
            .context("apt-get download left no package")?;
        let place = host::cache().join("downloads/grub-efi-arm64-bin");
        step.run(Command::new("dpkg").arg("-x").arg(package).arg(place))?;
        std::fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_of_a_killed_setup_is_left_over() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let policy = |process: u32| format!("{NO_SERVICES}{process}\nexit 101\n");
        assert!(is_left_over(&policy(child.id())));
        assert!(!is_left_over(&policy(std::process::id())), "it installs now");
        assert!(!is_left_over("#!/bin/sh\nexit 101\n"), "somebody else's");
    }
}
