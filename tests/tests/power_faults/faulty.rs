//! Machines with one fault each next to healthy ones: each reports its fault, none delays another, and a repaired one
//! recovers by itself.

use std::time::Duration;

use bedplate_tests::bmc::chassis::Delays;
use bedplate_tests::bmc::fault::{Dead, Faults};
use bedplate_tests::bmc::service::PASSWORD;
use serde_json::json;

use super::rig::{LIMIT, Protocol, Rig, Station, WRONG};

/// Maximum time of a case. A BMC that hangs counts as broken after three polls of 20 s each, and is asked again after some minutes at most.
const LONG: Duration = Duration::from_secs(300);
const HEALTHY: [(&str, Protocol); 4] = [
    ("healthy-a", Protocol::Redfish),
    ("healthy-b", Protocol::Redfish),
    ("healthy-c", Protocol::Ipmi),
    ("healthy-d", Protocol::Ipmi),
];

/// Fault of a BMC, and its expected report.
struct Case {
    name: &'static str,
    protocol: Protocol,
    faults: Faults,
    /// Reason of condition and operation, and words of the remedy; nothing: it works all the same.
    expected: Option<(&'static str, &'static str)>,
}

fn case(name: &'static str, faults: Faults, expected: Option<(&'static str, &'static str)>) -> Case {
    let protocol = if name.ends_with("ipmi") { Protocol::Ipmi } else { Protocol::Redfish };
    Case { name, protocol, faults, expected }
}

fn cases() -> Vec<Case> {
    let none = Faults::default;
    let silent = Some(("BMCUnreachable", "check its network and bmc.address, or restart the BMC"));
    let garbled = Some(("ProtocolError", "check for newer BMC firmware"));
    let full = Some(("Refused", "close other IPMI sessions"));
    vec![
        case("slow-redfish", Faults { slow_ms: 1500, ..none() }, None),
        case("slow-ipmi", Faults { slow_ms: 1500, ..none() }, None),
        case(HUNG, Faults { hung: true, ..none() }, Some(("TimedOut", "check its load"))),
        case("hung-ipmi", Faults { hung: true, ..none() }, silent),
        case("half-open-redfish", Faults { half_open: true, ..none() }, silent),
        case("error-redfish", Faults { status: Some(500), ..none() }, silent),
        case("busy-redfish", Faults { status: Some(503), ..none() }, silent),
        case("busy-ipmi", Faults { status: Some(503), ..none() }, Some(("Refused", "busy"))),
        case("garbled-redfish", Faults { wrong_json: true, ..none() }, garbled),
        case("garbled-ipmi", Faults { wrong_json: true, ..none() }, garbled),
        case("lossy-ipmi", Faults { loss_percent: 20, ..none() }, None),
        case("full-redfish", Faults { sessions_full: true, ..none() }, None),
        case("full-ipmi", Faults { sessions_full: true, ..none() }, full),
        case("lying-redfish", Faults { lie_ms: 10_000, ..none() }, None),
        case("lying-ipmi", Faults { lie_ms: 10_000, ..none() }, None),
        case("refused-redfish", Faults { dead: Some(Dead::Refused), ..none() }, silent),
        case("dropped-redfish", Faults { dead: Some(Dead::Dropped), ..none() }, silent),
        case("dead-ipmi", Faults { dead: Some(Dead::Dropped), ..none() }, silent),
    ]
}

/// BMC that accepts a request and does not answer. A request times out after 20 s, and the next one needs another connection.
const HUNG: &str = "hung-redfish";

/// The BMCs whose certificate or password is another one.
const CHANGED: &str = "changed-redfish";
const LOCKING: [(&str, Protocol, usize); 3] = [
    ("locking-redfish", Protocol::Redfish, 1),
    ("locking-ipmi", Protocol::Ipmi, 1),
    ("locking-enclosure", Protocol::Redfish, 3),
];

struct Site {
    rig: Rig,
    healthy: Vec<Station>,
    faulty: Vec<(Case, Station)>,
    changed: Station,
    locking: Vec<Station>,
}

