//! IPMI client of this crate against real `ipmi_sim` (openipmi), an independent BMC.

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

#[path = "../ipmi/tests/simulator/mod.rs"]
mod simulator;

use std::net::SocketAddr;
use std::time::Duration;

use bedplate_api::machine::{BmcProtocol, BmcSpec};
use bedplate_bmc::address::Reach;
use bedplate_bmc::tls::Trust;
use bedplate_bmc::{
    Bmc, BmcFault, BootSource, Credentials, Deadlines, HealthState, PowerRequest, PowerState, connect, probe,
};
use simulator::Simulator;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

fn reach() -> Reach {
    Reach { allowed: vec!["127.0.0.0/8".parse().unwrap()], forbidden: Vec::new() }
}

async fn client(simulator: &Simulator, password: &str) -> Box<dyn Bmc> {
    client_at(simulator.address, password).await
}

async fn client_at(address: SocketAddr, password: &str) -> Box<dyn Bmc> {
    let spec: BmcSpec = serde_json::from_value(serde_json::json!({
        "protocol": "IPMI",
        "address": address.to_string(),
        "credentialsSecretRef": {"namespace": "bedplate-system", "name": "bmc"},
    }))
    .unwrap();
    let credentials = Credentials { username: "admin".to_owned(), password: password.into() };
    connect(&spec, credentials, &reach(), Deadlines::default()).await.unwrap()
}

#[tokio::test]
async fn a_machine_is_read_set_to_boot_and_switched() {
    let simulator = Simulator::start().await;
    let mut bmc = client(&simulator, "secret").await;
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    // It has no suite 17.
    assert_eq!(bmc.quirks(), ["no-cipher-suite-17"]);
    let identity = bmc.identity().await.unwrap();
    assert_eq!(identity.firmware.as_deref(), Some("9.08"));
    let machine = [&identity.vendor, &identity.product, &identity.serial].map(Option::as_deref);
    assert_eq!(machine, [Some("EXAMPLE CORP"), Some("Server 9"), Some("SN-0042")]);
    assert_eq!(bmc.identity().await.unwrap(), identity);
    bmc.set_next_boot(BootSource::Pxe, None).await.unwrap();
    simulator.received("boot pxe").await;
    bmc.power(PowerRequest::On).await.unwrap();
    simulator.received("power 1").await;
    bmc.power(PowerRequest::GracefulOff).await.unwrap();
    simulator.received("shutdown 1").await;
    bmc.power(PowerRequest::ForceOff).await.unwrap();
    simulator.received("power 0").await;
    let health = bmc.health().await.unwrap();
    assert_eq!(health.overall, HealthState::Critical);
    assert_eq!(health.concerns, ["CPU1 Temp: above the upper critical threshold", "PS2: failure"]);
    let log = bmc.log_tail(20).await.unwrap();
    let hot = log.iter().find(|entry| entry.message.starts_with("temperature")).unwrap();
    assert_eq!(hot.severity, HealthState::Critical);
    bmc.close().await;
}

#[tokio::test]
async fn a_wrong_password_is_held_and_the_right_one_works() {
    let simulator = Simulator::start().await;
    let mut bmc = client(&simulator, "wrong").await;
    for _ in 0..2 {
        assert_eq!(bmc.power(PowerRequest::On).await.unwrap_err().reason(), BmcFault::AuthenticationFailed);
    }
    assert_eq!(client(&simulator, "secret").await.power_state().await.unwrap(), PowerState::Off);
}

#[tokio::test]
async fn probe_works_with_and_without_an_account() {
    let simulator = Simulator::start().await;
    let (address, reach, trust) = (simulator.address.to_string(), reach(), Trust::Authorities(None));
    let credentials = Credentials { username: "admin".to_owned(), password: "secret".into() };
    for credentials in [None, Some(credentials)] {
        let logs_in = credentials.is_some();
        let deadlines = Deadlines::default();
        let found =
            probe::look(&address, BmcProtocol::Ipmi, credentials, &trust, None, &reach, deadlines).await;
        let found = found.unwrap();
        let probe::Found::Ipmi(ipmi) = &found else { panic!("{found}") };
        assert!(ipmi.ipmi_2_0 && ipmi.suites.as_ref().is_none_or(|suites| suites.contains(&3)), "{found}");
        assert_eq!(ipmi.authenticated, logs_in);
        assert_eq!(found.to_string().contains("EXAMPLE CORP, Server 9, SN-0042"), logs_in, "{found}");
        assert_eq!(
            (ipmi.suite, ipmi.privilege),
            if logs_in { (Some(3), Some("Administrator")) } else { (None, None) }
        );
    }
}

