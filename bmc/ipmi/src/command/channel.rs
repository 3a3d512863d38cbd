//! Pure: capabilities of a BMC's channel, which it reports without a session.

use super::Command;
use crate::wire::{
    ParsePacketError, Reader,
    message::{APPLICATION, Request},
};

/// This channel, with the answer's IPMI 2.0 part.
const THIS_CHANNEL_2_0: u8 = 0x8e;

/// Get Channel Authentication Capabilities, of the channel that it is asked over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GetChannelCapabilities {
    /// The privilege for which it is asked, by number.
    pub privilege: u8,
}

/// Capabilities of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelCapabilities {
    /// The channel's number.
    pub channel: u8,
    /// True if it speaks IPMI 1.5 sessions, which are not encrypted.
    pub ipmi_1_5: bool,
    /// True if it speaks IPMI 2.0 sessions (RMCP+).
    pub ipmi_2_0: bool,
    /// True if the BMC has its own key (Kg) that is not all zeros.
    pub has_key: bool,
    /// True if a login without a user name is possible.
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

/// Octets of a page of [`GetChannelSuites`] that is not the last.
pub(crate) const SUITE_PAGE: usize = 16;
/// The highest number of a page.
pub(crate) const MOST_SUITE_PAGES: u8 = 0x3f;

/// Get Channel Cipher Suites, one page of the list, of the channel that it is asked over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GetChannelSuites {
    /// The page, from 0 to [`MOST_SUITE_PAGES`].
    pub index: u8,
}

impl Command for GetChannelSuites {
    /// Octets of records, which may go over from one page to the next: see [`suite_numbers`].
    type Answer = Vec<u8>;

    fn request(&self) -> Request {
        // This channel; of payload IPMI; by cipher suite.
        Request::new(APPLICATION, 0x54, &[0x0e, 0x00, 0x80 | (self.index & MOST_SUITE_PAGES)])
    }

    fn answer(&self, data: &[u8]) -> Result<Vec<u8>, ParsePacketError> {
        let mut reader = Reader(data);
        reader.byte()?;
        Ok(reader.0.get(..SUITE_PAGE).unwrap_or(reader.0).to_vec())
    }
}

/// Returns the suite numbers in the records of all pages, in their order, without those of vendors.
#[must_use]
pub(crate) fn suite_numbers(records: &[u8]) -> Vec<u8> {
    let mut numbers = Vec::new();
    let mut reader = Reader(records);
    while let Ok(octet) = reader.byte() {
        match octet {
            // A record of the standard begins; its algorithms follow, which are below 0xc0.
            0xc0 => numbers.extend(reader.byte()),
            // A vendor's: its number, and the vendor's in three octets.
            0xc1 => drop(reader.array::<4>()),
            _ => {}
        }
    }
    numbers
}
