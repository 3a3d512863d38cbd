//! Asks a BMC what its channel can do, without an account. Opens no session; for whoever writes a machine down for the first time.

use std::{net::SocketAddr, time::Instant};

use tokio::time;

use crate::{
    client::{ClientError, LONGEST_DATAGRAM, open},
    command::{
        Command,
        channel::{ChannelCapabilities, GetChannelCapabilities},
    },
    session::{Privilege, Retry, SessionError},
    wire::{
        header::{self, Packet},
        message::{RequestMessage, ResponseMessage},
        rmcp::{self, Rmcp},
    },
};

/// Asks until there is an answer, or as often as `retry` says.
///
/// # Errors
/// No socket, no answer, or a refusal.
pub async fn probe(address: SocketAddr, retry: &Retry) -> Result<ChannelCapabilities, ClientError> {
    let command = GetChannelCapabilities { privilege: Privilege::Administrator.number() };
    let message = RequestMessage { sequence: 0, request: command.request() }.encode();
    let datagram = rmcp::ipmi(&header::encode_plain(&message).unwrap_or_default());
    let socket = open(address).await.map_err(|source| ClientError::Socket { address, source })?;
    let mut buffer = vec![0; LONGEST_DATAGRAM];
    for attempt in 1..=retry.attempts {
        // Lost datagrams are sent again, whoever loses them.
        let _ = socket.send(&datagram).await;
        let until = Instant::now() + retry.wait(attempt);
        while let Ok(received) = time::timeout_at(until.into(), socket.recv(&mut buffer)).await {
            let Ok(length) = received else {
                // Nobody listens at the port (yet): asked again when it is time.
                time::sleep_until(until.into()).await;
                break;
            };
            if let Some(answer) = read(buffer.get(..length).unwrap_or_default(), &command) {
                return command.read(&answer.response).map_err(ClientError::Command);
            }
        }
    }
    Err(ClientError::Session(SessionError::Unreachable { attempts: retry.attempts }))
}

/// The answer to this command, if the datagram is it.
fn read(datagram: &[u8], command: &GetChannelCapabilities) -> Option<ResponseMessage> {
    let Ok(Rmcp::Ipmi(packet)) = rmcp::parse(datagram) else { return None };
    let payload = match header::parse(packet).ok()? {
        Packet::Plain(plain) => plain.payload,
        Packet::Plus(plus) if !plus.encrypted && !plus.authenticated => plus.payload,
        Packet::Plus(_) => return None,
    };
    let request = command.request();
    let answer = ResponseMessage::parse(payload).ok()?;
    ((answer.function, answer.command) == (request.function, request.command)).then_some(answer)
}
