//! The order in which pxed ends.
//!
//! ```text
//! Draining    listeners and engines take nothing new; power workers close their sessions at BMCs
//!             statuses are written; the Lease is released: another pxed drives power
//!             transfers end
//! LastWrites  boots are written
//! Done        the status writer writes the rest and ends
//! ```
//!
//! Power is handed over before the end of transfers, which take up to `limits.drain-seconds`: no machine of the site should wait for them.
//! The next leader reads the statuses, so they are written before the Lease is released, unless the writes take too long. A request that ends
//! late is a stage of a boot, and a boot changes a status, so boots are written after the transfers, and the status writer ends last.

use std::time::Duration;

use bedplate_process::shutdown::{Shutdown, Stage};
use bedplate_process::tasks::{DrainTasksError, Tasks};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::assemble::POWER;
use crate::status::write::WRITE_DEADLINE;

/// Maximum duration of the end of all sessions at BMCs. More than the supervisor takes.
const SESSIONS_TIMEOUT: Duration = Duration::from_secs(16);
/// Maximum duration of the wait for status writes before the Lease is released. The step ends when all statuses are written. One request takes at
/// most [`WRITE_DEADLINE`], so a request in progress ends before the release. A status that needs two slow requests, or whose writes fail again and
/// again, delays the release by the whole duration.
const STATUSES_TIMEOUT: Duration = Duration::from_secs(WRITE_DEADLINE.as_secs() + 1);
/// Maximum duration of the release of the Lease. More than its request takes.
const LEASE_TIMEOUT: Duration = Duration::from_secs(4);
/// Time that transfers have in addition to `limits.drain-seconds`, by which the engines end them.
const TRANSFERS_MARGIN: Duration = Duration::from_secs(5);
/// Maximum duration of the last writes of boots.
const BOOTS_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum duration of the last writes of statuses. More than the writer takes.
const WRITER_TIMEOUT: Duration = Duration::from_secs(6);

/// Ends the program. `statuses`: waits until every status is written. `release`: releases the Lease. `drain`: time for transfers.
pub(super) async fn shut_down(
    mut shutdown: Shutdown,
    tasks: &Tasks,
    statuses: impl Future<Output = ()>,
    release: &CancellationToken,
    drain: Duration,
) -> Result<(), DrainTasksError> {
    let transfers_end = Instant::now() + drain + TRANSFERS_MARGIN;
    shutdown.enter(Stage::Draining);
    shutdown.step(POWER, SESSIONS_TIMEOUT, tasks.ended_task(POWER)).await;
    shutdown.step("statuses", STATUSES_TIMEOUT, statuses).await;
    release.cancel();
    shutdown.step("lease", LEASE_TIMEOUT, tasks.ended_task("lease")).await;
    shutdown.tasks(Stage::Draining, transfers_end.saturating_duration_since(Instant::now())).await;
    shutdown.enter(Stage::LastWrites);
    shutdown.tasks(Stage::LastWrites, BOOTS_TIMEOUT).await;
    shutdown.enter(Stage::Done);
    shutdown.tasks(Stage::Done, WRITER_TIMEOUT).await;
    shutdown.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bedplate_process::lock::Lock;
    use bedplate_process::program::Program;

    use super::*;

    type Ended = Arc<Lock<Vec<&'static str>>>;

    /// A program whose parts record their end: with transfers that take 30 s, and sessions that take 2 s.
    fn program(ended: &Ended) -> (Program, CancellationToken) {
        let program = Program::new(CancellationToken::new());
        let part = |name, stage, seconds| {
            program.run(name, stage, Duration::from_secs(60), |_, stop| {
                let ended = ended.clone();
                async move {
                    stop.cancelled().await;
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    ended.lock().push(name);
                }
            });
        };
        part("status writer", Stage::Done, 0);
        part("boots", Stage::LastWrites, 0);
        part("http", Stage::Draining, 30);
        part(POWER, Stage::Draining, 2);
        let release = program.stages.token(Stage::LastWrites).child_token();
        program.run("lease", Stage::LastWrites, Duration::from_secs(60), |_, _| {
            let (ended, release) = (ended.clone(), release.clone());
            async move {
                release.cancelled().await;
                ended.lock().push("lease");
            }
        });
        program.start();
        (program, release)
    }

    async fn end(ended: &Ended, statuses: impl Future<Output = ()>, drain: u64) -> Result<(), String> {
        let (program, release) = program(ended);
        let hurry = CancellationToken::new();
        let shutdown = Shutdown::new(program.tasks.clone(), program.stages.clone(), hurry);
        let drain = Duration::from_secs(drain);
        shut_down(shutdown, &program.tasks, statuses, &release, drain)
            .await
            .map_err(|error| error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn power_is_handed_over_first_and_the_status_writer_ends_last() {
        let ended = Ended::default();
        let statuses = async { ended.lock().push("statuses") };
        assert_eq!(end(&ended, statuses, 30).await, Ok(()));
        assert_eq!(*ended.lock(), [POWER, "statuses", "lease", "http", "boots", "status writer"]);
    }

    #[tokio::test(start_paused = true)]
    async fn statuses_and_transfers_that_hang_keep_no_other_part_from_its_end() {
        let ended = Ended::default();
        let start = Instant::now();
        let error = end(&ended, std::future::pending(), 0).await.unwrap_err();
        assert_eq!(error, "stopped before these parts had ended: statuses, http");
        assert_eq!(*ended.lock(), [POWER, "lease", "boots", "status writer"]);
        // Sessions 2 s, statuses 11 s, boots 2 s, status writer 6 s. Transfers have had their time by then.
        assert!(start.elapsed() < Duration::from_secs(22), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn status_write_in_progress_ends_before_the_lease_is_released() {
        let ended = Ended::default();
        let statuses = async {
            tokio::time::sleep(WRITE_DEADLINE).await;
            ended.lock().push("statuses");
        };
        assert_eq!(end(&ended, statuses, 30).await, Ok(()));
        assert_eq!(ended.lock()[..3], [POWER, "statuses", "lease"]);
    }
}
