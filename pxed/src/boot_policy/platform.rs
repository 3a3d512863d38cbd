//! Platform of a client by its DHCP architecture codes, and the transport by which it fetches its loader.
//!
//! Pure: tables only. Called by the policy and by the DHCP side.

use std::fmt;

/// A platform that has a loader of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Platform {
    /// PC BIOS.
    Bios,
    /// 32-bit x86 UEFI.
    UefiIa32,
    /// 64-bit x86 UEFI.
    UefiX64,
    /// 32-bit arm UEFI.
    UefiArm32,
    /// 64-bit arm UEFI.
    UefiArm64,
}

impl Platform {
    /// Returns true for UEFI, where the kernel itself reads each `initrd=` by name.
    pub(crate) const fn is_uefi(self) -> bool {
        !matches!(self, Self::Bios)
    }
}

impl Platform {
    /// Returns the architectures that it boots, in OCI's terms, its own first. For a kernel of the other word size:
    /// BIOS starts either, and ia32 firmware of 64-bit processors starts a kernel that has a 32-bit entry (Linux,
    /// EFI_MIXED); no other does.
    pub const fn architectures(self) -> &'static [&'static str] {
        match self {
            Self::Bios => &["amd64", "386"],
            Self::UefiIa32 => &["386", "amd64"],
            Self::UefiX64 => &["amd64"],
            Self::UefiArm32 => &["arm"],
            Self::UefiArm64 => &["arm64"],
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bios => "BIOS",
            Self::UefiIa32 => "UEFI ia32",
            Self::UefiX64 => "UEFI x64",
            Self::UefiArm32 => "UEFI arm32",
            Self::UefiArm64 => "UEFI arm64",
        })
    }
}

/// Transport by which a loader is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TFTP, by the firmware's PXE.
    Tftp,
    /// HTTP, by UEFI HTTP boot.
    Http,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tftp => "TFTP",
            Self::Http => "HTTP",
        })
    }
}

/// The platform and transport of one code (IANA "Processor Architecture Types", from RFC 4578, 2.1). EBC (9, 17) is what
/// many x64 firmwares call themselves (RFC 4578, erratum 4625 and EDK2's own history).
pub const fn architecture(code: u16) -> Option<(Platform, Transport)> {
    Some(match code {
        0 => (Platform::Bios, Transport::Tftp),
        6 => (Platform::UefiIa32, Transport::Tftp),
        7 | 9 => (Platform::UefiX64, Transport::Tftp),
        10 => (Platform::UefiArm32, Transport::Tftp),
        11 => (Platform::UefiArm64, Transport::Tftp),
        15 => (Platform::UefiIa32, Transport::Http),
        16 | 17 => (Platform::UefiX64, Transport::Http),
        18 => (Platform::UefiArm32, Transport::Http),
        19 => (Platform::UefiArm64, Transport::Http),
        20 => (Platform::Bios, Transport::Http),
        _ => return None,
    })
}

/// The platform of a list of codes: the first that is known, as the client puts what it prefers first. An empty list is
/// an old BIOS that does not send option 93.
pub fn platform(codes: &[u16]) -> Option<Platform> {
    if codes.is_empty() {
        return Some(Platform::Bios);
    }
    codes.iter().find_map(|code| architecture(*code)).map(|(platform, _)| platform)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_iana_table() {
        let table = [
            (0, Some((Platform::Bios, Transport::Tftp))),
            (1, None),
            (6, Some((Platform::UefiIa32, Transport::Tftp))),
            (7, Some((Platform::UefiX64, Transport::Tftp))),
            (9, Some((Platform::UefiX64, Transport::Tftp))),
            (10, Some((Platform::UefiArm32, Transport::Tftp))),
            (11, Some((Platform::UefiArm64, Transport::Tftp))),
            (15, Some((Platform::UefiIa32, Transport::Http))),
            (16, Some((Platform::UefiX64, Transport::Http))),
            (17, Some((Platform::UefiX64, Transport::Http))),
            (18, Some((Platform::UefiArm32, Transport::Http))),
            (19, Some((Platform::UefiArm64, Transport::Http))),
            (20, Some((Platform::Bios, Transport::Http))),
            (27, None),
        ];
        for (code, expected) in table {
            assert_eq!(architecture(code), expected, "{code}");
        }
    }

    #[test]
    fn of_several_codes_the_first_known_one_counts() {
        assert_eq!(platform(&[3, 7, 0]), Some(Platform::UefiX64));
        assert_eq!(platform(&[65535]), None);
        assert_eq!(platform(&[]), Some(Platform::Bios));
    }
}
