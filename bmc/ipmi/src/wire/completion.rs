//! Pure: completion codes (IPMI 2.0 table 5-2), each with a text for users.

/// Result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Completion {
    /// 0x00.
    #[error("done")]
    Ok,
    /// 0x01 to 0x7E: the vendor's.
    #[error("vendor-specific code {0:#04x}")]
    Vendor(u8),
    /// 0x80 to 0xBE: what it means depends on the command.
    #[error("command-specific code {0:#04x}")]
    Specific(u8),
    /// 0xC0.
    #[error("the BMC is busy")]
    Busy,
    /// 0xC1.
    #[error("the BMC does not know this command")]
    InvalidCommand,
    /// 0xC2.
    #[error("the command is not valid for this LUN")]
    InvalidForLun,
    /// 0xC3.
    #[error("the BMC timed out internally")]
    TimedOut,
    /// 0xC4.
    #[error("the BMC has no space left")]
    OutOfSpace,
    /// 0xC5.
    #[error("the reservation was canceled or is invalid")]
    Reservation,
    /// 0xC6.
    #[error("the request was truncated")]
    Truncated,
    /// 0xC7.
    #[error("the request's length is wrong")]
    Length,
    /// 0xC8.
    #[error("a field is too long")]
    FieldLength,
    /// 0xC9.
    #[error("a parameter is out of range")]
    Range,
    /// 0xCA.
    #[error("the BMC cannot return as many octets")]
    TooManyOctets,
    /// 0xCB.
    #[error("the sensor, record or data does not exist")]
    NotPresent,
    /// 0xCC.
    #[error("a field of the request is invalid")]
    InvalidField,
    /// 0xCD.
    #[error("the command is not allowed for this sensor or record")]
    IllegalForRecord,
    /// 0xCE.
    #[error("the BMC could not provide an answer")]
    NoAnswer,
    /// 0xCF: the BMC knows the request by its number already, and does not carry it out again.
    #[error("the request is a duplicate and was not repeated")]
    Duplicate,
    /// 0xD0.
    #[error("the sensor repository is being updated")]
    RepositoryUpdate,
    /// 0xD1.
    #[error("the BMC's firmware is being updated")]
    FirmwareUpdate,
    /// 0xD2.
    #[error("the BMC is initializing")]
    Initializing,
    /// 0xD3.
    #[error("the destination is unavailable")]
    DestinationUnavailable,
    /// 0xD4.
    #[error("the privilege of the session is insufficient")]
    Privilege,
    /// 0xD5.
    #[error("the command is not supported in the current state")]
    State,
    /// 0xD6.
    #[error("a part of the command is disabled")]
    Disabled,
    /// 0xFF.
    #[error("unspecified error")]
    Unspecified,
    /// A reserved number.
    #[error("reserved code {0:#04x}")]
    Reserved(u8),
}

/// Codes with a name.
const NAMED: [(u8, Completion); 25] = [
    (0x00, Completion::Ok),
    (0xc0, Completion::Busy),
    (0xc1, Completion::InvalidCommand),
    (0xc2, Completion::InvalidForLun),
    (0xc3, Completion::TimedOut),
    (0xc4, Completion::OutOfSpace),
    (0xc5, Completion::Reservation),
    (0xc6, Completion::Truncated),
    (0xc7, Completion::Length),
    (0xc8, Completion::FieldLength),
    (0xc9, Completion::Range),
    (0xca, Completion::TooManyOctets),
    (0xcb, Completion::NotPresent),
    (0xcc, Completion::InvalidField),
    (0xcd, Completion::IllegalForRecord),
    (0xce, Completion::NoAnswer),
    (0xcf, Completion::Duplicate),
    (0xd0, Completion::RepositoryUpdate),
    (0xd1, Completion::FirmwareUpdate),
    (0xd2, Completion::Initializing),
    (0xd3, Completion::DestinationUnavailable),
    (0xd4, Completion::Privilege),
    (0xd5, Completion::State),
    (0xd6, Completion::Disabled),
    (0xff, Completion::Unspecified),
];

impl Completion {
    /// The completion of a number.
    #[must_use]
    pub(crate) fn from_number(number: u8) -> Self {
        let named = NAMED.iter().find(|(is, _)| *is == number).map(|(_, completion)| *completion);
        named.unwrap_or(match number {
            0x01..=0x7e => Self::Vendor(number),
            0x80..=0xbe => Self::Specific(number),
            _ => Self::Reserved(number),
        })
    }

    /// Returns true if the BMC is temporarily short of time or space, and has done nothing.
    #[must_use]
    pub fn is_passing(self) -> bool {
        matches!(
            self,
            Self::Busy
                | Self::OutOfSpace
                | Self::RepositoryUpdate
                | Self::FirmwareUpdate
                | Self::Initializing
        )
    }

    /// Returns true if the BMC does not have the command at all.
    #[must_use]
    pub fn is_absence(self) -> bool {
        matches!(self, Self::InvalidCommand | Self::InvalidForLun | Self::Disabled)
    }

    /// The number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Vendor(number) | Self::Specific(number) | Self::Reserved(number) => number,
            named => NAMED.iter().find(|(_, is)| *is == named).map_or(0xff, |(number, _)| *number),
        }
    }
}
