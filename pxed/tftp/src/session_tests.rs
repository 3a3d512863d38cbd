//! Table tests of the session. Transfers over a lossy network are in tests/lossy.rs.

#![allow(clippy::arithmetic_side_effects)]

use super::*;
use crate::wire::AskedOption;

const MILLISECOND: Duration = Duration::from_millis(1);

fn agreed(block_size: u16, window: u16, options: bool) -> Agreed {
    let acknowledged = if options { vec![AskedOption::BlockSize(block_size.into())] } else { Vec::new() };
    Agreed { block_size, window, timeout: None, acknowledged }
}

fn start(block_size: u16, window: u16, length: u64) -> (Session, Instant) {
    let now = Instant::now();
    let (session, first) = Session::start(&agreed(block_size, window, false), length, Retry::default(), now);
    let end = (u64::from(window) + 1).min(session.last + 1);
    assert_eq!(first, Transmit::Blocks(1, end));
    (session, now)
}

#[test]
fn file_of_whole_blocks_ends_with_an_empty_one() {
    for (length, last) in [(0, 1), (1, 1), (511, 1), (512, 2), (513, 2), (1024, 3)] {
        let (session, _) = start(512, 1, length);
        assert_eq!(session.last, last, "{length} bytes");
        let size = session.payload(last).end - session.payload(last).start;
        assert_eq!(size, length - (last - 1) * 512, "{length} bytes");
    }
}

#[test]
fn lock_step_sends_one_block_for_each_ack() {
    let (mut session, now) = start(512, 1, 1000);
    assert_eq!(session.acknowledge(1, now), Some(Transmit::Blocks(2, 3)));
    assert_eq!(session.acknowledge(2, now), None);
    assert_eq!(session.outcome(), Some(Outcome::Complete));
    assert_eq!(session.acknowledged_bytes(), 1000);
}

#[test]
fn duplicate_ack_sends_nothing_in_lock_step() {
    let (mut session, now) = start(512, 1, 5000);
    assert_eq!(session.acknowledge(1, now + MILLISECOND), Some(Transmit::Blocks(2, 3)));
    for _ in 0..10 {
        assert_eq!(session.acknowledge(1, now + 100 * MILLISECOND), None);
        assert_eq!(session.acknowledge(0, now + 100 * MILLISECOND), None);
    }
}

#[test]
fn options_are_offered_and_wait_for_ack_0() {
    let now = Instant::now();
    let (mut session, first) = Session::start(&agreed(1468, 4, true), 100_000, Retry::default(), now);
    assert_eq!(first, Transmit::Offer);
    assert_eq!(session.acknowledge(1, now), None);
    assert_eq!(session.acknowledge(0, now), Some(Transmit::Blocks(1, 5)));
}

#[test]
fn ack_inside_a_window_goes_back_to_the_loss() {
    let (mut session, now) = start(512, 8, 100_000);
    assert_eq!(session.acknowledge(8, now + MILLISECOND), Some(Transmit::Blocks(9, 17)));
    assert_eq!(session.acknowledge(11, now + 2 * MILLISECOND), Some(Transmit::Blocks(12, 20)));
}

#[test]
fn rfc7440_no_new_block_is_sent_before_those_to_repeat() {
    let (mut session, now) = start(512, 8, 100_000);
    // A client under load needs 100 ms for its first window. It then misses block 12 and says so after 1 ms.
    let answered = now + 100 * MILLISECOND;
    assert_eq!(session.acknowledge(8, answered), Some(Transmit::Blocks(9, 17)));
    assert_eq!(session.acknowledge(11, answered + MILLISECOND), None, "blocks 12 to 16 may be on their way");
    let resumes = session.deadline();
    assert_eq!(resumes - answered, 50 * MILLISECOND, "half a round trip");
    assert_eq!(session.elapse(resumes), Some(Transmit::Blocks(12, 20)));
    assert_eq!(session.acknowledge(19, resumes + 100 * MILLISECOND), Some(Transmit::Blocks(20, 28)));
}

