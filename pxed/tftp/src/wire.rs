//! Pure: TFTP packets, bytes to values and back (RFC 1350 section 5, RFC 2347). No decisions, no sockets.
//!
//! Nothing here allocates by what a packet says; every malformed packet is an error with a reason. Called by the driver,
//! the client of the tests and the fuzz target.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// Maximum size of an accepted request in bytes. RFC 2347 allows 512; some firmware exceeds it.
pub(crate) const MAX_REQUEST: usize = 1024;

/// Smallest and largest block size, in bytes (RFC 2348).
pub(crate) const BLOCK_SIZES: std::ops::RangeInclusive<u16> = 8..=65464;

/// Block size where none is agreed, in bytes (RFC 1350).
pub(crate) const DEFAULT_BLOCK_SIZE: u16 = 512;

/// Length of a DATA packet's header, in bytes.
pub(crate) const DATA_HEADER: usize = 4;

/// A TFTP error code (RFC 1350 appendix, RFC 2347).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ErrorCode {
    /// 0: see the message.
    Undefined = 0,
    /// 1: no such file.
    NotFound = 1,
    /// 2: not allowed.
    AccessViolation = 2,
    /// 4: not a TFTP operation that fits here.
    IllegalOperation = 4,
    /// 5: no transfer is known under this port.
    UnknownTransferId = 5,
}

/// Transfer mode of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Bytes as they are.
    Octet,
    /// Lines end in CR LF, a CR alone is CR NUL (RFC 764).
    Netascii,
}

/// An option that is understood, with the number asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedOption {
    /// RFC 2348, bytes.
    BlockSize(u64),
    /// RFC 2349, seconds.
    Timeout(u64),
    /// RFC 2349, bytes; 0 in a read request.
    TransferSize(u64),
    /// RFC 7440, blocks.
    WindowSize(u64),
}

/// A read request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRequest<'a> {
    /// The name, not yet checked.
    pub name: &'a [u8],
    /// The mode.
    pub mode: Mode,
    /// The options understood, each kind once (the first counts, RFC 2347), in the order asked.
    pub options: Vec<AskedOption>,
}

/// A packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet<'a> {
    /// RRQ.
    Read(ReadRequest<'a>),
    /// WRQ; what it says is of no interest.
    Write,
    /// DATA with its wire number and content.
    Data(u16, &'a [u8]),
    /// ACK with its wire number.
    Acknowledge(u16),
    /// ERROR with its code.
    Error(u16),
    /// OACK with the options understood.
    OptionAcknowledge(Vec<AskedOption>),
}

/// Reason why a packet is malformed. A closed set: the label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its kind must be.
    #[error("too short")]
    Short,
    /// A request longer than [`MAX_REQUEST`].
    #[error("too long")]
    Long,
    /// Not one of the six operations.
    #[error("unknown operation")]
    Operation,
    /// A text without its NUL.
    #[error("text without its end")]
    Unterminated,
    /// Neither octet nor netascii.
    #[error("unknown mode")]
    Mode,
    /// An option without a value.
    #[error("option without a value")]
    OptionValue,
}

impl Malformed {
    /// Every reason.
    pub const ALL: [Self; 6] =
        [Self::Short, Self::Long, Self::Operation, Self::Unterminated, Self::Mode, Self::OptionValue];

    /// The metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Long => "long",
            Self::Operation => "operation",
            Self::Unterminated => "unterminated",
            Self::Mode => "mode",
            Self::OptionValue => "option_value",
        }
    }
}

/// Reads a packet.
///
/// # Errors
/// [`Malformed`], for anything that is none.
pub fn parse(packet: &[u8]) -> Result<Packet<'_>, Malformed> {
    let (operation, rest) = take_u16(packet)?;
    match operation {
        1 => parse_read(rest).map(Packet::Read),
        2 => Ok(Packet::Write),
        3 => take_u16(rest).map(|(number, content)| Packet::Data(number, content)),
        4 => take_u16(rest).map(|(number, _)| Packet::Acknowledge(number)),
        5 => take_u16(rest).map(|(code, _)| Packet::Error(code)),
        6 => parse_options(rest).map(Packet::OptionAcknowledge),
        _ => Err(Malformed::Operation),
    }
}

