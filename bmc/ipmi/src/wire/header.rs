//! Pure: the session header of IPMI 1.5 (only without authentication: capabilities are asked with it) and of RMCP+, and the RMCP+ trailer.

use super::{ParsePacketError, Reader};

const AUTHENTICATION_NONE: u8 = 0x00;
const FORMAT_RMCP_PLUS: u8 = 0x06;
const NEXT_HEADER: u8 = 0x07;
const ENCRYPTED: u8 = 0x80;
const AUTHENTICATED: u8 = 0x40;
const OEM_EXPLICIT: u8 = 0x02;

/// Kind of an RMCP+ packet's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadKind {
    /// A command or its answer.
    Ipmi,
    /// Serial over LAN.
    Sol,
    /// Open Session Request.
    OpenRequest,
    /// Open Session Response.
    OpenResponse,
    /// RAKP message 1.
    Rakp1,
    /// RAKP message 2.
    Rakp2,
    /// RAKP message 3.
    Rakp3,
    /// RAKP message 4.
    Rakp4,
    /// A number (6 bits) that this side does not know.
    Other(u8),
}

impl PayloadKind {
    /// The kind of a number; its upper two bits do not count.
    #[must_use]
    pub(crate) fn from_number(number: u8) -> Self {
        match number & 0x3f {
            0x00 => Self::Ipmi,
            0x01 => Self::Sol,
            0x10 => Self::OpenRequest,
            0x11 => Self::OpenResponse,
            0x12 => Self::Rakp1,
            0x13 => Self::Rakp2,
            0x14 => Self::Rakp3,
            0x15 => Self::Rakp4,
            other => Self::Other(other),
        }
    }

    /// The number, 0 to 63.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Ipmi => 0x00,
            Self::Sol => 0x01,
            Self::OpenRequest => 0x10,
            Self::OpenResponse => 0x11,
            Self::Rakp1 => 0x12,
            Self::Rakp2 => 0x13,
            Self::Rakp3 => 0x14,
            Self::Rakp4 => 0x15,
            Self::Other(number) => number & 0x3f,
        }
    }
}

/// An IPMI packet by its header's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    /// IPMI 1.5 without authentication.
    Plain(Plain<'a>),
    /// RMCP+.
    Plus(Plus<'a>),
}

/// A packet with IPMI 1.5's header, authentication type none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain<'a> {
    /// Session sequence number; 0 outside of a session.
    pub sequence: u32,
    /// Session id; 0 outside of a session.
    pub session: u32,
    /// An IPMI message.
    pub payload: &'a [u8],
}

/// A packet with RMCP+'s header. Nothing of it is verified or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plus<'a> {
    /// Kind of the payload.
    pub kind: PayloadKind,
    /// True if the payload is marked as encrypted.
    pub encrypted: bool,
    /// True if a trailer with a code is announced.
    pub authenticated: bool,
    /// The receiver's id of the session; 0 while there is none.
    pub session: u32,
    /// Session sequence number; 0 while there is no session.
    pub sequence: u32,
    /// Payload as sent: encrypted, if the header names it so.
    pub payload: &'a [u8],
    /// All from the first octet of the header to the end.
    pub whole: &'a [u8],
    /// Data after the payload.
    pub trailer: &'a [u8],
}

/// Reads what follows the RMCP header.
///
/// # Errors
/// It ends too early, or its format is one that no lanplus session uses.
pub fn parse(packet: &[u8]) -> Result<Packet<'_>, ParsePacketError> {
    let mut reader = Reader(packet);
    match reader.byte()? {
        AUTHENTICATION_NONE => {
            let (sequence, session) = (reader.u32()?, reader.u32()?);
            let length = reader.byte()?;
            Ok(Packet::Plain(Plain { sequence, session, payload: reader.bytes(length.into())? }))
        }
        FORMAT_RMCP_PLUS => {
            let kind = reader.byte()?;
            if kind & 0x3f == OEM_EXPLICIT {
                return Err(ParsePacketError::Value("payload type"));
            }
            let (session, sequence) = (reader.u32()?, reader.u32()?);
            let length = reader.u16()?;
            let payload = reader.bytes(length.into())?;
            Ok(Packet::Plus(Plus {
                kind: PayloadKind::from_number(kind),
                encrypted: kind & ENCRYPTED != 0,
                authenticated: kind & AUTHENTICATED != 0,
                session,
                sequence,
                payload,
                whole: packet,
                trailer: reader.0,
            }))
        }
        _ => Err(ParsePacketError::Value("authentication type")),
    }
}

impl<'a> Plus<'a> {
    /// Splits off a code of `length` octets: what it covers (from the header to "next header"), and the code itself.
    ///
    /// # Errors
    /// The trailer is not pad, its length, "next header" and a code of that length.
    pub fn split_code(&self, length: usize) -> Result<(&'a [u8], &'a [u8]), ParsePacketError> {
        let before = self.whole.len().checked_sub(length).ok_or(ParsePacketError::Short)?;
        let pad = self.trailer.len().checked_sub(length).ok_or(ParsePacketError::Short)?;
        let [pad @ .., pad_length, next] = self.trailer.get(..pad).ok_or(ParsePacketError::Short)? else {
            return Err(ParsePacketError::Short);
        };
        if *next != NEXT_HEADER {
            return Err(ParsePacketError::Value("next header"));
        }
        if usize::from(*pad_length) != pad.len() || pad.len() > 3 {
            return Err(ParsePacketError::Length);
        }
        self.whole.split_at_checked(before).ok_or(ParsePacketError::Short)
    }
}

/// A packet with IPMI 1.5's header, outside of a session. `None` if the payload is longer than 255 octets.
#[must_use]
pub(crate) fn encode_plain(payload: &[u8]) -> Option<Vec<u8>> {
    let length = u8::try_from(payload.len()).ok()?;
    Some([&[AUTHENTICATION_NONE][..], &[0; 8], &[length], payload].concat())
}

/// A packet with RMCP+'s header outside of a session: neither encrypted nor authenticated. `None` if the payload is longer than 65,535
/// octets.
#[must_use]
pub(crate) fn encode_open(kind: PayloadKind, payload: &[u8]) -> Option<Vec<u8>> {
    encode(kind.number(), 0, 0, payload)
}

/// A packet of a session up to its code, which the caller appends: header, encrypted payload, pad, "next header". `None` if the payload is
/// longer than 65,535 octets.
#[must_use]
pub(crate) fn encode_covered(
    kind: PayloadKind,
    session: u32,
    sequence: u32,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let mut packet = encode(kind.number() | ENCRYPTED | AUTHENTICATED, session, sequence, payload)?;
    // The code covers a multiple of four octets, pad length and next header among them.
    let pad: &[u8] = match packet.len() % 4 {
        0 => &[0xff, 0xff, 2],
        1 => &[0xff, 1],
        2 => &[0],
        _ => &[0xff, 0xff, 0xff, 3],
    };
    packet.extend_from_slice(pad);
    packet.push(NEXT_HEADER);
    Some(packet)
}

fn encode(kind: u8, session: u32, sequence: u32, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(payload.len()).ok()?.to_le_bytes();
    let head = [FORMAT_RMCP_PLUS, kind];
    Some([&head[..], &session.to_le_bytes(), &sequence.to_le_bytes(), &length, payload].concat())
}
