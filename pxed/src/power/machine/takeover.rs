//! Records that the token of a takeover is used (`spec.pxe.takeover`), before the machine is switched off for it (H2).
//!
//! A token is used at most once: the record is durable before the power request. In a cluster it is in the object, and no pxed writes it
//! over a newer object. Each pxed keeps a row besides, which outlives the status: a manifest that comes back has the same tokens.
//! After a crash between record and request the token is used up and the machine still runs; its condition says so. Called by the worker.

use async_trait::async_trait;
use bedplate_api::id::MachineName;
use bedplate_api::machine::{Machine, MachineSpec, MachineStatus, ObservedNodeState, condition_type};
use bedplate_process::exit::chain;
use serde_json::Value;

use crate::machines::KnownMachine;
use crate::power::plan::Takeover;
use crate::status::conditions::is_true;
use crate::store::{Store, Table};

/// Store of used tokens.
#[async_trait]
pub trait Tokens: Send + Sync {
    /// Returns true if this token of a Machine was used, regardless of the Machine's status.
    async fn is_used(&self, machine: &MachineName, token: &str) -> bool;

    /// Stores that `token` is used, if the Machine is still as `machine` shows it. `status` names the token, too. Durable when this returns.
    ///
    /// # Errors
    /// The cause, for the log. The caller retries.
    async fn record(&self, machine: &KnownMachine, token: &str, status: &MachineStatus)
    -> Result<(), String>;

    /// Returns what is known of the Node of a Machine's name ([`observed_node`]).
    fn observed_node(&self, object: &Machine) -> Option<ObservedNodeState>;

    /// Keeps the token that the status names as used. After a loss of used tokens, keeps the token that is set now, too: it may have been
    /// used. Called when the worker of the Machine begins.
    async fn keep(&self, machine: &KnownMachine, named: Option<&str>);
}

/// Returns the token that is set for a Machine.
pub fn set(spec: &MachineSpec) -> Option<&str> {
    spec.pxe.as_ref()?.takeover.as_deref()
}

/// Returns the token that a status names as used.
pub fn named(status: &MachineStatus) -> Option<&str> {
    status.power.as_ref()?.takeover_token.as_deref()
}

/// Returns the token of a Machine if no status names it. The object counts as well as pxed's own status: another pxed may have used it.
pub fn unused<'a>(spec: &'a MachineSpec, own: &MachineStatus, object: &Machine) -> Option<&'a str> {
    let token = set(spec)?;
    let used = |status: &MachineStatus| named(status) == Some(token);
    (!used(own) && !object.status.as_ref().is_some_and(used)).then_some(token)
}

/// Returns true if this status says that the Machine's agent has enrolled at some time, or that the Machine has a Node. A Machine that was
/// re-created has its Node from before in it, and nothing of its agent.
pub(crate) fn names_agent(status: &MachineStatus) -> bool {
    status.enrollment.is_some()
        || status.agent.is_some()
        || status.node_ref.is_some()
        || is_true(status, condition_type::ENROLLED)
}

/// Returns the state of the Node of a cluster's Machine, as bedplate-controller has observed it for this very generation of the object. pxed
/// may not read Nodes. An observation from before the last change of the spec may be from before the token.
pub fn observed_node(object: &Machine) -> Option<ObservedNodeState> {
    let observed = object.status.as_ref()?.observed_node?;
    (Some(observed.observed_generation) == object.metadata.generation).then_some(observed.state)
}

/// Enrollments that are known of a Machine's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enrolled {
    /// No agent is known to have enrolled.
    #[default]
    Never,
    /// An agent of an earlier Machine of this name has enrolled. That Machine was deleted; its node may still run.
    EarlierMachine,
    /// The agent of this very Machine has enrolled.
    ThisMachine,
}

impl Enrolled {
    /// Reads the key of the agent in the store (`enroll`), which outlives the status and the Machine. A row that cannot be read counts: a
    /// machine that may run a node is not forced off.
    pub async fn read(store: &Store, machine: &KnownMachine) -> Self {
        let key = format!("machine/{}", machine.name).into_bytes();
        match store.fetch(Table::Certificates, key).await {
            Ok(None) => Self::Never,
            Ok(Some(row)) => match serde_json::from_slice::<Value>(&row) {
                Ok(row) if row["uid"] != machine.uid.as_str() => Self::EarlierMachine,
                Ok(_) | Err(_) => Self::ThisMachine,
            },
            Err(error) => {
                tracing::warn!(machine = %machine.name, error = chain(&error), "failed to read the key of a machine's agent");
                Self::ThisMachine
            }
        }
    }
}

