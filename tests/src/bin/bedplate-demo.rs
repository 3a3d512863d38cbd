//! The demonstration: two virtual servers, one BIOS and one UEFI, that pxed switches on through their BMCs, from power-on to
//! enrolled, watched live; then one of them is power-cycled by a MachineOperation.
//!
//! `cargo xtask demo` has prepared everything before it starts this. Everything is removed at the end, also after Ctrl-C.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bedplate_tests::bmc::server::{BmcKind, Server};
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::qemu::{Firmware, GuestSlot};
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

/// A server of the demonstration.
struct Exhibit {
    number: u8,
    firmware: (&'static str, Firmware),
    bmc: (&'static str, BmcKind),
}

/// The servers of the demonstration: the BMC of the one is the rack's own simulator, that of the other is OpenIPMI's.
const SERVERS: [Exhibit; 2] = [
    Exhibit { number: 1, firmware: ("BIOS", Firmware::Bios), bmc: ("Redfish", BmcKind::Redfish) },
    Exhibit { number: 2, firmware: ("UEFI", Firmware::UefiPxe), bmc: ("IPMI", BmcKind::IpmiSim) },
];

/// What is awaited of servers.
struct Awaited<'a> {
    servers: &'a [Server],
    /// The boot that each of them has now, if another one is awaited.
    before: Option<String>,
    stage: &'static str,
}

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
    println!("  network  {} with bridge br0, 10.7.0.1/24", rack.network().name());
    let add = |exhibit: &Exhibit| {
        rack.machine(Rack::spec(exhibit.number, exhibit.firmware.1)).with_bmc(exhibit.bmc.1)
    };
    let servers = SERVERS.iter().map(add).collect::<Result<Vec<Server>>>()?;
    let described = |(server, exhibit): (&Server, &Exhibit)| {
        format!("{} ({}, {} at {})", server.name(), exhibit.firmware.0, exhibit.bmc.0, server.address().ip())
    };
    println!(
        "  servers  {}, both off",
        servers.iter().zip(&SERVERS).map(described).collect::<Vec<_>>().join(", ")
    );
    let _slots = (GuestSlot::take(boot::ENROLLED)?, GuestSlot::take(boot::ENROLLED)?);
    let since = Timestamp::now();
    let mut pxed = start_pxed(&rack, &servers)?;
    println!(
        "  pxed     pid {}, DHCP server for two known machines, which it switches on\n",
        pxed.process().pid()
    );
    let all = Awaited { servers: &servers, before: None, stage: "enrolled" };
    watch(&pxed, &all, since)?;
    println!();
    for server in &servers {
        print_times(&pxed, server, since)?;
    }
    let socket = pxed.socket();
    bedplate(&socket, &["machine", "list"])?;
    bedplate(&socket, &["machine", "show", servers[0].name()])?;
    cycle(&pxed, &servers[..1])?;
    rack.succeeded();
    if keep {
        leave_running(&rack, &socket)?;
    }
    println!("\nremoving servers, pxed and network ...");
    drop(pxed);
    drop(servers);
    drop(rack);
    println!("{}", colour("32", "done: both servers came up and enrolled, one was power-cycled"));
    Ok(())
}

/// A pxed that knows the servers as Machines, with their BMCs.
fn start_pxed<'r>(rack: &'r Rack, servers: &[Server]) -> Result<Pxed<'r>> {
    let setup = Setup::new(pxed::host_image()?).with_bmcs(rack.path());
    let mut manifests = Vec::new();
    for (server, exhibit) in servers.iter().zip(&SERVERS) {
        server.write_credentials(&pxed::credentials_directory(rack.path()))?;
        manifests.push(pxed::manifest(exhibit.number, &server.bmc_yaml()));
    }
    Pxed::start(&setup, &manifests, rack.network(), rack.path())
}

