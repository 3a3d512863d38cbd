//! Steps that end a node: each is planned once more, by what is seen right before it. Called by `run`.

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::model::{Act, Plan, Step};
use crate::node::apply::{ApplyError, apply};
use crate::node::effects::{Parts, Say};
use crate::node::observe::{Sight, observe};
use crate::node::plan::plan;

/// Carries out a step that was planned by `sight`, if it is still planned.
pub(super) async fn apply_confirmed(
    parts: &Parts,
    step: &Step,
    sight: &Sight,
    now: Timestamp,
    cancel: &CancellationToken,
    say: Say<'_>,
) -> Result<(), ApplyError> {
    if !matches!(step.act, Act::BeginTrial | Act::LeaveCluster) {
        return apply(parts, step, &sight.observed, now, cancel, say).await;
    }
    let observed = observe(parts, None, now).await?.observed;
    if plan(&observed) != Plan::Do(step.clone()) {
        return Err(ApplyError::Superseded("the plan has changed"));
    }
    apply(parts, step, &observed, now, cancel, say).await
}
