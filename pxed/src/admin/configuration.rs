//! Routes of the socket for standalone MachineConfigurations: the list, and one with its versions and Machines.
//!
//! Contents that may be secret, such as those of files, are shown only to root and pxed's own user, who may read the
//! manifests anyway. They are concealed from the rest of the socket's group, and in the list. Called by `route`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Json, Response};
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::reason::refusal::AdminRefusal;
use bedplate_process::listen::accept::UnixPeer;
use kube::Resource;
use serde_json::{Value, json};

use super::redact::conceal;
use super::route::{AdminState, refuse};
use crate::standalone::versions::NodeChoice;

/// Key of the digests of concealed values. Only this pxed has it.
pub(super) type Key = Arc<[u8; 32]>;

pub(super) async fn list(State(state): State<AdminState>, Extension(key): Extension<Key>) -> Response {
    let Some(described) = state.choice.as_ref().map(NodeChoice::describe) else { return of_cluster() };
    let mut items: Vec<Value> = described.iter().map(|one| json!(one.configuration)).collect();
    items.iter_mut().for_each(|item| conceal(item, &key));
    let version = MachineConfiguration::api_version(&());
    Json(json!({ "apiVersion": version, "kind": "MachineConfigurationList", "items": items })).into_response()
}

pub(super) async fn get(
    State(state): State<AdminState>,
    Extension(key): Extension<Key>,
    ConnectInfo(peer): ConnectInfo<UnixPeer>,
    Path(name): Path<String>,
) -> Response {
    let Some(described) = state.choice.as_ref().map(NodeChoice::describe) else { return of_cluster() };
    let found = described.iter().find(|one| one.configuration.metadata.name.as_ref() == Some(&name));
    let Some(found) = found else {
        let message = format!("no manifest has a MachineConfiguration {name:?}");
        return refuse(AdminRefusal::NotFound, message);
    };
    let mut found = json!(found);
    if !state.rights.may_read_manifests(&peer) {
        conceal(&mut found, &key);
    }
    Json(found).into_response()
}

fn of_cluster() -> Response {
    let message = "this pxed belongs to a cluster, which has the configurations: `kubectl get mc,mcv`";
    refuse(AdminRefusal::UseKubernetesApi, message.to_owned())
}
