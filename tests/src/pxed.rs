//! pxed as a process: the release binary, with a configuration and a directory of Machines of the test's own, inside a
//! namespace. Its state outlives a kill, so that a test can start it again.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::guard::{self, Process};
use crate::netns::Namespace;
use crate::rack::{LOADERS, Rack};
use crate::wait;

/// Address of pxed's metrics and health, inside its namespace.
const HEALTH: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9067);

/// Maximum time until pxed has checked its image and knows its Machines.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Kernel arguments of an image for virtual machines. An emulated processor has nothing to protect, and the kernel's protection from
/// real ones' faults takes a quarter of each boot's time.
pub const KERNEL_ARGUMENTS: &str = "kernel-arguments = [\"console=ttyS0\", \"mitigations=off\"]";

/// Setup of a pxed; [`Setup::new`] has the settings of most tests.
#[derive(Debug, Clone)]
pub struct Setup {
    /// `[dhcp] mode`.
    pub mode: &'static str,
    /// `[dhcp] interfaces`.
    pub interfaces: Vec<String>,
    /// The body of each `[[dhcp.subnet]]`.
    pub subnets: Vec<String>,
    /// `[dhcp] discovery`.
    pub discovery: bool,
    /// `[dhcp] discovery-reserve-percent`.
    pub discovery_reserve_percent: u32,
    /// The body of `[images.host]`.
    pub image: String,
    /// Boot loaders, by key of `[loaders]`.
    pub loaders: Vec<(&'static str, &'static str)>,
    /// `[loaders] directory`.
    pub loader_directory: PathBuf,
    /// The body of `[source]` instead of the test's own directory.
    pub source: Option<String>,
    /// Sections to append.
    pub more: String,
}

impl Setup {
    /// A DHCP server for the rack's network that boots `image`.
    pub fn new(image: String) -> Self {
        Self {
            mode: "server",
            interfaces: vec!["br0".to_owned()],
            subnets: vec![
                "network = \"10.7.0.0/24\"\nranges = [\"10.7.0.100-10.7.0.199\"]\nrouters = [\"10.7.0.1\"]\n\
                 nameservers = [\"10.7.0.1\"]\ndomain = \"rack.example\"\n"
                    .to_owned(),
            ],
            discovery: false,
            discovery_reserve_percent: 25,
            image,
            loaders: vec![
                ("bios", "undionly.kpxe"),
                ("uefi-x64", "snponly.efi"),
                ("uefi-x64-http", "ipxe.efi"),
            ],
            loader_directory: LOADERS.into(),
            source: None,
            more: String::new(),
        }
    }

    /// Adds that pxed reads BMCs' passwords from [`credentials_directory`] and asks BMCs every five seconds.
    #[must_use]
    pub fn with_bmcs(mut self, rack: &Path) -> Self {
        let directory = credentials_directory(rack).display().to_string();
        let _ = writeln!(self.more, "\n[bmc]\ncredentials-directory = {directory:?}\npoll-seconds = 5");
        self
    }

    /// The whole configuration of a pxed whose files are in `directory`.
    pub fn to_toml(&self, directory: &Path) -> String {
        let at = |name: &str| directory.join(name).display().to_string();
        let own_source = format!("directory = {:?}\n", at("machines.d"));
        let mut text = format!(
            "state-directory = {:?}\nsocket = {:?}\ndefault-image = \"host\"\n{}\n[source]\n{}\n\n[dhcp]\nmode = {:?}\ninterfaces = {:?}\n\
             discovery = {}\ndiscovery-reserve-percent = {}\n\n",
            at("state"),
            at("pxed.sock"),
            if self.discovery { "discovery-image = \"host\"\n" } else { "" },
            self.source.as_deref().unwrap_or(&own_source),
            self.mode,
            self.interfaces,
            self.discovery,
            self.discovery_reserve_percent,
        );
        for subnet in &self.subnets {
            let _ = writeln!(text, "[[dhcp.subnet]]\n{subnet}");
        }
        let _ = writeln!(text, "[loaders]\ndirectory = {:?}", self.loader_directory.display().to_string());
        for (key, file) in &self.loaders {
            let _ = writeln!(text, "{key} = {file:?}");
        }
        let _ = writeln!(text, "\n[images.host]\n{}\n{}", self.image, self.more);
        text
    }
}

/// Directory of a rack's passwords of BMCs, for a pxed without a cluster.
pub fn credentials_directory(rack: &Path) -> PathBuf {
    rack.join("bmc-credentials")
}

/// `[images.host]` for the image that `cargo xtask image host` built.
///
/// # Errors
/// It was not built.
pub fn host_image() -> Result<String> {
    let layout = cache()?.join("images/host");
    if !layout.join("index.json").exists() {
        bail!("{} has no image: run `cargo xtask image host`", layout.display());
    }
    Ok(format!("layout = {:?}\n{KERNEL_ARGUMENTS}", layout.display().to_string()))
}

