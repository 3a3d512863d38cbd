//! Our client against real `ipmi_sim` (openipmi): a BMC that nobody here wrote. It has suites 1 to 3; suite 17 is proved by `ipmitool`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    net::{SocketAddr, UdpSocket},
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bedplate_ipmi::{
    client::{Client, ClientError, Options},
    command::{
        boot::{BootDevice, GetBootFlags},
        chassis::{ChassisControl, GetChassisStatus},
        device::GetDeviceId,
        sel::GetSelInfo,
    },
    crypto::Suite,
    probe::probe,
    session::{RequestError, Retry, SessionError},
    wire::rakp::Status,
};
use secrecy::SecretString;
use tempfile::TempDir;

/// Called by `ipmi_sim`: keeps each parameter in a file, and all that was set in `calls`.
const CONTROL: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
shift; act=$1; shift
case $act in
get) for name; do echo "$name:$(cat "state.$name" 2>/dev/null || echo 0)"; done ;;
set) while [ $# -gt 0 ]; do
         echo "$1 $2" >>calls
         echo "$2" >new && mv new "state.$1"
         shift 2
     done ;;
esac
"#;

const MACHINE: &str = "mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
sel_enable 0x20 1000 0x0a
sel_add 0x20 0x02 0 0 0 0x60 0x20 0 4 0x01 0x30 0x01 0x59 0x50 0x4b
sel_add 0x20 0x02 0 0 0 0x60 0x20 0 4 0x04 0x32 0x81 0x02 0x00 0x00
mc_enable 0x20
";

struct Simulator {
    folder: TempDir,
    address: SocketAddr,
    child: Child,
}

impl Simulator {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let path = folder.path();
        let control = path.join("control");
        fs::write(&control, CONTROL).unwrap();
        fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(path.join("state.boot"), "default\n").unwrap();
        let lan = format!(
            "name \"machine\"\nset_working_mc 0x20\nstartlan 1\n  addr 127.0.0.1 {}\n  priv_limit admin\n  \
             allowed_auths_user md5\n  allowed_auths_operator md5\n  allowed_auths_admin md5\n  \
             guid a123456789abcdefa123456789abcdef\nendlan\nchassis_control \"{} 0x20\"\n\
             user 2 true \"admin\" \"secret\" admin 10 md5\n",
            address.port(),
            control.display()
        );
        fs::write(path.join("lan.conf"), lan).unwrap();
        fs::write(path.join("machine.emu"), MACHINE).unwrap();
        fs::create_dir(path.join("kept")).unwrap();
        let output = fs::File::create(path.join("output")).unwrap();
        let child = Command::new("ipmi_sim")
            .current_dir(path)
            .args(["-c", "lan.conf", "-f", "machine.emu", "-s", "kept", "-n", "-d"])
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .expect("ipmi_sim is installed: cargo xtask setup");
        let simulator = Self { folder, address, child };
        let begin = Instant::now();
        while let Err(error) = simulator.connect("secret", &options()).await {
            let output = fs::read_to_string(simulator.folder.path().join("output")).unwrap_or_default();
            assert!(begin.elapsed() < Duration::from_secs(30), "{error:?}\n{output}");
        }
        simulator
    }

    async fn connect(&self, password: &str, options: &Options) -> Result<Client, ClientError> {
        Client::connect(self.address, "admin", &SecretString::from(password), options).await
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default()
    }

    /// Waits until the machine was told so.
    async fn told(&self, what: &str) {
        let begin = Instant::now();
        while !self.calls().contains(what) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{what:?} in {:?}", self.calls());
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn options() -> Options {
    let retry = Retry { first: Duration::from_millis(300), most: Duration::from_secs(1), attempts: 4 };
    Options { suite: Suite::Sha1, retry, ..Options::default() }
}

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
    simulator.told("boot pxe").await;
    assert_eq!(client.request(&GetBootFlags).await.unwrap().device, BootDevice::Pxe);

    client.request(&ChassisControl::Up).await.unwrap();
    simulator.told("power 1").await;
    wait_for_power(&client, true).await;
    client.request(&ChassisControl::HardReset).await.unwrap();
    simulator.told("reset 1").await;
    client.request(&ChassisControl::SoftShutdown).await.unwrap();
    simulator.told("shutdown 1").await;
    client.request(&ChassisControl::Down).await.unwrap();
    simulator.told("power 0").await;
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
    simulator.told("power 0\npower 1").await;
    wait_for_power(&client, true).await;
    assert_eq!(simulator.calls().matches("power 0").count(), 1);
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_suite_are_told_apart() {
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
