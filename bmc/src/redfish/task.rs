//! Long-running operations (DSP0266, "Asynchronous operations"): progress of a task.
//!
//! Pure: no clock, no file, no socket. Caller: `redfish`.

use serde_json::Value;

use super::document::{Document, is_path, parse};
use super::message::sentence;
use crate::error::printable;

/// State of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    Running,
    Done,
    Failed(String),
}

/// Returns the path of a task from the body of a 202 without a `Location`.
pub(crate) fn place(path: &str, body: &[u8]) -> Option<String> {
    let task = Document::parse(path, None, body).ok()?;
    let monitor = task.at("/TaskMonitor").and_then(Value::as_str).map(str::to_owned);
    let own = || task.at("/TaskState").and_then(|_| task.link_in("", &task.value).ok());
    monitor.filter(|place| is_path(place)).or_else(own)
}

/// Interprets the answer of a task or its monitor; `accepted` is true if it came with 202.
pub(crate) fn progress(accepted: bool, body: &[u8]) -> Progress {
    let value = parse(body).unwrap_or(Value::Null);
    let state = value.get("TaskState").and_then(Value::as_str);
    match state {
        Some("Completed") if bad(&value) => Progress::Failed(why(&value, "Completed")),
        Some("Completed") => Progress::Done,
        Some(state @ ("Exception" | "Killed" | "Cancelled")) => Progress::Failed(why(&value, state)),
        Some(_) => Progress::Running,
        None if accepted => Progress::Running,
        None => Progress::Done,
    }
}

fn bad(task: &Value) -> bool {
    task.get("TaskStatus").and_then(Value::as_str) == Some("Critical")
}

fn why(task: &Value, state: &str) -> String {
    let messages = task.get("Messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let said: Vec<String> = messages.iter().take(8).filter_map(sentence).collect();
    printable(format!("the task ended in state {state}. {}", said.join(" ")).trim_end())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_task_is_done_when_it_says_so() {
        for (accepted, body, expected) in [
            (true, json!(null), Progress::Running),
            (false, json!(null), Progress::Done),
            (true, json!({"TaskState": "Running"}), Progress::Running),
            // Tasks themselves answer 200 all the time.
            (false, json!({"TaskState": "Starting"}), Progress::Running),
            // The task continues without a request (DSP2046, TaskState).
            (false, json!({"TaskState": "Interrupted"}), Progress::Running),
            (false, json!({"TaskState": "Completed", "TaskStatus": "OK"}), Progress::Done),
            (
                false,
                json!({"TaskState": "Exception", "Messages": [{"Message": "No power.\n"}]}),
                Progress::Failed("the task ended in state Exception. No power.".to_owned()),
            ),
            (
                false,
                json!({"TaskState": "Completed", "TaskStatus": "Critical"}),
                Progress::Failed("the task ended in state Completed.".to_owned()),
            ),
        ] {
            assert_eq!(progress(accepted, body.to_string().as_bytes()), expected, "{accepted} {body}");
        }
    }

    #[test]
    fn a_task_without_location_is_found_in_the_body() {
        for (body, expected) in [
            (json!({"TaskMonitor": "/taskmon/5"}), Some("/taskmon/5")),
            (
                json!({"TaskState": "New", "@odata.id": "/redfish/v1/TaskService/Tasks/5"}),
                Some("/redfish/v1/TaskService/Tasks/5"),
            ),
            (json!({"TaskMonitor": "https://evil.example/"}), None),
            (json!({"@odata.id": "/redfish/v1/Systems/1"}), None),
        ] {
            assert_eq!(place("/x", body.to_string().as_bytes()).as_deref(), expected, "{body}");
        }
        assert_eq!(place("/x", b""), None);
    }
}
