//! Boots that continue while a service is unavailable: pxed itself, the registry, the API server.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use bedplate_tests::guard::START_TIMEOUT;
use bedplate_tests::guest::GuestSlot;
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::Firmware;
use bedplate_tests::rack::{ADDRESS, LOADERS, Rack};
use bedplate_tests::registry::Registry;
use bedplate_tests::{boot, timeline, wait};
use jiff::Timestamp;
use nix::sys::signal::Signal;

/// Transfer to a machine.
#[derive(Debug, Clone, Copy)]
enum Transfer {
    /// The loader, by TFTP.
    Tftp,
    /// A kernel, an initrd or a root image, by HTTP.
    Http,
}

/// The package's loaders, that for TFTP longer: 170 kB are transferred before a check could see the transfer. Firmware ignores
/// bytes behind a program. OVMF does not try PXE again when its transfer breaks off: it continues with HTTP boot.
fn loaders(rack: &Rack) -> Result<PathBuf> {
    let directory = rack.file("loaders");
    std::fs::create_dir_all(&directory)?;
    let mut loader = std::fs::read(Path::new(LOADERS).join("snponly.efi"))?;
    loader.resize(8 << 20, 0);
    std::fs::copy(Path::new(LOADERS).join("ipxe.efi"), directory.join("ipxe.efi"))?;
    std::fs::write(directory.join("snponly.efi"), loader)?;
    Ok(directory)
}

/// Stops pxed (SIGSTOP) in the middle of a transfer: nothing can end any more between the look and the kill.
fn stop_in_mid_transfer(pxed: &mut Pxed<'_>, transfer: Transfer) -> Result<()> {
    wait::until(&format!("a transfer by {transfer:?}"), boot::ENROLL_TIMEOUT, || {
        // UEFI's first TFTP transfer is a probe of the size, without a block.
        if matches!(transfer, Transfer::Tftp) && pxed.metric("bedplate_pxed_tftp_blocks_total")? == 0 {
            return Ok(None);
        }
        let pid = pxed.process().pid();
        pxed.process().signal(Signal::SIGSTOP)?;
        wait::until("pxed to stop", START_TIMEOUT, || Ok(has_stopped(pid)?.then_some(())))?;
        if is_open(pid, transfer)? {
            return Ok(Some(()));
        }
        pxed.process().signal(Signal::SIGCONT)?;
        Ok(None)
    })
}

/// Returns true if every thread has stopped.
fn has_stopped(pid: u32) -> Result<bool> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = std::fs::read_to_string(thread?.path().join("stat"))?;
        if stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with('T')) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if the kernel has a TFTP transfer's socket, which has a port of its own on the rack's address, or an HTTP
/// connection with much to send.
fn is_open(pid: u32, transfer: Transfer) -> Result<bool> {
    const MUCH: u64 = 16 << 10;
    const EPHEMERAL: u64 = 32768;
    let (table, port) = match transfer {
        Transfer::Tftp => ("udp", None),
        Transfer::Http => ("tcp", Some(8067)),
    };
    let own = u32::from_le_bytes(ADDRESS.octets());
    let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
    let open = |line: &str| {
        // Number, local address, remote address, state, queue to send and queue received, all in hexadecimal.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, at) = fields.get(1)?.split_once(':')?;
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
        let (address, at) = (hexadecimal(address)?, hexadecimal(at)?);
        let waiting = hexadecimal(fields.get(4)?.split_once(':')?.0)?;
        Some(match port {
            None => address == u64::from(own) && at >= EPHEMERAL,
            Some(port) => at == port && waiting > MUCH,
        })
    };
    Ok(sockets.lines().skip(1).any(|line| open(line).unwrap_or_default()))
}

