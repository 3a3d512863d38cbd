//! The rack's BMCs: the simulator is what `ipmitool` and python-sushy take for a BMC, its faults are what they say, and
//! each kind of BMC switches a virtual machine. What cannot run because a program is missing has failed.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bmc_simulator {
    mod faults;
    mod machines;
    mod program;
}

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use bedplate_tests::bmc::chassis::{Action, Chassis, Delays, Source};
use bedplate_tests::bmc::service::{Bmc, PASSWORD, Settings};
use bedplate_tests::bmc::simulator::{Listen, Simulator};
use bedplate_tests::bmc::tool;
use serde_json::json;

const UUID: &str = "5b1e0000-0000-4000-8000-000000000001";

/// A BMC on loopback, with one socket of each protocol.
struct One {
    bmc: Arc<Bmc>,
    tcp: SocketAddr,
    udp: SocketAddr,
    _simulator: Simulator,
}

impl One {
    fn start(systems: usize) -> Self {
        let simulator = Simulator::new().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (tcp_address, udp_address) = (tcp.local_addr().unwrap(), udp.local_addr().unwrap());
        let machines =
            (0..systems).map(|_| Chassis::new("machine", UUID, Delays::default()).share()).collect();
        let listen = Listen { tcp: Some(tcp), udp: Some(udp) };
        let bmc = simulator.add(Settings::new("one"), machines, listen).unwrap();
        Self { bmc, tcp: tcp_address, udp: udp_address, _simulator: simulator }
    }

    fn asked(&self) -> Vec<Action> {
        self.bmc.systems()[0].lock().asked().iter().map(|asked| asked.action).collect()
    }

    fn ipmitool(&self, suite: u8, password: &str, arguments: &[&str]) -> (bool, String) {
        let output = tool::ipmitool(None, self.udp, suite, password, arguments).unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }
}

fn ipmitool_agrees_with(suite: u8) {
    let one = One::start(1);
    let good = |arguments: &[&str]| {
        let (good, text) = one.ipmitool(suite, PASSWORD, arguments);
        assert!(good, "{arguments:?}: {text}");
        text
    };
    assert!(good(&["chassis", "power", "status"]).contains("Power is off"));
    assert!(!one.ipmitool(suite, PASSWORD, &["chassis", "power", "cycle"]).0, "it is off");
    good(&["chassis", "bootdev", "pxe"]);
    assert!(good(&["chassis", "bootparam", "get", "5"]).contains("Force PXE"));
    good(&["chassis", "power", "on"]);
    assert!(good(&["chassis", "power", "status"]).contains("Power is on"));
    assert!(good(&["chassis", "bootparam", "get", "5"]).contains("No override"), "once");
    good(&["chassis", "power", "cycle"]);
    good(&["chassis", "power", "reset"]);
    good(&["chassis", "power", "soft"]);
    assert!(good(&["chassis", "power", "status"]).contains("Power is off"));
    good(&["chassis", "power", "off"]);
    assert!(good(&["sel", "list"]).contains("Temperature"));
    assert!(good(&["mc", "info"]).contains("Firmware Revision         : 2.45"));
    let expected =
        [Action::Cycle, Action::On, Action::Cycle, Action::Reset, Action::GracefulOff, Action::ForceOff];
    assert_eq!(one.asked(), expected);
    let mut machine = one.bmc.systems()[0].lock();
    let boots: Vec<_> = machine.changes(Instant::now()).iter().filter_map(|change| change.boot).collect();
    assert_eq!((boots, machine.cycles(Instant::now())), (vec![Source::Pxe, Source::Disk], 1));
    drop(machine);
    assert!(!one.ipmitool(suite, "wrong", &["chassis", "power", "on"]).0);
    let counters = one.bmc.counters();
    assert!(counters.ipmi_attempts > counters.logins, "{counters:?}");
    assert_eq!(one.asked().len(), expected.len());
}

#[test]
fn ipmitool_takes_the_simulator_for_a_bmc_with_suite_3() {
    ipmitool_agrees_with(3);
}

#[test]
fn ipmitool_takes_the_simulator_for_a_bmc_with_suite_17() {
    ipmitool_agrees_with(17);
}

#[test]
fn sushy_takes_the_simulator_for_a_bmc_with_a_session() {
    let one = One::start(2);
    let orders = ["show", "pxe", "show", "on", "show", "cycle", "reset", "soft", "show", "off"];
    let seen = tool::sushy(None, one.tcp, "session", PASSWORD, &orders).unwrap();
    let words = |index: usize| {
        ["power", "boot", "enabled"].map(|name| seen[index][name].as_str().unwrap().to_owned())
    };
    assert_eq!(words(0), ["Off", "None", "Disabled"]);
    assert_eq!(words(1), ["Off", "Pxe", "Once"]);
    assert_eq!(words(2), ["On", "None", "Disabled"]);
    assert_eq!(words(3), ["Off", "None", "Disabled"]);
    assert_eq!((&seen[0]["systems"], &seen[0]["uuid"]), (&json!(2), &json!(UUID)));
    assert_eq!((&seen[0]["health"], &seen[0]["firmware"]), (&json!("OK"), &json!("1.2.3")));
    let expected = [Action::On, Action::Cycle, Action::Reset, Action::GracefulOff, Action::ForceOff];
    assert_eq!(one.asked(), expected);
    let counters = one.bmc.counters();
    assert_eq!((counters.logins, counters.wrong_logins, counters.most_sessions), (1, 0, 1));
    assert_eq!(counters.open_sessions, 0, "the session was ended");
}

#[test]
fn sushy_takes_the_simulator_for_a_bmc_with_basic_authentication() {
    let one = One::start(1);
    let seen = tool::sushy(None, one.tcp, "basic", PASSWORD, &["on", "show"]).unwrap();
    assert_eq!(seen[0]["power"], "On");
    assert_eq!(one.bmc.counters().most_sessions, 0);
    assert!(tool::sushy(None, one.tcp, "session", "wrong", &["off"]).is_err());
    assert!(one.bmc.counters().wrong_logins > 0);
    assert_eq!(one.asked(), [Action::On]);
}
