//! Pure: one session with a BMC, on the console's side (IPMI 2.0 sections 13.14 and following). Datagrams, requests
//! and time in; datagrams, a deadline and events out. Neither sockets nor clocks; [`crate::client`] drives it.
//!
//! ```text
//! Asking --capabilities--> Opening --Open Session--> Naming --RAKP 2--> Proving --RAKP 4--> Active
//!    |                        ^                         |                  |                  |
//!    |                        '- again, if packets were lost or duplicated -'                 | Raising -> Ready -> Closing
//!    '-------------------------------------- failed ------------------------------------------'--> Over
//! ```
//!
//! **Only one request at a time** is in flight; others wait. An unanswered request is repeated with growing delays,
//! up to the limit of [`Retry`]. A repetition has the same request number (rqSeq) and a new session sequence number,
//! without which it would be dropped. By the request number a BMC may recognize a request that it has carried out
//! (IPMI 2.0 sections 5.2 and 6.12.4), but `OpenBMC` and `ipmi_sim` do not check it and carry out a repetition again.
//! **A request that must not run twice is therefore sent once** ([`Request::once`]), and its answer is waited for as
//! long as for all repetitions together.
//!
//! Errors of a request are distinguished: after [`RequestError::Unanswered`] it may have been carried out, after
//! [`RequestError::NotSent`] it was not. If all repetitions of a request are unanswered, the session is lost. After a
//! request that was sent once the session remains, so that the state can be read before the request is repeated.
//!
//! **A wrong password is tried once.** The BMC proves first that it knows the same password. If its proof is wrong,
//! the client sends no proof and the caller decides, so that no account is locked. If its proof is right and it
//! refuses the client's proof nevertheless, it drew a new random number for a duplicated RAKP message 1: the login is
//! repeated, up to the limit of rounds, and then fails with [`SessionError::ProofRefused`].
//!
//! A BMC ends sessions that are silent for a minute: [`Settings::keep_alive`].

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod active;
mod error;
mod handshake;
mod retry;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

pub use error::{RequestError, SessionError, Step};
pub use retry::Retry;

use self::{
    active::Active,
    handshake::Handshake,
    retry::{Attempt, later},
};
use crate::{
    crypto::{Password, Suite, UserName},
    wire::{
        header::{self, Packet},
        message::{Request, Response},
        rmcp::{self, Rmcp},
    },
};

/// Requests that wait at most, besides the one on its way.
const MOST_WAITING: usize = 16;
/// The longest data of a request, in octets.
const MOST_DATA: usize = 512;

/// Fills octets with unpredictable values.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// Privilege that a session asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Privilege {
    /// Reads.
    User,
    /// Reads, and switches power.
    Operator,
    /// All.
    Administrator,
}

impl Privilege {
    /// 2 to 4.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::User => 2,
            Self::Operator => 3,
            Self::Administrator => 4,
        }
    }

    /// The privilege of a number; callback (1) and what vendors define are none.
    #[must_use]
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            2 => Some(Self::User),
            3 => Some(Self::Operator),
            4 => Some(Self::Administrator),
            _ => None,
        }
    }
}

/// With whom, and how.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The account.
    pub user: UserName,
    /// The password.
    pub password: Password,
    /// The BMC's own key (Kg), where one is set.
    pub key: Option<Password>,
    /// The suite, which the BMC takes or the session fails.
    pub suite: Suite,
    /// The privilege, likewise.
    pub privilege: Privilege,
    /// Retransmission intervals.
    pub retry: Retry,
    /// After how much silence the BMC is asked for its device id, so that it keeps the session. `None`: it is not.
    pub keep_alive: Option<Duration>,
}

/// Names a request until its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Events, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The session is open, with the requested privilege.
    Opened,
    /// A request came to its end.
    Answer(Ticket, Result<Response, RequestError>),
    /// A payload of serial over LAN came: see [`crate::sol`].
    Serial(Vec<u8>),
    /// The session was closed as asked.
    Closed,
    /// The session has ended, after the results of all requests.
    Failed(SessionError),
}

/// Counters of datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams sent, repetitions among them.
    pub sent: u64,
    /// Datagrams sent again.
    pub repeated: u64,
    /// Datagrams that were neither expected nor refused for another reason: late, of another session, malformed.
    pub ignored: u64,
    /// With a wrong code, without one, or wrongly encrypted.
    pub forged: u64,
    /// With a sequence number that was seen already, or is long past.
    pub replayed: u64,
}

/// Output of a session for its driver, and values that all states need.
struct Outbox {
    settings: Settings,
    random: Random,
    datagrams: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Outbox {
    fn send(&mut self, packet: &[u8]) {
        self.counters.sent = self.counters.sent.saturating_add(1);
        self.datagrams.push_back(rmcp::ipmi(packet));
    }

    fn random<const OCTET_COUNT: usize>(&mut self) -> [u8; OCTET_COUNT] {
        let mut octets = [0; OCTET_COUNT];
        (self.random)(&mut octets);
        octets
    }
}

enum State {
    Handshake(Box<Handshake>),
    Active(Box<Active>),
    Over,
}

/// Result of an input to a state.
enum Next {
    Stay,
    Active(Box<Active>),
    Over,
}

/// A session with a BMC; see the module.
pub struct Session {
    out: Outbox,
    state: State,
    waiting: VecDeque<(Ticket, Request)>,
    last_ticket: u64,
    closing: bool,
}

impl Session {
    /// Begins a session: the first datagram is ready to be sent.
    #[must_use]
    pub fn start(settings: Settings, random: Random, now: Instant) -> Self {
        let (datagrams, events) = (VecDeque::new(), VecDeque::new());
        let mut out = Outbox { settings, random, datagrams, events, counters: Counters::default() };
        let handshake = Handshake::start(&mut out, now);
        Self {
            out,
            state: State::Handshake(Box::new(handshake)),
            waiting: VecDeque::new(),
            last_ticket: 0,
            closing: false,
        }
    }

