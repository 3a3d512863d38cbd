//! Form of a provider's object, as far as the contracts go. Each field is read leniently.
//!
//! Pure: no clock, no file, no socket.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::Deserialize;

use super::{CONDITION_TYPES, Contract, CountsView, Endpoint, Failure, Referenced};
use crate::cluster::lenient::{Form, lenient, lenient_object};
use crate::cluster::part::{FailureDomain, MachineAddress, MachineAddressType, annotation};

/// Bounds of the lists and texts that a Machine and a Cluster can show. The API server would refuse a write with a longer one each time.
const MAX_ADDRESSES: usize = 256;
const MAX_ADDRESS_CHARACTERS: usize = 256;
const MAX_FAILURE_DOMAINS: usize = 100;
const MAX_FAILURE_DOMAIN_CHARACTERS: usize = 256;
const MAX_PROVIDER_ID_CHARACTERS: usize = 512;
const MAX_SECRET_NAME_CHARACTERS: usize = 253;
const MAX_HOST_CHARACTERS: usize = 512;
const MAX_MESSAGE_CHARACTERS: usize = 32_768;

/// An object.
#[derive(Deserialize, Debug)]
pub(super) struct Object {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient_object")]
    spec: Option<Spec>,
    #[serde(default, deserialize_with = "lenient_object")]
    status: Option<Status>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(rename = "providerID", deserialize_with = "lenient")]
    provider_id: Option<String>,
    #[serde(deserialize_with = "lenient")]
    control_plane_endpoint: Option<RawEndpoint>,
    #[serde(deserialize_with = "lenient")]
    replicas: Option<i32>,
    #[serde(deserialize_with = "lenient")]
    version: Option<String>,
    #[serde(deserialize_with = "lenient")]
    failure_domain: Option<String>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct RawEndpoint {
    #[serde(deserialize_with = "lenient")]
    host: Option<String>,
    #[serde(deserialize_with = "lenient")]
    port: Option<u16>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "lenient")]
    initialization: Option<Initialization>,
    #[serde(deserialize_with = "lenient")]
    ready: Option<bool>,
    #[serde(deserialize_with = "lenient")]
    initialized: Option<bool>,
    #[serde(deserialize_with = "lenient")]
    data_secret_name: Option<String>,
    #[serde(deserialize_with = "lenient")]
    addresses: Vec<Form<MachineAddress>>,
    #[serde(deserialize_with = "lenient")]
    failure_domain: Option<String>,
    #[serde(deserialize_with = "lenient")]
    failure_domains: FailureDomains,
    #[serde(deserialize_with = "lenient")]
    interruptible: Option<bool>,
    #[serde(deserialize_with = "lenient")]
    external_managed_control_plane: Option<bool>,
    #[serde(deserialize_with = "lenient")]
    failure_reason: Option<String>,
    #[serde(deserialize_with = "lenient")]
    failure_message: Option<String>,
    #[serde(deserialize_with = "lenient")]
    deprecated: Option<Deprecated>,
    #[serde(deserialize_with = "lenient")]
    version: Option<String>,
    #[serde(deserialize_with = "lenient")]
    replicas: Option<i32>,
    #[serde(deserialize_with = "lenient")]
    ready_replicas: Option<i32>,
    #[serde(deserialize_with = "lenient")]
    available_replicas: Option<i32>,
    #[serde(deserialize_with = "lenient")]
    up_to_date_replicas: Option<i32>,
    #[serde(deserialize_with = "lenient")]
    updated_replicas: Option<i32>,
    #[serde(deserialize_with = "lenient")]
    conditions: Vec<Form<RawCondition>>,
    #[serde(deserialize_with = "lenient")]
    v1beta2: Option<Conditions>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct Initialization {
    #[serde(deserialize_with = "lenient")]
    provisioned: Option<bool>,
    #[serde(deserialize_with = "lenient")]
    data_secret_created: Option<bool>,
    #[serde(deserialize_with = "lenient")]
    control_plane_initialized: Option<bool>,
}

/// `status.failureDomains`: a list, or a map in v1beta1.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum FailureDomains {
    List(Vec<Form<FailureDomain>>),
    Map(BTreeMap<String, Form<Domain>>),
}

impl Default for FailureDomains {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct Domain {
    #[serde(deserialize_with = "lenient")]
    control_plane: Option<bool>,
    #[serde(deserialize_with = "lenient")]
    attributes: BTreeMap<String, String>,
}

/// `status.deprecated` of an object of contract v1beta2 that is converted from v1beta1.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Deprecated {
    #[serde(deserialize_with = "lenient")]
    v1beta1: Option<DeprecatedFailure>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct DeprecatedFailure {
    #[serde(deserialize_with = "lenient")]
    failure_reason: Option<String>,
    #[serde(deserialize_with = "lenient")]
    failure_message: Option<String>,
}

/// `status.v1beta2` of an object of contract v1beta1.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Conditions {
    #[serde(deserialize_with = "lenient")]
    conditions: Option<Vec<Form<RawCondition>>>,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct RawCondition {
    #[serde(rename = "type")]
    type_: String,
    #[serde(default, deserialize_with = "lenient")]
    status: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    reason: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    message: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    last_transition_time: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    observed_generation: Option<i64>,
}

impl RawCondition {
    /// Returns the condition if its status and its time are valid. The reason may be missing in v1beta1.
    fn valid(self) -> Option<Condition> {
        let status = self.status.filter(|status| ["True", "False", "Unknown"].contains(&status.as_str()))?;
        let since: Timestamp = self.last_transition_time?.parse().ok()?;
        Some(Condition {
            last_transition_time: Time(since),
            message: self.message.map(shortened).unwrap_or_default(),
            observed_generation: self.observed_generation,
            reason: self.reason.unwrap_or_default(),
            status,
            type_: self.type_,
        })
    }
}

impl From<Object> for Referenced {
    fn from(object: Object) -> Self {
        let Object { mut metadata, spec, status } = object;
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.retain(|key, _| annotation::is_of_cluster_api(key) || key == annotation::PROPAGATED);
        }
        let contract = contract(spec.unwrap_or_default(), status.unwrap_or_default());
        Self { metadata, contract }
    }
}

