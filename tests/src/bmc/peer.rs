//! Foreign BMCs as processes in the rack's network: `ipmi_sim` (openipmi) and sushy-tools, each before one
//! machine, which it reaches by a [`Door`].

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bedplate_api::id::Digest;

use super::certificate::Certificate;
use super::chassis::Shared;
use super::door::Door;
use super::service::{PASSWORD, USER};
use crate::guard::{self, Process};
use crate::pxed;
use crate::rack::Rack;
use crate::wait;

/// Maximum time until a foreign BMC is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// bcrypt of [`PASSWORD`], for sushy-tools.
const SUSHY_USERS: &str = "admin:$2y$04$4bZXTYCZJ5ObVtNPQVf.j.N3.oN6oOOVZgZrq/C.PLCbinUbZ6obe\n";
const SUSHY_PLUG: &str = include_str!("sushy_plug.py");
const IPMI_SIM_MACHINE: &str = "mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02
sel_enable 0x20 1000 0x0a
sel_add 0x20 0x02 0 0 0 0x60 0x20 0 4 0x01 0x30 0x01 0x59 0x50 0x4b
mc_enable 0x20
";

/// Parameters of a foreign BMC.
pub(super) struct Peer<'a> {
    pub(super) rack: &'a Rack,
    pub(super) name: &'a str,
    pub(super) ip: Ipv4Addr,
    pub(super) chassis: &'a Shared,
}

/// One that runs; killed when dropped.
#[derive(Debug)]
pub(super) struct Running {
    _process: Process,
    _door: Door,
}

impl Peer<'_> {
    /// A directory of its own, and the socket to the machine.
    fn place(&self) -> Result<(PathBuf, Door)> {
        let place = self.rack.file(&format!("{}-bmc", self.name));
        fs::create_dir(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let door = Door::open(place.join("plug"), self.chassis.clone())?;
        Ok((place, door))
    }

    fn log(&self) -> PathBuf {
        self.rack.file(&format!("{}-bmc.log", self.name))
    }

    pub(super) fn ipmi_sim(&self) -> Result<Running> {
        let (place, door) = self.place()?;
        let control = place.join("control");
        // The first word is the node. socat waits that long for an answer after it has asked.
        let script = format!(
            "#!/bin/sh\nshift\nanswer=$(printf '%s\\n' \"$*\" | socat -t 60 - UNIX-CONNECT:{}) || exit 1\n\
             case $answer in error*) echo \"$answer\" >&2; exit 1 ;; esac\n\
             [ -z \"$answer\" ] || printf '%s\\n' \"$answer\"\n",
            door.path().display()
        );
        fs::write(&control, script)?;
        fs::set_permissions(&control, fs::Permissions::from_mode(0o755))?;
        let lan = format!(
            "name \"{}\"\nset_working_mc 0x20\nstartlan 1\n  addr {} 623\n  priv_limit admin\n  \
             allowed_auths_user md5\n  allowed_auths_operator md5\n  allowed_auths_admin md5\n  \
             guid a123456789abcdefa123456789abcdef\nendlan\nchassis_control \"{} 0x20\"\n\
             user 2 true \"{USER}\" \"{PASSWORD}\" admin 10 md5\n",
            self.name,
            self.ip,
            control.display()
        );
        fs::write(place.join("lan.conf"), lan)?;
        fs::write(place.join("machine.emu"), IPMI_SIM_MACHINE)?;
        fs::create_dir(place.join("kept"))?;
        let mut command = self.rack.network().command("ipmi_sim");
        command.current_dir(&place);
        command.args(["-c", "lan.conf", "-f", "machine.emu", "-s", "kept", "-n", "-d"]);
        let mut process = Process::spawn("ipmi_sim", &mut command, &self.log())?;
        // Looked up, not tried: who binds the port to see whether it is taken can take it from ipmi_sim.
        let bound = format!("{:08X}:{:04X} ", u32::from_ne_bytes(self.ip.octets()), 623);
        wait::until("ipmi_sim to listen", READY_TIMEOUT, || {
            if !process.is_running() {
                bail!("ipmi_sim has ended: {}", process.said());
            }
            let sockets = || Ok(fs::read_to_string("/proc/thread-self/net/udp")?);
            Ok(self.rack.network().inside(sockets)?.contains(&bound).then_some(()))
        })?;
        Ok(Running { _process: process, _door: door })
    }

    pub(super) fn sushy(&self) -> Result<(Running, Digest)> {
        let (place, door) = self.place()?;
        let path = |name: &str| place.join(name).display().to_string();
        let certificate = Certificate::new()?;
        fs::write(path("cert.pem"), certificate.pem())?;
        fs::write(path("key.pem"), certificate.key_pem())?;
        fs::write(path("users"), SUSHY_USERS)?;
        fs::write(path("sushy_plug.py"), SUSHY_PLUG)?;
        let uuid = self.chassis.lock().uuid().to_owned();
        let config = [
            format!("SUSHY_EMULATOR_STATE_DIR = {:?}", path("")),
            format!("SUSHY_EMULATOR_AUTH_FILE = {:?}", path("users")),
            format!(
                "SUSHY_EMULATOR_FAKE_SYSTEMS = [{{'uuid': '{uuid}', 'name': '{}', 'power_state': 'Off', \
                 'external_notifier': False, 'nics': []}}]",
                self.name
            ),
        ];
        fs::write(path("emulator.conf"), config.join("\n") + "\n")?;
        let mut command = self.rack.network().command(sushy_python()?);
        command.args([path("sushy_plug.py"), path("plug"), "--fake".into(), "--config".into()]);
        command.args([path("emulator.conf"), "--interface".into(), self.ip.to_string()]);
        command.args([
            "--port",
            "443",
            "--ssl-certificate",
            &path("cert.pem"),
            "--ssl-key",
            &path("key.pem"),
        ]);
        let mut process = Process::spawn("sushy-tools", &mut command, &self.log())?;
        let address = SocketAddr::new(self.ip.into(), 443);
        wait::until("sushy-tools to listen", READY_TIMEOUT, || {
            if !process.is_running() {
                bail!("sushy-tools has ended: {}", guard::last_lines(&process.said(), 20));
            }
            let connection = self.rack.network().inside(|| Ok(TcpStream::connect(address)))?;
            Ok(connection.is_ok().then_some(()))
        })?;
        Ok((Running { _process: process, _door: door }, certificate.pin()))
    }
}

/// The Python that has sushy-tools and sushy.
///
/// # Errors
/// It was not installed.
pub fn sushy_python() -> Result<PathBuf> {
    let path = pxed::cache()?.join("tools/sushy-tools-2.2.0/bin/python");
    if !path.exists() {
        bail!("{} is missing: run `cargo xtask setup`", path.display());
    }
    Ok(path)
}