    /// Takes a datagram that came from the BMC's address.
    pub fn receive(&mut self, datagram: &[u8], now: Instant) {
        let packet = match rmcp::parse(datagram) {
            Ok(Rmcp::Ipmi(packet)) => header::parse(packet),
            _ => return self.ignore(),
        };
        let next = match (&mut self.state, packet) {
            (State::Handshake(handshake), Ok(packet)) => handshake.receive(&mut self.out, packet, now),
            (State::Active(active), Ok(Packet::Plus(plus))) => active.receive(&mut self.out, &plus, now),
            _ => return self.ignore(),
        };
        self.follow(next, now);
    }

    /// Queues a request. Its result is always reported as [`Event::Answer`] with this ticket.
    pub fn request(&mut self, request: Request, now: Instant) -> Ticket {
        self.last_ticket = self.last_ticket.saturating_add(1);
        let ticket = Ticket(self.last_ticket);
        let refused = if matches!(self.state, State::Over) || self.closing {
            Some(RequestError::NotSent)
        } else if request.data.len() > MOST_DATA {
            Some(RequestError::TooLong)
        } else if self.waiting.len() >= MOST_WAITING {
            Some(RequestError::TooMany)
        } else {
            None
        };
        match refused {
            Some(error) => self.out.events.push_back(Event::Answer(ticket, Err(error))),
            None => self.waiting.push_back((ticket, request)),
        }
        self.follow(Next::Stay, now);
        ticket
    }

    /// Sends a payload of serial over LAN if the session is open. [`crate::sol`] tracks whether it arrived.
    pub fn serial(&mut self, payload: &[u8]) {
        if let State::Active(active) = &mut self.state {
            active.serial(&mut self.out, payload);
        }
    }

    /// Cancels a request: it is not sent if it was not sent yet, and not repeated otherwise; its answer is dropped.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.waiting.retain(|(is, _)| *is != ticket);
        if let State::Active(active) = &mut self.state {
            active.forget(ticket);
        }
    }

    /// Ends the session: waits for the request in flight, drops waiting requests, and notifies the BMC. A login that
    /// the BMC has heard of is completed first.
    pub fn close(&mut self, now: Instant) {
        self.closing = true;
        self.refuse_waiting();
        // A login that the BMC knows is completed, so that it does not occupy the BMC's session table until it times
        // out.
        if let State::Handshake(handshake) = &self.state
            && !handshake.has_started()
        {
            self.state = State::Over;
            self.out.events.push_back(Event::Closed);
        }
        self.follow(Next::Stay, now);
    }

    /// Lets time pass: due at [`Session::deadline`], harmless at any other time.
    pub fn elapse(&mut self, now: Instant) {
        let next = match &mut self.state {
            State::Handshake(handshake) => handshake.elapse(&mut self.out, now),
            State::Active(active) => active.elapse(&mut self.out, now),
            State::Over => Next::Stay,
        };
        self.follow(next, now);
    }

    /// When [`Session::elapse`] is due. `None`: only a datagram or a request changes anything.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Handshake(handshake) => Some(handshake.deadline()),
            State::Active(active) => active.deadline(&self.out.settings),
            State::Over => None,
        }
    }

    /// The next datagram to send to the BMC.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        self.out.datagrams.pop_front()
    }

    /// Returns the next event.
    pub fn event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// Returns true if the session has ended, for any reason.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Returns the counters of datagrams.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.out.counters
    }

    fn ignore(&mut self) {
        self.out.counters.ignored = self.out.counters.ignored.saturating_add(1);
    }

    /// Goes where the state leads, and gives a ready session its next work.
    fn follow(&mut self, next: Next, now: Instant) {
        match next {
            Next::Stay => {}
            Next::Active(active) => self.state = State::Active(active),
            Next::Over => {
                self.state = State::Over;
                self.refuse_waiting();
                // The failure is reported after the results of all requests.
                let (failed, rest): (Vec<Event>, Vec<Event>) =
                    self.out.events.drain(..).partition(|event| matches!(event, Event::Failed(_)));
                self.out.events.extend(rest.into_iter().chain(failed));
            }
        }
        if let State::Active(active) = &mut self.state
            && active.is_ready()
        {
            if let Some((ticket, request)) = self.waiting.pop_front() {
                active.request(&mut self.out, Some(ticket), request, now);
            } else if self.closing {
                active.close(&mut self.out, now);
            }
        }
    }

    fn refuse_waiting(&mut self) {
        let refused = |(ticket, _)| Event::Answer(ticket, Err(RequestError::NotSent));
        self.out.events.extend(self.waiting.drain(..).map(refused));
    }
}
