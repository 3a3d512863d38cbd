//! TFTP throughput: our engine, dnsmasq, tftp-hpa, async-tftp, and atftpd where it is installed (its package conflicts with tftp-hpa's).
//!
//! All serve the same directory in one namespace, each on a loopback address of its own, started once; the same clients fetch from them
//! in turn. Ours and async-tftp are this program again, as a server.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bedplate_tftp::{
    content::{Files, OpenError, Outcome, Request},
    gate::Limits,
    server::Server,
    settings::Settings,
    wire::{self, AskedOption},
};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::{
    bench::{Better, Context, OURS, Row, load},
    guard::Process,
    netns::Namespace,
    wait,
};

/// Sizes of the files, in bytes: fetched by one client, by each of many.
const ONE: usize = 8 << 20;
const MANY: usize = 1 << 20;

/// Block size and window.
const SHAPES: [(u64, u64); 3] = [(512, 1), (1468, 1), (1468, 16)];
const CLIENTS: [usize; 2] = [1, 50];

struct Subject {
    name: String,
    address: SocketAddr,
    _process: Process,
}

/// Measures every shape with one and with fifty clients.
///
/// # Errors
/// A server cannot be started, or does not deliver what it should.
pub fn run(context: &Context) -> Result<Vec<Row>> {
    let place = context.directory.path().join("tftp");
    std::fs::create_dir_all(&place)?;
    let content = noise(ONE);
    std::fs::write(place.join("one"), &content)?;
    std::fs::write(place.join("many"), content.get(..MANY).unwrap_or_default())?;
    let network = Namespace::new("bench")?;
    // tftp-hpa resolves its address with AI_ADDRCONFIG, for which loopback alone is no IPv4.
    network.add_bridge("br0", Some((Ipv4Addr::new(10, 7, 0, 1), 24)))?;
    let subjects = start(&network, &place, context.directory.path())?;
    network.inside(|| measure(context, &subjects, &content))
}

fn measure(context: &Context, subjects: &[Subject], content: &[u8]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (block_size, window) in SHAPES {
        for clients in CLIENTS {
            let title = format!(
                "TFTP {block_size}x{window}, {clients} client{}",
                if clients == 1 { "" } else { "s" }
            );
            let (name, length) = if clients == 1 { ("one", ONE) } else { ("many", MANY) };
            let wanted = content.get(..length).unwrap_or_default();
            let options = options(block_size, window);
            let mut rounds = vec![Vec::new(); subjects.len()];
            let mut repeats = vec![0; subjects.len()];
            for round in 0..=context.rounds {
                for (index, subject) in subjects.iter().enumerate() {
                    let measured = load::fetch(subject.address, name, &options, clients, wanted)
                        .with_context(|| format!("{title}: {}", subject.name))?;
                    // The first round warms up files and connections.
                    if round > 0 {
                        rounds[index].push(measured.mebibytes_per_second());
                        repeats[index] += measured.repeats;
                    }
                }
            }
            for ((subject, rounds), repeats) in subjects.iter().zip(rounds).zip(repeats) {
                let note = if repeats == 0 { String::new() } else { format!("{repeats} packets lost") };
                let (subject, unit) = (subject.name.clone(), "MiB/s");
                rows.push(Row { title: title.clone(), subject, unit, better: Better::More, rounds, note });
            }
        }
    }
    Ok(rows)
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

fn start(network: &Namespace, place: &Path, logs: &Path) -> Result<Vec<Subject>> {
    let folder = place.display().to_string();
    let me = std::env::current_exe().context("this program has no path")?;
    let mut subjects = Vec::new();
    let mut add = |name: &str, program: &Path, arguments: &[&str]| -> Result<()> {
        let last = u8::try_from(subjects.len() + 1).context("too many subjects")?;
        let address = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 69));
        let fill = |argument: &&str| {
            argument
                .replace("FOLDER", &folder)
                .replace("SOCKET", &address.to_string())
                .replace("ADDRESS", &address.ip().to_string())
        };
        let mut command = network.command(program);
        command.args(arguments.iter().map(fill));
        let process = Process::spawn(name, &mut command, &logs.join(format!("{name}.log")))?;
        subjects.push(Subject { name: name.to_owned(), address, _process: process });
        Ok(())
    };
    add(OURS, &me, &["serve-tftp", "SOCKET", "FOLDER"])?;
    add("async-tftp", &me, &["serve-async-tftp", "SOCKET", "FOLDER"])?;
    let dnsmasq = [
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
    ];
    add("dnsmasq", &installed("dnsmasq")?, &dnsmasq)?;
    add(
        "tftp-hpa",
        &installed("in.tftpd")?,
        &["--foreground", "--address", "SOCKET", "--secure", "--user", "root", "FOLDER"],
    )?;
    if let Ok(atftpd) = installed("atftpd") {
        let arguments = [
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
        ];
        add("atftpd", &atftpd, &arguments)?;
    }
    network.inside(|| subjects.iter().try_for_each(answers))?;
    Ok(subjects)
}

