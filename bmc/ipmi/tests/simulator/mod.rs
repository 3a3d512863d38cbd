//! Real `ipmi_sim` (openipmi) on loopback, with a machine behind it that is a folder of files. For tests of both crates.

#![allow(dead_code, reason = "each test program uses a part")]

use std::{
    fs,
    net::{SocketAddr, UdpSocket},
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bedplate_ipmi::{
    client::{Client, ClientError, Options},
    crypto::Suite,
    session::Retry,
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

/// The FRU has a board area, and a product area whose maker is in six bits a letter. Its records: a temperature (compact), the controller itself, a power supply (compact), a fan (full).
const MACHINE: &str = "mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
sel_enable 0x20 1000 0x0a
sel_add 0x20 0x02 0 0 0 0x60 0x20 0 4 0x01 0x30 0x01 0x59 0x50 0x4b
sel_add 0x20 0x02 0 0 0 0x60 0x20 0 4 0x04 0x32 0x81 0x02 0x00 0x00
main_sdr_add 0x20 0x00 0x00 0x51 0x02 0x24 0x20 0x00 0x30 0x03 0x01 0x00 0x00 0x01 0x01 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0xc9 0x43 0x50 0x55 0x31 0x20 0x54 0x65 0x6d 0x70
main_sdr_add 0x20 0x00 0x00 0x51 0x12 0x0c 0x20 0x00 0x00 0x00 0x00 0x00 0x2e 0x01 0x00 0xc2 0x4d 0x43
main_sdr_add 0x20 0x00 0x00 0x51 0x02 0x1e 0x20 0x00 0x31 0x0a 0x02 0x00 0x00 0x08 0x6f 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0xc3 0x50 0x53 0x32
main_sdr_add 0x20 0x00 0x00 0x51 0x01 0x30 0x20 0x00 0x32 0x1d 0x01 0x00 0x00 0x04 0x01 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0xc5 0x46 0x61 0x6e 0x20 0x31
sensor_add 0x20 0 0x30 0x01 0x01
sensor_set_threshold 0x20 0 0x30 readable 111111 0x5f 0x5a 0x50 0x02 0x04 0x08
sensor_set_event_support 0x20 0 0x30 enable scanning none 000000000000000 000000000000000 000000000000000 000000000000000
sensor_set_value 0x20 0 0x30 0x5c 0
sensor_add 0x20 0 0x31 0x08 0x6f
sensor_set_event_support 0x20 0 0x31 enable scanning none 000000000000000 000000000000000 000000000000000 000000000000000
sensor_set_bit 0x20 0 0x31 0 1 0
sensor_set_bit 0x20 0 0x31 1 1 0
sensor_add 0x20 0 0x32 0x04 0x01
sensor_set_event_support 0x20 0 0x32 enable scanning none 000000000000000 000000000000000 000000000000000 000000000000000
mc_add_fru_data 0x20 0 96 data 0x01 0x00 0x00 0x01 0x06 0x00 0x00 0xf8 0x01 0x05 0x19 0x10 0x20 0x30 0xca 0x42 0x6f 0x61 0x72 0x64 0x73 0x20 0x49 0x6e 0x63 0xc3 0x58 0x31 0x31 0xc4 0x42 0x2d 0x37 0x37 0xc4 0x50 0x4e 0x2d 0x31 0xc1 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x83 0x01 0x06 0x19 0x89 0x25 0x1e 0xb6 0x30 0x5b 0x02 0xe3 0x2b 0xc3 0xc8 0x53 0x65 0x72 0x76 0x65 0x72 0x20 0x39 0xc4 0x50 0x4e 0x2d 0x32 0xc2 0x76 0x31 0xc7 0x53 0x4e 0x2d 0x30 0x30 0x34 0x32 0xc5 0x61 0x73 0x73 0x65 0x74 0xc1 0x00 0x00 0x3d
mc_enable 0x20
";

pub(crate) struct Simulator {
    folder: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) child: Child,
}

impl Simulator {
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// With more lines of configuration.
    pub(crate) async fn start_with(more: &str) -> Self {
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
             user 2 true \"admin\" \"secret\" admin 10 md5\n{more}\n",
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

    pub(crate) async fn connect(&self, password: &str, options: &Options) -> Result<Client, ClientError> {
        Client::connect(self.address, "admin", &SecretString::from(password), options).await
    }

    pub(crate) fn calls(&self) -> String {
        fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default()
    }

    /// Waits until the machine got this command.
    pub(crate) async fn received(&self, what: &str) {
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

pub(crate) fn options() -> Options {
    let retry = Retry { first: Duration::from_millis(300), most: Duration::from_secs(1), attempts: 4 };
    Options { suite: Suite::Sha1, retry, ..Options::default() }
}
