//! Carries out one step of a claim. Each may be repeated, and killed anywhere: the record is written before the host or the slot changes.
//!
//! Called by `run::claim`.

use bedplate_api::claim::{ClaimState, MachineClaim};
use bedplate_api::configuration::SecretRef;
use bedplate_api::machine::{ClaimStatus, SlotName};
use bedplate_bootstrap::user_data::LOG;
use bedplate_oci::node::NodeImage;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::prepare::{ClaimedFill, fetch, fill_claimed};
use super::start::start_claimed;
use super::stop::{clean_links, stop};
use super::{ApplyError, empty};
use crate::model::{Api, ProviderId, VersionFacts};
use crate::node::claim_record::{ClaimRecord, ClaimStage, Claimant, FailureCause, ReleasePolicy};
use crate::node::claim_report::claim_status;
use crate::node::effects::{Parts, Say};
use crate::node::host_state::{HostState, request_wipe, withdraw_wipe};
use crate::node::log_excerpt::{own_lines, with_log};
use crate::node::observe_claim::{CLAIM_SLOT, ClaimMemory, ClaimSight, claimant, selected_version};
use crate::node::plan::claim::{ClaimReport, ClaimStep, PoolMachine};
use crate::node::user_data::{RefusedUserData, StoredUserData, shared_directory};
use crate::plane::{ReadSecretError, Seen};
use crate::slot::bind;
use crate::slot::store::Slots;

/// Part of the log of the user data that a failure is found in, in bytes.
const TAIL_BYTES: u64 = 8 * 1024;
/// Maximum number of characters of a failure with the end of its log.
const MAX_FAILURE_CHARACTERS: usize = 1024;

/// Step with all that it depends on.
pub(in crate::node) struct ClaimAct<'a> {
    /// The host.
    pub(in crate::node) parts: &'a Parts,
    /// Sight that the step was planned by.
    pub(in crate::node) sight: &'a ClaimSight,
    /// Facts that the loop remembers.
    pub(in crate::node) memory: &'a ClaimMemory,
    /// Now.
    pub(in crate::node) now: Timestamp,
    /// Ends a long step.
    pub(in crate::node) cancel: &'a CancellationToken,
    /// Takes the progress of a long step.
    pub(in crate::node) say: Say<'a>,
}

/// Result of a step.
#[derive(Debug)]
pub(in crate::node) enum ClaimDone {
    /// It is done.
    Done,
    /// The record was written.
    Recorded(ClaimRecord),
    /// The image of the version with this template is on disk.
    Fetched(String, NodeImage),
    /// The user data is refused.
    Refused(ProviderId, RefusedUserData),
    /// Another program must act first; text for a user.
    Pending(String),
}

