//! Points at which a test kills the agent: before each of its effects, which are the calls and writes that the host or the cluster would see.
//!
//! Unlike wake-ups, effects do not depend on the load of the machine. The stand-ins of tests report them, and work on the slots' files does.
//! Compiled for tests only.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_process::lock::Lock;
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Inner {
    /// Effects so far.
    effects: Vec<String>,
    /// Number of effects before the kill.
    kill_at: Option<usize>,
    is_dead: bool,
    /// Effect that the kill prevented.
    prevented: Option<String>,
}

/// Effects of one world and the kill among them. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct KillPoints(Arc<(Lock<Inner>, Notify)>);

impl KillPoints {
    /// Counts effects from now on, and kills the agent before the effect of this number. The first effect is
    /// 0.
    pub(crate) fn arm(&self, kill_at: Option<usize>) {
        *self.0.0.lock() = Inner { kill_at, ..Inner::default() };
    }

    /// Counts an effect that is about to happen. Does not return if the agent is dead.
    pub(crate) async fn reach(&self, effect: &str) {
        let is_dead = {
            let mut inner = self.0.0.lock();
            // Two words are a call and its unit; names of mounts differ from run to run.
            let effect = effect.split(' ').take(2).collect::<Vec<_>>().join(" ");
            if inner.kill_at == Some(inner.effects.len()) && !inner.is_dead {
                (inner.kill_at, inner.is_dead, inner.prevented) = (None, true, Some(effect));
            } else if !inner.is_dead {
                inner.effects.push(effect);
            }
            inner.is_dead
        };
        if is_dead {
            self.0.1.notify_one();
            std::future::pending::<()>().await;
        }
    }

    /// Runs an agent to its end, or until it is killed. After that another agent may run.
    pub(crate) async fn run<T>(&self, agent: impl Future<Output = T>) -> Option<T> {
        let ended = tokio::select! {
            biased;
            ended = agent => Some(ended),
            () = self.0.1.notified() => None,
        };
        if ended.is_none() {
            // File work of the agent continues in its thread; a real kill would have ended it.
            let finished = tokio::task::spawn_blocking(|| ()).await;
            finished.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            self.0.0.lock().is_dead = false;
        }
        ended
    }

    /// Returns how many effects of each kind, which is their first word, there were.
    fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for effect in &self.0.0.lock().effects {
            *kinds.entry(kind(effect).to_owned()).or_default() += 1;
        }
        kinds
    }
}

/// Returns the kind of an effect.
fn kind(effect: &str) -> &str {
    effect.split(' ').next().unwrap_or_default()
}

/// Runs a world undisturbed, then once for each of its effects with a kill before that effect. The effects of the undisturbed run must be as many of
/// each kind as `expected` has.
pub(crate) async fn kill_before_each_effect(
    expected: &[(&str, usize)],
    mut run: impl AsyncFnMut(Option<usize>) -> KillPoints,
) {
    let undisturbed = run(None).await;
    let expected = expected.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
    assert_eq!(undisturbed.kinds(), expected, "{:#?}", undisturbed.0.0.lock().effects);
    let effects = undisturbed.0.0.lock().effects.clone();
    for (number, effect) in effects.iter().enumerate() {
        let killed = run(Some(number)).await;
        let prevented = killed.0.0.lock().prevented.clone();
        assert_eq!(prevented.as_deref().map(kind), Some(kind(effect)), "kill before effect {number}");
    }
}
