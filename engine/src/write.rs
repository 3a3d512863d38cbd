//! One write to the API server each: server-side apply as one field manager, every one bound to the object that was read, and none
//! waited for without end. The end of an operation is a JSON Patch, which is bound to the UID and to a state alone.
//!
//! Callers: `configuration`, `machine`, `request`, `version`, `world`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use bedplate_process::exit::chain;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use crate::retry_after;

/// Who writes.
pub const FIELD_MANAGER: &str = "bedplate-controller";

/// How long one request may take: a connection that died without a word keeps no object for longer.
const LIMIT: Duration = Duration::from_secs(10);

/// How the words of a refusal by roles or policies begin (`judge`).
const FORBIDDEN: &str = "403: ";

/// etcd's words for an object that is larger than it takes.
const TOO_LARGE: &str = "request is too large";

/// Why something was not written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// Not as it was read any more, or gone.
    #[error("{what} has changed meanwhile")]
    Conflict {
        /// The object.
        what: String,
    },
    /// The API server is away, busy, or has not got its roles yet.
    #[error("{what} cannot be written now: {why}")]
    Later {
        /// The object.
        what: String,
        /// What stands in the way.
        why: String,
        /// It is not to be tried before, as the API server has said.
        again: Option<Duration>,
    },
    /// It will not be taken as it is.
    #[error("{what} was refused: {why}")]
    Refused {
        /// The object.
        what: String,
        /// The API server's words.
        why: String,
    },
    /// Somebody else leads by now.
    #[error("this controller does not lead any more")]
    Deposed,
}

impl WriteError {
    /// The API server's words, if it is a person who has to change something: the object will not be taken as it is, or not from us.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused { why, .. } => Some(why),
            Self::Later { why, .. } => Some(why.as_str()).filter(|why| why.starts_with(FORBIDDEN)),
            Self::Conflict { .. } | Self::Deposed => None,
        }
    }

    /// Of several, which one says how it goes on: what may be better in a moment before what a person has to change, and both before
    /// what the watch brings by itself.
    fn weight(&self) -> u8 {
        match self {
            Self::Conflict { .. } => 0,
            Self::Refused { .. } => 1,
            Self::Later { .. } => 2,
            Self::Deposed => 3,
        }
    }
}

/// The failures of steps that do not depend on each other.
#[derive(Debug, Default)]
pub struct Failed(Option<WriteError>);

impl Failed {
    /// Whether a step was done; if not, why is kept.
    pub fn note(&mut self, step: Result<(), WriteError>) -> bool {
        let Err(error) = step else { return true };
        self.0 = Some(match self.0.take() {
            None => error,
            Some(before) => both(before, error),
        });
        false
    }

    /// The gravest failure, with the words of the others.
    ///
    /// # Errors
    /// A step has failed.
    pub fn end(self) -> Result<(), WriteError> {
        self.0.map_or(Ok(()), Err)
    }
}

fn both(first: WriteError, second: WriteError) -> WriteError {
    let (mut graver, other) =
        if second.weight() > first.weight() { (second, first) } else { (first, second) };
    if let (WriteError::Later { again, .. }, WriteError::Later { again: longer, .. }) = (&mut graver, &other)
    {
        *again = (*again).max(*longer);
    }
    if let (WriteError::Later { why, .. } | WriteError::Refused { why, .. }, true) =
        (&mut graver, other.weight() > 0)
    {
        // Writing into a String does not fail.
        let _ = write!(why, "; {other}");
    }
    graver
}

/// Sends one request about `what`, and waits for a limited time.
///
/// # Errors
/// [`WriteError`]
pub async fn ask<T>(what: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
    match tokio::time::timeout(LIMIT, request).await {
        Ok(answer) => answer.map_err(|error| judge(what, &error)),
        Err(_) => {
            let why = format!("the API server did not answer within {} s", LIMIT.as_secs());
            Err(WriteError::Later { what: what.to_owned(), why, again: None })
        }
    }
}

/// What an error of a request for `what` means.
fn judge(what: &str, error: &kube::Error) -> WriteError {
    let what = what.to_owned();
    match error {
        kube::Error::Api(status) => match status.code {
            404 | 409 => WriteError::Conflict { what },
            400 | 413 | 415 | 422 => WriteError::Refused { what, why: status.message.clone() },
            // 401 and 403 too: credentials are renewed, roles are put right.
            // What is larger than etcd takes stays so, whatever code says it.
            500 if status.message.contains(TOO_LARGE) => {
                WriteError::Refused { what, why: status.message.clone() }
            }
            code => {
                let why = format!("{code}: {}", status.message);
                WriteError::Later { what, why, again: retry_after::named(status) }
            }
        },
        other => WriteError::Later { what, why: chain(other), again: None },
    }
}

/// What is called by its kind and name.
pub fn called<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{} {}", K::kind(&()), object.name_any())
}

/// Applies what is ours of an object's status, if it is as it was read.
///
/// # Errors
/// [`WriteError`]
pub async fn apply_status<K>(api: &Api<K>, object: &K, status: &impl Serialize) -> Result<K, WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut body = identity(object);
    body["status"] = json!(status);
    // Forced: these fields are ours, whoever else wrote them.
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let name = object.name_any();
    ask(&called(object), api.patch_status(&name, &parameters, &Patch::Apply(&body))).await
}

