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

fn node_registration() -> Value {
    let mut registration = registration();
    let flag = |(name, value): (&str, &str)| json!({ "name": name, "value": value });
    registration["kubeletExtraArgs"] = KUBELET.into_iter().map(flag).collect::<Value>();
    registration
}

/// Returns the settings of a KubeadmConfig that makes a cluster.
pub(crate) fn init() -> [(&'static str, Value); 2] {
    let cluster = json!({ "imageRepository": "10.7.0.1:5001", "encryptionAlgorithm": "ECDSA-P256" });
    let init = json!({ "nodeRegistration": node_registration(), "skipPhases": ["addon/coredns", "addon/kube-proxy"] });
    [("clusterConfiguration", cluster), ("initConfiguration", init)]
}

/// Returns the settings of a KubeadmConfig whose machine joins.
pub(crate) fn join() -> [(&'static str, Value); 2] {
    let commands = [PARAMETERS.replace("|| exit 1", "|| true")];
    [
        ("joinConfiguration", json!({ "nodeRegistration": node_registration() })),
        ("preKubeadmCommands", json!(commands)),
    ]
}

/// Returns the cluster with these settings.
pub(crate) fn for_namespaces(cluster: &str) -> String {
    let (init, join) = (init(), join());
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
