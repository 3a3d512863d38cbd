//! Certificate signing requests of kubelets: approved for the Node of a Machine, or denied (Trust 5).
//!
//! Two signers: the agent asks for the client certificate (`decide`), the kubelet for the serving certificate (`serving`). Requests
//! for other signers are ignored. The Machine and the Node of its name are read live. pxed writes the fingerprint of a new certificate into the
//! Machine before the agent gets it. So a certificate that the Machine does not name is an old one.

mod decide;
mod holders;
mod serving;

use std::sync::Arc;
use std::time::Duration;

use bedplate_api::configuration::NodeRole;
use bedplate_api::machine::Machine;
use bedplate_api::reason::certificate::CertificateDecision;
use bedplate_api::reason::event::ControllerEvent;
use bedplate_engine::Context as _;
use bedplate_engine::write::{WriteError, ask, called};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, ResourceExt};

use self::decide::Verdict;
use crate::FIELD_MANAGER;
use crate::context::World;
use crate::metrics::Kind;

/// Delay until a request is read again whose Node is about to register.
const NODE_DELAY: Duration = Duration::from_secs(5);

/// Returns true if the request is for a signer of kubelets' certificates, so that the controller decides about it.
pub(crate) fn is_for_a_kubelet(request: &CertificateSigningRequest) -> bool {
    asks_for(request).is_some()
}

/// Returns true if a request for a kubelet has no decision.
pub fn is_open(request: &CertificateSigningRequest) -> bool {
    is_for_a_kubelet(request) && !decide::is_decided(request)
}

/// Returns the Machine whose kubelet a request is for, by the user of the request.
fn asks_for(request: &CertificateSigningRequest) -> Option<&str> {
    decide::asks_for(request).or_else(|| serving::asks_for(request))
}

/// Decides about one request. Returns the delay after which it is read again.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(
    request: Arc<CertificateSigningRequest>,
    world: Arc<World>,
) -> Result<Option<Duration>, WriteError> {
    let Some(name) = asks_for(&request).filter(|_| !decide::is_decided(&request)) else { return Ok(None) };
    if !world.stores.open().is_new(&request.name_any()) {
        // The user has created newer requests. The watch returns this one when one of them is decided or deleted.
        tracing::debug!(request = request.name_any(), machine = name, "older certificate request skipped");
        return Ok(None);
    }
    let machine: Option<Machine> = world.live(name).await?;
    // A Node of the name may belong to another host.
    let node: Option<Node> = world.live(name).await?;
    let (event, message) = match verdict(&request, machine.as_ref(), node.as_ref(), &world).await? {
        Verdict::NotOurs => return Ok(None),
        Verdict::Wait(why) => {
            tracing::debug!(request = request.name_any(), machine = name, why, "certificate request pending");
            return Ok(Some(NODE_DELAY));
        }
        Verdict::LeaveOpen(why) => {
            tell(&world, machine.as_ref(), &request, ControllerEvent::CertificateApprovalRequired, &why);
            let why = format!("approval by a user required: {why}");
            // Read again with growing delays: an agent may report a new address meanwhile. The log has each reason once.
            return Err(WriteError::Later { what: called(&*request), why, again: None });
        }
        Verdict::Approve => (ControllerEvent::CertificateApproved, approved(&request).to_owned()),
        Verdict::Deny(why) => (ControllerEvent::CertificateDenied, why),
    };
    let verdict = if event == ControllerEvent::CertificateApproved { "Approved" } else { "Denied" };
    let object = request.name_any();
    tracing::info!(request = object, machine = name, verdict, message, "kubelet certificate request decided");
    world.leading(write(&request, (verdict, &message), &world)).await?;
    tell(&world, machine.as_ref(), &request, event, &message);
    Ok(None)
}

/// Decides by the request's signer. Other holders of the addresses of a serving certificate are read only if no other rule refuses it.
async fn verdict(
    request: &CertificateSigningRequest,
    machine: Option<&Machine>,
    node: Option<&Node>,
    world: &World,
) -> Result<Verdict, WriteError> {
    let Some(name) = serving::asks_for(request) else { return Ok(decide::decide(request, machine, node)) };
    match serving::decide(request, machine, node, &[]) {
        Verdict::Approve => {
            let role = machine.and_then(|machine| role_of(machine, world));
            let holders = holders::holders(name, &serving::names_of(request), role, world).await?;
            Ok(serving::decide(request, machine, node, &holders))
        }
        other => Ok(other),
    }
}

/// Returns the role of the version that the controller has selected for a Machine. `status.applied`, a report of the host, does not count.
fn role_of(machine: &Machine, world: &World) -> Option<NodeRole> {
    let selected = machine.selected()?;
    let index = world.stores.index();
    let version = index.find(selected.key())?;
    Some(version.spec.template.kubernetes.role)
}

fn approved(request: &CertificateSigningRequest) -> &'static str {
    match serving::asks_for(request) {
        Some(_) => "kubelet of a Machine requests a certificate for its own name and addresses",
        None => "agent of a Machine requests the certificate of its own Node",
    }
}

/// Publishes an Event on the Machine, where users look. If there is none, publishes it on the request.
fn tell(
    world: &World,
    machine: Option<&Machine>,
    request: &CertificateSigningRequest,
    reason: ControllerEvent,
    message: &str,
) {
    let note = format!("CertificateSigningRequest {}: {message}", request.name_any());
    match machine {
        Some(machine) => world.news.publish(machine, reason, &note),
        None => world.news.publish(request, reason, &note),
    }
}

async fn write(
    request: &CertificateSigningRequest,
    (type_, message): (&str, &str),
    world: &World,
) -> Result<(), WriteError> {
    let now = Time(Timestamp::now());
    let mut decided = request.clone();
    // Conditions of a request are only appended. The resource version of the request is sent along.
    decided.status.get_or_insert_default().conditions.get_or_insert_default().push(
        CertificateSigningRequestCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: Some(CertificateDecision::BedplateAgent.to_string()),
            message: Some(message.to_owned()),
            last_update_time: Some(now.clone()),
            last_transition_time: Some(now),
        },
    );
    let requests: Api<CertificateSigningRequest> = world.write(Kind::Request);
    let (name, parameters) = (request.name_any(), FIELD_MANAGER.post());
    let written = requests.replace_subresource("approval", &name, &parameters, &decided);
    ask(&called(request), written).await.map(drop)
}
