//! Typed builders of Bedplate's objects for tests: a wrong field name does not compile.
//!
//! A built object has only fields that differ from the defaults of its definition, as a manifest of a user has. Tests of invalid objects write JSON.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bedplate_api::claim::{Claimant, MachineClaim, ReleasePolicy};
use bedplate_api::configuration::{ConfigurationClaimPolicy, MachineConfiguration, Template};
use bedplate_api::crds::definitions;
use bedplate_api::machine::{ClaimPolicy, ConfigurationRef, Machine, PROVIDER_MANUAL, PROVIDER_PXE, PxeSpec};
use bedplate_api::operation::{MachineOperation, MachineRef};
use bedplate_api::selector::MachineSelector;
use bedplate_api::version::MachineConfigurationVersion;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::object::HasSpec;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Node image that no registry serves. It has a digest: a tag would be resolved before a version is selected.
pub const NODE_IMAGE: &str =
    "registry.example/node@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Object under construction.
#[derive(Debug, Clone)]
pub struct Builder<K>(K);

/// Starts a Machine of provider `manual`.
pub fn machine(name: &str) -> Builder<Machine> {
    start(name, &json!({ "provider": PROVIDER_MANUAL }))
}

/// Starts a MachineConfiguration.
pub fn configuration(name: &str, template: &Template) -> Builder<MachineConfiguration> {
    start(name, &json!({ "template": template }))
}

/// Starts a version of a MachineConfiguration.
pub fn version(
    configuration: &str,
    number: u32,
    template: &Template,
) -> Builder<MachineConfigurationVersion> {
    let spec = json!({ "configurationName": configuration, "version": number, "template": template });
    start(&format!("{configuration}-v{number}"), &spec)
}

/// Starts a MachineOperation without a target.
pub fn operation(name: &str, operation: &str) -> Builder<MachineOperation> {
    start(name, &json!({ "operationName": operation }))
}

/// Starts a claim of a Machine by a worker with the name of the claimant, for cluster `c` and configuration `pool`.
pub fn claim(machine: &str, claimant: &Claimant) -> Builder<MachineClaim> {
    let spec = json!({
        "claimant": claimant, "clusterName": "c", "role": "Worker", "nodeName": claimant.name,
        "providerID": format!("bedplate://{machine}/{}", claimant.uid), "configurationRef": { "name": "pool" },
        "release": ReleasePolicy::Empty,
    });
    start(machine, &spec)
}

/// Returns a template of this node image.
pub fn template(image: &str) -> Template {
    parsed(json!({ "image": { "reference": image }, "kubernetes": { "version": "v1.34.4" } }))
}

/// Returns a template of [`NODE_IMAGE`] that differs for each number.
pub fn numbered_template(number: u32) -> Template {
    let sysctls = BTreeMap::from([("kernel.panic".to_owned(), number.to_string())]);
    Template { sysctls, ..template(NODE_IMAGE) }
}

fn start<K: DeserializeOwned + Resource<DynamicType = ()>>(name: &str, spec: &Value) -> Builder<K> {
    let (version, kind) = (K::api_version(&()), K::kind(&()));
    Builder(parsed(
        json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec }),
    ))
}

fn parsed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the fields of the type")
}

impl<K: Resource<DynamicType = ()> + HasSpec + Serialize> Builder<K> {
    /// Sets a label.
    #[must_use]
    pub fn label(self, key: &str, value: &str) -> Self {
        let insert = |metadata: &mut ObjectMeta| {
            metadata.labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        };
        self.metadata(insert)
    }

    /// Has the API server choose a name with this start.
    #[must_use]
    pub fn generate_name(self, start: &str) -> Self {
        self.metadata(|metadata| {
            metadata.name = None;
            metadata.generate_name = Some(start.to_owned());
        })
    }

    /// Changes the metadata.
    #[must_use]
    pub fn metadata(mut self, change: impl FnOnce(&mut ObjectMeta)) -> Self {
        change(self.0.meta_mut());
        self
    }

    /// Changes the spec.
    #[must_use]
    pub fn spec(mut self, change: impl FnOnce(&mut K::Spec)) -> Self {
        change(self.0.spec_mut());
        self
    }

    /// Returns the object.
    pub fn build(self) -> K {
        self.0
    }

    /// Returns the object as JSON, without fields that have their default.
    pub fn json(&self) -> Value {
        let mut object = json!(self.0);
        remove_defaults(&mut object["spec"], &SPECS[&*K::kind(&())]);
        object
    }
}

impl Builder<Machine> {
    /// Has pxed boot the machine by an interface with this MAC address.
    #[must_use]
    pub fn pxe(self, mac: &str) -> Self {
        let pxe: PxeSpec = parsed(json!({ "interfaces": [{ "macAddress": mac }] }));
        self.spec(|spec| {
            PROVIDER_PXE.clone_into(&mut spec.provider);
            spec.pxe = Some(pxe);
        })
    }

    /// Names a BMC that speaks Redfish, and the Secret with its credentials by namespace and name.
    #[must_use]
    pub fn redfish(self, address: &str, (namespace, name): (&str, &str)) -> Self {
        let secret = json!({ "namespace": namespace, "name": name });
        let bmc =
            parsed(json!({ "protocol": "Redfish", "address": address, "credentialsSecretRef": secret }));
        self.spec(|spec| spec.bmc = Some(bmc))
    }