impl Site {
    /// Every machine is there, and nothing is wrong yet.
    fn new(label: &str) -> Self {
        let rig = Rig::new(label, "127.0.0.0/8");
        let delays = Delays::default();
        let station = |name, protocol, systems| {
            let station = rig.station(name, protocol, systems, delays);
            for number in 1..=systems {
                rig.machine(&machine(&station, number), &station.spec(number));
            }
            station
        };
        let healthy = HEALTHY.map(|(name, protocol)| station(name, protocol, 1)).into();
        let faulty = cases()
            .into_iter()
            .map(|case| {
                let station = station(case.name, case.protocol, 1);
                (case, station)
            })
            .collect();
        let changed = station(CHANGED, Protocol::Redfish, 1);
        let locking = LOCKING.map(|(name, protocol, systems)| station(name, protocol, systems)).into();
        Self { rig, healthy, faulty, changed, locking }
    }

    fn break_all(&self) {
        for (case, station) in &self.faulty {
            station.bmc.set_faults(case.faults.clone()).unwrap();
        }
        self.changed.bmc.change_certificate().unwrap();
        for station in &self.locking {
            station.bmc.set_faults(Faults { lock_after: Some(3), ..Faults::default() }).unwrap();
            self.rig.credentials(&station.name, WRONG);
        }
    }

    /// Every machine whose BMC is not usable, with its expected report.
    fn broken(&self) -> Vec<(String, &Station, &'static str, &'static str)> {
        let of = |(case, station): &'_ (Case, Station)| {
            case.expected.map(|expected| (station.name.clone(), expected))
        };
        let mut all: Vec<_> = self
            .faulty
            .iter()
            .filter_map(|pair| of(pair).map(|(name, (reason, remedy))| (name, &pair.1, reason, remedy)))
            .collect();
        all.push((CHANGED.to_owned(), &self.changed, "CertificateChanged", "pins"));
        for (station, (_, _, systems)) in self.locking.iter().zip(LOCKING) {
            for number in 1..=systems {
                all.push((machine(station, number), station, "AuthenticationFailed", "Secret"));
            }
        }
        all
    }

    /// Waits until the healthy machines are on. By then, no request to a hung BMC may have ended. Otherwise a healthy machine waited
    /// for it.
    fn healthy_are_on_first(&self) {
        self.rig.wait("the healthy machines to be on", LONG, || {
            self.healthy.iter().all(Station::is_on).then_some(())
        });
        let (_, hung) = self.faulty.iter().find(|(case, _)| case.name == HUNG).unwrap();
        let counters = hung.bmc.counters();
        assert!(counters.connections <= 1, "{HUNG} timed out before the healthy were on: {counters:?}");
    }

    fn wrong_logins(&self) -> Vec<u32> {
        let of = |station: &Station| {
            let counters = station.bmc.counters();
            match station.protocol {
                Protocol::Redfish => counters.wrong_logins,
                // A client notices by itself, and goes away.
                Protocol::Ipmi => counters.ipmi_attempts,
            }
        };
        self.locking.iter().map(of).collect()
    }
}

fn machine(station: &Station, number: usize) -> String {
    if number == 1 { station.name.clone() } else { format!("{}-{number}", station.name) }
}

#[test]
fn each_fault_is_reported_with_its_remedy_and_delays_no_healthy_machine() {
    let site = Site::new("faults");
    site.break_all();
    let pxed = site.rig.start();
    site.healthy_are_on_first();

    for (name, ..) in site.broken() {
        site.rig.operate(&format!("cycle-{name}"), &name, "powerCycle", &json!({}));
    }
    operations_of_usable_machines_complete(&site);
    each_says_what_is_wrong(&site);
    assert_eq!(site.wrong_logins(), [1, 1, 1], "a wrong password is tried once");
    site.rig.keeps_its_secrets();

    let _pxed = site.rig.restart(pxed);
    site.rig.wait("the wrong passwords to be tried after the restart", LIMIT, || {
        (site.wrong_logins() == [2, 2, 2]).then_some(())
    });
    all_recover_when_they_are_healed(&site);
    site.rig.keeps_its_secrets();
}

