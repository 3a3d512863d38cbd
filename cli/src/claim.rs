//! Runs `claim`: shows the hosts of pools with their claims, and writes the annotations by which a user releases a host (docs/guides/claims.md).
//!
//! Reads Machines, MachineClaims and the claimant. Writes one annotation of one Machine, bound to what was read. The agent and the
//! provider act on it; nothing is deleted here.

mod release;

use bedplate_api::claim::{HOST_IS_OFF_ANNOTATION, MachineClaim, RELEASE_ANNOTATION};
use bedplate_api::cluster::infrastructure::BedplateMachine;
use bedplate_api::machine::Machine;
use bedplate_rules::claim::is_claimed;
use jiff::Timestamp;
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::arguments::{ClaimCommand, ClaimRelease, Global};
use crate::backend::ask;
use crate::backend::cluster::{self, AskClusterError};
use crate::confirm::{changed, confirm};
use crate::diagnosis::{Rolling, diagnose};
use crate::error::{RunError, read};
use crate::output::{Page, Progress};
use crate::render;
use crate::standing::{ClaimantSeen, HostClaim, Standing};

/// Runs a command of `claim`.
///
/// # Errors
/// The cluster cannot be asked, or the host is not released in this way.
pub(crate) async fn run(
    global: &Global,
    command: &ClaimCommand,
    page: &mut Page<'_>,
) -> Result<(), RunError> {
    let client = cluster::client(global).await?;
    match command {
        ClaimCommand::List => list(&client, page).await,
        ClaimCommand::Explain { name } => explain(global, &client, name, page).await,
        ClaimCommand::Release(arguments) => release_host(global, &client, arguments, page).await,
    }
}

/// Lists the hosts of pools, and hosts that a claim holds outside of a pool.
async fn list(client: &Client, page: &mut Page<'_>) -> Result<(), RunError> {
    let machines = read::<Vec<Machine>>(&cluster::list::<Machine>(client).await?["items"])?;
    let claims = read::<Vec<MachineClaim>>(&cluster::list::<MachineClaim>(client).await?["items"])?;
    let claim_of = |name: &str| claims.iter().find(|claim| claim.name_any() == name);
    let now = Timestamp::now();
    let mut hosts: Vec<HostClaim> = machines
        .iter()
        .filter(|machine| {
            let in_pool = machine.spec.claim_policy.is_some() || is_claimed(machine);
            in_pool || claim_of(&machine.name_any()).is_some()
        })
        .map(|machine| HostClaim::new(machine, claim_of(&machine.name_any()), now))
        .collect();
    hosts.sort_by(|a, b| a.machine.cmp(&b.machine));
    if page.is_json() {
        return page.json(&json!({ "items": hosts }));
    }
    let look = page.look();
    page.print(render::claims(&hosts, look))
}

async fn explain(global: &Global, client: &Client, name: &str, page: &mut Page<'_>) -> Result<(), RunError> {
    let seen = look(client, name).await?;
    let now = Timestamp::now();
    let mut standing = seen.standing(now);
    if standing.next.is_empty() {
        let machine = diagnose(&seen.machine, &Rolling::new(), now);
        standing.next.extend(machine.from.is_some().then_some(machine.next));
    }
    for next in &mut standing.next {
        *next = ask::aimed(&next.replace("NAME", name), global);
    }
    if page.is_json() {
        return page.json(&standing);
    }
    let look = page.look();
    page.print(render::claim(&standing, look))
}

async fn release_host(
    global: &Global,
    client: &Client,
    arguments: &ClaimRelease,
    page: &mut Page<'_>,
) -> Result<(), RunError> {
    let seen = look(client, arguments.name.as_str()).await?;
    let facts = release::Facts {
        machine: &seen.machine,
        claim: seen.claim.as_ref(),
        claimant: &seen.claimant,
        now: Timestamp::now(),
    };
    let (annotation, decided) = if arguments.host_is_off {
        (HOST_IS_OFF_ANNOTATION, release::confirm_off(&facts))
    } else {
        (RELEASE_ANNOTATION, release::release(&facts))
    };
    let release = decided?;
    for consequence in &release.consequences {
        Progress::new().note(&render::clean(consequence));
    }
    confirm(page, arguments.yes, &release.question)?;
    let written =
        cluster::annotate_as_read(client, &seen.machine, (annotation, release.provider_id.as_str())).await;
    let written = written.map_err(|error| changed(error, &format!("Machine {}", arguments.name)))?;
    if page.is_json() {
        return page.json(&written);
    }
    let again = ask::again(global);
    page.print(render::clean_lines(&format!(
        "Machine {name}: {annotation} set to {id}; to follow it: bedplate claim explain {name}{again}",
        name = arguments.name,
        id = release.provider_id
    )))
}

/// Objects of one host.
struct Seen {
    machine: Machine,
    claim: Option<MachineClaim>,
    claimant: ClaimantSeen,
}

impl Seen {
    fn standing(&self, now: Timestamp) -> Standing {
        Standing::new(&self.machine, self.claim.as_ref(), &self.claimant, now)
    }
}

async fn look(client: &Client, name: &str) -> Result<Seen, RunError> {
    let machine = cluster::get::<Machine>(client, name).await?;
    let claim = match cluster::get::<MachineClaim>(client, name).await {
        Ok(claim) => Some(claim),
        Err(AskClusterError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let claimant = claimant(client, &machine, claim.as_ref()).await;
    Ok(Seen { machine, claim, claimant })
}

/// Reads the claimant: that of the claim, or that which the host names. A user may be allowed to read hosts and not claimants.
async fn claimant(client: &Client, machine: &Machine, claim: Option<&MachineClaim>) -> ClaimantSeen {
    let recorded = machine.status.as_ref().and_then(|status| status.claim.as_ref());
    let named = claim.map(|claim| (&claim.spec.claimant.namespace, &claim.spec.claimant.name));
    let named = named.or_else(|| recorded.map(|record| (&record.claimant.namespace, &record.claimant.name)));
    let Some((namespace, name)) = named else { return ClaimantSeen::None };
    match cluster::get_within::<BedplateMachine>(client, namespace, name).await {
        Ok(Some(claimant)) => ClaimantSeen::of(&claimant),
        Ok(None) => ClaimantSeen::Absent,
        Err(error) => ClaimantSeen::Unreadable { why: error.to_string() },
    }
}
