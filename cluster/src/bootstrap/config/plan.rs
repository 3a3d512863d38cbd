//! Pure: the next step for a KubeadmConfig: a read, a write, or the end of the turn. The loop of [`super`] carries out steps until the end.
//!
//! ```text
//! owner, Cluster -> paused? -> stored: renew the token until the Node exists
//!   -> infrastructure -> supported fields -> Secret there? adopt -> contents
//!   -> control plane not initialized: control plane Machine: trial render -> lock -> Cluster live -> certificates -> init
//!   -> initialized: release the lock -> endpoint -> certificates -> token: record, create, renew -> join
//!   -> render -> create the Secret -> status
//! ```
//! Secrets and ConfigMaps are not watched: a step reads those that it needs ([`Live`]). A write is followed by a read, or its answer is
//! noted. So a turn that was interrupted anywhere continues from the objects.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_api::cluster::full::cluster::ClusterEndpoint;
use bedplate_api::cluster::full::{Cluster, Machine, condition_type as core_condition};
use bedplate_api::cluster::kubeadm::file::SecretKeyRef;
use bedplate_api::cluster::kubeadm::{KubeadmConfig, TOKEN_ID_ANNOTATION};
use bedplate_bootstrap::capi::{
    CertificateNeeded, Purpose, UserData, certificates_needed, endpoint_needed, secrets_needed, token_needed,
};
use bedplate_bootstrap::certificate::Certificate;
use bedplate_bootstrap::token::{TOKEN_LIFETIME, Token, is_token_id, renews_at};
use jiff::Timestamp;
use kube::ResourceExt;
use zeroize::Zeroizing;

use super::issue;
use super::lock::Lock;
pub use super::observed::{
    Act, Contents, Data, Found, Live, MAX_CONTENTS, Observed, Owner, Read, TokenState,
};
use super::status::{Situation, status};
use crate::owner::{is_control_plane, is_paused};

/// Delay after which a state is read again that no watch shows: the lock, certificates, Secrets of users.
pub const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum age of a token that is replaced because its secret is not known.
const TOKEN_REPLACEMENT_DELAY: Duration = Duration::from_secs(10);
/// Delay after which the store is expected to show what was read live.
const CATCH_UP_DELAY: Duration = Duration::from_secs(2);

/// Decides.
pub fn plan(observed: &Observed, now: Timestamp) -> Act {
    let config = &*observed.config;
    if config.metadata.deletion_timestamp.is_some() {
        return Act::Done(None);
    }
    let (machine, cluster) = match (&observed.owner, &observed.cluster) {
        (Owner::Pool, _) => return settle(observed, Situation::Pool, None, now),
        (Owner::Machine(machine), Some(cluster)) => (&**machine, &**cluster),
        (Owner::None, _) | (Owner::Machine(_), None) => return Act::Done(None),
    };
    if is_paused(config, Some(cluster)) {
        return settle(observed, Situation::Paused, None, now);
    }
    if let Some(name) = stored(config, machine) {
        return match settle(observed, Situation::Stored(name), None, now) {
            Act::Done(_) => renew(observed, machine, now),
            act => act,
        };
    }
    match before_data(observed, cluster, machine) {
        Ok(ready) => issue_data(observed, (cluster, machine), &ready, now),
        Err(Next::Act(act)) => act,
        Err(Next::Wait(situation, after)) => settle(observed, situation, after, now),
    }
}

/// End of the search for the next step.
enum Next {
    /// The step.
    Act(Act),
    /// There is none. The status shows why.
    Wait(Situation, Option<Duration>),
}

/// Facts that are known before data is made.
struct Prepared<'a> {
    contents: &'a BTreeMap<SecretKeyRef, Zeroizing<Vec<u8>>>,
    version: &'a str,
}

/// Writes the status of a situation, if it differs. Otherwise the turn ends.
fn settle(observed: &Observed, situation: Situation, after: Option<Duration>, now: Timestamp) -> Act {
    let status = status(&observed.config, &situation, now);
    if observed.config.status.as_ref() == Some(&status) {
        Act::Done(after)
    } else {
        Act::Status(Box::new(status), situation)
    }
}

/// Returns the name of the Secret, if data was made. After a restore the Machine knows it, and the status is empty.
fn stored(config: &KubeadmConfig, machine: &Machine) -> Option<String> {
    let status = config.status.as_ref();
    let is_created = status
        .and_then(|status| status.initialization.as_ref())
        .is_some_and(|initialization| initialization.data_secret_created == Some(true));
    let name = status.and_then(|status| status.data_secret_name.clone()).filter(|_| is_created);
    name.or_else(|| machine.spec.bootstrap.data_secret_name.clone().filter(|name| !name.is_empty()))
}

