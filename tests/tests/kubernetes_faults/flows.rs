//! The flows: what was there before, what people, hosts and agents do, and the writes that the controller cannot do without. Agents and kubelets
//! are played here, by what they see.

use bedplate_tests::objects;
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};
use serde_json::{Value, json};

use super::cluster::Scene;
use super::proof::Flow;

const MACHINES: &str = "machines";
const CONFIGURATIONS: &str = "machineconfigurations";
const VERSIONS: &str = "machineconfigurationversions";
const REQUESTS: &str = "certificatesigningrequests";

macro_rules! flow {
    ($name:literal, $setup:expr, $act:expr, [$($must:literal),+ $(,)?], $least:literal) => {
        Flow {
            name: $name,
            setup: |scene| Box::pin($setup(scene)),
            act: |scene| Box::pin($act(scene)),
            must: &[$($must),+],
            least: $least,
        }
    };
}

pub(crate) use flow;

/// Flows of configurations, versions, Machines and requests.
pub(crate) const FLOWS: &[Flow] = &[
    flow!(
        "first version",
        nothing,
        async |s: Scene| {
            s.configuration("w", &json!({}), 1).await;
            s.counted("w-v1", 0).await;
            s.latest("w", 1).await;
        },
        [
            "PATCH machineconfigurations/w",
            "POST machineconfigurationversions/w-v1",
            "PATCH machineconfigurationversions/w-v1/status",
            "PATCH machineconfigurations/w/status",
        ],
        8
    ),
    flow!(
        "edit of a version that nobody uses",
        one_version,
        async |s: Scene| {
            s.configuration("w", &json!({}), 2).await;
            s.content("w-v1", 2).await;
        },
        ["PUT machineconfigurationversions/w-v1"],
        4
    ),
    flow!(
        "edit of a version that is used",
        one_machine,
        async |s: Scene| {
            s.configuration("w", &json!({}), 2).await;
            s.content("w-v2", 2).await;
            s.counted("w-v2", 0).await;
            s.latest("w", 2).await;
        },
        [
            "POST machineconfigurationversions/w-v2",
            "PATCH machineconfigurationversions/w-v2/status",
            "PATCH machineconfigurations/w/status",
        ],
        7
    ),
    flow!(
        "history",
        three_versions,
        async |s: Scene| {
            s.delete(MACHINES, "b").await;
            s.until_gone(VERSIONS, "w-v2").await;
        },
        ["DELETE machineconfigurationversions/w-v2", "PATCH machineconfigurationversions/w-v2"],
        7
    ),
    flow!(
        "configuration deleted",
        async |s: Scene| {
            three_versions(s.clone()).await;
            s.delete(MACHINES, "a").await;
            s.delete(MACHINES, "b").await;
            s.until((CONFIGURATIONS, "w"), "end of its use", |w| w["status"]["machines"]["selected"] == 0)
                .await;
        },
        async |s: Scene| {
            s.delete(CONFIGURATIONS, "w").await;
            s.until_gone(CONFIGURATIONS, "w").await;
            s.until_gone(VERSIONS, "w-v3").await;
        },
        [
            "DELETE machineconfigurationversions/w-v3",
            "PATCH machineconfigurationversions/w-v3",
            "PATCH machineconfigurations/w",
        ],
        7
    ),
    flow!(
        "selection by reference",
        one_version,
        async |s: Scene| {
            s.machine("a", &json!({}), &reference()).await;
            s.selected("a", "w", 1).await;
            s.counted("w-v1", 1).await;
            s.until((CONFIGURATIONS, "w"), "Machine", |w| w["status"]["machines"]["selected"] == 1).await;
        },
        ["PATCH machineconfigurationversions/w-v1/status", "PATCH machines/a/status"],
        10
    ),
    flow!(
        "selection by selector",
        async |s: Scene| {
            for (name, priority) in [("v", 0), ("w", 1)] {
                let selector = json!({ "machineSelector": { "matchLabels": { "row": s.name("row") } }, "priority": priority });
                s.configuration(name, &selector, 1).await;
                s.latest(name, 1).await;
            }
        },
        async |s: Scene| {
            s.machine("a", &json!({ "row": s.name("row") }), &json!({})).await;
            s.selected("a", "w", 1).await;
            s.counted("w-v1", 1).await;
            s.until((CONFIGURATIONS, "w"), "Machine", |w| w["status"]["machines"]["selected"] == 1).await;
        },
        [
            "PATCH machineconfigurationversions/w-v1/status",
            "PATCH machines/a/status",
            "PATCH machineconfigurations/w/status",
        ],
        10
    ),
    flow!(
        "Node joined",
        one_machine,
        async |s: Scene| {
            s.join("a").await;
            s.annotated("a", "1").await;
            s.until((CONFIGURATIONS, "w"), "Node", |w| w["status"]["machines"]["applied"] == 1).await;
        },
        ["PATCH machines/a/status", "PATCH nodes/a"],
        9
    ),
    flow!(
        "Node gone",
        async |s: Scene| {
            one_machine(s.clone()).await;
            s.join("a").await;
            s.annotated("a", "1").await;
            s.configuration("w", &json!({}), 2).await;
            s.latest("w", 2).await;
            let is_outdated = |w: &Value| w["status"]["machines"]["outdated"] == 1;
            s.until((CONFIGURATIONS, "w"), "outdated Machine", is_outdated).await;
        },
        async |s: Scene| {
            s.delete("nodes", "a").await;
            s.paved("a").await;
            s.selected("a", "w", 2).await;
            s.join("a").await;
            s.annotated("a", "2").await;
            s.until((CONFIGURATIONS, "w"), "end of what is outdated", |w| {
                w["status"]["machines"]["outdated"] == 0
            })
            .await;
        },
        ["PATCH machineconfigurationversions/w-v2/status", "PATCH machines/a/status", "PATCH nodes/a"],
        15
    ),
    flow!(
        "version deleted",
        async |s: Scene| {
            one_machine(s.clone()).await;
            s.configuration("w", &json!({}), 2).await;
            s.latest("w", 2).await;
        },
        async |s: Scene| {
            s.delete(VERSIONS, "w-v2").await;
            s.until_gone(VERSIONS, "w-v2").await;
            s.content("w-v3", 2).await;
        },
        [
            "PATCH machineconfigurationversions/w-v2",
            "POST machineconfigurationversions/w-v3",
            "PATCH machineconfigurations/w/status",
        ],
        9
    ),
    flow!(
        "version of a configuration that is gone",
        async |s: Scene| {
            let mut version = objects::version(&s.name("lost"), 1, &objects::numbered_template(1)).json();
            version["metadata"]["finalizers"] = json!(["bedplate.dev/in-use"]);
            version["metadata"]["ownerReferences"] = json!([{ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration",
                "name": s.name("lost"), "uid": "00000000-0000-4000-8000-000000000000", "controller": true }]);
            s.create_as(VERSIONS, &version, &s.as_controller()).await;
        },
        async |s: Scene| {
            s.delete(VERSIONS, "lost-v1").await;
            s.until_gone(VERSIONS, "lost-v1").await;
        },
        ["PATCH machineconfigurationversions/lost-v1"],
        2
    ),
    flow!(
        "certificate approved",
        async |s: Scene| {
            s.machine("a", &json!({}), &json!({ "paused": true })).await;
            s.status(
                MACHINES,
                "a",
                &json!({ "enrollment": { "certificateFingerprint": format!("sha256:{}", "1".repeat(64)) } }),
            )
            .await;
        },
        async |s: Scene| {
            s.request("a", &"1".repeat(64)).await;
            s.verdict("a", "Approved").await;
        },
        ["PUT certificatesigningrequests/a/approval"],
        2
    ),
    flow!(
        "certificate denied",
        async |s: Scene| {
            s.machine("a", &json!({}), &json!({ "paused": true })).await;
            s.status(
                MACHINES,
                "a",
                &json!({ "enrollment": { "certificateFingerprint": format!("sha256:{}", "1".repeat(64)) } }),
            )
            .await;
        },
        async |s: Scene| {
            s.request("a", &"2".repeat(64)).await;
            s.verdict("a", "Denied").await;
        },
        ["PUT certificatesigningrequests/a/approval"],
        2
    ),
];

