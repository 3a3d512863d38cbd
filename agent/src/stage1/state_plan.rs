//! Decision about the state disk (docs/concepts/agent.md): use it, make it new, or refuse it.
//!
//! A wipe has one of two sources: the Machine (`stateDisk.wipe`), or the agent at the
//! release of a claim (D7). The agent's request is on the disk to be wiped. It counts only
//! while the record of the claim, on the same disk, has the stage of this wipe. So no
//! message can wipe a host. A message or a request of an earlier claim cannot come late.
//!
//! Pure: the content of the disk in, the decision out. Only a selected disk
//! gets here. Called by `state_disk`.

use bedplate_api::id::MachineName;
use bedplate_api::wire::WipeRequest;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Label of the file system that stage-1 made: its marker is on the disk.
pub const LABEL: &str = "bedplate-state";

/// Label until the marker is on the disk.
pub(crate) const LABEL_NEW: &str = "bedplate-new";

/// File at the top of the state disk with its Machine.
pub const MARKER: &str = ".bedplate-state.json";

/// File at the top of the state disk: the agent's request to make the disk again (D7).
pub const WIPE_REQUEST: &str = ".bedplate-wipe.json";

/// File on the state disk: the agent's record of its claim, below `/var/lib`.
pub const CLAIM_RECORD: &str = "bedplate/claim.json";

/// Content of [`WIPE_REQUEST`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestedWipe {
    /// Token of the wipe: UID of the claim that has ended.
    pub token: String,
}

/// Part of [`CLAIM_RECORD`] that stage-1 reads.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct RecordedClaim {
    /// Stage of the claim.
    pub stage: RecordedStage,
}

/// Stage in [`CLAIM_RECORD`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub(crate) enum RecordedStage {
    /// Both slots are empty, and the wipe is due.
    Wiping {
        /// Token of the wipe.
        token: String,
    },
    /// Any other stage, also one of a later version.
    #[serde(other)]
    Other,
}

/// Content of [`MARKER`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Marker {
    /// Layout of the disk; this is 1.
    pub version: u32,
    /// The Machine whose state this is.
    pub machine: MachineName,
    /// The token of the wipe that made it, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wipe_token: Option<String>,
}

/// Content of the selected disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Only zeros in all sampled places.
    Blank,
    /// A file system of ours that is still being made, by its label: power failed, no host has had it.
    Unfinished,
    /// State of ours.
    State(Marker),
    /// State of Bedplate, by its label, that cannot be read. So it is unknown
    /// whether a wipe's token was used.
    Damaged(String),
    /// Data of no known kind, below 2 KiB of zeros. The wipe of a disk leaves that if it is interrupted.
    Headless,
    /// Data of no known kind.
    Unknown,
    /// Other data, described by the text.
    Foreign(String),
}

/// Decision about the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StatePlan {
    /// Mount the existing file system.
    Use,
    /// Make a file system, then write this marker.
    Make(Marker),
}

/// Reason for not using the disk.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RefuseDiskError {
    /// `wipe: Never` and nothing to use.
    #[error("the state disk is blank, and wipe Never does not permit a new file system; set wipe IfBlank")]
    BlankAndNever,
    /// Data of another owner.
    #[error(
        "the state disk contains {found}, which wipe does not permit to overwrite; clear the disk by hand, \
         or set wipe Once (with claimPolicy.release Empty)"
    )]
    Foreign {
        /// Kind of the data.
        found: String,
    },
    /// State that a user must check.
    #[error(
        "the state disk contains {found}, damaged state that no wipe replaces; repair it by e2fsck in a \
         rescue system, or discard it: write zeros over its first 256 MiB (dd, wipefs is not enough) and \
         set wipe Once (with claimPolicy.release Empty), write zeros over the whole disk, or select \
         another disk"
    )]
    Damaged {
        /// Damage of the state.
        found: String,
    },
    /// Another Machine's state.
    #[error(
        "the state disk contains the state of Machine {owner}; clear the disk by hand, or set wipe Once \
         (with claimPolicy.release Empty)"
    )]
    OtherMachine {
        /// Owner of the state.
        owner: MachineName,
    },
    /// A layout that this release does not know.
    #[error("the state disk has layout version {0}, which this release does not support")]
    Version(u32),
}

