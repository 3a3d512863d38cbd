//! A machine of the rack with a BMC before it: off, until a client switches it on through that BMC.
//!
//! Made by [`Rack::machine`]. The BMC has an address of its own on the rack's bridge.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bedplate_api::id::{Digest, MacAddress};
use serde_json::{Value, json};

use super::chassis::{Change, Chassis, Delays, Hardware, Shared};
use super::peer::{Peer, Running};
use super::plug::Plug;
use super::service::{Bmc, PASSWORD, Settings, USER};
use super::simulator::Listen;
use crate::guard;
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

    /// Returns true if it speaks Redfish; IPMI otherwise.
    pub fn is_redfish(self) -> bool {
        matches!(self, Self::Redfish | Self::Sushy)
    }
}

/// The namespace that credentials are in.
const CREDENTIALS: &str = "bedplate-system";
/// BMC of the machine; dropped before it.
#[derive(Debug)]
enum Front {
    Simulated(Arc<Bmc>),
    Peer { _running: Running },
}

/// A machine with a BMC. Dropped: unplugged.
#[derive(Debug)]
pub struct Server {
    name: String,
    kind: BmcKind,
    address: SocketAddr,
    /// Which of its service's systems it is, where there are several.
    system: Option<usize>,
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
        let name = spec.name.clone();
        let (ip, chassis) = (rack.add_bmc_address()?, plugged(rack, spec)?);
        let address = SocketAddr::new(ip.into(), if kind.is_redfish() { 443 } else { 623 });
        let peer = Peer { rack, name: &name, ip, chassis: &chassis };
        let (front, pin) = match kind {
            BmcKind::Redfish | BmcKind::Ipmi => {
                let bmc = simulated(rack, kind, address, &name, vec![chassis.clone()])?;
                let pin = kind.is_redfish().then(|| bmc.pin());
                (Front::Simulated(bmc), pin)
            }
            BmcKind::IpmiSim => (Front::Peer { _running: peer.ipmi_sim()? }, None),
            BmcKind::Sushy => {
                let (running, pin) = peer.sushy()?;
                (Front::Peer { _running: running }, Some(pin))
            }
        };
        let serial = rack.file(&format!("{name}.serial"));
        Ok(Server { name, kind, address, system: None, pin, serial, front, chassis })
    }
}

/// Puts one simulated Redfish service before several machines, as an enclosure has it.
///
/// # Errors
/// It does not come up.
pub fn behind_one(rack: &Rack, specs: Vec<Spec>) -> Result<Vec<Server>> {
    let address = SocketAddr::new(rack.add_bmc_address()?.into(), 443);
    let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    let systems = specs.into_iter().map(|spec| plugged(rack, spec)).collect::<Result<Vec<_>>>()?;
    let bmc = simulated(rack, BmcKind::Redfish, address, "enclosure", systems.clone())?;
    let server = |((name, chassis), number): ((String, Shared), usize)| Server {
        serial: rack.file(&format!("{name}.serial")),
        name,
        kind: BmcKind::Redfish,
        address,
        system: Some(number),
        pin: Some(bmc.pin()),
        front: Front::Simulated(Arc::clone(&bmc)),
        chassis,
    };
    Ok(names.into_iter().zip(systems).zip(1..).map(server).collect())
}

fn plugged(rack: &Rack, spec: Spec) -> Result<Shared> {
    let (name, mac) = (spec.name.clone(), spec.mac);
    let plug = Plug::new(spec, rack.shared_network(), rack.add_tap()?, rack.path().to_owned());
    Ok(Chassis::new(&name, &qemu::uuid(mac), Delays::default()).with_hardware(plug, mac).share())
}

fn simulated(
    rack: &Rack,
    kind: BmcKind,
    address: SocketAddr,
    name: &str,
    systems: Vec<Shared>,
) -> Result<Arc<Bmc>> {
    let listen = rack.network().inside(|| {
        Ok(match kind.is_redfish() {
            true => Listen { tcp: Some(TcpListener::bind(address)?), udp: None },
            false => Listen { tcp: None, udp: Some(UdpSocket::bind(address)?) },
        })
    })?;
    // Starting QEMU may take longer than a client waits before it repeats a request.
    rack.simulator()?.add(Settings { ipmi_remembers: true, ..Settings::new(name) }, systems, listen)
}

impl Server {
    /// Puts a simulated Redfish service before hardware of the caller.
    ///
    /// # Errors
    /// The service does not start.
    pub fn with_hardware(
        rack: &Rack,
        name: &str,
        mac: MacAddress,
        hardware: impl Hardware + 'static,
    ) -> Result<Self> {
        let address = SocketAddr::new(rack.add_bmc_address()?.into(), 443);
        let chassis = Chassis::new(name, &qemu::uuid(mac), Delays::default());
        let chassis = chassis.with_hardware(hardware, mac).share();
        let bmc = simulated(rack, BmcKind::Redfish, address, name, vec![chassis.clone()])?;
        Ok(Self {
            serial: rack.file(&format!("{name}.serial")),
            name: name.to_owned(),
            kind: BmcKind::Redfish,
            address,
            system: None,
            pin: Some(bmc.pin()),
            front: Front::Simulated(bmc),
            chassis,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its BMC's kind.
    pub fn kind(&self) -> BmcKind {
        self.kind
    }

    /// Address of its BMC, inside the rack's network.
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

    /// The simulated BMC, for faults and counters; `None`: it is a foreign one.
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

    /// Returns true if it has power.
    pub fn has_power(&self) -> bool {
        self.chassis.lock().is_on(Instant::now())
    }

    /// All changes of its power so far.
    pub fn changes(&self) -> Vec<Change> {
        self.chassis.lock().changes(Instant::now()).to_vec()
    }

    /// Number of times that it was switched off and on again.
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
            true => ("Redfish", format!("https://{}", self.address.ip())),
            false => ("IPMI", self.address.ip().to_string()),
        };
        let mut text = format!(
            "  bmc:\n    protocol: {protocol}\n    address: {address}\n    credentialsSecretRef:\n      namespace: \
             {CREDENTIALS}\n      name: {}\n",
            self.credentials()
        );
        if let Some(pin) = self.pin() {
            let _ =
                write!(text, "    redfish:\n      tls:\n        mode: Pin\n        pins:\n        - {pin}\n");
            if let Some(number) = self.system {
                let _ = writeln!(text, "      systemID: \"{number}\"");
            }
        }
        if self.kind == BmcKind::IpmiSim {
            text.push_str("    ipmi:\n      cipherSuite: 3\n");
        }
        text
    }

    /// Its credentials for a pxed without a cluster: files that only their owner reads, below
    /// [`crate::pxed::credentials_directory`].
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_credentials(&self, directory: &Path) -> Result<()> {
        let place = directory.join(CREDENTIALS).join(self.credentials());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
        let address = self.address.ip().to_string();
        for (name, value) in [("username", USER), ("password", PASSWORD), ("bmc-addresses", address.as_str())]
        {
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
            "metadata": {
                "name": self.credentials(), "namespace": CREDENTIALS,
                "annotations": {"bedplate.dev/bmc-addresses": self.address.ip().to_string()},
            },
            "stringData": {"username": USER, "password": PASSWORD},
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The simulator may hold the chassis for a while yet.
        self.chassis.lock().unplug();
    }
}