/// Waits until a server answers, be it with an error.
fn answers(subject: &Subject) -> Result<()> {
    let what = format!("{} on {}", subject.name, subject.address);
    wait::until(&what, Duration::from_secs(20), || {
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

struct Folder(HashMap<String, Bytes>);

impl Files for Folder {
    fn open(&self, request: &Request<'_>) -> Result<Bytes, OpenError> {
        self.0.get(request.name).cloned().ok_or(OpenError::NotFound)
    }

    fn finished(&self, _: &Request<'_>, _: Outcome, _: u64) {}
}

/// Our engine over a folder, as a program of its own: `serve-tftp SOCKET FOLDER`. Runs until killed.
///
/// # Errors
/// The address or the folder is not to be had.
pub fn serve(address: SocketAddr, folder: &Path) -> Result<()> {
    let mut files = HashMap::new();
    for entry in std::fs::read_dir(folder)?.flatten() {
        files.insert(entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?.into());
    }
    // Fifty clients of the bench are one address; in a rack each has its own.
    let limits = Limits {
        sessions_per_client: 1000,
        requests_per_second: 100_000,
        request_burst: 100_000,
        ..Limits::default()
    };
    let settings = Settings { listen: vec![address], limits, ..Settings::default() };
    let server = Server::bind(settings, Arc::new(Folder(files)))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(server.run(CancellationToken::new()))?;
    Ok(())
}

/// async-tftp over a folder, as a program of its own: `serve-async-tftp SOCKET FOLDER`. Runs until killed.
///
/// # Errors
/// The address or the folder is not to be had.
pub fn serve_async_tftp(address: SocketAddr, folder: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server =
            async_tftp::server::TftpServerBuilder::with_dir_ro(folder)?.bind(address).build().await?;
        server.serve().await
    })?;
    Ok(())
}

/// The program that has just been started with these arguments is one of the servers above.
pub fn serves(arguments: &[String]) -> Option<Result<()>> {
    let [kind, address, folder] = arguments else { return None };
    let address = address.parse().context("an address with its port");
    match kind.as_str() {
        "serve-tftp" => Some(address.and_then(|address| serve(address, Path::new(folder)))),
        "serve-async-tftp" => Some(address.and_then(|address| serve_async_tftp(address, Path::new(folder)))),
        _ => None,
    }
}

/// What `ps` of the peers calls them, for the note of a report.
pub fn versions() -> Vec<String> {
    let first_line = |program: &str, flag: &str| {
        let output = Command::new(program).arg(flag).output().ok()?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        text.lines().next().map(str::to_owned)
    };
    [("dnsmasq", "--version"), ("in.tftpd", "--version"), ("atftpd", "--version"), ("nginx", "-v")]
        .into_iter()
        .filter_map(|(program, flag)| first_line(program, flag))
        .collect()
}
