//! Option codes by name (RFC 2132 unless said otherwise). Numbers only; called by everything in this crate.
//!
//! Pure: constants.
#![allow(missing_docs)]

pub(crate) const PAD: u8 = 0;
pub(crate) const SUBNET_MASK: u8 = 1;
pub(crate) const ROUTER: u8 = 3;
pub(crate) const NAME_SERVER: u8 = 6;
pub(crate) const HOST_NAME: u8 = 12;
pub(crate) const DOMAIN_NAME: u8 = 15;
pub(crate) const BROADCAST: u8 = 28;
pub(crate) const NTP_SERVER: u8 = 42;
pub(crate) const VENDOR_SPECIFIC: u8 = 43;
pub(crate) const REQUESTED_ADDRESS: u8 = 50;
pub(crate) const LEASE_TIME: u8 = 51;
pub(crate) const OVERLOAD: u8 = 52;
pub(crate) const MESSAGE_TYPE: u8 = 53;
pub(crate) const SERVER_ID: u8 = 54;
pub(crate) const PARAMETERS: u8 = 55;
pub(crate) const MESSAGE: u8 = 56;
pub(crate) const MAX_SIZE: u8 = 57;
pub(crate) const RENEWAL_TIME: u8 = 58;
pub(crate) const REBINDING_TIME: u8 = 59;
pub(crate) const VENDOR_CLASS: u8 = 60;
pub(crate) const CLIENT_ID: u8 = 61;
pub(crate) const TFTP_SERVER: u8 = 66;
pub(crate) const BOOT_FILE: u8 = 67;
/// RFC 3004
pub(crate) const USER_CLASS: u8 = 77;
/// RFC 3046
pub(crate) const RELAY_INFORMATION: u8 = 82;
/// RFC 4578
pub(crate) const ARCHITECTURE: u8 = 93;
/// RFC 4578
pub(crate) const MACHINE_ID: u8 = 97;
/// iPXE's encapsulated options
pub(crate) const IPXE: u8 = 175;
pub(crate) const END: u8 = 255;

/// Sub-options of option 82.
pub(crate) mod relay {
    /// RFC 3527
    pub(crate) const LINK_SELECTION: u8 = 5;
    /// RFC 5107
    pub(crate) const SERVER_OVERRIDE: u8 = 11;
    /// RFC 8357
    pub(crate) const SOURCE_PORT: u8 = 19;
}

/// Sub-options of option 43 as PXE 2.1 uses it.
pub(crate) mod pxe {
    /// PXE_BOOT_ITEM: the boot server type and layer that is asked for.
    pub(crate) const BOOT_ITEM: u8 = 71;
}

/// iPXE's sub-option `no-pxedhcp`: 1 makes it continue without waiting for a proxyDHCP answer.
pub(crate) const IPXE_NO_PROXY: u8 = 176;
