//! Paths of the plain HTTP listener, and the header fields that choose a part of a file: any text is taken or refused,
//! never a panic; what is taken has one spelling, and a part lies inside the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pxed::http::conditional::{Conditions, Part, part};
use pxed::http::path::{What, parse};

fuzz_target!(|input: (&str, &str, &str, u64)| {
    let (path, range, tag, size) = input;
    if let Some(found) = parse(path) {
        let what = match found.what {
            What::Loader(file) => {
                assert!(!file.contains('/') && !file.starts_with('.'));
                format!("loader/{file}")
            }
            What::Script => "script.ipxe".to_owned(),
            What::Kernel => "kernel".to_owned(),
            What::Initrd => "initrd".to_owned(),
            What::Rootfs => "rootfs".to_owned(),
            What::Seed => "seed".to_owned(),
            What::Stage => "stage".to_owned(),
        };
        assert_eq!(path, format!("/b/{}/{what}", found.id));
    }
    let conditions = Conditions { range: Some(range), if_none_match: Some(tag), if_range: None };
    if let Part::Bytes(bytes) = part(conditions, "\"sha256:00\"", size) {
        assert!(bytes.start < bytes.end && bytes.end <= size);
    }
});
