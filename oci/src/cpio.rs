//! Writes cpio archives in the "newc" form (magic 070701), the form that Linux unpacks as an initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst). Made of the same entries, an archive has the same
//! bytes: time, owner and device numbers are zero, inode numbers count from 1.
//!
//! Not here: reading archives, compression, hard links. Callers: the builder of the initramfs, and pxed for the seed.
//!
//! Pure: bytes in, bytes out.

/// Member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path inside the archive; slashes at its beginning are dropped.
    pub path: String,
    /// Permission bits, such as `0o600`.
    pub mode: u32,
    /// Kind of the member.
    pub kind: Kind,
}

/// Kind of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file with this content.
    File(Vec<u8>),
    /// A directory. It must precede its entries, because Linux does not make missing parents.
    Directory,
    /// A symbolic link to this target.
    Link(String),
    /// A character device (major, minor), such as `/dev/console` (5, 1).
    CharacterDevice(u32, u32),
}

impl Entry {
    /// A regular file.
    pub fn file(path: impl Into<String>, mode: u32, data: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode, kind: Kind::File(data.into()) }
    }

    /// A directory.
    pub fn directory(path: impl Into<String>, mode: u32) -> Self {
        Self { path: path.into(), mode, kind: Kind::Directory }
    }

    /// A symbolic link.
    pub fn link(path: impl Into<String>, target: impl Into<String>) -> Self {
        Self { path: path.into(), mode: 0o777, kind: Kind::Link(target.into()) }
    }

    /// A character device.
    pub fn character_device(path: impl Into<String>, mode: u32, major: u32, minor: u32) -> Self {
        Self { path: path.into(), mode, kind: Kind::CharacterDevice(major, minor) }
    }

    /// The file type bits of `st_mode` (POSIX, sys/stat.h).
    fn type_bits(&self) -> u32 {
        match self.kind {
            Kind::File(_) => 0o100_000,
            Kind::Directory => 0o040_000,
            Kind::Link(_) => 0o120_000,
            Kind::CharacterDevice(..) => 0o020_000,
        }
    }

    fn data(&self) -> &[u8] {
        match &self.kind {
            Kind::File(data) => data,
            Kind::Link(target) => target.as_bytes(),
            Kind::Directory | Kind::CharacterDevice(..) => &[],
        }
    }
}

/// The archive of these entries in their order, ended by its trailer and padded with zeros to 512 bytes, so that
/// archives can be concatenated.
///
/// The field of the size has eight hex digits. The content of a larger file, 4 GiB, is cut there.
pub fn archive(entries: &[Entry]) -> Vec<u8> {
    let size: usize = entries.iter().map(|e| e.data().len().saturating_add(e.path.len() + 128)).sum();
    let mut out = Vec::with_capacity(size.saturating_add(512));
    for (entry, inode) in entries.iter().zip(1_u32..) {
        let device = match entry.kind {
            Kind::CharacterDevice(major, minor) => (major, minor),
            _ => (0, 0),
        };
        let mode = entry.type_bits() | (entry.mode & 0o7777);
        member(&mut out, inode, mode, device, entry.path.trim_start_matches('/'), entry.data());
    }
    member(&mut out, 0, 0, (0, 0), "TRAILER!!!", &[]);
    pad(&mut out, 512);
    out
}

/// Writes a member: one header (110 bytes of ASCII), the name with its NUL, the
/// data; name and data each padded to 4.
fn member(out: &mut Vec<u8>, inode: u32, mode: u32, device: (u32, u32), name: &str, data: &[u8]) {
    let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let name_size = u32::try_from(name.len().saturating_add(1)).unwrap_or(u32::MAX);
    // Two links for a directory, one for other entries, like find | cpio.
    let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
    let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
    out.extend_from_slice(b"070701");
    for field in fields {
        out.extend_from_slice(format!("{field:08X}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out, 4);
    out.extend(data.iter().take(size as usize));
    pad(out, 4);
}

fn pad(out: &mut Vec<u8>, to: usize) {
    out.resize(out.len().next_multiple_of(to), 0);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    fn seed() -> Vec<Entry> {
        vec![
            Entry::directory("bedplate", 0o700),
            Entry::file("/bedplate/seed.json", 0o600, "{}\n"),
            Entry::link("init", "usr/bin/bedplate-agent"),
        ]
    }

    #[test]
    fn bytes_of_a_small_archive_are_frozen() {
        let bytes = archive(&[Entry::file("a", 0o600, "hi")]);
        let head = "07070100000001000081800000000000000000000000010000000000000002000000000000000000000000000000000000000200000000a\0hi\0\0";
        assert_eq!(std::str::from_utf8(&bytes[..head.len()]).unwrap(), head);
        assert_eq!(&bytes[head.len()..head.len() + 6], b"070701");
        assert_eq!(bytes.len(), 512);
    }

    #[test]
    fn same_entries_give_the_same_bytes() {
        assert_eq!(archive(&seed()), archive(&seed()));
    }

    #[test]
    fn empty_archive_is_a_trailer_alone() {
        let bytes = archive(&[]);
        assert_eq!(bytes.len(), 512);
        assert_eq!(&bytes[110..120], b"TRAILER!!!");
    }

    #[test]
    fn cpio_lists_what_was_put_in_with_modes_and_device_numbers() {
        let mut entries = seed();
        entries.push(Entry::directory("dev", 0o755));
        entries.push(Entry::character_device("dev/console", 0o600, 5, 1));
        let mut child = Command::new("cpio")
            .args(["-tv", "--quiet", "-n"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cpio is installed");
        child.stdin.take().unwrap().write_all(&archive(&entries)).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("drwx------   2 0        0"), "{text}");
        assert!(
            lines[1].starts_with("-rw-------   1 0        0") && lines[1].ends_with("bedplate/seed.json")
        );
        assert!(lines[2].ends_with("init -> usr/bin/bedplate-agent"), "{text}");
        assert!(lines[4].starts_with("crw-------") && lines[4].contains("5,   1"), "{text}");
    }
}
