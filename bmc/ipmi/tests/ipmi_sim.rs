//! Client against real `ipmi_sim` (openipmi), an independent BMC. It has suites 1 to 3; suite 17 is tested by
//! `ipmitool`.

#![allow(clippy::unwrap_used)]

mod simulator;

use std::time::{Duration, Instant};

use bedplate_ipmi::{
    client::{Client, ClientError, Options},
    command::{
        boot::{BootDevice, GetBootFlags},
        chassis::{ChassisControl, GetChassisStatus},
        device::GetDeviceId,
        sel::GetSelInfo,
        sensor::Trouble,
    },
    crypto::Suite,
    probe::probe,
    sensors::SensorReader,
    session::{RequestError, SessionError},
    wire::rakp::Status,
};
use secrecy::SecretString;
use simulator::{Simulator, options};

async fn wait_for_power(client: &Client, on: bool) {
    let begin = Instant::now();
    while client.request(&GetChassisStatus).await.unwrap().is_on() != on {
        assert!(begin.elapsed() < Duration::from_secs(20), "power is not {on}");
    }
}

#[tokio::test]
async fn a_machine_is_switched_set_to_boot_and_read() {
    let simulator = Simulator::start().await;
    let client = simulator.connect("secret", &options()).await.unwrap();
    let device = client.request(&GetDeviceId).await.unwrap();
    assert_eq!((device.major, device.minor, device.manufacturer, device.product), (9, 8, 0x1291, 0xf02));
    wait_for_power(&client, false).await;
    assert!(probe(simulator.address, &options().retry).await.unwrap().ipmi_2_0);

    client.set_next_boot(BootDevice::Pxe, false).await.unwrap();
    simulator.received("boot pxe").await;
    assert_eq!(client.request(&GetBootFlags).await.unwrap().device, BootDevice::Pxe);

    client.request(&ChassisControl::Up).await.unwrap();
    simulator.received("power 1").await;
    wait_for_power(&client, true).await;
    client.request(&ChassisControl::HardReset).await.unwrap();
    simulator.received("reset 1").await;
    client.request(&ChassisControl::SoftShutdown).await.unwrap();
    simulator.received("shutdown 1").await;
    client.request(&ChassisControl::Down).await.unwrap();
    simulator.received("power 0").await;
    wait_for_power(&client, false).await;

    let entries = client.request(&GetSelInfo).await.unwrap().entries;
    let log: Vec<String> = client.log_tail(10).await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(log.len(), usize::from(entries));
    assert!(log.iter().any(|record| record.starts_with("temperature, sensor 0x30")), "{log:?}");
    client.close().await;
}

#[tokio::test]
async fn a_power_cycle_ends_with_power_on() {
    let simulator = Simulator::start().await;
    let client = simulator.connect("secret", &options()).await.unwrap();
    client.request(&ChassisControl::Up).await.unwrap();
    wait_for_power(&client, true).await;
    client.request(&ChassisControl::Cycle).await.unwrap();
    simulator.received("power 0\npower 1").await;
    wait_for_power(&client, true).await;
    assert_eq!(simulator.calls().matches("power 0").count(), 1);
}

#[tokio::test]
async fn wrong_password_and_missing_suite_have_different_errors() {
    let simulator = Simulator::start().await;
    let error = simulator.connect("wrong", &options()).await.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::WrongPassword)), "{error:?}");
    let error = Client::connect(simulator.address, "nobody", &SecretString::from("secret"), &options()).await;
    let error = error.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::UserRefused { .. })), "{error:?}");
    let error = simulator.connect("secret", &Options { suite: Suite::Sha256, ..options() }).await;
    let error = error.unwrap_err();
    assert!(
        matches!(
            error,
            ClientError::Session(SessionError::SuiteRefused {
                suite: Suite::Sha256,
                status: Status::AuthenticationAlgorithm | Status::NoCipherSuite
            })
        ),
        "{error:?}"
    );
    // None of this closes the account.
    simulator.connect("secret", &options()).await.unwrap().close().await;
}

#[tokio::test]
async fn a_killed_bmc_is_a_lost_session_and_then_unreachable() {
    let mut simulator = Simulator::start().await;
    let client = simulator.connect("secret", &options()).await.unwrap();
    assert!(!client.request(&GetChassisStatus).await.unwrap().is_on());
    simulator.child.kill().unwrap();
    simulator.child.wait().unwrap();
    let error = client.request(&GetChassisStatus).await.unwrap_err();
    assert!(matches!(error, ClientError::Request(RequestError::Unanswered)), "{error:?}");
    let error = client.request(&GetChassisStatus).await.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::Lost)), "{error:?}");
    let error = simulator.connect("secret", &options()).await.unwrap_err();
    assert!(matches!(error, ClientError::Session(SessionError::Unreachable { .. })), "{error:?}");
}

#[tokio::test]
async fn sensors_are_read_by_their_records_and_say_what_is_wrong() {
    let simulator = Simulator::start().await;
    let client = simulator.connect("secret", &options()).await.unwrap();
    let mut reader = SensorReader::new(64);
    let mut found = Vec::new();
    while let Some(sensor) = reader.step(&client).await.unwrap() {
        let trouble = sensor.trouble();
        found.push((sensor.name.unwrap_or_default(), trouble));
    }
    let expected = [
        ("CPU1 Temp", Some((Trouble::Critical, "above the upper critical threshold"))),
        ("PS2", Some((Trouble::Critical, "failure"))),
        ("Fan 1", None),
    ];
    assert_eq!(found, expected.map(|(name, trouble)| (name.to_owned(), trouble)));
    assert!(SensorReader::new(0).step(&client).await.unwrap().is_none());
}
