//! A machine of the rack with a BMC before it: off, until somebody switches it on through that BMC.
//!
//! Made by [`Rack::machine`]. The BMC has an address of its own on the rack's bridge.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bedplate_api::id::Digest;
use serde_json::{Value, json};

use super::certificate::Certificate;
use super::chassis::{Change, Chassis, Delays, Shared};
use super::door::Door;
use super::plug::Plug;
use super::service::{Bmc, PASSWORD, Settings, USER};
use super::simulator::Listen;
use crate::guard::{self, Process};
use crate::pxed;
use crate::qemu::{self, Spec};
use crate::rack::Rack;
use crate::wait;

/// Which BMC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BmcKind {
    /// The simulator's Redfish.
    Redfish,
    /// The simulator's RMCP+, cipher suites 3 and 17.
    Ipmi,
    /// `ipmi_sim` of openipmi: RMCP+, cipher suite 3.
    IpmiSim,
    /// sushy-tools: Redfish without sessions; boot overrides are always called `Continuous`.
    Sushy,
}

impl BmcKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Redfish, Self::Ipmi, Self::IpmiSim, Self::Sushy];

    /// Whether it speaks Redfish; IPMI otherwise.
    pub fn is_redfish(self) -> bool {
        matches!(self, Self::Redfish | Self::Sushy)
    }
}

/// The namespace that credentials are in.
pub const CREDENTIALS: &str = "bedplate-system";
/// How long a BMC that nobody here wrote may take to come up.
const READY: Duration = Duration::from_secs(60);
/// bcrypt of [`PASSWORD`], for sushy-tools.
const SUSHY_USERS: &str = "admin:$2y$04$4bZXTYCZJ5ObVtNPQVf.j.N3.oN6oOOVZgZrq/C.PLCbinUbZ6obe\n";
const SUSHY_PLUG: &str = include_str!("sushy_plug.py");
const IPMI_SIM_MACHINE: &str = "mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
sel_enable 0x20 1000 0x0a
sel_add 0x20 0x02 0 0 0 0x60 0x20 0 4 0x01 0x30 0x01 0x59 0x50 0x4b
mc_enable 0x20
";

/// What stands before the machine; dropped before it.
#[derive(Debug)]
enum Front {
    Simulated(Arc<Bmc>),
    Peer { _process: Process, _door: Door },
}

/// A machine with a BMC.
#[derive(Debug)]
pub struct Server {
    name: String,
    kind: BmcKind,
    address: SocketAddr,
    pin: Option<Digest>,
    serial: PathBuf,
    front: Front,
    chassis: Shared,
}

/// A machine that has no BMC yet.
#[derive(Debug)]
pub struct Wanted<'r> {
    pub(crate) rack: &'r Rack,
    pub(crate) spec: Spec,
}

impl Wanted<'_> {
    /// Puts a BMC before it. The machine is off.
    ///
    /// # Errors
    /// The BMC does not come up, or a program for it is missing.
    pub fn with_bmc(self, kind: BmcKind) -> Result<Server> {
        let Self { rack, spec } = self;
        let (name, mac) = (spec.name.clone(), spec.mac);
        let (ip, tap) = (rack.add_bmc_address()?, rack.add_tap()?);
        let address = SocketAddr::new(ip.into(), if kind.is_redfish() { 443 } else { 623 });
        let plug = Plug::new(spec, rack.shared_network(), tap, rack.path().to_owned());
        let chassis =
            Chassis::new(&name, &qemu::uuid(mac), Delays::default()).with_hardware(plug, mac).share();
        let peer = Peer { rack, name: &name, ip, chassis: &chassis };
        let (front, pin) = match kind {
            BmcKind::Redfish | BmcKind::Ipmi => {
                let listen = rack.network().inside(|| {
                    Ok(match kind.is_redfish() {
                        true => Listen { tcp: Some(TcpListener::bind(address)?), udp: None },
                        false => Listen { tcp: None, udp: Some(UdpSocket::bind(address)?) },
                    })
                })?;
                let bmc = rack.simulator()?.add(Settings::new(&name), vec![chassis.clone()], listen)?;
                let pin = kind.is_redfish().then(|| bmc.pin());
                (Front::Simulated(bmc), pin)
            }
            BmcKind::IpmiSim => (peer.ipmi_sim()?, None),
            BmcKind::Sushy => peer.sushy()?,
        };
        let serial = rack.file(&format!("{name}.serial"));
        Ok(Server { name, kind, address, pin, serial, front, chassis })
    }
}

impl Server {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its BMC's kind.
    pub fn kind(&self) -> BmcKind {
        self.kind
    }

