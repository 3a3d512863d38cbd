//! The routes of the Unix socket; every refusal is a `wire::Refusal`.
//!
//! All but operations, tokens and permissions for another key are GET. POST needs the admin group (`caller`).

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use axum::{Extension, Router, middleware};
use bedplate_api::id::{MacAddress, MachineName};
use bedplate_api::machine::Machine;
use bedplate_api::reason::refusal::AdminRefusal;
use bedplate_api::wire::{Explanation, Refusal, Seed, Stage};
use bedplate_process::health::Health;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::caller::{self, Rights};
use super::{configuration, operation, permission, token};
use crate::enroll::permission::AllowKeyError;
use crate::enroll::token::IssueTokenError;
use crate::machines::discovered::Discovered;
use crate::machines::{Found, Machines};
use crate::power::OperationDesk;
use crate::standalone::versions::NodeChoice;
use crate::status::StatusRegistry;

/// Function that explains the boot decision for a MAC address or a Machine's name.
pub type Explain = Arc<dyn Fn(&str) -> Option<Explanation> + Send + Sync>;

/// Makes a token for the Machine of this name.
pub(crate) type Issue =
    Arc<dyn Fn(String) -> BoxFuture<'static, Result<Seed, IssueTokenError>> + Send + Sync>;

/// Allows another key to enroll for the Machine of this name, of the boot with this public ID or of any boot.
pub(crate) type AllowKey =
    Arc<dyn Fn(String, Option<String>) -> BoxFuture<'static, Result<(), AllowKeyError>> + Send + Sync>;

/// State that the routes read.
#[derive(Clone)]
pub struct AdminState {
    /// The index.
    pub machines: Machines,
    /// The statuses.
    pub registry: StatusRegistry,
    /// Unknown machines.
    pub discovered: Discovered,
    /// Stage that the latest boot of an unknown machine reached.
    pub stage: Arc<dyn Fn(MacAddress) -> Option<Stage> + Send + Sync>,
    /// Boot decision for a MAC address or a Machine; `None` if it is unknown.
    pub explain: Explain,
    /// MachineOperations.
    pub operations: Arc<dyn OperationDesk>,
    /// Selected versions of the Machines; none in a cluster.
    pub choice: Option<NodeChoice>,
    /// A token for a host on which a user installs the agent.
    pub token: Issue,
    /// Users who may do more than read.
    pub rights: Rights,
    /// Permission for another key.
    pub allow_key: AllowKey,
    /// Health of the boot path.
    pub health: Arc<dyn Health>,
    /// The rest of `/v1/status`.
    pub about: Arc<dyn Fn() -> Value + Send + Sync>,
}

/// The routes.
pub fn router(state: AdminState) -> Router {
    let key: configuration::Key = Arc::new(rand::random());
    Router::new()
        .route("/v1/machines", get(machines))
        .route("/v1/machines/{name}", get(machine))
        .route("/v1/machines/{name}/token", post(token::issue))
        .route("/v1/machines/{name}/re-enroll", post(permission::allow))
        .route("/v1/explain/{subject}", get(explain))
        .route("/v1/discovered", get(discovered))
        .route("/v1/status", get(status))
        .route("/v1/operations", get(operation::list).post(operation::create))
        .route("/v1/operations/{name}", get(operation::get))
        .route("/v1/configurations", get(configuration::list))
        .route("/v1/configurations/{name}", get(configuration::get))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(Extension(key))
        .layer(middleware::from_fn_with_state(state.rights.clone(), caller::admit))
        .with_state(state)
}

/// Written Machine by Machine: the tree of thousands would take more memory than all else in pxed.
async fn machines(State(state): State<AdminState>) -> Response {
    let mut text = r#"{"apiVersion":"bedplate.dev/v1alpha1","kind":"MachineList","items":["#.to_owned();
    for (number, known) in state.machines.load().iter().enumerate() {
        text.push_str(if number == 0 { "" } else { "," });
        text.push_str(&object(&state.registry.describe(known)).to_string());
    }
    text.push_str("]}");
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

async fn machine(State(state): State<AdminState>, Path(name): Path<String>) -> Response {
    let snapshot = state.machines.load();
    let known = match name.parse::<MachineName>() {
        Ok(name) => snapshot.by_name(&name).cloned(),
        // A MAC address names its Machine too.
        Err(_) => name.parse().ok().and_then(|mac| match snapshot.by_mac(mac) {
            Found::One(known) => Some(known),
            Found::Unknown | Found::Several(_) => None,
        }),
    };
    match known {
        Some(known) => Json(object(&state.registry.describe(&known))).into_response(),
        None => {
            refuse(AdminRefusal::NotFound, format!("this pxed does not know a Machine {name:?} of this site"))
        }
    }
}

async fn explain(State(state): State<AdminState>, Path(subject): Path<String>) -> Response {
    match (state.explain)(&subject) {
        Some(explanation) => Json(explanation).into_response(),
        None => refuse(
            AdminRefusal::NotFound,
            format!("{subject:?} is neither a MAC address nor a Machine of this site"),
        ),
    }
}

/// Lists discovered machines without those that are Machines now.
async fn discovered(State(state): State<AdminState>) -> Json<Value> {
    let known = state.machines.load();
    let mut machines = state.discovered.list();
    machines.retain(|machine| matches!(known.by_mac(machine.mac_address), Found::Unknown));
    let items: Vec<Value> = machines
        .iter()
        .map(|machine| {
            let mut item = serde_json::to_value(machine).unwrap_or_default();
            if let (Some(item), Some(stage)) = (item.as_object_mut(), (state.stage)(machine.mac_address)) {
                item.insert("stage".to_owned(), json!(stage));
            }
            item
        })
        .collect();
    Json(json!({ "items": items }))
}

async fn status(State(state): State<AdminState>) -> Json<Value> {
    let readiness = state.health.readiness();
    let mut about = (state.about)();
    if let Some(map) = about.as_object_mut() {
        map.insert("ready".to_owned(), readiness.ready.into());
        map.insert("reasons".to_owned(), readiness.reasons.into());
    }
    Json(about)
}

async fn no_route() -> Response {
    refuse(AdminRefusal::NotFound, "this path does not exist".to_owned())
}

async fn no_method() -> Response {
    refuse(AdminRefusal::MethodNotAllowed, "this path does not allow this method".to_owned())
}

/// A Machine as JSON; kube's type leaves nothing out that cannot be written.
fn object(machine: &Machine) -> Value {
    serde_json::to_value(machine).unwrap_or_default()
}

pub(super) fn refuse(reason: AdminRefusal, message: String) -> Response {
    let code = StatusCode::from_u16(reason.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, Json(Refusal { reason: reason.as_str().to_owned(), message })).into_response()
}
