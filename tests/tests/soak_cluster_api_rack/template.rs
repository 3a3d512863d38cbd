//! The cluster of clusterctl's template, with the settings that nodes on hosts in namespaces need (see `control_plane`).

use bedplate_tests::control_plane::{PARAMETERS, registration};
use serde_json::{Value, json};

/// Flags of a kubelet without limits.
const KUBELET: [(&str, &str); 4] = [
    ("cgroup-driver", "cgroupfs"),
    ("cgroups-per-qos", "false"),
    ("enforce-node-allocatable", ""),
    ("fail-swap-on", "false"),
];

/// Returns the cluster with these settings.
pub(crate) fn for_namespaces(cluster: &str) -> String {
    let mut registration = registration();
    let flag = |(name, value): (&str, &str)| json!({ "name": name, "value": value });
    registration["kubeletExtraArgs"] = KUBELET.into_iter().map(flag).collect::<Value>();
    let commands = [PARAMETERS.replace("|| exit 1", "|| true")];
    let join = [
        ("joinConfiguration", json!({ "nodeRegistration": registration })),
        ("preKubeadmCommands", json!(commands)),
    ];
    let init = [
        (
            "clusterConfiguration",
            json!({ "imageRepository": "10.7.0.1:5001", "encryptionAlgorithm": "ECDSA-P256" }),
        ),
        (
            "initConfiguration",
            json!({ "nodeRegistration": registration, "skipPhases": ["addon/coredns", "addon/kube-proxy"] }),
        ),
    ];
    let lines = |indent: &str, fields: &[(&str, Value)]| -> String {
        fields.iter().map(|(name, value)| format!("{indent}{name}: {value}\n")).collect()
    };
    let control_plane = "  kubeadmConfigSpec:\n    format: cloud-config\n";
    let workers = "    spec:\n      format: cloud-config\n";
    let disk = "      configurationRef:\n        name: pool\n";
    let replaced = [
        (control_plane, lines("    ", &[&init[..], &join].concat()), 1),
        (workers, lines("      ", &join), 1),
        // The file system of such a host is in memory.
        (disk, "      stateDisk: Any\n".to_owned(), 2),
    ];
    replaced.iter().fold(cluster.to_owned(), |text, (from, added, count)| {
        assert_eq!(text.matches(from).count(), *count, "{from:?} in {text}");
        text.replace(from, &format!("{from}{added}"))
    })
}
