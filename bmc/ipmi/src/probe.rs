//! Query of a BMC's channel capabilities, without an account. Opens no session; for users who create a Machine's
//! manifest.

use std::{net::SocketAddr, time::Instant};

use tokio::{net::UdpSocket, time};

use crate::{
    client::{ClientError, LONGEST_DATAGRAM, open},
    command::{
        Command,
        channel::{
            ChannelCapabilities, GetChannelCapabilities, GetChannelSuites, MOST_SUITE_PAGES, SUITE_PAGE,
            suite_numbers,
        },
    },
    session::{Privilege, Retry, SessionError},
    wire::{
        header::{self, Packet},
        message::{RequestMessage, ResponseMessage},
        rmcp::{self, Rmcp},
    },
};

/// Repeats the request until there is an answer, at most as often as `retry` permits.
///
/// # Errors
/// No socket, no answer, or a refusal.
pub async fn probe(address: SocketAddr, retry: &Retry) -> Result<ChannelCapabilities, ClientError> {
    Asker::new(address)
        .await?
        .ask(&GetChannelCapabilities { privilege: Privilege::Administrator.number() }, retry)
        .await
}

/// Numbers of the cipher suites that the channel offers, as it lists them.
///
/// # Errors
/// No socket, no answer, or a refusal: not every BMC reports its suites.
pub async fn suites(address: SocketAddr, retry: &Retry) -> Result<Vec<u8>, ClientError> {
    let mut asker = Asker::new(address).await?;
    let mut records = Vec::new();
    for index in 0..=MOST_SUITE_PAGES {
        let page = asker.ask(&GetChannelSuites { index }, retry).await?;
        records.extend_from_slice(&page);
        if page.len() < SUITE_PAGE {
            break;
        }
    }
    Ok(suite_numbers(&records))
}

/// A socket for commands outside of any session, one after another.
struct Asker {
    socket: UdpSocket,
    sequence: u8,
}

impl Asker {
    async fn new(address: SocketAddr) -> Result<Self, ClientError> {
        let socket = open(address).await.map_err(|source| ClientError::Socket { address, source })?;
        Ok(Self { socket, sequence: 0 })
    }

    async fn ask<C: Command>(&mut self, command: &C, retry: &Retry) -> Result<C::Answer, ClientError> {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1) & 0x3f;
        let request = command.request();
        let message = RequestMessage { sequence, request: request.clone() }.encode();
        let datagram = rmcp::ipmi(&header::encode_plain(&message).unwrap_or_default());
        let mut buffer = vec![0; LONGEST_DATAGRAM];
        for attempt in 1..=retry.attempts {
            // Lost datagrams are repeated, also those that were lost here.
            let _ = self.socket.send(&datagram).await;
            let until = Instant::now() + retry.wait(attempt);
            while let Ok(received) = time::timeout_at(until.into(), self.socket.recv(&mut buffer)).await {
                let Ok(length) = received else {
                    // No process listens at the port yet: repeated at the next attempt.
                    time::sleep_until(until.into()).await;
                    break;
                };
                let answer = read(buffer.get(..length).unwrap_or_default()).filter(|answer| {
                    (answer.function, answer.command, answer.sequence)
                        == (request.function, request.command, sequence)
                });
                if let Some(answer) = answer {
                    return command.read(&answer.response).map_err(ClientError::Command);
                }
            }
        }
        Err(ClientError::Session(SessionError::Unreachable { attempts: retry.attempts }))
    }
}

/// The answer in a datagram.
fn read(datagram: &[u8]) -> Option<ResponseMessage> {
    let Ok(Rmcp::Ipmi(packet)) = rmcp::parse(datagram) else { return None };
    let payload = match header::parse(packet).ok()? {
        Packet::Plain(plain) => plain.payload,
        Packet::Plus(plus) if !plus.encrypted && !plus.authenticated => plus.payload,
        Packet::Plus(_) => return None,
    };
    ResponseMessage::parse(payload).ok()
}
