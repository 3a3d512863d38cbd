//! Pure: serial over LAN (IPMI 2.0 section 15), the console's side: characters into packets that are acknowledged, and back. Payloads,
//! characters and time in; payloads, characters and a deadline out.
//!
//! One packet is on its way at a time, with a number of 1 to 15, and is sent again until it is acknowledged. Of what the BMC did not accept
//! the rest goes into the next packet. What comes twice is acknowledged twice and taken once.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::session::Retry;

/// Octets before the characters.
const HEADER_OCTETS: usize = 4;
/// Highest number of a packet.
const MOST_NUMBER: u8 = 15;
/// Characters that wait to be sent.
const MOST_PENDING: usize = 4096;
/// Bit of the fourth octet: the acknowledged packet is refused.
const NACK: u8 = 0x40;
/// Likewise: serial over LAN is or gets switched off.
const DEACTIVATED: u8 = 0x10;

/// A packet on its way.
struct Sent {
    number: u8,
    data: Vec<u8>,
    attempt: u32,
    until: Instant,
}

/// One end of a serial line.
pub(crate) struct Sol {
    retry: Retry,
    /// Characters of a packet at most.
    most: usize,
    number: u8,
    pending: VecDeque<u8>,
    sent: Option<Sent>,
    /// Not before: the BMC refused.
    rest: Option<Instant>,
    /// Number of the packet that came last, and its characters.
    last: (u8, usize),
    payloads: VecDeque<Vec<u8>>,
    over: bool,
    /// Deadline for sending the rest after the writer was dropped.
    left: Option<Instant>,
}

impl Sol {
    /// A line to a BMC that takes payloads of `most` octets.
    #[must_use]
    pub(crate) fn new(most: u16, retry: Retry) -> Self {
        let most = usize::from(most).saturating_sub(HEADER_OCTETS).clamp(1, 255);
        let (pending, payloads) = (VecDeque::new(), VecDeque::new());
        let (sent, rest, left) = (None, None, None);
        Self { retry, most, number: 0, pending, sent, rest, last: (0, 0), payloads, over: false, left }
    }

    /// Returns the number of characters that may be written now.
    #[must_use]
    pub(crate) fn room(&self) -> usize {
        MOST_PENDING.saturating_sub(self.pending.len())
    }

    /// Returns true if the line has ended: the BMC switched it off or does not acknowledge any more, or the writer
    /// was dropped and all is sent.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        self.over || (self.left.is_some() && self.sent.is_none() && self.pending.is_empty())
    }

    /// Records that the writer was dropped. The rest is still sent, unless the BMC accepts none of it during all
    /// attempts of one packet.
    pub(crate) fn leave(&mut self, now: Instant) {
        self.left = self.left.or_else(|| now.checked_add(self.retry.whole()));
    }

    /// Queues characters for the machine; those beyond [`Sol::room`] are dropped.
    pub(crate) fn write(&mut self, characters: &[u8], now: Instant) {
        let fits = characters.get(..self.room()).unwrap_or(characters);
        self.pending.extend(fits);
        self.go_on(now);
    }

    /// Takes a payload; gives the machine's characters in it that are new.
    pub(crate) fn receive(&mut self, payload: &[u8], now: Instant) -> Vec<u8> {
        let Some((&[number, acknowledged, accepted, status], data)) =
            payload.split_first_chunk::<HEADER_OCTETS>()
        else {
            return Vec::new();
        };
        self.over |= status & DEACTIVATED != 0;
        let (number, acknowledged) = (number & 0x0f, acknowledged & 0x0f);
        if acknowledged != 0 {
            self.acknowledged(acknowledged, accepted.into(), status & NACK != 0, now);
        }
        let mut fresh = Vec::new();
        if number != 0 {
            let (last, known) = self.last;
            // One that comes again may have grown.
            let from = if number == last { known } else { 0 };
            fresh = data.get(from..).unwrap_or_default().to_vec();
            self.last = (number, data.len().max(from));
            let accepted = u8::try_from(data.len()).unwrap_or(u8::MAX);
            self.payloads.push_back(vec![0, number, accepted, 0]);
        }
        self.go_on(now);
        fresh
    }

    fn acknowledged(&mut self, number: u8, accepted: usize, refused: bool, now: Instant) {
        let Some(sent) = self.sent.take_if(|sent| sent.number == number) else { return };
        for character in sent.data.iter().skip(accepted).rev() {
            self.pending.push_front(*character);
        }
        if accepted > 0 && self.left.is_some() {
            self.left = now.checked_add(self.retry.whole());
        }
        // A BMC that takes nothing without refusing would be asked again as fast as it answers.
        if refused || accepted == 0 {
            self.rest = now.checked_add(self.retry.first);
        }
    }

    /// Sends the next packet if none is on its way.
    fn go_on(&mut self, now: Instant) {
        if self.sent.is_some()
            || self.pending.is_empty()
            || self.rest.is_some_and(|rest| now < rest)
            || self.over
        {
            return;
        }
        self.rest = None;
        self.number = if self.number >= MOST_NUMBER { 1 } else { self.number.saturating_add(1) };
        let count = self.pending.len().min(self.most);
        let data: Vec<u8> = self.pending.drain(..count).collect();
        self.payloads.push_back(packet(self.number, &data));
        let until = later(now, self.retry.wait(1));
        self.sent = Some(Sent { number: self.number, data, attempt: 1, until });
    }

    /// Lets time pass: due at [`Sol::deadline`].
    pub(crate) fn elapse(&mut self, now: Instant) {
        if self.left.is_some_and(|left| now >= left) {
            self.over = true;
            return;
        }
        if let Some(sent) = self.sent.as_mut().filter(|sent| now >= sent.until) {
            sent.attempt = sent.attempt.saturating_add(1);
            if sent.attempt > self.retry.attempts {
                self.over = true;
                return;
            }
            sent.until = later(now, self.retry.wait(sent.attempt));
            self.payloads.push_back(packet(sent.number, &sent.data));
        }
        self.go_on(now);
    }

    /// Time at which [`Sol::elapse`] is due. `None`: only received or written data changes the state.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = match &self.sent {
            _ if self.is_over() => return None,
            Some(sent) => Some(sent.until),
            None => self.rest.filter(|_| !self.pending.is_empty()),
        };
        next.into_iter().chain(self.left).min()
    }

    /// The next payload to send.
    pub(crate) fn transmit(&mut self) -> Option<Vec<u8>> {
        self.payloads.pop_front()
    }
}

