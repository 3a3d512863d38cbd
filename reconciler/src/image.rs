//! Images that a version names by a tag. The controller resolves the tag at the registry once, and writes the
//! digest into the version's status before the version is used. All Machines of the version get the same
//! image.
//!
//! ```text
//! tag --the registry's answer--> imageDigest --then only--> deployed, selected
//!  `--no answer--> Ready False --> Degraded of the configuration; asked again, less and less often
//! ```
//!
//! Versions are resolved independently, so a slow registry does not delay others. Versions that name a digest
//! are never resolved. The controller reads no Secret: an image that needs a pull secret, or that is stored
//! on the hosts, is resolved by each host.

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::condition::{Conditions as _, set_condition};
use bedplate_api::configuration::{Condition, NodeImage};
use bedplate_api::id::Digest;
use bedplate_api::machine::Time;
use bedplate_api::reason::configuration::VersionReadyReason;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_api::reason::machine::ConfigurationPendingReason;
use bedplate_api::version::{MachineConfigurationVersion, MachineConfigurationVersionStatus, condition_type};
use bedplate_engine::Context as _;
use bedplate_engine::write::WriteError;
use bedplate_oci::{Access, EnsureImageError, Options, resolve_tag};
use bedplate_rules::selection::{Choice, Pending, is_deployed};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::FIELD_MANAGER;
use crate::context::World;
use crate::metrics::Kind;
use crate::reach::RegistryReach;

/// Timeout of a request to a registry.
const REGISTRY_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time without data from a registry.
const REGISTRY_STALL_TIMEOUT: Duration = Duration::from_secs(8);
/// Prefix of a reference to an image that is stored on the hosts.
const LAYOUT: &str = "oci:";

/// Returns true if an image is named by a tag.
fn is_tag(image: &NodeImage) -> bool {
    !image.reference.contains('@')
}

/// Returns the reason why each host resolves an image itself, if it does.
pub(crate) fn resolved_by_hosts(image: &NodeImage) -> Option<&'static str> {
    if !is_tag(image) {
        None
    } else if image.reference.starts_with(LAYOUT) {
        Some("is stored on the hosts")
    } else {
        image.pull_secret_ref.as_ref().map(|_| "needs a pull secret, which the controller does not read")
    }
}

/// Returns true if a version's tag must still be resolved here.
pub fn is_open(version: &MachineConfigurationVersion) -> bool {
    let image = &version.spec.template.image;
    is_tag(image)
        && resolved_by_hosts(image).is_none()
        && version.spec.image_digest(version.status.as_ref()).is_none()
        && version.metadata.deletion_timestamp.is_none()
}

/// Returns the reason why the last attempt to resolve a version's image failed.
pub fn failure(version: &MachineConfigurationVersion) -> Option<&str> {
    let found = version
        .condition(condition_type::READY)
        .filter(|ready| ready.status == "False" && ready.observed_generation == version.metadata.generation);
    found.filter(|_| is_open(version)).map(|c| c.message.as_str())
}

/// Returns condition `Ready` as it must be. None: the registry has not been asked yet.
fn ready(version: &MachineConfigurationVersion, now: Timestamp) -> Option<Condition> {
    let mut own: Vec<Condition> = version.condition(condition_type::READY).cloned().into_iter().collect();
    if !is_open(version) && version.metadata.deletion_timestamp.is_none() {
        let image = &version.spec.template.image;
        let (reason, message) = match resolved_by_hosts(image) {
            Some(why) => (
                VersionReadyReason::ImageResolvedByHosts,
                format!("each host resolves the tag: the image {why}"),
            ),
            None if is_tag(image) => (VersionReadyReason::ImageResolved, String::new()),
            None => (VersionReadyReason::ImagePinned, String::new()),
        };
        set_condition(&mut own, true, reason, &message, version.metadata.generation, now);
    }
    own.pop()
}

