//! Paths of the plain listener, parsed: `/b/<boot id>/<what>`.
//!
//! Pure, and fuzzed. Nothing is percent-decoded or normalized: every resource has one spelling, and any other text is
//! rejected. File names are looked up in a table in memory, never in a file system.

use bedplate_api::id::BootId;

/// Maximum length of a parsed path, in bytes.
const MAX_PATH: usize = 512;

/// Resource that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootPath<'a> {
    /// The boot.
    pub id: BootId,
    /// Part of the boot.
    pub what: What<'a>,
}

/// A resource of a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What<'a> {
    /// `loader/<file>`
    Loader(&'a str),
    /// `script.ipxe`
    Script,
    /// `kernel`
    Kernel,
    /// `initrd`
    Initrd,
    /// `rootfs`
    Rootfs,
    /// `seed`
    Seed,
    /// `stage`
    Stage,
}

/// The resource that `path` names; `None`: none of ours.
pub fn parse(path: &str) -> Option<BootPath<'_>> {
    if path.len() > MAX_PATH {
        return None;
    }
    let (id, what) = path.strip_prefix("/b/")?.split_once('/')?;
    let id = id.parse().ok()?;
    let what = match what {
        "script.ipxe" => What::Script,
        "kernel" => What::Kernel,
        "initrd" => What::Initrd,
        "rootfs" => What::Rootfs,
        "seed" => What::Seed,
        "stage" => What::Stage,
        _ => What::Loader(what.strip_prefix("loader/").filter(|file| is_file_name(file))?),
    };
    Some(BootPath { id, what })
}

fn is_file_name(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+');
    (1..=128).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "000102030405060708090a0b0c0d0e0f";

    #[test]
    fn every_resource_has_one_spelling() {
        let of = |what: &str| parse(&format!("/b/{ID}/{what}")).map(|p| format!("{:?}", p.what));
        assert_eq!(of("script.ipxe").as_deref(), Some("Script"));
        assert_eq!(of("kernel").as_deref(), Some("Kernel"));
        assert_eq!(of("loader/ipxe.efi").as_deref(), Some("Loader(\"ipxe.efi\")"));
        for bad in [
            "",
            "Kernel",
            "kernel/",
            "/kernel",
            "kernel?",
            "%6bernel",
            "loader/",
            "loader/../x",
            "loader/a/b",
            "loader/.x",
            "..",
        ] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        for path in [
            "",
            "/",
            "/b",
            "/b/",
            "//b/x/kernel",
            "/b/00/kernel",
            &format!("/b/{}/kernel", ID.to_uppercase()),
        ] {
            assert_eq!(parse(path), None, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_taken_is_in_its_one_spelling(path in "(/b/[0-9a-f]{30,34}/)?\\PC{0,40}") {
            if let Some(found) = parse(&path) {
                let head = format!("/b/{}/", found.id);
                prop_assert!(path.starts_with(&head));
                prop_assert!(!path.contains("..") || matches!(found.what, What::Loader(_)));
            }
        }
    }
}
