//! Pure: Open Session and RAKP 1 to 4 as a BMC answers them. A repeated message is answered as before, except RAKP 1.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{net::SocketAddr, time::Instant};

use super::{
    Handler, Managed,
    entry::{Entry, Login},
};
use crate::{
    crypto::{Exchange, Suite, UserName, same},
    session::Privilege,
    wire::{
        header::{PayloadKind, Plus, encode_open},
        open::{OpenRequest, OpenResponse, Opened},
        rakp::{Challenge, Proof, Rakp1, Rakp2, Status},
    },
};

impl Managed {
    /// Answers a packet outside of any session.
    pub(super) fn log_in(
        &mut self,
        handler: &mut impl Handler,
        peer: SocketAddr,
        packet: &Plus<'_>,
        now: Instant,
    ) -> Option<Vec<u8>> {
        match packet.kind {
            PayloadKind::OpenRequest => {
                let answer = self.open(peer, &OpenRequest::parse(packet.payload).ok()?, now);
                encode_open(PayloadKind::OpenResponse, &answer.encode())
            }
            PayloadKind::Rakp1 => {
                let message = Rakp1::parse(packet.payload).ok()?;
                let answer = self.challenge(handler, peer, &message, now);
                encode_open(PayloadKind::Rakp2, &answer?)
            }
            PayloadKind::Rakp3 => {
                let message = Proof::parse(packet.payload).ok()?;
                let answer = self.prove(handler, peer, &message, packet.payload, now);
                encode_open(PayloadKind::Rakp4, &answer?)
            }
            _ => None,
        }
    }

    fn number<const OCTET_COUNT: usize>(&mut self) -> [u8; OCTET_COUNT] {
        let mut octets = [0; OCTET_COUNT];
        (self.random)(&mut octets);
        octets
    }

    fn open(&mut self, peer: SocketAddr, request: &OpenRequest, now: Instant) -> OpenResponse {
        let (tag, console) = (request.tag, request.console);
        let outcome = self.admit(peer, request, now).map(|(managed, suite)| Opened {
            privilege: Privilege::Administrator.number(),
            managed,
            algorithms: suite.algorithms(),
        });
        OpenResponse { tag, console, outcome }
    }

    fn admit(
        &mut self,
        peer: SocketAddr,
        request: &OpenRequest,
        now: Instant,
    ) -> Result<(u32, Suite), Status> {
        let suite = Suite::of(request.algorithms).filter(|suite| self.settings.suites.contains(suite));
        let suite = suite.ok_or(Status::NoCipherSuite)?;
        let again = |entry: &&Entry| {
            (entry.peer, entry.console, entry.tag, entry.suite) == (peer, request.console, request.tag, suite)
        };
        if let Some(entry) = self.sessions.iter().find(again) {
            return Ok((entry.managed, suite));
        }
        if request.console == 0 {
            return Err(Status::SessionId);
        }
        if self.sessions.len() >= self.settings.sessions {
            return Err(Status::NoResources);
        }
        let managed = u32::from_le_bytes(self.number());
        if managed == 0 || self.sessions.iter().any(|entry| entry.managed == managed) {
            return Err(Status::NoResources);
        }
        self.sessions.push(Entry::new(peer, request.console, managed, suite, request.tag, now));
        Ok((managed, suite))
    }

    fn challenge(
        &mut self,
        handler: &mut impl Handler,
        peer: SocketAddr,
        message: &Rakp1<'_>,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let known = |entry: &Entry| entry.managed == message.managed && entry.peer == peer;
        let Some(at) = self.sessions.iter().position(known) else {
            // The console's id is not known here.
            let outcome = Err(Status::SessionId);
            return Some(Rakp2 { tag: message.tag, console: 0, outcome }.encode());
        };
        let managed_random = self.number();
        let entry = self.sessions.get_mut(at)?;
        // Each message 1 draws its own random number, also a repeated one, as OpenBMC does: the last one counts.
        if let Login::Done { .. } = &entry.login {
            return None;
        }
        let console = entry.console;
        let privilege = Privilege::from_number(message.role & 0x0f);
        let name = std::str::from_utf8(message.user).ok().and_then(|name| UserName::new(name).ok());
        let user = self.settings.users.iter().find(|user| Some(&user.name) == name.as_ref());
        let user = user.filter(|user| handler.may_log_in(&user.name, now)).ok_or(Status::Name);
        let allowed = user.and_then(|user| match privilege {
            Some(privilege) if privilege <= user.privilege => Ok((user, privilege)),
            Some(_) => Err(Status::Role(0x09)),
            None => Err(Status::Role(0x0a)),
        });
        let (user, most) = match allowed {
            Ok(allowed) => allowed,
            Err(status) => {
                self.sessions.remove(at);
                return Some(Rakp2 { tag: message.tag, console, outcome: Err(status) }.encode());
            }
        };
        let exchange = Exchange {
            suite: entry.suite,
            console,
            managed: entry.managed,
            console_random: message.random,
            managed_random,
            guid: self.settings.guid,
            role: message.role,
            user: user.name.clone(),
        };
        let code = exchange.managed_proof(&user.password);
        let outcome = Ok(Challenge { random: managed_random, guid: exchange.guid, code: code.as_ref() });
        let challenge = Rakp2 { tag: message.tag, console, outcome }.encode();
        entry.login = Login::Challenged { exchange, most };
        Some(challenge)
    }

    fn prove(
        &mut self,
        handler: &mut impl Handler,
        peer: SocketAddr,
        message: &Proof<'_>,
        octets: &[u8],
        now: Instant,
    ) -> Option<Vec<u8>> {
        let known = |entry: &Entry| entry.managed == message.session && entry.peer == peer;
        let Some(at) = self.sessions.iter().position(known) else {
            let outcome = Err(Status::SessionId);
            return Some(Proof { tag: message.tag, session: 0, outcome }.encode());
        };
        let entry = self.sessions.get_mut(at)?;
        let (exchange, most) = match &entry.login {
            Login::Opened => return None,
            Login::Done { third, proof, .. } => return (third == octets).then(|| proof.clone()),
            Login::Challenged { exchange, most } => (exchange, *most),
        };
        let user = self.settings.users.iter().find(|user| user.name == exchange.user);
        let right = user.filter(|user| {
            let expected = exchange.console_proof(&user.password);
            message.outcome.is_ok_and(|code| same(expected.as_ref(), code))
        });
        handler.logged_in(&exchange.user, right.is_some(), now);
        let (tag, console) = (message.tag, exchange.console);
        let Some(user) = right else {
            self.sessions.remove(at);
            let outcome = Err(Status::IntegrityCode);
            // A console that reports its own failure expects no answer.
            return message.outcome.ok().map(|_| Proof { tag, session: console, outcome }.encode());
        };
        let keys = exchange.keys(self.settings.key.as_ref().unwrap_or(&user.password));
        let code = keys.final_proof(exchange);
        let proof = Proof { tag, session: console, outcome: Ok(&code) }.encode();
        entry.most = most;
        entry.heard = now;
        entry.login = Login::Done { keys, third: octets.to_vec(), proof: proof.clone() };
        Some(proof)
    }
}