/// Decides. A wipe token that the disk remembers for the same Machine has been used up, so that it cannot loop. `Once`
/// stays in the Machine after it was used: what may be used-up state is refused. `release`: token of a wipe that is due at the release of a
/// claim. It makes a disk whose wipe was interrupted, and no disk with state: it may be that of an earlier claim.
pub(crate) fn plan_state_disk(
    machine: &MachineName,
    (wipe, release): (&WipeRequest, Option<&str>),
    content: &Content,
) -> Result<StatePlan, RefuseDiskError> {
    let token = match wipe {
        WipeRequest::Once(token) => Some(token.clone()),
        WipeRequest::IfBlank => release.map(str::to_owned),
        WipeRequest::Never => None,
    };
    let make = StatePlan::Make(Marker { version: 1, machine: machine.clone(), wipe_token: token.clone() });
    match (content, wipe) {
        (Content::State(marker), WipeRequest::Once(_))
            if marker.machine != *machine || marker.wipe_token != token =>
        {
            Ok(make)
        }
        (Content::State(marker), _) if marker.machine != *machine => {
            Err(RefuseDiskError::OtherMachine { owner: marker.machine.clone() })
        }
        (Content::State(marker), _) if marker.version != 1 => Err(RefuseDiskError::Version(marker.version)),
        (Content::State(_), _) => Ok(StatePlan::Use),
        (Content::Blank, WipeRequest::Never) => Err(RefuseDiskError::BlankAndNever),
        (Content::Blank, WipeRequest::IfBlank | WipeRequest::Once(_)) => Ok(make),
        (Content::Unfinished, WipeRequest::Never) => Err(RefuseDiskError::BlankAndNever),
        (Content::Unfinished, WipeRequest::IfBlank | WipeRequest::Once(_)) => Ok(make),
        (Content::Damaged(found), _) => Err(RefuseDiskError::Damaged { found: found.clone() }),
        (Content::Foreign(_) | Content::Headless | Content::Unknown, WipeRequest::Once(_)) => Ok(make),
        (Content::Headless, WipeRequest::IfBlank) if release.is_some() => Ok(make),
        (Content::Headless | Content::Unknown, WipeRequest::IfBlank | WipeRequest::Never) => {
            Err(RefuseDiskError::Foreign { found: "data of an unknown kind".to_owned() })
        }
        (Content::Foreign(found), WipeRequest::IfBlank | WipeRequest::Never) => {
            Err(RefuseDiskError::Foreign { found: found.clone() })
        }
    }
}