fn take_u16(bytes: &[u8]) -> Result<(u16, &[u8]), Malformed> {
    let (head, rest) = bytes.split_first_chunk::<2>().ok_or(Malformed::Short)?;
    Ok((u16::from_be_bytes(*head), rest))
}

/// A text and what follows its NUL.
fn take_text(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    match (parts.next(), parts.next()) {
        (Some(text), Some(rest)) => Ok((text, rest)),
        _ => Err(Malformed::Unterminated),
    }
}

fn parse_read(bytes: &[u8]) -> Result<ReadRequest<'_>, Malformed> {
    if bytes.len() > MAX_REQUEST {
        return Err(Malformed::Long);
    }
    let (name, rest) = take_text(bytes)?;
    let (mode, rest) = take_text(rest)?;
    let mode = if mode.eq_ignore_ascii_case(b"octet") {
        Mode::Octet
    } else if mode.eq_ignore_ascii_case(b"netascii") {
        Mode::Netascii
    } else {
        return Err(Malformed::Mode);
    };
    Ok(ReadRequest { name, mode, options: parse_options(rest)? })
}

/// Parses options. Unknown options and non-numeric values are skipped: an option that is not acknowledged is not in
/// force (RFC 2347). Zeros after the last option are padding, as some firmware sends.
fn parse_options(mut rest: &[u8]) -> Result<Vec<AskedOption>, Malformed> {
    let mut options: Vec<AskedOption> = Vec::new();
    while rest.iter().any(|byte| *byte != 0) {
        let (name, after_name) = take_text(rest)?;
        let (value, after_value) = take_text(after_name).map_err(|_| Malformed::OptionValue)?;
        rest = after_value;
        if let Some(option) = parse_number(value).and_then(|number| understand(name, number)) {
            let same_kind =
                |known: &AskedOption| std::mem::discriminant(known) == std::mem::discriminant(&option);
            if !options.iter().any(same_kind) {
                options.push(option);
            }
        }
    }
    Ok(options)
}

fn understand(name: &[u8], number: u64) -> Option<AskedOption> {
    type Make = fn(u64) -> AskedOption;
    const KNOWN: [(&[u8], Make); 4] = [
        (b"blksize", AskedOption::BlockSize),
        (b"timeout", AskedOption::Timeout),
        (b"tsize", AskedOption::TransferSize),
        (b"windowsize", AskedOption::WindowSize),
    ];
    KNOWN.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)).map(|(_, make)| make(number))
}

/// Parses decimal digits. Values above 64 bits saturate.
fn parse_number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        Some(number.saturating_mul(10).saturating_add(u64::from(digit)))
    })
}

/// A DATA header.
pub fn data_header(number: u16) -> [u8; DATA_HEADER] {
    let [high, low] = number.to_be_bytes();
    [0, 3, high, low]
}

/// An ACK.
pub fn acknowledge(number: u16) -> [u8; 4] {
    let [high, low] = number.to_be_bytes();
    [0, 4, high, low]
}

/// An ERROR; `message` is for users and contains no NUL.
pub fn error(code: ErrorCode, message: &str) -> Vec<u8> {
    let mut packet = vec![0, 5];
    packet.extend((code as u16).to_be_bytes());
    packet.extend(message.bytes().filter(|byte| *byte != 0));
    packet.push(0);
    packet
}

/// An OACK.
pub fn option_acknowledge(options: &[AskedOption]) -> Vec<u8> {
    let mut packet = vec![0, 6];
    options.iter().for_each(|option| push_option(&mut packet, *option));
    packet
}

/// A read request in octet mode, as a client sends it.
pub fn read_request(name: &str, options: &[AskedOption]) -> Vec<u8> {
    let mut packet = vec![0, 1];
    packet.extend(name.bytes());
    packet.extend(b"\0octet\0");
    options.iter().for_each(|option| push_option(&mut packet, *option));
    packet
}

