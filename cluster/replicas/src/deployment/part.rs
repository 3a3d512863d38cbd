//! Pure: the numbers of one MachineSet while a plan is made, and the bounds of the deployment. Called by the planners of each strategy.

use super::{Note, SetSummary, Strategy};

/// Numbers of a MachineSet. They are signed so that differences need no care, and wide so that sums do not overflow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Replicas that it asks for. 0 if it is being deleted: it will remove all its Machines.
    pub(crate) asked: i64,
    /// Machines that exist.
    pub(crate) existing: i64,
    /// Machines that are available.
    pub(crate) available: i64,
    /// Replicas that it should ask for.
    pub(crate) target: i64,
    /// Maximum of Machines when it was scaled last.
    pub(crate) recorded_maximum: Option<i64>,
    /// True if the set is being deleted.
    pub(crate) is_deleting: bool,
    /// Reasons for the target.
    pub(crate) notes: Vec<Note>,
}

impl Part {
    pub(crate) fn of(set: &SetSummary) -> Self {
        let asked = if set.is_deleting { 0 } else { i64::from(set.asked) };
        Self {
            asked,
            existing: i64::from(set.existing),
            available: i64::from(set.available),
            target: asked,
            recorded_maximum: set.max_replicas.map(i64::from),
            is_deleting: set.is_deleting,
            notes: Vec::new(),
        }
    }

    /// Changes the target.
    pub(crate) fn set(&mut self, target: i64, note: Note) {
        self.target = target;
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Existing Machines that are about to be removed, by an earlier plan or by this one.
    pub(crate) fn pending(&self) -> i64 {
        (self.existing - self.asked.min(self.target)).max(0)
    }

    /// Available Machines that are lost in the worst case when the pending Machines are removed.
    pub(crate) fn loss(&self) -> i64 {
        self.pending().min(self.available)
    }

    /// Machines that exist or are about to be created.
    pub(crate) fn reserved(&self) -> i64 {
        self.asked.max(self.existing)
    }
}

/// Bounds of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) replicas: i64,
    pub(crate) surge: i64,
    /// Maximum number of unavailable Machines.
    pub(crate) unavailable: i64,
}

impl Bounds {
    /// Resolves the bounds of a strategy. Without surge at least one Machine may be unavailable, or no rollout could proceed.
    pub(crate) fn of(strategy: Strategy, replicas: u32) -> Self {
        let (surge, unavailable) = match strategy {
            Strategy::OnDelete => (0, 0),
            Strategy::RollingUpdate { surge, unavailable } => {
                match (surge.of_rounded_up(replicas), unavailable.of_rounded_down(replicas)) {
                    (0, 0) => (0, 1),
                    bounds => bounds,
                }
            }
        };
        let unavailable = i64::from(unavailable.min(replicas));
        Self { replicas: replicas.into(), surge: surge.into(), unavailable }
    }

    /// Minimum number of available Machines.
    pub(crate) fn minimum(&self) -> i64 {
        self.replicas - self.unavailable
    }

    /// Maximum number of Machines.
    pub(crate) fn maximum(&self) -> i64 {
        self.replicas + self.surge
    }
}

/// Sets other than the current one, in the order in which they shrink.
pub(crate) fn oldest_first<'a>(sets: &'a [SetSummary], current: Option<&SetSummary>) -> Vec<&'a SetSummary> {
    let mut old: Vec<&SetSummary> =
        sets.iter().filter(|set| current.is_none_or(|current| current.key != set.key)).collect();
    old.sort_by_key(|set| (set.created, &set.key));
    old
}

/// Returns a number of Machines as fields have it.
pub(crate) fn to_count(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Amount;

    #[test]
    fn md2_bounds_leave_one_way_to_proceed() {
        let rolling = |surge, unavailable| Strategy::RollingUpdate { surge, unavailable };
        let (count, percent) = (Amount::Count, Amount::Percent);
        let cases = [
            (rolling(count(1), count(0)), 3, 3, 4),
            (rolling(count(0), count(0)), 3, 2, 3),
            (rolling(percent(0), percent(10)), 3, 2, 3),
            (rolling(percent(10), percent(10)), 3, 3, 4),
            (rolling(percent(39), percent(39)), 10, 7, 14),
            (rolling(percent(150), percent(999)), 4, 0, 10),
            (rolling(count(0), count(10)), 6, 0, 6),
            (rolling(count(10), count(0)), 0, 0, 10),
            (rolling(count(0), count(0)), 0, 0, 0),
            (Strategy::OnDelete, 3, 3, 3),
        ];
        for (strategy, replicas, minimum, maximum) in cases {
            let bounds = Bounds::of(strategy, replicas);
            assert_eq!((bounds.minimum(), bounds.maximum()), (minimum, maximum), "{strategy:?} {replicas}");
        }
    }
}
