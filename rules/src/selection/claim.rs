//! Pure: the version that a Machine in a pool gets by its MachineClaim, and the end of that choice (docs/guides/claims.md).
//!
//! ```text
//! nothing selected --claim--> selected for this claim --granted--> selected, granted --released by the host--> nothing selected
//!                                     `-- claim object gone, nothing of it on the host ---------------------------^
//! ```
//!
//! A claim object that is missing is not evidence: the host may still run its node. The choice ends by the report of the host.

use bedplate_api::claim::{ClaimState, MachineClaim, RELEASE_ANNOTATION, condition_type};
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::{ClaimStatus, Machine, Selected, SelectionSource};
use bedplate_api::reason::claim::GrantedReason;
use bedplate_api::reason::machine::ConfigurationPendingReason;
use bedplate_api::version::MachineConfigurationVersion;

use super::choose::{Choice, Known, Pending, Select, pending, select, unclaimed};

/// Chooses for one Machine in a pool: the version that its claim names (D2). A version is chosen once for each claim. It stays while the host
/// holds the claim, also if the claim object is missing.
pub fn choose_by_claim(
    machine: &Machine,
    claim: Option<&MachineClaim>,
    configurations: &[&MachineConfiguration],
    versions: &[&MachineConfigurationVersion],
) -> Choice {
    if machine.spec.paused || machine.metadata.deletion_timestamp.is_some() {
        return Choice::LeaveAlone;
    }
    let selected = machine.status.as_ref().and_then(|status| status.selected.as_ref());
    if let Some(selected) = selected {
        // A node that no claim has selected is not replaced by one that a claim names.
        if selected.source != SelectionSource::Claim {
            return Choice::Keep(None);
        }
        if !is_over(machine, selected, claim) {
            return claim.map_or(Choice::Keep(None), |claim| kept(machine, selected, claim));
        }
    }
    let live = claim.filter(|claim| claim.metadata.deletion_timestamp.is_none());
    let Some(claim) = live.filter(|claim| !holds_other(machine, claim)) else {
        return Choice::Pending(claim_pending(machine));
    };
    match (Known { configurations, versions }).claimed(machine, claim) {
        Ok(select) => Choice::Select(select),
        Err(pending) => Choice::Pending(pending),
    }
}

/// Keeps the version, and records its claim, and that the claim is granted.
fn kept(machine: &Machine, selected: &Selected, claim: &MachineClaim) -> Choice {
    let id = &claim.spec.provider_id;
    // A choice of an earlier version of Bedplate does not name its claim: the host does.
    let is_own = selected.provider_id.as_ref().map_or(!holds_other(machine, claim), |named| named == id);
    let granted = selected.granted || was_granted(claim);
    let kept = Selected { provider_id: Some(id.clone()), granted, ..selected.clone() };
    if !is_own || kept == *selected {
        return Choice::Keep(None);
    }
    Choice::Select(Select { selected: kept, lock: false })
}

/// Returns true if the host has nothing of the claim that a version was selected for, and will not get anything of it (D7):
///
/// - The host reports that it has released this claim, or a user has released it by name.
/// - The claim object is gone, and the host has not started it: the host reports `Preparing`, or the claim was never granted and is unknown
///   to the host.
/// - The host reports the claim that exists now. A host holds one claim.
fn is_over(machine: &Machine, selected: &Selected, claim: Option<&MachineClaim>) -> bool {
    let record = machine.status.as_ref().and_then(|status| status.claim.as_ref());
    let Some(id) = selected.provider_id.as_deref() else {
        return !record.is_some_and(|record| record.state.holds_host());
    };
    if claim.is_some_and(|claim| claim.spec.provider_id == id) {
        return false;
    }
    let annotations = machine.metadata.annotations.as_ref();
    let is_released_by_user =
        annotations.and_then(|all| all.get(RELEASE_ANNOTATION)).is_some_and(|named| named == id);
    match record.filter(|record| record.provider_id == id) {
        Some(record) => match record.state {
            ClaimState::Preparing | ClaimState::Released => true,
            ClaimState::Bootstrapping
            | ClaimState::Joined
            | ClaimState::Failed
            | ClaimState::Releasing
            | ClaimState::Wiping
            | ClaimState::Unknown => false,
        },
        None => {
            let is_present = |record: &ClaimStatus| {
                claim.is_some_and(|claim| claim.spec.provider_id == record.provider_id)
            };
            !selected.granted || is_released_by_user || record.is_some_and(is_present)
        }
    }
}

/// Returns true if the host reports another claim than this one, which it has not released.
fn holds_other(machine: &Machine, claim: &MachineClaim) -> bool {
    let record = machine.status.as_ref().and_then(|status| status.claim.as_ref());
    record.is_some_and(|record| record.state.holds_host() && record.provider_id != claim.spec.provider_id)
}

/// Returns true if the provider has ever let the host start a claim: the host may have started it also if the permission has ended.
pub fn was_granted(claim: &MachineClaim) -> bool {
    let ended = [GrantedReason::GrantExpired.as_str(), GrantedReason::EnrollmentChanged.as_str()];
    let mut conditions = claim.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| {
        let has_ended = ended.contains(&condition.reason.as_str());
        condition.type_ == condition_type::GRANTED && (condition.status == "True" || has_ended)
    })
}

fn claim_pending(machine: &Machine) -> Pending {
    let reason = ConfigurationPendingReason::ClaimPending;
    unclaimed(machine).unwrap_or_else(|| pending(reason, "no MachineClaim holds the host".to_owned()))
}

impl Known<'_> {
    /// Returns the choice of a claim, if Machine and configuration both allow its claimant.
    fn claimed(&self, machine: &Machine, claim: &MachineClaim) -> Result<Select, Pending> {
        let (named, namespace) = (&claim.spec.configuration_ref, &claim.spec.claimant.namespace);
        let forbidden = |what: &str| {
            let message = format!("claimPolicy of {what} does not allow namespace {namespace}");
            pending(ConfigurationPendingReason::ClaimForbidden, message)
        };
        if !machine.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(namespace)) {
            return Err(forbidden("the Machine"));
        }
        let configuration = self.named(&named.name)?;
        if !configuration.spec.claim_policy.as_ref().is_some_and(|policy| policy.allows(namespace)) {
            return Err(forbidden(&format!("MachineConfiguration {}", named.name)));
        }
        let version = match named.version {
            Some(version) => self.numbered(configuration, version)?,
            None => self.newest(configuration)?,
        };
        let mut select = select(version, SelectionSource::Claim);
        (select.selected.provider_id, select.selected.granted) =
            (Some(claim.spec.provider_id.clone()), was_granted(claim));
        Ok(select)
    }
}
