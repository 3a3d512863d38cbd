//! Each fault of the simulator, as our own clients and clients of others meet it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Result;
use bedplate_api::machine::{BmcProtocol, BmcSpec, BmcTls, BmcTlsMode, BootSource, RedfishSpec};
use bedplate_api::secret::SecretReference;
use bedplate_bmc::address::Reach;
use bedplate_bmc::{Bmc, BmcError, BmcFault, Credentials, Deadlines, PowerRequest, PowerState, connect};
use bedplate_ipmi::client::{Client, Options};
use bedplate_ipmi::command::chassis::{ChassisControl, GetChassisStatus};
use bedplate_ipmi::session::Retry;
use bedplate_tests::bmc::fault::{Dead, Faults};
use bedplate_tests::bmc::service::{PASSWORD, USER};
use bedplate_tests::bmc::simulator::THREAD_COUNT;
use bedplate_tests::bmc::tool;
use socket2::{Domain, Socket, Type};

use crate::One;

/// Deadlines that do not wait long for who never answers.
fn short() -> Deadlines {
    Deadlines {
        connect: Duration::from_secs(1),
        request: Duration::from_secs(2),
        call: Duration::from_secs(4),
    }
}

/// Deadlines that a BMC keeps that answers, on a busy machine too.
fn long() -> Deadlines {
    let long = Duration::from_secs(30);
    Deadlines { connect: long, request: long, call: long }
}

async fn client(one: &One, password: &str) -> Box<dyn Bmc> {
    client_with(one, password, long()).await
}

async fn client_with(one: &One, password: &str, deadlines: Deadlines) -> Box<dyn Bmc> {
    let spec = BmcSpec {
        protocol: BmcProtocol::Redfish,
        address: format!("https://{}", one.tcp),
        credentials_secret_ref: SecretReference { namespace: "a".to_owned(), name: "b".to_owned() },
        redfish: Some(RedfishSpec {
            tls: Some(BmcTls { mode: BmcTlsMode::Pin, pins: vec![one.bmc.pin()], ca_bundle: None }),
            ..RedfishSpec::default()
        }),
        ipmi: None,
        boot_source: BootSource::Pxe,
    };
    let credentials = Credentials { username: USER.to_owned(), password: password.into() };
    let reach = Reach { allowed: vec!["127.0.0.0/8".parse().unwrap()], ..Reach::default() };
    connect(&spec, credentials, &reach, deadlines).await.unwrap()
}

/// Reads the power with a fresh client while these faults are set.
async fn power_with(one: &One, faults: Faults) -> Result<PowerState, BmcError> {
    let is_silent = faults.hung || faults.half_open || faults.dead.is_some();
    one.bmc.set_faults(faults).unwrap();
    let deadlines = if is_silent { short() } else { long() };
    client_with(one, PASSWORD, deadlines).await.power_state().await
}

fn reason(result: Result<PowerState, BmcError>) -> BmcFault {
    result.unwrap_err().reason()
}

#[tokio::test]
async fn a_silent_bmc_is_one_that_cannot_be_reached() {
    let one = One::start(1);
    assert_eq!(power_with(&one, Faults::default()).await.unwrap(), PowerState::Off);
    for faults in [
        Faults { hung: true, ..Faults::default() },
        Faults { half_open: true, ..Faults::default() },
        Faults { dead: Some(Dead::Dropped), ..Faults::default() },
        Faults { dead: Some(Dead::Refused), ..Faults::default() },
    ] {
        let what = format!("{faults:?}");
        let reason = reason(power_with(&one, faults.clone()).await);
        assert!(matches!(reason, BmcFault::BmcUnreachable | BmcFault::TimedOut), "{what}: {reason:?}");
        // The socket says so too, without a client's opinion.
        let connection = TcpStream::connect_timeout(&one.tcp, Duration::from_millis(500));
        let error = connection.map_err(|error| error.kind()).map(drop);
        match faults.dead {
            Some(Dead::Dropped) => assert_eq!(error, Err(ErrorKind::TimedOut)),
            Some(Dead::Refused) => assert_eq!(error, Err(ErrorKind::ConnectionRefused)),
            None => assert_eq!(error, Ok(())),
        }
        // It heals without a restart.
        let healed = power_with(&one, Faults::default()).await;
        assert_eq!(healed, Ok(PowerState::Off), "after {what}");
    }
}

