//! An empty host in namespaces with a network card on the rack, enrolled by hand as `provider: manual` has it: systemd 252, the real
//! agent in its own unit, and then the slot's real kubeadm, kubelet, containerd and runc. `control_plane` says what is not covered.
//!
//! It boots in half a second and is Ready in some ten, on a processor that is not emulated: for several concurrent nodes,
//! three of these cost less than one virtual machine.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::control_plane::{PARAMETERS, files, kubelet, registration, version};
use crate::guard::run;
use crate::host::Host;
use crate::netns::Namespace;
use crate::pxed::binary;
use crate::rack::{ADDRESS, BRIDGE};
use crate::wait;

/// Maximum time until another test program with such hosts has ended.
const TURN_TIMEOUT: Duration = Duration::from_secs(1800);
const UNIT: &str = include_str!("../../systemd/bedplate-agent.service");

/// A host. Its network goes after it.
#[derive(Debug)]
pub struct Worker {
    /// The host.
    pub host: Host,
    /// Its network.
    pub network: Namespace,
}

impl Worker {
    /// Starts a host of this name at the address 10.7.0.`last`, and enrolls it at the pxed of this socket, which serves agents at the
    /// rack's own address.
    ///
    /// # Errors
    /// Something is missing (the message has the remedy), or the agent is refused.
    pub fn enroll(rack: &Namespace, socket: &Path, name: &str, last: u8) -> Result<Self> {
        take_turn()?;
        let network = Namespace::new(name)?;
        rack.add_veth(&format!("v{last}"), &network, "eth0")?;
        rack.ip(&format!("link set dev v{last} master {BRIDGE}"))?;
        network.ip(&format!("address add {}/24 dev eth0", address(last)))?;
        network.ip(&format!("route add default via {ADDRESS}"))?;
        let host = Host::prepare(name)?
            .network(&network)
            .bind(&binary("bedplate-agent")?, "/usr/bin/bedplate-agent")
            .file("/etc/systemd/system/bedplate-agent.service", UNIT.as_bytes(), 0o644)?
            .file("/etc/resolv.conf", b"nameserver 192.0.2.1\n", 0o644)?
            .file("/usr/lib/modules/none", b"", 0o644)?
            .start()?;
        host.run("systemctl", &["start", "bedplate-agent.service"])?;
        let mut bedplate = Command::new(binary("bedplate")?);
        bedplate.arg("--socket").arg(socket).args(["machine", "token", name]);
        host.put("/root/token", run(&mut bedplate)?.as_bytes(), 0o600)?;
        let server = format!("https://{ADDRESS}:8443");
        let enroll = ["enroll", "--server", &server, "--token-file", "/root/token", "--wait", "100"];
        host.run("/usr/bin/bedplate-agent", &enroll)?;
        Ok(Self { host, network })
    }

    /// Last lines of agent, kubeadm and kubelet.
    pub fn said(&self) -> String {
        let log = "tail -n 25 /var/lib/bedplate/slots/*/state/log/bedplate/kubeadm.log; journalctl --no-pager -n 25 -u kubelet.service \
                   --directory=$(ls -d /var/lib/bedplate/slots/*/state/log/journal | head -n 1) | cut -c1-300";
        let journal = self.host.journal("bedplate-agent").unwrap_or_default();
        format!("{journal}\n{}", self.host.run("sh", &["-c", log]).unwrap_or_default())
    }
}

/// Waits until no other test program runs such hosts. This program then has the turn until it ends. Take the turn before you start
/// servers for the hosts, so that no server waits for them.
///
/// All hosts share the inotify instances of a user (128 by default), which are enough for three nodes and not for six. A containerd
/// without an instance does not serve its runtime.
///
/// # Errors
/// The other programs do not end in time.
pub fn take_turn() -> Result<()> {
    static TAKEN: Mutex<Option<File>> = Mutex::new(None);
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if taken.is_none() {
        let path = "/run/lock/bedplate-workers";
        std::fs::create_dir_all("/run/lock").context("cannot make /run/lock")?;
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot open {path}"))?;
        wait::until("the end of another test's nodes", TURN_TIMEOUT, || {
            Ok(file.try_lock().is_ok().then_some(()))
        })?;
        *taken = Some(file);
    }
    Ok(())
}

fn address(last: u8) -> Ipv4Addr {
    let [a, b, c, _] = ADDRESS.octets();
    Ipv4Addr::new(a, b, c, last)
}

/// Path of the script [`PARAMETERS`] in a node.
const SCRIPT: &str = "/usr/local/sbin/kernel-parameters";

/// Template of such a host's version without its image, for a host that joins by its agent's own credential. Its first unit is the
/// kubelet's.
///
/// # Errors
/// Kubernetes' programs are missing.
pub fn template() -> Result<Value> {
    let mut files = files();
    // Before each start of the kubelet, and not before the join alone: a slot that was stopped comes back without a join.
    let script = format!("#!/bin/sh\nmkdir -p /run/bedplate\n{PARAMETERS}\n");
    files.push(json!({ "path": SCRIPT, "content": script, "permissions": "0755" }));
    let shown =
        json!({ "name": "50-parameters.conf", "contents": format!("[Service]\nExecStartPre={SCRIPT}\n") });
    Ok(json!({
        "kubernetes": { "version": version()?, "kubeletConfiguration": kubelet(),
            "joinConfiguration": { "nodeRegistration": registration() } },
        "files": files,
        "units": [{ "name": "kubelet.service", "dropins": [shown] }],
        "healthGate": { "timeoutSeconds": 600, "minReadySeconds": 1 },
    }))
}
