//! The UDP client against our BMC on loopback: what it does, that it ends, and what is left when its futures are dropped.

#![allow(clippy::unwrap_used)]

mod machine;

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use bedplate_ipmi::{
    client::{Client, ClientError, Options},
    command::{
        boot::{BootDevice, BootFlags, FlagsLast, GetBootFlags},
        chassis::{ChassisControl, GetChassisStatus},
        device::{GetDeviceId, GetSystemGuid},
        sel::GetSelInfo,
    },
    crypto::Suite,
    probe::probe,
    session::{Privilege, RequestError, Retry, SessionError},
    wire::completion::Completion,
};
use machine::{Machine, PASSWORD, USER};
use secrecy::SecretString;

/// Gives up soon, so that failures are quick to see.
fn quick() -> Options {
    let retry = Retry { first: Duration::from_millis(100), most: Duration::from_millis(400), attempts: 4 };
    Options { retry, ..Options::default() }
}

async fn connect(machine: &Machine, options: &Options) -> Result<Client, ClientError> {
    Client::connect(machine.address, USER, &SecretString::from(PASSWORD), options).await
}

#[tokio::test]
async fn a_machine_is_looked_at_switched_and_its_session_closed() {
    for suite in [Suite::Sha1, Suite::Sha256] {
        let machine = Machine::start();
        let client = connect(&machine, &Options { suite, ..Options::default() }).await.unwrap();
        assert_eq!(client.request(&GetDeviceId).await.unwrap().product, 0x1234);
        assert_eq!(client.request(&GetSystemGuid).await.unwrap(), [0xab; 16]);
        assert!(!client.request(&GetChassisStatus).await.unwrap().is_on());
        client.set_next_boot(BootDevice::Pxe, true).await.unwrap();
        let flags = BootFlags { valid: true, persistent: false, efi: true, device: BootDevice::Pxe };
        assert_eq!(client.request(&GetBootFlags).await.unwrap(), flags);
        client.request(&ChassisControl::Up).await.unwrap();
        let status = client.request(&GetChassisStatus).await.unwrap();
        assert!(status.is_on());
        assert_eq!(status.concerns().collect::<Vec<_>>(), ["cooling or fan fault"]);
        assert_eq!(client.request(&GetSelInfo).await.unwrap().entries, 3);
        let tail: Vec<u16> = client.log_tail(2).await.unwrap().iter().map(|record| record.id).collect();
        assert_eq!(tail, [3, 2]);
        assert_eq!(client.log_tail(10).await.unwrap().len(), 3);
        client.close().await;
        let state = machine.state();
        assert_eq!((state.sessions, &state.controls[..]), (0, &[1][..]));
    }
}

#[tokio::test]
async fn wrong_password_is_tried_once_and_differs_from_absent_bmc() {
    let machine = Machine::start();
    let wrong = SecretString::from("wrong");
    let error = Client::connect(machine.address, USER, &wrong, &quick()).await.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::WrongPassword)), "{error:?}");
    machine.wait("the BMC heard of it", |state| state.wrong_passwords == 1 && state.sessions == 0);

    let unused = UdpSocket::bind("127.0.0.1:0").unwrap();
    let there = unused.local_addr().unwrap();
    let error = Client::connect(there, USER, &wrong, &quick()).await.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::Unreachable { attempts: 4 })), "{error:?}");
    drop(unused);
    let error = Client::connect(there, USER, &wrong, &quick()).await.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::Unreachable { .. })), "{error:?}");
}

#[tokio::test]
async fn bmc_capabilities_are_read_without_an_account() {
    let machine = Machine::start();
    let retry = quick().retry;
    let channel = probe(machine.address, &retry).await.unwrap();
    assert!(channel.ipmi_2_0 && !channel.ipmi_1_5 && !channel.has_key && !channel.anonymous);
    machine.state().deaf = true;
    let error = probe(machine.address, &retry).await.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::Unreachable { attempts: 4 })), "{error:?}");
    let address = machine.address;
    drop(machine);
    let error = probe(address, &retry).await.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::Unreachable { .. })), "{error:?}");
}

#[tokio::test]
async fn forbidden_request_is_refused_with_its_code() {
    let machine = Machine::start();
    let options = Options { privilege: Privilege::User, ..quick() };
    let client = connect(&machine, &options).await.unwrap();
    let error = client.request(&ChassisControl::Up).await.unwrap_err();
    assert_eq!(error.completion(), Some(Completion::Privilege), "{error:?}");
    let error = client.set_next_boot(BootDevice::Pxe, false).await.unwrap_err();
    assert_eq!(error.completion(), Some(Completion::Privilege), "{error:?}");
    assert!(!client.request(&GetChassisStatus).await.unwrap().is_on());
}

