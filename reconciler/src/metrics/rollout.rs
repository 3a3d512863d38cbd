//! Counts of rolling updates and deletions.

use std::fmt;
use std::sync::Arc;

use bedplate_process::counter::{By, labels};
use bedplate_process::family::{Row, count_rows};
use prometheus_client::encoding::DescriptorEncoder;

labels! {
    /// A step of a Machine's turn in a rolling update.
    pub enum Turn {
        /// The Machine's version is selected, and fetched.
        Select => "select",
        /// The Machine's Node is cordoned.
        Cordon => "cordon",
        /// The Node's Pods are evicted, then the Node is deleted.
        Drain => "drain",
        /// The Node is uncordoned: the turn ended without a result.
        Uncordon => "uncordon",
    }
}

labels! {
    /// Result of an eviction.
    pub enum Eviction {
        /// The Pod ends.
        Accepted => "accepted",
        /// A PodDisruptionBudget does not allow it.
        Held => "blocked",
        /// The Pod was already deleted.
        Gone => "not_found",
    }
}

/// The counts. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    done: By<Turn>,
    failed: By<Turn>,
    evictions: By<Eviction>,
}

impl Turns {
    /// Counts a step of a rolling update.
    pub fn turned(&self, turn: Turn, done: bool) {
        if done { self.0.done.one(turn) } else { self.0.failed.one(turn) }
    }

    /// Counts an eviction.
    pub fn evicted(&self, eviction: Eviction) {
        self.0.evictions.one(eviction);
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut rows: Vec<Row> = Vec::new();
        for ((step, done), (_, failed)) in self.0.done.all().zip(self.0.failed.all()) {
            for (result, count) in [("done", done), ("failed", failed)] {
                rows.push((vec![("step", step), ("result", result)], count));
            }
        }
        count_rows(encoder, "bedplate_controller_rollout_steps", "Steps of rolling updates", rows)?;
        let rows = self.0.evictions.all().map(|(result, count)| (vec![("result", result)], count));
        count_rows(encoder, "bedplate_controller_evictions", "Evictions of Pods", rows)
    }
}