#[test]
fn machines_come_up_although_pxed_is_killed_in_mid_transfer() -> Result<()> {
    let rack = Rack::new("killed")?;
    let _capture = rack.capture()?;
    let mut setup = Setup::new(pxed::host_image()?);
    setup.loader_directory = loaders(&rack)?;
    setup.loaders = vec![("uefi-x64", "snponly.efi"), ("uefi-x64-http", "ipxe.efi")];
    let manifests = [pxed::manifest(1, ""), pxed::manifest(2, "")];
    let mut pxed = Pxed::start(&setup, &manifests, rack.network(), rack.path())?;
    let _slots = GuestSlot::take_two()?;
    let since = Timestamp::now();
    let machines = [rack.power_on(1, Firmware::Bios)?, rack.power_on(2, Firmware::UefiPxe)?];
    // Transfer after each of these stages: the loader, the kernel, the root image. HTTP is cut only after the firmware of server-2 has
    // ended: it tries HTTP once after TFTP, and opens its shell if both were cut.
    for (machine, stage, transfer) in [
        (2, "Acknowledged", Transfer::Tftp),
        (2, "Script", Transfer::Http),
        (1, "Initrd", Transfer::Http),
        (2, "Initrd", Transfer::Http),
    ] {
        pxed.wait_stage(&format!("server-{machine}"), stage, boot::ENROLL_TIMEOUT)?;
        stop_in_mid_transfer(&mut pxed, transfer)?;
        timeline::say(&format!("boot killed: pxed killed in {transfer:?} after {stage} of server-{machine}"));
        pxed = pxed.kill_and_restart()?;
    }
    for machine in &machines {
        boot::reaches("killed", &mut pxed, machine, "Enrolled", since, boot::ENROLL_TIMEOUT)?;
    }
    rack.succeeded();
    Ok(())
}

#[test]
fn known_machine_comes_up_without_registry_and_api_server() -> Result<()> {
    let rack = Rack::new("alone")?;
    let mut kubernetes = Kubernetes::start_inside(rack.network(), ADDRESS.into())?;
    kubernetes.install()?;
    kubernetes.start_controllers(&["csrsigning"])?;
    let manifest = rack.file("machine.yaml");
    std::fs::write(&manifest, pxed::manifest(1, ""))?;
    kubernetes.kubectl(&kubernetes.admin(), &["apply", "-f", &manifest.display().to_string()])?;
    let kubeconfig = kubernetes.service_account("bedplate-system", "pxed")?;
    let layout = pxed::cache()?.join("images/host");
    let registry = Registry::start(&layout, rack.network(), (ADDRESS, 5000).into())?;
    let mut setup = Setup::new(format!(
        "reference = {:?}\ninsecure-http = true\n{}",
        registry.reference(),
        pxed::KERNEL_ARGUMENTS
    ));
    setup.source = Some(format!("kubernetes = {{ kubeconfig = {:?} }}", kubeconfig.display().to_string()));
    let pxed = Pxed::start(&setup, &[], rack.network(), rack.path())?;
    ensure!(!pxed.machines()?.is_empty(), "pxed is ready and knows no Machine");

    drop(registry);
    kubernetes.stop_server();
    let mut pxed = pxed.kill_and_restart()?;
    let (status, body) = pxed.health("/readyz")?;
    timeline::say(&format!("boot alone: /readyz without registry and API server: {status}"));
    ensure!(
        body.contains("serving the stored machines"),
        "/readyz does not report the unreachable API server: {body}"
    );
    let slot = GuestSlot::take()?;
    let since = Timestamp::now();
    let machine = rack.power_on(1, Firmware::Bios)?;
    boot::reaches("alone", &mut pxed, &machine, "Userspace", since, boot::ENROLL_TIMEOUT)?;
    drop(slot);
    // The certificate must wait for the cluster that signs it.
    ensure!(!timeline::has(&pxed.machine(machine.name())?, "Enrolled"), "enrolled without an API server");
    kubernetes.start_server()?;
    boot::reaches("alone", &mut pxed, &machine, "Enrolled", since, boot::ENROLL_TIMEOUT)?;
    rack.succeeded();
    Ok(())
}
