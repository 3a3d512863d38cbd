//! Certificate signing requests of agents for their kubelets: approved for the same name's Node, or denied (Trust 5).
//!
//! Others' requests are left alone. The Machine and the Node of its name are asked live: pxed writes a new certificate's fingerprint into it before it hands that
//! certificate out, so whoever shows a certificate that is not there shows an old one.

mod decide;

use std::sync::Arc;

use bedplate_api::machine::Machine;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

pub use self::decide::{SIGNER, Verdict, asks_for, decide};
use crate::counters::Kind;
use crate::news::Reason;
use crate::world::World;
use crate::write::{FIELD_MANAGER, WriteError, ask, called};

/// Decides about one request.
///
/// # Errors
/// [`WriteError`]
pub async fn reconcile(request: Arc<CertificateSigningRequest>, world: Arc<World>) -> Result<(), WriteError> {
    let Some(name) = asks_for(&request) else { return Ok(()) };
    if decide(&request, None, None) == Verdict::NotOurs {
        return Ok(());
    }
    let machine = world.live_machine(name).await?;
    // Of the same name; it may be another host's.
    let node = world.live_node(name).await?;
    let (type_, reason, message) = match decide(&request, machine.as_ref(), node.as_ref()) {
        Verdict::NotOurs => return Ok(()),
        Verdict::LeaveOpen(why) => {
            tracing::warn!(
                request = request.name_any(),
                machine = name,
                why,
                "a kubelet's certificate waits for a person"
            );
            let note = format!("CertificateSigningRequest {}: {why}", request.name_any());
            tell(&world, machine.as_ref(), &request, Reason::CertificateAwaitsPerson, &note);
            return Ok(());
        }
        Verdict::Approve => {
            ("Approved", "BedplateMachine", "its agent asks for the certificate of its own Node".to_owned())
        }
        Verdict::Deny(why) => ("Denied", "BedplateMachine", why),
    };
    tracing::info!(
        request = request.name_any(),
        machine = name,
        verdict = type_,
        message,
        "a kubelet's certificate"
    );
    world.counters.wrote(Kind::Request);
    let note = format!("CertificateSigningRequest {}: {message}", request.name_any());
    world.leading(write(&request, (type_, reason, message), &world)).await?;
    let told = if type_ == "Approved" { Reason::CertificateApproved } else { Reason::CertificateDenied };
    tell(&world, machine.as_ref(), &request, told, &note);
    Ok(())
}

/// Of the Machine, where a person looks; of the request, if there is none.
fn tell(
    world: &World,
    machine: Option<&Machine>,
    request: &CertificateSigningRequest,
    reason: Reason,
    note: &str,
) {
    match machine {
        Some(machine) => world.news.tell(machine, reason, note),
        None => world.news.tell(request, reason, note),
    }
}

async fn write(
    request: &CertificateSigningRequest,
    (type_, reason, message): (&str, &str, String),
    world: &World,
) -> Result<(), WriteError> {
    let now = Time(Timestamp::now());
    let mut decided = request.clone();
    // Conditions of a request are a list that is only ever added to, and its resource version goes along.
    decided.status.get_or_insert_default().conditions.get_or_insert_default().push(
        CertificateSigningRequestCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_update_time: Some(now.clone()),
            last_transition_time: Some(now),
        },
    );
    let requests: Api<CertificateSigningRequest> = Api::all(world.client.clone());
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let name = request.name_any();
    let written = requests.replace_subresource("approval", &name, &parameters, &decided);
    ask(&called(request), written).await.map(drop)
}
