//! Foreign clients for requests to a BMC: `ipmitool`, python-sushy, curl. Callers: the tests.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::chassis::Action;
use super::peer::sushy_python;
use super::server::{BmcKind, Server};
use super::service::{PASSWORD, USER};
use crate::guard;
use crate::netns::Namespace;

/// As `ipmitool` and our script for sushy call it.
fn word(action: Action) -> &'static str {
    match action {
        Action::On => "on",
        Action::ForceOff => "off",
        Action::GracefulOff => "soft",
        Action::Reset => "reset",
        Action::Cycle => "cycle",
    }
}

/// `ipmitool` on this machine, or in a namespace.
///
/// # Errors
/// It is missing. That the BMC refuses is in the output.
pub fn ipmitool(
    network: Option<&Namespace>,
    address: SocketAddr,
    suite: u8,
    password: &str,
    arguments: &[&str],
) -> Result<Output> {
    let mut command = network.map_or_else(|| Command::new("ipmitool"), |n| n.command("ipmitool"));
    command.args(["-I", "lanplus", "-H", &address.ip().to_string(), "-p", &address.port().to_string()]);
    command.args(["-U", USER, "-P", password, "-C", &suite.to_string(), "-N", "2", "-R", "3"]);
    command.args(arguments).output().context("ipmitool is missing: run `cargo xtask setup`")
}

/// python-sushy with a session or without (`basic`): what each order answers, which is only something for `show`.
///
/// # Errors
/// It is missing, or it does not take what the BMC says.
pub fn sushy(
    network: Option<&Namespace>,
    address: SocketAddr,
    kind: &str,
    password: &str,
    orders: &[&str],
) -> Result<Vec<Value>> {
    let python = sushy_python()?;
    let mut command = network.map_or_else(|| Command::new(&python), |n| n.command(&python));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bmc/sushy_client.py"));
    command.args([&format!("https://{address}"), USER, password, kind]).args(orders);
    let text = guard::run(&mut command)?;
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// curl: status and body of a request with name and password.
///
/// # Errors
/// No answer.
pub fn curl(
    network: Option<&Namespace>,
    address: SocketAddr,
    path: &str,
    more: &[&str],
) -> Result<(u16, String)> {
    let mut command = network.map_or_else(|| Command::new("curl"), |n| n.command("curl"));
    command.args(["--silent", "--show-error", "--insecure", "--max-time", "30", "--noproxy", "*"]);
    command.args(["--user", &format!("{USER}:{PASSWORD}"), "--write-out", "\n%{http_code}"]);
    command.args(more).arg(format!("https://{address}{path}"));
    let text = guard::run(&mut command)?;
    let (body, status) = text.rsplit_once('\n').context("curl said nothing")?;
    Ok((status.parse()?, body.to_owned()))
}

/// POST or PATCH of a JSON body with curl.
///
/// # Errors
/// No answer, or one that is not a success.
pub fn curl_json(
    network: Option<&Namespace>,
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<()> {
    let body = body.to_string();
    let more = ["--request", method, "--header", "content-type: application/json", "--data", &body];
    let (status, answer) = curl(network, address, path, &more)?;
    if !(200..300).contains(&status) {
        bail!("{method} {path}: {status}: {answer}");
    }
    Ok(())
}

/// The path of the only system of a Redfish service.
fn only_system(network: &Namespace, server: &Server) -> Result<String> {
    let (_, body) = curl(Some(network), server.address(), "/redfish/v1/Systems", &[])?;
    let systems: Value = serde_json::from_str(&body).with_context(|| body.clone())?;
    let path = systems.pointer("/Members/0/@odata.id").and_then(Value::as_str);
    Ok(path.context("the service has no system")?.to_owned())
}

fn ipmi(network: &Namespace, server: &Server, arguments: &[&str]) -> Result<()> {
    let suite = if server.kind() == BmcKind::IpmiSim { 3 } else { 17 };
    let output = ipmitool(Some(network), server.address(), suite, PASSWORD, arguments)?;
    if !output.status.success() {
        bail!("ipmitool {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Asks a server's BMC for something: the simulator's with sushy or `ipmitool`, sushy-tools with curl.
///
/// # Errors
/// The BMC does not do it.
pub fn power(network: &Namespace, server: &Server, action: Action) -> Result<()> {
    match server.kind() {
        BmcKind::Redfish => {
            sushy(Some(network), server.address(), "session", PASSWORD, &[word(action)]).map(drop)
        }
        BmcKind::Sushy => {
            let kind = match action {
                Action::On => "On",
                Action::ForceOff => "ForceOff",
                Action::GracefulOff => "GracefulShutdown",
                Action::Reset => "ForceRestart",
                Action::Cycle => bail!("sushy-tools has no PowerCycle"),
            };
            let path = format!("{}/Actions/ComputerSystem.Reset", only_system(network, server)?);
            let body = serde_json::json!({ "ResetType": kind });
            curl_json(Some(network), server.address(), "POST", &path, &body)
        }
        BmcKind::Ipmi | BmcKind::IpmiSim => ipmi(network, server, &["chassis", "power", word(action)]),
    }
}

/// Has a server boot once from its network, in the same way.
///
/// # Errors
/// The BMC does not do it.
pub fn boot_from_network(network: &Namespace, server: &Server) -> Result<()> {
    match server.kind() {
        BmcKind::Redfish => sushy(Some(network), server.address(), "session", PASSWORD, &["pxe"]).map(drop),
        BmcKind::Sushy => {
            let body = serde_json::json!({"Boot": {
                "BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once",
            }});
            let path = only_system(network, server)?;
            curl_json(Some(network), server.address(), "PATCH", &path, &body)
        }
        BmcKind::Ipmi | BmcKind::IpmiSim => ipmi(network, server, &["chassis", "bootdev", "pxe"]),
    }
}
