//! Lines on the system console: one per step, one per failure, one per tenth of the image.
//!
//! Writing never fails as far as callers are concerned: a host without console boots too. Called all over stage-1.

use std::fs::OpenOptions;
use std::io::Write;

/// Writes one line, with the program's name before it.
pub fn say(line: &str) {
    let text = format!("bedplate: {line}\r\n");
    let console = OpenOptions::new().write(true).open("/dev/console");
    let written = console.and_then(|mut console| console.write_all(text.as_bytes()));
    if written.is_err() {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// Formats a number of bytes for users.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
