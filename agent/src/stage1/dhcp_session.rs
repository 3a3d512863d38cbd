//! One try for a lease (RFC 2131, 4.4.1), without clock or socket.
//!
//! Pure: the driver passes datagrams and timeouts, the session returns the message to send and the time to
//! wait.
//!
//! ```text
//!   Selecting --offer--> Requesting --ack--> Bound
//!       ^  |timeout: send again  |timeout: send again
//!       |                        |nak, or too many tries
//!       +------------------------+
//! ```
//! After [`MAX_SENDS`] messages the session has failed; stage-1 then waits and starts a new one.

use std::time::Duration;

use bedplate_api::id::MacAddress;

use super::dhcp_wire::{Kind, Lease, Reply, Request, decode, encode};

/// Maximum number of messages in one session: about 40 s.
pub(crate) const MAX_SENDS: u32 = 9;
const MAX_REQUESTS: u32 = 3;

/// Next act of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// Send `message` by broadcast, then wait for an answer, at most `wait`.
    Send {
        /// Complete DHCP message.
        message: Vec<u8>,
        /// Timeout of its answer.
        wait: Duration,
    },
    /// The packet is not for us: wait for the rest of the time.
    Wait,
    /// The lease is granted.
    Bound {
        /// The lease.
        lease: Lease,
        /// Server that granted the lease.
        server: std::net::Ipv4Addr,
    },
    /// No lease; with the human-readable reason.
    Failed(String),
}

#[derive(Debug, Clone)]
enum State {
    Selecting,
    Requesting { offer: Reply, sent: u32 },
}

/// One attempt to get a lease.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    xid: u32,
    mac: MacAddress,
    state: State,
    sends: u32,
    offers: u32,
    refusals: u32,
}

impl Session {
    /// A session of `mac` in transaction `xid`, which was drawn at random.
    pub(crate) fn new(xid: u32, mac: MacAddress) -> Self {
        Self { xid, mac, state: State::Selecting, sends: 0, offers: 0, refusals: 0 }
    }

    /// First act, and the act when the time for an answer is up. `elapsed` is the time since the session began,
    /// `jitter` any random number.
    pub(crate) fn time_up(&mut self, elapsed: Duration, jitter: u64) -> Act {
        if self.sends >= MAX_SENDS {
            return Act::Failed(self.failure());
        }
        if let State::Requesting { sent, .. } = &self.state
            && *sent >= MAX_REQUESTS
        {
            self.state = State::Selecting;
        }
        self.send(elapsed, jitter)
    }

    /// A datagram arrived.
    pub(crate) fn received(&mut self, datagram: &[u8], elapsed: Duration, jitter: u64) -> Act {
        let Some(reply) = decode(datagram, self.xid, self.mac) else { return Act::Wait };
        match (&self.state, reply.kind) {
            (State::Selecting, Kind::Offer) => {
                self.offers = self.offers.saturating_add(1);
                self.state = State::Requesting { offer: reply, sent: 0 };
                self.send(elapsed, jitter)
            }
            (State::Requesting { offer, .. }, Kind::Ack) if reply.server == offer.server => {
                Act::Bound { lease: reply.lease, server: reply.server }
            }
            (State::Requesting { offer, .. }, Kind::Nak) if reply.server == offer.server => {
                self.refusals = self.refusals.saturating_add(1);
                self.state = State::Selecting;
                self.time_up(elapsed, jitter)
            }
            (State::Selecting, Kind::Ack | Kind::Nak)
            | (State::Requesting { .. }, Kind::Offer | Kind::Ack | Kind::Nak) => Act::Wait,
        }
    }

    fn send(&mut self, elapsed: Duration, jitter: u64) -> Act {
        let (request, round) = match &mut self.state {
            State::Selecting => (Request::Discover, self.sends),
            State::Requesting { offer, sent } => {
                let round = *sent;
                *sent = sent.saturating_add(1);
                (Request::Select { address: offer.lease.address, server: offer.server }, round)
            }
        };
        self.sends = self.sends.saturating_add(1);
        let seconds = u16::try_from(elapsed.as_secs()).unwrap_or(u16::MAX);
        // RFC 2131, 4.1: randomized exponential backoff. It starts at 1 s,
        // because pxed is on the same network.
        let base = 1000_u64 << round.min(3);
        let wait = Duration::from_millis(base + jitter % (base / 2));
        Act::Send { message: encode(request, self.xid, self.mac, seconds), wait }
    }