    /// Sets the site.
    #[must_use]
    pub fn site(self, site: &str) -> Self {
        self.spec(|spec| spec.site = site.parse().expect("the name of a site"))
    }

    /// Names the configuration.
    #[must_use]
    pub fn configuration(self, name: &str) -> Self {
        self.spec(|spec| {
            spec.configuration_ref = Some(ConfigurationRef { name: name.to_owned(), version: None });
        })
    }

    /// Names a version of a configuration.
    #[must_use]
    pub fn version(self, configuration: &str, number: i64) -> Self {
        let name = configuration.to_owned();
        self.spec(|spec| spec.configuration_ref = Some(ConfigurationRef { name, version: Some(number) }))
    }

    /// Offers the machine to the claims of a namespace.
    #[must_use]
    pub fn pool(self, namespace: &str) -> Self {
        let namespaces = vec![namespace.to_owned()];
        self.spec(|spec| spec.claim_policy = Some(ClaimPolicy { namespaces, release: None }))
    }

    /// Sets `spec.paused`.
    #[must_use]
    pub fn paused(self, paused: bool) -> Self {
        self.spec(|spec| spec.paused = paused)
    }
}

impl Builder<MachineConfiguration> {
    /// Selects Machines that have this label.
    #[must_use]
    pub fn selects(self, key: &str, value: &str) -> Self {
        self.spec(|spec| select(spec.machine_selector.get_or_insert_default(), key, value))
    }

    /// Offers the configuration to the claims of a namespace.
    #[must_use]
    pub fn pool(self, namespace: &str) -> Self {
        let namespaces = vec![namespace.to_owned()];
        self.spec(|spec| spec.claim_policy = Some(ConfigurationClaimPolicy { namespaces }))
    }
}

impl Builder<MachineOperation> {
    /// Runs the operation on a Machine.
    #[must_use]
    pub fn on(self, machine: &str) -> Self {
        let name = machine.parse().expect("the name of a Machine");
        self.spec(|spec| spec.machine_ref = Some(MachineRef { name }))
    }

    /// Runs the operation on all Machines that have this label.
    #[must_use]
    pub fn selects(self, key: &str, value: &str) -> Self {
        self.spec(|spec| select(spec.machine_selector.get_or_insert_default(), key, value))
    }

    /// Sets a parameter.
    #[must_use]
    pub fn parameter(self, name: &str, value: &str) -> Self {
        self.spec(|spec| {
            spec.parameters.insert(name.to_owned(), value.to_owned());
        })
    }

    /// Sets the timeout on each Machine, in seconds.
    #[must_use]
    pub fn timeout(self, seconds: i32) -> Self {
        self.spec(|spec| spec.timeout_seconds = Some(seconds))
    }
}

fn select(selector: &mut MachineSelector, key: &str, value: &str) {
    selector.match_labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

/// Schemas of the specs, by kind.
static SPECS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let definitions = definitions().into_iter().map(|definition| {
        let schema = json!(definition.spec.versions[0].schema);
        (definition.spec.names.kind, schema["openAPIV3Schema"]["properties"]["spec"].clone())
    });
    definitions.collect()
});

fn remove_defaults(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let schema = &schema["properties"][name];
            let is_default = schema.get("default").is_some_and(|default| default == value);
            remove_defaults(value, schema);
            !is_default
        }),
        Value::Array(items) => items.iter_mut().for_each(|item| remove_defaults(item, &schema["items"])),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_has_no_fields_with_defaults() {
        let built =
            machine("a").pxe("52:54:00:00:00:01").configuration("workers").label("rack", "7").paused(false);
        let expected = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
            "metadata": { "name": "a", "labels": { "rack": "7" } },
            "spec": { "provider": "pxe", "pxe": { "interfaces": [{ "macAddress": "52:54:00:00:00:01" }] },
                "configurationRef": { "name": "workers" } } });
        assert_eq!(built.json(), expected);
        assert_eq!(built.site("north").paused(true).json()["spec"]["paused"], true);
    }

    #[test]
    fn configuration_keeps_fields_without_defaults() {
        let spec = configuration("a", &numbered_template(2)).selects("rack", "7").json()["spec"].clone();
        let template = json!({ "image": { "reference": NODE_IMAGE }, "kubernetes": { "version": "v1.34.4" },
            "sysctls": { "kernel.panic": "2" } });
        assert_eq!(
            spec,
            json!({ "machineSelector": { "matchLabels": { "rack": "7" } }, "template": template })
        );
        assert_eq!(version("a", 3, &numbered_template(2)).json()["metadata"]["name"], "a-v3");
    }

    #[test]
    fn operation_and_claim_have_their_fields() {
        let built = operation("", "reboot").on("a").parameter("drain", "true").generate_name("a-");
        let spec = json!({ "operationName": "reboot", "machineRef": { "name": "a" }, "parameters": { "drain": "true" } });
        assert_eq!(built.json()["spec"], spec);
        assert_eq!(built.json()["metadata"], json!({ "generateName": "a-" }));
        let claimant = Claimant { namespace: "n".into(), name: "w".into(), uid: "u".into() };
        assert_eq!(claim("a", &claimant).json()["spec"]["providerID"], "bedplate://a/u");
    }
}
