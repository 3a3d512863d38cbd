//! Pure: objects of an installation, from the files of `deploy/` and `api/crds`, in the order of the apply.
//!
//! pxed as a Pod is omitted, because its configuration depends on the network: use `kubectl apply -k deploy` (docs/getting-started/install.md).

use serde_json::Value;

/// Files that `deploy/kustomization.yaml` and `api/kustomization.yaml` name.
const FILES: [(&str, &str); 15] = [
    (
        "api/crds/bedplate.dev_machineclaims.yaml",
        include_str!("../../../api/crds/bedplate.dev_machineclaims.yaml"),
    ),
    (
        "api/crds/bedplate.dev_machineconfigurations.yaml",
        include_str!("../../../api/crds/bedplate.dev_machineconfigurations.yaml"),
    ),
    (
        "api/crds/bedplate.dev_machineconfigurationversions.yaml",
        include_str!("../../../api/crds/bedplate.dev_machineconfigurationversions.yaml"),
    ),
    (
        "api/crds/bedplate.dev_machineoperations.yaml",
        include_str!("../../../api/crds/bedplate.dev_machineoperations.yaml"),
    ),
    ("api/crds/bedplate.dev_machines.yaml", include_str!("../../../api/crds/bedplate.dev_machines.yaml")),
    ("deploy/namespace.yaml", include_str!("../../../deploy/namespace.yaml")),
    ("deploy/pxed-policy.yaml", include_str!("../../../deploy/pxed-policy.yaml")),
    ("deploy/agent-policy.yaml", include_str!("../../../deploy/agent-policy.yaml")),
    ("deploy/controller-policy.yaml", include_str!("../../../deploy/controller-policy.yaml")),
    ("deploy/claims-policy.yaml", include_str!("../../../deploy/claims-policy.yaml")),
    ("deploy/pxed.yaml", include_str!("../../../deploy/pxed.yaml")),
    ("deploy/agent.yaml", include_str!("../../../deploy/agent.yaml")),
    ("deploy/controller.yaml", include_str!("../../../deploy/controller.yaml")),
    ("deploy/people.yaml", include_str!("../../../deploy/people.yaml")),
    (DEPLOYMENT, include_str!("../../../deploy/controller-deployment.yaml")),
];

/// Deployment of the controller.
const DEPLOYMENT: &str = "deploy/controller-deployment.yaml";

/// Kind of the definitions, which must exist before their objects.
pub(super) const DEFINITION: &str = "CustomResourceDefinition";

/// Order of the kinds. Policies are in force before roles permit anything (docs/getting-started/install.md, "Rights of pxed and
/// of agents"). Workloads are last.
const ORDER: [&str; 8] = [
    DEFINITION,
    "Namespace",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ServiceAccount",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
];

/// Returns all objects. Without `image` the controller's Deployment is omitted.
pub(super) fn objects(image: Option<&str>) -> Vec<Value> {
    let files = FILES.iter().filter(|(path, _)| image.is_some() || *path != DEPLOYMENT);
    let mut objects: Vec<Value> = files.flat_map(|(path, text)| read(path, text)).collect();
    for object in &mut objects {
        if let (Some(image), "Deployment") = (image, kind(object)) {
            object["spec"]["template"]["spec"]["containers"][0]["image"] = image.into();
        }
    }
    objects.sort_by_key(rank);
    objects
}

fn read(path: &str, text: &str) -> Vec<Value> {
    let read = serde_saphyr::from_multiple::<Value>(text);
    read.unwrap_or_else(|error| unreachable!("{path} is what the tests read: {error}"))
}

fn rank(object: &Value) -> usize {
    let kind = kind(object);
    match ORDER.iter().position(|first| *first == kind) {
        Some(rank) => rank,
        None if kind == "Deployment" => ORDER.len() + 1,
        None => ORDER.len(),
    }
}

/// Returns the kind of an object.
pub(super) fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

/// Oldest supported version of the API server: it accepts `isIP` of the CEL library in new definitions.
pub(super) const OLDEST: (u32, u32) = (1, 31);

/// Returns true if the API server's version is too old. Returns false if the version cannot be parsed.
pub(super) fn is_too_old(major: &str, minor: &str) -> bool {
    // Some providers write `30+`.
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().ok();
    number(major).zip(number(minor)).is_some_and(|version| version < OLDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(object: &Value) -> String {
        format!("{} {}", kind(object), object["metadata"]["name"].as_str().unwrap())
    }

    #[test]
    fn everything_that_kustomize_names_is_here_but_pxed_as_a_pod() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut named = Vec::new();
        for folder in ["api", "deploy"] {
            let text = std::fs::read_to_string(root.join(folder).join("kustomization.yaml")).unwrap();
            let kustomization: Value = serde_saphyr::from_str(&text).unwrap();
            for file in kustomization["resources"].as_array().unwrap() {
                named.push(format!("{folder}/{}", file.as_str().unwrap()));
            }
        }
        named.retain(|path| path != "deploy/../api" && path != "deploy/pxed-daemonset.yaml");
        assert_eq!(named, FILES.map(|(path, _)| path.to_owned()));
        for (path, text) in FILES {
            assert_eq!(std::fs::read_to_string(root.join(path)).unwrap(), text, "{path}");
        }
    }

    #[test]
    fn nothing_may_do_what_a_policy_forbids_before_that_is_in_force() {
        let objects = objects(Some("registry.example/controller:1"));
        let place = |kind_: &str| {
            let places: Vec<usize> = objects
                .iter()
                .enumerate()
                .filter(|(_, object)| kind(object) == kind_)
                .map(|(place, _)| place)
                .collect();
            (*places.first().unwrap(), *places.last().unwrap())
        };
        for (first, then) in [
            (DEFINITION, "Namespace"),
            (DEFINITION, "ValidatingAdmissionPolicy"),
            ("Namespace", "ServiceAccount"),
            ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
            ("ValidatingAdmissionPolicyBinding", "ClusterRoleBinding"),
            ("ValidatingAdmissionPolicyBinding", "RoleBinding"),
            ("ClusterRole", "ClusterRoleBinding"),
            ("Role", "RoleBinding"),
            ("RoleBinding", "Deployment"),
            ("PodDisruptionBudget", "Deployment"),
        ] {
            assert!(place(first).1 < place(then).0, "{first} before {then}");
        }
        let mut names: Vec<String> = objects
            .iter()
            .map(|object| format!("{} {}", name(object), object["metadata"]["namespace"]))
            .collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "each once");
    }

    #[test]
    fn the_image_is_the_callers_and_without_one_nothing_runs() {
        let with = objects(Some("registry.example/controller@sha256:0"));
        let deployment = with.last().unwrap();
        assert_eq!(name(deployment), "Deployment bedplate-controller");
        let containers = &deployment["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers[0]["image"], "registry.example/controller@sha256:0");
        assert_eq!(containers.as_array().unwrap().len(), 1);
        assert!(
            objects(None).iter().all(|object| !["Deployment", "PodDisruptionBudget"].contains(&kind(object)))
        );
    }

    #[test]
    fn api_server_before_1_31_is_too_old() {
        for (major, minor, old) in [
            ("1", "29", true),
            ("1", "30+", true),
            ("1", "31", false),
            ("1", "34+", false),
            ("2", "0", false),
            ("", "", false),
        ] {
            assert_eq!(is_too_old(major, minor), old, "{major}.{minor}");
        }
    }
}
