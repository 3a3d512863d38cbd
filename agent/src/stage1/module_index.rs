//! Kernel modules of a device, in loading order: `modules.dep` and `modules.alias` of depmod(8).
//!
//! Pure: the files' texts in, paths out. Called by `modules`.

use std::collections::{HashMap, HashSet};

/// The two files of one kernel release.
#[derive(Debug, Default, Clone)]
pub(crate) struct ModuleIndex {
    files: HashMap<String, (String, Vec<String>)>,
    aliases: Vec<(String, String)>,
}

impl ModuleIndex {
    /// Reads both files; invalid lines are skipped.
    pub(crate) fn parse(dep: &str, alias: &str) -> Self {
        let mut files = HashMap::new();
        for line in dep.lines() {
            if let Some((file, needs)) = line.split_once(':') {
                let needs = needs.split_ascii_whitespace().map(str::to_owned).collect();
                files.insert(module_name(file), (file.to_owned(), needs));
            }
        }
        let mut aliases = Vec::new();
        for line in alias.lines() {
            let mut words = line.split_ascii_whitespace();
            if let (Some("alias"), Some(pattern), Some(module)) = (words.next(), words.next(), words.next()) {
                aliases.push((pattern.to_owned(), module_name(module)));
            }
        }
        Self { files, aliases }
    }

    /// The modules for a device's modalias, a kernel request such as `fs-ext4`, or a module's own name; in the files'
    /// order, each once.
    pub(crate) fn modules_for(&self, alias: &str) -> Vec<&str> {
        let mut seen = HashSet::new();
        let own = self.files.get_key_value(&module_name(alias)).map(|(name, _)| name.as_str());
        let matched =
            self.aliases.iter().filter(|(pattern, _)| glob_matches(pattern, alias)).map(|(_, m)| m.as_str());
        own.into_iter().chain(matched).filter(|name| seen.insert(*name)).collect()
    }

    /// Returns the paths of the files to load for `module`, dependencies first (modules.dep lists the deepest
    /// one last). Empty if the release has no such file, as for a built-in module.
    pub(crate) fn load_order(&self, module: &str) -> Vec<&str> {
        match self.files.get(&module_name(module)) {
            Some((file, needs)) => needs.iter().rev().map(String::as_str).chain([file.as_str()]).collect(),
            None => Vec::new(),
        }
    }
}

/// A module's name from its file or from another spelling: the kernel uses `_` where files use `-`.
pub(crate) fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// Shell patterns as fnmatch(3) matches them, without `\`: `*`, `?` and `[...]` with ranges. Linear in practice: on a
/// mismatch only the last `*` is widened.
fn glob_matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(b'?') => Some(1),
            Some(b'[') => class_matches(&pattern[p..], text[t]),
            Some(byte) if *byte == text[t] => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(length), _) => {
                p += length;
                t += 1;
            }
            (None, Some((after, from))) => {
                p = after;
                t = from + 1;
                star = Some((after, from + 1));
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

/// Returns the length of the class at the start of `pattern` if it contains `byte`.
fn class_matches(pattern: &[u8], byte: u8) -> Option<usize> {
    let end = pattern.iter().position(|b| *b == b']')?;
    let mut inside = &pattern[1..end];
    let mut found = false;
    while let [first, rest @ ..] = inside {
        if let [b'-', last, more @ ..] = rest {
            found |= (*first..=*last).contains(&byte);
            inside = more;
        } else {
            found |= *first == byte;
            inside = rest;
        }
    }
    found.then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/drivers/net/virtio_net.ko: kernel/net/core/failover.ko kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n\
        kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko\nkernel/crypto/crc32c-generic.ko:\ngarbage\n";
    const ALIAS: &str = "# Aliases extracted from modules themselves.\nalias virtio:d00000001v* virtio_net\nalias fs-ext4 ext4\n\
        alias pci:v00008086d000010[0-9A]Esv*sd*bc*sc*i* e1000\nalias crc32c crc32c_generic\nalias nothing\n";

    #[test]
    fn needs_are_loaded_before_the_module() {
        let index = ModuleIndex::parse(DEP, ALIAS);
        assert_eq!(
            index.load_order("virtio_net"),
            [
                "kernel/drivers/virtio/virtio.ko",
                "kernel/drivers/virtio/virtio_ring.ko",
                "kernel/net/core/failover.ko",
                "kernel/drivers/net/virtio_net.ko"
            ]
        );
        assert_eq!(index.load_order("crc32c-generic"), ["kernel/crypto/crc32c-generic.ko"]);
        assert!(index.load_order("loop").is_empty());
    }

    #[test]
    fn a_device_finds_its_module_by_alias_pattern() {
        let index = ModuleIndex::parse(DEP, ALIAS);
        for (alias, modules) in [
            ("virtio:d00000001v00001AF4", vec!["virtio_net"]),
            ("virtio:d00000002v00001AF4", vec![]),
            ("pci:v00008086d0000100Esv00001AF4sd00001100bc02sc00i00", vec!["e1000"]),
            ("pci:v00008086d000010BEsv00001AF4sd00001100bc02sc00i00", vec![]),
            ("fs-ext4", vec!["ext4"]),
            ("ext4", vec!["ext4"]),
            ("crc32c", vec!["crc32c_generic"]),
        ] {
            assert_eq!(index.modules_for(alias), modules, "{alias}");
        }
    }

    #[test]
    fn patterns_match_as_fnmatch_does() {
        for (pattern, text, matches) in [
            ("", "", true),
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-cx]", "b", true),
            ("[a-cx]", "x", true),
            ("[a-cx]", "d", false),
            ("[a", "a", false),
            ("[]", "a", false),
            ("*[0-9]", "ab7", true),
        ] {
            assert_eq!(glob_matches(pattern, text), matches, "{pattern} {text}");
        }
    }
}
