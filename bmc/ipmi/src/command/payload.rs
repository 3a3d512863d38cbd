//! Pure: switches a payload on and off in a session (IPMI 2.0 sections 24.1 and 24.2): serial over LAN.

use super::Command;
use crate::wire::{
    ParsePacketError, Reader,
    message::{APPLICATION, Request},
};

/// Serial over LAN, its first instance.
const SOL: [u8; 2] = [0x01, 0x01];
/// Encrypted and authenticated; alerts over the serial line fail meanwhile; the BMC asserts the handshake lines.
const SEALED: u8 = 0xc0;

/// The completion code of a BMC whose console another session uses.
pub const IN_USE: u8 = 0x80;

/// Activate Payload. Sent once: a repetition would be refused as [`IN_USE`], by ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ActivateConsole;

/// Limits of a console's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConsoleLimits {
    /// Octets of a payload that the BMC takes.
    pub most: u16,
}

impl Command for ActivateConsole {
    type Answer = ConsoleLimits;

    fn request(&self) -> Request {
        let [kind, instance] = SOL;
        Request::new(APPLICATION, 0x48, &[kind, instance, SEALED, 0, 0, 0]).once()
    }

    fn answer(&self, data: &[u8]) -> Result<ConsoleLimits, ParsePacketError> {
        let mut reader = Reader(data);
        reader.array::<4>()?;
        Ok(ConsoleLimits { most: reader.u16()? })
    }
}

/// Deactivate Payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeactivateConsole;

impl Command for DeactivateConsole {
    type Answer = ();

    fn request(&self) -> Request {
        let [kind, instance] = SOL;
        Request::new(APPLICATION, 0x49, &[kind, instance, 0, 0, 0, 0])
    }

    fn answer(&self, _: &[u8]) -> Result<(), ParsePacketError> {
        Ok(())
    }
}
