//! Copy of the kubelet's configuration before a change in place, kept in the slot until the kubelet is
//! healthy with the new one.
//!
//! ```text
//!   config.yaml ──copy, fsync──► config.yaml.bedplate-former ─┬─ the kubelet is well ──► removed
//!                     kubeadm writes config.yaml              └─ it is not, or this agent was killed ──► copied back by this or the next attempt
//! ```
//! The first line of a copy names the template that the change was for. If the slot is filled with that template, the change has held: a power
//! cut has brought the copy back, and it is replaced. A copy for any other template is used, also by an attempt for a third one:
//! `config.yaml` is by then what kubeadm has written for an attempt that was killed. A template that does not change the configuration has it
//! copied back.
//! Blocking work in threads of its own. Called by `in_place` and `node`.

use bedplate_api::configuration::NodeRole;
use bedplate_api::machine::SlotName;
use bedplate_process::exit::chain;
use zeroize::Zeroizing;

use super::apply::ApplyError;
use crate::bus::Leader;
use crate::node::effects::Parts;
use crate::plane::facts::template_hash;
use crate::slot::bind;
use crate::slot::confined_writer::Inside;
use crate::slot::contents::{SlotFile, text};
use crate::slot::store::{KeepSlotError, Slots};

/// The kubelet's configuration in the slot, as kubeadm writes it.
const CURRENT: &str = "/var/lib/kubelet/config.yaml";
/// Copy of the configuration.
const FORMER: &str = "/var/lib/kubelet/config.yaml.bedplate-former";
/// Text around the hash of the template, in the first line of a copy.
const HEAD: (&str, &str) = ("# Before the template ", ", by bedplate-agent.\n");

/// Configuration that was in force before a change.
struct Former {
    /// Hash of the template that the change was for.
    head: String,
    former: Zeroizing<Vec<u8>>,
}

/// Keeps the configuration that is in force before the node gets the template of this hash, unless an attempt that did not end has kept one.
/// None: there is no configuration.
///
/// # Errors
/// The slot's files cannot be read or written.
pub(super) async fn keep(
    parts: &Parts,
    (slot, leader): (SlotName, Leader),
    wanted: String,
) -> Result<Option<Zeroizing<Vec<u8>>>, ApplyError> {
    in_slot(parts, leader, move |slots, inside| {
        let (head, former) = match unfinished(slots, slot, inside, FORMER)? {
            Some(copy) => (copy.head, Some(copy.former)),
            None => (String::new(), inside.read(CURRENT)?.map(Zeroizing::new)),
        };
        if let Some(former) = former.as_ref().filter(|_| head != wanted) {
            let head = [HEAD.0, &wanted, HEAD.1].concat();
            let content = Zeroizing::new([head.as_bytes(), former.as_slice()].concat());
            inside.write_atomic(&SlotFile { content, ..text(FORMER, 0o600, "") })?;
        }
        Ok(former)
    })
    .await
}

/// Returns the configuration that was in force before a change that did not end. None: the last change has ended.
///
/// # Errors
/// The slot's files cannot be read.
pub(super) async fn left(
    parts: &Parts,
    (slot, leader): (SlotName, Leader),
) -> Result<Option<Zeroizing<Vec<u8>>>, ApplyError> {
    in_slot(parts, leader, move |slots, inside| {
        Ok(unfinished(slots, slot, inside, FORMER)?.map(|copy| copy.former))
    })
    .await
}

/// Returns true if a change did not end, of a slot that runs or not: the configuration in force may be the one of that change.
///
/// # Errors
/// The slot's files cannot be read.
pub(super) fn is_left(slots: &Slots, slot: SlotName) -> Result<bool, KeepSlotError> {
    let Some((name, path)) = bind::kept(FORMER, NodeRole::Worker) else { return Ok(false) };
    let inside = Inside::open(&slots.places().kept(slot, name))?;
    Ok(unfinished(slots, slot, &inside, &path)?.is_some())
}

/// Reads the copy at `path`, of a change that did not end.
fn unfinished(
    slots: &Slots,
    slot: SlotName,
    inside: &Inside,
    path: &str,
) -> Result<Option<Former>, KeepSlotError> {
    let Some(copy) = inside.read(path)?.map(Zeroizing::new) else { return Ok(None) };
    let Some((head, former)) = split(&copy) else { return Ok(None) };
    let filled = slots.filled(slot)?.map(|filled| template_hash(&filled.template));
    let is_held = filled.as_deref() == Some(head);
    Ok((!is_held).then(|| Former { head: head.to_owned(), former: Zeroizing::new(former.to_vec()) }))
}

/// Splits a copy into the hash of its template and the configuration. None: the agent has not written it.
fn split(copy: &[u8]) -> Option<(&str, &[u8])> {
    let rest = copy.strip_prefix(HEAD.0.as_bytes())?;
    let end = rest.iter().position(|byte| *byte == b'\n')? + 1;
    let (line, former) = rest.split_at(end);
    Some((std::str::from_utf8(line).ok()?.strip_suffix(HEAD.1)?, former))
}

/// Restores the configuration from its copy.
///
/// # Errors
/// The slot's files cannot be written.
pub(super) async fn put_back(
    parts: &Parts,
    leader: Leader,
    former: Zeroizing<Vec<u8>>,
) -> Result<(), ApplyError> {
    let file = SlotFile { content: former, ..text(CURRENT, 0o644, "") };
    in_slot(parts, leader, move |_, inside| Ok(inside.write_atomic(&file)?)).await
}

/// Removes the copy, once the configuration in force is on disk.
///
/// # Errors
/// The slot's files cannot be written.
pub(super) async fn forget(parts: &Parts, leader: Leader) -> Result<(), ApplyError> {
    in_slot(parts, leader, |_, inside| {
        inside.flush(CURRENT)?;
        Ok(inside.remove(FORMER)?)
    })
    .await
}

async fn in_slot<T: Send + 'static>(
    parts: &Parts,
    leader: Leader,
    work: impl FnOnce(&Slots, &Inside) -> Result<T, KeepSlotError> + Send + 'static,
) -> Result<T, ApplyError> {
    parts.in_slot(leader, work).await.map_err(|error| ApplyError::Failed(chain(&error)))
}
