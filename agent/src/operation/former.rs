//! The kubelet's configuration as it was before a change in place: kept in the slot until the change has held.
//!
//! ```text
//!   config.yaml ──copy, fsync──► config.yaml.bedplate-former ─┬─ the kubelet is well ──► removed
//!                     kubeadm writes config.yaml              └─ it is not, or this agent was killed ──► copied back by this or the next attempt
//! ```
//! An attempt that finds a copy for the same wanted template uses it: `config.yaml` is by then what kubeadm has written for an attempt that was
//! killed. The first line of a copy names that template. A copy for another one was left behind by a change that has held, and is replaced.
//! Blocking work in threads of its own. Called by `in_place`.

use std::path::Path;

use bedplate_process::exit::chain;
use zeroize::Zeroizing;

use super::apply::ApplyError;
use crate::node::effects::Parts;
use crate::slot::contents::{SlotFile, text};
use crate::slot::inside::Inside;
use crate::slot::store::KeepSlotError;

/// The kubelet's configuration in the slot, as kubeadm writes it.
const CURRENT: &str = "/var/lib/kubelet/config.yaml";
/// Copy of the configuration.
const FORMER: &str = "/var/lib/kubelet/config.yaml.bedplate-former";

/// Keeps the configuration that is in force, unless an earlier attempt to give the node the template of this hash has kept one. None: there is
/// no configuration.
///
/// # Errors
/// The slot's files cannot be read or written.
pub(super) async fn keep(
    parts: &Parts,
    root: &Path,
    wanted: &str,
) -> Result<Option<Zeroizing<Vec<u8>>>, ApplyError> {
    let head = format!("# Before the template {wanted}, by bedplate-agent.\n");
    on_disk(parts, root, move |inside| {
        let former = inside.read(FORMER)?.map(Zeroizing::new);
        if let Some(former) = former.as_ref().and_then(|copy| copy.strip_prefix(head.as_bytes())) {
            return Ok(Some(Zeroizing::new(former.to_vec())));
        }
        let Some(current) = inside.read(CURRENT)?.map(Zeroizing::new) else { return Ok(None) };
        let content = Zeroizing::new([head.as_bytes(), current.as_slice()].concat());
        inside.write_atomic(&SlotFile { content, ..text(FORMER, 0o600, "") })?;
        Ok(Some(current))
    })
    .await
}

/// Restores the configuration from its copy.
///
/// # Errors
/// The slot's files cannot be written.
pub(super) async fn put_back(
    parts: &Parts,
    root: &Path,
    former: Zeroizing<Vec<u8>>,
) -> Result<(), ApplyError> {
    let file = SlotFile { content: former, ..text(CURRENT, 0o644, "") };
    on_disk(parts, root, move |inside| Ok(inside.write_atomic(&file)?)).await
}

/// Removes the copy, once the configuration in force is on disk.
///
/// # Errors
/// The slot's files cannot be written.
pub(super) async fn forget(parts: &Parts, root: &Path) -> Result<(), ApplyError> {
    on_disk(parts, root, |inside| {
        inside.flush(CURRENT)?;
        Ok(inside.remove(FORMER)?)
    })
    .await
}

async fn on_disk<T: Send + 'static>(
    parts: &Parts,
    root: &Path,
    work: impl FnOnce(&Inside) -> Result<T, KeepSlotError> + Send + 'static,
) -> Result<T, ApplyError> {
    let root = root.to_owned();
    let done = parts.on_disk(move |_| work(&Inside::open(&root)?));
    done.await.map_err(|error| ApplyError::Failed(chain(&error)))
}
