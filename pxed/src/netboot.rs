//! Answers of the boot path to the DHCP and TFTP engines.

pub mod dhcp;
pub mod loaders;
pub mod state;
pub mod tftp;
