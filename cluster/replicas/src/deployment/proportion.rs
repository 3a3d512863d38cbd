//! Pure: scaling while the deployment is paused (MD7). Called by the planner of deployments.
//!
//! A paused deployment starts and continues no rollout. With strategy RollingUpdate a change of its replicas is spread over its sets in
//! proportion to their size, so that the mixture of versions stays as it is. With OnDelete it is carried out only if at most
//! one set has replicas.

use super::part::{Bounds, Part};
use super::{Note, Strategy};

/// Decides the targets. The first part is the current set, which may not exist; the others follow from the oldest to the newest.
pub(crate) fn scale(bounds: &Bounds, strategy: Strategy, has_current: bool, parts: &mut [Part]) {
    let active: Vec<usize> = (0..parts.len()).filter(|index| parts[*index].asked > 0).collect();
    match (&active[..], strategy) {
        ([], _) if has_current => set(&mut parts[0], bounds.replicas),
        ([], _) => {
            // A set that is being deleted removes its Machines in any case.
            if let Some(newest) = parts[1..].iter_mut().rev().find(|part| !part.is_deleting) {
                set(newest, bounds.replicas);
            }
        }
        ([only], _) => set(&mut parts[*only], bounds.replicas),
        ([..], _) if is_saturated(bounds, &parts[0]) => {
            for part in &mut parts[1..] {
                set(part, 0);
            }
        }
        ([..], Strategy::RollingUpdate { .. }) => spread(bounds, active, parts),
        ([..], Strategy::OnDelete) => {}
    }
}

/// Returns true if the current set has all replicas.
fn is_saturated(bounds: &Bounds, current: &Part) -> bool {
    current.asked == bounds.replicas && current.available == bounds.replicas
}

fn spread(bounds: &Bounds, mut active: Vec<usize>, parts: &mut [Part]) {
    let maximum = if bounds.replicas > 0 { bounds.maximum() } else { 0 };
    let asked: i64 = active.iter().map(|index| parts[*index].asked).sum();
    let existing: i64 = parts.iter().map(|part| part.existing).sum();
    let mut left = maximum - asked;
    // Larger sets first. Of equal ones a newer one grows first, and an older one shrinks first. The current set is the newest.
    let age = |index: usize| if index == 0 { usize::MAX } else { index };
    active.sort_by_key(|index| {
        let age = if left > 0 { usize::MAX - age(*index) } else { age(*index) };
        (std::cmp::Reverse(parts[*index].asked), age)
    });
    let mut sizes = Vec::with_capacity(active.len());
    for index in &active {
        let part = &parts[*index];
        let recorded = part.recorded_maximum.unwrap_or(existing);
        let share = rounded(part.asked, maximum, recorded) - part.asked;
        // A share never goes against the direction, and never beyond what is left.
        let share = if left > 0 { share.clamp(0, left) } else { share.clamp(left, 0) };
        left -= share;
        sizes.push(part.asked + share);
    }
    // The largest set takes what rounding leaves, and the next one what it cannot take.
    for (index, size) in active.iter().zip(sizes) {
        let taken = left.max(-size);
        left -= taken;
        set(&mut parts[*index], size + taken);
    }
}

/// Returns `asked * maximum / recorded`, rounded to the nearest.
fn rounded(asked: i64, maximum: i64, recorded: i64) -> i64 {
    if recorded <= 0 {
        return asked;
    }
    let [asked, maximum, recorded] = [asked, maximum, recorded].map(i128::from);
    i64::try_from((2 * asked * maximum + recorded) / (2 * recorded)).unwrap_or(i64::MAX)
}

fn set(part: &mut Part, target: i64) {
    if part.asked != target {
        part.set(target, Note::Proportional);
    }
}
