//! The demonstration: two virtual servers, one BIOS and one UEFI, from power-on to enrolled, watched live.
//!
//! `cargo xtask demo` has prepared everything before it starts this. Everything is removed at the end, also after Ctrl-C.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::{Firmware, GuestSlot, Machine};
use bedplate_tests::rack::Rack;
use bedplate_tests::{boot, guard, timeline};
use jiff::Timestamp;
use serde_json::Value;

/// The stages of a boot in order, as in `status.boot.timeline`.
const STAGES: [&str; 10] = [
    "discover",
    "offered",
    "acknowledged",
    "loader",
    "script",
    "kernel",
    "initrd",
    "rootfs",
    "userspace",
    "enrolled",
];

/// How often the table is drawn anew.
const REFRESH: Duration = Duration::from_millis(100);

/// The servers of the demonstration.
const SERVERS: [(u8, &str, Firmware); 2] = [(1, "BIOS", Firmware::Bios), (2, "UEFI", Firmware::UefiPxe)];

fn main() -> ExitCode {
    let keep = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--keep") => true,
        Some(other) => {
            eprintln!("error: {other:?} is not known; there is --keep");
            return ExitCode::from(64);
        }
    };
    match run(keep) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(keep: bool) -> Result<()> {
    let rack = Rack::new("demo")?;
    let setup = Setup::new(pxed::host_image()?);
    let manifests: Vec<String> = SERVERS.iter().map(|(number, ..)| pxed::manifest(*number, "")).collect();
    println!("  network  {} with bridge br0, 10.7.0.1/24", rack.network().name());
    let mut pxed = Pxed::start(&setup, &manifests, rack.network(), rack.path())?;
    println!("  pxed     pid {}, DHCP server for two known machines", pxed.process().pid());
    let _slots = (GuestSlot::take(boot::ENROLLED)?, GuestSlot::take(boot::ENROLLED)?);
    let since = Timestamp::now();
    let servers = SERVERS
        .iter()
        .map(|(number, _, firmware)| rack.power_on(*number, *firmware))
        .collect::<Result<Vec<Machine>>>()?;
    println!(
        "  power on {}\n",
        SERVERS.map(|(number, kind, _)| format!("server-{number} ({kind})")).join(", ")
    );
    watch(&pxed, &servers, since)?;
    println!();
    for server in &servers {
        println!("  {}  {}", bold(server.name()), timeline::line(&pxed.machine(server.name())?, since));
    }
    let socket = pxed.socket();
    bedplate(&socket, &["machine", "list"])?;
    bedplate(&socket, &["machine", "show", servers[0].name()])?;
    rack.succeeded();
    if keep {
        leave_running(&rack, &socket)?;
    }
    println!("\nremoving servers, pxed and network ...");
    drop(servers);
    drop(pxed);
    drop(rack);
    println!("{}", colour("32", "done: both servers came up and enrolled"));
    Ok(())
}

/// Draws the table until all servers are enrolled.
fn watch(pxed: &Pxed<'_>, servers: &[Machine], since: Timestamp) -> Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let started = Instant::now();
    let mut told = vec![0; servers.len()];
    let mut drawn = 0;
    loop {
        let machines =
            servers.iter().map(|server| pxed.machine(server.name())).collect::<Result<Vec<Value>>>()?;
        if terminal {
            drawn = draw(&machines, drawn, started.elapsed());
        } else {
            for (machine, told) in machines.iter().zip(&mut told) {
                tell(machine, told, since);
            }
        }
        if machines.iter().all(|machine| timeline::has(machine, "enrolled")) {
            return Ok(());
        }
        if started.elapsed() > boot::ENROLLED {
            for server in servers {
                eprintln!("serial line of {}:\n{}", server.name(), guard::last_lines(&server.serial(), 25));
            }
            bail!("not all servers were enrolled after {} s", boot::ENROLLED.as_secs());
        }
        std::thread::sleep(REFRESH);
    }
}

/// One line a server, drawn over the one before.
fn draw(machines: &[Value], drawn: usize, elapsed: Duration) -> usize {
    let mut text = String::new();
    if drawn > 0 {
        text.push_str(&format!("\x1b[{drawn}A"));
    }
    text.push_str(&format!(
        "\x1b[2K  {}\n",
        bold(&format!("SERVER    FIRMWARE  BOOT        STAGE          {:>5.1} s", elapsed.as_secs_f64()))
    ));
    for (machine, (number, kind, _)) in machines.iter().zip(SERVERS) {
        let reached = timeline::of(machine);
        let dots = dots(&reached);
        let last = reached.last();
        let stage = last.map_or("power on", |r| r.stage.as_str());
        let failure = last
            .and_then(|r| r.failure.as_deref())
            .map_or(String::new(), |f| colour("31", &format!("  {f:.60}")));
        text.push_str(&format!("\x1b[2K  server-{number}  {kind:<8}  {dots}  {stage:<13}{failure}\n"));
    }
    print!("{text}");
    let _ = std::io::stdout().flush();
    machines.len() + 1
}

/// A mark for each stage: reached, passed over (a card with iPXE in it fetches no loader), still to come.
fn dots(reached: &[timeline::Reached]) -> String {
    let there = |stage: &str| reached.iter().any(|r| r.stage == stage && r.failure.is_none());
    let last = STAGES.iter().rposition(|stage| there(stage));
    let dot = |(index, stage): (usize, &&str)| {
        if there(stage) {
            colour("32", "●")
        } else if last.is_some_and(|last| index < last) {
            "○".to_owned()
        } else {
            "·".to_owned()
        }
    };
    STAGES.iter().enumerate().map(dot).collect()
}

/// Without a terminal: a line for each stage that is new.
fn tell(machine: &Value, told: &mut usize, since: Timestamp) {
    let name = machine.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let reached = timeline::of(machine);
    for entry in reached.iter().skip(*told) {
        let seconds = (entry.time - since).total(jiff::Unit::Second).unwrap_or_default();
        let failure = entry.failure.as_deref().map_or(String::new(), |failure| format!(": {failure}"));
        println!("  {seconds:>5.1} s  {name}  {}{failure}", entry.stage);
    }
    *told = reached.len();
}

/// Runs `bedplate` on the demonstration's pxed and shows the command as well.
fn bedplate(socket: &Path, arguments: &[&str]) -> Result<()> {
    println!("\n{}", bold(&format!("$ bedplate {}", arguments.join(" "))));
    let status = Command::new(pxed::binary("bedplate")?)
        .arg("--socket")
        .arg(socket)
        .args(arguments)
        .status()
        .context("cannot start bedplate")?;
    if !status.success() {
        bail!("bedplate {} ended with {status}", arguments.join(" "));
    }
    Ok(())
}

fn leave_running(rack: &Rack, socket: &Path) -> Result<()> {
    println!("\n{}", bold("The rack runs until Ctrl-C. In another terminal:"));
    println!("  {} --socket {} machine list", pxed::binary("bedplate")?.display(), socket.display());
    println!("  tail -f {}/server-1.serial", rack.path().display());
    println!("  ip netns exec {} tcpdump -ni br0", rack.network().name());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::signal::ctrl_c()).context("cannot wait for Ctrl-C")
}

fn bold(text: &str) -> String {
    colour("1", text)
}

fn colour(code: &str, text: &str) -> String {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
