//! Reasons: the closed sets of words that explain a condition, an operation, an Event or a refusal.
//!
//! Each word has one row in one table: its meaning, who must act, and what to do. Programs write reasons only from these tables.
//! The command line, docs/reference/reasons.md, docs/reference/events.md and the rollout derive from them.
//!
//! Pure.

pub mod bmc;
pub mod certificate;
pub mod claim;
pub mod configuration;
pub mod core;
pub mod core_event;
pub mod diagnosis;
pub mod event;
pub mod infrastructure;
pub mod machine;
pub mod operation;
pub mod refusal;

use serde::Serialize;

use crate::cluster::kubeadm::reason::{
    CertificatesAvailableReason, ConfigFieldsSupportedReason, ConfigPausedReason, ConfigReadyReason,
    DataSecretAvailableReason,
};
use crate::machine::condition_type;

/// Party that must act before a state can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Actor {
    /// The pxed of the Machine's site.
    Pxed,
    /// Program that selects versions: bedplate-controller, or pxed if standalone.
    Controller,
    /// bedplate-agent on the host.
    Agent,
    /// User who reads the reason.
    User,
    /// Management controller of the server.
    Bmc,
    /// Registry of an image.
    Registry,
    /// The server: firmware, loader, kernel.
    Host,
    /// The Kubernetes cluster: API server, kubelet, network plug-in.
    Cluster,
    /// Program that does not belong to Bedplate.
    Other,
}

/// Next step for a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remedy {
    /// Party that must act.
    pub actor: Actor,
    /// Next step for a user. `NAME` stands for the Machine.
    pub text: &'static str,
}

/// A word of a closed set, with its row of the table.
pub trait Reason: Copy + Eq + std::fmt::Debug + 'static {
    /// All words of the set, in the order of the table.
    const ALL: &'static [Self];
    /// Name of the set in docs/reference/reasons.md, or in docs/reference/events.md.
    const TITLE: &'static str;

    /// The word, as the API shows it.
    fn as_str(self) -> &'static str;

    /// Returns the meaning of the reason, for users.
    fn meaning(self) -> &'static str;

    /// Next step. None if no action is needed.
    fn remedy(self) -> Option<Remedy>;

    /// Finds a word in the set. None if a newer program has written it.
    fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
    }
}

/// A reason of one type of condition.
pub trait ConditionReason: Reason {
    /// Type of the condition.
    const TYPE: &'static str;
}

/// Declares an enum of reasons: `Variant = "Word": meaning => Actor, remedy;`. Without `= "Word"` the word is the variant's name.
macro_rules! reasons {
    (
        $(#[$of_all:meta])*
        pub enum $name:ident: $title:literal $(, condition $type_:path)? {
            $($variant:ident $(= $word:literal)?: $meaning:literal $(=> $actor:ident, $text:literal)?;)+
        }
    ) => {
        $(#[$of_all])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $(#[doc = $meaning] $variant,)+
        }

        impl $name {
            /// The word, as the API shows it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $crate::reason::word!($variant $(= $word)?),)+ }
            }
        }

        impl $crate::reason::Reason for $name {
            const ALL: &'static [Self] = &[$(Self::$variant,)+];
            const TITLE: &'static str = $title;

            fn as_str(self) -> &'static str {
                Self::as_str(self)
            }

            fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }

            fn remedy(self) -> Option<$crate::reason::Remedy> {
                match self { $(Self::$variant => $crate::reason::remedy!($($actor, $text)?),)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl PartialEq<$name> for String {
            fn eq(&self, other: &$name) -> bool {
                self == other.as_str()
            }
        }

        $(impl $crate::reason::ConditionReason for $name {
            const TYPE: &'static str = $type_;
        })?
    };
}

macro_rules! word {
    ($variant:ident) => {
        stringify!($variant)
    };
    ($variant:ident = $word:literal) => {
        $word
    };
}

macro_rules! remedy {
    () => {
        None
    };
    ($actor:ident, $text:literal) => {
        Some($crate::reason::Remedy { actor: $crate::reason::Actor::$actor, text: $text })
    };
}

pub(crate) use {reasons, remedy, word};

/// Row of a table, for documents and tests.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The word.
    pub reason: &'static str,
    /// Meaning of the reason.
    pub meaning: &'static str,
    /// Next step.
    pub remedy: Option<Remedy>,
}

