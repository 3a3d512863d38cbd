//! The IPMI client of this crate against real `ipmi_sim` (openipmi): a BMC that nobody here wrote.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what cannot be made here is a failed test")]

#[path = "../../ipmi/tests/simulator/mod.rs"]
mod simulator;

use bedplate_api::machine::{BmcProtocol, BmcSpec};
use bedplate_bmc::address::Reach;
use bedplate_bmc::tls::Trust;
use bedplate_bmc::{
    Bmc, BootSource, Credentials, Deadlines, HealthState, PowerRequest, PowerState, Reason, connect, probe,
};
use simulator::Simulator;

fn reach() -> Reach {
    Reach { allowed: vec!["127.0.0.0/8".parse().unwrap()], forbidden: Vec::new() }
}

async fn client(simulator: &Simulator, password: &str) -> Box<dyn Bmc> {
    let spec: BmcSpec = serde_json::from_value(serde_json::json!({
        "protocol": "ipmi",
        "address": simulator.address.to_string(),
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
    assert_eq!(bmc.identity().await.unwrap().firmware.as_deref(), Some("9.08"));
    bmc.set_next_boot(BootSource::Pxe).await.unwrap();
    simulator.told("boot pxe").await;
    bmc.power(PowerRequest::On).await.unwrap();
    simulator.told("power 1").await;
    bmc.power(PowerRequest::GracefulOff).await.unwrap();
    simulator.told("shutdown 1").await;
    bmc.power(PowerRequest::ForceOff).await.unwrap();
    simulator.told("power 0").await;
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
        assert_eq!(bmc.power(PowerRequest::On).await.unwrap_err().reason(), Reason::AuthenticationFailed);
    }
    assert_eq!(client(&simulator, "secret").await.power_state().await.unwrap(), PowerState::Off);
}

#[tokio::test]
async fn what_it_offers_is_told_with_and_without_an_account() {
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
        assert_eq!(
            (ipmi.suite, ipmi.privilege),
            if logs_in { (Some(3), Some("administrator")) } else { (None, None) }
        );
    }
}
