//! Pure: what a BMC's channel can do, which it tells without a session.

use super::Command;
use crate::wire::{
    ParsePacketError, Reader,
    message::{APPLICATION, Request},
};

/// This channel, with the answer's IPMI 2.0 part.
const THIS_CHANNEL_2_0: u8 = 0x8e;

/// Get Channel Authentication Capabilities, of the channel that it is asked over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetChannelCapabilities {
    /// The privilege for which it is asked, by number.
    pub privilege: u8,
}

/// What a channel can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelCapabilities {
    /// The channel's number.
    pub channel: u8,
    /// Whether it speaks IPMI 1.5 sessions, which are not encrypted.
    pub ipmi_1_5: bool,
    /// Whether it speaks IPMI 2.0 sessions (RMCP+).
    pub ipmi_2_0: bool,
    /// Whether the BMC has a key of its own (Kg) that is not all zeros.
    pub has_key: bool,
    /// Whether somebody may log in without a name.
    pub anonymous: bool,
}

impl Command for GetChannelCapabilities {
    type Answer = ChannelCapabilities;

    fn request(&self) -> Request {
        Request::new(APPLICATION, 0x38, &[THIS_CHANNEL_2_0, self.privilege])
    }

    fn answer(&self, data: &[u8]) -> Result<ChannelCapabilities, ParsePacketError> {
        let [channel, types, status, extended] = Reader(data).array()?;
        // Without bit 7 of the types the fourth octet is reserved: IPMI 1.5 only.
        let has_extended = types & 0x80 != 0;
        Ok(ChannelCapabilities {
            channel: channel & 0x0f,
            ipmi_1_5: !has_extended || extended & 0x01 != 0,
            ipmi_2_0: has_extended && extended & 0x02 != 0,
            has_key: has_extended && status & 0x20 != 0,
            anonymous: status & 0x03 != 0,
        })
    }
}
