//! Pure: the typed form of Cluster API becomes kubeadm's documents of version v1beta3 or v1beta4.
//!
//! Most names are the same. Durations are numbers in Cluster API and texts in kubeadm. Arguments are a list in v1beta4 and a map in v1beta3. Two
//! timeouts have another place in v1beta3. Fields that v1beta3 does not have are dropped, and their paths are kept for a message.

use bedplate_api::cluster::kubeadm::cluster::{ClusterConfiguration, InitConfiguration};
use bedplate_api::cluster::kubeadm::join::JoinConfiguration;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::release::Format;

/// A part of a document.
pub(super) type Part = Map<String, Value>;

/// Fields of `timeouts`: name here, name in v1beta4.
const TIMEOUTS: [(&str, &str); 6] = [
    (HEALTH_CHECK, "controlPlaneComponentHealthCheck"),
    ("kubeletHealthCheckSeconds", "kubeletHealthCheck"),
    ("kubernetesAPICallSeconds", "kubernetesAPICall"),
    ("etcdAPICallSeconds", "etcdAPICall"),
    (TLS_BOOTSTRAP, "tlsBootstrap"),
    ("discoverySeconds", "discovery"),
];

/// Timeout that v1beta3 has in the ClusterConfiguration.
const HEALTH_CHECK: &str = "controlPlaneComponentHealthCheckSeconds";

/// Timeout that v1beta3 has in the discovery.
const TLS_BOOTSTRAP: &str = "tlsBootstrapSeconds";

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

/// Converts documents to one version.
#[derive(Debug)]
pub(super) struct Converter {
    format: Format,
    /// Paths of fields that are set and dropped.
    pub(super) dropped: Vec<String>,
}

impl Converter {
    pub(super) fn new(format: Format) -> Self {
        Self { format, dropped: Vec::new() }
    }

    fn start(&self, kind: &str, part: Option<&impl Serialize>) -> Part {
        let mut document = object(part);
        document.insert("apiVersion".to_owned(), json!(self.format.api_version()));
        document.insert("kind".to_owned(), json!(kind));
        document
    }

    /// Converts the ClusterConfiguration.
    pub(super) fn cluster(&mut self, configuration: Option<&ClusterConfiguration>) -> Part {
        const PATH: &str = "spec.clusterConfiguration";
        let mut cluster = self.start("ClusterConfiguration", configuration);
        for component in ["apiServer", "controllerManager", "scheduler"] {
            self.component(&mut cluster, component, PATH);
        }
        if let Some(etcd) = part_of(&mut cluster, "etcd") {
            self.component(etcd, "local", &format!("{PATH}.etcd"));
        }
        match self.format {
            Format::V1Beta3 => {
                for field in ["certificateValidityPeriodDays", "encryptionAlgorithm"] {
                    self.drop_field(&mut cluster, field, PATH);
                }
                // The provider makes the authorities itself, so kubeadm does not need their validity.
                cluster.remove("caCertificateValidityPeriodDays");
            }
            Format::V1Beta4 => {
                for field in ["certificateValidityPeriod", "caCertificateValidityPeriod"] {
                    let days = cluster.remove(&format!("{field}Days"));
                    if let Some(days) = days.as_ref().and_then(Value::as_i64) {
                        cluster
                            .insert(field.to_owned(), json!(duration(days.saturating_mul(SECONDS_PER_DAY))));
                    }
                }
            }
        }
        cluster
    }

    /// Converts the InitConfiguration. In v1beta3 one of its timeouts is in the ClusterConfiguration.
    pub(super) fn init(&mut self, configuration: Option<&InitConfiguration>, cluster: &mut Part) -> Part {
        const PATH: &str = "spec.initConfiguration";
        let mut init = self.start("InitConfiguration", configuration);
        self.registration(&mut init, PATH);
        for token in init.get_mut("bootstrapTokens").and_then(Value::as_array_mut).into_iter().flatten() {
            let Value::Object(token) = token else { continue };
            if let Some(seconds) = token.remove("ttlSeconds").as_ref().and_then(Value::as_i64) {
                token.insert("ttl".to_owned(), json!(duration(seconds)));
            }
        }
        if let Some(text) = self.timeouts(&mut init, HEALTH_CHECK, PATH) {
            part_or_new(cluster, "apiServer").insert("timeoutForControlPlane".to_owned(), json!(text));
        }
        init
    }

