//! TFTP throughput: pxed, dnsmasq, tftp-hpa, async-tftp, and atftpd where it is installed (its package conflicts with tftp-hpa's).
//!
//! All serve the same directory in one namespace, each on a loopback address of its own, started once; the same clients fetch from them
//! in turn, each from an address of its own. pxed serves the files as its loaders. async-tftp is this program again, as a server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bedplate_tftp::wire::{self, AskedOption};

use crate::load;
use crate::measurement::{Better, Context, OURS, Row, configuration, rows};
use bedplate_tests::{
    guard::{self, Process},
    netns::Namespace,
    pxed, timeline, wait,
};

/// Sizes of the files, in bytes: fetched by one client, by each of many.
const ONE_BYTES: usize = 8 << 20;
const MANY_BYTES: usize = 1 << 20;

/// Block size and window.
const SHAPES: [(u64, u64); 3] = [(512, 1), (1468, 1), (1468, 16)];
const CLIENTS: [usize; 2] = [1, 50];

struct Subject {
    name: String,
    address: SocketAddr,
    process: Process,
}

/// Measures every shape with one and with fifty clients.
///
/// # Errors
/// The namespace or the files cannot be made. A server that does not start or deliver is noted.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>> {
    let place = context.directory.path().join("tftp");
    std::fs::create_dir_all(&place)?;
    let content = noise(ONE_BYTES);
    std::fs::write(place.join("one"), &content)?;
    std::fs::write(place.join("many"), content.get(..MANY_BYTES).unwrap_or_default())?;
    let network = Namespace::new("bench")?;
    // tftp-hpa resolves its address with AI_ADDRCONFIG, for which loopback alone is no IPv4.
    network.add_bridge("br0", Some((Ipv4Addr::new(10, 7, 0, 1), 24)))?;
    let subjects = start(context, &network, &place);
    network.inside(|| Ok(measure(context, &subjects, &content)))
}

fn measure(context: &Context, subjects: &[Subject], content: &[u8]) -> Vec<Row> {
    let mut all = Vec::new();
    for (block_size, window) in SHAPES {
        for clients in CLIENTS {
            let title = format!(
                "TFTP {block_size}x{window}, {clients} client{}",
                if clients == 1 { "" } else { "s" }
            );
            let (name, length) = if clients == 1 { ("one", ONE_BYTES) } else { ("many", MANY_BYTES) };
            let wanted = content.get(..length).unwrap_or_default();
            let options = options(block_size, window);
            let mut measured = vec![(Vec::new(), 0, false); subjects.len()];
            for round in 0..=context.rounds {
                for (subject, (rounds, repeats, failed)) in subjects.iter().zip(&mut measured) {
                    if *failed {
                        continue;
                    }
                    let fetched = load::fetch(subject.address, name, &options, clients, wanted);
                    match context.noted(&title, &subject.name, fetched) {
                        // The first round warms up files and connections.
                        Some(fetched) if round > 0 => {
                            rounds.push(fetched.mebibytes_per_second());
                            *repeats += fetched.repeats;
                        }
                        Some(_) => {}
                        // The rounds before count.
                        None => *failed = true,
                    }
                }
            }
            let of_subject = |(subject, (rounds, repeats, _)): (&Subject, (Vec<f64>, u64, bool))| {
                let note = if repeats == 0 { String::new() } else { format!("{repeats} packets lost") };
                (subject.name.clone(), rounds, note)
            };
            let measured = subjects.iter().zip(measured).map(of_subject);
            let rows = rows(context, &title, "MiB/s", Better::More, measured);
            timeline::say(&format!("bench {title}: {} subjects", rows.len()));
            all.extend(rows);
        }
    }
    all
}

fn options(block_size: u64, window: u64) -> Vec<AskedOption> {
    let block_size = (block_size != 512).then_some(AskedOption::BlockSize(block_size));
    let window = (window != 1).then_some(AskedOption::WindowSize(window));
    block_size.into_iter().chain(window).collect()
}

/// Bytes that do not repeat, the same in every run.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| draw()).collect()
}

/// A server's name, its program, its arguments, and whether to do without it in silence where it is not installed.
struct Server {
    name: &'static str,
    program: Result<PathBuf>,
    arguments: &'static [&'static str],
    optional: bool,
}