/// `[images.host]` for machines that only have to reach a stage before Linux: small stand-in files.
///
/// # Errors
/// The files cannot be written.
pub fn stub_image(directory: &Path) -> Result<String> {
    let mut text = String::new();
    for name in ["kernel", "initrd"] {
        let path = directory.join(name);
        std::fs::write(&path, [name.as_bytes(), &[0; 8192]].concat())
            .with_context(|| format!("cannot write {}", path.display()))?;
        let _ = writeln!(text, "{name} = {:?}", path.display().to_string());
    }
    Ok(text)
}

/// Directory of downloads, images and Kubernetes' programs.
///
/// # Errors
/// Neither BEDPLATE_CACHE nor HOME is set.
pub fn cache() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BEDPLATE_CACHE") {
        return Ok(path.into());
    }
    let home = std::env::var_os("HOME").context("neither BEDPLATE_CACHE nor HOME is set")?;
    Ok(Path::new(&home).join(".cache/bedplate"))
}

/// GRUB's network loader for arm64 from Debian's packages.
///
/// # Errors
/// It was not fetched.
pub fn arm64_loader() -> Result<PathBuf> {
    let path =
        cache()?.join("downloads/grub-efi-arm64-bin/usr/lib/grub/arm64-efi/monolithic/grubnetaa64.efi");
    if !path.exists() {
        bail!("{} is missing: run `cargo xtask setup`", path.display());
    }
    Ok(path)
}

/// The release binary of that name.
///
/// # Errors
/// It was not built.
pub fn binary(name: &str) -> Result<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/static");
    let directory = std::env::var_os("BEDPLATE_BIN_DIR").map_or(built, PathBuf::from);
    let path = directory.join(name);
    if !path.exists() {
        bail!("{} is missing: run `cargo xtask build`", path.display());
    }
    Ok(path)
}

/// Parts of a `pxed.toml` in which tests differ.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// Settings before the first section.
    pub general: &'a str,
    /// The body of `[source]`.
    pub source: &'a str,
    /// Further sections.
    pub more: &'a str,
}

/// Writes an image and `pxed.toml` into `folder` for [`serve`]: servers on free ports of loopback, without DHCP.
///
/// # Errors
/// A file cannot be written.
pub fn prepare(folder: &Path, Parts { general, source, more }: Parts<'_>) -> Result<()> {
    for file in ["kernel", "initrd"] {
        std::fs::write(folder.join(file), vec![1; 4096])?;
    }
    let at = |name: &str| folder.join(name).display().to_string();
    let listen = |server| format!("[{server}]\nlisten = \"127.0.0.1:0\"\n");
    let config = format!(
        "{general}\nstate-directory = {:?}\nsocket = {:?}\ndefault-image = \"host\"\n[source]\n{source}\n[dhcp]\n\
         mode = \"off\"\n{}{more}\n[images.host]\nkernel = {:?}\ninitrd = {:?}\n",
        at("state"),
        at("pxed.sock"),
        ["tftp", "http", "https", "metrics"].map(listen).concat(),
        at("kernel"),
        at("initrd"),
    );
    Ok(std::fs::write(folder.join("pxed.toml"), config)?)
}

/// A pxed of this machine by `pxed.toml` in `folder`, once it answers on `pxed.sock` there; its log is next to them. Dropped: killed.
///
/// # Errors
/// It was not built, has ended, or does not answer.
pub fn serve(folder: &Path) -> Result<Process> {
    let level = std::env::var("BEDPLATE_LOG").unwrap_or_else(|_| "info,pxed=debug".to_owned());
    let mut command = Command::new(binary("pxed")?);
    command.args(["run", "--config"]).arg(folder.join("pxed.toml")).env("BEDPLATE_LOG", level);
    let mut process = Process::spawn("pxed", &mut command, &folder.join("pxed.log"))?;
    let socket = folder.join("pxed.sock");
    wait::until("pxed's socket", READY_TIMEOUT, || {
        ensure!(process.is_running(), "{}", process.said());
        Ok(ask(&socket, "/v1/status").ok())
    })?;
    Ok(process)
}

/// A running pxed. Dropped: killed; its files are the rack's.
#[derive(Debug)]
pub struct Pxed<'n> {
    network: &'n Namespace,
    directory: PathBuf,
    process: Process,
}

impl<'n> Pxed<'n> {
    /// Starts pxed in `network`, its files in a new directory `pxed` next to the rack's, and waits until it is ready.
    ///
    /// # Errors
    /// The binary is missing, the configuration is refused, or it is not ready within 30 s.
    pub fn start(setup: &Setup, machines: &[String], network: &'n Namespace, rack: &Path) -> Result<Self> {
        let directory = rack.to_owned();
        std::fs::create_dir_all(directory.join("machines.d"))?;
        std::fs::write(directory.join("pxed.toml"), setup.to_toml(&directory))?;
        std::fs::write(directory.join("machines.d/rack.yaml"), machines.join("---\n"))?;
        let mut pxed = Self::resume(network, &directory)?;
        pxed.wait_health("/readyz", READY_TIMEOUT)?;
        Ok(pxed)
    }

