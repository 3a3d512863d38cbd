//! The socket's route of enrollment tokens for hosts that pxed does not boot.
//!
//! Called by `route`, for clients that `caller` admits. The answer holds a secret.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Json, Response};
use bedplate_api::reason::refusal::AdminRefusal;
use bedplate_process::exit::chain;

use super::route::{AdminState, refuse};
use crate::enroll::token::IssueTokenError;

pub(super) async fn issue(State(state): State<AdminState>, Path(name): Path<String>) -> Response {
    let error = match (state.token)(name).await {
        Ok(seed) => {
            return (StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], Json(seed)).into_response();
        }
        Err(error) => error,
    };
    let reason = match &error {
        IssueTokenError::NoMachine(_) => AdminRefusal::NotFound,
        IssueTokenError::Netbooted(_) => AdminRefusal::Netbooted,
        IssueTokenError::Seed(_) => AdminRefusal::Unavailable,
    };
    refuse(reason, chain(&error))
}
