//! Pure: Field Replaceable Units: how large the memory of one is, and a part of it (IPMI 2.0 section 34). What stands in it: [`crate::fru`].

use super::Command;
use crate::wire::{
    ParsePacketError, Reader,
    message::{Request, STORAGE},
};

/// The machine itself, as the BMC knows it.
pub const MACHINE: u8 = 0;

/// Get FRU Inventory Area Info.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetFruArea {
    /// Number of the FRU device.
    pub device: u8,
}

/// The memory of a FRU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FruArea {
    /// The size in octets.
    pub size: u16,
    /// True if offsets and counts are in words of two octets.
    pub words: bool,
}

impl Command for GetFruArea {
    type Answer = FruArea;

    fn request(&self) -> Request {
        Request::new(STORAGE, 0x10, &[self.device])
    }

    fn answer(&self, data: &[u8]) -> Result<FruArea, ParsePacketError> {
        let mut reader = Reader(data);
        let size = reader.u16()?;
        Ok(FruArea { size, words: reader.byte()? & 1 != 0 })
    }
}

/// Read FRU Data. Offset and count are octets, even ones where it is read by words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadFru {
    /// Number of the FRU device.
    pub device: u8,
    /// True if offsets and counts are in words.
    pub words: bool,
    /// From which octet.
    pub offset: u16,
    /// Number of octets.
    pub count: u8,
}

impl Command for ReadFru {
    /// The octets, never more than were asked for.
    type Answer = Vec<u8>;

    fn request(&self) -> Request {
        let shift = u32::from(self.words);
        let [low, high] = (self.offset >> shift).to_le_bytes();
        Request::new(STORAGE, 0x11, &[self.device, low, high, self.count >> shift])
    }

    fn answer(&self, data: &[u8]) -> Result<Vec<u8>, ParsePacketError> {
        let mut reader = Reader(data);
        let count = usize::from(reader.byte()?) << u32::from(self.words);
        let most = count.min(self.count.into());
        Ok(reader.0.get(..most).unwrap_or(reader.0).to_vec())
    }
}
