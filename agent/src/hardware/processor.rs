//! Processors, from /proc/cpuinfo and the topology in /sys.
//!
//! Only reads. Called by `observe_hardware`.

use std::collections::HashSet;
use std::path::Path;

use bedplate_api::machine::Cpu;

use super::{names_in, read_text};

/// The processors of the machine below `root`.
pub(super) fn observe_cpu(root: &Path) -> Cpu {
    let directory = root.join("sys/devices/system/cpu");
    let (mut threads, mut sockets, mut cores) = (0_i32, HashSet::new(), HashSet::new());
    for name in names_in(&directory) {
        let numbered =
            name.strip_prefix("cpu").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        let topology = directory.join(&name).join("topology");
        if !numbered || !topology.is_dir() {
            continue;
        }
        threads = threads.saturating_add(1);
        let socket = read_text(&topology.join("physical_package_id")).unwrap_or_default();
        let core = read_text(&topology.join("core_id")).unwrap_or_else(|| name.clone());
        let die = read_text(&topology.join("die_id")).unwrap_or_default();
        cores.insert((socket.clone(), die, core));
        sockets.insert(socket);
    }
    let count = |n: usize| i32::try_from(n).ok().filter(|n| *n > 0);
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Cpu {
        model: model(root),
        sockets: count(sockets.len()),
        cores: count(cores.len()),
        threads: Some(threads).filter(|n| *n > 0),
        architecture: Some(architecture.to_owned()),
    }
}

/// x86 names the model in `model name`; arm64 does not name it at all.
fn model(root: &Path) -> Option<String> {
    let text = read_text(&root.join("proc/cpuinfo"))?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    let words: Vec<&str> = line.split_once(':')?.1.split_ascii_whitespace().collect();
    Some(words.join(" ")).filter(|model| !model.is_empty())
}
