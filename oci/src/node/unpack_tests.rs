//! Histories of hostile members: whatever an archive says, nothing outside of its directory changes, and nothing panics.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use proptest::prelude::*;

use super::archive::Archive;
use super::unpack::{Bounds, unpack};

const KINDS: &[u8] = b"0000123455567LKxgSZ";
const NAMES: [&str; 18] = [
    "a",
    "b",
    "c",
    "a/b",
    "a/c",
    "a/b/c",
    "b/a",
    "c/a/b",
    "./a/",
    "/a",
    "../a",
    "a/../../x",
    ".wh.a",
    "a/.wh.b",
    ".wh..wh..opq",
    "a/.wh..wh..opq",
    "./",
    ".wh...",
];
const LINKS: [&str; 10] =
    ["a", "b", "a/b", "..", "../..", "../../outside", "/", "OUTSIDE", "OUTSIDE/secret", "../outside/secret"];

/// One member with a valid checksum; `outside` is where it wants to get to.
fn member(kind: u8, name: &str, link: &str, content: &[u8], outside: &Path) -> Vec<u8> {
    let mut block = [0_u8; 512];
    let link = link.replace("OUTSIDE", &outside.display().to_string());
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000777\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000001\0");
    put(156, &[kind]);
    put(157, link.get(..link.len().min(100)).unwrap_or_default().as_bytes());
    put(257, b"ustar\x0000");
    put(148, b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = block.to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().div_ceil(512) * 512, 0);
    bytes
}

/// Everything in a directory: what it is, whose, and what is in it.
fn state(directory: &Path) -> BTreeMap<String, (u32, u64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let data = fs::symlink_metadata(&path).unwrap();
        let content = if data.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if data.is_dir() {
            found.extend(state(&path));
        }
        found.insert(path.display().to_string(), (data.mode(), data.nlink(), data.ctime_nsec(), content));
    }
    found
}

const BOUNDS: Bounds = Bounds { members: 1000, reserve: 0 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_history_of_members_changes_anything_outside(
        members in proptest::collection::vec(
            (0..KINDS.len(), 0..NAMES.len(), 0..LINKS.len(), proptest::collection::vec(any::<u8>(), 0..40)), 1..14),
    ) {
        let place = tempfile::tempdir().unwrap();
        let (outside, layer) = (place.path().join("outside"), place.path().join("layer"));
        fs::create_dir(&outside).unwrap();
        fs::create_dir(outside.join("directory")).unwrap();
        fs::write(outside.join("secret"), "as it was").unwrap();
        fs::create_dir(&layer).unwrap();
        let before = state(&outside);
        let bytes: Vec<u8> = members
            .iter()
            .flat_map(|(kind, name, link, content)| {
                member(KINDS[*kind], NAMES[*name], LINKS[*link], content, &outside)
            })
            .collect();
        let into = File::open(&layer).unwrap().into();
        let _ = unpack(&bytes[..], into, BOUNDS);
        prop_assert_eq!(state(&outside), before);
        let around: Vec<_> = fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        prop_assert_eq!(around.len(), 2, "{:?}", around);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..4096),
        kinds in proptest::collection::vec((0..KINDS.len(), 0..NAMES.len(), 0_usize..2000), 0..4),
    ) {
        // Valid headers among what is none.
        let mut archive = Vec::new();
        for (kind, name, length) in kinds {
            let content: Vec<u8> = bytes.drain(..length.min(bytes.len())).collect();
            archive.extend(member(KINDS[kind], NAMES[name], "a", &content, Path::new("/")));
        }
        archive.extend(bytes);
        let mut archive = Archive::new(&archive[..]);
        while let Ok(Some(_)) = archive.next_member() {
            while let Ok(content) = archive.content() {
                let length = content.len();
                if length == 0 {
                    break;
                }
                archive.consume(length);
            }
        }
    }
}
