//! The host in namespaces itself: what tests of the agent stand on. Each starts hosts of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bedplate_tests::cgroup;
use bedplate_tests::guard::Directory;
use bedplate_tests::host::{End, Host};
use bedplate_tests::netns::Namespace;
use bedplate_tests::wait;

/// Set for the second process of a test: it starts a host, says where it is and waits to be killed.
const VICTIM: &str = "BEDPLATE_HOST_VICTIM";
/// On a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn systemd_252_reaches_multi_user_and_dbus_and_machined_answer() -> Result<()> {
    let started = Instant::now();
    let host = Host::start("plain")?;
    println!("host ready after {:.2} s", started.elapsed().as_secs_f64());
    assert_eq!(host.run("systemctl", &["is-system-running"])?.trim(), "running");
    assert_eq!(host.run("systemctl", &["is-active", "multi-user.target"])?.trim(), "active");
    assert!(host.run("systemctl", &["--version"])?.starts_with("systemd 252 "));
    assert_eq!(host.run("machinectl", &["list", "--no-legend"])?.trim(), "");
    let logind = host.run("busctl", &["--no-pager", "status", "org.freedesktop.login1"])?;
    assert!(logind.contains("systemd-logind.service"), "{logind}");
    assert_eq!(host.run("hostname", &[])?.trim(), "plain");
    assert_eq!(host.read("/proc/sys/kernel/random/boot_id")?.trim(), host.boot_id());
    Ok(())
}

#[test]
fn a_unit_that_was_put_runs_and_its_journal_is_read() -> Result<()> {
    let host = Host::start("units")?;
    host.put("/usr/local/bin/hello", b"#!/bin/sh\necho hello from $0\n", 0o755)?;
    let unit = b"[Service]\nType=oneshot\nExecStart=/usr/local/bin/hello\n";
    host.put("/run/systemd/system/hello.service", unit, 0o644)?;
    host.run("systemctl", &["daemon-reload"])?;
    host.run("systemctl", &["start", "hello.service"])?;
    let journal = host.journal("hello.service")?;
    assert!(journal.contains("hello from /usr/local/bin/hello"), "{journal}");
    Ok(())
}

#[test]
fn a_container_starts_in_the_host_and_has_systemd_of_its_own() -> Result<()> {
    let host = Host::start("nspawn")?;
    host.add_container("inner-1")?;
    host.run("systemctl", &["start", "systemd-nspawn@inner-1.service"])?;
    let shown = host.run("machinectl", &["show", "inner-1", "--property=Leader", "--value"])?;
    let socket = format!("proc/{}/root/run/dbus/system_bus_socket", shown.trim());
    wait::until("the container's D-Bus", LONG, || Ok(host.root().join(&socket).exists().then_some(())))?;
    host.run("machinectl", &["terminate", "inner-1"])?;
    Ok(())
}

#[test]
fn several_hosts_of_one_tree_do_not_see_each_other() -> Result<()> {
    let hosts = [Host::start("same")?, Host::start("same")?];
    hosts[0].put("/etc/only-here", b"1", 0o600)?;
    assert!(hosts[0].read("/etc/only-here").is_ok() && hosts[1].read("/etc/only-here").is_err());
    assert_ne!(hosts[0].read("/etc/machine-id")?, hosts[1].read("/etc/machine-id")?);
    assert_ne!(hosts[0].boot_id(), hosts[1].boot_id());
    Ok(())
}

#[test]
fn files_binds_and_network_are_there_from_the_start() -> Result<()> {
    let namespace = Namespace::new("host")?;
    namespace.add_bridge("there", None)?;
    let disk = Directory::new("disk")?;
    let host = Host::prepare("prepared")?
        .file("/etc/bedplate/agent.toml", b"x = 1\n", 0o640)?
        .bind(Path::new("/usr/bin/env"), "/opt/env")
        .bind_writable(disk.path(), "/var/lib/bedplate")
        .network(&namespace)
        .start()?;
    assert_eq!(host.read("/etc/bedplate/agent.toml")?, "x = 1\n");
    assert!(host.run("ip", &["-o", "link"])?.contains("there"));
    assert!(host.put("/opt/env", b"no", 0o755).is_err(), "a bound program is read-only");
    host.put("/var/lib/bedplate/kept", b"yes", 0o644)?;
    drop(host);
    assert_eq!(std::fs::read_to_string(disk.path().join("kept"))?, "yes");
    Ok(())
}

#[test]
fn settings_of_the_machines_kernel_are_read_only_but_for_the_network() -> Result<()> {
    let host = Host::start("sysctl")?;
    assert!(host.run("sh", &["-c", "echo 1 > /proc/sys/vm/overcommit_memory"]).is_err());
    host.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
    Ok(())
}

#[test]
fn reboot_and_power_off_end_the_host_and_are_distinguished() -> Result<()> {
    for (verb, end) in [("reboot", End::Reboot), ("poweroff", End::PowerOff)] {
        let mut host = Host::start(verb)?;
        host.run("systemctl", &["--no-block", verb])?;
        assert_eq!(host.wait_ended(LONG)?, end);
    }
    Ok(())
}

/// Returns the control groups of this run's hosts whose name ends with `name`.
fn groups(name: &str) -> Result<Vec<PathBuf>> {
    let all =
        std::fs::read_dir(cgroup::own()?)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(all.into_iter().filter(|path| path.to_string_lossy().ends_with(name)).collect())
}

#[test]
fn a_panic_leaves_nothing_of_a_host_behind() -> Result<()> {
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let host = Host::start("panics").unwrap();
        send.send((host.directory().to_owned(), host.leader_pid())).unwrap();
        std::panic::panic_any("on purpose");
    });
    assert!(thread.join().is_err());
    let (directory, leader) = receive.recv()?;
    assert!(!directory.exists() && !Path::new(&format!("/proc/{leader}/root/etc")).exists());
    assert_eq!(groups("-panics")?, Vec::<PathBuf>::new());
    Ok(())
}

#[test]
fn a_killed_run_leaves_nothing_of_a_host_behind() -> Result<()> {
    if std::env::var_os(VICTIM).is_some() {
        let host = Host::start("victim")?;
        println!("MADE {} {}", host.directory().display(), host.leader_pid());
        std::thread::park();
    }
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["--exact", "harness::host::a_killed_run_leaves_nothing_of_a_host_behind", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let output = victim.stdout.take().context("no pipe")?;
    let made = std::io::BufRead::lines(std::io::BufReader::new(output))
        .map_while(Result::ok)
        .find_map(|line| line.split_once("MADE ").map(|(_, made)| made.to_owned()))
        .context("the victim made nothing")?;
    let (directory, leader) = made.split_once(' ').context("two words")?;
    assert_eq!(groups("-victim")?.len(), 1);
    victim.kill()?;
    victim.wait()?;
    wait::until("everything to be gone", LONG, || {
        let there = Path::new(directory).exists()
            || Path::new(&format!("/proc/{leader}/root/etc")).exists()
            || !groups("-victim")?.is_empty();
        Ok((!there).then_some(()))
    })
}