async fn nothing(_: Scene) {}

async fn one_version(s: Scene) {
    s.configuration("w", &json!({}), 1).await;
    s.counted("w-v1", 0).await;
    s.latest("w", 1).await;
}

/// A Machine with its first version, and no Node.
async fn one_machine(s: Scene) {
    one_version(s.clone()).await;
    s.machine("a", &json!({}), &reference()).await;
    s.selected("a", "w", 1).await;
    s.counted("w-v1", 1).await;
    s.until((CONFIGURATIONS, "w"), "Machine", |w| w["status"]["machines"]["selected"] == 1).await;
}

/// The first two of which are used, and one may be there that is not.
async fn three_versions(s: Scene) {
    let limit = json!({ "revisionHistoryLimit": 1 });
    for (content, machine) in [(1, "a"), (2, "b")] {
        s.configuration("w", &limit, content).await;
        s.latest("w", content).await;
        s.machine(machine, &json!({}), &reference()).await;
        s.selected(machine, "w", content).await;
        s.counted(&format!("w-v{content}"), 1).await;
    }
    s.configuration("w", &limit, 3).await;
    s.latest("w", 3).await;
    s.counted("w-v3", 0).await;
}

pub(crate) fn reference() -> Value {
    json!({ "configurationRef": { "name": "w" } })
}

