//! Boot mode that is requested when the source of the next boot is set: IPMI boot flags always state BIOS or UEFI.
//!
//! Pure: no clock, no file, no socket. Callers: `run_operation`, `apply`.

use bedplate_api::machine::{FirmwareKind, FirmwareMode, MachineSpec, MachineStatus};
use bedplate_bmc::BootMode;

/// Returns the mode in the spec, or else the mode of the last boot; `None` if both are unknown.
pub(crate) fn boot_mode(spec: &MachineSpec, status: &MachineStatus) -> Option<BootMode> {
    match spec.pxe.as_ref().map(|pxe| pxe.firmware).unwrap_or_default() {
        FirmwareKind::Bios => Some(BootMode::Legacy),
        FirmwareKind::Uefi => Some(BootMode::Uefi),
        FirmwareKind::Auto => {
            let firmware = status.hardware.as_ref().and_then(|hardware| hardware.firmware.as_ref());
            firmware.and_then(|firmware| firmware.mode).and_then(|mode| match mode {
                FirmwareMode::Bios => Some(BootMode::Legacy),
                FirmwareMode::Uefi => Some(BootMode::Uefi),
                FirmwareMode::Unknown => None,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_spec_says_the_mode_else_the_last_boot() {
        use BootMode::{Legacy, Uefi};
        for (firmware, booted, expected) in [
            (Some("BIOS"), Some("UEFI"), Some(Legacy)),
            (Some("UEFI"), Some("BIOS"), Some(Uefi)),
            (Some("Auto"), Some("BIOS"), Some(Legacy)),
            (None, Some("UEFI"), Some(Uefi)),
            (None, None, None),
        ] {
            let mut pxe = json!({"interfaces": [{"macAddress": "52:54:00:00:00:01"}]});
            if let Some(firmware) = firmware {
                pxe["firmware"] = json!(firmware);
            }
            let spec = json!({"siteRef": {"name": "lab"}, "provider": "pxe", "pxe": pxe});
            let spec: MachineSpec = serde_json::from_value(spec).unwrap();
            let status = json!({"hardware": {"firmware": {"mode": booted}}});
            let status: MachineStatus = serde_json::from_value(status).unwrap();
            assert_eq!(boot_mode(&spec, &status), expected, "{firmware:?} {booted:?}");
        }
    }
}
