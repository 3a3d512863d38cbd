//! A machine behind a simulated BMC whose power changes only when the test says so: there is time in every step.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_tests::bmc::chassis::{Action, By, Change, Chassis, Delays, Shared};
use bedplate_tests::bmc::fault::Faults;
use bedplate_tests::bmc::service::{Bmc, Settings};
use bedplate_tests::bmc::simulator::{Listen, Simulator};
use serde_json::{Value, json};

/// Delay after which a request has its effect by itself.
const HELD: Duration = Duration::from_secs(3600);

/// A machine that is on.
pub(crate) struct Held {
    pub(crate) bmc: Arc<Bmc>,
    address: SocketAddr,
    is_redfish: bool,
    /// True if its operating system listens to the power button.
    listens: bool,
}

impl Held {
    /// Behind Redfish, or behind RMCP+.
    pub(crate) fn new(simulator: &Simulator, number: usize, is_redfish: bool, listens: bool) -> Self {
        Self::with(simulator, number, is_redfish, listens, Settings::new("one"))
    }

    pub(crate) fn with(
        simulator: &Simulator,
        number: usize,
        is_redfish: bool,
        listens: bool,
        settings: Settings,
    ) -> Self {
        let uuid = format!("5b1e0000-0000-4000-8000-{number:012}");
        let mut chassis = Chassis::new("machine", &uuid, Delays::default());
        chassis.act(Action::On, By::Peer, Duration::ZERO, Instant::now()).unwrap();
        let graceful = listens.then_some(HELD);
        chassis.set_delays(Delays { on: HELD, off: HELD, graceful });
        let mut listen = Listen::default();
        let address = if is_redfish {
            let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
            listen.tcp.insert(tcp).local_addr().unwrap()
        } else {
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            listen.udp.insert(udp).local_addr().unwrap()
        };
        let bmc = simulator.add(settings, vec![chassis.share()], listen).unwrap();
        Self { bmc, address, is_redfish, listens }
    }

    /// `spec` of its Machine, which only operations switch.
    pub(crate) fn spec(&self, namespace: &str, secret: &str) -> Value {
        let credentials = json!({ "namespace": namespace, "name": secret });
        let bmc = if self.is_redfish {
            json!({ "protocol": "Redfish", "address": format!("https://{}", self.address),
                "credentialsSecretRef": credentials,
                "redfish": { "tls": { "mode": "Pin", "pins": [self.bmc.pin().to_string()] } } })
        } else {
            json!({ "protocol": "IPMI", "address": self.address.to_string(), "credentialsSecretRef": credentials })
        };
        json!({ "powerPolicy": "Unmanaged", "bmc": bmc })
    }

    fn chassis(&self) -> &Shared {
        &self.bmc.systems()[0]
    }

    /// Requests to its power.
    pub(crate) fn asked(&self) -> Vec<Action> {
        let chassis = self.chassis().lock();
        chassis.asked().iter().filter(|asked| asked.by != By::Peer).map(|asked| asked.action).collect()
    }

    /// Changes of its power.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let mut chassis = self.chassis().lock();
        chassis.changes(Instant::now())[1..].to_vec()
    }

    /// Lets the pending request have its effect now.
    pub(crate) fn hasten(&self) {
        self.chassis().lock().hasten(Instant::now());
    }

    /// Lets further requests have their effect immediately.
    pub(crate) fn lets_go(&self) {
        let graceful = self.listens.then_some(Duration::ZERO);
        self.chassis().lock().set_delays(Delays { graceful, ..Delays::default() });
    }

    /// Switches the machine off now, as its operating system does without a request to the BMC.
    pub(crate) fn goes_off(&self) {
        let mut chassis = self.chassis().lock();
        let delays = Delays { graceful: Some(Duration::ZERO), ..Delays::default() };
        chassis.set_delays(delays);
        chassis.act(Action::ForceOff, By::Peer, Duration::ZERO, Instant::now()).unwrap();
    }

    /// Its BMC says nothing any more.
    pub(crate) fn hangs(&self) {
        self.bmc.set_faults(Faults { hung: true, ..Faults::default() }).unwrap();
    }

    /// It does what is asked and does not say so.
    pub(crate) fn loses_answers(&self) {
        self.bmc.set_faults(Faults { answers_lost: true, ..Faults::default() }).unwrap();
    }

    /// It takes its time for every answer.
    pub(crate) fn is_slow(&self, time: Duration) {
        let slow_ms = u64::try_from(time.as_millis()).unwrap();
        self.bmc.set_faults(Faults { slow_ms, ..Faults::default() }).unwrap();
    }
}
