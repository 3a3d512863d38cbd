//! Exploration of health checks (HC4, HC5): 0 to 6 targets in each state, with each limit.

use super::processor_time;
use crate::health::tests::{check, target};
use crate::set::tests::at;
use crate::{Allowed, Amount, HealthCheck, NodeView, Target, plan_health};

/// A target that is healthy, starting, failed, failed and marked, failed and deleting, or of unknown health.
fn in_state(index: usize, state: usize) -> Target {
    let base = target(&format!("m{index}"));
    let failed = Target { node: NodeView::Deleted("node".to_owned()), ..base.clone() };
    match state {
        0 => base,
        1 => Target { node: NodeView::Absent, created: at(9_900), ..base },
        2 => failed,
        3 => Target { is_marked: true, ..failed },
        4 => Target { is_deleting: true, ..failed },
        _ => Target { node: NodeView::Unknown, ..base },
    }
}

#[test]
fn hc4_marks_stay_within_the_limit_in_every_state() {
    let start = processor_time();
    let limits = (0..=6).flat_map(|number| {
        let percent = u16::try_from(number * 16).unwrap();
        [Amount::Count(number), Amount::Percent(percent)].map(Allowed::AtMost)
    });
    let ranges = (0..=6).flat_map(|from| (from..=6).map(move |to| Allowed::Range { from, to }));
    let limits: Vec<Allowed> = limits.chain(ranges).collect();
    let mut plans = 0;
    // Targets are alike, so only the number in each state counts.
    let mut states = vec![Vec::new()];
    while let Some(of) = states.pop() {
        let targets: Vec<Target> =
            of.iter().enumerate().map(|(index, state)| in_state(index, *state)).collect();
        for allowed in &limits {
            let check = HealthCheck { allowed: *allowed, ..check() };
            let plan = plan_health(&targets, &check, at(10_000));
            plans += 1;
            let failed = |states: &[usize]| of.iter().filter(|state| states.contains(state)).count();
            let expected = u32::try_from(of.len()).unwrap();
            let unhealthy = expected - u32::try_from(failed(&[0])).unwrap();
            let is_allowed = match *allowed {
                Allowed::AtMost(Amount::Count(number)) => unhealthy <= number,
                Allowed::AtMost(Amount::Percent(percent)) => unhealthy * 100 <= u32::from(percent) * expected,
                Allowed::Range { from, to } => (from..=to).contains(&unhealthy),
            };
            assert_eq!(plan.is_allowed, is_allowed, "{of:?} {allowed:?}");
            assert_eq!(plan.mark.len(), if is_allowed { failed(&[2]) } else { 0 }, "{of:?} {allowed:?}");
            assert_eq!(plan.unhealthy.len(), failed(&[2, 3, 4]), "{of:?} {allowed:?}");
            assert_eq!((plan.expected, plan.expected - plan.current), (expected, unhealthy));
            assert_eq!(plan.next.is_some(), failed(&[1]) > 0, "{of:?}");
            // The marks are made: nothing is marked again.
            let marked = |one: &Target| Target {
                is_marked: one.is_marked || plan.mark.contains(&one.key),
                ..one.clone()
            };
            let after: Vec<Target> = targets.iter().map(marked).collect();
            let again = plan_health(&after, &check, at(10_000));
            assert_eq!((again.mark.len(), again.current), (0, plan.current), "{of:?} {allowed:?}");
        }
        if of.len() < 6 {
            let first = of.last().copied().unwrap_or(0);
            states.extend((first..=5).map(|state| [&of[..], &[state]].concat()));
        }
    }
    println!("{plans} plans, {:?}", processor_time().saturating_sub(start));
    assert!(plans > 30_000, "the exploration is not empty: {plans}");
}
