//! The guard: what a run made is gone after it, and nothing else, whether it returned, panicked or was killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use bedplate_tests::cgroup::Cgroup;
use bedplate_tests::guard::{self, Directory, Process};
use bedplate_tests::netns::Namespace;
use bedplate_tests::wait;

/// Set for the second process of a test: it makes things, says their names and waits to be killed.
const VICTIM: &str = "BEDPLATE_GUARD_VICTIM";

fn make() -> Result<(Namespace, Directory, Process)> {
    let namespace = Namespace::new("guard")?;
    let directory = Directory::new("guard")?;
    let log = directory.path().join("sleep.log");
    let process = Process::spawn("sleep", namespace.command("sleep").arg("1000"), &log)?;
    Ok((namespace, directory, process))
}

fn assert_gone(namespace: &str, directory: &Path, pid: u32) -> Result<()> {
    wait::until("everything to be gone", Duration::from_secs(20), || {
        let there = Path::new("/run/netns").join(namespace).exists()
            || directory.exists()
            || std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.contains("1000"));
        Ok((!there).then_some(()))
    })
}

#[test]
fn a_panic_leaves_nothing_behind() -> Result<()> {
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let made = make().unwrap();
        send.send((made.0.name().to_owned(), made.1.path().to_owned(), made.2.pid())).unwrap();
        std::panic::panic_any("on purpose");
    });
    assert!(thread.join().is_err());
    let (namespace, directory, pid) = receive.recv()?;
    assert_gone(&namespace, &directory, pid)
}

/// Starts this test program again with only the named test, in `group` if given. Returns the process, and its line that names what it
/// created.
fn start_victim(test: &str, group: Option<&Cgroup>) -> Result<(Child, String)> {
    let program = std::env::current_exe()?;
    let mut command = group.map_or_else(|| Command::new(&program), |group| group.command(&program));
    let mut victim = command
        .args(["--exact", test, "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let output = victim.stdout.take().context("no pipe")?;
    let lines = std::io::BufRead::lines(std::io::BufReader::new(output));
    let made = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("MADE ").map(|(_, made)| made.to_owned()))
        .context("the victim made nothing")?;
    Ok((victim, made))
}

/// Acts as the victim: creates things, prints their names, and waits to be killed.
fn be_the_victim() -> Result<()> {
    if std::env::var_os(VICTIM).is_some() {
        let (namespace, directory, process) = make()?;
        println!("MADE {} {} {}", namespace.name(), directory.path().display(), process.pid());
        std::thread::park();
    }
    Ok(())
}

#[test]
fn killed_run_leaves_nothing_behind_and_touches_no_other_process() -> Result<()> {
    be_the_victim()?;
    let (other, other_directory, mut other_process) = make()?;
    let (mut victim, made) =
        start_victim("harness::guard::killed_run_leaves_nothing_behind_and_touches_no_other_process", None)?;
    let words: Vec<&str> = made.split(' ').collect();
    let [namespace, directory, pid] = words[..] else { anyhow::bail!("{made}") };
    assert!(Path::new("/run/netns").join(namespace).exists());
    victim.kill()?;
    victim.wait()?;
    assert_gone(namespace, Path::new(directory), pid.parse()?)?;
    assert!(Path::new("/run/netns").join(other.name()).exists() && other_directory.path().exists());
    assert!(other_process.is_running());
    Ok(())
}

#[test]
fn a_run_killed_with_its_control_group_leaves_nothing_behind() -> Result<()> {
    be_the_victim()?;
    let group = Cgroup::new(&format!("bedplate-{}-guard", guard::run_id()))?;
    let (mut victim, made) = start_victim(
        "harness::guard::a_run_killed_with_its_control_group_leaves_nothing_behind",
        Some(&group),
    )?;
    let words: Vec<&str> = made.split(' ').collect();
    let [namespace, directory, pid] = words[..] else { anyhow::bail!("{made}") };
    group.kill();
    victim.wait()?;
    assert_gone(namespace, Path::new(directory), pid.parse()?)
}

#[test]
fn namespaces_reach_each_other_only_by_what_was_added() -> Result<()> {
    let (left, right) = (Namespace::new("left")?, Namespace::new("right")?);
    left.add_veth("a", &right, "b")?;
    left.ip("address add 10.8.0.1/24 dev a")?;
    right.ip("address add 10.8.0.2/24 dev b")?;
    let listener = right.inside(|| Ok(std::net::TcpListener::bind("10.8.0.2:8")?))?;
    left.inside(|| {
        Ok(std::net::TcpStream::connect_timeout(&"10.8.0.2:8".parse()?, Duration::from_secs(5))?)
    })?;
    drop(listener);
    let devices = left.ip("-o link")?;
    assert_eq!(devices.lines().count(), 2, "{devices}");
    Ok(())
}