#[tokio::test]
async fn a_control_whose_answer_is_lost_is_carried_out_once_and_may_have_been() {
    let machine = Machine::start();
    let client = connect(&machine, &quick()).await.unwrap();
    machine.state().mute = true;
    let error = client.request(&ChassisControl::Cycle).await.unwrap_err();
    assert!(matches!(error, ClientError::Request(RequestError::Unanswered)), "{error:?}");
    assert_eq!(machine.state().controls, [2]);
    // The session remains, so that the state can be read.
    assert!(client.request(&GetChassisStatus).await.unwrap().is_on());
}

#[tokio::test]
async fn boot_flags_survive_a_minute_and_the_button_if_bmc_supports_it() {
    let machine = Machine::start();
    let client = connect(&machine, &quick()).await.unwrap();
    assert_eq!(client.set_next_boot(BootDevice::Pxe, true).await.unwrap(), FlagsLast::Minute);
    machine.state().clearing = Some(0x14);
    assert_eq!(client.set_next_boot(BootDevice::Pxe, true).await.unwrap(), FlagsLast::UntilBoot);
    // The setting remains.
    assert_eq!(machine.state().clearing, Some(0x1d));
    machine.state().clearing = Some(0);
    machine.state().forgetful = true;
    assert_eq!(client.set_next_boot(BootDevice::Pxe, true).await.unwrap(), FlagsLast::Minute);
}

#[tokio::test]
async fn unresponsive_bmc_gets_four_attempts_and_its_session_is_lost() {
    let machine = Machine::start();
    let client = connect(&machine, &quick()).await.unwrap();
    machine.state().deaf = true;
    // On a busy machine, requests of the connection may have been retransmitted.
    machine.drain();
    let before = machine.state().heard;
    let error = client.request(&GetDeviceId).await.unwrap_err();
    assert!(matches!(error, ClientError::Request(RequestError::Unanswered)), "{error:?}");
    let error = client.request(&GetChassisStatus).await.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::Lost)), "{error:?}");
    assert_eq!(client.failure(), Some(SessionError::Lost));
    machine.drain();
    let heard = machine.state().heard - before;
    // Four attempts and the Close Session request.
    assert!((4..=5).contains(&heard), "{heard} datagrams: a lost session sends nothing");
    client.close().await;
}

#[tokio::test]
async fn a_dropped_request_leaves_the_session_usable() {
    let machine = Machine::start();
    let client = connect(&machine, &quick()).await.unwrap();
    for _ in 0..20 {
        // Polled once: the request is in flight, and its future is dropped.
        tokio::select! {
            biased;
            _ = client.request(&GetDeviceId) => {}
            () = std::future::ready(()) => {}
        }
    }
    assert!(!client.request(&GetChassisStatus).await.unwrap().is_on());
}

#[tokio::test]
async fn a_dropped_client_closes_its_session() {
    let machine = Machine::start();
    let client = connect(&machine, &quick()).await.unwrap();
    assert_eq!(machine.state().sessions, 1);
    drop(client);
    tokio::task::spawn_blocking(move || {
        machine.wait("the session is closed", |state| state.sessions == 0);
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_dropped_request_is_not_sent_again() {
    let machine = Machine::start();
    let client = connect(&machine, &quick()).await.unwrap();
    let heard = machine.state().heard;
    machine.state().deaf = true;
    tokio::select! {
        _ = client.request(&ChassisControl::Up) => panic!("it is deaf"),
        () = until(|| machine.state().heard > heard) => {}
    }
    machine.state().deaf = false;
    assert!(!client.request(&GetChassisStatus).await.unwrap().is_on());
    assert!(machine.state().controls.is_empty());
}

#[tokio::test]
async fn a_dropped_login_leaves_no_session() {
    let machine = Machine::start();
    let options = quick();
    tokio::select! {
        biased;
        () = until(|| machine.state().sessions == 1) => {}
        client = connect(&machine, &options) => panic!("not noticed: {client:?}"),
    }
    until(|| machine.state().sessions == 0).await;
}

#[tokio::test]
async fn a_lost_session_is_closed_where_only_answers_are_lost() {
    let machine = Machine::start();
    let client = connect(&machine, &quick()).await.unwrap();
    machine.state().dumb = true;
    let error = client.request(&GetDeviceId).await.unwrap_err();
    assert!(matches!(error, ClientError::Request(RequestError::Unanswered)), "{error:?}");
    until(|| machine.state().sessions == 0).await;
}

/// Polls until it is so; a test never sleeps.
async fn until(so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it did not come");
        tokio::task::yield_now().await;
    }
}