/// Returns true if the control plane of a Cluster was initialized.
pub fn is_initialized(cluster: &Cluster) -> bool {
    let Some(status) = &cluster.status else { return false };
    let latch = status.initialization.as_ref().and_then(|one| one.control_plane_initialized);
    let is_condition = |type_: &str| {
        status.conditions.iter().any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    latch == Some(true) || is_condition(core_condition::CONTROL_PLANE_INITIALIZED)
}

/// Keeps the token of stored data valid until the Node exists.
fn renew(observed: &Observed, machine: &Machine, now: Timestamp) -> Act {
    let has_node = machine.status.as_ref().is_some_and(|status| status.node_ref.is_some());
    let Some(id) = token_id(&observed.config).filter(|_| !has_node) else { return Act::Done(None) };
    match &observed.live.token {
        None => Act::Read(Read::Token(id.to_owned())),
        Some(TokenState::There(expiration)) => match until_renewal(expiration.as_deref(), now) {
            Some(after) => Act::Done(Some(after)),
            None => Act::RenewToken(id.to_owned()),
        },
        // The data has the secret of the lost token only.
        Some(TokenState::Absent) => Act::Done(None),
        Some(TokenState::Made(_) | TokenState::Unknown(_)) => Act::Done(Some(POLL_INTERVAL)),
    }
}

/// Returns the time until the next read of a token that was renewed. A server of a tenant may answer with any expiration.
pub(crate) fn after_renewal(state: &TokenState, now: Timestamp) -> Option<Duration> {
    match state {
        TokenState::There(expiration) => {
            Some(until_renewal(expiration.as_deref(), now).unwrap_or_default().max(POLL_INTERVAL))
        }
        TokenState::Made(_) | TokenState::Unknown(_) => Some(POLL_INTERVAL),
        TokenState::Absent => None,
    }
}

/// Returns the time until a token must be renewed. None: now.
fn until_renewal(expiration: Option<&str>, now: Timestamp) -> Option<Duration> {
    let due = renews_at(expiration, now).duration_since(now);
    Duration::try_from(due).ok().filter(|after| !after.is_zero())
}

/// Returns the ID of the recorded token.
pub(crate) fn token_id(config: &KubeadmConfig) -> Option<&str> {
    config.annotations().get(TOKEN_ID_ANNOTATION).map(String::as_str).filter(|id| is_token_id(id))
}

/// Steps that do not depend on the role of the machine.
fn before_data<'a>(
    observed: &'a Observed,
    cluster: &Cluster,
    machine: &'a Machine,
) -> Result<Prepared<'a>, Next> {
    let (config, live) = (&*observed.config, &observed.live);
    let is_provisioned = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    if is_provisioned.and_then(|one| one.infrastructure_provisioned) != Some(true) {
        let text = "infrastructure of the Cluster is not provisioned; see the object of infrastructureRef";
        return Err(Next::Wait(Situation::Waiting(text.to_owned()), None));
    }
    if !config.spec.unsupported().is_empty() {
        return Err(Next::Wait(Situation::Unsupported, None));
    }
    if machine.metadata.deletion_timestamp.is_some() && live.data != Some(Data::Own) {
        // It would hold the lock, and a token, until its finalizers are gone.
        return Err(Next::Act(Act::Done(None)));
    }
    let Some(version) = machine.spec.version.as_deref().filter(|version| !version.is_empty()) else {
        let text = "Machine has no version; set spec.version of the Machine";
        return Err(Next::Wait(Situation::Failed(text.to_owned()), None));
    };
    match live.data {
        None => return Err(Next::Act(Act::Read(Read::Data))),
        Some(Data::Own) => return Err(Next::Wait(Situation::Stored(config.name_any()), None)),
        Some(Data::Foreign) => {
            let text = format!(
                "Secret {} exists, and the KubeadmConfig does not own it; delete the Secret, or replace the Machine",
                config.name_any()
            );
            return Err(Next::Wait(Situation::Failed(text), Some(POLL_INTERVAL)));
        }
        Some(Data::Absent) => {}
    }
    let contents = match &live.contents {
        Some(Contents::Read(contents)) => contents,
        None if secrets_needed(&config.spec).is_empty() => &EMPTY,
        None => return Err(Next::Act(Act::Read(Read::Contents))),
        Some(Contents::TooLarge) => {
            let text = "values from Secrets are larger than 1 MiB; shorten the Secrets that the spec names";
            return Err(Next::Wait(Situation::Failed(text.to_owned()), Some(POLL_INTERVAL)));
        }
    };
    Ok(Prepared { contents, version })
}

/// No values.
static EMPTY: BTreeMap<SecretKeyRef, Zeroizing<Vec<u8>>> = BTreeMap::new();