fn servers() -> [Server; 5] {
    let me = || std::env::current_exe().context("this program has no path");
    let server = |name, program, arguments| Server { name, program, arguments, optional: false };
    [
        server(OURS, pxed::binary("pxed"), &["run", "--config", "CONFIG"]),
        server("async-tftp", me(), &["serve-async-tftp", "SOCKET", "FOLDER"]),
        server(
            "dnsmasq",
            installed("dnsmasq"),
            &[
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--pid-file",
                "--port=0",
                "--user=root",
                "--bind-interfaces",
                "--listen-address=ADDRESS",
                "--enable-tftp",
                "--tftp-root=FOLDER",
                "--tftp-max=500",
            ],
        ),
        server(
            "tftp-hpa",
            installed("in.tftpd"),
            &["--foreground", "--address", "SOCKET", "--secure", "--user", "root", "FOLDER"],
        ),
        Server {
            optional: true,
            ..server(
                "atftpd",
                installed("atftpd"),
                &[
                    "--daemon",
                    "--no-fork",
                    "--port",
                    "69",
                    "--bind-address",
                    "ADDRESS",
                    "--user",
                    "root",
                    "--group",
                    "root",
                    "--maxthread",
                    "500",
                    "FOLDER",
                ],
            )
        },
    ]
}

/// Starts every server and waits until it answers; one that does not is noted.
fn start(context: &Context, network: &Namespace, place: &Path) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for (last, server) in (1..).zip(servers()) {
        if server.optional && server.program.is_err() {
            continue;
        }
        let address = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 69));
        let name = server.name;
        let started = start_one(context, network, place, address, server);
        subjects.extend(context.noted("TFTP", name, started));
    }
    subjects
}

fn start_one(
    context: &Context,
    network: &Namespace,
    place: &Path,
    address: SocketAddr,
    server: Server,
) -> Result<Subject> {
    let logs = context.directory.path();
    let config = logs.join("tftp.toml");
    std::fs::write(&config, pxed_configuration(logs, place, address)?)?;
    let fill = |argument: &&str| {
        argument
            .replace("CONFIG", &config.display().to_string())
            .replace("FOLDER", &place.display().to_string())
            .replace("SOCKET", &address.to_string())
            .replace("ADDRESS", &address.ip().to_string())
    };
    let mut command = network.command(server.program?);
    command.args(server.arguments.iter().map(fill));
    let name = server.name.to_owned();
    let process = Process::spawn(&name, &mut command, &logs.join(format!("{name}.log")))?;
    let mut subject = Subject { name, address, process };
    network.inside(|| answers(&mut subject))?;
    Ok(subject)
}

fn pxed_configuration(logs: &Path, place: &Path, address: SocketAddr) -> Result<String> {
    let own = logs.join("tftp-pxed");
    let more = format!(
        "[dhcp]\nmode = \"off\"\n\n[tftp]\nlisten = \"{address}\"\n\n\
         [loaders]\ndirectory = {:?}\nbios = \"one\"\nuefi-x64 = \"many\"\n",
        place.display().to_string()
    );
    configuration(&own, &more)
}

/// Waits until a server answers, be it with an error.
fn answers(subject: &mut Subject) -> Result<()> {
    let what = format!("{} on {}", subject.name, subject.address);
    wait::until(&what, Duration::from_secs(20), || {
        if !subject.process.is_running() {
            bail!("it has ended: {}", guard::last_lines(&subject.process.said(), 20));
        }
        // Another port each time: a transfer to the port before may still be open. Not connected: answers come from another port.
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        socket.send_to(&wire::read_request("none", &[]), subject.address)?;
        Ok(socket.recv(&mut [0; 600]).ok().map(drop))
    })
}

fn installed(program: &str) -> Result<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let own = std::env::var("PATH").unwrap_or_default();
    let mut folders = folders.into_iter().map(str::to_owned).chain(own.split(':').map(str::to_owned));
    match folders.find_map(|folder| Some(Path::new(&folder).join(program)).filter(|path| path.is_file())) {
        Some(path) => Ok(path),
        None => bail!("{program} is not installed: cargo xtask setup"),
    }
}

/// async-tftp over a folder, as a program of its own: `serve-async-tftp SOCKET FOLDER`. Runs until killed.
///
/// # Errors
/// The address or the folder is not to be had.
fn serve_async_tftp(address: SocketAddr, folder: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server =
            async_tftp::server::TftpServerBuilder::with_dir_ro(folder)?.bind(address).build().await?;
        server.serve().await
    })?;
    Ok(())
}

/// The program that has just been started with these arguments is that server.
pub(crate) fn serves(arguments: &[String]) -> Option<Result<()>> {
    let [kind, address, folder] = arguments else { return None };
    let address = address.parse().context("an address with its port");
    match kind.as_str() {
        "serve-async-tftp" => Some(address.and_then(|address| serve_async_tftp(address, Path::new(folder)))),
        _ => None,
    }
}
