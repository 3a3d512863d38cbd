//! Renews the certificate of a slot's kubelet after it has expired. The host was off, or the API server
//! unreachable, for longer than its lifetime. The kubelet requests it as at its join: in a cluster with a
//! certificate that the agent requested, when standalone with the data that its version names.
//!
//! ```text
//!   /run/bedplate/kubelet-bootstrap.conf (memory) <-- /etc/kubernetes/bootstrap-kubelet.conf ── restart
//! kubelet ── wait ── remove both
//! ```
//! kubeadm's drop-in makes the kubelet read that file, but only while its own certificate is not valid.
//! Called by `apply`.

use std::time::Duration;

use bedplate_api::configuration::SecretRef;
use bedplate_api::machine::SlotName;
use bedplate_bootstrap::{JoinedBy, joined_by, kubeconfig_with_token};
use bedplate_process::exit::chain;
use bedplate_process::file::remove_optional;
use jiff::Timestamp;
use zeroize::Zeroizing;

use super::{ApplyError, kubelet};
use crate::bus::{Leader, UnitName};
use crate::kubelet::connection::KUBECONFIG;
use crate::node::effects::{Parts, Say};
use crate::slot::bind::plain_path;
use crate::slot::contents::SlotLink;
use crate::slot::fill_record::Filled;
use crate::slot::store::{KeepSlotError, Slots};

/// Path of the bootstrap kubeconfig in the slot: `--bootstrap-kubeconfig` of kubeadm's drop-in.
const LINK: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
/// Name of the bootstrap kubeconfig in the memory that agent and slot share.
const FILE: &str = "kubelet-bootstrap.conf";
/// Timeout of the kubelet's restart.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between checks for the approved certificate.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of checks for the approved certificate.
const MAX_CHECKS: u32 = 60;

/// Renews the certificate. May be repeated.
pub(super) async fn renew(parts: &Parts, slot: SlotName, say: Say<'_>) -> Result<(), ApplyError> {
    let Some(leader) = parts.leader(slot).await? else {
        return Err(ApplyError::Superseded("the slot no longer runs"));
    };
    let filled = parts.on_disk(move |slots| slots.filled(slot)).await?;
    let content = if parts.home.follows_slot() {
        let filled = filled.ok_or(ApplyError::Superseded("the slot is not filled"))?;
        named(parts, leader, &filled).await.map_err(ApplyError::KubeletWay)?
    } else {
        let endpoint =
            filled.as_ref().and_then(|filled| filled.template.kubernetes.api_server_endpoint.as_deref());
        kubelet::kubeconfig(parts, slot, endpoint, say).await?
    };
    let given = parts.in_slot(leader, move |slots, inside| {
        slots.share(slot, FILE, &content)?;
        let link = SlotLink { path: LINK.to_owned(), target: format!("/run/bedplate/{FILE}") };
        Ok(inside.link(&link)?)
    });
    let renewed = match given.await {
        Ok(()) => restarted(parts, slot, leader).await,
        Err(error) => Err(error.into()),
    };
    parts.on_disk(move |slots| take_back(slots, slot)).await?;
    parts.in_slot(leader, |_, inside| Ok(inside.remove(LINK)?)).await?;
    renewed?;
    kubelet::forget(parts, slot).await
}

/// A key or a token is in it.
fn take_back(slots: &Slots, slot: SlotName) -> Result<(), KeepSlotError> {
    let path = slots.places().shared(slot).join(FILE);
    Ok(remove_optional(&path)?)
}

/// Deletes a bootstrap kubeconfig that a killed agent left behind. No other
/// step deletes it if the kubelet has its certificate by now.
pub(in crate::node) async fn take_back_left(parts: &Parts) {
    for slot in SlotName::ALL {
        if let Err(error) = parts.on_disk(move |slots| take_back(slots, slot)).await {
            tracing::warn!(slot = ?slot, error = chain(&error), "failed to delete the bootstrap kubeconfig of a slot");
        }
    }
}

/// Builds a kubeconfig from the version's data. The error is a human-readable text.
async fn named(parts: &Parts, leader: Leader, filled: &Filled) -> Result<Zeroizing<Vec<u8>>, String> {
    let read = |path: &str| -> Result<Zeroizing<String>, String> {
        let text = leader.open_root(&parts.root).and_then(|inside| inside.read_text(path));
        let text = text.map_err(|error| format!("cannot read {path}: {error}"))?;
        text.map(Zeroizing::new).ok_or_else(|| format!("{path} is missing"))
    };
    let (text, endpoint, token) = match joined_by(&filled.template.kubernetes) {
        None => return Err("the join configuration has no discovery".to_owned()),
        Some(JoinedBy::File { path, token }) => {
            let text = match of_secret(parts, filled, path).await {
                Some(text) => text,
                None => read(path)?,
            };
            (text, None, token)
        }
        Some(JoinedBy::Token { endpoint, token }) => (read(KUBECONFIG)?, Some(endpoint), Some(token)),
    };
    let Some(token) = token else { return Ok(Zeroizing::new(text.as_bytes().to_vec())) };
    let made = kubeconfig_with_token(&text, endpoint, token);
    made.map(|made| Zeroizing::new(made.into_bytes()))
        .ok_or_else(|| "the file that the version joins by is not a kubeconfig".to_owned())
}

/// Returns the current content of a file of the version. The token in the
/// slot's file may have expired, and the Secret may have a new one.
async fn of_secret(parts: &Parts, filled: &Filled, path: &str) -> Option<Zeroizing<String>> {
    let path = plain_path(path);
    let file = filled.template.files.iter().find(|file| plain_path(&file.path) == path)?;
    let key = &file.content_from.as_ref()?.secret;
    let secret = SecretRef { namespace: key.namespace.clone(), name: key.name.clone() };
    match parts.decider.secret(&secret).await {
        Ok(mut found) => {
            let bytes = found.data.remove(&key.key)?;
            std::str::from_utf8(&bytes).ok().map(|text| Zeroizing::new(text.to_owned()))
        }
        Err(error) => {
            tracing::info!(
                path,
                error = chain(&error),
                "failed to read the Secret of the join file, using the slot's file"
            );
            None
        }
    }
}

async fn restarted(parts: &Parts, slot: SlotName, leader: Leader) -> Result<(), ApplyError> {
    let kubelet: UnitName = "kubelet.service".parse()?;
    let units = parts.machines.units(leader);
    units.reset_failed(&kubelet).await?;
    units.restart(&kubelet, RESTART_TIMEOUT).await?;
    for _ in 0..MAX_CHECKS {
        let ends = parts.on_disk(move |slots| Ok(slots.kubelet_certificate_ends(slot))).await?;
        if ends.is_some_and(|ends| ends > Timestamp::now()) {
            return Ok(());
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    Err(ApplyError::KubeletCertificate)
}
