//! Pure: an open session: privilege, requests one by one, close.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::time::Instant;

use super::{
    Attempt, Event, Next, Outbox, Privilege, RequestError, SessionError, Settings, Step, Ticket, later,
};
use crate::{
    crypto::Keys,
    window::{self, Window},
    wire::{
        completion::Completion,
        header::{PayloadKind, Plus},
        message::{APPLICATION, Request, RequestMessage, Response, ResponseMessage},
    },
};

const GET_DEVICE_ID: u8 = 0x01;
const SET_PRIVILEGE: u8 = 0x3b;
const CLOSE: u8 = 0x3c;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Raising,
    Ready,
    Closing,
}

/// The request on its way.
struct Sent {
    /// `None`: request of the session itself, or the caller has dropped it.
    ticket: Option<Ticket>,
    message: RequestMessage,
    attempt: Attempt,
    /// True if the caller has dropped it: it is not repeated.
    forgotten: bool,
}

pub(super) struct Active {
    keys: Keys,
    console: u32,
    managed: u32,
    phase: Phase,
    /// Session sequence number of the last packet sent.
    outbound: u32,
    inbound: Window,
    /// Number of the last request, 0 to 63.
    sequence: u8,
    sent: Option<Sent>,
    heard: Instant,
}

impl Active {
    pub(super) fn start(out: &mut Outbox, keys: Keys, console: u32, managed: u32, now: Instant) -> Self {
        let inbound = Window::default();
        let (sent, phase) = (None, Phase::Raising);
        let mut active =
            Self { keys, console, managed, phase, outbound: 0, inbound, sequence: 0, sent, heard: now };
        let privilege = out.settings.privilege;
        if privilege == Privilege::User {
            // A session begins as User.
            active.phase = Phase::Ready;
            out.events.push_back(Event::Opened);
        } else {
            let request = Request::new(APPLICATION, SET_PRIVILEGE, &[privilege.number()]);
            active.request(out, None, request, now);
        }
        active
    }

    /// Returns true if the next request may be sent.
    pub(super) fn is_ready(&self) -> bool {
        self.phase == Phase::Ready && self.sent.is_none()
    }

