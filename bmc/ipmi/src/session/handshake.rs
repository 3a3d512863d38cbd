//! Pure: from nothing to a session's keys: capabilities, Open Session, RAKP 1 to 4.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::time::Instant;

use super::{Active, Attempt, Event, Next, Outbox, SessionError, Step};
use crate::{
    command::{Command, ReadAnswerError, channel::GetChannelCapabilities},
    crypto::{Exchange, Keys, same},
    wire::{
        header::{Packet, PayloadKind, encode_open, encode_plain},
        message::{RequestMessage, ResponseMessage},
        open::{OpenRequest, OpenResponse},
        rakp::{Proof, Rakp1, Rakp2, Status},
    },
};

/// Maximum number of rounds from Open Session to RAKP 4: a BMC may count each refused proof, and lock the account
/// after three.
const MOST_ROUNDS: u32 = 2;
/// The user is looked up by name alone, not by name and privilege.
const NAME_ONLY: u8 = 0x10;

/// State of a step.
enum Place {
    Asking,
    Opening { console: u32 },
    Naming { console: u32, managed: u32, random: [u8; 16] },
    Proving { exchange: Box<Exchange>, keys: Box<Keys> },
}

pub(super) struct Handshake {
    place: Place,
    tag: u8,
    attempt: Attempt,
    packet: Vec<u8>,
    rounds: u32,
}

impl Handshake {
    pub(super) fn start(out: &mut Outbox, now: Instant) -> Self {
        let privilege = out.settings.privilege.number();
        let request = GetChannelCapabilities { privilege }.request();
        let packet = encode_plain(&RequestMessage { sequence: 0, request }.encode()).unwrap_or_default();
        out.send(&packet);
        let attempt = Attempt::first(&out.settings.retry, now);
        // Starts at a random number, so that an attacker who does not see our packets must guess it.
        let [tag] = out.random();
        Self { place: Place::Asking, tag, attempt, packet, rounds: 0 }
    }

    /// Returns true if the BMC may have the session in its table.
    pub(super) fn has_started(&self) -> bool {
        !matches!(self.place, Place::Asking)
    }

    pub(super) fn deadline(&self) -> Instant {
        self.attempt.until
    }

    pub(super) fn elapse(&mut self, out: &mut Outbox, now: Instant) -> Next {
        if now < self.attempt.until {
            return Next::Stay;
        }
        if let Some(attempt) = self.attempt.next(&out.settings.retry, now) {
            self.attempt = attempt;
            out.counters.repeated = out.counters.repeated.saturating_add(1);
            if let Place::Naming { console, managed, .. } = self.place {
                self.name(out, console, managed);
            }
            out.send(&self.packet);
            return Next::Stay;
        }
        if let Place::Proving { exchange, keys } = &self.place {
            // Perhaps only RAKP message 4 was lost, and the session is open.
            Active::farewell(out, keys, exchange.managed);
        }
        fail(
            out,
            match self.step() {
                Step::Capabilities => SessionError::Unreachable { attempts: self.attempt.sent },
                step => SessionError::Silent { step },
            },
        )
    }

    pub(super) fn receive(&mut self, out: &mut Outbox, packet: Packet<'_>, now: Instant) -> Next {
        let next = match packet {
            Packet::Plain(plain) => self.capabilities(out, plain.payload, now),
            Packet::Plus(plus) if plus.encrypted || plus.authenticated => None,
            Packet::Plus(plus) => match plus.kind {
                PayloadKind::OpenResponse => self.opened(out, plus.payload, now),
                PayloadKind::Rakp2 => self.challenged(out, plus.payload, now),
                PayloadKind::Rakp4 => self.proved(out, plus.payload, now),
                // A BMC may answer the question for capabilities with RMCP+'s header.
                PayloadKind::Ipmi => self.capabilities(out, plus.payload, now),
                _ => None,
            },
        };
        next.unwrap_or_else(|| {
            out.counters.ignored = out.counters.ignored.saturating_add(1);
            Next::Stay
        })
    }

    fn step(&self) -> Step {
        match self.place {
            Place::Asking => Step::Capabilities,
            Place::Opening { .. } => Step::Open,
            Place::Naming { .. } => Step::Name,
            Place::Proving { .. } => Step::Proof,
        }
    }

