//! Capture files of libpcap (pcap-savefile(5)): the end of the last complete packet.
//!
//! A capture that is cut at a size ends in the middle of a packet, of which some programs complain. Pure: bytes in, numbers out. Called
//! by `capture`.

/// Length of a file's header.
pub(crate) const FILE_HEADER_BYTES: usize = 24;
/// Length of a packet's header.
pub(crate) const RECORD_HEADER_BYTES: usize = 16;

/// Byte order of the numbers in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Little endian.
    Little,
    /// Big endian.
    Big,
}

/// Reads the byte order from a file's header; none: it is not a capture file.
pub fn order(header: &[u8; FILE_HEADER_BYTES]) -> Option<Order> {
    match header[..4] {
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => Some(Order::Little),
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => Some(Order::Big),
        _ => None,
    }
}

/// Returns the number of packet bytes that follow this header.
pub fn captured(order: Order, header: &[u8; RECORD_HEADER_BYTES]) -> u32 {
    let bytes = [header[8], header[9], header[10], header[11]];
    match order {
        Order::Little => u32::from_le_bytes(bytes),
        Order::Big => u32::from_be_bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_and_both_precisions_are_known() {
        let header = |magic: u32, bytes: fn(u32) -> [u8; 4]| {
            let mut header = [0; FILE_HEADER_BYTES];
            header[..4].copy_from_slice(&bytes(magic));
            header
        };
        for magic in [0xa1b2_c3d4, 0xa1b2_3c4d] {
            assert_eq!(order(&header(magic, u32::to_le_bytes)), Some(Order::Little));
            assert_eq!(order(&header(magic, u32::to_be_bytes)), Some(Order::Big));
        }
        assert_eq!(order(&[0; FILE_HEADER_BYTES]), None);
        let mut record = [0; RECORD_HEADER_BYTES];
        record[8..12].copy_from_slice(&98_u32.to_le_bytes());
        assert_eq!(captured(Order::Little, &record), 98);
    }
}
