//! The agent's D-Bus against a real systemd 252, machined and logind: jobs, commands, containers, a bus that goes away.
//!
//! The test connects to the host's bus through the host's root directory, just as the agent connects to a slot's. What a
//! sandboxed agent may do is tried by this very program, started inside the host by the agent's real unit.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bedplate_agent::bus::{
    ActiveState, Bus, BusError, Changes, Container, ContainerName, Exit, JobResult, Leader, LoadState,
    MAX_OUTPUT_BYTES, Machines, MainExit, Manager, Output, Power, TransientCommand, UnitName, UnitState,
    Units,
};
use bedplate_tests::host::{End, Host};

/// On a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// For what must not end.
const SHORT: Duration = Duration::from_secs(1);
/// Unit that runs the container `inner-1`.
const INNER_UNIT: &str = "systemd-nspawn@inner-1.service";
/// Set for this program where the agent's unit starts it: the container's name.
const INSIDE: &str = "BEDPLATE_BUS_INSIDE";

fn unit(name: &str) -> UnitName {
    name.parse().expect("a name")
}

fn container(name: &str) -> ContainerName {
    name.parse().expect("a name")
}

/// A host with these units.
fn host(name: &str, units: &[(&str, &str)]) -> Result<(Host, Bus)> {
    let mut host = Host::prepare(name)?;
    for (unit, text) in units {
        host = host.file(&format!("/etc/systemd/system/{unit}"), text.as_bytes(), 0o644)?;
    }
    let host = host.start()?;
    let bus = Bus::at(&host.root());
    Ok((host, bus))
}

/// Waits for a state of a unit by its changes.
async fn until(
    units: &dyn Units,
    changes: &mut Changes,
    unit: &UnitName,
    wanted: impl Fn(&UnitState) -> bool,
) -> Result<UnitState> {
    let look = async {
        loop {
            let state = units.state(unit).await?;
            if wanted(&state) {
                return Ok(state);
            }
            changes.next().await?;
        }
    };
    tokio::time::timeout(LONG, look).await.with_context(|| format!("{unit} does not get there"))?
}

const SLEEPS: &str = "[Service]\nExecStart=/usr/bin/sleep infinity\n";
const FAILS: &str = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'exit 7'\n";
const NEVER_READY: &str =
    "[Service]\nType=notify\nTimeoutStartSec=200ms\nExecStart=/usr/bin/sleep infinity\n";