    fn resume(network: &'n Namespace, directory: &Path) -> Result<Self> {
        let mut command = network.command(binary("pxed")?);
        command.arg("run").arg("--config").arg(directory.join("pxed.toml"));
        command
            .env("BEDPLATE_LOG", std::env::var("BEDPLATE_LOG").unwrap_or_else(|_| "info,pxed=debug".into()));
        let process = Process::spawn("pxed", &mut command, &directory.join("pxed.log"))?;
        let mut pxed = Self { network, directory: directory.to_owned(), process };
        pxed.wait_health("/healthz", Duration::from_secs(30))?;
        Ok(pxed)
    }

    /// Kills it (SIGKILL) and starts it again on the same state. It answers then; whether it is ready is not asked.
    ///
    /// # Errors
    /// It does not come up again.
    pub fn kill_and_restart(mut self) -> Result<Self> {
        self.process.kill();
        let (network, directory) = (self.network, self.directory.clone());
        drop(self);
        Self::resume(network, &directory)
    }

    /// Writes another configuration file and sends SIGHUP. Does not wait until pxed has applied it: see
    /// [`Self::metric`] and `bedplate_pxed_reloads_total`.
    ///
    /// # Errors
    /// The file cannot be written, or pxed has ended.
    pub fn reload(&self, configuration: &str) -> Result<()> {
        std::fs::write(self.directory.join("pxed.toml"), configuration)?;
        self.process.signal(Signal::SIGHUP)
    }

    /// One value of `/metrics`, by its name with its labels.
    ///
    /// # Errors
    /// No answer, or no such value.
    pub fn metric(&self, name: &str) -> Result<u64> {
        let (_, text) = self.health("/metrics")?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.with_context(|| format!("/metrics has no {name}"))?;
        value.parse().with_context(|| format!("{name} is {value}"))
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("pxed.sock")
    }

    fn wait_health(&mut self, path: &str, limit: Duration) -> Result<()> {
        let mut last = String::new();
        let result = wait::until(&format!("pxed's {path}"), limit, || {
            if !self.process.is_running() {
                bail!("pxed has ended");
            }
            match self.health(path) {
                Ok((200, _)) => Ok(Some(())),
                Ok((status, body)) => {
                    last = format!("{status}: {body}");
                    Ok(None)
                }
                Err(error) => {
                    last = format!("{error:#}");
                    Ok(None)
                }
            }
        });
        result.with_context(|| format!("{path}: {last}\n{}", guard::last_lines(&self.process.said(), 20)))
    }

    /// GET on the listener for metrics and health.
    ///
    /// # Errors
    /// No answer.
    pub fn health(&self, path: &str) -> Result<(u16, String)> {
        self.network.inside(|| {
            let stream =
                TcpStream::connect_timeout(&HEALTH, Duration::from_secs(2)).context("no connection")?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            get(stream, path)
        })
    }

    /// All Machines with their status.
    ///
    /// # Errors
    /// pxed does not answer on its socket.
    pub fn machines(&self) -> Result<Vec<Value>> {
        let list = ask(&self.socket(), "/v1/machines")?;
        Ok(list.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// One Machine with its status.
    ///
    /// # Errors
    /// pxed does not answer on its socket.
    pub fn machine(&self, name: &str) -> Result<Value> {
        ask(&self.socket(), &format!("/v1/machines/{name}"))
    }

    /// Waits until a Machine has reached a stage.
    ///
    /// # Errors
    /// The deadline has passed or pxed has ended; the timeline is in the message.
    pub fn wait_stage(&mut self, machine: &str, stage: &str, limit: Duration) -> Result<Value> {
        let mut seen = Value::Null;
        let result = wait::until(&format!("{machine} to reach {stage}"), limit, || {
            if !self.process.is_running() {
                bail!("pxed has ended: {}", guard::last_lines(&self.process.said(), 20));
            }
            seen = self.machine(machine)?;
            Ok(crate::timeline::has(&seen, stage).then_some(()))
        });
        result.with_context(|| {
            format!("boot of {machine}: {}", seen.pointer("/status/boot").unwrap_or(&Value::Null))
        })?;
        Ok(seen)
    }
}

/// GET on a pxed's Unix socket.
///
/// # Errors
/// No answer, or one that is not 200.
pub fn ask(socket: &Path, path: &str) -> Result<Value> {
    let stream =
        UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (status, body) = get(stream, path)?;
    if status != 200 {
        bail!("{path}: {status}: {body}");
    }
    serde_json::from_str(&body).with_context(|| format!("{path}: no JSON: {body}"))
}

/// One HTTP request on a connection of its own.
fn get(mut stream: impl Read + Write, path: &str) -> Result<(u16, String)> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).context("no answer")?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).context("no HTTP status")?;
    Ok((status, body.to_owned()))
}

/// The manifest of the rack's machine number `number`, called `server-<number>`; `more` is further YAML inside `spec`.
pub fn manifest(number: u8, more: &str) -> String {
    format!(
        "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata:\n  name: server-{number}\nspec:\n  provider: pxe\n  \
         pxe:\n    interfaces:\n    - macAddress: {}\n{more}",
        Rack::mac(number)
    )
}
