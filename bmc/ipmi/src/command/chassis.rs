//! Pure: a machine's power: its state, its faults, its switch.

use super::Command;
use crate::wire::{
    ParsePacketError, Reader,
    message::{CHASSIS, Request},
};

/// Get Chassis Status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetChassisStatus;

/// The state of a machine's power and what the chassis complains of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChassisStatus {
    /// Current power state, octet 1.
    power: u8,
    /// Miscellaneous state, octet 3.
    state: u8,
}

/// Faults of the chassis: octet (0: power, 2: state), bit, text.
const CONCERNS: [(u8, u8, &str); 7] = [
    (0, 0x02, "power overload"),
    (0, 0x04, "power interlock active"),
    (0, 0x08, "power fault"),
    (0, 0x10, "power control fault"),
    (2, 0x01, "chassis intrusion"),
    (2, 0x04, "drive fault"),
    (2, 0x08, "cooling or fan fault"),
];

impl ChassisStatus {
    /// Returns true if the machine is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.power & 0x01 != 0
    }

    /// Returns the faults, for users.
    pub fn concerns(&self) -> impl Iterator<Item = &'static str> {
        let status = *self;
        CONCERNS.into_iter().filter_map(move |(octet, bit, text)| {
            let octet = if octet == 0 { status.power } else { status.state };
            (octet & bit != 0).then_some(text)
        })
    }
}

impl Command for GetChassisStatus {
    type Answer = ChassisStatus;

    fn request(&self) -> Request {
        Request::new(CHASSIS, 0x01, &[])
    }

    fn answer(&self, data: &[u8]) -> Result<ChassisStatus, ParsePacketError> {
        let [power, _last_event, state] = Reader(data).array()?;
        Ok(ChassisStatus { power, state })
    }
}

/// Chassis Control. All but `Up` and `Down` are sent once. If the answer is missing, the state must be read before
/// they are repeated: see [`crate::session`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChassisControl {
    /// Immediate power-off.
    Down,
    /// Power on.
    Up,
    /// Off, and on again after a second at least; BMCs may refuse it while the machine is off.
    Cycle,
    /// Reset without loss of power.
    HardReset,
    /// Asks the operating system to shut down (ACPI).
    SoftShutdown,
}

impl ChassisControl {
    /// The number that is sent.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Down => 0,
            Self::Up => 1,
            Self::Cycle => 2,
            Self::HardReset => 3,
            Self::SoftShutdown => 5,
        }
    }
}

impl Command for ChassisControl {
    type Answer = ();

    fn request(&self) -> Request {
        let request = Request::new(CHASSIS, 0x02, &[self.number()]);
        match self {
            Self::Down | Self::Up => request,
            Self::Cycle | Self::HardReset | Self::SoftShutdown => request.once(),
        }
    }

    fn answer(&self, _: &[u8]) -> Result<(), ParsePacketError> {
        Ok(())
    }
}
