//! One pxed without a cluster on loopback, and simulated BMCs for it, each with sockets of its own.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bedplate_tests::bmc::chassis::{Action, Chassis, Delays, Shared};
use bedplate_tests::bmc::service::{Bmc, PASSWORD, Settings, USER};
use bedplate_tests::bmc::simulator::{Listen, Simulator};
use bedplate_tests::guard::{Directory, Process, last_lines};
use bedplate_tests::pxed::{ask, serve};
use bedplate_tests::wait;
use serde_json::{Value, json};

/// For everything that takes a look or two.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// A password that no BMC has.
pub(super) const WRONG: &str = "wr0ng-battery";
const VERSION: &str = "bedplate.dev/v1alpha1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Redfish,
    Ipmi,
}

/// A BMC with the machines behind it.
pub(super) struct Station {
    pub(super) name: String,
    pub(super) protocol: Protocol,
    pub(super) address: SocketAddr,
    pub(super) bmc: Arc<Bmc>,
}

impl Station {
    /// Requests to its machine so far.
    pub(super) fn asked(&self) -> Vec<Action> {
        self.bmc.systems()[0].lock().asked().iter().map(|asked| asked.action).collect()
    }

    /// Every change of its machine's power so far.
    pub(super) fn changes(&self) -> Vec<bool> {
        self.bmc.systems()[0].lock().changes(Instant::now()).iter().map(|change| change.on).collect()
    }

    pub(super) fn is_on(&self) -> bool {
        self.bmc.systems().iter().all(|system| system.lock().is_on(Instant::now()))
    }

    /// `spec.bmc` of the machine that is its system number `number`; the certificate is the one of now.
    pub(super) fn spec(&self, number: usize) -> Value {
        let secret = json!({ "namespace": "bedplate-system", "name": self.name });
        match self.protocol {
            Protocol::Redfish => json!({
                "protocol": "Redfish", "address": format!("https://{}", self.address), "credentialsSecretRef": secret,
                "redfish": {
                    "systemID": number.to_string(), "tls": { "mode": "Pin", "pins": [self.bmc.pin().to_string()] },
                },
            }),
            Protocol::Ipmi => json!({
                "protocol": "IPMI", "address": self.address.to_string(), "credentialsSecretRef": secret,
            }),
        }
    }
}

pub(super) struct Rig {
    directory: Directory,
    metrics: SocketAddr,
    simulator: Simulator,
    made: AtomicU32,
}

/// An address of loopback that is this rig's alone: a port that is free now may be in use by another connection a moment
/// later, when pxed starts again.
fn own_address() -> SocketAddr {
    static RIGS: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let [.., number] = RIGS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    (Ipv4Addr::new(127, number.wrapping_add(16), high, low), 9468).into()
}

impl Rig {
    /// pxed may reach BMCs in `allowed`.
    pub(super) fn new(label: &str, allowed: &str) -> Self {
        let directory = Directory::new(label).unwrap();
        let rig = Self {
            directory,
            metrics: own_address(),
            simulator: Simulator::new().unwrap(),
            made: AtomicU32::new(0),
        };
        fs::create_dir_all(rig.path("machines.d")).unwrap();
        for file in ["kernel", "initrd"] {
            fs::write(rig.path(file), vec![1; 4096]).unwrap();
        }
        let at = |name: &str| rig.path(name).display().to_string();
        let config = format!(
            "state-directory = {:?}\nsocket = {:?}\ndefault-image = \"host\"\n[source]\ndirectory = {:?}\n[dhcp]\nmode = \
             \"off\"\n[tftp]\nlisten = \"127.0.0.1:0\"\n[http]\nlisten = \"127.0.0.1:0\"\n[https]\nlisten = \
             \"127.0.0.1:0\"\n[metrics]\nlisten = \"{}\"\n[bmc]\nallow-insecure = true\nallowed-networks = [{allowed:?}]\ncredentials-directory = \
             {:?}\npoll-seconds = 5\n[images.host]\nkernel = {:?}\ninitrd = {:?}\n",
            at("state"),
            at("pxed.sock"),
            at("machines.d"),
            rig.metrics,
            at("credentials"),
            at("kernel"),
            at("initrd"),
        );
        fs::write(rig.path("pxed.toml"), config).unwrap();
        rig
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A BMC with `systems` machines behind it, which are off.
    pub(super) fn station(&self, name: &str, protocol: Protocol, systems: usize, delays: Delays) -> Station {
        let machine = || {
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            let uuid = format!("5b1e0000-0000-4000-8000-{number:012x}");
            Chassis::new(name, &uuid, delays).share()
        };
        let machines: Vec<Shared> = (0..systems).map(|_| machine()).collect();
        let any = (Ipv4Addr::LOCALHOST, 0);
        let (listen, address) = match protocol {
            Protocol::Redfish => {
                let tcp = TcpListener::bind(any).unwrap();
                let address = tcp.local_addr().unwrap();
                (Listen { tcp: Some(tcp), udp: None }, address)
            }
            Protocol::Ipmi => {
                let udp = UdpSocket::bind(any).unwrap();
                let address = udp.local_addr().unwrap();
                (Listen { tcp: None, udp: Some(udp) }, address)
            }
        };
        let bmc = self.simulator.add(Settings::new(name), machines, listen).unwrap();
        self.credentials(name, PASSWORD);
        Station { name: name.to_owned(), protocol, address, bmc }
    }

    /// Writes the files of a Secret, as their owner's alone.
    pub(super) fn credentials(&self, name: &str, password: &str) {
        // The tests of addresses ask what pxed refuses although the Secret lists it.
        self.credentials_for(name, password, "0.0.0.0/0,::/0,localhost");
    }

    /// Writes credentials that may be sent to the listed addresses.
    pub(super) fn credentials_for(&self, name: &str, password: &str, addresses: &str) {
        let place = self.path("credentials/bedplate-system").join(name);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&place).unwrap();
        for (file, text) in [("username", USER), ("password", password), ("bmc-addresses", addresses)] {
            let mut options = fs::OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(place.join(file)).unwrap();
            writeln!(file, "{text}").unwrap();
        }
    }