    pub(super) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        match &self.sent {
            Some(sent) => Some(sent.attempt.until),
            None => settings.keep_alive.map(|silence| later(self.heard, silence)),
        }
    }

    pub(super) fn request(
        &mut self,
        out: &mut Outbox,
        ticket: Option<Ticket>,
        request: Request,
        now: Instant,
    ) {
        self.sequence = self.sequence.wrapping_add(1) & 0x3f;
        let message = RequestMessage { sequence: self.sequence, request };
        let retry = &out.settings.retry;
        let attempt =
            if message.request.once { Attempt::only(retry, now) } else { Attempt::first(retry, now) };
        self.seal(out, &message);
        self.sent = Some(Sent { ticket, message, attempt, forgotten: false });
    }

    pub(super) fn close(&mut self, out: &mut Outbox, now: Instant) {
        self.phase = Phase::Closing;
        let request = close_request(self.managed);
        self.request(out, None, request, now);
    }

    /// Closes a session that may or may not exist; there is no wait for the answer.
    pub(super) fn farewell(out: &mut Outbox, keys: &Keys, managed: u32) {
        let message = RequestMessage { sequence: 1, request: close_request(managed) };
        let vector = out.random();
        let packet = keys.seal(PayloadKind::Ipmi, managed, window::next(0), &message.encode(), vector);
        out.send(&packet.unwrap_or_default());
    }

    pub(super) fn forget(&mut self, ticket: Ticket) {
        if let Some(sent) = &mut self.sent
            && sent.ticket == Some(ticket)
        {
            (sent.ticket, sent.forgotten) = (None, true);
        }
    }

    /// Each transmission has its own session sequence number and vector; the request's number stays.
    fn seal(&mut self, out: &mut Outbox, message: &RequestMessage) {
        self.send(out, PayloadKind::Ipmi, &message.encode());
    }

    pub(super) fn serial(&mut self, out: &mut Outbox, payload: &[u8]) {
        self.send(out, PayloadKind::Sol, payload);
    }

    fn send(&mut self, out: &mut Outbox, kind: PayloadKind, payload: &[u8]) {
        self.outbound = window::next(self.outbound);
        let vector = out.random();
        if let Some(packet) = self.keys.seal(kind, self.managed, self.outbound, payload, vector) {
            out.send(&packet);
        }
    }

    pub(super) fn elapse(&mut self, out: &mut Outbox, now: Instant) -> Next {
        let Some(mut sent) = self.sent.take() else {
            let due = self.deadline(&out.settings).is_some_and(|deadline| now >= deadline);
            if due && self.phase == Phase::Ready {
                self.request(out, None, Request::new(APPLICATION, GET_DEVICE_ID, &[]), now);
            }
            return Next::Stay;
        };
        if now < sent.attempt.until {
            self.sent = Some(sent);
            return Next::Stay;
        }
        if sent.forgotten {
            return Next::Stay;
        }
        let Some(attempt) = sent.attempt.next(&out.settings.retry, now) else {
            if sent.message.request.once && self.phase == Phase::Ready {
                return abandon(out, sent.ticket);
            }
            return self.lose(out, sent.ticket);
        };
        sent.attempt = attempt;
        out.counters.repeated = out.counters.repeated.saturating_add(1);
        self.seal(out, &sent.message);
        self.sent = Some(sent);
        Next::Stay
    }

    fn lose(&mut self, out: &mut Outbox, ticket: Option<Ticket>) -> Next {
        if let Some(ticket) = ticket {
            out.events.push_back(Event::Answer(ticket, Err(RequestError::Unanswered)));
        }
        if self.phase != Phase::Closing {
            // If it hears us and only we do not hear it.
            let sequence = self.sequence.wrapping_add(1) & 0x3f;
            self.seal(out, &RequestMessage { sequence, request: close_request(self.managed) });
        }
        out.events.push_back(match self.phase {
            Phase::Raising => Event::Failed(SessionError::Silent { step: Step::Privilege }),
            Phase::Ready => Event::Failed(SessionError::Lost),
            // The BMC ends the session on its own.
            Phase::Closing => Event::Closed,
        });
        Next::Over
    }

    pub(super) fn receive(&mut self, out: &mut Outbox, packet: &Plus<'_>, now: Instant) -> Next {
        let counters = &mut out.counters;
        if packet.session != self.console || !matches!(packet.kind, PayloadKind::Ipmi | PayloadKind::Sol) {
            counters.ignored = counters.ignored.saturating_add(1);
            return Next::Stay;
        }
        let Ok(payload) = self.keys.open(packet) else {
            counters.forged = counters.forged.saturating_add(1);
            return Next::Stay;
        };
        if !self.inbound.take(packet.sequence) {
            counters.replayed = counters.replayed.saturating_add(1);
            return Next::Stay;
        }
        self.heard = now;
        if packet.kind == PayloadKind::Sol {
            out.events.push_back(Event::Serial(payload.to_vec()));
            return Next::Stay;
        }
        let answer = ResponseMessage::parse(&payload).ok().filter(|answer| self.is_expected(answer));
        let Some(answer) = answer else {
            counters.ignored = counters.ignored.saturating_add(1);
            return Next::Stay;
        };
        let Some(sent) = self.sent.take() else { return Next::Stay };
        if self.phase == Phase::Raising && answer.response.completion == Completion::Duplicate {
            return self.ask_again(out, sent, now);
        }
        self.answered(out, sent.ticket, answer.response)
    }

    fn is_expected(&self, answer: &ResponseMessage) -> bool {
        self.sent.as_ref().is_some_and(|sent| {
            let request = &sent.message.request;
            answer.sequence == sent.message.sequence
                && answer.command == request.command
                && answer.function == request.function
        })
    }

    /// Repeats the setting of a privilege as another request, which the BMC does not treat as a duplicate.
    fn ask_again(&mut self, out: &mut Outbox, sent: Sent, now: Instant) -> Next {
        let Some(attempt) = sent.attempt.next(&out.settings.retry, now) else {
            return self.lose(out, sent.ticket);
        };
        self.request(out, sent.ticket, sent.message.request, now);
        if let Some(sent) = &mut self.sent {
            sent.attempt = attempt;
        }
        Next::Stay
    }

    fn answered(&mut self, out: &mut Outbox, ticket: Option<Ticket>, response: Response) -> Next {
        match (self.phase, response.completion) {
            (Phase::Raising, Completion::Ok) => {
                self.phase = Phase::Ready;
                out.events.push_back(Event::Opened);
            }
            (Phase::Raising, completion) => {
                // Notifies the BMC so that it frees the session; there is no wait for the answer.
                self.close(out, self.heard);
                out.events.push_back(Event::Failed(SessionError::PrivilegeRefused { completion }));
                return Next::Over;
            }
            (Phase::Closing, _) => {
                out.events.push_back(Event::Closed);
                return Next::Over;
            }
            // The request arrived earlier, and its answer was lost. Its result is unknown.
            (Phase::Ready, Completion::Duplicate) => return abandon(out, ticket),
            (Phase::Ready, _) => {
                if let Some(ticket) = ticket {
                    out.events.push_back(Event::Answer(ticket, Ok(response)));
                }
            }
        }
        Next::Stay
    }
}

fn close_request(managed: u32) -> Request {
    Request::new(APPLICATION, CLOSE, &managed.to_le_bytes())
}

