//! Unmaps text pages of the program that the idle agent does not need: a host's memory is for its Pods.
//!
//! A start, a join or an unpacked image run through most of the program once. The kernel maps
//! 64 KiB around each page that runs, so all of it stays resident while the process lives.
//! Unmapped pages belong to the page cache, which drops them first when memory is needed.
//! Pages that the idle agent runs are mapped again, which takes some microseconds each.
//!
//! One of two modules of the agent with `unsafe`: rustix and nix have no safe
//! call for it either. Called by `run` after each report.
//!
//! Safety: `MADV_DONTNEED` drops the pages of a mapping; the next access reads the file's. That is the same
//! memory if the mapping is a private one of a file and was never written. The kernel confirms the first two
//! conditions (`/proc/self/maps`). Text is never writable: the linker makes no relocations in it, and the
//! unit has `MemoryDenyWriteExecute=`. A debugger's breakpoints are lost.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;

use nix::libc;

/// Unmaps all text pages of this program.
///
/// # Errors
/// The kernel does not report the mapping, or refuses.
pub(super) fn give_back() -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let inside = give_back as *const () as usize;
    let Some(range) = own_text(&maps, inside) else { return Err(io::ErrorKind::NotFound.into()) };
    // SAFETY: see above; the range is one whole mapping of this process, private, of a file, and not writable.
    let refused =
        unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), libc::MADV_DONTNEED) };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The mapping that has this address, if it is one of a file's text: `start-end r-xp offset device inode path`.
fn own_text(maps: &str, inside: usize) -> Option<Range<usize>> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let (permissions, inode) = (fields.next()?, fields.nth(2)?);
        (range.contains(&inside) && permissions == "r-xp" && inode != "0").then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_text_of_a_file_is_given_back() {
        let line = |permissions: &str, inode: &str| {
            format!("1000-3000 {permissions} 00001000 00:18 {inode}    /usr/bin/bedplate-agent\n")
        };
        let other = "0500-0800 r-xp 00000000 00:18 7 /usr/lib/x.so\n";
        let maps = |permissions, inode| other.to_owned() + &line(permissions, inode);
        assert_eq!(own_text(&maps("r-xp", "12"), 0x2fff), Some(0x1000..0x3000));
        assert_eq!(own_text(&maps("r-xp", "12"), 0x3000), None);
        for (permissions, inode) in [("rwxp", "12"), ("r--p", "12"), ("r-xs", "12"), ("r-xp", "0")] {
            assert_eq!(own_text(&maps(permissions, inode), 0x1000), None, "{permissions} {inode}");
        }
        assert_eq!(own_text("", 0x1000), None);
    }

    /// Returns the KiB of this program's text that are mapped.
    fn resident() -> u64 {
        let range =
            own_text(&std::fs::read_to_string("/proc/self/maps").unwrap(), give_back as *const () as usize);
        let head = format!("{:x}-", range.unwrap().start);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of = smaps.lines().skip_while(|line| !line.starts_with(&head));
        let rss = of.filter_map(|line| line.strip_prefix("Rss:")).next().unwrap();
        rss.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn unmapped_text_is_not_resident_and_returns_when_it_runs() {
        // Other tests of this process run meanwhile, and have some of it mapped again.
        let fell = (0..100).any(|_| {
            let before = resident();
            give_back().unwrap();
            resident() < before
        });
        assert!(fell);
        assert_eq!("a program that runs on".replace("runs", "ran"), "a program that ran on");
    }
}