fn push_option(packet: &mut Vec<u8>, option: AskedOption) {
    let (name, value) = match option {
        AskedOption::BlockSize(value) => ("blksize", value),
        AskedOption::Timeout(value) => ("timeout", value),
        AskedOption::TransferSize(value) => ("tsize", value),
        AskedOption::WindowSize(value) => ("windowsize", value),
    };
    packet.extend(name.bytes());
    packet.push(0);
    packet.extend(value.to_string().bytes());
    packet.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_request_of_firmware_is_understood() {
        let packet = b"\0\x01snponly.efi\0OcTeT\0tsize\x000\0BLKSIZE\x001468\0windowsize\x004\0multicast\0\0";
        let Ok(Packet::Read(request)) = parse(packet) else { panic!("a read request") };
        assert_eq!(request.name, b"snponly.efi");
        assert_eq!(request.mode, Mode::Octet);
        let expected =
            [AskedOption::TransferSize(0), AskedOption::BlockSize(1468), AskedOption::WindowSize(4)];
        assert_eq!(request.options, expected);
    }

    #[test]
    fn first_of_two_equal_options_counts() {
        let packet = b"\0\x01a\0octet\0blksize\x00512\0blksize\x001024\0";
        let Ok(Packet::Read(request)) = parse(packet) else { panic!("a read request") };
        assert_eq!(request.options, [AskedOption::BlockSize(512)]);
    }

    #[test]
    fn numbers_that_are_none_are_left_out_and_large_ones_saturate() {
        let packet = b"\0\x01a\0octet\0blksize\x00-1\0timeout\x001x\0tsize\x0099999999999999999999999\0";
        let Ok(Packet::Read(request)) = parse(packet) else { panic!("a read request") };
        assert_eq!(request.options, [AskedOption::TransferSize(u64::MAX)]);
    }

    #[test]
    fn malformed_packets_have_their_reason() {
        let long = [b"\0\x01".as_slice(), &[b'a'; 1100]].concat();
        let table: [(&[u8], Malformed); 12] = [
            (b"", Malformed::Short),
            (b"\0", Malformed::Short),
            (b"\0\x03\0", Malformed::Short),
            (b"\0\x04", Malformed::Short),
            (b"\0\x05\0", Malformed::Short),
            (b"\0\0", Malformed::Operation),
            (b"\0\x07\0\0", Malformed::Operation),
            (b"\x01\x01", Malformed::Operation),
            (b"\0\x01name", Malformed::Unterminated),
            (b"\0\x01name\0octet", Malformed::Unterminated),
            (b"\0\x01name\0mail\0", Malformed::Mode),
            (b"\0\x01name\0octet\0blksize\x00512", Malformed::OptionValue),
        ];
        for (packet, reason) in table {
            assert_eq!(parse(packet), Err(reason), "{packet:?}");
        }
        assert_eq!(parse(&long), Err(Malformed::Long));
    }

    #[test]
    fn padding_after_the_last_option_is_no_option() {
        let Ok(Packet::Read(request)) = parse(b"\0\x01a\0octet\0blksize\x00512\0\0\0\0\0") else {
            panic!("a read request")
        };
        assert_eq!(request.options, [AskedOption::BlockSize(512)]);
    }

    #[test]
    fn written_packets_are_read_back() {
        let options = [AskedOption::BlockSize(1468), AskedOption::WindowSize(16)];
        let packet = read_request("undionly.kpxe", &options);
        let Ok(Packet::Read(request)) = parse(&packet) else { panic!("a read request") };
        assert_eq!(
            (request.name, request.options.as_slice()),
            (b"undionly.kpxe".as_slice(), options.as_slice())
        );
        assert_eq!(parse(&option_acknowledge(&options)), Ok(Packet::OptionAcknowledge(options.to_vec())));
        assert_eq!(parse(&acknowledge(513)), Ok(Packet::Acknowledge(513)));
        assert_eq!(parse(&data_header(65535)), Ok(Packet::Data(65535, b"")));
        assert_eq!(parse(&error(ErrorCode::NotFound, "no\0pe")), Ok(Packet::Error(1)));
        assert_eq!(error(ErrorCode::NotFound, "no\0pe"), b"\0\x05\0\x01nope\0");
    }
}
