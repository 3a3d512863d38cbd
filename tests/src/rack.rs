//! A rack: a namespace with a bridge, the machines on it, a router that announces itself, a place for their files.
//!
//! It knows nothing of pxed, which a test starts in the rack's namespace or in another one.

use std::cell::{Cell, OnceCell};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use bedplate_api::id::MacAddress;

use crate::bmc::server::Wanted;
use crate::bmc::simulator::Simulator;
use crate::guard::{self, Directory, Process};
use crate::netns::Namespace;
use crate::qemu::{Firmware, Machine, Spec};

/// The rack's bridge, on which the servers' network cards are.
pub const BRIDGE: &str = "br0";
/// The rack's own address on the bridge; the network is 10.7.0.0/24.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
/// The last octet of the first BMC's address on the bridge; pxed's tests lease addresses below it.
const FIRST_BMC: u8 = 200;
/// Directory of the packages' boot loaders for x86.
pub const LOADERS: &str = "/usr/lib/ipxe";

/// A rack of this run. Dropped while a test panics or fails, it first saves its logs below `target/rack`.
#[derive(Debug)]
pub struct Rack {
    name: String,
    taps: Cell<u32>,
    bmcs: Cell<u8>,
    /// Runs when there is a simulated BMC.
    simulator: OnceCell<Simulator>,
    /// Killed before its namespace goes.
    router: Option<(Process, Namespace)>,
    network: Arc<Namespace>,
    directory: Directory,
    /// Set by [`Rack::succeeded`]: nothing needs to be kept.
    succeeded: Cell<bool>,
}

impl Rack {
    /// A rack whose network has a bridge with [`ADDRESS`], and a router for IPv6.
    ///
    /// # Errors
    /// Not root, or a package is missing.
    pub fn new(name: &str) -> Result<Self> {
        let directory = Directory::new(name)?;
        let network = Namespace::new("rack")?;
        network.add_bridge(BRIDGE, Some((ADDRESS, 24)))?;
        let mut rack = Self {
            name: name.to_owned(),
            taps: Cell::new(0),
            bmcs: Cell::new(0),
            simulator: OnceCell::new(),
            router: None,
            network: Arc::new(network),
            directory,
            succeeded: Cell::new(false),
        };
        rack.router = Some(rack.start_router()?);
        Ok(rack)
    }

    /// Answers router solicitations, as the router of a real rack does: without an answer iPXE waits 13 s for one.
    fn start_router(&self) -> Result<(Process, Namespace)> {
        let router = Namespace::new("router")?;
        self.network.add_veth("router", &router, "eth0")?;
        self.network.ip(&format!("link set router master {BRIDGE}"))?;
        router.ip("address add fd00:bed::1/64 dev eth0 nodad")?;
        let mut command = router.command("dnsmasq");
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--port=0"]);
        command.args(["--log-facility=-", "--user=root", "--interface=eth0", "--enable-ra"]);
        command.args(["--dhcp-range=fd00:bed::,ra-only,64", "--leasefile-ro"]);
        let mut process = Process::spawn("the router", &mut command, &self.file("router.log"))?;
        process.wait_said("router advertisement on fd00:bed::", guard::START_TIMEOUT)?;
        Ok((process, router))
    }

    /// The namespace with the bridge.
    pub fn network(&self) -> &Namespace {
        &self.network
    }

    /// The directory of this rack's files.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A file of this rack.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The address of the rack's machine number `number`.
    pub fn mac(number: u8) -> MacAddress {
        MacAddress::new([0x52, 0x54, 0x00, 0xbe, 0xd0, number])
    }

    /// Returns the specification of machine `number`: named `server-<number>`, with enough memory for the host image. One processor, because two guests
    /// already use both cores of a small machine, and QEMU's emulated processors wait for each other.
    pub fn spec(number: u8, firmware: Firmware) -> Spec {
        Spec {
            name: format!("server-{number}"),
            mac: Self::mac(number),
            firmware,
            memory_mib: 1024,
            cpus: 1,
            disks: Vec::new(),
            clock: None,
        }
    }

