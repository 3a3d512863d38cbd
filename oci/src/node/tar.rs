//! The 512 bytes before each member of a tar archive (POSIX.1-2024 pax, ustar and v7 forms, GNU's numbers), the records of a pax
//! header, and which names are taken.
//!
//! Not here: reading a stream (`archive`), files (`place`). Callers: `archive`, `unpack`.
//!
//! Pure: bytes in, values out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Size of a header, and what content is padded to, in bytes.
pub(crate) const BLOCK_BYTES: usize = 512;
/// Maximum length of a path in bytes (`PATH_MAX` less its NUL).
pub(crate) const LONGEST_PATH: usize = 4095;
/// Maximum length of a path component in bytes (`NAME_MAX`).
const LONGEST_NAME: usize = 255;

/// Kind of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file; its content follows.
    File,
    /// Another name of a file that came before.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A FIFO.
    Fifo,
}

/// Meaning of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    Member(Kind),
    /// GNU: the next member's name.
    LongName,
    /// GNU: the next member's link target.
    LongLink,
    /// Records for the next member.
    Pax,
    /// Records for all that follow.
    GlobalPax,
}

/// Fields of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) flag: Flag,
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) size: u64,
    pub(crate) mtime: i64,
    pub(crate) device: (u32, u32),
}

/// Reads a header. The error names the problem.
pub(crate) fn header(block: &[u8; BLOCK_BYTES]) -> Result<Header, &'static str> {
    if !is_summed(block) {
        return Err("a header whose checksum is wrong");
    }
    let part = |from: usize, length: usize| block.get(from..from + length).unwrap_or_default();
    let field = |from: usize, length: usize, what: &'static str| number(part(from, length)).ok_or(what);
    let unsigned = |from: usize, length: usize, what: &'static str| {
        field(from, length, what).and_then(|value| u64::try_from(value).map_err(|_| what))
    };
    let posix = part(257, 6) == b"ustar\0";
    let mut name = text(part(0, 100)).to_vec();
    // GNU's own form has times where POSIX has the first part of the name.
    let prefix = text(part(345, 155));
    if posix && !prefix.is_empty() {
        name = [prefix, b"/", &name].concat();
    }
    let flag = flag(block[156], &name)?;
    let is_device =
        matches!(flag, Flag::Member(Kind::CharacterDevice | Kind::BlockDevice)) && part(257, 5) == b"ustar";
    let device = |from| {
        let value = if is_device { unsigned(from, 8, "a device number that cannot be read")? } else { 0 };
        u32::try_from(value).map_err(|_| "a device number that is too large")
    };
    let mode = unsigned(100, 8, "a mode that cannot be read")?;
    Ok(Header {
        flag,
        link: text(part(157, 100)).to_vec(),
        mode: u32::try_from(mode & 0o7777).unwrap_or_default(),
        uid: unsigned(108, 8, "an owner that cannot be read")?,
        gid: unsigned(116, 8, "a group that cannot be read")?,
        size: unsigned(124, 12, "a size that cannot be read")?,
        mtime: field(136, 12, "a time that cannot be read")?,
        device: (device(329)?, device(337)?),
        name,
    })
}

fn flag(byte: u8, name: &[u8]) -> Result<Flag, &'static str> {
    Ok(Flag::Member(match byte {
        // v7 marks a directory by its name.
        0 if name.ends_with(b"/") => Kind::Directory,
        0 | b'0' | b'7' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::Symlink,
        b'3' => Kind::CharacterDevice,
        b'4' => Kind::BlockDevice,
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        b'L' => return Ok(Flag::LongName),
        b'K' => return Ok(Flag::LongLink),
        b'x' => return Ok(Flag::Pax),
        b'g' => return Ok(Flag::GlobalPax),
        b'S' => return Err("a sparse file; create the layer without --sparse of tar"),
        _ => return Err("a member of an unknown kind"),
    }))
}