/// The result of a request is not known. One lost datagram does not end the session: the next request shows whether it is open.
fn abandon(out: &mut Outbox, ticket: Option<Ticket>) -> Next {
    out.events.extend(ticket.map(|ticket| Event::Answer(ticket, Err(RequestError::Unanswered))));
    Next::Stay
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::{super::tests::settings, *};
    use crate::{
        crypto::{Exchange, Suite},
        session::{Counters, Retry},
        wire::{
            header::{self, Packet},
            message::CHASSIS,
            rmcp::{self, Rmcp},
        },
    };

    fn keys(settings: &Settings) -> Keys {
        let (suite, user) = (Suite::Sha256, settings.user.clone());
        let (console_random, managed_random, guid) = ([1; 16], [2; 16], [3; 16]);
        Exchange { suite, console: 1, managed: 2, console_random, managed_random, guid, role: 0x14, user }
            .keys(&settings.password)
    }

    /// A session that has just started, and the keys of its BMC.
    fn started(settings: Settings, now: Instant) -> (Active, Outbox, Keys) {
        let (bmc, console) = (keys(&settings), keys(&settings));
        let (datagrams, events, random) = (VecDeque::new(), VecDeque::new(), Box::new(|_: &mut [u8]| ()));
        let mut out = Outbox { settings, random, datagrams, events, counters: Counters::default() };
        let active = Active::start(&mut out, console, 1, 2, now);
        (active, out, bmc)
    }

    /// The next request as the BMC reads it.
    fn heard(out: &mut Outbox, bmc: &Keys) -> RequestMessage {
        let datagram = out.datagrams.pop_front().unwrap();
        let Ok(Rmcp::Ipmi(packet)) = rmcp::parse(&datagram) else { panic!("{datagram:?}") };
        let Ok(Packet::Plus(plus)) = header::parse(packet) else { panic!("{datagram:?}") };
        RequestMessage::parse(&bmc.open(&plus).unwrap()).unwrap()
    }

    /// An answer that belongs to a request.
    fn answer_to(message: RequestMessage, completion: Completion) -> ResponseMessage {
        let RequestMessage { sequence, request: Request { function, lun, command, data, .. } } = message;
        ResponseMessage { sequence, function, lun, command, response: Response { completion, data } }
    }

    fn deliver(
        active: &mut Active,
        out: &mut Outbox,
        (bmc, sequence): (&Keys, u32),
        answer: &ResponseMessage,
        now: Instant,
    ) {
        let packet = bmc.seal(PayloadKind::Ipmi, 1, sequence, &answer.encode(), [0; 16]).unwrap();
        let Ok(Packet::Plus(plus)) = header::parse(&packet) else { panic!("{packet:?}") };
        assert!(matches!(active.receive(out, &plus, now), Next::Stay));
    }

    #[test]
    fn a_privilege_refused_as_a_duplicate_0xcf_is_asked_with_a_new_number() {
        let now = Instant::now();
        let (mut active, mut out, bmc) = started(settings(Suite::Sha256), now);
        let mut numbers = Vec::new();
        for (sequence, completion) in [(1, Completion::Duplicate), (2, Completion::Ok)] {
            let message = heard(&mut out, &bmc);
            assert_eq!((message.request.function, message.request.command), (APPLICATION, SET_PRIVILEGE));
            numbers.push(message.sequence);
            deliver(&mut active, &mut out, (&bmc, sequence), &answer_to(message, completion), now);
        }
        assert_eq!((numbers, out.events), (vec![1, 2], VecDeque::from([Event::Opened])));
    }

    #[test]
    fn ipmi_13_8_answer_to_another_request_is_ignored() {
        let now = Instant::now();
        let (mut active, mut out, bmc) = started(settings(Suite::Sha256), now);
        let right = answer_to(heard(&mut out, &bmc), Completion::Ok);
        let wrong = [
            ResponseMessage { sequence: right.sequence.wrapping_add(1), ..right.clone() },
            ResponseMessage { command: GET_DEVICE_ID, ..right.clone() },
            ResponseMessage { function: CHASSIS, ..right.clone() },
        ];
        for (sequence, answer) in (1_u32..).zip(&wrong) {
            deliver(&mut active, &mut out, (&bmc, sequence), answer, now);
            assert_eq!((out.counters.ignored, out.events.len()), (sequence.into(), 0), "{answer:?}");
        }
        deliver(&mut active, &mut out, (&bmc, 9), &right, now);
        assert_eq!(out.events, [Event::Opened]);
    }

    #[test]
    fn ipmi_22_19_close_of_a_lost_session_has_the_next_request_number() {
        for (last, next, close) in [(0, 1, 2), (61, 62, 63), (62, 63, 0)] {
            let now = Instant::now();
            let retry = Retry { attempts: 1, ..Retry::default() };
            let (mut active, mut out, bmc) =
                started(Settings { privilege: Privilege::User, retry, ..settings(Suite::Sha256) }, now);
            active.sequence = last;
            active.request(&mut out, None, Request::new(APPLICATION, GET_DEVICE_ID, &[]), now);
            let deadline = active.deadline(&out.settings).unwrap();
            assert!(matches!(active.elapse(&mut out, deadline), Next::Over));
            let (request, closing) = (heard(&mut out, &bmc), heard(&mut out, &bmc));
            assert_eq!((request.sequence, closing.sequence), (next, close));
            assert_eq!(closing.request, close_request(2));
        }
    }
}