#[test]
fn rfc7440_early_acks_of_a_window_do_not_count_as_attempts() {
    let now = Instant::now();
    let retry = Retry { attempts: 1, ..Retry::default() };
    let (mut session, _) = Session::start(&agreed(512, 8, false), 100_000, retry, now);
    let mut at = now + 100 * MILLISECOND;
    session.acknowledge(8, at);
    for block in [10_u64, 12, 14, 16] {
        assert_eq!(session.acknowledge(wire_number(block), at + MILLISECOND), None, "{block}");
        at = session.deadline();
        assert_eq!(session.elapse(at), Some(Transmit::Blocks(block + 1, block + 9)));
    }
    assert!(session.elapse(session.deadline()).is_some(), "the one attempt is left");
}

#[test]
fn lost_first_block_of_a_window_is_repeated_once() {
    let (mut session, now) = start(512, 8, 100_000);
    assert_eq!(session.acknowledge(8, now + MILLISECOND), Some(Transmit::Blocks(9, 17)));
    let later = now + 3 * MILLISECOND;
    assert_eq!(session.acknowledge(8, later), Some(Transmit::Blocks(9, 17)));
    assert_eq!(session.acknowledge(8, later + 3 * MILLISECOND), None, "once, then the timer");
}

#[test]
fn ack_after_half_a_round_trip_goes_back_at_once() {
    let (mut session, now) = start(512, 8, 100_000);
    let answered = now + 100 * MILLISECOND;
    assert_eq!(session.acknowledge(8, answered), Some(Transmit::Blocks(9, 17)));
    assert_eq!(session.acknowledge(11, answered + 50 * MILLISECOND), Some(Transmit::Blocks(12, 20)));
}

#[test]
fn ack_duplicated_by_the_network_repeats_no_window() {
    let (mut session, now) = start(512, 8, 100_000);
    let answered = now + 10 * MILLISECOND;
    assert_eq!(session.acknowledge(8, answered), Some(Transmit::Blocks(9, 17)));
    assert_eq!(session.acknowledge(8, answered + MILLISECOND), None);
}

#[test]
fn client_that_acknowledges_each_block_of_a_window_gets_each_block_once() {
    let (mut session, now) = start(512, 4, 512 * 100);
    let answered = now + 10 * MILLISECOND;
    assert_eq!(session.acknowledge(4, answered), Some(Transmit::Blocks(5, 9)));
    let mut sent = 8;
    for number in 5..50 {
        if let Some(Transmit::Blocks(first, end)) = session.acknowledge(number, answered + MILLISECOND) {
            assert_eq!(first, sent + 1, "no block twice");
            sent = end - 1;
        }
    }
    assert_eq!(sent, 52, "a window after each ACK of a whole one");
}

#[test]
fn wire_numbers_roll_over_to_0() {
    assert_eq!([65535, 65536, 65537, 131_072].map(wire_number), [65535, 0, 1, 0]);
    let (mut session, now) = start(8, 1, 8 * 70_000);
    for block in 1..=70_000_u64 {
        assert_eq!(
            session.acknowledge(wire_number(block), now),
            Some(Transmit::Blocks(block + 1, block + 2))
        );
    }
}

#[test]
fn old_acks_from_before_a_roll_over_are_ignored() {
    let (mut session, now) = start(8, 4, 8 * 70_000);
    for block in (4..=65_536_u64).step_by(4) {
        session.acknowledge(wire_number(block), now);
    }
    assert_eq!(session.acknowledged, 65_536);
    assert_eq!(session.acknowledge(65_532, now), None);
    assert_eq!(session.acknowledged, 65_536);
}

