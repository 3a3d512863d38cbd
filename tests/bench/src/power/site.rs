//! The simulator of BMCs as a process, and the pxed that drives them.

use std::{
    cell::RefCell,
    collections::HashMap,
    fmt::Write as _,
    io::{BufRead as _, BufReader, Write as _},
    net::Ipv4Addr,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Deserialize;
use serde_json::{Value, json};

use super::POLL_SECONDS;
use bedplate_tests::{
    bmc::service::{PASSWORD, USER},
    guard::Process,
    netns::Namespace,
    pxed::{Pxed, Setup, credentials_directory, stub_image},
    wait,
};

/// Address of all BMCs: each has a port.
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
/// The first port, below the ephemeral ports of clients.
const PORT: u16 = 10_000;
/// Delay before each answer, in milliseconds.
const ANSWER_DELAY_MS: u16 = 50;
/// Delay until a power request has an effect, in milliseconds.
const POWER_DELAY_MS: u16 = 1000;
/// Number of Machines in one file of the directory.
const MACHINES_PER_FILE: usize = 500;
/// Which of two hundred do not answer: one with Redfish, one with IPMI.
const DEAD: [usize; 2] = [50, 151];

/// Processes started from here may open as many files as this machine lets them.
pub(super) fn raise_limits() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("cannot raise the limit of open files")
}

/// A simulated BMC.
#[derive(Debug, Clone)]
pub(super) struct Bmc {
    /// The simulator's name for it.
    pub(super) name: String,
    /// Host and port.
    pub(super) address: String,
    /// Pin of its certificate: Redfish.
    pub(super) pin: Option<String>,
    /// It does not answer.
    pub(super) dead: bool,
}

/// The simulator.
pub(super) struct Bmcs {
    all: Vec<Bmc>,
    control: PathBuf,
    _process: Process,
}

impl Bmcs {
    /// Starts `count` BMCs, half with Redfish and half with IPMI in turn, all on; `dead`: of each hundred one does not answer.
    ///
    /// # Errors
    /// The program is missing or does not start.
    pub(super) fn start(network: &Namespace, place: &Path, count: u16, dead: bool) -> Result<Self> {
        std::fs::create_dir_all(place)?;
        let program = std::env::current_exe()?.with_file_name("bedplate-bmc-simulator");
        ensure!(program.exists(), "{} is missing: use `cargo xtask bench`", program.display());
        let control = place.join("bmcs.sock");
        let mut command = network.command(program);
        let half = count / 2;
        command.args(["--on", "--address", &ADDRESS.to_string()]);
        for (name, value) in [
            ("--redfish", half),
            ("--ipmi", count - half),
            ("--first-port", PORT),
            ("--latency-ms", ANSWER_DELAY_MS),
            ("--power-ms", POWER_DELAY_MS),
        ] {
            command.args([name, &value.to_string()]);
        }
        command.arg("--control").arg(&control);
        let mut process = Process::spawn("bedplate-bmc-simulator", &mut command, &place.join("bmcs.log"))?;
        process.wait_said("\"ready\":true", Duration::from_secs(60))?;
        let mut all = described(&process.said())?;
        ensure!(all.len() == usize::from(count), "{} BMCs", all.len());
        let mut bmcs = Self { all: Vec::new(), control, _process: process };
        if dead {
            let silent = all.iter_mut().enumerate().filter(|(number, _)| DEAD.contains(&(number % 200)));
            for (_, bmc) in silent {
                bmcs.order(&json!({"bmc": bmc.name, "do": "set-faults", "faults": {"dead": "dropped"}}))?;
                bmc.dead = true;
            }
        }
        bmcs.all = all;
        let is_on = |power: &Power| power.changes.last().is_some_and(|change| change.on);
        wait::until("all machines to be on", Duration::from_secs(30), || {
            Ok(bmcs.power()?.values().all(is_on).then_some(()))
        })?;
        Ok(bmcs)
    }

    /// All, Redfish and IPMI in turn.
    pub(super) fn all(&self) -> &[Bmc] {
        &self.all
    }

    /// The BMCs that answer.
    pub(super) fn healthy(&self) -> impl Iterator<Item = &Bmc> {
        self.all.iter().filter(|bmc| !bmc.dead)
    }

    /// Times at which each BMC sent its power state, the newest ones.
    ///
    /// # Errors
    /// The simulator does not say.
    pub(super) fn report_times(&self) -> Result<HashMap<String, Vec<Timestamp>>> {
        Ok(serde_json::from_value(self.order(&json!({"bmc": "*", "do": "reported"}))?)?)
    }

    /// Requests to each machine and changes of its power, by the name of its BMC.
    ///
    /// # Errors
    /// The simulator does not say.
    pub(super) fn power(&self) -> Result<HashMap<String, Power>> {
        let all: HashMap<String, Vec<Power>> =
            serde_json::from_value(self.order(&json!({"bmc": "*", "do": "power"}))?)?;
        Ok(all.into_iter().filter_map(|(name, systems)| Some((name, systems.into_iter().next()?))).collect())
    }

    fn order(&self, command: &Value) -> Result<Value> {
        let mut stream = UnixStream::connect(&self.control).context("no connection to the simulator")?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        writeln!(stream, "{command}")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line).context("the simulator's answer")?;
        if let Some(error) = answer.get("error") {
            bail!("the simulator: {error}");
        }
        Ok(answer)
    }
}

