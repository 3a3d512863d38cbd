//! Pure: reads an object of the API server although programs cannot count one of its times, or although it has no spec.
//!
//! A user who may write one object of a kind chooses some of its times, among them `metadata.managedFields[].time`. The API server accepts years,
//! offsets and fractions that programs cannot count, and one such object would make the list of all objects unreadable. The owner of one
//! Machine could also keep pxed and the agent from writing its status. Definitions of upstream's Cluster API admit objects without a spec, which
//! mean the same as an empty one.
//!
//! Callers: the watches, lists, reads, patches and deletions of all programs. Not bounded: creations, replacements, Leases,
//! CertificateSigningRequests, kinds that only administrators write, and the list of Pods of `bedplate install`. Not bounded either, because they
//! harm their own namespace alone: reads of Secrets by the agent, whose values would be copied once more, and counts of Events.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::watcher::Event;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The last second that programs can count. Times that they cannot count are read as this one.
const LAST_TIME: &str = "9999-12-30T22:00:00Z";

/// Object of a list or watch, with times that programs can count.
#[derive(Debug, Clone)]
pub struct BoundedTimes<K>(pub K);

impl<K> BoundedTimes<K> {
    /// Returns the event of a watch for its object.
    pub fn event(event: Event<Self>) -> Event<K> {
        match event {
            Event::Init => Event::Init,
            Event::InitApply(Self(object)) => Event::InitApply(object),
            Event::InitDone => Event::InitDone,
            Event::Apply(Self(object)) => Event::Apply(object),
            Event::Delete(Self(object)) => Event::Delete(object),
        }
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for BoundedTimes<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        if let Ok(object) = serde_json::from_str(text.get()) {
            return Ok(Self(object));
        }
        let mut object: Value = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        bound_times(&mut object);
        if let Value::Object(fields) = &mut object {
            fields.entry("spec").or_insert_with(|| Value::Object(Map::new()));
        }
        // From text again: each further form of input adds the code of all fields to each program.
        serde_json::from_str(&object.to_string()).map(Self).map_err(D::Error::custom)
    }
}

impl<K: Resource> Resource for BoundedTimes<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

/// Replaces each time that programs cannot count. Any other text that begins like such a time is replaced too, for example an
/// annotation. Only objects that cannot be read as they are have such texts replaced.
fn bound_times(value: &mut Value) {
    match value {
        Value::String(text) if is_time(text) && text.parse::<Timestamp>().is_err() => {
            LAST_TIME.clone_into(text);
        }
        Value::Array(values) => values.iter_mut().for_each(bound_times),
        Value::Object(fields) => fields.values_mut().for_each(bound_times),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns true if the text begins as a time of RFC 3339 does, with any year: the API server serves `9999-12-31T23:59:59-23:00` in UTC, with a year
/// of five digits, and earlier years with a sign.
fn is_time(text: &str) -> bool {
    let year = text.strip_prefix('-').unwrap_or(text);
    let rest = year.trim_start_matches(|c: char| c.is_ascii_digit());
    let form = b"-00-00T00:00:00";
    let is_in_form = |(byte, form): (&u8, &u8)| {
        if *form == b'0' { byte.is_ascii_digit() } else { byte.eq_ignore_ascii_case(form) }
    };
    rest.len() < year.len() && rest.len() > form.len() && rest.as_bytes().iter().zip(form).all(is_in_form)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::core::{ObjectList, WatchEvent};

    use super::*;
    use crate::cluster::kubeadm::{
        KubeadmConfig, KubeadmConfigSpec, KubeadmConfigTemplate, KubeadmConfigTemplateSpec,
    };

    const GOOD: &str = "2026-01-01T00:00:00Z";

    fn node(managed: &str, heard: &str, unschedulable: &str) -> String {
        format!(
            r#"{{"metadata":{{"managedFields":[{{"time":"{managed}"}}]}},"spec":{{"unschedulable":{unschedulable}}},
            "status":{{"conditions":[{{"type":"Ready","status":"True","lastHeartbeatTime":"{heard}"}}]}}}}"#
        )
    }

    #[test]
    fn trust_4_object_with_uncountable_times_hides_no_other() {
        let nodes = [
            node(GOOD, GOOD, "true"),
            node("9999-12-31T23:59:59Z", GOOD, "true"),
            node(GOOD, "2026-01-01T00:00:00+99:99", "true"),
            node(GOOD, "2026-01-01T00:00:00.0123456789Z", "true"),
            node("10000-01-01T22:59:59Z", "-0001-12-31T01:00:00Z", "true"),
        ];
        let list = format!(
            r#"{{"apiVersion":"v1","kind":"NodeList","metadata":{{"resourceVersion":"1"}},"items":[{}]}}"#,
            nodes.join(",")
        );
        assert!(serde_json::from_str::<ObjectList<Node>>(&list).is_err());
        let list: ObjectList<BoundedTimes<Node>> = serde_json::from_str(&list).unwrap();
        let heard = |node: &Node| {
            let conditions = node.status.as_ref()?.conditions.as_ref()?;
            conditions.first()?.last_heartbeat_time.as_ref().map(|time| time.0.to_string())
        };
        let heard: Vec<_> = list.items.iter().map(|item| heard(&item.0).unwrap()).collect();
        assert_eq!(heard, [GOOD, GOOD, LAST_TIME, LAST_TIME, LAST_TIME]);
        assert!(list.items.iter().all(|item| item.0.spec.as_ref().unwrap().unschedulable == Some(true)));
    }

    /// Upstream's definitions of the bootstrap kinds do not require a spec.
    #[test]
    fn trust_4_object_without_spec_hides_no_other() {
        let config = |name: &str, spec: &str| {
            format!(
                r#"{{"apiVersion":"bootstrap.cluster.x-k8s.io/v1beta2","kind":"KubeadmConfig","metadata":{{"name":"{name}"}}{spec}}}"#
            )
        };
        let items = [config("a", ""), config("b", r#","spec":{"verbosity":5}"#)];
        let list = format!(
            r#"{{"apiVersion":"v1","kind":"List","metadata":{{"resourceVersion":"1"}},"items":[{}]}}"#,
            items.join(",")
        );
        let list: ObjectList<BoundedTimes<KubeadmConfig>> = serde_json::from_str(&list).unwrap();
        let read: Vec<_> = list.items.iter().map(|item| item.0.spec.verbosity).collect();
        assert_eq!(read, [None, Some(5)]);
        assert_eq!(list.items[0].0.spec, KubeadmConfigSpec::default());
        let template: BoundedTimes<KubeadmConfigTemplate> = serde_json::from_str(&config("c", "")).unwrap();
        assert_eq!(template.0.spec, KubeadmConfigTemplateSpec::default());
    }

    #[test]
    fn trust_4_event_with_an_uncountable_time_is_read() {
        let event = |node: &str| {
            serde_json::from_str::<WatchEvent<BoundedTimes<Node>>>(&format!(
                r#"{{"type":"MODIFIED","object":{node}}}"#
            ))
        };
        assert!(matches!(event(&node("9999-12-31T23:59:59Z", GOOD, "true")), Ok(WatchEvent::Modified(_))));
        let error = event(&node(GOOD, GOOD, "7")).unwrap_err();
        assert!(error.to_string().contains("boolean"), "{error}");
    }
}
