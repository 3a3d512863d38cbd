//! Puts a clock right that is so wrong that no certificate would be valid: a server whose battery is empty.
//!
//! The time is that of pxed's HTTP answers. It is as trustworthy as the kernel that came the same way, and the host's
//! own time service corrects it afterwards. A clock that is about right is left alone. Called by the driver.

use jiff::{SignedDuration, Timestamp};

use super::error::StageError;

/// Differences up to this are left to the host's time service.
const TOLERATED: SignedDuration = SignedDuration::from_mins(10);

/// What to set the clock to, given what it says now and the `Date` of an answer (RFC 9110, 5.6.7).
fn plan_correction(now: Timestamp, date: &str) -> Option<Timestamp> {
    let served = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date.trim()).ok()?;
    (now.duration_since(served).abs() > TOLERATED).then_some(served)
}

/// Sets the clock if it has to be; whether it was.
pub fn correct(date: Option<&str>) -> Result<bool, StageError> {
    let Some(right) = date.and_then(|date| plan_correction(Timestamp::now(), date)) else { return Ok(false) };
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
            assert_eq!(plan_correction(now, date), expected.map(|text| text.parse().unwrap()), "{date}");
        }
    }
}