/// Steps that make the data.
fn issue_data(
    observed: &Observed,
    (cluster, machine): (&Cluster, &Machine),
    ready: &Prepared<'_>,
    now: Timestamp,
) -> Act {
    let placeholder = issue::placeholder_token();
    let made = role(observed, (cluster, machine), ready).and_then(|purpose| {
        let certificates = certificates(observed, cluster, purpose)?;
        // No token is made for data that cannot be made.
        let (role, contents) = ((purpose, ready.version), ready.contents);
        let inputs = issue::Inputs { certificates: &certificates, contents, token: Some(&placeholder) };
        render(observed, cluster, role, &inputs)?;
        let inputs = issue::Inputs { token: token(observed, purpose, now)?, ..inputs };
        let data = render(observed, cluster, role, &inputs)?;
        Ok(Act::Store(data))
    });
    match made {
        Ok(act) | Err(Next::Act(act)) => act,
        Err(Next::Wait(situation, after)) => settle(observed, situation, after, now),
    }
}

/// Renders the data. What it lacks is a situation.
fn render(
    observed: &Observed,
    cluster: &Cluster,
    role: (Purpose, &str),
    inputs: &issue::Inputs<'_>,
) -> Result<UserData, Next> {
    let data = issue::render(observed, cluster, role, inputs);
    data.map_err(|error| Next::Wait(Situation::Failed(error), Some(POLL_INTERVAL)))
}

/// Decides which role the machine has, and takes or releases the lock for it.
fn role(
    observed: &Observed,
    (cluster, machine): (&Cluster, &Machine),
    ready: &Prepared<'_>,
) -> Result<Purpose, Next> {
    let is_control_plane = is_control_plane(machine);
    if !is_initialized(cluster) {
        if !is_control_plane {
            let text =
                "control plane is not initialized; the first machine of the control plane must join first";
            return Err(Next::Wait(Situation::Waiting(text.to_owned()), None));
        }
        return init(observed, (cluster, machine), ready);
    }
    match &observed.live.lock {
        None => return Err(Next::Act(Act::Read(Read::Lock))),
        // A lock of another Cluster of the name is not that of this one.
        Some(Lock::Held(held)) if held.cluster_uid == cluster.metadata.uid => {
            return Err(Next::Act(Act::ReleaseLock(held.clone())));
        }
        Some(Lock::Held(_) | Lock::Free | Lock::Unreadable | Lock::Deleting) => {}
    }
    let purpose = if is_control_plane { Purpose::JoinControlPlane } else { Purpose::JoinWorker };
    let endpoint = cluster.spec.control_plane_endpoint.as_ref().and_then(ClusterEndpoint::complete);
    if endpoint.is_none() && endpoint_needed(purpose, &observed.config.spec) {
        let text = "Cluster has no control plane endpoint; set spec.controlPlaneEndpoint of the Cluster";
        return Err(Next::Wait(Situation::Waiting(text.to_owned()), None));
    }
    Ok(purpose)
}

/// Takes the lock. The control plane of a cluster is initialized by its holder only.
fn init(
    observed: &Observed,
    (cluster, machine): (&Cluster, &Machine),
    ready: &Prepared<'_>,
) -> Result<Purpose, Next> {
    // A KubeadmConfig that makes no data must not hold the lock.
    let certificates = issue::placeholders(Purpose::Init, &observed.config.spec);
    let inputs = issue::Inputs { certificates: &certificates, contents: ready.contents, token: None };
    render(observed, cluster, (Purpose::Init, ready.version), &inputs)?;
    let live = &observed.live;
    match &live.lock {
        None => Err(Next::Act(Act::Read(Read::Lock))),
        Some(Lock::Free) => Err(Next::Act(Act::TakeLock)),
        // Garbage collection would delete the lock of an earlier Cluster of the name while its holder initializes this one.
        Some(Lock::Held(held)) if held.is_of_another(cluster) => {
            Err(Next::Act(Act::ReleaseLock(held.clone())))
        }
        Some(Lock::Unreadable) => {
            let text = format!(
                "ConfigMap {} does not name a Machine; delete it if no machine is being initialized",
                super::lock::name(&cluster.name_any())
            );
            Err(Next::Wait(Situation::Waiting(text), Some(POLL_INTERVAL)))
        }
        Some(Lock::Deleting) => {
            let name = super::lock::name(&cluster.name_any());
            let text = format!("ConfigMap {name} is being deleted; remove its finalizers");
            Err(Next::Wait(Situation::Waiting(text), Some(POLL_INTERVAL)))
        }
        // An earlier Machine of the name may hold it.
        Some(Lock::Held(held)) if !held.is_of(machine) => match live.holder_exists {
            None => Err(Next::Act(Act::Read(Read::Holder(held.clone())))),
            Some(false) => Err(Next::Act(Act::ReleaseLock(held.clone()))),
            Some(true) => {
                let text = format!("control plane is being initialized by Machine {}", held.machine);
                Err(Next::Wait(Situation::Waiting(text), Some(POLL_INTERVAL)))
            }
        },
        // The store may be behind: the lock of an initialized control plane is free again.
        Some(Lock::Held(_)) => match live.may_init {
            None => Err(Next::Act(Act::Read(Read::Cluster))),
            Some(false) => Err(Next::Act(Act::Done(Some(CATCH_UP_DELAY)))),
            Some(true) => Ok(Purpose::Init),
        },
    }
}