    /// Switches on machine `number` with enough memory for the host image.
    ///
    /// # Errors
    /// QEMU does not start.
    pub fn power_on(&self, number: u8, firmware: Firmware) -> Result<Machine> {
        self.power_on_as(Self::spec(number, firmware))
    }

    /// A machine for a BMC: `rack.machine(Rack::spec(1, Firmware::Bios)).with_bmc(BmcKind::Redfish)`.
    pub fn machine(&self, spec: Spec) -> Wanted<'_> {
        Wanted { rack: self, spec }
    }

    /// Switches on a machine made to measure.
    ///
    /// # Errors
    /// QEMU does not start.
    #[allow(clippy::needless_pass_by_value, reason = "a Spec is written where it is used")]
    pub fn power_on_as(&self, spec: Spec) -> Result<Machine> {
        let tap = self.add_tap()?;
        Machine::power_on(&spec, &self.network, &tap, self.directory.path())
    }

    pub(crate) fn add_tap(&self) -> Result<String> {
        let tap = format!("tap{}", self.taps.replace(self.taps.get() + 1));
        self.network.add_tap(&tap, BRIDGE)?;
        Ok(tap)
    }

    pub(crate) fn shared_network(&self) -> Arc<Namespace> {
        Arc::clone(&self.network)
    }

    /// An address on the bridge for one more BMC.
    pub(crate) fn add_bmc_address(&self) -> Result<Ipv4Addr> {
        let last = FIRST_BMC.checked_add(self.bmcs.get()).filter(|last| *last < 255);
        let [a, b, c, _] = ADDRESS.octets();
        let address = Ipv4Addr::new(a, b, c, last.context("the rack has no address left for a BMC")?);
        self.bmcs.set(self.bmcs.get() + 1);
        self.network.ip(&format!("address add {address}/32 dev {BRIDGE}"))?;
        Ok(address)
    }

    /// The simulator of this rack's BMCs.
    ///
    /// # Errors
    /// It does not start.
    pub fn simulator(&self) -> Result<&Simulator> {
        if let Some(simulator) = self.simulator.get() {
            return Ok(simulator);
        }
        let simulator = Simulator::new()?;
        Ok(self.simulator.get_or_init(|| simulator))
    }

    /// Records the packets of the bridge into a file, to debug a failure.
    ///
    /// # Errors
    /// tcpdump does not start.
    pub fn capture(&self) -> Result<Process> {
        let mut command = self.network.command("tcpdump");
        command
            .args(["-i", BRIDGE, "-U", "-n", "-s", "400", "-Z", "root", "-w"])
            .arg(self.file("bridge.pcap"));
        let mut process = Process::spawn("tcpdump", &mut command, &self.file("tcpdump.log"))?;
        process.wait_said("listening on", guard::START_TIMEOUT)?;
        Ok(process)
    }

    /// The test is done: its logs need not be kept.
    pub fn succeeded(&self) {
        self.succeeded.set(true);
    }

    /// Copies logs and serial output to `target/rack/<name>-<run>` and says where.
    fn save(&self) -> Result<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/rack");
        let place = root.join(format!("{}-{}", self.name, guard::run_id()));
        std::fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        for entry in std::fs::read_dir(self.directory.path())? {
            let path = entry?.path();
            let kept = ["log", "serial", "qemu", "toml", "pcap", "yaml"];
            if let (Some(name), true) =
                (path.file_name(), path.extension().is_some_and(|e| kept.iter().any(|k| e == *k)))
            {
                std::fs::copy(&path, place.join(name))?;
            }
        }
        Ok(place.canonicalize().unwrap_or(place))
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        if self.succeeded.get() && std::env::var_os("BEDPLATE_KEEP_LOGS").is_none() {
            return;
        }
        if let Ok(place) = self.save() {
            eprintln!("logs of rack {} are kept in {}", self.name, place.display());
        }
    }
}