impl ClaimAct<'_> {
    /// Carries out the step.
    ///
    /// # Errors
    /// It did not succeed, and may be tried again.
    pub(in crate::node) async fn apply(&self, step: &ClaimStep) -> Result<ClaimDone, ApplyError> {
        let parts = self.parts;
        match step {
            ClaimStep::Accept => self.write(|record| record.stage = ClaimStage::Preparing).await,
            ClaimStep::Report(report) => self.report(report).await,
            ClaimStep::FetchImage => {
                let version = self.version()?;
                let image = fetch(parts, CLAIM_SLOT, &version.reference, self.cancel, self.say).await?;
                Ok(ClaimDone::Fetched(version.template, image))
            }
            ClaimStep::RenderUserData => self.render().await,
            ClaimStep::FillSlot => self.fill().await,
            ClaimStep::BeginBootstrap { timeout } => {
                let (boot_id, timeout_seconds) = (parts.boot_id.clone(), timeout.as_secs());
                let stage = ClaimStage::Bootstrapping { boot_id, timeout_seconds };
                self.write(|record| record.stage = stage).await
            }
            ClaimStep::StartSlot => {
                let stored = parts.on_disk(StoredUserData::read).await?;
                let own = stored.filter(|stored| Some(&stored.provider_id) == self.held());
                let shared = own.map(|stored| stored.shared_files()).unwrap_or_default();
                start_claimed(parts, CLAIM_SLOT, shared).await?;
                Ok(ClaimDone::Done)
            }
            ClaimStep::ForgetUserData => self.forget().await,
            ClaimStep::SetProviderId { node_uid } => self.mark(node_uid).await,
            ClaimStep::Join { node_uid } => {
                let stage = ClaimStage::Joined { node_uid: node_uid.clone() };
                self.write(|record| record.stage = stage).await
            }
            ClaimStep::Fail { cause, message } => self.fail(*cause, message).await,
            ClaimStep::BeginRelease { .. } => self.begin_release().await,
            ClaimStep::StopSlot => {
                for slot in SlotName::ALL {
                    stop(parts, slot).await?;
                }
                Ok(ClaimDone::Done)
            }
            ClaimStep::ClearLinks => {
                clean_links(parts).await;
                Ok(ClaimDone::Done)
            }
            ClaimStep::EmptySlots => self.empty().await,
            ClaimStep::BeginWipe { token } => {
                let (token, boot_id) = (token.clone(), parts.boot_id.clone());
                self.write(|record| record.stage = ClaimStage::Wiping { token, boot_id }).await
            }
            ClaimStep::RequestWipe { token } => self.request_wipe(token).await,
            ClaimStep::EndRelease => self.write(|record| record.stage = ClaimStage::Released).await,
        }
    }

    fn claim(&self) -> Result<&MachineClaim, ApplyError> {
        let claim = self.sight.seen.claim.present();
        claim.map(AsRef::as_ref).ok_or(ApplyError::Superseded("the claim was deleted"))
    }

    fn version(&self) -> Result<VersionFacts, ApplyError> {
        let version = selected_version(&self.sight.seen);
        version.ok_or(ApplyError::Superseded("no version is selected for the claim"))
    }

    /// ID of the claim that the host holds.
    fn held(&self) -> Option<&ProviderId> {
        self.memory.record().map(|record| &record.provider_id)
    }

    /// Record to change: that of the claim that the host holds, otherwise a new one of the claim object, or of the wipe that has taken both.
    fn record(&self) -> Result<ClaimRecord, ApplyError> {
        let held = self.memory.record().filter(|record| record.stage != ClaimStage::Released);
        if let Some(record) = held {
            return Ok(record.clone());
        }
        let claim = match self.claim() {
            Ok(claim) => claim,
            Err(error) => return self.wiped().ok_or(error),
        };
        // The record may be lost with the disk.
        let last = self.last().filter(|last| last.provider_id == claim.spec.provider_id);
        Ok(ClaimRecord {
            provider_id: claim.spec.provider_id.clone().into(),
            claimant: claimant(claim),
            has_user_data: claim.spec.bootstrap_secret_name.is_some(),
            claim_uid: claim.metadata.uid.clone().unwrap_or_default(),
            release: claim.spec.release.max(self.policy()),
            since: self.now,
            failed: last.and_then(failed_time),
            refused: Vec::new(),
            stage: ClaimStage::Preparing,
        })
    }

    /// Latest report of the host in its Machine.
    fn last(&self) -> Option<&ClaimStatus> {
        self.sight.seen.machine.as_ref()?.status.as_ref()?.claim.as_ref()
    }

    /// Record of the claim that the host was wiped for, by the report in the Machine.
    fn wiped(&self) -> Option<ClaimRecord> {
        let last = self.last()?;
        let claimant =
            Claimant { namespace: last.claimant.namespace.clone(), name: last.claimant.name.clone() };
        let record = ClaimRecord {
            provider_id: last.provider_id.clone().into(),
            claimant,
            has_user_data: false,
            claim_uid: last.wipe_token.clone().unwrap_or_default(),
            release: ReleasePolicy::Wipe,
            since: self.now,
            failed: failed_time(last),
            refused: Vec::new(),
            stage: ClaimStage::Released,
        };
        (last.state == ClaimState::Wiping).then_some(record)
    }

    /// Cleanup that the Machine asks for now.
    fn policy(&self) -> ReleasePolicy {
        match &self.sight.observed.machine {
            PoolMachine::Own { policy, .. } => *policy,
            PoolMachine::Absent | PoolMachine::Foreign => ReleasePolicy::Empty,
        }
    }

    /// Records the start of the release. The operator may have asked for a stronger cleanup since the claim was accepted. A claim object that was
    /// made again may also ask for one.
    async fn begin_release(&self) -> Result<ClaimDone, ApplyError> {
        let (policy, claim) = (self.policy(), self.claim().ok());
        let begin = |record: &mut ClaimRecord| {
            let is_own = |claim: &&MachineClaim| claim.spec.provider_id == record.provider_id.as_str();
            let asked = claim.filter(is_own).map(|claim| claim.spec.release).unwrap_or_default();
            record.release = record.release.max(policy).max(asked);
            record.stage = ClaimStage::Releasing;
        };
        self.write(begin).await
    }

    /// Requests the wipe, and reboots. A reboot that was interrupted is requested again.
    async fn request_wipe(&self, token: &str) -> Result<ClaimDone, ApplyError> {
        if matches!(self.sight.observed.state, HostState::Disk { .. }) {
            let (root, token) = (self.parts.root.clone(), token.to_owned());
            self.parts.on_disk(move |_| Ok(request_wipe(&root, &token)?)).await?;
        }
        self.parts.power.reboot().await?;
        Ok(ClaimDone::Pending("the host reboots for the wipe".to_owned()))
    }

    /// Writes a stage of the record. On return it is on disk. A request of a wipe is of an earlier record: stage-1 never finds it with this one.
    async fn write(&self, change: impl FnOnce(&mut ClaimRecord)) -> Result<ClaimDone, ApplyError> {
        let mut record = self.record()?;
        record.since = self.now;
        change(&mut record);
        let (written, root) = (record.clone(), self.parts.root.clone());
        let write = self.parts.on_disk(move |slots| {
            withdraw_wipe(&root)?;
            Ok(record.write(&slots.places().state)?)
        });
        write.await?;
        Ok(ClaimDone::Recorded(written))
    }

    async fn report(&self, report: &ClaimReport) -> Result<ClaimDone, ApplyError> {
        let claim = self.claim()?;
        let status = claim_status(report, self.memory.record(), claim);
        self.parts.decider.write_claim(claim, &status).await.map_err(ApplyError::Report)?;
        Ok(ClaimDone::Done)
    }

    /// Reads the Secret and renders it. The right to read it exists for a short time only, so a refusal is a wait.
    async fn render(&self) -> Result<ClaimDone, ApplyError> {
        let claim = self.claim()?;
        let id = ProviderId::from(claim.spec.provider_id.clone());
        let Some(name) = claim.spec.bootstrap_secret_name.clone() else {
            return Err(ApplyError::Superseded("the claim has no user data"));
        };
        let reference = SecretRef { namespace: claim.spec.claimant.namespace.clone(), name };
        let secret = match self.parts.decider.secret(&reference).await {
            Ok(secret) => secret,
            Err(ReadSecretError::Forbidden { namespace, name, .. }) => {
                let text =
                    format!("waiting for the provider to let this host read Secret {namespace}/{name}");
                return Ok(ClaimDone::Pending(text));
            }
            Err(ReadSecretError::Missing { namespace, name }) => {
                return Ok(ClaimDone::Pending(format!("waiting for Secret {namespace}/{name}")));
            }
            Err(error) => return Err(error.into()),
        };
        match StoredUserData::render(&secret, &id, &claim.spec.node_name) {
            Ok(stored) => {
                self.parts.on_disk(move |slots| stored.write(slots)).await?;
                Ok(ClaimDone::Done)
            }
            Err(refused) => Ok(ClaimDone::Refused(id, refused)),
        }
    }

    async fn fill(&self) -> Result<ClaimDone, ApplyError> {
        let (claim, version) = (self.claim()?, self.version()?);
        let Some((_, image)) = self.memory.fetched.as_ref().filter(|(of, _)| *of == version.template) else {
            return Err(ApplyError::Superseded("another version is selected"));
        };
        let stored = self.parts.on_disk(StoredUserData::read).await?;
        let id = ProviderId::from(claim.spec.provider_id.clone());
        let stored = stored.filter(|stored| stored.provider_id == id);
        let fill = ClaimedFill {
            version: version.reference,
            image: image.clone(),
            node_name: claim.spec.node_name.clone(),
            role: claim.spec.role,
            files: stored.iter().flat_map(StoredUserData::root_files).collect(),
            links: stored.iter().map(StoredUserData::link).collect(),
            provider_id: id,
        };
        fill_claimed(self.parts, CLAIM_SLOT, fill, self.say).await?;
        Ok(ClaimDone::Done)
    }

    /// Removes the user data from the memory of the host and from the slot.
    async fn forget(&self) -> Result<ClaimDone, ApplyError> {
        let forgotten = self.parts.on_disk(|slots| {
            slots.unshare(CLAIM_SLOT, shared_directory())?;
            StoredUserData::forget(slots)
        });
        forgotten.await?;
        Ok(ClaimDone::Done)
    }

    async fn mark(&self, node_uid: &str) -> Result<ClaimDone, ApplyError> {
        let filled = self.parts.on_disk(|slots| slots.filled(CLAIM_SLOT)).await?;
        let name = filled.and_then(|filled| filled.node_name);
        let (Some(name), Some(id)) = (name, self.held()) else {
            return Err(ApplyError::Superseded("the slot is not filled for a claim"));
        };
        let marked = self.parts.claimed_node.mark(&name, node_uid, id.as_str()).await;
        marked.map_err(ApplyError::Mark)?;
        Ok(ClaimDone::Done)
    }

    /// Records a failure, with the end of the log if the user data has run.
    async fn fail(&self, cause: FailureCause, message: &str) -> Result<ClaimDone, ApplyError> {
        let (log, secrets) = match cause {
            FailureCause::UserDataRefused => Default::default(),
            FailureCause::BootstrapFailed | FailureCause::Interrupted => {
                let held = self.held().cloned();
                self.parts.on_disk(move |slots| log_of(slots, held.as_ref())).await?
            }
        };
        let message = with_log(message, &log, &secrets, MAX_FAILURE_CHARACTERS);
        tracing::warn!(?cause, message, "claim failed");
        let refused = match (&self.memory.refused, cause) {
            (Some((of, refused)), FailureCause::UserDataRefused) if Some(of) == self.held() => {
                refused.keys.clone()
            }
            _ => Vec::new(),
        };
        let failed = |record: &mut ClaimRecord| {
            (record.stage, record.refused) = (ClaimStage::Failed { cause, message }, refused);
            record.failed = Some(self.now);
        };
        self.write(failed).await
    }

    /// Empties both slots. Their contents are removed in the background, which wakes the loop. The keys of the claimant are among them, so the
    /// plan repeats this step until they are removed.
    async fn empty(&self) -> Result<ClaimDone, ApplyError> {
        let parts = self.parts;
        for slot in SlotName::ALL {
            empty(parts, slot).await?;
        }
        parts.on_disk(Slots::discard_failed_logs).await?;
        let left = parts.on_disk(|slots| Ok(slots.has_trash(SlotName::A)? || slots.has_trash(SlotName::B)?));
        if left.await? {
            return Ok(ClaimDone::Pending(
                "waiting until the former contents of the slots are removed".to_owned(),
            ));
        }
        Ok(ClaimDone::Done)
    }
}

