//! Any octets as a DHCP packet.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bedplate_dhcp::hostile::packet(data));