const NEEDS: &str = "[Unit]\nRequires=fails.service\nAfter=fails.service\n[Service]\nExecStart=/bin/true\n";
const HANGS: &str = "[Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=/usr/bin/sleep infinity\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_starts_and_stops_and_its_state_tells() -> Result<()> {
    let (_host, bus) = host("start", &[("sleeps.service", SLEEPS)])?;
    let (manager, sleeps) = (bus.manager(), unit("sleeps.service"));
    let before = manager.state(&sleeps).await?;
    assert_eq!(
        (before.load, before.active, before.active_since),
        (LoadState::Loaded, ActiveState::Inactive, None)
    );
    assert_eq!(manager.start(&sleeps, LONG).await?, JobResult::Done);
    let up = manager.state(&sleeps).await?;
    assert!(up.is_up() && up.sub == "running" && up.main_pid.is_some(), "{up:?}");
    assert!(up.active_since.is_some() && up.result.as_deref() == Some("success") && up.restarts == Some(0));
    assert_eq!(manager.restart(&sleeps, LONG).await?, JobResult::Done);
    assert_ne!(manager.state(&sleeps).await?.main_pid, up.main_pid);
    manager.kill(&sleeps, nix::libc::SIGKILL).await?;
    let mut changes = manager.changes(&BTreeSet::from([sleeps.clone()])).await?;
    let killed = until(&manager, &mut changes, &sleeps, |state| state.active.is_down()).await?;
    assert_eq!(killed.active, ActiveState::Failed);
    assert_eq!((killed.result.as_deref(), killed.main_exit), (Some("signal"), Some(MainExit::Signal(9))));
    manager.reset_failed(&sleeps).await?;
    assert_eq!(manager.state(&sleeps).await?.active, ActiveState::Inactive);
    manager.start(&sleeps, LONG).await?;
    assert_eq!(manager.stop(&sleeps, LONG).await?, JobResult::Done);
    assert_eq!(manager.state(&sleeps).await?.active, ActiveState::Inactive);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_in_which_a_job_ends_badly_has_its_value() -> Result<()> {
    let units = [("fails.service", FAILS), ("never.service", NEVER_READY), ("needs.service", NEEDS)];
    let (_host, bus) = host("fail", &units)?;
    let manager = bus.manager();
    assert_eq!(manager.start(&unit("fails.service"), LONG).await?, JobResult::Failed);
    let failed = manager.state(&unit("fails.service")).await?;
    assert_eq!((failed.active, failed.main_exit), (ActiveState::Failed, Some(MainExit::Code(7))));
    assert_eq!(manager.start(&unit("never.service"), LONG).await?, JobResult::Failed);
    assert_eq!(manager.state(&unit("never.service")).await?.result.as_deref(), Some("timeout"));
    assert_eq!(manager.start(&unit("needs.service"), LONG).await?, JobResult::Dependency);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_does_not_exist_is_a_state_and_an_error_with_its_remedy() -> Result<()> {
    let (_host, bus) = host("absent", &[])?;
    let (manager, absent) = (bus.manager(), unit("absent-1.service"));
    assert_eq!(manager.state(&absent).await?.load, LoadState::NotFound);
    let error = manager.start(&absent, LONG).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "start of absent-1.service: unit absent-1.service not found; its file is missing, or systemd needs `systemctl daemon-reload`"
    );
    assert!(!error.is_transient());
    assert_eq!(manager.stop(&absent, LONG).await?, JobResult::Done);
    manager.reset_failed(&absent).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_is_seen_after_daemon_reload() -> Result<()> {
    let (host, bus) = host("reload", &[])?;
    let (manager, fresh) = (bus.manager(), unit("fresh.service"));
    host.put("/run/systemd/system/fresh.service", SLEEPS.as_bytes(), 0o644)?;
    manager.daemon_reload().await?;
    // systemd forgets a unit that does not run, and reads it again on each request.
    manager.start(&fresh, LONG).await?;
    assert_eq!(manager.state(&fresh).await?.needs_reload, Some(false));
    host.put("/run/systemd/system/fresh.service", format!("{SLEEPS}#\n").as_bytes(), 0o644)?;
    assert_eq!(manager.state(&fresh).await?.needs_reload, Some(true));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_job_is_an_error_at_its_deadline_and_asking_again_joins_it() -> Result<()> {
    let (_host, bus) = host("hang", &[("hangs.service", HANGS)])?;
    let (manager, hangs) = (bus.manager(), unit("hangs.service"));
    let error = manager.start(&hangs, SHORT).await.unwrap_err();
    assert!(matches!(error, BusError::JobHangs { .. }) && error.is_transient(), "{error}");
    let state = manager.state(&hangs).await?;
    assert!(state.has_job && state.active == ActiveState::Activating && !state.is_up(), "{state:?}");
    assert!(matches!(manager.start(&hangs, SHORT).await, Err(BusError::JobHangs { .. })));
    // A stop takes the start's place; who waited for the start hears so.
    let (started, stopped) = tokio::join!(manager.start(&hangs, LONG), async {
        let mut changes = manager.changes(&BTreeSet::from([hangs.clone()])).await?;
        until(&manager, &mut changes, &hangs, |state| state.has_job).await?;
        anyhow::Ok(manager.stop(&hangs, LONG).await?)
    });
    assert_eq!(stopped?, JobResult::Done);
    assert!(matches!(started?, JobResult::Canceled | JobResult::Failed));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_concurrent_jobs_keep_their_results_apart() -> Result<()> {
    let (_host, bus) = host("many", &[("many@.service", FAILS), ("good@.service", SLEEPS)])?;
    let manager = bus.manager();
    let jobs = (0..40).map(|number| {
        let (manager, kind) = (manager.clone(), if number % 2 == 0 { "many" } else { "good" });
        async move { (number, manager.start(&unit(&format!("{kind}@{number}.service")), LONG).await) }
    });
    for (number, result) in futures_of(jobs).await {
        let wanted = if number % 2 == 0 { JobResult::Failed } else { JobResult::Done };
        assert_eq!(result?, wanted, "{number}");
    }
    Ok(())
}

/// Awaits all of them concurrently.
async fn futures_of<T: Send + 'static>(
    futures: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = futures.map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("no panic"));
    }
    results
}

