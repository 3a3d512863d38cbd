//! The IPMI client of this crate against a BMC on loopback: sessions, errors and what is sent once.

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

#[path = "../ipmi/tests/machine/mod.rs"]
mod machine;

use std::time::Duration;

use bedplate_api::machine::{BmcProtocol, BmcSpec};
use bedplate_bmc::address::Reach;
use bedplate_bmc::tls::Trust;
use bedplate_bmc::{
    Bmc, BmcError, BmcFault, BootMode, BootSource, Credentials, Deadlines, HealthState, Performed,
    PowerRequest, PowerState, connect, probe,
};
use machine::{Machine, PASSWORD, USER};

/// Gives up soon, so that failures are quick to see.
fn quick() -> Deadlines {
    let (request, call) = (Duration::from_secs(10), Duration::from_secs(20));
    Deadlines { connect: Duration::from_millis(1100), request, call }
}

fn reach() -> Reach {
    Reach { allowed: vec!["127.0.0.0/8".parse().unwrap()], forbidden: Vec::new() }
}

async fn client_with(machine: &Machine, password: &str, ipmi: serde_json::Value) -> Box<dyn Bmc> {
    let spec: BmcSpec = serde_json::from_value(serde_json::json!({
        "protocol": "IPMI",
        "address": machine.address.to_string(),
        "credentialsSecretRef": {"namespace": "bedplate-system", "name": "bmc"},
        "ipmi": ipmi,
    }))
    .unwrap();
    let credentials = Credentials { username: USER.to_owned(), password: password.into() };
    connect(&spec, credentials, &reach(), quick()).await.unwrap()
}

async fn client(machine: &Machine) -> Box<dyn Bmc> {
    client_with(machine, PASSWORD, serde_json::json!({})).await
}

#[tokio::test]
async fn one_session_reads_switches_and_sets_boot_and_is_closed() {
    let machine = Machine::start();
    let mut bmc = client(&machine).await;
    assert_eq!(machine.state().sessions, 0);
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    let identity = bmc.identity().await.unwrap();
    assert_eq!(identity.firmware.as_deref(), Some("2.45"));
    assert_eq!(identity.protocol.as_deref(), Some("IPMI 2.0"));
    assert_eq!(bmc.next_boot().await.unwrap(), None);
    bmc.set_next_boot(BootSource::Pxe, None).await.unwrap();
    assert_eq!(bmc.next_boot().await.unwrap(), Some(BootSource::Pxe));
    assert_eq!(bmc.quirks(), ["boot-flags-last-a-minute"]);
    assert_eq!(bmc.power(PowerRequest::On).await.unwrap(), Performed("power up"));
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::On);
    for request in
        [PowerRequest::Cycle, PowerRequest::Reset, PowerRequest::GracefulOff, PowerRequest::ForceOff]
    {
        bmc.power(request).await.unwrap();
    }
    assert_eq!(machine.state().controls, [1, 2, 3, 5, 0]);
    let health = bmc.health().await.unwrap();
    assert_eq!(health.overall, HealthState::Critical);
    assert!(health.concerns[0].contains("fan"), "{health:?}");
    let log = bmc.log_tail(2).await.unwrap();
    assert_eq!(log.len(), 2);
    assert!(log[0].message.starts_with("fan"), "{log:?}");
    {
        let state = machine.state();
        assert_eq!((state.right_passwords, state.sessions), (1, 1));
    }
    bmc.close().await;
    assert_eq!(machine.state().sessions, 0);
    // The next call opens one again.
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    bmc.close().await;
    assert!(!bmc.insecure());
}

#[tokio::test]
async fn the_boot_flags_say_bios_or_uefi_as_the_machine_boots() {
    let machine = Machine::start();
    let mut bmc = client(&machine).await;
    for (mode, octet) in [(Some(BootMode::Legacy), 0x80), (Some(BootMode::Uefi), 0xa0), (None, 0xa0)] {
        bmc.set_next_boot(BootSource::Pxe, mode).await.unwrap();
        assert_eq!(machine.state().boot_flags.as_ref().unwrap()[..2], [octet, 0x04], "{mode:?}");
    }
}

#[tokio::test]
async fn boot_flags_read_as_not_in_force_are_a_reported_quirk() {
    let machine = Machine::start();
    let mut bmc = client(&machine).await;
    for (invalid, expected) in [(true, true), (false, false)] {
        machine.state().invalid = invalid;
        bmc.set_next_boot(BootSource::Pxe, None).await.unwrap();
        let quirks = bmc.quirks();
        assert_eq!(quirks.iter().any(|quirk| quirk == "boot-flags-not-shown-valid"), expected, "{quirks:?}");
    }
}

#[tokio::test]
async fn boot_by_uefi_http_is_not_supported_and_changes_nothing() {
    let machine = Machine::start();
    let error = client(&machine).await.set_next_boot(BootSource::Http, None).await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::NotSupported);
    assert!(!error.may_have_happened() && machine.state().boot_flags.is_none());
}