/// Returns the state of the token of a Machine. `is_unused`: no record names it. `node`: [`observed_node`].
pub fn state(
    object: &Machine,
    is_unused: bool,
    enrolled: Enrolled,
    node: Option<ObservedNodeState>,
) -> Takeover {
    if set(&object.spec).is_none() {
        return Takeover::NotAllowed;
    }
    if !is_unused {
        return Takeover::Used;
    }
    match (enrolled, node) {
        (Enrolled::EarlierMachine, _) => Takeover::NameEnrolled,
        (_, None | Some(ObservedNodeState::Unknown)) => Takeover::NodeUnknown,
        // A server that may run a node stays on, no matter which cluster it joined.
        (_, Some(ObservedNodeState::Own | ObservedNodeState::Foreign)) => Takeover::NodeExists,
        (_, Some(ObservedNodeState::Absent)) => Takeover::Allowed,
    }
}

/// Rows of used tokens. None is ever deleted.
pub(crate) struct Rows(pub(crate) Store);

impl Rows {
    /// Returns true if there is a row. An unreadable row counts.
    pub(crate) async fn has(&self, machine: &MachineName, token: &str) -> bool {
        match self.0.fetch(Table::Takeovers, row_key(machine, token)).await {
            Ok(row) => row.is_some(),
            // It may have been used.
            Err(error) => {
                tracing::warn!(%machine, error = chain(&error), "failed to read used takeover tokens");
                true
            }
        }
    }

    /// Writes a row.
    pub(crate) async fn put(&self, machine: &MachineName, token: &str) -> Result<(), String> {
        let key = row_key(machine, token);
        self.0.put(Table::Takeovers, &key, Vec::new()).await.map_err(|error| chain(&error))
    }

    /// Keeps a token whose use is certain without the row, too.
    pub(crate) async fn keep(&self, machine: &MachineName, token: &str) {
        if self.has(machine, token).await {
            return;
        }
        if let Err(error) = self.put(machine, token).await {
            tracing::warn!(%machine, error, "failed to store a used takeover token");
        }
    }
}