#[tokio::test]
async fn ipmitool_reads_the_same_of_the_machine() {
    let simulator = Simulator::start().await;
    let port = simulator.address.port().to_string();
    let output = tokio::process::Command::new("ipmitool")
        .args(["-I", "lanplus", "-C", "3", "-H", "127.0.0.1", "-p", &port, "-U", "admin", "-P", "secret"])
        .args(["fru", "print", "0"])
        .output()
        .await
        .expect("ipmitool is installed: cargo xtask setup");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let says = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name));
        line.and_then(|line| line.split_once(": ")).map(|(_, value)| value.trim().to_owned())
    };
    let identity = client(&simulator, "secret").await.identity().await.unwrap();
    assert!(identity.vendor.is_some(), "{identity:?}");
    assert_eq!(identity.vendor, says("Product Manufacturer"), "{text}");
    assert_eq!(identity.product, says("Product Name"), "{text}");
    assert_eq!(identity.serial, says("Product Serial"), "{text}");
}

/// A simulator with a serial line over TCP, and the machine's end of it.
async fn with_line() -> (Simulator, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sol = format!("sol \"tcp:127.0.0.1:{}\" 115200", listener.local_addr().unwrap().port());
    let simulator = Simulator::start_with(&sol).await;
    let (line, _) = listener.accept().await.unwrap();
    (simulator, line)
}

/// Reads as many characters as there are in `expected`.
async fn reads(stream: &mut (impl AsyncRead + Unpin), expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_exact(&mut got)).await;
    read.expect("in time").unwrap();
    assert!(got == expected, "{} instead of {}", got.escape_ascii(), expected.escape_ascii());
}

#[tokio::test]
async fn the_serial_console_goes_both_ways_and_is_given_back() {
    let (simulator, mut line) = with_line().await;
    let mut bmc = client(&simulator, "secret").await;
    let mut console = bmc.console().await.unwrap();
    line.write_all(b"login: ").await.unwrap();
    reads(&mut console, b"login: ").await;
    let long: Vec<u8> = (0..3000_u16).map(|n| b'a' + u8::try_from(n % 26).unwrap()).collect();
    console.write_all(&long).await.unwrap();
    reads(&mut line, &long).await;
    line.write_all(&long).await.unwrap();
    reads(&mut console, &long).await;
    // Meanwhile the machine is spoken to in another session.
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    let mut other = client(&simulator, "secret").await;
    let error = other.console().await.err().unwrap();
    assert!(error.reason() == BmcFault::Refused && error.is_transient(), "{error}");
    drop(console);
    let begin = std::time::Instant::now();
    while other.console().await.is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "not given back");
    }
}

#[tokio::test]
async fn the_serial_console_loses_nothing_where_packets_are_lost() {
    let (simulator, mut line) = with_line().await;
    let lossy = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = lossy.local_addr().unwrap();
    let behind = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    behind.connect(simulator.address).await.unwrap();
    let proxy = tokio::spawn(async move {
        let (mut there, mut back) = (vec![0; 2048], vec![0; 2048]);
        let (mut count, mut client) = (0_u32, None);
        loop {
            tokio::select! {
                got = lossy.recv_from(&mut there) => {
                    let (length, from) = got.unwrap();
                    client = Some(from);
                    count += 1;
                    if count % 7 != 0 {
                        behind.send(&there[..length]).await.unwrap();
                    }
                }
                got = behind.recv(&mut back) => {
                    let (length, Some(client)) = (got.unwrap(), client) else { continue };
                    count += 1;
                    if count % 7 != 0 {
                        lossy.send_to(&back[..length], client).await.unwrap();
                    }
                }
            }
        }
    });
    let mut bmc = client_at(address, "secret").await;
    let mut console = bmc.console().await.unwrap();
    let text: Vec<u8> = (0..600_u16).map(|n| b'a' + u8::try_from(n % 26).unwrap()).collect();
    console.write_all(&text).await.unwrap();
    reads(&mut line, &text).await;
    line.write_all(&text).await.unwrap();
    reads(&mut console, &text).await;
    proxy.abort();
}