    /// Converts the JoinConfiguration. In v1beta3 one of its timeouts is in the discovery.
    pub(super) fn join(&mut self, configuration: Option<&JoinConfiguration>) -> Part {
        const PATH: &str = "spec.joinConfiguration";
        let mut join = self.start("JoinConfiguration", configuration);
        self.registration(&mut join, PATH);
        if let Some(text) = self.timeouts(&mut join, TLS_BOOTSTRAP, PATH) {
            part_or_new(&mut join, "discovery").insert("timeout".to_owned(), json!(text));
        }
        join
    }

    fn component(&mut self, parent: &mut Part, name: &str, path: &str) {
        let path = format!("{path}.{name}");
        let Some(component) = part_of(parent, name) else { return };
        self.arguments(component, "extraArgs");
        if self.format == Format::V1Beta3 {
            self.drop_field(component, "extraEnvs", &path);
        }
    }

    fn registration(&mut self, document: &mut Part, path: &str) {
        let Some(registration) = part_of(document, "nodeRegistration") else { return };
        self.arguments(registration, "kubeletExtraArgs");
        if self.format == Format::V1Beta3 {
            self.drop_field(registration, "imagePullSerial", &format!("{path}.nodeRegistration"));
        }
    }

    /// v1beta3 has one value per argument.
    fn arguments(&self, part: &mut Part, field: &str) {
        if self.format == Format::V1Beta4 {
            return;
        }
        let Some(Value::Array(arguments)) = part.get(field) else { return };
        let pairs =
            arguments.iter().filter_map(|argument| Some((argument["name"].as_str()?, &argument["value"])));
        let map: Part = pairs.map(|(name, value)| (name.to_owned(), value.clone())).collect();
        part.insert(field.to_owned(), Value::Object(map));
    }

    /// Converts the timeouts. Returns the one that v1beta3 has elsewhere.
    fn timeouts(&mut self, document: &mut Part, moved: &str, path: &str) -> Option<String> {
        let Some(Value::Object(timeouts)) = document.remove("timeouts") else { return None };
        let mut found = None;
        let mut converted = Part::new();
        for (name, new) in TIMEOUTS {
            let Some(seconds) = timeouts.get(name).and_then(Value::as_i64) else { continue };
            match self.format {
                Format::V1Beta4 => drop(converted.insert(new.to_owned(), json!(duration(seconds)))),
                Format::V1Beta3 if name == moved => found = Some(duration(seconds)),
                Format::V1Beta3 => self.dropped.push(format!("{path}.timeouts.{name}")),
            }
        }
        if !converted.is_empty() {
            document.insert("timeouts".to_owned(), Value::Object(converted));
        }
        found
    }

    fn drop_field(&mut self, part: &mut Part, field: &str, path: &str) {
        if part.remove(field).is_some() {
            self.dropped.push(format!("{path}.{field}"));
        }
    }
}

/// Returns a typed part as a map.
fn object(part: Option<&impl Serialize>) -> Part {
    match part.map(|part| serde_json::to_value(part).expect("plain data is JSON")) {
        Some(Value::Object(fields)) => fields,
        Some(_) | None => Part::new(),
    }
}

fn part_of<'a>(parent: &'a mut Part, name: &str) -> Option<&'a mut Part> {
    parent.get_mut(name).and_then(Value::as_object_mut)
}

/// Returns a part of a document, which is made if there is none.
pub(super) fn part_or_new<'a>(parent: &'a mut Part, name: &str) -> &'a mut Part {
    let part = parent.entry(name).or_insert_with(|| Value::Object(Part::new()));
    if !part.is_object() {
        *part = Value::Object(Part::new());
    }
    part.as_object_mut().expect("it was made an object")
}

/// Returns a duration as kubeadm writes it, such as `1m30s`.
fn duration(seconds: i64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_form_of_kubeadm() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m0s"),
            (90, "1m30s"),
            (3600, "1h0m0s"),
            (100 * SECONDS_PER_DAY, "2400h0m0s"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