fn shell(name: &str, script: &str) -> TransientCommand {
    TransientCommand {
        unit: unit(&format!("{name}.service")),
        description: "a test's command".to_owned(),
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        environment: vec!["WORD=from outside".to_owned()],
        output: Output::Tail,
        limit: LONG,
        settings: Vec::new(),
    }
}

/// Nothing of a command's unit is left.
async fn assert_collected(manager: &Manager, name: &str) -> Result<()> {
    assert_eq!(manager.state(&unit(name)).await?.load, LoadState::NotFound, "{name} is still loaded");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_gives_its_exit_code_and_both_outputs_and_leaves_no_unit() -> Result<()> {
    let (_host, bus) = host("run", &[])?;
    let manager = bus.manager();
    let ran = manager.run(&shell("speaks", "echo $WORD; echo and error >&2; exit 3")).await?;
    assert_eq!((ran.exit, ran.output.as_str(), ran.cut), (Exit::Code(3), "from outside\nand error\n", false));
    assert_collected(&manager, "speaks.service").await?;
    let ran = manager.run(&shell("speaks", "true")).await?;
    assert_eq!((ran.exit, ran.output.as_str()), (Exit::Code(0), ""));
    let ran = manager.run(&shell("long", "seq 100000; echo end")).await?;
    assert!(
        ran.cut && ran.output.len() <= MAX_OUTPUT_BYTES && ran.output.ends_with("100000\nend\n"),
        "{}",
        ran.output.len()
    );
    // Neither `$` nor `%` means anything to systemd here.
    let ran = manager.run(&shell("dies", "echo '$WORD ${WORD} %n'; kill -9 $$")).await?;
    assert_eq!((ran.exit, ran.output.as_str()), (Exit::Signal(9), "$WORD ${WORD} %n\n"));
    let mut missing = shell("missing", "");
    missing.argv = vec!["/usr/bin/not-there".to_owned()];
    assert_eq!(manager.run(&missing).await?.exit, Exit::Code(203));
    assert_collected(&manager, "missing.service").await
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_output_of_a_command_goes_into_a_file_if_that_is_asked_for() -> Result<()> {
    let (host, bus) = host("file", &[])?;
    host.put("/var/log/out", b"older and longer than what comes\n", 0o600)?;
    let mut command = shell("writes", "echo one; echo two >&2");
    command.output = Output::Split("/var/log/out".into());
    let ran = bus.manager().run(&command).await?;
    assert_eq!((ran.exit, ran.output.as_str()), (Exit::Code(0), "two\n"));
    assert_eq!(host.read("/var/log/out")?, "one\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_ended_at_its_deadline_with_its_children() -> Result<()> {
    let (host, bus) = host("late", &[])?;
    let mut command = shell("late", "echo begun; sleep 1001 & sleep 1002");
    command.limit = SHORT;
    let ran = bus.manager().run(&command).await?;
    assert_eq!((ran.exit, ran.output.as_str()), (Exit::TimedOut, "begun\n"));
    // A child that the command leaves behind ends with it too.
    let ran = bus.manager().run(&shell("leaves", "sleep 1003 & echo left")).await?;
    assert_eq!((ran.exit, ran.output.as_str()), (Exit::Code(0), "left\n"));
    assert!(!host.run("sh", &["-c", "cat /proc/[0-9]*/cmdline"])?.contains("sleep\x00100"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn command_without_a_waiting_caller_is_killed() -> Result<()> {
    let (_host, bus) = host("cancel", &[])?;
    let (manager, name) = (bus.manager(), unit("cancelled.service"));
    let mut changes = manager.changes(&BTreeSet::from([name.clone()])).await?;
    let command = shell("cancelled", "trap '' TERM; sleep 1000; sleep 1000");
    let task = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run(&command).await }
    });
    until(&manager, &mut changes, &name, |state| state.main_pid.is_some()).await?;
    task.abort();
    until(&manager, &mut changes, &name, |state| state.active.is_down()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_a_killed_agent_left_makes_way_for_its_like() -> Result<()> {
    let (host, bus) = host("left", &[])?;
    host.run("systemd-run", &["--quiet", "--unit=again.service", "sleep", "1000"])?;
    let ran = bus.manager().run(&shell("again", "echo second")).await?;
    assert_eq!((ran.exit, ran.output.as_str()), (Exit::Code(0), "second\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_come_without_being_asked_for_and_of_named_units_only() -> Result<()> {
    let (host, bus) = host("changes", &[("sleeps.service", SLEEPS), ("other.service", SLEEPS)])?;
    let (manager, sleeps) = (bus.manager(), unit("sleeps.service"));
    let mut changes = manager.changes(&BTreeSet::from([sleeps.clone()])).await?;
    host.run("systemctl", &["start", "other.service"])?;
    host.run("systemctl", &["start", "sleeps.service"])?;
    let changed = tokio::time::timeout(LONG, changes.next()).await??;
    assert_eq!(changed, BTreeSet::from([sleeps]));
    Ok(())
}

/// A host with a container that runs.
async fn with_container(name: &str) -> Result<(Host, Bus, Container)> {
    let (host, bus) = host(name, &[])?;
    host.add_container("inner-1")?;
    let inner = container("inner-1");
    let started = bus.manager().start(&unit(INNER_UNIT), LONG).await?;
    assert_eq!(started, JobResult::Done, "{}", host.journal(INNER_UNIT)?);
    let running = bus.machined().get(&inner).await?.context("machined does not know the container")?;
    Ok((host, bus, running))
}

/// systemd of a container that has just been started: its bus comes some moments later.
async fn answers(units: &dyn Units) -> Result<()> {
    let asked = async {
        loop {
            match units.state(&unit("dbus.service")).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_millis(25)).await,
                Err(error) => bail!(error),
            }
        }
    };
    tokio::time::timeout(LONG, asked).await.context("the container's bus does not come")?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_containers_own_systemd_is_reached_through_its_leader() -> Result<()> {
    let (host, bus, running) = with_container("inside").await?;
    let inside = bus.machined().units(running.leader);
    answers(inside.as_ref()).await?;
    // Must be the container's unit: the host's unit of this name is another one.
    host.put("/run/systemd/system/only-here.service", SLEEPS.as_bytes(), 0o644)?;
    bus.manager().daemon_reload().await?;
    assert_eq!(inside.state(&unit("only-here.service")).await?.load, LoadState::NotFound);
    assert_eq!(inside.state(&unit("dbus.service")).await?.active, ActiveState::Active);
    let ran = inside.run(&shell("who", "hostname; cat /etc/hostname")).await?;
    assert_eq!((ran.exit, ran.output.as_str()), (Exit::Code(0), "inner-1\ninner-1\n"));
    let mut command = shell("where", "echo here");
    command.output = Output::Split("/var/log/where".into());
    assert_eq!(inside.run(&command).await?.output, "");
    assert_eq!(host.read("/var/lib/machines/inner-1/var/log/where")?, "here\n");
    assert!(bus.machined().terminate(&running.name).await?);
    let inner = unit(INNER_UNIT);
    let mut changes = bus.manager().changes(&BTreeSet::from([inner.clone()])).await?;
    until(&bus.manager(), &mut changes, &inner, |state| state.active.is_down()).await?;
    assert_eq!(bus.machined().get(&running.name).await?, None);
    assert!(!bus.machined().terminate(&running.name).await?);
    let error = inside.state(&unit("dbus.service")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn reused_process_id_of_a_leader_is_not_signaled() -> Result<()> {
    let (host, bus) = host("reused", &[("sleeps.service", SLEEPS)])?;
    bus.manager().start(&unit("sleeps.service"), LONG).await?;
    let pid = bus.manager().state(&unit("sleeps.service")).await?.main_pid.context("no process")?;
    for number in [pid, 4_000_000] {
        let leader = Leader::new(number).context("a number")?;
        let error = bus.machined().units(leader).state(&unit("dbus.service")).await.unwrap_err();
        assert!(matches!(error, BusError::NotALeader { .. }), "{error}");
    }
    assert_eq!(Leader::new(1), None);
    drop(host);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_that_is_killed_is_an_error_and_works_again_when_it_is_back() -> Result<()> {
    let (host, bus) = host("away", &[("sleeps.service", SLEEPS), ("hangs.service", HANGS)])?;
    let (manager, sleeps) = (bus.manager(), unit("sleeps.service"));
    let mut changes = manager.changes(&BTreeSet::from([sleeps.clone()])).await?;
    let job = tokio::spawn({
        let manager = manager.clone();
        async move { manager.start(&unit("hangs.service"), LONG).await }
    });
    let mut hangs = manager.changes(&BTreeSet::from([unit("hangs.service")])).await?;
    until(&manager, &mut hangs, &unit("hangs.service"), |state| state.has_job).await?;
    host.run("systemctl", &["stop", "dbus.socket", "dbus.service"])?;
    // A waiting caller gets the error immediately; a new request names the socket of the bus.
    let waiting = tokio::time::timeout(LONG, job).await??.unwrap_err();
    assert!(matches!(waiting, BusError::Away { .. }), "{waiting}");
    assert!(matches!(tokio::time::timeout(LONG, changes.next()).await?, Err(BusError::Away { .. })));
    let error = manager.state(&sleeps).await.unwrap_err();
    assert!(
        matches!(error, BusError::Away { .. }) && error.to_string().contains("system_bus_socket"),
        "{error}"
    );
    host.run("systemctl", &["start", "dbus.socket"])?;
    let back = async {
        loop {
            match manager.start(&sleeps, LONG).await {
                Ok(result) => return Ok(result),
                // systemd itself has to find the new bus first.
                Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_millis(25)).await,
                Err(error) => bail!(error),
            }
        }
    };
    assert_eq!(tokio::time::timeout(LONG, back).await??, JobResult::Done);
    assert!(manager.state(&sleeps).await?.is_up());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn machined_that_is_not_installed_is_named_with_its_package() -> Result<()> {
    let (host, bus) = host("without", &[])?;
    host.run("rm", &["/usr/share/dbus-1/system-services/org.freedesktop.machine1.service"])?;
    host.run("busctl", &["call", "org.freedesktop.DBus", "/", "org.freedesktop.DBus", "ReloadConfig"])?;
    let error = bus.machined().get(&container("inner-1")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "read state of container inner-1: org.freedesktop.machine1 is not available; install Debian's package systemd-container"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inhibitor_is_seen_and_heeded_and_a_reboot_reboots() -> Result<()> {
    let (mut host, bus) = host("reboot", &[])?;
    let inhibit =
        ["systemd-inhibit", "--what=shutdown", "--who=backup", "--why=writes a tape", "--mode=block"];
    let holder = ["--quiet", "--unit=holder.service", "--"];
    host.run("systemd-run", &[&holder[..], &inhibit[..], &["sleep", "1000"]].concat())?;
    let power = bus.logind();
    let blocked = async |is_blocked: bool| {
        loop {
            let blocker = power.blocker().await?;
            if blocker.is_some() == is_blocked {
                return anyhow::Ok(blocker);
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    let one = tokio::time::timeout(LONG, blocked(true)).await??.context("no inhibitor")?;
    assert_eq!((one.who.as_str(), one.why.as_str()), ("backup", "writes a tape"));
    let error = power.reboot().await.unwrap_err();
    assert!(error.to_string().starts_with("reboot: blocked by backup (writes a tape)"), "{error}");
    host.run("systemctl", &["stop", "holder.service"])?;
    assert_eq!(tokio::time::timeout(LONG, blocked(false)).await??, None);
    // The bus may have ended before it has answered.
    if let Err(error) = power.reboot().await {
        assert!(error.is_transient(), "{error}");
    }
    assert_eq!(host.wait_ended(LONG)?, End::Reboot);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn power_off_switches_off() -> Result<()> {
    let (mut host, bus) = host("off", &[])?;
    if let Err(error) = bus.logind().power_off().await {
        assert!(error.is_transient(), "{error}");
    }
    assert_eq!(host.wait_ended(LONG)?, End::PowerOff);
    Ok(())
}

/// Requests of the agent on its buses, made by this program inside the host.
async fn work_inside(name: &str) -> Result<()> {
    let bus = Bus::host();
    let ran = bus.manager().run(&shell("host-command", "echo of the host")).await?;
    assert_eq!(ran.output, "of the host\n");
    bus.manager().daemon_reload().await?;
    let running = bus.machined().get(&container(name)).await?.context("no container")?;
    let inside = bus.machined().units(running.leader);
    answers(inside.as_ref()).await?;
    assert_eq!(inside.run(&shell("slot-command", "cat /etc/hostname")).await?.output, format!("{name}\n"));
    assert!(bus.machined().terminate(&running.name).await?);
    Ok(())
}

/// Started by [`run_in_the_agents_unit`].
#[tokio::test]
#[ignore = "started inside a host"]
async fn inside_the_agents_unit() -> Result<()> {
    let name = std::env::var(INSIDE).with_context(|| format!("{INSIDE} is not set"))?;
    work_inside(&name).await
}

/// The agent's real unit, its program replaced by this one; all else stays as it is shipped.
fn run_in_the_agents_unit(host: &Host, change: &str) -> Result<String> {
    let real = include_str!("../../systemd/bedplate-agent.service");
    host.put("/etc/systemd/system/bedplate-agent.service", real.as_bytes(), 0o644)?;
    let drop_in = format!(
        "[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nExecStart=\n\
         ExecStart=/opt/test --exact inside_the_agents_unit --ignored --nocapture\nEnvironment={INSIDE}=inner-1\n{change}"
    );
    host.put("/etc/systemd/system/bedplate-agent.service.d/test.conf", drop_in.as_bytes(), 0o644)?;
    host.run("systemctl", &["daemon-reload"])?;
    let ended = host.run("systemctl", &["start", "bedplate-agent.service"]);
    let journal = host.journal("bedplate-agent.service")?;
    ended.map(|_| journal.clone()).context(journal)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_unit_lets_it_work_on_host_and_slot() -> Result<()> {
    let host = Host::prepare("sandbox")?.bind(&std::env::current_exe()?, "/opt/test").start()?;
    host.add_container("inner-1")?;
    host.run("systemctl", &["start", INNER_UNIT])?;
    // Without the capability the slot is out of reach, and the error says which one it wants.
    let without =
        run_in_the_agents_unit(&host, "CapabilityBoundingSet=\nCapabilityBoundingSet=CAP_DAC_READ_SEARCH\n");
    let said = format!("{:#}", without.unwrap_err());
    assert!(said.contains("the agent needs CAP_SYS_PTRACE"), "{said}");
    let journal = run_in_the_agents_unit(&host, "")?;
    assert!(journal.contains("1 passed"), "{journal}");
    Ok(())
}