/// Decides about a disk with state of this Machine, after [`plan_state_disk`] has decided to use it. Returns the marker of the disk to make.
/// None: the disk is used as it is. A request without the record of this very wipe was left by an earlier claim.
///
/// `Never` forbids the wipe. With `Once` the disk would be wiped again at the next boot, when it has the state of another claim.
pub(crate) fn plan_requested_wipe(
    machine: &MachineName,
    wipe: &WipeRequest,
    requested: Option<&RequestedWipe>,
    recorded: Option<&RecordedClaim>,
) -> Option<Marker> {
    let RecordedStage::Wiping { token: due } = &recorded?.stage else { return None };
    let token = match wipe {
        WipeRequest::IfBlank => &requested?.token,
        WipeRequest::Never | WipeRequest::Once(_) => return None,
    };
    let marker = Marker { version: 1, machine: machine.clone(), wipe_token: Some(token.clone()) };
    (token == due).then_some(marker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d7_token_of_a_claim_makes_an_interrupted_disk_and_no_state() {
        let own: MachineName = "node-1".parse().unwrap();
        let state = |token: Option<&str>| {
            let wipe_token = token.map(str::to_owned);
            Content::State(Marker { version: 1, machine: "node-1".parse().unwrap(), wipe_token })
        };
        let plan =
            |content: &Content| plan_state_disk(&own, (&WipeRequest::IfBlank, Some("claim-1")), content);
        // The token of an earlier claim, from a pxed that has not heard of its end: the disk has the state of a later one.
        for used in [None, Some("claim-1"), Some("claim-2")] {
            assert_eq!(plan(&state(used)), Ok(StatePlan::Use), "{used:?}");
        }
        for content in [Content::Blank, Content::Unfinished, Content::Headless] {
            let Ok(StatePlan::Make(marker)) = plan(&content) else { panic!("{content:?} is not made") };
            assert_eq!(marker.wipe_token.as_deref(), Some("claim-1"), "{content:?}");
        }
        let luks = Content::Foreign("a LUKS volume".to_owned());
        for content in [luks, Content::Damaged("x".to_owned()), Content::Unknown] {
            assert!(plan(&content).is_err(), "{content:?}");
        }
        for wipe in [WipeRequest::Never, WipeRequest::Once("t".to_owned())] {
            let plan = plan_state_disk(&own, (&wipe, Some("claim-1")), &Content::Blank);
            let token = match plan {
                Ok(StatePlan::Make(marker)) => marker.wipe_token,
                _ => None,
            };
            assert_ne!(token.as_deref(), Some("claim-1"), "{wipe:?}");
        }
    }

    #[test]
    fn d7_requested_wipe_is_done_unless_the_machine_has_another_rule() {
        let own: MachineName = "node-1".parse().unwrap();
        let requested = RequestedWipe { token: "claim-1".to_owned() };
        let due = wiping("claim-1");
        let plan = |wipe: &WipeRequest, requested: Option<&RequestedWipe>| {
            plan_requested_wipe(&own, wipe, requested, Some(&due))
                .map(|marker| (marker.machine, marker.wipe_token))
        };
        assert_eq!(
            plan(&WipeRequest::IfBlank, Some(&requested)),
            Some((own.clone(), Some("claim-1".to_owned())))
        );
        assert_eq!(plan(&WipeRequest::IfBlank, None), None);
        for other in [WipeRequest::Never, WipeRequest::Once("t1".to_owned())] {
            assert_eq!(plan(&other, Some(&requested)), None, "{other:?}");
        }
    }

    fn wiping(token: &str) -> RecordedClaim {
        RecordedClaim { stage: RecordedStage::Wiping { token: token.to_owned() } }
    }

    #[test]
    fn d7_request_of_an_earlier_claim_wipes_nothing() {
        let own: MachineName = "node-1".parse().unwrap();
        let requested = RequestedWipe { token: "claim-1".to_owned() };
        let plan = |recorded: Option<&RecordedClaim>| {
            plan_requested_wipe(&own, &WipeRequest::IfBlank, Some(&requested), recorded)
        };
        assert!(plan(Some(&wiping("claim-1"))).is_some());
        assert_eq!(plan(None), None);
        assert_eq!(plan(Some(&wiping("claim-2"))), None);
        for stage in ["preparing", "bootstrapping", "joined", "failed", "releasing", "released", "addedLater"]
        {
            let record =
                serde_json::json!({ "providerID": "p", "stage": { "is": stage, "token": "claim-1" } });
            let record: RecordedClaim = serde_json::from_value(record).unwrap();
            assert_eq!(plan(Some(&record)), None, "{stage}");
        }
    }

    #[test]
    fn every_combination_has_its_decision() {
        let own: MachineName = "own".parse().unwrap();
        let other: MachineName = "other".parse().unwrap();
        let state = |machine: &MachineName, token: Option<&str>| {
            Content::State(Marker {
                version: 1,
                machine: machine.clone(),
                wipe_token: token.map(str::to_owned),
            })
        };
        let foreign = Content::Foreign("an MBR".to_owned());
        let once = || WipeRequest::Once("t1".to_owned());
        use WipeRequest::{IfBlank, Never};
        for (wipe, content, expected) in [
            (IfBlank, Content::Blank, "make"),
            (Never, Content::Blank, "refuse"),
            (once(), Content::Blank, "make t1"),
            (IfBlank, Content::Unfinished, "make"),
            (Never, Content::Unfinished, "refuse"),
            (once(), Content::Unfinished, "make t1"),
            (IfBlank, Content::Damaged("x".to_owned()), "refuse"),
            (Never, Content::Damaged("x".to_owned()), "refuse"),
            (once(), Content::Damaged("x".to_owned()), "refuse"),
            (IfBlank, foreign.clone(), "refuse"),
            (Never, foreign.clone(), "refuse"),
            (once(), foreign, "make t1"),
            (IfBlank, state(&own, None), "use"),
            (IfBlank, state(&own, Some("t0")), "use"),
            (Never, state(&own, None), "use"),
            (once(), state(&own, Some("t1")), "use"),
            (once(), state(&own, Some("t0")), "make t1"),
            (once(), state(&own, None), "make t1"),
            (IfBlank, state(&other, None), "refuse"),
            (Never, state(&other, None), "refuse"),
            (once(), state(&other, Some("t1")), "make t1"),
        ] {
            let decided = match plan_state_disk(&own, (&wipe, None), &content) {
                Ok(StatePlan::Use) => "use".to_owned(),
                Ok(StatePlan::Make(marker)) => {
                    assert_eq!(marker.machine, own);
                    format!("make {}", marker.wipe_token.unwrap_or_default()).trim_end().to_owned()
                }
                Err(_) => "refuse".to_owned(),
            };
            assert_eq!(decided, expected, "{wipe:?} {content:?}");
        }
    }

    #[test]
    fn an_unknown_layout_is_left_alone() {
        let own: MachineName = "own".parse().unwrap();
        let content = Content::State(Marker { version: 2, machine: own.clone(), wipe_token: None });
        assert_eq!(
            plan_state_disk(&own, (&WipeRequest::IfBlank, None), &content),
            Err(RefuseDiskError::Version(2))
        );
    }
}
