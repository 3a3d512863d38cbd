//! Architecture of a kernel file, by its first bytes.
//!
//! Pure: bytes in, a word out. Caller: `files`, whose images have no configuration with an architecture.
//!
//! Sources: Linux, Documentation/arch/x86/boot.rst and Documentation/arch/arm64/booting.rst; "PE Format",
//! 3.3.1, for kernels that are EFI programs.

/// Number of bytes read from the start of a kernel.
pub(crate) const HEAD_BYTES: usize = 4096;

/// Returns the architecture in OCI's words. `None`: the file does not name it.
pub(crate) fn architecture(head: &[u8]) -> Option<&'static str> {
    efi_program(head).or_else(|| {
        if head.get(0x38..0x3c) == Some(b"ARM\x64") {
            return Some("arm64");
        }
        if head.get(0x202..0x206) != Some(b"HdrS") {
            return None;
        }
        // xloadflags, XLF_KERNEL_64; there since boot protocol 2.12.
        let flags = head.get(0x236).copied().unwrap_or_default();
        Some(if flags & 1 == 1 { "amd64" } else { "386" })
    })
}

fn efi_program(head: &[u8]) -> Option<&'static str> {
    if head.get(..2) != Some(b"MZ") {
        return None;
    }
    let at: [u8; 4] = head.get(0x3c..0x40)?.try_into().ok()?;
    let at = usize::try_from(u32::from_le_bytes(at)).ok()?;
    let header = head.get(at..)?.get(..6)?;
    match header {
        [b'P', b'E', 0, 0, machine @ ..] => match u16::from_le_bytes(machine.try_into().ok()?) {
            0x8664 => Some("amd64"),
            0x014c => Some("386"),
            0xaa64 => Some("arm64"),
            0x01c0 | 0x01c2 | 0x01c4 => Some("arm"),
            0x5064 => Some("riscv64"),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pieces: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES];
        for (at, bytes) in pieces {
            head[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    #[test]
    fn kernels_are_known_by_their_headers() {
        let pe = |machine: &[u8]| {
            with(&[(0, b"MZ"), (0x3c, &[0x40, 0, 0, 0]), (0x40, b"PE\0\0"), (0x44, machine)])
        };
        for (head, expected) in [
            (pe(&[0x64, 0x86]), Some("amd64")),
            (pe(&[0x64, 0xaa]), Some("arm64")),
            (pe(&[0xff, 0xff]), None),
            (with(&[(0x202, b"HdrS"), (0x236, &[1])]), Some("amd64")),
            (with(&[(0x202, b"HdrS")]), Some("386")),
            (with(&[(0x38, b"ARM\x64")]), Some("arm64")),
            (with(&[]), None),
            (with(&[(0, b"MZ"), (0x3c, &[0xff; 4])]), None),
            (b"MZ".to_vec(), None),
            (Vec::new(), None),
        ] {
            assert_eq!(architecture(&head), expected);
        }
    }
}
