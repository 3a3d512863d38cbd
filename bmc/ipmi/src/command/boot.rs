//! Pure: source of the next boot (Set and Get System Boot Options).
//!
//! Flags are for the next boot only, never persistent. A BMC forgets them if no chassis control comes within 60 seconds, and when the
//! machine is switched on by its push button; parameter 3 tells it not to, where the BMC has it: a machine that is switched on later, by
//! hand, boots from the network nevertheless. What else the parameter says remains.

use super::Command;
use crate::wire::{
    ParsePacketError, Reader,
    message::{CHASSIS, Request},
};

/// Numbers of parameters.
const SET_IN_PROGRESS: u8 = 0;
const VALID_BIT_CLEARING: u8 = 3;
const INFO_ACKNOWLEDGE: u8 = 4;
const BOOT_FLAGS: u8 = 5;

const FLAGS_VALID: u8 = 0x80;
const FLAGS_PERSISTENT: u8 = 0x40;
const FLAGS_EFI: u8 = 0x20;
/// Bit of [`VALID_BIT_CLEARING`]: a power-up by push button or wake event does not clear the flags.
const KEEP_ON_PUSH_BUTTON: u8 = 0x01;
/// Likewise: not after 60 seconds without a chassis control.
const KEEP_AFTER_TIMEOUT: u8 = 0x08;
/// Bits that the parameter has.
const CLEARING_BITS: u8 = 0x1f;

/// Device to boot from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BootDevice {
    /// As set up in the firmware.
    NoOverride,
    /// The network.
    Pxe,
    /// The first disk.
    Disk,
    /// A device with a number that is none of these.
    Other(u8),
}

impl BootDevice {
    fn number(self) -> u8 {
        match self {
            Self::NoOverride => 0,
            Self::Pxe => 1,
            Self::Disk => 2,
            Self::Other(number) => number & 0x0f,
        }
    }

    fn from_number(number: u8) -> Self {
        match number & 0x0f {
            0 => Self::NoOverride,
            1 => Self::Pxe,
            2 => Self::Disk,
            other => Self::Other(other),
        }
    }
}

/// Settings of the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootFlags {
    /// True if the flags are in force; a BMC reports false after they were used or forgotten.
    pub valid: bool,
    /// True if they are for all boots; only ever read.
    pub persistent: bool,
    /// True if the firmware must boot as UEFI.
    pub efi: bool,
    /// Boot device.
    pub device: BootDevice,
}

/// Set System Boot Options, one parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetBootOption {
    /// Others must wait; refused by a BMC that is being written by another.
    Begin,
    /// Puts the written values in force. BMCs without "set in progress" refuse it.
    End,
    /// The flags outlive 60 seconds without a chassis control, and the push button.
    KeepFlags(ValidBitClearing),
    /// The BIOS has not handled the flags yet.
    Unhandled,
    /// The flags, valid, for the next boot only.
    Flags {
        /// As UEFI.
        efi: bool,
        /// Boot device.
        device: BootDevice,
    },
}

impl SetBootOption {
    /// Returns true if boot flags are set even if a BMC refuses this parameter.
    #[must_use]
    pub(crate) fn is_optional(&self) -> bool {
        !matches!(self, Self::Flags { .. })
    }
}

/// Returns the parameters to send, in order, for the next boot from `device`. `clearing` is the present value of
/// parameter 3; if it cannot be read (`None`) it is not written, because its other bits would be lost.
/// [`SetBootOption::End`] must be sent also after a failure.
#[must_use]
pub(crate) fn plan_next_boot(
    device: BootDevice,
    efi: bool,
    clearing: Option<ValidBitClearing>,
) -> Vec<SetBootOption> {
    let mut plan = vec![SetBootOption::Begin];
    plan.extend(clearing.map(SetBootOption::KeepFlags));
    plan.extend([SetBootOption::Unhandled, SetBootOption::Flags { efi, device }, SetBootOption::End]);
    plan
}

impl Command for SetBootOption {
    type Answer = ();

    fn request(&self) -> Request {
        let data: &[u8] = match self {
            Self::Begin => &[SET_IN_PROGRESS, 1],
            Self::End => &[SET_IN_PROGRESS, 0],
            Self::KeepFlags(ValidBitClearing(bits)) => {
                &[VALID_BIT_CLEARING, bits | KEEP_ON_PUSH_BUTTON | KEEP_AFTER_TIMEOUT]
            }
            Self::Unhandled => &[INFO_ACKNOWLEDGE, 0x01, 0x01],
            Self::Flags { efi, device } => {
                let efi = if *efi { FLAGS_EFI } else { 0 };
                &[BOOT_FLAGS, FLAGS_VALID | efi, device.number() << 2, 0, 0, 0]
            }
        };
        Request::new(CHASSIS, 0x08, data)
    }

    fn answer(&self, _: &[u8]) -> Result<(), ParsePacketError> {
        Ok(())
    }
}

/// Bits of parameter 3: events after which a BMC keeps boot flags that it would clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValidBitClearing(u8);

impl ValidBitClearing {
    /// Returns true if boot flags survive 60 seconds without a chassis control, and the push button.
    #[must_use]
    pub(crate) fn keeps_flags(self) -> bool {
        let both = KEEP_ON_PUSH_BUTTON | KEEP_AFTER_TIMEOUT;
        self.0 & both == both
    }
}

/// Lifetime of boot flags that were set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagsLast {
    /// Valid until the next boot, whatever causes it.
    UntilBoot,
    /// Valid until the next boot by a chassis control within 60 seconds, because the BMC does not have parameter 3.
    Minute,
}

/// Get System Boot Options, when boot flags are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GetValidBitClearing;

impl Command for GetValidBitClearing {
    type Answer = ValidBitClearing;

    fn request(&self) -> Request {
        Request::new(CHASSIS, 0x09, &[VALID_BIT_CLEARING, 0, 0])
    }

    fn answer(&self, data: &[u8]) -> Result<ValidBitClearing, ParsePacketError> {
        let [_, parameter, bits] = Reader(data).array()?;
        if parameter & 0x7f != VALID_BIT_CLEARING {
            return Err(ParsePacketError::Value("parameter"));
        }
        Ok(ValidBitClearing(bits & CLEARING_BITS))
    }
}

/// Get System Boot Options, boot flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetBootFlags;

impl Command for GetBootFlags {
    type Answer = BootFlags;

    fn request(&self) -> Request {
        Request::new(CHASSIS, 0x09, &[BOOT_FLAGS, 0, 0])
    }

    fn answer(&self, data: &[u8]) -> Result<BootFlags, ParsePacketError> {
        let [_, parameter, flags, device] = Reader(data).array()?;
        // Bit 7 of the parameter's number: marked invalid or locked.
        if parameter & 0x7f != BOOT_FLAGS {
            return Err(ParsePacketError::Value("parameter"));
        }
        Ok(BootFlags {
            valid: flags & FLAGS_VALID != 0 && parameter & 0x80 == 0,
            persistent: flags & FLAGS_PERSISTENT != 0,
            efi: flags & FLAGS_EFI != 0,
            device: BootDevice::from_number(device >> 2),
        })
    }
}