    /// Where its BMC is, inside the rack's network.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The pin of its BMC's certificate.
    pub fn pin(&self) -> Option<Digest> {
        match &self.front {
            Front::Simulated(bmc) => self.pin.is_some().then(|| bmc.pin()),
            Front::Peer { .. } => self.pin,
        }
    }

    /// The simulated BMC, for faults and counters; `None`: it is one that nobody here wrote.
    pub fn bmc(&self) -> Option<&Bmc> {
        match &self.front {
            Front::Simulated(bmc) => Some(bmc),
            Front::Peer { .. } => None,
        }
    }

    /// The machine, for what was asked of its power and what became of it.
    pub fn chassis(&self) -> &Shared {
        &self.chassis
    }

    /// Whether it has power.
    pub fn has_power(&self) -> bool {
        self.chassis.lock().is_on(Instant::now())
    }

    /// All changes of its power so far.
    pub fn changes(&self) -> Vec<Change> {
        self.chassis.lock().changes(Instant::now()).to_vec()
    }

    /// How often it was switched off and on again.
    pub fn cycles(&self) -> usize {
        self.chassis.lock().cycles(Instant::now())
    }

    /// All that came over its serial line since it was switched on.
    pub fn serial(&self) -> String {
        qemu::serial_text(&self.serial)
    }

    /// Waits until it has power, or has none.
    ///
    /// # Errors
    /// It is otherwise after `limit`; the end of its serial line is in the message.
    pub fn wait_power(&self, on: bool, limit: Duration) -> Result<()> {
        let what = format!("power of {} to be {}", self.name, if on { "on" } else { "off" });
        wait::until(&what, limit, || Ok((self.has_power() == on).then_some(())))
            .with_context(|| guard::last_lines(&self.serial(), 25))
    }

    /// Waits until the serial line has shown `marker`.
    ///
    /// # Errors
    /// It has not within `limit`; the end of the serial line is in the message.
    pub fn wait_serial(&self, marker: &str, limit: Duration) -> Result<()> {
        let what = format!("{marker:?} on the serial line of {}", self.name);
        wait::until(&what, limit, || Ok(self.serial().contains(marker).then_some(())))
            .with_context(|| guard::last_lines(&self.serial(), 25))
    }

    /// The name of its credentials.
    fn credentials(&self) -> String {
        format!("{}-bmc", self.name)
    }

    /// `bmc:` of its Machine's `spec`, as YAML indented by two.
    pub fn bmc_yaml(&self) -> String {
        let (protocol, address) = match self.kind.is_redfish() {
            true => ("redfish", format!("https://{}", self.address.ip())),
            false => ("ipmi", self.address.ip().to_string()),
        };
        let mut text = format!(
            "  bmc:\n    protocol: {protocol}\n    address: {address}\n    credentialsSecretRef:\n      namespace: \
             {CREDENTIALS}\n      name: {}\n",
            self.credentials()
        );
        if let Some(pin) = self.pin() {
            let _ = write!(text, "    tls:\n      mode: pin\n      pins:\n      - {pin}\n");
        }
        if self.kind == BmcKind::IpmiSim {
            text.push_str("    ipmi:\n      cipherSuite: 3\n");
        }
        text
    }

    /// Its credentials for a pxed without a cluster: files that only their owner reads, below
    /// [`pxed::credentials_directory`].
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_credentials(&self, directory: &Path) -> Result<()> {
        let place = directory.join(CREDENTIALS).join(self.credentials());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
        for (name, value) in [("username", USER), ("password", PASSWORD)] {
            let path = place.join(name);
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path)
                .with_context(|| format!("cannot write {}", path.display()))?;
            io::Write::write_all(&mut file, format!("{value}\n").as_bytes())?;
        }
        Ok(())
    }

    /// Its credentials for a cluster.
    pub fn secret(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": self.credentials(), "namespace": CREDENTIALS},
            "stringData": {"username": USER, "password": PASSWORD},
        })
    }
}

/// A BMC that nobody here wrote, to be started.
struct Peer<'a> {
    rack: &'a Rack,
    name: &'a str,
    ip: Ipv4Addr,
    chassis: &'a Shared,
}

