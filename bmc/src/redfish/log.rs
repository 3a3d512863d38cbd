//! The event log: which of a service's logs, and its newest entries.
//!
//! Pure: no clock, no file, no socket. Caller: `redfish`.

use jiff::Timestamp;
use serde_json::Value;

use super::document::{last_segment, text_of};
use super::inventory::state_of;
use crate::model::{HealthState, LogEntry};

/// Names of hardware event logs, best first: of Dell, of HPE, of Supermicro, of Lenovo.
const HARDWARE: [&str; 7] = ["Sel", "IML", "Log1", "PlatformLog", "StandardLog", "EventLog", "Log"];

/// The log of the hardware; the first log if none has a known name.
pub(crate) fn best(services: &[String]) -> Option<&String> {
    let named = |name: &&str| services.iter().find(|path| last_segment(path).eq_ignore_ascii_case(name));
    HARDWARE.iter().find_map(named).or_else(|| services.first())
}

/// Converts an entry; `None` if it has no message.
pub(crate) fn entry(value: &Value) -> Option<LogEntry> {
    let field = |name: &str| value.get(name).and_then(text_of);
    let time = ["EventTimestamp", "Created"].iter().find_map(|name| field(name)?.parse::<Timestamp>().ok());
    Some(LogEntry {
        time,
        severity: field("Severity").map_or(HealthState::Unknown, |word| state_of(&word)),
        message: field("Message").or_else(|| field("MessageId"))?,
    })
}

/// The newest entries, newest first; those without a time go by their place among the others: services list either way.
pub(crate) fn newest(mut entries: Vec<LogEntry>, count: usize) -> Vec<LogEntry> {
    let times: Vec<Timestamp> = entries.iter().filter_map(|entry| entry.time).collect();
    let oldest_first = times.first() < times.last();
    if oldest_first {
        entries.reverse();
    }
    // Stable: entries of the same second keep their order.
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.time));
    entries.truncate(count);
    entries
}

/// The number at the end of an entry's path, by which links without content are sorted.
pub(crate) fn number(path: &str) -> u64 {
    let segment = last_segment(path);
    let digits = segment.len() - segment.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    segment[segment.len() - digits..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(entries: &[Value], count: usize) -> Vec<String> {
        let entries = entries.iter().filter_map(entry).collect();
        newest(entries, count).into_iter().map(|entry| entry.message).collect()
    }

    #[test]
    fn the_newest_come_first_whichever_way_a_service_lists() {
        let at = |second: u8, message: &str| json!({"Created": format!("2026-11-21T10:00:{second:02}+01:00"), "Message": message});
        assert_eq!(messages(&[at(1, "a"), at(2, "b"), at(2, "c"), at(3, "d")], 3), ["d", "c", "b"]);
        assert_eq!(messages(&[at(3, "d"), at(2, "c"), at(2, "b"), at(1, "a")], 3), ["d", "c", "b"]);
    }

    #[test]
    fn times_that_are_none_do_no_harm() {
        let entries = vec![
            json!({"Created": "0000-00-00T00:00:00Z", "Message": "x", "Severity": "Critical"}),
            json!({"Created": "2026-11-21T10:00:00Z", "MessageId": "Base.1.0.Y"}),
            json!({"Message": null}),
        ];
        assert_eq!(messages(&entries, 9), ["Base.1.0.Y", "x"]);
    }

    #[test]
    fn the_hardware_log_is_preferred() {
        let paths = |names: &[&str]| {
            names.iter().map(|n| format!("/redfish/v1/x/LogServices/{n}")).collect::<Vec<_>>()
        };
        for (names, expected) in [
            (&["Lclog", "FaultList", "Sel"][..], Some("Sel")),
            (&["IEL", "IML"], Some("IML")),
            (&["AuditLog", "StandardLog"], Some("StandardLog")),
            (&["Strange/"], Some("Strange")),
            (&[], None),
        ] {
            assert_eq!(best(&paths(names)).map(|path| last_segment(path)), expected, "{names:?}");
        }
        assert_eq!((number("/x/Entries/17/"), number("/x/Entries/a")), (17, 0));
    }
}