/// Returns true if the header's checksum is the sum of all bytes, with those of the checksum counted as
/// spaces. Some archivers sum signed bytes.
fn is_summed(block: &[u8; BLOCK_BYTES]) -> bool {
    let Some(said) = number(&block[148..156]) else { return false };
    let counted = |at: usize, byte: u8| if (148..156).contains(&at) { b' ' } else { byte };
    let unsigned: i64 = block.iter().enumerate().map(|(at, b)| i64::from(counted(at, *b))).sum();
    let signed: i64 = block.iter().enumerate().map(|(at, b)| i64::from(counted(at, *b).cast_signed())).sum();
    said == unsigned || said == signed
}

/// A number: octal digits, or GNU's big-endian two's complement where the first bit is set.
fn number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        // The flag is the first bit, the sign the second.
        let negative = first & 0x40 != 0;
        let start = if negative { i128::from(first | 0x80) - 256 } else { i128::from(first & 0x7f) };
        let mut value = start;
        for byte in field.get(1..)? {
            value = value.checked_mul(256)?.checked_add(i128::from(*byte))?;
        }
        return i64::try_from(value).ok();
    }
    let digits = text(field).trim_ascii();
    let mut value = 0_i64;
    for digit in digits {
        if !(b'0'..=b'7').contains(digit) {
            return None;
        }
        value = value.checked_mul(8)?.checked_add(i64::from(digit - b'0'))?;
    }
    Some(value)
}

/// Returns the bytes before the first NUL.
pub(crate) fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// pax records of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Records {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) mtime: Option<(i64, u32)>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads pax records (`LENGTH KEY=VALUE\n`, the length counting itself).
pub(crate) fn records(mut bytes: &[u8]) -> Result<Records, &'static str> {
    const BROKEN: &str = "a pax record that cannot be read";
    let mut records = Records::default();
    while !bytes.is_empty() {
        let space = bytes.iter().take(20).position(|b| *b == b' ').ok_or(BROKEN)?;
        let length = decimal(bytes.get(..space).ok_or(BROKEN)?).ok_or(BROKEN)?;
        let length = usize::try_from(length).map_err(|_| BROKEN)?;
        let record = bytes.get(space + 1..length).ok_or(BROKEN)?;
        let record = record.strip_suffix(b"\n").ok_or(BROKEN)?;
        let equals = record.iter().position(|b| *b == b'=').ok_or(BROKEN)?;
        let (key, value) = record.split_at(equals);
        records.take(key, value.get(1..).unwrap_or_default())?;
        bytes = bytes.get(length..).ok_or(BROKEN)?;
    }
    Ok(records)
}

impl Records {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let whole = |what| decimal(value).ok_or(what);
        if key.starts_with(b"GNU.sparse.") {
            return Err("a sparse file; create the layer without --sparse of tar");
        }
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            if name.is_empty() || name.len() > LONGEST_NAME || name.contains(&0) {
                return Err("an extended attribute without a valid name");
            }
            self.xattrs.retain(|(other, _)| other != name);
            self.xattrs.push((name.to_vec(), value.to_vec()));
            return Ok(());
        }
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(whole("a size that cannot be read")?),
            b"uid" => self.uid = Some(whole("an owner that cannot be read")?),
            b"gid" => self.gid = Some(whole("a group that cannot be read")?),
            b"mtime" => self.mtime = Some(time(value).ok_or("a time that cannot be read")?),
            _ => {}
        }
        Ok(())
    }

    /// Returns true if it would change nothing of a member.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Seconds with a fraction, as seconds and nanoseconds after them; digits beyond nanoseconds are dropped.