pub(crate) fn condition(kind: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// Actions of users, and conditions to wait for.
impl Scene {
    pub(crate) async fn configuration(&self, name: &str, spec: &Value, content: u32) {
        let mut spec = spec.clone();
        spec["template"] = json!(objects::numbered_template(content));
        self.apply(CONFIGURATIONS, json!({ "metadata": { "name": name }, "spec": spec })).await;
    }

    /// A Machine whose host is enrolled.
    pub(crate) async fn machine(&self, name: &str, labels: &Value, spec: &Value) {
        let mut spec = spec.clone();
        spec["provider"] = json!("manual");
        if let Some(reference) = spec["configurationRef"]["name"].as_str() {
            spec["configurationRef"]["name"] = json!(self.name(reference));
        }
        self.apply(MACHINES, json!({ "metadata": { "name": name, "labels": labels }, "spec": spec })).await;
        self.set_condition(name, "Enrolled").await;
    }

    /// Sets a condition of a Machine, as another writer.
    pub(crate) async fn set_condition(&self, name: &str, kind: &str) {
        let change = |machine: &mut Value| {
            let conditions = &mut machine["status"]["conditions"];
            if conditions.is_null() {
                *conditions = json!([]);
            }
            let conditions = conditions.as_array_mut().unwrap();
            conditions.retain(|c| c["type"] != kind);
            conditions.push(condition(kind));
        };
        self.change(MACHINES, name, change).await;
    }

    pub(crate) async fn latest(&self, name: &str, number: u32) {
        let is = |w: &Value| w["status"]["latestVersion"] == number;
        self.until((CONFIGURATIONS, name), &format!("version {number}"), is).await;
        self.until((VERSIONS, &format!("{name}-v{number}")), "version", |_| true).await;
    }

    pub(crate) async fn counted(&self, version: &str, machines: u32) {
        let is = |v: &Value| v["status"]["machines"] == machines;
        self.until((VERSIONS, version), &format!("{machines} Machines"), is).await;
    }

    async fn content(&self, version: &str, content: u32) {
        let text = content.to_string();
        let is = |v: &Value| v["spec"]["template"]["sysctls"]["kernel.panic"] == text.as_str();
        self.until((VERSIONS, version), &format!("content {content}"), is).await;
    }

    pub(crate) async fn selected(&self, machine: &str, configuration: &str, number: u32) {
        let name = self.name(configuration);
        let is = move |m: &Value| {
            m["status"]["selected"]["version"] == number && m["status"]["selected"]["name"] == name
        };
        self.until((MACHINES, machine), &format!("{configuration}-v{number}"), is).await;
    }

    pub(crate) async fn annotated(&self, node: &str, number: &str) {
        let is =
            |n: &Value| n["metadata"]["annotations"]["bedplate.dev/machine-configuration-version"] == number;
        self.until(("nodes", node), "its annotations", is).await;
    }

    /// As the agent: a host whose Node is gone is paved once no `nodeRef` is left.
    pub(crate) async fn paved(&self, machine: &str) {
        let is = |m: &Value| m["status"].get("nodeRef").is_none();
        self.until((MACHINES, machine), "end of its Node", is).await;
    }

    /// As kubelet and agent: the Node joins with what is selected.
    pub(crate) async fn join(&self, machine: &str) {
        let name = self.name(machine);
        let spec = json!({ "providerID": format!("bedplate://{name}") });
        self.apply("nodes", json!({ "metadata": { "name": machine }, "spec": spec })).await;
        self.status("nodes", machine, &json!({ "conditions": [condition("Ready")] })).await;
        let node = self.until(("nodes", machine), "Node", |_| true).await;
        let uid = node["metadata"]["uid"].clone();
        let change = |machine: &mut Value| {
            let selected = machine["status"]["selected"].clone();
            machine["status"]["applied"] = json!({ "name": selected["name"], "version": selected["version"], "slot": "a", "nodeUID": uid });
        };
        self.change(MACHINES, machine, change).await;
        self.set_condition(machine, "NodeReady").await;
    }

    /// As the agent with this certificate: asks for its kubelet's.
    async fn request(&self, machine: &str, fingerprint: &str) {
        let name = self.name(machine);
        let text = |text: &str| DnValue::PrintableString(text.try_into().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, text("system:nodes"));
        params.distinguished_name.push(DnType::CommonName, text(&format!("system:node:{name}")));
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap().into_bytes();
        let object = json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": { "name": name }, "spec": { "request": k8s_openapi::ByteString(pem),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"] } });
        let who = [
            ("Impersonate-User", format!("bedplate:machine:{name}")),
            ("Impersonate-Group", "bedplate:machines".to_owned()),
            (
                "Impersonate-Extra-authentication.kubernetes.io%2Fcredential-id",
                format!("X509SHA256={fingerprint}"),
            ),
        ];
        self.create_as(REQUESTS, &object, &who).await;
    }

    async fn verdict(&self, request: &str, verdict: &str) {
        let is = |csr: &Value| csr["status"]["conditions"][0]["type"] == verdict;
        self.until((REQUESTS, request), verdict, is).await;
    }
}