    /// Writes a Machine with this BMC into a file of its own.
    pub(super) fn machine(&self, name: &str, bmc: &Value) {
        // The address is the name's, so that a manifest can be written again.
        let digits = name.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let [a, b, c, d] = digits.to_be_bytes();
        let mac = format!("52:54:{a:02x}:{b:02x}:{c:02x}:{d:02x}");
        self.manifest(
            name,
            &json!({
                "apiVersion": VERSION, "kind": "Machine", "metadata": { "name": name },
                "spec": { "provider": "pxe", "pxe": { "interfaces": [{ "macAddress": mac }] }, "bmc": bmc },
            })
            .to_string(),
        );
    }

    /// As an editor does: a new file in the place of the old.
    pub(super) fn manifest(&self, name: &str, text: &str) {
        let (new, place) = (self.path("machine.new"), self.path(&format!("machines.d/{name}.yaml")));
        fs::write(&new, text).unwrap();
        fs::rename(&new, &place).unwrap();
    }

    /// Starts pxed and waits until it answers on its socket.
    pub(super) fn start(&self) -> Process {
        serve(self.directory.path()).unwrap()
    }

    /// Kills it (SIGKILL), or what is left of it, and starts another one.
    pub(super) fn restart(&self, mut pxed: Process) -> Process {
        pxed.kill();
        drop(pxed);
        self.start()
    }

    pub(super) fn log(&self) -> String {
        fs::read(self.path("pxed.log"))
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Waits; in vain: the end of the log is in the message.
    pub(super) fn wait<T>(&self, what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
        wait::until(what, limit, || Ok(look()))
            .unwrap_or_else(|error| panic!("{error:#}\n{}", last_lines(&self.log(), 40)))
    }

    pub(super) fn ask(&self, path: &str) -> Value {
        ask(&self.path("pxed.sock"), path).unwrap_or_default()
    }

    /// A condition of a Machine; null while there is none.
    pub(super) fn condition(&self, machine: &str, type_: &str) -> Value {
        let shown = self.ask(&format!("/v1/machines/{machine}"));
        let conditions = shown["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == *type_).unwrap_or_default()
    }

    /// Makes an operation through the socket: status and body of the answer.
    pub(super) fn post(&self, body: &str) -> (u16, String) {
        let mut socket = UnixStream::connect(self.path("pxed.sock")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        // A server that refuses a body may close before all of it was sent.
        let _ = write!(
            socket,
            "POST /v1/operations HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (code.unwrap_or_else(|| panic!("no answer: {answer:?}")), answer)
    }

    /// Has an operation made.
    pub(super) fn operate(&self, name: &str, machine: &str, operation: &str, more: &Value) {
        let (code, answer) = self.post(&order(name, machine, operation, more).to_string());
        assert_eq!(code, 201, "{answer}");
    }

    pub(super) fn operation(&self, name: &str) -> Value {
        self.ask(&format!("/v1/operations/{name}"))["status"].clone()
    }

    /// The step that an operation stands in.
    pub(super) fn step(&self, name: &str) -> String {
        let status = self.operation(name);
        status["step"]["name"].as_str().unwrap_or_default().to_owned()
    }

    /// State, reason and message of an operation that has ended.
    pub(super) fn ended(&self, name: &str, limit: Duration) -> (String, String, String) {
        self.wait(&format!("the end of {name}"), limit, || {
            let status = self.operation(name);
            let word = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
            let state = word("state");
            ["Complete", "Failed"].contains(&&*state).then(|| (state, word("reason"), word("message")))
        })
    }

    /// All that pxed shows and has ever said.
    pub(super) fn shown(&self) -> String {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: pxed\r\nConnection: close\r\n\r\n").unwrap();
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics).unwrap();
        assert!(metrics.contains("bedplate_pxed_bmc_failures_total"), "{metrics}");
        let lists = ["/v1/machines", "/v1/operations", "/v1/status"].map(|path| self.ask(path).to_string());
        [metrics, lists.concat(), self.log()].concat()
    }

    /// Asserts that no password is in what is shown, nor a character that a terminal obeys.
    pub(super) fn keeps_its_secrets(&self) {
        let shown = self.shown();
        for secret in [PASSWORD, WRONG] {
            let line = shown.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "a password is shown");
        }
        assert!(!shown.contains("panicked"), "{}", last_lines(&self.log(), 40));
    }
}

/// A MachineOperation.
pub(super) fn order(name: &str, machine: &str, operation: &str, more: &Value) -> Value {
    let mut spec = json!({ "operationName": operation, "machineRef": { "name": machine } });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({
        "apiVersion": VERSION, "kind": "MachineOperation", "metadata": { "name": name }, "spec": spec,
    })
}