#[test]
fn waits_double_up_to_the_cap_then_the_session_ends() {
    let now = Instant::now();
    let retry = Retry { unheard: Duration::from_secs(3600), ..Retry::default() };
    let (mut session, _) = Session::start(&agreed(512, 1, false), 5000, retry, now);
    let mut waits = Vec::new();
    let mut at = now;
    while session.outcome().is_none() {
        waits.push((session.deadline() - at).as_secs());
        at = session.deadline();
        assert_eq!(session.elapse(at - MILLISECOND), None, "not before its time");
        if let Some(again) = session.elapse(at) {
            assert_eq!(again, Transmit::Blocks(1, 2));
        }
    }
    assert_eq!(waits, [1, 2, 4, 8, 8, 8, 8]);
    assert_eq!(session.outcome(), Some(Outcome::TimedOut));
}

#[test]
fn timeout_option_is_the_first_wait() {
    let now = Instant::now();
    let agreed = Agreed { timeout: Some(Duration::from_secs(3)), ..agreed(512, 1, true) };
    let (session, _) = Session::start(&agreed, 5000, Retry::default(), now);
    assert_eq!(session.deadline() - now, Duration::from_secs(3));
}

#[test]
fn transfer_of_a_client_that_never_answers_ends_after_10_s() {
    let now = Instant::now();
    for timeout in [None, Some(1), Some(10)] {
        let agreed =
            Agreed { timeout: timeout.map(Duration::from_secs), ..agreed(512, 1, timeout.is_some()) };
        let (mut session, _) = Session::start(&agreed, 5000, Retry::default(), now);
        let mut at = now;
        while session.outcome().is_none() {
            at = session.deadline();
            session.elapse(at);
        }
        assert_eq!((at - now, session.outcome()), (Duration::from_secs(10), Some(Outcome::TimedOut)));
    }
}

#[test]
fn client_that_answers_late_but_in_time_is_served() {
    let (mut session, now) = start(512, 1, 5000);
    let answered = now + Duration::from_millis(9_900);
    assert_eq!(session.acknowledge(1, answered), Some(Transmit::Blocks(2, 3)));
    let deadline = session.deadline();
    assert!(deadline > now + Duration::from_secs(10));
    assert_eq!(session.elapse(deadline), Some(Transmit::Blocks(2, 3)));
}

#[test]
fn fast_client_is_asked_again_soon() {
    let (mut session, now) = start(512, 1, 5000);
    let answered = now + MILLISECOND;
    assert_eq!(session.round_trip(), None);
    session.acknowledge(1, answered);
    assert_eq!(session.round_trip(), Some(MILLISECOND));
    assert_eq!(session.deadline() - answered, Retry::default().least);
}

#[test]
fn stopped_server_sends_nothing_more() {
    let (mut session, now) = start(512, 1, 5000);
    session.stop();
    assert_eq!(session.outcome(), Some(Outcome::Stopped));
    assert_eq!(session.acknowledge(1, now), None);
}

#[test]
fn error_ends_at_once_whatever_comes_after() {
    let (mut session, now) = start(512, 1, 5000);
    session.abort();
    assert_eq!(session.outcome(), Some(Outcome::ClientAborted));
    assert_eq!(session.acknowledge(1, now), None);
    assert_eq!(session.elapse(now + Duration::from_secs(60)), None);
    session.stop();
    assert_eq!(session.outcome(), Some(Outcome::ClientAborted));
}

#[test]
fn repeated_request_repeats_the_answer_once_and_only_before_progress() {
    let (mut session, now) = start(512, 1, 5000);
    assert_eq!(session.request_repeated(now), Some(Transmit::Blocks(1, 2)));
    assert_eq!(session.request_repeated(now), None);
    session.acknowledge(1, now);
    assert_eq!(session.request_repeated(now), None);
}

#[test]
fn blocks_the_network_did_not_take_are_sent_soon() {
    let (mut session, now) = start(512, 8, 100_000);
    session.unsent(5, now);
    assert_eq!(session.deadline() - now, 5 * MILLISECOND);
    assert_eq!(session.acknowledge(4, now + MILLISECOND), Some(Transmit::Blocks(5, 13)));
}