    /// Sends the first packet of a step.
    fn go(
        &mut self,
        out: &mut Outbox,
        place: Place,
        kind: PayloadKind,
        payload: &[u8],
        now: Instant,
    ) -> Next {
        self.place = place;
        self.packet = encode_open(kind, payload).unwrap_or_default();
        self.begin(out, now)
    }

    /// Sends a packet for the first time.
    fn begin(&mut self, out: &mut Outbox, now: Instant) -> Next {
        self.attempt = Attempt::first(&out.settings.retry, now);
        out.send(&self.packet);
        Next::Stay
    }

    /// Sends a RAKP message 1. Each transmission has its own tag and random number: `OpenBMC` draws a new number for
    /// each, and would refuse a proof of an earlier one. Answers to earlier ones are recognized by the tag, and
    /// ignored.
    fn name(&mut self, out: &mut Outbox, console: u32, managed: u32) {
        let (tag, random, role) = (self.next_tag(), out.random(), role(out));
        let payload = Rakp1 { tag, managed, random, role, user: out.settings.user.as_bytes() }.encode();
        self.place = Place::Naming { console, managed, random };
        self.packet = encode_open(PayloadKind::Rakp1, &payload).unwrap_or_default();
    }

    fn next_tag(&mut self) -> u8 {
        self.tag = self.tag.wrapping_add(1);
        self.tag
    }

    /// Handles an answer; `None` if it is not the expected one.
    fn capabilities(&mut self, out: &mut Outbox, payload: &[u8], now: Instant) -> Option<Next> {
        let Place::Asking = self.place else { return None };
        let answer = ResponseMessage::parse(payload).ok()?;
        let command = GetChannelCapabilities { privilege: out.settings.privilege.number() };
        let request = command.request();
        if (answer.function, answer.command, answer.sequence) != (request.function, request.command, 0) {
            return None;
        }
        if answer.response.completion.is_passing() {
            // The answer did not name its algorithms, and is handled like a missing one.
            return None;
        }
        let speaks = match command.read(&answer.response) {
            Ok(channel) => channel.ipmi_2_0,
            Err(ReadAnswerError::Refused(completion)) => !completion.is_absence(),
            Err(ReadAnswerError::Answer(_)) => false,
        };
        Some(if speaks { self.open(out, now) } else { fail(out, SessionError::NotSupported) })
    }

    fn open(&mut self, out: &mut Outbox, now: Instant) -> Next {
        self.rounds = self.rounds.saturating_add(1);
        // 0 is not a valid session ID.
        let console = u32::from_le_bytes(out.random()).max(1);
        let settings = &out.settings;
        let (privilege, algorithms) = (settings.privilege.number(), settings.suite.algorithms());
        let tag = self.next_tag();
        let payload = OpenRequest { tag, privilege, console, algorithms }.encode();
        self.go(out, Place::Opening { console }, PayloadKind::OpenRequest, &payload, now)
    }

    fn opened(&mut self, out: &mut Outbox, payload: &[u8], now: Instant) -> Option<Next> {
        let Place::Opening { console } = self.place else { return None };
        let answer = OpenResponse::parse(payload).ok()?;
        if answer.tag != self.tag || !is_ours(answer.console, console, answer.outcome.err()) {
            return None;
        }
        let suite = out.settings.suite;
        let opened = match answer.outcome {
            Ok(opened) => opened,
            Err(status) => return Some(self.refused(out, status, now)),
        };
        if opened.algorithms != suite.algorithms() {
            return Some(fail(out, SessionError::SuiteChanged { suite }));
        }
        self.name(out, console, opened.managed);
        Some(self.begin(out, now))
    }