impl Peer<'_> {
    /// A directory of its own, and the socket to the machine.
    fn place(&self) -> Result<(PathBuf, Door)> {
        let place = self.rack.file(&format!("{}-bmc", self.name));
        fs::create_dir(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let door = Door::open(place.join("plug"), self.chassis.clone())?;
        Ok((place, door))
    }

    fn log(&self) -> PathBuf {
        self.rack.file(&format!("{}-bmc.log", self.name))
    }

    fn ipmi_sim(&self) -> Result<Front> {
        let (place, door) = self.place()?;
        let control = place.join("control");
        // The first word is the node. socat waits that long for an answer after it has asked.
        let script = format!(
            "#!/bin/sh\nshift\nanswer=$(printf '%s\\n' \"$*\" | socat -t 60 - UNIX-CONNECT:{}) || exit 1\n\
             case $answer in error*) echo \"$answer\" >&2; exit 1 ;; esac\n\
             [ -z \"$answer\" ] || printf '%s\\n' \"$answer\"\n",
            door.path().display()
        );
        fs::write(&control, script)?;
        fs::set_permissions(&control, fs::Permissions::from_mode(0o755))?;
        let lan = format!(
            "name \"{}\"\nset_working_mc 0x20\nstartlan 1\n  addr {} 623\n  priv_limit admin\n  \
             allowed_auths_user md5\n  allowed_auths_operator md5\n  allowed_auths_admin md5\n  \
             guid a123456789abcdefa123456789abcdef\nendlan\nchassis_control \"{} 0x20\"\n\
             user 2 true \"{USER}\" \"{PASSWORD}\" admin 10 md5\n",
            self.name,
            self.ip,
            control.display()
        );
        fs::write(place.join("lan.conf"), lan)?;
        fs::write(place.join("machine.emu"), IPMI_SIM_MACHINE)?;
        fs::create_dir(place.join("kept"))?;
        let mut command = self.rack.network().command("ipmi_sim");
        command.current_dir(&place);
        command.args(["-c", "lan.conf", "-f", "machine.emu", "-s", "kept", "-n", "-d"]);
        let mut process = Process::spawn("ipmi_sim", &mut command, &self.log())?;
        let address = SocketAddr::new(self.ip.into(), 623);
        wait::until("ipmi_sim to listen", READY, || {
            if !process.is_running() {
                bail!("ipmi_sim has ended: {}", process.said());
            }
            let taken = self.rack.network().inside(|| Ok(UdpSocket::bind(address)))?;
            Ok(taken.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse).then_some(()))
        })?;
        Ok(Front::Peer { _process: process, _door: door })
    }

    fn sushy(&self) -> Result<(Front, Option<Digest>)> {
        let (place, door) = self.place()?;
        let path = |name: &str| place.join(name).display().to_string();
        let certificate = Certificate::new()?;
        fs::write(path("cert.pem"), certificate.pem())?;
        fs::write(path("key.pem"), certificate.key_pem())?;
        fs::write(path("users"), SUSHY_USERS)?;
        fs::write(path("sushy_plug.py"), SUSHY_PLUG)?;
        let uuid = self.chassis.lock().uuid().to_owned();
        let config = [
            format!("SUSHY_EMULATOR_STATE_DIR = {:?}", path("")),
            format!("SUSHY_EMULATOR_AUTH_FILE = {:?}", path("users")),
            format!(
                "SUSHY_EMULATOR_FAKE_SYSTEMS = [{{'uuid': '{uuid}', 'name': '{}', 'power_state': 'Off', \
                 'external_notifier': False, 'nics': []}}]",
                self.name
            ),
        ];
        fs::write(path("emulator.conf"), config.join("\n") + "\n")?;
        let mut command = self.rack.network().command(sushy_python()?);
        command.args([path("sushy_plug.py"), path("plug"), "--fake".into(), "--config".into()]);
        command.args([path("emulator.conf"), "--interface".into(), self.ip.to_string()]);
        command.args([
            "--port",
            "443",
            "--ssl-certificate",
            &path("cert.pem"),
            "--ssl-key",
            &path("key.pem"),
        ]);
        let mut process = Process::spawn("sushy-tools", &mut command, &self.log())?;
        let address = SocketAddr::new(self.ip.into(), 443);
        wait::until("sushy-tools to listen", READY, || {
            if !process.is_running() {
                bail!("sushy-tools has ended: {}", guard::last_lines(&process.said(), 20));
            }
            let connection = self.rack.network().inside(|| Ok(TcpStream::connect(address)))?;
            Ok(connection.is_ok().then_some(()))
        })?;
        Ok((Front::Peer { _process: process, _door: door }, Some(certificate.pin())))
    }
}

/// The Python that has sushy-tools and sushy.
///
/// # Errors
/// It was not installed.
pub fn sushy_python() -> Result<PathBuf> {
    let path = pxed::cache()?.join("tools/sushy-tools-2.2.0/bin/python");
    if !path.exists() {
        bail!("{} is missing: run `cargo xtask setup`", path.display());
    }
    Ok(path)
}