/// Edits the status of an object by a JSON Patch (RFC 6902), which is bound to nothing but what its `test` operations say. The API server
/// repeats the patch after a concurrent write.
///
/// # Errors
/// [`WriteError`]; a failed `test` is an error 422, as other refusals are.
pub async fn edit_status<K>(api: &Api<K>, object: &K, edits: &Value) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let what = called(object);
    let edits = serde_json::from_value(edits.clone())
        .map_err(|error| WriteError::Refused { what: what.clone(), why: error.to_string() })?;
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = object.name_any();
    ask(&what, api.patch_status(&name, &parameters, &Patch::<()>::Json(edits))).await.map(drop)
}

/// Applies annotations of an object that is there; its other fields may have changed meanwhile.
///
/// # Errors
/// [`WriteError`]
pub async fn apply_annotations<K>(api: &Api<K>, object: &K, annotations: &Value) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    // With its UID: without, an object that is gone would be made anew.
    let body = json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()),
        "metadata": { "name": object.name_any(), "uid": object.uid(), "annotations": annotations } });
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let name = object.name_any();
    ask(&called(object), api.patch(&name, &parameters, &Patch::Apply(&body))).await.map(drop)
}

/// Applies our labels of an object that is there, all of them; its other fields may have changed meanwhile.
///
/// # Errors
/// [`WriteError`]
pub async fn apply_labels<K>(
    api: &Api<K>,
    object: &K,
    labels: &BTreeMap<String, String>,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    // With its UID: without, an object that is gone would be made anew.
    let body = json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()),
        "metadata": { "name": object.name_any(), "uid": object.uid(), "labels": labels } });
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let name = object.name_any();
    ask(&called(object), api.patch(&name, &parameters, &Patch::Apply(&body))).await.map(drop)
}

/// Sets or takes away one finalizer, if the object is as it was read.
///
/// # Errors
/// [`WriteError`]
pub async fn set_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str, held: bool) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let others = object.finalizers().iter().filter(|other| *other != finalizer).cloned();
    let wanted: Vec<String> = others.chain(held.then(|| finalizer.to_owned())).collect();
    let body = json!({ "metadata": {
        "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": wanted } });
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = object.name_any();
    ask(&called(object), api.patch(&name, &parameters, &Patch::Merge(&body))).await.map(drop)
}

/// Deletes an object, if it is as it was read.
///
/// # Errors
/// [`WriteError`]
pub async fn delete<K>(
    api: &Api<K>,
    name: &str,
    uid: Option<String>,
    resource_version: Option<String>,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let preconditions = Some(Preconditions { uid, resource_version });
    let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
    ask(&format!("{} {name}", K::kind(&())), api.delete(name, &parameters)).await.map(drop)
}

/// The head of an apply: this object, as it was read.
fn identity<K: Resource<DynamicType = ()>>(object: &K) -> Value {
    json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {
        "name": object.name_any(), "uid": object.uid(), "resourceVersion": object.resource_version() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_failures_the_one_that_may_be_better_in_a_moment_decides_and_the_others_are_said() {
        let (what, why) = ("w".to_owned(), "too large".to_owned());
        let mut failed = Failed::default();
        assert!(failed.note(Ok(())));
        assert!(!failed.note(Err(WriteError::Conflict { what: what.clone() })));
        assert!(!failed.note(Err(WriteError::Refused { what: what.clone(), why })));
        assert!(!failed.note(Err(WriteError::Later { what, why: "503".to_owned(), again: None })));
        let error = failed.end().unwrap_err();
        assert_eq!(error.to_string(), "w cannot be written now: 503; w was refused: too large");
        assert!(Failed::default().end().is_ok());
    }

    #[test]
    fn of_two_times_that_the_api_server_names_the_later_one_counts() {
        let later = |again: Option<u64>| {
            let again = again.map(Duration::from_secs);
            Err(WriteError::Later { what: "w".to_owned(), why: "429".to_owned(), again })
        };
        let mut failed = Failed::default();
        for again in [None, Some(7), Some(3)] {
            failed.note(later(again));
        }
        let WriteError::Later { again, .. } = failed.end().unwrap_err() else { panic!() };
        assert_eq!(again, Some(Duration::from_secs(7)));
    }

    #[test]
    fn what_is_too_large_for_etcd_needs_a_person_whatever_the_code_is() {
        let mut status = kube::core::Status::failure("etcdserver: request is too large", "InternalError");
        status.code = 500;
        let error = judge("w", &kube::Error::Api(status.clone().boxed()));
        assert!(error.refusal().is_some(), "{error:?}");
        status.message = "etcdserver: leader changed".to_owned();
        assert!(matches!(judge("w", &kube::Error::Api(status.boxed())), WriteError::Later { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_answered_ends() {
        let begun = tokio::time::Instant::now();
        let answer = ask("Machine a", std::future::pending::<kube::Result<()>>()).await;
        assert!(matches!(answer, Err(WriteError::Later { .. })), "{answer:?}");
        assert_eq!(begun.elapsed(), LIMIT);
    }
}
