//! Pure: errors of a template that the API server accepts and no host can run. No version is created from such an edit: each host would
//! refuse it, and a rolling update would stop at the first one. Agents use the same check (`bedplate_bootstrap::template`).
//!
//! The API server checks lengths, quantities and values by the schema of the kind, but not keys of maps and free-form fields.

use bedplate_api::configuration::Template;
use bedplate_bootstrap::template::CheckTemplateError;
use bedplate_bootstrap::{Plane, check};

/// Returns the reason why no host can run a template. None if there is no known error. `is_run`: true if a host runs the node that created
/// its cluster, by a version of this configuration.
pub(super) fn refusal(template: &Template, is_run: bool) -> Option<String> {
    let CheckTemplateError(refusals) = check(template, Plane::Cluster { is_run }).err()?;
    let refusals: Vec<String> = refusals.iter().map(|why| format!("spec.template.{why}")).collect();
    Some(refusals.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn why(more: &Value) -> Option<String> {
        why_of(more, false)
    }

    fn why_of(more: &Value, is_run: bool) -> Option<String> {
        let mut template = json!({ "image": { "reference": "r.example/node:1", "allowTag": true } });
        template.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        refusal(&serde_json::from_value(template).unwrap(), is_run)
    }

    fn kubernetes(more: &Value) -> Value {
        let mut kubernetes = json!({ "version": "v1.34.4" });
        kubernetes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "kubernetes": kubernetes })
    }

    #[test]
    fn c2_template_that_every_host_refuses_is_refused_with_its_fields() {
        for (more, words) in [
            (json!({ "nodeLabels": { "a b": "x" } }), "nodeLabels: \"a b\""),
            (json!({ "nodeLabels": { "node-role.kubernetes.io/worker": "" } }), "a kubelet may not set"),
            (json!({ "nodeLabels": { "rack": "a b" } }), "nodeLabels: \"rack\""),
            (json!({ "nodeAnnotations": { "/x": "y" } }), "nodeAnnotations: \"/x\""),
            (json!({ "taints": [{ "key": "a/b/c", "effect": "NoSchedule" }] }), "taints: \"a/b/c\""),
            (json!({ "kubeletConfiguration": { "providerID": "x" } }), "kubeletConfiguration.providerID"),
            (json!({ "kubeletExtraArgs": [{ "name": "provider-id", "value": "x" }] }), "provider-id"),
            (json!({ "joinConfiguration": { "controlPlane": {} } }), "joinConfiguration.controlPlane"),
            (json!({ "version": "v1.21.0" }), "too old"),
        ] {
            let why = why(&kubernetes(&more)).unwrap_or_default();
            assert!(why.starts_with("spec.template.kubernetes: ") && why.contains(words), "{more}: {why}");
        }
        for name in ["", "a b", "a=b", "#a", ";a", "-a", "a\nb", "ü"] {
            let mut template = kubernetes(&json!({}));
            template["sysctls"] = json!({ name: "1" });
            let why = why(&template).unwrap_or_default();
            assert!(why.contains("is not the name of a kernel parameter"), "{name:?}: {why}");
        }
    }

    fn joins_by(path: &str) -> Value {
        json!({ "joinConfiguration": { "discovery": { "file": { "kubeConfigPath": path } } } })
    }

    #[test]
    fn c2_template_whose_cluster_no_host_can_compare_is_refused() {
        for path in ["/etc/of-the-image.conf", "https://k.example/join.conf", "etc/join.conf", ""] {
            let mut template = kubernetes(&joins_by(path));
            template["files"] = json!([{ "path": "/etc/join.conf", "content": "c" },
                { "path": "/etc/of-the-image.conf", "content": "c", "append": true }]);
            let why = why(&template).unwrap_or_default();
            assert!(
                why.contains("kubernetes: joinConfiguration.discovery.file.kubeConfigPath is not"),
                "{path}: {why}"
            );
        }
        let token = json!({ "joinConfiguration": { "discovery": { "bootstrapToken": { "token": "a.b" } } } });
        let why = why(&kubernetes(&token)).unwrap_or_default();
        assert!(
            why.contains("kubernetes: joinConfiguration.discovery.bootstrapToken.apiServerEndpoint must be"),
            "{why}"
        );
    }

    #[test]
    fn c2_network_binds_and_files_that_every_host_refuses_are_refused() {
        let with = |field: &str, value: Value| {
            let mut template = kubernetes(&json!({}));
            template[field] = value;
            template
        };
        let file =
            |path: &str, encoding: &str| json!([{ "path": path, "content": "!", "encoding": encoding }]);
        let mut control_plane = kubernetes(&json!({ "role": "ControlPlane", "joinConfiguration": {} }));
        control_plane["container"] = json!({ "network": "Macvlan" });
        let mut bound = with("files", file("/srv/a", "plain"));
        bound["container"] = json!({ "binds": ["/srv"] });
        for (more, words) in [
            (control_plane, "spec.template.container.network Macvlan does not support role ControlPlane"),
            (with("files", file("/run/x", "plain")), "spec.template.files[0] (/run/x): /run is mounted"),
            (with("files", file("/a", "base64")), "spec.template.files[0] (/a): the content is not base64"),
            (bound, "spec.template.files[0] (/srv/a): the bind /srv"),
            (with("container", json!({ "binds": ["/a\u{85}"] })), "spec.template.container.binds has"),
        ] {
            let why = why(&more).unwrap_or_default();
            assert!(why.starts_with(words), "{more}: {why}");
        }
    }

    #[test]
    fn c2_control_plane_that_joins_nothing_is_refused_unless_a_host_runs_it() {
        for more in [
            json!({ "role": "ControlPlane" }),
            json!({ "role": "ControlPlane", "apiServerEndpoint": "k:6443", "clusterConfiguration": {} }),
        ] {
            let why = why(&kubernetes(&more)).unwrap_or_default();
            assert!(
                why.starts_with("spec.template.kubernetes: role ControlPlane without a joinConfiguration"),
                "{more}: {why}"
            );
            assert_eq!(why_of(&kubernetes(&more), true), None, "{more}");
        }
        let wrong = kubernetes(&json!({ "role": "ControlPlane", "nodeLabels": { "a b": "x" } }));
        assert!(why_of(&wrong, true).is_some(), "other rules count for it, too");
    }

    #[test]
    fn c2_template_that_hosts_take_is_taken() {
        for more in [
            json!({ "nodeLabels": { "example.com/rack": "r1" }, "nodeAnnotations": { "example.com/X": "any text" },
                "taints": [{ "key": "example.com/gpu", "value": "yes", "effect": "NoSchedule" }],
                "kubeletConfiguration": { "maxPods": 50 } }),
            json!({ "role": "ControlPlane", "joinConfiguration": {} }),
        ] {
            assert_eq!(why(&kubernetes(&more)), None, "{more}");
        }
        let mut template = kubernetes(&joins_by("/etc/join.conf"));
        template["files"] = json!([{ "path": "/etc//join.conf", "content": "c" }]);
        assert_eq!(why(&template), None);
        let mut template = kubernetes(&json!({}));
        template["sysctls"] = json!({ "vm.max_map_count": "1", "net/ipv4/conf/enp3s0.200/forwarding": "1", "net.ipv4.conf.*.rp_filter": "2" });
        assert_eq!(why(&template), None);
    }
}