    fn failure(&self) -> String {
        match (self.offers, self.refusals) {
            (0, _) => "no DHCP server answered".to_owned(),
            (_, 0) => "a DHCP server offered an address, but did not acknowledge it".to_owned(),
            _ => "the DHCP server refused the address that it had offered".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage1::dhcp_wire::tests::{MAC, OFFER, answer};

    const NO_TIME: Duration = Duration::ZERO;
    const ACK: [u8; 9] = [53, 1, 5, 54, 4, 10, 7, 0, 1];
    const NAK: [u8; 9] = [53, 1, 6, 54, 4, 10, 7, 0, 1];

    fn kind(act: &Act) -> &'static str {
        match act {
            Act::Send { message, .. } if message[242] == 1 => "discover",
            Act::Send { .. } => "request",
            Act::Wait => "wait",
            Act::Bound { .. } => "bound",
            Act::Failed(_) => "failed",
        }
    }

    #[test]
    fn offer_is_requested_and_its_ack_binds() {
        let mut session = Session::new(7, MAC);
        assert_eq!(kind(&session.time_up(NO_TIME, 0)), "discover");
        let offer = answer(7, MAC, [10, 7, 0, 9], &OFFER);
        assert_eq!(kind(&session.received(&offer, NO_TIME, 0)), "request");
        assert_eq!(kind(&session.received(&offer, NO_TIME, 0)), "wait", "a second offer");
        let other = answer(7, MAC, [10, 7, 0, 8], &[53, 1, 5, 54, 4, 10, 7, 0, 2]);
        assert_eq!(kind(&session.received(&other, NO_TIME, 0)), "wait", "another server's ACK");
        let ack = answer(7, MAC, [10, 7, 0, 9], &ACK);
        assert_eq!(kind(&session.received(&ack, NO_TIME, 0)), "bound");
    }

    #[test]
    fn ack_before_an_offer_is_ignored() {
        let mut session = Session::new(7, MAC);
        session.time_up(NO_TIME, 0);
        assert_eq!(session.received(&answer(7, MAC, [10, 7, 0, 9], &ACK), NO_TIME, 0), Act::Wait);
    }

    #[test]
    fn nak_goes_back_to_discover() {
        let mut session = Session::new(7, MAC);
        session.time_up(NO_TIME, 0);
        session.received(&answer(7, MAC, [10, 7, 0, 9], &OFFER), NO_TIME, 0);
        assert_eq!(kind(&session.received(&answer(7, MAC, [0; 4], &NAK), NO_TIME, 0)), "discover");
    }

    #[test]
    fn silence_ends_the_session_after_growing_waits() {
        let mut session = Session::new(7, MAC);
        let mut waits = Vec::new();
        let reason = loop {
            match session.time_up(NO_TIME, 999_999) {
                Act::Send { wait, .. } => waits.push(wait.as_millis()),
                Act::Failed(reason) => break reason,
                act => panic!("{act:?}"),
            }
        };
        assert_eq!(waits.len(), MAX_SENDS as usize);
        assert!(waits.is_sorted() && waits[0] < 1500 && waits[8] < 12_000, "{waits:?}");
        assert_eq!(reason, "no DHCP server answered");
    }

    #[test]
    fn offer_without_ack_is_followed_by_a_new_discover() {
        let mut session = Session::new(7, MAC);
        session.time_up(NO_TIME, 0);
        session.received(&answer(7, MAC, [10, 7, 0, 9], &OFFER), NO_TIME, 0);
        let kinds: Vec<_> = (0..3).map(|_| kind(&session.time_up(NO_TIME, 0))).collect();
        assert_eq!(kinds, ["request", "request", "discover"]);
    }
}
