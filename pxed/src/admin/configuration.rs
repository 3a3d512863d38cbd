//! The socket's routes of MachineConfigurations, where there is no cluster: all of them, and one with its versions and Machines.
//!
//! Called by `route`.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use bedplate_api::configuration::MachineConfiguration;
use kube::Resource;
use serde_json::{Value, json};

use super::route::{AdminState, refuse};
use crate::node_choice::NodeChoice;

pub(super) async fn list(State(state): State<AdminState>) -> Response {
    let Some(described) = state.choice.as_ref().map(NodeChoice::describe) else { return of_cluster() };
    let items: Vec<Value> = described.iter().map(|one| json!(one.configuration)).collect();
    let version = MachineConfiguration::api_version(&());
    Json(json!({ "apiVersion": version, "kind": "MachineConfigurationList", "items": items })).into_response()
}

pub(super) async fn get(State(state): State<AdminState>, Path(name): Path<String>) -> Response {
    let Some(described) = state.choice.as_ref().map(NodeChoice::describe) else { return of_cluster() };
    let found = described.iter().find(|one| one.configuration.metadata.name.as_ref() == Some(&name));
    match found {
        Some(found) => Json(found).into_response(),
        None => {
            let message = format!("no MachineConfiguration {name:?} is in a manifest here");
            refuse(StatusCode::NOT_FOUND, "NotFound", message)
        }
    }
}

fn of_cluster() -> Response {
    let message = "this pxed belongs to a cluster, which has the configurations: `kubectl get mc,mcv`";
    refuse(StatusCode::CONFLICT, "UseCluster", message.to_owned())
}