#[tokio::test]
async fn a_wrong_password_is_tried_once_and_then_held() {
    let machine = Machine::start();
    let mut bmc = client_with(&machine, "s3cret", serde_json::json!({})).await;
    for _ in 0..3 {
        let error = bmc.power(PowerRequest::On).await.unwrap_err();
        assert_eq!(error.reason(), BmcFault::AuthenticationFailed, "{error}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
    machine.wait("it heard of it", |state| state.wrong_passwords == 1 && state.sessions == 0);
    let mut long = client_with(&machine, &"x".repeat(21), serde_json::json!({})).await;
    let error = long.power_state().await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::AuthenticationFailed, "{error}");
    assert_eq!(machine.state().wrong_passwords, 1);
}

#[tokio::test]
async fn a_lost_session_is_replaced_for_a_read_and_before_a_change() {
    let machine = Machine::start();
    let mut bmc = client(&machine).await;
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    machine.state().restart = true;
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    machine.state().restart = true;
    bmc.power(PowerRequest::Cycle).await.unwrap();
    let state = machine.state();
    assert_eq!((state.right_passwords, &state.controls[..]), (3, &[2][..]));
}

#[tokio::test]
async fn a_control_without_answer_is_sent_once_and_may_have_happened() {
    let machine = Machine::start();
    let mut bmc = client(&machine).await;
    bmc.power_state().await.unwrap();
    machine.state().mute = true;
    let error = bmc.power(PowerRequest::Cycle).await.unwrap_err();
    assert!(matches!(error, BmcError::Unreachable { sent: true, .. }), "{error:?}");
    assert_eq!(machine.state().controls, [2]);
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::On);
}

#[tokio::test]
async fn unresponsive_bmc_is_unreachable_after_a_few_datagrams() {
    let machine = Machine::start();
    machine.state().deaf = true;
    let mut bmc = client(&machine).await;
    let before = machine.state().heard;
    let error = bmc.power(PowerRequest::On).await.unwrap_err();
    assert_eq!((error.reason(), error.may_have_happened()), (BmcFault::BmcUnreachable, false), "{error}");
    let datagrams = machine.state().heard - before;
    assert!((1..=4).contains(&datagrams), "{datagrams}");
    machine.state().deaf = false;
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
}

#[tokio::test]
async fn suite_3_is_taken_only_where_17_is_not_there_and_none_weaker_than_asked() {
    let machine = Machine::with_suites(&[bedplate_ipmi::crypto::Suite::Sha1]);
    let mut bmc = client(&machine).await;
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    assert_eq!(bmc.quirks(), ["no-cipher-suite-17"]);
    bmc.close().await;
    let mut strict = client_with(&machine, PASSWORD, serde_json::json!({"cipherSuite": 17})).await;
    let error = strict.power_state().await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::NotSupported, "{error}");
    let both = Machine::start();
    let mut bmc = client(&both).await;
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    assert!(bmc.quirks().is_empty());
    // A BMC that once had 17 is not used with 3.
    both.state().suites = vec![bedplate_ipmi::crypto::Suite::Sha1];
    both.state().restart = true;
    let error = bmc.power_state().await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::NotSupported, "{error}");
}

#[tokio::test]
async fn a_full_session_table_is_no_wrong_password_and_passes() {
    let machine = Machine::start();
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let mut bmc = client(&machine).await;
        bmc.power_state().await.unwrap();
        sessions.push(bmc);
    }
    let mut bmc = client(&machine).await;
    let error = bmc.power(PowerRequest::On).await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::Refused, "{error}");
    assert!(error.is_transient() && error.to_string().contains("in use"), "{error}");
    sessions.pop().unwrap().close().await;
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
}

#[tokio::test]
async fn a_privilege_that_the_session_does_not_have_is_refused_with_the_remedy() {
    let machine = Machine::start();
    let mut bmc = client_with(&machine, PASSWORD, serde_json::json!({"privilege": "User"})).await;
    let error = bmc.power(PowerRequest::On).await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::Refused);
    assert!(error.to_string().contains("bmc.ipmi.privilege") && !error.may_have_happened(), "{error}");
}

#[tokio::test]
async fn probe_reports_channel_without_account_and_rights_with_one() {
    let machine = Machine::start();
    let (address, reach) = (machine.address.to_string(), reach());
    let look = async |credentials| {
        let trust = Trust::Authorities(None);
        let found =
            probe::look(&address, BmcProtocol::Ipmi, credentials, &trust, None, &reach, quick()).await;
        match found.unwrap() {
            probe::Found::Ipmi(found) => found,
            found => panic!("{found:?}"),
        }
    };
    let found = look(None).await;
    assert!(found.ipmi_2_0 && !found.authenticated, "{found}");
    assert_eq!(found.suites.as_deref(), Some(&[3, 17][..]));
    assert!(found.to_string().contains("3, 17") && found.to_string().contains("user name"), "{found}");
    assert_eq!(machine.state().right_passwords, 0);
    let credentials = Credentials { username: USER.to_owned(), password: PASSWORD.into() };
    let found = look(Some(credentials)).await;
    assert_eq!((found.suite, found.privilege), (Some(17), Some("Administrator")));
    assert_eq!((found.power, found.identity.firmware.as_deref()), (Some(PowerState::Off), Some("2.45")));
    let state = machine.state();
    assert_eq!((state.sessions, state.right_passwords), (0, 1));
}
