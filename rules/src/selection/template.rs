//! Pure: decides whether two templates describe the same node, regardless of their form (C2).
//!
//! Only differences that are known to have no meaning are normalized: default values, and the order of named
//! entries. In doubt the templates differ, which at worst creates an unnecessary version.

use bedplate_api::configuration::{HealthGate, Template};
use serde_json::Value;

/// Returns true if both templates describe the same node.
pub fn means_the_same(one: &Template, other: &Template) -> bool {
    one == other || leveled(one.clone()) == leveled(other.clone())
}

fn leveled(mut template: Template) -> Template {
    for file in &mut template.files {
        file.permissions = file.permissions.trim_start_matches('0').to_owned();
    }
    // All sorts here are stable: entries of one path keep their order.
    template.files.sort_by(|a, b| a.path.cmp(&b.path));
    for unit in &mut template.units {
        unit.dropins.sort_by(|a, b| a.name.cmp(&b.name));
    }
    template.units.sort_by(|a, b| a.name.cmp(&b.name));
    let kubernetes = &mut template.kubernetes;
    for taint in &mut kubernetes.taints {
        taint.value = taint.value.take().filter(|value| !value.is_empty());
    }
    kubernetes.taints.sort_by_cached_key(|taint| (taint.key.clone(), format!("{:?}", taint.effect)));
    kubernetes.kubelet_extra_args.sort_by(|a, b| a.name.cmp(&b.name));
    for fields in [
        &mut kubernetes.kubelet_configuration,
        &mut kubernetes.cluster_configuration,
        &mut kubernetes.init_configuration,
    ] {
        *fields = fields.take().filter(|fields| *fields != Value::Object(serde_json::Map::new()));
    }
    let container = template.container.get_or_insert_default();
    container.capabilities.sort();
    container.capabilities.dedup();
    template.health_gate.get_or_insert(default_gate());
    template
}

/// Returns the health gate with the defaults that the schema fills in.
fn default_gate() -> HealthGate {
    serde_json::from_value(Value::Object(serde_json::Map::new())).expect("every field has a default")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "JSON literals read better without borrows")]
    fn template(more: Value) -> Template {
        let mut template = json!({ "image": { "reference": "registry.example/node:1", "allowTag": true },
            "kubernetes": { "version": "v1.34.0" } });
        template.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(template).unwrap()
    }

    #[test]
    fn c2_defaults_and_the_order_of_what_has_names_mean_nothing() {
        let taint = |key: &str, value: Value| json!({ "key": key, "value": value, "effect": "NoSchedule" });
        let kubernetes = |more: Value| {
            let mut kubernetes = json!({ "version": "v1.34.0" });
            kubernetes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "kubernetes": kubernetes })
        };
        let file = |path: &str| json!({ "path": path, "content": path });
        for (one, other) in [
            (
                json!({}),
                json!({ "healthGate": { "timeoutSeconds": 600 }, "container": { "network": "Host" } }),
            ),
            (json!({}), kubernetes(json!({ "role": "Worker", "kubeletConfiguration": {} }))),
            (json!({ "files": [file("/a"), file("/b")] }), json!({ "files": [file("/b"), file("/a")] })),
            (
                json!({ "files": [{ "path": "/a", "content": "", "permissions": "644" }] }),
                json!({ "files": [{ "path": "/a", "content": "" }] }),
            ),
            (
                json!({ "units": [{ "name": "a.service" }, { "name": "b.service", "dropins": [] }] }),
                json!({ "units": [{ "name": "b.service" }, { "name": "a.service" }] }),
            ),
            (
                kubernetes(json!({ "taints": [taint("a", Value::Null), taint("b", json!("1"))] })),
                kubernetes(json!({ "taints": [taint("b", json!("1")), taint("a", json!(""))] })),
            ),
            (
                json!({ "container": { "capabilities": ["CAP_B", "CAP_A"] } }),
                json!({ "container": { "capabilities": ["CAP_A", "CAP_B", "CAP_A"] } }),
            ),
        ] {
            assert!(means_the_same(&template(one.clone()), &template(other.clone())), "{one} {other}");
        }
    }

    #[test]
    fn c2_what_may_mean_something_is_a_change() {
        let kubernetes =
            |more: Value| json!({ "kubernetes": { "version": "v1.34.0", "joinConfiguration": more } });
        let file = |content: &str| json!({ "path": "/a", "content": content, "append": true });
        for (one, other) in [
            (json!({}), json!({ "kubernetes": { "version": "v1.34.1" } })),
            (json!({ "files": [file("1"), file("2")] }), json!({ "files": [file("2"), file("1")] })),
            (json!({ "kernelModules": ["a", "b"] }), json!({ "kernelModules": ["b", "a"] })),
            // A control plane with a joinConfiguration joins a cluster. Without one it creates a cluster.
            (kubernetes(Value::Null), kubernetes(json!({}))),
            (json!({}), json!({ "healthGate": { "timeoutSeconds": 601 } })),
        ] {
            assert!(!means_the_same(&template(one.clone()), &template(other.clone())), "{one} {other}");
        }
    }
}
