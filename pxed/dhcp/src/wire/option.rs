//! Option codes by name (RFC 2132 unless said otherwise). Numbers only; called by everything in this crate.
//!
//! Pure: constants.
#![allow(missing_docs)]

pub const PAD: u8 = 0;
pub const SUBNET_MASK: u8 = 1;
pub const ROUTER: u8 = 3;
pub const NAME_SERVER: u8 = 6;
pub const HOST_NAME: u8 = 12;
pub const DOMAIN_NAME: u8 = 15;
pub const BROADCAST: u8 = 28;
pub const NTP_SERVER: u8 = 42;
pub const VENDOR_SPECIFIC: u8 = 43;
pub const REQUESTED_ADDRESS: u8 = 50;
pub const LEASE_TIME: u8 = 51;
pub const OVERLOAD: u8 = 52;
pub const MESSAGE_TYPE: u8 = 53;
pub const SERVER_ID: u8 = 54;
pub const PARAMETERS: u8 = 55;
pub const MESSAGE: u8 = 56;
pub const MAX_SIZE: u8 = 57;
pub const RENEWAL_TIME: u8 = 58;
pub const REBINDING_TIME: u8 = 59;
pub const VENDOR_CLASS: u8 = 60;
pub const CLIENT_ID: u8 = 61;
pub const TFTP_SERVER: u8 = 66;
pub const BOOT_FILE: u8 = 67;
/// RFC 3004
pub const USER_CLASS: u8 = 77;
/// RFC 3046
pub const RELAY_INFORMATION: u8 = 82;
/// RFC 4578
pub const ARCHITECTURE: u8 = 93;
/// RFC 4578
pub const MACHINE_ID: u8 = 97;
/// iPXE's encapsulated options
pub const IPXE: u8 = 175;
pub const END: u8 = 255;

/// Sub-options of option 82.
pub mod relay {
    /// RFC 3527
    pub const LINK_SELECTION: u8 = 5;
    /// RFC 5107
    pub const SERVER_OVERRIDE: u8 = 11;
    /// RFC 8357
    pub const SOURCE_PORT: u8 = 19;
}

/// Sub-options of option 43 as PXE 2.1 uses it.
pub mod pxe {
    /// PXE_BOOT_ITEM: the boot server type and layer that is asked for.
    pub const BOOT_ITEM: u8 = 71;
}

/// iPXE's sub-option `no-pxedhcp`: 1 makes it continue without waiting for a proxyDHCP answer.
pub const IPXE_NO_PROXY: u8 = 176;
