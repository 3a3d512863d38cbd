//! Requests to the API server with a timeout, and the failures of writes. Called by reconcilers and by `field_manager`.

use std::fmt::Write as _;
use std::time::Duration;

use bedplate_process::exit::chain;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::full_name::join;
use crate::{object, retry_after};

/// Timeout of one request. A connection that was lost silently holds an object for this time at most.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Text of etcd about an object above its size limit. The API server has no reason for it.
const TOO_LARGE: &str = "request is too large";

/// Failure of a write.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The object was changed or deleted after it was read.
    #[error("{what} was changed by another writer")]
    Conflict {
        /// The object.
        what: String,
    },
    /// The API server is unreachable or busy, or it does not know the program's credentials yet.
    #[error("{what}: {why}")]
    Later {
        /// The object.
        what: String,
        /// Cause, for a user.
        why: String,
        /// Minimum delay that the API server names.
        again: Option<Duration>,
    },
    /// Roles or policies forbid the write. A user must correct them, or what the program writes.
    #[error("the write of {what} was forbidden: {why}")]
    Forbidden {
        /// The object.
        what: String,
        /// Code and text of the API server.
        why: String,
    },
    /// The API server rejects the object as it is.
    #[error("{what} was rejected: {why}")]
    Refused {
        /// The object.
        what: String,
        /// Text of the API server.
        why: String,
    },
    /// Another process leads.
    #[error("this controller is no longer the leader")]
    Deposed,
}

impl WriteError {
    /// Returns the text of the API server if a user must act: it rejects the object, or this program's permission.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused { why, .. } | Self::Forbidden { why, .. } => Some(why),
            Self::Conflict { .. } | Self::Later { .. } | Self::Deposed => None,
        }
    }

    /// Returns the rank of a failure among several. A passing one decides before one that a user must correct. Both decide before one that
    /// a watch resolves.
    fn weight(&self) -> u8 {
        match self {
            Self::Conflict { .. } => 0,
            Self::Refused { .. } => 1,
            Self::Forbidden { .. } => 2,
            Self::Later { .. } => 3,
            Self::Deposed => 4,
        }
    }
}

/// The failures of steps that do not depend on each other.
#[derive(Debug, Default)]
pub struct Failed(Option<WriteError>);

impl Failed {
    /// Returns true if a step succeeded. Otherwise keeps its failure.
    pub fn note(&mut self, step: Result<(), WriteError>) -> bool {
        let Err(error) = step else { return true };
        self.0 = Some(match self.0.take() {
            None => error,
            Some(before) => both(before, error),
        });
        false
    }

    /// Returns the decisive failure, with the texts of the others.
    ///
    /// # Errors
    /// A step failed.
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
    if other.weight() > 0
        && let WriteError::Later { why, .. }
        | WriteError::Forbidden { why, .. }
        | WriteError::Refused { why, .. } = &mut graver
    {
        // Writing into a String does not fail.
        let _ = write!(why, "; {other}");
    }
    graver
}

/// Sends one request about `what`, with a timeout of 10 s.
///
/// # Errors
/// [`WriteError`]
pub async fn ask<T>(what: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| judge(what, &error)),
        Err(_) => {
            let why = format!("the API server did not answer within {} s", REQUEST_TIMEOUT.as_secs());
            Err(WriteError::Later { what: what.to_owned(), why, again: None })
        }
    }
}