/// Returns true if `Ready` of a version is as it must be.
pub(crate) fn is_described(version: &MachineConfigurationVersion) -> bool {
    let ready = ready(version, Timestamp::UNIX_EPOCH);
    let observed = version.status.as_ref().and_then(|status| status.observed_generation);
    ready.is_none()
        || version.condition(condition_type::READY) == ready.as_ref()
            && observed == ready.and_then(|c| c.observed_generation)
}

/// Returns the choice, once the image of its version is known. A version is not locked before.
pub(crate) fn once_resolved(
    choice: Choice,
    has_selected: bool,
    versions: &[&MachineConfigurationVersion],
) -> Choice {
    let Choice::Select(select) = choice else { return choice };
    let name = select.selected.version_name();
    let version = versions.iter().find(|version| version.name_any() == name);
    let Some(version) = version.filter(|version| select.lock && is_open(version)) else {
        return Choice::Select(select);
    };
    let why = failure(version).unwrap_or("the registry has not answered yet");
    let pending = Pending {
        reason: ConfigurationPendingReason::ImageUnresolved,
        message: format!("image tag of {name} is not resolved: {why}"),
        nearest: Vec::new(),
    };
    if has_selected { Choice::Keep(Some(pending)) } else { Choice::Pending(pending) }
}

/// Resolves one version's tag.
///
/// # Errors
/// The registry did not answer, or [`WriteError`].
pub async fn reconcile(
    version: Arc<MachineConfigurationVersion>,
    world: Arc<World>,
) -> Result<(), WriteError> {
    if !is_open(&version) {
        return Ok(());
    }
    let image = &version.spec.template.image;
    let answer = ask_registry(image, world.reach.clone()).await;
    let status =
        answered(&version, answer.as_ref().map_err(|error| describe(image, error)), Timestamp::now());
    if version.status.as_ref() != Some(&status) {
        let whole = MachineConfigurationVersion { status: Some(status), ..(*version).clone() };
        let body = status_of(&whole, is_deployed(&version), None);
        world.leading(FIELD_MANAGER.apply_status(&world.write(Kind::Image), &*version, &body)).await?;
        let name = version.name_any();
        tracing::info!(
            version = name,
            image = image.reference,
            ok = answer.is_ok(),
            "image tag resolution finished"
        );
        match &answer {
            Ok(digest) => {
                let note =
                    format!("resolved {} to {digest} for all Machines of this version", image.reference);
                world.news.publish(&*version, ControllerEvent::ImageResolved, &note);
            }
            Err(error) => {
                world.news.publish(&*version, ControllerEvent::ImageUnresolved, &describe(image, error));
            }
        }
    }
    let what = format!("image of MachineConfigurationVersion {}", version.name_any());
    match answer {
        Ok(_) => Ok(()),
        Err(error @ (EnsureImageError::Refused { .. } | EnsureImageError::InvalidReference { .. })) => {
            Err(WriteError::Refused { what, why: describe(image, &error) })
        }
        Err(error) => Err(WriteError::Later { what, why: describe(image, &error), again: None }),
    }
}

async fn ask_registry(image: &NodeImage, reach: Arc<RegistryReach>) -> Result<Digest, EnsureImageError> {
    let options =
        Options { attempts: 1, stall: REGISTRY_STALL_TIMEOUT, reach: Some(reach), ..Options::default() };
    let access = Access { is_confined: true, ..Access::default() };
    let asked = resolve_tag(&image.reference, &access, image.ca_bundle.as_deref(), &options);
    tokio::time::timeout(REGISTRY_TIMEOUT, asked).await.unwrap_or_else(|_| {
        Err(EnsureImageError::Unreachable {
            image: image.reference.clone(),
            what: "a manifest".to_owned(),
            attempts: 1,
            problem: format!("no answer within {} s", REGISTRY_TIMEOUT.as_secs()),
        })
    })
}

