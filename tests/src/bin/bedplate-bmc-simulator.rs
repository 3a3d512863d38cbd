//! The BMC simulator as a program: many BMCs without machines behind them, each on a port of its own, and faults on demand
//! by lines of JSON on standard input or a Unix socket (see `bedplate_tests::bmc::control`).
//!
//! Prints a line of JSON for each BMC, then `{"ready":true}`. Ends with SIGTERM or SIGINT.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bedplate_tests::bmc::chassis::{Action, By, Chassis, Delays};
use bedplate_tests::bmc::control;
use bedplate_tests::bmc::service::{PASSWORD, Settings, USER};
use bedplate_tests::bmc::simulator::{Listen, Simulator};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;

/// Simulated BMCs. For tests and measurements only.
#[derive(Parser)]
struct Options {
    /// Address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Number of Redfish services.
    #[arg(long, default_value_t = 1)]
    redfish: u16,
    /// Number of machines of each Redfish service.
    #[arg(long, default_value_t = 1)]
    systems: u16,
    /// Number of BMCs with RMCP+ (IPMI 2.0, cipher suites 3 and 17).
    #[arg(long, default_value_t = 1)]
    ipmi: u16,
    /// First TCP and first UDP port; the next BMC gets the next one. 0: free ones.
    #[arg(long, default_value_t = 0)]
    first_port: u16,
    /// Milliseconds before every answer.
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
    /// Milliseconds from a power request to the change.
    #[arg(long, default_value_t = 0)]
    power_ms: u64,
    /// The machines are on, as soon as a power request takes.
    #[arg(long)]
    on: bool,
    /// The account's name.
    #[arg(long, default_value = USER)]
    user: String,
    /// The account's password.
    #[arg(long, default_value = PASSWORD)]
    password: String,
    /// Unix socket for commands.
    #[arg(long)]
    control: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    // A socket each, and connections.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("cannot raise the limit of open files")?;
    let simulator = Arc::new(Simulator::new()?);
    let port = |number: u16| match options.first_port {
        0 => Ok(0),
        first => first.checked_add(number).context("the port is above 65535"),
    };
    for number in 0..options.redfish {
        let tcp = TcpListener::bind(SocketAddr::new(options.address, port(number)?))?;
        let address = tcp.local_addr()?;
        let listen = Listen { tcp: Some(tcp), udp: None };
        add(&simulator, options, &format!("redfish-{}", number + 1), address, options.systems, listen)?;
    }
    for number in 0..options.ipmi {
        let udp = UdpSocket::bind(SocketAddr::new(options.address, port(number)?))?;
        let address = udp.local_addr()?;
        let listen = Listen { tcp: None, udp: Some(udp) };
        add(&simulator, options, &format!("ipmi-{}", number + 1), address, 1, listen)?;
    }
    // An existing socket belongs to another process: it is not removed.
    let listener =
        options.control.as_ref().map(UnixListener::bind).transpose().context("the control socket")?;
    println!("{}", json!({"ready": true}));
    if let Some(listener) = listener {
        let simulator = Arc::clone(&simulator);
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|stream| peer(&simulator, &stream));
        });
    }
    let commands = Arc::clone(&simulator);
    std::thread::spawn(move || obey(&commands, std::io::stdin().lock(), std::io::stdout()));
    wait_for_the_end()?;
    if let Some(path) = &options.control {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn add(
    simulator: &Simulator,
    options: &Options,
    name: &str,
    address: SocketAddr,
    systems: u16,
    listen: Listen,
) -> Result<()> {
    let power = Duration::from_millis(options.power_ms);
    let delays = Delays { on: power, off: power, graceful: Some(power) };
    let machine = |number: u16| {
        let uuid = format!("5b1e0000-0000-4000-8000-{:08x}{number:04x}", u32::from(address.port()));
        let mut machine = Chassis::new(&format!("{name}-{}", number + 1), &uuid, delays);
        if options.on {
            // Nothing of it can fail: there is no hardware.
            let _ = machine.act(Action::On, By::Redfish, Duration::ZERO, Instant::now());
        }
        machine.share()
    };
    let settings = Settings {
        user: options.user.clone(),
        password: options.password.clone(),
        latency_ms: options.latency_ms,
        ..Settings::new(name)
    };
    let is_redfish = listen.tcp.is_some();
    let bmc = simulator.add(settings, (0..systems).map(machine).collect(), listen)?;
    let mut line = json!({"name": name, "protocol": "ipmi", "address": address.to_string()});
    if is_redfish {
        line["protocol"] = json!("redfish");
        line["pin"] = json!(bmc.pin().to_string());
    }
    println!("{line}");
    Ok(())
}

fn peer(simulator: &Simulator, stream: &UnixStream) {
    obey(simulator, BufReader::new(stream), stream);
}

/// Carries out line after line, until there are no more.
fn obey(simulator: &Simulator, lines: impl BufRead, mut answers: impl Write) {
    for line in lines.lines().map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
        if writeln!(answers, "{}", control::carry_out(simulator, &line)).is_err() {
            return;
        }
    }
}

fn wait_for_the_end() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            _ = term.recv() => Ok(()),
            done = tokio::signal::ctrl_c() => done.context("cannot wait for Ctrl-C"),
        }
    })
}
