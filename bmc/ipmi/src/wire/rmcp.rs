//! Pure: the outermost header (RMCP 1.0) and ASF's presence ping and pong, by which a BMC is found without an account.

use super::{ParsePacketError, Reader};

/// RMCP 1.0, no acknowledgement wanted (sequence 255), class IPMI.
pub(super) const IPMI_HEADER: [u8; 4] = [0x06, 0x00, 0xff, 0x07];
const ASF_HEADER: [u8; 4] = [0x06, 0x00, 0xff, 0x06];
const VERSION: u8 = 0x06;
/// IANA's number of ASF, which both messages carry.
const ASF_ENTERPRISE: [u8; 4] = [0x00, 0x00, 0x11, 0xbe];
const PING: u8 = 0x80;
const PONG: u8 = 0x40;
/// Bit of the supported entities.
const SUPPORTS_IPMI: u8 = 0x80;

/// A datagram by its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rmcp<'a> {
    /// Are you there?
    Ping {
        /// Repeated in the pong.
        tag: u8,
    },
    /// I am.
    Pong {
        /// Tag of the ping.
        tag: u8,
        /// True if it speaks IPMI.
        ipmi: bool,
    },
    /// An IPMI packet without the RMCP header.
    Ipmi(&'a [u8]),
}

/// Reads a datagram's outermost header.
///
/// # Errors
/// Not RMCP 1.0, or neither IPMI nor one of ASF's two messages.
pub fn parse(datagram: &[u8]) -> Result<Rmcp<'_>, ParsePacketError> {
    let mut reader = Reader(datagram);
    let [version, _, _, class] = reader.array()?;
    match (version, class) {
        (VERSION, 0x07) => Ok(Rmcp::Ipmi(reader.0)),
        (VERSION, 0x06) => parse_asf(reader),
        (VERSION, _) => Err(ParsePacketError::Class),
        _ => Err(ParsePacketError::Version),
    }
}

fn parse_asf(mut reader: Reader<'_>) -> Result<Rmcp<'_>, ParsePacketError> {
    if reader.array()? != ASF_ENTERPRISE {
        return Err(ParsePacketError::Value("enterprise"));
    }
    let [kind, tag, _, length] = reader.array()?;
    let data = reader.bytes(length.into())?;
    match kind {
        PING => Ok(Rmcp::Ping { tag }),
        PONG => {
            let [.., entities] = Reader(data).array::<9>()?;
            Ok(Rmcp::Pong { tag, ipmi: entities & SUPPORTS_IPMI != 0 })
        }
        _ => Err(ParsePacketError::Value("message type")),
    }
}

/// The answer of a BMC that speaks IPMI.
#[must_use]
pub(crate) fn pong(tag: u8) -> Vec<u8> {
    let entities = [SUPPORTS_IPMI | 1, 0, 0, 0, 0, 0, 0, 0];
    [&ASF_HEADER[..], &ASF_ENTERPRISE, &[PONG, tag, 0, 16], &ASF_ENTERPRISE, &[0; 4], &entities].concat()
}

/// An IPMI packet as a datagram.
#[must_use]
pub fn ipmi(packet: &[u8]) -> Vec<u8> {
    [&IPMI_HEADER[..], packet].concat()
}
