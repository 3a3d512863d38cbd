//! A machine behind a simulated BMC, as the tests of power use it.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use bedplate_tests::bmc::chassis::{Action, Chassis, Delays};
use bedplate_tests::bmc::service::{Bmc, Settings};
use bedplate_tests::bmc::simulator::{Listen, Simulator};
use serde_json::{Value, json};

/// A simulated machine that is off, behind Redfish on loopback.
pub(crate) struct Server {
    pub(crate) bmc: Arc<Bmc>,
    address: SocketAddr,
    _simulator: Simulator,
}

impl Server {
    pub(crate) fn start(uuid: &str) -> Self {
        let simulator = Simulator::new().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let machine = Chassis::new("machine", uuid, Delays::default()).share();
        let listen = Listen { tcp: Some(tcp), udp: None };
        let bmc = simulator.add(Settings::new("one"), vec![machine], listen).unwrap();
        Self { bmc, address, _simulator: simulator }
    }

    /// `spec` of its Machine, which only operations switch.
    pub(crate) fn spec(&self, namespace: &str, secret: &str) -> Value {
        json!({ "powerPolicy": "Unmanaged", "bmc": {
            "protocol": "Redfish", "address": format!("https://{}", self.address),
            "credentialsSecretRef": { "namespace": namespace, "name": secret },
            "redfish": { "tls": { "mode": "Pin", "pins": [self.bmc.pin().to_string()] } },
        } })
    }

    pub(crate) fn asked(&self) -> Vec<Action> {
        self.bmc.systems()[0].lock().asked().iter().map(|asked| asked.action).collect()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.bmc.systems()[0].lock().is_on(Instant::now())
    }
}
