//! Pure: the BMC's side of RMCP+, enough for a simulator: presence, capabilities, sessions of suites 3 and 17, commands given to a
//! [`Handler`]. Neither sockets nor clocks: a datagram and the time in, at most one datagram out.
//!
//! Packets of a session are taken once each. Whether a request that comes again with the same number is carried out again, or answered from
//! memory, is [`Settings::remembers`]: BMCs do either. Not for production BMCs: passwords are held in memory as they are, and there is one channel.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod entry;
mod login;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use self::entry::Entry;
use crate::{
    command::channel::{MOST_SUITE_PAGES, SUITE_PAGE},
    crypto::{Password, Suite, UserName},
    session::{Privilege, Random},
    wire::{
        completion::Completion,
        header::{self, Packet, PayloadKind, Plus},
        message::{APPLICATION, Request, RequestMessage, Response, ResponseMessage},
        rmcp::{self, Rmcp},
    },
};

const GET_CAPABILITIES: u8 = 0x38;
const GET_SUITES: u8 = 0x54;
const SET_PRIVILEGE: u8 = 0x3b;
const CLOSE: u8 = 0x3c;

/// An account.
#[derive(Debug, Clone)]
pub struct User {
    /// The name.
    pub name: UserName,
    /// The password.
    pub password: Password,
    /// The highest privilege that it may have.
    pub privilege: Privilege,
}

/// Settings of a BMC.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The GUID, as RAKP message 2 carries it.
    pub guid: [u8; 16],
    /// Its own key (Kg), if it has one.
    pub key: Option<Password>,
    /// Users of the BMC.
    pub users: Vec<User>,
    /// The suites that it takes.
    pub suites: Vec<Suite>,
    /// Sessions at one time, half-open ones among them.
    pub sessions: usize,
    /// Idle time after which a session is dropped; the specification has one minute.
    pub idle: Duration,
    /// True if a repeated request with the same number is answered from memory, as in IPMI 2.0 section 6.12.4.
    /// `OpenBMC` and `ipmi_sim` carry it out again.
    pub remembers: bool,
}

/// Behavior of the machine behind a BMC, and of logins.
pub trait Handler {
    /// Carries out a command. A repeated command is carried out again, unless the BMC remembers it.
    fn command(&mut self, privilege: Privilege, request: &Request, now: Instant) -> Response;

    /// Returns true if a user may try to log in now; a lockout returns false, as for an unknown user.
    fn may_log_in(&mut self, user: &UserName, now: Instant) -> bool {
        let _ = (user, now);
        true
    }

    /// A user's proof was right or wrong.
    fn logged_in(&mut self, user: &UserName, right: bool, now: Instant) {
        let _ = (user, right, now);
    }
}

/// A BMC.
pub struct Managed {
    settings: Settings,
    random: Random,
    sessions: Vec<Entry>,
}

impl Managed {
    /// A BMC without sessions.
    #[must_use]
    pub fn new(settings: Settings, random: Random) -> Self {
        Self { settings, random, sessions: Vec::new() }
    }

    /// Changes accounts, suites and limits. Open sessions remain.
    pub fn set(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Number of open sessions, including those in login.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Forgets all sessions, as a BMC that restarts.
    pub fn restart(&mut self) {
        self.sessions.clear();
    }

    /// Takes a datagram from a peer; gives the datagram to send back.
    pub fn receive(
        &mut self,
        handler: &mut impl Handler,
        peer: SocketAddr,
        datagram: &[u8],
        now: Instant,
    ) -> Option<Vec<u8>> {
        let idle = self.settings.idle;
        self.sessions.retain(|entry| now.saturating_duration_since(entry.heard) < idle);
        let packet = match rmcp::parse(datagram).ok()? {
            Rmcp::Ping { tag } => return Some(rmcp::pong(tag)),
            Rmcp::Pong { .. } => return None,
            Rmcp::Ipmi(packet) => header::parse(packet).ok()?,
        };
        let answer = match packet {
            Packet::Plain(plain) if plain.session == 0 => header::encode_plain(&self.outside(plain.payload)?),
            Packet::Plain(_) => None,
            Packet::Plus(plus) if plus.session != 0 => self.inside(handler, peer, &plus, now),
            Packet::Plus(plus) if plus.authenticated || plus.encrypted => None,
            Packet::Plus(plus) => match plus.kind {
                PayloadKind::Ipmi => header::encode_open(PayloadKind::Ipmi, &self.outside(plus.payload)?),
                _ => self.log_in(handler, peer, &plus, now),
            },
        };
        answer.map(|packet| rmcp::ipmi(&packet))
    }

    /// The two commands that are answered without a session.
    fn outside(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let message = RequestMessage::parse(payload).ok()?;
        let request = &message.request;
        match (request.function, request.command, request.data.as_slice()) {
            (APPLICATION, GET_CAPABILITIES, _) => Some(answer(&message, self.capabilities())),
            (APPLICATION, GET_SUITES, [_, _, index, ..]) => Some(answer(&message, self.suites(*index))),
            _ => None,
        }
    }

    /// One record for each suite: its number, and its algorithms, by tag.
    fn suites(&self, index: u8) -> Response {
        let record = |suite: &Suite| {
            let algorithms = suite.algorithms();
            [
                0xc0,
                suite.number(),
                algorithms.authentication,
                0x40 | algorithms.integrity,
                0x80 | algorithms.confidentiality,
            ]
        };
        let records: Vec<u8> = self.settings.suites.iter().flat_map(record).collect();
        let page = records.chunks(SUITE_PAGE).nth((index & MOST_SUITE_PAGES).into()).unwrap_or_default();
        Response { completion: Completion::Ok, data: [&[1], page].concat() }
    }

    /// Channel 1; no IPMI 1.5 authentication; users with names, per-message authentication; IPMI 2.0.
    fn capabilities(&self) -> Response {
        let key = if self.settings.key.is_some() { 0x20 } else { 0 };
        Response { completion: Completion::Ok, data: vec![1, 0x80, 0x04 | key, 0x02, 0, 0, 0, 0] }
    }

    fn inside(
        &mut self,
        handler: &mut impl Handler,
        peer: SocketAddr,
        packet: &Plus<'_>,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let at =
            self.sessions.iter().position(|entry| entry.managed == packet.session && entry.peer == peer)?;
        let capabilities = self.capabilities();
        let mut vector = [0; 16];
        (self.random)(&mut vector);
        let entry = self.sessions.get_mut(at)?;
        let message = entry.open(packet, now)?;
        let request = &message.request;
        let mut closed = false;
        let known = if self.settings.remembers { entry.remembered(&message) } else { None };
        let response = match known {
            Some(response) => response,
            None => {
                let response = match (request.function, request.command) {
                    (APPLICATION, GET_CAPABILITIES) => capabilities,
                    (APPLICATION, SET_PRIVILEGE) => entry.set_privilege(request),
                    (APPLICATION, CLOSE) => {
                        closed = request.data == entry.managed.to_le_bytes();
                        let completion = if closed { Completion::Ok } else { Completion::Specific(0x87) };
                        Response { completion, data: Vec::new() }
                    }
                    _ => handler.command(entry.privilege, request, now),
                };
                entry.remember(&message, &response);
                response
            }
        };
        let sealed = entry.seal(&answer(&message, response), vector);
        if closed {
            self.sessions.remove(at);
        }
        sealed
    }
}

fn answer(message: &RequestMessage, response: Response) -> Vec<u8> {
    let request = &message.request;
    ResponseMessage {
        sequence: message.sequence,
        function: request.function,
        lun: request.lun,
        command: request.command,
        response,
    }
    .encode()
}