/// Writes over what is for people's eyes alone, before every other write up to a number: what a controller read before is stale then, and the
/// next time it finds this.
pub(crate) async fn vandalize(scene: &Scene, number: usize) {
    const MOST: usize = 25;
    if number.is_multiple_of(2) || number > MOST {
        return;
    }
    let phase = ["Ready", "Failed", "Paused", "ConfigurationPending"][number / 2 % 4];
    for (name, _) in scene.all(MACHINES) {
        let change = |machine: &mut Value| {
            machine["status"]["phase"] = json!(phase);
            overwrite(machine, &["ConfigurationPending", "Ready"]);
        };
        scene.change(MACHINES, &name, change).await;
    }
    for (name, _) in scene.all(CONFIGURATIONS) {
        scene.change(CONFIGURATIONS, &name, |w| overwrite(w, &["Progressing", "Degraded", "Ready"])).await;
    }
}

/// Says the contrary.
fn overwrite(object: &mut Value, kinds: &[&str]) {
    let Some(conditions) = object["status"]["conditions"].as_array_mut() else { return };
    for condition in conditions.iter_mut().filter(|c| kinds.iter().any(|kind| c["type"] == **kind)) {
        let was = condition["status"] == "True";
        condition["status"] = json!(if was { "False" } else { "True" });
        (condition["reason"], condition["message"]) = (json!("Vandalized"), json!("not so"));
    }
}