/// Exactly one cycle of each machine whose BMC is usable. The healthy ones come first: the wait for a slow BMC may last longer than an
/// operation at a BMC that hangs.
fn operations_of_usable_machines_complete(site: &Site) {
    let usable = site.faulty.iter().filter(|(case, _)| case.expected.is_none()).map(|(_, station)| station);
    let usable: Vec<&Station> = usable.collect();
    let healthy: Vec<&Station> = site.healthy.iter().collect();
    cycle(site, &healthy);
    all_are_cycled(site, &healthy, LIMIT);
    for hanging in [HUNG, "half-open-redfish"] {
        let status = site.rig.operation(&format!("cycle-{hanging}"));
        assert_eq!(status["state"], "InProgress", "{hanging} has ended before the healthy ones: {status}");
    }
    cycle(site, &usable);
    all_are_cycled(site, &usable, LONG);
}

fn cycle(site: &Site, stations: &[&Station]) {
    for station in stations {
        site.rig.wait(&format!("{} to be on", station.name), LIMIT, || {
            let seen = site.rig.condition(&station.name, "PoweredOn");
            (station.is_on() && seen["status"] == "True").then_some(())
        });
        site.rig.operate(&format!("cycle-{}", station.name), &station.name, "powerCycle", &json!({}));
    }
}

fn all_are_cycled(site: &Site, stations: &[&Station], limit: Duration) {
    for station in stations {
        let (_, reason, message) = site.rig.ended(&format!("cycle-{}", station.name), limit);
        assert_eq!(reason, "PowerCycled", "{}: {message}", station.name);
        assert_eq!(station.changes(), [true, false, true], "{}", station.name);
    }
}

fn each_says_what_is_wrong(site: &Site) {
    let mut wrong = Vec::new();
    for (name, station, reason, remedy) in site.broken() {
        let (state, ended, message) = site.rig.ended(&format!("cycle-{name}"), LONG);
        println!("{name}: {ended}: {message}");
        if (&*state, &*ended) != ("Failed", reason) || !message.contains(remedy) {
            wrong.push(format!("operation at {name}: {state} {ended}: {message}"));
        }
        let seen = site.rig.wait(&format!("the condition of {name}"), LONG, || {
            let seen = site.rig.condition(&name, "BMCReachable");
            (seen["status"] == "False").then_some(seen)
        });
        let message = seen["message"].as_str().unwrap_or_default();
        println!("    {}: {message}", seen["reason"]);
        let next = message.contains("next try at ") || message.contains("retried when ");
        if seen["reason"] != *reason || !next || !message.contains("; since ") || !message.contains(remedy) {
            wrong.push(format!("condition of {name}: {}: {message}", seen["reason"]));
        }
        if !station.changes().is_empty() {
            wrong.push(format!("{name} was switched: {:?}", station.changes()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn all_recover_when_they_are_healed(site: &Site) {
    for (_, station) in &site.faulty {
        station.bmc.heal().unwrap();
    }
    site.rig.machine(CHANGED, &site.changed.spec(1));
    for station in &site.locking {
        site.rig.credentials(&station.name, PASSWORD);
    }
    for (name, station, ..) in site.broken() {
        site.rig.wait(&format!("{name} to recover"), LONG, || {
            let (reached, on) =
                (site.rig.condition(&name, "BMCReachable"), site.rig.condition(&name, "PoweredOn"));
            (reached["status"] == "True" && on["status"] == "True" && station.is_on()).then_some(())
        });
    }
    for station in &site.locking {
        let name = format!("again-{}", station.name);
        site.rig.operate(&name, &station.name, "powerCycle", &json!({}));
        assert_eq!(site.rig.ended(&name, LIMIT).0, "Complete", "{}", station.name);
        let counters = station.bmc.counters();
        assert!(counters.wrong_logins <= 2 && counters.locked_out == 0, "{}: {counters:?}", station.name);
    }
}