fn contract(spec: Spec, status: Status) -> Contract {
    let initialization = status.initialization.unwrap_or_default();
    let conditions = status.v1beta2.and_then(|v1beta2| v1beta2.conditions).unwrap_or(status.conditions);
    let (conditions, invalid_conditions) = kept(conditions);
    let deprecated = status.deprecated.and_then(|deprecated| deprecated.v1beta1).unwrap_or_default();
    let failure = failure(status.failure_reason, status.failure_message)
        .or_else(|| failure(deprecated.failure_reason, deprecated.failure_message));
    Contract {
        provisioned: initialization.provisioned.or(status.ready),
        data_secret_created: initialization.data_secret_created.or(status.ready),
        initialized: initialization.control_plane_initialized.or(status.initialized),
        data_secret_name: within(status.data_secret_name, MAX_SECRET_NAME_CHARACTERS),
        provider_id: within(spec.provider_id, MAX_PROVIDER_ID_CHARACTERS),
        endpoint: endpoint(spec.control_plane_endpoint),
        addresses: addresses(status.addresses),
        failure_domain: within(status.failure_domain, MAX_FAILURE_DOMAIN_CHARACTERS)
            .or_else(|| within(spec.failure_domain, MAX_FAILURE_DOMAIN_CHARACTERS)),
        failure_domains: failure_domains(status.failure_domains),
        version: present(spec.version),
        status_version: present(status.version),
        replicas: CountsView {
            desired: spec.replicas,
            existing: status.replicas,
            ready: status.ready_replicas,
            available: status.available_replicas,
            up_to_date: status.up_to_date_replicas.or(status.updated_replicas),
        },
        interruptible: status.interruptible == Some(true),
        failure,
        conditions,
        invalid_conditions,
        is_externally_managed: status.external_managed_control_plane == Some(true),
    }
}

/// Returns a text that is not empty.
fn present(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Returns a text that is not empty and has at most this number of characters.
fn within(text: Option<String>, characters: usize) -> Option<String> {
    present(text).filter(|text| text.chars().count() <= characters)
}

fn endpoint(endpoint: Option<RawEndpoint>) -> Option<Endpoint> {
    let RawEndpoint { host, port } = endpoint?;
    Some(Endpoint { host: within(host, MAX_HOST_CHARACTERS)?, port: port.filter(|port| *port > 0)? })
}

/// Returns the addresses that a Machine can show.
fn addresses(addresses: Vec<Form<MachineAddress>>) -> Vec<MachineAddress> {
    let is_valid = |address: &MachineAddress| {
        let characters = address.address.chars().count();
        address.type_ != MachineAddressType::Unknown && (1..=MAX_ADDRESS_CHARACTERS).contains(&characters)
    };
    addresses.into_iter().filter_map(Form::expected).filter(is_valid).take(MAX_ADDRESSES).collect()
}

/// Returns the failure domains that a Cluster can show, sorted by name. Of several with one name, the first.
fn failure_domains(domains: FailureDomains) -> Vec<FailureDomain> {
    let mut domains: Vec<FailureDomain> = match domains {
        FailureDomains::List(domains) => domains.into_iter().filter_map(Form::expected).collect(),
        FailureDomains::Map(domains) => {
            let named = |(name, domain): (String, Form<Domain>)| {
                let Domain { control_plane, attributes } = domain.expected()?;
                Some(FailureDomain { name, control_plane, attributes })
            };
            domains.into_iter().filter_map(named).collect()
        }
    };
    domains.retain(|domain| (1..=MAX_FAILURE_DOMAIN_CHARACTERS).contains(&domain.name.chars().count()));
    domains.sort_by(|a, b| a.name.cmp(&b.name));
    domains.dedup_by(|next, first| next.name == first.name);
    domains.truncate(MAX_FAILURE_DOMAINS);
    domains
}

/// Returns a text without the characters that a condition cannot hold.
fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_MESSAGE_CHARACTERS) {
        text.truncate(end);
    }
    text
}

fn failure(reason: Option<String>, message: Option<String>) -> Option<Failure> {
    let (reason, message) = (present(reason), present(message).map(shortened));
    (reason.is_some() || message.is_some())
        .then(|| Failure { reason: reason.unwrap_or_default(), message: message.unwrap_or_default() })
}

/// Returns the valid conditions of the types that are kept, and the types of the others.
fn kept(conditions: Vec<Form<RawCondition>>) -> (Vec<Condition>, Vec<String>) {
    let (mut valid, mut invalid) = (Vec::new(), Vec::new());
    for condition in conditions.into_iter().filter_map(Form::expected) {
        let Some(type_) = CONDITION_TYPES.into_iter().find(|type_| *type_ == condition.type_) else {
            continue;
        };
        match condition.valid() {
            Some(condition) => valid.push(condition),
            None => invalid.push(type_.to_owned()),
        }
    }
    (valid, invalid)
}