/// Has a server switched off and on by a MachineOperation, and shows its next boot begin.
fn cycle(pxed: &Pxed<'_>, servers: &[Server]) -> Result<()> {
    let socket = pxed.socket();
    let Some(server) = servers.first() else { return Ok(()) };
    let before = boot_id(&pxed.machine(server.name())?);
    let since = Timestamp::now();
    bedplate(&socket, &["power", "cycle", server.name(), "--wait"])?;
    println!();
    watch(pxed, &Awaited { servers, before: Some(before.clone()), stage: "kernel" }, since)?;
    println!();
    print_times(pxed, server, since)?;
    println!("  boot      {before} -> {}", boot_id(&pxed.machine(server.name())?));
    bedplate(&socket, &["operation", "list"])
}

/// When a server was last switched on, and when its boot came to each stage.
fn print_times(pxed: &Pxed<'_>, server: &Server, since: Timestamp) -> Result<()> {
    let on = server.changes().into_iter().rfind(|change| change.on);
    let on = on.with_context(|| format!("{} was never switched on", server.name()))?;
    let seconds = (on.at - since).total(jiff::Unit::Second).unwrap_or_default();
    let line = timeline::line(&pxed.machine(server.name())?, since);
    println!("  {}  power on {seconds:.1}  {line}", bold(server.name()));
    Ok(())
}

fn boot_id(machine: &Value) -> String {
    machine.pointer("/status/boot/id").and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl Awaited<'_> {
    /// The Machines as pxed has them; a boot that is over is left out.
    fn look(&self, pxed: &Pxed<'_>) -> Result<Vec<Value>> {
        let look = |server: &Server| {
            let mut machine = pxed.machine(server.name())?;
            if self.before.as_ref().is_some_and(|before| *before == boot_id(&machine)) {
                machine["status"]["boot"].take();
            }
            Ok(machine)
        };
        self.servers.iter().map(look).collect()
    }
}

/// Draws the table until all servers have come to what is awaited.
fn watch(pxed: &Pxed<'_>, awaited: &Awaited<'_>, since: Timestamp) -> Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let started = Instant::now();
    let mut told = vec![0; awaited.servers.len()];
    let mut drawn = 0;
    loop {
        let machines = awaited.look(pxed)?;
        if terminal {
            drawn = draw(&machines, drawn, started.elapsed());
        } else {
            for (machine, told) in machines.iter().zip(&mut told) {
                tell(machine, told, since);
            }
        }
        if machines.iter().all(|machine| timeline::has(machine, awaited.stage)) {
            return Ok(());
        }
        if started.elapsed() > boot::ENROLLED {
            for (server, machine) in awaited.servers.iter().zip(&machines) {
                eprintln!("serial line of {}:\n{}", server.name(), guard::last_lines(&server.serial(), 25));
                eprintln!("status of {}: {}", server.name(), machine["status"]);
            }
            bail!("not all servers came to {} within {} s", awaited.stage, boot::ENROLLED.as_secs());
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
        bold(&format!(
            "SERVER    FIRMWARE  BMC      POWER    BOOT        STAGE          {:>5.1} s",
            elapsed.as_secs_f64()
        ))
    ));
    for (machine, Exhibit { number, firmware: (firmware, _), bmc: (bmc, _) }) in machines.iter().zip(SERVERS)
    {
        let power = machine.pointer("/status/power/state").and_then(Value::as_str).unwrap_or("-");
        let reached = timeline::of(machine);
        let dots = dots(&reached);
        let last = reached.last();
        let stage = last.map_or("-", |r| r.stage.as_str());
        let failure = last
            .and_then(|r| r.failure.as_deref())
            .map_or(String::new(), |f| colour("31", &format!("  {f:.60}")));
        text.push_str(&format!(
            "\x1b[2K  server-{number}  {firmware:<8}  {bmc:<7}  {power:<7}  {dots}  {stage:<13}{failure}\n"
        ));
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
    for command in ["machine list", "power status server-2", "power cycle server-2 --wait"] {
        println!("  {} --socket {} {command}", pxed::binary("bedplate")?.display(), socket.display());
    }
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
