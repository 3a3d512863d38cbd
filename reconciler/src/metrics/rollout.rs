//! What rolling updates and departures do, counted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_process::family::{Row, count_rows};
use prometheus_client::encoding::DescriptorEncoder;

/// A step of a Machine's turn in a rolling update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Its version is selected, and fetched.
    Select,
    /// Its Node is cordoned.
    Cordon,
    /// Its Pods are looked at, evicted, and at last the Node deleted.
    Drain,
    /// Its Node is uncordoned: nothing comes of it.
    Uncordon,
}

impl Turn {
    const ALL: [Self; 4] = [Self::Select, Self::Cordon, Self::Drain, Self::Uncordon];

    fn as_str(self) -> &'static str {
        match self {
            Self::Select => "select",
            Self::Cordon => "cordon",
            Self::Drain => "drain",
            Self::Uncordon => "uncordon",
        }
    }
}

/// What came of asking for a Pod's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// It ends.
    Accepted,
    /// A PodDisruptionBudget holds it.
    Held,
    /// It was gone already.
    Gone,
}

impl Eviction {
    const ALL: [Self; 3] = [Self::Accepted, Self::Held, Self::Gone];

    fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Held => "held",
            Self::Gone => "gone",
        }
    }
}

/// The counts.
#[derive(Debug, Default)]
pub(super) struct Turns {
    done: [AtomicU64; Turn::ALL.len()],
    failed: [AtomicU64; Turn::ALL.len()],
    evictions: [AtomicU64; Eviction::ALL.len()],
}

impl Turns {
    pub(super) fn turned(&self, turn: Turn, done: bool) {
        let counts = if done { &self.done } else { &self.failed };
        counts[turn as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn evicted(&self, eviction: Eviction) {
        self.evictions[eviction as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut rows: Vec<Row> = Vec::new();
        for turn in Turn::ALL {
            for (result, counts) in [("done", &self.done), ("failed", &self.failed)] {
                rows.push((vec![("step", turn.as_str()), ("result", result)], read(&counts[turn as usize])));
            }
        }
        let help = "Steps of rolling updates";
        count_rows(encoder, "bedplate_controller_rollout_steps", help, rows)?;
        let rows = Eviction::ALL
            .map(|eviction| (vec![("result", eviction.as_str())], read(&self.evictions[eviction as usize])));
        count_rows(encoder, "bedplate_controller_evictions", "Evictions of Pods", rows)
    }
}
