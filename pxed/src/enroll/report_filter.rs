//! Pure: the stored part of an agent's report, field by field: no more than the Machine's definition accepts, and of what it
//! leaves open, no more than a user would read. Longer texts are cut: a report is not refused for the length of a name.
//!
//! Called by `service` and `standalone`.

use bedplate_api::machine::{Applied, Condition, Hardware, RolledBack, Slot, StateDiskStatus, VersionRef};

/// Characters of a version or an id.
pub(crate) const MAX_WORD_LENGTH: usize = 63;
/// Maximum length of a configuration's name, in characters.
const MAX_CONFIGURATION_LENGTH: usize = 240;
/// Maximum length of a condition's message, in characters.
const MAX_MESSAGE_LENGTH: usize = 4096;
/// Maximum length of the reason of a rollback, in characters.
const MAX_REASON_LENGTH: usize = 1024;
/// Characters of any other text.
const MAX_TEXT_LENGTH: usize = 256;

/// The beginning of a text.
pub(crate) fn cut(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        // It is kept for as long as the Machine is.
        text.shrink_to_fit();
    }
    text
}

fn text(text: Option<String>) -> Option<String> {
    text.map(|text| cut(text, MAX_TEXT_LENGTH))
}

/// The state disk in use.
pub(crate) fn state_disk(disk: StateDiskStatus) -> StateDiskStatus {
    let StateDiskStatus { name, wipe_token } = disk;
    StateDiskStatus { name: text(name), wipe_token: wipe_token.map(|token| cut(token, MAX_WORD_LENGTH)) }
}

/// Limits the texts of the applied version.
pub(crate) fn applied(applied: Applied) -> Applied {
    let Applied { name, version, slot, image_digest, node_uid, time } = applied;
    Applied {
        name: cut(name, MAX_CONFIGURATION_LENGTH),
        version,
        slot,
        image_digest,
        node_uid: node_uid.map(|uid| cut(uid, MAX_WORD_LENGTH)),
        time,
    }
}

/// Limits the texts of a slot.
pub(crate) fn slot(slot: Slot) -> Slot {
    let Slot { name, configuration_name, version, image_digest, state } = slot;
    let configuration_name = configuration_name.map(|name| cut(name, MAX_CONFIGURATION_LENGTH));
    Slot { name, configuration_name, version, image_digest, state }
}

/// An update that was rolled back.
pub(crate) fn rolled_back(back: RolledBack) -> RolledBack {
    let RolledBack { from, to, message, time } = back;
    let of = |VersionRef { name, version }| VersionRef { name: cut(name, MAX_CONFIGURATION_LENGTH), version };
    RolledBack { from: of(from), to: of(to), message: cut(message, MAX_REASON_LENGTH), time }
}

/// A condition.
pub(crate) fn condition(condition: Condition) -> Condition {
    let Condition { type_, status, reason, message, last_transition_time, observed_generation } = condition;
    Condition {
        type_: cut(type_, MAX_WORD_LENGTH),
        status: cut(status, MAX_WORD_LENGTH),
        reason: cut(reason, MAX_WORD_LENGTH),
        message: cut(message, MAX_MESSAGE_LENGTH),
        last_transition_time,
        observed_generation,
    }
}

/// The facts, without the BMC's, which pxed reports.
pub(crate) fn hardware(facts: Hardware) -> Hardware {
    Hardware { bmc: None, ..facts.bounded() }
}

#[cfg(test)]
mod tests {
    use bedplate_api::machine::HardwareBmc;

    use super::*;

    #[test]
    fn reported_facts_are_bounded_and_have_no_bmc() {
        let facts = Hardware {
            vendor: Some("ä".repeat(10_000)),
            bmc: Some(HardwareBmc::default()),
            ..Hardware::default()
        };
        let kept = hardware(facts);
        assert_eq!((kept.vendor.unwrap().chars().count(), kept.bmc), (256, None));
        let long = || Some("ä".repeat(10_000));
        let kept = state_disk(StateDiskStatus { name: long(), wipe_token: long() });
        assert_eq!(kept.name.unwrap().chars().count(), 256);
        assert_eq!(kept.wipe_token.unwrap().chars().count(), 63);
    }

    #[test]
    fn values_within_limits_are_unchanged() {
        let disk =
            StateDiskStatus { name: Some("virtio-state".to_owned()), wipe_token: Some("a".to_owned()) };
        assert_eq!(state_disk(disk.clone()), disk);
        assert_eq!(cut("äöü".to_owned(), 3), "äöü");
        assert_eq!(cut("äöü".to_owned(), 2), "äö");
    }
}