/// BMCs as the simulator tells of them, Redfish and IPMI in turn.
fn described(said: &str) -> Result<Vec<Bmc>> {
    let (mut redfish, mut ipmi) = (Vec::new(), Vec::new());
    for line in said.lines() {
        let said: Value = serde_json::from_str(line).with_context(|| format!("the simulator: {line}"))?;
        let text = |key: &str| said[key].as_str().map(str::to_owned);
        let Some((name, address)) = text("name").zip(text("address")) else { continue };
        let pin = text("pin");
        let bmcs = if pin.is_some() { &mut redfish } else { &mut ipmi };
        bmcs.push(Bmc { name, address, pin, dead: false });
    }
    Ok(redfish.into_iter().zip(ipmi).flat_map(|(one, other)| [one, other]).collect())
}

/// Record of a machine's simulator.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Power {
    /// Requests, in order.
    pub(super) asked: Vec<Asked>,
    /// Changes, in order.
    pub(super) changes: Vec<Change>,
}

/// A request.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Asked {
    /// The requested action.
    pub(super) action: String,
}

/// A change of power.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Change {
    /// To what.
    pub(super) on: bool,
}

/// A pxed that drives BMCs.
pub(super) struct Driver<'n>(RefCell<Pxed<'n>>);

impl<'n> Driver<'n> {
    /// With `count` Machines, of which the first have these BMCs; ready.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(network: &'n Namespace, place: &Path, bmcs: &[Bmc], count: u16) -> Result<Self> {
        let mut setup = Setup::new(stub_image(&made(place)?)?);
        (setup.mode, setup.interfaces, setup.subnets) = ("off", Vec::new(), Vec::new());
        let credentials = credentials_directory(place);
        setup.more =
            format!("\n[bmc]\ncredentials-directory = {credentials:?}\npoll-seconds = {POLL_SECONDS}\n");
        let secret = made(&credentials.join("bedplate-system/bmc"))?;
        for (name, text) in [("username", USER), ("password", PASSWORD), ("bmc-addresses", "0.0.0.0/0,::/0")]
        {
            std::fs::write(secret.join(name), text)?;
            std::fs::set_permissions(secret.join(name), std::fs::Permissions::from_mode(0o600))?;
        }
        let machines: Vec<String> =
            (0..count).map(|number| manifest(number, bmcs.get(usize::from(number)))).collect();
        let (first, others) = machines.split_at(machines.len().min(MACHINES_PER_FILE));
        let directory = made(&place.join("machines.d"))?;
        for (number, chunk) in others.chunks(MACHINES_PER_FILE).enumerate() {
            std::fs::write(directory.join(format!("{number}.yaml")), chunk.join("---\n"))?;
        }
        Ok(Self(RefCell::new(Pxed::start(&setup, first, network, place)?)))
    }

    /// Its Unix socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.0.borrow().socket()
    }

    /// Waits until pxed reports of `wanted` Machines that their BMC can be reached and that they are on.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn wait_all_known(&self, wanted: usize) -> Result<()> {
        let is = |machine: &Value, kind: &str| {
            let conditions = machine["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|c| c["type"] == kind && c["status"] == "True"))
        };
        let mut known = 0;
        let result = wait::until("every healthy machine to be shown on", Duration::from_secs(30), || {
            let machines = self.0.borrow().machines()?;
            let shown =
                |machine: &&Value| is(machine, "BMCReachable") && machine["status"]["power"]["state"] == "On";
            known = machines.iter().filter(shown).count();
            Ok((known >= wanted).then_some(()))
        });
        result.with_context(|| format!("{known} of {wanted}"))
    }

    /// MiB, by its line of `/proc/PID/status`.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn memory(&self, line: &str) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let value = status.lines().find_map(|text| text.strip_prefix(line)).context("no such line")?;
        let kibibytes = value.split_whitespace().next().context("no number")?;
        Ok(kibibytes.parse::<f64>()? / 1024.0)
    }

    /// Seconds on a processor since it started, of threads that ended too.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn processor(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let fields = stat.rsplit_once(") ").context("no stat")?.1;
        let ticks: Vec<f64> = fields.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
        // The kernel shows hundredths of a second, whatever it counts in.
        Ok(ticks.iter().sum::<f64>() / 100.0)
    }

    fn pid(&self) -> u32 {
        self.0.borrow_mut().process().pid()
    }
}

fn made(directory: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(directory)?;
    Ok(directory.to_owned())
}

/// A Machine that is polled and not changed.
fn manifest(number: u16, bmc: Option<&Bmc>) -> String {
    let [high, low] = number.to_be_bytes();
    let mut text = format!(
        "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata:\n  name: server-{number}\nspec:\n  provider: pxe\n  \
         powerPolicy: Unmanaged\n  pxe:\n    interfaces:\n    - macAddress: 52:54:00:10:{high:02x}:{low:02x}\n"
    );
    if let Some(Bmc { address, pin, .. }) = bmc {
        let (protocol, scheme, tls) = match pin {
            Some(pin) => {
                let tls = format!("    redfish:\n      tls:\n        mode: Pin\n        pins: [{pin:?}]\n");
                ("Redfish", "https://", tls)
            }
            None => ("IPMI", "", String::new()),
        };
        let _ = write!(
            text,
            "  bmc:\n    protocol: {protocol}\n    address: {scheme}{address}\n    credentialsSecretRef:\n      \
             namespace: bedplate-system\n      name: bmc\n{tls}"
        );
    }
    text
}
