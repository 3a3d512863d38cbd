//! Any octets as a conversation with a DHCP server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bedplate_dhcp::hostile::conversation(data));
