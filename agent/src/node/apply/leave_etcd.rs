//! Removes a joined control plane from its cluster's etcd before its slot is left. Otherwise the missing
//! member would count for the quorum, and the next join from this host could not replace it.
//!
//! ```text
//!   the Node is gone, asked once more ─ members, of any that answers ─┬─ not among them ──► Retired
//!                                                                     ├─ the last one ────► refused: it is the cluster
//!                                                                     └─ mark ─ removed, by another member first ─► asked again
//! ```
//! etcd itself refuses a removal that would cost the quorum. kubeadm's reset is not sufficient: it needs the
//! Node, and does not report failures. May be killed at any point. The mark repeats the removal even after
//! the API server in the slot is gone with its etcd. It does not if the member still exists and the API
//! server reports the Node. Called by `apply`.

use bedplate_api::machine::SlotName;
use bedplate_etcd::quorum::is_last;

use super::{ApplyError, outcome};
use crate::model::Stage;
use crate::node::effects::Parts;
use crate::node::etcd_member::{LeaveEtcdError, Member};
use crate::slot::fill_record::LEAVING;

/// Reason for not leaving: the Node exists.
const THERE: &str = "the Node exists";

/// Removes the member, and records that the slot is no longer the node. `is_started`: a killed agent may have
/// removed it.
pub(super) async fn leave(parts: &Parts, slot: SlotName, is_started: bool) -> Result<(), ApplyError> {
    if !is_started && !parts.node_is_gone().await.map_err(ApplyError::Ask)? {
        return Err(ApplyError::Superseded(THERE));
    }
    if let Some(member) = parts.on_disk(move |slots| Ok(Member::of(slots, slot))).await?? {
        take_out(parts, slot, &member, is_started).await?;
    }
    outcome::change(parts, slot, |record| record.stage = Stage::Retired).await
}

async fn take_out(
    parts: &Parts,
    slot: SlotName,
    member: &Member,
    is_started: bool,
) -> Result<(), ApplyError> {
    let members = member.etcd.members().await.map_err(LeaveEtcdError::from)?;
    let Some(own) = members.iter().find(|one| member.is_own(one)) else { return Ok(()) };
    let is_last = is_last(&members, own.id);
    // The agent was killed before its request, and the Node may exist again.
    let is_there = is_started && matches!(parts.node_is_gone().await, Ok(false));
    if is_last || is_there {
        parts.on_disk(move |slots| slots.set_mark(slot, LEAVING, false)).await?;
        return Err(if is_last { LeaveEtcdError::Last.into() } else { ApplyError::Superseded(THERE) });
    }
    parts.on_disk(move |slots| slots.set_mark(slot, LEAVING, true)).await?;
    let Err(why) = member.etcd.remove(own, &members).await else { return Ok(()) };
    // The answer to a member that removed itself may be lost.
    match member.etcd.members().await {
        Ok(members) if !members.iter().any(|one| member.is_own(one)) => Ok(()),
        Ok(_) => {
            // The slot stays for now; the next plan decides again.
            parts.on_disk(move |slots| slots.set_mark(slot, LEAVING, false)).await?;
            Err(LeaveEtcdError::from(why).into())
        }
        Err(_) => Err(LeaveEtcdError::from(why).into()),
    }
}
