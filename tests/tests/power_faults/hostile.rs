//! Hostile users and BMCs: harmful addresses, files, bodies and answers. Nothing panics, memory stays
//! bounded, the output is harmless, and a healthy machine next to them is switched on.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use base64::Engine as _;
use bedplate_tests::bmc::chassis::Delays;
use bedplate_tests::bmc::fault::Faults;
use bedplate_tests::bmc::service::{PASSWORD, USER};
use bedplate_tests::guard::Process;
use serde_json::{Value, json};

use super::crooked::{Crooked, Trick};
use super::rig::{LIMIT, Protocol, Rig, order};

/// Three looks that run into their deadlines.
const LONG: Duration = Duration::from_secs(240);
/// Address of the hostile BMCs; no other address of loopback may be reached.
const THERE: &str = "127.0.0.2";
/// Maximum growth of pxed's memory, in KiB.
const MEMORY: u64 = 64 << 10;

/// The most memory that a process has had, KiB.
fn peak(pxed: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pxed.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn plain(name: &str, address: &str) -> Value {
    json!({
        "protocol": "Redfish", "address": address, "redfish": { "tls": { "mode": "Insecure" } },
        "credentialsSecretRef": { "namespace": "bedplate-system", "name": name },
    })
}

/// Waits until a Machine's BMC is called unreachable; its reason and message.
fn wrong(rig: &Rig, name: &str) -> (String, String) {
    let seen = rig.wait(&format!("the condition of {name}"), LONG, || {
        let seen = rig.condition(name, "BMCReachable");
        (seen["status"] == "False").then_some(seen)
    });
    let word = |key: &str| seen[key].as_str().unwrap_or_default().to_owned();
    println!("{name}: {}: {}", word("reason"), word("message"));
    (word("reason"), word("message"))
}

#[test]
fn hostile_bmc_harms_no_other_machine() {
    let rig = Rig::new("hostile-bmc", "127.0.0.2/32");
    let canary = Crooked::start("127.0.0.1", Trick::Nested(1));
    let other = Crooked::start(THERE, Trick::Nested(1));
    let tricks = [
        ("huge", Trick::Huge(100 << 20)),
        ("loopback", Trick::Redirect(format!("http://{}", canary.address))),
        ("elsewhere", Trick::Redirect(format!("http://{}", other.address))),
        ("escapes", Trick::Escapes),
        ("systems", Trick::Systems(10_000)),
        ("nested", Trick::Nested(100_000)),
        ("dripping", Trick::Dripping),
        ("noise", Trick::Noise),
        ("dressed", Trick::Dressed),
        ("echo", Trick::Echo),
    ];
    let pxed = rig.start();
    let before = peak(&pxed);
    for (name, trick) in tricks {
        let crooked = Crooked::start(THERE, trick);
        rig.credentials(name, PASSWORD);
        rig.machine(name, &plain(name, &format!("http://{}", crooked.address)));
    }
    for (name, reasons) in [
        ("huge", &["ProtocolError"][..]),
        ("loopback", &["ProtocolError", "AddressNotAllowed", "Refused"]),
        ("elsewhere", &["ProtocolError", "AddressNotAllowed", "Refused"]),
        ("escapes", &["ProtocolError", "Refused", "BMCUnreachable"]),
        ("systems", &["AmbiguousSystem", "ProtocolError"]),
        ("nested", &["ProtocolError"]),
        ("echo", &["ProtocolError", "Refused", "BMCUnreachable", "AuthenticationFailed"]),
        ("noise", &["ProtocolError", "BMCUnreachable"]),
        ("dripping", &["TimedOut", "BMCUnreachable"]),
    ] {
        let (reason, message) = wrong(&rig, name);
        assert!(reasons.contains(&&*reason), "{name}: {reason}: {message}");
        assert!(message.len() < 2048 && !message.contains(char::is_control), "{name}: {message:?}");
        assert!(!message.contains(['\u{202e}', '\u{9b}']), "{name}: {message:?}");
    }
    let hardware = rig.wait("who the dressed one says that it is", LIMIT, || {
        let shown = rig.ask("/v1/machines/dressed")["status"]["hardware"]["bmc"].clone();
        (!shown.is_null()).then(|| shown.to_string())
    });
    println!("dressed: {hardware}");
    assert!(hardware.len() < 2048, "{} bytes", hardware.len());
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let shown = rig.shown();
    assert!(!shown.contains(&encoded), "credentials as they are sent");
    let obeyed = ["\\u001b", "\\u0007", "\u{1b}", "\u{7}", "\u{202e}", "\u{9b}"];
    assert!(!obeyed.iter().any(|text| shown.contains(text)), "what a terminal obeys");
    assert_eq!((canary.connections(), other.connections()), (0, 0), "a redirect was followed");
    let after = peak(&pxed);
    println!("memory: {before} KiB, at most {after} KiB");
    assert!(after < before + MEMORY, "{before} KiB before, {after} KiB after");
    rig.keeps_its_secrets();
}

#[test]
fn addresses_where_no_bmc_may_be_are_refused_before_anything_is_sent() {
    let rig = Rig::new("hostile-address", "127.0.0.2/32");
    let canary = Crooked::start("127.0.0.1", Trick::Nested(1));
    let port = canary.address.port();
    let addresses = [
        ("metadata", "http://169.254.169.254/".to_owned()),
        ("mapped", format!("http://[::ffff:127.0.0.1]:{port}")),
        ("loopback", format!("http://127.0.0.1:{port}")),
        ("named", format!("http://localhost:{port}")),
        ("nat64", format!("http://[64:ff9b::7f00:1]:{port}")),
        ("unspecified", format!("http://0.0.0.0:{port}")),
    ];
    for (name, address) in &addresses {
        rig.credentials(name, PASSWORD);
        rig.machine(name, &plain(name, address));
    }
    let _pxed = rig.start();
    for (name, _) in &addresses {
        let (reason, message) = wrong(&rig, name);
        assert_eq!(reason, "AddressNotAllowed", "{name}: {message}");
        rig.operate(&format!("on-{name}"), name, "powerOn", &json!({}));
        let (_, reason, message) = rig.ended(&format!("on-{name}"), LIMIT);
        assert_eq!(reason, "AddressNotAllowed", "{name}: {message}");
    }
    assert_eq!(canary.connections(), 0);
    rig.keeps_its_secrets();
}

/// The attack: the author of a Machine names another rack's Secret, and an address of their own.
#[test]
fn credentials_go_only_to_the_addresses_that_their_secret_lists() {
    let rig = Rig::new("hostile-theft", "127.0.0.0/8");
    let station = rig.station("server", Protocol::Redfish, 1, Delays::default());
    let thieves = [THERE, "127.0.0.1", "127.0.0.3"].map(|ip| Crooked::start(ip, Trick::Nested(1)));
    for (name, addresses, address) in [
        ("other", "127.0.0.1", format!("http://{}", thieves[0].address)),
        ("named", "0.0.0.0/0,::/0", format!("http://localhost:{}", thieves[1].address.port())),
        ("unlisted", "", format!("http://{}", thieves[2].address)),
    ] {
        rig.credentials_for(name, PASSWORD, addresses);
        rig.machine(name, &plain(name, &address));
    }
    rig.credentials_for("server", PASSWORD, "127.0.0.1");
    rig.machine("server", &station.spec(1));
    let _pxed = rig.start();
    for name in ["other", "named", "unlisted"] {
        let (reason, message) = wrong(&rig, name);
        assert_eq!(reason, "CredentialsNotForThisAddress", "{name}: {message}");
        assert!(message.contains("bmc-addresses") && message.contains(name), "{name}: {message}");
    }
    rig.wait("the listed machine to be on", LIMIT, || station.is_on().then_some(()));
    assert_eq!(thieves.each_ref().map(Crooked::connections), [0; 3], "an address was connected to");
    rig.keeps_its_secrets();
}

#[test]
fn files_of_credentials_that_are_no_secrets_are_not_read() {
    let rig = Rig::new("hostile-files", "127.0.0.0/8");
    let station = rig.station("server", Protocol::Redfish, 6, Delays::default());
    let place = |name: &str| rig.path("credentials/bedplate-system").join(name).join("password");
    for (system, name) in (1..).zip(["open", "linked", "large", "pipe", "absent"]) {
        rig.credentials(name, PASSWORD);
        let mut bmc = station.spec(system);
        bmc["credentialsSecretRef"]["name"] = json!(name);
        rig.machine(name, &bmc);
    }
    let mut elsewhere = station.spec(6);
    elsewhere["credentialsSecretRef"] = json!({ "namespace": "kube-system", "name": "server" });
    rig.machine("elsewhere", &elsewhere);
    fs::set_permissions(place("open"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::remove_file(place("linked")).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", place("linked")).unwrap();
    fs::OpenOptions::new().write(true).open(place("large")).unwrap().set_len(1 << 30).unwrap();
    fs::remove_file(place("pipe")).unwrap();
    nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    fs::remove_file(place("absent")).unwrap();
    let pxed = rig.start();
    let before = peak(&pxed);
    for (name, word) in [
        ("open", "0644"),
        ("linked", "leads out of"),
        ("large", "longer than"),
        ("pipe", "is not a regular file"),
        ("absent", "cannot be opened"),
        ("elsewhere", "bmc.secret-namespaces"),
    ] {
        let (reason, message) = wrong(&rig, name);
        assert_eq!(reason, "CredentialsUnavailable", "{name}: {message}");
        assert!(message.contains(word), "{name}: {message}");
    }
    assert_eq!(station.bmc.counters().connections, 0, "a BMC was talked to");
    assert!(peak(&pxed) < before + MEMORY);
    // Put right, they are read without anybody asking.
    fs::set_permissions(place("open"), fs::Permissions::from_mode(0o600)).unwrap();
    rig.credentials("absent", PASSWORD);
    for name in ["open", "absent"] {
        rig.wait(&format!("{name} to recover"), LONG, || {
            (rig.condition(name, "BMCReachable")["status"] == "True").then_some(())
        });
    }
    let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
    let shown = rig.shown();
    assert!(
        shadow.lines().filter(|line| line.len() > 8).all(|line| !shown.contains(line)),
        "a line of /etc/shadow is shown"
    );
    rig.keeps_its_secrets();
}

#[test]
fn bad_bodies_and_too_many_clients_are_refused_and_the_rest_is_served() {
    let rig = Rig::new("hostile-socket", "127.0.0.0/8");
    let station = rig.station("server", Protocol::Redfish, 1, Delays::default());
    let crowded = rig.station("crowded", Protocol::Redfish, 1, Delays::default());
    crowded.bmc.set_faults(Faults { hung: true, ..Faults::default() }).unwrap();
    rig.machine("server", &station.spec(1));
    rig.machine("crowded", &crowded.spec(1));
    let pxed = rig.start();
    rig.wait("the machine to be on", LIMIT, || station.is_on().then_some(()));
    let before = peak(&pxed);
    let huge = json!({ "parameters": { "force": "x".repeat(1 << 20) } });
    let (code, answer) = rig.post(&order("huge", "server", "powerOff", &huge).to_string());
    assert_eq!(code, 413, "{answer}");
    let (code, answer) = rig.post(&"[".repeat(60_000));
    assert_eq!(code, 400, "{answer}");
    let escape = json!({ "parameters": { "\u{1b}[2J": "\u{1b}[31m" } });
    let (code, answer) = rig.post(&order("escape", "server", "powerOff", &escape).to_string());
    assert!(!answer.contains('\u{1b}'), "{code}: {answer:?}");
    if code == 201 {
        assert_eq!(rig.ended("escape", LIMIT).1, "InvalidParameters");
    }
    let codes: Vec<u16> = std::thread::scope(|scope| {
        let post = |thread: usize| {
            let rig = &rig;
            move || {
                (0..625)
                    .map(|number| {
                        let name = format!("crowd-{thread}-{number}");
                        rig.post(&order(&name, "crowded", "powerOn", &json!({})).to_string()).0
                    })
                    .collect::<Vec<u16>>()
            }
        };
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(post(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let made = codes.iter().filter(|code| **code == 201).count();
    let turned_away = codes.iter().filter(|code| **code == 503).count();
    let after = peak(&pxed);
    println!("{made} made, {turned_away} turned away; memory {before} KiB, at most {after} KiB");
    assert_eq!((codes.len(), made + turned_away), (5000, 5000));
    assert!(made > 4000 && turned_away > 0, "{made} made");
    assert!(after < before + 2 * MEMORY, "{before} KiB before, {after} KiB after");
    // Others are served concurrently, before and after a kill.
    let _pxed = rig.restart(pxed);
    let other = rig.station("other", Protocol::Ipmi, 1, Delays::default());
    rig.machine("other", &other.spec(1));
    rig.wait("a new machine to be on", LIMIT, || other.is_on().then_some(()));
    rig.keeps_its_secrets();
}
