//! Route of the socket that permits another key (`bedplate machine re-enrol`).
//!
//! Called by `route`.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use bedplate_process::exit::chain;
use serde_json::json;

use super::route::{AdminState, refuse};
use crate::enrol::permission::AllowKeyError;

pub(super) async fn allow(State(state): State<AdminState>, Path(name): Path<String>) -> Response {
    let error = match (state.allow_key)(name.clone()).await {
        Ok(()) => return (StatusCode::CREATED, Json(json!({ "machine": name }))).into_response(),
        Err(error) => error,
    };
    let (code, reason) = match &error {
        AllowKeyError::NoMachine(_) => (StatusCode::NOT_FOUND, "NotFound"),
        AllowKeyError::UseCluster => (StatusCode::CONFLICT, "UseCluster"),
        AllowKeyError::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "Unavailable"),
    };
    refuse(code, reason, chain(&error))
}
