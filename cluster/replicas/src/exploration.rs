//! Exhaustive explorations of the planners: every history of a small world, with a kill after each write.
//!
//! A world holds the objects, and what each process has read and not written yet. `deployment`, `set` and `health` explore one planner each.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::Duration;

#[cfg(test)]
mod deployment;
#[cfg(test)]
mod health;
#[cfg(test)]
mod set;

/// Maximum processor time of one exploration.
const BUDGET: Duration = Duration::from_secs(30);

/// A fast hash (FxHash): the states are not hostile.
#[derive(Default)]
pub(crate) struct FastHasher(u64);

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

pub(crate) type FastBuild = BuildHasherDefault<FastHasher>;
pub(crate) type Worlds<W> = HashSet<W, FastBuild>;

/// Processor time of this thread (proc_pid_schedstat(5)): other programs must not make an exploration fail.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// A world, and the states that can follow it.
pub(crate) trait World: Copy + Eq + Hash {
    /// Checks the invariants of this state.
    fn check(&self, settled: &mut Worlds<Self>);

    /// Adds the states after one step of one actor. A step checks its own invariants.
    fn next(&self, after: &mut Vec<Self>);
}

/// Visits every state, and returns the number of states and of steps.
pub(crate) fn explore<W: World>(start: impl IntoIterator<Item = W>) -> (usize, usize) {
    let mut open: Vec<W> = start.into_iter().collect();
    let mut seen: Worlds<W> = open.iter().copied().collect();
    let mut settled = Worlds::default();
    let (mut after, mut steps) = (Vec::new(), 0);
    while let Some(world) = open.pop() {
        world.check(&mut settled);
        after.clear();
        world.next(&mut after);
        steps += after.len();
        open.extend(after.drain(..).filter(|world| seen.insert(*world)));
    }
    (seen.len(), steps)
}

/// Sums up explorations, prints their size, and holds the budget.
#[derive(Default)]
pub(crate) struct Report {
    states: usize,
    steps: usize,
}

impl Report {
    pub(crate) fn add(&mut self, (states, steps): (usize, usize)) {
        self.states += states;
        self.steps += steps;
    }

    pub(crate) fn end(self, start: Duration, least_states: usize) {
        let time = processor_time().saturating_sub(start);
        println!("{} states, {} steps, {time:?}", self.states, self.steps);
        assert!(self.states > least_states, "the exploration is not empty: {}", self.states);
        assert!(time < BUDGET, "{} states took {time:?}", self.states);
    }
}