fn packet(number: u8, data: &[u8]) -> Vec<u8> {
    [&[number, 0, 0, 0], data].concat()
}

fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(now: Instant) -> (Sol, Instant) {
        let retry = Retry { first: Duration::from_secs(1), most: Duration::from_secs(2), attempts: 3 };
        (Sol::new(8, retry), now)
    }

    #[test]
    fn a_lost_packet_is_sent_again_as_it_was_and_the_next_waits_for_it() {
        let (mut sol, now) = line(Instant::now());
        sol.write(b"abcdef", now);
        assert_eq!(sol.transmit().unwrap(), b"\x01\0\0\0abcd");
        assert!(sol.transmit().is_none());
        sol.elapse(sol.deadline().unwrap());
        assert_eq!(sol.transmit().unwrap(), b"\x01\0\0\0abcd");
        assert!(sol.receive(&[0, 1, 4, 0], now).is_empty());
        assert_eq!(sol.transmit().unwrap(), b"\x02\0\0\0ef");
        sol.receive(&[0, 2, 2, 0], now);
        assert!(sol.deadline().is_none() && sol.transmit().is_none());
    }

    #[test]
    fn unaccepted_characters_are_sent_again_after_a_pause_if_refused() {
        let (mut sol, now) = line(Instant::now());
        sol.write(b"abcd", now);
        sol.transmit().unwrap();
        sol.receive(&[0, 1, 1, 0], now);
        assert_eq!(sol.transmit().unwrap(), b"\x02\0\0\0bcd");
        sol.receive(&[0, 2, 0, NACK], now);
        assert!(sol.transmit().is_none());
        sol.elapse(sol.deadline().unwrap());
        assert_eq!(sol.transmit().unwrap(), b"\x03\0\0\0bcd");
    }

    #[test]
    fn a_bmc_that_takes_nothing_is_not_asked_again_at_once() {
        let (mut sol, now) = line(Instant::now());
        sol.write(b"abcd", now);
        sol.transmit().unwrap();
        // The machine is off: nothing can be handed over (bit 5), and nothing is refused.
        sol.receive(&[0, 1, 0, 0x20], now);
        assert!(sol.transmit().is_none());
        sol.elapse(sol.deadline().unwrap());
        assert_eq!(sol.transmit().unwrap(), b"\x02\0\0\0abcd");
    }

    #[test]
    fn a_line_that_was_left_is_over_when_all_is_sent_or_its_time_has_come() {
        let (mut sol, now) = line(Instant::now());
        sol.write(b"a", now);
        sol.leave(now);
        assert!(!sol.is_over());
        sol.receive(&[0, 1, 1, 0], now);
        assert!(sol.is_over());
        let (mut sol, now) = line(now);
        sol.write(b"a", now);
        sol.leave(now);
        let mut time = now;
        while let Some(until) = sol.deadline() {
            while let Some(payload) = sol.transmit() {
                let number = *payload.first().unwrap();
                sol.receive(&[0, number, 0, 0x20], time);
            }
            assert!(until <= now + sol.retry.whole());
            time = until;
            sol.elapse(time);
        }
        assert!(sol.is_over());
    }

    #[test]
    fn duplicate_packet_is_read_once_and_acknowledged_twice() {
        let (mut sol, now) = line(Instant::now());
        assert_eq!(sol.receive(b"\x05\0\0\0xyz", now), b"xyz");
        assert_eq!(sol.transmit().unwrap(), [0, 5, 3, 0]);
        assert!(sol.receive(b"\x05\0\0\0xyz", now).is_empty());
        assert_eq!(sol.transmit().unwrap(), [0, 5, 3, 0]);
        assert_eq!(sol.receive(b"\x05\0\0\0xyz!", now), b"!");
        assert_eq!(sol.transmit().unwrap(), [0, 5, 4, 0]);
        assert_eq!(sol.receive(b"\x06\0\0\0xyz", now), b"xyz");
    }

    #[test]
    fn a_line_that_is_switched_off_or_never_acknowledges_is_over() {
        let (mut sol, now) = line(Instant::now());
        sol.write(b"a", now);
        for _ in 0..3 {
            sol.elapse(sol.deadline().unwrap());
        }
        assert!(sol.is_over() && sol.deadline().is_none());
        let (mut sol, now) = line(now);
        sol.receive(&[0, 0, 0, DEACTIVATED], now);
        assert!(sol.is_over());
    }

    #[test]
    fn numbers_go_round_without_zero() {
        let (mut sol, now) = line(Instant::now());
        for round in 0..40_u8 {
            sol.write(b"a", now);
            let number = round % 15 + 1;
            assert_eq!(sol.transmit().unwrap().first(), Some(&number));
            sol.receive(&[0, number, 1, 0], now);
        }
    }
}