    fn challenged(&mut self, out: &mut Outbox, payload: &[u8], now: Instant) -> Option<Next> {
        let Place::Naming { console, managed, random } = self.place else { return None };
        let answer = Rakp2::parse(payload).ok()?;
        if answer.tag != self.tag || !is_ours(answer.console, console, answer.outcome.err()) {
            return None;
        }
        let challenge = match answer.outcome {
            Ok(challenge) => challenge,
            Err(status) => return Some(self.refused(out, status, now)),
        };
        let exchange = Exchange {
            suite: out.settings.suite,
            console,
            managed,
            console_random: random,
            managed_random: challenge.random,
            guid: challenge.guid,
            role: role(out),
            user: out.settings.user.clone(),
        };
        let tag = self.next_tag();
        let proof = |outcome| Proof { tag, session: managed, outcome }.encode();
        let password = &out.settings.password;
        if !same(exchange.managed_proof(password).as_ref(), challenge.code) {
            // Notifies the BMC so that it frees the session immediately; there is no wait for the answer.
            let packet = encode_open(PayloadKind::Rakp3, &proof(Err(Status::IntegrityCode)));
            out.send(&packet.unwrap_or_default());
            return Some(fail(out, SessionError::WrongPassword));
        }
        let payload = proof(Ok(exchange.console_proof(password).as_ref()));
        let keys = exchange.keys(out.settings.key.as_ref().unwrap_or(password));
        let place = Place::Proving { exchange: Box::new(exchange), keys: Box::new(keys) };
        Some(self.go(out, place, PayloadKind::Rakp3, &payload, now))
    }

    fn proved(&mut self, out: &mut Outbox, payload: &[u8], now: Instant) -> Option<Next> {
        let Place::Proving { exchange, keys } = &self.place else { return None };
        let answer = Proof::parse(payload).ok()?;
        if answer.tag != self.tag || !is_ours(answer.session, exchange.console, answer.outcome.err()) {
            return None;
        }
        let code = match answer.outcome {
            Ok(code) => code,
            Err(status) => return Some(self.refused(out, status, now)),
        };
        if !same(&keys.final_proof(exchange), code) {
            return Some(fail(out, SessionError::WrongKey));
        }
        let Place::Proving { exchange, keys } = std::mem::replace(&mut self.place, Place::Asking) else {
            return None;
        };
        let active = Active::start(out, *keys, exchange.console, exchange.managed, now);
        Some(Next::Active(Box::new(active)))
    }

    /// Handles a status of the BMC at this step.
    fn refused(&mut self, out: &mut Outbox, status: Status, now: Instant) -> Next {
        let step = self.step();
        let suite = out.settings.suite;
        let error = match status {
            // It did the step already, and its answer was lost; or it forgot us meanwhile. No password was refused by this.
            Status::SessionId | Status::InactiveSessionId
                if self.rounds < MOST_ROUNDS && step != Step::Open =>
            {
                return self.open(out, now);
            }
            // It has the same password, as it proved in this round: it meant another RAKP message 1, which was repeated on its way.
            Status::IntegrityCode if self.rounds < MOST_ROUNDS && step == Step::Proof => {
                return self.open(out, now);
            }
            Status::IntegrityCode if step == Step::Proof => SessionError::ProofRefused,
            Status::NoResources | Status::NoResourcesForRole => SessionError::NoResources,
            Status::AuthenticationAlgorithm
            | Status::IntegrityAlgorithm
            | Status::ConfidentialityAlgorithm
            | Status::AuthenticationPayload
            | Status::IntegrityPayload
            | Status::NoCipherSuite => SessionError::SuiteRefused { suite, status },
            Status::Role(_) => SessionError::RoleRefused { status },
            Status::Name | Status::NameLength => SessionError::UserRefused { status },
            Status::SessionId
            | Status::InactiveSessionId
            | Status::PayloadType
            | Status::Guid
            | Status::IntegrityCode
            | Status::Other(_) => SessionError::Refused { step, status },
        };
        fail(out, error)
    }
}

fn role(out: &Outbox) -> u8 {
    NAME_ONLY | out.settings.privilege.number()
}

/// A BMC that does not know the session (any more) cannot name the console's id; others end a refusal before it.
fn is_ours(given: u32, console: u32, status: Option<Status>) -> bool {
    given == console
        || (given == 0 && status.is_some())
        || matches!(status, Some(Status::SessionId | Status::InactiveSessionId))
}

fn fail(out: &mut Outbox, error: SessionError) -> Next {
    out.events.push_back(Event::Failed(error));
    Next::Over
}
