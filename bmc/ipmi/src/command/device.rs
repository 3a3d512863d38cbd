//! Pure: identity of a BMC and its machine: device ID, system GUID.

use super::Command;
use crate::wire::{
    ParsePacketError, Reader,
    message::{APPLICATION, Request},
};

/// Get Device ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetDeviceId;

/// Identity of a BMC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceId {
    /// The vendor's number of the device.
    pub device: u8,
    /// Hardware revision, 0 to 15.
    pub revision: u8,
    /// True if it is not in normal operation: initializing or updating itself.
    pub unavailable: bool,
    /// Firmware revision, major part.
    pub major: u8,
    /// Firmware revision, minor part (decoded from BCD).
    pub minor: u8,
    /// Version of IPMI: major, minor.
    pub ipmi: (u8, u8),
    /// IANA's number of the manufacturer, 20 bits.
    pub manufacturer: u32,
    /// The manufacturer's number of the product.
    pub product: u16,
}

impl Command for GetDeviceId {
    type Answer = DeviceId;

    fn request(&self) -> Request {
        Request::new(APPLICATION, 0x01, &[])
    }

    fn answer(&self, data: &[u8]) -> Result<DeviceId, ParsePacketError> {
        let mut reader = Reader(data);
        let [device, revision, major, minor, ipmi, _] = reader.array()?;
        let [low, middle, high] = reader.array()?;
        let product = reader.u16()?;
        Ok(DeviceId {
            device,
            revision: revision & 0x0f,
            unavailable: major & 0x80 != 0,
            major: major & 0x7f,
            minor: decimal(minor),
            ipmi: (ipmi & 0x0f, ipmi >> 4),
            manufacturer: u32::from_le_bytes([low, middle, high & 0x0f, 0]),
            product,
        })
    }
}

/// Two decimal digits; what is none is taken as a number.
fn decimal(octet: u8) -> u8 {
    let (tens, ones) = (octet >> 4, octet & 0x0f);
    if tens > 9 || ones > 9 { octet } else { tens.saturating_mul(10).saturating_add(ones) }
}

/// Get System GUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetSystemGuid;

impl Command for GetSystemGuid {
    /// As sent. Vendors differ in its order of octets: SMBIOS's (first three fields little-endian) is the most common.
    type Answer = [u8; 16];

    fn request(&self) -> Request {
        Request::new(APPLICATION, 0x37, &[])
    }

    fn answer(&self, data: &[u8]) -> Result<[u8; 16], ParsePacketError> {
        Reader(data).array()
    }
}
