//! The manifest reader: any text gives Machines or errors with a line, and never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pxed::standalone::manifests::parse::read_manifest;

fuzz_target!(|text: &str| {
    match read_manifest(text) {
        Ok(manifest) => {
            // Accepted Machines can be indexed.
            let machines = manifest.machines.into_iter().map(|(_, machine)| machine);
            let _ = pxed::machines::Snapshot::build(&Default::default(), machines);
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            // YAML ends a line at a lone carriage return too.
            let lines = text.matches(['\n', '\r']).count() as u64 + 1;
            for problem in problems {
                assert!((1..=lines).contains(&problem.line), "line {} of {lines}", problem.line);
            }
        }
    }
});