/// Classifies the error of a request about `what`.
fn judge(what: &str, error: &kube::Error) -> WriteError {
    let what = what.to_owned();
    match error {
        kube::Error::Api(status) => match status.code {
            404 | 409 => WriteError::Conflict { what },
            400 | 413 | 415 | 422 => WriteError::Refused { what, why: status.message.clone() },
            403 => WriteError::Forbidden { what, why: format!("403: {}", status.message) },
            // 401 is transient, too: credentials are renewed. An object above etcd's limit stays too large, with any code.
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

/// Returns kind and full name of an object.
pub fn called<K: Resource<DynamicType = ()>>(object: &K) -> String {
    called_of(&(), object)
}

/// Returns kind and full name of an object of a resource.
pub(crate) fn called_of<K: Resource>(resource: &K::DynamicType, object: &K) -> String {
    named::<K>(resource, object.meta().namespace.as_deref(), &object.name_any())
}

fn named<K: Resource>(resource: &K::DynamicType, namespace: Option<&str>, name: &str) -> String {
    format!("{} {}", K::kind(resource), join(namespace, name))
}

/// Reads an object live. None: it does not exist.
///
/// # Errors
/// The API server did not answer, or refused the request.
pub async fn read<K>(api: &Api<K>, name: &str) -> Result<Option<K>, WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    ask(&named::<K>(&(), api.namespace(), name), object::get(api, name)).await
}

/// Deletes an object, if UID and resource version are those that were read.
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
    delete_of(api, &(), name, uid, resource_version).await
}

/// Deletes an object of a resource that is known at run time, if UID and resource version are those that were read.
///
/// # Errors
/// [`WriteError`]
pub async fn delete_of<K>(
    api: &Api<K>,
    resource: &K::DynamicType,
    name: &str,
    uid: Option<String>,
    resource_version: Option<String>,
) -> Result<(), WriteError>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let preconditions = Some(Preconditions { uid, resource_version });
    let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
    ask(&named::<K>(resource, api.namespace(), name), object::delete(api, name, &parameters)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_failure_decides_and_names_the_others() {
        let (what, why) = ("w".to_owned(), "too large".to_owned());
        let mut failed = Failed::default();
        assert!(failed.note(Ok(())));
        assert!(!failed.note(Err(WriteError::Conflict { what: what.clone() })));
        assert!(!failed.note(Err(WriteError::Refused { what: what.clone(), why })));
        assert!(!failed.note(Err(WriteError::Later { what, why: "503".to_owned(), again: None })));
        let error = failed.end().unwrap_err();
        assert_eq!(error.to_string(), "w: 503; w was rejected: too large");
        assert!(Failed::default().end().is_ok());
    }

    #[test]
    fn user_must_act_on_a_forbidden_write_whatever_the_texts_say() {
        let status = |code: u16, message: &str| {
            let mut status = kube::core::Status::failure(message, "Test");
            status.code = code;
            judge("w", &kube::Error::Api(status.boxed()))
        };
        assert_eq!(status(403, "no").refusal(), Some("403: no"));
        assert_eq!(status(503, "403: no").refusal(), None);
        let later = || WriteError::Later {
            what: "v".to_owned(),
            why: "403: as a proxy says".to_owned(),
            again: None,
        };
        assert_eq!(later().refusal(), None);
        for errors in [[status(403, "no"), later()], [later(), status(403, "no")]] {
            let mut failed = Failed::default();
            let [first, second] = errors.map(Err);
            assert!(!failed.note(first) && !failed.note(second));
            let error = failed.end().unwrap_err();
            assert_eq!((error.weight(), error.refusal()), (3, None), "the passing one decides");
            assert!(error.to_string().ends_with("the write of w was forbidden: 403: no"), "{error}");
        }
        let mut failed = Failed::default();
        failed.note(Err(status(422, "too long")));
        failed.note(Err(status(403, "no")));
        assert_eq!(failed.end().unwrap_err().refusal(), Some("403: no; w was rejected: too long"));
    }

    #[test]
    fn longest_named_delay_counts() {
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
    fn too_large_object_needs_a_user_with_any_code() {
        let mut status = kube::core::Status::failure("etcdserver: request is too large", "InternalError");
        status.code = 500;
        let error = judge("w", &kube::Error::Api(status.clone().boxed()));
        assert!(error.refusal().is_some(), "{error:?}");
        status.message = "etcdserver: leader changed".to_owned();
        assert!(matches!(judge("w", &kube::Error::Api(status.boxed())), WriteError::Later { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn request_without_an_answer_times_out() {
        let start = tokio::time::Instant::now();
        let answer = ask("Machine a", std::future::pending::<kube::Result<()>>()).await;
        assert!(matches!(answer, Err(WriteError::Later { .. })), "{answer:?}");
        assert_eq!(start.elapsed(), REQUEST_TIMEOUT);
    }
}
