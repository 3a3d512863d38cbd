//! The modules of each program from top to bottom. Called by the tidy tests.
//!
//! A module uses only modules that come after it. Reads paths that begin with `crate::` as text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::source::{Source, blank};

/// The modules of a program in layers.
pub(crate) struct Program {
    /// Folder of the crate.
    pub(crate) folder: &'static str,
    /// Layers from top to bottom. Within a layer the order counts too.
    pub(crate) layers: &'static [&'static [&'static str]],
}

/// Every program. The tops are `main.rs` and `lib.rs`, which may use everything.
pub(crate) const PROGRAMS: &[Program] = &[
    Program {
        folder: "agent",
        layers: &[
            &["cli"],
            &["service"],
            &["operation"],
            &["node"],
            &["plane"],
            &["kubelet"],
            &["cri", "bus", "https", "metrics"],
            &["slot"],
            &["model", "fault"],
            &["stage1"],
            &["hardware"],
        ],
    },
    Program {
        folder: "reconciler",
        layers: &[
            &["run", "cli"],
            &["watch", "enqueue"],
            &["deletion", "csr", "configuration", "operation", "version"],
            &["rollout"],
            &["machine"],
            &["node", "image"],
            &["context"],
            &["cache", "reach"],
            &["configuration_conditions", "cordon", "foreign_node"],
            &["metrics"],
        ],
    },
    Program {
        folder: "cluster",
        layers: &[
            &["run"],
            &["core", "infrastructure", "bootstrap"],
            &["cli"],
            &["life"],
            &["kubeconfig", "owner", "policies", "watch"],
            &["metrics", "scope", "group"],
        ],
    },
    Program {
        folder: "pxed",
        layers: &[
            &["run"],
            &["plane"],
            &["admin", "metrics"],
            &["cluster", "standalone"],
            &["enroll", "http"],
            &["netboot"],
            &["power", "images"],
            &["site"],
            &["boot"],
            &["status"],
            &["readiness", "placement", "heard", "machines"],
            &["config"],
            &["boot_policy"],
            &["store", "private_file", "reason_label", "system_of_record"],
        ],
    },
    Program {
        folder: "cli",
        layers: &[
            &["command"],
            &["install", "probe", "run_operation", "follow_operation", "configuration", "claim"],
            &["confirm"],
            &["desk", "output", "password"],
            &["error", "render"],
            &["backend", "operation", "diagnosis", "step", "standing"],
            &["changes", "diff"],
            &["arguments", "docs", "selector"],
        ],
    },
];

impl Program {
    /// Position of a module, counted from the top.
    fn position(&self, module: &str) -> Option<usize> {
        self.layers.iter().flat_map(|layer| layer.iter()).position(|name| *name == module)
    }

    /// Modules of the crate that are not in the table, and names in the table that are not modules.
    pub(crate) fn unlisted(&self, sources: &[Source]) -> Vec<String> {
        let found: BTreeSet<&str> =
            sources.iter().filter_map(|source| self.module_of(&source.path)).collect();
        let listed: BTreeSet<&str> = self.layers.iter().flat_map(|layer| layer.iter()).copied().collect();
        found.symmetric_difference(&listed).map(|name| format!("{}/src/{name}", self.folder)).collect()
    }

    /// Arrows that run up in these sources, each with a file that has it.
    pub(crate) fn upward_arrows(&self, sources: &[Source]) -> BTreeMap<(String, String), String> {
        let mut found = BTreeMap::new();
        for source in sources.iter().filter(|source| !source.is_test()) {
            let Some(user) = self.module_of(&source.path) else { continue };
            let Some(place) = self.position(user) else { continue };
            for used in modules_used(&source.production_code()) {
                if self.position(&used).is_some_and(|other| other < place) {
                    found.entry((user.to_owned(), used)).or_insert_with(|| source.path.clone());
                }
            }
        }
        found
    }

    /// Module that a file of this crate belongs to. None for `main.rs`, `lib.rs` and other crates.
    fn module_of<'a>(&self, path: &'a str) -> Option<&'a str> {
        let below = path.strip_prefix(self.folder)?.strip_prefix("/src/")?;
        let first = Path::new(below).components().next()?.as_os_str().to_str()?;
        let name = first.strip_suffix(".rs").unwrap_or(first);
        (!matches!(name, "main" | "lib" | "bin")).then_some(name)
    }
}

/// Modules that code names in paths from the crate's root: `crate::NAME` and `crate::{NAME::..., NAME}`.
fn modules_used(code: &str) -> BTreeSet<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut used = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        if !rest.starts_with('{') {
            used.insert(name(rest));
            continue;
        }
        let mut depth = 0_usize;
        let mut begins = false;
        for (at, character) in rest.char_indices() {
            match character {
                '{' => {
                    depth += 1;
                    begins = depth == 1;
                }
                '}' if depth == 1 => break,
                '}' => depth -= 1,
                ',' => begins = depth == 1,
                _ if begins && !character.is_whitespace() => {
                    used.insert(name(&rest[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    used
}

#[test]
fn modules_are_found_in_paths_and_groups() {
    let code =
        "use crate::a::B;\nuse crate::{c::{D, e}, f,\n  g::H};\nfn x() { crate::i::j(); }\n\"crate::k\"";
    let used = modules_used(&blank(code));
    assert_eq!(used.into_iter().collect::<Vec<_>>(), ["a", "c", "f", "g", "i"]);
}