/// Tests run concurrently: a listener of another test would answer for the BMC.
#[test]
fn a_bmc_that_refuses_connections_keeps_its_port() {
    let one = One::start(1);
    one.bmc.set_faults(Faults { dead: Some(Dead::Refused), ..Faults::default() }).unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let error = socket.bind(&one.tcp.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

#[test]
fn a_half_open_connection_gets_neither_an_octet_nor_an_end() {
    let one = One::start(1);
    one.bmc.set_faults(Faults { half_open: true, ..Faults::default() }).unwrap();
    let mut stream = TcpStream::connect(one.tcp).unwrap();
    stream.write_all(&[0x16, 3, 1, 0, 1, 0]).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let error = stream.read(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn server_errors_and_broken_documents_are_distinguished() {
    let one = One::start(1);
    let error = power_with(&one, Faults { status: Some(503), ..Faults::default() }).await;
    assert_eq!(reason(error), BmcFault::BmcUnreachable);
    let error = power_with(&one, Faults { wrong_json: true, ..Faults::default() }).await;
    assert_eq!(reason(error), BmcFault::ProtocolError);
    // `ipmitool` takes what is not there for zeroes.
    let options = Options::default();
    let ipmi = Client::connect(one.udp, USER, &PASSWORD.into(), &options).await.unwrap();
    assert!(ipmi.request(&GetChassisStatus).await.is_err());
    one.bmc.heal().unwrap();
    assert!(!ipmi.request(&GetChassisStatus).await.unwrap().is_on());
    ipmi.close().await;
}

#[tokio::test]
async fn a_slow_bmc_answers_late_without_a_thread_for_each() {
    let one = One::start(1);
    one.bmc.set_faults(Faults { slow_ms: 1000, ..Faults::default() }).unwrap();
    let begin = Instant::now();
    // The simulator has room for eight sessions.
    let clients = (0..8).map(|_| async {
        let mut client = client(&one, PASSWORD).await;
        let state = client.power_state().await;
        client.close().await;
        state
    });
    for state in futures_of(clients).await {
        assert_eq!(state.unwrap(), PowerState::Off);
    }
    assert!(begin.elapsed() >= Duration::from_secs(2), "two answers at least");
    let counters = one.bmc.counters();
    assert!(counters.max_pending > THREAD_COUNT, "requests did not wait concurrently: {counters:?}");
    assert_eq!(counters.pending, 0);
}

async fn futures_of<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in all.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *output = Some(value);
            }
        }
        match outputs.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

#[tokio::test]
async fn a_full_session_table_refuses_sessions_only() {
    let one = One::start(1);
    let full = Faults { sessions_full: true, ..Faults::default() };
    // Our client continues with name and password.
    assert_eq!(power_with(&one, full).await.unwrap(), PowerState::Off);
    assert_eq!(one.bmc.counters().most_sessions, 0);
    let body = format!("{{\"UserName\":\"{USER}\",\"Password\":\"{PASSWORD}\"}}");
    let path = "/redfish/v1/SessionService/Sessions";
    let (status, text) = tool::curl(None, one.tcp, path, &["--data", &body]).unwrap();
    assert!(status == 503 && text.contains("SessionLimitExceeded"), "{status} {text}");
    assert!(!one.ipmitool(17, PASSWORD, &["chassis", "power", "status"]).0);
    one.bmc.heal().unwrap();
    assert_eq!(tool::curl(None, one.tcp, path, &["--data", &body]).unwrap().0, 201);
    assert_eq!(one.bmc.counters().open_sessions, 1);
}

#[tokio::test]
async fn a_lying_bmc_and_lost_answers_leave_the_machine_switched() {
    let one = One::start(1);
    let is_on = || one.bmc.systems()[0].lock().is_on(Instant::now());
    one.bmc.set_faults(Faults { lie_ms: 60_000, ..Faults::default() }).unwrap();
    let mut client = client(&one, PASSWORD).await;
    client.power(PowerRequest::On).await.unwrap();
    assert_eq!(client.power_state().await.unwrap(), PowerState::Off, "so it says");
    assert!(is_on());
    one.bmc.set_faults(Faults { answers_lost: true, ..Faults::default() }).unwrap();
    let mut hasty = client_with(&one, PASSWORD, short()).await;
    let error = hasty.power(PowerRequest::ForceOff).await.unwrap_err();
    assert!(matches!(error.reason(), BmcFault::TimedOut | BmcFault::BmcUnreachable), "{error}");
    assert!(!is_on());
    one.bmc.set_faults(Faults { power_ignored: true, ..Faults::default() }).unwrap();
    client.power(PowerRequest::On).await.unwrap();
    assert!(!is_on());
    assert_eq!(one.asked().len(), 3, "it was asked all the same");
}

#[tokio::test]
async fn a_changed_certificate_is_shown_to_the_next_connection() {
    let one = One::start(1);
    let before = client(&one, PASSWORD).await;
    let old = one.bmc.pin();
    assert_ne!(one.bmc.change_certificate().unwrap(), old);
    let mut before = before;
    assert_eq!(reason(before.power_state().await), BmcFault::CertificateChanged);
    assert_eq!(client(&one, PASSWORD).await.power_state().await.unwrap(), PowerState::Off);
}

#[tokio::test]
async fn three_wrong_passwords_lock_the_account_for_the_right_one_too() {
    let one = One::start(1);
    one.bmc.set_faults(Faults { lock_after: Some(3), ..Faults::default() }).unwrap();
    for _ in 0..3 {
        assert_eq!(reason(client(&one, "wrong").await.power_state().await), BmcFault::AuthenticationFailed);
    }
    assert_eq!(one.bmc.counters().wrong_logins, 3);
    assert_eq!(reason(client(&one, PASSWORD).await.power_state().await), BmcFault::AuthenticationFailed);
    assert!(one.bmc.counters().locked_out > 0);
    assert!(!one.ipmitool(17, PASSWORD, &["chassis", "power", "status"]).0, "of both protocols");
    one.bmc.heal().unwrap();
    assert!(one.ipmitool(17, PASSWORD, &["chassis", "power", "status"]).0);
}

#[test]
fn wrong_passwords_lock_an_ipmi_account_although_the_client_notices_first() {
    let one = One::start(1);
    one.bmc.set_faults(Faults { lock_after: Some(3), ..Faults::default() }).unwrap();
    while one.bmc.counters().locked_out == 0 {
        assert!(!one.ipmitool(3, "wrong", &["chassis", "power", "status"]).0);
        assert!(one.bmc.counters().ipmi_attempts < 20);
    }
    assert!(!one.ipmitool(3, PASSWORD, &["chassis", "power", "status"]).0);
}

#[tokio::test]
async fn lost_packets_are_sent_again() {
    let one = One::start(1);
    one.bmc.set_faults(Faults { loss_percent: 20, ..Faults::default() }).unwrap();
    // `ipmitool` fails in the middle of a login.
    let retry = Retry { first: Duration::from_millis(200), most: Duration::from_millis(400), attempts: 12 };
    let options = Options { retry, ..Options::default() };
    let ipmi = Client::connect(one.udp, USER, &PASSWORD.into(), &options).await.unwrap();
    ipmi.request(&ChassisControl::Up).await.unwrap();
    assert!(ipmi.request(&GetChassisStatus).await.unwrap().is_on());
    ipmi.close().await;
    one.bmc.set_faults(Faults { loss_percent: 100, ..Faults::default() }).unwrap();
    assert!(!one.ipmitool(17, PASSWORD, &["-R", "1", "-N", "1", "chassis", "power", "on"]).0);
}

#[test]
fn a_changed_password_counts_for_both_protocols() {
    let one = One::start(1);
    one.bmc.set_password("another");
    assert!(one.ipmitool(17, "another", &["chassis", "power", "on"]).0);
    assert!(!one.ipmitool(17, PASSWORD, &["chassis", "power", "off"]).0);
    assert_eq!(tool::curl(None, one.tcp, "/redfish/v1/Systems", &[]).unwrap().0, 401);
}
