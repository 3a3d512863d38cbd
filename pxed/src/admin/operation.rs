//! Routes of the socket for MachineOperations: list, show, create. A new operation is first validated against the
//! CustomResourceDefinition, as by an API server. The desk decides whether it is stored, and where.
//!
//! Called by `route`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use bedplate_api::operation::MachineOperation;
use bedplate_api::reason::refusal::AdminRefusal;
use kube::Resource;
use serde_json::{Map, Value, json};

use super::route::{AdminState, refuse};
use crate::power::{CreateOperationError, OperationDesk};
use crate::standalone::manifests::parse::is_object_name;
use crate::standalone::manifests::schema::check_operation;

/// A larger body is not read.
const MAX_BODY: usize = 64 << 10;

/// Timeout for reading a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of errors that are listed; the others are counted.
const MOST_FINDINGS: usize = 8;

/// A name that an API server would take; what it adds to `generateName` needs 5 characters more.
const LONGEST_NAME: usize = 253;

pub(super) async fn list(State(state): State<AdminState>) -> Response {
    let items: Vec<Value> = state.operations.list().iter().map(|operation| object(operation)).collect();
    let version = MachineOperation::api_version(&());
    Json(json!({ "apiVersion": version, "kind": "MachineOperationList", "items": items })).into_response()
}

pub(super) async fn get(State(state): State<AdminState>, Path(name): Path<String>) -> Response {
    match state.operations.get(&name) {
        Some(operation) => Json(object(&operation)).into_response(),
        None => refuse(
            AdminRefusal::OperationNotFound,
            format!(
                "this pxed does not know a MachineOperation {name:?}; it does not exist, or it was removed after its end"
            ),
        ),
    }
}

pub(super) async fn create(State(state): State<AdminState>, body: Body) -> Response {
    let operation = match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(body)) => read(&body),
        Ok(Err(_)) => Err(InvalidBody {
            reason: AdminRefusal::BodyTooLarge,
            message: format!("the body is incomplete, or larger than {} KiB", MAX_BODY >> 10),
        }),
        Err(_) => Err(InvalidBody {
            reason: AdminRefusal::BodyTooSlow,
            message: format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs()),
        }),
    };
    match operation {
        Ok(operation) => keep(&state.operations, operation).await,
        Err(InvalidBody { reason, message }) => refuse(reason, message),
    }
}

async fn keep(desk: &Arc<dyn OperationDesk>, operation: MachineOperation) -> Response {
    let error = match desk.create(operation).await {
        Ok(made) => return (StatusCode::CREATED, Json(object(&made))).into_response(),
        Err(error) => error,
    };
    let (reason, remedy) = match &error {
        CreateOperationError::UseKubernetesApi => (
            AdminRefusal::UseKubernetesApi,
            "; create it there, with `kubectl create`, or with `bedplate` and --context or --kubeconfig",
        ),
        CreateOperationError::Exists(_) => {
            (AdminRefusal::AlreadyExists, "; choose another name, or set generateName")
        }
        CreateOperationError::NoMachine(_) => (AdminRefusal::MachineNotFound, ""),
        CreateOperationError::Invalid(_) => (AdminRefusal::Invalid, ""),
        CreateOperationError::Later(_) => (AdminRefusal::Unavailable, ""),
    };
    refuse(reason, format!("{error}{remedy}"))
}

/// Reason why a body is not a valid operation.
struct InvalidBody {
    reason: AdminRefusal,
    message: String,
}

fn invalid(message: String) -> InvalidBody {
    InvalidBody { reason: AdminRefusal::Invalid, message }
}

/// The operation that a body holds: its spec, name, labels and annotations. The rest of its metadata, and its status, are
/// ignored.
fn read(body: &[u8]) -> Result<MachineOperation, InvalidBody> {
    let malformed = |message: String| InvalidBody { reason: AdminRefusal::Malformed, message };
    let given: Value =
        serde_json::from_slice(body).map_err(|error| malformed(format!("the body is not JSON: {error}")))?;
    let (version, kind) = (MachineOperation::api_version(&()), MachineOperation::kind(&()));
    if given["apiVersion"] != *version || given["kind"] != *kind {
        return Err(malformed(format!("the body is not a {kind} of {version}")));
    }
    let metadata = metadata(&given["metadata"])?;
    let object = json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": given["spec"] });
    let findings = check_operation(&object);
    if !findings.is_empty() {
        let rest = findings.len().saturating_sub(MOST_FINDINGS);
        let mut lines: Vec<String> = findings
            .into_iter()
            .take(MOST_FINDINGS)
            .map(|(field, message)| if field.is_empty() { message } else { format!("{field}: {message}") })
            .collect();
        lines.extend((rest > 0).then(|| format!("and {rest} more")));
        return Err(invalid(lines.join("; ")));
    }
    serde_json::from_value(object).map_err(|error| invalid(error.to_string()))
}

fn metadata(given: &Value) -> Result<Value, InvalidBody> {
    let mut kept = Map::new();
    // The suffix of a `generateName` consists of letters and digits.
    for (key, longest, rest) in [("name", LONGEST_NAME, ""), ("generateName", LONGEST_NAME - 5, "xxxxx")] {
        match &given[key] {
            Value::Null => {}
            Value::String(name) if !name.is_empty() && is_object_name(&format!("{name}{rest}")) => {
                kept.insert(key.to_owned(), given[key].clone());
            }
            _ => {
                return Err(invalid(format!(
                    "metadata.{key} is invalid; use at most {longest} of a-z, 0-9, '-' and '.', where each part between dots starts and ends with a-z or 0-9"
                )));
            }
        }
    }
    if kept.is_empty() {
        return Err(invalid("metadata.name or metadata.generateName is required".to_owned()));
    }
    for key in ["labels", "annotations"] {
        match &given[key] {
            Value::Null => {}
            Value::Object(map) if map.values().all(Value::is_string) => {
                kept.insert(key.to_owned(), given[key].clone());
            }
            _ => return Err(invalid(format!("metadata.{key} must be a map of strings"))),
        }
    }
    Ok(Value::Object(kept))
}

fn object(operation: &MachineOperation) -> Value {
    serde_json::to_value(operation).unwrap_or_default()
}
