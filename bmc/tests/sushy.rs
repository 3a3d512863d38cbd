//! Redfish client against sushy-tools, an independent emulator: HTTPS, user name and password with every request,
//! boot override, power that follows seconds later. `cargo xtask setup` installs it; without it these tests fail.

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bedplate_api::id::Digest;
use bedplate_api::machine::BmcProtocol;
use bedplate_bmc::address::{Address, Reach};
use bedplate_bmc::redfish::Redfish;
use bedplate_bmc::tls::{Trust, pin_of};
use bedplate_bmc::{
    Bmc, BmcFault, BootSource, Credentials, Deadlines, HealthState, PowerRequest, PowerState, probe, resolve,
};

const FIRST: &str = "27946b59-9e44-4fa7-8e91-f3527a1ef094";
const SECOND: &str = "38a57c60-0f55-4fb8-9fa2-04638b2f01a5";
/// bcrypt of the password `c0rrect-horse`.
const USERS: &str = "admin:$2y$04$4bZXTYCZJ5ObVtNPQVf.j.N3.oN6oOOVZgZrq/C.PLCbinUbZ6obe\n";

fn program() -> PathBuf {
    let home =
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache/bedplate");
    let cache = std::env::var_os("BEDPLATE_CACHE").map_or_else(home, PathBuf::from);
    let program = cache.join("tools/sushy-tools-2.2.0/bin/sushy-emulator");
    assert!(program.is_file(), "{} is missing: run `cargo xtask setup`", program.display());
    program
}

/// A running emulator with two systems; killed when dropped.
struct Emulator {
    child: Child,
    address: SocketAddr,
    pin: Digest,
    _directory: tempfile::TempDir,
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Emulator {
    fn start() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let own = rcgen::generate_simple_self_signed(vec!["bmc.example".to_owned()]).unwrap();
        fs::write(path("cert.pem"), own.cert.pem()).unwrap();
        fs::write(path("key.pem"), own.signing_key.serialize_pem()).unwrap();
        fs::write(path("users"), USERS).unwrap();
        let system = |uuid: &str, name: &str| {
            format!(
                "{{'uuid': '{uuid}', 'name': '{name}', 'power_state': 'Off', 'external_notifier': False, 'nics': []}}"
            )
        };
        let config = [
            format!("SUSHY_EMULATOR_STATE_DIR = {:?}", path("")),
            format!("SUSHY_EMULATOR_AUTH_FILE = {:?}", path("users")),
            format!("SUSHY_EMULATOR_FAKE_SYSTEMS = [{}, {}]", system(FIRST, "one"), system(SECOND, "two")),
        ];
        fs::write(path("emulator.conf"), config.join("\n") + "\n").unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new(program());
        command.args(["--fake", "--interface", "127.0.0.1", "--config", &path("emulator.conf")]);
        command.args(["--ssl-certificate", &path("cert.pem"), "--ssl-key", &path("key.pem")]);
        command.args(["--port", &address.port().to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, address, pin: pin_of(own.cert.der()).unwrap(), _directory: directory }
    }

    async fn client(&self, password: &str, system: Option<&str>) -> Redfish {
        let address = Address::parse(&format!("https://{}", self.address), BmcProtocol::Redfish).unwrap();
        let reach = Reach { allowed: vec!["127.0.0.1/32".parse().unwrap()], ..Reach::default() };
        let checked = resolve::resolve(&address, &reach, Duration::from_secs(5)).await.unwrap();
        let credentials = Credentials { username: "admin".to_owned(), password: password.into() };
        let system = system.map(str::to_owned);
        let trust = Trust::Pin(vec![self.pin]);
        Redfish::new(&checked, &trust, credentials, system, Deadlines::default()).unwrap()
    }

    /// A client of the first system, as soon as the emulator answers.
    async fn ready(&self) -> Redfish {
        let mut bmc = self.client("c0rrect-horse", Some(FIRST)).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match bmc.power_state().await {
                Ok(_) => return bmc,
                Err(error) => assert!(Instant::now() < deadline, "the emulator does not come up: {error}"),
            }
        }
    }
}

/// Polls until the power is so; the emulator takes up to 11 s.
async fn power_becomes(bmc: &mut Redfish, wanted: PowerState) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while bmc.power_state().await.unwrap() != wanted {
        assert!(Instant::now() < deadline, "the power does not become {wanted:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn emulated_machine_is_switched_on_and_off_with_a_boot_override() {
    let emulator = Emulator::start();
    let mut bmc = emulator.ready().await;
    let identity = bmc.identity().await.unwrap();
    assert_eq!(identity.vendor.as_deref(), Some("Sushy Emulator"));
    assert_eq!((identity.host_uuid.as_deref(), identity.firmware.as_deref()), (Some(FIRST), Some("1.00")));
    assert_eq!(bmc.health().await.unwrap().overall, HealthState::Ok);
    assert_eq!(bmc.next_boot().await.unwrap(), None);
    // It takes UefiHttp without a URI for Pxe.
    bmc.set_next_boot(BootSource::Pxe, None).await.unwrap();
    assert_eq!(bmc.next_boot().await.unwrap(), Some(BootSource::Pxe));
    bmc.power(PowerRequest::On).await.unwrap();
    power_becomes(&mut bmc, PowerState::On).await;
    bmc.power(PowerRequest::GracefulOff).await.unwrap();
    power_becomes(&mut bmc, PowerState::Off).await;
    bmc.close().await;
}

#[tokio::test]
async fn two_emulated_systems_want_a_name_and_a_wrong_password_is_held() {
    let emulator = Emulator::start();
    emulator.ready().await;
    let mut nameless = emulator.client("c0rrect-horse", None).await;
    let error = nameless.power(PowerRequest::ForceOff).await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::AmbiguousSystem);
    assert!(error.to_string().contains(FIRST) && error.to_string().contains(SECOND), "{error}");
    let found = probe::redfish(&mut nameless).await.unwrap();
    assert_eq!((found.systems.len(), found.sessions, found.pin), (2, false, Some(emulator.pin)));
    let mut wrong = emulator.client("wr0ng", Some(FIRST)).await;
    assert_eq!(wrong.power_state().await.unwrap_err().reason(), BmcFault::AuthenticationFailed);
}
