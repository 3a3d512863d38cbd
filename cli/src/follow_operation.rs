//! Follows operations: one until it finishes, or all until the user stops.

use std::time::Duration;

use bedplate_api::operation::MachineOperation;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::desk::{Change, Desk};
use crate::error::RunError;
use crate::operation::ended;
use crate::output::{Page, Progress};
use crate::render::{self, Look};

/// Interval between updates of the displayed elapsed time.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Follows the operation until it is complete or has failed, at most for `limit`.
pub(crate) async fn to_the_end(
    desk: &Desk,
    name: &str,
    limit: Option<Duration>,
) -> Result<MachineOperation, RunError> {
    let (started, mut progress) = (Instant::now(), Progress::new());
    let mut changes = desk.changes(Some(name));
    let mut tick = interval(REDRAW_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut line = format!("{}: not seen yet", render::clean(name));
    let (mut seen, mut interrupted) = (false, false);
    loop {
        // Kept over ticks, because a request may be in progress.
        let mut next = std::pin::pin!(changes.next());
        let change = loop {
            tokio::select! {
                change = &mut next => break change?,
                _ = tick.tick(), if seen => progress.show(&line, started.elapsed()),
                () = over(started, limit) => {
                    return Err(RunError::NotEnded { line, after: started.elapsed().as_secs(), name: name.to_owned() });
                }
            }
        };
        match change {
            Change::Now(operation) if ended(&operation).is_some() => return Ok(*operation),
            Change::Now(operation) => {
                seen = true;
                line = render::progress(&operation, plain());
                progress.show(&line, started.elapsed());
            }
            Change::Gone(_) => return Err(RunError::Gone { name: name.to_owned() }),
            Change::Complete if !seen => return Err(RunError::NoOperation { name: name.to_owned() }),
            Change::Complete => {}
            Change::Interrupted(error) => {
                if !std::mem::replace(&mut interrupted, true) {
                    progress.note(&render::clean(&format!("{error}; retrying")));
                }
                continue;
            }
        }
        interrupted = false;
    }
}

async fn over(started: Instant, limit: Option<Duration>) {
    match limit.and_then(|limit| started.checked_add(limit)) {
        Some(end) => sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// Returns the look of standard error: no color, and no ages.
fn plain() -> Look {
    Look { now: jiff::Timestamp::now(), color: false }
}

/// Prints the changes of all operations until the user stops.
pub(crate) async fn all(desk: &Desk, page: &mut Page<'_>) -> Result<(), RunError> {
    let mut changes = desk.changes(None);
    let (mut seen, mut interrupted) = (false, false);
    loop {
        let change = changes.next().await?;
        let again = matches!(change, Change::Interrupted(_));
        match change {
            Change::Now(operation) => {
                seen = true;
                if page.is_json() {
                    page.json_line(&operation)?;
                } else {
                    let look = page.look();
                    let line = render::progress(&operation, look);
                    page.print(format!("{} {line}\n", render::clock(look)))?;
                }
            }
            // Form of a watch of the API server: a deleted object has the same JSON as an existing one.
            Change::Gone(operation) if page.is_json() => {
                page.json_line(&json!({ "type": "DELETED", "object": operation }))?;
            }
            Change::Gone(operation) => {
                let name = render::clean(operation.metadata.name.as_deref().unwrap_or_default());
                let clock = render::clock(page.look());
                page.print(format!("{clock} {name}: deleted\n"))?;
            }
            Change::Complete if !seen => {
                Progress::new().note("no MachineOperations yet; waiting for the first one");
            }
            Change::Interrupted(error) if !interrupted => {
                Progress::new().note(&render::clean(&format!("{error}; retrying")));
            }
            Change::Complete | Change::Interrupted(_) => {}
        }
        interrupted = again;
    }
}