/// Returns the certificates, or the step that reads or makes the next one (B3, K7).
fn certificates(observed: &Observed, cluster: &Cluster, purpose: Purpose) -> Result<Vec<Certificate>, Next> {
    let needed = certificates_needed(purpose, &observed.config.spec);
    let found = &observed.live.certificates;
    if let Some(unread) = needed.iter().find(|one| !found.contains_key(&one.purpose)) {
        return Err(Next::Act(Act::Read(Read::Certificate(unread.purpose))));
    }
    let name = |one: &CertificateNeeded| one.purpose.secret_name(&cluster.name_any());
    let mut missing = Vec::new();
    let mut certificates = Vec::new();
    for one in &needed {
        match &found[&one.purpose] {
            Found::Certificate(certificate) if certificate.key.is_some() || !one.needs_key => {
                certificates.push(certificate.clone());
            }
            Found::Certificate(_) => missing.push(format!("Secret {} has no tls.key", name(one))),
            Found::Empty => missing.push(format!("Secret {} has no tls.crt", name(one))),
            Found::Absent if may_make(one, cluster, purpose) => {
                return Err(Next::Act(Act::MakeCertificate(one.purpose)));
            }
            Found::Absent => missing.push(format!("Secret {} does not exist", name(one))),
        }
    }
    if missing.is_empty() {
        return Ok(certificates);
    }
    let remedy = match (purpose, &cluster.spec.control_plane_ref) {
        (Purpose::Init, Some(_)) => "the object of controlPlaneRef must create it",
        (Purpose::Init, None) => "create it",
        (Purpose::JoinControlPlane | Purpose::JoinWorker, _) => "restore it from a backup",
    };
    let text = format!("{}; {remedy}", missing.join(", "));
    Err(Next::Wait(Situation::CertificatesMissing(text), Some(POLL_INTERVAL)))
}

/// Returns true if this program makes a certificate: for the first machine only, and if no control plane object does.
fn may_make(needed: &CertificateNeeded, cluster: &Cluster, purpose: Purpose) -> bool {
    purpose == Purpose::Init && cluster.spec.control_plane_ref.is_none() && !needed.is_external
}

/// Returns the time since a token was made or renewed. None: unknown, or in the future.
fn since_made(expiration: Option<&str>, now: Timestamp) -> Option<Duration> {
    let expiration: Timestamp = expiration?.parse().ok()?;
    let made = expiration.checked_sub(TOKEN_LIFETIME).ok()?;
    Duration::try_from(now.duration_since(made)).ok()
}

/// Returns the token of a machine that joins, or the step that makes it. A token of an earlier turn is left to expire: its secret is not
/// known.
fn token(observed: &Observed, purpose: Purpose, now: Timestamp) -> Result<Option<&Token>, Next> {
    if !token_needed(purpose, &observed.config.spec) {
        return Ok(None);
    }
    let Some(id) = token_id(&observed.config) else { return Err(Next::Act(Act::RecordToken)) };
    match &observed.live.token {
        None => Err(Next::Act(Act::Read(Read::Token(id.to_owned())))),
        Some(TokenState::Absent) => Err(Next::Act(Act::MakeToken(id.to_owned()))),
        // A Secret that the API server refuses must not cause a token for each retry.
        Some(TokenState::There(expiration)) => match since_made(expiration.as_deref(), now) {
            Some(age) if age < TOKEN_REPLACEMENT_DELAY => {
                Err(Next::Act(Act::Done(Some(TOKEN_REPLACEMENT_DELAY - age))))
            }
            Some(_) | None => Err(Next::Act(Act::RecordToken)),
        },
        Some(TokenState::Unknown(cause)) => {
            let text = format!("no bootstrap token can be made: {cause}");
            Err(Next::Wait(Situation::NoToken(text), Some(POLL_INTERVAL)))
        }
        Some(TokenState::Made(token)) => Ok(Some(token)),
    }
}

#[cfg(test)]
mod exploration;
#[cfg(test)]
mod tests;