/// A table with its title.
pub type Table = (&'static str, Vec<Row>);

/// Rows of a set.
fn rows<R: Reason>() -> Table {
    (R::TITLE, R::ALL.iter().copied().map(row).collect())
}

/// All tables with their titles except those of Events, in the order of docs/reference/reasons.md.
pub fn tables() -> Vec<Table> {
    let hosts = of_hosts().into_iter().chain(of_operations());
    hosts.chain(of_providers()).chain(core::tables()).chain(of_refusals()).collect()
}

fn of_hosts() -> Vec<Table> {
    vec![
        rows::<machine::BmcReachableReason>(),
        rows::<machine::PoweredOnReason>(),
        rows::<machine::BootedReason>(),
        rows::<machine::EnrolledReason>(),
        rows::<machine::ConfigurationPendingReason>(),
        rows::<machine::PavedReason>(),
        rows::<machine::NodeReadyReason>(),
        rows::<machine::DrainedReason>(),
        rows::<machine::ReadyReason>(),
        rows::<configuration::ProgressingReason>(),
        rows::<configuration::DegradedReason>(),
        rows::<configuration::VersionReadyReason>(),
        rows::<claim::GrantedReason>(),
        rows::<claim::FencedReason>(),
        rows::<claim::OrphanedReason>(),
        rows::<claim::WipedReason>(),
    ]
}

fn of_operations() -> Vec<Table> {
    vec![
        rows::<operation::SuspendedReason>(),
        rows::<operation::CordonedReason>(),
        rows::<operation::OperationDrainedReason>(),
        rows::<operation::PendingOperationReason>(),
        rows::<operation::PowerOutcome>(),
        rows::<operation::AgentOutcome>(),
        rows::<operation::FanOutOutcome>(),
    ]
}

/// Conditions of the infrastructure and the bootstrap provider of Cluster API.
fn of_providers() -> Vec<Table> {
    vec![
        rows::<infrastructure::HostClaimedReason>(),
        rows::<infrastructure::BootstrapSucceededReason>(),
        rows::<infrastructure::EndpointAvailableReason>(),
        rows::<infrastructure::ClusterReadyReason>(),
        rows::<infrastructure::PausedReason>(),
        rows::<ConfigReadyReason>(),
        rows::<DataSecretAvailableReason>(),
        rows::<CertificatesAvailableReason>(),
        rows::<ConfigFieldsSupportedReason>(),
        rows::<ConfigPausedReason>(),
    ]
}

fn of_refusals() -> Vec<Table> {
    vec![
        rows::<refusal::BootRefusal>(),
        rows::<refusal::AgentRefusal>(),
        rows::<refusal::AdminRefusal>(),
        rows::<certificate::CertificateDecision>(),
        rows::<diagnosis::DiagnosisReason>(),
    ]
}

/// Row of a condition's reason. None if a newer program has written it.
///
/// `Ready` shows the reason of the condition that is not met, so its words are found in the sets of the others too.
pub fn of_condition(type_: &str, word: &str) -> Option<Row> {
    let own = find::<machine::BmcReachableReason>(type_, word)
        .or_else(|| find::<machine::PoweredOnReason>(type_, word))
        .or_else(|| find::<machine::BootedReason>(type_, word))
        .or_else(|| find::<machine::EnrolledReason>(type_, word))
        .or_else(|| find::<machine::ConfigurationPendingReason>(type_, word))
        .or_else(|| find::<machine::PavedReason>(type_, word))
        .or_else(|| find::<machine::NodeReadyReason>(type_, word))
        .or_else(|| find::<machine::DrainedReason>(type_, word))
        .or_else(|| find::<machine::ReadyReason>(type_, word))
        .or_else(|| find::<configuration::ProgressingReason>(type_, word))
        .or_else(|| find::<configuration::DegradedReason>(type_, word))
        .or_else(|| find::<configuration::VersionReadyReason>(type_, word))
        .or_else(|| find::<claim::GrantedReason>(type_, word))
        .or_else(|| find::<claim::FencedReason>(type_, word))
        .or_else(|| find::<claim::OrphanedReason>(type_, word))
        .or_else(|| find::<claim::WipedReason>(type_, word));
    if own.is_some() || type_ != machine::ReadyReason::TYPE {
        return own;
    }
    // In the order in which the conditions are met.
    [
        condition_type::POWERED_ON,
        condition_type::BMC_REACHABLE,
        condition_type::BOOTED,
        condition_type::ENROLLED,
        condition_type::CONFIGURATION_PENDING,
        condition_type::PAVED,
        condition_type::NODE_READY,
    ]
    .into_iter()
    .find_map(|other| of_condition(other, word))
}

/// Row of an operation's reason. None if a newer program has written it. `is_agents`: the agent carries out operations of this name, and the
/// same word may have another remedy than for a power operation.
pub fn of_operation(is_agents: bool, word: &str) -> Option<Row> {
    let own = if is_agents {
        operation::AgentOutcome::parse(word).map(row)
    } else {
        operation::PowerOutcome::parse(word).map(row)
    };
    own.or_else(|| operation::FanOutOutcome::parse(word).map(row))
        .or_else(|| operation::PendingOperationReason::parse(word).map(row))
}

fn row<R: Reason>(reason: R) -> Row {
    Row { reason: reason.as_str(), meaning: reason.meaning(), remedy: reason.remedy() }
}

fn find<R: ConditionReason>(type_: &str, word: &str) -> Option<Row> {
    R::parse(word).filter(|_| R::TYPE == type_).map(row)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Tables of both pages.
    fn all() -> Vec<Table> {
        let events = event::tables().into_iter();
        let events =
            events.map(|(title, rows)| (title, rows.into_iter().map(|event| event.row).collect::<Vec<_>>()));
        tables().into_iter().chain(events).collect()
    }

    #[test]
    fn every_title_is_unique() {
        let titles: Vec<&str> = all().into_iter().map(|(title, _)| title).collect();
        let unique: BTreeSet<&str> = titles.iter().copied().collect();
        assert_eq!(unique.len(), titles.len(), "{titles:?}");
    }

    #[test]
    fn every_word_is_unique_in_its_table_and_valid_in_the_api() {
        for (title, rows) in all() {
            let mut seen = BTreeSet::new();
            for row in rows {
                let word = row.reason;
                assert!(seen.insert(word), "{title}: {word} is there twice");
                let is_valid = word.starts_with(|c: char| c.is_ascii_uppercase())
                    && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
                assert!(is_valid && word.len() <= 63, "{title}: {word}");
            }
        }
    }

    #[test]
    fn every_text_is_a_sentence_without_a_line_break() {
        for (title, rows) in all() {
            for row in rows {
                let texts = [Some(row.meaning), row.remedy.map(|remedy| remedy.text)];
                for text in texts.into_iter().flatten() {
                    let is_plain = text.len() <= 300 && !text.contains(['\n', '|']) && text.ends_with('.');
                    assert!(is_plain, "{title} {}: {text:?}", row.reason);
                }
            }
        }
    }

    #[test]
    fn a_word_of_a_newer_program_is_not_found() {
        assert_eq!(machine::PavedReason::parse("Applied"), Some(machine::PavedReason::Applied));
        assert_eq!(machine::PavedReason::parse("MadeLater"), None);
        assert!(of_condition("Paved", "MadeLater").is_none());
    }

    #[test]
    fn ready_finds_the_words_of_the_conditions_it_shows() {
        let found = |word| of_condition("Ready", word).map(|row| row.reason);
        assert_eq!(found("Updating"), Some("Updating"));
        assert_eq!(found("BackOff"), Some("BackOff"));
        assert_eq!(found("Draining"), None);
    }
}
