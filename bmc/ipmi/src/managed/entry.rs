//! Pure: one session in a BMC's table.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{collections::VecDeque, net::SocketAddr, time::Instant};

use crate::{
    crypto::{Exchange, Keys, Suite},
    session::Privilege,
    window::{self, Window},
    wire::{
        completion::Completion,
        header::{PayloadKind, Plus},
        message::{Request, RequestMessage, Response},
    },
};

/// Number of answers that a session remembers for repeated requests.
const MAX_REMEMBERED_ANSWERS: usize = 8;

/// Progress of a login.
pub(super) enum Login {
    /// Waiting for RAKP message 1.
    Opened,
    /// Waiting for RAKP message 3.
    Challenged { exchange: Exchange, most: Privilege },
    /// The session is open. Its datagrams are kept to answer repeated ones as before.
    Done { keys: Keys, third: Vec<u8>, proof: Vec<u8> },
}

pub(super) struct Entry {
    pub(super) peer: SocketAddr,
    pub(super) console: u32,
    pub(super) managed: u32,
    pub(super) suite: Suite,
    /// Tag of Open Session, which identifies a repeated request.
    pub(super) tag: u8,
    pub(super) login: Login,
    /// In force.
    pub(super) privilege: Privilege,
    /// The most that may be set.
    pub(super) most: Privilege,
    pub(super) heard: Instant,
    inbound: Window,
    outbound: u32,
    answers: VecDeque<(RequestMessage, Response)>,
}

impl Entry {
    pub(super) fn new(
        peer: SocketAddr,
        console: u32,
        managed: u32,
        suite: Suite,
        tag: u8,
        now: Instant,
    ) -> Self {
        Self {
            peer,
            console,
            managed,
            suite,
            tag,
            login: Login::Opened,
            privilege: Privilege::User,
            most: Privilege::User,
            heard: now,
            inbound: Window::default(),
            outbound: 0,
            answers: VecDeque::new(),
        }
    }

    /// Verifies, decrypts and takes a packet once.
    pub(super) fn open(&mut self, packet: &Plus<'_>, now: Instant) -> Option<RequestMessage> {
        let Login::Done { keys, .. } = &self.login else { return None };
        let payload = keys.open(packet).ok()?;
        if packet.kind != PayloadKind::Ipmi || !self.inbound.take(packet.sequence) {
            return None;
        }
        self.heard = now;
        RequestMessage::parse(&payload).ok()
    }

    pub(super) fn seal(&mut self, payload: &[u8], vector: [u8; 16]) -> Option<Vec<u8>> {
        let Login::Done { keys, .. } = &self.login else { return None };
        self.outbound = window::next(self.outbound);
        keys.seal(PayloadKind::Ipmi, self.console, self.outbound, payload, vector)
    }

    pub(super) fn set_privilege(&mut self, request: &Request) -> Response {
        let asked = match request.data.as_slice() {
            // 0: which is it?
            [0, ..] => Some(self.privilege),
            [number, ..] => Privilege::from_number(*number),
            [] => None,
        };
        let completion = match asked {
            None => Completion::InvalidField,
            Some(asked) if asked > self.most => Completion::Specific(0x81),
            Some(asked) => {
                self.privilege = asked;
                return Response { completion: Completion::Ok, data: vec![asked.number()] };
            }
        };
        Response { completion, data: Vec::new() }
    }

    pub(super) fn remembered(&self, message: &RequestMessage) -> Option<Response> {
        let known = self.answers.iter().find(|(request, _)| request == message);
        known.map(|(_, response)| response.clone())
    }

    pub(super) fn remember(&mut self, message: &RequestMessage, response: &Response) {
        self.answers.push_back((message.clone(), response.clone()));
        if self.answers.len() > MAX_REMEMBERED_ANSWERS {
            self.answers.pop_front();
        }
    }
}
