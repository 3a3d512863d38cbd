//! Writes the status of operations that no worker takes.
//!
//! Part of `supervisor`.

use std::sync::Arc;
use std::time::Duration;

use crate::power::counters::OperationResult;
use crate::power::fleet::assignment::Shared;
use crate::power::plan::parameters::Kind;
use crate::power::plan::queue::Answer;
use crate::power::{Operation, WriteOperationError};

/// Before an answer is written again that could not be.
const ANSWER_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of attempts to write an answer; the next update of the source starts over.
const MAX_ANSWER_ATTEMPTS: usize = 5;

/// Writes an answer; what came of it.
pub(super) async fn answer_operation(
    shared: Arc<Shared>,
    operation: Operation,
    answer: Answer,
) -> Option<Operation> {
    for _ in 0..MAX_ANSWER_ATTEMPTS {
        let status = answer.status(&operation, &shared.instance, shared.now());
        match shared.writer.write(&operation, status).await {
            Ok(written) => {
                if let (true, Some(kind)) = (answer.is_end(), Kind::of(&operation.object.spec.operation_name))
                {
                    shared.counters.operation(kind, OperationResult::Failed);
                }
                return Some(written);
            }
            Err(WriteOperationError::Later(why)) => {
                tracing::debug!(operation = operation.key.name, why, "operation status write postponed");
                tokio::time::sleep(ANSWER_RETRY_DELAY).await;
            }
            Err(error) => {
                tracing::debug!(operation = operation.key.name, %error, "failed to answer an operation");
                return None;
            }
        }
    }
    None
}
