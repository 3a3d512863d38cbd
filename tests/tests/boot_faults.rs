//! Boots that go on while something is taken away: pxed itself, the registry, the API server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bedplate_tests::kubernetes::Kubernetes;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::{Firmware, GuestSlot};
use bedplate_tests::rack::{ADDRESS, Rack};
use bedplate_tests::registry::Registry;
use bedplate_tests::{boot, timeline};
use jiff::Timestamp;

#[test]
fn machines_come_up_although_pxed_is_killed_in_mid_transfer() -> Result<()> {
    let rack = Rack::new("killed")?;
    let _capture = rack.capture()?;
    let setup = Setup::new(pxed::host_image()?);
    let manifests = [pxed::manifest(1, ""), pxed::manifest(2, "")];
    let mut pxed = Pxed::start(&setup, &manifests, rack.network(), rack.path())?;
    let _slots = (GuestSlot::take(boot::ENROLLED * 4)?, GuestSlot::take(boot::ENROLLED * 4)?);
    let since = Timestamp::now();
    let machines = [rack.power_on(1, Firmware::Bios)?, rack.power_on(2, Firmware::UefiPxe)?];
    // What follows each of these stages is a transfer: the loader, the kernel, the root image.
    for (machine, stage) in [(2, "acknowledged"), (1, "script"), (1, "initrd"), (2, "initrd")] {
        pxed.wait_stage(&format!("server-{machine}"), stage, boot::ENROLLED)?;
        timeline::say(&format!("boot killed: pxed killed after {stage} of server-{machine}"));
        pxed = pxed.kill_and_restart()?;
    }
    for machine in &machines {
        boot::reaches("killed", &mut pxed, machine, "enrolled", since, boot::ENROLLED)?;
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
        "reference = {:?}\ninsecure-http = true\nkernel-arguments = [\"console=ttyS0\"]",
        registry.reference()
    ));
    setup.source = Some(format!("kubernetes = {{ kubeconfig = {:?} }}", kubeconfig.display().to_string()));
    let pxed = Pxed::start(&setup, &[], rack.network(), rack.path())?;
    ensure!(!pxed.machines()?.is_empty(), "pxed is ready and knows no Machine");

    drop(registry);
    kubernetes.stop_server();
    let mut pxed = pxed.kill_and_restart()?;
    let (status, body) = pxed.health("/readyz")?;
    timeline::say(&format!("boot alone: /readyz without registry and API server: {status}"));
    ensure!(body.contains("known from before"), "/readyz does not say that the API server is away: {body}");
    let _slot = GuestSlot::take(boot::ENROLLED * 4)?;
    let since = Timestamp::now();
    let machine = rack.power_on(1, Firmware::Bios)?;
    // Its certificate has to wait for the cluster that signs it.
    boot::reaches("alone", &mut pxed, &machine, "userspace", since, boot::ENROLLED)?;
    kubernetes.start_server()?;
    let seen = boot::reaches("alone", &mut pxed, &machine, "enrolled", since, boot::ENROLLED)?;
    let enrolled = timeline::seconds_to(&seen, "enrolled", since).context("enrolled without a time")?;
    ensure!(Duration::from_secs_f64(enrolled.max(0.0)) < boot::ENROLLED * 2, "enrolled after {enrolled} s");
    rack.succeeded();
    Ok(())
}