fn failed_time(status: &ClaimStatus) -> Option<Timestamp> {
    status.failed_time.as_ref().map(|time| time.0)
}

/// End of the log of the user data, and the texts that must not be in a message. A log whose secrets are not known any more, after a boot or
/// after the user data has ended, counts only with the lines of the script itself.
fn log_of(
    slots: &Slots,
    held: Option<&ProviderId>,
) -> Result<(String, Vec<String>), crate::slot::store::KeepSlotError> {
    let Some(filled) = slots.filled(CLAIM_SLOT)? else { return Ok(Default::default()) };
    let place = bind::kept(LOG, filled.template.kubernetes.role);
    let log = place.and_then(|(kept, path)| slots.tail(CLAIM_SLOT, kept, &path, TAIL_BYTES));
    let log = log.unwrap_or_default();
    let mut secrets = slots.secrets(CLAIM_SLOT)?;
    let stored = StoredUserData::read(slots)?.filter(|stored| Some(&stored.provider_id) == held);
    let Some(stored) = stored else { return Ok((own_lines(&log), secrets)) };
    secrets.extend(stored.secrets());
    Ok((log, secrets))
}

/// Returns true if a long step of a claim is obsolete: the claim has ended, or another version is selected.
pub(in crate::node) fn is_superseded(seen: &Seen, before: &Seen) -> bool {
    if seen.api != Api::Live {
        return false;
    }
    let is_paused = seen.machine.as_ref().is_some_and(|machine| machine.spec.paused);
    let id = |seen: &Seen| {
        let claim = seen.claim.present()?;
        let is_ending = claim.metadata.deletion_timestamp.is_some();
        (!is_ending).then(|| claim.spec.provider_id.clone())
    };
    let version = |seen: &Seen| selected_version(seen).map(|version| version.template);
    is_paused || id(seen) != id(before) || version(seen) != version(before)
}
