//! Route of the socket that permits another key (`bedplate machine re-enroll`).
//!
//! Called by `route`.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use bedplate_api::reason::refusal::AdminRefusal;
use bedplate_process::exit::chain;
use serde::{Deserialize, Serialize};

use super::route::{AdminState, refuse};
use crate::enroll::permission::AllowKeyError;

/// Parameters of the request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    /// Public ID of the only boot that may enroll.
    boot: Option<String>,
}

/// Answer to a request that was granted.
#[derive(Debug, Serialize)]
struct Permission {
    /// Name of the Machine.
    machine: String,
    /// Public ID of the only boot that may enroll. A client that named a boot must find it here: earlier versions of pxed ignored the parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

pub(super) async fn allow(
    State(state): State<AdminState>,
    Path(name): Path<String>,
    parameters: Result<Query<Parameters>, QueryRejection>,
) -> Response {
    let boot = match parameters {
        Ok(Query(Parameters { boot })) => boot,
        Err(rejection) => return refuse(AdminRefusal::Malformed, rejection.body_text()),
    };
    let is_id = |boot: &String| boot.len() == 32 && boot.bytes().all(|b| b.is_ascii_hexdigit());
    if boot.as_ref().is_some_and(|boot| !is_id(boot)) {
        let message = "boot is not the public ID of a boot, which has 32 hex digits".to_owned();
        return refuse(AdminRefusal::Malformed, message);
    }
    let boot = boot.map(|boot| boot.to_ascii_lowercase());
    let error = match (state.allow_key)(name.clone(), boot.clone()).await {
        Ok(()) => {
            return (StatusCode::CREATED, Json(Permission { machine: name, boot })).into_response();
        }
        Err(error) => error,
    };
    let reason = match &error {
        AllowKeyError::NoMachine(_) => AdminRefusal::NotFound,
        AllowKeyError::UseKubernetesApi => AdminRefusal::UseKubernetesApi,
        AllowKeyError::Store(_) => AdminRefusal::Unavailable,
    };
    refuse(reason, chain(&error))
}
