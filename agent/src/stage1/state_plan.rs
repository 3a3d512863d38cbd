//! What may be done with the state disk (docs/agent.md): use it, make it new, or leave it alone.
//!
//! Pure: what was found on the disk in, the decision out. No disk that was not selected comes this far. Called by
//! `state_disk`.

use bedplate_api::id::MachineName;
use bedplate_api::wire::WipeRequest;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Label of the file system that stage-1 made: its marker is on the disk.
pub const LABEL: &str = "bedplate-state";

/// Label until the marker is on the disk.
pub const LABEL_NEW: &str = "bedplate-new";

/// The file at the top of the state disk that says whose it is.
pub const MARKER: &str = ".bedplate-state.json";

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

/// What is on the selected disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Only zeros wherever it was read.
    Blank,
    /// A file system of ours that is still being made, by its label: power failed, no host has had it.
    Unfinished,
    /// State of ours.
    State(Marker),
    /// State of ours, by its label, that cannot be read. Nobody can know whether a wipe's token is used up.
    Damaged(String),
    /// Anything else; the text says what it looks like.
    Foreign(String),
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatePlan {
    /// Mount what is there.
    Use,
    /// Make a file system, then write this marker.
    Make(Marker),
}

/// Why the disk is left alone.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RefuseDiskError {
    /// `wipe: Never` and nothing to use.
    #[error("the state disk is blank, and wipe Never forbids to make a file system on it")]
    BlankAndNever,
    /// Somebody else's data.
    #[error(
        "the state disk holds {found}, and wipe does not allow to overwrite it: clear it by hand or set wipe Once"
    )]
    Foreign {
        /// What it looks like.
        found: String,
    },
    /// State that a person has to look at.
    #[error(
        "the state disk holds {found}: it is damaged state, which no wipe makes new. Start a rescue system and repair it (e2fsck), or give it up by writing zeros over its first 256 MiB (dd, wipefs is not enough) and set wipe Once; or select another disk"
    )]
    Damaged {
        /// What is wrong with it.
        found: String,
    },
    /// Another Machine's state.
    #[error("the state disk holds the state of Machine {owner}: clear it by hand or set wipe Once")]
    OtherMachine {
        /// Whose it is.
        owner: MachineName,
    },
    /// A layout that this release does not know.
    #[error("the state disk has layout version {0}, which this release does not know")]
    Version(u32),
}

/// Decides. A wipe token that the disk remembers for the same Machine has been used up, so that it cannot loop. `Once`
/// stays in the Machine after it was used: what may be used-up state is refused.
pub fn plan_state_disk(
    machine: &MachineName,
    wipe: &WipeRequest,
    content: &Content,
) -> Result<StatePlan, RefuseDiskError> {
    let token = match wipe {
        WipeRequest::Once(token) => Some(token.clone()),
        WipeRequest::IfBlank | WipeRequest::Never => None,
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
        (Content::Foreign(_), WipeRequest::Once(_)) => Ok(make),
        (Content::Foreign(found), WipeRequest::IfBlank | WipeRequest::Never) => {
            Err(RefuseDiskError::Foreign { found: found.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let decided = match plan_state_disk(&own, &wipe, &content) {
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
        assert_eq!(plan_state_disk(&own, &WipeRequest::IfBlank, &content), Err(RefuseDiskError::Version(2)));
    }
}