/// Returns the message of a failed request, for users.
fn describe(image: &NodeImage, error: &EnsureImageError) -> String {
    let why = match error {
        EnsureImageError::Unreachable { problem, .. } => format!("the registry does not answer ({problem})"),
        EnsureImageError::Refused { problem, .. } => format!("the registry refuses ({problem})"),
        other => other.to_string(),
    };
    format!("{}: {why}; the request is retried; to avoid it, name the digest (@sha256:...)", image.reference)
}

/// Returns the status of a version after an answer.
fn answered(
    version: &MachineConfigurationVersion,
    answer: Result<&Digest, String>,
    now: Timestamp,
) -> MachineConfigurationVersionStatus {
    let mut status = version.status.clone().unwrap_or_default();
    let generation = version.metadata.generation;
    match answer {
        Ok(digest) => {
            status.image_digest = Some(*digest);
            status.image_reference = Some(version.spec.template.image.reference.clone());
            set_condition(&mut status, true, VersionReadyReason::ImageResolved, "", generation, now);
        }
        Err(why) => {
            (status.image_digest, status.image_reference) = (None, None);
            set_condition(&mut status, false, VersionReadyReason::ImageUnresolved, &why, generation, now);
        }
    }
    status.observed_generation = generation;
    status
}

/// Returns all fields of a version's status that the controller owns: server-side apply removes the fields that it omits. `machines`: the number
/// of Machines that hold the version, if it has changed.
pub fn status_of(
    version: &MachineConfigurationVersion,
    deployed: bool,
    machines: Option<i32>,
) -> MachineConfigurationVersionStatus {
    let (before, now) = (version.status.clone().unwrap_or_default(), Timestamp::now());
    let (ready, is_tag) = (ready(version, now), is_tag(&version.spec.template.image));
    MachineConfigurationVersionStatus {
        observed_generation: ready.as_ref().and_then(|ready| ready.observed_generation),
        deployed: Some(deployed),
        deployed_time: before.deployed_time.or(deployed.then_some(Time(now))),
        machines: machines.or(before.machines).or(Some(0)),
        image_digest: before.image_digest.filter(|_| is_tag),
        image_reference: before.image_reference.filter(|_| is_tag),
        conditions: ready.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_rules::selection::Select;
    use serde_json::{Value, json};

    use super::*;

    const TAG: &str = "r.example/node:1";

    fn version(image: &Value, status: &Value) -> MachineConfigurationVersion {
        let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfigurationVersion",
            "metadata": { "name": "w-v1" }, "status": status, "spec": { "configurationName": "w", "version": 1,
                "template": { "image": image, "kubernetes": { "version": "v1.34.0" } } } });
        serde_json::from_value(object).unwrap()
    }

    fn tagged(status: &Value) -> MachineConfigurationVersion {
        version(&json!({ "reference": TAG, "allowTag": true }), status)
    }

    fn digest() -> String {
        format!("sha256:{:064}", 7)
    }

    #[test]
    fn tag_is_resolved_once_and_only_if_the_digest_is_unknown() {
        let pinned = format!("r.example/node:1@{}", digest());
        let secret = json!({ "namespace": "n", "name": "s" });
        for (image, status, open) in [
            (json!({ "reference": TAG, "allowTag": true }), json!({}), true),
            (json!({ "reference": pinned, "allowTag": true }), json!({}), false),
            (json!({ "reference": TAG, "allowTag": true, "pullSecretRef": secret }), json!({}), false),
            (json!({ "reference": "oci:/images:1", "allowTag": true }), json!({}), false),
            (
                json!({ "reference": TAG, "allowTag": true }),
                json!({ "imageDigest": digest(), "imageReference": TAG }),
                false,
            ),
            // No Machine used the version, and a later edit names another tag.
            (
                json!({ "reference": "r.example/node:2", "allowTag": true }),
                json!({ "imageDigest": digest(), "imageReference": TAG }),
                true,
            ),
        ] {
            assert_eq!(is_open(&version(&image, &status)), open, "{image} {status}");
        }
    }

    #[test]
    fn h4_version_is_chosen_only_with_a_known_image_and_a_used_one_stays() {
        let select = |lock| {
            let selected =
                serde_json::from_value(json!({ "name": "w", "version": 1, "source": "Reference" })).unwrap();
            Choice::Select(Select { selected, lock })
        };
        let failed = json!([{ "type": condition_type::READY, "status": "False", "reason": "ImageUnresolved", "message": "away",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        let open = tagged(&json!({ "conditions": failed }));
        let Choice::Pending(pending) = once_resolved(select(true), false, &[&open]) else { panic!() };
        assert_eq!(pending.reason, ConfigurationPendingReason::ImageUnresolved);
        assert!(pending.message.contains("w-v1") && pending.message.contains("away"), "{}", pending.message);
        assert!(matches!(once_resolved(select(true), true, &[&open]), Choice::Keep(Some(_))));
        assert_eq!(once_resolved(select(false), true, &[&open]), select(false));
        let known = tagged(&json!({ "imageDigest": digest(), "imageReference": TAG }));
        assert_eq!(once_resolved(select(true), false, &[&known]), select(true));
    }

    #[test]
    fn answer_of_the_registry_is_kept_by_the_next_status_write() {
        let known = digest().parse().unwrap();
        let mut version = tagged(&json!({ "deployed": false, "machines": 0 }));
        let refused = answered(&version, Err("away".to_owned()), Timestamp::UNIX_EPOCH);
        version.status = Some(refused.clone());
        assert_eq!(failure(&version), Some("away"));
        let again = answered(&version, Err("away".to_owned()), Timestamp::now());
        assert_eq!(again, refused, "the same is not written again");
        version.status = Some(answered(&version, Ok(&known), Timestamp::UNIX_EPOCH));
        assert_eq!(failure(&version), None);
        let body = json!(status_of(&version, true, Some(3)));
        assert_eq!((&body["imageDigest"], &body["imageReference"]), (&json!(digest()), &json!(TAG)));
        assert_eq!(body["conditions"][0]["status"], "True");
    }

    #[test]
    fn version_is_ready_as_soon_as_its_image_is_known() {
        let secret = json!({ "namespace": "n", "name": "s" });
        let known = json!({ "imageDigest": digest(), "imageReference": TAG });
        for (image, status, reason) in [
            (json!({ "reference": format!("r.example/node@{}", digest()) }), json!({}), "ImagePinned"),
            (json!({ "reference": TAG, "allowTag": true }), known, "ImageResolved"),
            (
                json!({ "reference": TAG, "allowTag": true, "pullSecretRef": secret }),
                json!({}),
                "ImageResolvedByHosts",
            ),
        ] {
            let mut version = version(&image, &status);
            version.metadata.generation = Some(2);
            assert!(!is_described(&version), "{reason}");
            let body = json!(status_of(&version, false, Some(0)));
            let ready = &body["conditions"][0];
            assert_eq!(
                (&ready["type"], &ready["status"], &ready["reason"]),
                (&json!("Ready"), &json!("True"), &json!(reason))
            );
            assert_eq!((&ready["observedGeneration"], &body["observedGeneration"]), (&json!(2), &json!(2)));
            version.status = Some(serde_json::from_value(body).unwrap());
            assert!(is_described(&version), "{reason}");
            version.metadata.generation = Some(3);
            assert!(!is_described(&version), "{reason}: an edit is observed");
        }
        let open = tagged(&json!({}));
        assert!(is_described(&open), "the registry was not asked yet");
        assert!(status_of(&open, false, None).conditions.is_empty());
    }

    #[test]
    fn failure_of_an_earlier_tag_is_not_that_of_an_edit() {
        let mut version = tagged(&json!({}));
        version.metadata.generation = Some(1);
        version.status = Some(answered(&version, Err("away".to_owned()), Timestamp::UNIX_EPOCH));
        assert_eq!(failure(&version), Some("away"));
        version.metadata.generation = Some(2);
        assert_eq!(failure(&version), None);
    }
}
