//! Properties of a Pod that a drain depends on.

use serde_json::Value;

/// Annotation of the kubelet's own Pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Properties of a Pod that a drain depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub name: String,
    /// UID of the Pod.
    pub uid: String,
    /// Kind of the controller that re-creates the Pod, if there is one.
    pub controller: Option<String>,
    /// True if the kubelet runs the Pod from a file. The API server only shows it.
    pub mirror: bool,
    /// True if the Pod has a volume that ends with it.
    pub empty_dir: bool,
    /// True if the containers have ended permanently.
    pub finished: bool,
    /// True if the Pod is being deleted.
    pub leaving: bool,
}

impl Pod {
    /// Reads a Pod from its object in the API server.
    pub fn read(object: &Value) -> Self {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let controller =
            owners.filter(|owner| owner["controller"] == true).map(|owner| text(&owner["kind"])).next();
        let volumes = spec["volumes"].as_array();
        Self {
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            controller,
            mirror: !metadata["annotations"][MIRROR].is_null(),
            empty_dir: volumes
                .is_some_and(|volumes| volumes.iter().any(|volume| !volume["emptyDir"].is_null())),
            finished: matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed")),
            leaving: !metadata["deletionTimestamp"].is_null(),
        }
    }

    /// Returns `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns true if a drain must evict the Pod.
    pub fn has_to_leave(&self) -> bool {
        !self.mirror && !self.finished && self.controller.as_deref() != Some("DaemonSet")
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_read_as_the_api_server_shows_it() {
        let object = json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {MIRROR: "x"},
                "ownerReferences": [{"kind": "Other"}, {"kind": "DaemonSet", "controller": true}]},
            "spec": {"volumes": [{"name": "t", "projected": {}}, {"name": "e", "emptyDir": {}}]},
            "status": {"phase": "Succeeded"},
        });
        let expected = Pod {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
            controller: Some("DaemonSet".into()),
            mirror: true,
            empty_dir: true,
            finished: true,
            leaving: true,
        };
        assert_eq!(Pod::read(&object), expected);
        for volumes in [json!(null), json!([]), json!([{"name": "t", "projected": {}}])] {
            assert!(!Pod::read(&json!({"spec": {"volumes": volumes}})).empty_dir, "{volumes}");
        }
    }

    #[test]
    fn pods_of_daemonsets_the_kubelets_own_and_those_that_have_ended_stay() {
        let pod =
            |controller: Option<&str>| Pod { controller: controller.map(str::to_owned), ..Pod::default() };
        assert!(pod(Some("ReplicaSet")).has_to_leave() && pod(None).has_to_leave());
        assert!(!pod(Some("DaemonSet")).has_to_leave());
        assert!(!Pod { mirror: true, ..pod(Some("Node")) }.has_to_leave());
        assert!(!Pod { finished: true, ..pod(Some("Job")) }.has_to_leave());
    }
}
