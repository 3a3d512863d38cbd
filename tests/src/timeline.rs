//! A boot's timeline as text: how long after power-on each stage was reached.
//!
//! The times are pxed's own; only their differences to power-on, taken by the test on the same clock, are made here.

use std::io::Write;

use jiff::Timestamp;
use serde_json::Value;

/// One stage of a boot.
#[derive(Debug, Clone, PartialEq)]
pub struct Reached {
    /// The stage as in `status.boot.timeline`.
    pub stage: String,
    /// When.
    pub time: Timestamp,
    /// Message of the failure there, if it was one.
    pub failure: Option<String>,
}

/// The timeline of a Machine's latest boot.
pub fn of(machine: &Value) -> Vec<Reached> {
    let entries = machine.pointer("/status/boot/timeline").and_then(Value::as_array);
    let reached = |entry: &Value| {
        Some(Reached {
            stage: entry.get("stage")?.as_str()?.to_owned(),
            time: entry.get("time")?.as_str()?.parse().ok()?,
            failure: entry.get("failed").and_then(Value::as_bool).unwrap_or_default().then(|| message(entry)),
        })
    };
    entries.into_iter().flatten().filter_map(reached).collect()
}

fn message(entry: &Value) -> String {
    entry.get("message").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns true if the latest boot has reached a stage.
pub fn has(machine: &Value, stage: &str) -> bool {
    of(machine).iter().any(|reached| reached.stage == stage && reached.failure.is_none())
}

/// Seconds from `since` to a stage's first appearance.
pub fn seconds_to(machine: &Value, stage: &str, since: Timestamp) -> Option<f64> {
    let entry =
        of(machine).into_iter().find(|reached| reached.stage == stage && reached.failure.is_none())?;
    Some((entry.time - since).total(jiff::Unit::Second).unwrap_or_default())
}

/// `discover 1.2  offered 1.2 ... enrolled 14.3 s`, in seconds since `since`.
pub fn line(machine: &Value, since: Timestamp) -> String {
    let mut text = String::new();
    for reached in of(machine) {
        let seconds = (reached.time - since).total(jiff::Unit::Second).unwrap_or_default();
        let mark = if reached.failure.is_some() { "!" } else { "" };
        text.push_str(&format!("{}{mark} {seconds:.1}  ", reached.stage.to_lowercase()));
    }
    format!("{} s", text.trim_end())
}

/// Prints a boot's stage times even when the test passes, past the test harness, which holds back what `println!` writes.
pub fn report(test: &str, machine: &Value, since: Timestamp) {
    say(&format!("boot {test}: {}", line(machine, since)));
}

/// Prints a line past the test harness.
pub fn say(text: &str) {
    // One write, so that lines of concurrent tests stay complete.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stages_are_shown_in_seconds_since_power_on() {
        let machine = json!({"status": {"boot": {"timeline": [
            {"stage": "Discover", "time": "2026-01-01T00:00:01.250000Z"},
            {"stage": "RootFS", "time": "2026-01-01T00:00:03Z", "failed": true, "message": "no disk"},
            {"stage": "Enrolled", "time": "2026-01-01T00:00:14.500000Z"},
        ]}}});
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(line(&machine, since), "discover 1.2  rootfs! 3.0  enrolled 14.5 s");
        assert!(has(&machine, "Enrolled") && !has(&machine, "RootFS"));
        assert_eq!(seconds_to(&machine, "Enrolled", since), Some(14.5));
    }
}