/// A name has no slash, so that no two pairs have one key.
fn row_key(machine: &MachineName, token: &str) -> Vec<u8> {
    format!("{machine}/{token}").into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::takeover_tokens::ClusterTokens;
    use crate::machines::Snapshot;
    use crate::machines::tests::machine;
    use crate::standalone::takeover_tokens::StoreTokens;

    fn status(token: &str) -> MachineStatus {
        let power = json!({ "state": "On", "takeoverToken": token });
        serde_json::from_value(json!({ "power": power, "phase": "Pending" })).unwrap()
    }

    #[test]
    fn h2_a_token_is_unused_until_pxed_or_the_object_says_so() {
        let mut object = machine("a", &["52:54:00:00:00:0a"]);
        let own = MachineStatus::default();
        assert_eq!(unused(&object.spec.clone(), &own, &object), None, "no token is set");
        object.spec.pxe.as_mut().unwrap().takeover = Some("one".to_owned());
        let spec: MachineSpec = object.spec.clone();
        assert_eq!(unused(&spec, &own, &object), Some("one"));
        assert_eq!(unused(&spec, &status("one"), &object), None);
        assert_eq!(unused(&spec, &status("other"), &object), Some("one"));
        object.status = Some(status("one"));
        assert_eq!(unused(&spec, &own, &object), None, "another pxed has used it");
    }

    fn known(token: Option<&str>) -> KnownMachine {
        let mut object = machine("a", &["52:54:00:00:00:0a"]);
        object.spec.pxe.as_mut().unwrap().takeover = token.map(str::to_owned);
        let snapshot = Snapshot::build(&"default".parse().unwrap(), [object]);
        KnownMachine::clone(snapshot.by_name(&"a".parse().unwrap()).unwrap())
    }

    fn open(directory: &tempfile::TempDir) -> Store {
        Store::open(&directory.path().join("store")).unwrap()
    }

    #[tokio::test]
    async fn h2_a_used_token_survives_a_damaged_status_a_removed_one_and_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let (machine, other) = (known(Some("one")), "b".parse().unwrap());
        let tokens = StoreTokens::new(open(&directory), false);
        assert!(!tokens.is_used(&machine.name, "one").await);
        tokens.record(&machine, "one", &status("one")).await.unwrap();
        // One that an earlier release kept in the status alone.
        tokens.keep(&machine, Some("old")).await;
        drop(tokens);
        for (damage, lost) in [(Some(b"damaged".to_vec()), false), (None, false), (None, true)] {
            let store = open(&directory);
            match damage {
                Some(value) => store.put(Table::Status, b"a", value).await.unwrap(),
                None => store.delete(Table::Status, b"a").await.unwrap(),
            }
            let cluster = ClusterTokens::new(tokio::sync::watch::channel(None).1, store.clone());
            let local = StoreTokens::new(store, lost);
            for tokens in [&local as &dyn Tokens, &cluster] {
                assert!(
                    tokens.is_used(&machine.name, "one").await && tokens.is_used(&machine.name, "old").await
                );
                assert!(!tokens.is_used(&machine.name, "two").await && !tokens.is_used(&other, "one").await);
            }
        }
    }

    #[tokio::test]
    async fn h2_after_store_loss_present_tokens_count_as_used_later_ones_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = StoreTokens::new(open(&directory), true);
        let name: MachineName = "a".parse().unwrap();
        tokens.keep(&known(Some("one")), None).await;
        // An editor takes the manifest away for a moment.
        tokens.keep(&known(Some("two")), None).await;
        assert!(tokens.is_used(&name, "one").await && !tokens.is_used(&name, "two").await);
        drop(tokens);
        let again = StoreTokens::new(open(&directory), false);
        assert!(again.is_used(&name, "one").await, "the damaged file was removed since");
    }

    #[tokio::test]
    async fn h2_an_enrolled_agent_is_known_by_its_key_when_its_status_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let (store, machine) = (open(&directory), known(None));
        assert_eq!(Enrolled::read(&store, &machine).await, Enrolled::Never);
        let own = json!({ "uid": machine.uid, "key": "k" }).to_string();
        for (row, expected) in [
            (own.as_str(), Enrolled::ThisMachine),
            (r#"{"uid":"of the one before"}"#, Enrolled::EarlierMachine),
            ("damaged", Enrolled::ThisMachine),
        ] {
            store.put(Table::Certificates, b"machine/a", row.into()).await.unwrap();
            assert_eq!(Enrolled::read(&store, &machine).await, expected, "{row}");
        }
    }

    #[test]
    fn h2_a_token_is_allowed_only_if_no_node_of_its_name_may_run() {
        let (mut object, never) = (machine("a", &["52:54:00:00:00:0a"]), Enrolled::Never);
        assert_eq!(state(&object, true, never, Some(ObservedNodeState::Absent)), Takeover::NotAllowed);
        object.spec.pxe.as_mut().unwrap().takeover = Some("one".to_owned());
        let absent = Some(ObservedNodeState::Absent);
        for (is_unused, enrolled, node, expected) in [
            (true, never, absent, Takeover::Allowed),
            (true, never, None, Takeover::NodeUnknown),
            (true, never, Some(ObservedNodeState::Unknown), Takeover::NodeUnknown),
            (true, never, Some(ObservedNodeState::Own), Takeover::NodeExists),
            (true, never, Some(ObservedNodeState::Foreign), Takeover::NodeExists),
            (true, Enrolled::EarlierMachine, absent, Takeover::NameEnrolled),
            (true, Enrolled::EarlierMachine, None, Takeover::NameEnrolled),
            (false, Enrolled::EarlierMachine, None, Takeover::Used),
        ] {
            let found = state(&object, is_unused, enrolled, node);
            assert_eq!(found, expected, "{is_unused} {enrolled:?} {node:?}");
        }
    }

    #[test]
    fn h2_an_observation_of_a_node_counts_for_its_generation_alone() {
        let mut object = machine("a", &["52:54:00:00:00:0a"]);
        object.metadata.generation = Some(3);
        assert_eq!(observed_node(&object), None, "no status");
        let node = |state: &str, generation: i64| json!({ "state": state, "observedGeneration": generation });
        for (status, expected) in [
            (json!({}), None),
            // The phase is for display alone.
            (json!({ "phase": "Pending" }), None),
            (json!({ "observedNode": node("Absent", 2) }), None),
            (json!({ "observedNode": node("Absent", 3) }), Some(ObservedNodeState::Absent)),
            (json!({ "observedNode": node("Foreign", 3) }), Some(ObservedNodeState::Foreign)),
            (json!({ "observedNode": node("OfALaterVersion", 3) }), Some(ObservedNodeState::Unknown)),
        ] {
            object.status = Some(serde_json::from_value(status.clone()).unwrap());
            assert_eq!(observed_node(&object), expected, "{status}");
        }
        object.metadata.generation = None;
        assert_eq!(observed_node(&object), None, "of no generation");
    }

    #[test]
    fn h2_a_node_of_the_machine_counts_as_its_agent() {
        let status = json!({ "nodeRef": { "name": "a", "uid": "n" } });
        assert!(names_agent(&serde_json::from_value(status).unwrap()));
        assert!(!names_agent(&MachineStatus::default()));
    }
}