fn time(value: &[u8]) -> Option<(i64, u32)> {
    let (negative, value) = value.strip_prefix(b"-").map_or((false, value), |rest| (true, rest));
    let mut parts = value.splitn(2, |b| *b == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let mut nanoseconds = 0_u32;
    if let Some(fraction) = parts.next().filter(|f| !f.is_empty()) {
        if !fraction.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
        nanoseconds = digits.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    }
    match (negative, nanoseconds) {
        (false, _) => Some((seconds, nanoseconds)),
        (true, 0) => Some((-seconds, 0)),
        (true, _) => Some((-seconds - 1, 1_000_000_000 - nanoseconds)),
    }
}

/// Returns a member's name as a relative path of plain parts, empty for the root itself, or the reason for
/// rejecting it. A slash at the beginning is dropped, as every tar does.
pub(crate) fn clean(name: &[u8]) -> Result<PathBuf, &'static str> {
    if name.is_empty() {
        return Err("it has no name");
    }
    if name.contains(&0) {
        return Err("its name has a NUL");
    }
    if name.len() > LONGEST_PATH {
        return Err("its name is longer than 4095 bytes");
    }
    let mut path = PathBuf::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("its name has a `..` component"),
            part if part.len() > LONGEST_NAME => return Err("a part of its name is longer than 255 bytes"),
            part => path.push(OsStr::from_bytes(part)),
        }
    }
    Ok(path)
}

/// A path for a message: no control characters, not longer than a line.
pub(crate) fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    let mut shown: String =
        text.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(200).is_some() {
        shown.push('…');
    }
    if shown.is_empty() { ".".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        let cases: [(&[u8], Option<i64>); 9] = [
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0", Some(0)),
            (b"777", Some(0o777)),
            (b"8", None),
            (b"-1", None),
            (&[0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1], Some((2 << 24) + 1)),
            (&[0xff; 12], Some(-1)),
            (&[0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], None),
        ];
        for (field, expected) in cases {
            assert_eq!(number(field), expected, "{field:x?}");
        }
    }

    #[test]
    fn names_that_leave_or_hide_are_refused() {
        let taken = [
            ("./a//b/", "a/b"),
            ("/etc/passwd", "etc/passwd"),
            ("./", ""),
            ("a/./b", "a/b"),
            ("..a/b..", "..a/b.."),
        ];
        for (name, path) in taken {
            assert_eq!(clean(name.as_bytes()).as_deref(), Ok(Path::new(path)), "{name}");
        }
        let long = format!("a/{}", "n".repeat(256));
        let deep = "a/".repeat(2050);
        for name in ["", "..", "a/../b", "/..", "a\0b", &long, &deep] {
            assert!(clean(name.as_bytes()).is_err(), "{name:?}");
        }
    }

    #[test]
    fn times_before_1970_keep_their_fraction() {
        assert_eq!(time(b"1.5"), Some((1, 500_000_000)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time(b"-3"), Some((-3, 0)));
        assert_eq!(time(b"7.1234567891"), Some((7, 123_456_789)));
        for bad in ["", ".", "1.x", "x", "--1", "99999999999999999999"] {
            assert_eq!(time(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn pax_records_are_read_and_broken_ones_refused() {
        let read = records(b"9 path=a\n30 SCHILY.xattr.user.note=a=b\n19 mtime=12.500000\n").unwrap();
        assert_eq!(read.path.as_deref(), Some(&b"a"[..]));
        assert_eq!(read.xattrs, [(b"user.note".to_vec(), b"a=b".to_vec())]);
        assert_eq!(read.mtime, Some((12, 500_000_000)));
        let broken = [
            "9 path=a",
            "99 path=a\n",
            "0 path=a\n",
            "8 path=a\n",
            "path=a\n",
            "9 pathxa\n",
            "12 size=-12\n",
            "-1 a=b\n",
        ];
        for text in broken {
            assert!(records(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(records(b"22 GNU.sparse.major=1\n").unwrap_err().contains("sparse"));
    }

    proptest::proptest! {
        #[test]
        fn no_header_and_no_record_makes_it_panic(bytes: [u8; 32], text in proptest::collection::vec(0_u8..=255, 0..300)) {
            let mut block = [0; BLOCK_BYTES];
            for (at, byte) in block.iter_mut().enumerate() {
                *byte = bytes[at % 32];
            }
            let _ = header(&block);
            let _ = records(&text);
            let _ = clean(&text);
            let _ = number(&text);
            let _ = time(&text);
        }
    }
}
