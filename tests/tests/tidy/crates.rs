//! The crates of the workspace and the crates that each may depend on. Arrows go one way; programs never import each other.
//!
//! docs/design/architecture.md shows this table (`arrows`). Called by the tidy tests.

/// Members that tests may use: all but `xtask`.
const TESTED: &[&str] = &[
    "agent",
    "api",
    "bmc",
    "bmc/ipmi",
    "bootstrap",
    "cli",
    "cluster",
    "cluster/claim",
    "cluster/replicas",
    "cluster/workload",
    "engine",
    "etcd",
    "fuzz",
    "oci",
    "process",
    "pxed",
    "pxed/dhcp",
    "pxed/tftp",
    "reconciler",
    "rules",
    "tests",
];

/// Each member with the members that it may depend on.
pub(crate) const CRATES: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("process", &[]),
    ("bmc/ipmi", &[]),
    ("etcd", &[]),
    ("pxed/tftp", &[]),
    ("xtask", &[]),
    ("cluster/replicas", &[]),
    ("bootstrap", &["api"]),
    ("engine", &["api", "process"]),
    ("oci", &["api"]),
    ("rules", &["api"]),
    ("pxed/dhcp", &["api"]),
    ("bmc", &["api", "bmc/ipmi"]),
    ("agent", &["api", "bootstrap", "etcd", "oci", "process", "rules"]),
    // bedplate-controller compares the networks of registries with those of BMCs.
    ("reconciler", &["api", "bmc", "bootstrap", "engine", "oci", "process", "rules"]),
    ("pxed", &["api", "bmc", "bootstrap", "oci", "process", "pxed/dhcp", "pxed/tftp", "rules"]),
    ("cluster/claim", &["api"]),
    ("cluster/workload", &["process"]),
    (
        "cluster",
        &[
            "api",
            "bootstrap",
            "cluster/claim",
            "cluster/replicas",
            "cluster/workload",
            "engine",
            "process",
            "rules",
        ],
    ),
    ("cli", &["api", "bmc", "bootstrap", "process", "rules"]),
    ("tests", TESTED),
    ("tests/bench", TESTED),
    ("fuzz", TESTED),
];

/// The table of docs/design/architecture.md: libraries and programs, without crates for tests.
pub(crate) fn arrows() -> String {
    let mut text = String::from("| crate | may depend on |\n|---|---|\n");
    for (name, allowed) in CRATES.iter().filter(|(_, allowed)| *allowed != TESTED) {
        let allowed = if allowed.is_empty() {
            "no other crate".to_owned()
        } else {
            allowed.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(", ")
        };
        text.push_str(&format!("| `{name}` | {allowed} |\n"));
    }
    text
}
