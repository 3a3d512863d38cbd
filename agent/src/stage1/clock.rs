//! Corrects a clock that would make every certificate invalid, such as that of a server with an empty
//! battery.
//!
//! The time is that of pxed's HTTP answers. It is as trustworthy as the kernel that came the same way, and
//! the host's own time service corrects it afterwards. A clock with a small error is not changed. Called by
//! the driver.

use jiff::{SignedDuration, Timestamp};

use super::error::StageError;

/// Differences up to this are left to the host's time service.
const MAX_OFFSET: SignedDuration = SignedDuration::from_mins(10);

/// Reads the `Date` of an answer (RFC 9110, 5.6.7).
fn read_date(date: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date.trim()).ok()
}

/// Returns the new time of the clock, given its current time and pxed's. None: it is close enough.
fn plan_correction(now: Timestamp, served: Timestamp) -> Option<Timestamp> {
    (now.duration_since(served).abs() > MAX_OFFSET).then_some(served)
}

/// Returns by how many whole seconds this machine's clock is ahead of pxed's; negative: behind. Less than two
/// seconds is 0, because the date of an answer has whole seconds and the answer takes time.
pub(crate) fn observe_offset(now: Timestamp, date: &str) -> Option<i64> {
    let offset = now.duration_since(read_date(date)?).as_secs();
    Some(if offset.abs() < 2 { 0 } else { offset })
}

/// Sets the clock by pxed's answer if its error is too large. Returns true if it was set.
pub fn correct(date: Option<&str>) -> Result<bool, StageError> {
    let right = date.and_then(read_date).and_then(|served| plan_correction(Timestamp::now(), served));
    let Some(right) = right else { return Ok(false) };
    let time = nix::sys::time::TimeSpec::new(right.as_second(), 0);
    let set = nix::time::clock_settime(nix::time::ClockId::CLOCK_REALTIME, time);
    set.map(|()| true).map_err(StageError::system("set", "the clock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_that_is_far_off_is_set() {
        let now: Timestamp = "2026-11-21T15:00:00Z".parse().unwrap();
        for (date, expected) in [
            ("Sat, 21 Nov 2026 15:09:59 GMT", None),
            ("Sat, 21 Nov 2026 14:50:01 GMT", None),
            ("Sat, 21 Nov 2026 15:10:01 GMT", Some("2026-11-21T15:10:01Z")),
            ("Tue, 21 Nov 2028 15:00:00 GMT", Some("2028-11-21T15:00:00Z")),
            ("yesterday", None),
            ("", None),
        ] {
            let planned = read_date(date).and_then(|served| plan_correction(now, served));
            assert_eq!(planned, expected.map(|text| text.parse().unwrap()), "{date}");
        }
    }

    #[test]
    fn the_offset_is_what_the_own_clock_is_ahead() {
        let now: Timestamp = "2026-11-21T15:00:00.9Z".parse().unwrap();
        for (date, expected) in [
            ("Sat, 21 Nov 2026 14:59:59 GMT", Some(0)),
            ("Sat, 21 Nov 2026 15:00:02 GMT", Some(0)),
            ("Sat, 21 Nov 2026 14:58:00 GMT", Some(120)),
            ("Sat, 21 Nov 2026 15:01:00 GMT", Some(-59)),
            ("Sun, 21 Nov 2027 15:00:00 GMT", Some(-365 * 86_400 + 1)),
            ("yesterday", None),
        ] {
            assert_eq!(observe_offset(now, date), expected, "{date}");
        }
    }
}
