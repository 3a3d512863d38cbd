//! Pure: octets of IPMI over LAN and back (IPMI 2.0 section 13, DMTF DSP0136). Neither keys nor sessions; called by the session of either
//! side.
//!
//! | module | what |
//! |---|---|
//! | [`rmcp`] | the outermost header, presence ping and pong |
//! | [`header`] | session headers of IPMI 1.5 and RMCP+, the trailer |
//! | [`open`] | Open Session |
//! | [`rakp`] | RAKP messages 1 to 4 and their status |
//! | [`message`] | the command and its answer within |
//! | [`completion`] | completion codes |
//!
//! What is parsed borrows from the datagram or copies at most its length.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

pub mod completion;
pub mod header;
pub mod message;
pub mod open;
pub mod rakp;
pub mod rmcp;

/// Reason why octets cannot be parsed as a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParsePacketError {
    /// The packet has fewer octets than its header names.
    #[error("the packet is truncated")]
    Short,
    /// Not RMCP version 6.
    #[error("not RMCP version 1.0")]
    Version,
    /// An RMCP class that is neither ASF nor IPMI, or an acknowledgement.
    #[error("neither ASF nor IPMI")]
    Class,
    /// A length that contradicts the rest.
    #[error("a length does not fit the packet")]
    Length,
    /// One of the two checksums of an IPMI message.
    #[error("a checksum is wrong")]
    Checksum,
    /// A field has an invalid value.
    #[error("the {0} is invalid")]
    Value(&'static str),
}

/// Takes fields from the front.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn array<const OCTET_COUNT: usize>(&mut self) -> Result<[u8; OCTET_COUNT], ParsePacketError> {
        let (first, rest) = self.0.split_first_chunk::<OCTET_COUNT>().ok_or(ParsePacketError::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, ParsePacketError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ParsePacketError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ParsePacketError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], ParsePacketError> {
        let (first, rest) = self.0.split_at_checked(length).ok_or(ParsePacketError::Short)?;
        self.0 = rest;
        Ok(first)
    }
}

#[cfg(test)]
mod tests;
